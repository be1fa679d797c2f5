"""A topology as SVG: chips as boxes with their ranks, links as lines with rates, levels as frames.

A line stands for both directions of the links between two neighbours; a tooltip has the name, end
and rate of each. A link that wraps round ends in a stub that names the other chip. Lines of links
that are down are dashed, of slowed ones coloured and labelled. A `Canvas` holds boxes, lines, texts
in the order in which they are drawn.
"""

import math
from collections.abc import Sequence
from xml.etree import ElementTree

import attrs
import numpy as np

from ncc_runtime.report import html
from ncc_runtime.report.topology.text import (
    GRIDS,
    Unit,
    describe,
    instance_unit,
    joint,
    parts_of,
    ranks_a_chip,
    title_of,
)
from ncc_runtime.topology.fabric import Level
from ncc_runtime.topology.format.spec import BETWEEN_PORTS, LevelKind
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.routes import PlacedRanks

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
        """A rectangle; `about` is its tooltip."""
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


SLOT = Box(0, 0, 30, 16)
GAP = 2  # between slots
GAP_X, GAP_Y, PAD, TITLE, BAR = 46.0, 34.0, 32.0, 24.0, 26.0
STUB = 14.0
WIDER = 1.6
"""The aspect ratio at which units of a level are laid out, about."""
MOST_IN_ROW = 8
MOST_NAMED = 8
"""Links of a line that its tooltip names."""
MOST_IN_CIRCLE = 24
"""Of a graph of more chips, or of chips all joined to all, the links are not drawn."""


def as_svg(topology: Topology, placement: PlacedRanks | None = None) -> str:
    """The picture of all instances with their ranks; without ranks, of the first."""
    drawing = _Drawing.of(topology, placement)
    nodes = range(topology.nodes if placement is not None else 1)
    many = f"{topology.nodes} instances" if topology.nodes > 1 else "1 instance"
    drawing.canvas.text("title", (PAD, TITLE), title_of(topology))
    ranks = f", {len(placement.chip)} ranks" if placement is not None else ""
    network = f", joined over {topology.network}" if topology.nodes > 1 else ""
    drawing.canvas.text(
        "small",
        (PAD, TITLE + 16),
        f"{many}{network}, lnc {topology.lnc}: {topology.chips} chips, "
        f"{ranks_a_chip(topology)}{ranks}",
    )
    width, y = 0.0, TITLE + 34
    for node in nodes:
        if len(nodes) > 1:
            drawing.canvas.text("title", (PAD, y + 14), f"instance {node}")
            y += TITLE
        size = drawing.instance(node, (PAD, y))
        width, y = max(width, size[0]), y + size[1] + PAD
    longest = 8.0 * (len(topology.name) + len(topology.summary))
    return drawing.canvas.svg(max(width + 2 * PAD, longest), y)


LARGEST_HTML = 1 << 20
"""Characters of a picture that a notebook shows."""


_MOST_INSTANCES = 8


def as_html(topology: Topology, placement: PlacedRanks | None = None) -> str:
    """The picture for a notebook; the text where the picture would be too large.

    Ranks are drawn where they are on few instances.
    """
    if topology.nodes > _MOST_INSTANCES:
        placement = None
    svg = as_svg(topology, placement)
    return (
        html.preformatted(describe(topology, placement))
        if len(svg) > LARGEST_HTML
        else html.image(svg, title_of(topology))
    )


