"""What a transfer of a plan takes of the machine: bytes per link, memory stack, DMA and adapter.

Everything is a row of one vector over `Parts`: first the directed links, then every rank's DMA
engines, the memory stacks, every rank's shares of adapters out and in, every rank's CC-core.
"""

import enum
from collections.abc import Sequence
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.collectives.plan import IDLE, Transfer
from ncc_runtime.timing import PS_PER_S, TimingModel, duration_ps
from ncc_runtime.topology.routes import Routes, Transport


class Kind(enum.Enum):
    """Parts of the machine that transfers share; the value is the word of reports."""

    LINK = "neuronlink"
    DMA = "dma"
    HBM = "hbm"
    EFA = "efa"
    CC_CORE = "cc"


@attrs.frozen(eq=False)
class Parts:
    """Every shared part of a machine, numbered, with its rate in bytes a second.

    A CC-core's amount is instructions. The stacks of a chip are shared evenly by its cores, in
    order.
    """

    routes: Routes
    model: TimingModel
    ranks: int
    stack: np.ndarray = attrs.field(init=False)  # (ranks,) of each rank's memory, as a part
    rates: np.ndarray = attrs.field(init=False)  # (parts,) int64

    @stack.default
    def _stacks_of_ranks(self) -> np.ndarray:
        topology, place = self.routes.topology, self.routes.placement
        on_chip = place.core.astype(np.int64) * topology.hbm.stacks // topology.ranks_per_chip
        first = len(topology.links) + self.ranks
        return np.asarray(first + place.chip * np.int64(topology.hbm.stacks) + on_chip)

    @rates.default
    def _rates_of_parts(self) -> np.ndarray:
        topology = self.routes.topology
        counts = [self._edges[kind][1] - self._edges[kind][0] for kind in Kind]
        links = np.maximum(topology.links.bandwidth_bytes_per_s, 1)
        rest = (
            topology.rank_dma_bandwidth_bytes_per_s,
            topology.hbm.stack_bandwidth_bytes_per_s,
            max(1, topology.rank_efa_bandwidth_bytes_per_s),
            max(1, PS_PER_S // max(1, self.model.cc_instruction_ps)),
        )
        return np.concatenate([links, np.repeat(np.array(rest, np.int64), counts[1:])])

    @cached_property
    def _edges(self) -> dict[Kind, tuple[int, int]]:
        topology = self.routes.topology
        stacks = topology.chips * topology.hbm.stacks
        counts = (len(topology.links), self.ranks, stacks, 2 * self.ranks, self.ranks)
        ends = np.cumsum(counts).tolist()
        return {
            kind: (end - count, end) for kind, count, end in zip(Kind, counts, ends, strict=True)
        }

    def span(self, kind: Kind) -> slice:
        """The parts of one kind."""
        return slice(*self._edges[kind])

    def kind(self, part: int) -> Kind:
        """What a part is."""
        return next(kind for kind, (_, end) in self._edges.items() if part < end)

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.rates)

    def time_ps(self, amounts: np.ndarray) -> np.ndarray:
        """What amounts take, each part alone with them."""
        return duration_ps(amounts, self.rates)

    def dma(self, ranks: np.ndarray) -> np.ndarray:
        """The DMA engines of ranks."""
        return ranks + self._edges[Kind.DMA][0]

    def adapters(self, senders: np.ndarray, receivers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The senders' shares on the way out, the receivers' on the way in."""
        first = self._edges[Kind.EFA][0]
        return senders + first, receivers + first + self.ranks

    def cc_core(self, ranks: np.ndarray) -> np.ndarray:
        """The CC-cores of ranks."""
        return ranks + self._edges[Kind.CC_CORE][0]


@attrs.frozen(eq=False)
class Load:
    """What one transfer of all groups of a team takes, for any sizes."""

    column: np.ndarray  # (n,) which active member's bytes
    part: np.ndarray  # (n,)
    factor: np.ndarray  # (n,) how often the bytes pass the part
    unit: np.ndarray  # (parts,) int64, of one byte at every active member
    rows: np.ndarray  # (parts,) int64, instructions of CC-cores
    flight_ps: int  # of the slowest first byte: start, way, arrival
    ready_ps: int  # of the slowest word that the target is free

    def bounded(self, sizes: np.ndarray, width: int) -> np.ndarray:
        """(parts,) int64, no less than what the bytes of the active members take, for times.

        Sizes that differ by no more than `width`, an element, all count as the largest.
        """
        if len(sizes) and 0 < int(sizes.max()) - int(sizes.min()) <= width:
            return self.unit * int(sizes.max()) + self.rows
        return self.exact(sizes, 1)

    def exact(self, sizes: np.ndarray, times: int) -> np.ndarray:
        """(parts,) int64, for the bytes of the active members in so many transfers together."""
        rows = self.rows * times
        if not len(sizes):
            return rows
        if (sizes == sizes[0]).all():
            return self.unit * int(sizes[0]) + rows
        weights = self.factor * sizes[self.column]
        found = np.bincount(self.part, weights, len(self.unit))
        return np.asarray(np.rint(found).astype(np.int64) + rows)


_Entry = tuple[np.ndarray, np.ndarray, int]
"""Columns, parts, and how often."""


class Loads:
    """The loads of a team's transfers; transfers between the same places share one."""

    def __init__(self, parts: Parts, groups: np.ndarray) -> None:
        self._parts = parts
        self._groups = groups.astype(np.int64)  # (groups, members)
        self._known: dict[object, Load] = {}

    def of(self, move: Transfer) -> Load:
        """The load of a transfer."""
        owners = tuple(
            None if source.owner is None else source.owner.tobytes() for source in move.sources
        )
        also = None if move.also is None else move.also.peer.tobytes()
        key = move.peer.tobytes(), owners, also
        if key not in self._known:
            self._known[key] = self._load(move)
        return self._known[key]

    def _load(self, move: Transfer) -> Load:
        parts, active = self._parts, np.flatnonzero(move.peer != IDLE)
        senders = self._groups[:, active]
        targets = [self._groups[:, move.peer[active]]]
        entries: list[_Entry] = []
        written = np.ones(len(active), np.int64)
        flights = [self._write(entries, senders, targets[0], np.arange(len(active)))]
        if move.also is not None:
            twice = np.flatnonzero(move.also.peer[active] != IDLE)
            written[twice] += 1
            second = self._groups[:, move.also.peer[active[twice]]]
            flights.append(self._write(entries, senders[:, twice], second, twice))
        for source in move.sources:
            owner = active if source.owner is None else source.owner[active]
            memory = self._groups[:, np.where(owner == IDLE, active, owner)]
            entries.append(self._entry(np.arange(len(active)), parts.stack[memory]))
        moved = np.maximum(written, len(move.sources))  # reads or writes, whichever are more
        for times in np.unique(moved).tolist():
            some = np.flatnonzero(moved == times)
            columns, where, _ = self._entry(some, parts.dma(senders[:, some]))
            entries.append((columns, where, times))
        rows = np.bincount(parts.cc_core(senders.ravel()), minlength=parts.count)
        return self._joined(entries, rows.astype(np.int64), np.max(flights, axis=0))

    def _joined(self, entries: Sequence[_Entry], rows: np.ndarray, flights: np.ndarray) -> Load:
        part = np.concatenate([where for _, where, _ in entries])
        factor = np.concatenate([np.full(len(where), times) for _, where, times in entries])
        return Load(
            column=np.concatenate([columns for columns, _, _ in entries]),
            part=part,
            factor=factor,
            unit=np.bincount(part, factor, self._parts.count).astype(np.int64),
            rows=rows,
            flight_ps=int(flights[0]),
            ready_ps=int(flights[1]),
        )

    def _write(
        self, entries: list[_Entry], src: np.ndarray, dst: np.ndarray, columns: np.ndarray
    ) -> tuple[int, int]:
        """Add what writing takes; the slowest first byte, and the slowest answer."""
        parts, routes, model = self._parts, self._parts.routes, self._parts.model
        start, links = routes.link_runs(src, dst)
        across = np.tile(columns, len(src))
        entries.append((np.repeat(across, np.diff(start)), links.astype(np.int64), 1))
        entries.append(self._entry(columns, parts.stack[dst]))
        transport = routes.transport(src, dst)
        over = np.nonzero(transport == Transport.EFA.code)
        shares = parts.adapters(src[over], dst[over])
        entries.extend((columns[over[1]], share, 1) for share in shares)
        if not src.size:
            return 0, 0
        remote = src != dst
        way = routes.latency_ps(src, dst)
        begun = np.where(transport == Transport.EFA.code, 0, model.dma_start_ps)
        told = np.where(remote, model.semaphore_remote_ps, model.semaphore_local_ps)
        answer = np.where(remote, routes.latency_ps(dst, src) + model.semaphore_remote_ps, 0)
        return int((begun + way + told).max()), int(answer.max())

    @staticmethod
    def _entry(columns: np.ndarray, where: np.ndarray) -> _Entry:
        """Parts (groups, columns) of each column."""
        return np.tile(columns, len(where)), where.ravel(), 1
