"""Fits the few free constants to measured rows: a trust-region search with linear models.

The objective is the mean over tables of each table's mean fourth power of predicted / measured - 1,
the error that is printed. No table counts more for having more rows, and the rows that are furthest
off count most, so that the worst improves together with the median.

1. Around the best constants so far, the clock's time of every row is linear (`Lines`): a time is
   made of sums and maxima of constants, so the line stays close until another chain of events
   becomes the longest, or another plan is chosen.
2. Along the lines the objective is a convex quartic (`Quartic`). Projected Newton steps find its
   minimum inside the box that the reach of the search allows.
3. The clock evaluates the rows there. If the objective has improved, the search moves there, else
   its reach shrinks.

Nothing is random, and the search begins at constants of its own, not at the shipped ones: equal
rows give equal constants.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.calibration.constants import (
    ALL,
    BEGIN,
    LEAST_PS,
    Constants,
    free_of,
    most_ps,
    of_generation,
    shipped,
)
from ncc_runtime.calibration.predict import Overrides, Prediction, Predictor
from ncc_runtime.calibration.rows import MeasuredRow

LARGER = 16
"""Finite differences: a constant grows by 1/LARGER of its value."""


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
    def has_effect(self) -> np.ndarray:
        """(constants,) bool, which of them change any time."""
        return np.asarray(self.slopes.any(axis=1))


def lines_at(
    predictor: Predictor,
    rows: Sequence[MeasuredRow],
    constants: Constants,
    predicted: Sequence[Prediction],
) -> Lines:
    """Lines through the predicted times, for the algorithms that are chosen there."""
    slopes = np.zeros((len(constants), len(rows)))
    for number, ((where, key), value) in enumerate(constants.items()):
        more = value // LARGER + 1
        moved = {**constants, (where, key): value + more}
        for at, (row, prediction) in enumerate(zip(rows, predicted, strict=True)):
            generation = predictor.generation(row)
            if where in (ALL, generation):
                overrides = of_generation(moved, generation)
                moved_us = predictor.clock_us(row, prediction.algorithm, overrides)
                slopes[number, at] = (moved_us - prediction.time_us) / more
    times = np.array([prediction.time_us for prediction in predicted])
    return Lines(np.array(list(constants.values()), float), times, slopes)


STEPS = 200
"""Newton steps at most; ten are usual."""

CLOSE = 1e-9
"""Steps that move no variable by more than this part of its scale are the last."""

HALVINGS = 40
"""Backtracking: how often a step that does not lead down is halved."""


@attrs.frozen(eq=False)
class Quartic:
    """The mean of (offset + variables @ slopes)^4, with weights."""

    offset: np.ndarray  # (rows,)
    slopes: np.ndarray  # (variables, rows)
    weights: np.ndarray  # (rows,)

    def __call__(self, at: np.ndarray) -> float:
        return float(self._errors(at) ** 4 @ self.weights)

    def gradient(self, at: np.ndarray) -> np.ndarray:
        """(variables,)"""
        return np.asarray(self.slopes @ (4 * self.weights * self._errors(at) ** 3))

    def hessian(self, at: np.ndarray) -> np.ndarray:
        """(variables, variables)"""
        return np.asarray(
            (self.slopes * (12 * self.weights * self._errors(at) ** 2)) @ self.slopes.T
        )

    def _errors(self, at: np.ndarray) -> np.ndarray:
        return np.asarray(self.offset + at @ self.slopes)


def minimum(quartic: Quartic, begin: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The variables between low and high where it is least."""
    at = np.clip(begin, low, high)
    for _ in range(STEPS):
        further = _step(quartic, at, low, high)
        if (np.abs(further - at) <= CLOSE).all():
            break
        at = further
    return at


