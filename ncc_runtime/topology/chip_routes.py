"""Routes between the chips of one instance, as one ragged table of link ids.

A torus, ring or line is routed in dimension order, columns (E, W) before rows (N, S), the shorter
way round; halfway round, an even coordinate goes up (E, S) and an odd one down (W, N), so that
both directions carry the same. Any other graph, and any pair whose way has a link down, takes a
path of fewest hops with the lowest link ids. All of it is assumed: AWS publishes no routing.
"""

import math
from collections.abc import Callable

import attrs
import numpy as np

from ncc_runtime.topology.fabric import PORTS, neighbour
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.quadrants import NO_PORT, opposite, port_codes
from ncc_runtime.topology.spec import FabricShape

UNREACHABLE = -1

Router = Callable[[int, int], "list[int] | None"]
"""The links from a chip to another, None if there is no way."""


@attrs.frozen(eq=False)
class ChipRoutes:
    """The route of a pair is links[start[p]:start[p + 1]] with p = self.pair(node, a, b).

    Instances whose links are down or slowed alike share their rows.
    """

    chips: int
    variant: np.ndarray  # (nodes,) int32
    start: np.ndarray  # (pairs + 1,) int64
    links: np.ndarray  # (m,) int32, as numbered in the first instance
    hops: np.ndarray  # (pairs,) int32, UNREACHABLE where no way is left
    bandwidth_bytes_per_s: np.ndarray  # (pairs,) int64, slowest link; largest if none
    leaves: np.ndarray  # (pairs,) int8, port code of the first link, NO_PORT if unknown
    enters: np.ndarray  # (pairs,) int8, port code at which the last link arrives

    def pair(self, node: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The row of two chips of one instance, chips numbered inside it."""
        return (self.variant[node] * self.chips + source) * self.chips + target


def chip_routes(topology: Topology) -> ChipRoutes:
    """The table of a topology, for all its instances."""
    chips, links = topology.chips_per_node, topology.links
    _, first_nodes = np.unique(links.variant, return_index=True)
    found: list[list[int] | None] = []
    rates = []
    for node in first_nodes.tolist():
        route = _router(topology, node)
        found += [route(source, target) for source in range(chips) for target in range(chips)]
        at = node * topology.links_per_node
        rates.append(links.bandwidth_bytes_per_s[at : at + topology.links_per_node])
    hops = np.array([UNREACHABLE if one is None else len(one) for one in found], np.int32)
    counts = np.maximum(hops, 0)
    start = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    flat = np.array([link for one in found for link in one or ()], np.int32)
    pair = np.repeat(np.arange(len(found)), counts)
    slowest = np.full(len(found), np.iinfo(np.int64).max)
    if len(flat):
        np.minimum.at(slowest, pair, np.array(rates)[pair // (chips * chips), flat])
    leaves, enters = _ends(topology, flat, start)
    for column in (start, flat, hops, slowest, leaves, enters):
        column.setflags(write=False)
    return ChipRoutes(chips, links.variant, start, flat, hops, slowest, leaves, enters)


def _ends(
    topology: Topology, links: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The ports by which every route leaves its first chip and enters its last."""
    leaves = np.full(len(start) - 1, NO_PORT, np.int8)
    enters = leaves.copy()
    some = np.diff(start) > 0
    code = port_codes(topology)[links]
    leaves[some] = code[start[:-1][some]]
    enters[some] = opposite(code[start[1:][some] - 1])
    return leaves, enters


def _router(topology: Topology, node: int) -> Router:
    """How an instance is routed; around its links that are down."""
    at = node * topology.links_per_node
    is_down = topology.links.is_down[at : at + topology.links_per_node]
    if not topology.dims:
        return _GraphRouter.of(topology, is_down).route
    if not is_down.any():
        return _GridRouter(topology).route
    grid, around = _GridRouter(topology), _GraphRouter.of(topology, is_down)

    def route(chip: int, target: int) -> list[int] | None:
        straight = grid.route(chip, target)
        return around.route(chip, target) if is_down[straight].any() else straight

    return route


@attrs.frozen(eq=False)
class _GridRouter:
    """Dimension order on a torus, ring or line."""

    topology: Topology
    link_at: dict[tuple[int, str], int] = attrs.field(init=False)  # by chip and port

    @link_at.default
    def _links_of_first_instance(self) -> dict[tuple[int, str], int]:
        links = self.topology.links
        return {(int(links.src[link]), port): link for link, port in enumerate(links.port)}

    def route(self, chip: int, target: int) -> list[int]:
        route: list[int] = []
        for axis in reversed(range(len(self.topology.dims))):
            port, step, count = self._way(axis, chip, target)
            for _ in range(count):
                route.append(self.link_at[chip, port])
                moved = neighbour(chip, self.topology.dims, axis, step)
                assert moved is not None, "a step along an axis of one chip"
                chip = moved
        return route

    def _way(self, axis: int, chip: int, target: int) -> tuple[str, int, int]:
        """The port, direction and number of steps along one axis."""
        dims, shape = self.topology.dims, self.topology.shape
        extent, stride = dims[axis], math.prod(dims[axis + 1 :])
        place, goal = chip // stride % extent, target // stride % extent
        up, down = (goal - place) % extent, (place - goal) % extent
        if shape is FabricShape.LINE:
            step = 1 if goal > place else -1
        elif up == down:
            step = 1 if place % 2 == 0 else -1
        else:
            step = 1 if up < down else -1
        ports = {(along, towards): port for port, along, towards in PORTS[shape]}
        return ports[axis, step], step, up if step == 1 else down


@attrs.frozen(eq=False)
class _GraphRouter:
    """Fewest hops over links that are up, by the lowest link id that leads closer at every chip."""

    sources: np.ndarray  # (n,) chips of the links of one instance
    targets: np.ndarray  # (n,)
    is_down: np.ndarray  # (n,) bool
    hops: np.ndarray  # (chips, chips) int32, UNREACHABLE on the way to nowhere

    @classmethod
    def of(cls, topology: Topology, is_down: np.ndarray) -> "_GraphRouter":
        chips, count = topology.chips_per_node, topology.links_per_node
        sources, targets = topology.links.src[:count], topology.links.dst[:count]
        import networkx  # slow to import, and most topologies do without

        graph = networkx.DiGraph()
        graph.add_nodes_from(range(chips))
        ends = (sources[~is_down].tolist(), targets[~is_down].tolist())
        graph.add_edges_from(zip(*ends, strict=True))
        hops = np.full((chips, chips), UNREACHABLE, np.int32)
        for source, lengths in networkx.all_pairs_shortest_path_length(graph):
            hops[source, list(lengths)] = list(lengths.values())
        return cls(sources, targets, is_down, hops)

    def route(self, chip: int, target: int) -> list[int] | None:
        away = self.hops[:, target]
        if away[chip] == UNREACHABLE:
            return None
        route: list[int] = []
        while chip != target:
            is_next = (self.sources == chip) & ~self.is_down
            closer = is_next & (away[self.targets] == away[chip] - 1)
            link = int(np.flatnonzero(closer)[0])
            route.append(link)
            chip = int(self.targets[link])
        return route
