"""Pictures of figures, SVG or PNG: equal figures give equal bytes."""

import importlib.util
import io
from collections.abc import Callable
from typing import Any

from ncc_runtime.errors import InputError


def check_can_plot() -> None:
    """Refuse before the work what could not be drawn after it; InputError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install 'neuron-ncc[plot]'")


def picture(file_name: str, heading: str, draw: Callable[[Any], None]) -> bytes:
    """What `draw` puts on a matplotlib figure, SVG or PNG by the file's name."""
    import matplotlib
    from matplotlib.figure import Figure

    # ids of an SVG are random without a salt, and letters as paths depend on no viewer's fonts
    settings: dict[str, Any] = {"svg.hashsalt": "nccrt", "svg.fonttype": "path"}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **settings}):
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        draw(figure)
        figure.suptitle(heading, fontsize=10)
        out = io.BytesIO()
        is_svg = file_name.endswith(".svg")
        # without a date, which would differ every time
        figure.savefig(
            out, format="svg" if is_svg else "png", metadata={"Date": None} if is_svg else {}
        )
    return out.getvalue()
