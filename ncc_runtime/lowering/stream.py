"""The queues of one stream: the program of its CC-core, and its DMA rings.

For every placeholder the CC-core waits for its trigger, runs the plans of its groups
(`lower_plan.py`), and increments the engines' semaphore of the stream. Around placeholders in loops
and branches it follows the control flow of the engines.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.symmetry import RankSymmetry
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.channels import Channels, SemaphoreIds
from ncc_runtime.lowering.engine_queues import BlockShifts, Marker
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    Jump,
    StreamFacts,
)
from ncc_runtime.lowering.lower_plan import Addresses, PlanLowering, ReplicaGroups, StreamQueues
from ncc_runtime.lowering.queues import NO_POST, Condition, Increment, PlanStep, Row
from ncc_runtime.neff.isa import CASE, END, LOOP, TEST


@attrs.frozen(eq=False)
class _Position:
    """A point of the CC-core's program, and the counts of channels and rings there."""

    row: int  # the next row
    counts: tuple[np.ndarray, ...]  # of Channels.counts
    filled: Mapping[int, Row]  # lane → runs of descriptors so far


@attrs.frozen(eq=False)
class _PlannedJump:
    """A jump whose shift is worked out when all semaphores are known."""

    row: int
    target: int
    block: int
    decision: Decision
    first: _Position  # the rows from here to `last` are repeated or skipped
    last: _Position


class StreamProgram:
    """Builds the queues of one stream, placeholder by placeholder in trigger order."""

    def __init__(
        self,
        stream: int,
        symmetry: RankSymmetry,
        ids: SemaphoreIds,
        lanes: Sequence[int],
        *,
        has_addresses: bool,
    ) -> None:
        self.stream = stream
        self.trigger_sem = ids.take_common()
        ring_sems = {lane: (ids.take_common(), ids.take_common()) for lane in lanes}
        channels = Channels(symmetry.representatives, symmetry.ranks, ids)
        self._queues = StreamQueues(symmetry, channels, ring_sems, has_addresses=has_addresses)
        self._everybody = self._queues.everybody
        self._triggered: Row = np.zeros(1, np.int32)  # so far, on each rank where they differ
        self._opened: dict[int, _Position] = {}  # by block: its first row
        self._decided: dict[int, _Position] = {}  # by block: its `test` or `case`
        self._jumps: list[_PlannedJump] = []
        self.control_row_ranks: dict[int, np.ndarray] = {}  # by row, where not all ranks have it

    def append(
        self,
        number: int,
        plans: Sequence[ReplicaGroups],
        addresses: Addresses,
        done_sem: Row,
    ) -> None:
        """Append placeholder `number`: every rank runs the plan of its group, and then reports."""
        cc, step, ranks = self._queues.cc, PlanStep(number), addresses.ranks
        cc.add(CcOpcode.WAIT, step, [self._trigger(ranks)])
        for table in addresses.tables:
            cc.load(step, table)
        for groups in plans:
            PlanLowering(self._queues, groups, number, addresses).append()
        cc.add(CcOpcode.DONE, step, [], self._report(done_sem, ranks))

    def follow(self, marker: Marker, done_sem: Row, ranks: np.ndarray | None) -> None:
        """Append a control row of a block in which this stream has placeholders; of some ranks.

        The queue that triggers the stream says, by another trigger, that the predicate is written.
        """
        block, cc = marker.block, self._queues.cc
        first = len(cc)
        if marker.opcode in (TEST, CASE):
            opcode = CcOpcode.TEST if marker.opcode == TEST else CcOpcode.CASE
            cc.add(opcode, PlanStep(IDLE), [self._trigger(ranks)], self._report(done_sem, ranks))
            self._decided[block] = self._position()
        if marker.opcode in (LOOP, CASE):
            self._opened[block] = self._position()
        if marker.opcode == END:
            self._close(block)
        if ranks is not None:
            for row in range(first, len(cc)):
                self.control_row_ranks[row] = ranks

    def _close(self, block: int) -> None:
        """Plan the jumps of a block whose rows are all there."""
        opened, decided = self._opened.pop(block), self._decided.pop(block)
        is_loop = opened.row != decided.row
        if is_loop:
            self._queues.cc.add(CcOpcode.END, PlanStep(IDLE), [], NO_POST)
        end = self._position()
        if is_loop:
            self._jumps.append(
                _PlannedJump(end.row - 1, opened.row, block, Decision.ALWAYS, opened, end)
            )
        decision = Decision.TEST if is_loop else Decision.CASE
        self._jumps.append(_PlannedJump(decided.row - 1, end.row, block, decision, decided, end))

    def _position(self) -> _Position:
        filled = {lane: ring.filled for lane, ring in self._queues.rings.items()}
        return _Position(len(self._queues.cc), self._queues.channels.counts(), filled)

    def _trigger(self, ranks: np.ndarray | None) -> Condition:
        """The wait for one more trigger, on these ranks."""
        if ranks is None:
            self._triggered = self._triggered + 1
            return Condition(np.full(1, self.trigger_sem, np.int32), self._triggered)
        more, sem = np.zeros_like(self._everybody), np.full_like(self._everybody, IDLE)
        more[ranks], sem[ranks] = 1, self.trigger_sem
        self._triggered = self._triggered + more
        return Condition(sem, self._triggered)

    def _report(self, done_sem: Row, ranks: np.ndarray | None) -> Increment:
        """The increment of the engines' semaphore on these ranks, where a queue waits for it."""
        everybody = self._everybody
        if ranks is None and len(done_sem) == 1:
            return NO_POST if done_sem[0] == IDLE else Increment(everybody, done_sem)
        is_awaited = np.broadcast_to(done_sem != IDLE, everybody.shape)
        if ranks is not None:
            is_awaited = is_awaited & np.isin(everybody, ranks)
        return Increment(
            np.where(is_awaited, everybody, IDLE), np.where(is_awaited, done_sem, IDLE)
        )

    def queues(
        self, shifts: Mapping[int, BlockShifts], semaphore_count: int
    ) -> tuple[CcQueue, tuple[DmaQueue, ...]]:
        """The CC-core's queue and its rings, in lane order."""
        name, queues = f"cc{self.stream}", self._queues
        for planned in self._jumps:
            # Waited values count every block as run once. Repeated rows increment once more, so
            # what they increment (channels, rings, engines) is added; of skipped rows it is taken
            # away.
            first, last = planned.first, planned.last
            shift = queues.channels.between(first.counts, last.counts, semaphore_count)
            for lane, (_, sent) in queues.ring_sems.items():
                shift[:, sent] += last.filled[lane] - first.filled[lane]
            repeats = planned.decision is Decision.ALWAYS
            block = shifts[planned.block]
            shift += (block.repeated if repeats else block.skipped)[None, :]
            queues.cc.jumps[planned.row] = Jump(
                planned.target, planned.block, planned.decision, shift if repeats else -shift
            )
        rings = (
            queues.rings[lane].queue(f"{name}.dma{lane}", self.stream, lane)
            for lane in sorted(queues.rings)
        )
        return queues.cc.queue(name, self.stream), tuple(rings)

    def facts(self, scratch_address: int, scratch_bytes: int) -> StreamFacts:
        """What listings and checks need to know of the stream."""
        return StreamFacts(
            stream=self.stream,
            trigger_sem=self.trigger_sem,
            rings=dict(self._queues.ring_sems),
            channels=self._queues.channels,
            scratch_address=scratch_address,
            scratch_bytes=scratch_bytes,
        )
