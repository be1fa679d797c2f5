"""Queues while they grow: CC-core programs and DMA rings of all ranks, written out as arrays once.

`CcProgram` and `DmaRing` take rows in the order of the program and become a `CcQueue` and a
`DmaQueue` of the executable. What rows wait for and increment are a `Condition` and an `Increment`,
each with a cell for every rank.

Columns are [row, rank] and may have tens of millions of cells. So that none is held twice, a row is
a reference until the end: to one value where all ranks are alike, to a column that many rows share,
or to the plan's own offsets (`PickedRows`, `TableRows`, `MemberRows`; a `GrowingColumn` has them).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    Jump,
    Post,
    RegisterLoad,
    Registers,
    Sync,
)

Row = np.ndarray
"""(ranks,) integers, or (1,) where all ranks are alike."""

CELLS_AT_ONCE = 1 << 15
"""Cells of a plan's columns that are written out together."""

NOTHING: Row = np.full(1, IDLE, np.int32)
NOTHING.setflags(write=False)


@attrs.frozen(eq=False)
class MemberRows:
    """Rows that a plan gives by member: offsets in a space, and where the space begins."""

    offsets: Sequence[np.ndarray]  # per row (members,) int64
    bases: np.ndarray  # per row, int64
    ranks: np.ndarray  # (groups, members) int32: who the members are
    idle: int  # for ranks of no group
    rank_bases: Mapping[int, np.ndarray] = MappingProxyType({})  # by row, (groups, members): added

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_alike(self) -> bool:
        """Whether all ranks have the same; False: a test would cost more than it saves."""
        return False

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks), in blocks of cells that stay in cache."""
        is_full = len(self.ranks) == 1 and is_everybody(self.ranks[0], out.shape[1])
        if not is_full:
            out[:] = self.idle
        step = max(1, CELLS_AT_ONCE // self.ranks.shape[1])
        for at in range(0, len(self.offsets), step):
            rows = slice(at, at + step)
            block = np.concatenate(self.offsets[rows]).reshape(-1, self.ranks.shape[1])
            block += self.bases[rows, None]
            if is_full:
                out[rows] = block
            else:
                out[rows, self.ranks] = block[:, None, :]
        for row, base in self.rank_bases.items():
            out[row, self.ranks] += base


@attrs.frozen(eq=False)
class PickedRows:
    """Rows of which many are the same: the distinct ones, and which of them each is."""

    rows: Sequence[Row]
    index: np.ndarray | None = None  # (n,); None: all of them, one after the other

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "PickedRows":
        """Rows, of which many may be the same object: then each is kept once."""
        different, index = distinct(rows)
        return cls(rows) if 2 * len(different) > len(rows) else cls(different, index)

    def __len__(self) -> int:
        return len(self.rows) if self.index is None else len(self.index)

    @property
    def is_alike(self) -> bool:
        """Whether all ranks have the same."""
        return all(len(row) == 1 for row in self.rows)

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks)."""
        if self.index is None:
            write_rows(self.rows, out)
            return
        table: np.ndarray = np.empty((len(self.rows), out.shape[1]), out.dtype)
        write_rows(self.rows, table)
        np.take(table, self.index, axis=0, out=out, mode="clip")  # "raise" would copy it first


