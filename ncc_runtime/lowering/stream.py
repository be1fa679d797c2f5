"""Fills the placeholders of one stream: plans become DMA descriptors and a CC-core program.

For every placeholder the CC-core waits for its trigger, tells those who will write to it that its
buffers are free (`ready`), then goes through the rounds: it waits for what earlier rounds sent to
it, for the credit of each peer, and advances a DMA ring. At the end it waits for everything sent
to and by it and increments the engines' semaphore of the stream.
"""

from collections.abc import Mapping

import attrs
import numpy as np

from ncc_runtime.collectives.plan import Piece, Plan, Space, Transfer
from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.channels import Channels, SemaphoreIds
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    Jump,
    StreamFacts,
)
from ncc_runtime.lowering.rows import CcRows, Condition, Descriptor, DmaRows, Increment, Place
from ncc_runtime.lowering.structure import Marker, Shifts
from ncc_runtime.neff.isa import CASE, END, LOOP, TEST


@attrs.frozen
class Addresses:
    """Where the spaces of a plan lie in every rank's memory."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    scratch: int

    def of(self, piece: Piece) -> np.ndarray:
        """Byte addresses per member."""
        if piece.space is Space.SCRATCH:
            return piece.offset + self.scratch
        base = self.operands if piece.space is Space.OPERAND else self.results
        return piece.offset + base[piece.tensor]


@attrs.frozen(eq=False)
class Team:
    """All groups of one size: the plan is the same for each, the ranks differ."""

    plan: Plan
    ranks: np.ndarray  # (groups, members) int32


@attrs.frozen(eq=False)
class _Sent:
    """A transfer as columns over ranks; the *_at columns belong to the receiver."""

    peer: np.ndarray  # (ranks,) whom a rank writes to
    source: np.ndarray  # (ranks,) who writes to a rank
    channel: np.ndarray  # (ranks,) at the sender
    channel_at: np.ndarray  # (ranks,) at the receiver
    lane: int


@attrs.frozen(eq=False)
class _Mark:
    """A place in the CC-core's program, and what had been counted there."""

    row: int  # the next one
    counts: tuple[np.ndarray, ...]  # of Channels.counts
    filled: Mapping[int, np.ndarray]  # lane → runs of descriptors so far, per rank


@attrs.frozen(eq=False)
class _PlannedJump:
    """A jump whose shift is worked out when all semaphores are known."""

    row: int
    target: int
    block: int
    decision: Decision
    over: tuple[_Mark, _Mark]  # the rows it repeats or skips


