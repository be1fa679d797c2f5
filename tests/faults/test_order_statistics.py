"""The expected maximum of draws: closed forms, quadrature and draws agree."""

import math

import numpy as np
import pytest

from ncc_runtime.faults.laws import Draws, Law
from ncc_runtime.faults.order_statistics import expected_kth, expected_maximum

EXACT = [
    Draws(Law.UNIFORM, 1.0, 2.0),
    Draws(Law.EXPONENTIAL, 1.0, 0.3),
    Draws(Law.PARETO, 1.0, 3.0),
    Draws(Law.PARETO, 1.0, 1.2),
]
INTEGRATED = [
    Draws(Law.NORMAL, 1.5, 0.2),
    Draws(Law.NORMAL, 1.0, 0.2, least=1.0),
    Draws(Law.LOGNORMAL, 1.2, 0.4),
    Draws(Law.EXPONENTIAL, 0.8, 0.3, least=1.0),
]


@pytest.mark.parametrize("count", [1, 2, 3, 64, 1024, 65_536])
@pytest.mark.parametrize("draws", EXACT, ids=str)
def test_closed_forms_are_what_integration_finds(draws: Draws, count: int):
    assert expected_kth(draws.upper_quantile, count, count) == pytest.approx(
        expected_maximum(draws, count), rel=1e-9
    )


@pytest.mark.parametrize("count", [1, 2, 16, 64])
@pytest.mark.parametrize("draws", [*EXACT[:3], *INTEGRATED], ids=str)
def test_the_mean_of_maxima_of_draws_is_the_expected_one(draws: Draws, count: int):
    """Within four standard errors, by a fixed seed."""
    share = 1 - np.random.default_rng(7).random((20_000, count))  # never 0
    largest = draws.upper_quantile(share).max(axis=1)
    error = largest.std(ddof=1) / math.sqrt(len(largest))
    assert abs(largest.mean() - expected_maximum(draws, count)) < 4 * error


def test_two_and_three_normal_draws_as_in_the_book():
    """David and Nagaraja, section 3.2: 1/sqrt(pi) and 3/(2 sqrt(pi)) standard deviations."""
    draws = Draws(Law.NORMAL, 0.0, 1.0)
    assert expected_maximum(draws, 2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-9)
    assert expected_maximum(draws, 3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-9)


def test_a_tail_without_a_mean_has_no_expected_maximum():
    assert expected_maximum(Draws(Law.PARETO, 1.0, 1.0), 2) == math.inf


@pytest.mark.parametrize("draws", [*EXACT, *INTEGRATED], ids=str)
def test_the_maximum_grows_with_the_number_of_draws(draws: Draws):
    found = [expected_maximum(draws, count) for count in (1, 2, 4, 8, 16)]
    assert found == sorted(found)
    assert found[0] < found[-1]
