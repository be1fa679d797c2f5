"""`nccrt bench --plot`: time and bus bandwidth over size, both axes logarithmic, as a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

from ncc_runtime.report.bench_rows import BenchRow
from ncc_runtime.report.plot_file import picture


def plotted(rows: Sequence[BenchRow], heading: str, file_name: str) -> bytes:
    """The picture of the rows, SVG or PNG by the file's name; equal rows give equal bytes.

    A line for each algorithm, or one of what was chosen at each size, and measured times as dots.
    """
    by_algorithm: dict[str, list[BenchRow]] = {}
    for row in rows:
        by_algorithm.setdefault(row.forced or "predicted", []).append(row)
    measured: Mapping[int, BenchRow] = {
        row.size_bytes: row for row in rows if row.measured_us is not None
    }

    def draw(figure: Any) -> None:
        time, bandwidth = figure.subplots(1, 2)
        for name, own in by_algorithm.items():
            x = [row.size_bytes for row in own]
            time.plot(x, [row.time_us for row in own], marker=".", label=name)
            bandwidth.plot(x, [row.busbw_gb_per_s for row in own], marker=".", label=name)
        if measured:
            x = list(measured)
            dots: dict[str, Any] = {
                "linestyle": "none",
                "marker": "x",
                "color": "black",
                "label": "measured",
            }
            time.plot(x, [row.measured_us for row in measured.values()], **dots)
            scaled = [row.busbw_gb_per_s * (row.ratio or 0) for row in measured.values()]
            bandwidth.plot(x, scaled, **dots)
        for axes, unit in ((time, "time (us)"), (bandwidth, "bus bandwidth (GB/s)")):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel("size (B)")
            axes.set_ylabel(unit)
            axes.grid(visible=True, which="major", alpha=0.3)
            axes.legend()

    return picture(file_name, heading, draw)
