"""How far the model is from measured rows, row by row and table by table."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from ncc_runtime.calibration.constants import free_of, shipped
from ncc_runtime.calibration.fit import Fitted, by, fitted
from ncc_runtime.calibration.predict import Overrides, Prediction, Predictor
from ncc_runtime.calibration.rows import MeasuredRow
from ncc_runtime.progress import phase
from ncc_runtime.report.run import SCHEMA


@attrs.frozen
class Residual:
    """A row and its prediction."""

    row: MeasuredRow
    predicted: Prediction

    @property
    def percent(self) -> float:
        """The relative error of the prediction, positive where it is too long."""
        return 100 * (self.predicted.time_us / self.row.time_us - 1)


@attrs.frozen
class Calibration:
    """Constants by generation and the residuals with them."""

    constants: Fitted
    rows: tuple[Residual, ...]
    left_out: tuple[Residual, ...] = ()  # each table with constants fitted to the others


def calibrated(
    predictor: Predictor, rows: Sequence[MeasuredRow], *, is_fitted: bool, leave_one_out: bool
) -> Calibration:
    """The rows by the constants that are shipped, or by those that fit them best."""
    with phase("calibration", "runs of the clock") as predictor.now:
        constants = fitted(predictor, rows) if is_fitted else _shipped(predictor, rows)
        left_out: tuple[Residual, ...] = ()
        if leave_one_out:
            for name, table in by(rows, lambda row: row.table).items():
                others = [row for row in rows if row.table != name]
                # as shipped where no other row is of the generation
                refitted = {
                    **_shipped(predictor, table),
                    **(fitted(predictor, others) if others else {}),
                }
                left_out += _residuals(predictor, table, refitted)
        return Calibration(constants, _residuals(predictor, rows, constants), left_out)


def _shipped(predictor: Predictor, rows: Sequence[MeasuredRow]) -> Fitted:
    return {name: shipped(of_name[0]) for name, of_name in by(rows, predictor.generation).items()}


def _residuals(
    predictor: Predictor, rows: Sequence[MeasuredRow], constants: Mapping[str, Overrides]
) -> tuple[Residual, ...]:
    return tuple(
        Residual(row, predictor.predict(row, constants[predictor.generation(row)])) for row in rows
    )


def doubt(calibration: Calibration) -> str:
    """A warning of fewer rows than constants that were fitted to them; "" if there are enough."""
    rows = {attrs.evolve(residual.row, table="", time_us=0) for residual in calibration.rows}
    constants = {free_of(name, key) for name, keys in calibration.constants.items() for key in keys}
    if len(rows) >= len(constants):
        return ""
    fitted_to = "a single row" if len(rows) == 1 else f"{len(rows)} different rows"
    return (
        f"{len(constants)} constants are fitted to {fitted_to}, which many values fit alike: add "
        "rows of other sizes, ranks or operators"
    )


def as_text(calibration: Calibration, *, every_row: bool) -> str:
    """Constants, then rows if asked for, then a line for each table and one for all."""
    lines = ["constants"]
    for generation, constants in calibration.constants.items():
        lines += [f"  {generation:<6}{key:<28}{value:>12,}" for key, value in constants.items()]
    if every_row:
        lines += ["", f"{'table':<20}{'op':<15}{'size(B)':>11}{'measured us':>13}"]
        lines[-1] += f"{'model us':>12}{'error %':>9}  algorithm"
        for residual in calibration.rows:
            row, predicted = residual.row, residual.predicted
            lines.append(
                f"{row.table:<20}{row.op:<15}{row.size_bytes:>11}{row.time_us:>13.2f}"
                f"{predicted.time_us:>12.2f}{residual.percent:>+9.1f}  {predicted.algorithm}"
            )
    lines += ["", f"{'table':<20}{'rows':>5}{'median |error| %':>18}{'worst %':>9}"]
    lines += _summaries(calibration.rows)
    if calibration.left_out:
        lines += ["", "each table by constants fitted to the others"]
        lines += _summaries(calibration.left_out)
    return "\n".join(lines)


def _summaries(residuals: Sequence[Residual]) -> Iterator[str]:
    tables: dict[str, list[Residual]] = {}
    for residual in residuals:
        tables.setdefault(residual.row.table, []).append(residual)
    for name, table in (*tables.items(), ("all", list(residuals))):
        yield f"{name:<20}{len(table):>5}{_median(table):>18.1f}{_worst(table):>+9.1f}"


def _median(residuals: Sequence[Residual]) -> float:
    return statistics.median(abs(residual.percent) for residual in residuals)


def _worst(residuals: Sequence[Residual]) -> float:
    return max((residual.percent for residual in residuals), key=abs)


def as_json(calibration: Calibration) -> dict[str, Any]:
    """The object of `--json`."""
    return {
        "schema": SCHEMA,
        "constants": {name: dict(constants) for name, constants in calibration.constants.items()},
        "median_error_percent": _median(calibration.rows),
        "worst_error_percent": _worst(calibration.rows),
        "rows": [_object(residual) for residual in calibration.rows],
        "left_out": [_object(residual) for residual in calibration.left_out],
    }


def _object(residual: Residual) -> dict[str, Any]:
    return {
        **attrs.asdict(residual.row),
        "predicted_us": residual.predicted.time_us,
        "algorithm": residual.predicted.algorithm,
        "error_percent": residual.percent,
    }
