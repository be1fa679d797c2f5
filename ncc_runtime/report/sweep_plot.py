"""`nccrt bench --plot`: time and bus bandwidth over size, both axes logarithmic, as a picture."""

import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ncc_runtime.errors import InputError
from ncc_runtime.report.sweep import SweepRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")


def check_can_plot() -> None:
    """Refuse before the sweep what could not be drawn after it; InputError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install 'neuron-ncc[plot]'")


def plotted(rows: Sequence[SweepRow], heading: str, file_name: str) -> bytes:
    """The picture of a sweep, SVG or PNG by the file's name; equal rows give equal bytes.

    A line for each algorithm, or one of what was chosen at each size, and measured times as dots.
    """
    by_algorithm: dict[str, list[SweepRow]] = {}
    for row in rows:
        by_algorithm.setdefault(row.forced or "predicted", []).append(row)
    measured: Mapping[int, SweepRow] = {
        row.size_bytes: row for row in rows if row.measured_us is not None
    }

    def draw(figure: "Figure") -> None:
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
        figure.suptitle(heading, fontsize=10)

    return picture(draw, file_name, (10, 4.5))


def picture(draw: Callable[["Figure"], None], file_name: str, size: tuple[float, float]) -> bytes:
    """What is drawn on a figure of so many inches, SVG or PNG by the file's name.

    Equal drawings give equal bytes.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # ids of an SVG are random without a salt, and letters as paths depend on no viewer's fonts
    settings: dict[str, Any] = {"svg.hashsalt": "nccrt", "svg.fonttype": "path"}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **settings}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        out = io.BytesIO()
        is_svg = file_name.endswith(".svg")
        # without a date, which would differ every time
        figure.savefig(
            out, format="svg" if is_svg else "png", metadata={"Date": None} if is_svg else {}
        )
    return out.getvalue()
