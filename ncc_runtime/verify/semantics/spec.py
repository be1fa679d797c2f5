"""What each collective must compute: a table of its results, written from docs/neff.md alone.

A result is cut into equal parts. Part j on a rank is zeros, or a part of one rank's operand, or
that part of the operands of the rank's group, reduced. Algorithms are not looked at.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.shared.reductions import Reduction

REDUCED = -1
"""In place of a source rank: the operands of the group, reduced."""

ZEROS = -2
"""In place of a source rank: zeros."""


@attrs.frozen(eq=False)
class ResultSpec:
    """What the results of some ranks must hold; the same for each pair of operand and result."""

    ranks: np.ndarray  # (n,) int64: whose results
    source: np.ndarray  # (n or 1, parts of a result): a rank, REDUCED or ZEROS
    source_part: np.ndarray  # (n or 1, parts of a result): which part of the source's operand
    operand_parts: int = 1
    group: tuple[int, ...] = ()  # whose operands are reduced
    divisor: int = 1  # of what is reduced, at the end

    @property
    def parts(self) -> int:
        """Into how many equal parts a result is cut."""
        return self.source.shape[1]

    def of(self, ranks: Sequence[int]) -> "ResultSpec":
        """The same for those of the ranks that it is about."""
        where = np.flatnonzero(np.isin(self.ranks, ranks))
        source, source_part = (
            column if len(column) == 1 else column[where]
            for column in (self.source, self.source_part)
        )
        return attrs.evolve(self, ranks=self.ranks[where], source=source, source_part=source_part)


def specs_of(placeholder: Placeholder, ranks: int) -> Iterator[ResultSpec]:
    """Every rank that has a result stands in one of them."""
    if placeholder.op is CollectiveOp.PERMUTE:
        yield _permuted(placeholder.pairs, ranks)
        return
    for group in placeholder.groups:
        yield from _of_group(placeholder, group)
    outside = np.setdiff1d(np.arange(ranks), [rank for one in placeholder.groups for rank in one])
    if len(outside) and placeholder.op is CollectiveOp.BROADCAST:
        yield _copied(outside, ZEROS)


def _of_group(placeholder: Placeholder, group: tuple[int, ...]) -> Iterator[ResultSpec]:
    members: np.ndarray = np.array(group, np.int64)
    count = len(members)
    in_turn, place = members[None, :], np.arange(count)
    first, own = np.zeros((1, 1), np.int64), place[:, None]
    root = members[placeholder.root or 0]
    others = members[members != root]
    divisor = count if placeholder.reduction is Reduction.AVERAGE else 1
    match placeholder.op:
        case CollectiveOp.ALL_REDUCE:
            yield ResultSpec(members, first + REDUCED, first, 1, group, divisor)
        case CollectiveOp.REDUCE_SCATTER:
            yield ResultSpec(members, first + REDUCED, own, count, group, divisor)
        case CollectiveOp.ALL_GATHER:
            yield ResultSpec(members, in_turn, np.zeros_like(in_turn))
        case CollectiveOp.ALL_TO_ALL:
            yield ResultSpec(members, in_turn, np.broadcast_to(own, (count, count)), count)
        case CollectiveOp.BROADCAST:
            yield _copied(members, root)
        case CollectiveOp.REDUCE:
            at_root = members[members == root]
            yield ResultSpec(at_root, first + REDUCED, first, 1, group, divisor)
            yield _copied(others, ZEROS)
        case CollectiveOp.GATHER:
            yield ResultSpec(members[members == root], in_turn, np.zeros_like(in_turn))
            yield _copied(others, ZEROS)
        case CollectiveOp.SCATTER:
            yield ResultSpec(members, first + root, own, count)
        case CollectiveOp.BARRIER | CollectiveOp.PERMUTE:
            return


def _copied(ranks: np.ndarray, source: int) -> ResultSpec:
    """All of one rank's operand, or zeros."""
    return ResultSpec(ranks, np.full((1, 1), source), np.zeros((1, 1), np.int64))


def _permuted(pairs: tuple[tuple[int, int], ...], ranks: int) -> ResultSpec:
    source_of = np.full((ranks, 1), ZEROS)
    for source, target in pairs:
        source_of[target] = source
    return ResultSpec(np.arange(ranks), source_of, np.zeros((1, 1), np.int64))
