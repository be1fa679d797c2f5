"""`nccrt bench --plot`: time and bus bandwidth over size, both axes logarithmic, as a picture."""

from collections.abc import Callable, Sequence
from typing import Any

from ncc_runtime.report.bench import type_name
from ncc_runtime.report.bench_rows import BenchRow, Comparison
from ncc_runtime.report.plot_file import figure_axis, line_style, picture, size_axis


def plotted(
    rows: Sequence[BenchRow], heading: str, file_name: str, compared: Sequence[Comparison] = ()
) -> bytes:
    """The picture of the rows, SVG or PNG by the file's name; equal rows give equal bytes.

    A line for each algorithm, or one of what was chosen at each size. Crosses are measured times;
    where there are some, the legend has the median of predicted over measured.
    Broken lines are of the same where nothing is down or slow, or in any order of reduction.
    """
    by_algorithm: dict[str, list[BenchRow]] = {}
    for row in rows:
        by_algorithm.setdefault(row.forced, []).append(row)
    measured = {row.size_bytes: row for row in rows if row.measured_us is not None}
    ratios = {one.algorithm: f", {one.median_ratio:.2f} of measured" for one in compared}

    def draw(figure: Any) -> None:
        time, bandwidth = figure.subplots(1, 2)
        for number, (name, own) in enumerate(by_algorithm.items()):
            style = line_style(number)
            called = f"{name or 'predicted'}{ratios.get(name, '')}"
            _line(time, own, lambda row: row.time_us, label=called, **style)
            _line(bandwidth, own, lambda row: row.busbw_gb_per_s, label=called, **style)
            others: tuple[tuple[str, Callable[[BenchRow], float | None], str], ...] = (
                ("healthy", lambda row: row.healthy_us, "--"),
                ("in any order", lambda row: row.free_us, ":"),
            )
            for what, us_of, dashes in others:
                broken = {**style, "marker": "", "linestyle": dashes, "alpha": 0.8}
                label = f"{name}, {what}" if name else what
                _line(time, own, us_of, label=label, **broken)

                def busbw_of(row: BenchRow, us_of: Any = us_of) -> float | None:
                    us = us_of(row)
                    return None if us is None else row.busbw_gb_per_s * row.time_us / us

                _line(bandwidth, own, busbw_of, label=label, **broken)
        if measured:
            crosses = {"linestyle": "none", "marker": "x", "markersize": 8, "markeredgewidth": 2}
            crosses |= {"color": "#444444", "label": "measured", "zorder": 5}
            found = list(measured.values())
            _line(time, found, lambda row: row.measured_us, **crosses)
            _line(
                bandwidth,
                found,
                lambda row: None if row.ratio is None else row.busbw_gb_per_s * row.ratio,
                **crosses,
            )
        for axes, label, corner in (
            (time, "time (us)", "upper left"),
            (bandwidth, "bus bandwidth (GB/s)", "lower right"),
        ):
            size_axis(axes, [row.size_bytes for row in rows], "size of a rank's larger side")
            figure_axis(axes, label)
            axes.legend(fontsize=9, loc=corner)

    return picture(file_name, f"{heading}; {type_name(rows[0].case.dtype)}", draw)


def _line(
    axes: Any,
    rows: Sequence[BenchRow],
    value_of: Callable[[BenchRow], float | None],
    **style: Any,
) -> None:
    """The rows that have the value, if any has."""
    points = [(row.size_bytes, value_of(row)) for row in rows]
    points = [(size, value) for size, value in points if value]
    if points:
        axes.plot(*zip(*points, strict=True), **style)
