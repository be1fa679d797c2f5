"""The link graph of a group: its chips, and what carries bytes between them.

An edge is a route that passes no other chip of the group: a link, or links through chips that have
no member. Chips and links are numbered in the group's order, so groups that are wired alike have
equal graphs and share the schedules that are found on them.

`canonical_order` numbers chips by how they are wired, so that graphs are equal also where only the
names of chips differ: a torus then has one plan for any one link of a dimension that may be down,
and no link is served worse than another. It is canonical labelling by colour refinement: colours of
chips are refined by those of their neighbours until nothing tells chips of one colour apart; then
one chip of the first shared colour gets a colour of its own, and so on. The usual search tries
every chip of that colour, this tries one: where such chips are not symmetric (on a torus they are),
groups wired alike may get different numbers, which costs a plan but makes none wrong.

`torus_grid_of` gives the grid that chips fill where the group is a torus, or a part of one on which
rings close in every dimension.

Source: McKay and Piperno, "Practical graph isomorphism, II", J. Symbolic Computation 2014.
"""

from functools import cached_property
from weakref import WeakKeyDictionary

import attrs
import numpy as np

from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.topology.chip_routes import chip_routes
from ncc_runtime.topology.graph import Topology

MOST_CHUNKS = 4
"""Chunks that the fastest link carries in a slot at most, where links have different rates."""

PARALLEL_SENDS = 4
"""Chunks that a chip can send in a slot at least: one for each group of DMA engines (assumed)."""


