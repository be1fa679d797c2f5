"""What plans are priced on: the machine's parts, and what each transfer of a plan loads them with.

A load is a vector over all parts (links, DMA engines, memory stacks, ports, CC-cores; see
machine_model/parts.py), summed over all groups that run at the same time. It is linear in the bytes
of the members, so it is worked out once for a pattern of peers and sources, for any sizes.
"""

from collections.abc import Hashable

import attrs
import numpy as np

from ncc_runtime.collectives.plan import IDLE, Transfer
from ncc_runtime.collectives.symmetry import RepresentativeParts
from ncc_runtime.machine_model.instances import FirstParts
from ncc_runtime.machine_model.parts import NETWORK, PartKind, Parts
from ncc_runtime.machine_model.timing import duration_ps
from ncc_runtime.machine_model.usage import (
    completion_ps,
    first_byte_ps,
    signal_ps,
    transfer_usage,
)

Groups = np.ndarray
"""(groups, members) ranks."""

LoadsKey = tuple[int, bytes, bool]
"""Groups, and whether the first instance stands for all."""


@attrs.frozen(eq=False)
class TransferLoad:
    """What one transfer, performed by all groups at once, takes of the machine, for any sizes."""

    column: np.ndarray  # (n,) which active member's bytes
    part: np.ndarray  # (n,) that they pass
    times: np.ndarray  # (n,) how often
    unit: np.ndarray  # (parts,) int64, of one byte at every active member
    rows: np.ndarray  # (parts,) int64, instructions of CC-cores
    is_relayed: bool  # some are reduced in memory before an adapter sends them
    latency_ps: int  # until the slowest first byte is seen: fetch, DMA start, route, semaphore
    average_latency_ps: int  # the same over an average route
    grant_ps: int  # the slowest signal that a target is free, or that a source's data is there
    release_ps: int  # the slowest signal to a source's owner that it has been read

    def size_key(self, sizes: np.ndarray, element_bytes: int) -> Hashable:
        """Equal for sizes that `bounded` cannot tell apart."""
        most = int(sizes.max(initial=0))
        return most if most - int(sizes.min(initial=most)) <= element_bytes else sizes.tobytes()

    def bounded(self, sizes: np.ndarray, element_bytes: int) -> np.ndarray:
        """(parts,) int64, no less than what the bytes of the active members take, for one transfer.

        Sizes that differ by no more than an element all count as the largest.
        """
        if len(sizes) and 0 < int(sizes.max()) - int(sizes.min()) <= element_bytes:
            return self.unit * int(sizes.max()) + self.rows
        return self.exact(sizes, 1)

    def exact(self, sizes: np.ndarray, transfers: int) -> np.ndarray:
        """(parts,) int64, for the bytes of the active members in several transfers together."""
        rows = self.rows * transfers
        if not len(sizes):
            return rows
        if (sizes == sizes[0]).all():
            return self.unit * int(sizes[0]) + rows
        weights = self.times * sizes[self.column]
        total = np.bincount(self.part, weights, len(self.unit))
        return np.asarray(np.rint(total).astype(np.int64) + rows)


