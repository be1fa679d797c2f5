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

Where the search ends, the lines say how well the rows tell each constant (`standard_errors`). One
that they do not tell stays as shipped, and the search goes on over the others.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

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
from ncc_runtime.calibration.predict import Overrides, PlacedRow, Prediction
from ncc_runtime.progress import Phase

Row = TypeVar("Row", bound=PlacedRow)
AnyRow = TypeVar("AnyRow", bound=PlacedRow, contravariant=True)


class RowPredictor(Protocol[AnyRow]):
    """What times rows of one kind by constants."""

    now: Phase

    def generation(self, row: AnyRow) -> str:
        """The generation of a row's instance, whose constants it has."""

    def predict(self, row: AnyRow, overrides: Overrides) -> Prediction:
        """The time of a row and by what."""

    def clock_us(self, row: AnyRow, name: str, overrides: Overrides) -> float:
        """The time of a row by one algorithm."""


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


def lines_at(
    predictor: RowPredictor[Any],
    rows: Sequence[PlacedRow],
    constants: Constants,
    predicted: Sequence[Prediction],
    free: Collection[tuple[str, str]],
) -> Lines:
    """Lines through the predicted times, for the algorithms that are chosen there.

    Constants that are not `free` get no slope.
    """
    slopes = np.zeros((len(constants), len(rows)))
    for number, ((where, key), value) in enumerate(constants.items()):
        if (where, key) not in free:
            continue
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

NOISE = 0.05
"""The least relative error that a measured row is taken to have. Assumed: the same all-gather of 4
MiB was measured twice, 3 % apart, those of two element types up to 12 %."""

MOST_ERROR = 0.5
"""A constant whose standard error is a larger part of its value is not told by the rows."""

TIED = 0.95
"""Constants whose errors correlate more than this are told by their sum only."""

Fitted = Mapping[str, Overrides]
"""Constants by generation."""


@attrs.frozen
class Determination:
    """How well rows tell one constant."""

    generation: str  # ALL: of all generations
    key: str
    standard_error: float  # relative to its value; infinite: any value fits alike
    effect: float  # of as much again as its value on relative errors, as a norm over rows
    is_fitted: bool  # False: it stays as shipped
    tied_to: tuple[str, ...] = ()  # constants that the rows cannot tell it apart from


@attrs.frozen
class Fit:
    """Constants by generation, and how well the rows tell each."""

    constants: Fitted
    determinations: tuple[Determination, ...] = ()


def fitted(
    predictor: RowPredictor[Any], rows: Sequence[PlacedRow], constants: Overrides = BEGIN
) -> Fit:
    """The constants of every generation that has rows; those that rows do not tell are as shipped.

    Of several that they do not tell, the one with the largest error is taken as shipped first, as
    the others may be told then.
    """
    defaults = {
        name: shipped(of_name, constants)
        for name, of_name in by(rows, predictor.generation).items()
    }
    as_shipped = {
        free_of(name, key): value
        for name, constants in defaults.items()
        for key, value in constants.items()
    }
    begin = {(where, key): constants[key] for where, key in as_shipped}
    free, distance = dict.fromkeys(begin), _Distance(rows)
    fixed: list[Determination] = []
    while True:
        best, lines = _searched(predictor, distance, begin, free)
        determinations = _determinations(lines, distance, best, free)
        undetermined = [one for one in determinations if not one.is_fitted]
        if not undetermined:
            break
        # all that no row depends on, or the one that they tell least
        dropped = [one for one in undetermined if not one.effect]
        dropped = dropped or [max(undetermined, key=lambda one: (one.standard_error, -one.effect))]
        for one in dropped:
            free.pop((one.generation, one.key))
        fixed += dropped
        begin = {where: best[where] if where in free else as_shipped[where] for where in begin}
    # a common constant as shipped is each generation's own
    found = MappingProxyType(
        {
            name: MappingProxyType(
                {
                    key: best[free_of(name, key)] if free_of(name, key) in free else default
                    for key, default in defaults[name].items()
                }
            )
            for name in defaults
        }
    )
    return Fit(found, (*determinations, *fixed))


