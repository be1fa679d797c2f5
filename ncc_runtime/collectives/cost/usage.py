"""What a transfer of a plan takes of the machine: bytes per link, memory stack, DMA and adapter.

Everything is a row of one vector over `Parts`.
"""

from collections.abc import Hashable, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import IDLE, Transfer
from ncc_runtime.machine_model.instances import FirstParts
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.topology.routes import Transport


@attrs.frozen(eq=False)
class Load:
    """What one transfer of all groups of a team takes, for any sizes."""

    column: np.ndarray  # (n,) which active member's bytes
    part: np.ndarray  # (n,)
    factor: np.ndarray  # (n,) how often the bytes pass the part
    unit: np.ndarray  # (parts,) int64, of one byte at every active member
    rows: np.ndarray  # (parts,) int64, instructions of CC-cores
    flight_ps: int  # of the slowest first byte: start, way, arrival
    passing_ps: int  # the same on an average way
    ready_ps: int  # of the slowest word that a target is free, or what is read is there
    read_ps: int  # of the slowest word to whom it has read from, after the arrival

    def told(self, sizes: np.ndarray, width: int) -> Hashable:
        """Equal for sizes of which `bounded` makes the same."""
        most = int(sizes.max(initial=0))
        return most if most - int(sizes.min(initial=most)) <= width else sizes.tobytes()

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

    def __init__(self, parts: Parts, groups: np.ndarray, first: FirstParts | None = None) -> None:
        self._parts = parts
        self._first = first  # the parts that stand for all; None: each for itself
        self._groups = groups.astype(np.int64)  # (groups, members)
        self._known: dict[object, Load] = {}

    def of(self, move: Transfer) -> Load:
        """The load of a transfer."""
        owners = tuple(
            None if source.owner is None else source.owner.tobytes() for source in move.sources
        )
        also = None if move.also is None else move.also.peer.tobytes()
        key = move.peer.tobytes(), owners, also, move.lane
        if key not in self._known:
            self._known[key] = self._load(move)
        return self._known[key]

    def _load(self, move: Transfer) -> Load:
        parts, active = self._parts, np.flatnonzero(move.peer != IDLE)
        senders = self._groups[:, active]
        targets = [self._groups[:, move.peer[active]]]
        entries: list[_Entry] = []
        written = np.ones(len(active), np.int64)
        everyone = np.arange(len(active))
        flights = [self._write(entries, senders, targets[0], everyone)]
        if move.also is not None:
            twice = np.flatnonzero(move.also.peer[active] != IDLE)
            written[twice] += 1
            second = self._groups[:, move.also.peer[active[twice]]]
            flights.append(self._write(entries, senders[:, twice], second, twice))
        fetch_ps, answer_ps, read_ps = 0, 0, 0
        for source in move.sources:
            owner = active if source.owner is None else source.owner[active]
            memory = self._groups[:, np.where(owner == IDLE, active, owner)]
            entries.append(self._entry(everyone, parts.stack[memory]))
            self._pass_chip(entries, memory, senders, everyone)
            fetch_ps = max(fetch_ps, int(parts.routes.latency_ps(memory, senders).max(initial=0)))
            if source.owner is not None:
                answer_ps = max(answer_ps, self._word_ps(memory, senders))
                read_ps = max(read_ps, self._word_ps(senders, memory))
        moved = np.maximum(written, self._reading_passes(len(move.sources)))
        for times in np.unique(moved).tolist():
            some = np.flatnonzero(moved == times)
            columns, where, _ = self._entry(some, parts.dma(senders[:, some], 0, move.lane))
            entries.append((columns, where, times))
        cores, count = parts.cc_core(senders.ravel()), parts.count
        if self._first is not None:
            cores, count = self._first.number[cores], self._first.count
        rows = np.bincount(cores, minlength=count)
        flight, passing, ready = np.max(flights, axis=0).tolist()
        latencies = flight + fetch_ps, passing + fetch_ps, max(ready, answer_ps), read_ps
        return self._joined(entries, rows.astype(np.int64), latencies)

    def _reading_passes(self, sources: int) -> int:
        """How often a byte of the result passes the engines for what it is made of."""
        each = self._parts.routes.topology.dma.reduce_passes if sources > 1 else 1
        return sources * each

    def _joined(
        self, entries: Sequence[_Entry], rows: np.ndarray, latencies: tuple[int, int, int, int]
    ) -> Load:
        part = np.concatenate([where for _, where, _ in entries])
        count = self._parts.count
        if self._first is not None:
            part, count = self._first.number[part], self._first.count
        factor = np.concatenate([np.full(len(where), times) for _, where, times in entries])
        return Load(
            column=np.concatenate([columns for columns, _, _ in entries]),
            part=part,
            factor=factor,
            unit=np.bincount(part, factor, count).astype(np.int64),
            rows=rows,
            flight_ps=latencies[0],
            passing_ps=latencies[1],
            ready_ps=latencies[2],
            read_ps=latencies[3],
        )

    def _write(
        self, entries: list[_Entry], src: np.ndarray, dst: np.ndarray, columns: np.ndarray
    ) -> tuple[int, int, int]:
        """Add what writing takes; the slowest first byte, an average one, the slowest answer."""
        parts, routes, model = self._parts, self._parts.routes, self._parts.model
        start, links = routes.link_runs(src, dst)
        across = np.tile(columns, len(src))
        entries.append((np.repeat(across, np.diff(start)), links.astype(np.int64), 1))
        entries.append(self._entry(columns, parts.stack[dst]))
        self._pass_chip(entries, src, dst, columns)
        transport = routes.transport(src, dst)
        over = np.nonzero(transport == Transport.EFA.code)
        shares = parts.adapters(src[over], dst[over])
        entries.extend((columns[over[1]], share, 1) for share in shares)
        if not src.size:
            return 0, 0, 0
        remote = src != dst
        way = routes.latency_ps(src, dst)
        begun = np.where(transport == Transport.EFA.code, 0, model.dma_start_ps)
        told = np.where(remote, model.semaphore_remote_ps, model.semaphore_local_ps)
        arrived = begun + way + told
        passing = -(-int(arrived.sum()) // arrived.size)
        return int(arrived.max()), passing, self._word_ps(dst, src)

    def _word_ps(self, senders: np.ndarray, receivers: np.ndarray) -> int:
        """The slowest word from a rank to another, no data before it."""
        way = self._parts.routes.latency_ps(senders, receivers)
        words = np.where(senders != receivers, way + self._parts.model.semaphore_remote_ps, 0)
        return int(words.max(initial=0))

    def _pass_chip(
        self, entries: list[_Entry], src: np.ndarray, dst: np.ndarray, columns: np.ndarray
    ) -> None:
        """Add the ways out of a core and into another of one chip."""
        transport = self._parts.routes.transport(src, dst)
        inside = np.nonzero(transport == Transport.INTRA_CHIP.code)
        ways = self._parts.chip_out(src[inside]), self._parts.chip_in(dst[inside])
        entries.extend((columns[inside[1]], where, 1) for where in ways)

    @staticmethod
    def _entry(columns: np.ndarray, where: np.ndarray) -> _Entry:
        """Parts (groups, columns) of each column."""
        return np.tile(columns, len(where)), where.ravel(), 1
