"""Fits the few free constants of a generation to measured rows.

Each constant is moved by a factor while that brings the rows closer, one after the other and two in
opposite directions; when nothing does, the factor becomes smaller. What is brought down is the
fourth root of the mean over tables of each table's mean fourth power of ln(predicted / measured):
no table counts more for having more rows, and rows that are far off count most. There is no chance
in it: equal rows give equal constants.

The search goes by the price, scaled to the clock where the search begins; then it begins again
from what it has found. What the clock likes best is taken.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from types import MappingProxyType

import attrs

from ncc_runtime.calibration.predict import Overrides, Predictor, overridden
from ncc_runtime.calibration.rows import Row

FREE: tuple[str, ...] = ("cc.start_ps", "cc.instruction_ps", "intra_chip.die_latency_ps")
"""What is fitted; every other figure is published, or no row can tell it."""

FACTORS = (2.0, 1.4, 1.2, 1.1, 1.05, 1.02, 1.01, 1.005)

LEAST_PS, MOST_PS = 10_000, 50_000_000
"""Where a constant is looked for."""

NARROW = 1.5
"""Plans so many times dearer than the best where the search begins are left out of it."""

SEARCHES = 8
"""So often the search begins at most."""

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
    """The best by the clock of what one search after the other finds."""
    narrow = predictor.narrowed(rows, NARROW)
    constants, found = dict(shipped(rows)), dict[float, Overrides]()
    for _ in range(SEARCHES):
        here = MappingProxyType(dict(constants))
        if here in found.values():
            break
        scaled = _Scaled(narrow, here)
        found.setdefault(_distance(scaled, rows, here), here)
        _search(scaled, rows, constants)
    return found[min(found)]


@attrs.frozen(eq=False)
class _Scaled:
    """Prices times what the clock says of them at some constants."""

    predictor: Predictor
    at: Overrides
    _scales: dict[Row, float] = attrs.field(factory=dict)

    def predict_us(self, row: Row, constants: Overrides) -> float:
        """The time of a row, exact at the constants where the search begins."""
        if row not in self._scales:
            clock, price = (
                of(row, self.at) for of in (self.predictor.predict, self.predictor.priced)
            )
            self._scales[row] = clock.time_us / price.time_us
        return self.predictor.priced(row, constants).time_us * self._scales[row]


def _search(scaled: _Scaled, rows: Sequence[Row], constants: dict[str, int]) -> None:
    """Steps of one factor as long as they help, then of the next smaller."""
    least = _distance(scaled, rows, constants)
    for factor in FACTORS:
        before = math.inf
        while least < before:
            before = least
            least = _sweep(scaled, rows, constants, (least, factor))


def _sweep(
    scaled: _Scaled, rows: Sequence[Row], constants: dict[str, int], at: tuple[float, float]
) -> float:
    """Move each constant by the factor where that helps; the distance then."""
    least, factor = at
    for moved in _steps(constants, factor):
        distance = _distance(scaled, rows, {**constants, **moved})
        if distance < least:
            constants.update(moved)
            least = distance
    return least


def _steps(constants: dict[str, int], factor: float) -> Iterator[dict[str, int]]:
    """Each constant larger and smaller, and one larger while another is smaller."""
    for key in constants:
        for by_factor in (factor, 1 / factor):
            yield _moved(constants, {key: by_factor})
    for larger, smaller in permutations(constants, 2):
        yield _moved(constants, {larger: factor, smaller: 1 / factor})


def _moved(constants: dict[str, int], factors: dict[str, float]) -> dict[str, int]:
    """Constants in three digits, as far as they may go."""
    return {
        key: min(max(_three_digits(constants[key] * factor), LEAST_PS), MOST_PS)
        for key, factor in factors.items()
    }


def _three_digits(value: float) -> int:
    step = 10 ** max(0, len(str(round(value))) - 3)
    return round(value / step) * step


def _distance(scaled: _Scaled, rows: Sequence[Row], constants: Overrides) -> float:
    tables = by(rows, lambda row: row.table).values()
    mean = sum(_of_table(scaled, table, constants) for table in tables) / len(tables)
    return math.pow(mean, 1 / 4)


def _of_table(scaled: _Scaled, rows: Sequence[Row], constants: Overrides) -> float:
    apart = [math.log(scaled.predict_us(row, constants) / row.time_us) for row in rows]
    return sum(one**4 for one in apart) / len(apart)
