"""An SVG document: boxes, lines and texts in the order in which they are drawn, and their colours.

Colours are variables of the style sheet, so that a page that holds the picture can set them; texts
have 11 px or more.
"""

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

import attrs

LIGHT = {
    "ink": "#1f2733",
    "faint": "#515c6b",
    "frame": "#f7f8fa",
    "edge": "#9aa5b4",
    "chip": "#ffffff",
    "line": "#4a5568",
    "switch": "#dbe7f5",
    "rank": "#c6e6cf",
    "bad": "#b42318",
    "load0": "#b3bcc8",
    "load1": "#4a8fc7",
    "load2": "#2b6cb0",
    "load3": "#6b46c1",
    "load4": "#b8560f",
    "load5": "#9b1c1c",
    "group0": "#bcdcf5",
    "group1": "#f8d5b0",
    "group2": "#c6e6cf",
    "group3": "#f3c4c4",
    "group4": "#dccdf0",
    "group5": "#e3d3bd",
    "group6": "#f5cbe3",
    "group7": "#d3d9e0",
    "group8": "#e6e6a8",
    "group9": "#b5e5e4",
    "group10": "#cfd8ff",
    "group11": "#e7f5b8",
}
"""The colours on a light page: all texts on them have a contrast of 4.5 or more."""

DARK = {
    "ink": "#e8ecf1",
    "faint": "#aeb8c5",
    "frame": "#1a2029",
    "edge": "#596475",
    "chip": "#242c38",
    "line": "#9aa6b5",
    "switch": "#24405f",
    "rank": "#245238",
    "bad": "#ff8f85",
    "load0": "#4d5868",
    "load1": "#4a8fc7",
    "load2": "#7ab8f0",
    "load3": "#c3a6ff",
    "load4": "#f6ad55",
    "load5": "#ff8f85",
    "group0": "#1d4a70",
    "group1": "#6b431a",
    "group2": "#245238",
    "group3": "#6e2a2a",
    "group4": "#4a3570",
    "group5": "#57452e",
    "group6": "#6b2c52",
    "group7": "#414b58",
    "group8": "#54541a",
    "group9": "#17504e",
    "group10": "#333f80",
    "group11": "#455218",
}
"""The same on a dark one."""

GROUP_COLOURS = 12
"""Groups beyond take the colours again."""

LOAD_STEPS = (0.2, 0.4, 0.6, 0.8)
"""Where the classes of shares end: load1 below the first, load5 from the last on."""


def colours(names: dict[str, str]) -> str:
    """The colours as variables of a style sheet."""
    return "; ".join(f"--{name}: {value}" for name, value in names.items())


def _style() -> str:
    def colour(name: str) -> str:
        return f"var(--{name}, {LIGHT[name]})"

    lines = [
        f"text {{ font: 12px sans-serif; fill: {colour('ink')} }}",
        "text.title { font-weight: bold }",
        f"text.small {{ font-size: 11px; fill: {colour('faint')} }}",
        "text.rank { font-size: 11px; text-anchor: middle; pointer-events: none }",
        "text.load { font-size: 11px }",
        f"text.bad {{ font-size: 11px; fill: {colour('bad')}; font-weight: bold }}",
        "text.middle { text-anchor: middle }",
        "text.end { text-anchor: end }",
        f"rect.frame {{ fill: {colour('frame')}; stroke: {colour('edge')}; rx: 6px }}",
        f"rect.chip {{ fill: {colour('chip')}; stroke: {colour('line')}; rx: 4px }}",
        f"rect.switch {{ fill: {colour('switch')}; stroke: {colour('load2')}; rx: 4px }}",
        f"rect.adapter {{ fill: {colour('chip')}; stroke: {colour('line')}; stroke-width: 1.5px }}",
        f"rect.rank {{ fill: {colour('rank')}; stroke: {colour('line')}; stroke-width: 0.7px }}",
        f"rect.core {{ fill: none; stroke: {colour('edge')}; stroke-dasharray: 2 2 }}",
        f"rect.slowed {{ stroke: {colour('bad')}; stroke-width: 2.5px }}",
        f"rect.fault {{ stroke: {colour('bad')}; stroke-width: 2.5px }}",
        f"polyline {{ fill: none; stroke: {colour('line')} }}",
        "polyline.between { stroke-width: 3px }",
        f"polyline.port {{ stroke: {colour('load2')} }}",
    ]
    lines += [f"rect.group{n} {{ fill: {colour(f'group{n}')} }}" for n in range(GROUP_COLOURS)]
    lines += [
        f"{shape}.load{step} {{ stroke: {colour(f'load{step}')}; stroke-width: {width}px }}"
        for step, width in enumerate((1.2, 1.8, 2.4, 3.2, 4, 5))
        for shape in ("polyline", "rect")
    ]
    lines += [
        f"polyline.slowed {{ stroke: {colour('bad')}; stroke-dasharray: 9 2 2 2 }}",
        f"polyline.down {{ stroke: {colour('bad')}; stroke-dasharray: 4 3 }}",
        f"polyline.fault {{ stroke: {colour('bad')}; stroke-dasharray: 4 3 }}",
    ]
    return "".join(f"\nsvg.machine {line}" for line in lines) + "\n"


STYLE = _style()
"""Names that begin with the picture's class: in a page they restyle nothing else."""


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

    def box(self, kind: str, box: Box, *, about: str = "", **marks: str) -> None:
        """A rectangle; `about` is its tooltip, `marks` are attributes for who restyles it."""
        places = (box.x, box.y, box.width, box.height)
        names = ("x", "y", "width", "height")
        values: dict[str, float | str] = dict(zip(names, places, strict=True))
        self._add("rect", kind, values | marks, about)

    def line(self, kind: str, points: Sequence[Point], *, about: str = "") -> None:
        """Straight pieces from point to point."""
        words = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._add("polyline", kind, {"points": words}, about)

    def text(self, kind: str, at: Point, words: str) -> None:
        """Words that begin, or have their middle, at a point of their base line."""
        element = self._add("text", kind, {"x": at[0], "y": at[1]}, "")
        element.text = words

    def group(self, kind: str, inner: "Canvas") -> None:
        """What another canvas has, as one element."""
        element = ElementTree.Element("g", {"class": kind})
        element.extend(inner.elements)
        self.elements.append(element)

    def _add(
        self, tag: str, kind: str, values: Mapping[str, float | str], about: str
    ) -> ElementTree.Element:
        texts = {
            name.replace("_", "-"): value if isinstance(value, str) else _number(value)
            for name, value in values.items()
        }
        element = ElementTree.Element(tag, {"class": kind, **texts})
        if about:
            ElementTree.SubElement(element, "title").text = about
        self.elements.append(element)
        return element

    def svg(self, width: float, height: float, about: str) -> str:
        """The document; `about` is read aloud in its place."""
        size = {"width": _number(width), "height": _number(height)}
        root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "class": "machine",
                "role": "img",
                "aria-label": about,
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
