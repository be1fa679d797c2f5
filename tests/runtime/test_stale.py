"""Steps that take the first gradients: who takes part, times, and the training that comes of it."""

import functools
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.errors import InputError
from ncc_runtime.execution.disturbance import (
    FULL_SPEED,
    NOTHING,
    Disturbance,
    MemoryFault,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.faults.stale import (
    PartialStep,
    PartialSteps,
    StepClock,
    partial_inputs,
    workers_of,
)
from ncc_runtime.jobs.stale import trained
from ncc_runtime.lowering.executable import EngineQueue, Executable
from ncc_runtime.runtime import Model

US = 1_000_000
MLP = Path("tests/data/hlo/mlp_train_dp2_tp4.hlo")

# Four replicas learn y = x a by least squares: whole numbers, so that every order of sums is exact.
LEAST_SQUARES = """HloModule fit, replica_count=4, input_output_alias={ {1}: (0, {}, may-alias) }
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT total = f32[] add(a, b) }
ENTRY step {
  a = f32[5] parameter(0)
  x = f32[3,5] parameter(1)
  y = f32[3] parameter(2)
  guess = f32[3] dot(x, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  error = f32[3] subtract(guess, y)
  g = f32[5] dot(error, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  zero = f32[] constant(0)
  square = f32[] reduce(multiply(error, error), zero), dimensions={0}, to_apply=sum
  loss = f32[] all-reduce(square), replica_groups={}, to_apply=sum
  g_sum = f32[5] all-reduce(g), replica_groups={}, to_apply=sum
  rate = f32[] constant(0.015625)
  rates = f32[5] broadcast(rate), dimensions={}
  new_a = f32[5] subtract(a, multiply(g_sum, rates))
  ROOT new = (f32[], f32[5]) tuple(loss, new_a)
}"""


@functools.cache
def fit(late: str) -> Model:
    options = CompileOptions(partial_all_reduce=late)
    return ncc_runtime.load(ncc_compiler.compile_text(LEAST_SQUARES, options), "trn2")


@functools.cache
def training_step(late: str) -> tuple[Model, StepClock]:
    """Sixteen replicas whose work takes about as long as their collectives."""
    options = CompileOptions(partial_all_reduce=late)
    neff = ncc_compiler.compile_file("ir_examples/backup_workers.ir", options)
    model = ncc_runtime.load(neff, "trn2")
    return model, StepClock(model.executable)


def slowed(executable: Executable, factors: np.ndarray) -> Disturbance:
    """The engines of each rank take so many times as long."""
    engines = [k for k, queue in enumerate(executable.queues) if isinstance(queue, EngineQueue)]
    speeds = [
        QueueSpeed(queue, rank, int(FULL_SPEED / factor))
        for rank, factor in enumerate(factors.tolist())
        for queue in engines
    ]
    return Disturbance(queues=tuple(speeds))


def launched_late(late_ps: np.ndarray) -> Disturbance:
    return Disturbance(late_start_ps=dict(enumerate(late_ps.astype(np.int64).tolist())))


def steps_of(late: str, first: int, bound: int | None = None) -> PartialSteps:
    model, clock = training_step(late)
    return PartialSteps(model.executable, clock, first, bound)


def draws(count: int, seed: int = 0, mean_us: float = 60.0) -> list[Disturbance]:
    generator = np.random.default_rng(seed)
    return [launched_late(generator.exponential(mean_us, 16) * US) for _ in range(count)]


def test_an_undisturbed_step_is_a_run() -> None:
    model, clock = training_step("drop")
    assert clock.run(NOTHING).time_ps / US == model.run(seed=0, values=False).time_us


@pytest.mark.parametrize(("late", "first", "bound"), [("drop", 16, None), ("next", 3, 0)])
def test_who_waits_for_all_takes_synchronous_steps(
    late: str, first: int, bound: int | None
) -> None:
    _, clock = training_step(late)
    steps = steps_of(late, first, bound)
    for disturbance in draws(5):
        step = steps.step(disturbance)
        assert step.takes_part.all()
        assert step.begins.all()
        assert step.time_ps == clock.run(disturbance).time_ps


@pytest.mark.parametrize("late", ["drop", "next"])
def test_a_step_takes_those_that_are_there_and_no_longer_than_one_that_waits(late: str) -> None:
    _, clock = training_step(late)
    for seed in range(5):
        (disturbance,) = draws(1, seed)
        synchronous, times = clock.run(disturbance), []
        for first in (16, 15, 12, 8, 1):
            step = steps_of(late, first).step(disturbance, synchronous)
            assert step.takes_part.sum() == first
            late_ps = np.array(list(disturbance.late_start_ps.values()))
            assert set(np.flatnonzero(step.takes_part)) == set(np.argsort(late_ps)[:first])
            times.append(step.time_ps)
        assert times == sorted(times, reverse=True)
        assert times[0] == synchronous.time_ps
        assert times[-1] > 0.99 * clock.run(NOTHING).time_ps  # of which ranks end 0.1 % apart


def test_engines_that_are_slow_are_late_too() -> None:
    model, clock = training_step("drop")
    factors = np.ones(16)
    factors[[3, 9]] = 3.0, 8.0
    disturbance = slowed(model.executable, factors)
    step = steps_of("drop", 15).step(disturbance)
    assert np.flatnonzero(~step.takes_part).tolist() == [9]
    two = steps_of("drop", 14).step(disturbance)
    assert np.flatnonzero(~two.takes_part).tolist() == [3, 9]
    assert two.time_ps == clock.run(NOTHING).time_ps  # the others do not notice


def test_whoever_is_there_at_the_same_time_takes_part() -> None:
    step = steps_of("drop", 1).step(NOTHING)
    assert step.takes_part.all()


def test_a_rank_that_is_late_for_long_misses_steps_and_comes_back() -> None:
    """It is 1 ms late once: the others go on, and it begins the step that they are in then."""
    _, clock = training_step("next")
    whole_ps = clock.run(NOTHING).time_ps
    steps = steps_of("next", 15)
    once = launched_late(np.where(np.arange(16) == 5, 1000 * US, 0))
    done = [steps.step(once)] + [steps.step(NOTHING) for _ in range(12)]
    assert all(step.time_ps == whole_ps for step in done if step.takes_part.all())
    busy = [not step.begins[5] for step in done]
    assert not busy[0]  # it began the first step, and was late in it
    assert not done[0].takes_part[5]
    count = sum(busy)
    assert busy == [False] + [True] * count + [False] * (12 - count)
    spent_ps = sum(step.time_ps for step in done[: count + 1])
    assert spent_ps + whole_ps > 1000 * US
    assert spent_ps < 1000 * US + (count + 2) * whole_ps
    assert done[-1].takes_part.all()


@pytest.mark.parametrize("bound", [1, 2])
def test_no_gradient_is_counted_later_than_the_bound_allows(bound: int) -> None:
    steps, begun_in, oldest = steps_of("next", 8, bound), np.full(16, -1), 0
    for number, disturbance in enumerate(draws(40, bound, mean_us=400.0)):
        step = steps.step(disturbance)
        counted = step.begins & (begun_in >= 0)
        oldest = max(oldest, int((number - begun_in)[counted].max(initial=0)))
        begun_in[counted] = -1
        assert (number - begun_in[begun_in >= 0] < bound).all()
        begun_in[step.begins & ~step.takes_part] = number
        assert not (step.takes_part & ~step.begins).any()
    assert oldest == bound


def test_a_bound_costs_time() -> None:
    disturbances = draws(20, 3, mean_us=200.0)
    totals = []
    for bound in (0, 1, 3, None):
        steps = steps_of("next", 8, bound)
        totals.append(sum(steps.step(disturbance).time_ps for disturbance in disturbances))
    assert totals == sorted(totals, reverse=True)


def test_ranks_of_a_divided_model_are_late_together() -> None:
    options = CompileOptions(partial_all_reduce="drop")
    neff = ncc_compiler.compile_text(MLP.read_text(encoding="utf-8"), options)
    model = ncc_runtime.load(neff, "trn2")
    assert workers_of(model.executable.program).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    clock = StepClock(model.executable)
    steps = PartialSteps(model.executable, clock, 1, None)
    step = steps.step(launched_late(np.where(np.arange(8) == 6, 500 * US, 0)))
    assert step.takes_part.tolist() == [True, False]
    assert step.time_ps < clock.run(NOTHING).time_ps + 10 * US


def reference(
    late: str, steps: list[PartialStep], x: np.ndarray, y: np.ndarray
) -> tuple[list[float], np.ndarray]:
    """Each worker with a queue of its own gradients, as the papers describe it."""
    a, waiting = np.zeros(5), [list[np.ndarray]() for _ in range(4)]
    losses = []
    for step in steps:
        error = [x[rank] @ a - y[rank] for rank in range(4)]
        gradient = [error[rank] @ x[rank] for rank in range(4)]
        on_time = np.flatnonzero(step.takes_part)
        losses.append(sum(float(error[rank] @ error[rank]) for rank in on_time) * 4 / len(on_time))
        counted = [gradient[rank] for rank in on_time]
        if late == "next":
            for rank in np.flatnonzero(step.begins):
                counted += waiting[rank]
                waiting[rank] = [] if step.takes_part[rank] else [gradient[rank]]
            total = sum(counted)
        else:
            total = sum(counted) * (4 / len(on_time))
        a = a - total / 64
    return losses, a


@pytest.mark.parametrize("late", ["drop", "next"])
def test_trainings_compute_what_the_papers_describe(late: str) -> None:
    model, clock = fit(late), StepClock(fit(late).executable)
    draw = np.random.default_rng(1)
    x, y = draw.integers(-2, 3, (4, 3, 5)), draw.integers(-4, 5, (4, 3))
    inputs = {"arg0": np.zeros(5, np.float32), "arg1": np.float32(x), "arg2": np.float32(y)}
    late_ps = [draw.exponential(120.0, 4) * US for _ in range(8)]
    run = trained(
        model,
        clock,
        [launched_late(each) for each in late_ps],
        [3, 2],
        inputs=inputs,
    )
    assert [training.first for training in (run.synchronous, *run.partial)] == [4, 3, 2]
    assert run.loss_name == "out0"
    _, whole = reference(late, list(run.synchronous.steps), x, y)
    for training in (run.synchronous, *run.partial):
        losses, a = reference(late, list(training.steps), x, y)
        np.testing.assert_allclose(training.losses, losses, rtol=1e-5)
        distance = np.linalg.norm(a - whole) / np.linalg.norm(whole)
        assert training.distance == pytest.approx(distance, rel=1e-4, abs=1e-6)
    assert run.synchronous.distance == 0.0
    assert not all(step.begins.all() for step in run.partial[1].steps)


def test_synchronous_training_has_the_bits_of_the_plain_program() -> None:
    plain = ncc_runtime.load(ncc_compiler.compile_text(LEAST_SQUARES), "trn2")
    draw = np.random.default_rng(2)
    inputs = [
        np.zeros((4, 5), np.float32),
        draw.normal(size=(4, 3, 5)).astype(np.float32),
        draw.normal(size=(4, 3)).astype(np.float32),
    ]
    expected = [run.outputs[0][0] for run in plain.run_steps(6, inputs, clock=False)]
    for late in ("drop", "next"):
        model, clock = fit(late), StepClock(fit(late).executable)
        run = trained(model, clock, [NOTHING] * 6, [3], inputs=inputs)
        assert list(run.synchronous.losses) == expected
        assert run.partial[0].losses == run.synchronous.losses  # all are there at the same time


def test_a_seed_fills_what_is_fed_back_alike_on_all_replicas() -> None:
    model, clock = training_step("drop")
    again = [trained(model, clock, draws(3), [12], draw=["arg2"], seed=7) for _ in range(2)]
    assert again[0].partial[0].losses == again[1].partial[0].losses
    losses = again[0].synchronous.losses
    assert losses[2] < 0.6 * losses[0]  # replicas that begin apart would not learn


@pytest.mark.parametrize(
    ("first", "bound", "late", "message"),
    [
        (17, None, "drop", "the first 17 of 16 workers are none to take"),
        (0, None, "drop", "the first 0 of 16 workers are none to take"),
        (15, 1, "drop", "a bound is for gradients that are added in a later step"),
    ],
)
def test_what_does_not_fit_is_refused(
    first: int, bound: int | None, late: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        steps_of(late, first, bound)


def test_a_program_without_partial_all_reduces_is_refused() -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(LEAST_SQUARES), "trn2")
    clock = StepClock(model.executable)
    with pytest.raises(InputError, match="has no partial all-reduces: compile it with nccc"):
        PartialSteps(model.executable, clock, 3, None)


def test_several_programs_are_refused() -> None:
    stages = []
    for number in range(2):
        text = Path(f"ir_examples/pipeline_stage{number}.ir").read_text(encoding="utf-8")
        stages.append((ncc_compiler.compile_text(text), range(4 * number, 4 * number + 4)))
    with pytest.raises(InputError, match="of one program, not of several"):
        partial_inputs(ncc_runtime.load(stages, "trn2").executable.program)


def test_bits_that_flip_are_refused() -> None:
    model, clock = training_step("drop")
    flip = Disturbance(memory=(MemoryFault(0, 64, 3, 0),))
    with pytest.raises(InputError, match="bits that flip are not played"):
        trained(model, clock, [flip], [15], draw=["arg2"], seed=0)


def test_what_is_dead_for_ever_is_no_straggler() -> None:
    model, clock = training_step("drop")
    dead = Disturbance(
        queues=tuple(QueueSpeed(queue, 3, 0) for queue in range(len(model.executable.queues)))
    )
    with pytest.raises(InputError, match=r"a step never ends; culprit: .*rank 3\. Not"):
        clock.run(dead)
    ring = next(n for n, queue in enumerate(model.executable.queues) if queue.name == "cc0.dma0")
    lost = Disturbance(transfers=(TransferFault(ring, 5, 0, completions=0),))
    with pytest.raises(InputError, match=r"culprit: cc0\.dma0 of rank 5\. Not"):
        clock.run(lost)


def test_ranks_that_all_wait_for_each_other_are_one_worker() -> None:
    text = LEAST_SQUARES.replace(
        "guess = f32[3] dot(x, a)",
        "all = f32[20] all-gather(a), dimensions={0}, replica_groups={{0,1,2,3}} "
        "own = f32[5] slice(all), slice={[0:5]} guess = f32[3] dot(x, own)",
    )
    neff = ncc_compiler.compile_text(text, CompileOptions(partial_all_reduce="drop"))
    with pytest.raises(InputError, match=r"one worker of 4 ranks, since all ranks wait .* in all"):
        workers_of(neff.program)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"loss": "accuracy"}, "'accuracy' is no output with one float; there are out0"),
        ({"loss": "out1"}, "'out1' is no output with one float"),
        ({"feed": {"out0": "arg0"}}, "cannot feed arg0"),
    ],
)
def test_words_that_name_nothing_are_refused(words: dict[str, object], message: str) -> None:
    model = fit("next")
    with pytest.raises(InputError, match=message):
        trained(model, StepClock(model.executable), [NOTHING], [3], seed=0, **words)
