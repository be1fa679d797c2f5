"""`nccrt calibrate --plot`: measured beside predicted, and how far they are apart, as a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncc_runtime.calibration.residuals import Calibration, Residual
from ncc_runtime.calibration.rows import MeasuredRow
from ncc_runtime.calibration.steps import StepRow
from ncc_runtime.report.plot_file import COLOURS, MARKERS, figure_axis, picture, size_axis

MOST_TABLES = 7
"""Tables that have a colour and a marker of their own; the rest are grey."""


def plotted(calibrations: Sequence[Calibration], file_name: str) -> bytes:
    """SVG or PNG by the file's name; equal calibrations give equal bytes.

    For rows of collectives and for those of steps each: predicted over measured times, both axes
    logarithmic, with the diagonal and the bands in which a half and nine tenths of the rows lie;
    beside it the error of the prediction over the size, for steps over the time.
    """

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(calibrations), 2, squeeze=False)
        for (times, errors), calibration in zip(grid, calibrations, strict=True):
            _draw(times, errors, calibration.rows)

    counts = []
    for one in calibrations:
        of = "steps" if isinstance(one.rows[0].row, StepRow) else "collectives"
        counts.append(f"{len(one.rows)} row{'s' * (len(one.rows) != 1)} of {of}")
    heading = f"measured and predicted: {', '.join(counts)}"
    return picture(file_name, heading, draw, (11, 5 * len(calibrations)))


def _draw(times: Any, errors: Any, rows: Sequence[Residual]) -> None:
    half, most = (
        float(np.percentile([abs(row.percent) for row in rows], share)) for share in (50, 90)
    )
    ends = [us for row in rows for us in (row.row.time_us, row.predicted.time_us)]
    ends_us = np.array([min(ends) / 1.5, max(ends) * 1.5])
    for percent, alpha, what in ((most, 0.12, "nine tenths"), (half, 0.25, "half")):
        label = f"{what} of the rows: ±{percent:.1f} %"
        low = max(1 - percent / 100, 0.01)  # a logarithmic axis has no end below
        style = {"color": "#777777", "alpha": alpha, "linewidth": 0}
        high = 1 + percent / 100
        times.fill_between(ends_us, low * ends_us, high * ends_us, label=label, **style)
        errors.axhspan(-percent, percent, **style)
    times.plot(ends_us, ends_us, color="black", linewidth=1, label="equal")
    errors.axhline(0, color="black", linewidth=1)
    tables: dict[str, list[Residual]] = {}
    for row in rows:
        tables.setdefault(row.row.table, []).append(row)
    for number, (table, own) in enumerate(tables.items()):
        is_named = number < MOST_TABLES
        rest = f"{len(tables) - MOST_TABLES} more tables" if number == MOST_TABLES else None
        style = {
            "color": COLOURS[number] if is_named else "#999999",
            "marker": MARKERS[number] if is_named else ".",
            "linestyle": "none",
            "markersize": 4,
            "alpha": 0.8,
        }
        measured = [row.row.time_us for row in own]
        predicted = [row.predicted.time_us for row in own]
        times.plot(measured, predicted, label=table if is_named else rest, **style)
        at = [row.row.size_bytes for row in own if isinstance(row.row, MeasuredRow)] or measured
        errors.plot(at, [row.percent for row in own], **style)
    times.set_xlim(*ends_us)
    times.set_ylim(*ends_us)
    figure_axis(times, "measured time (us)", "x")
    figure_axis(times, "predicted time (us)")
    times.legend(fontsize=8, loc="upper left")
    if sizes := [row.row.size_bytes for row in rows if isinstance(row.row, MeasuredRow)]:
        size_axis(errors, sizes)
    else:
        figure_axis(errors, "measured time (us)", "x")
    errors.set_ylabel("error of the prediction (%)")
    errors.grid(visible=True, alpha=0.3)