class StreamProgram:
    """Builds the queues of one stream, placeholder by placeholder in trigger order."""

    def __init__(self, stream: int, ranks: int, ids: SemaphoreIds, lanes: list[int]) -> None:
        self.stream = stream
        self.everybody: np.ndarray = np.arange(ranks, dtype=np.int32)
        self.trigger_sem = ids.take_alike()
        self.ring_sems = {lane: (ids.take_alike(), ids.take_alike()) for lane in lanes}
        self.rings = {lane: DmaRows(ranks) for lane in lanes}
        self.channels = Channels(ranks, ids)
        self.cc = CcRows(ranks)
        self._triggered = 0
        self._opened: dict[int, _Mark] = {}  # by block: where its rows begin
        self._decided: dict[int, _Mark] = {}  # by block: its `test` or `case`
        self._jumps: list[_PlannedJump] = []

    def queues(self, shifts: Mapping[int, Shifts], width: int) -> tuple[CcQueue | DmaQueue, ...]:
        """The CC-core's queue and its rings, in lane order; `width` semaphores on every rank."""
        name = f"cc{self.stream}"
        for jump in self._jumps:
            self.cc.jumps[jump.row] = self._jump(jump, shifts[jump.block], width)
        rings = (
            self.rings[lane].queue(f"{name}.dma{lane}", self.stream, lane)
            for lane in sorted(self.rings)
        )
        return (self.cc.queue(name, self.stream), *rings)

    def follow(self, marker: Marker, done_sem: int) -> None:
        """Append a control row of a block in which this stream has placeholders.

        The queue that triggers the stream says, by another trigger, that the predicate is written.
        """
        block, place = marker.block, Place(IDLE)
        if marker.opcode in (TEST, CASE):
            opcode = CcOpcode.TEST if marker.opcode == TEST else CcOpcode.CASE
            self._triggered += 1
            told = Condition(self._constant(self.trigger_sem), self._constant(self._triggered))
            read = self._nothing()
            if done_sem != IDLE:  # else no queue waits for the stream
                read = Increment(self.everybody, self._constant(done_sem))
            self.cc.add(opcode, place, [told], read)
            self._decided[block] = self._mark()
        if marker.opcode in (LOOP, CASE):
            self._opened[block] = self._mark()
        if marker.opcode == END:
            self._close(block)

    def _close(self, block: int) -> None:
        """Plan the jumps of a block whose rows are all there."""
        opened, decided = self._opened.pop(block), self._decided.pop(block)
        is_loop = opened.row != decided.row
        if is_loop:
            self.cc.add(CcOpcode.END, Place(IDLE), [], self._nothing())
        end = self._mark()
        if is_loop:
            back = _PlannedJump(end.row - 1, opened.row, block, Decision.ALWAYS, (opened, end))
            self._jumps.append(back)
        decision = Decision.TEST if is_loop else Decision.CASE
        out = _PlannedJump(decided.row - 1, end.row, block, decision, (decided, end))
        self._jumps.append(out)

    def _nothing(self) -> Increment:
        return Increment(self._constant(IDLE), self._constant(IDLE))

    def _mark(self) -> "_Mark":
        filled = {lane: rows.filled.copy() for lane, rows in self.rings.items()}
        return _Mark(len(self.cc), self.channels.counts(), filled)

    def _jump(self, planned: "_PlannedJump", shifts: Shifts, width: int) -> Jump:
        first, last = planned.over
        own = self.channels.between(first.counts, last.counts, width)
        for lane, (_, sent) in self.ring_sems.items():
            own[:, sent] += last.filled[lane] - first.filled[lane]
        repeats = planned.decision is Decision.ALWAYS
        engines = shifts.repeated if repeats else shifts.skipped
        shift = own + engines[None, :]
        return Jump(planned.target, planned.block, planned.decision, shift if repeats else -shift)

    def fill(self, number: int, teams: list[Team], addresses: Addresses, done_sem: int) -> None:
        """Append placeholder `number`; every rank runs its team's plan and then reports."""
        self._triggered += 1
        place = Place(number)
        trigger = self._constant(self.trigger_sem), self._constant(self._triggered)
        self.cc.add(CcOpcode.WAIT, place, [Condition(*trigger)])
        for team in teams:
            _TeamRows(self, team, number, addresses).emit()
        done = self._nothing()
        if done_sem != IDLE:  # else no queue waits for the stream
            done = Increment(self.everybody, self._constant(done_sem))
        self.cc.add(CcOpcode.DONE, place, [], done)

    def facts(self, scratch_address: int, scratch_bytes: int) -> StreamFacts:
        """What listings and checks need to know of the stream."""
        return StreamFacts(
            stream=self.stream,
            trigger_sem=self.trigger_sem,
            rings=dict(self.ring_sems),
            channels=self.channels,
            scratch_address=scratch_address,
            scratch_bytes=scratch_bytes,
        )

    def _constant(self, value: int) -> np.ndarray:
        return np.full(len(self.everybody), value, np.int32)


