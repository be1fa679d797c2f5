"""Routes: over which links, adapters and transports bytes go from one rank to another.

Queries are whole arrays of rank pairs. Inside an instance routes are those of `chip_routes`; a core
that does not sit at the port by which it leaves, or is entered, crosses its chip first, or last.
Between instances every rank uses its own chip's adapter (assumed; AWS publishes no routing).
"""

import enum
from collections.abc import Iterator
from typing import Protocol

import attrs
import numpy as np

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.chip_routes import UNREACHABLE, RouteRows, RouteTable, chip_routes
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.quadrants import (
    NO_PORT,
    PORTS,
    dies_of_cores,
    planes_of_cores,
    ports_of_cores,
)


class Transport(enum.Enum):
    """How bytes travel between two ranks; the value is the word of listings and reports."""

    LOCAL = "local"
    INTRA_CHIP = "intra_chip"
    NEURONLINK = "neuronlink"
    EFA = "efa"

    @property
    def code(self) -> int:
        """Its number in arrays, an index of TRANSPORTS."""
        return TRANSPORTS.index(self)


TRANSPORTS: tuple[Transport, ...] = tuple(Transport)

MOST_NAMED = 8
"""Pairs of chips that an error names."""


class PlacedRanks(Protocol):
    """What routing needs of a placement: columns by rank."""

    @property
    def chip(self) -> np.ndarray: ...  # (ranks,) int32, through all instances

    @property
    def core(self) -> np.ndarray: ...  # (ranks,) int32, logical core on the chip


