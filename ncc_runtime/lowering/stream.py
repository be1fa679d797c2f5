"""Fills the placeholders of one stream: plans become DMA descriptors and a CC-core program.

For every placeholder the CC-core waits for its trigger, runs the plan of its team (`team.py`), and
increments the engines' semaphore of the stream. Around placeholders in loops and branches it
follows the control flow of the engines.
"""

from collections.abc import Mapping

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.channels import Channels, SemaphoreIds
from ncc_runtime.lowering.engine_queues import Marker, Shifts
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    Jump,
    StreamFacts,
)
from ncc_runtime.lowering.links import Links
from ncc_runtime.lowering.moves import Team
from ncc_runtime.lowering.queues import NO_POST, CcRows, Condition, DmaRows, Increment, Place, Row
from ncc_runtime.lowering.team import Addresses, StreamRows, TeamRows
from ncc_runtime.neff.isa import CASE, END, LOOP, TEST


@attrs.frozen(eq=False)
class _Mark:
    """A place in the CC-core's program, and what had been counted there."""

    row: int  # the next one
    counts: tuple[np.ndarray, ...]  # of Channels.counts
    filled: Mapping[int, Row]  # lane → runs of descriptors so far


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

    def __init__(
        self, stream: int, ranks: tuple[int, int], ids: SemaphoreIds, lanes: list[int]
    ) -> None:
        """`ranks` are how many have columns, the first ones, and all."""
        self.stream = stream
        seen, _ = ranks
        everybody: np.ndarray = np.arange(seen, dtype=np.int32)
        self.trigger_sem = ids.take_alike()
        self.ring_sems = {lane: (ids.take_alike(), ids.take_alike()) for lane in lanes}
        self.channels = Channels(*ranks, ids)
        self._rows = StreamRows(
            everybody=everybody,
            channels=self.channels,
            links=Links(everybody, self.channels, self.ring_sems),
            rings={lane: DmaRows(everybody) for lane in lanes},
            cc=CcRows(seen),
        )
        self._triggered: Row = np.zeros(1, np.int32)  # so far, on each rank where they differ
        self._opened: dict[int, _Mark] = {}  # by block: where its rows begin
        self._decided: dict[int, _Mark] = {}  # by block: its `test` or `case`
        self._jumps: list[_PlannedJump] = []
        self.owners: dict[int, np.ndarray] = {}  # of control rows that some ranks alone have

    def queues(
        self, shifts: Mapping[int, Shifts], width: int
    ) -> tuple[CcQueue, tuple[DmaQueue, ...]]:
        """The CC-core's queue and its rings, in lane order; `width` semaphores on every rank."""
        name = f"cc{self.stream}"
        for jump in self._jumps:
            self._rows.cc.jumps[jump.row] = self._jump(jump, shifts[jump.block], width)
        rings = (
            self._rows.rings[lane].queue(f"{name}.dma{lane}", self.stream, lane)
            for lane in sorted(self._rows.rings)
        )
        return self._rows.cc.queue(name, self.stream), tuple(rings)

    def follow(self, marker: Marker, done_sem: Row, ranks: np.ndarray | None) -> None:
        """Append a control row of a block in which this stream has placeholders; of some ranks.

        The queue that triggers the stream says, by another trigger, that the predicate is written.
        """
        block, place, first = marker.block, Place(IDLE), len(self._rows.cc)
        if marker.opcode in (TEST, CASE):
            opcode = CcOpcode.TEST if marker.opcode == TEST else CcOpcode.CASE
            told = self._trigger(ranks)
            self._rows.cc.add(opcode, place, [told], self._report(done_sem, ranks))
            self._decided[block] = self._mark()
        if marker.opcode in (LOOP, CASE):
            self._opened[block] = self._mark()
        if marker.opcode == END:
            self._close(block)
        if ranks is not None:
            for row in range(first, len(self._rows.cc)):
                self.owners[row] = ranks

    def _close(self, block: int) -> None:
        """Plan the jumps of a block whose rows are all there."""
        opened, decided = self._opened.pop(block), self._decided.pop(block)
        is_loop = opened.row != decided.row
        if is_loop:
            self._rows.cc.add(CcOpcode.END, Place(IDLE), [], NO_POST)
        end = self._mark()
        if is_loop:
            back = _PlannedJump(end.row - 1, opened.row, block, Decision.ALWAYS, (opened, end))
            self._jumps.append(back)
        decision = Decision.TEST if is_loop else Decision.CASE
        out = _PlannedJump(decided.row - 1, end.row, block, decision, (decided, end))
        self._jumps.append(out)

    def _mark(self) -> "_Mark":
        filled = {lane: rows.filled for lane, rows in self._rows.rings.items()}
        return _Mark(len(self._rows.cc), self.channels.counts(), filled)

    def _jump(self, planned: "_PlannedJump", shifts: Shifts, width: int) -> Jump:
        first, last = planned.over
        own = self.channels.between(first.counts, last.counts, width)
        for lane, (_, sent) in self.ring_sems.items():
            own[:, sent] += last.filled[lane] - first.filled[lane]
        repeats = planned.decision is Decision.ALWAYS
        engines = shifts.repeated if repeats else shifts.skipped
        shift = own + engines[None, :]
        return Jump(planned.target, planned.block, planned.decision, shift if repeats else -shift)

    def fill(self, number: int, teams: list[Team], addresses: Addresses, done_sem: Row) -> None:
        """Append placeholder `number`; every rank runs its team's plan and then reports."""
        place, ranks = Place(number), addresses.ranks
        self._rows.cc.add(CcOpcode.WAIT, place, [self._trigger(ranks)])
        for table in addresses.tables:
            self._rows.cc.load(place, table)
        for team in teams:
            TeamRows(self._rows, team, number, addresses).emit()
        self._rows.cc.add(CcOpcode.DONE, place, [], self._report(done_sem, ranks))

    def _trigger(self, ranks: np.ndarray | None) -> Condition:
        """The wait for one more trigger, on these ranks."""
        if ranks is None:
            self._triggered = self._triggered + 1
            return Condition(self._constant(self.trigger_sem), self._triggered)
        more, sem = np.zeros_like(self._rows.everybody), np.full_like(self._rows.everybody, IDLE)
        more[ranks], sem[ranks] = 1, self.trigger_sem
        self._triggered = self._triggered + more
        return Condition(sem, self._triggered)

    def _report(self, done_sem: Row, ranks: np.ndarray | None) -> Increment:
        """The increment of the engines' semaphore on these ranks, where a queue waits for it."""
        if ranks is None and len(done_sem) == 1:
            return NO_POST if done_sem[0] == IDLE else Increment(self._rows.everybody, done_sem)
        everybody = self._rows.everybody
        heard = np.broadcast_to(done_sem != IDLE, everybody.shape)
        if ranks is not None:
            heard = heard & np.isin(everybody, ranks)
        return Increment(np.where(heard, everybody, IDLE), np.where(heard, done_sem, IDLE))

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

    def _constant(self, value: int) -> Row:
        return np.full(1, value, np.int32)