@attrs.frozen(eq=False)
class _Drawing:
    """The canvas, and lookups of the topology by chip."""

    topology: Topology
    ranks: dict[tuple[int, int], int]  # by chip and core
    has_ranks: bool
    between: dict[tuple[int, int], list[int]]  # links by their ends
    sources: np.ndarray  # of the links, in order: the switches of an instance after its chips
    canvas: Canvas = attrs.field(factory=Canvas)

    @classmethod
    def of(cls, topology: Topology, placement: PlacedRanks | None) -> "_Drawing":
        ranks = {}
        if placement is not None:
            places = zip(placement.chip.tolist(), placement.core.tolist(), strict=True)
            ranks = {place: rank for rank, place in enumerate(places)}
        links = topology.links
        between: dict[tuple[int, int], list[int]] = {}
        for link, ends in enumerate(zip(links.src.tolist(), links.dst.tolist(), strict=True)):
            between.setdefault(ends, []).append(link)
        last = (np.arange(len(links)) // max(1, len(links.port)) + 1) * topology.chips_per_node
        sources = np.where(links.src < links.chips, links.src, last - 0.5)
        return cls(topology, ranks, placement is not None, between, sources)

    @property
    def chip_size(self) -> tuple[float, float]:
        """Room for the name and a slot for each core."""
        cores = self.topology.ranks_per_chip
        columns = min(cores, 4)
        rows = -(-cores // columns) if self.has_ranks else 0
        return max(44.0, columns * (SLOT.width + GAP) + 6), 20 + rows * (SLOT.height + GAP)

    def instance(self, node: int, at: Point) -> tuple[float, float]:
        """Draw an instance; its width and height."""
        if not self.topology.levels:
            self._chip(node, Box(*at, *self.chip_size))
            return self.chip_size
        unit = instance_unit(self.topology, node)
        size = self._size(unit)
        self._unit(unit, at)
        return size

    def _size(self, unit: Unit) -> tuple[float, float]:
        places = self._places(unit, (0, 0))
        wide = max(box.x + box.width for box in places) + PAD
        high = max(box.y + box.height for box in places) + PAD
        return max(wide, 6.6 * len(self._title(unit)) + 2 * PAD), high

    def _part_size(self, unit: Unit) -> tuple[float, float]:
        if unit.level == 0:
            return self.chip_size
        return self._size(next(parts_of(self.topology, unit)))

    def _shape(self, unit: Unit) -> tuple[int, int]:
        """Rows and columns of a unit's parts, or of one plane of them."""
        level = self.topology.levels[unit.level]
        if len(level.dims) > 1:
            return level.dims[-2], level.dims[-1]
        columns = min(level.size, MOST_IN_ROW)
        if level.kind in GRIDS and unit.level == 0:
            columns = min(level.size, 16)
        elif unit.level > 0:
            width, height = self._part_size(unit)
            balanced = round(math.sqrt(WIDER * level.size * height / width))
            columns = max(1, min(level.size, balanced))
        return -(-level.size // columns), columns

    def _is_circle(self, unit: Unit) -> bool:
        level = self.topology.levels[unit.level]
        is_graph = level.kind in (LevelKind.FULL, LevelKind.GRAPH)
        return unit.level == 0 and is_graph and level.size <= MOST_IN_CIRCLE

    def _title(self, unit: Unit) -> str:
        level = self.topology.levels[unit.level]
        names = " ".join((level.name or level.kind.value, *unit.switches[:1]))
        return f"{names}: {joint(level, unit)}"

    def _unit(self, unit: Unit, at: Point) -> None:
        frame = Box(*at, *self._size(unit))
        self.canvas.box("frame", frame)
        self.canvas.text("title", (at[0] + 10, at[1] + 16), self._title(unit))
        parts = list(parts_of(self.topology, unit))
        boxes = self._places(unit, at)
        self._joints(unit, frame, boxes)
        for part, box in zip(parts, boxes, strict=True):
            if part.level < 0:
                self._chip(part.first, box)
            else:
                self._unit(part, (box.x, box.y))

    def _places(self, unit: Unit, at: Point) -> list[Box]:
        """Where the parts of a unit stand whose frame begins at a point."""
        left, top = at[0] + PAD, at[1] + TITLE + PAD + (BAR + 14 if unit.switches else 0)
        width, height = self._part_size(unit)
        gap_x, gap_y = (GAP_X, GAP_Y) if unit.level == 0 else (GAP_X + 34, GAP_Y + 10)
        count = self.topology.levels[unit.level].size
        if self._is_circle(unit):
            # half axes of an ellipse whose circumference, about 6 of them, has room for all
            across, down = count * (width + gap_x) / 6, count * (height + gap_y) / 6
            angles = [2 * math.pi * place / count for place in range(count)]
            return [
                Box(
                    left + across * (1 + math.sin(angle)),
                    top + down * (1 - math.cos(angle)),
                    width,
                    height,
                )
                for angle in angles
            ]
        rows, columns = self._shape(unit)
        planes = -(-count // (rows * columns))
        side = math.ceil(math.sqrt(planes))
        boxes = []
        for place in range(count):
            plane, within = divmod(place, rows * columns)
            row, column = divmod(within, columns)
            x = column * (width + gap_x) + plane % side * (columns * (width + gap_x) + gap_x)
            y = row * (height + gap_y) + plane // side * (rows * (height + gap_y) + gap_y)
            boxes.append(Box(left + x, top + y, width, height))
        return boxes

    def _joints(self, unit: Unit, frame: Box, boxes: Sequence[Box]) -> None:
        """The links of a level between the parts of one unit."""
        level = self.topology.levels[unit.level]
        if unit.switches:
            self._switch(unit, frame, boxes)
        elif level.kind in GRIDS:
            for axis, extent in enumerate(level.dims):
                for place in range(level.size) if extent > 1 else ():
                    self._step(unit, boxes, axis, place)
        elif self._is_circle(unit) or unit.level > 0:
            for source, target in self._pairs(unit, level):
                self._line(unit, (source, target), [boxes[source].centre, boxes[target].centre])

    def _switch(self, unit: Unit, frame: Box, boxes: Sequence[Box]) -> None:
        """A bar over the parts, and a port down to each."""
        left, bottom = frame.x + PAD - 14, frame.y + TITLE + 8 + BAR
        bar = Box(left, bottom - BAR, frame.width - 2 * PAD + 14, BAR)
        for place, box in enumerate(boxes):
            x, y = box.x - 10, box.y + 10
            links = self._ports(unit, place)
            points = [(x, bottom), (x, y), (box.x, y)]
            self.canvas.line(f"{self._state(links)} port", points, about=self._about(links))
        self.canvas.box("switch", bar, about=self._title(unit))
        first, *more = unit.switches
        words = f"{first} to {more[-1]}" if more else first
        self.canvas.text("middle", (bar.centre[0], bottom - 8), words)

    def _ports(self, unit: Unit, place: int) -> list[int]:
        """The links between the chips of a part and the switches of the unit."""
        chips = unit.chips // self.topology.levels[unit.level].size
        links = self.topology.links
        first, last = (
            int(np.searchsorted(self.sources, unit.first + (place + more) * chips))
            for more in (0, 1)
        )
        there = [
            link for link in range(first, last) if links.end(int(links.dst[link])) in unit.switches
        ]
        ends = [(int(links.dst[link]), int(links.src[link])) for link in there]
        return there + [link for pair in ends for link in self.between.get(pair, [])]

    def _pairs(self, unit: Unit, level: Level) -> list[tuple[int, int]]:
        """Parts of a unit whose first chips a link joins, each pair once."""
        step = unit.chips // level.size
        pairs = []
        for source in range(level.size):
            for target in range(source + 1, level.size):
                ends = unit.first + source * step, unit.first + target * step
                if ends in self.between or ends[::-1] in self.between:
                    pairs.append((source, target))
        return pairs

    def _step(self, unit: Unit, boxes: Sequence[Box], axis: int, place: int) -> None:
        """A line to the next part up a dimension; stubs if it wraps or leaves a plane."""
        level = self.topology.levels[unit.level]
        extent, stride = level.dims[axis], math.prod(level.dims[axis + 1 :])
        at, after = place // stride % extent, len(level.dims) - axis - 1
        wraps = at == extent - 1
        if wraps and level.kind is LevelKind.LINE:
            return
        there = place - stride * (extent - 1) if wraps else place + stride
        across = after == 0 and (len(level.dims) > 1 or self._shape(unit)[1] > 1)
        is_row_left = across and boxes[place].y != boxes[there].y
        if wraps or after > 1 or is_row_left:
            apart = after > 1 or is_row_left
            self._stubs(unit, (place, there), boxes, across=across, apart=apart)
            return
        box, other = boxes[place], boxes[there]  # from the middle of a side to the facing one
        if across:
            ends = [(box.x + box.width, box.centre[1]), (other.x, other.centre[1])]
        else:
            ends = [(box.centre[0], box.y + box.height), (other.centre[0], other.y)]
        self._line(unit, (place, there), ends)
        if unit.level > 0 or (at == 0 and place // stride // extent % 4 == 0):
            self._label(unit, axis, ends, across=across)

    def _label(self, unit: Unit, axis: int, ends: Sequence[Point], *, across: bool) -> None:
        level = self.topology.levels[unit.level]
        links = unit.chips // level.size
        (x, y), (x2, y2) = ends
        at = ((x + x2) / 2, y - 4) if across else (x + 4, (y + y2) / 2 + 4)
        kind = "small middle" if across else "small"
        links *= 2 if level.dims[axis] == 2 and level.kind is not LevelKind.LINE else 1
        many = f"{links} x " if links > 1 else ""
        self.canvas.text(kind, at, f"{many}{level.bandwidth_bytes_per_s[axis] / 1e9:.4g}")

    def _stubs(
        self, unit: Unit, pair: tuple[int, int], boxes: Sequence[Box], *, across: bool, apart: bool
    ) -> None:
        """Two short lines, each with the name of where the other is."""
        chips = unit.chips // self.topology.levels[unit.level].size
        names = [f"c{unit.first + place * chips}" for place in pair]
        for number, place in enumerate(pair):
            box, sign, other = boxes[place], 1 - 2 * number, names[1 - number]
            if apart:  # out of a corner, to another plane or row
                start = (
                    box.x + (box.width if sign > 0 else 0),
                    box.y + (0 if sign > 0 else box.height),
                )
                end = (start[0] + sign * STUB / 2, start[1] - sign * STUB / 2)
            elif across:
                start = (box.x + (box.width if sign > 0 else 0), box.y + box.height / 2)
                end = (start[0] + sign * STUB, start[1])
            else:
                start = (box.x + box.width / 2, box.y + (box.height if sign > 0 else 0))
                end = (start[0], start[1] + sign * STUB)
            self._line(unit, pair, [start, end])
            below = 10.0 if end[1] > start[1] or (across and not apart) else -2.0
            self.canvas.text("small middle", (end[0], end[1] + below), other)

    def _line(self, unit: Unit, pair: tuple[int, int], points: Sequence[Point]) -> None:
        step = unit.chips // self.topology.levels[unit.level].size
        ends = unit.first + pair[0] * step, unit.first + pair[1] * step
        links = self.between.get(ends, []) + self.between.get(ends[::-1], [])
        state = f"{self._state(links)}{' between' if unit.level else ''}".strip()
        self.canvas.line(state, points, about=self._about(links))
        if "slowed" in state:
            rate = min(int(self.topology.links.bandwidth_bytes_per_s[link]) for link in links)
            (x, y), (x2, y2) = points[0], points[-1]
            self.canvas.text("small", ((x + x2) / 2 + 3, (y + y2) / 2 - 3), f"{rate / 1e9:g}")

    def _state(self, links: Sequence[int]) -> str:
        """The class of a line: with one link down, with one slowed, or neither."""
        columns, count = self.topology.links, self.topology.links_per_node
        if any(columns.is_down[link] for link in links):
            return "link down"
        is_slowed = any(self._is_slowed(link % count, link // count) for link in links)
        return "link slowed" if is_slowed else "link"

    def _is_slowed(self, link: int, node: int) -> bool:
        """Whether a row of the file slows the link, or takes down one of those in parallel."""
        links = self.topology.links
        ends = tuple(
            end if end < self.topology.chips_per_node else links.end(links.chips + end)
            for end in (int(links.src[link]), int(links.dst[link]))
        )
        return any(
            ends in fault.ends
            and (fault.port is None or fault.port in links.port[link].split(BETWEEN_PORTS))
            and fault.node in (None, node)
            for fault in self.topology.faults
        )

    def _about(self, links: Sequence[int]) -> str:
        """Names and rates of both directions."""
        columns = self.topology.links
        words = [
            f"{columns.step(link)} {columns.bandwidth_bytes_per_s[link] / 1e9:.4g} GB/s"
            + (" down" if columns.is_down[link] else "")
            for link in links[:MOST_NAMED]
        ]
        more = [f"{len(links) - MOST_NAMED} more"] if len(links) > MOST_NAMED else []
        return "; ".join(words + more)

    def _chip(self, chip: int, box: Box) -> None:
        """A box with the chip's name and, if ranks are placed, rows of up to 4 slots for cores."""
        self.canvas.box("chip", box, about=f"chip {chip}")
        self.canvas.text("middle", (box.centre[0], box.y + 14), f"c{chip}")
        if not self.has_ranks:
            return
        columns = min(self.topology.ranks_per_chip, 4)
        left = box.x + (box.width - columns * (SLOT.width + GAP) + GAP) / 2  # slots in the middle
        for core in range(self.topology.ranks_per_chip):
            row, column = divmod(core, columns)
            x = left + column * (SLOT.width + GAP)
            y = box.y + 19 + row * (SLOT.height + GAP)  # below the name
            rank = self.ranks.get((chip, core))
            slot = Box(x, y, SLOT.width, SLOT.height)
            self.canvas.box("core" if rank is None else "rank", slot, about=f"core {core}")
            if rank is not None:
                self.canvas.text("rank", (x + SLOT.width / 2, y + 12), str(rank))
