"""Conflicts: which accesses to memory must be ordered, found in one sweep.

Memory is cut at every address where an access begins or ends. An access covers whole *elementary
intervals*, so what happens to one byte of an interval happens to all of them. Accesses are listed
in an order in which they may come. In each interval a read is set against the last write before it,
and a write against the last write and all reads since: if these neighbours are ordered, all
accesses in conflict are, from neighbour to neighbour, since order is transitive.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.arrays import union
from ncc_runtime.order import Obligations

BLOCK_CELLS = 1 << 18
"""Elementary intervals of accesses that are set against each other at once."""

CC = 0
"""The CC-core among the queues of a segment; its ring k is queue k + 1."""


@attrs.frozen(eq=False)
class Intervals:
    """Interval k goes from edge k up to edge k + 1."""

    edges: np.ndarray  # (k + 1,) int64, ascending; no edges if nothing is accessed

    @classmethod
    def cut(cls, start: np.ndarray, end: np.ndarray) -> "Intervals":
        """Cut at both ends of all spans."""
        return cls(union(start, end))

    def __len__(self) -> int:
        return max(0, len(self.edges) - 1)

    def number(self, edge: np.ndarray) -> np.ndarray:
        """The interval that begins at each of these edges; len(self) for the last edge."""
        return np.searchsorted(self.edges, edge)


def spread_out(first: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each k the numbers first[k] … first[k] + count[k] - 1, as (k, number)."""
    which = np.repeat(np.arange(len(first)), count)
    before = np.cumsum(count) - count
    return which, np.arange(len(which)) - (before - first)[which]


def conflicting(
    access: np.ndarray, interval: np.ndarray, is_write: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of accesses (earlier, later) that have to be ordered, (p,) each.

    Access `access[k]` covers interval `interval[k]`; accesses are numbered in their order, and
    `is_write` says of each number whether it writes.
    """
    order = np.argsort(interval * np.int64(len(is_write)) + access)
    access, interval = access[order], interval[order]
    writes, places = is_write[access], np.arange(len(access))
    begins = np.diff(interval, prepend=-1) != 0
    start = np.maximum.accumulate(np.where(begins, places, 0))
    before = np.maximum.accumulate(np.where(writes, places, -1))
    before = np.concatenate(([-1], before[:-1]))  # the last write before this access
    # a write with reads behind the last write is ordered behind that by way of these reads
    written = (before >= start) & (~writes | (before == places - 1))
    behind = np.where(writes, places, len(access))
    behind = np.minimum.accumulate(behind[::-1])[::-1]  # the next write behind this read
    overwritten = ~writes & (np.append(interval, -1)[behind] == interval)
    earlier = np.concatenate((before[written], places[overwritten]))
    later = np.concatenate((places[written], behind[overwritten]))
    return access[earlier], access[later]


# ---- accesses inside a collective


@attrs.frozen(eq=False)
class Accesses:
    """Reads and writes of ring rows, one access each."""

    memory: np.ndarray  # (a,) rank
    start: np.ndarray  # (a,) address
    end: np.ndarray  # (a,)
    rank: np.ndarray  # (a,) whose ring it is
    queue: np.ndarray  # (a,)
    row: np.ndarray  # (a,) of the ring
    writes: np.ndarray  # (a,) bool

    def __len__(self) -> int:
        return len(self.row)

    def at(self, where: np.ndarray | slice) -> "Accesses":
        """Some of them."""
        return Accesses(*(column[where] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        """All columns, in the order of the class."""
        return (
            *(self.memory, self.start, self.end, self.rank),
            *(self.queue, self.row, self.writes),
        )

    @classmethod
    def together(cls, parts: list["Accesses"]) -> "Accesses":
        """All accesses of all parts."""
        columns = zip(*(part.columns() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


def due_between(accesses: Accesses, when: np.ndarray, done: int) -> Obligations:
    """Of accesses at these moments; `done` is the CC row that reports completion."""
    return Obligations.together([_entered_and_left(accesses, done), _in_conflict(accesses, when)])


def _in_conflict(accesses: Accesses, when: np.ndarray) -> Obligations:
    """Of overlapping accesses by different rings, one a write: the later must know the earlier."""
    spans = Intervals.cut(accesses.start, accesses.end)
    when = 2 * when + accesses.writes  # a row reads before it writes
    accesses = accesses.at(np.argsort(accesses.memory * (when.max(initial=0) + 1) + when))
    first = spans.number(accesses.start)
    count = spans.number(accesses.end) - first
    found = []
    for part in _parts(accesses.memory, count):
        some = accesses.at(part)
        which, interval = spread_out(first[part], count[part])
        cell = some.memory[which] * np.int64(len(spans)) + interval
        earlier, later = conflicting(which, cell, some.writes)
        differs = some.rank[earlier] != some.rank[later]
        differs |= some.queue[earlier] != some.queue[later]
        found.append(_newest(some, earlier[differs], later[differs]))
    return Obligations.together(found)


def _parts(memory: np.ndarray, count: np.ndarray) -> Iterator[slice]:
    """Accesses of whole memories, sorted by memory, that cover about BLOCK_CELLS intervals."""
    ends = np.flatnonzero(np.diff(memory, append=-1)) + 1
    covered = np.cumsum(count)[ends - 1] // BLOCK_CELLS
    first = 0
    for last in ends[np.flatnonzero(np.diff(covered, append=-1))].tolist():
        yield slice(first, last)
        first = last


def _newest(accesses: Accesses, first: np.ndarray, second: np.ndarray) -> Obligations:
    """One obligation for each row and queue that it must know of, about the last row."""
    queues = accesses.queue.max(initial=0) + 1
    ranks = accesses.rank.max(initial=0) + 1
    rows = accesses.row.max(initial=0) + 1
    knower = (accesses.rank[second] * queues + accesses.queue[second]) * rows
    known = accesses.rank[first] * queues + accesses.queue[first]
    key = (knower + accesses.row[second]) * (ranks * queues) + known
    order = np.lexsort((accesses.row[first], key))
    last = order[np.diff(key[order], append=-1) != 0]
    a, b = first[last], second[last]
    return Obligations.of(
        *(accesses.rank[b], accesses.queue[b], accesses.row[b]),
        *(accesses.rank[a], accesses.queue[a], accesses.row[a]),
    )


def _entered_and_left(accesses: Accesses, done: int) -> Obligations:
    """Rows that access a rank's memory start behind its trigger and end before its row `done`."""
    queues = accesses.queue.max(initial=0) + 1
    key = (accesses.rank * queues + accesses.queue) * (accesses.memory.max() + 1) + accesses.memory
    order = np.lexsort((accesses.row, key))
    edges = np.diff(key[order]) != 0
    first = order[np.concatenate(([True], edges))]
    last = order[np.concatenate((edges, [True]))]
    first = first[accesses.rank[first] != accesses.memory[first]]  # its own CC-core pushes it
    rank, queue, row, memory = accesses.rank, accesses.queue, accesses.row, accesses.memory
    return Obligations.together(
        [
            Obligations.of(rank[first], queue[first], row[first], memory[first], CC, 0),
            Obligations.of(memory[last], CC, done, rank[last], queue[last], row[last]),
        ]
    )
