"""Random collectives: operator, groups, sizes, dtype and where they are placed."""

import itertools
from collections.abc import Sequence

import attrs
import numpy as np
from hypothesis import strategies as st

from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from tests.programs import collective_program

PLACES = (
    ("trn2", 1, "linear", 2),
    ("trn2", 1, "spread", 1),
    ("trn2", 2, "linear", 2),
    ("trn1", 1, "linear", 1),
    ("trn1", 2, "spread", 1),
    ("inf2", 1, "spread", 1),
)

INTEGERS = (DType.S32, DType.U8, DType.S64)
FLOATS = (DType.F32, DType.BF16, DType.F16, DType.F64)
DIVIDING = (
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_TO_ALL,
    CollectiveOp.ALL_TO_ALL_V,
    CollectiveOp.SCATTER,
)
REDUCTIONS = {
    Reduction.ADD: np.add,
    Reduction.MULTIPLY: np.multiply,
    Reduction.MINIMUM: np.minimum,
    Reduction.MAXIMUM: np.maximum,
    Reduction.AND: np.bitwise_and,
    Reduction.OR: np.bitwise_or,
    Reduction.AVERAGE: np.add,
}


@attrs.frozen
class Case:
    """A collective program and where to run it."""

    program: Program
    place: tuple[str, int, str, int]
    op: CollectiveOp
    reduction: Reduction
    groups: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    root: int


@st.composite
def groups_of(draw: st.DrawFn, ranks: int, equal: bool) -> tuple[tuple[int, ...], ...]:
    """A partition of the ranks in random order; groups of one size where the operator needs it."""
    order = draw(st.permutations(range(ranks)))
    if equal:
        size = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
        return tuple(tuple(order[at : at + size]) for at in range(0, ranks, size))
    cuts = sorted(draw(st.sets(st.integers(1, ranks - 1), max_size=3))) if ranks > 1 else []
    edges = [0, *cuts, ranks]
    return tuple(tuple(order[a:b]) for a, b in itertools.pairwise(edges))


@st.composite
def pairs_of(draw: st.DrawFn, ranks: int) -> tuple[tuple[int, int], ...]:
    """Source-target pairs in which nobody sends or receives twice."""
    count = draw(st.integers(0, ranks))
    sources = draw(st.permutations(range(ranks)))[:count]
    targets = draw(st.permutations(range(ranks)))[:count]
    return tuple(zip(sources, targets, strict=True))


@st.composite
def some_groups(draw: st.DrawFn, op: CollectiveOp, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Groups that the operator allows; those of a broadcast may leave ranks out."""
    if op is CollectiveOp.PERMUTE:
        return ()
    groups = draw(groups_of(ranks, not op.takes_groups_of_any_sizes))
    if op is CollectiveOp.BROADCAST and len(groups) > 1 and draw(st.booleans()):
        return groups[1:]
    return groups


@st.composite
def dtypes_and_reductions(draw: st.DrawFn, op: CollectiveOp) -> tuple[DType, Reduction]:
    """Integers, whose results have one value; averages of floats."""
    reduction = draw(st.sampled_from(Reduction)) if op.reduces else Reduction.ADD
    dtypes = FLOATS if reduction is Reduction.AVERAGE else INTEGERS
    return draw(st.sampled_from(dtypes)), reduction


OF_FIXED_SIZE = tuple(op for op in CollectiveOp if not op.is_counted)
"""What is drawn here; tests/counted_programs.py has the others."""


@st.composite
def cases(draw: st.DrawFn, ops: Sequence[CollectiveOp] = OF_FIXED_SIZE) -> Case:
    """Any operator on any groups, one or two tensors, sizes that need not divide."""
    place = draw(st.sampled_from(PLACES))
    ranks = draw(st.integers(1, 6)) * place[1]
    op = draw(st.sampled_from(ops))
    groups = draw(some_groups(op, ranks))
    pairs = draw(pairs_of(ranks)) if op is CollectiveOp.PERMUTE else ()
    root = draw(st.integers(0, min(map(len, groups)) - 1)) if op.is_rooted else 0
    step = len(groups[0]) if op in DIVIDING else 1
    tensors = st.lists(st.integers(0, 9), min_size=1, max_size=2)
    sizes = [] if op is CollectiveOp.BARRIER else [size * step for size in draw(tensors)]
    dtype, reduction = draw(dtypes_and_reductions(op))
    program = collective_program(
        op,
        ranks,
        sizes,
        groups=groups,
        pairs=pairs,
        root=root,
        dtype=dtype,
        reduction=reduction,
        repeat=draw(st.integers(1, 3)),
    )
    return Case(program, place, op, reduction, groups, pairs, root)
