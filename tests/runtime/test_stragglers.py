"""Stragglers by name: what is read, drawn and expected; texts that are refused."""

import numpy as np
import pytest

from ncc_runtime.errors import InputError
from ncc_runtime.faults.stragglers import expected_kth_worker, straggler

US = 1_000_000


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("rank * late by 50us", 50 * US),
        ("rank * late by exponential(20us)", 20 * US),
        ("rank * late by uniform(0us, 1ms)", 500 * US),
        ("rank * late by lognormal(10 us, 0.5)", 10 * US * np.exp(0.125)),
        ("rank * late by pareto(10us, 3)", 15 * US),
        ("rank * late by normal(50us, 5us)", 50 * US),
        ("rank * slow by 2", 2.0),
        ("rank * slow by exponential(0.5)", 1.5),
        ("rank * slow by uniform(1, 3)", 2.0),
    ],
)
def test_draws_have_the_mean_that_is_expected(text: str, mean: float) -> None:
    fault = straggler(text)
    assert expected_kth_worker(fault, 1, 1, 1) == pytest.approx(mean, rel=1e-6)
    drawn = fault.drawn(100_000, np.random.default_rng(0)).values()
    assert float(np.mean(list(drawn))) == pytest.approx(mean, rel=0.02)


def test_nobody_is_faster_than_usual() -> None:
    drawn = straggler("rank * slow by normal(1, 0.5)").drawn(1000, np.random.default_rng(0))
    assert min(drawn.values()) == 1.0


def test_a_worker_of_several_ranks_is_as_late_as_its_last() -> None:
    fault = straggler("rank * late by exponential(20us)")
    generator = np.random.default_rng(0)
    draws = np.sort(generator.exponential(20.0, (50_000, 4, 8)).max(axis=2), axis=1).mean(axis=0)
    for k in (1, 4):
        expected = expected_kth_worker(fault, k, 4, 8) / US
        assert expected == pytest.approx(float(draws[k - 1]), rel=0.01)


def test_some_ranks_only() -> None:
    generator = np.random.default_rng(0)
    assert set(straggler("rank 3-5 late by 1us").drawn(8, generator)) == {3, 4, 5}
    assert straggler("rank  7 slow by 1.5").drawn(8, generator) == {7: 1.5}
    with pytest.raises(InputError, match="rank 8 late by 1us: the program has ranks 0 to 7"):
        straggler("rank 8 late by 1us").drawn(8, generator)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("link c0-c1 down", "is no fault, such as"),
        ("rank * late by 20", "'20' is no time such as 20us"),
        ("rank * slow by 20us", "'20us' is no number such as 1.5"),
        ("rank * late by cauchy(1us)", "no distribution cauchy; there are exactly, uniform"),
        ("rank * late by uniform(1us)", "uniform has 2 numbers, not 1"),
        ("rank * late by uniform(2us, 1us)", "the least number first"),
        ("rank * late by pareto(1us, 1)", "has no mean"),
        ("rank * late by pareto(1us, 2us)", "'2us' is no number"),
        ("rank 5-3 late by 1us", "the first comes first"),
        ("rank * late by 99999s", "more than any run takes"),
        ("rank * late by exponential()", "'' is no time"),
        ("", "is no fault"),
    ],
)
def test_other_texts_are_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        straggler(text)
