"""Training that takes the first gradients, beside training that waits for all: time and loss.

Times come first: the clock decides who takes part in each step (`faults/stale.py`), under
disturbances that are drawn anew for each. Then the steps are computed with that.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.disturbance import NOTHING, Disturbance
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.fault import Fault, Kind, When
from ncc_runtime.faults.laws import Law
from ncc_runtime.faults.order_statistics import expected_kth_of_groups
from ncc_runtime.faults.stale import (
    PartialStep,
    PartialSteps,
    StepClock,
    arrivals,
    partial_inputs,
    workers_of,
)
from ncc_runtime.inputs import numbered
from ncc_runtime.neff.program import Program
from ncc_runtime.options import RunOptions
from ncc_runtime.progress import phase
from ncc_runtime.progress import steps as progressing
from ncc_runtime.random_values import drawn
from ncc_runtime.step_inputs import feed_of
from ncc_runtime.threads import Threads

if TYPE_CHECKING:
    from ncc_runtime.runtime import Model


@attrs.frozen(eq=False)
class Training:
    """Some steps of a job: who took part, times, losses."""

    first: int  # contributions that a step waits for
    steps: tuple[PartialStep, ...]
    losses: tuple[float, ...] = ()  # of each step, before its update; empty without values
    distance: float | None = None  # of the last state from the synchronous one, over its norm

    @property
    def times_ps(self) -> np.ndarray:
        """(steps,) int64."""
        return np.array([step.time_ps for step in self.steps], np.int64)

    @property
    def taken(self) -> np.ndarray:
        """(steps, workers) bool, whose gradients of the step are counted in it."""
        return np.stack([step.takes_part for step in self.steps])

    @property
    def begun(self) -> np.ndarray:
        """(steps, workers) bool, who computes a gradient of the step; of others there is none."""
        return np.stack([step.begins for step in self.steps])

    def reached_ps(self, loss: float) -> int | None:
        """The time at the end of the first step with that loss or less; None if it has none."""
        found = np.flatnonzero(np.array(self.losses) <= loss)
        return int(self.times_ps[: found[0] + 1].sum()) if len(found) else None


@attrs.frozen(eq=False)
class StaleRun:
    """Trainings of one program from the same start, with the same data and disturbances."""

    late: str  # "drop" or "next"
    workers: np.ndarray  # (workers, ranks of one)
    undisturbed: Trace
    launch_ps: int
    synchronous: Training
    partial: tuple[Training, ...]
    loss_name: str  # of the output; empty where there is none


def trained(
    model: "Model",
    clock: StepClock,
    disturbances: Sequence[Disturbance],
    firsts: Sequence[int],
    *,
    bound: int | None = None,
    loss: str | None = None,
    feed: Mapping[str, str] | None = None,
    inputs: Mapping[Any, Any] | Sequence[Any] = (),
    batches: Mapping[Any, Any] | None = None,
    draw: Sequence[str] = (),
    seed: int | None = None,
    options: RunOptions | None = None,
) -> StaleRun:
    """One training for each of `firsts`, and the synchronous one; a step for each disturbance.

    `loss` names the output that is the loss, by default
    the first single float that feeds no input. The rest is as for `Model.run_steps`; what is
    carried from step to step is fed back in any case. With `values` off there are no losses.
    InputError for a program without partial all-reduces, or words that do not fit it.
    """
    executable, options = model.executable, options or RunOptions()
    program = executable.program
    own, workers = partial_inputs(program), workers_of(program)
    runs = {
        first: PartialSteps(executable, clock, first, bound)
        for first in dict.fromkeys((len(workers), *firsts))
    }
    values = _TrainingValues(program, feed, loss, batches or {}, draw) if options.values else None
    for one in disturbances:
        if one.memory or any(transfer.flipped_bits for transfer in one.transfers):
            raise InputError(
                "bits that flip are not played in steps that take the first gradients; nccrt run "
                "--fault shows what they do to one step"
            )
    taken: dict[int, list[PartialStep]] = {first: [] for first in runs}
    for disturbance in progressing(disturbances, "times", "steps"):
        synchronous = clock.run(disturbance)
        for first, run in runs.items():
            taken[first].append(run.step(disturbance, synchronous))
    trainings = {first: Training(first, tuple(steps)) for first, steps in taken.items()}
    if values is not None:
        state = None
        for first, training in trainings.items():
            losses, last = values.run(model, workers, training, inputs, seed, options)
            state = last if state is None else state
            trainings[first] = attrs.evolve(
                training, losses=losses, distance=_distance(last, state)
            )
    return StaleRun(
        late=own.late,
        workers=workers,
        undisturbed=clock.run(NOTHING),
        launch_ps=clock.launch_ps,
        synchronous=trainings[len(workers)],
        partial=tuple(trainings[first] for first in firsts),
        loss_name="" if values is None or values.loss is None else values.loss_name,
    )


def closed_forms_us(run: StaleRun, faults: Sequence[Fault]) -> dict[int, float]:
    """The expected time of a step by how many contributions it takes, from the k-th of n draws.

    For one fault that is drawn for all ranks: the undisturbed step, longer by what is expected of
    the k-th worker to be there. Work before the first partial all-reduce is what a slow rank takes
    longer for. Workers that are late into the next step are not in it. Empty for other faults, and
    where the draws have no mean.
    """
    (fault,) = faults if len(faults) == 1 else (None,)
    if fault is None or fault.draws is None or fault.place != "*" or fault.when != When():
        return {}
    is_late = fault.kind is Kind.RANK_LATE
    if not is_late and fault.kind is not Kind.RANK_SLOW:
        return {}
    if fault.draws.law is Law.PARETO and fault.draws.second <= 1:
        return {}
    workers, size = run.workers.shape
    work_ps = 1 if is_late else int(arrivals(run.undisturbed)[0].max()) - run.launch_ps
    usual = 0.0 if is_late else 1.0
    expected = {
        training.first: expected_kth_of_groups(
            fault.draws.upper_quantile, training.first, workers, size
        )
        for training in (run.synchronous, *run.partial)
    }
    return {
        first: (run.undisturbed.time_ps + work_ps * (draw - usual)) / 1e6
        for first, draw in expected.items()
    }


class _TrainingValues:
    """The steps' values; what the words of a user name is looked up before any is computed."""

    def __init__(
        self,
        program: Program,
        feed: Mapping[str, str] | None,
        loss: str | None,
        batches: Mapping[Any, Any],
        draw: Sequence[str],
    ) -> None:
        self._program = program
        self._own = partial_inputs(program)
        carried = {
            f"out{output}": f"arg{number}"
            for output, number in program.aliases
            if number in self._own.carried
        }
        self._feed = None if feed is None else {**carried, **feed}
        pairs = feed_of(program, self._feed)
        self._fed = [number for _, number in pairs]
        self._state = [output for output, number in pairs if number not in self._own.carried]
        if not self._state:
            raise InputError(
                "nothing says which outputs the next step takes as inputs: the model has no "
                "input_output_alias; name them, as in out0=arg0"
            )
        self._batches, self._draw = batches, draw
        self.loss = self._loss(loss, {output for output, _ in pairs})

    @property
    def loss_name(self) -> str:
        name = "" if self.loss is None else self._program.result(self.loss).name
        return name or f"out{self.loss}"

    def _loss(self, word: str | None, fed: set[int]) -> int | None:
        program = self._program
        tensors = [program.tensors[tensor] for tensor in program.outputs]
        scalars = [
            number
            for number, tensor in enumerate(tensors)
            if tensor.elements == 1 and tensor.dtype.is_float
        ]
        if word is None:
            return next((number for number in scalars if number not in fed), None)
        names = [program.result(number).name for number in range(len(tensors))]
        for number in scalars:
            if word in (f"out{number}", names[number]):
                return number
        known = ", ".join(names[number] or f"out{number}" for number in scalars) or "none"
        raise InputError(f"{word!r} is no output with one float; there are {known}")

    def run(
        self,
        model: "Model",
        workers: np.ndarray,
        training: Training,
        inputs: Mapping[Any, Any] | Sequence[Any],
        seed: int | None,
        options: RunOptions,
    ) -> tuple[tuple[float, ...], list[np.ndarray]]:
        """The loss of every step, and the outputs that the last one feeds back."""
        own, count = self._own, len(training.steps)
        given: dict[Any, Any] = dict(numbered(self._program, inputs))
        threads = Threads(options.threads)
        for number in self._fed:
            tensor = self._program.tensors[self._program.inputs[number]]
            if number in own.carried:
                given[number] = np.full(tensor.shape, -0.0, tensor.dtype.numpy)
            elif number not in given and seed is not None:  # replicas begin alike
                values = np.empty((workers.size, *tensor.shape), tensor.dtype.numpy)
                shape = workers.shape[1], *tensor.shape
                values[workers] = drawn(tensor.dtype, shape, seed, (number,), threads)
                given[number] = values
        batches = {**self._batches, f"arg{own.takes_part}": _by_rank(training.taken, workers)}
        if own.begins is not None:
            batches[f"arg{own.begins}"] = _by_rank(training.begun, workers)
        runs = model.run_steps(
            count,
            given,
            feed=self._feed,
            batches=batches,
            draw=self._draw,
            seed=seed,
            outputs_at=None if self.loss is not None else {count - 1},
            options=attrs.evolve(options, clock=False),
        )
        losses, state = [], list[np.ndarray]()
        with phase("values", "steps", count) as now:
            for now.done, run in enumerate(runs):
                if self.loss is not None:
                    losses.append(float(np.mean(run.outputs[self.loss].astype(np.float64))))
                if now.done == count - 1:
                    state = [run.outputs[number] for number in self._state]
        return tuple(losses), state


def _by_rank(by_worker: np.ndarray, workers: np.ndarray) -> np.ndarray:
    """(steps, workers) flags as (steps, ranks)."""
    flags: np.ndarray = np.zeros((len(by_worker), workers.size), bool)
    for worker, ranks in enumerate(workers):
        flags[:, ranks] = by_worker[:, worker, None]
    return flags


def _distance(state: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """The Euclidean distance of two states over the norm of the second, floats only."""
    apart = norm = 0.0
    for own, base in zip(state, other, strict=True):
        if base.dtype.kind in "biu":
            continue
        exact = base.astype(np.float64)
        apart += float(np.square(own.astype(np.float64) - exact).sum())
        norm += float(np.square(exact).sum())
    return float(np.sqrt(apart / norm)) if norm else 0.0
