"""When every row of every queue runs on the device model, in whole picoseconds.

Queues run side by side and wait for semaphores; transfers share links, memory and engines that
cannot serve all of them (`max_min.py`). The same executable and decisions give the same times
everywhere.
"""

from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock import machine_code, uncompiled
from ncc_runtime.execution.clock.disturbed import changes_times, disturbed
from ncc_runtime.execution.clock.event_log import IN_MEMORY, EventLog, trace_of
from ncc_runtime.execution.clock.instances import Instances, symmetric_instances, unreduced
from ncc_runtime.execution.clock.kernel import LEAST_ROOM
from ncc_runtime.execution.clock.max_min import HIGHEST
from ncc_runtime.execution.clock.programs import ClockProgram, ProgramTables, RunSizes
from ncc_runtime.execution.clock.tables import (
    BEYOND,
    COUNTS,
    DONE,
    EVENTS,
    INCREMENTS,
    INCREMENTS_FULL,
    KEPT_LEVEL,
    LARGEST,
    LATEST,
    LEAST_CAP_LEVEL,
    LOG_FULL,
    NONE,
    RING,
    STEPS_LEFT,
    WAITING,
    ClockState,
    empty,
)
from ncc_runtime.execution.control_flow import Decisions, PlannedDecisions
from ncc_runtime.execution.disturbance import NOTHING, Disturbance
from ncc_runtime.execution.scheduler import Stuck, deadlock_report
from ncc_runtime.execution.trace import Trace, opens_placeholder
from ncc_runtime.lowering.cc_isa import DESCRIPTOR_BYTES
from ncc_runtime.lowering.executable import CcQueue, EngineQueue, Executable
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel
from ncc_runtime.progress import phase

STEPS_A_CALL = 1 << 21
"""Rows performed and rates worked out until the kernel returns: some tenths of a second."""

FEW = 16
"""Increments that a semaphore has room for at first, if it grows on demand. A producer is seldom
further ahead of its consumer, as slots of buffers are given back one by one."""

AT_END = 2**62
"""The row of a process that has nothing to perform: behind the end of any queue."""


def collective_ps(executable: Executable) -> int:
    """Picoseconds of placeholder 0, from the first trigger to the last report that it is complete.

    For programs whose loops and conditionals do not follow values; ControlError for others.
    """
    return Clock(executable, PlannedDecisions(executable, {})).spans().collective_ps(0)


def simulate(
    executable: Executable,
    decisions: Decisions,
    run_sizes: RunSizes = MappingProxyType({}),
    in_memory: int = IN_MEMORY,
) -> Trace:
    """The times of one execution whose loops and conditionals go as decided.

    `run_sizes` are for rings whose transfers move another size each time. A trace of more than
    `in_memory` events is kept on disk. DeadlockError if not every row can be performed.
    """
    run = Clock(executable, decisions, run_sizes).run(in_memory=in_memory)
    if run.stuck:
        raise deadlock_report(executable, run.stuck, run.held)
    return run.trace


@attrs.frozen
class Halted:
    """A queue of a rank that a disturbance stopped for ever."""

    queue: int
    rank: int
    row: int  # that it cannot start or complete
    since_ps: int  # when it would have started, or when it or its bytes came to a stand
    part: int | None  # over which its bytes cannot pass; None where the queue itself stands still


@attrs.frozen(eq=False)
class TimedRun:
    """What became of one run."""

    trace: Trace  # of the rows that were completed
    stuck: tuple[Stuck, ...]  # queues that wait for what nothing will provide
    halted: tuple[Halted, ...]
    held: np.ndarray  # by semaphores at the end, (ranks, semaphores) int64

    @property
    def is_complete(self) -> bool:
        """Whether every row was performed."""
        return not (self.stuck or self.halted)