@attrs.frozen(eq=False)
class TableRows:
    """Rows that are a table already."""

    table: np.ndarray  # (n, ranks or 1)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_alike(self) -> bool:
        """Whether all ranks have the same."""
        return self.table.shape[1] == 1

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks)."""
        out[:] = self.table


Rows = MemberRows | PickedRows | TableRows


class GrowingColumn:
    """One growing column; rows that are the same object, or alike on all ranks, take no room."""

    def __init__(self, ranks: int, dtype: type[np.integer]) -> None:
        self._ranks, self._dtype = ranks, dtype
        self._parts: list[Rows] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def extend(self, rows: Rows) -> None:
        """More rows, kept by reference."""
        if len(rows):
            self._parts.append(rows)
            self._rows += len(rows)

    def pad(self, rows: int) -> None:
        """Idle rows, until there are `rows`."""
        self.extend(PickedRows([NOTHING], np.zeros(max(0, rows - len(self)), np.int64)))

    def padded(self, rows: int) -> np.ndarray:
        """`take` with idle rows at the end, until there are `rows`."""
        self.pad(rows)
        return self.take()

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks) and forget the rows."""
        at = 0
        for part in _joined(self._parts):
            part.write(out[at : at + len(part)])
            at += len(part)
        self._parts.clear()
        self._rows = 0

    def take(self) -> np.ndarray:
        """The whole column, (rows, ranks), read-only; the rows are forgotten."""
        shape = (len(self), self._ranks)
        picked = [part for part in self._parts if isinstance(part, PickedRows)]
        only, _ = distinct([row for part in picked for row in part.rows])
        if len(picked) == len(self._parts) and len(only) == 1:
            self._parts.clear()
            self._rows = 0
            return np.broadcast_to(only[0].astype(self._dtype), shape)
        is_alike = all(part.is_alike for part in self._parts)
        column: np.ndarray = np.empty((shape[0], 1 if is_alike else shape[1]), self._dtype)
        self.write(column)
        column.setflags(write=False)
        return np.broadcast_to(column, shape) if is_alike else column


def _joined(parts: Sequence[Rows]) -> Iterator[Rows]:
    """The same rows in fewer parts: picked rows that follow each other are one table."""
    for is_picked, some in itertools.groupby(parts, lambda part: isinstance(part, PickedRows)):
        if not is_picked:
            yield from some
            continue
        rows: list[Row] = []
        index: list[np.ndarray] = []
        for part in some:
            assert isinstance(part, PickedRows)
            first = len(rows)
            rows += part.rows
            index.append(np.arange(len(part.rows)) if part.index is None else part.index)
            index[-1] = index[-1] + first
        yield PickedRows(rows, np.concatenate(index))


T = TypeVar("T")


def distinct(objects: Sequence[T]) -> tuple[list[T], np.ndarray]:
    """The objects, each once in the order in which they first come, and which stands where."""
    by_id = {id(each): each for each in objects}
    numbers = dict(zip(by_id, itertools.count(), strict=False))
    index = np.fromiter(map(numbers.__getitem__, map(id, objects)), np.int64, len(objects))
    return list(by_id.values()), index


