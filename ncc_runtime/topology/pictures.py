"""Pictures of topologies as text: chips with their ranks, unit by unit."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.levels import Level
from ncc_runtime.topology.routes import PlacedRanks
from ncc_runtime.topology.spec import FabricShape, Joins, LevelKind
from ncc_runtime.topology.units import Unit, instance_unit, parts_of

GRIDS = (LevelKind.TORUS, LevelKind.RING, LevelKind.LINE)

MOST_UNITS = 4
"""Of more units that are alike, the first ones and the last are drawn."""


def pictures(topology: Topology, placement: PlacedRanks | None) -> Iterator[str]:
    """A picture of each instance with its ranks; without ranks one stands for all."""
    nodes = range(topology.nodes if placement is not None else 1)
    ranks = ranks_by_chip(topology, placement)
    for node in nodes:
        if topology.nodes > 1:
            last = topology.nodes - 1
            yield f"instance {node}" + ("" if placement or not last else f", and so to {last}")
        yield from _picture(topology, node, ranks)


def title_of(topology: Topology) -> str:
    """Its name, and what it is if that is said."""
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
        yield from (f"  {cells[chip]}  {_ports(topology, chip)}" for chip in chips)
    else:
        unit = instance_unit(topology, node)
        yield from (f"  {line}" for line in _unit(topology, unit, cells, any(ranks)))


def _unit(topology: Topology, unit: Unit, cells: dict[int, str], has_ranks: bool) -> Iterator[str]:
    """A unit: how it is joined, then its parts; chips of a grid as rows."""
    level = topology.levels[unit.level]
    if len(topology.levels) > 1 or level.kind not in GRIDS or len(level.dims) > 2:
        yield _title(level, unit)
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


def _title(level: Level, unit: Unit) -> str:
    """`rack s36: a switch of 72 ports, 320 GB/s each way`."""
    first, *more = unit.switches or ("",)
    names = f"{first} to {more[-1]}" if more else first
    return f"{' '.join((level.name or level.kind.value, names)).strip()}: {joint(level, unit)}"


def joint(level: Level, unit: Unit) -> str:
    """How a level joins its units, in words."""
    values = level.bandwidth_bytes_per_s
    each = values[:1] if len(set(values)) == 1 else values
    rates = ", ".join(f"{rate / 1e9:.4g}" for rate in each)
    size = " x ".join(map(str, level.dims))
    if level.kind is LevelKind.SWITCH:
        ports = unit.chips if level.joins is Joins.CHIPS else level.size
        number = f"{len(unit.switches)} switches" if len(unit.switches) > 1 else "a switch"
        over = (
            f", oversubscribed {level.oversubscription:g}:1" if level.oversubscription > 1 else ""
        )
        what = {Joins.CHIPS: "", Joins.PLACES: " by place", Joins.SWITCHES: " of switches"}
        return f"{number} of {ports} ports{what[level.joins]}, {rates} GB/s each way{over}"
    held = unit.chips // level.size
    along = " by dimension" if len(each) > 1 else ""
    if 2 in level.dims and level.kind in (LevelKind.TORUS, LevelKind.RING):
        along += ", extents of 2 with both links"
    links = f", {held} links side by side" if held > 1 and level.joins is Joins.PLACES else ""
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


def _ports(topology: Topology, chip: int) -> str:
    links = topology.links
    found = np.flatnonzero(links.src == chip)
    return ", ".join(links.step(int(link)).split(".", 1)[1] for link in found)


def ranks_by_chip(topology: Topology, placement: PlacedRanks | None) -> list[str]:
    """For each chip its ranks as `[0-3,8]`, `-` for none; empty texts without a placement."""
    if placement is None:
        return [""] * topology.chips
    order = np.argsort(placement.chip, kind="stable")
    cuts = np.searchsorted(placement.chip[order], np.arange(1, topology.chips))
    found = (spans(ranks.tolist()) for ranks in np.split(order, cuts))
    return [f"[{ranks}]" if ranks else "-" for ranks in found]


def spans(ranks: Sequence[int]) -> str:
    """Sorted numbers with consecutive ones joined: `0-3,8`."""
    runs = itertools.groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])
    members = ([rank for _, rank in run] for _, run in runs)
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in members)
    return ",".join(texts)