class Clock:
    """Times runs of one executable whose loops and conditionals always go the same way.

    Its tables are made once, so that further runs cost only what happens in them.
    """

    def __init__(
        self,
        executable: Executable,
        decisions: Decisions,
        run_sizes: RunSizes = MappingProxyType({}),
    ) -> None:
        self.executable = executable
        self._decisions, self._run_sizes = decisions, run_sizes
        self._parts = Parts(
            executable.routes, TimingModel.from_topology(executable.topology), executable.ranks
        )

    def run(self, disturbance: Disturbance = NOTHING, in_memory: int = IN_MEMORY) -> TimedRun:
        """One run in which some things go wrong; no row that cannot be performed is an error.

        A trace of more than `in_memory` events is kept on disk. A disturbance needs the columns of
        every rank: ValueError for an executable with those of one instance only, or for what the
        executable does not have. LoweringError for a run that takes too long to be counted.
        """
        if not changes_times(disturbance):
            run = self._timed(self._symmetric, NOTHING, in_memory)
            if not run.stuck or self._symmetric is self._whole:
                return run
            # a deadlock: run again with every rank, to name all that are stuck
        elif self.executable.representatives < self.executable.ranks:
            raise ValueError("a disturbance needs the columns of every rank")
        return self._timed(self._whole, disturbance, in_memory)

    @cached_property
    def _symmetric(self) -> "_Tables":
        """Of one of the symmetric instances, if they are symmetric."""
        executable = self.executable
        if self._run_sizes:
            return self._whole
        instances = symmetric_instances(executable, self._parts, self._decisions)
        if instances.ranks == executable.representatives:
            return self._whole
        return self._tables(instances)

    @cached_property
    def _whole(self) -> "_Tables":
        """Of every rank that has columns."""
        return self._tables(unreduced(self.executable))

    def _tables(self, instances: Instances) -> "_Tables":
        tables = ProgramTables(self.executable, self._parts, instances)
        return _Tables(instances, tables.program(self._decisions, self._run_sizes))

    def spans(self) -> "RowSpans":
        """When rows run undisturbed, on all ranks together; no event is kept.

        DeadlockError if not every row can be performed.
        """
        machine = self._performed(self._symmetric, NOTHING, None)
        stuck = tuple(_stuck(self.executable, machine))
        if stuck and self._symmetric is not self._whole:
            machine = self._performed(self._whole, NOTHING, None)
            stuck = tuple(_stuck(self.executable, machine))
        if stuck:
            raise deadlock_report(self.executable, stuck, _held(machine))
        ends = np.cumsum(machine.queue["length"])[:-1]
        start_ps, end_ps = (np.split(machine.span[name], ends) for name in ("start", "end"))
        return RowSpans(
            self.executable, int(machine.counts[LATEST]), tuple(start_ps), tuple(end_ps)
        )

    def _timed(self, tables: "_Tables", disturbance: Disturbance, in_memory: int) -> TimedRun:
        log = EventLog(in_memory)
        machine = self._performed(tables, disturbance, log)
        trace = trace_of(self.executable, machine, tables.instances, log)
        stuck, halted = tuple(_stuck(self.executable, machine)), tuple(_halted(machine))
        return TimedRun(trace, stuck, halted, _held(machine))

    def _performed(
        self, tables: "_Tables", disturbance: Disturbance, log: EventLog | None
    ) -> ClockState:
        """The state at the end of a run, whose events are kept if there is a log."""
        executable, instances, program = self.executable, tables.instances, tables.program
        model = self._parts.model
        machine = machine_of(
            executable, model, program, instances.ranks, is_recorded=log is not None
        )
        if disturbance is not NOTHING:
            machine = disturbed(machine, executable, self._parts, program.routes, disturbance)
        if log is not None:
            machine = machine._replace(event=log.first_table(program.events + 1))
        return _run_to_end(executable, machine, log, program.expected, instances.count)


@attrs.frozen(eq=False)
class RowSpans:
    """When rows run, on all ranks together: what is told of a run without keeping its events."""

    executable: Executable
    time_ps: int  # until the last row is complete
    start_ps: tuple[np.ndarray, ...]  # by queue, the first start of each row; BEYOND without one
    end_ps: tuple[np.ndarray, ...]  # by queue, the last end of each row

    def collective_ps(self, placeholder: int) -> int:
        """From its first trigger on a rank to the last rank's report that it is complete."""
        first, last = BEYOND, 0
        for number, queue in enumerate(self.executable.queues):
            if isinstance(queue, CcQueue):
                # ends of a queue and rank ascend, so the last row of a run has the latest
                of_it = queue.placeholder == placeholder
                opens = of_it & opens_placeholder(queue)
                first = min(first, int(self.start_ps[number][opens].min(initial=BEYOND)))
                last = max(last, int(self.end_ps[number][of_it].max(initial=0)))
        return last - first


