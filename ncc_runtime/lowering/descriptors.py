"""Growing DMA rings: the runs of descriptors of one lane, turned into arrays at the end."""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.columns import Column, MemberRows, Row, narrowed
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Post, Registers
from ncc_runtime.lowering.rows import NO_POST, Condition, Increment, Place, Posts, Waits


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
        self._heads: list[tuple[DmaOpcode, int, int, int]] = []
        self._peer, self._arrival = Column(ranks, np.int32), Column(ranks, np.int32)
        self._also, self._also_arrival = Column(ranks, np.int32), Column(ranks, np.int32)
        self._waits, self._sent, self._free = Waits(ranks), Posts(ranks), Posts(ranks)
        self._reads: list[Posts] = []
        self._owners: list[Column] = []
        self._sources: list[Column] = []
        self._target, self._also_target = Column(ranks, np.int64), Column(ranks, np.int64)
        self._size = Column(ranks, np.int64)
        self._registers = [Column(ranks, np.int32) for _ in range(3)]
        self.filled: Row = np.zeros(1, np.int64)  # runs in the ring so far; a new array each time

    def __len__(self) -> int:
        return len(self._heads)

    def add(self, run: Run, place: Place) -> None:
        """One row; its extents follow by `extend`."""
        row = len(self)
        self._heads.append((run.opcode, place.placeholder, place.round, run.divisor))
        self.filled = self.filled + run.active
        self._waits.append(Condition(run.tail, self.filled))
        self._peer.append(run.arrival.rank)
        self._arrival.append(run.arrival.sem)
        self._sent.append(run.sent)
        if run.also is not NO_POST:
            self._also.put(row, run.also.rank)
            self._also_arrival.put(row, run.also.sem)
        if run.free is not NO_POST:
            self._free.put(row, run.free)
        if run.reads:
            self._add_reads(row, run)

    def _add_reads(self, row: int, run: Run) -> None:
        while len(self._reads) < len(run.reads):
            self._reads.append(Posts(self._ranks))
        for posts, read in zip(self._reads, run.reads, strict=False):
            posts.put(row, read)
        while len(self._owners) < len(run.owners):
            self._owners.append(Column(self._ranks, np.int32))
        for column, owner in zip(self._owners, run.owners, strict=False):
            if owner is not None:
                column.put(row, owner)

    def extend(self, extents: Extents) -> None:
        """Addresses and sizes of the rows added since the last call."""
        first = len(self._target)
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
        heads = np.array(self._heads, np.int32).reshape(-1, 4)
        peer, sources = self._peer.take(), self._taken_sources()
        posts = [Post(peer, self._arrival.take()), self._sent.take()]
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
            sync=self._waits.take(posts),
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
