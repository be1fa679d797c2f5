"""The expected maximum of n independent draws: what a synchronous step waits for.

A step that n ranks end together takes as long as its slowest rank. The largest of n draws of a
distribution F has distribution F^n, so its mean is the integral of x d(F^n)(x), which is that of
the quantile Q(u^(1/n)) over u from 0 to 1. For some distributions it has a closed form.

Source: David and Nagaraja, Order Statistics, 3rd edition, Wiley 2003, chapters 3 (moments) and 10
(growth with n).
"""

import enum
import itertools
import math
from collections.abc import Callable

import attrs
import numpy as np


class Law(enum.StrEnum):
    """Distributions of which stragglers are drawn, with their two parameters."""

    UNIFORM = "uniform"  # from, to
    EXPONENTIAL = "exponential"  # from, and the mean of what is added to it
    NORMAL = "normal"  # mean, standard deviation
    LOGNORMAL = "lognormal"  # median, standard deviation of the logarithm
    PARETO = "pareto"  # least, exponent of the tail


@attrs.frozen
class Draws:
    """A distribution: a law, its parameters as `Law` names them, and a floor.

    A draw below `least` counts as `least`, as a core that is slowed is not faster than a whole one.
    """

    law: Law
    first: float
    second: float
    least: float = -math.inf

    def exceeded(self, share: np.ndarray) -> np.ndarray:
        """What a share of the draws exceed, for shares between 0 and 1: the upper quantile."""
        from scipy.special import ndtri

        a, b = self.first, self.second
        drawn: dict[Law, Callable[[], np.ndarray]] = {
            Law.UNIFORM: lambda: b - (b - a) * share,
            Law.EXPONENTIAL: lambda: a - b * np.log(share),
            Law.NORMAL: lambda: a - b * ndtri(share),
            Law.LOGNORMAL: lambda: a * np.exp(-b * ndtri(share)),
            Law.PARETO: lambda: a * share ** (-1 / b),
        }
        return np.maximum(drawn[self.law](), self.least)

    @property
    def growth(self) -> str:
        """How the expected maximum grows with n, at large n."""
        return {
            Law.UNIFORM: "to its upper end, as 1 - 1/(n + 1)",
            Law.EXPONENTIAL: "as ln n",
            Law.NORMAL: "as sqrt(2 ln n)",
            Law.LOGNORMAL: "as exp(sigma sqrt(2 ln n))",
            Law.PARETO: "as n^(1/shape)",
        }[self.law]


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
