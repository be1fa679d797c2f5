"""Routes between the chips of one instance, as ragged tables of link ids.

A grid of chips is routed in dimension order (grid_ways.py). Any other graph, and any pair whose way
has a link down, takes a path of fewest links with the lowest ids (graph_ways.py). Every pair has
one way, which data and its semaphore both take. All of it is assumed: AWS publishes no routing.

Up to DENSE_CHIPS chips there is one table of all pairs; beyond, one is made of those that a query
asks for.
"""

from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.graph_ways import UNREACHABLE, GraphWays
from ncc_runtime.topology.grid_ways import GridWays
from ncc_runtime.topology.quadrants import NO_PORT, opposite, port_codes

__all__ = ["UNREACHABLE", "ChipRoutes", "LargeRoutes", "RouteTable", "Ways", "chip_routes"]

DENSE_CHIPS = 160
"""Instances of more chips have no table of all pairs."""


@attrs.frozen(eq=False)
class Ways:
    """Routes by row: the k-th is links[start[k]:start[k + 1]], numbered as in instance 0."""

    start: np.ndarray  # (rows + 1,) int64
    links: np.ndarray  # (m,) int32
    hops: np.ndarray  # (rows,) int32, links of the way, UNREACHABLE where no way is left
    latency_ps: np.ndarray  # (rows,) int64, of its links
    bandwidth_bytes_per_s: np.ndarray  # (rows,) int64, slowest link; largest if none
    leaves: np.ndarray  # (rows,) int8, port code of the first link, NO_PORT if unknown
    enters: np.ndarray  # (rows,) int8, port code at which the last link arrives