def standard_errors(jacobian: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Relative standard errors (constants,) of a least-squares fit, and their correlations.

    `jacobian` (constants, rows) is what as much again of each constant adds to the relative errors
    (rows,). A standard error is infinite where no row depends on a constant, where others can make
    up for any change of it, or where there is one row, which any constant meets.
    """
    count, rows = jacobian.shape
    if rows < 2:
        return np.full(count, np.inf), np.eye(count)
    scale = max(NOISE**2, float(errors @ errors) / max(1, rows - count))
    values, vectors = np.linalg.eigh(jacobian @ jacobian.T)
    # what is below rounding is a direction in which no row changes
    values = np.maximum(values, 1e-12 * max(1.0, float(values.max(initial=0))))
    covariance = scale * (vectors / values) @ vectors.T
    deviation = np.sqrt(covariance.diagonal())
    correlation = covariance / np.outer(deviation, deviation)
    return np.where(deviation > _NOTHING_TOLD, np.inf, deviation), correlation


_NOTHING_TOLD = 100.0
"""A relative standard error from which on any value fits."""


def _determinations(
    lines: "Lines", distance: "_Distance", constants: Constants, free: Collection[tuple[str, str]]
) -> list[Determination]:
    """Of every free constant at the end of a search."""
    places = [place for place in constants if place in free]
    rows = [number for number, place in enumerate(constants) if place in free]
    jacobian = lines.slopes[rows] * lines.at[rows, None] / distance.measured
    errors, correlation = standard_errors(jacobian, lines.times / distance.measured - 1)
    determinations = []
    for number, (where, key) in enumerate(places):
        others = np.flatnonzero(np.abs(correlation[number]) > TIED)
        is_inside = LEAST_PS < constants[where, key] < most_ps(key)
        determinations.append(
            Determination(
                where,
                key,
                float(errors[number]),
                float(np.linalg.norm(jacobian[number])),
                bool(errors[number] <= MOST_ERROR) and is_inside,
                tuple(places[other][1] for other in others if other != number),
            )
        )
    return determinations


def by(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows in groups, groups in the order of their first row."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


class _Distance:
    """The objective: the mean over tables of the mean fourth power of the relative error."""

    def __init__(self, rows: Sequence[PlacedRow]) -> None:
        self.rows = rows
        tables = by(rows, lambda row: row.table)
        self.measured = np.array([row.time_us for row in rows])
        self._weights = np.array([1 / len(tables[row.table]) / len(tables) for row in rows])

    def __call__(self, times_us: np.ndarray) -> np.ndarray:
        """(...,) of times (..., rows)."""
        return np.asarray((times_us / self.measured - 1) ** 4 @ self._weights)

    def along(self, lines: Lines) -> Quartic:
        """The objective where times are linear; variables are relative to `lines.at`."""
        slopes = lines.slopes * lines.at[:, None] / self.measured
        return Quartic(lines.times / self.measured - 1 - slopes.sum(axis=0), slopes, self._weights)


@attrs.frozen(eq=False)
class _Trial:
    """Constants, and the times of the rows that the clock gives with them."""

    constants: Constants
    predicted: tuple[Prediction, ...]
    distance: float


def _searched(
    predictor: RowPredictor[Any],
    distance: _Distance,
    begin: Constants,
    free: Collection[tuple[str, str]],
) -> tuple[Constants, Lines]:
    """The best constants, of which those that are not free stay, and lines through them."""
    best = _evaluated(predictor, distance, begin)
    lines, reach = _lines_of(predictor, distance, best, free), REACH
    is_free = np.array([place in free for place in begin])
    most = np.array([most_ps(key) for _, key in begin], float)
    while reach > LEAST_REACH and is_free.any():
        # the minimum by the lines, in a box around the point where they were drawn
        at = np.where(is_free, lines.at, 1)
        low = np.where(is_free, np.maximum(1 / reach, LEAST_PS / at), 1)
        high = np.where(is_free, np.minimum(reach, most / at), 1)
        relative = minimum(distance.along(lines), np.ones(len(low)), low, high)
        moved = np.round(relative * lines.at)
        if np.allclose(moved, lines.at, rtol=ENOUGH):
            break
        constants = dict(zip(begin, map(int, moved.tolist()), strict=True))
        trial = _evaluated(predictor, distance, constants)
        if trial.distance < best.distance:
            best, lines = trial, _lines_of(predictor, distance, trial, free)
        else:
            reach = math.sqrt(reach)
    last = map(int, _two_digits(lines, distance, is_free).tolist())
    return dict(zip(begin, last, strict=True)), lines


def _lines_of(
    predictor: RowPredictor[Any],
    distance: _Distance,
    trial: _Trial,
    free: Collection[tuple[str, str]],
) -> Lines:
    return lines_at(predictor, distance.rows, trial.constants, trial.predicted, free)


def _evaluated(predictor: RowPredictor[Any], distance: _Distance, constants: Constants) -> _Trial:
    """Runs the clock on every row."""
    overrides = {
        name: of_generation(constants, name) for name in by(distance.rows, predictor.generation)
    }
    predicted = tuple(
        predictor.predict(row, overrides[predictor.generation(row)]) for row in distance.rows
    )
    times = np.array([prediction.time_us for prediction in predicted])
    return _Trial(constants, predicted, float(distance(times)))


def _two_digits(lines: Lines, distance: _Distance, is_free: np.ndarray) -> np.ndarray:
    """Free constants in two digits, each up or down, as is best by the lines."""
    unit = 10.0 ** (np.floor(np.log10(np.maximum(lines.at, 1))) - 1)
    down = np.floor(lines.at / unit)
    corners = (down + np.array(list(product((0, 1), repeat=len(down))))) * unit
    exact = np.where(~is_free | (down * unit == lines.at), lines.at, corners)
    return np.asarray(exact[distance(lines.times_us(exact)).argmin()])