@attrs.frozen(eq=False)
class Routes:
    """Routes between placed ranks: whole arrays of (src, dst) at once, or one pair for listings.

    Queries take rank numbers that broadcast against each other and return arrays of that shape.
    TopologyError if links that are down leave two ranks of an instance without a route.
    """

    topology: Topology
    placement: PlacedRanks
    table: RouteTable = attrs.field(init=False)
    port: np.ndarray = attrs.field(init=False)  # (ranks,) int8, where the core sits, or NO_PORT
    plane: np.ndarray = attrs.field(init=False)  # (ranks,) int8, likewise its port D or U
    die: np.ndarray = attrs.field(init=False)  # (ranks,) int8, of its chip

    @table.default
    def _build_table(self) -> RouteTable:
        return chip_routes(self.topology)

    @port.default
    def _ports_of_ranks(self) -> np.ndarray:
        chip = self.placement.chip % self.topology.chips_per_node
        return ports_of_cores(self.topology)[chip, self.placement.core]

    @plane.default
    def _planes_of_ranks(self) -> np.ndarray:
        chip = self.placement.chip % self.topology.chips_per_node
        return planes_of_cores(self.topology)[chip, self.placement.core]

    @die.default
    def _dies_of_ranks(self) -> np.ndarray:
        return dies_of_cores(self.topology)[self.placement.core]

    def __attrs_post_init__(self) -> None:
        if self.topology.links.is_down.any():
            self._check_reachable()

    def transport(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Codes of the transports, uint8; TRANSPORTS[code] is the transport."""
        src, dst = self._ranks(src, dst)
        chip_a, chip_b = self.placement.chip[src], self.placement.chip[dst]
        per_node = self.topology.chips_per_node
        codes = np.where(
            chip_a // per_node == chip_b // per_node,
            np.uint8(Transport.NEURONLINK.code),
            np.uint8(Transport.EFA.code),
        )
        codes = np.where(chip_a == chip_b, np.uint8(Transport.INTRA_CHIP.code), codes)
        return np.where(src == dst, np.uint8(Transport.LOCAL.code), codes)

    def hops(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Links of the route, int32, two through a switch; 0 on a chip and over EFA."""
        inside, table, pair = self._pairs(src, dst)
        return np.where(inside, table.hops[pair], np.int32(0))

    def links_ps(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """The latency of the links of the route, int64; 0 on a chip and over EFA."""
        inside, table, pair = self._pairs(src, dst)
        return np.where(inside, table.latency_ps[pair], np.int64(0))

    def bandwidth_bytes_per_s(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """The slowest part of each route for one copy, nothing else running, int64.

        Bounded by the sender's DMA engines of one channel and the memory stacks, then by the
        slowest link, the ports of the cores to the fabric of their chip, or adapters and queue
        pairs.
        """
        codes = self.transport(src, dst)
        _, table, pair = self._pairs(src, dst)
        sender, receiver = self._ranks(src, dst)
        topology = self.topology
        slowest = np.minimum(
            self.channel_bandwidth_bytes_per_s(sender), self._memory_rate(sender, receiver)
        )
        limits = {
            Transport.INTRA_CHIP: topology.rank_chip_bandwidth_bytes_per_s or slowest,
            Transport.NEURONLINK: table.bandwidth_bytes_per_s[pair],
            Transport.EFA: topology.rank_efa_bandwidth_bytes_per_s,
        }
        for transport, limit in limits.items():
            slowest = np.where(codes == transport.code, np.minimum(slowest, limit), slowest)
        return np.asarray(slowest, np.int64)

    def channel_bandwidth_bytes_per_s(self, ranks: np.ndarray) -> np.ndarray:
        """What the DMA engines of one channel of each rank copy in a second, int64."""
        place, topology = self.placement, self.topology
        percent = topology.dma_percent(place.chip[ranks], place.core[ranks])
        all_engines = topology.rank_dma_bandwidth_bytes_per_s
        return np.maximum(1, all_engines * percent // (100 * topology.rank_dma_channels))

    def latency_ps(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Time of the first byte in flight, without DMA and semaphore costs, int64."""
        fixed = latency_by_transport(self.topology)[self.transport(src, dst)]
        return np.asarray(fixed + self.links_ps(src, dst) + self.crossing_ps(src, dst))

    def crossings(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """How often a NeuronLink route crosses the first and last chip, int32, 0 to 2.

        Once where the sender sits at another port than the first link's, once where the receiver
        does not sit where the last link arrives; 0 where ports are unknown.
        """
        inside, table, pair = self._pairs(src, dst)
        if not self.topology.core_ports:
            return np.zeros(inside.shape, np.int32)
        leaves, enters = table.leaves[pair], table.enters[pair]
        count = (~self._is_at(src, leaves)).astype(np.int32) + ~self._is_at(dst, enters)
        return np.where(inside, count, np.int32(0))

    def _is_at(self, rank: np.ndarray, code: np.ndarray) -> np.ndarray:
        """Whether ranks' cores sit at ports; true of NO_PORT, so that nothing crosses there."""
        is_unknown = code == NO_PORT
        return is_unknown | (self.port[rank] == code) | (self.plane[rank] == code)

    def crossing_ps(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """The part of the latency that crossings cost, and between the dies of a chip, int64."""
        src, dst = self._ranks(src, dst)
        chip, place = self.topology.intra_chip, self.placement.chip
        between = (place[src] == place[dst]) & (self.die[src] != self.die[dst])
        crossed = self.crossings(src, dst) * np.int64(chip.latency_ps)
        return np.asarray(crossed + between * np.int64(chip.die_latency_ps))

    def link_runs(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Links of many routes: the k-th pair, flattened, uses links[start[k]:start[k + 1]]."""
        src, dst = self._ranks(src, dst)
        inside, table, pair = self._pairs(src, dst)
        hops = np.where(inside, table.hops[pair], 0).ravel().astype(np.int64)
        start = np.concatenate(([0], np.cumsum(hops)))
        node = self.placement.chip[src] // self.topology.chips_per_node
        # position of each link in its route, then its row in the table of the first instance
        within = np.arange(start[-1]) - np.repeat(start[:-1], hops)
        local = table.links[np.repeat(table.start[pair.ravel()], hops) + within]
        return start, local + np.repeat(node.ravel() * self.topology.links_per_node, hops)

    def links(self, src: int, dst: int) -> tuple[int, ...]:
        """Link ids of one route, in order."""
        _, links = self.link_runs(np.array([src]), np.array([dst]))
        return tuple(int(link) for link in links)

    def adapter(self, rank: np.ndarray) -> np.ndarray:
        """The EFA adapter of each rank, numbered through the instances, int32; -1 without EFA."""
        rank, _ = self._ranks(rank, rank)
        efa = self.topology.efa
        if efa is None:
            return np.full(rank.shape, -1, np.int32)
        return np.asarray(self.placement.chip[rank] // np.int32(efa.chips_per_adapter))

    def describe(self, src: int, dst: int) -> str:
        """One route as listings print it: `neuronlink c0.E>c1, c1.E>c2`, `efa n0.efa3>n1.efa3`."""
        transport = TRANSPORTS[int(self.transport(np.array(src), np.array(dst)))]
        if transport is Transport.NEURONLINK:
            return f"{transport.value} {', '.join(self._steps(src, dst))}"
        if transport is Transport.EFA:
            return f"{transport.value} {self._adapter_name(src)}>{self._adapter_name(dst)}"
        return f"{transport.value} c{self.placement.chip[src]}"

    def _steps(self, src: int, dst: int) -> Iterator[str]:
        """A NeuronLink route link by link, `c0:W>E` where it crosses its first or last chip."""
        chip, here, there = self.placement.chip, np.array(src), np.array(dst)
        _, table, pair = self._pairs(here, there)
        leaves, enters = int(table.leaves[pair]), int(table.enters[pair])
        if not self._is_at(here, np.array(leaves)):
            yield f"c{chip[src]}:{PORTS[self.port[src]]}>{PORTS[leaves]}"
        for link in self.links(src, dst):
            yield self.topology.links.step(link)
        if not self._is_at(there, np.array(enters)):
            yield f"c{chip[dst]}:{PORTS[enters]}>{PORTS[self.port[dst]]}"

    def _check_reachable(self) -> None:
        """Refuse ranks that links down have cut off; TopologyError names the pairs of chips."""
        per_node = self.topology.chips_per_node
        apart: list[str] = []
        for node in range(self.topology.nodes):
            chips = np.unique(self.placement.chip[self.placement.chip // per_node == node])
            within = chips - node * per_node
            table, rows = self.table.rows(np.array(node), within[:, None], within)
            apart += [
                f"c{chips[source]} to c{chips[target]}"
                for source, target in np.argwhere(table.hops[rows] == UNREACHABLE)
            ]
        if apart:
            more = f" and {len(apart) - MOST_NAMED} more" if len(apart) > MOST_NAMED else ""
            raise TopologyError(
                f"{self.topology.name}: links that are down leave no route from "
                f"{', '.join(apart[:MOST_NAMED])}{more}"
            )

    def _adapter_name(self, rank: int) -> str:
        assert self.topology.efa is not None, "instances are joined by EFA only"
        node, adapter = divmod(int(self.adapter(np.array(rank))), self.topology.efa.adapters)
        return f"n{node}.efa{adapter}"

    def _memory_rate(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """The rate of the memory stacks, int64: half where one stack is both read and written."""
        place, topology = self.placement, self.topology
        stack = place.core.astype(np.int64) * topology.hbm.stacks // topology.ranks_per_chip
        same = (place.chip[src] == place.chip[dst]) & (stack[src] == stack[dst])
        rate = topology.hbm.stack_bandwidth_bytes_per_s
        return np.maximum(1, np.where(same, rate // 2, rate))

    def _ranks(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both sides broadcast; a rank outside the placement is a fault of the caller."""
        both = np.broadcast_arrays(src, dst)
        for ranks in (src, dst):
            ranks = np.asarray(ranks)
            if ranks.size and not 0 <= ranks.min() <= ranks.max() < len(self.placement.chip):
                raise ValueError(
                    f"ranks {ranks.min()} to {ranks.max()} are not all among the "
                    f"{len(self.placement.chip)} placed ranks"
                )
        return both[0], both[1]

    def _pairs(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, RouteRows, np.ndarray]:
        """Whether both sides share an instance, a table of routes, and the rows of their chips."""
        src, dst = self._ranks(src, dst)
        per_node = self.topology.chips_per_node
        node_a, chip_a = np.divmod(self.placement.chip[src], per_node)
        node_b, chip_b = np.divmod(self.placement.chip[dst], per_node)
        inside = node_a == node_b
        table, pair = self.table.rows(node_a, chip_a, np.asarray(np.where(inside, chip_b, chip_a)))
        return inside, table, pair


def latency_by_transport(topology: Topology) -> np.ndarray:
    """The part of the latency that links do not change, by transport code, int64."""
    efa = topology.efa.latency_ps if topology.efa is not None else 0
    return np.array([0, topology.intra_chip.latency_ps, 0, efa], np.int64)
