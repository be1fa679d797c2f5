"""Rotations: whether all ranks of a segment do the same, one place further along a cycle.

In a ring every rank waits for the same numbers on the same semaphores, and increments them at
itself, at its successor or at its predecessor. Then turning all ranks by a place changes nothing
in who waits for whom. Lanes that go around on the same cycle are a family.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Post
from ncc_runtime.verify.races.steps import CC
from ncc_runtime.verify.segment_rows import RingRows, blocks
from ncc_runtime.verify.segments import Segment

MOST_PATTERNS = 64
"""Distinct columns of ranks that are looked at before a segment is called irregular."""


@attrs.frozen(eq=False)
class Cycle:
    """A permutation of the ranks, all of whose cycles have one length."""

    successor: np.ndarray  # (ranks,)
    length: int

    def turned(self, ranks: np.ndarray, places: int) -> np.ndarray:
        """Who stands 0, 1 or -1 places further than each of these ranks."""
        if places == 0:
            return ranks
        column = self.successor if places == 1 else np.argsort(self.successor)
        return np.asarray(column[ranks])

    def places(self, column: np.ndarray) -> int | None:
        """How far a column of ranks is turned, where it is by 0, 1 or -1 places."""
        everybody = np.arange(len(column))
        fitting = (one for one in (0, 1, -1) if (self.turned(everybody, one) == column).all())
        return next(fitting, None)


@attrs.frozen(eq=False)
class Increments:
    """What chains increment, alike on all ranks."""

    sem: np.ndarray  # (i,) ascending, then by row
    chain: np.ndarray  # (i,)
    row: np.ndarray  # (i,) of the chain
    family: np.ndarray  # (i,) IDLE: its own semaphore
    places: np.ndarray  # (i,) how much further the rank stands whose semaphore it is


@attrs.frozen(eq=False)
class Turns:
    """A segment that may be turned."""

    cycles: tuple[Cycle, ...]  # one per family
    family: tuple[int, ...]  # of each ring
    places: tuple[np.ndarray, ...]  # per ring and row, how far it writes
    increments: Increments


def turns_of(segment: Segment) -> Turns | None:
    """The families of a segment; None if its rows differ from rank to rank."""
    cc = segment.cc
    if not (_alike(cc.wait_sem) and _alike(cc.wait_value) and all(map(_is_plain, segment.rings))):
        return None
    cycles: list[Cycle] = []
    family, places = [], []
    for ring in segment.rings:
        found = _patterns(ring.peer)
        number = None if found is None else _family(found[1], cycles)
        if found is None or number is None:
            return None
        turned = [cycles[number].places(pattern) for pattern in found[1]]
        if None in turned:
            return None
        family.append(number)
        places.append(np.array(turned)[found[0]])
    increments = _increments(segment, cycles) if cycles else None
    if increments is None:
        return None
    return Turns(tuple(cycles), tuple(family), tuple(places), increments)


def _alike(column: np.ndarray) -> bool:
    """Whether rows are alike on all ranks."""
    return all(
        bool((column[rows] == column[rows, :1]).all())
        for rows in blocks(column.shape)
        if column.shape[1] > 1 and column.strides[1] != 0
    )


def _is_plain(ring: RingRows) -> bool:
    """Whether rows read their own memory and write once."""
    if ring.second_peer is not None and (ring.second_peer != IDLE).any():
        return False
    if ring.source_rank is None:
        return True
    own = np.arange(ring.peer.shape[1])[None, :, None]
    return bool(((ring.source_rank == IDLE) | (ring.source_rank == own)).all())


def _patterns(column: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Which pattern each row of a column is, and the patterns; None if they are many."""
    found: list[np.ndarray] = []
    number = np.full(len(column), IDLE)
    if column.strides[0] == 0:
        return np.zeros(len(column), np.int64), [column[0]]
    while len(left := np.flatnonzero(number == IDLE)):
        if len(found) == MOST_PATTERNS:
            return None
        pattern = column[left[0]]
        maybe = left[(column[left, :2] == pattern[:2]).all(axis=1)]
        for some in blocks((len(maybe), column.shape[1])):
            rows = maybe[some]
            number[rows[(column[rows] == pattern).all(axis=1)]] = len(found)
        found.append(pattern)
    return number, found


def _family(patterns: Sequence[np.ndarray], cycles: list[Cycle]) -> int | None:
    """The family of a ring by the ranks that it writes to, perhaps a new one."""
    everybody = np.arange(len(patterns[0]))
    other = next((one for one in patterns if (one != everybody).any()), None)
    if other is None:
        return None
    for number, cycle in enumerate(cycles):
        if cycle.places(other) is not None:
            return number
    found = _cycle(other)
    if found is not None:
        cycles.append(found)
        return len(cycles) - 1
    return None


def _cycle(successor: np.ndarray) -> Cycle | None:
    """The cycle of a column of ranks; None if it is no permutation or has cycles of two lengths."""
    everybody = np.arange(len(successor))
    if not np.array_equal(np.sort(successor), everybody):
        return None
    at, length = successor, 1
    while not (back := at == everybody).any():
        at, length = successor[at], length + 1
    return Cycle(successor, length) if back.all() else None


def _increments(segment: Segment, cycles: Sequence[Cycle]) -> Increments | None:
    chains = [(CC, segment.cc.posts)]
    chains += [(number + 1, ring.posts) for number, ring in enumerate(segment.rings)]
    parts: list[np.ndarray] = [np.zeros((5, 0), np.int64)]
    for chain, posts in chains:
        for post in posts:
            part = _of_post(chain, post, cycles)
            if part is None:
                return None
            parts.append(part)
    columns = np.concatenate(parts, axis=1)
    return Increments(*columns[:, np.lexsort((columns[2], columns[0]))])


def _of_post(chain: int, post: Post, cycles: Sequence[Cycle]) -> np.ndarray | None:
    """Columns of Increments for one post of a chain."""
    found = _patterns(post.rank)
    if found is None or not _alike(post.sem):
        return None
    turned = [_turned(pattern, cycles) for pattern in found[1]]
    made = np.array([one is not None for one in turned])
    others = [pattern for pattern, is_turn in zip(found[1], made, strict=True) if not is_turn]
    if any((pattern != IDLE).any() for pattern in others):
        return None
    rows = np.flatnonzero(made[found[0]])
    family, places = np.array([one or (IDLE, 0) for one in turned])[found[0][rows]].T
    sem = post.sem[rows, 0].astype(np.int64)
    return np.stack((sem, np.full(len(rows), chain), rows, family, places))


def _turned(pattern: np.ndarray, cycles: Sequence[Cycle]) -> tuple[int, int] | None:
    """Along which family, and how far."""
    for number, cycle in enumerate(cycles):
        places = cycle.places(pattern)
        if places is not None:
            return (number if places else IDLE), places
    return None
