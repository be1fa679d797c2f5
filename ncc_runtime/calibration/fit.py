"""Fits the few free constants to measured rows.

What is brought down is the mean over tables of each table's mean fourth power of
predicted / measured - 1, the error that is printed: no table counts more for having more rows, and
the rows that are furthest off count most, so that the worst comes down together with the median.

The search draws a line through the clock's time of every row, looks along the lines for better
constants within its reach, and asks the clock: if it agrees, the search goes there, if not, its
reach becomes shorter. There is no chance in it, and it begins at constants of its own, not at those
that are shipped: equal rows give equal constants.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.calibration.descent import Quartic, least_of
from ncc_runtime.calibration.free import (
    BEGIN,
    LEAST_PS,
    Constants,
    free_of,
    most_ps,
    of_generation,
    shipped,
)
from ncc_runtime.calibration.lines import Lines, lines_at
from ncc_runtime.calibration.predict import Overrides, Prediction, Predictor
from ncc_runtime.calibration.rows import Row

REACH, LEAST_REACH = 8.0, 1.02
"""By what factor constants may move at a time: at first, and where the search ends."""

ENOUGH = 1e-3
"""The search ends where no constant should move by more than this part of it."""

Fitted = Mapping[str, Overrides]
"""Constants by generation."""


def fitted(predictor: Predictor, rows: Sequence[Row]) -> Fitted:
    """The constants of every generation that has rows; what no row tells is as shipped."""
    there = {name: shipped(its[0]) for name, its in by(rows, predictor.generation).items()}
    begin = {free_of(name, key): BEGIN[key] for name, its in there.items() for key in its}
    found, lines = _searched(predictor, _Distance(rows), begin)
    told = {free for free, is_told in zip(begin, lines.is_told, strict=True) if is_told}
    return MappingProxyType(
        {
            name: MappingProxyType(
                {
                    key: value if free_of(name, key) in told else there[name][key]
                    for key, value in of_generation(found, name).items()
                }
            )
            for name in there
        }
    )


def by(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows in groups, groups in the order of their first row."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


class _Distance:
    """How far times are from what was measured."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        tables = by(rows, lambda row: row.table)
        self._measured = np.array([row.time_us for row in rows])
        self._weights = np.array([1 / len(tables[row.table]) / len(tables) for row in rows])

    def __call__(self, times_us: np.ndarray) -> np.ndarray:
        """(...,) of times (..., rows)."""
        return np.asarray((times_us / self._measured - 1) ** 4 @ self._weights)

    def along(self, lines: Lines) -> Quartic:
        """The same along lines; variables are parts of the constants where they were drawn."""
        slopes = lines.slopes * lines.at[:, None] / self._measured
        return Quartic(lines.times / self._measured - 1 - slopes.sum(axis=0), slopes, self._weights)


@attrs.frozen(eq=False)
class _Point:
    """Constants, and what the clock says of the rows with them."""

    constants: Constants
    predicted: tuple[Prediction, ...]
    distance: float


def _searched(
    predictor: Predictor, distance: _Distance, begin: Constants
) -> tuple[Constants, Lines]:
    """The best constants, and lines through them."""
    best = _point(predictor, distance, begin)
    lines, reach = lines_at(predictor, distance.rows, best.constants, best.predicted), REACH
    most = most_ps(begin)
    while reach > LEAST_REACH:
        moved = _along(lines, distance, reach, most)
        if np.allclose(moved, lines.at, rtol=ENOUGH):
            break
        point = _point(predictor, distance, dict(zip(begin, map(int, moved.tolist()), strict=True)))
        if point.distance < best.distance:
            best = point
            lines = lines_at(predictor, distance.rows, best.constants, best.predicted)
        else:
            reach = math.sqrt(reach)
    last = map(int, _rounded(lines, distance).tolist())
    return dict(zip(begin, last, strict=True)), lines


def _point(predictor: Predictor, distance: _Distance, constants: Constants) -> _Point:
    overrides = {
        name: of_generation(constants, name) for name in by(distance.rows, predictor.generation)
    }
    predicted = tuple(
        predictor.predict(row, overrides[predictor.generation(row)]) for row in distance.rows
    )
    times = np.array([one.time_us for one in predicted])
    return _Point(constants, predicted, float(distance(times)))


def _along(lines: Lines, distance: _Distance, reach: float, most_ps: Sequence[int]) -> np.ndarray:
    """The best constants by the lines, within reach of where these were drawn."""
    low, high = np.maximum(1 / reach, LEAST_PS / lines.at), np.minimum(reach, most_ps / lines.at)
    found = least_of(distance.along(lines), np.ones(len(low)), low, high)
    return np.round(found * lines.at)


def _rounded(lines: Lines, distance: _Distance) -> np.ndarray:
    """Constants in two digits, each up or down, as is best by the lines."""
    unit = 10.0 ** (np.floor(np.log10(lines.at)) - 1)
    down = np.floor(lines.at / unit)
    corners = (down + np.array(list(product((0, 1), repeat=len(down))))) * unit
    exact = np.where(down * unit == lines.at, lines.at, corners)
    return np.asarray(exact[distance(lines.times_us(exact)).argmin()])
