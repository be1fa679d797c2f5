"""A second clock, slow and plain: events in a heap, an object for every queue, flow and semaphore.

Written from docs/timing.md; shares no code with `ncc_runtime/execution/clock`. It steps through all
instants in order, so nothing in it depends on which rows can be looked at early.
"""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

import attrs
import numpy as np

from ncc_runtime.execution.control_flow import Decisions, PlannedDecisions
from ncc_runtime.execution.disturbance import (
    ALWAYS_PS,
    FULL_SPEED,
    NOTHING,
    Disturbance,
    PartSpeed,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.execution.trace import Reason
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
    Jump,
    descriptors,
    is_run_by,
)
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.durations import Duration
from ncc_runtime.topology.routes import Transport
from tests.clock_comparison import Performed
from tests.clock_flows import (
    NEVER,
    Ends,
    Flow,
    Network,
    Part,
    capacities,
    engine_uses,
    instruction_costs,
    is_relayed,
    transfer_uses,
    transport,
)


@attrs.define(eq=False)
class Semaphore:
    """When it reached each value, who made it do so, and who waits."""

    times: list[int] = attrs.field(factory=list)
    makers: list[tuple[int, int, int]] = attrs.field(factory=list)
    waiting: list[Callable[[], None]] = attrs.field(factory=list)
    promised: dict[tuple[int, int], tuple[int, tuple[int, int, int]]] = attrs.field(factory=dict)

    def grow(self, now: int, maker: tuple[int, int, int]) -> None:
        self.times.append(now)
        self.makers.append(maker)
        waiting, self.waiting = self.waiting, []
        for look in waiting:
            look()


class Reference:
    """Runs an executable; `performed` is what happened."""

    def __init__(
        self,
        executable: Executable,
        decisions: Decisions,
        is_exact: bool = False,
        disturbance: Disturbance = NOTHING,
    ) -> None:
        self.executable, self.decisions = executable, decisions
        self.model = TimingModel.from_topology(executable.topology)
        self.parts = Parts(executable.routes, self.model, executable.ranks)
        self.speeds = Speeds(disturbance, self.parts)
        capacity = capacities(self.parts, is_exact)
        self.network = Network(
            capacity,
            is_exact,
            (lambda part, time: self.speeds.capacity(part, capacity[part], time))
            if disturbance.parts
            else None,
            lambda process, time: self.speeds.of_queue(*process, time) == 0,
        )
        self.semaphores: dict[tuple[int, int], Semaphore] = defaultdict(Semaphore)
        self.rings: dict[tuple[int, int, int], _Ring] = {}
        self.performed: list[Performed] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._queues = [
            self._queue(number, rank)
            for number, queue in enumerate(executable.queues)
            for rank in range(executable.ranks)
            if is_run_by(queue, rank)
        ]

    def _queue(self, number: int, rank: int) -> "_Ring | _Program":
        queue = self.executable.queues[number]
        if not isinstance(queue, DmaQueue):
            return _Program(self, number, rank)
        ring = self.rings[rank, queue.stream, queue.lane] = _Ring(self, number, rank)
        return ring

    @property
    def start_ps(self) -> int:
        """The host launches, and ranks of a group on several chips meet."""
        chip = self.executable.placement.chip
        groups = [
            group
            for placeholder in self.executable.program.placeholders
            for group in (placeholder.groups or placeholder.pairs)
        ]
        spans = [len({int(chip[rank]) for rank in group}) for group in groups]
        return self.model.launch_ps + self.model.barrier_ps(max(spans, default=1))

    def run(self) -> "Reference":
        for queue in self._queues:
            queue.free = self.start_ps + self.speeds.disturbance.late_start_ps.get(queue.rank, 0)
            self.at(queue.free, queue.look)
        for time in self.speeds.times:
            self.at(time, lambda: None)
        network = self.network
        while self._events or network.flows:
            ends = [flow.end for flow in network.flows]
            now = min([*ends, *(event[0] for event in self._events[:1])])
            if now == NEVER:
                break
            network.advance(now)
            while self._events and self._events[0][0] == now:
                heapq.heappop(self._events)[2]()
            network.share()
        return self

    @property
    def now(self) -> int:
        return self.network.now

    def at(self, time: int, act: Callable[[], None]) -> None:
        assert time >= self.now, "nothing happens in the past"
        heapq.heappush(self._events, (time, next(self._order), act))

    def promise(
        self, where: tuple[int, int], seen: int, source: tuple[int, int], maker: Performed
    ) -> None:
        """A semaphore will be seen to grow; what one queue promises is seen in order."""
        semaphore = self.semaphores[where]
        found = seen, maker.key
        found = max(found, semaphore.promised.get(source, found), key=lambda one: one[0])
        semaphore.promised[source] = found
        self.at(found[0], lambda: semaphore.grow(*found))

    def flow(self, begin: int, flow: Flow) -> None:
        """Bytes begin to flow."""

        def join() -> None:
            if flow.left > 0 or self.network.is_blocked(flow):
                self.network.flows.append(flow)
            else:
                flow.done(self.now)

        self.at(begin, join)

    def left_over(self) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
        """(queue, rank, row) of what waits for ever; with a time, of what was stopped."""
        flows = {flow.process: flow.stands_since for flow in self.network.flows}
        stuck, halted = set[tuple[int, ...]](), set[tuple[int, ...]]()
        for queue in self._queues:
            key = queue.number, queue.rank
            since = flows.get(key, queue.halted)
            if isinstance(queue, _Ring):
                if since is not None:
                    halted.add((*key, queue.pushed[queue.turn], since))
            elif since is not None:
                halted.add((*key, queue.row, since))
            elif queue.row < len(queue.queue.sync.wait_sem):
                stuck.add((*key, queue.row))
        return stuck, halted

    def signal_ps(self, one: int, other: int) -> int:
        """A semaphore write that follows no data."""
        routes, way = self.executable.routes, (np.array(one), np.array(other))
        write = self.model.semaphore_ps(routes.transport(*way), routes.links_ps(*way))
        return int(write) + int(routes.crossing_ps(*way))


