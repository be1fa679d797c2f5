"""What each collective promises of its results, said once more and by itself.

A result is cut into equal parts. Part j on a rank is zeros, or a part of one rank's operand, or
the join of that part of everybody's operands. Written from docs/neff.md; algorithms are not asked.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.shared.reductions import Reduction

EVERYBODY = -1
NOBODY = -2


@attrs.frozen(eq=False)
class Promise:
    """What the results of some ranks hold; the same for each pair of operand and result."""

    ranks: np.ndarray  # (n,) int64: whose results
    giver: np.ndarray  # (n or 1, parts of a result): a rank, EVERYBODY or NOBODY (zeros)
    taken: np.ndarray  # (n or 1, parts of a result): which part of the giver's operand
    operand_parts: int = 1
    joined: tuple[int, ...] = ()  # who EVERYBODY is
    divisor: int = 1  # of what everybody gives, at the end

    def of(self, ranks: Sequence[int]) -> "Promise":
        """The same to those of the ranks to whom it is made."""
        where = np.flatnonzero(np.isin(self.ranks, ranks))
        giver, taken = (
            column if len(column) == 1 else column[where] for column in (self.giver, self.taken)
        )
        return attrs.evolve(self, ranks=self.ranks[where], giver=giver, taken=taken)


def promises(placeholder: Placeholder, ranks: int) -> Iterator[Promise]:
    """Every rank that a placeholder gives something stands in one of them."""
    if placeholder.op is CollectiveOp.PERMUTE:
        yield _permuted(placeholder.pairs, ranks)
        return
    for group in placeholder.groups:
        yield from _of_group(placeholder, group)
    outside = np.setdiff1d(np.arange(ranks), [rank for one in placeholder.groups for rank in one])
    if len(outside) and placeholder.op is CollectiveOp.BROADCAST:
        yield _alike(outside, NOBODY)


def _of_group(placeholder: Placeholder, group: tuple[int, ...]) -> Iterator[Promise]:
    members: np.ndarray = np.array(group, np.int64)
    count = len(members)
    in_turn, place = members[None, :], np.arange(count)
    first, own = np.zeros((1, 1), np.int64), place[:, None]
    root = members[placeholder.root or 0]
    others = members[members != root]
    divisor = count if placeholder.reduction is Reduction.AVERAGE else 1
    match placeholder.op:
        case CollectiveOp.ALL_REDUCE:
            yield _joined(members, group, divisor)
        case CollectiveOp.REDUCE_SCATTER:
            giver = np.full((1, 1), EVERYBODY)
            yield Promise(members, giver, own, count, group, divisor)
        case CollectiveOp.ALL_GATHER:
            yield Promise(members, in_turn, np.zeros_like(in_turn))
        case CollectiveOp.ALL_TO_ALL:
            yield Promise(members, in_turn, np.broadcast_to(own, (count, count)), count)
        case CollectiveOp.BROADCAST:
            yield _alike(members, root)
        case CollectiveOp.REDUCE:
            yield _joined(members[members == root], group, divisor)
            yield _alike(others, NOBODY)
        case CollectiveOp.GATHER:
            yield Promise(members[members == root], in_turn, np.zeros_like(in_turn))
            yield _alike(others, NOBODY)
        case CollectiveOp.SCATTER:
            yield Promise(members, first + root, own, count)
        case CollectiveOp.BARRIER | CollectiveOp.PERMUTE:
            return


def _alike(ranks: np.ndarray, giver: int) -> Promise:
    """All of one rank's operand, or zeros."""
    return Promise(ranks, np.full((1, 1), giver), np.zeros((1, 1), np.int64))


def _joined(ranks: np.ndarray, group: tuple[int, ...], divisor: int) -> Promise:
    """All of everybody's operands."""
    whole = np.zeros((1, 1), np.int64)
    return Promise(ranks, np.full((1, 1), EVERYBODY), whole, 1, group, divisor)


def _permuted(pairs: tuple[tuple[int, int], ...], ranks: int) -> Promise:
    giver = np.full((ranks, 1), NOBODY)
    for source, target in pairs:
        giver[target] = source
    return Promise(np.arange(ranks), giver, np.zeros((1, 1), np.int64))
