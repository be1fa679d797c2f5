"""The values of a run as the clock timed it: each row reads at its start and writes at its end.

Without faults every order gives the same values, so values need no times. A completion that comes
twice lets a row start before what it reads has been written, and a bit of memory flips at a time:
then the order of reads and writes decides, and it is the clock's. Increments are made as rows end,
on counters of this file's own (`QueueStates`), so that the two check each other: a row that the
clock starts must be allowed to start, and at the end the same queues must be stuck.

A DMA ring moves one transfer after another. The clock lets the next one begin while the last bytes
of the one before are on their way; if it reads those, they land first, as in the proofs.
"""

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.clock.clock import Halted, TimedRun
from ncc_runtime.execution.control_flow import RecordedDecisions, selected
from ncc_runtime.execution.disturbance import Disturbance, joined_transfers
from ncc_runtime.execution.scheduler import QueueStates, RowBatch, Scheduler, Stuck
from ncc_runtime.execution.trace import Trace
from ncc_runtime.execution.values.devices import Devices
from ncc_runtime.execution.values.transfers import InFlight
from ncc_runtime.execution.variable_sizes import SizeRecord
from ncc_runtime.lowering.executable import IDLE, CcQueue, Decision, DmaQueue, Jump

MOST_ROWS = 1 << 16
"""Rows of all ranks that may be performed on top of ten times those of an undisturbed run."""


class DisagreementError(Exception):
    """Clock and values disagree on what may start, or on who is stuck: a fault of ours."""


class EndlessError(Exception):
    """Loops that follow corrupted values go on and on."""


@attrs.frozen(eq=False)
class Played:
    """A run whose values were computed in the order of its times."""

    outputs: list[np.ndarray]
    stuck: tuple[Stuck, ...]
    decisions: RecordedDecisions
    sizes: SizeRecord
    diverged: bool  # values decided otherwise than the clock was told; from there on without times
    early: tuple[tuple[int, int, int], ...]  # (queue, row, rank) that started before what it awaits
    has_race: bool  # a row waits for a count that may be reached too early, at another timing


@attrs.frozen(eq=False)
class _Begun:
    """A row under way on some ranks."""

    batch: RowBatch
    flights: Sequence[InFlight] = ()  # of a ring
    write: Callable[[], object] | None = None  # of an engine
    times: np.ndarray | None = None  # how often each rank makes its increments


