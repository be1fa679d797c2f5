"""The rows of a segment in an order that all waits allow, and the increment that each asks for.

A chain is the CC-core of a rank (0) or one of its rings (k + 1 for the k-th of the segment). As a
semaphore has one incrementing chain, the n-th increment is one row of it: that is what a wait for
n asks for. A ring row follows the CC row that pushes it, so a row of the CC-core speaks for both.
"""

import itertools
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Post
from ncc_runtime.verify.segment_rows import blocks
from ncc_runtime.verify.segments import Segment

CC = 0
"""The chain of a CC-core; ring k of the segment is chain k + 1."""


@attrs.frozen(eq=False)
class Waits:
    """Every wait for an increment of the segment itself: who waits where for which row of whom."""

    row: np.ndarray  # (w,) of the CC-core, ascending
    rank: np.ndarray  # (w,)
    chain: np.ndarray  # (w,) that increments
    post_row: np.ndarray  # (w,) of that chain
    poster: np.ndarray  # (w,) rank


@attrs.frozen
class Fault:
    """A wait that the segment's own increments do not satisfy, at a CC row of a rank."""

    row: int
    rank: int
    joined: bool  # several chains increment the semaphore; else there are too few increments


@attrs.frozen(eq=False)
class Group:
    """Waits of one CC row for one row of a chain, on several ranks."""

    chain: int
    row: int
    ranks: np.ndarray | None  # None: all ranks
    posters: np.ndarray  # of each of them


Batch = tuple[int, np.ndarray | None]
"""A CC row, and the ranks that perform it together; None: all of them."""


@attrs.frozen(eq=False)
class Steps:
    """What the rows of a segment wait for and push, in an order in which they can be performed."""

    ranks: int
    chain: tuple[int, ...]  # per CC row, of the ring that it pushes, else IDLE
    pushed: tuple[int, ...]  # per CC row, the row of that ring
    performs: tuple[np.ndarray | None, ...]  # per ring (rows, ranks) bool; None: everybody all
    groups: Mapping[int, Sequence[Group]]  # by CC row
    batches: tuple[Batch, ...]

    def pushing(self, ring: int) -> np.ndarray:
        """For each row of a ring the CC row that pushes it."""
        return np.flatnonzero(np.array(self.chain) == ring + 1)

    def moment(self) -> np.ndarray | None:
        """When each CC row is performed, (rows, ranks) by batch; None: row after row."""
        if all(ranks is None for _, ranks in self.batches):
            return None
        found: np.ndarray = np.zeros((len(self.chain), self.ranks), np.int64)
        for number, (row, ranks) in enumerate(self.batches):
            found[row, slice(None) if ranks is None else ranks] = number
        return found


def chains_pushed(segment: Segment) -> np.ndarray | None:
    """Per CC row the chain that it pushes, else IDLE; None if a ring row is not pushed in turn."""
    found = np.full(len(segment.cc), IDLE, np.int64)
    for number, ring in enumerate(segment.rings):
        rows = np.flatnonzero(segment.cc.lane == ring.lane)
        if not np.array_equal(segment.cc.pushed[rows], np.arange(len(ring))):
            return None
        found[rows] = number + 1
    return found


