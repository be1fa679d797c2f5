"""How far the model is from measured rows: row by row, by table and by size."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from ncc_runtime.calibration.constants import ALL, BEGIN, shipped
from ncc_runtime.calibration.fit import (
    MOST_ERROR,
    Determination,
    Fit,
    Fitted,
    RowPredictor,
    by,
    fitted,
)
from ncc_runtime.calibration.predict import Overrides, Prediction
from ncc_runtime.calibration.rows import MeasuredRow
from ncc_runtime.calibration.steps import StepRow
from ncc_runtime.progress import phase
from ncc_runtime.report.run import SCHEMA


@attrs.frozen
class Residual:
    """A row, of a collective or a step, and its prediction."""

    row: MeasuredRow | StepRow
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
    determinations: tuple[Determination, ...] = ()  # of what was fitted, or should have been


Rows = Sequence[MeasuredRow] | Sequence[StepRow]
"""Of one kind."""


def calibrated(
    predictor: RowPredictor[Any],
    rows: Rows,
    *,
    is_fitted: bool,
    leave_one_out: bool,
    begin: Overrides = BEGIN,
) -> Calibration:
    """The rows by the constants that are shipped, or by those that fit them best.

    `begin` has the constants that such rows tell, and where the search for them begins.
    """
    with phase("calibration", "runs of the clock") as predictor.now:
        defaults = _shipped(predictor, rows, begin)
        fit = fitted(predictor, rows, begin) if is_fitted else Fit(defaults)
        left_out: tuple[Residual, ...] = ()
        if leave_one_out:
            tables: dict[str, list[Any]] = by(rows, lambda row: row.table)
            for name, table in tables.items():
                others: list[Any] = [row for row in rows if row.table != name]
                # as shipped where no other row is of the generation
                refitted = {
                    **_shipped(predictor, table, begin),
                    **(fitted(predictor, others, begin).constants if others else {}),
                }
                left_out += _residuals(predictor, table, refitted)
        found = _residuals(predictor, rows, fit.constants)
        return Calibration(fit.constants, found, left_out, fit.determinations)


def _shipped(predictor: RowPredictor[Any], rows: Rows, begin: Overrides) -> Fitted:
    groups = by(rows, predictor.generation)
    return {name: shipped(of_name, begin) for name, of_name in groups.items()}


def _residuals(
    predictor: RowPredictor[Any], rows: Rows, constants: Mapping[str, Overrides]
) -> tuple[Residual, ...]:
    return tuple(
        Residual(row, predictor.predict(row, constants[predictor.generation(row)])) for row in rows
    )


def undetermined(calibration: Calibration) -> str:
    """A warning of the constants that the rows do not tell; "" if they tell all."""
    unfitted = [one for one in calibration.determinations if not one.is_fitted]
    if not unfitted:
        return ""
    facts = ", ".join(f"{_name(one)} {_how_far(one)}" for one in unfitted)
    those = "it stays" if len(unfitted) == 1 else "they stay"
    return (
        f"the rows do not tell {facts}: {those} as shipped; add rows of other sizes, ranks or "
        "operators"
    )


def _name(one: Determination) -> str:
    return one.key if one.generation == ALL else f"{one.generation} {one.key}"


def _how_far(one: Determination) -> str:
    """Why a constant is not fitted."""
    if not one.effect:
        return "(no row depends on it)"
    tied = f", tied to {' and '.join(one.tied_to)}" if one.tied_to else ""
    if math.isinf(one.standard_error):
        return f"(any value fits{tied})"
    if one.standard_error > MOST_ERROR:
        return f"(standard error {100 * one.standard_error:,.0f} %{tied})"
    return "(the search ends at its bound)"


BANDS = (
    ("below 64 KB", 1 << 16),
    ("64 KB to 1 MB", 1 << 20),
    ("1 MB to 16 MB", 1 << 24),
    ("from 16 MB", None),
)
"""Bands of sizes, each up to a size in bytes that is not in it."""


def band(row: MeasuredRow) -> str:
    """The band of sizes that a row is in."""
    return next(name for name, end in BANDS if end is None or row.size_bytes < end)


def as_text(calibration: Calibration, *, every_row: bool) -> str:
    """Constants, then rows if asked for, then a line for each table and one for all."""
    lines = ["constants"]
    for generation, constants in calibration.constants.items():
        lines += [f"  {generation:<6}{key:<28}{value:>12,}" for key, value in constants.items()]
    if every_row:
        lines += ["", *_row_lines(calibration.rows)]
    lines += _summaries("table", by_table(calibration.rows))
    lines += _summaries("size", by_band(calibration.rows))
    if calibration.determinations:
        lines += ["", "standard errors of the constants, %"]
        for one in calibration.determinations:
            error = "as shipped"
            if one.is_fitted:
                error = f"{100 * one.standard_error:.1f}"
            lines.append(f"  {one.generation or 'all':<6}{one.key:<28}{error:>12}")
    if calibration.left_out:
        lines += ["", "each table by constants fitted to the others"]
        lines += _summaries("table", by_table(calibration.left_out))[2:]
    return "\n".join(lines)


def _row_lines(residuals: Sequence[Residual]) -> Iterator[str]:
    """A head and a line for each row; all are of one kind."""
    numbers = f"{'measured us':>13}{'model us':>12}{'error %':>9}"
    is_of_steps = isinstance(residuals[0].row, StepRow)
    head = f"{'step':<46}" if is_of_steps else f"{'op':<15}{'size(B)':>11}"
    yield f"{'table':<20}{head}{numbers}" + ("" if is_of_steps else "  algorithm")
    for residual in residuals:
        row, predicted = residual.row, residual.predicted
        numbers = f"{row.time_us:>13.2f}{predicted.time_us:>12.2f}{residual.percent:>+9.1f}"
        if isinstance(row, StepRow):
            yield f"{row.table:<20}{row.title:<46}{numbers}"
        else:
            what = f"{row.op:<15}{row.size_bytes:>11}"
            yield f"{row.table:<20}{what}{numbers}  {predicted.algorithm}"


Groups = Mapping[str, Sequence[Residual]]


def by_table(residuals: Sequence[Residual]) -> Groups:
    """Residuals by the table of their rows, and all."""
    tables: dict[str, list[Residual]] = {}
    for residual in residuals:
        tables.setdefault(residual.row.table, []).append(residual)
    return {**tables, "all": residuals}


def by_band(residuals: Sequence[Residual]) -> Groups:
    """Residuals by the band of sizes of their rows; of bands that have rows. Steps have no size."""
    bands: dict[str, list[Residual]] = {name: [] for name, _ in BANDS}
    for residual in residuals:
        if isinstance(residual.row, MeasuredRow):
            bands[band(residual.row)].append(residual)
    return {name: members for name, members in bands.items() if members}


def _summaries(kind: str, groups: Groups) -> list[str]:
    """An empty line, a head and a line for each group; nothing without groups."""
    if not groups:
        return []
    return [
        "",
        f"{kind:<20}{'rows':>5}{'median |error| %':>18}{'worst %':>9}",
        *(
            f"{name:<20}{len(group):>5}{_median(group):>18.1f}{_worst(group):>+9.1f}"
            for name, group in groups.items()
        ),
    ]


def _median(residuals: Sequence[Residual]) -> float:
    return statistics.median(abs(residual.percent) for residual in residuals)


def _worst(residuals: Sequence[Residual]) -> float:
    return max((residual.percent for residual in residuals), key=abs)


def as_json(calibration: Calibration | None, steps: Calibration | None = None) -> dict[str, Any]:
    """The object of `--json`: of rows of collectives, and below `steps` of rows of steps."""
    return {
        "schema": SCHEMA,
        **_fields(calibration),
        "steps": None if steps is None else _fields(steps),
    }


def _fields(calibration: Calibration | None) -> dict[str, Any]:
    calibration = calibration or Calibration({}, ())
    rows = calibration.rows
    return {
        "constants": {name: dict(constants) for name, constants in calibration.constants.items()},
        "median_error_percent": _median(rows) if rows else None,
        "worst_error_percent": _worst(rows) if rows else None,
        "determinations": [
            {
                "generation": one.generation or None,
                "constant": one.key,
                "is_fitted": one.is_fitted,
                "standard_error_percent": (
                    None if math.isinf(one.standard_error) else 100 * one.standard_error
                ),
                "tied_to": list(one.tied_to),
            }
            for one in calibration.determinations
        ],
        "bands": [
            {
                "sizes": name,
                "rows": len(group),
                "median_error_percent": _median(group),
                "worst_error_percent": _worst(group),
            }
            for name, group in by_band(rows).items()
        ],
        "rows": [_object(residual) for residual in rows],
        "left_out": [_object(residual) for residual in calibration.left_out],
    }


def _object(residual: Residual) -> dict[str, Any]:
    found = {
        **attrs.asdict(residual.row),
        "predicted_us": residual.predicted.time_us,
        "error_percent": residual.percent,
    }
    if isinstance(residual.row, StepRow):
        return {**found, "programs": dict(residual.row.programs)}
    return {**found, "algorithm": residual.predicted.algorithm}
