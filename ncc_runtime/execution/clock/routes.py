"""What transfers use, as the kernel's records: `route`, `use` and `part` of tables.py.

A *route* here is a rank that performs transfers, with its peers and the owners of its sources; rows
of a ring between the same places share one. What it uses is what the price charges too
(machine_model/usage.py). Added for the clock: a rank's DMA engines together are one more part, its
pool, because rings use the engines of their channel and instructions use any.

Parts that can never be contended are left out. That is what keeps the max-min sharing
small: most transfers of most programs share nothing.
"""

import attrs
import numpy as np

from ncc_runtime.execution.clock.columns import DistinctRows, distinct_rows
from ncc_runtime.execution.clock.instances import Instances
from ncc_runtime.execution.clock.max_min import FINE
from ncc_runtime.execution.clock.tables import NONE, empty
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue
from ncc_runtime.machine_model.instances import part_classes
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.usage import first_byte_ps, transfer_usage
from ncc_runtime.topology.routes import Transport

MEGA = 10**6

_NO = np.zeros(0, np.int64)


@attrs.frozen(eq=False)
class _Patterns:
    """The different patterns of a ring's rows: the ranks written to and read from."""

    index: np.ndarray  # (n,) the pattern of each row
    peer: np.ndarray  # (patterns, ranks)
    second_peer: np.ndarray  # (patterns, ranks), IDLE where there is none
    owners: np.ndarray  # (patterns, ranks, k), IDLE beyond the last source
    reduces: np.ndarray  # (patterns,) bool


def _patterns_of(queue: DmaQueue) -> _Patterns:
    """Rows that send to and read from the same ranks have one pattern."""
    rows, ranks, most = queue.sources.shape
    reduces = queue.opcode == DmaOpcode.REDUCE
    if queue.source_rank is not None:
        owners = distinct_rows(queue.source_rank.reshape(rows, ranks * most))
    else:  # all sources are the rank's own
        own_rank = np.broadcast_to(np.arange(ranks, dtype=np.int32)[:, None], (ranks, most))
        has = distinct_rows((queue.sources != IDLE).reshape(rows, ranks * most))
        owners = DistinctRows(np.where(has.rows, own_rank.reshape(1, -1), IDLE), has.index)
    keys = [distinct_rows(queue.peer).index, reduces.astype(np.int64)]
    if queue.second_peer is not None:
        keys.append(distinct_rows(queue.second_peer).index)
    keys.append(owners.index)
    _, first, index = np.unique(
        np.stack(keys, axis=1), axis=0, return_index=True, return_inverse=True
    )
    nobody = np.full((len(first), ranks), IDLE, np.int32)
    return _Patterns(
        index=index.ravel(),
        peer=queue.peer[first],
        second_peer=nobody if queue.second_peer is None else queue.second_peer[first],
        owners=owners.rows[owners.index[first]].reshape(len(first), ranks, -1),
        reduces=reduces[first],
    )


