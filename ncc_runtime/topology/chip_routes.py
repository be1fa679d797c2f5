"""Routes between the chips of one instance, as one ragged table of link ids.

A torus, ring or line is routed in dimension order, columns (E, W) before rows (N, S), the shorter
way round; halfway round, an even coordinate goes up (E, S) and an odd one down (W, N), so that
both directions carry the same. Any other graph takes a path of fewest hops with the lowest link
ids. All of it is assumed: AWS publishes no routing.
"""

import math

import attrs
import networkx
import numpy as np

from ncc_runtime.topology.fabric import PORTS, neighbour
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.spec import FabricShape


@attrs.frozen(eq=False)
class ChipRoutes:
    """The route from chip a to chip b is links[start[p]:start[p + 1]] with p = a * chips + b."""

    chips: int
    start: np.ndarray  # (chips * chips + 1,) int64
    links: np.ndarray  # (m,) int32, as numbered in the first instance
    hops: np.ndarray  # (chips * chips,) int32
    bandwidth_bytes_per_s: np.ndarray  # (chips * chips,) int64, slowest link; largest if none


def chip_routes(topology: Topology) -> ChipRoutes:
    """The table of a topology, the same for each of its instances."""
    chips = topology.chips_per_node
    route = _GridRouter(topology).route if topology.dims else _GraphRouter.of(topology).route
    routes = [route(source, target) for source in range(chips) for target in range(chips)]
    hops = np.array([len(links) for links in routes], np.int32)
    start = np.concatenate(([0], np.cumsum(hops, dtype=np.int64)))
    flat = np.array([link for links in routes for link in links], np.int32)
    slowest = np.full(chips * chips, np.iinfo(np.int64).max)
    rates = topology.links.bandwidth_bytes_per_s[flat]
    np.minimum.at(slowest, np.repeat(np.arange(chips * chips), hops), rates)
    for column in (start, flat, hops, slowest):
        column.setflags(write=False)
    return ChipRoutes(chips, start, flat, hops, slowest)


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
    """Fewest hops, taking the lowest link id that leads closer at every chip."""

    topology: Topology
    hops: np.ndarray  # (chips, chips) int32, -1 on the way to nowhere

    @classmethod
    def of(cls, topology: Topology) -> "_GraphRouter":
        chips, count = topology.chips_per_node, topology.links_per_node
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(chips))
        sources, targets = topology.links.src[:count], topology.links.dst[:count]
        graph.add_edges_from(zip(sources.tolist(), targets.tolist(), strict=True))
        hops = np.full((chips, chips), -1, np.int32)
        for source, lengths in networkx.all_pairs_shortest_path_length(graph):
            hops[source, list(lengths)] = list(lengths.values())
        return cls(topology, hops)

    def route(self, chip: int, target: int) -> list[int]:
        count = self.topology.links_per_node
        sources, targets = self.topology.links.src[:count], self.topology.links.dst[:count]
        away = self.hops[:, target]
        route: list[int] = []
        while chip != target:
            closer = (sources == chip) & (away[targets] == away[chip] - 1)
            link = int(np.flatnonzero(closer)[0])
            route.append(link)
            chip = int(targets[link])
        return route
