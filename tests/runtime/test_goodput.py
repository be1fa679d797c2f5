"""Goodput: the closed form against what is played, and the best interval against the formulas."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.cli import main
from ncc_runtime.errors import InputError
from ncc_runtime.jobs.goodput import FailureModel, simulated
from tests.example_count import examples


@settings(max_examples=examples(60), deadline=None)
@given(
    interval=st.floats(0.01, 2.0),
    checkpoint=st.floats(0.0, 0.5),
    down=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**32),
)
def test_what_is_played_agrees_with_the_expectation(
    interval: float, checkpoint: float, down: float, seed: int
) -> None:
    """In units of the time between failures; five standard errors, beyond chance."""
    model = FailureModel(checkpoint, down / 2, down / 2, 1.0)
    found = simulated(model, interval, 4000, np.random.default_rng(seed))
    assert found is not None
    goodput, error = found
    # where nearly no interval fails the error is of few failures; one of them is allowed
    slack = 5 * error + interval / model.expected_s(interval) ** 2 * (1 + down) / 4000
    assert goodput == pytest.approx(model.goodput(interval), abs=slack)


@settings(max_examples=examples(200), deadline=None)
@given(checkpoint=st.floats(1e-4, 1e4), ratio=st.floats(3.0, 1e7), down=st.floats(0.0, 1.0))
def test_the_best_interval_is_the_best_and_near_dalys(
    checkpoint: float, ratio: float, down: float
) -> None:
    mtbf = checkpoint * ratio
    model = FailureModel(checkpoint, down * mtbf, 0.0, mtbf)
    best = model.goodput(model.best_s)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert model.goodput(model.best_s * factor) <= best * (1 + 1e-12)
    assert model.daly_s == pytest.approx(model.best_s, rel=0.02)
    assert model.goodput(model.daly_s) >= best * 0.9999
    # Young's is longer by about the checkpoint itself
    assert model.best_s < model.young_s < model.best_s + 1.1 * checkpoint


@given(interval=st.floats(1.0, 1e4), checkpoint=st.floats(0.0, 100.0), mtbf=st.floats(500.0, 1e6))
def test_shares_add_up(interval: float, checkpoint: float, mtbf: float) -> None:
    model = FailureModel(checkpoint, 60.0, 30.0, mtbf)
    total = model.goodput(interval) + sum(model.lost(interval).values())
    assert total == pytest.approx(1.0)


def test_the_same_figures_as_published_of_a_day_between_failures() -> None:
    """C = 5 min, M = 24 h: Young's sqrt(2 C M) is 2 h; Daly's takes C off and adds a ninth."""
    model = FailureModel(300.0, 0.0, 0.0, 86400.0)
    assert model.young_s == pytest.approx(7200.0)
    ratio = 300.0 / (2 * 86400.0)
    assert model.daly_s == pytest.approx(7200 * (1 + math.sqrt(ratio) / 3 + ratio / 9) - 300)


def test_a_checkpoint_as_long_as_failures_are_apart_is_written_every_mtbf() -> None:
    assert FailureModel(2.0, 0.0, 0.0, 1.0).daly_s == 1.0


def test_what_never_comes_back_is_refused() -> None:
    with pytest.raises(InputError, match="which it never does"):
        FailureModel(1.0, 60.0, 30.0, 5.0)
    assert simulated(FailureModel(1.0, 0, 0, 5.0), 500.0, 9, np.random.default_rng(0)) is None


def test_what_would_be_played_for_hours_is_not() -> None:
    """Hopeless in the interval and in the restart, or only in how many are asked for."""
    draws = np.random.default_rng(0)
    assert simulated(FailureModel(1.0, 60.0, 30.0, 10.0), 80.0, 1000, draws) is None
    assert simulated(FailureModel(60.0, 60.0, 30.0, 100.0), 600.0, 10**7, draws) is None
    assert simulated(FailureModel(60.0, 60.0, 30.0, 100.0), 600.0, 100, draws) is not None
    # each alone takes some hundred attempts, one after the other too many for two intervals even
    assert simulated(FailureModel(1.0, 25.0, 0.0, 5.0), 25.0, 2, draws) is None


COMMAND = ["goodput", "--step-time", "1.2s", "--checkpoint-time", "40s", "--mtbf", "50000h"]


def test_the_command_marks_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--parts", "1024", "--runs", "500"]) == 0
    assert "best, Daly" in capsys.readouterr().out
    assert main([*COMMAND, "--every", "100,50", "--json", "--runs", "500"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["steps"] for row in told["rows"]] == [50, 100]
    assert told["best"]["goodput"] >= told["daly"]["goodput"]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg"):
        assert main([*COMMAND, "--runs", "200", "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--every", "0"], "are no numbers of steps"),
        (["--mtbf", "0s"], "--mtbf must be above 0"),
        (["--mtbf", "3"], "is not a time such as"),
        (["--plot", "x.pdf"], "does not end in .svg or .png"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *options]) == 2
    assert message in capsys.readouterr().err
