"""How far the model is from measured rows, row by row and table by table."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from ncc_runtime.calibration.constants import free_of, shipped
from ncc_runtime.calibration.fit import Fitted, by, fitted
from ncc_runtime.calibration.predict import Overrides, Prediction, Predictor
from ncc_runtime.calibration.rows import MeasuredRow
from ncc_runtime.report.run import SCHEMA


@attrs.frozen
class Residual:
    """A row beside what the model says of it."""

    row: MeasuredRow
    predicted: Prediction

    @property
    def percent(self) -> float:
        """By how much the prediction is too long."""
        return 100 * (self.predicted.time_us / self.row.time_us - 1)


@attrs.frozen
class Calibration:
    """Constants by generation, and every row by them; and each table by rows of the others."""

    constants: Fitted
    rows: tuple[Residual, ...]
    left_out: tuple[Residual, ...] = ()


def calibrated(
    predictor: Predictor, rows: Sequence[MeasuredRow], *, is_fitted: bool, leave_one_out: bool
) -> Calibration:
    """The rows by the constants that are shipped, or by those that fit them best."""
    constants = fitted(predictor, rows) if is_fitted else _shipped(predictor, rows)
    left_out: tuple[Residual, ...] = ()
    if leave_one_out:
        tables = by(rows, lambda row: row.table)
        left_out = tuple(
            one
            for name in tables
            for one in _by_the_others(predictor, tables[name], _without(rows, name))
        )
    return Calibration(constants, _residuals(predictor, rows, constants), left_out)


def _shipped(predictor: Predictor, rows: Sequence[MeasuredRow]) -> Fitted:
    return {name: shipped(its[0]) for name, its in by(rows, predictor.generation).items()}


def _without(rows: Sequence[MeasuredRow], table: str) -> list[MeasuredRow]:
    return [row for row in rows if row.table != table]


def _by_the_others(
    predictor: Predictor, table: Sequence[MeasuredRow], others: Sequence[MeasuredRow]
) -> tuple[Residual, ...]:
    """A table by constants that are fitted to the others; as shipped where none is of its kind."""
    found = fitted(predictor, others) if others else {}
    constants = {**_shipped(predictor, table), **found}
    return _residuals(predictor, table, constants)


def _residuals(
    predictor: Predictor, rows: Sequence[MeasuredRow], constants: Mapping[str, Overrides]
) -> tuple[Residual, ...]:
    return tuple(
        Residual(row, predictor.predict(row, constants[predictor.generation(row)])) for row in rows
    )


def doubt(found: Calibration) -> str:
    """What to warn of: fewer rows than constants that were fitted to them."""
    rows = {attrs.evolve(one.row, table="", time_us=0) for one in found.rows}
    constants = {free_of(name, key) for name, its in found.constants.items() for key in its}
    if len(rows) >= len(constants):
        return ""
    fitted_to = "a single row" if len(rows) == 1 else f"{len(rows)} different rows"
    return (
        f"{len(constants)} constants are fitted to {fitted_to}, which many values fit alike: add "
        "rows of other sizes, ranks or operators"
    )


def as_text(found: Calibration, *, every_row: bool) -> str:
    """Constants, then rows if asked for, then a line for each table and one for all."""
    lines = ["constants"]
    for generation, constants in found.constants.items():
        lines += [f"  {generation:<6}{key:<28}{value:>12,}" for key, value in constants.items()]
    if every_row:
        lines += ["", f"{'table':<20}{'op':<15}{'size(B)':>11}{'measured us':>13}"]
        lines[-1] += f"{'model us':>12}{'error %':>9}  algorithm"
        lines += [_line(one) for one in found.rows]
    lines += ["", f"{'table':<20}{'rows':>5}{'median |error| %':>18}{'worst %':>9}"]
    lines += _summaries(found.rows)
    if found.left_out:
        lines += ["", "each table by constants fitted to the others"]
        lines += _summaries(found.left_out)
    return "\n".join(lines)


def _line(one: Residual) -> str:
    row = one.row
    return (
        f"{row.table:<20}{row.op:<15}{row.size_bytes:>11}{row.time_us:>13.2f}"
        f"{one.predicted.time_us:>12.2f}{one.percent:>+9.1f}  {one.predicted.algorithm}"
    )


def _summaries(found: Sequence[Residual]) -> Iterator[str]:
    tables: dict[str, list[Residual]] = {}
    for one in found:
        tables.setdefault(one.row.table, []).append(one)
    for name, its in (*tables.items(), ("all", list(found))):
        yield f"{name:<20}{len(its):>5}{_median(its):>18.1f}{_worst(its):>+9.1f}"


def _median(found: Sequence[Residual]) -> float:
    return statistics.median(abs(one.percent) for one in found)


def _worst(found: Sequence[Residual]) -> float:
    return max((one.percent for one in found), key=abs)


def as_json(found: Calibration) -> dict[str, Any]:
    """The object of `--json`."""
    return {
        "schema": SCHEMA,
        "constants": {name: dict(constants) for name, constants in found.constants.items()},
        "median_error_percent": _median(found.rows),
        "worst_error_percent": _worst(found.rows),
        "rows": [_object(one) for one in found.rows],
        "left_out": [_object(one) for one in found.left_out],
    }


def _object(one: Residual) -> dict[str, Any]:
    return {
        **attrs.asdict(one.row),
        "predicted_us": one.predicted.time_us,
        "algorithm": one.predicted.algorithm,
        "error_percent": one.percent,
    }