class TransferLoads:
    """The loads of transfers between members of groups; those of one pattern share a load."""

    def __init__(self, parts: Parts, groups: Groups, first: FirstParts | None = None) -> None:
        """`first`: the parts of the first instance if they stand for all, else None."""
        self._parts = parts
        self._first = first
        self._groups = groups.astype(np.int64)
        self._by_pattern: dict[object, TransferLoad] = {}

    def of(self, move: Transfer) -> TransferLoad:
        """The load of a transfer."""
        owners = tuple(
            None if source.owner is None else source.owner.tobytes() for source in move.sources
        )
        second = None if move.second_target is None else move.second_target.peer.tobytes()
        pattern = move.peer.tobytes(), owners, second, move.lane
        if pattern not in self._by_pattern:
            self._by_pattern[pattern] = self._load(move)
        return self._by_pattern[pattern]

    def _load(self, move: Transfer) -> TransferLoad:
        parts, active = self._parts, np.flatnonzero(move.peer != IDLE)
        ranks = self._groups[:, active].ravel()

        def ranks_of(members: np.ndarray) -> np.ndarray:
            """Members of every group as ranks, flat as `ranks` is; IDLE stays."""
            return np.where(members == IDLE, IDLE, self._groups[:, members]).ravel()

        peers = [ranks_of(move.peer[active])]
        if move.second_target is not None:
            peers.append(ranks_of(move.second_target.peer[active]))
        latency_ps = average_ps = grant_ps = release_ps = fetch_ps = 0
        for peer in peers:
            src, dst = ranks[peer != IDLE], peer[peer != IDLE]
            if not src.size:
                continue
            seen_ps = first_byte_ps(parts, src, dst) + completion_ps(parts, src, dst)
            latency_ps = max(latency_ps, int(seen_ps.max()))
            average_ps = max(average_ps, -(-int(seen_ps.sum()) // seen_ps.size))
            grant_ps = max(grant_ps, self._slowest_signal_ps(dst, src))
        owners = []
        for source in move.sources:
            if source.owner is None:
                owner = ranks
            else:
                members = source.owner[active]
                owner = ranks_of(np.where(members == IDLE, active, members))
                grant_ps = max(grant_ps, self._slowest_signal_ps(owner, ranks))
                release_ps = max(release_ps, self._slowest_signal_ps(ranks, owner))
            owners.append(owner)
            fetch_ps = max(fetch_ps, int(parts.routes.latency_ps(owner, ranks).max(initial=0)))

        usage = transfer_usage(
            parts, ranks, peers, owners, reduces=len(owners) > 1, stream=0, lane=move.lane
        )
        part, cores, count = usage.part, parts.cc_core(ranks), parts.count
        if self._first is not None:
            part, cores = self._first.number[part], self._first.number[cores]
            count = self._first.count
        return TransferLoad(
            column=usage.transfer % max(1, len(active)),
            part=part,
            times=usage.times,
            unit=np.bincount(part, usage.times, count).astype(np.int64),
            rows=np.bincount(cores, minlength=count).astype(np.int64),
            is_relayed=bool(usage.is_relayed.any()),
            latency_ps=latency_ps + fetch_ps,
            average_latency_ps=average_ps + fetch_ps,
            grant_ps=grant_ps,
            release_ps=release_ps,
        )

    def _slowest_signal_ps(self, src: np.ndarray, dst: np.ndarray) -> int:
        """Of signals between ranks, no data before them; a rank needs none to itself."""
        signals = np.where(src != dst, signal_ps(self._parts, src, dst), 0)
        return int(signals.max(initial=0))


@attrs.frozen(eq=False)
class PricingModel:
    """What plans are priced on."""

    parts: Parts
    cc_cores: int = 1  # of a rank, that run the placeholder's stream
    cached_loads: dict[LoadsKey, TransferLoads] | None = None  # for many sizes; None: no cache
    symmetry: RepresentativeParts | None = None  # if the first instance stands for all
    _seconds: np.ndarray = attrs.field(init=False)  # (parts,) float64, for one byte or instruction

    @_seconds.default
    def _seconds_of_parts(self) -> np.ndarray:
        seconds = 1 / self.vector.rates
        seconds[self.vector.span(PartKind.CC_CORE)] /= self.cc_cores
        return np.asarray(seconds)

    def loads(self, groups: Groups) -> TransferLoads:
        """The loads of transfers within groups, which do not depend on sizes."""
        first = None if self.symmetry is None else self.symmetry.parts
        if self.cached_loads is None:
            return TransferLoads(self.parts, groups, first)
        key = len(groups), groups.tobytes(), first is None
        if key not in self.cached_loads:
            self.cached_loads[key] = TransferLoads(self.parts, groups, first)
        return self.cached_loads[key]

    @property
    def vector(self) -> Parts | FirstParts:
        """The parts that amounts are of."""
        return self.parts if self.symmetry is None else self.symmetry.parts

    @property
    def row_ps(self) -> int:
        """The time of one row of a CC-core program."""
        return -(-self.parts.model.cc_instruction_ps // self.cc_cores)

    def time_ps(self, amounts: np.ndarray) -> np.ndarray:
        """(parts,) what amounts take, each part alone with them."""
        times = self.vector.time_ps(amounts)
        rows = self.vector.span(PartKind.CC_CORE)
        times[rows] = -(-times[rows] // self.cc_cores)
        return times

    def relayed_ps(self, amounts: np.ndarray) -> int:
        """What amounts take that the network passes on when all else is done with them."""
        network = np.zeros_like(amounts)
        for kind in NETWORK:
            network[self.vector.span(kind)] = amounts[self.vector.span(kind)]
        return self.busiest(network)[0] + self.busiest(amounts - network)[0]

    def busiest(self, amounts: np.ndarray) -> tuple[int, PartKind]:
        """The longest of these times, and the kind of its part.

        Floats find the part, which is quick; its time is then worked out in whole picoseconds.
        """
        part = int((amounts * self._seconds).argmax())
        kind = self.vector.kind(part)
        time_ps = int(duration_ps(int(amounts[part]), int(self.vector.rates[part])))
        return (-(-time_ps // self.cc_cores) if kind is PartKind.CC_CORE else time_ps), kind
