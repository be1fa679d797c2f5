"""What every transfer takes of the machine: delays, the parts that its bytes pass, and how often.

A *way* is a sender with its peers and the owners of its sources; rows of a ring between the same
places share one. Bytes of its result are counted: a reduction of k sources reads k for each, a
copy to two peers writes two.
"""

import attrs
import numpy as np

from ncc_runtime.execution.clock.cells import Alike, alike
from ncc_runtime.execution.clock.instances import Instances
from ncc_runtime.execution.clock.shares import FINE
from ncc_runtime.execution.clock.tables import NONE, empty
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue
from ncc_runtime.machine_model.instances import part_classes
from ncc_runtime.machine_model.parts import Kind, Parts
from ncc_runtime.topology.routes import Transport

MEGA = 10**6

_NO = np.zeros(0, np.int64)


@attrs.frozen(eq=False)
class _Kinds:
    """The kinds of rows of a ring: who is written to and read from, (kinds, ranks)."""

    index: np.ndarray  # (n,) which kind each row is
    peer: np.ndarray
    also: np.ndarray
    owners: np.ndarray  # (kinds, ranks, k), IDLE beyond the last
    reduces: np.ndarray  # (kinds,) bool


def kinds_of(queue: DmaQueue) -> _Kinds:
    """Rows that send to and read from the same ranks are of one kind."""
    ranks = queue.peer.shape[1]
    rows = len(queue.opcode)
    reduces = queue.opcode == DmaOpcode.REDUCE
    parts = [alike(queue.peer).index, reduces.astype(np.int64)]
    if queue.also_peer is not None:
        parts.append(alike(queue.also_peer).index)
    owners = _owners(queue)
    parts.append(owners.index)
    _, first, index = np.unique(
        np.stack(parts, axis=1).reshape(rows, -1), axis=0, return_index=True, return_inverse=True
    )
    nobody = np.full((len(first), ranks), IDLE, np.int32)
    also = nobody if queue.also_peer is None else queue.also_peer[first]
    found = owners.rows[owners.index[first]].reshape(len(first), ranks, -1)
    return _Kinds(index.ravel(), queue.peer[first], also, found, reduces[first])


def _owners(queue: DmaQueue) -> Alike:
    """In whose memory sources lie, (different, ranks * k), IDLE for none."""
    rows, ranks, most = queue.sources.shape
    if queue.source_rank is not None:
        return alike(queue.source_rank.reshape(rows, ranks * most))
    mine = np.broadcast_to(np.arange(ranks, dtype=np.int32)[:, None], (ranks, most))
    there = alike((queue.sources != IDLE).reshape(rows, ranks * most))
    return Alike(np.where(there.rows, mine.reshape(1, -1), IDLE), there.index)


