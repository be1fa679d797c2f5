"""The distributions of which stragglers are drawn."""

import enum
import math
from collections.abc import Callable

import attrs
import numpy as np


class Law(enum.StrEnum):
    """Distributions, with their two parameters."""

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

    def upper_quantile(self, share: np.ndarray) -> np.ndarray:
        """What a share of the draws exceed, for shares between 0 and 1: the upper quantile."""
        from scipy.special import ndtri  # slow to import

        a, b = self.first, self.second
        drawn: dict[Law, Callable[[], np.ndarray]] = {
            Law.UNIFORM: lambda: b - (b - a) * share,
            Law.EXPONENTIAL: lambda: a - b * np.log(share),
            Law.NORMAL: lambda: a - b * ndtri(share),
            Law.LOGNORMAL: lambda: a * np.exp(-b * ndtri(share)),
            Law.PARETO: lambda: a * share ** (-1 / b),
        }
        return np.maximum(drawn[self.law](), self.least)
