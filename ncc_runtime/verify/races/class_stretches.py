"""Stretches of memory: whether the rows of a segment that may be turned use all memories alike.

Seen from the memory that it touches, each source or target of a row has a place on every rank. If
rows that begin at one address of the first rank's memory begin at one address in each, and what
they touch, taken together, is disjoint in each from what begins elsewhere, then what conflicts on
any rank begins at one address on the first.
"""

import itertools
from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.verify.races.class_turns import Cycle, Turns
from ncc_runtime.verify.segment_rows import RingRows, packed
from ncc_runtime.verify.segments import Segment

RANKS_AT_ONCE = 64
"""Memories that are compared with the first at once."""

MOST_GAPS = 4
"""Places for spans per span: where there are more, sorting is the cheaper way."""


@attrs.frozen(eq=False)
class Use:
    """A source or the target of all rows of a ring."""

    ring: int
    stretch: np.ndarray  # (rows,) which, IDLE for none
    behind: np.ndarray  # (rows,) places from the ring's rank on to the rank of the memory
    writes: bool


@attrs.frozen(eq=False)
class _Column:
    """Addresses and sizes of a source or target, by the rank of the memory."""

    ring: RingRows
    source: int | None  # None: the target
    cycle: Cycle
    behind: np.ndarray  # (rows,)

    @property
    def addresses(self) -> np.ndarray:
        """(rows, ranks) by the ring's rank."""
        return self.ring.target if self.source is None else self.ring.sources[:, :, self.source]

    def moves(self) -> np.ndarray:
        """(rows,) bool: which rows move bytes on any rank."""
        return np.asarray((packed(self.ring.size_bytes) > 0).any(axis=1))

    def of(self, column: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """A column by the ring's rank, seen from the memories of some ranks."""
        if self.source is not None:
            return column[:, ranks[0] : ranks[-1] + 1]
        found = np.empty((len(column), len(ranks)), column.dtype)
        for places in np.unique(self.behind).tolist():
            rows = np.flatnonzero(self.behind == places)
            found[rows] = column[rows[:, None], self.cycle.turned(ranks, -places)[None, :]]
        return found


def uses_of(segment: Segment, turns: Turns) -> tuple[Use, ...] | None:
    """The uses with their stretches; None if memories are not used alike."""
    columns, rings = _columns(segment, turns)
    first = np.zeros(1, np.int64)
    starts = [column.of(column.addresses, first)[:, 0] for column in columns]
    moves = [column.moves() for column in columns]
    touches = [(start != IDLE) & some for start, some in zip(starts, moves, strict=True)]
    edges = np.cumsum([0, *(np.count_nonzero(some) for some in touches)]).tolist()
    touched = [start[some] for start, some in zip(starts, touches, strict=True)]
    _, firsts, stretch = np.unique(np.concatenate(touched), return_index=True, return_inverse=True)
    rows = [np.flatnonzero(some) for some in touches]
    numbers = [stretch[begin:end] for begin, end in itertools.pairwise(edges)]
    comparison = _Comparison(columns, rows, numbers, firsts)
    if not (comparison.idle_alike(moves) and comparison.all_alike(segment.ranks)):
        return None
    found = []
    for column, ring, its, number in zip(columns, rings, rows, numbers, strict=True):
        whole = np.full(len(column.behind), IDLE)
        whole[its] = number
        found.append(Use(ring, whole, column.behind, column.source is None))
    return tuple(found)


def _columns(segment: Segment, turns: Turns) -> tuple[list[_Column], list[int]]:
    """All sources and targets, and the rings they belong to."""
    columns, rings = [], []
    for number, ring in enumerate(segment.rings):
        cycle, places = turns.cycles[turns.family[number]], turns.places[number]
        home, count = np.zeros_like(places), int(ring.sources.shape[2])
        columns += [_Column(ring, source, cycle, home) for source in range(count)]
        columns.append(_Column(ring, None, cycle, places))
        rings += [number] * (count + 1)
    return columns, rings


@attrs.frozen(eq=False)
class _Comparison:
    """Compares the memories of all ranks with the first rank's."""

    columns: Sequence[_Column]
    rows: Sequence[np.ndarray]  # per column, those that touch memory
    numbers: Sequence[np.ndarray]  # and which stretch
    firsts: np.ndarray  # (stretches,) where each comes first, counted through all columns

    def idle_alike(self, moves: Sequence[np.ndarray]) -> bool:
        """Whether sources that the first rank does not have, no rank has."""
        for column, rows, some in zip(self.columns, self.rows, moves, strict=True):
            idle = some.copy()
            idle[rows] = False
            if (column.addresses[np.flatnonzero(idle)] != IDLE).any():
                return False
        return True

    def all_alike(self, ranks: int) -> bool:
        """Whether stretches are equal where the first rank's are, and disjoint where not."""
        return all(
            self._alike(np.arange(first, min(first + RANKS_AT_ONCE, ranks)))
            for first in range(0, ranks, RANKS_AT_ONCE)
        )

    def _alike(self, ranks: np.ndarray) -> bool:
        start = self._starts(ranks)
        return start is not None and are_disjoint(start, self._sizes(ranks))

    def _sizes(self, ranks: np.ndarray) -> np.ndarray:
        """The most bytes of a stretch that any row touches, (stretches, ranks or 1)."""
        if all(one.ring.size_bytes.strides[1] == 0 for one in self.columns):
            ranks = ranks[:1]
        cells = [
            one.of(one.ring.size_bytes, ranks)[rows]
            for one, rows in zip(self.columns, self.rows, strict=True)
        ]
        number = np.concatenate(self.numbers)
        order = np.argsort(number)
        begins = np.flatnonzero(np.diff(number[order], prepend=-1))
        return np.asarray(np.maximum.reduceat(np.concatenate(cells)[order], begins, axis=0))

    def _starts(self, ranks: np.ndarray) -> np.ndarray | None:
        """Where stretches begin, (stretches, ranks); None if rows differ on one."""
        cells = [
            one.of(one.addresses, ranks)[rows]
            for one, rows in zip(self.columns, self.rows, strict=True)
        ]
        edges = np.cumsum([0, *map(len, cells)])
        owner = np.searchsorted(edges, self.firsts, side="right") - 1
        found = np.empty((len(self.firsts), len(ranks)), np.int64)
        for column, cell in enumerate(cells):
            its = np.flatnonzero(owner == column)
            found[its] = cell[self.firsts[its] - edges[column]]
        for cell, number in zip(cells, self.numbers, strict=True):
            if not np.array_equal(cell, found[number]):
                return None
        return found


def are_disjoint(start: np.ndarray, size: np.ndarray) -> bool:
    """Whether in each column of spans no two overlap."""
    if not len(start):
        return True
    if size[0, 0] > 0 and (size == size[0, 0]).all():
        numbers = _numbered(start, int(size[0, 0]))
        if numbers is not None:
            return bool((np.bincount(numbers.ravel()) <= 1).all())
    starts = np.sort(start, axis=0)
    ends = np.sort(start + size, axis=0)  # the k-th end behind the (k+1)-th start: two at once
    return bool((ends[:-1] <= starts[1:]).all())


def _numbered(start: np.ndarray, size: int) -> np.ndarray | None:
    """Spans of one size as numbers, other ones in each column; None if they do not lie so."""
    least = int(start.min())
    count = (int(start.max()) - least) // size + 1
    if count > MOST_GAPS * len(start):
        return None
    numbers = (start - least) // size
    if not np.array_equal(numbers * size, start - least):
        return None
    numbers += np.arange(start.shape[1]) * count
    return numbers
