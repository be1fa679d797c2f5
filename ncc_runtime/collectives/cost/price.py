"""The price of a collective's plans: latency and bandwidth of all groups together, in picoseconds.

An alpha-beta model with contention: latencies and CC-core rows along the longest chain of rounds,
and for bytes the busiest part of the machine. Four ideas:

1. A *round cost* is what one round of one strand takes: a fixed latency, that of the slowest first
   byte, and the time of the busiest part for the bytes of all groups. Transfers of one DMA ring go
   one after another. Where all that send pass on what the round before brought, over the same
   peers, a piece visits all of them, so its latency counts as an average one, not as the slowest;
   but not over EFA, where the message of a round waits until that of the last one to the same peer
   has arrived. What is reduced for another instance is reduced first and then sent: both count.
2. *Strands side by side* overlap. Their bytes add up on the parts that they share. But k strands
   that share a link take turns there: each has it to itself for a k-th of the time, and the last
   begins k - 1 turns late. A strand that repeats a round, over the same peers, waits until all
   turns are over, if its latency and its own turn take less than that.
3. A *phase* is a run of rounds with the same strands that all, or none of them, cross between
   instances. Inside a phase strands overlap only as far as its busiest part allows; what follows
   waits. A CC-core performs its rows in order, so a phase begins no earlier than the last round
   of the phase before; a part that both use serves one phase after the other, or both by halves.
4. Every row of a CC-core counts: signals to all that wait for this rank, a row per transfer, a wait
   for each channel by which something arrives and for each owner and reader of operands. While a
   rank signals, the signals of others are under way.

    price = start + signals + max(longest chain, first byte + busiest part over all rounds)

Plans of different groups of one collective meet in the last term only.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import attrs
import numpy as np

from ncc_runtime.collectives.cost.model import Groups, PricingModel, TransferLoad
from ncc_runtime.collectives.plan import IDLE, Plan, Round, Transfer
from ncc_runtime.machine_model.parts import NETWORK, PartKind


@attrs.frozen(eq=False)
class Price:
    """What it takes to run the plans of all groups of a placeholder, nothing else running."""

    latency_ps: int
    bandwidth_ps: int
    bound_ps_by_kind: Mapping[PartKind, int]  #: of bandwidth_ps: which parts were the busiest
    is_chain: bool  #: rounds in turn decide, not the busiest part
    bytes_by_part: np.ndarray = attrs.field(repr=False)  #: (parts,) int64, of all rounds

    @property
    def time_ps(self) -> int:
        return self.latency_ps + self.bandwidth_ps

    @property
    def decided_by(self) -> str:
        """The larger term in words: latency, or the kind of part whose bytes took longest."""
        return "latency" if self.latency_ps >= self.bandwidth_ps else self.busiest

    @property
    def busiest(self) -> str:
        """The kind of part whose bytes took longest, in words; latency where there are none."""
        if not self.bound_ps_by_kind:
            return "latency"
        return max(self.bound_ps_by_kind, key=lambda kind: self.bound_ps_by_kind[kind]).value


def priced(model: PricingModel, plans: Sequence[tuple[Plan, Groups]], element_bytes: int) -> Price:
    """The price of plans that run at the same time, each for groups of one size."""
    reduced = None if model.symmetry is None else model.symmetry.plans(plans)
    if reduced is None:
        model = attrs.evolve(model, symmetry=None)
    runs = [
        PlanRun(model, plan, groups, element_bytes)
        for plan, groups in (plans if reduced is None else reduced)
    ]
    total: np.ndarray = np.zeros(model.vector.count, np.int64)
    for run in runs:
        total += run.total
    first_ps = max((run.first_ps for run in runs), default=0)
    signals_ps = max((run.start_ps + run.end_ps for run in runs), default=0)
    chain = latest(*(run.chain for run in runs))
    busy_ps, kind = model.busiest(total)
    is_chain = chain.end_ps >= first_ps + busy_ps
    if not is_chain:
        chain = ChainTime(first_ps, ((kind, busy_ps),))
    bounds = {kind: time for kind, time in chain.busy if time}
    return Price(
        latency_ps=model.parts.model.cc_start_ps + signals_ps + chain.latency_ps,
        bandwidth_ps=sum(bounds.values()),
        bound_ps_by_kind=MappingProxyType(bounds),
        is_chain=is_chain,
        bytes_by_part=total,
    )


def least_ps(model: PricingModel, plans: Sequence[tuple[Plan, Groups]]) -> int:
    """A lower bound of the price: all rounds of a strand with the least latency and no bytes."""
    parts, times = model.parts, model.parts.model
    efa = parts.routes.topology.efa
    start = times.dma_start_ps if efa is None else min(times.dma_start_ps, efa.latency_ps)
    completion = min(times.semaphore_local_ps, times.semaphore_remote_ps)
    round_ps = model.row_ps + times.semaphore_local_ps + start + completion
    most = 0
    for plan, _ in plans:
        rounds: Counter[int | None] = Counter()
        for one_round in plan.rounds:
            rounds.update({move.strand for move in one_round.transfers})
        most = max(most, *rounds.values(), 0)
    return times.cc_start_ps + most * round_ps


# Times of chains


@attrs.frozen
class ChainTime:
    """How long rounds in turn take: latencies, and which kinds of parts were busy how long."""

    latency_ps: int = 0
    busy: tuple[tuple[PartKind, int], ...] = ()

    @property
    def end_ps(self) -> int:
        return self.latency_ps + sum(time for _, time in self.busy)

    def then(self, other: "ChainTime") -> "ChainTime":
        """Both in turn."""
        busy = dict(self.busy)
        for kind, time in other.busy:
            busy[kind] = busy.get(kind, 0) + time
        return ChainTime(self.latency_ps + other.latency_ps, tuple(busy.items()))

    def later(self, latency_ps: int) -> "ChainTime":
        """The same so much later."""
        return attrs.evolve(self, latency_ps=self.latency_ps + latency_ps)

    def until(self, end_ps: int, kind: PartKind) -> "ChainTime":
        """The same with a kind of part busy until then, if that is later."""
        more = end_ps - self.end_ps
        return self.then(ChainTime(0, ((kind, more),))) if more > 0 else self


def latest(*chains: ChainTime) -> ChainTime:
    """The chain that ends last, of equal ones the first."""
    return max(chains, key=lambda chain: chain.end_ps, default=ChainTime())


# Costs of rounds


class SizedLoad(NamedTuple):
    """A transfer as it is priced."""

    load: TransferLoad
    sizes: np.ndarray  # (active members,) bytes


@attrs.frozen(eq=False)
class RoundCost:
    """What a round of one strand takes: a fixed time, and its time on the busiest part."""

    latency_ps: int
    average_latency_ps: int  # over an average route
    grant_ps: int  # until signals that targets are free, and sources written, have arrived
    release_ps: int  # until owners have seen that they have been read
    busy_ps: int
    kind: PartKind  # of the busiest part
    amounts: np.ndarray  # (parts,) no less than what it takes
    crosses: bool  # between instances
    wait_ps: int = 0  # until the turns of other strands are over, before it can be repeated

    @property
    def chain(self) -> ChainTime:
        """The round as a chain."""
        return ChainTime(self.latency_ps, ((self.kind, self.busy_ps),))


class RoundCosts:
    """The costs of rounds within groups; those of equal loads and sizes are worked out once."""

    def __init__(self, machine: PricingModel, groups: Groups, element_bytes: int) -> None:
        self._machine, self._element_bytes = machine, element_bytes
        self._loads = machine.loads(groups)
        self._known: dict[Hashable, RoundCost] = {}
        self._together: dict[Hashable, tuple[Sequence[RoundCost], ChainTime]] = {}

    def sized(self, moves: Sequence[Transfer]) -> list[SizedLoad]:
        """The loads of transfers with their sizes."""
        return [
            SizedLoad(self._loads.of(move), move.size_bytes[move.peer != IDLE]) for move in moves
        ]

    def of(self, moves: Sequence[Transfer], sized: Sequence[SizedLoad]) -> RoundCost:
        """The cost of the transfers of one strand in a round."""
        key = tuple((load, load.size_key(sizes, self._element_bytes)) for load, sizes in sized)
        if key not in self._known:
            self._known[key] = self._cost(moves, sized)
        return self._known[key]

    def _cost(self, moves: Sequence[Transfer], sized: Sequence[SizedLoad]) -> RoundCost:
        amounts_of = [load.bounded(sizes, self._element_bytes) for load, sizes in sized]
        total = np.sum(amounts_of, axis=0)
        busy_ps, kind = self._machine.busiest(total)
        by_lane: dict[int, list[np.ndarray]] = {}
        for move, amounts in zip(moves, amounts_of, strict=True):
            by_lane.setdefault(move.lane, []).append(amounts)
        # transfers of one ring go one after another
        serial_ps = [
            sum(self._machine.busiest(amounts)[0] for amounts in of_lane)
            for of_lane in by_lane.values()
            if len(of_lane) > 1
        ]
        # rings work side by side, but the CC-core advances one after another
        fixed = len(by_lane) * self._machine.row_ps + self._machine.parts.model.semaphore_local_ps
        relayed_ps = [
            self._machine.relayed_ps(amounts)
            for (load, _), amounts in zip(sized, amounts_of, strict=True)
            if load.is_relayed
        ]
        return RoundCost(
            latency_ps=fixed + max(load.latency_ps for load, _ in sized),
            average_latency_ps=fixed + max(load.average_latency_ps for load, _ in sized),
            grant_ps=max(load.grant_ps for load, _ in sized),
            release_ps=max(load.release_ps for load, _ in sized),
            busy_ps=max((busy_ps, *serial_ps, *relayed_ps)),
            kind=kind,
            amounts=total,
            crosses=bool(total[self._machine.vector.span(PartKind.EFA)].any()),
        )

    def side_by_side(self, costs: Sequence[RoundCost]) -> tuple[Sequence[RoundCost], ChainTime]:
        """The costs of strands that run at the same time, and how late the last of them begins.

        Where k strands share a link, adapter, queue pair or DMA group, they take turns.
        """
        if len(costs) < 2:
            return costs, ChainTime()
        key = tuple(map(id, costs))
        if key not in self._together:
            self._together[key] = self._sharing(costs)
        return self._together[key]

    def _sharing(self, costs: Sequence[RoundCost]) -> tuple[Sequence[RoundCost], ChainTime]:
        amounts = np.array([cost.amounts for cost in costs])
        span = self._machine.vector.span
        shared = np.r_[tuple(span(kind) for kind in (PartKind.LINK, PartKind.DMA, *NETWORK))]
        sharers = max(1, int((amounts[:, shared] > 0).sum(axis=0).max(initial=0)))
        together_ps, kind = self._machine.busiest(amounts.sum(axis=0))
        turn_ps = together_ps // sharers
        if sharers > 1 and together_ps > min(cost.latency_ps for cost in costs):
            # strands that take turns wait for the slowest route among them
            costs = [attrs.evolve(cost, average_latency_ps=cost.latency_ps) for cost in costs]
        costs = [
            attrs.evolve(cost, busy_ps=turn_ps, kind=kind) if turn_ps > cost.busy_ps else cost
            for cost in costs
        ]
        costs = [
            attrs.evolve(cost, wait_ps=max(0, together_ps - cost.latency_ps - cost.busy_ps))
            for cost in costs
        ]
        return costs, ChainTime(0, ((kind, (sharers - 1) * turn_ps),))


class SignalRows:
    """Rows of a CC-core that signal or wait around the data, for a rank with an average number.

    A rank signals everybody who will write into its memory, once in each lane, and everybody who
    will read its operand, once; they wait for that before their first transfer. In the end it waits
    for its readers, in each lane.
    """

    def __init__(self, members: int) -> None:
        self._members = np.arange(members)
        self._known: set[Hashable] = set()  # kind, lane and column of members
        self._written = self._granted = self._read = 0
        self.lanes: set[int] = set()

    @property
    def signals(self) -> int:
        """Rows that signal others."""
        return self._written + self._per_member(self._granted)

    @property
    def readers(self) -> int:
        """Rows that wait for readers."""
        return self._per_member(self._read)

    def add(self, move: Transfer) -> int:
        """How many signals of others a rank waits for before a transfer and not before others."""
        self.lanes.add(move.lane)
        peers = [move.peer] if move.second_target is None else [move.peer, move.second_target.peer]
        targets = sum(self._new_pairs("write", move.lane, peer) > 0 for peer in peers)
        self._written += targets
        granted = 0
        for source in move.sources:
            if source.owner is not None:
                owner = np.where(move.peer == IDLE, IDLE, source.owner)
                self._read += self._new_pairs("read", move.lane, owner)
                granted += self._new_pairs("grant", 0, owner)
        self._granted += granted
        return targets + self._per_member(granted)

    def _new_pairs(self, kind: str, lane: int, column: np.ndarray) -> int:
        """Pairs of different members in a column, 0 if it has been counted before."""
        key = kind, lane, column.tobytes()
        if key in self._known:
            return 0
        self._known.add(key)
        return int(((column != IDLE) & (column != self._members)).sum())

    def _per_member(self, pairs: int) -> int:
        """The average of a member, rounded up."""
        return -(-pairs // len(self._members))


# Rounds in time


_Strand = int | None
_Peers = tuple[bytes, ...]  # of the transfers of a round


@attrs.define(eq=False)
class _LoadSum:
    """All transfers of one load in a phase."""

    load: TransferLoad
    sizes: np.ndarray  # (active members,) int64, bytes of all transfers together
    transfers: int = 0


@attrs.define(eq=False)
class _Phase:
    """Rounds of the same strands that all, or none of them, cross between instances."""

    strands: frozenset[_Strand] = frozenset()
    crosses: bool = False
    rounds: int = 0
    first: ChainTime | None = None  # when its first bytes are under way
    sums: dict[int, _LoadSum] = attrs.field(factory=dict)  # by id of the load

    def add(self, sized: Sequence[SizedLoad]) -> None:
        """Count transfers."""
        for load, sizes in sized:
            so_far = self.sums.setdefault(id(load), _LoadSum(load, np.zeros_like(sizes)))
            so_far.sizes = so_far.sizes + sizes
            so_far.transfers += 1

    def amounts(self, count: int) -> np.ndarray:
        """(parts,) int64, what it takes: loads are linear, so sizes are added up first."""
        total: np.ndarray = np.zeros(count, np.int64)
        for load_sum in self.sums.values():
            total += load_sum.load.exact(load_sum.sizes, load_sum.transfers)
        return total


class PlanRun:
    """All rounds of one plan in time: a chain for each strand, and parts that serve the phases."""

    def __init__(
        self, machine: PricingModel, plan: Plan, groups: Groups, element_bytes: int
    ) -> None:
        self._machine = machine
        self._costs = RoundCosts(machine, groups, element_bytes)
        self._signals = SignalRows(plan.columns)
        strands = {move.strand for one_round in plan.rounds for move in one_round.transfers}
        self._is_alone = len(strands) < 2  # its rounds in turn, so that no part is shared
        self._chains: dict[_Strand, ChainTime] = {}
        self._peers: dict[_Strand, _Peers] = {}  # of the last round
        self._unawaited: dict[_Strand, int] = {}  # channels of the last round, not waited for yet
        self._phase = _Phase()
        self._free_ps: np.ndarray = np.zeros(machine.vector.count, np.int64)  # parts, after phases
        self._served: dict[_Strand, ChainTime] = {}  # when parts are done with earlier phases
        self._served_by: dict[_Strand, PartKind] = {}
        self._phase_floor = ChainTime()  # when the last round of the phase before began
        self._last_begin = ChainTime()  # of a round
        self._turns_delay = ChainTime()  # by which the last strand that takes turns is late
        self._released = ChainTime()  # when the last owner has seen that it has been read
        self._idle_ps = 0  # of a CC-core during the last round
        self._first_grant_ps = 0
        self.total: np.ndarray = np.zeros(machine.vector.count, np.int64)
        self.first_ps = 0  # until the first byte is there
        for one_round in plan.rounds:
            if one_round.transfers:
                self._add_round(one_round)
        self._end_phase()

    @property
    def start_ps(self) -> int:
        """The signals of a rank before its first round.

        The first grant that it waits for is under way while it signals the others.
        """
        first, signals = self._machine.row_ps, self._signals.signals * self._machine.row_ps
        return signals - min(self._first_grant_ps, max(0, signals - first))

    @property
    def end_ps(self) -> int:
        """A wait for every channel of the last round, for every reader, and for every ring.

        Waits for channels whose data has arrived overlap with the rest of the data.
        """
        lanes, arrivals = len(self._signals.lanes), sum(self._unawaited.values())
        last = min(arrivals, lanes)  # the last arrival of each ring
        early_ps = (arrivals - last) * self._machine.row_ps - max(0, self._idle_ps)
        return max(0, early_ps) + (last + self._signals.readers + lanes) * self._machine.row_ps

    @property
    def chain(self) -> ChainTime:
        """The longest chain."""
        ends = latest(*self._chains.values()).then(self._turns_delay)
        return latest(ends, *self._served.values(), self._released)

    def _add_round(self, one_round: Round) -> None:
        strands: dict[_Strand, list[Transfer]] = defaultdict(list)
        for move in one_round.transfers:
            strands[move.strand].append(move)
        sized = [self._costs.sized(moves) for moves in strands.values()]
        alone = [
            self._costs.of(moves, loads)
            for moves, loads in zip(strands.values(), sized, strict=True)
        ]
        all_strands = latest(*self._chains.values())
        if None in strands:  # transfers of no strand follow those of all strands
            all_strands, self._turns_delay = all_strands.then(self._turns_delay), ChainTime()
        self._continue_phase(frozenset(strands), any(cost.crosses for cost in alone))
        costs, delay = self._costs.side_by_side(alone)
        self._turns_delay = latest(self._turns_delay, delay)
        self._phase.add([load for of_strand in sized for load in of_strand])
        unawaited, begins = dict(self._unawaited), []
        for (strand, moves), cost in zip(strands.items(), costs, strict=True):
            chain = all_strands if strand is None else self._chains.get(strand, ChainTime())
            arrived = sum(unawaited.values()) if strand is None else unawaited.get(strand, 0)
            after = latest(chain, self._served.get(strand, ChainTime()), self._phase_floor)
            begins.append(self._add_to_chain(strand, moves, cost, after, arrived))
        if self._phase.first is None:
            first = min(range(len(costs)), key=lambda number: begins[number].end_ps)
            self._phase.first = begins[first].later(costs[first].latency_ps)
        self._last_begin = latest(*begins)
        rows_ps = len(one_round.transfers) * self._machine.row_ps
        self._idle_ps = max(cost.chain.end_ps for cost in costs) - rows_ps
        self._phase.rounds += 1

    def _add_to_chain(
        self,
        strand: _Strand,
        moves: Sequence[Transfer],
        cost: RoundCost,
        after: ChainTime,
        arrived: int,
    ) -> ChainTime:
        """Add a round, before which `arrived` channels are waited for, to its chain; its begin."""
        waits = 0
        for number, move in enumerate(moves):
            # the row that advances a ring can wait for one of them itself
            waits += max(0, self._signals.add(move) + (0 if number else arrived) - 1)
        begin = latest(after, ChainTime(cost.grant_ps)).later(waits * self._machine.row_ps)

        peers = tuple(move.peer.tobytes() for move in moves)
        if all(_is_local(move) for move in moves):
            peers = self._peers.get(strand, ())  # a local round does not break a ring's step
        elif self._peers.get(strand) == peers:
            cost = attrs.evolve(cost, busy_ps=cost.busy_ps + cost.wait_ps)
            if all(map(_passes_on, moves)) and not cost.crosses:
                cost = attrs.evolve(cost, latency_ps=cost.average_latency_ps)
        self._peers[strand] = peers
        end = begin.then(cost.chain)
        self._chains[strand] = end
        if cost.release_ps:
            self._released = latest(self._released, end.later(cost.release_ps))

        if strand is None:
            self._unawaited.clear()
        self._unawaited[strand] = _channels(moves)
        if not self.first_ps:
            self.first_ps, self._first_grant_ps = cost.grant_ps + cost.latency_ps, cost.grant_ps
        return begin

    def _continue_phase(self, strands: frozenset[_Strand], crosses: bool) -> None:
        """Begin a new phase unless the round belongs to the last one."""
        is_same = (strands, crosses) == (self._phase.strands, self._phase.crosses)
        if not (self._is_alone or is_same):
            self._end_phase()
            if strands != self._phase.strands:
                self._phase_floor = self._last_begin
            self._phase, self._turns_delay = _Phase(strands, crosses), ChainTime()

    def _end_phase(self) -> None:
        """Parts serve the phase after those before it."""
        amounts = self._phase.amounts(self._machine.vector.count)
        self.total += amounts
        if self._is_alone or not self._phase.sums:
            return
        times = self._machine.time_ps(amounts)
        used = np.flatnonzero(times)
        begin = self._phase.first or ChainTime()
        free = np.maximum(self._free_ps[used], begin.end_ps) + times[used]
        self._free_ps[used] = free
        last = int(free.argmax())
        kind, strands = self._machine.vector.kind(int(used[last])), self._phase.strands
        served = begin.until(int(free[last]), kind)
        self._slow_others(begin.end_ps, served.end_ps, kind)
        # parts that finish after the chains delay every round; the last begins after all others
        delay_ps = max(0, served.end_ps - latest(*(self._chains[s] for s in strands)).end_ps)
        rounds = self._phase.rounds
        self._last_begin = self._last_begin.later(delay_ps * (rounds - 1) // rounds)
        self._served.update(dict.fromkeys(strands, served))
        self._served_by.update(dict.fromkeys(strands, kind))

    def _slow_others(self, begin_ps: int, end_ps: int, kind: PartKind) -> None:
        """Strands that a part of this kind still serves get half of it while this phase runs."""
        for strand in self._served.keys() - self._phase.strands:
            left_ps = self._served[strand].end_ps - begin_ps
            if self._served_by[strand] is kind and left_ps > 0:
                until_ps = min(begin_ps + 2 * left_ps, end_ps)
                self._served[strand] = self._served[strand].until(until_ps, kind)


def _passes_on(move: Transfer) -> bool:
    """Whether all that send receive as much, and send it on as soon as it is there: a pipeline.

    Of a ring these are all members; of KangaRing the primaries, inside instances.
    """
    if move.credit:
        return False
    active = np.flatnonzero(move.peer != IDLE)
    is_ring = move.second_target is None and len(active) == len(move.peer)
    return is_ring or np.array_equal(np.sort(move.peer[active]), active)


def _is_local(move: Transfer) -> bool:
    """Whether every member writes in its own memory."""
    return np.array_equal(move.peer, np.arange(len(move.peer)))


def _channels(moves: Sequence[Transfer]) -> int:
    """Distinct lanes and columns of peers: what a rank may have to wait for."""
    remote = (move for move in moves if not _is_local(move))
    return len({(move.lane, move.peer.tobytes()) for move in remote})
