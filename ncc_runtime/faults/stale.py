"""Steps that do not wait for late ranks: who takes part in each, and how long each takes.

A program compiled with `--partial-all-reduce` reads which ranks' gradients a step counts. Here that
is decided from times: the first k of n workers whose gradients are ready. A worker is a rank, or
the ranks that share collectives which are not partial (a model divided over them), which are late
together.

One step, from clock runs under the step's disturbance:

1. *Arrivals.* In the run in which all wait for all, the first trigger of a partial all-reduce on a
   rank depends on no other worker: that is when its gradients are ready. The k-th of them decides;
   whoever is there by then takes part, so that ties count as there.
2. *Time.* The same run, but the engines of late workers have the disturbance of the last worker
   that takes part: as all ranks run one program, their CC-cores are triggered when its are. That is
   the step as the others see it. It is over when the last rank that takes part is done.
3. *Late workers* go on meanwhile. Such a worker is free after the last trigger that it has in the
   run of 1, and its update, for which the result is there by then. It begins the first step that
   is not decided when it is free, and starts so much later. Until then it begins no step.

Assumed: CC-cores know without delay that the k-th has arrived, and send -0.0 for whoever is late;
they do not wait for engines that are slow, or for a host that launches late; a late worker's work
takes no bandwidth from the others; a worker that misses a step makes its update as well, in the
time that the update takes it.

With `bound` s (stale-synchronous parallel) a gradient is counted at most s steps after the step it
began in: all wait where it would become older. 0 is the synchronous step.

Sources: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", 2016; Ho et
al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013; Li,
Ben-Nun et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective
Operations", PPoPP 2020.
"""

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.clock import Clock, launch_ps
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.waits import stalled_run, wait_graph
from ncc_runtime.lowering.executable import EngineQueue, Executable
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.partial import BEGINS, CARRIED, PARTIAL, TAKES_PART
from ncc_runtime.neff.stages import stages_of

COMPILE_IT = "compile it with nccc compile --partial-all-reduce drop, or next"


@attrs.frozen
class PartialInputs:
    """The inputs of a program with partial all-reduces, by number."""

    takes_part: int
    begins: int | None  # None: late gradients are dropped
    carried: tuple[int, ...]

    @property
    def late(self) -> str:
        """What becomes of late gradients, as `--partial-all-reduce` says it."""
        return "drop" if self.begins is None else "next"


def partial_inputs(program: Program) -> PartialInputs:
    """InputError for several programs, or one that has no partial all-reduces."""
    if len(stages_of(program)) > 1:
        raise InputError("steps that take the first gradients are of one program, not of several")
    names = [program.parameter(number).name for number in range(len(program.inputs))]
    if TAKES_PART not in names or not any(partial_placeholders(program)):
        raise InputError(f"{program.name} has no partial all-reduces: {COMPILE_IT}")
    return PartialInputs(
        names.index(TAKES_PART),
        names.index(BEGINS) if BEGINS in names else None,
        tuple(number for number, name in enumerate(names) if name.startswith(CARRIED)),
    )


def partial_placeholders(program: Program) -> tuple[bool, ...]:
    """By placeholder, whether it takes what is there."""
    return tuple(PARTIAL in placeholder.name for placeholder in program.placeholders)


def workers_of(program: Program) -> np.ndarray:
    """The ranks of every worker, (workers, ranks of one), each ascending.

    InputError where workers differ in size, or all ranks are one worker.
    """
    worker = list(range(program.ranks))

    def root(rank: int) -> int:
        while worker[rank] != rank:
            worker[rank] = worker[worker[rank]]
            rank = worker[rank]
        return rank

    whole = [
        placeholder
        for placeholder, is_partial in zip(
            program.placeholders, partial_placeholders(program), strict=True
        )
        if not is_partial
    ]
    for placeholder in whole:
        for group in placeholder.groups or placeholder.pairs:
            for rank in group:
                worker[root(rank)] = root(group[0])
    roots = np.array([root(rank) for rank in range(program.ranks)])
    found, sizes = np.unique(roots, return_counts=True)
    if len(found) == 1:
        why = f", since all ranks wait for each other in {whole[0].name}" if whole else ""
        raise InputError(f"{program.name} has one worker of {program.ranks} ranks{why}")
    if len(set(sizes.tolist())) > 1:
        raise InputError(
            f"{program.name} has workers of {sizes.min()} and of {sizes.max()} ranks; those of a "
            "data-parallel step are alike"
        )
    return np.stack([np.flatnonzero(roots == one) for one in found])


