"""Random collectives: operator, groups, sizes, dtype and where they are placed."""

import itertools

import attrs
import numpy as np
from hypothesis import strategies as st

from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.reductions import Reduction
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
REDUCTIONS = {
    Reduction.ADD: np.add,
    Reduction.MULTIPLY: np.multiply,
    Reduction.MINIMUM: np.minimum,
    Reduction.MAXIMUM: np.maximum,
    Reduction.AND: np.bitwise_and,
    Reduction.OR: np.bitwise_or,
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
def cases(draw: st.DrawFn) -> Case:
    """Any operator on any groups, one or two tensors, sizes that need not divide."""
    place = draw(st.sampled_from(PLACES))
    ranks = draw(st.integers(1, 6)) * place[1]
    op = draw(st.sampled_from(CollectiveOp))
    is_permute = op is CollectiveOp.PERMUTE
    groups = () if is_permute else draw(groups_of(ranks, op is not CollectiveOp.ALL_REDUCE))
    pairs = draw(pairs_of(ranks)) if is_permute else ()
    divides = op in (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_TO_ALL)
    step = len(groups[0]) if divides else 1
    sizes = [size * step for size in draw(st.lists(st.integers(0, 9), min_size=1, max_size=2))]
    reduction = draw(st.sampled_from(Reduction))
    program = collective_program(
        op,
        ranks,
        sizes,
        groups=groups,
        pairs=pairs,
        dtype=draw(st.sampled_from(INTEGERS)),
        reduction=reduction,
        repeat=draw(st.integers(1, 3)),
    )
    return Case(program, place, op, reduction, groups, pairs)
