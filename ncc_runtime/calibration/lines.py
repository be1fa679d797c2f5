"""Times of rows when constants change a little: a straight line for each row.

A time is made of sums and maxima of constants, so that a line stays close to it until another chain
of events becomes the longest, or another plan is chosen.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.calibration.free import ALL, Constants, of_generation
from ncc_runtime.calibration.predict import Prediction, Predictor
from ncc_runtime.calibration.rows import Row

LARGER = 16
"""A constant grows by one part in so many to see what it does."""


@attrs.frozen(eq=False)
class Lines:
    """Times of rows in microseconds, and what a picosecond more of each constant does to them."""

    at: np.ndarray  # (constants,) float64 ps
    times: np.ndarray  # (rows,)
    slopes: np.ndarray  # (constants, rows)

    def times_us(self, constants: np.ndarray) -> np.ndarray:
        """(..., rows) with other constants (..., constants)."""
        return np.asarray(self.times + (constants - self.at) @ self.slopes)

    @property
    def is_told(self) -> np.ndarray:
        """(constants,) bool, which of them change any time."""
        return np.asarray(self.slopes.any(axis=1))


def lines_at(
    predictor: Predictor,
    rows: Sequence[Row],
    constants: Constants,
    predicted: Sequence[Prediction],
) -> Lines:
    """Lines through what is predicted with some constants, by what is chosen with them."""
    slopes = np.zeros((len(constants), len(rows)))
    for number, ((where, key), value) in enumerate(constants.items()):
        more = value // LARGER + 1
        moved = {**constants, (where, key): value + more}
        for at, (row, one) in enumerate(zip(rows, predicted, strict=True)):
            generation = predictor.generation(row)
            if where in (ALL, generation):
                overrides = of_generation(moved, generation)
                later_us = predictor.clock_us(row, one.algorithm, overrides)
                slopes[number, at] = (later_us - one.time_us) / more
    times = np.array([one.time_us for one in predicted])
    return Lines(np.array(list(constants.values()), float), times, slopes)