@attrs.frozen(eq=False)
class PartialStep:
    """One step: who takes part in it, and its time."""

    time_ps: int
    takes_part: np.ndarray  # (workers,) bool: its gradients of this step are counted in it
    begins: np.ndarray  # (workers,) bool: no older gradient keeps it busy
    decided_ps: int  # when the last that it waits for is there, from the launch


class StepClock:
    """The clock for steps that end."""

    def __init__(self, executable: Executable) -> None:
        """ControlError, when it runs, for a program whose loops follow values."""
        self.clock = Clock(executable, PlannedDecisions(executable, {}))
        self.launch_ps = launch_ps(executable, TimingModel.from_topology(executable.topology))

    def run(self, disturbance: Disturbance) -> Trace:
        """The times of all ranks; InputError where the disturbance keeps the step from its end."""
        run = self.clock.run(disturbance)
        if run.is_complete:
            return run.trace
        graph = wait_graph(stalled_run(run.trace, run.stuck, run.held, run.halted))
        names = " or ".join(suspect.name for suspect in graph.culprits[0].suspects)
        raise InputError(
            f"under these faults a step never ends; culprit: {names}. Not waiting helps against "
            "ranks that are late, not against what is dead, down or lost for ever"
        )


class PartialSteps:
    """Steps of one program that take the first contributions; workers are late from step to step.

    `first` of the workers are waited for; `bound` is that of stale-synchronous parallel, None for
    none, and needs gradients that are added in the next step.
    """

    def __init__(
        self, executable: Executable, clock: StepClock, first: int, bound: int | None
    ) -> None:
        program = executable.program
        self._late = partial_inputs(program).late
        self.workers = workers_of(program)
        if not 1 <= first <= len(self.workers):
            raise InputError(f"the first {first} of {len(self.workers)} workers are none to take")
        if bound is not None and self._late == "drop":
            raise InputError(
                "a bound is for gradients that are added in a later step; this program drops them"
            )
        self._executable, self._clock = executable, clock
        self._first, self._bound = first, bound
        self._engines = frozenset(
            number
            for number, queue in enumerate(executable.queues)
            if isinstance(queue, EngineQueue)
        )
        self._step = 0
        self._offset_ps = np.zeros(len(self.workers), np.int64)  # how much later each starts
        self._begun_in = np.full(len(self.workers), _NONE)  # the step of what it has not delivered

    def step(self, disturbance: Disturbance, synchronous: Trace | None = None) -> PartialStep:
        """The next step, under a disturbance of its own.

        `synchronous` is the step under the same disturbance in which all wait and start together,
        where that is known.
        """
        own = self._started_late(disturbance, self._offset_ps)
        is_known = synchronous is not None and not self._offset_ps.any()
        trace = synchronous if is_known else self._clock.run(own)
        assert trace is not None
        ready_ps, last_ps, update_ps = (
            column[self.workers].max(axis=1) for column in arrivals(trace)
        )
        free_at_ps = self._clock.launch_ps + self._offset_ps
        decided_ps = int(np.sort(ready_ps)[self._first - 1])
        if self._bound == 0:
            decided_ps = int(ready_ps.max())
        elif self._bound is not None:
            due = (self._begun_in != _NONE) & (self._begun_in <= self._step - self._bound)
            decided_ps = max(decided_ps, int(free_at_ps[due].max(initial=0)))
        takes_part, begins = ready_ps <= decided_ps, free_at_ps <= decided_ps
        if not takes_part.all():
            trace = self._clock.run(self._without_late(own, takes_part, ready_ps, decided_ps))
        is_waited_for = np.zeros(self._executable.ranks, bool)
        is_waited_for[self.workers[takes_part]] = True
        time_ps = int(trace.end_ps[is_waited_for[trace.rank]].max())
        # who does not begin this step still makes its update
        done_ps = np.where(begins, last_ps, free_at_ps) + update_ps
        self._offset_ps = np.where(takes_part, 0, np.maximum(0, done_ps - time_ps))
        self._begun_in = np.where(takes_part, _NONE, np.where(begins, self._step, self._begun_in))
        self._step += 1
        return PartialStep(time_ps, takes_part, begins, decided_ps)

    def _started_late(self, disturbance: Disturbance, offset_ps: np.ndarray) -> Disturbance:
        """The same, with workers that start later by so much."""
        late = dict(disturbance.late_start_ps)
        for ranks, more in zip(self.workers.tolist(), offset_ps.tolist(), strict=True):
            if more:
                late |= {rank: late.get(rank, 0) + more for rank in ranks}
        return attrs.evolve(disturbance, late_start_ps=late)

    def _without_late(
        self, disturbance: Disturbance, takes_part: np.ndarray, ready_ps: np.ndarray, until_ps: int
    ) -> Disturbance:
        """The same, where CC-cores of late workers act when the last that takes part is there.

        The engines of late workers get the disturbance of that one, and start later by what the
        bound makes it wait.
        """
        last = int(np.flatnonzero(takes_part)[np.argmax(ready_ps[takes_part])])
        more_ps = until_ps - int(ready_ps[last])
        stands_for = {
            late: model
            for worker in np.flatnonzero(~takes_part)
            for late, model in zip(
                self.workers[worker].tolist(), self.workers[last].tolist(), strict=True
            )
        }
        speeds = [
            speed
            for speed in disturbance.queues
            if not (speed.queue in self._engines and speed.rank in stands_for)
        ]
        start_ps = {
            rank: late for rank, late in disturbance.late_start_ps.items() if rank not in stands_for
        }
        for late, model in stands_for.items():
            speeds += [
                attrs.evolve(speed, rank=late)
                for speed in disturbance.queues
                if speed.queue in self._engines and speed.rank == model
            ]
            start_ps[late] = disturbance.late_start_ps.get(model, 0) + more_ps
        return attrs.evolve(disturbance, queues=tuple(speeds), late_start_ps=start_ps)


_NONE = -1


def arrivals(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By rank: its first and last trigger of a partial all-reduce, and how long it updates.

    It updates from the completion of its last partial all-reduce to its own end.
    """
    ranks = trace.executable.ranks
    is_partial = np.array(partial_placeholders(trace.executable.program))
    first_ps = np.full(ranks, np.iinfo(np.int64).max)
    last_ps, complete_ps, end_ps = (np.zeros(ranks, np.int64) for _ in range(3))
    for number, events in trace.blocks(trace.queues_of(EngineQueue)):
        queue = trace.executable.queues[number]
        assert isinstance(queue, EngineQueue)
        placeholder = queue.table.placeholder[trace.row[events]]
        events = events[(placeholder >= 0) & is_partial[placeholder]]
        np.minimum.at(first_ps, trace.rank[events], trace.end_ps[events])
        np.maximum.at(last_ps, trace.rank[events], trace.end_ps[events])
    for number in np.flatnonzero(is_partial).tolist():
        rank, _, end = trace.spans(number)
        np.maximum.at(complete_ps, rank, end)
    np.maximum.at(end_ps, trace.rank, trace.end_ps)
    return first_ps, last_ps, end_ps - complete_ps
