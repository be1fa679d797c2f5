"""Statistics of faults that are drawn, over many seeds."""

import json
from collections.abc import Callable

import attrs
import numpy as np
import pytest

from ncc_runtime.execution.disturbance import NOTHING, Disturbance
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.blame import NOBODY
from ncc_runtime.faults.laws import Draws, Law
from ncc_runtime.faults.order_statistics import expected_maximum
from ncc_runtime.faults.seeds import SeededRun, SeededRuns, as_json, lines, plotted, run_seeds
from tests.faults.straggling import data_parallel_step, last_trigger_us, late_by, slowed_by, timer
from tests.faults.test_blame import allowed

EXPONENTIAL = Draws(Law.EXPONENTIAL, 0.0, 100.0)


@pytest.fixture(scope="module")
def found() -> SeededRuns:
    executable = data_parallel_step(4)
    timed = timer(executable)
    return run_seeds(timed(NOTHING), timed, late_by(EXPONENTIAL, 4), range(5, 45))


def test_a_run_can_be_repeated_alone(found: SeededRuns):
    timed = timer(found.executable)
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        run = found.quantile(share)
        assert timed(late_by(EXPONENTIAL, 4)(run.seed)).time_ps == run.time_ps
        assert (found.times_ps <= run.time_ps).sum() >= share * 40
        assert (found.times_ps < run.time_ps).sum() < share * 40
    assert sorted(run.seed for run in found.runs) == list(range(5, 45))


def test_the_slowest_rank_is_the_one_that_was_latest(found: SeededRuns):
    for run in found.runs:
        latest = late_by(EXPONENTIAL, 4)(run.seed).late_start_ps
        assert run.slowest == max(latest, key=lambda rank: latest[rank])
    counts = dict(found.slowest)
    assert sum(counts.values()) == 40
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_waiting_is_what_ranks_wait_for_the_latest(found: SeededRuns):
    """Three of four wait for the last, which finds some of the collective done."""
    for run in found.runs:
        late_ps = np.array(list(late_by(EXPONENTIAL, 4)(run.seed).late_start_ps.values()))
        waited = (late_ps.max() - late_ps).sum() / 4
        assert run.waited_ps[0] == pytest.approx(waited, abs=15e6)


def test_text_json_and_plot_tell_the_same(found: SeededRuns):
    text = list(lines(found))
    assert text[0].startswith("40 runs, seeds 5 to 44; without these faults ")
    worst = found.quantile(1.0)
    row = next(line for line in text if line.startswith("worst"))
    assert row.split() == [
        "worst",
        f"{worst.time_ps / 1e6:.3f}",
        f"{(worst.time_ps - found.undisturbed_ps) / 1e6:.3f}",
        "--seed",
        str(worst.seed),
    ]
    assert sum(int(line.split()[3]) for line in text if " to " in line and "#" in line) == 40
    told = json.loads(json.dumps(as_json(found)))
    allowed("seeds", told)
    assert told["worst_us"] == worst.time_ps / 1e6
    assert [run["seed"] for run in told["runs"]] == list(range(5, 45))
    assert told["never"] == 0


@pytest.mark.parametrize("name", ["a.svg", "a.png"])
def test_the_plot_is_the_same_every_time(found: SeededRuns, name: str):
    pytest.importorskip("matplotlib")
    picture = plotted(found, "step", name)
    assert picture == plotted(found, "step", name)
    assert picture.startswith(b"<?xml" if name.endswith("svg") else b"\x89PNG")


def test_runs_that_never_end_are_longer_than_all_others():
    runs = (
        SeededRun(1, None, NOBODY, (0,)),
        SeededRun(2, 50, 1, (4,)),
        SeededRun(3, 70, 0, (9,)),
        SeededRun(4, None, NOBODY, (0,)),
    )
    found = SeededRuns(data_parallel_step(2), 40, runs)
    assert [found.quantile(share).time_ps for share in (0.5, 0.75, 1.0)] == [70, None, None]
    text = list(lines(found))
    assert "2 of them never end" in text[0]
    assert next(line for line in text if line.startswith("worst")).split()[1:3] == [
        "never",
        "never",
    ]
    told = as_json(found)
    allowed("seeds", told)
    assert (told["never"], told["worst_us"], told["mean_us"]) == (2, None, 6e-05)
    if pytest.importorskip("matplotlib"):
        plotted(found, "step", "a.svg")


