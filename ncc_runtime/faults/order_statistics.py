"""What a step waits for that takes the first k of n contributions: the k-th smallest of n draws.

A share of the draws of any distribution lies above a value. Of n draws the share above the k-th
smallest has the distribution Beta(n - k + 1, k), as for uniform draws, so with Q(u) the value that
a share u of the draws exceed

    E[X(k:n)] = integral over p from 0 to 1 of Q(u(p)), u the quantile function of that Beta.

With k = n it is the maximum, which a synchronous step waits for. Source: David and Nagaraja, Order
Statistics, 3rd edition, Wiley 2003, chapters 2 and 3 (moments) and 10 (growth with n).
"""

import math
from collections.abc import Callable

import numpy as np

from ncc_runtime.faults.laws import Draws, Law

_NODES = 2001
_LEAST, _MOST = -5.4, 3.6  # from there on the weights are below 1e-150 and 1e-20


def expected_kth(upper_quantile: Callable[[np.ndarray], np.ndarray], k: int, n: int) -> float:
    """The mean of the k-th smallest, from 1, of n independent draws, in the unit of the draws.

    `upper_quantile` gives the value that a share of the draws exceed, for an array of shares
    between 0 and 1. The mean has to be finite. ValueError unless 1 <= k <= n.

    >>> round(expected_kth(lambda share: 1 - share, 3, 4), 9)  # uniform: k / (n + 1)
    0.6
    """
    if not 1 <= k <= n:
        raise ValueError(f"there is no {k}-th of {n} draws")
    from scipy.special import betaincinv  # slow to import

    # Tanh-sinh quadrature (Takahasi and Mori, 1974): a long tail has no bound at share 0, where
    # its nodes crowd. There the share is exact, as 1 / (1 + exp) does not cancel.
    t, step = np.linspace(_LEAST, _MOST, _NODES, retstep=True)
    grown = np.exp(-np.pi * np.sinh(t))
    p = 1 / (1 + grown)
    weight = step * np.pi * np.cosh(t) * p * (grown / (1 + grown))
    share = np.clip(betaincinv(n - k + 1, k, p), np.finfo(float).tiny, 1 - 2.0**-53)
    return float(np.sum(weight * upper_quantile(share)))


def expected_kth_of_groups(
    upper_quantile: Callable[[np.ndarray], np.ndarray], k: int, groups: int, members: int
) -> float:
    """The same where each of n is the largest of several draws, as a group of ranks that waits."""

    def of_largest(share: np.ndarray) -> np.ndarray:
        # the largest of m is within a value with the m-th power of one's probability
        return upper_quantile(-np.expm1(np.log1p(-share) / members))

    return expected_kth(of_largest, k, groups)


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
    return expected_kth(draws.upper_quantile, n, n)