class Speeds:
    """What a disturbance says of any time."""

    def __init__(self, disturbance: Disturbance, parts: Parts) -> None:
        self.disturbance, self.parts = disturbance, parts
        both = (*disturbance.parts, *disturbance.queues)
        self.times = sorted({t for one in both for t in (one.start_ps, one.end_ps)} - {ALWAYS_PS})
        self.faults = {}
        for one in disturbance.transfers:
            self.faults.setdefault((one.queue, one.rank, one.nth), []).append(one)

    @staticmethod
    def _together(speeds: Iterable[PartSpeed | QueueSpeed], time: int) -> int:
        holding = [
            Fraction(one.speed, FULL_SPEED) for one in speeds if one.start_ps <= time < one.end_ps
        ]
        product = math.prod(holding) * FULL_SPEED
        return max(1, math.floor(product)) if product else 0

    def of_queue(self, queue: int, rank: int, time: int) -> int:
        mine = (one for one in self.disturbance.queues if (one.queue, one.rank) == (queue, rank))
        return self._together(mine, time)

    def of_part(self, part: int, time: int) -> int:
        return self._together((one for one in self.disturbance.parts if one.part == part), time)

    def capacity(self, part: Part, usual: int, time: int) -> int:
        """MB/s of a part at a time."""
        parts, numbers = self.parts, list[int]()
        if isinstance(part, int):
            numbers = [part]
        else:
            kind, number, *way = part
            if kind == "all":
                first = parts.span(PartKind.DMA).start + number * parts.groups
                numbers = list(range(first, first + parts.groups))
            else:
                span = parts.span(PartKind.EFA if kind == "adapter" else PartKind.QUEUE_PAIR)
                half = (span.stop - span.start) // 2
                numbers = [span.start + number + (half if way == ["in"] else 0)] if half else []
        if all(self.of_part(one, time) == FULL_SPEED for one in numbers):
            return usual
        rate = sum(int(parts.rates[one]) * self.of_part(one, time) for one in numbers)
        return max(1, rate // FULL_SPEED // 10**6) if rate else 0

    def done(
        self, process: tuple[int, int], time: int, amount: int, percent: int | None
    ) -> tuple[int, bool]:
        """When so many ps of work are done, and True; or since when nothing is done for ever.

        Without a percentage only standing still makes it longer.
        """
        left, stands_since = Fraction(amount), NEVER
        while left > 0:
            later = next((one for one in self.times if one > time), NEVER)
            speed = self.of_queue(*process, time)
            rate = Fraction(speed * (percent or 100), FULL_SPEED * 100)
            if percent is None:
                rate = Fraction(min(1, speed))
            if rate and time + math.ceil(left / rate) <= later:
                return time + math.ceil(left / rate), True
            stands_since = NEVER if rate else min(stands_since, time)
            if later == NEVER:
                return stands_since, False
            left -= rate * (later - time)
            time = later
        return time, True

    def start(self, process: tuple[int, int], time: int) -> tuple[int, bool]:
        """When something starts that could at a time, and True; or that time."""
        ready = time
        while not self.of_queue(*process, time):
            time = next((one for one in self.times if one > time), NEVER)
            if time == NEVER:
                return ready, False
        return time, True


class _Program:
    """The queue of an engine or a CC-core on one rank."""

    def __init__(self, clock: Reference, number: int, rank: int) -> None:
        self.clock, self.number, self.rank = clock, number, rank
        queue = clock.executable.queues[number]
        assert not isinstance(queue, DmaQueue)
        self.queue = queue
        self.row = self.turn = self.free = 0
        self.halted: int | None = None
        self.last: tuple[int, int, int] | None = None
        self.offsets: dict[int, int] = defaultdict(int)
        self.taken: dict[int, int] = defaultdict(int)

    def look(self) -> None:
        """Start the next row if nothing is in its way."""
        while self.row < len(self.queue.sync.wait_sem):
            cause, reason = self.last, Reason.QUEUE
            sem = _cell(self.queue.sync.wait_sem, self.row, self.rank)
            if sem != IDLE:
                value = _cell(self.queue.sync.wait_value, self.row, self.rank) + self.offsets[sem]
                semaphore = self.clock.semaphores[self.rank, sem]
                if len(semaphore.times) < value:
                    semaphore.waiting.append(self.look)
                    return
                if value > 0 and semaphore.times[value - 1] >= self.free:
                    cause, reason = semaphore.makers[value - 1], Reason.SEMAPHORE
            if not self._is_idle():
                start, starts = self.clock.speeds.start((self.number, self.rank), self.clock.now)
                if not starts:
                    self.halted = start
                elif start == self.clock.now:
                    self._begin(cause, reason)
                else:
                    self.clock.at(start, self.look)
                return
            self._move_on()

    def _is_idle(self) -> bool:
        """A CC-core row that does nothing on this rank takes no time."""
        sync = self.queue.sync
        posts = [_cell(post.rank, self.row, self.rank) for post in sync.posts]
        waits = _cell(sync.wait_sem, self.row, self.rank) != IDLE
        return isinstance(self.queue, CcQueue) and not waits and set(posts) <= {IDLE}

    def _begin(self, cause: tuple[int, int, int] | None, reason: Reason) -> None:
        clock, start = self.clock, self.clock.now
        overhead, work, traffic, percent = self._costs()
        process = self.number, self.rank
        begin, goes_on = clock.speeds.done(process, start, overhead, percent)
        floor = begin
        if goes_on and work is not None:
            begin, floor, goes_on = self._worked(begin, work, percent)
        if not goes_on:
            self.halted = floor
            return

        def finish(moved: int) -> None:
            alone = max(begin + _alone_ps(clock, uses, traffic), floor) if traffic else floor
            end = max(moved, floor)
            found = Performed(
                self.number,
                self.rank,
                self.turn,
                self.row,
                start,
                end,
                cause,
                reason if cause else Reason.NONE,
                end - alone,
            )
            clock.at(end, lambda: self._complete(found))

        if not traffic:
            finish(floor)
            return
        uses = engine_uses(clock.parts, self.rank)
        packet = clock.executable.topology.dma.packet_bytes
        clock.flow(begin, Flow(uses, packet, traffic * 10**6, finish, process=process))

    def _worked(self, start: int, time: Duration, percent: int | None) -> tuple[int, int, bool]:
        """When the bytes of an instruction begin to flow, when it is done, and True.

        Or since when nothing is done for ever. Engines work at their speed; DMA stands still with
        them, and else takes what it takes on a core that was slow before the run.
        """
        process, speeds = (self.number, self.rank), self.clock.speeds

        def moved(begin: int, ps: int) -> tuple[int, bool]:
            return speeds.done(process, begin, math.ceil(Fraction(ps * 100, percent or 100)), None)

        flows, goes_on = moved(start, time.starts_ps)
        if not goes_on:
            return flows, flows, False
        by_engines, goes_on = speeds.done(process, flows, time.engines_ps, percent)
        if not goes_on:
            return flows, by_engines, False
        by_dma, goes_on = moved(flows, time.dma_ps)
        if not goes_on:
            return flows, by_dma, False
        if by_engines >= by_dma:
            return flows, *moved(by_engines, time.dma_tile_ps)
        return flows, *speeds.done(process, by_dma, time.engines_tile_ps, percent)

    def _complete(self, made: Performed) -> None:
        clock = self.clock
        clock.performed.append(made)
        self.last, self.turn, self.free = made.key, self.turn + 1, made.end
        for post in self.queue.sync.posts:
            to, sem = (_cell(one, self.row, self.rank) for one in (post.rank, post.sem))
            if to != IDLE:
                seen = made.end + self._flight_ps(to, sem)
                clock.promise((to, sem), seen, (self.number, self.rank), made)
        self._push()
        self._move_on()
        self.look()

    def _push(self) -> None:
        """Tell a ring what it will have to do when its tail has moved."""
        queue = self.queue
        if isinstance(queue, CcQueue) and queue.opcode[self.row] == CcOpcode.ADVANCE:
            ring = self.clock.rings[self.rank, queue.stream, int(queue.ring[self.row])]
            if _cell(queue.sync.posts[0].rank, self.row, self.rank) != IDLE:
                ring.pushed.append(int(queue.ring_row[self.row]))

    def _flight_ps(self, to: int, sem: int) -> int:
        clock, model = self.clock, self.clock.model
        if isinstance(self.queue, EngineQueue):
            triggers = {facts.trigger_sem for facts in clock.executable.streams}
            return model.trigger_ps if sem in triggers else model.semaphore_local_ps
        if self.queue.opcode[self.row] == CcOpcode.SIGNAL:
            return clock.signal_ps(self.rank, to)
        return model.semaphore_local_ps

    def _costs(self) -> tuple[int, Duration | None, int, int | None]:
        """Overhead, time after that, bytes to and from memory, and percent of an engine's speed."""
        clock, model = self.clock, self.clock.model
        if isinstance(self.queue, CcQueue):
            streams = len(clock.executable.streams)
            overhead = model.cc_row_ps(self.queue.stream, streams)
            number = self.queue.placeholder
            opens = self.row == 0 or number[self.row - 1] != number[self.row]
            if number[self.row] != IDLE and opens:
                loads = [row for row in self.queue.loads if number[row] == number[self.row]]
                one_load = overhead + model.semaphore_local_ps
                overhead += model.cc_start_ps + len(loads) * one_load
            return overhead, None, 0, None
        place, topology = clock.executable.placement, clock.executable.topology
        where = place.chip[self.rank], place.core[self.rank]
        percent = int(topology.engines_percent(*(np.array(one) for one in where)))
        overhead, work, traffic = instruction_costs(clock.executable, model, self.queue, self.row)
        return overhead, work, traffic, percent

    def _move_on(self) -> None:
        jump = self.queue.jumps.get(self.row)
        number, self.row = self.row, self.row + 1
        if jump is None or self._goes_on(number, jump):
            return
        self.row = jump.target
        shift = jump.shift[self.rank if len(jump.shift) > 1 else 0]
        for sem, by in enumerate(shift.tolist()):
            self.offsets[sem] += by

    def _goes_on(self, row: int, jump: Jump) -> bool:
        if jump.decision is Decision.ALWAYS:
            return False
        decisions = self.clock.decisions
        trips = decisions.trips(jump) if isinstance(decisions, PlannedDecisions) else None
        number = self.taken[row]
        self.taken[row] += 1
        if trips is None:
            return decisions.taken(self.number, row)[self.rank][number]
        if number == trips:
            self.taken[row] = 0
        return number < trips


class _Ring:
    """A DMA ring of one rank: does what has been pushed, one run of descriptors after another."""

    def __init__(self, clock: Reference, number: int, rank: int) -> None:
        self.clock, self.number, self.rank = clock, number, rank
        queue = clock.executable.queues[number]
        assert isinstance(queue, DmaQueue)
        self.queue = queue
        facts = {one.stream: one for one in clock.executable.streams}
        tail, _ = facts[queue.stream].rings[queue.lane]
        self.tail = clock.semaphores[rank, tail]
        self.pushed: list[int] = []
        self.turn = self.free = self.moved = 0
        self.halted: int | None = None
        self.is_busy = False
        self.last: tuple[int, int, int] | None = None
        self.sent: tuple[int, int, int] | None = None  # the last message over EFA
        self.arrived = 0

    def look(self) -> None:
        """Begin the next transfer when the tail has passed it."""
        if self.is_busy:
            return
        if len(self.tail.times) <= self.turn:
            self.tail.waiting.append(self.look)
            return
        cause, reason, seen = self.last, Reason.RING, self.tail.times[self.turn]
        if seen >= self.free:
            cause, reason = self.tail.makers[self.turn], Reason.SEMAPHORE
        self._begin(max(seen, self.free), cause, reason if cause else Reason.NONE)

    def _begin(self, start: int, cause: tuple[int, int, int] | None, reason: Reason) -> None:
        clock, row = self.clock, self.pushed[self.turn]
        # one message at a time to a peer of another instance: all that a round sends it
        peers = Ends.of(self.queue, row, self.rank).peers
        far = [
            peer for peer in peers if transport(clock.executable, self.rank, peer) is Transport.EFA
        ]
        which = int(self.queue.placeholder[row]), int(self.queue.round[row])
        message = (far[0], *which) if far else None
        follows = far and self.sent and self.sent[0] == far[0] and self.sent != message
        if follows and self.arrived > start:
            start, cause, reason = self.arrived, self.last, Reason.RING
        self.is_busy = True
        process = self.number, self.rank
        start, goes_on = clock.speeds.start(process, start)
        if not goes_on:
            self.halted = start
            return
        self.sent = message
        size = _cell(self.queue.size_bytes, row, self.rank)
        count = int(descriptors(np.array(size)))
        lead, latency = self._delays(row)
        # the engines of a ring move the bytes of one run after those of the one before
        prepared = lead + count * clock.model.descriptor_ps
        begin, goes_on = clock.speeds.done(process, start, prepared, None)
        if not goes_on:
            self.halted = begin
            return
        begin = max(begin, self.moved)
        uses = transfer_uses(clock.executable, clock.parts, self.queue, (row, self.rank))
        relayed = is_relayed(clock.executable, self.queue, (row, self.rank))
        alone = _alone_ps(clock, uses, size, relayed)

        faults = clock.speeds.faults.get((*process, self.turn), [])
        longer = sum(one.longer_ps for one in faults)

        def done(moved: int) -> None:
            clock.at(moved + longer, lambda: arrive(moved + longer))

        def arrive(moved: int) -> None:
            end = moved + latency
            where = self.number, self.rank, self.turn, row
            made = Performed(*where, start, end, cause, reason, moved - begin - alone)
            self._complete(made, moved - lead, faults)

        packet = clock.executable.topology.cc.packet_bytes
        clock.flow(begin, Flow(uses, packet, size * 10**6, done, relayed, process))

    def _complete(self, made: Performed, free: int, faults: Iterable[TransferFault]) -> None:
        self.clock.performed.append(made)
        self.last, self.free, self.moved = made.key, free, self.clock.now
        self.arrived = made.end
        self.turn, self.is_busy = self.turn + 1, False
        times = min(2, math.prod(one.completions for one in faults))
        late = sum(one.late_ps for one in faults)
        for number, post in enumerate(self.queue.sync.posts):
            to, sem = (_cell(one, made.row, self.rank) for one in (post.rank, post.sem))
            for _ in range(times if to != IDLE else 0):
                seen = made.end + self._flight_ps(number, to) + late
                self.clock.promise((to, sem), seen, (self.number, self.rank), made)
        self.look()

    def _delays(self, row: int) -> tuple[int, int]:
        """Until bytes flow, and from the last of them until it is there."""
        clock, ends = self.clock, Ends.of(self.queue, row, self.rank)
        ways = [(self.rank, peer) for peer in ends.peers]
        reads = [(owner, self.rank) for owner in ends.owners]
        write, read = (
            [int(clock.executable.routes.latency_ps(*map(np.array, way))) for way in some]
            for some in (ways, reads)
        )
        start = clock.model.dma_start_ps
        over_efa = [transport(clock.executable, *way) is Transport.EFA for way in ways]
        # the latency of EFA is from memory to memory: the start of the DMA is in it
        whole = max(ps if far else ps + start for ps, far in zip(write, over_efa, strict=True))
        lead = min(whole, start)
        return lead, whole - lead + max(read, default=0)

    def _flight_ps(self, number: int, to: int) -> int:
        """Words that follow data have only their write to pay; a credit has its own way."""
        model = self.clock.model
        if number <= (1 if self.queue.second_peer is None else 2):
            return model.semaphore_local_ps if to == self.rank else model.semaphore_remote_ps
        return self.clock.signal_ps(self.rank, to)


def _cell(column: np.ndarray, row: int, rank: int) -> int:
    return int(column[row, rank if column.shape[1] > 1 else 0])


def _alone_ps(
    clock: Reference, uses: Mapping[Part, int], size: int, is_relayed: bool = False
) -> int:
    return -(-size * 10**6 // clock.network.alone(uses, is_relayed)) if size else 0