def performed(segment: Segment, chain: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Per ring, which of its rows each rank pushes."""
    pushing = segment.cc.posts[0].rank
    found = []
    for number in range(len(segment.rings)):
        pushes = pushing[chain == number + 1] != IDLE
        found.append(None if pushes.all() else pushes)
    return tuple(found)


def waits_of(
    segment: Segment, performs: Sequence[np.ndarray | None], width: int
) -> tuple[Waits, tuple[Fault, ...]]:
    """All waits with what they ask for, and those that ask in vain; `width` semaphores a rank."""
    row, rank, key, value = _awaited(segment, width)
    wanted: np.ndarray = np.zeros(segment.ranks * width, bool)
    wanted[key] = True
    made = _increments(segment, performs, wanted, width)
    count = np.bincount(made.key, minlength=len(wanted))
    first = np.cumsum(count) - count
    joined = _joined(made, len(wanted))
    good = (value <= count[key]) & ~joined[key]
    faults = tuple(
        Fault(int(row[at]), int(rank[at]), bool(joined[key[at]])) for at in np.flatnonzero(~good)
    )
    asked = (first[key] + value - 1)[good]
    waits = Waits(row[good], rank[good], made.chain[asked], made.row[asked], made.poster[asked])
    return waits, faults


def _awaited(segment: Segment, width: int) -> tuple[np.ndarray, ...]:
    """(CC row, rank, semaphore as one number, value) of all waits that do not hold on entry."""
    cc = segment.cc
    shape = (len(cc), segment.ranks)
    asks = np.broadcast_to((cc.wait_sem != IDLE) & (cc.wait_value > 0), shape)
    row, rank = np.nonzero(asks)
    sem = np.broadcast_to(cc.wait_sem, shape)[row, rank]
    value = np.broadcast_to(cc.wait_value, shape)[row, rank]
    return row, rank, rank * width + sem, value


@attrs.frozen(eq=False)
class _Increments:
    """Increments by semaphore, in the order they are made."""

    key: np.ndarray  # (n,) rank and semaphore as one number, ascending
    chain: np.ndarray
    row: np.ndarray
    poster: np.ndarray


def _increments(
    segment: Segment, performs: Sequence[np.ndarray | None], wanted: np.ndarray, width: int
) -> _Increments:
    """Those of the wanted semaphores."""
    parts = [_of_post(CC, post, None, wanted, width) for post in segment.cc.posts]
    for number, ring in enumerate(segment.rings):
        parts += [
            _of_post(number + 1, post, performs[number], wanted, width) for post in ring.posts
        ]
    key, chain, row, poster = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(key * (row.max(initial=0) + 1) + row)
    return _Increments(key[order], chain[order], row[order], poster[order])


def _of_post(
    chain: int, post: Post, performs: np.ndarray | None, wanted: np.ndarray, width: int
) -> tuple[np.ndarray, ...]:
    """(semaphore as one number, chain, row, poster) of one post, row by row."""
    found = []
    for rows in blocks(post.rank.shape):
        to = post.rank[rows]
        key = to * np.int64(width) + post.sem[rows]
        makes = (to != IDLE) & wanted[np.where(to == IDLE, 0, key)]
        if performs is not None:
            makes &= performs[rows]
        row, poster = np.nonzero(makes)
        found.append((key[row, poster], row + rows.start, poster))
    if not found:
        return (np.zeros(0, np.int64),) * 4
    keys, row, poster = (np.concatenate(column) for column in zip(*found, strict=True))
    return keys, np.full(len(keys), chain), row, poster


def _joined(made: _Increments, keys: int) -> np.ndarray:
    """By semaphore, whether more than one chain of one rank increments it."""
    differs = (made.chain[1:] != made.chain[:-1]) | (made.poster[1:] != made.poster[:-1])
    joined: np.ndarray = np.zeros(keys, bool)
    joined[made.key[1:][(made.key[1:] == made.key[:-1]) & differs]] = True
    return joined


def in_order(
    chain: np.ndarray, segment: Segment, performs: tuple[np.ndarray | None, ...], waits: Waits
) -> Steps:
    """The steps; where ranks come to a standstill, batches end before the last row."""
    need = waits.post_row + 1  # CC rows that the poster must have performed
    for number in range(len(segment.rings)):
        its = waits.chain == number + 1
        need[its] = np.flatnonzero(chain == number + 1)[waits.post_row[its]] + 1
    rows = len(segment.cc)
    batches: tuple[Batch, ...] = tuple((row, None) for row in range(rows))
    if not (need <= waits.row).all():
        batches = _greedy(rows, segment.ranks, waits, need)
    return Steps(
        ranks=segment.ranks,
        chain=tuple(chain.tolist()),
        pushed=tuple(segment.cc.pushed.tolist()),
        performs=performs,
        groups=_groups(waits, segment.ranks),
        batches=batches,
    )


def _greedy(rows: int, ranks: int, waits: Waits, need: np.ndarray) -> tuple[Batch, ...]:
    """What can be performed, all ranks as far as they come."""
    needed: np.ndarray = np.zeros((rows + 1, ranks), np.int64)
    poster: np.ndarray = np.zeros((rows + 1, ranks), np.int64)
    needed[waits.row, waits.rank], poster[waits.row, waits.rank] = need, waits.poster
    needed[rows] = rows + 1  # nobody goes on behind the end
    everybody, at = np.arange(ranks), np.zeros(ranks, np.int64)
    batches: list[Batch] = []
    while True:
        ready = at[poster[at, everybody]] >= needed[at, everybody]
        if not ready.any():
            return tuple(batches)
        standing = np.unique(at[ready]).tolist()
        batches += [(row, np.flatnonzero(ready & (at == row))) for row in standing]
        at += ready


def _groups(waits: Waits, ranks: int) -> Mapping[int, Sequence[Group]]:
    """Waits that ask one row for rows of equal number, together."""
    if not len(waits.row):
        return {}
    order = np.lexsort((waits.post_row, waits.chain, waits.row))
    row, chain, post_row = waits.row[order], waits.chain[order], waits.post_row[order]
    new = (np.diff(row) != 0) | (np.diff(chain) != 0) | (np.diff(post_row) != 0)
    edges = [0, *(np.flatnonzero(new) + 1).tolist(), len(row)]
    rank, poster = waits.rank[order], waits.poster[order]
    found: dict[int, list[Group]] = {}
    for first, last in itertools.pairwise(edges):
        who = None if last - first == ranks else rank[first:last]
        group = Group(int(chain[first]), int(post_row[first]), who, poster[first:last])
        found.setdefault(int(row[first]), []).append(group)
    return found