@attrs.frozen(cache_hash=True)
class LinkGraph:
    """Edges between chips 0..chips-1, and how much their links carry."""

    chips: int
    edges: tuple[tuple[int, int, tuple[int, ...]], ...]  # source, target, links in order
    rates: tuple[int, ...]  # of links, bytes a second

    @property
    def capacities(self) -> np.ndarray:
        """(links,) int64, the number of equal chunks that each link carries in a time slot.

        Rates are rounded down to multiples of a unit, a fraction of the fastest rate: the one that
        loses least of all rates together. A link that is too slow for one chunk gets none, unless
        chips would be cut off without it. Where the links of a chip are few all carry more, for the
        chunks of a slot go side by side, each by another group of DMA engines.
        """
        rates = np.array(self.rates, np.float64)
        fastest = rates.max(initial=1.0)
        # the fastest link carries 1..MOST_CHUNKS; 1e-9 keeps exact ratios from rounding down
        tried = [np.floor(rates * count / fastest + 1e-9) for count in range(1, MOST_CHUNKS + 1)]
        used = [carried.sum() / count for count, carried in enumerate(tried, 1)]
        chunks = tried[int(np.argmax(np.round(used, 6)))].astype(np.int64)
        chunks = chunks if self.is_connected(chunks > 0) else np.maximum(chunks, 1)
        sends = np.zeros((2, self.chips), np.int64)
        for end in (0, -1):  # of a route by which it leaves; the last one in a reversed graph
            for source, link in {(source, links[end]) for source, _, links in self.edges}:
                sends[end, source] += chunks[link]
        most = int(sends.min(axis=0).max(initial=0))
        return chunks * -(-PARALLEL_SENDS // max(1, most))

    def is_connected(self, is_used: np.ndarray) -> bool:
        """Whether edges of some links, (links,) bool, lead from every chip to every other."""
        reached = np.eye(self.chips, dtype=bool)
        for source, target, links in self.edges:
            reached[source, target] |= bool(is_used[list(links)].all())
        for _ in range(self.chips.bit_length()):  # each squaring doubles the hops that are allowed
            reached = reached.astype(np.int64) @ reached > 0
        return bool(reached.all())

    @property
    def reversed(self) -> "LinkGraph":
        """Every edge in the other direction, on the links that it had."""
        return attrs.evolve(self, edges=tuple((b, a, links) for a, b, links in self.edges))

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets of the edges, (edges,) int64 each."""
        ends = np.array([edge[:2] for edge in self.edges], np.int64).reshape(-1, 2)
        return ends[:, 0], ends[:, 1]

    def rate_of(self, ends: np.ndarray) -> np.ndarray:
        """(chips,) bytes a second of the edges by one of their ends; a link counts once."""
        slowest = [min(self.rates[link] for link in links) for _, _, links in self.edges]
        return np.bincount(ends, slowest, self.chips)


_GRAPHS: WeakKeyDictionary[Topology, dict[tuple[int, ...], LinkGraph]] = WeakKeyDictionary()
"""By chips, of topologies that somebody still has."""


def link_graph_of(layout: GroupLayout) -> LinkGraph:
    """The graph of a group on one instance; UnsuitedError if it is on several or on one chip."""
    if len(layout.by_node()) > 1:
        raise UnsuitedError("its members are on several instances")
    chips = [layout.seats[cluster[0]].chip for cluster in layout.by_chip()]
    if len(chips) == 1:
        raise UnsuitedError("its members share a chip")
    topology = layout.placement.topology
    graphs = _GRAPHS.setdefault(topology, {})
    if tuple(chips) not in graphs:
        graphs[tuple(chips)] = _link_graph(topology, tuple(chips))
    graph = graphs[tuple(chips)]
    if not graph.is_connected(np.ones(len(graph.rates), bool)):
        raise UnsuitedError("links that are down leave no way between some of its chips")
    return graph


def _link_graph(topology: Topology, chips: tuple[int, ...]) -> LinkGraph:
    table = chip_routes(topology)
    node, per_node = chips[0] // topology.chips_per_node, topology.chips_per_node
    within = np.array(chips, np.int64) - node * per_node
    number = {int(chip): place for place, chip in enumerate(within)}
    routes, rows = table.rows(np.array(node), within[:, None], within[None, :])
    heads = topology.links.dst[: topology.links_per_node].tolist()  # of the first instance's links
    number_of: dict[int, int] = {}  # of links, in the order in which edges take them
    edges = []
    for place, row in enumerate(rows.tolist()):
        for other, index in enumerate(row):
            route = routes.links[routes.start[index] : routes.start[index + 1]].tolist()
            passed = (heads[link] for link in route[:-1])
            if place != other and route and not any(chip in number for chip in passed):
                links = tuple(number_of.setdefault(link, len(number_of)) for link in route)
                edges.append((place, other, links))
    first = node * topology.links_per_node
    rates = topology.links.bandwidth_bytes_per_s[np.array(list(number_of), np.int64) + first]
    return LinkGraph(len(chips), tuple(edges), tuple(map(int, rates)))


def canonical_order(graph: LinkGraph) -> np.ndarray:
    """(chips,) int64, the chips in the order of their new numbers."""
    kinds = _pair_kinds(graph)
    colours = _refined(np.zeros(graph.chips, np.int64), kinds)
    while len(colours) and colours.max() + 1 < len(colours):
        shared = colours == np.flatnonzero(np.bincount(colours) > 1)[0]
        individualised = 2 * colours + 1  # leaves room for a colour below each
        individualised[np.flatnonzero(shared)[0]] -= 1
        colours = _refined(individualised, kinds)
    return np.argsort(colours)


def relabelled(graph: LinkGraph, order: np.ndarray) -> LinkGraph:
    """The graph with chip order[k] as chip k; edges sorted by their ends, links by their edges."""
    number = np.argsort(order)
    edges = [(int(number[a]), int(number[b]), links) for a, b, links in graph.edges]
    edges.sort(key=lambda edge: (*edge[:2], _length_and_rates(graph, edge[2])))
    number_of: dict[int, int] = {}
    numbered = tuple(
        (a, b, tuple(number_of.setdefault(link, len(number_of)) for link in links))
        for a, b, links in edges
    )
    rates = tuple(graph.rates[link] for link in number_of)
    return attrs.evolve(graph, edges=numbered, rates=rates)


def _length_and_rates(graph: LinkGraph, links: tuple[int, ...]) -> tuple[int, ...]:
    return (len(links), *(graph.rates[link] for link in links))


def _pair_kinds(graph: LinkGraph) -> np.ndarray:
    """(chips, chips) int64, equal for pairs of chips with the same edges there and back."""
    edges: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for source, target, links in graph.edges:
        edges.setdefault((source, target), []).append(_length_and_rates(graph, links))
    kinds = {pair: tuple(sorted(figures)) for pair, figures in edges.items()}
    code = {kind: number for number, kind in enumerate(sorted(set(kinds.values())), 1)}
    codes: np.ndarray = np.zeros((graph.chips, graph.chips), np.int64)
    for (source, target), kind in kinds.items():
        codes[source, target] = code[kind]
    return codes * (len(code) + 1) + codes.T  # both directions of a pair as one number


def _refined(colours: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """(chips,) int64, the coarsest equitable refinement: equal colours have equal neighbours.

    New colours count from 0 on, in the order of those given.
    """
    count = 0
    while True:
        # of each chip the multiset of (kind of pair, colour of the other); colours are below 2n
        neighbours = np.sort(kinds * (2 * len(colours)) + colours, axis=1)
        rows = np.column_stack((colours, neighbours))
        colours = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        if int(colours.max(initial=-1)) + 1 == count:
            return colours
        count = int(colours.max(initial=-1)) + 1


@attrs.frozen(cache_hash=True, slots=False)
class TorusGrid:
    """Chips in the order of the group's graph, row-major over dimensions of more than one chip."""

    dims: tuple[int, ...]
    chips: tuple[int, ...]  # by place in the grid
    rates: tuple[int, ...]  # of the slowest link along each dimension, bytes a second
    has_equal_rates: bool  # whether all links of a dimension run at one rate
    outer: int | None  # the dimension that joins hosts; None: there is none

    @cached_property
    def table(self) -> np.ndarray:
        """(dims), the chips."""
        return np.array(self.chips, np.int64).reshape(self.dims)


def torus_grid_of(layout: GroupLayout, graph: LinkGraph) -> TorusGrid:
    """The grid that a group fills; UnsuitedError if rings of single links do not close on it."""
    topology = layout.placement.topology
    axes = topology.axes
    if not axes:
        raise UnsuitedError("its chips are on no torus")
    chips = np.array([layout.seats[cluster[0]].chip for cluster in layout.by_chip()], np.int64)
    within = chips % topology.chips_per_node
    places = [within // axis.stride % axis.extent for axis in axes]
    values_of = [np.unique(place) for place in places]
    if int(np.prod([len(values) for values in values_of])) != len(chips):
        raise UnsuitedError("its chips fill no part of a torus")
    for axis, values in zip(axes, values_of, strict=True):
        closes = axis.wraps and len(values) == axis.extent
        apart = int(values[-1] - values[0])
        is_pair = len(values) == 2 and (apart == 1 or (axis.wraps and apart == axis.extent - 1))
        if len(values) > 1 and not closes and not is_pair:
            raise UnsuitedError("its chips close no ring in some dimension of the torus")
    order = np.lexsort(places[::-1])
    used = [number for number, values in enumerate(values_of) if len(values) > 1]
    dims = tuple(len(values_of[number]) for number in used)
    rates = [_ring_rates(graph, order.reshape(dims), axis) for axis in range(len(dims))]
    outer = topology.hosts_per_node > 1 and 0 in used
    return TorusGrid(
        dims=dims,
        chips=tuple(order.tolist()),
        rates=tuple(min(along) for along in rates),
        has_equal_rates=all(len(set(along)) == 1 for along in rates),
        outer=0 if outer else None,
    )


def _ring_rates(graph: LinkGraph, table: np.ndarray, axis: int) -> list[int]:
    """The rates of all links along a dimension; UnsuitedError if one is down."""
    direct = {(a, b): links for a, b, links in graph.edges if len(links) == 1}
    rates = []
    for step in (1, -1):
        neighbours = np.roll(table, -step, axis)
        for pair in zip(table.ravel().tolist(), neighbours.ravel().tolist(), strict=True):
            if pair not in direct:
                raise UnsuitedError("no single link joins some neighbours of the torus")
            rates.append(graph.rates[direct[pair][0]])
    return rates
