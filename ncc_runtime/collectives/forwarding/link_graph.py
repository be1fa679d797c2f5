"""The chips of a group and what carries bytes between them: the graph that plans are found on.

An edge is a route that passes no other chip of the group: a link, or links through chips that have
no member. Chips and links are numbered in the group's order, so that groups that are wired alike
have equal wires and share what is found on them.

Chips numbered by how they are wired, so that groups wired alike have equal wires.

What is found for one wiring then serves all that are the same but for the names of chips: a torus
has one plan for any of the links of a dimension that may be down, and no link is served worse.

Colours of chips are refined by the colours of their neighbours until nothing parts them; then a
chip is told from those alike, and so on (McKay and Piperno, "Practical graph isomorphism, II",
2014). Only one chip of those alike is tried: where that is no matter of symmetry, as it is on a
torus, groups wired alike may get different numbers, and are served as well.

Groups whose chips fill a torus, or a part of one on which rings close in every dimension.
"""

from functools import cached_property, lru_cache

import attrs
import numpy as np

from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.topology.chip_routes import RouteTable, chip_routes
from ncc_runtime.topology.graph import Topology

MOST_CHUNKS = 4
"""Units that the fastest link carries in a slot at most, where links have different rates."""


@attrs.frozen(cache_hash=True)
class LinkGraph:
    """Edges between chips 0..chips-1, and how much their links carry."""

    chips: int
    edges: tuple[tuple[int, int, tuple[int, ...]], ...]  # source, target, links in order
    rates: tuple[int, ...]  # of links, bytes a second

    @property
    def units(self) -> np.ndarray:
        """(links,) int64, whole units of one size that each link carries in the same time.

        The unit is such that least of what all links carry together is lost. A link that is too
        slow for one is left out, unless there is no other way between some chips.
        """
        rates = np.array(self.rates, np.float64)
        most = rates.max(initial=1.0)
        found = [np.floor(rates * count / most + 1e-9) for count in range(1, MOST_CHUNKS + 1)]
        used = [units.sum() / count for count, units in enumerate(found, 1)]
        best = found[int(np.argmax(np.round(used, 6)))].astype(np.int64)
        return best if self.joins_all(best > 0) else np.maximum(best, 1)

    def joins_all(self, is_used: np.ndarray) -> bool:
        """Whether edges of some links lead from every chip to every other."""
        reached = np.eye(self.chips, dtype=bool)
        for source, target, links in self.edges:
            reached[source, target] |= bool(is_used[list(links)].all())
        for _ in range(self.chips.bit_length()):
            reached = reached.astype(np.int64) @ reached > 0
        return bool(reached.all())

    @property
    def reversed(self) -> "LinkGraph":
        """Every edge the other way, on the links that it had."""
        return attrs.evolve(self, edges=tuple((b, a, links) for a, b, links in self.edges))

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets of the edges, int64."""
        ends = np.array([edge[:2] for edge in self.edges], np.int64).reshape(-1, 2)
        return ends[:, 0], ends[:, 1]

    def rate_of(self, ends: np.ndarray) -> np.ndarray:
        """(chips,) bytes a second of the edges by one of their ends; a link counts once."""
        slowest = [min(self.rates[link] for link in links) for _, _, links in self.edges]
        return np.bincount(ends, slowest, self.chips)


def link_graph_of(layout: GroupLayout) -> LinkGraph:
    """The wires of a group on one instance; UnsuitedError if it is on several or on one chip."""
    if len(layout.by_node()) > 1:
        raise UnsuitedError("its members are on several instances")
    chips = [layout.seats[cluster[0]].chip for cluster in layout.by_chip()]
    if len(chips) == 1:
        raise UnsuitedError("its members share a chip")
    topology = layout.placement.topology
    wires = _wires(topology, routes_of(topology), tuple(chips))
    if not wires.joins_all(np.ones(len(wires.rates), bool)):
        raise UnsuitedError("links that are down leave no way between some of its chips")
    return wires


@lru_cache(maxsize=8)
def routes_of(topology: Topology) -> RouteTable:
    """The table of a topology's routes."""
    return chip_routes(topology)


@lru_cache(maxsize=64)
def _wires(topology: Topology, table: RouteTable, chips: tuple[int, ...]) -> LinkGraph:
    node, per_node = chips[0] // topology.chips_per_node, topology.chips_per_node
    within = np.array(chips, np.int64) - node * per_node
    number = {int(chip): place for place, chip in enumerate(within)}
    ways, rows = table.rows(np.array(node), within[:, None], within[None, :])
    ends = topology.links.dst[: topology.links_per_node].tolist()  # of the first instance
    known: dict[int, int] = {}
    edges = []
    for place, row in enumerate(rows.tolist()):
        for other, at in enumerate(row):
            route = ways.links[ways.start[at] : ways.start[at + 1]].tolist()
            passed = (ends[link] for link in route[:-1])
            if place != other and route and not any(chip in number for chip in passed):
                links = tuple(known.setdefault(link, len(known)) for link in route)
                edges.append((place, other, links))
    first = node * topology.links_per_node
    rates = topology.links.bandwidth_bytes_per_s[np.array(list(known), np.int64) + first]
    return LinkGraph(len(chips), tuple(edges), tuple(map(int, rates)))


