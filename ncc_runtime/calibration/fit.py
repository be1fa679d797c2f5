"""Fits the few free constants of a generation to measured rows.

Each constant is moved by a factor while that brings the rows closer, one after the other; when none
does, the factor becomes smaller. What is brought down is the mean over tables of each table's root
mean square of ln(predicted / measured), so that no table counts more for having more rows. There
is no chance in it: equal rows give equal constants.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from ncc_runtime.calibration.predict import Overrides, Predictor, overridden
from ncc_runtime.calibration.rows import Row

FREE: tuple[str, ...] = ("cc.start_ps", "cc.instruction_ps", "intra_chip.die_latency_ps")
"""What is fitted; every other figure is published, or no row can tell it."""

FACTORS = (2.0, 1.4, 1.2, 1.1, 1.05, 1.02)

LEAST_PS, MOST_PS = 100_000, 50_000_000
"""Where a constant is looked for."""

NARROW = 4.0
"""Plans so many times dearer than the best where the search begins are left out of it."""

Fitted = Mapping[str, Overrides]
"""Constants by generation."""


def fitted(predictor: Predictor, rows: Sequence[Row]) -> Fitted:
    """The constants of every generation that has rows."""
    found = {
        generation: _of_generation(predictor, its_rows)
        for generation, its_rows in by(rows, predictor.generation).items()
    }
    return MappingProxyType(found)


def by(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows in groups, groups in the order of their first row."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def shipped(rows: Sequence[Row]) -> Overrides:
    """The free constants of the first row's preset."""
    topology = overridden(rows[0], {})
    values = {key: topology.figures[key].value for key in FREE}
    if topology.intra_chip.dies == 1:
        del values["intra_chip.die_latency_ps"]
    return MappingProxyType({key: value for key, value in values.items() if isinstance(value, int)})


def _of_generation(predictor: Predictor, rows: Sequence[Row]) -> Overrides:
    """Steps of one factor as long as they help, then of the next smaller."""
    narrow = predictor.narrowed(rows, NARROW)
    constants = dict(shipped(rows))
    least = _distance(narrow, rows, constants)
    for factor in FACTORS:
        before = math.inf
        while least < before:
            before = least
            least = _sweep(narrow, rows, constants, (least, factor))
    return MappingProxyType(constants)


def _sweep(
    predictor: Predictor, rows: Sequence[Row], constants: dict[str, int], at: tuple[float, float]
) -> float:
    """Move each constant by the factor where that helps; the distance then."""
    least, factor = at
    for key, moved in _steps(constants, factor):
        distance = _distance(predictor, rows, {**constants, key: moved})
        if distance < least:
            constants[key], least = moved, distance
    return least


def _steps(constants: dict[str, int], factor: float) -> Iterator[tuple[str, int]]:
    """Each constant larger and smaller, in three digits, as far as it may go."""
    for key in constants:
        for by_factor in (factor, 1 / factor):
            moved = _three_digits(constants[key] * by_factor) or LEAST_PS
            if LEAST_PS <= moved <= MOST_PS and moved != constants[key]:
                yield key, moved


def _three_digits(value: float) -> int:
    step = 10 ** max(0, len(str(round(value))) - 3)
    return round(value / step) * step


def _distance(predictor: Predictor, rows: Sequence[Row], constants: Overrides) -> float:
    tables = by(rows, lambda row: row.table).values()
    return sum(_of_table(predictor, table, constants) for table in tables) / len(tables)


def _of_table(predictor: Predictor, rows: Sequence[Row], constants: Overrides) -> float:
    apart = [math.log(predictor.predict_us(row, constants) / row.time_us) for row in rows]
    return math.sqrt(sum(one * one for one in apart) / len(apart))
