"""Pictures of figures, SVG or PNG: equal figures give equal bytes."""

import importlib.util
import io
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from ncc_runtime.errors import InputError
from ncc_runtime.words import size_label

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Of lines, told apart also by who sees colours otherwise. Source: Okabe and Ito, 2008."""

MARKERS = "osD^vPX"

MOST_TICKS = 8
"""Of an axis, whose labels would touch each other otherwise."""

DOTS_PER_INCH = 144
"""Of a PNG, so that its letters stay sharp on today's screens."""


def check_can_plot() -> None:
    """Refuse before the work what could not be drawn after it; InputError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install 'neuron-ncc[plot]'")


def picture(
    file_name: str,
    heading: str,
    draw: Callable[[Any], None],
    inches: tuple[float, float] = (10, 4.5),
) -> bytes:
    """What `draw` puts on a matplotlib figure, SVG or PNG by the file's name."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    # ids of an SVG are random without a salt, and letters as paths depend on no viewer's fonts
    settings: dict[str, Any] = {"svg.hashsalt": "nccrt", "svg.fonttype": "path"}
    # names are users', and none of them is a formula; so each logarithmic axis needs one of the
    # functions below, matplotlib's own ticks of it are formulas
    settings["text.parse_math"] = False
    with (
        matplotlib.rc_context({**matplotlib.rcParamsDefault, **settings}),
        warnings.catch_warnings(),
    ):
        # a letter that its font lacks is drawn as a box
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure = Figure(figsize=inches, layout="constrained")
        draw(figure)
        figure.suptitle(heading, fontsize=10)
        out = io.BytesIO()
        is_svg = file_name.endswith(".svg")
        # without a date, which would differ every time
        figure.savefig(
            out,
            format="svg" if is_svg else "png",
            dpi="figure" if is_svg else DOTS_PER_INCH,
            metadata={"Date": None} if is_svg else {},
        )
        texts = (text.get_text() for text in figure.findobj(Text))
        assert not any("\\mathdefault" in text for text in texts), "an axis without own ticks"
    return out.getvalue()


def line_style(number: int) -> dict[str, Any]:
    """Colour and marker of the line of that number, told apart by both."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3],
        "markersize": 4,
    }


def size_axis(axes: Any, sizes: Iterable[int], label: str = "size") -> None:
    """A logarithmic axis of bytes from left to right, with ticks at sizes that there are."""
    count_axis(axes, sizes, label)
    axes.xaxis.set_major_formatter(lambda size, _: size_label(size))
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(visible=True, which="major", alpha=0.3)


def count_axis(axes: Any, counts: Iterable[int], label: str) -> None:
    """A logarithmic axis of whole numbers from left to right, ticks at those that there are."""
    found = sorted(set(counts))
    axes.set_xscale("log", base=2)
    axes.set_xticks(found[:: -(-len(found) // MOST_TICKS)])
    axes.xaxis.set_major_formatter(lambda count, _: f"{count:g}")
    axes.minorticks_off()
    axes.set_xlabel(label)


def figure_axis(axes: Any, label: str, which: str = "y") -> None:
    """A logarithmic axis of figures, whose ticks are written out; when all is drawn."""
    from matplotlib.ticker import LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    low, high = getattr(axes, f"get_{which}lim")()
    axis = getattr(axes, f"{which}axis")
    if high < 1000 * low:  # three ticks of powers of ten would be all
        subs = (1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 4, 5, 7)
        axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.set_minor_formatter(NullFormatter())
    getattr(axes, f"set_{which}label")(label)
    axes.grid(visible=True, which="major", alpha=0.3)
