"""Flows that share parts of a machine, and what a transfer takes of them: the slow, plain way.

Half of the clock's reference (`clock_reference.py`). The rates of all flows are found anew at every
instant, by progressive filling over all parts (Bertsekas and Gallager, Data Networks, 6.5.2).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue, EngineQueue, Executable
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.durations import Duration, duration_of
from ncc_runtime.neff.shared.identity_memo import IdentityMemo
from ncc_runtime.neff.table import InstrTable
from ncc_runtime.neff.work.instructions import works_of
from ncc_runtime.neff.work.work import Work
from ncc_runtime.topology.routes import TRANSPORTS, Transport

MEGA = 10**6
NEVER = 10**40
Part = Hashable
Number = int | Fraction


@attrs.define(eq=False)
class Flow:
    """Bytes under way; each of them passes a part `uses[part]` times."""

    uses: Mapping[Part, int]
    packet: int
    left: Number  # 1e-6 bytes
    done: Callable[[int], None]  # called with the time when the last byte is there
    is_relayed: bool = False  # reduced in memory before the network sends it
    process: tuple[int, int] = (0, 0)  # queue and rank
    stands_since: int | None = None
    rate: Number = 0  # MB/s, that is 1e-6 bytes in a picosecond
    end: int = 0


@attrs.frozen(eq=False)
class Instant:
    """What is under way from a time on, and what that takes of each part, MB/s."""

    time: int
    used: Mapping[Part, Number]
    rates: tuple[tuple[Flow, Number], ...]


class Network:
    """Flows under way now. Rates are whole MB/s, rounded down, or exact."""

    def __init__(
        self,
        capacity: Mapping[Part, Number],
        is_exact: bool,
        capacity_at: Callable[[Part, int], Number] | None = None,
        stands_still: Callable[[tuple[int, int], int], bool] = lambda *_: False,
    ) -> None:
        """`capacity_at` is what a part has at a time, if that changes."""
        self.capacity, self.is_exact = capacity, is_exact
        self._capacity_at, self._stands_still = capacity_at, stands_still
        self.flows: list[Flow] = []
        self.now = 0
        self.instants: list[Instant] = []

    def rounded(self, rate: Number) -> Number:
        return rate if self.is_exact else rate // 1

    def present(self, part: Part) -> Number:
        """What a part has now."""
        return self._capacity_at(part, self.now) if self._capacity_at else self.capacity[part]

    def is_blocked(self, flow: Flow) -> bool:
        """Whether nothing of a flow can pass now."""
        return self._stands_still(flow.process, self.now) or not all(map(self.present, flow.uses))

    def alone(self, uses: Mapping[Part, int], is_relayed: bool = False) -> Number:
        """The rate of a flow that has all its parts to itself.

        What is relayed takes the time of its reduction and then that of the network.
        """
        return self._alone({part: self.capacity[part] for part in uses}, uses, is_relayed)

    def _alone(
        self, has: Mapping[Part, Number], uses: Mapping[Part, int], is_relayed: bool = False
    ) -> Number:
        if is_relayed:
            sides = (
                self._alone(has, {part: n for part, n in uses.items() if _is_network(part) is side})
                for side in (False, True)
            )
            rates = [self.rounded(1 / sum(1 / Fraction(rate) for rate in sides))]
        else:
            rates = [self.rounded(Fraction(has[part]) / n) for part, n in uses.items()]
        return rates and max(min(rates), 0 if self.is_exact else 1)

    def advance(self, now: int) -> None:
        """Move bytes until a later time, and tell the flows that are over."""
        for flow in self.flows:
            flow.left -= flow.rate * (now - self.now)
        self.now = now
        # what has no bytes left is over, but what never had any needs a way that is open
        over = [
            flow
            for flow in self.flows
            if flow.left <= 0 and (flow.rate > 0 or not self.is_blocked(flow))
        ]
        self.flows = [flow for flow in self.flows if flow not in over]
        for flow in over:
            flow.done(now)

    def share(self) -> None:
        """New rates for all flows, and when each would end."""
        going = [flow for flow in self.flows if not self.is_blocked(flow)]
        for flow in self.flows:
            if flow not in going:
                flow.stands_since = self.now if flow.stands_since is None else flow.stands_since
                flow.rate, flow.end = 0, NEVER
        for flow, rate in zip(going, self._rates(going), strict=True):
            flow.rate, flow.stands_since = rate, None
            flow.end = self.now + -(-flow.left // rate)
        used: Counter[Part] = Counter()
        for flow in self.flows:
            used.update({part: n * flow.rate for part, n in flow.uses.items()})
        rates = tuple((flow, flow.rate) for flow in self.flows)
        self.instants.append(Instant(self.now, dict(used), rates))

    def _rates(self, flows: list[Flow]) -> Iterable[Number]:
        """Weighted max-min fair shares: the tightest part first, nobody above the rate alone."""
        has = {part: self.present(part) for flow in flows for part in flow.uses}
        spare = {part: Fraction(capacity) for part, capacity in has.items()}
        left = dict(enumerate(flows))
        rates: dict[int, Number] = {}
        while left:
            least, tightest = _least_share(spare, left.values())
            offered = {number: self.rounded(least * flow.packet) for number, flow in left.items()}
            alone = {n: self._alone(has, flow.uses, flow.is_relayed) for n, flow in left.items()}
            content = [n for n in left if alone[n] <= offered[n]]
            fixed = content or [n for n, flow in left.items() if tightest & flow.uses.keys()]
            for number in fixed:
                flow = left.pop(number)
                rate = alone[number] if content else offered[number]
                rates[number] = rate if self.is_exact else max(1, rate)
                for part, times in flow.uses.items():
                    spare[part] = max(Fraction(0), spare[part] - times * rates[number])
        return [rates[number] for number in range(len(flows))]


def _is_network(part: Part) -> bool:
    return isinstance(part, tuple) and part[0] in ("adapter", "pair")


def _least_share(
    spare: Mapping[Part, Fraction], flows: Iterable[Flow]
) -> tuple[Fraction, set[Part]]:
    """The least that a part can give for each packet that waits for it, and the parts so short."""
    weight: Counter[Part] = Counter()
    for flow in flows:
        weight.update({part: times * flow.packet for part, times in flow.uses.items()})
    shares = {part: spare[part] / packets for part, packets in weight.items()}
    least = min(shares.values())
    return least, {part for part, share in shares.items() if share == least}


def capacities(parts: Parts, is_exact: bool) -> dict[Part, Number]:
    """MB/s of every part, and of all DMA engines of a rank together ("all", rank).

    Adapters ("adapter", number, direction) and what a rank's connections carry ("pair", rank,
    direction) are taken from the topology.
    """
    rates: dict[Part, int] = dict(enumerate(parts.rates.tolist()))
    if (efa := parts.routes.topology.efa) is not None:
        for way in ("out", "in"):
            for number in range(efa.adapters * parts.routes.topology.nodes):
                rates["adapter", number, way] = efa.adapter_bandwidth_bytes_per_s
            for rank in range(parts.ranks):
                limit = efa.queue_pair_bandwidth_bytes_per_s or efa.adapter_bandwidth_bytes_per_s
                rates["pair", rank, way] = limit
    channels = parts.rates[parts.span(PartKind.DMA)].reshape(parts.ranks, -1).sum(axis=1)
    rates |= {("all", rank): rate for rank, rate in enumerate(channels.tolist())}
    if is_exact:
        return {part: Fraction(rate, MEGA) for part, rate in rates.items()}
    return {part: max(1, rate // MEGA) for part, rate in rates.items()}


def transport(executable: Executable, one: int, other: int) -> Transport:
    """How bytes go between two ranks."""
    return TRANSPORTS[int(executable.routes.transport(np.array(one), np.array(other)))]


@attrs.frozen
class Ends:
    """Whose memory a transfer reads, a source after another, and whose it writes."""

    owners: tuple[int, ...]
    peers: tuple[int, ...]

    @classmethod
    def of(cls, queue: DmaQueue, row: int, rank: int) -> "Ends":
        """Of a row of a ring, as a rank performs it."""
        owners = [rank] * queue.sources.shape[2]
        if queue.source_rank is not None:
            owners = queue.source_rank[row, rank].tolist()
        read = [
            owner
            for owner, address in zip(owners, queue.sources[row, rank].tolist(), strict=True)
            if address != IDLE
        ]
        peers = [int(queue.peer[row, rank])]
        if queue.second_peer is not None:
            peers.append(int(queue.second_peer[row, rank]))
        return cls(tuple(read), tuple(peer for peer in peers if peer != IDLE))


def transfer_uses(
    executable: Executable, parts: Parts, queue: DmaQueue, where: tuple[int, int]
) -> Mapping[Part, int]:
    """How often each byte of the result passes each part, for a row of a ring on a rank."""
    row, rank = where
    ends, uses = Ends.of(queue, row, rank), Counter[Part]()
    passes = len(ends.owners)
    if queue.opcode[row] == DmaOpcode.REDUCE:
        passes *= executable.topology.dma.reduce_passes
    passes = max(1, passes, len(ends.peers))
    uses[int(parts.dma(np.array(rank), queue.stream, queue.lane))] += passes
    uses["all", rank] += passes
    if is_relayed(executable, queue, where):
        uses[int(parts.stack[rank])] += 2
    for owner in ends.owners:
        uses[int(parts.stack[owner])] += 1
        if owner != rank:
            uses[int(parts.chip_out(np.array(owner)))] += 1
            uses[int(parts.chip_in(np.array(rank)))] += 1
    for peer in ends.peers:
        uses[int(parts.stack[peer])] += 1
        uses.update(_way(executable, parts, rank, peer))
    return uses


def _way(executable: Executable, parts: Parts, rank: int, peer: int) -> Iterable[Part]:
    """What lies between two ranks."""
    kind = transport(executable, rank, peer)
    if kind is Transport.INTRA_CHIP:
        return int(parts.chip_out(np.array(rank))), int(parts.chip_in(np.array(peer)))
    if kind is Transport.NEURONLINK:
        return executable.routes.links(rank, peer)
    if kind is Transport.EFA:
        chips = executable.topology.efa.chips_per_adapter
        out, into = (int(executable.placement.chip[one]) // chips for one in (rank, peer))
        pairs = ("pair", rank, "out"), ("pair", peer, "in")
        return ("adapter", out, "out"), ("adapter", into, "in"), *pairs
    return ()


def is_relayed(executable: Executable, queue: DmaQueue, where: tuple[int, int]) -> bool:
    """Whether a row of a ring reduces what goes to another instance."""
    row, rank = where
    peers = Ends.of(queue, row, rank).peers
    crosses = any(transport(executable, rank, peer) is Transport.EFA for peer in peers)
    return crosses and queue.opcode[row] == DmaOpcode.REDUCE


def engine_uses(parts: Parts, rank: int) -> Mapping[Part, int]:
    """The same for instructions, which read and write their stack by all of a rank's engines."""
    return {int(parts.stack[rank]): 1, ("all", rank): 1}


_WORKS = IdentityMemo[InstrTable, tuple[list[Work], np.ndarray]]()


def instruction_costs(
    executable: Executable, model: TimingModel, queue: EngineQueue, row: int
) -> tuple[int, Duration, int]:
    """Overhead of an instruction at full speed in ps, its time after that, and its bytes."""
    known = _WORKS.get(queue.table)
    if known is None:
        known = works_of(executable.program, queue.engine, queue.table)
        _WORKS.set(queue.table, known)
    works, index = known
    work = works[index[row]]
    time = duration_of(work, model.speeds)
    return model.instruction_ps(queue.engine) + time.steps_ps, time, work.traffic
