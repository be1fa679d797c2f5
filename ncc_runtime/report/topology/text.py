"""A topology as text (`nccrt topology show`): its chips, what a rank has, every figure's source.

The picture draws the fabric's levels as a tree of units, each with its chips and switches. What
follows from the figures: links by level, diameter, bisection, of an instance as its file has it,
links that are down left out. Bisections are between the halves of the chips by their numbers and,
on a grid, along every even dimension; the least counts. Other halves of an irregular graph may be
joined by less: finding the least of all is NP-hard, and not tried.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.report import html
from ncc_runtime.topology.fabric import Level
from ncc_runtime.topology.format.spec import (
    ALIASES,
    FabricShape,
    Figure,
    Joins,
    LevelKind,
    example_names,
    preset_names,
)
from ncc_runtime.topology.graph import Topology, build
from ncc_runtime.topology.quadrants import PORTS, planes_of_cores, ports_of_cores
from ncc_runtime.topology.routes import PlacedRanks

LARGEST_SEARCHED = 1024
"""Diameter and bisection are not searched in an instance of more chips."""


@attrs.frozen
class LevelLinks:
    """The links of one level of an instance, one way."""

    name: str
    links: int  # a trunk counts once; up-links of switches, not down
    bytes_per_s: int  # of all together
    out_of_chip: tuple[int, int]  # bytes a second, of the chip with the least and with the most


@attrs.frozen
class Bisection:
    """Two halves of the chips of an instance, and what passes from the one to the other."""

    halves: str
    bytes_per_s: int


def level_links(topology: Topology) -> Iterator[LevelLinks]:
    """The levels of an instance, innermost first, that have links."""
    src, _, rate = _links(topology)
    chips = topology.chips_per_node
    levels = _level_of_links(topology)
    for number, level in enumerate(topology.levels):
        of_level = levels == number
        if not of_level.any():
            continue
        from_chips = of_level & (src < chips)
        out = np.bincount(src[from_chips], rate[from_chips], chips)[:chips]
        yield LevelLinks(
            name=level.name or level.kind.value,
            links=int(of_level.sum()),
            bytes_per_s=int(rate[of_level].sum()),
            out_of_chip=(int(out.min()), int(out.max())),
        )


def _links(topology: Topology) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, target and rate of the first instance's links, 0 of those that are down."""
    links, count = topology.links, topology.links_per_node
    chips = topology.chips_per_node
    src, dst = (
        np.where(side >= links.chips, side - links.chips + chips, side).astype(np.int64)
        for side in (links.src[:count], links.dst[:count])
    )
    rate = np.where(links.is_down[:count], 0, links.bandwidth_bytes_per_s[:count])
    return src, dst, rate