@attrs.frozen(eq=False)
class _Tables:
    instances: Instances
    program: ClockProgram


def _run_to_end(
    executable: Executable,
    machine: ClockState,
    log: EventLog | None,
    expected: int | None,
    instances: int,
) -> ClockState:
    """The state at the end of the run; `instances` are alike, one of them is performed."""
    total = None if expected is None else expected * instances
    with phase("times", "events", total) as now:
        while (why := _go_on(machine, expected)) != DONE:
            _check_time(executable, machine)
            now.done = int(machine.counts[EVENTS]) * instances
            if why == LOG_FULL:
                assert log is not None, "without a log no event is recorded"
                machine = log.room(machine)
            elif why == INCREMENTS_FULL:
                # twice the room; semaphores that grow move to the end of it
                more = empty("increment", max(64, len(machine.increment)))
                machine = machine._replace(increment=np.concatenate((machine.increment, more)))
            # else paused, so that Python handles signals such as Ctrl-C
    _check_time(executable, machine)
    if log is not None:
        log.close(machine)
    return machine


def _go_on(machine: ClockState, expected: int | None) -> int:
    """Go on by the kernel until it returns, for which see `kernel.run`."""
    left = 0 if expected is None else expected - int(machine.counts[EVENTS])
    steps = uncompiled.steps_for(machine, left)
    machine.counts[STEPS_LEFT] = min(STEPS_A_CALL, steps or STEPS_A_CALL)
    return uncompiled.run(machine) if steps else machine_code.run(machine)


def _check_time(executable: Executable, machine: ClockState) -> None:
    """LoweringError once times are too long for reports, which add them up over all ranks."""
    most_ps = BEYOND // executable.representatives - 1
    if int(machine.counts[LATEST]) > most_ps:
        ranks = (
            "a rank" if executable.representatives == 1 else f"{executable.representatives:,} ranks"
        )
        raise LoweringError(
            f"the run takes more than {most_ps // PS_PER_S:,} s, the most that the clock can count "
            f"for {ranks}; run fewer trips of its loops, or run it without the clock"
        )


def launch_ps(executable: Executable, model: TimingModel) -> int:
    """When all ranks start: after the host's launch and the barrier between chips."""
    chip = executable.placement.chip
    groups = {
        tuple(group)
        for placeholder in executable.program.placeholders
        for group in (placeholder.groups or placeholder.pairs)
    }
    chips = max((len(np.unique(chip[list(group)])) for group in groups), default=1)
    return model.launch_ps + model.barrier_ps(chips)


def machine_of(
    executable: Executable,
    model: TimingModel,
    program: ClockProgram,
    ranks: int,
    *,
    is_recorded: bool = True,
) -> ClockState:
    """Everything before the first row, of the first ranks; events are kept only if recorded."""
    sizes = empty("sizes", 1)
    most_uses = int((program.route["end_use"] - program.route["first_use"]).max(initial=1))
    sizes[0] = (
        ranks,
        max(1, executable.semaphore_count),
        is_recorded,
        program.most_posts,
        most_uses,
        DESCRIPTOR_BYTES,
        model.descriptor_ps,
    )
    process = _processes(executable, launch_ps(executable, model), ranks)
    counts = np.zeros(COUNTS, np.int64)
    semaphore, increment = _semaphores(program)
    counts[WAITING], counts[INCREMENTS] = len(process), semaphore["room"].sum()
    counts[LARGEST] = semaphore["room"].max(initial=0)
    counts[KEPT_LEVEL] = counts[LEAST_CAP_LEVEL] = HIGHEST
    counts[STEPS_LEFT] = STEPS_A_CALL
    offsets = int((program.queue["offset"] != NONE).sum()) * ranks
    return ClockState(
        sizes=sizes,
        cells=program.cells,
        queue=program.queue,
        row=program.row,
        post=program.post,
        posted=program.posted,
        jump=program.jump,
        route=program.route,
        use=program.use,
        stage=empty("stage", 0),
        change=empty("change", 0),
        fault=empty("fault", 0),
        process=process,
        part=program.part.copy(),
        node=empty("node", len(process) * most_uses),
        branch=program.branch.copy(),
        span=_unperformed(len(program.row)),
        offset=np.zeros(offsets * int(sizes[0]["semaphores"]), np.int64),
        semaphore=semaphore,
        increment=increment,
        event=empty("event", 0),
        counts=counts,
    )