def _step(quartic: Quartic, at: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """One Newton step of the variables that no bound holds (an active-set projection)."""
    gradient = quartic.gradient(at)
    is_free = ~((at <= low) & (gradient > 0) | (at >= high) & (gradient < 0))
    if not is_free.any():
        return at
    hessian = quartic.hessian(at)[np.ix_(is_free, is_free)]
    # variables that change no row make the Hessian singular
    ridge = 1e-12 * (np.trace(hessian) + np.finfo(float).tiny)
    newton = np.zeros_like(at)
    newton[is_free] = np.linalg.solve(hessian + ridge * np.eye(len(hessian)), gradient[is_free])
    before, length = quartic(at), 1.0
    for _ in range(HALVINGS):
        further = np.clip(at - length * newton, low, high)
        if quartic(further) < before:
            return np.asarray(further)
        length /= 2
    return at


REACH, LEAST_REACH = 8.0, 1.02
"""By what factor constants may move at a time: at first, and where the search ends."""

ENOUGH = 1e-3
"""The search ends where no constant should move by more than this part of it."""

Fitted = Mapping[str, Overrides]
"""Constants by generation."""


def fitted(predictor: Predictor, rows: Sequence[MeasuredRow]) -> Fitted:
    """The constants of every generation that has rows; one that no row depends on is as shipped."""
    defaults = {
        name: shipped(of_name[0]) for name, of_name in by(rows, predictor.generation).items()
    }
    begin = {
        free_of(name, key): BEGIN[key] for name, constants in defaults.items() for key in constants
    }
    best, lines = _searched(predictor, _Distance(rows), begin)
    fixed_by_rows = {
        free for free, has_effect in zip(begin, lines.has_effect, strict=True) if has_effect
    }
    return MappingProxyType(
        {
            name: MappingProxyType(
                {
                    key: value if free_of(name, key) in fixed_by_rows else defaults[name][key]
                    for key, value in of_generation(best, name).items()
                }
            )
            for name in defaults
        }
    )


def by(
    rows: Iterable[MeasuredRow], key: Callable[[MeasuredRow], str]
) -> dict[str, list[MeasuredRow]]:
    """Rows in groups, groups in the order of their first row."""
    groups: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


class _Distance:
    """The objective: the mean over tables of the mean fourth power of the relative error."""

    def __init__(self, rows: Sequence[MeasuredRow]) -> None:
        self.rows = rows
        tables = by(rows, lambda row: row.table)
        self._measured = np.array([row.time_us for row in rows])
        self._weights = np.array([1 / len(tables[row.table]) / len(tables) for row in rows])

    def __call__(self, times_us: np.ndarray) -> np.ndarray:
        """(...,) of times (..., rows)."""
        return np.asarray((times_us / self._measured - 1) ** 4 @ self._weights)

    def along(self, lines: Lines) -> Quartic:
        """The objective where times are linear; variables are relative to `lines.at`."""
        slopes = lines.slopes * lines.at[:, None] / self._measured
        return Quartic(lines.times / self._measured - 1 - slopes.sum(axis=0), slopes, self._weights)


@attrs.frozen(eq=False)
class _Trial:
    """Constants, and the times of the rows that the clock gives with them."""

    constants: Constants
    predicted: tuple[Prediction, ...]
    distance: float


def _searched(
    predictor: Predictor, distance: _Distance, begin: Constants
) -> tuple[Constants, Lines]:
    """The best constants, and lines through them."""
    best = _evaluated(predictor, distance, begin)
    lines, reach = lines_at(predictor, distance.rows, best.constants, best.predicted), REACH
    most = np.array(most_ps(begin))
    while reach > LEAST_REACH:
        # the minimum by the lines, in a box around the point where they were drawn
        low = np.maximum(1 / reach, LEAST_PS / lines.at)
        high = np.minimum(reach, most / lines.at)
        relative = minimum(distance.along(lines), np.ones(len(low)), low, high)
        moved = np.round(relative * lines.at)
        if np.allclose(moved, lines.at, rtol=ENOUGH):
            break
        constants = dict(zip(begin, map(int, moved.tolist()), strict=True))
        trial = _evaluated(predictor, distance, constants)
        if trial.distance < best.distance:
            best = trial
            lines = lines_at(predictor, distance.rows, best.constants, best.predicted)
        else:
            reach = math.sqrt(reach)
    last = map(int, _two_digits(lines, distance).tolist())
    return dict(zip(begin, last, strict=True)), lines


def _evaluated(predictor: Predictor, distance: _Distance, constants: Constants) -> _Trial:
    """Runs the clock on every row."""
    overrides = {
        name: of_generation(constants, name) for name in by(distance.rows, predictor.generation)
    }
    predicted = tuple(
        predictor.predict(row, overrides[predictor.generation(row)]) for row in distance.rows
    )
    times = np.array([prediction.time_us for prediction in predicted])
    return _Trial(constants, predicted, float(distance(times)))


def _two_digits(lines: Lines, distance: _Distance) -> np.ndarray:
    """Constants in two digits, each up or down, as is best by the lines."""
    unit = 10.0 ** (np.floor(np.log10(lines.at)) - 1)
    down = np.floor(lines.at / unit)
    corners = (down + np.array(list(product((0, 1), repeat=len(down))))) * unit
    exact = np.where(down * unit == lines.at, lines.at, corners)
    return np.asarray(exact[distance(lines.times_us(exact)).argmin()])