class Playback:
    """Plays one run of a disturbed program on devices that hold its inputs."""

    def __init__(
        self,
        devices: Devices,
        disturbance: Disturbance,
        expected: RecordedDecisions,
        expected_rows: int,
    ) -> None:
        """`expected`: the decisions that the clock was given; so many rows it performed."""
        executable = self._executable = devices.executable
        self._devices, self._expected = devices, expected
        self._rows_left = 10 * expected_rows + MOST_ROWS
        self._decisions = RecordedDecisions(executable.ranks, self._entered_of)
        self._state = QueueStates(executable, self._decisions)
        self._sizes = SizeRecord(executable)
        self._faults = joined_transfers(disturbance.transfers)
        self._faulty_rings = {fault.queue for fault in disturbance.transfers}
        self._flips = sorted(disturbance.memory, key=lambda fault: fault.at_ps, reverse=True)
        shape = len(executable.queues), executable.ranks
        self._started = np.zeros(shape, np.int64)  # transfers of each ring
        self._in_flight: dict[tuple[int, int], list[InFlight]] = {}  # by ring and rank
        self._entered = np.zeros(shape, bool)  # whether a control row under way enters its block
        self._occasions: dict[tuple[int, int], np.ndarray] = {}  # by queue and row, by rank
        self._idle = {
            number: _idle_cells(queue, executable.ranks)
            for number, queue in enumerate(executable.queues)
            if isinstance(queue, CcQueue)
        }
        # increments too many of each counter, and how far it was when the first was made
        self._extra = np.zeros_like(self._state.semaphores)
        self._doubled_at = np.zeros_like(self._state.semaphores)
        self._early: list[tuple[int, int, int]] = []
        self._has_race = False
        self._diverged = False

    def run(self, timed: TimedRun) -> Played:
        """Play it; NccError as devices report it, EndlessError where loops do not end."""
        trace = timed.trace
        under_way: dict[int, _Begun] = {}
        for number in self._idle:
            self._skip_idle_rows(number, self._state.runners[number])
        for time_ps, is_end, number, group in _actions(trace):
            self._flip_until(time_ps)
            if is_end:
                self._end(under_way.pop(number))
            else:
                under_way[number] = self._start(*group, time_ps)
            if self._diverged:
                break
        if self._diverged:
            for begun in under_way.values():
                self._end(begun)
            self._go_on()
        else:
            self._flip_until(trace.time_ps)
            self._check_stuck(timed.stuck, timed.halted)
        return Played(
            outputs=[one.whole() for one in self._devices.outputs()],
            stuck=tuple(self._state.stuck()),
            decisions=self._decisions,
            sizes=self._sizes,
            diverged=self._diverged,
            early=tuple(self._early),
            has_race=self._has_race,
        )

    def _go_on(self) -> None:
        """Perform what can be performed, in any order: all decisions, for the clock to run anew."""
        scheduler = Scheduler(self._executable, self._decisions, self._state)
        while batches := scheduler.everything_ready():
            for batch in batches:
                self._end(self._start(batch.queue, batch.row, batch.ranks, None))

    # ---- one row

    def _start(self, number: int, row: int, ranks: np.ndarray, time_ps: int | None) -> _Begun:
        self._rows_left -= len(ranks)
        if self._rows_left < 0:
            raise EndlessError
        queue = self._executable.queues[number]
        sem, value = self._state.awaited(number, row, ranks)
        if isinstance(queue, DmaQueue):
            nth = self._started[number, ranks]
            at_row = self._state.rings.pushed_row(number, ranks, nth)
            value = nth + 1
            self._started[number, ranks] += 1
        else:
            at_row = self._state.counters[number][ranks]
        held = self._state.semaphores[ranks, sem]
        wrong = (at_row != row) | ((sem != IDLE) & (held < value))
        if wrong.any():
            at = int(wrong.argmax())
            raise DisagreementError(
                f"rank {int(ranks[at])}, queue {queue.name}, pc {row}: the clock starts it at "
                f"{time_ps} ps, when values have come to pc {int(at_row[at])}; it waits for "
                f"s{int(sem[at])} >= {int(value[at])}, which holds {int(held[at])}"
            )
        self._note_early(number, row, ranks, sem, value)
        batch = RowBatch(number, row, ranks, sem, value)
        if isinstance(queue, DmaQueue):
            return self._begin_transfers(queue, batch, nth)
        if (jump := queue.jumps.get(row)) and jump.decision is not Decision.ALWAYS:
            self._decide(batch, jump)
        return _Begun(batch, write=self._devices.begin(batch))

    def _begin_transfers(self, queue: DmaQueue, batch: RowBatch, nth: np.ndarray) -> _Begun:
        flights = self._devices.begin_transfers(batch)
        if self._land_what_is_read(batch.queue, flights):
            flights = self._devices.begin_transfers(batch)
        for flight in flights:
            self._in_flight.setdefault((batch.queue, flight.sender), []).append(flight)
        if queue.registers is not None:
            moved, row = self._devices.resolved(batch)
            sizes = moved.size_bytes[row, batch.ranks]
            self._sizes.add(batch.queue, batch.row, batch.ranks, sizes)
        if batch.queue in self._faulty_rings:
            return _Begun(batch, flights, times=self._spoil(batch, nth, flights))
        return _Begun(batch, flights)

    def _land_what_is_read(self, number: int, flights: Sequence[InFlight]) -> bool:
        """Land what transfers read of those before them in their rings; whether there was any."""
        landed = False
        for flight in flights:
            for before in self._in_flight.get((number, flight.sender), ()):
                if not before.has_landed and before.writes_what_is_read_by(flight):
                    before.land(self._devices.arena)
                    landed = True
        return landed

    def _end(self, begun: _Begun) -> None:
        batch = begun.batch
        if begun.write is not None:
            begun.write()
        for flight in begun.flights:
            flight.land(self._devices.arena)
            self._in_flight[batch.queue, flight.sender].remove(flight)
        self._state.complete(batch, begun.times)
        if begun.times is not None and (begun.times > 1).any():
            self._note_doubled(batch, begun.times)
        if batch.queue in self._idle:
            self._skip_idle_rows(batch.queue, batch.ranks)

    def _skip_idle_rows(self, number: int, ranks: np.ndarray) -> None:
        """Perform the rows in which a CC-core neither waits nor increments: they take no time."""
        idle, counter = self._idle[number], self._state.counters[number]
        while len(ranks := ranks[idle[counter[ranks], ranks]]):
            for row in np.unique(counter[ranks]).tolist():
                at_row = ranks[counter[ranks] == row]
                nothing = np.full(len(at_row), IDLE)
                batch = RowBatch(number, row, at_row, nothing, nothing)
                self._rows_left -= len(at_row)
                if self._rows_left < 0:
                    raise EndlessError
                queue = self._executable.queues[number]
                assert isinstance(queue, CcQueue), queue.name
                jump = queue.jumps.get(row)
                if jump and jump.decision is not Decision.ALWAYS:
                    self._decide(batch, jump)
                self._devices.begin(batch)
                self._state.complete(batch)

    # ---- control flow

    def _decide(self, batch: RowBatch, jump: Jump) -> None:
        """Read the predicates; note where they differ from what the clock was told."""
        block = self._executable.program.blocks[jump.block]
        enters = selected(block, self._devices.predicate(jump.block, batch.ranks))
        self._entered[batch.queue, batch.ranks] = enters
        if self._diverged:
            return
        key = batch.queue, batch.row
        if key not in self._occasions:
            self._occasions[key] = np.zeros(self._executable.ranks, np.int64)
        expected = self._expected.taken(*key)
        for rank, enters_now in zip(batch.ranks.tolist(), enters.tolist(), strict=True):
            occasion = self._occasions[key][rank]
            told = expected[rank]
            if occasion >= len(told) or bool(told[occasion]) != enters_now:
                self._diverged = True
        self._occasions[key][batch.ranks] += 1

    def _entered_of(self, batch: RowBatch, _: Jump) -> np.ndarray:
        """What a control row read when it started."""
        return self._entered[batch.queue, batch.ranks]

    # ---- faults

    def _spoil(
        self, batch: RowBatch, nth: np.ndarray, flights: Sequence[InFlight]
    ) -> np.ndarray | None:
        """Flip bits of what is under way; how often increments are made if not once."""
        times = np.ones(len(batch.ranks), np.int64)
        flight_of = {flight.sender: flight for flight in flights}
        for at, rank in enumerate(batch.ranks.tolist()):
            fault = self._faults.get((batch.queue, rank, int(nth[at])))
            if fault is None:
                continue
            times[at] = fault.completions
            flight = flight_of.get(rank)
            for bit in fault.flipped_bits:
                # one that is not moved, as counts are smaller than the buffer, changes nothing
                if flight is not None and bit // 8 < len(flight.data):
                    flight.data[bit // 8] ^= np.uint8(1 << bit % 8)
        return None if (times == 1).all() else times

    def _flip_until(self, time_ps: int) -> None:
        """Flip the bits of memory that flip before what happens at a time."""
        memory = self._devices.arena.bytes
        while self._flips and self._flips[-1].at_ps <= time_ps:
            fault = self._flips.pop()
            if fault.address < memory.shape[1]:  # else the program does not use it
                memory[fault.rank, fault.address] ^= np.uint8(1 << fault.bit)

    def _note_doubled(self, batch: RowBatch, times: np.ndarray) -> None:
        """Count the increments that were too many, and where each counter was."""
        sync = self._executable.queues[batch.queue].sync
        for rank_of_row, count in zip(batch.ranks.tolist(), times.tolist(), strict=True):
            for post in sync.posts if count > 1 else ():
                to, sem = post.rank[batch.row, rank_of_row], post.sem[batch.row, rank_of_row]
                if to != IDLE:
                    self._extra[to, sem] += count - 1
                    real = self._state.semaphores[to, sem] - self._extra[to, sem]
                    self._doubled_at[to, sem] = self._doubled_at[to, sem] or real

    def _note_early(
        self, number: int, row: int, ranks: np.ndarray, sem: np.ndarray, value: np.ndarray
    ) -> None:
        """Note rows that wait for a later increment than the one that came twice."""
        doubled_at = self._doubled_at[ranks, sem]
        after = (sem != IDLE) & (doubled_at > 0) & (value > doubled_at)
        if after.any():
            self._has_race = True
            real = self._state.semaphores[ranks, sem] - self._extra[ranks, sem]
            early = ranks[after & (real < value)].tolist()
            self._early += [(number, row, rank) for rank in early]

    # ---- what the clock and the values must agree on

    def _check_stuck(self, stuck: Sequence[Stuck], halted: Sequence[Halted]) -> None:
        """DisagreementError unless exactly those queues have rows left that the clock says.

        None of these may be one that the values would let go on.
        """
        executable = self._executable
        here = {(one.queue, one.rank): one for one in self._state.stuck()}
        there = {(one.queue, one.rank): one for one in stuck}
        stopped = {(one.queue, one.rank) for one in halted}
        lines = []
        for key in sorted(here.keys() | there.keys()):
            mine, clocks = here.get(key), there.get(key)
            if mine == clocks or (key in stopped and mine is not None):
                continue
            name = f"rank {key[1]}, queue {executable.queues[key[0]].name}"
            lines.append(f"{name}: {_where(clocks)} by the clock, {_where(mine)} by values")
        for batch in Scheduler(executable, self._decisions, self._state).everything_ready():
            for rank in batch.ranks.tolist():
                if (batch.queue, rank) not in stopped:
                    name = f"rank {rank}, queue {executable.queues[batch.queue].name}"
                    lines.append(f"{name}: by values it can go on at pc {batch.row}")
        if lines:
            more = f"\n  … and {len(lines) - 8} more" if len(lines) > 8 else ""
            raise DisagreementError(
                "clock and values disagree on who is stuck\n  " + "\n  ".join(lines[:8]) + more
            )


def _where(stuck: Stuck | None) -> str:
    if stuck is None:
        return "at its end"
    return f"at pc {stuck.row} for s{stuck.sem} >= {stuck.awaited}"


def _idle_cells(queue: CcQueue, ranks: int) -> np.ndarray:
    """Which ranks neither wait nor increment in a row, (n + 1, ranks) bool; False at the end."""
    idle = np.zeros((len(queue.opcode) + 1, ranks), bool)
    idle[:-1] = queue.sync.wait_sem == IDLE
    for post in queue.sync.posts:
        idle[:-1] &= post.rank == IDLE
    return idle


Group = tuple[int, int, np.ndarray]
"""Queue, row, ranks."""


def _actions(trace: Trace) -> Iterator[tuple[int, bool, int, Group]]:
    """(time, whether it is an end, number of the group, group), in the order of time.

    A group is a row on the ranks that perform it at the same times. At one time rows end before
    others start. Where a row takes no time, or a queue starts two at once, all that happens at that
    time follows the numbers of events, in which causes stand before what they cause.
    """
    if not len(trace):
        return
    queue, row, rank = (column.astype(np.int64) for column in (trace.queue, trace.row, trace.rank))
    start, end = trace.start_ps.astype(np.int64), trace.end_ps.astype(np.int64)
    number = np.arange(len(trace))
    order = np.lexsort((number, start, rank, queue))
    twice = np.ones(len(order) - 1, bool)
    for column in (queue, rank, start):
        twice &= column[order[1:]] == column[order[:-1]]
    at_once = np.unique(np.concatenate((end[start == end], start[order[1:][twice]])))
    is_single = np.isin(start, at_once) | np.isin(end, at_once)
    single = np.where(is_single, number, -1)
    order = np.lexsort((rank, single, row, queue, end, start))
    is_first = np.ones(len(order), bool)
    is_first[1:] = False
    for column in (start, end, queue, row, single):
        is_first[1:] |= column[order[1:]] != column[order[:-1]]
    bounds = np.append(np.flatnonzero(is_first), len(order))
    first = order[bounds[:-1]]
    groups = np.arange(len(first))

    time = np.concatenate((start[first], end[first]))
    is_end = np.repeat([False, True], len(first))
    of_group = np.concatenate((groups, groups))
    is_at_once = np.isin(time, at_once)
    event = np.concatenate((single[first], single[first]))
    major = np.where(is_at_once, event, ~is_end)
    minor = np.where(is_at_once, is_end, of_group)
    actions = np.lexsort((minor, major, time))
    columns = (time[actions], is_end[actions], of_group[actions])
    for when, ends, group in zip(*(column.tolist() for column in columns), strict=True):
        events = order[bounds[group] : bounds[group + 1]]
        where = int(queue[events[0]]), int(row[events[0]]), rank[events]
        yield when, ends, group, where