def _level_of_links(topology: Topology) -> np.ndarray:
    """The level of each link of an instance; -1 of links down from, or through, a switch."""
    src, dst, _ = _links(topology)
    level_of = np.full(len(src), -1)
    names = {level.name: number for number, level in enumerate(topology.levels) if level.name}
    to_switch = np.flatnonzero(dst >= topology.chips_per_node)
    for link in to_switch.tolist():
        level_of[link] = names.get(topology.links.port[link], -1)
    held = np.cumprod([level.size for level in topology.levels])
    between_chips = (src < topology.chips_per_node) & (dst < topology.chips_per_node)
    for number in reversed(range(len(held))):
        level_of[between_chips & (src // held[number] == dst // held[number])] = number
    between_switches = (src >= topology.chips_per_node) & (level_of < 0)
    for link in np.flatnonzero(between_switches & (dst >= topology.chips_per_node)).tolist():
        port = topology.links.port[link]
        begins = [name for name in names if port.startswith(name)]
        level_of[link] = names[max(begins, key=len)] if begins else -1
    return level_of


def diameter(topology: Topology) -> tuple[int, float] | None:
    """Links between the two chips furthest apart, and between two on average.

    A switch counts two. None of one chip, of more than LARGEST_SEARCHED, or of chips cut off.
    """
    import networkx

    chips = topology.chips_per_node
    if not 1 < chips <= LARGEST_SEARCHED:
        return None
    graph = topology.graph(0, up_only=True)
    names = list(graph)[:chips]
    furthest = total = 0
    for chip in names:
        lengths = networkx.single_source_shortest_path_length(graph, chip)
        if any(other not in lengths for other in names):
            return None
        away = [lengths[other] for other in names]
        furthest, total = max(furthest, *away), total + sum(away)
    return furthest, total / (chips * (chips - 1))


def bisection(topology: Topology) -> Bisection | None:
    """The halves with the least bandwidth between them; None of odd chips, or too many."""
    chips = topology.chips_per_node
    if chips % 2 or chips > LARGEST_SEARCHED:
        return None
    number = np.arange(chips)
    last, middle = chips - 1, chips // 2
    halves = {f"c0 to c{middle - 1} and c{middle} to c{last}": number < middle}
    for place, axis in enumerate(topology.axes):
        if axis.extent % 2 == 0:
            at = number // axis.stride % axis.extent
            halves[f"halves along dimension {place}"] = at < axis.extent // 2
    cuts = [Bisection(words, _cut(topology, half)) for words, half in halves.items()]
    return min(cuts, key=lambda cut: cut.bytes_per_s)


def _cut(topology: Topology, half: np.ndarray) -> int:
    """Bytes a second out of some chips of an instance into the others: the minimum cut.

    Each half is one node of the graph that is cut, so that only switches are left to be assigned
    to a side.
    """
    import networkx

    src, dst, rate = _links(topology)
    switches = range(topology.chips_per_node, topology.chips_per_node + topology.switches_per_node)
    part = np.concatenate((np.where(half, -1, -2), switches)).astype(np.int64)
    ends, joined = np.unique((part[src], part[dst]), axis=1, return_inverse=True)
    capacity = np.zeros(ends.shape[1], np.int64)
    np.add.at(capacity, joined.ravel(), rate)
    graph = networkx.DiGraph()
    graph.add_nodes_from((-1, -2))
    edges = zip(*ends.tolist(), capacity.tolist(), strict=True)
    graph.add_weighted_edges_from(edges, weight="capacity")
    return int(networkx.minimum_cut_value(graph, -1, -2))


@attrs.frozen
class Unit:
    """The chips that one level joins, from `first` on; they are units of the level below."""

    level: int  # which of the topology's; -1: a chip
    number: int  # among the units of its level in the instance
    first: int  # chip, through all instances
    chips: int
    switches: tuple[str, ...]  # their names


def instance_unit(topology: Topology, node: int) -> Unit:
    """All chips of an instance, as the unit of its outermost level."""
    level = len(topology.levels) - 1
    chips = topology.chips_per_node
    return Unit(level, 0, node * chips, chips, _switches(topology, node, level, 0))


def parts_of(topology: Topology, unit: Unit) -> Iterator[Unit]:
    """The units that a unit joins, in order."""
    size = topology.levels[unit.level].size
    chips, node = unit.chips // size, unit.first // topology.chips_per_node
    for place in range(size):
        number = unit.number * size + place
        switches = _switches(topology, node, unit.level - 1, number)
        yield Unit(unit.level - 1, number, unit.first + place * chips, chips, switches)


def _switches(topology: Topology, node: int, level: int, number: int) -> tuple[str, ...]:
    """Switches are numbered level by level, unit by unit; those of one unit of a level."""
    first, chips = 0, 1  # the first switch of the level, the chips of a part
    per_unit = 0
    for index, inner in enumerate(topology.levels[: level + 1]):
        units = topology.chips_per_node // (chips * inner.size)
        if inner.kind is LevelKind.SWITCH:
            per_unit = {Joins.CHIPS: 1, Joins.PLACES: chips, Joins.SWITCHES: per_unit}[inner.joins]
        else:
            per_unit = 0
        if index < level:
            first += units * per_unit
        chips *= inner.size
    if level < 0 or topology.levels[level].kind is not LevelKind.SWITCH:
        return ()
    per_node = topology.links.switches[-1][0] + 1
    start = node * per_node + first + number * per_unit
    return tuple(f"s{start + place}" for place in range(per_unit))


GRIDS = (LevelKind.TORUS, LevelKind.RING, LevelKind.LINE)

MOST_UNITS = 4
"""Of more equal units, the first ones and the last are drawn."""


def pictures(topology: Topology, placement: PlacedRanks | None) -> Iterator[str]:
    """A picture of each instance with its ranks; without ranks, of the first."""
    nodes = range(topology.nodes if placement is not None else 1)
    ranks = ranks_by_chip(topology, placement)
    for node in nodes:
        if topology.nodes > 1:
            last = topology.nodes - 1
            yield f"instance {node}" + ("" if placement or not last else f", and so to {last}")
        yield from _picture(topology, node, ranks)


def title_of(topology: Topology) -> str:
    """Its name, and its summary if there is one."""
    return f"{topology.name}: {topology.summary}".removesuffix(": ")


def ranks_a_chip(topology: Topology) -> str:
    """`4 ranks a chip`."""
    count = topology.ranks_per_chip
    return f"{count} rank{'s' if count > 1 else ''} a chip"


def _picture(topology: Topology, node: int, ranks: Sequence[str]) -> Iterator[str]:
    first = node * topology.chips_per_node
    chips = range(first, first + topology.chips_per_node)
    names = [f"c{chip} {ranks[chip]}".rstrip() for chip in chips]
    cells = {
        chip: name.ljust(max(map(len, names))) for chip, name in zip(chips, names, strict=True)
    }
    if topology.shape is FabricShape.NONE:
        yield f"  {cells[first]}"
    elif topology.shape is FabricShape.GRAPH:
        links = topology.links
        for chip in chips:
            ports = ", ".join(
                links.step(int(link)).split(".", 1)[1] for link in np.flatnonzero(links.src == chip)
            )
            yield f"  {cells[chip]}  {ports}"
    else:
        unit = instance_unit(topology, node)
        yield from (f"  {line}" for line in _unit(topology, unit, cells, any(ranks)))


def _unit(topology: Topology, unit: Unit, cells: dict[int, str], has_ranks: bool) -> Iterator[str]:
    """A unit: how it is joined, then its parts; chips of a grid as rows."""
    level = topology.levels[unit.level]
    if len(topology.levels) > 1 or level.kind not in GRIDS or len(level.dims) > 2:
        first, *more = unit.switches or ("",)
        switches = f"{first} to {more[-1]}" if more else first
        title = f"{level.name or level.kind.value} {switches}".strip()
        yield f"{title}: {joint(level, unit)}"  # `rack s36: a switch of 72 ports, 320 GB/s …`
    if unit.level == 0:
        chips = [cells[chip] for chip in range(unit.first, unit.first + unit.chips)]
        indent = "  " if level.name else ""
        yield from (indent + line for line in _chips(level, chips))
        return
    parts = list(parts_of(topology, unit))
    skips = not has_ranks and len(parts) > MOST_UNITS
    for place, part in enumerate(parts):
        if skips and MOST_UNITS - 1 <= place < len(parts) - 1:
            if place == MOST_UNITS - 1:
                yield f"  … {len(parts) - MOST_UNITS} more"
            continue
        yield from (f"  {line}" for line in _unit(topology, part, cells, has_ranks))


def joint(level: Level, unit: Unit) -> str:
    """How a level joins its units, in words."""
    by_dimension = level.bandwidth_bytes_per_s
    distinct = by_dimension[:1] if len(set(by_dimension)) == 1 else by_dimension
    rates = ", ".join(f"{rate / 1e9:.4g}" for rate in distinct)
    size = " x ".join(map(str, level.dims))
    if level.kind is LevelKind.SWITCH:
        ports = unit.chips if level.joins is Joins.CHIPS else level.size
        number = f"{len(unit.switches)} switches" if len(unit.switches) > 1 else "a switch"
        over = (
            f", oversubscribed {level.oversubscription:g}:1" if level.oversubscription > 1 else ""
        )
        what = {Joins.CHIPS: "", Joins.PLACES: " by place", Joins.SWITCHES: " of switches"}
        return f"{number} of {ports} ports{what[level.joins]}, {rates} GB/s each way{over}"
    parallel = unit.chips // level.size
    along = " by dimension" if len(distinct) > 1 else ""
    if 2 in level.dims and level.kind in (LevelKind.TORUS, LevelKind.RING):
        along += ", extents of 2 with both links"
    links = (
        f", {parallel} links side by side" if parallel > 1 and level.joins is Joins.PLACES else ""
    )
    return f"a {level.kind.value} of {size}{links}, {rates} GB/s each way{along}"


def _chips(level: Level, cells: list[str]) -> Iterator[str]:
    if level.kind not in GRIDS:
        width = max(1, 88 // (len(cells[0]) + 2))
        yield from ("  ".join(cells[at : at + width]) for at in range(0, len(cells), width))
        return
    rows, columns = (1, *level.dims)[-2:]
    area = rows * columns
    planes = len(cells) // area
    for plane in range(planes):
        if len(level.dims) > 2:
            yield f"plane {plane}, D to plane {(plane - 1) % planes}, U to {(plane + 1) % planes}"
        yield from _grid(level, cells[plane * area : (plane + 1) * area], rows, columns)


def _grid(level: Level, cells: list[str], rows: int, columns: int) -> Iterator[str]:
    """Rows of chips; what wraps round is named in parentheses at the far end."""
    wraps = level.kind is not LevelKind.LINE
    heads = [f"({cell.split()[0]})" for cell in cells[:columns]] if rows > 1 else []
    width = max(map(len, (*cells, *heads)))
    bars = "    ".join("|".ljust(width) for _ in range(columns))
    for row in range(rows):
        line = [cell.ljust(width) for cell in cells[row * columns : (row + 1) * columns]]
        back = f" -- ({line[0].split()[0]})" if wraps and columns > 1 else ""
        yield " -- ".join(line) + back
        if rows > 1:
            yield bars
    if rows > 1:
        yield "    ".join(head.ljust(width) for head in heads)


def ranks_by_chip(topology: Topology, placement: PlacedRanks | None) -> list[str]:
    """For each chip its ranks as `[0-3,8]`, `-` for none; empty texts without a placement."""
    if placement is None:
        return [""] * topology.chips
    order = np.argsort(placement.chip, kind="stable")
    cuts = np.searchsorted(placement.chip[order], np.arange(1, topology.chips))
    texts = (ranks_text(ranks.tolist()) for ranks in np.split(order, cuts))
    return [f"[{text}]" if text else "-" for text in texts]


_PARITY = ("even", "odd")


@attrs.frozen
class ListedTopology:
    """One row of `nccrt topology list`, of one instance.

    - `name`, `aliases`, `summary`: how it is called, what it is
    - `chips`, `ranks`: how many it has, ranks at the usual physical cores each
    - `lnc`: the physical cores that a rank may have
    - `joins`: by what several instances can be joined, "" if they cannot
    - `is_example`: whether it is a description as users would write one
    """

    name: str
    aliases: tuple[str, ...]
    chips: int
    ranks: int
    lnc: tuple[int, ...]
    joins: str
    is_example: bool
    summary: str

    def __str__(self) -> str:
        names = ", ".join((self.name, *self.aliases))
        joins = f"can be joined over {self.joins}" if self.joins else "one instance only"
        example = "example: " if self.is_example else ""
        counts = f"chips {self.chips:>3}, ranks {self.ranks:>3}"
        return f"{names:<27} {counts}, {joins:<29} {example}{self.summary}"


@attrs.frozen(repr=False)
class KnownTopologies:
    """What `nccrt topology list` prints; iterating gives a row for each topology."""

    rows: tuple[ListedTopology, ...]

    def __iter__(self) -> Iterator[ListedTopology]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<KnownTopologies: {', '.join(row.name for row in self.rows)}>"

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows))

    def as_dict(self) -> dict[str, Any]:
        """The object that `nccrt topology list --json` prints."""
        return {"topologies": [attrs.asdict(row) for row in self.rows]}

    def _repr_html_(self) -> str:
        headings = ("name", "aliases", "chips", "ranks", "joined over", "")
        cells = (
            (row.name, ", ".join(row.aliases), row.chips, row.ranks, row.joins, row.summary)
            for row in self.rows
        )
        return html.table("topologies", headings, cells)


def topologies() -> KnownTopologies:
    """Every built-in topology, sorted by name, then the examples.

    Chips and ranks are those of one instance, at the usual physical cores of a rank.

    >>> [row.name for row in topologies() if "trn2" in row.aliases]
    ['trn2.48xlarge']
    """
    return KnownTopologies(
        tuple(_listed(build(name)) for name in (*preset_names(), *example_names()))
    )


def _listed(topology: Topology) -> ListedTopology:
    allowed = topology.figures["lnc.allowed"].value
    sizes = allowed if isinstance(allowed, tuple) else ()
    return ListedTopology(
        name=topology.name,
        aliases=tuple(alias for alias, name in ALIASES.items() if name == topology.name),
        chips=topology.chips_per_node,
        ranks=topology.ranks_per_node,
        lnc=tuple(size for size in sizes if isinstance(size, int)),
        joins="" if topology.efa is None else topology.network,
        is_example=topology.name in example_names(),
        summary=topology.summary,
    )


def describe(topology: Topology, placement: PlacedRanks | None = None) -> str:
    """The text of `nccrt topology show`; with a placement, every chip shows its ranks."""
    instances = "1 instance" if topology.nodes == 1 else f"{topology.nodes} instances"
    hosts = topology.hosts_per_node
    of_hosts = f" of {hosts} servers" if hosts > 1 else ""
    lines = [
        title_of(topology),
        f"{instances}{of_hosts}, lnc {topology.lnc}: {topology.chips} chips, "
        f"{ranks_a_chip(topology)}, {topology.max_ranks} ranks at most",
        "",
        *pictures(topology, placement),
        *_faults(topology),
        "",
        *_core_ports(topology),
        *_aligned(_rank_rows(topology)),
        "",
        *_aligned(_derived_rows(topology)),
        *_aligned(
            (
                ("figure", "value", "source"),
                *(
                    (key, _quantity(key, figure), figure.source)
                    for key, figure in sorted(topology.figures.items())
                ),
            )
        ),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def as_json(topology: Topology, placement: PlacedRanks | None = None) -> dict[str, Any]:
    """The object that `nccrt topology show --json` prints; links are those of all instances."""
    links = topology.links
    apart, cut = diameter(topology), bisection(topology)
    return {
        "name": topology.name,
        "instance": topology.instance,
        "generation": topology.generation,
        "summary": topology.summary,
        "nodes": topology.nodes,
        "lnc": topology.lnc,
        "chips": topology.chips,
        "ranks": topology.max_ranks,
        "chips_per_node": topology.chips_per_node,
        "hosts_per_node": topology.hosts_per_node,
        "ranks_per_chip": topology.ranks_per_chip,
        "shape": topology.shape.value,
        "dims": list(topology.dims),
        "network": "" if topology.efa is None else topology.network,
        "rank": {
            "cc_cores": topology.rank_cc_cores,
            "dma_engines": topology.rank_dma_engines,
            "dma_bandwidth_bytes_per_s": topology.rank_dma_bandwidth_bytes_per_s,
            "hbm_bandwidth_bytes_per_s": topology.rank_hbm_bandwidth_bytes_per_s,
            "efa_bandwidth_bytes_per_s": topology.rank_efa_bandwidth_bytes_per_s,
        },
        "levels": [
            {"name": level.name, "links": level.links, "bandwidth_bytes_per_s": level.bytes_per_s}
            for level in level_links(topology)
        ],
        "diameter": None if apart is None else {"links": apart[0], "mean_links": apart[1]},
        "bisection": None if cut is None else attrs.asdict(cut),
        "links": [
            {
                "name": links.name(link),
                "to": links.end(int(links.dst[link])),
                "bandwidth_bytes_per_s": int(links.bandwidth_bytes_per_s[link]),
                "latency_ps": int(links.latency_ps[link]),
                "parallel_links": int(links.parallel_links[link]),
                "is_down": bool(links.is_down[link]),
            }
            for link in range(len(links))
        ],
        "slowed": [attrs.asdict(row) for row in topology.slowed],
        "figures": {
            key: {"value": figure.value, "source": figure.source}
            for key, figure in sorted(topology.figures.items())
        },
        "placement": None
        if placement is None
        else [
            {"rank": rank, "chip": chip, "core": core}
            for rank, (chip, core) in enumerate(
                zip(placement.chip.tolist(), placement.core.tolist(), strict=True)
            )
        ],
    }


def _faults(topology: Topology) -> Iterable[str]:
    """A line for each link or core that is down or slow, as the file or an option says."""
    if topology.active_faults:
        yield ""
    for fault in topology.active_faults:
        where = " of every instance" if fault.node is None else ""
        yield f"  {fault.name}{where}: {fault.state} ({fault.source})"


def _core_ports(topology: Topology) -> Iterable[str]:
    """Which cores of a chip sit at which port, for every parity of its row and column."""
    if not topology.core_ports:
        return
    rows_, columns = topology.levels[0].dims[-2:]
    is_turned = len(topology.core_ports) > 4 and topology.chips_per_node > rows_ * columns
    corners = [
        (plane, row, column)
        for plane in range(1 + is_turned)
        for row in range(min(rows_, 2))
        for column in range(min(columns, 2))
    ]
    tables = ports_of_cores(topology), planes_of_cores(topology)
    known = [code for code, _ in enumerate(PORTS) if any((table == code).any() for table in tables)]
    rows = [("core at port", *(PORTS[code] for code in known))]
    for plane, row, column in corners:
        chip = (plane * rows_ + row) * columns + column
        sites = [table[chip] for table in tables]
        cores = (np.flatnonzero((sites[0] == code) | (sites[1] == code)).tolist() for code in known)
        where = f"{_PARITY[row]} row, {_PARITY[column]} column"
        rows.append(
            (f"{_PARITY[plane]} plane, {where}" if is_turned else where, *map(ranks_text, cores))
        )
    yield from _aligned(rows)
    yield ""


def _rank_rows(topology: Topology) -> Iterable[tuple[str, ...]]:
    """What one rank has; derived from the figures below."""
    yield "a rank has", f"{topology.lnc} physical cores" if topology.lnc > 1 else "1 physical core"
    yield "", f"{topology.rank_cc_cores} CC-cores"
    rate = _rate(topology.rank_dma_bandwidth_bytes_per_s)
    channels = f"{topology.rank_dma_channels} groups of {topology.channel_engines}"
    yield "", f"{topology.rank_dma_engines} DMA engines in {channels}, {rate} in all"
    yield "", f"{_rate(topology.rank_hbm_bandwidth_bytes_per_s)} of HBM"
    if topology.efa is not None:
        yield "", f"{_rate(topology.rank_efa_bandwidth_bytes_per_s)} of {topology.network}"


def _derived_rows(topology: Topology) -> Iterable[tuple[str, ...]]:
    """Links, diameter and bisection of an instance; they follow from the figures below."""
    if topology.chips_per_node == 1:
        return
    for level in level_links(topology):
        least, most = level.out_of_chip
        out = f"{_rate(least)} to {_rate(most)}" if least < most else _rate(most)
        of_chip = f", {out} out of a chip" if most else ""
        all_of_them = f"{level.bytes_per_s / 1e12:g} TB/s in all"
        yield f"links of {level.name}", f"{level.links} one way, {all_of_them}{of_chip}"
    apart, cut = diameter(topology), bisection(topology)
    if apart is not None:
        yield "diameter", f"{apart[0]} links, {apart[1]:.4g} between two chips on average"
    if cut is not None:
        per_chip = cut.bytes_per_s // (topology.chips_per_node // 2)
        halves = f"between {cut.halves}, {_rate(per_chip)} a chip"
        yield "bisection", f"{cut.bytes_per_s / 1e12:g} TB/s each way {halves}"
    yield "", ""


def _quantity(key: str, figure: Figure) -> str:
    """A value with the unit that its key names."""
    value = figure.value
    if isinstance(value, tuple):
        return " ".join(
            str(item) if isinstance(item, tuple) else _quantity(key, Figure(item, ""))
            for item in value
        )
    if not isinstance(value, int):
        return str(value)
    if key.endswith("bandwidth_bytes_per_s"):
        return _rate(value)
    if "flops_per_s" in key:
        return f"{value / 1e12:g} TFLOP/s"
    if key.endswith("_hz"):
        return f"{value / 1e9:g} GHz"
    if key.endswith("_ps"):
        return f"{value / 1e6:g} us"
    return f"{value:,} bytes" if key.endswith(("_bytes", "_bytes_per_rank")) else str(value)


def _rate(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:g} GB/s"


def _aligned(rows: Iterable[tuple[str, ...]]) -> Iterable[str]:
    """Rows as columns two spaces apart, left aligned."""
    table = list(rows)
    if not table:
        return
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
