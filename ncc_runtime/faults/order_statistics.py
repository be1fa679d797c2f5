"""The expected maximum of n independent draws: what a synchronous step waits for.

A step that n ranks end together takes as long as its slowest rank. The largest of n draws of a
distribution F has distribution F^n, so its mean is the integral of x d(F^n)(x), which is that of
the quantile Q(u^(1/n)) over u from 0 to 1. For some distributions it has a closed form.

Source: David and Nagaraja, Order Statistics, 3rd edition, Wiley 2003, chapters 3 (moments) and 10
(growth with n).
"""

import itertools
import math

import numpy as np

from ncc_runtime.faults.laws import Draws, Law


def expected_maximum(draws: Draws, count: int) -> float:
    """The mean of the largest of `count` draws; infinite for a Pareto exponent of at most 1.

    In closed form where there is one and no draw can be below the floor, else by quadrature with a
    relative error below 1e-6.
    """
    a, b, n = draws.first, draws.second, count
    if draws.law is Law.PARETO and b <= 1:
        return math.inf
    if a >= draws.least:
        if draws.law is Law.UNIFORM:
            return a + (b - a) * n / (n + 1)
        if draws.law is Law.EXPONENTIAL:
            return a + b * sum(1 / k for k in range(1, n + 1))
        if draws.law is Law.PARETO:
            gamma = math.lgamma(n + 1) + math.lgamma(1 - 1 / b) - math.lgamma(n + 1 - 1 / b)
            return a * math.exp(gamma)
    return by_quadrature(draws, n)


def by_quadrature(draws: Draws, count: int) -> float:
    """The same, always by numerical integration."""
    from scipy.integrate import quad

    # over t, of which the maximum is exceeded with probability exp(-t), so that long tails are
    # spread out; one draw exceeds that with 1 - (1 - exp(-t))^(1/n), written without cancelling
    def integrand(t: float) -> float:
        log = math.log(-math.expm1(-t)) if t < 1 else math.log1p(-math.exp(-t))
        share = -math.expm1(log / count)
        return float(draws.exceeded(np.array(min(share, 1 - 1e-16)))) * math.exp(-t)

    edges = (0.0, 1e-3, 1.0, 5.0, 40.0, 700.0)
    return sum(
        float(quad(integrand, low, high, limit=500, epsabs=1e-12 * high, epsrel=1e-9)[0])
        for low, high in itertools.pairwise(edges)
    )
