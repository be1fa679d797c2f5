"""When every row of every queue runs on the device model, in whole picoseconds.

Queues run side by side and wait for semaphores; transfers share links, memory and engines that
cannot serve all of them (`max_min.py`). The same executable and decisions give the same times
everywhere.
"""

from collections.abc import Iterator
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock import machine_code, uncompiled
from ncc_runtime.execution.clock.disturbed import (
    Halted,
    changing_parts,
    disturbed,
    halted,
    is_halted,
)
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
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.cc_isa import DESCRIPTOR_BYTES
from ncc_runtime.lowering.executable import EngineQueue, Executable
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel
from ncc_runtime.progress import phase

STEPS_A_CALL = 1 << 21
"""Rows performed and rates worked out until the kernel returns: some tenths of a second."""

AT_END = 2**62
"""The row of a process that has nothing to perform: behind the end of any queue."""


def collective_ps(executable: Executable) -> int:
    """Picoseconds of placeholder 0, from the first trigger to the last report that it is complete.

    For programs whose loops and conditionals do not follow values; ControlError for others.
    """
    _, start, end = simulate(executable, PlannedDecisions(executable, {})).spans(0)
    return int(end.max() - start.min())


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


@attrs.frozen(eq=False)
class TimedRun:
    """What the clock says of one execution, which a disturbance may keep from its end.

    - `trace`: the rows that were completed; one that never is has no event
    - `stuck`: queues that wait for a value that no semaphore reaches
    - `halted`: queues that the disturbance itself stops for ever
    - `held`: what semaphores hold at the end, (ranks, semaphores) int64
    """

    trace: Trace
    stuck: tuple[Stuck, ...]
    halted: tuple[Halted, ...]
    held: np.ndarray

    @property
    def is_complete(self) -> bool:
        """Whether every row was performed."""
        return not (self.stuck or self.halted)


class Clock:
    """Times of one executable, whose loops and conditionals go as decided.

    Its tables are made once, for any number of runs.
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
        self._tables: tuple[tuple[int, tuple[int, ...]], ClockProgram] | None = None

    def run(self, disturbance: Disturbance = NOTHING, in_memory: int = IN_MEMORY) -> TimedRun:
        """One execution; a trace of more than `in_memory` events is kept on disk."""
        executable, every_rank = self.executable, unreduced(self.executable)
        if disturbance is not NOTHING:
            executable.check_all_ranks_have_columns()
        elif not self._run_sizes:
            instances = symmetric_instances(executable, self._parts, self._decisions)
            log = EventLog(in_memory)
            machine = self._perform(NOTHING, instances, log)
            # a deadlock of one of symmetric instances is run again, to name all that are stuck
            if instances.ranks == executable.representatives or not _has_rows_left(machine).any():
                return self._timed(machine, instances, log)
        log = EventLog(in_memory)
        return self._timed(self._perform(disturbance, every_rank, log), every_rank, log)

    def _timed(self, machine: ClockState, instances: Instances, log: EventLog) -> TimedRun:
        executable = self.executable
        held = machine.semaphore["held"].reshape(instances.ranks, -1)
        return TimedRun(
            trace_of(executable, machine, instances, log),
            tuple(_stuck(executable, machine)),
            tuple(halted(machine)),
            held,
        )

    def _perform(self, disturbance: Disturbance, instances: Instances, log: EventLog) -> ClockState:
        """The state at the end of the run, of one of the symmetric instances."""
        executable, key = self.executable, (instances.ranks, changing_parts(disturbance))
        if self._tables is None or self._tables[0] != key:
            tables = ProgramTables(executable, self._parts, instances)
            self._tables = key, tables.program(self._decisions, self._run_sizes, key[1])
        program = self._tables[1]
        machine = machine_of(executable, self._parts.model, program, instances.ranks)
        machine = machine._replace(event=log.first_table(program.events + 1))
        if disturbance is not NOTHING:
            machine = disturbed(machine, disturbance)
        total = None if program.expected is None else program.expected * instances.count
        with phase("times", "events", total) as now:
            while (why := _go_on(machine)) != DONE:
                _check_time(executable, machine)
                now.done = int(machine.counts[EVENTS]) * instances.count
                if why == LOG_FULL:
                    machine = log.room(machine)
                elif why == INCREMENTS_FULL:
                    # twice the room; semaphores that grow move to the end of it
                    more = empty("increment", max(64, len(machine.increment)))
                    machine = machine._replace(increment=np.concatenate((machine.increment, more)))
                # else paused, so that Python handles signals such as Ctrl-C
        _check_time(executable, machine)
        log.close(machine)
        return machine


def _go_on(machine: ClockState) -> int:
    """Go on by the kernel until it returns, for which see `kernel.run`."""
    steps = uncompiled.steps_for(machine)
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
    executable: Executable, model: TimingModel, program: ClockProgram, ranks: int
) -> ClockState:
    """Everything before the first row, of the first ranks."""
    sizes = empty("sizes", 1)
    most_uses = int((program.route["end_use"] - program.route["first_use"]).max(initial=1))
    sizes[0] = (
        ranks,
        max(1, executable.semaphore_count),
        True,
        program.most_posts,
        most_uses,
        DESCRIPTOR_BYTES,
        model.descriptor_ps,
    )
    process = _processes(executable, launch_ps(executable, model), ranks)
    semaphore, increment = _semaphores(program)
    counts = np.zeros(COUNTS, np.int64)
    counts[WAITING], counts[INCREMENTS] = len(process), program.increments.sum()
    counts[LARGEST] = program.increments.max(initial=0)
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
        process=process,
        part=program.part.copy(),
        node=empty("node", len(process) * most_uses),
        branch=program.branch.copy(),
        offset=np.zeros(offsets * int(sizes[0]["semaphores"]), np.int64),
        semaphore=semaphore,
        increment=increment,
        event=empty("event", 0),
        counts=counts,
        pace=empty("pace", 0),
        fault=empty("fault", 0),
        change=empty("change", 0),
    )


def _processes(executable: Executable, start_ps: int, ranks: int) -> np.ndarray:
    queues = len(executable.queues)
    process = empty("process", queues * ranks)
    for field in ("last", "route", "end", "next", "place", "pair"):
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
    """All semaphores at zero, each with room for its increments if every row runs once."""
    room = program.increments
    semaphore = empty("semaphore", len(room))
    semaphore["start"], semaphore["room"] = np.cumsum(room) - room, room
    semaphore["sleeper"], semaphore["has_one"] = NONE, program.has_one
    spare = (program.most_posts + 1) * max(LEAST_ROOM, 2 * int(room.max(initial=0)))
    return semaphore, empty("increment", int(room.sum()) + spare)


def _stuck(executable: Executable, machine: ClockState) -> Iterator[Stuck]:
    """The processes that wait for a semaphore with rows left, and what they wait for."""
    ranks = int(machine.sizes[0]["ranks"])
    for process in np.flatnonzero(_has_rows_left(machine) & ~is_halted(machine)).tolist():
        number, rank = divmod(process, ranks)
        row = int(machine.process[process]["row"])
        wait_sem = executable.queues[number].sync.wait_sem[row]
        sem = int(wait_sem[rank if len(wait_sem) > 1 else 0])
        yield Stuck(number, row, rank, sem, int(machine.process[process]["awaited"]))


def _has_rows_left(machine: ClockState) -> np.ndarray:
    """Which processes have rows to perform, bool."""
    length = np.where(machine.queue["kind"] == RING, 0, machine.queue["length"])
    has_left: np.ndarray = machine.process["row"] < np.repeat(length, machine.sizes[0]["ranks"])
    return has_left
