"""The expected k-th of n draws, against closed forms and against draws."""

import math

import numpy as np
import pytest

from ncc_runtime.faults.order_statistics import expected_kth, expected_kth_of_groups

CASES = [(1, 1), (1, 4), (3, 4), (60, 64), (64, 64), (1, 1024), (1000, 1024), (1024, 1024)]


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


@pytest.mark.parametrize(("k", "n"), CASES)
def test_uniform_exponential_and_pareto_draws_have_closed_forms(k: int, n: int) -> None:
    uniform = expected_kth(lambda share: 1 - share, k, n)
    assert uniform == pytest.approx(k / (n + 1), rel=1e-9)
    exponential = expected_kth(lambda share: -np.log(share), k, n)
    assert exponential == pytest.approx(harmonic(n) - harmonic(n - k), rel=1e-9)
    tail = 1.5
    gammas = (n + 1, 1), (n - k + 1 - 1 / tail, 1), (n + 1 - 1 / tail, -1), (n - k + 1, -1)
    pareto = math.exp(sum(sign * math.lgamma(at) for at, sign in gammas))
    assert expected_kth(lambda share: share ** (-1 / tail), k, n) == pytest.approx(pareto, rel=1e-9)


def test_draws_come_to_the_same() -> None:
    generator = np.random.default_rng(0)
    drawn = np.sort(generator.exponential(3.0, (20_000, 16)), axis=1).mean(axis=0)
    for k in (1, 8, 15, 16):
        expected = expected_kth(lambda share: -3.0 * np.log(share), k, 16)
        assert drawn[k - 1] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("k", "n"), [(0, 4), (5, 4), (1, 0)])
def test_there_is_no_such_draw(k: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"no {k}-th of {n}"):
        expected_kth(lambda share: share, k, n)


def test_a_group_of_several_ranks_is_as_late_as_its_last() -> None:
    generator = np.random.default_rng(0)
    draws = np.sort(generator.exponential(1.0, (50_000, 4, 8)).max(axis=2), axis=1).mean(axis=0)
    for k in (1, 4):
        expected = expected_kth_of_groups(lambda share: -np.log(share), k, 4, 8)
        assert expected == pytest.approx(float(draws[k - 1]), rel=0.01)