def write_rows(rows: Sequence[Row], out: np.ndarray) -> None:
    """Fill the first rows of (rows, ranks), in blocks of cells that stay in cache."""
    step = max(1, CELLS_AT_ONCE // out.shape[1])
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        widths = np.array([len(row) for row in some])
        for width in dict.fromkeys(widths.tolist()):
            where = np.flatnonzero(widths == width)
            same_width = np.concatenate([some[at] for at in where.tolist()])
            out[first + where] = same_width.reshape(len(where), width)


def narrowed(column: np.ndarray) -> np.ndarray:
    """The same non-negative cells in as little memory: int32 where they fit, rows alike once."""
    if column.size == 0:
        return column
    dtype = np.int32 if int(column.max()) <= np.iinfo(np.int32).max else np.int64
    if column.strides[1] == 0 or (column == column[:, :1]).all():
        return np.broadcast_to(column[:, :1].astype(dtype), column.shape)
    narrow = column.astype(dtype, copy=False)
    narrow.setflags(write=False)
    return narrow


def is_everybody(ranks: np.ndarray, count: int) -> bool:
    """Whether these are all ranks, in order."""
    return len(ranks) == count and bool((ranks == np.arange(count)).all())


def spread(values: np.ndarray, at: np.ndarray, ranks: int) -> Row:
    """Values of some ranks as a row, IDLE elsewhere."""
    if len(at) == ranks and _are_equal(values):
        return values[:1].copy()
    row: np.ndarray = np.empty(ranks, values.dtype)
    row.fill(IDLE)
    row[at] = values
    return row


def spread_any(values: np.ndarray, at: np.ndarray, ranks: int) -> Row:
    """`spread` where cells of other ranks are never read, so that one value may stand for all."""
    if len(values) == 1:
        return values
    if len(values) and _are_equal(values):
        return values[:1].copy()
    return spread(values, at, ranks)


def _are_equal(values: np.ndarray) -> bool:
    """Whether all values are the same; called so often that `all` would be too slow."""
    return np.count_nonzero(values == values[0]) == len(values)


@attrs.frozen(eq=False)
class Condition:
    """A wait of every rank on one of its own semaphores; IDLE where a rank does not wait."""

    sem: Row
    value: Row


@attrs.frozen(eq=False)
class Increment:
    """A semaphore increment of every rank; IDLE where a rank makes none."""

    rank: Row
    sem: Row = attrs.field()

    @sem.validator
    def _names_both(self, _: object, sem: Row) -> None:
        assert ((self.rank == IDLE) == (sem == IDLE)).all(), "an increment names half a target"


NO_WAIT = Condition(NOTHING, NOTHING)
NO_POST = Increment(NOTHING, NOTHING)


@attrs.frozen
class PlanStep:
    """The placeholder that a row belongs to, and the round of its plan."""

    placeholder: int
    round: int = IDLE


class IncrementColumns:
    """One increment of every row."""

    def __init__(self, ranks: int) -> None:
        self._rank, self._sem = GrowingColumn(ranks, np.int32), GrowingColumn(ranks, np.int32)

    def __len__(self) -> int:
        return len(self._sem)

    def extend(self, first: int, posts: Sequence[Increment], index: np.ndarray | None) -> None:
        """The increments of rows from `first` on; rows before it that have none make none.

        The index says which of the increments is that of each row; without, they come in order.
        """
        for column, rows in (
            (self._rank, [post.rank for post in posts]),
            (self._sem, [post.sem for post in posts]),
        ):
            column.pad(first)
            column.extend(PickedRows.of(rows) if index is None else PickedRows(rows, index))

    def padded(self, rows: int) -> Post:
        """All rows as arrays, which are forgotten; at the end some that increment nothing."""
        return Post(self._rank.padded(rows), self._sem.padded(rows))


class CcProgram:
    """The program of one stream's CC-core on every rank."""

    def __init__(self, ranks: int) -> None:
        self._heads: list[tuple[CcOpcode, int, int, int, int]] = []
        self.jumps: dict[int, Jump] = {}
        self.loads: dict[int, RegisterLoad] = {}
        self._ranks = ranks
        self._waits: list[Condition] = []
        self._posts: list[Increment] = []

    def add(
        self,
        opcode: CcOpcode,
        step: PlanStep,
        waits: Sequence[Condition],
        post: Increment | None = None,
        push: tuple[int, int] = (IDLE, IDLE),
    ) -> None:
        """One row that waits for all conditions: all but the last become WAIT rows before it.

        `push` is the ring and the run of descriptors that an ADVANCE pushes.
        """
        for wait in waits[:-1]:
            self._heads.append((CcOpcode.WAIT, step.placeholder, step.round, IDLE, IDLE))
            self._waits.append(wait)
            self._posts.append(NO_POST)
        if opcode is not CcOpcode.WAIT or waits or post:
            self._heads.append((opcode, step.placeholder, step.round, *push))
            self._waits.append(waits[-1] if waits else NO_WAIT)
            self._posts.append(post or NO_POST)

    def load(self, step: PlanStep, load: RegisterLoad) -> None:
        """One row that reads a table of counts."""
        self.loads[len(self)] = load
        self.add(CcOpcode.LOAD, step, [])

    def __len__(self) -> int:
        return len(self._heads)

    def queue(self, name: str, stream: int) -> CcQueue:
        """The finished program; the rows are forgotten."""
        heads = np.array(self._heads, np.int32).reshape(-1, 5)
        sems, values = GrowingColumn(self._ranks, np.int32), GrowingColumn(self._ranks, np.int32)
        sems.extend(PickedRows.of([wait.sem for wait in self._waits]))
        values.extend(PickedRows.of([wait.value for wait in self._waits]))
        posts = IncrementColumns(self._ranks)
        posts.extend(0, self._posts, None)
        post = posts.padded(len(self))
        self._heads.clear()
        self._waits.clear()
        self._posts.clear()
        return CcQueue(
            name=name,
            stream=stream,
            opcode=heads[:, 0].astype(np.uint8),
            placeholder=heads[:, 1],
            round=heads[:, 2],
            ring=heads[:, 3],
            ring_row=heads[:, 4],
            sync=Sync(sems.take(), values.take(), (post,)),
            jumps=dict(self.jumps),
            loads=dict(self.loads),
        )


@attrs.frozen(eq=False)
class DescriptorRun:
    """A run of descriptors of every rank, without its addresses."""

    opcode: DmaOpcode
    tail: Row  # the semaphore that it waits for
    arrival: Increment  # at the peers
    sent: Increment
    second_arrival: Increment = NO_POST  # at the second peers
    free: Increment = NO_POST  # of the slot that it has read
    reads: Sequence[Increment] = ()  # at owners of sources
    divisor: int = 1  # of what is joined, before it is rounded
    owners: Sequence[Row | None] = ()  # per source, whose memory it lies in; IDLE, None: the own
    active: Row = attrs.field(init=False)  # bool: who has a transfer here

    @active.default
    def _is_waiting(self) -> Row:
        return self.tail != IDLE


@attrs.frozen(eq=False)
class DescriptorCells:
    """Addresses and sizes of consecutive rows."""

    sources: Sequence[Rows]  # the first of every row, the second …; IDLE beyond the last
    target: Rows
    size: Rows
    second_target: Rows | None = None
    registers: Sequence[MemberRows] = ()  # of rows, source and target; or none at all


class DmaRing:
    """One DMA ring on every rank."""

    def __init__(self, everybody: np.ndarray, *, has_addresses: bool) -> None:
        self._everybody = everybody
        self._address = np.int64 if has_addresses else np.int8  # all are 0 then
        ranks = self._ranks = len(everybody)
        self._heads: list[np.ndarray] = []  # (rows, 4): opcode, placeholder, round, divisor
        self._rows = 0
        self._peer = GrowingColumn(ranks, np.int32)
        self._arrival = GrowingColumn(ranks, np.int32)
        self._second_peer = GrowingColumn(ranks, np.int32)
        self._second_arrival = GrowingColumn(ranks, np.int32)
        self._tail = GrowingColumn(ranks, np.int32)
        self._pushed = GrowingColumn(ranks, np.int32)
        self._sent = IncrementColumns(ranks)
        self._free = IncrementColumns(ranks)
        self._reads: list[IncrementColumns] = []
        self._owners: list[GrowingColumn] = []
        self._sources: list[GrowingColumn] = []
        self._target = GrowingColumn(ranks, self._address)
        self._second_target = GrowingColumn(ranks, self._address)
        self._size = GrowingColumn(ranks, np.int64)
        self._registers = [GrowingColumn(ranks, np.int32) for _ in range(3)]
        self.filled: Row = np.zeros(1, np.int64)  # runs in the ring so far; a new array each time

    def __len__(self) -> int:
        return self._rows

    def extend(
        self,
        every_run: Sequence[DescriptorRun],
        placeholder: int,
        rounds: Sequence[int],
        cells: DescriptorCells,
    ) -> np.ndarray:
        """More rows, each with its run, round and addresses.

        Returns the runs in the ring once each row is there, (rows, ranks or 1).
        """
        first = len(self)
        self._rows += len(every_run)
        runs, index = distinct(every_run)  # many are the same
        opcode = np.array([run.opcode for run in runs])[index]
        divisor = np.array([run.divisor for run in runs])[index]
        numbers = np.full(len(index), placeholder)
        self._heads.append(np.stack([opcode, numbers, np.array(rounds), divisor], axis=1))
        columns = max(len(run.active) for run in runs)  # ranks, or 1 if all runs are alike on all
        active = np.stack([np.broadcast_to(run.active, columns) for run in runs])
        filled = np.cumsum(active[index], axis=0, dtype=np.int64) + self.filled
        self.filled = filled[-1].copy()
        self._pushed.extend(TableRows(filled))
        for column, rows in (
            (self._tail, [run.tail for run in runs]),
            (self._peer, [run.arrival.rank for run in runs]),
            (self._arrival, [run.arrival.sem for run in runs]),
        ):
            column.extend(PickedRows(rows, index))
        self._sent.extend(first, [run.sent for run in runs], index)
        if any(run.second_arrival is not NO_POST for run in runs):
            for column, rows in (
                (self._second_peer, [run.second_arrival.rank for run in runs]),
                (self._second_arrival, [run.second_arrival.sem for run in runs]),
            ):
                column.pad(first)
                column.extend(PickedRows(rows, index))
        if any(run.free is not NO_POST for run in runs):
            self._free.extend(first, [run.free for run in runs], index)
        # whose memory is read, and the increments there; none for runs that read their own alone
        for number in range(max(len(run.reads) for run in runs)):
            if number == len(self._reads):
                self._reads.append(IncrementColumns(self._ranks))
            reads = [run.reads[number] if number < len(run.reads) else NO_POST for run in runs]
            self._reads[number].extend(first, reads, index)
        owners_of = [run.owners if run.reads else () for run in runs]
        for number in range(max(map(len, owners_of))):
            if number == len(self._owners):
                self._owners.append(GrowingColumn(self._ranks, np.int32))
            owners = [row[number] if number < len(row) else None for row in owners_of]
            self._owners[number].pad(first)
            self._owners[number].extend(
                PickedRows([NOTHING if owner is None else owner for owner in owners], index)
            )
        # addresses and sizes
        while len(self._sources) < len(cells.sources):
            self._sources.append(GrowingColumn(self._ranks, self._address))
        self._target.extend(cells.target)
        self._size.extend(cells.size)
        padded = [
            *zip(self._sources, cells.sources, strict=False),
            *zip(self._registers, cells.registers, strict=False),
        ]
        if cells.second_target is not None:
            padded.append((self._second_target, cells.second_target))
        for column, members in padded:
            column.pad(first)
            column.extend(members)
        return filled

    def queue(self, name: str, stream: int, lane: int) -> DmaQueue:
        """The finished ring; the rows are forgotten."""
        none = np.empty((0, 4), np.int32)
        heads = np.concatenate([none, *self._heads]).astype(np.int32)
        peer, sources = self._peer.take(), self._source_addresses()
        posts = [Post(peer, self._arrival.take()), self._sent.padded(len(self))]
        second_peer = second_target = None
        if len(self._second_peer):
            second_peer, second_sem, second_target = (
                column.padded(len(self))
                for column in (self._second_peer, self._second_arrival, self._second_target)
            )
            posts.append(Post(second_peer, second_sem))
        posts += [posted.padded(len(self)) for posted in (self._free, *self._reads) if len(posted)]
        return DmaQueue(
            name=name,
            stream=stream,
            lane=lane,
            opcode=heads[:, 0].astype(np.uint8),
            placeholder=heads[:, 1],
            round=heads[:, 2],
            divisor=heads[:, 3],
            peer=peer,
            sources=sources,
            target=self._target.take(),
            size_bytes=narrowed(self._size.take()),
            sync=Sync(self._tail.take(), self._pushed.take(), tuple(posts)),
            source_rank=self._source_ranks(sources) if self._owners else None,
            second_peer=second_peer,
            second_target=second_target,
            registers=Registers(*(column.padded(len(self)) for column in self._registers))
            if len(self._registers[0])
            else None,
        )

    def _source_addresses(self) -> np.ndarray:
        """Addresses, (rows, ranks, k)."""
        # written source by source, as (rows, ranks) that are contiguous, and turned at the end
        shape = len(self), len(self._sources), self._ranks
        addresses: np.ndarray = np.empty(shape, self._address)
        for number, column in enumerate(self._sources):
            column.pad(len(self))
            column.write(addresses[:, number])
        return _sealed(addresses.transpose(0, 2, 1))

    def _source_ranks(self, sources: np.ndarray) -> np.ndarray:
        """Whose memory each source lies in, (rows, ranks, k); IDLE where there is none."""
        owners: np.ndarray = np.full(sources.shape, IDLE, np.int32)
        for number, column in enumerate(self._owners):
            owners[:, :, number] = column.padded(len(self))
        owners = np.where(owners == IDLE, self._everybody[None, :, None], owners)
        return _sealed(np.where(sources == IDLE, np.int32(IDLE), owners))


def _sealed(column: np.ndarray) -> np.ndarray:
    column.setflags(write=False)
    return column
