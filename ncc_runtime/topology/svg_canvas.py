"""What an SVG picture consists of: boxes, lines and texts, in the order that they are drawn."""

from collections.abc import Sequence
from xml.etree import ElementTree

import attrs

STYLE = """
text { font: 12px sans-serif; fill: #222 }
text.title { font-weight: bold }
text.small { font-size: 10px; fill: #666 }
text.rank { font-size: 10px; text-anchor: middle }
text.middle { text-anchor: middle }
rect.frame { fill: #f7f8fa; stroke: #b8c0cc; rx: 6px }
rect.chip { fill: #fff; stroke: #4a5568; rx: 4px }
rect.switch { fill: #dbe7f5; stroke: #2b6cb0; rx: 4px }
rect.rank { fill: #c6e6cf; stroke: #2f855a }
rect.core { fill: none; stroke: #d5dae1 }
polyline { fill: none; stroke: #4a5568 }
polyline.port { stroke: #2b6cb0 }
polyline.between { stroke-width: 3px }
polyline.slowed { stroke: #dd6b20 }
polyline.down { stroke: #c53030; stroke-dasharray: 4 3 }
"""

Point = tuple[float, float]


@attrs.frozen
class Box:
    """A place on the canvas."""

    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> Point:
        return self.x + self.width / 2, self.y + self.height / 2


@attrs.define(eq=False)
class Canvas:
    """Elements so far; lines lie under boxes that are drawn after them."""

    elements: list[ElementTree.Element] = attrs.field(factory=list)

    def box(self, kind: str, box: Box, *, about: str = "") -> None:
        """A rectangle; `about` is told when a pointer rests on it."""
        places = (box.x, box.y, box.width, box.height)
        names = ("x", "y", "width", "height")
        self._add("rect", kind, dict(zip(names, places, strict=True)), about)

    def line(self, kind: str, points: Sequence[Point], *, about: str = "") -> None:
        """Straight pieces from point to point."""
        words = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._add("polyline", kind, {"points": words}, about)

    def text(self, kind: str, at: Point, words: str) -> None:
        """Words that begin, or have their middle, at a point of their base line."""
        element = self._add("text", kind, {"x": at[0], "y": at[1]}, "")
        element.text = words

    def _add(
        self, tag: str, kind: str, values: dict[str, float | str], about: str
    ) -> ElementTree.Element:
        texts = {
            name: value if isinstance(value, str) else _number(value)
            for name, value in values.items()
        }
        element = ElementTree.Element(tag, {"class": kind, **texts})
        if about:
            ElementTree.SubElement(element, "title").text = about
        self.elements.append(element)
        return element

    def svg(self, width: float, height: float) -> str:
        """The document."""
        size = {"width": _number(width), "height": _number(height)}
        root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                **size,
                "viewBox": f"0 0 {' '.join(size.values())}",
            },
        )
        ElementTree.SubElement(root, "style").text = STYLE
        root.extend(self.elements)
        ElementTree.indent(root, " ")
        return ElementTree.tostring(root, encoding="unicode") + "\n"


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e5 else f"{value:.0f}"
