"""Statistics of faults that are drawn, over many seeds."""

import json
from functools import partial

import attrs
import numpy as np
import pytest

from ncc_runtime.execution.disturbance import NOTHING, Disturbance
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.blame import NOBODY
from ncc_runtime.faults.order_statistics import Draws, Law, expected_maximum
from ncc_runtime.faults.seeds import SeededRun, SeededRuns, as_json, lines, plotted, run_seeds
from tests.faults.late_clock import late
from tests.faults.straggling import data_parallel_step, late_by

EXPONENTIAL = Draws(Law.EXPONENTIAL, 0.0, 100.0)


@pytest.fixture(scope="module")
def found() -> SeededRuns:
    executable = data_parallel_step(4)
    whole = late(executable, NOTHING)
    return run_seeds(whole, partial(late, executable), late_by(EXPONENTIAL, 4), range(5, 45))


def test_a_run_can_be_repeated_alone(found: SeededRuns):
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        run = found.quantile(share)
        assert late(found.executable, late_by(EXPONENTIAL, 4)(run.seed)).time_ps == run.time_ps
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
    """Three of four wait for the last; its own time in the collective hardly changes."""
    for run in found.runs:
        late_ps = np.array(list(late_by(EXPONENTIAL, 4)(run.seed).late_start_ps.values()))
        waited = (late_ps.max() - late_ps).sum() / 4
        assert run.waited_ps[0] == pytest.approx(waited, rel=0.02, abs=2e6)


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
    assert (told["never"], told["worst_us"], told["mean_us"]) == (2, None, 6e-05)
    if pytest.importorskip("matplotlib"):
        plotted(found, "step", "a.svg")


def test_a_stalled_run_is_told_by_the_rows_that_are_missing():
    executable = data_parallel_step(2)
    whole = late(executable, NOTHING)
    columns = ("queue", "row", "rank", "start_ps", "end_ps", "cause", "reason", "slowed_ps")

    def cut(_: Disturbance) -> Trace:
        return attrs.evolve(whole, **{name: getattr(whole, name)[:-3] for name in columns})

    (run,) = run_seeds(whole, cut, lambda _: NOTHING, [7]).runs
    assert (run.seed, run.time_ps, run.slowest) == (7, None, NOBODY)


def test_without_anything_drawn_nobody_is_the_slowest():
    executable = data_parallel_step(2)
    whole = late(executable, NOTHING)
    found = run_seeds(whole, partial(late, executable), lambda _: NOTHING, range(3))
    assert {run.time_ps for run in found.runs} == {whole.time_ps}
    assert found.slowest == []
    assert not any("#" in line or "slowest" in line for line in lines(found))
    assert found.standard_error_ps == 0


LAWS = [
    Draws(Law.UNIFORM, 0.0, 200.0),
    EXPONENTIAL,
    Draws(Law.NORMAL, 500.0, 80.0, least=0.0),
    Draws(Law.LOGNORMAL, 80.0, 0.6),
    Draws(Law.PARETO, 60.0, 4.0),
]


@pytest.mark.parametrize("draws", LAWS, ids=lambda draws: draws.law)
@pytest.mark.parametrize(
    ("ranks", "runs"),
    [
        (1, 100),
        (2, 100),
        (4, 80),
        (8, 60),
        *(pytest.param(ranks, 200, marks=pytest.mark.slow) for ranks in (16, 32, 64)),
    ],
)
def test_a_synchronous_step_waits_for_the_largest_of_its_draws(draws: Draws, ranks: int, runs: int):
    """The mean of the steps is the closed form within three standard errors, by fixed seeds.

    Besides, the last rank finds the others' parts of the collective done: 1 us is allowed for that.
    """
    executable = data_parallel_step(ranks)
    whole = late(executable, NOTHING)
    found = run_seeds(whole, partial(late, executable), late_by(draws, ranks), range(runs))
    more_us = (found.mean_ps - whole.time_ps) / 1e6
    error_us = found.standard_error_ps / 1e6
    assert abs(more_us - expected_maximum(draws, ranks)) < 3 * error_us + 1