def _unperformed(rows: int) -> np.ndarray:
    """The spans of rows before the first event."""
    spans = empty("span", rows)
    spans["start"] = BEYOND
    return spans


def _processes(executable: Executable, start_ps: int, ranks: int) -> np.ndarray:
    queues = len(executable.queues)
    process = empty("process", queues * ranks)
    for field in ("last", "route", "end", "next", "place", "pair", "stage", "halted", "fault"):
        process[field] = NONE
    process["free"] = start_ps
    process["percent"] = 100
    process["todo"], process["is_todo"] = np.arange(len(process)), 1
    place = executable.placement
    engines = executable.topology.engines_percent(place.chip, place.core)[:ranks]
    for number, queue in enumerate(executable.queues):
        of_queue = process[number * ranks : (number + 1) * ranks]
        if isinstance(queue, EngineQueue):
            of_queue["percent"] = engines
        if queue.ranks is not None:
            of_queue["row"] = AT_END
            of_queue["row"][queue.ranks] = 0
    return process


def _semaphores(program: ClockProgram) -> tuple[np.ndarray, np.ndarray]:
    """All semaphores at zero.

    Each has room for its increments if every row runs once; one whose increments are dropped when
    they are consumed, for a few.
    """
    is_dropped = program.waiters < 2
    room = np.where(is_dropped, np.minimum(program.increments, FEW), program.increments)
    semaphore = empty("semaphore", len(room))
    semaphore["start"], semaphore["room"] = np.cumsum(room) - room, room
    semaphore["sleeper"], semaphore["has_one"] = NONE, program.waiters == 1
    semaphore["consumed"] = program.least - 1  # what is below is waited for by nobody
    spare = (program.most_posts + 1) * max(LEAST_ROOM, 2 * int(room.max(initial=0)))
    return semaphore, empty("increment", int(room.sum()) + spare)


def _held(machine: ClockState) -> np.ndarray:
    """By semaphores at the end, (ranks, semaphores) int64."""
    return machine.semaphore["held"].reshape(int(machine.sizes[0]["ranks"]), -1)


def _stuck(executable: Executable, machine: ClockState) -> Iterator[Stuck]:
    """The processes that have rows left, and the semaphores that they wait for."""
    process = machine.process
    waits = _has_rows_left(machine) & (process["route"] == NONE) & (process["halted"] == NONE)
    for number, rank, row in _places(machine, waits):
        wait_sem = executable.queues[number].sync.wait_sem[row]
        sem = int(wait_sem[rank if len(wait_sem) > 1 else 0])
        awaited = process[number * int(machine.sizes[0]["ranks"]) + rank]["awaited"]
        yield Stuck(number, row, rank, sem, int(awaited))


def _halted(machine: ClockState) -> Iterator[Halted]:
    """The processes that stand still for ever, or whose bytes do."""
    process, ranks = machine.process, int(machine.sizes[0]["ranks"])
    halts = (process["route"] != NONE) | (process["halted"] != NONE)
    for number, rank, row in _places(machine, halts):
        it, queue = process[number * ranks + rank], machine.queue[number]
        if queue["kind"] == RING:
            tail = machine.semaphore[rank * int(machine.sizes[0]["semaphores"]) + queue["tail"]]
            row = int(machine.increment[tail["start"] + row - tail["dropped"]]["pushed"])
        since, part = int(it["halted"]), None
        if since == NONE:
            since = int(it["since"])
            used = machine.use["part"][it["first_use"] : it["end_use"]]
            down = used[machine.part["capacity"][used] == 0]
            part = int(down[0]) if len(down) and not it["is_stopped"] else None
        yield Halted(number, rank, row, since, part)


def _places(machine: ClockState, which: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Queue, rank and row of processes, by queue, then rank."""
    for process in np.flatnonzero(which).tolist():
        yield *divmod(process, int(machine.sizes[0]["ranks"])), int(machine.process[process]["row"])


def _has_rows_left(machine: ClockState) -> np.ndarray:
    """Which processes have rows to perform, bool."""
    length = np.where(machine.queue["kind"] == RING, 0, machine.queue["length"])
    has_left: np.ndarray = machine.process["row"] < np.repeat(length, machine.sizes[0]["ranks"])
    return has_left
