"""A job: a program run for many steps, with checkpoints, and on after faults.

Values are computed: after a fault the state really comes from the last checkpoint, and the steps
since are computed again, on the place that the recovery found. Times are those of the machine: a
step takes what the clock says, a checkpoint its bytes over the bandwidth of the storage, a fault
the watchdog's timeout and a restart.
"""

import hashlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.array_files import StoredArray
from ncc_runtime.errors import InputError, TopologyError
from ncc_runtime.inputs import Given, bound_inputs, numbered
from ncc_runtime.jobs.checkpoints import CheckpointFolder, JobInputs, Restored, State, state_bytes
from ncc_runtime.jobs.recovery import (
    ChangedCollective,
    JobFault,
    Load,
    Machine,
    OnFault,
    Recovery,
    check_smaller,
    passes,
    recovered,
    refitted,
    resharded,
)
from ncc_runtime.neff.program import Program
from ncc_runtime.options import RunOptions
from ncc_runtime.placement import placed_at
from ncc_runtime.progress import phase
from ncc_runtime.random_values import VERSION
from ncc_runtime.report.run import Run
from ncc_runtime.runtime import Model
from ncc_runtime.step_inputs import Feed, inputs_of_steps
from ncc_runtime.topology import fault_names
from ncc_runtime.topology.graph import build_spec

DETECT_S = 30.0
"""Until a stall is noticed. Source: NEURON_RT_EXEC_TIMEOUT, configuration guide of the runtime."""

RESTART_S = 60.0
"""Assumed: processes start, programs load and ranks find one another; jobs of one instance take
less, those of thousands of ranks more."""

STORAGE_BYTES_PER_S = 10**9
"""Of an instance, to where checkpoints go. Assumed: about a network volume of one instance."""


@attrs.frozen
class JobOptions:
    """How a job runs: steps, checkpoints, faults, and what is done about them."""

    steps: int
    checkpoint_every: int | None = None  # steps; None: none, a fault sends the job to its start
    faults: tuple[JobFault, ...] = ()
    on_fault: tuple[OnFault, ...] = (OnFault.SPARE, OnFault.REROUTE, OnFault.SHRINK)
    spares: int | None = None  # cores that are kept free; None: whatever is free
    detect_s: float = DETECT_S
    restart_s: float = RESTART_S
    storage_bytes_per_s: float = STORAGE_BYTES_PER_S


@attrs.frozen
class JobEvent:
    """One line of the timeline of a job."""

    at_s: float
    seconds: float
    kind: str  # steps, fault, detection, restart, end
    text: str


@attrs.frozen(eq=False)
class JobRecovery:
    """A fault and how the job went on."""

    fault: JobFault
    how: str
    what: str
    resumed_step: int
    lost_steps: int
    lost_s: float
    changed: tuple[ChangedCollective, ...]
    refused: tuple[str, ...]

    @property
    def is_same_arithmetic(self) -> bool:
        return not self.changed


@attrs.frozen(eq=False)
class JobResult:
    """What a job did, and where its time went; seconds of the machine.

    - `last`: the last step's Run; None if there was nothing left to do
    - `step_us`: of every step that counts in the end, in order, in microseconds
    - `stopped`: why it did not come to its end; None if it did
    """

    program: Program
    last: Run | None
    first_step: int
    steps: int
    step_us: tuple[float, ...]
    events: tuple[JobEvent, ...]
    recoveries: tuple[JobRecovery, ...]
    checkpoints: int
    checkpoint_bytes: int  # of one, over all ranks
    lost_s: Mapping[str, float]  # detection, restart, lost work, checkpoints
    stopped: str | None
    has_clock: bool
    rows: Mapping[int, int]  # of inputs with batches, how many rows there are

    @property
    def useful_s(self) -> float:
        return sum(self.step_us) / 1e6

    @property
    def total_s(self) -> float:
        return self.useful_s + sum(self.lost_s.values())

    @property
    def median_us(self) -> float:
        return statistics.median(self.step_us)


