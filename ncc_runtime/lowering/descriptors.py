"""Growing DMA rings: the runs of descriptors of one lane, turned into arrays at the end."""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.columns import (
    NOTHING,
    Column,
    MemberRows,
    PickedRows,
    Row,
    TableRows,
    distinct,
    narrowed,
)
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Post, Registers, Sync
from ncc_runtime.lowering.rows import NO_POST, Increment, Posts


@attrs.frozen(eq=False)
class Run:
    """A run of descriptors of every rank, but for its addresses."""

    opcode: DmaOpcode
    tail: Row  # the semaphore that it waits for
    arrival: Increment  # at the peers
    sent: Increment
    also: Increment = NO_POST  # at the second peers
    free: Increment = NO_POST  # of the slot that it has read
    reads: Sequence[Increment] = ()  # at owners of sources
    divisor: int = 1  # of what is joined, before it is rounded
    owners: Sequence[Row | None] = ()  # per source, whose memory it lies in; IDLE, None: the own
    active: Row = attrs.field(init=False)  # bool: who has a transfer here

    @active.default
    def _who_waits(self) -> Row:
        return self.tail != IDLE


@attrs.frozen(eq=False)
class Extents:
    """Addresses and sizes of consecutive rows."""

    sources: Sequence[MemberRows]  # the first of every row, the second …; IDLE beyond the last
    target: MemberRows
    size: MemberRows
    also: MemberRows | None = None
    registers: Sequence[MemberRows] = ()  # of rows, source and target; or none at all


class DmaRows:
    """One DMA ring on every rank."""

    def __init__(self, everybody: np.ndarray) -> None:
        self._everybody = everybody
        ranks = self._ranks = len(everybody)
        self._heads: list[np.ndarray] = []  # (rows, 4): opcode, placeholder, round, divisor
        self._rows = 0
        self._peer, self._arrival = Column(ranks, np.int32), Column(ranks, np.int32)
        self._also, self._also_arrival = Column(ranks, np.int32), Column(ranks, np.int32)
        self._tail, self._pushed = Column(ranks, np.int32), Column(ranks, np.int32)
        self._sent, self._free = Posts(ranks), Posts(ranks)
        self._reads: list[Posts] = []
        self._owners: list[Column] = []
        self._sources: list[Column] = []
        self._target, self._also_target = Column(ranks, np.int64), Column(ranks, np.int64)
        self._size = Column(ranks, np.int64)
        self._registers = [Column(ranks, np.int32) for _ in range(3)]
        self.filled: Row = np.zeros(1, np.int64)  # runs in the ring so far; a new array each time

    def __len__(self) -> int:
        return self._rows

    def extend(
        self, every: Sequence[Run], placeholder: int, rounds: Sequence[int], extents: Extents
    ) -> np.ndarray:
        """More rows, each with its run, round and extents.

        Returns the runs in the ring once each row is there, (rows, ranks or 1).
        """
        first = len(self)
        self._rows += len(every)
        runs, index = distinct(every)  # many are the same
        opcode, divisor = (
            np.array(one)[index]
            for one in ([run.opcode for run in runs], [run.divisor for run in runs])
        )
        places = np.full(len(index), placeholder), np.array(rounds)
        self._heads.append(np.stack([opcode, *places, divisor], axis=1))
        width = max(len(run.active) for run in runs)
        active = np.stack([np.broadcast_to(run.active, width) for run in runs])
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
        if any(run.also is not NO_POST for run in runs):
            for column, rows in (
                (self._also, [run.also.rank for run in runs]),
                (self._also_arrival, [run.also.sem for run in runs]),
            ):
                column.pad(first)
                column.extend(PickedRows(rows, index))
        if any(run.free is not NO_POST for run in runs):
            self._free.extend(first, [run.free for run in runs], index)
        self._extend_reads(first, runs, index)
        self._extend_extents(first, extents)
        return filled

    def _extend_reads(self, first: int, runs: Sequence[Run], index: np.ndarray) -> None:
        """Whose memory is read, and the increments there; of runs that read the own alone, none."""
        for number in range(max(len(run.reads) for run in runs)):
            if number == len(self._reads):
                self._reads.append(Posts(self._ranks))
            reads = [run.reads[number] if number < len(run.reads) else NO_POST for run in runs]
            self._reads[number].extend(first, reads, index)
        every = [run.owners if run.reads else () for run in runs]
        for number in range(max(map(len, every))):
            if number == len(self._owners):
                self._owners.append(Column(self._ranks, np.int32))
            owners = [its[number] if number < len(its) else None for its in every]
            rows = [NOTHING if owner is None else owner for owner in owners]
            self._owners[number].pad(first)
            self._owners[number].extend(PickedRows(rows, index))

    def _extend_extents(self, first: int, extents: Extents) -> None:
        while len(self._sources) < len(extents.sources):
            self._sources.append(Column(self._ranks, np.int64))
        for column, rows in zip(self._sources, extents.sources, strict=False):
            column.pad(first)
            column.extend(rows)
        self._target.extend(extents.target)
        self._size.extend(extents.size)
        if extents.also is not None:
            self._also_target.pad(first)
            self._also_target.extend(extents.also)
        for column, rows in zip(self._registers, extents.registers, strict=False):
            column.pad(first)
            column.extend(rows)

    def queue(self, name: str, stream: int, lane: int) -> DmaQueue:
        """The finished ring; the rows are forgotten."""
        none = np.empty((0, 4), np.int32)
        heads = np.concatenate([none, *self._heads]).astype(np.int32)
        peer, sources = self._peer.take(), self._taken_sources()
        posts = [Post(peer, self._arrival.take()), self._sent.padded(len(self))]
        also_peer = also_target = None
        if len(self._also):
            also_peer, also_sem, also_target = (
                column.padded(len(self))
                for column in (self._also, self._also_arrival, self._also_target)
            )
            posts.append(Post(also_peer, also_sem))
        posts += [one.padded(len(self)) for one in (self._free, *self._reads) if len(one)]
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
            source_rank=self._taken_owners(sources) if self._owners else None,
            also_peer=also_peer,
            also_target=also_target,
            registers=self._taken_registers(),
        )

    def _taken_registers(self) -> Registers | None:
        if not len(self._registers[0]):
            return None
        return Registers(*(column.padded(len(self)) for column in self._registers))

    def _taken_sources(self) -> np.ndarray:
        """Addresses, (rows, ranks, k)."""
        found: np.ndarray = np.empty((len(self), len(self._sources), self._ranks), np.int64)
        for number, column in enumerate(self._sources):
            column.pad(len(self))
            column.write(found[:, number])
        return _sealed(found.transpose(0, 2, 1))

    def _taken_owners(self, sources: np.ndarray) -> np.ndarray:
        """Whose memory each source lies in, (rows, ranks, k); IDLE where there is none."""
        found: np.ndarray = np.full(sources.shape, IDLE, np.int32)
        for number, column in enumerate(self._owners):
            found[:, :, number] = column.padded(len(self))
        found = np.where(found == IDLE, self._everybody[None, :, None], found)
        return _sealed(np.where(sources == IDLE, np.int32(IDLE), found))


def _sealed(column: np.ndarray) -> np.ndarray:
    column.setflags(write=False)
    return column