class _TeamRows:
    """The rows of one team within one placeholder."""

    def __init__(
        self, program: StreamProgram, team: Team, number: int, addresses: Addresses
    ) -> None:
        self._program = program
        self._team = team
        self._number = number
        self._addresses = addresses
        self._sent: dict[tuple[int, bytes], _Sent] = {}
        self._arriving: dict[tuple[int, bytes], Condition] = {}
        self._lanes: set[int] = set()
        self._free_base: dict[tuple[int, bytes], np.ndarray] = {}
        self._handshaken: set[tuple[int, bytes]] = set()

    def emit(self) -> None:
        plan = self._team.plan
        for one_round in plan.rounds:
            for transfer in one_round.transfers:
                self._open(transfer)
        self._signal_ready()
        for index, one_round in enumerate(plan.rounds):
            place = Place(self._number, index)
            waits = list(self._arriving.values())
            self._arriving = {}
            for transfer in one_round.transfers:
                self._emit_transfer(transfer, place, waits)
                waits = []
        self._finish()

    def _key(self, transfer: Transfer) -> tuple[int, bytes]:
        return transfer.lane, transfer.peer.tobytes()

    def _over_ranks(self, members: np.ndarray, idle: int = IDLE) -> np.ndarray:
        """A member column as a column over all ranks."""
        column: np.ndarray = np.full(len(self._program.everybody), idle, members.dtype)
        column[self._team.ranks] = members
        return column

    def _ranks_of(self, members: np.ndarray) -> np.ndarray:
        """A column of member numbers as a column of ranks over all ranks."""
        named = np.where(members == IDLE, IDLE, self._team.ranks[:, members])
        column: np.ndarray = np.full(len(self._program.everybody), IDLE, np.int32)
        column[self._team.ranks] = named
        return column

    def _open(self, transfer: Transfer) -> None:
        key = self._key(transfer)
        if key in self._sent:
            return
        peer = self._ranks_of(transfer.peer)
        senders = np.flatnonzero(peer != IDLE).astype(np.int32)
        numbers = self._program.channels.open(transfer.lane, senders, peer[senders])
        idle: np.ndarray = np.full(len(peer), IDLE, np.int32)
        source, channel, channel_at = idle.copy(), idle.copy(), idle.copy()
        source[peer[senders]] = senders
        channel[senders] = numbers
        channel_at[peer[senders]] = numbers
        self._sent[key] = _Sent(peer, source, channel, channel_at, transfer.lane)
        self._lanes.add(transfer.lane)

    def _signal_ready(self) -> None:
        """Every receiver tells each of its senders, once, that its buffers are free."""
        counters = self._program.channels.counters
        for key, sent in self._sent.items():
            mine = self._program.everybody
            remote = (sent.source != IDLE) & (sent.source != mine)
            self._free_base[key] = counters.free_count[sent.channel]
            if not remote.any():
                continue
            counters.ready_count[sent.channel_at[remote]] += 1
            sem = np.where(remote, counters.ready_sem[sent.channel_at], IDLE)
            rank = np.where(remote, sent.source, IDLE)
            self._program.cc.add(CcOpcode.SIGNAL, Place(self._number), [], Increment(rank, sem))

    def _credits(self, transfer: Transfer, sent: _Sent) -> list[Condition]:
        """What a sender must know before it writes into a peer's memory."""
        counters = self._program.channels.counters
        key = self._key(transfer)
        remote = (sent.peer != IDLE) & (sent.peer != self._program.everybody)
        waits = []
        if remote.any() and key not in self._handshaken:
            self._handshaken.add(key)
            sem = np.where(remote, counters.ready_sem[sent.channel], IDLE)
            waits.append(Condition(sem, counters.ready_count[sent.channel]))
        if transfer.credit:
            sem = self._program.channels.free_sems(
                sent.channel[remote], np.flatnonzero(remote).astype(np.int32)
            )
            column: np.ndarray = np.full(len(remote), IDLE, np.int32)
            column[remote] = sem
            waits.append(Condition(column, self._free_base[key] + transfer.credit))
        return waits

    def _emit_transfer(self, transfer: Transfer, place: Place, waits: list[Condition]) -> None:
        key = self._key(transfer)
        sent = self._sent[key]
        counters = self._program.channels.counters
        active = sent.peer != IDLE
        ring = self._program.rings[transfer.lane]
        tail, completed = self._program.ring_sems[transfer.lane]
        ring.filled += active
        ring.add(
            Descriptor(
                opcode=_opcode(transfer),
                place=place,
                peer=sent.peer,
                sources=tuple(
                    self._over_ranks(self._addresses.of(piece)) for piece in transfer.sources
                ),
                target=self._over_ranks(self._addresses.of(transfer.target)),
                size_bytes=self._over_ranks(transfer.size_bytes, idle=0),
                wait=Condition(np.where(active, tail, IDLE), ring.filled.copy()),
                posts=(
                    Increment(sent.peer, np.where(active, counters.data_sem[sent.channel], IDLE)),
                    self._own(active, completed),
                    *self._frees(transfer),
                ),
            )
        )
        advance = self._own(active, tail)
        waits = waits + self._credits(transfer, sent)
        push = (transfer.lane, len(ring) - 1)
        self._program.cc.add(CcOpcode.ADVANCE, place, waits, advance, push)
        counters.data_count[sent.channel[active]] += 1
        arrived = sent.source != IDLE
        self._arriving[key] = Condition(
            np.where(arrived, counters.data_sem[sent.channel_at], IDLE),
            counters.data_count[sent.channel_at],
        )

    def _own(self, active: np.ndarray, sem: int) -> Increment:
        mine = self._program.everybody
        return Increment(np.where(active, mine, IDLE), np.where(active, sem, IDLE))

    def _frees(self, transfer: Transfer) -> tuple[Increment, ...]:
        """The increment that hands a consumed slot back to who wrote it."""
        if transfer.consumed is None:
            return ()
        writer = self._ranks_of(transfer.consumed)
        readers = np.flatnonzero(writer != IDLE).astype(np.int32)
        channels = self._program.channels.open(transfer.lane, writer[readers], readers)
        sems = self._program.channels.free_sems(channels, writer[readers])
        self._program.channels.counters.free_count[channels] += 1
        column: np.ndarray = np.full(len(writer), IDLE, np.int32)
        column[readers] = sems
        return (Increment(writer, column),)

    def _finish(self) -> None:
        """Wait for what is still on its way here and for the own transfers to have been read."""
        place = Place(self._number)
        waits = list(self._arriving.values())
        for lane in sorted(self._lanes):
            _, completed = self._program.ring_sems[lane]
            filled = self._program.rings[lane].filled.copy()
            mine = np.zeros(len(filled), bool)
            mine[self._team.ranks] = True
            waits.append(Condition(np.where(mine & (filled > 0), completed, IDLE), filled))
        self._program.cc.add(CcOpcode.WAIT, place, waits)


def _opcode(transfer: Transfer) -> DmaOpcode:
    if not transfer.sources:
        return DmaOpcode.FILL
    return DmaOpcode.COPY if len(transfer.sources) == 1 else DmaOpcode.REDUCE
