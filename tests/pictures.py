"""Pictures as matplotlib has them, for tests of what they show."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


def figure_of(module: ModuleType, draw_it: Callable[[], Any], patch: pytest.MonkeyPatch) -> Any:
    """The figure that a function of a module draws, and its heading as `suptitle`."""
    found = []

    def kept(
        file_name: str, heading: str, draw: Callable[[Any], None], inches: Any = (10, 4.5)
    ) -> bytes:
        from matplotlib.figure import Figure

        figure = Figure(figsize=inches)
        draw(figure)
        figure.suptitle(heading)
        found.append(figure)
        return b""

    with patch.context() as drawing:
        drawing.setattr(module, "picture", kept)
        draw_it()
    (figure,) = found
    figure.canvas.draw()  # which is when ticks get their labels
    return figure


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def points(line: Any) -> list[tuple[float, float]]:
    return list(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))