class RunningJob:
    """A job under way; `run` brings it to its end."""

    def __init__(
        self,
        model: Model,
        load: Load,
        options: JobOptions,
        given: Mapping[Any, Any],
        *,
        feed: Mapping[str, str] | None = None,
        batches: Mapping[Any, Any] | None = None,
        draw: Sequence[str] = (),
        seed: int | None = None,
        run_options: RunOptions | None = None,
        smaller: Sequence[Program] = (),
    ) -> None:
        program = model.executable.program
        self._model, self._load, self._options = model, load, options
        self._run_options = run_options or RunOptions()
        self._between = inputs_of_steps(
            program, feed, batches or {}, draw, seed, self._run_options.threads
        )
        self._seed = seed
        self._given: Given = numbered(program, given)
        self._batches = dict(self._between.batches)
        self._smaller = tuple(smaller)
        self._undisturbed = model.executable
        self._machine = Machine(model.topology, spares=options.spares)
        self._lost = dict.fromkeys(("detection", "restart", "lost work", "checkpoints"), 0.0)
        self._step_us: list[float] = []  # of the steps that count so far
        self._events: list[JobEvent] = []
        self._recoveries: list[JobRecovery] = []
        self._checkpoints = 0
        self._now_s = 0.0
        self._fed = frozenset(number for _, number in self.feed)
        # the inputs of the first program, once another one takes its place
        self._initial: tuple[Program, dict[int, np.ndarray]] | None = None
        for other in self._smaller:
            check_smaller(program, other, self.feed)
        self._check_faults()

    @property
    def feed(self) -> Feed:
        """Which outputs feed which inputs, by number."""
        return self._between.feed

    def inputs(self) -> JobInputs:
        """What a checkpoint is of, beside the program; reads what was given."""
        digest = hashlib.sha256()
        given = {number: array for number, array in self._given.items() if number not in self._fed}
        for what, arrays in (("input", given), ("batches", self._batches)):
            for number, array in sorted(arrays.items()):
                found = np.ascontiguousarray(array)
                digest.update(f"{what} {number} {found.dtype} {found.shape}\n".encode())
                digest.update(found.tobytes())
        if self._seed is not None:  # what it draws is read, too
            digest.update(f"drawn {VERSION}\n".encode())
        is_any = given or self._batches or self._seed is not None
        sha256 = digest.hexdigest() if is_any else ""
        return JobInputs(self._seed, self.feed, self._between.drawn, sha256)

    def _check_faults(self) -> None:
        """Refuse what could only be refused when its step comes."""
        topology, options = self._model.topology, self._options
        for fault in options.faults:
            if fault.step >= options.steps:
                raise InputError(f"{fault}, and the job has steps 0 to {options.steps - 1}")
            if fault.rank is not None and fault.rank >= self._model.executable.ranks:
                last = self._model.executable.ranks - 1
                raise InputError(f"{fault}, and ranks are 0 to {last}")
            if fault.link is not None:
                down = fault_names.down(fault.link)
                try:
                    build_spec(topology.spec, topology.nodes, topology.lnc, (down,))
                except TopologyError as error:
                    raise InputError(f"{fault}: {error}") from error
        if options.faults and not self._run_options.clock:
            raise InputError("a job with faults needs the clock, which tells the time that is lost")

    def run(
        self, folder: CheckpointFolder | None = None, begin: Restored | None = None
    ) -> JobResult:
        """Run to the end; from a checkpoint that was read, and with checkpoints in a folder."""
        options = self._options
        kept = begin or Restored(0, {}, self._program)  # what a fault sends the job back to
        if kept.program is not self._program:  # it had shrunk
            self._take(self._load_smaller(kept.program))
        first = step = kept.step
        if first > options.steps:
            raise InputError(
                f"the checkpoint is of {first} steps, and the job has {options.steps}; "
                "give more --steps"
            )
        pending = sorted(options.faults, key=lambda fault: fault.step)
        pending = [fault for fault in pending if fault.step >= first]
        last: Run | None = None
        stopped: str | None = None
        with phase("steps", "steps", options.steps - first) as now:
            while step < options.steps:
                ranks = self._model.executable.ranks  # a job that shrank has no others to lose
                pending = [each for each in pending if each.rank is None or each.rank < ranks]
                unnoticed = list(self._unnoticed(pending))
                del pending[: len(unnoticed)]
                until = pending[0].step if pending else options.steps
                for run in self._runs(until, step, kept):
                    for fault in unnoticed:
                        if fault.step == step:
                            self._event(0.0, "fault", f"{fault}; no transfer passes it")
                    step, last = step + 1, run
                    now.done = step - first
                    if self._is_checkpoint(step):
                        kept = Restored(step, self._state_of(run), self._program)
                        if folder is not None:
                            folder.write(step, kept.state, self._program)
                if not pending:
                    break
                if folder is not None:  # the newest may have been damaged meanwhile
                    kept = folder.newest() or kept
                stopped = self._go_on(pending.pop(0), step, kept, first)
                if stopped is not None:
                    break
                first = min(first, kept.step)  # the one it began from may have been damaged
                del self._step_us[kept.step - first :]
                step = kept.step
        end = f"{options.steps} steps are done" if stopped is None else f"stopped in step {step}"
        self._event(0.0, "end", end)
        size = int(state_bytes(self._program, self.feed).sum())
        return JobResult(
            program=self._program,
            last=last if stopped is None else None,
            first_step=first,
            steps=options.steps,
            step_us=tuple(self._step_us),
            events=tuple(sorted(self._events, key=lambda event: event.at_s)),
            recoveries=tuple(self._recoveries),
            checkpoints=self._checkpoints,
            checkpoint_bytes=size if options.checkpoint_every else 0,
            lost_s=dict(self._lost),
            stopped=stopped,
            has_clock=self._run_options.clock,
            rows=self._between.rows,
        )

    @property
    def _program(self) -> Program:
        return self._model.executable.program

    def _is_checkpoint(self, done: int) -> bool:
        """Whether there is one after so many steps: after every N, and at the end."""
        every = self._options.checkpoint_every
        return every is not None and (done % every == 0 or done == self._options.steps)

    def _state_of(self, run: Run) -> State:
        if not run.ranked_outputs:
            return {}
        return {number: run.outputs[output] for output, number in self.feed}

    def _runs(self, until: int, step: int, kept: Restored) -> Iterator[Run]:
        """Run the steps up to one, from a state; an event says how long all of them took."""
        if until == step:
            return
        wanted = {done - 1 for done in range(step + 1, until + 1) if self._is_checkpoint(done)}
        wanted.add(self._options.steps - 1)
        began_s, checkpoints = self._now_s, 0
        runs = self._model.run_steps(
            until - step,
            {**self._given, **self._resharded(kept, self._program)},
            feed={f"out{output}": f"arg{number}" for output, number in self.feed},
            batches=self._batches,
            draw=[f"arg{number}" for number in self._between.drawn],
            seed=self._seed,
            first=step,
            outputs_at=wanted,
            options=self._run_options,
        )
        for done, run in enumerate(runs, start=step + 1):
            self._step_us.append(run.time_us or 0.0)
            self._now_s += self._step_us[-1] / 1e6
            if self._is_checkpoint(done):
                checkpoints += 1
                self._now_s += self._checkpoint_s()
                self._lost["checkpoints"] += self._checkpoint_s()
            yield run
        self._checkpoints += checkpoints
        number = f"step {step}" if until == step + 1 else f"steps {step} to {until - 1}"
        several = f", {checkpoints} checkpoint{'s' * (checkpoints > 1)}" if checkpoints else ""
        event = JobEvent(began_s, self._now_s - began_s, "steps", number + several)
        self._events.append(event)

    def _checkpoint_s(self) -> float:
        """Seconds to write or read one: the instances do it side by side, each all of its ranks."""
        sizes = state_bytes(self._program, self.feed)
        node = self._model.executable.placement.node
        return float(np.bincount(node, sizes).max()) / self._options.storage_bytes_per_s

    def _unnoticed(self, pending: Sequence[JobFault]) -> Iterator[JobFault]:
        """The next faults that nobody notices, links that no transfer of the program passes.

        What is planned after a later fault does without them.
        """
        for fault in pending:
            if fault.link is None or passes(self._model.executable, fault.link):
                return
            self._machine.lose(fault.link)
            yield fault

    def _event(self, seconds: float, kind: str, text: str) -> None:
        self._events.append(JobEvent(self._now_s, seconds, kind, text))
        self._now_s += seconds
        if kind in self._lost:
            self._lost[kind] += seconds

    def _go_on(self, fault: JobFault, step: int, kept: Restored, first: int) -> str | None:
        """Find where the job can go on after a fault; why it cannot, if so."""
        options = self._options
        self._event(0.0, "fault", str(fault))
        self._event(options.detect_s, "detection", "the watchdog's timeout, from the step's launch")
        found = recovered(
            fault,
            self._model,
            self._undisturbed,
            self._machine,
            options.on_fault,
            self._smaller,
            lambda program, placement: self._fitting(self._load(program, placement), kept),
        )
        if not isinstance(found, Recovery):
            reasons = "; ".join(found) or "--on-fault names nothing to try"
            return f"stopped in step {step} by the fault of {fault.subject}: {reasons}"
        lost_s = sum(self._step_us[max(0, kept.step - first) :]) / 1e6
        self._lost["lost work"] += lost_s
        self._take(found.model)
        read_s = self._checkpoint_s() if kept.step else 0.0
        self._event(options.restart_s + read_s, "restart", f"{found.how}: {found.what}")
        back = f"goes on from step {kept.step}, {step - kept.step} steps are done again"
        self._event(0.0, "resumed", back)
        self._recoveries.append(
            JobRecovery(
                fault,
                found.how,
                found.what,
                kept.step,
                step - kept.step,
                lost_s,
                found.changed,
                found.refused,
            )
        )
        return None

    def _fitting(self, model: Model, kept: Restored) -> Model:
        """A model, once it is known that it can take inputs and state; InputError."""
        program = model.executable.program
        if program is not self._program and self._run_options.values:
            self._inputs_for(program)
            self._resharded(kept, program)
        return model

    def _load_smaller(self, program: Program) -> Model:
        placement = self._model.executable.placement
        places = placement.places[: program.ranks]
        return self._load(program, placed_at(placement.topology, placement.strategy, places))

    def _take(self, model: Model) -> None:
        """Go on with another model; its inputs are those of before, for its ranks."""
        after = model.executable.program
        if after is not self._program and self._run_options.values:
            self._given, self._batches = self._inputs_for(after)
        self._model = model

    def _inputs_for(self, after: Program) -> tuple[Given, dict[int, StoredArray]]:
        """What is given, and batches, as a program for fewer ranks takes them; InputError."""
        if self._initial is None:
            self._initial = self._initial_inputs(self._program)
        before, arrays = self._initial
        given = {
            number: resharded(before, after, number, array, is_state=False)
            for number, array in arrays.items()
            if number not in self._fed
        }
        return given, refitted(before, after, self._between.batches)

    def _initial_inputs(self, program: Program) -> tuple[Program, dict[int, np.ndarray]]:
        """The inputs of the first step but for batches, as a program takes them."""
        changing = self._between.of_step(0)
        arrays = bound_inputs(
            program, {**self._given, **changing}, self._seed, threads=self._run_options.threads
        )
        return program, {
            number: array.whole() for number, array in enumerate(arrays) if number not in changing
        }

    def _resharded(self, kept: Restored, after: Program) -> State:
        """The state of a checkpoint as a program takes it."""
        state, program = kept.state, kept.program
        if program is after:
            return state
        if not state and self._initial:  # the beginning
            program, arrays = self._initial
            state = {number: arrays[number] for number in self._fed}
        return {
            number: resharded(program, after, number, array, is_state=True)
            for number, array in state.items()
        }
