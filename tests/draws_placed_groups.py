"""Random groups of ranks on random placements, and jobs for them: what algorithms are tried on."""

import attrs
import numpy as np
from hypothesis import strategies as st

from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import Buffers, Job, Plan
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.placement import place
from ncc_runtime.topology.graph import build
from tests.programs import collective_program, result_elements

OPERATORS = (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_GATHER)
MACHINES = (
    ("trn2", 1, 2),
    ("trn2", 1, 1),
    ("trn2", 2, 2),
    ("trn2", 4, 2),
    ("trn1", 1, 1),
    ("trn1", 3, 1),
    ("inf2", 1, 1),
    ("trn2-ultraserver", 1, 2),
    ("trn3-gen1-ultraserver", 2, 1),
    ("trn3-gen2-ultraserver", 1, 2),
    ("dgx-h100", 2, 1),
    ("tpu-v4-cube", 1, 1),
)
WORD = 4
NEVER_IN_PLACE = ("direct",)
"""All-reduces whose members read each other's operands until the end."""


@attrs.frozen
class Case:
    """One group's collective by one algorithm."""

    op: CollectiveOp
    name: str
    layout: GroupLayout
    sizes: tuple[int, ...]
    in_place: bool = False

    @property
    def results(self) -> tuple[int, ...]:
        """Elements of the results of a member."""
        members = self.layout.members
        return tuple(result_elements(self.op, size, members) for size in self.sizes)

    def plan(self) -> Plan:
        """The plan; UnsuitedError if the algorithm does not work for the group."""
        algorithm = ALGORITHMS[self.op][self.name]
        members = self.layout.members
        program = collective_program(self.op, members, self.sizes, reduction=Reduction.ADD)
        buffers = Buffers(WORD, self.sizes, self.results, self.in_place)
        job = Job(program.placeholders[0], buffers)
        return algorithm.build(job, algorithm.arrange(self.layout))

    def wanted(self, operands: np.ndarray, member: int) -> np.ndarray:
        """A result of a member, from the operands of one tensor, (members, elements)."""
        if self.op is CollectiveOp.ALL_GATHER:
            return operands.reshape(-1)
        joined = operands.sum(axis=0, dtype=operands.dtype)
        if self.op is CollectiveOp.ALL_REDUCE:
            return joined
        return joined.reshape(self.layout.members, -1)[member]


def layout_of(
    machine: tuple[str, int, int], ranks: int, group: list[int] | None = None, how: str = "linear"
) -> GroupLayout:
    """The layout of a group, of all ranks if none is given."""
    name, nodes, lnc = machine
    placement = place(build(name, nodes, lnc), ranks, how)
    return GroupLayout.of(placement, range(ranks) if group is None else group)


def suited(op: CollectiveOp, layout: GroupLayout) -> list[str]:
    """The algorithms that work for a group."""
    found = []
    for name, algorithm in ALGORITHMS[op].items():
        try:
            algorithm.arrange(layout)
        except UnsuitedError:
            continue
        found.append(name)
    return found


@st.composite
def layouts(draw: st.DrawFn) -> GroupLayout:
    """All ranks of a placement, or some in any order."""
    machine = draw(st.sampled_from(MACHINES))
    nodes = machine[1]
    ranks = nodes * draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    order = list(range(ranks))
    if draw(st.booleans()):
        order = draw(st.permutations(order))[: draw(st.integers(1, ranks))]
    return layout_of(machine, ranks, order, draw(st.sampled_from(("linear", "spread"))))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any algorithm that works for a random group, on one tensor or two of any sizes."""
    layout, op = draw(layouts()), draw(st.sampled_from(OPERATORS))
    step = layout.members if op is CollectiveOp.REDUCE_SCATTER else 1
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=2))
    name = draw(st.sampled_from(suited(op, layout)))
    may_be_in_place = op is CollectiveOp.ALL_REDUCE and name not in NEVER_IN_PLACE
    in_place = may_be_in_place and draw(st.booleans())
    return Case(op, name, layout, tuple(size * step for size in sizes), in_place)