def canonical_order(wires: LinkGraph) -> np.ndarray:
    """(chips,) int64, the chips in the order of their new numbers."""
    ways = _ways(wires)
    colours = _refined(np.zeros(wires.chips, np.int64), ways)
    while len(colours) and colours.max() + 1 < len(colours):
        alike = colours == np.flatnonzero(np.bincount(colours) > 1)[0]
        apart = 2 * colours + 1
        apart[np.flatnonzero(alike)[0]] -= 1
        colours = _refined(apart, ways)
    return np.argsort(colours)


def relabelled(wires: LinkGraph, order: np.ndarray) -> LinkGraph:
    """The same wires with chip order[k] as chip k, edges by their ends and links by their edges."""
    number = np.argsort(order)
    edges = [(int(number[a]), int(number[b]), links) for a, b, links in wires.edges]
    edges.sort(key=lambda edge: (*edge[:2], _figures(wires, edge[2])))
    known: dict[int, int] = {}
    found = tuple(
        (a, b, tuple(known.setdefault(link, len(known)) for link in links)) for a, b, links in edges
    )
    return attrs.evolve(wires, edges=found, rates=tuple(wires.rates[link] for link in known))


def _figures(wires: LinkGraph, links: tuple[int, ...]) -> tuple[int, ...]:
    return (len(links), *(wires.rates[link] for link in links))


def _ways(wires: LinkGraph) -> np.ndarray:
    """(chips, chips) int64, alike for pairs with the same edges there and back."""
    held: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for source, target, links in wires.edges:
        held.setdefault((source, target), []).append(_figures(wires, links))
    kinds = {pair: tuple(sorted(found)) for pair, found in held.items()}
    code = {kind: number for number, kind in enumerate(sorted(set(kinds.values())), 1)}
    there: np.ndarray = np.zeros((wires.chips, wires.chips), np.int64)
    for (source, target), kind in kinds.items():
        there[source, target] = code[kind]
    return there * (len(code) + 1) + there.T


def _refined(colours: np.ndarray, ways: np.ndarray) -> np.ndarray:
    """(chips,) int64, colours from 0 on, in the order of those given, that no neighbours part."""
    count = 0
    while True:
        seen = np.sort(ways * (2 * len(colours)) + colours, axis=1)
        rows = np.column_stack((colours, seen))
        colours = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        if int(colours.max(initial=-1)) + 1 == count:
            return colours
        count = int(colours.max(initial=-1)) + 1


@attrs.frozen(cache_hash=True, slots=False)
class TorusGrid:
    """Chips in the order of the group's wires, row-major over dimensions of more than one chip."""

    dims: tuple[int, ...]
    chips: tuple[int, ...]  # by place in the grid
    rates: tuple[int, ...]  # of the slowest link along each dimension, bytes a second
    is_even: bool  # whether all links of a dimension run at one rate
    outer: int | None  # the dimension that joins hosts; None: there is none

    @cached_property
    def table(self) -> np.ndarray:
        """(dims), the chips."""
        return np.array(self.chips, np.int64).reshape(self.dims)


def torus_grid_of(layout: GroupLayout, wires: LinkGraph) -> TorusGrid:
    """The grid that a group fills; UnsuitedError if rings of single links do not close on it."""
    topology = layout.placement.topology
    axes = topology.axes
    if not axes:
        raise UnsuitedError("its chips are on no torus")
    chips = np.array([layout.seats[cluster[0]].chip for cluster in layout.by_chip()], np.int64)
    within = chips % topology.chips_per_node
    places = [within // axis.stride % axis.extent for axis in axes]
    there = [np.unique(place) for place in places]
    if int(np.prod([len(values) for values in there])) != len(chips):
        raise UnsuitedError("its chips fill no part of a torus")
    for axis, values in zip(axes, there, strict=True):
        closes = axis.wraps and len(values) == axis.extent
        apart = int(values[-1] - values[0])
        is_pair = len(values) == 2 and (apart == 1 or (axis.wraps and apart == axis.extent - 1))
        if len(values) > 1 and not closes and not is_pair:
            raise UnsuitedError("its chips close no ring in some dimension of the torus")
    order = np.lexsort(places[::-1])
    some = [number for number, values in enumerate(there) if len(values) > 1]
    dims = tuple(len(there[number]) for number in some)
    table = order.reshape(dims)
    rates = [_rates(wires, table, axis) for axis in range(len(dims))]
    outer = topology.hosts_per_node > 1 and 0 in some
    return TorusGrid(
        dims=dims,
        chips=tuple(order.tolist()),
        rates=tuple(min(one) for one in rates),
        is_even=all(len(set(one)) == 1 for one in rates),
        outer=0 if outer else None,
    )


def _rates(wires: LinkGraph, table: np.ndarray, axis: int) -> list[int]:
    """The rates of all links along a dimension; UnsuitedError if one is down."""
    direct = {(a, b): links for a, b, links in wires.edges if len(links) == 1}
    found = []
    for step in (1, -1):
        ends = zip(
            table.ravel().tolist(), np.roll(table, -step, axis).ravel().tolist(), strict=True
        )
        for pair in ends:
            if pair not in direct:
                raise UnsuitedError("no single link joins some neighbours of the torus")
            found.append(wires.rates[direct[pair][0]])
    return found