def test_a_stalled_run_is_told_by_the_rows_that_are_missing():
    executable = data_parallel_step(2)
    whole = timer(executable)(NOTHING)
    columns = ("queue", "row", "rank", "start_ps", "end_ps", "cause", "reason", "slowed_ps")

    def cut(_: Disturbance) -> Trace:
        return attrs.evolve(whole, **{name: getattr(whole, name)[:-3] for name in columns})

    (run,) = run_seeds(whole, cut, lambda _: NOTHING, [7]).runs
    assert (run.seed, run.time_ps, run.slowest) == (7, None, NOBODY)


def test_without_anything_drawn_nobody_is_the_slowest():
    executable = data_parallel_step(2)
    timed = timer(executable)
    whole = timed(NOTHING)
    found = run_seeds(whole, timed, lambda _: NOTHING, range(3))
    assert {run.time_ps for run in found.runs} == {whole.time_ps}
    assert found.slowest == []
    assert not any("#" in line or "slowest" in line for line in lines(found))
    assert found.standard_error_ps == 0


class Triggers:
    """A clock that notes when the last rank triggered collective 0, run by run."""

    def __init__(self, ranks: int) -> None:
        self.executable = data_parallel_step(ranks)
        self._timed = timer(self.executable)
        self.last_us: list[float] = []
        self.whole = self(NOTHING)
        (self.usual_us,) = self.last_us
        self.last_us.clear()

    def __call__(self, disturbance: Disturbance) -> Trace:
        trace = self._timed(disturbance)
        self.last_us.append(last_trigger_us(trace))
        return trace

    def found_done_us(self) -> float:
        """How much of the collective is done when one rank comes long after all others."""
        ranks, late_ps = self.executable.ranks, 10**9
        runs = [self._timed(Disturbance(late_start_ps={rank: late_ps})) for rank in range(ranks)]
        later_ps = np.array([run.time_ps - late_ps for run in runs])
        return (self.whole.time_ps - float(later_ps.mean())) / 1e6

    def compare(self, drawn: Callable[[int], Disturbance], runs: int, expected_us: float) -> None:
        """Against the closed form, by fixed seeds: within three standard errors.

        The lateness of the last trigger is the maximum that was drawn. The step is longer by that,
        less what is done of the collective by then, for which 1 us is allowed: of those who are
        not much earlier than the last, not all is.
        """
        found = run_seeds(self.whole, self, drawn, range(runs))
        error_us = found.standard_error_ps / 1e6
        assert error_us > 0
        if self.executable.ranks > 1:
            last_us = float(np.mean(self.last_us)) - self.usual_us
            assert abs(last_us - expected_us) < 3 * error_us
        more_us = (found.mean_ps - self.whole.time_ps) / 1e6
        assert abs(more_us + self.found_done_us() - expected_us) < 3 * error_us + 1


LAWS = [
    Draws(Law.UNIFORM, 0.0, 200.0),
    EXPONENTIAL,
    Draws(Law.NORMAL, 500.0, 80.0, least=0.0),
    Draws(Law.LOGNORMAL, 80.0, 0.6),
    Draws(Law.PARETO, 60.0, 4.0),
]
SIZES = [
    *((1, 100), (2, 100), (4, 100), (8, 100)),
    *(pytest.param(ranks, 200, marks=pytest.mark.slow) for ranks in (16, 32, 64)),
]


@pytest.mark.parametrize("draws", LAWS, ids=lambda draws: draws.law)
@pytest.mark.parametrize(("ranks", "runs"), SIZES)
def test_a_synchronous_step_waits_for_the_largest_of_its_draws(draws: Draws, ranks: int, runs: int):
    """Hosts that launch late by what is drawn."""
    Triggers(ranks).compare(late_by(draws, ranks), runs, expected_maximum(draws, ranks))


SLOWNESS = [
    Draws(Law.EXPONENTIAL, 1.0, 0.5),
    Draws(Law.LOGNORMAL, 1.0, 0.4, least=1.0),
    Draws(Law.PARETO, 1.0, 4.0),
]


@pytest.mark.parametrize("draws", SLOWNESS, ids=lambda draws: draws.law)
@pytest.mark.parametrize(("ranks", "runs"), SIZES[1:])
def test_slow_cores_make_compute_as_long_as_the_largest_factor(draws: Draws, ranks: int, runs: int):
    """Cores that are slower by the factor that is drawn."""
    timed = Triggers(ranks)
    timed(slowed_by(Draws(Law.UNIFORM, 2.0, 2.0), timed.executable)(0))
    compute_us = timed.last_us.pop() - timed.usual_us  # moving data is not slowed
    drawn = slowed_by(draws, timed.executable)
    timed.compare(drawn, runs, (expected_maximum(draws, ranks) - 1) * compute_us)
