"""What the ring rows of a segment read and write, and what must therefore be known when.

A ring row reads all its sources, then writes its targets. In an order in which the rows can be
performed, each read is set against the last write before it and the next one behind it, each write
against the last access before it; if these pairs are ordered, so are all, from pair to pair. A
claim says that a row may start only when it is known that another row is done.

Where a length register is added to an address, the row touches all of the buffer. Writes to such
addresses come in no order among themselves, that their counts keep them apart is checked when they
are known; against all else that writes there they must be ordered, so they stand as reads. That
nothing reads there is for the proof of semantics.
"""

import itertools
from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.verify.intervals import Intervals, spread_out
from ncc_runtime.verify.races.steps import CC, Steps
from ncc_runtime.verify.segment_rows import RingRows
from ncc_runtime.verify.segments import Segment

BLOCK_ACCESSES = 1 << 22
"""Accesses that are held at once."""

BLOCK_CELLS = 1 << 18
"""Elementary intervals of accesses that are set against each other at once."""


@attrs.frozen(eq=False)
class Accesses:
    """Reads and writes of ring rows, one access each."""

    memory: np.ndarray  # (a,) rank
    start: np.ndarray  # (a,) address
    end: np.ndarray  # (a,)
    rank: np.ndarray  # (a,) whose ring it is
    chain: np.ndarray  # (a,)
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
            *(self.chain, self.row, self.writes),
        )

    @classmethod
    def together(cls, parts: list["Accesses"]) -> "Accesses":
        """All accesses of all parts."""
        columns = zip(*(part.columns() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


@attrs.frozen(eq=False)
class Claims:
    """A row of a rank's chain must know, when it starts, of the rows of another chain."""

    rank: np.ndarray  # (c,) who must know
    chain: np.ndarray  # (c,) of this rank
    row: np.ndarray  # (c,) of this chain
    of_rank: np.ndarray  # (c,) of whom
    of_chain: np.ndarray  # (c,) CC: that it has been triggered; else a ring
    of_row: np.ndarray  # (c,) of that chain, with all rows before it

    def __len__(self) -> int:
        return len(self.row)

    def at(self, where: np.ndarray) -> "Claims":
        """Some of them."""
        return Claims(*(column[where] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        """All columns, in the order of the class."""
        return self.rank, self.chain, self.row, self.of_rank, self.of_chain, self.of_row

    @classmethod
    def together(cls, parts: list["Claims"]) -> "Claims":
        """The claims of all parts."""
        columns = zip(*(part.columns() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


def claims_of(segment: Segment, steps: Steps) -> Claims:
    """What must be known so that no two accesses race, within the segment or across its ends."""
    cells = sum(ring.sources.size + 2 * ring.target.size for ring in segment.rings)
    parts = max(1, min(segment.ranks, -(-cells // BLOCK_ACCESSES)))
    edges = np.linspace(0, segment.ranks, parts + 1).astype(int).tolist()
    moment = steps.moment()
    found = [_nothing()]
    for first, last in itertools.pairwise(edges):
        accesses = accesses_of(segment, steps, range(first, last))
        if len(accesses):
            moments = _moments(accesses, steps, moment)
            found.append(claims_between(accesses, moments, len(segment.cc) - 1))
    return Claims.together(found)


def claims_between(accesses: Accesses, moment: np.ndarray, done: int) -> Claims:
    """The claims of accesses at these moments; `done` is the CC row that reports completion."""
    return Claims.together([_entered_and_left(accesses, done), _conflicts(accesses, moment)])


def everybody_entered(groups: tuple[np.ndarray, ...], done: int) -> Claims:
    """What a barrier promises: who reports completion, in row `done`, knows of all of the group."""
    found = [_nothing()]
    for group in groups:
        rank, other = (grid.ravel() for grid in np.meshgrid(group, group, indexing="ij"))
        rank, other = rank[rank != other], other[rank != other]
        found.append(_claims(rank, CC, done, other, CC, 0))
    return Claims.together(found)


def accesses_of(segment: Segment, steps: Steps, memories: range) -> Accesses:
    """All accesses to the memories of some ranks; what is empty accesses nothing."""
    found = [_none()]
    for number, ring in enumerate(segment.rings):
        does = (ring.peer != IDLE) & (ring.size_bytes > 0)
        performs = steps.performs[number]
        if performs is not None:
            does &= performs
        row, rank = np.nonzero(does)
        for memory, start, writes in pieces(ring, row, rank):
            there = (start != IDLE) & (memory >= memories.start) & (memory < memories.stop)
            at = slice(None) if there.all() else there
            begin, its_row = start[at], row[at]
            end = begin + ring.size_bytes[its_row, rank[at]]
            chain = np.full(len(begin), number + 1)
            what = np.full(len(begin), writes)
            if ring.registers is not None:
                register = ring.registers.target if writes else ring.registers.source
                floats = register[its_row, rank[at]] != IDLE
                begin, end = whole(segment, begin, end, floats)
                what &= ~floats
            found.append(Accesses(memory[at], begin, end, rank[at], chain, its_row, what))
    return Accesses.together(found)


def whole(
    segment: Segment, start: np.ndarray, end: np.ndarray, floats: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of bytes; those that float, as the buffers that they begin in."""
    for home in segment.homes:
        inside = floats & (start >= home.start) & (start < home.end)
        start, end = np.where(inside, home.start, start), np.where(inside, home.end, end)
    return start, end


def pieces(
    ring: RingRows, row: np.ndarray, rank: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """(memory, address or IDLE, writes) of each source and target of some cells of a ring."""
    for source in range(ring.sources.shape[2]):
        memory = rank if ring.source_rank is None else ring.source_rank[row, rank, source]
        yield memory, ring.sources[row, rank, source], False
    yield ring.peer[row, rank], ring.target[row, rank], True
    if ring.second_peer is not None and ring.second_target is not None:
        also = ring.second_peer[row, rank]
        yield also, np.where(also == IDLE, IDLE, ring.second_target[row, rank]), True


def _conflicts(accesses: Accesses, moment: np.ndarray) -> Claims:
    """Of overlapping accesses by different chains, a write among them, the second of the first."""
    spans = Intervals.cut(accesses.start, accesses.end)
    when = 2 * moment + accesses.writes
    order = np.argsort(accesses.memory * (when.max(initial=0) + 1) + when)
    accesses = accesses.at(order)
    interval = spans.number(accesses.start)
    count = spans.number(accesses.end) - interval
    found = [_nothing()]
    for part in _parts(accesses.memory, count):
        some = accesses.at(part)
        which, interval_of = spread_out(interval[part], count[part])
        cell = some.memory[which] * np.int64(len(spans)) + interval_of
        order = np.argsort(cell * len(some) + which)
        first, second = _neighbours(which[order], cell[order], some.writes[which[order]])
        differs = (some.rank[first] != some.rank[second]) | (
            some.chain[first] != some.chain[second]
        )
        found.append(_newest(some, first[differs], second[differs]))
    return Claims.together(found)


def _parts(memory: np.ndarray, count: np.ndarray) -> Iterator[slice]:
    """Accesses of whole memories, sorted by memory, that cover about BLOCK_CELLS intervals."""
    ends = np.flatnonzero(np.diff(memory, append=-1)) + 1
    covered = np.cumsum(count)[ends - 1] // BLOCK_CELLS
    first = 0
    for last in ends[np.flatnonzero(np.diff(covered, append=-1))].tolist():
        yield slice(first, last)
        first = last


def _neighbours(
    who: np.ndarray, cell: np.ndarray, writes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of accesses, interval by interval: write and read, read and write, write and write."""
    places = np.arange(len(who))
    begins = np.diff(cell, prepend=-1) != 0
    start = np.maximum.accumulate(np.where(begins, places, 0))
    before = np.maximum.accumulate(np.where(writes, places, -1))
    before = np.concatenate(([-1], before[:-1]))  # the last write before this access
    written = (before >= start) & (~writes | (before == places - 1))
    behind = np.where(writes, places, len(who))
    behind = np.minimum.accumulate(behind[::-1])[::-1]  # the next write behind this read
    same = np.concatenate((cell, [-1]))
    overwritten = ~writes & (same[behind] == cell)
    first = np.concatenate((before[written], places[overwritten]))
    second = np.concatenate((places[written], behind[overwritten]))
    return who[first], who[second]


def _newest(accesses: Accesses, first: np.ndarray, second: np.ndarray) -> Claims:
    """One claim for each row and chain that it must know of, about the last row."""
    chains = accesses.chain.max(initial=0) + 1
    ranks = accesses.rank.max(initial=0) + 1
    rows = accesses.row.max(initial=0) + 1
    knower = (accesses.rank[second] * chains + accesses.chain[second]) * rows
    known = accesses.rank[first] * chains + accesses.chain[first]
    key = (knower + accesses.row[second]) * (ranks * chains) + known
    order = np.argsort(key * rows + accesses.row[first])
    last = order[np.diff(key[order], append=-1) != 0]
    a, b = first[last], second[last]
    return _claims(
        *(accesses.rank[b], accesses.chain[b], accesses.row[b]),
        *(accesses.rank[a], accesses.chain[a], accesses.row[a]),
    )


def _entered_and_left(accesses: Accesses, done: int) -> Claims:
    """Rows that access a rank's memory start behind its trigger and end before its row `done`."""
    chains = accesses.chain.max(initial=0) + 1
    key = (accesses.rank * chains + accesses.chain) * (accesses.memory.max() + 1) + accesses.memory
    order = np.lexsort((accesses.row, key))
    edges = np.diff(key[order]) != 0
    first = order[np.concatenate(([True], edges))]
    last = order[np.concatenate((edges, [True]))]
    first = first[accesses.rank[first] != accesses.memory[first]]  # its own CC-core pushes it
    rank, chain, row, memory = accesses.rank, accesses.chain, accesses.row, accesses.memory
    return Claims.together(
        [
            _claims(rank[first], chain[first], row[first], memory[first], CC, 0),
            _claims(memory[last], CC, done, rank[last], chain[last], row[last]),
        ]
    )


def _moments(accesses: Accesses, steps: Steps, moment: np.ndarray | None) -> np.ndarray:
    """When each access comes, in the order of the steps."""
    found = np.empty(len(accesses), np.int64)
    for ring in range(len(steps.performs)):
        its = accesses.chain == ring + 1
        pushing = steps.pushing(ring)[accesses.row[its]]
        found[its] = pushing if moment is None else moment[pushing, accesses.rank[its]]
    return found


def _claims(*columns: np.ndarray | int) -> Claims:
    """Columns of one length; numbers stand for all of one value."""
    return Claims(*np.broadcast_arrays(*columns))


def _nothing() -> Claims:
    return Claims(*(np.zeros(0, np.int64) for _ in range(6)))


def _none() -> Accesses:
    empty = np.zeros(0, np.int64)
    return Accesses(empty, empty, empty, empty, empty, empty, np.zeros(0, bool))