@attrs.frozen(eq=False)
class ChipRoutes(Ways):
    """All routes of an instance; those whose links are down or slowed alike share their rows."""

    chips: int
    variant: np.ndarray  # (nodes,) int32

    def pair(self, node: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The row of two chips of one instance, chips numbered inside it."""
        return (self.variant[node] * self.chips + source) * self.chips + target

    def rows(
        self, node: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[Ways, np.ndarray]:
        """Ways, and which of them are those of pairs of chips of instances."""
        return self, self.pair(node, source, target)


@attrs.frozen(eq=False)
class LargeRoutes:
    """Routes that are found when they are asked for."""

    router: "_Router"
    chips: int
    variant: np.ndarray  # (nodes,) int32

    def rows(
        self, node: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[Ways, np.ndarray]:
        """Ways, and which of them are those of pairs of chips of instances."""
        chips = np.int64(self.chips)
        pair = (self.variant[node].astype(np.int64) * chips + source) * chips + target
        keys, index = np.unique(pair, return_inverse=True)
        rest, to = np.divmod(keys, chips)
        variant, from_ = np.divmod(rest, chips)
        return self.router.ways(variant, from_, to), index.reshape(pair.shape)


RouteTable: TypeAlias = ChipRoutes | LargeRoutes


def chip_routes(topology: Topology) -> RouteTable:
    """The routes of a topology, for all its instances."""
    chips, variant = topology.chips_per_node, topology.links.variant
    router = _Router.of(topology)
    if chips > DENSE_CHIPS:
        return LargeRoutes(router, chips, variant)
    variants = int(variant.max()) + 1
    number, source, target = (
        side.ravel() for side in np.indices((variants, chips, chips), sparse=False)
    )
    ways = router.ways(number, source, target)
    columns = {field.name: getattr(ways, field.name) for field in attrs.fields(Ways)}
    for column in columns.values():
        column.setflags(write=False)
    return ChipRoutes(**columns, chips=chips, variant=variant)


@attrs.frozen(eq=False)
class _Router:
    """The links of every kind of instance of a topology, by variant."""

    graphs: tuple[GraphWays, ...]
    grid: GridWays | None
    rates: np.ndarray  # (variants, links) int64
    latency_ps: np.ndarray  # (links,) int64
    port: np.ndarray  # (links,) int8

    @classmethod
    def of(cls, topology: Topology) -> "_Router":
        links, count = topology.links, topology.links_per_node
        _, nodes = np.unique(links.variant, return_index=True)
        by_node = (len(links.variant), count)
        is_up = ~links.is_down.reshape(by_node)[nodes]
        chips = topology.chips_per_node
        src, dst = (
            np.where(side >= links.chips, side - links.chips + chips, side).astype(np.int64)
            for side in (links.src[:count], links.dst[:count])
        )
        ends = chips + topology.switches_per_node
        axes = topology.axes
        return cls(
            graphs=tuple(GraphWays(ends, chips, src, dst, up) for up in is_up),
            grid=GridWays.of(axes, src, links.port) if axes else None,
            rates=links.bandwidth_bytes_per_s.reshape(by_node)[nodes],
            latency_ps=links.latency_ps[:count],
            port=port_codes(topology),
        )

    def ways(self, variant: np.ndarray, source: np.ndarray, target: np.ndarray) -> Ways:
        """The routes of pairs of chips of instances of so-numbered variants."""
        if self.grid is None:
            start, links, hops = self._through_graphs(variant, source, target)
        else:
            start, links = self.grid.ways(source, target)
            hops = np.diff(start).astype(np.int32)
            start, links, hops = self._around(variant, (source, target), (start, links, hops))
        counts = np.diff(start)
        row = np.repeat(np.arange(len(counts)), counts)
        slowest = np.full(len(counts), np.iinfo(np.int64).max)
        latency = np.zeros(len(counts), np.int64)
        some = np.flatnonzero(counts)
        if len(some):
            at = start[:-1][some]
            slowest[some] = np.minimum.reduceat(self.rates[variant[row], links], at)
            latency[some] = np.add.reduceat(self.latency_ps[links], at)
        return Ways(start, links, hops, latency, slowest, *self._ends(links, start))

    def _through_graphs(
        self, variant: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pairs, found = [], []
        for number, graph in enumerate(self.graphs):
            some = np.flatnonzero(variant == number)
            pairs.append(some)
            found.append(graph.ways(source[some], target[some]))
        return _in_order(pairs, found)

    def _around(
        self,
        variant: np.ndarray,
        ends: tuple[np.ndarray, np.ndarray],
        straight: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Straight ways, but for those with a link that is down."""
        _, links, hops = straight
        is_up = np.array([graph.is_up for graph in self.graphs])
        if is_up.all():
            return straight
        row = np.repeat(np.arange(len(hops)), hops)
        broken = np.unique(row[~is_up[variant[row], links]])
        if not len(broken):
            return straight
        kept = np.setdiff1d(np.arange(len(hops)), broken)
        whole = np.isin(row, kept)
        starts = np.concatenate(([0], np.cumsum(hops[kept], dtype=np.int64)))
        detours = self._through_graphs(variant[broken], ends[0][broken], ends[1][broken])
        return _in_order([kept, broken], [(starts, links[whole], hops[kept]), detours])

    def _ends(self, links: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ports by which every route leaves its first chip and enters its last."""
        leaves = np.full(len(start) - 1, NO_PORT, np.int8)
        enters = leaves.copy()
        some = np.diff(start) > 0
        code = self.port[links]
        leaves[some] = code[start[:-1][some]]
        enters[some] = opposite(code[start[1:][some] - 1])
        return leaves, enters


def _in_order(
    rows: "list[np.ndarray]", parts: "list[tuple[np.ndarray, np.ndarray, np.ndarray]]"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parts of a table, each with the numbers of its rows, as one table in their order."""
    count = sum(map(len, rows))
    hops = np.empty(count, np.int32)
    for some, (_, _, own) in zip(rows, parts, strict=True):
        hops[some] = own
    counts = np.maximum(hops, 0)
    start = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    links = np.empty(start[-1], np.int32)
    for some, (begins, own, _) in zip(rows, parts, strict=True):
        each = np.diff(begins)
        within = np.arange(len(own)) - np.repeat(begins[:-1], each)
        links[np.repeat(start[some], each) + within] = own
    return start, links, hops