class RouteRecords:
    """Collects the routes of all queues."""

    def __init__(self, parts: Parts, instances: Instances) -> None:
        self._parts, self._ranks = parts, instances.ranks
        self._classes = part_classes(parts, instances.count)
        self._count = 0
        self._lead: list[np.ndarray] = [_NO]
        self._latency: list[np.ndarray] = [_NO]
        self._packet: list[np.ndarray] = [_NO]
        self._pair: list[np.ndarray] = [_NO]  # the rank sent to over EFA
        self._relayed: list[np.ndarray] = [_NO]  # routes
        self._entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = [(_NO, _NO, _NO)]
        self._processes: list[np.ndarray] = [_NO]  # of each route, the process that uses it

    def add_ring(self, queue: DmaQueue, number: int) -> DistinctRows:
        """The routes of a ring, as a column: a number per row and rank, IDLE for no transfer."""
        parts, patterns = self._parts, _patterns_of(queue)
        pattern, rank = np.nonzero(patterns.peer != IDLE)
        column = np.full(patterns.peer.shape, IDLE, np.int64)
        column[pattern, rank] = self._count + np.arange(len(rank))
        peer, second = patterns.peer[pattern, rank], patterns.second_peer[pattern, rank]
        owners = patterns.owners[pattern, rank]
        usage = transfer_usage(
            parts,
            rank,
            [peer, second],
            list(owners.T),
            patterns.reduces[pattern],
            queue.stream,
            queue.lane,
        )
        self._use(usage.transfer, usage.part, usage.times)
        self._use(np.arange(len(rank)), self._pool(rank), usage.dma_passes)

        # a transfer ends when the slower of its peers has it
        other_peer = np.where(second == IDLE, peer, second)
        over_efa = [
            parts.routes.transport(rank, to) == Transport.EFA.code for to in (peer, other_peer)
        ]
        pair = np.where(over_efa[0], peer, np.where(over_efa[1], other_peer, NONE))
        relayed = np.flatnonzero(usage.is_relayed)
        self._relayed.append(self._count + relayed)
        first_byte = np.maximum(
            first_byte_ps(parts, rank, peer), first_byte_ps(parts, rank, other_peer)
        )
        reader = np.broadcast_to(rank[:, None], owners.shape)
        owner = np.where(owners == IDLE, reader, owners)
        fetch = parts.routes.latency_ps(owner, reader).max(axis=1, initial=0)
        # bytes flow once the DMA has started; over EFA, too, whose latency contains the start
        lead = np.minimum(first_byte, np.int64(parts.model.dma_start_ps))
        packet_bytes = parts.routes.topology.cc.packet_bytes
        self._add(rank, number, lead, first_byte - lead + fetch, packet_bytes, pair)
        return DistinctRows(column, patterns.index)

    def add_engine(self, number: int) -> DistinctRows:
        """The routes of an engine's traffic between memory and core, one a rank, as one row."""
        parts, topology = self._parts, self._parts.routes.topology
        rank = np.arange(self._ranks)
        once, nothing = np.ones(self._ranks, np.int64), np.zeros(self._ranks, np.int64)
        self._use(rank, parts.stack[rank], once)
        self._use(rank, self._pool(rank), once)
        column = self._count + rank
        nobody = np.full(self._ranks, NONE)
        self._add(rank, number, nothing, nothing, topology.dma.packet_bytes, nobody)
        return DistinctRows(column[None, :], np.zeros(1, np.int64))

    def records(
        self, processes: int, disturbed: np.ndarray = _NO
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All routes, their uses of parts that may be contended or are disturbed, and all parts."""
        entries = (np.concatenate(column) for column in zip(*self._entries, strict=True))
        route, part, times = self._merged(*entries)
        parts = self._parts
        of_rank = parts.rates[parts.span(PartKind.DMA)].reshape(parts.ranks, parts.groups)
        rates = np.concatenate((parts.rates, of_rank.sum(axis=1)))
        capacity = np.maximum(1, rates // MEGA)

        routes, part_records = empty("route", self._count), empty("part", len(capacity))
        routes["cap"] = np.iinfo(np.int64).max
        rate = np.maximum(1, capacity[part] // times)
        np.minimum.at(routes["cap"], route, rate)
        self._slow_relayed(routes["cap"], route, part, rate)
        if len(disturbed):
            self._find_other_caps(routes, route, part, rate, disturbed)
        # one instance is simulated for all symmetric ones: its flows load its own parts with what
        # other instances' flows would load them with
        route, part, times = self._merged(route, self._classes[part], times)
        demand = times * routes["cap"][route]
        process = np.concatenate(self._processes)[route]
        keep = _contended_parts(part, demand, process, capacity, processes)[part]
        keep |= np.isin(part, disturbed)
        uses = empty("use", int(keep.sum()))
        uses["part"], uses["times"] = part[keep], times[keep]
        bounds = np.searchsorted(route[keep], np.arange(self._count + 1))
        packet = np.concatenate(self._packet)
        routes["pair"] = np.concatenate(self._pair)
        routes["lead"] = np.concatenate(self._lead)
        routes["latency"] = np.concatenate(self._latency)
        routes["weight"] = packet // max(1, np.gcd.reduce(packet))
        limit = np.minimum(routes["cap"], np.iinfo(np.int64).max >> FINE + 1)
        routes["cap_level"] = -(-(limit << FINE) // routes["weight"])
        routes["first_use"], routes["end_use"] = bounds[:-1], bounds[1:]
        routes["is_shared"] = np.diff(bounds) > 0
        part_records["capacity"], part_records["user"] = capacity, NONE
        part_records["is_network"][parts.network_parts] = 1
        return routes, uses, part_records

    def _slow_relayed(
        self, cap: np.ndarray, route: np.ndarray, part: np.ndarray, rate: np.ndarray
    ) -> None:
        """What is reduced first and then sent takes as long as both: 1 / (1/a + 1/b), MB/s."""
        relayed = np.concatenate(self._relayed)
        if not len(relayed):
            return
        in_network = np.isin(part, self._parts.network_parts)
        rates = np.full((2, len(cap)), np.iinfo(np.int64).max)
        for side, of_side in zip(rates, (in_network, ~in_network), strict=True):
            np.minimum.at(side, route[of_side], rate[of_side])
        one, other = rates[:, relayed]
        cap[relayed] = np.maximum(1, one * other // (one + other))

    def _find_other_caps(
        self,
        routes: np.ndarray,
        route: np.ndarray,
        part: np.ndarray,
        rate: np.ndarray,
        disturbed: np.ndarray,
    ) -> None:
        """What the parts of a route that are not disturbed let pass, for its cap at any time."""
        is_disturbed = np.isin(part, disturbed)
        routes["is_disturbed"][route[is_disturbed]] = 1
        routes["is_relayed"][np.concatenate(self._relayed)] = 1
        in_network = np.isin(part, self._parts.network_parts)
        for name, of_side in (("network_cap", in_network), ("other_cap", ~in_network)):
            routes[name] = MEGA * MEGA  # more than any part has
            np.minimum.at(
                routes[name], route[of_side & ~is_disturbed], rate[of_side & ~is_disturbed]
            )

    def _merged(
        self, route: np.ndarray, part: np.ndarray, times: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Entries of the same route and part added up, sorted by route, then part."""
        parts = self._parts.count + self._parts.ranks
        key, index = np.unique(route * parts + part, return_inverse=True)
        total = np.bincount(index, times, len(key)).astype(np.int64)
        return key // parts, key % parts, total

    def _pool(self, ranks: np.ndarray) -> np.ndarray:
        """All DMA engines of ranks together, parts behind those that the price knows."""
        return np.asarray(ranks, np.int64) + self._parts.count

    def _use(self, index: np.ndarray, part: np.ndarray, times: np.ndarray) -> None:
        """Every byte of routes, numbered from the first that is being added, passes parts."""
        self._entries.append((self._count + index, part, times))

    def _add(
        self,
        rank: np.ndarray,
        queue: int,
        lead_ps: np.ndarray,
        latency_ps: np.ndarray,
        packet_bytes: int,
        pair: np.ndarray,
    ) -> None:
        """Number the routes of one queue, one for each of `rank`."""
        self._lead.append(lead_ps)
        self._latency.append(latency_ps)
        self._processes.append(queue * self._ranks + rank)
        self._packet.append(np.full(len(rank), packet_bytes, np.int64))
        self._pair.append(pair)
        self._count += len(rank)


def _contended_parts(
    part: np.ndarray,
    demand: np.ndarray,
    process: np.ndarray,
    capacity: np.ndarray,
    processes: int,
) -> np.ndarray:
    """Parts whose flows could demand more than they have, (parts,) bool.

    `part`, `demand` (MB/s) and `process` are columns of entries. A process has one transfer under
    way at a time, so of its routes the one that demands most counts.
    """
    pair, index = np.unique(part * processes + process, return_inverse=True)
    most = np.zeros(len(pair), np.int64)
    np.maximum.at(most, index, demand)
    total = np.zeros(len(capacity), np.int64)
    np.add.at(total, pair // processes, most)
    return total > capacity
