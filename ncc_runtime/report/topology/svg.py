"""A topology as SVG: chips as boxes with their ranks, links as lines with rates, levels as frames.

A line stands for both directions of the links between two neighbours; a tooltip has the name, end
and rate of each. A link that wraps round ends in a stub that names the other chip. Lines of links
that are down are dashed, of slowed ones dotted, both with a word. Several instances have their
adapters above them, joined by the network.

An overlay (`overlay.py`) adds what a run did: each direction of a link gets a line of its own, as
wide and as coloured as it was busy, with the number beside it; ranks get the colour of their group.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import attrs
import numpy as np

from ncc_runtime.report import html
from ncc_runtime.report.topology.canvas import GROUP_COLOURS, LOAD_STEPS, Box, Canvas, Point
from ncc_runtime.report.topology.overlay import NOTHING, Load, Overlay
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
from ncc_runtime.topology.graph import Efa, Topology
from ncc_runtime.topology.routes import PlacedRanks

SLOT = Box(0, 0, 32, 18)
GAP = 2  # between slots
PAD, TITLE, BAR = 34.0, 24.0, 26.0
STUB = 14.0
APART = 3.0
"""Between the middle and the line of one direction, where both have lines."""
WIDER = 1.6
"""The aspect ratio at which units of a level are laid out, about."""
MOST_IN_ROW = 8
MOST_NAMED = 8
"""Links of a line that its tooltip names."""
MOST_IN_CIRCLE = 24
"""Of a graph of more chips, or of chips all joined to all, the links are not drawn."""
MOST_LABELLED = 16
"""Of more lines of a circle the loads are in tooltips only."""
MOST_INSTANCES = 16
"""Instances that are drawn; the others are alike."""
MOST_GROUPS = 12
"""Groups that the legend names."""
ADAPTER = Box(0, 0, 76, 34)
CHARACTER = 6.1
"""The width of a character of 11 px, about."""


def as_svg(
    topology: Topology, placement: PlacedRanks | None = None, overlay: Overlay = NOTHING
) -> str:
    """The picture of the instances, with their ranks if they are placed."""
    drawing = _Drawing.of(topology, placement, overlay)
    canvas = drawing.canvas
    many = f"{topology.nodes} instances" if topology.nodes > 1 else "1 instance"
    count = 0 if placement is None else len(placement.chip)
    ranks = f", {count} rank{'s' * (count > 1)}" if count else ""
    network = f", joined over {topology.network}" if topology.nodes > 1 else ""
    title = title_of(topology)
    summary = (
        f"{many}{network}, lnc {topology.lnc}: {topology.chips} chips, "
        f"{ranks_a_chip(topology)}{ranks}"
    )
    canvas.text("title", (PAD, TITLE), title)
    canvas.text("small", (PAD, TITLE + 16), summary)
    y = TITLE + 34
    for fault in overlay.faults:
        canvas.text("bad", (PAD, y), f"fault: {fault.name}")
        y += 16
    width, y = drawing.instances(y)
    lines = [summary, *(f"fault: {fault.name} " for fault in overlay.faults)]
    longest = max(7.6 * len(title), *(1.1 * CHARACTER * len(line) for line in lines))
    width = max(width, longest + PAD, 420.0)
    y = drawing.legend(y, width)
    return canvas.svg(width + PAD, y, f"{title}; {summary}")


LARGEST_HTML = 1 << 20
"""Characters of a picture that a notebook shows."""


def as_html(
    topology: Topology, placement: PlacedRanks | None = None, svg: str | None = None
) -> str:
    """The picture for a notebook; the text where the picture would be too large."""
    svg = svg or as_svg(topology, placement)
    return (
        html.preformatted(describe(topology, placement))
        if len(svg) > LARGEST_HTML
        else html.image(svg, title_of(topology))
    )


def share_text(share: float) -> str:
    """A share in whole per cent; empty for nothing."""
    if share <= 0:
        return ""
    return "<1%" if share < 0.005 else f"{share:.0%}"


@attrs.frozen(eq=False)
class _Drawing:
    """The canvas, and lookups of the topology by chip."""

    topology: Topology
    ranks: dict[tuple[int, int], int]  # by chip and core
    has_ranks: bool
    between: dict[tuple[int, int], list[int]]  # links by their ends
    sources: np.ndarray  # of the links, in order: the switches of an instance after its chips
    overlay: Overlay
    disturbed: frozenset[int]  # links that a fault of the run touches
    canvas: Canvas = attrs.field(factory=Canvas)
    drawn: set[str] = attrs.field(factory=set)  # what the legend has to explain

    @classmethod
    def of(cls, topology: Topology, placement: PlacedRanks | None, overlay: Overlay) -> "_Drawing":
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
        disturbed = frozenset(link for fault in overlay.faults for link in fault.links)
        has_ranks = placement is not None
        return cls(topology, ranks, has_ranks, between, sources, overlay, disturbed)

    @property
    def has_loads(self) -> bool:
        return self.overlay.loads is not None

    @property
    def slot(self) -> tuple[float, float]:
        """Of a core, wide enough for the number of any rank."""
        digits = len(str(max(self.ranks.values(), default=0)))
        return max(SLOT.width, 7.0 * digits + 6), SLOT.height

    @property
    def chip_size(self) -> tuple[float, float]:
        """Room for the name and, if ranks are placed, a slot for each core."""
        if not self.has_ranks:
            return 48.0, 22.0
        levels = self.topology.levels
        # out of the corners of a chip of three dimensions go stubs with names and loads
        least = 100.0 if self.has_loads and levels and len(levels[0].dims) > 2 else 48.0
        cores = self.topology.ranks_per_chip
        columns, (width, height) = min(cores, 4), self.slot
        return max(least, columns * (width + GAP) + 6), 22 + -(-cores // columns) * (height + GAP)

    def instances(self, y: float) -> tuple[float, float]:
        """Draw the instances from a height on, and what joins them; how far they reach."""
        topology, efa = self.topology, self.topology.efa
        shown = min(topology.nodes, MOST_INSTANCES)
        width, height = self._instance_size()
        if topology.nodes == 1:
            self._instance(0, (PAD, y))
            return PAD + width, y + height + PAD
        assert efa is not None, "instances are joined by adapters"
        adapter_rows = self._adapter_rows(efa, width)
        above = TITLE + adapter_rows * (ADAPTER.height + 8) + 10  # of an instance
        columns = max(1, min(shown, round(math.sqrt(WIDER * shown * (height + above) / width))))
        left, step = PAD + 26, width + 2 * PAD + 10
        right = left + (columns - 1) * step + width
        bar = Box(PAD, y, right - PAD, BAR)
        rate = f"{efa.adapter_bandwidth_bytes_per_s / 1e9:.4g} GB/s each way"
        network = f"{topology.network}: {efa.adapters} adapters an instance, {rate}"
        tops = [y + BAR + 20 + row * (height + above + PAD) for row in range(-(-shown // columns))]
        for column in range(columns):  # under what is drawn after them
            last = tops[(shown - 1 - column) // columns]
            x = left + column * step - 18
            self.canvas.line("port between", [(x, y + BAR), (x, last + TITLE + 3)])
        self.canvas.box("switch", bar, about=network)
        self.canvas.text("middle", (bar.centre[0], bar.y + 17), network)
        for node in range(shown):
            row, column = divmod(node, columns)
            at = left + column * step, tops[row]
            self.canvas.text("title", (at[0], at[1] + 14), f"instance {node}")
            self._adapters(node, efa, (at[0], at[1] + TITLE), width)
            self._instance(node, (at[0], at[1] + above))
        y = tops[-1] + above + height + PAD
        if topology.nodes > shown:
            more = f"and {topology.nodes - shown} more instances, wired alike"
            self.canvas.text("", (PAD, y), more)
            y += PAD
        return right, y

    def _instance_size(self) -> tuple[float, float]:
        if not self.topology.levels:
            return self.chip_size
        return self._size(instance_unit(self.topology, 0))

    def _instance(self, node: int, at: Point) -> None:
        if self.topology.levels:
            self._unit(instance_unit(self.topology, node), at)
        else:
            self._chip(node, Box(*at, *self.chip_size))

    @staticmethod
    def _adapter_rows(efa: Efa, width: float) -> int:
        in_row = max(1, int((width + 8) // (ADAPTER.width + 8)))
        return -(-efa.adapters // in_row)

    def _adapters(self, node: int, efa: Efa, at: Point, width: float) -> None:
        """The adapters of an instance in rows, each row on a line to the network."""
        in_row = -(-efa.adapters // self._adapter_rows(efa, width))
        step = ADAPTER.width + 8
        for first in range(0, efa.adapters, in_row):
            y = at[1] + first // in_row * (ADAPTER.height + 8) + 8
            numbers = range(first, min(first + in_row, efa.adapters))
            boxes = [
                Box(at[0] + place * step, y, ADAPTER.width, ADAPTER.height)
                for place, _ in enumerate(numbers)
            ]
            trunk = [(at[0] - 18, at[1]), (at[0] - 18, y - 5), (boxes[-1].centre[0], y - 5)]
            self.canvas.line("port", trunk)
            for number, box in zip(numbers, boxes, strict=True):
                self.canvas.line("port", [(box.centre[0], y - 5), (box.centre[0], y)])
                self._adapter(node, number, efa, box)

    def _adapter(self, node: int, number: int, efa: Efa, box: Box) -> None:
        name = f"n{node}.efa{number}"
        loads = [self._load_of([f"{name} {way}"]) for way in ("out", "in")]
        first = node * self.topology.chips_per_node + number * efa.chips_per_adapter
        chips = [f"c{first}", f"c{first + efa.chips_per_adapter - 1}"]
        about = f"{name}, of {' to '.join(dict.fromkeys(chips))}"
        kind = "adapter"
        if any((node, number) in fault.adapters for fault in self.overlay.faults):
            kind += " fault"
            self.drawn.add("fault")
        elif self.has_loads:
            kind += f" load{max(map(_load_step, loads))}"
        for way, load in zip(("out", "in"), loads, strict=True):
            about += _load_words(way, load)
        self.canvas.box(kind, box, about=about, data_name=name)
        busy = [
            f"{arrow}{share_text(load.share)}"
            for arrow, load in zip("↑↓", loads, strict=True)
            if load.share > 0
        ]
        lower = " ".join(busy) if self.has_loads else "-".join(dict.fromkeys(chips))
        self.canvas.text("small middle", (box.centre[0], box.y + 14), f"efa{number}")
        self.canvas.text("load middle", (box.centre[0], box.y + 28), lower)

    def _load_of(self, names: Sequence[str]) -> Load:
        """The busiest of some links."""
        loads = self.overlay.loads or {}
        found = [loads[name] for name in names if name in loads]
        return max(found, key=lambda load: load.share, default=Load(0, 0.0))

    def _load(self, links: Sequence[int]) -> Load:
        return self._load_of([self.topology.links.name(link) for link in links])

    def legend(self, y: float, width: float) -> float:
        """What boxes, lines and colours mean, of those that are drawn; where it ends."""
        canvas = Canvas()
        canvas.line("rule", [(PAD, y - PAD / 2), (width, y - PAD / 2)])
        low = _samples(canvas, self._legend(canvas), y, width)
        if self.overlay.loads:
            words = "links and adapters: what passed in the run, of what could have"
            canvas.text("small", (PAD, low + 4), words)
            low = _samples(canvas, _load_legend(canvas), low + 14, width)
        if self.overlay.groups is not None:
            groups = Canvas()
            low = self._group_legend(groups, low, width)
            canvas.group("groups", groups)  # which a page hides while it shows others
        self.canvas.group("legend", canvas)
        return low + 6

    def _legend(self, canvas: Canvas) -> Iterator["Sample"]:
        """Samples with their words."""

        def box(kind: str, words: str = "") -> Callable[[Box], None]:
            def draw(place: Box) -> None:
                canvas.box(kind, place)
                if words:
                    canvas.text("rank", (place.centre[0], place.y + 12), words)

            return draw

        def line(kind: str) -> Callable[[Box], None]:
            return lambda place: _line_sample(canvas, kind, place)

        yield box("chip"), "chip"
        if self.has_ranks:
            yield box("rank", "0"), "a rank on its logical core"
            if len(self.ranks) < self.topology.max_ranks:
                yield box("core"), "core without a rank"
        if "switch" in self.drawn:
            yield box("switch"), "switch"
        if self.topology.levels:
            each_way = "" if self.has_loads else "; figures are GB/s each way"
            two = "both ways"
            if "each way" in self.drawn:
                two = "a line for each way"
                two += "; at a switch one for both" * ("switch" in self.drawn)
            yield line("link"), f"link, {two}{each_way}"
        if self.topology.nodes > 1:
            yield box("adapter"), "adapter" if self.has_loads else "adapter, of the chips it names"
        if "down" in self.drawn:
            yield line("link down"), "a link is down here"
        if "slowed" in self.drawn:
            rate = "" if self.has_loads else ", and its GB/s"
            yield line("link slowed"), f"a link is slow here{rate}"
        if "core slowed" in self.drawn:
            yield box("rank slowed", "0▾"), "a rank on a slow core"
        if "fault" in self.drawn:
            yield line("link fault"), "!: a fault of the run is here"

    def _group_legend(self, canvas: Canvas, y: float, width: float) -> float:
        """The colours of groups with their ranks."""
        groups = self.overlay.groups
        assert groups is not None, "is asked before"
        canvas.text("small", (PAD, y + 4), f"colours of ranks: {groups.name}")

        def box(number: int) -> Callable[[Box], None]:
            return lambda place: canvas.box(f"rank group{number % GROUP_COLOURS}", place)

        named = [
            (box(number), text if len(text) <= 30 else f"{text[:29]}…")
            for number, text in enumerate(groups.texts[:MOST_GROUPS])
        ]
        y = _samples(canvas, named, y + 14, width)
        if len(groups.texts) > MOST_GROUPS:
            words = f"and {len(groups.texts) - MOST_GROUPS} more groups, with the colours again"
            canvas.text("small", (PAD, y + 6), words)
            y += 20
        return y

    def _size(self, unit: Unit) -> tuple[float, float]:
        places = self._places(unit, (0, 0))
        wide = max(box.x + box.width for box in places) + self._margin
        high = max(box.y + box.height for box in places) + (16 if unit.switches else PAD)
        return max(wide, 7.2 * len(self._title(unit)) + 2 * PAD), high

    @property
    def _margin(self) -> float:
        """Beside the parts of a unit: room for stubs, and their loads."""
        return PAD + 20 * self.has_loads

    def _part_size(self, unit: Unit) -> tuple[float, float]:
        if unit.level == 0:
            return self.chip_size
        return self._size(next(parts_of(self.topology, unit)))

    def _gaps(self, unit: Unit) -> tuple[float, float]:
        """Between the parts of a unit, across and down: room for lines and their texts."""
        level = self.topology.levels[unit.level]
        across, down = (62.0, 46.0) if self.has_loads else (50.0, 36.0)
        if level.kind in GRIDS and len(level.dims) > 2:
            down += 10.0  # stubs out of corners, below one part and above the next
            across += 24.0 * self.has_loads
        if unit.switches:
            rows = -(-level.size // self._shape(unit)[1])
            across = max(across, 22.0 + 4.0 * rows)
            down = 24.0 + 12.0 * self.has_loads
        if unit.level > 0:
            across, down = across + 30, down + 10
        return across, down

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
        gap_x, gap_y = self._gaps(unit)
        left, top = at[0] + self._margin, at[1] + TITLE + PAD
        if unit.switches:
            rows = -(-self.topology.levels[unit.level].size // self._shape(unit)[1])
            left, top = at[0] + 26 + 4.0 * rows, at[1] + TITLE + 8 + BAR + gap_y
        width, height = self._part_size(unit)
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
            pairs = self._pairs(unit, level)
            for source, target in pairs:
                ends = [boxes[source].centre, boxes[target].centre]
                self._line(unit, (source, target), ends, has_text=len(pairs) <= MOST_LABELLED)

    def _switch(self, unit: Unit, frame: Box, boxes: Sequence[Box]) -> None:
        """A bar over the parts, and a port down to each.

        Ports of one column lie beside each other, that of the lowest row outermost.
        """
        self.drawn.add("switch")
        left, bottom = frame.x + 14, frame.y + TITLE + 8 + BAR
        bar = Box(left, bottom - BAR, frame.width - 28, BAR)
        rows = sorted({box.y for box in boxes})
        for place, box in enumerate(boxes):
            x, y = box.x - 8 - 4 * rows.index(box.y), box.y + 11
            up, down = self._ports(unit, place)
            points = [(x, bottom), (x, y), (box.x, y)]
            kind = f"{self._state([*up, *down])} port"
            loads = [self._load(up), self._load(down)]
            if self.has_loads:
                kind += f" load{max(map(_load_step, loads))}"
            self.canvas.line(kind, points, about=self._about([*up, *down]))
            busy = [
                f"{arrow}{share_text(load.share)}"
                for arrow, load in zip("↑↓", loads, strict=True)
                if load.share > 0
            ]
            self.canvas.text("load", (box.x, box.y - 5), " ".join(busy))
        self.canvas.box("switch", bar, about=self._title(unit))
        first, *more = unit.switches
        words = f"{first} to {more[-1]}" if more else first
        self.canvas.text("middle", (bar.centre[0], bottom - 8), words)

    def _ports(self, unit: Unit, place: int) -> tuple[list[int], list[int]]:
        """The links from the chips of a part to the switches of the unit, and those back."""
        chips = unit.chips // self.topology.levels[unit.level].size
        links = self.topology.links
        first, last = (
            int(np.searchsorted(self.sources, unit.first + (place + more) * chips))
            for more in (0, 1)
        )
        up = [
            link for link in range(first, last) if links.end(int(links.dst[link])) in unit.switches
        ]
        ends = [(int(links.dst[link]), int(links.src[link])) for link in up]
        return up, [link for pair in ends for link in self.between.get(pair, [])]

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
        is_labelled = unit.level > 0 or (at == 0 and place // stride // extent % 4 == 0)
        both = [*self._links(unit, (place, there)), *self._links(unit, (there, place))]
        if is_labelled and not self.has_loads and not self._fault_text(both):
            self._label(unit, axis, ends, across=across)

    def _label(self, unit: Unit, axis: int, ends: Sequence[Point], *, across: bool) -> None:
        """The rate of a link, and how many lie side by side."""
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
        """Two short lines, each with the name of where the other is, and the load that way."""
        chips = unit.chips // self.topology.levels[unit.level].size
        for number, place in enumerate(pair):
            box, sign, other = boxes[place], 1 - 2 * number, pair[1 - number]
            leaving = self._links(unit, (place, other))
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
            both = [*leaving, *self._links(unit, (other, place))]
            load = self._load(leaving)
            kind = self._state(both) + (f" load{_load_step(load)}" if self.has_loads else "")
            kind += " between" * (unit.level > 0)
            self.canvas.line(kind, [start, end], about=self._about(both))
            words = f"c{unit.first + other * chips}"
            more = " ".join(filter(None, (share_text(load.share), self._fault_text(both))))
            if across and not apart:  # the name below the line, the load above
                anchor = "" if sign > 0 else " end"
                near = start[0] + sign * 4
                self.canvas.text(f"small{anchor}", (near, end[1] + 13), words)
                self.canvas.text(f"load{anchor}", (near, end[1] - 5), more)
            else:
                below = 11.0 if end[1] > start[1] else -3.0
                text = f"{words} {more}".strip()
                # out of a corner the text goes outwards, over the gap
                self.canvas.text("small middle", (end[0], end[1] + below), text)

    def _links(self, unit: Unit, pair: tuple[int, int]) -> list[int]:
        """The links from a part to another."""
        step = unit.chips // self.topology.levels[unit.level].size
        if step == 1 or unit.level == 0:
            ends = unit.first + pair[0] * step, unit.first + pair[1] * step
            return self.between.get(ends, [])
        source, target = (unit.first + place * step for place in pair)
        return [
            link
            for chip in range(step)
            for link in self.between.get((source + chip, target + chip), [])
        ]

    def _line(
        self, unit: Unit, pair: tuple[int, int], points: Sequence[Point], *, has_text: bool = True
    ) -> None:
        """A line between two parts; where there are loads, one for each direction."""
        forth, back = self._links(unit, pair), self._links(unit, pair[::-1])
        state, about = self._state([*forth, *back]), self._about([*forth, *back])
        between = " between" * (unit.level > 0)
        (x, y), (x2, y2) = points
        fault = self._fault_text([*forth, *back])
        length = math.hypot(x2 - x, y2 - y) or 1.0
        # to the left of the way forth, as y grows downwards
        side = (y2 - y) / length, (x - x2) / length
        is_across = abs(x2 - x) >= abs(y2 - y)
        if not self.has_loads:
            self.canvas.line(state + between, points, about=about)
            if fault:
                at = ((x + x2) / 2, y - 4) if is_across else (x + 4, (y + y2) / 2 + 4)
                self.canvas.text("bad middle" if is_across else "bad", at, fault)
            return
        self.drawn.add("each way")
        for sign, links in ((1, forth), (-1, back)):
            load = self._load(links)
            shift = (sign * APART * side[0], sign * APART * side[1])
            moved = [(a + shift[0], b + shift[1]) for a, b in points]
            self.canvas.line(f"{state} load{_load_step(load)}", moved, about=self._about(links))
            word = fault if sign > 0 else ""
            if not (word or (has_text and load.share > 0)):
                continue
            arrow = (
                ("→" if sign * (x2 - x) > 0 else "←") if is_across else "↓↑"[sign * (y2 - y) < 0]
            )
            busy = f"{arrow}{share_text(load.share)}" if load.share > 0 else ""
            # a third of the way along on a slant, so that lines which cross keep their own
            part = 0.5 if min(abs(x2 - x), abs(y2 - y)) < 1 else 0.5 - 0.15 * sign
            at = (x + part * (x2 - x) + 4 * shift[0], y + part * (y2 - y) + 4 * shift[1])
            kind = "bad" if word else "load"
            if is_across:
                lower = 8.0 if shift[1] > 0 else 1.0
                self.canvas.text(f"{kind} middle", (at[0], at[1] + lower), f"{word} {busy}".strip())
            else:
                is_right = shift[0] > 0
                place = (at[0] - (5 if is_right else -5), at[1] + 4)
                anchor = "" if is_right else " end"
                self.canvas.text(kind + anchor, place, f"{busy} {word}".strip())

    def _state(self, links: Sequence[int]) -> str:
        """The class of a line: disturbed during the run, one link down or slowed, or neither."""
        columns, count = self.topology.links, self.topology.links_per_node
        state = "link"
        if any(link in self.disturbed for link in links):
            state = "link fault"
        elif any(columns.is_down[link] for link in links):
            state = "link down"
        elif any(self._is_slowed(link % count, link // count) for link in links):
            state = "link slowed"
        self.drawn.add(state.removeprefix("link "))
        return state

    def _fault_text(self, links: Sequence[int]) -> str:
        """What is wrong with some links, in a word."""
        state = self._state(links).removeprefix("link").strip()
        if state == "slowed" and self.has_loads:
            return "slow"
        if state == "slowed":
            rate = min(int(self.topology.links.bandwidth_bytes_per_s[link]) for link in links)
            return f"{rate / 1e9:g}"
        return {"fault": "!", "down": "down"}.get(state, "")

    def _is_slowed(self, link: int, node: int) -> bool:
        """Whether a row of the file slows the link, or takes down one of those in parallel."""
        links = self.topology.links
        if not self.topology.faults:
            return False
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
        """Names and rates of links, and what passed them."""
        columns, loads = self.topology.links, self.overlay.loads or {}
        words = [
            f"{columns.step(link)} {columns.bandwidth_bytes_per_s[link] / 1e9:.4g} GB/s"
            + (" down" if columns.is_down[link] else "")
            + _load_words("", loads.get(columns.name(link)))
            for link in links[:MOST_NAMED]
        ]
        more = [f"{len(links) - MOST_NAMED} more"] if len(links) > MOST_NAMED else []
        return "; ".join(words + more)

    def _chip(self, chip: int, box: Box) -> None:
        """A box with the chip's name and, if ranks are placed, rows of up to 4 slots for cores."""
        name = f"c{chip}"
        self.canvas.box("chip", box, about=f"chip {chip}", data_name=name)
        topology, (wide, high) = self.topology, self.slot
        self.canvas.text("middle", (box.centre[0], box.y + 15), name)
        if not self.has_ranks:
            return
        columns = min(topology.ranks_per_chip, 4)
        left = box.x + (box.width - columns * (wide + GAP) + GAP) / 2  # slots in the middle
        cores = np.arange(topology.ranks_per_chip)
        chips = np.full(len(cores), chip)
        speeds = np.minimum(
            topology.engines_percent(chips, cores), topology.dma_percent(chips, cores)
        )
        for core in cores.tolist():
            row, column = divmod(core, columns)
            x = left + column * (wide + GAP)
            y = box.y + 21 + row * (high + GAP)  # below the name
            self._core(chip, core, Box(x, y, wide, high), int(speeds[core]))

    def _core(self, chip: int, core: int, slot: Box, percent: int) -> None:
        rank = self.ranks.get((chip, core))
        about, kind = f"core {core}", "core" if rank is None else "rank"
        mark = ""
        marks: dict[str, str] = {}
        groups = self.overlay.groups
        if rank is not None:
            about, marks = f"rank {rank}, core {core} of c{chip}", {"data_rank": str(rank)}
            if groups is not None and groups.group[rank] >= 0:
                kind += f" group{groups.group[rank] % GROUP_COLOURS}"
                about += f", group {groups.group[rank]}: {groups.texts[groups.group[rank]]}"
        if percent < 100:
            kind, mark, about = f"{kind} slowed", "▾", f"{about}, at {percent} %"
            self.drawn.add("core slowed")
        for fault in self.overlay.faults:
            if rank in fault.ranks:
                kind, mark, about = f"{kind} fault", "!", f"{about}; {fault.name}"
                self.drawn.add("fault")
        self.canvas.box(kind, slot, about=about, **marks)
        if rank is not None:
            self.canvas.text("rank", (slot.centre[0], slot.y + 13), f"{rank}{mark}")