class WayTable:
    """Collects the ways of all queues."""

    def __init__(self, parts: Parts, instances: Instances) -> None:
        self._parts, self._ranks = parts, instances.ranks
        self._classes = part_classes(parts, instances.count)
        self._count = 0
        self._lead: list[np.ndarray] = [_NO]
        self._latency: list[np.ndarray] = [_NO]
        self._packet: list[np.ndarray] = [_NO]
        self._entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = [(_NO, _NO, _NO)]
        self._slots: list[np.ndarray] = [_NO]  # of each way, the process that uses it

    def add_ring(self, queue: DmaQueue, number: int) -> Alike:
        """The ways of a ring, as a column."""
        kinds = kinds_of(queue)
        kind, rank = np.nonzero(kinds.peer != IDLE)
        column = np.full(kinds.peer.shape, IDLE, np.int64)
        column[kind, rank] = self._count + np.arange(len(kind))
        peer, also, owners = (
            kinds.peer[kind, rank],
            kinds.also[kind, rank],
            kinds.owners[kind, rank],
        )
        self._add_delays(rank, peer, also, owners)
        self._use_dma(queue, rank, (also != IDLE, kinds.reduces[kind], owners))
        self._write(rank, peer)
        twice = np.flatnonzero(also != IDLE)
        self._write(rank[twice], also[twice], twice)
        for owner in owners.T:
            self._read(rank, owner)
        self._finish(rank, number, self._parts.routes.topology.cc.packet_bytes)
        return Alike(column, kinds.index)

    def add_engine(self, number: int) -> Alike:
        """The ways of an engine's traffic between memory and core, a rank each, as one row."""
        parts, topology = self._parts, self._parts.routes.topology
        rank = np.arange(self._ranks)
        nothing = np.zeros(self._ranks, np.int64)
        self._lead.append(nothing)
        self._latency.append(nothing)
        self._use(rank, parts.stack[rank], 1)
        self._use(rank, self._pool(rank), 1)
        column = self._count + rank
        self._finish(rank, number, topology.dma.packet_bytes)
        return Alike(column[None, :], np.zeros(1, np.int64))

    def records(self, processes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All ways, their uses of parts that may be short of something, and all parts."""
        entries = (np.concatenate([one[k] for one in self._entries]) for k in range(3))
        way, part, times = self._joined(*entries)
        capacity = self._capacity()
        ways, parts = empty("way", self._count), empty("part", len(capacity))
        ways["cap"] = np.iinfo(np.int64).max
        np.minimum.at(ways["cap"], way, np.maximum(1, capacity[part] // times))
        way, part, times = self._joined(way, self._classes[part], times)
        asked = way, part, times * ways["cap"][way]
        keep = _tight_parts(asked, np.concatenate(self._slots), capacity, processes)[part]
        uses = empty("use", int(keep.sum()))
        uses["part"], uses["times"] = part[keep], times[keep]
        edges = np.searchsorted(way[keep], np.arange(self._count + 1))
        packet = np.concatenate(self._packet)
        ways["lead"], ways["latency"] = np.concatenate(self._lead), np.concatenate(self._latency)
        ways["packet"] = packet // max(1, np.gcd.reduce(packet))
        limit = np.minimum(ways["cap"], np.iinfo(np.int64).max >> FINE + 1)
        ways["slow"] = -(-(limit << FINE) // ways["packet"])
        ways["first_use"], ways["end_use"] = edges[:-1], edges[1:]
        ways["is_shared"] = np.diff(edges) > 0
        parts["capacity"], parts["user"] = capacity, NONE
        return ways, uses, parts

    def _joined(
        self, way: np.ndarray, part: np.ndarray, times: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Entries of one way and part as one, sorted by way, then part."""
        parts = self._parts.count + self._parts.ranks
        key, index = np.unique(way * parts + part, return_inverse=True)
        total = np.bincount(index, times, len(key)).astype(np.int64)
        return key // parts, key % parts, total

    def _pool(self, ranks: np.ndarray) -> np.ndarray:
        """All DMA engines of ranks together, parts behind those that the price knows.

        Instructions use them all alike, rings those of their channel.
        """
        return np.asarray(ranks, np.int64) + self._parts.count

    def _capacity(self) -> np.ndarray:
        """(parts and pools,) int64 MB/s."""
        parts = self._parts
        groups = parts.rates[parts.span(Kind.DMA)].reshape(parts.ranks, parts.groups)
        rates = np.concatenate((parts.rates, groups.sum(axis=1)))
        return np.maximum(1, rates // MEGA)

    def _add_delays(
        self, rank: np.ndarray, peer: np.ndarray, also: np.ndarray, owners: np.ndarray
    ) -> None:
        """A transfer ends at the slower of its peers; reads add the way of the first byte.

        The latency of EFA contains the start of the DMA: bytes flow after it there, too.
        """
        routes, start = self._parts.routes, np.int64(self._parts.model.dma_start_ps)
        whole = np.zeros(len(rank), np.int64)
        for to in (peer, np.where(also == IDLE, peer, also)):
            over_efa = routes.transport(rank, to) == Transport.EFA.code
            alone = routes.latency_ps(rank, to) + np.where(over_efa, 0, start)
            whole = np.maximum(whole, alone)
        mine = np.broadcast_to(rank[:, None], owners.shape)
        read = routes.latency_ps(np.where(owners == IDLE, mine, owners), mine)
        lead = np.minimum(whole, start)
        self._lead.append(lead)
        self._latency.append(whole - lead + read.max(axis=1, initial=0))

    def _use_dma(
        self,
        queue: DmaQueue,
        rank: np.ndarray,
        what: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> None:
        twice, reduces, owners = what
        passes = self._parts.routes.topology.dma.reduce_passes
        read = (owners != IDLE).sum(axis=1) * np.where(reduces, passes, 1)
        use = np.maximum(np.maximum(read, 1), 1 + twice)
        index = np.arange(len(rank))
        self._use(index, self._parts.dma(rank, queue.stream, queue.lane), use)
        self._use(index, self._pool(rank), use)

    def _write(self, rank: np.ndarray, peer: np.ndarray, index: np.ndarray | None = None) -> None:
        """Writing from ranks at peers; `index` says of which ways, if not of all."""
        parts, routes = self._parts, self._parts.routes
        index = np.arange(len(rank)) if index is None else index
        self._use(index, parts.stack[peer], 1)
        transport = routes.transport(rank, peer)
        near = np.flatnonzero(transport == Transport.INTRA_CHIP.code)
        self._use(index[near], parts.chip_out(rank[near]), 1)
        self._use(index[near], parts.chip_in(peer[near]), 1)
        start, links = routes.link_runs(rank, peer)
        self._use(np.repeat(index, np.diff(start)), links, 1)
        over = np.flatnonzero(transport == Transport.EFA.code)
        for adapter in parts.adapters(rank[over], peer[over]):
            self._use(index[over], adapter, 1)

    def _read(self, rank: np.ndarray, owner: np.ndarray) -> None:
        """Reading into ranks what lies at owners; IDLE for nothing."""
        parts = self._parts
        there = np.flatnonzero(owner != IDLE)
        self._use(there, parts.stack[owner[there]], 1)
        far = np.flatnonzero((owner != IDLE) & (owner != rank))
        self._use(far, parts.chip_out(owner[far]), 1)
        self._use(far, parts.chip_in(rank[far]), 1)

    def _use(self, index: np.ndarray, part: np.ndarray, use: np.ndarray | int) -> None:
        """Every byte of ways, numbered from the first that is being added, passes parts."""
        times = np.broadcast_to(np.asarray(use, np.int64), index.shape)
        self._entries.append((self._count + index, np.asarray(part, np.int64), times))

    def _finish(self, rank: np.ndarray, queue: int, packet_bytes: int) -> None:
        """End the ways of one queue."""
        self._slots.append(queue * self._ranks + rank)
        self._packet.append(np.full(len(rank), packet_bytes, np.int64))
        self._count += len(rank)


def _tight_parts(
    entries: tuple[np.ndarray, np.ndarray, np.ndarray],
    slots: np.ndarray,
    capacity: np.ndarray,
    processes: int,
) -> np.ndarray:
    """Parts that could be asked for more than they have, (parts,) bool.

    A process has one transfer under way at a time: of each process the way counts that asks most.
    """
    way, part, demand = entries
    key = part * processes + slots[way]
    found, index = np.unique(key, return_inverse=True)
    most = np.zeros(len(found), np.int64)
    np.maximum.at(most, index, demand)
    asked = np.zeros(len(capacity), np.int64)
    np.add.at(asked, found // processes, most)
    return asked > capacity
