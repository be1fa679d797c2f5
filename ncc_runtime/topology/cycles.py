"""Directed cycles through all of some chips over links that no two of the cycles share.

A ring algorithm sends along such a cycle, and one ring per cycle uses every link once. On a grid of
rings and lines they are made (grid_cycles.py). Elsewhere, and on small grids or where links are
down, they are searched by depth first with a budget, first in the order of chips, then, if that
finds none, where the fewest ways lead on (Warnsdorff). A group without a cycle is an answer too.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.grid_cycles import grid_cycles
from ncc_runtime.topology.levels import Axis
from ncc_runtime.topology.links import Links

BUDGET = 20_000
"""Steps of a search before it settles for what it has found."""

SEARCHED = 32
"""Of a group of more chips on a grid, cycles are made before they are searched."""

Cycle = tuple[int, ...]
"""Chips in the order of the links; the last has a link to the first."""

Edges = frozenset[tuple[int, int]]
"""Links as (source, target)."""

Strands = Counter[tuple[int, int]]
"""How many links carry from one chip to another, those of a trunk one by one."""


def disjoint_cycles(topology: Topology, chips: Sequence[int]) -> tuple[Cycle, ...]:
    """As many cycles as are found, each beginning with the first of the chips.

    A cycle is followed by its reverse where the links go both ways. Of the links of a trunk each
    may be in a cycle. One chip is a cycle without links, of no cycle at all () is returned.
    """
    links, group = topology.links, tuple(chips)
    if len(group) == 1:
        return (group,)
    strands = _strands(links, group)
    most = min(sum(strands[edge] for edge in strands if edge[0] == chip) for chip in group)
    ways = [_searched_cycles, _made_cycles]
    found: tuple[Cycle, ...] = ()
    for way in ways if len(group) <= SEARCHED else ways[::-1]:
        if len(found) < most:
            found = max(found, way(topology.axes, strands, group), key=len)
    return found


def _strands(links: Links, chips: tuple[int, ...]) -> Strands:
    last = max(links.src.max(initial=0), links.dst.max(initial=0), *chips)
    wanted = np.zeros(int(last) + 1, bool)
    wanted[list(chips)] = True
    inside = np.flatnonzero(~links.is_down & wanted[links.src] & wanted[links.dst])
    ends = zip(links.src[inside].tolist(), links.dst[inside].tolist(), strict=True)
    return Counter(dict(zip(ends, links.strands[inside].tolist(), strict=True)))


def _made_cycles(
    axes: tuple[Axis, ...], strands: Strands, chips: tuple[int, ...]
) -> tuple[Cycle, ...]:
    """Those of the grid that the chips fill, both ways, as far as their links are up."""
    grid = _grid_of(axes, chips)
    if grid is None:
        return ()
    rings, lines, table = grid
    found: list[Cycle] = []
    left = strands.copy()
    for order in _of_grid(rings, lines):
        cycle = _turned(tuple(table[order].tolist()), chips[0])
        for one in (cycle, (cycle[0], *cycle[:0:-1])):
            if all(left[edge] > 0 for edge in _edges(one)):
                left.subtract(_edges(one))
                found.append(one)
    return tuple(found)


_of_grid = lru_cache(maxsize=64)(grid_cycles)


Grid = tuple[tuple[int, ...], tuple[int, ...], np.ndarray]
"""Extents of rings and of lines, and the chips row-major in that order of dimensions."""


def _grid_of(axes: tuple[Axis, ...], chips: tuple[int, ...]) -> Grid | None:
    """The grid that chips of one instance fill; None if they do not."""
    per_node = math.prod(axis.extent for axis in axes)
    group = np.array(chips, np.int64)
    if not axes or len(np.unique(group // per_node)) > 1:
        return None
    found = [_places(axis, group % per_node) for axis in axes]
    if any(one is None for one in found):
        return None
    spans = [(axis, one) for axis, one in zip(axes, found, strict=True) if one is not None]
    if math.prod(len(places) for _, places in spans) != len(chips):
        return None
    spans.sort(key=lambda span: (not _closes(*span), -len(span[1])))
    table = np.array(chips[0] // per_node * per_node)
    for axis, places in spans:
        table = np.add.outer(table, places * axis.stride)
    rings, lines = (
        tuple(len(span[1]) for span in spans if _closes(*span) is closes)
        for closes in (True, False)
    )
    return rings, lines, table.ravel()


def _closes(axis: Axis, places: np.ndarray) -> bool:
    """Whether the chips close a ring along an axis."""
    return axis.wraps and len(places) == axis.extent


def _places(axis: Axis, chips: np.ndarray) -> np.ndarray | None:
    """Places along an axis that chips take, each beside the one before; None if they are apart."""
    there = np.unique(chips // axis.stride % axis.extent)
    apart = np.flatnonzero(np.diff(there) != 1)
    if len(apart) == 1 and axis.wraps and there[0] == 0 and there[-1] == axis.extent - 1:
        return np.roll(there, -int(apart[0]) - 1)
    return None if len(apart) else there


def _turned(cycle: Cycle, first: int) -> Cycle:
    at = cycle.index(first)
    return cycle[at:] + cycle[:at]


def _searched_cycles(
    _: tuple[Axis, ...], strands: Strands, chips: tuple[int, ...]
) -> tuple[Cycle, ...]:
    return _disjoint_cycles(frozenset(strands), chips)


@lru_cache(maxsize=256)
def _disjoint_cycles(edges: Edges, chips: tuple[int, ...]) -> tuple[Cycle, ...]:
    return _searched(edges, chips, greedy=False) or _searched(edges, chips, greedy=True)


def _searched(edges: Edges, chips: tuple[int, ...], *, greedy: bool) -> tuple[Cycle, ...]:
    best: tuple[Cycle, ...] = ()
    steps = [BUDGET]
    for cycle in _cycles(edges, chips, steps, greedy=greedy):
        taken = _both_ways(cycle, edges)
        left = edges - {edge for one in taken for edge in _edges(one)}
        others = _cycles(left, chips, steps, greedy=greedy)
        found = taken + next((_both_ways(other, left) for other in others), ())
        if len(found) > len(best):
            best = found
        if len(best) * len(chips) >= len(edges) or len(best) >= 4 or steps[0] <= 0:
            break
    return best


def _edges(cycle: Cycle) -> Iterator[tuple[int, int]]:
    return zip(cycle, cycle[1:] + cycle[:1], strict=True)


def _both_ways(cycle: Cycle, edges: Edges) -> tuple[Cycle, ...]:
    back = (cycle[0], *cycle[:0:-1])
    return (cycle, back) if back != cycle and edges.issuperset(_edges(back)) else (cycle,)


def _cycles(
    edges: Edges, chips: tuple[int, ...], steps: list[int], *, greedy: bool
) -> Iterator[Cycle]:
    """Hamiltonian cycles in the order of chips, or greedily; stops when `steps` has run out."""
    after: dict[int, list[int]] = {chip: [] for chip in chips}
    for src, dst in sorted(edges):
        after[src].append(dst)
    path, seen = [chips[0]], {chips[0]}

    def onward(chip: int) -> Iterator[int]:
        if not greedy:
            return iter(after[chip])
        left = {one: sum(far not in seen for far in after[one]) for one in after[chip]}
        return iter(sorted(after[chip], key=left.__getitem__))

    choices = [onward(chips[0])]
    while choices and steps[0] > 0:
        steps[0] -= 1
        chip = next((one for one in choices[-1] if one not in seen), None)
        if chip is None:
            choices.pop()
            seen.discard(path.pop())
            continue
        path.append(chip)
        seen.add(chip)
        choices.append(onward(chip))
        if len(path) == len(chips) and (chip, chips[0]) in edges:
            yield tuple(path)