Sample = tuple[Callable[[Box], None], str]
"""What draws a sample of the legend into a place, and its words."""


def _samples(canvas: Canvas, samples: Iterable[Sample], y: float, width: float) -> float:
    """Rows of a legend; where they end."""
    x = PAD
    for draw, words in samples:
        room = 40 + CHARACTER * len(words) + 18
        if x > PAD and x + room > width:
            x, y = PAD, y + 24
        draw(Box(x, y, 30, 16))
        canvas.text("small", (x + 38, y + 12), words)
        x += room
    return y + 30


def _line_sample(canvas: Canvas, kind: str, place: Box) -> None:
    canvas.line(kind, [(place.x, place.centre[1]), (place.x + place.width, place.centre[1])])


def _load_legend(canvas: Canvas) -> Iterator[Sample]:
    """The classes of shares."""
    edges = (0.0, *LOAD_STEPS, 1.0)
    for step in range(1, len(edges)):
        words = (
            f"{edges[step - 1]:.0%} to {edges[step]:.0%}" if step > 1 else f"up to {edges[1]:.0%}"
        )
        yield partial(_line_sample, canvas, f"load{step}"), words


def _load_step(load: Load) -> int:
    """The class of a share: 0 for nothing, then 1 to 5."""
    return 0 if load.share <= 0 else 1 + sum(load.share >= edge for edge in LOAD_STEPS)


def _load_words(way: str, load: Load | None) -> str:
    if load is None or not load.bytes:
        return ""
    return f", {way}{' ' * bool(way)}{load.bytes:,} B, {load.share:.1%} of what it could pass"
