"""The collectives that HLO lacks: averages, those with a root, barriers.

A root is a place in each group. Where only the root gets something, the others get zeros.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_compiler.ir.collectives import AVERAGING
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.reference.collectives import InGroup, cut, dimension_of, each_operand
from ncc_compiler.reference.conversion import dtype_of, narrowed, working
from ncc_compiler.reference.elementwise import ELEMENTWISE
from ncc_compiler.reference.step import Meaning, Step, Value


def reduced(step: Step, members: Sequence[np.ndarray]) -> np.ndarray:
    """Folded in the order of the group; an average is rounded once, behind its division."""
    name = str(step.node.attributes.get("reduction", "average"))
    dtype = dtype_of(members[0])
    if step.node.op in AVERAGING or name == "average":
        total = working(members[0])
        for array in members[1:]:
            total = np.asarray(total + working(array))
        return narrowed(np.asarray(total / total.dtype.type(len(members))), dtype)
    node = attrs.evolve(step.node, type=ArrayType(dtype, members[0].shape), attributes={})
    folded = members[0]
    for array in members[1:]:
        folded = ELEMENTWISE[name](node, (folded, array))
    return folded


def _average(step: Step, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    total = reduced(step, members)
    return [total.copy() for _ in members]


def _average_scattered(step: Step, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    return cut(step, reduced(step, members), len(members))


def _at_root(step: Step, result: np.ndarray, members: int) -> list[np.ndarray]:
    """The result at the root, zeros elsewhere."""
    root = step.node.integer("root")
    return [result.copy() if k == root else np.zeros_like(result) for k in range(members)]


def _reduce(step: Step, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    return _at_root(step, reduced(step, members), len(members))


def _gather(step: Step, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    gathered = np.concatenate(members, axis=dimension_of(step))
    return _at_root(step, gathered, len(members))


def _scatter(step: Step, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    return cut(step, members[step.node.integer("root")], len(members))


def _barrier(step: Step) -> list[Value]:
    """What it is given; here every rank does every step at once."""
    return [
        () if not given else given[0] if len(given) == 1 else tuple(given)
        for given in step.operands
    ]


def _in_groups(in_group: InGroup) -> Meaning:
    return each_operand(in_group, may_have_global_ids=True)


NCC_COLLECTIVES: Mapping[str, Meaning] = {
    "ncc.avg_all_reduce": _in_groups(_average),
    "ncc.avg_reduce_scatter": _in_groups(_average_scattered),
    "ncc.reduce": _in_groups(_reduce),
    "ncc.gather": _in_groups(_gather),
    "ncc.scatter": _in_groups(_scatter),
    "ncc.barrier": _barrier,
}
"""What each of them makes of the operands of all ranks."""
