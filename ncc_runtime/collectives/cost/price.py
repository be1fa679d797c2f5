"""The price of a placeholder's plans: latency and bandwidth, all groups together, in picoseconds.

A round of a strand takes what its slowest first byte takes, and what its busiest part takes for the
bytes of all groups (`steps.py`); what goes into one DMA ring goes one after the other. A strand's
rounds follow one another. Where everybody passes on what came, the way of a piece leads over all
members: its flights count as average ones. Strands run in step, so their bytes add up where they
share a part; but k strands that share a link take turns there, so that a k-th of them is under way
at a time, and the last begins k-1 turns late. No more is saved than the busiest part allows, in
each stretch of rounds that go the same ways and in all (`chain.py`):

    time = signals + max(the longest chain, first byte + the busiest part over all rounds)

Every instruction of a CC-core counts: signals that it has come here, a row per transfer, a wait per
channel that something came in by, per owner and reader of operands (`meetings.py`). What others
tell is under way meanwhile, and so is what comes last.

Teams, which have plans of their own, meet in the last term only.

How long a chain of steps is: latencies, and what kinds of parts were busy.

What a round of one strand takes: a fixed time, and the time of its busiest part.

Who has to tell whom that it has come to a collective: rows of a CC-core before and after data.

A rank tells everybody who will write into its memory, once in each lane, and everybody who will
read its operand, once; they wait for that. In the end it waits for its readers, in each lane.

The rounds of one team in time: chains of steps, and parts that serve one stretch after another.

A *stretch* is as many rounds of the same strands as stay inside instances, or as cross between
them. In a stretch, strands overlap as far as its busiest part allows; what follows waits for it. A
CC-core performs its rows in order: other strands begin when the last round before has begun, and a
part that both use serves one stretch after the other, or both by halves where they meet.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.collectives.cost.model import Groups, PricingModel, TransferLoad
from ncc_runtime.collectives.plan import IDLE, Plan, Round, Transfer
from ncc_runtime.machine_model.parts import Kind


@attrs.frozen
class Reach:
    """A chain of steps so far; compared by its end."""

    latency_ps: int = 0
    busy: tuple[tuple[Kind, int], ...] = ()

    @property
    def end_ps(self) -> int:
        return self.latency_ps + sum(time for _, time in self.busy)

    def behind(self, other: "Reach") -> "Reach":
        """Both in turn."""
        busy = dict(self.busy)
        for kind, time in other.busy:
            busy[kind] = busy.get(kind, 0) + time
        return Reach(self.latency_ps + other.latency_ps, tuple(busy.items()))

    def later(self, latency_ps: int) -> "Reach":
        """The same so much later."""
        return attrs.evolve(self, latency_ps=self.latency_ps + latency_ps)

    def until(self, end_ps: int, kind: Kind) -> "Reach":
        """The same with a kind of part busy until then, if that is later."""
        more = end_ps - self.end_ps
        return self.behind(Reach(0, ((kind, more),))) if more > 0 else self


def last_of(*reaches: Reach) -> Reach:
    """The one that ends last, of equal ones the first."""
    return max(reaches, key=lambda reach: reach.end_ps, default=Reach())


Passed = tuple[TransferLoad, np.ndarray]
"""A transfer: what it takes of the machine, and bytes by active member."""


@attrs.frozen(eq=False)
class Step:
    """A round of one strand: its fixed time, and its time on the busiest part."""

    latency_ps: int
    passing_ps: int  # on an average way
    ready_ps: int  # until it is known that others have come here
    read_ps: int  # until others know that they have been read
    busy_ps: int
    kind: Kind
    amounts: np.ndarray  # no less than what it takes
    crosses: bool  # between instances

    @property
    def reach(self) -> Reach:
        """The step as a chain."""
        return Reach(self.latency_ps, ((self.kind, self.busy_ps),))


class Steps:
    """The steps of one team; those that are alike are worked out once."""

    def __init__(self, machine: PricingModel, groups: Groups, width: int) -> None:
        self._machine, self._width = machine, width
        self._loads = machine.loads(groups)
        self._known: dict[Hashable, Step] = {}
        self._together: dict[Hashable, tuple[Sequence[Step], Reach]] = {}

    def passed(self, moves: Sequence[Transfer]) -> list[Passed]:
        """What transfers take."""
        found = []
        for move in moves:
            active = move.peer != IDLE
            found.append((self._loads.of(move), move.size_bytes[active]))
        return found

    def of(self, moves: Sequence[Transfer], passed: Sequence[Passed]) -> Step:
        """The transfers of one strand in a round."""
        key = tuple((load, load.size_key(sizes, self._width)) for load, sizes in passed)
        if key not in self._known:
            self._known[key] = self._step(moves, passed)
        return self._known[key]

    def _step(self, moves: Sequence[Transfer], passed: Sequence[Passed]) -> Step:
        each = [load.bounded(sizes, self._width) for load, sizes in passed]
        amounts = np.sum(each, axis=0)
        busy_ps, kind = self._machine.busiest(amounts)
        lanes: dict[int, list[np.ndarray]] = {}
        for move, its in zip(moves, each, strict=True):
            lanes.setdefault(move.lane, []).append(its)
        # what goes into one ring goes one after the other
        in_turn = [
            sum(self._machine.busiest(its)[0] for its in all_its)
            for all_its in lanes.values()
            if len(all_its) > 1
        ]
        # rings that work side by side are advanced one after the other
        fixed = len(lanes) * self._machine.row_ps + self._machine.parts.model.semaphore_local_ps
        return Step(
            fixed + max(load.latency_ps for load, _ in passed),
            fixed + max(load.average_latency_ps for load, _ in passed),
            max(load.grant_ps for load, _ in passed),
            max(load.release_ps for load, _ in passed),
            max((busy_ps, *in_turn)),
            kind,
            amounts,
            bool(amounts[self._machine.vector.span(Kind.EFA)].any()),
        )

    def in_step(self, steps: Sequence[Step]) -> tuple[Sequence[Step], Reach]:
        """Steps of strands that run at the same time, and how long the last of them waits.

        Where k strands share a link, adapter or DMA group, they take turns.
        """
        if len(steps) < 2:
            return steps, Reach()
        key = tuple(map(id, steps))
        if key not in self._together:
            self._together[key] = self._by_turns(steps)
        return self._together[key]

    def _by_turns(self, steps: Sequence[Step]) -> tuple[Sequence[Step], Reach]:
        amounts = np.array([step.amounts for step in steps])
        span = self._machine.vector.span
        ways = np.r_[tuple(span(kind) for kind in (Kind.LINK, Kind.DMA, Kind.EFA))]
        turns = max(1, int((amounts[:, ways] > 0).sum(axis=0).max(initial=0)))
        whole_ps, kind = self._machine.busiest(amounts.sum(axis=0))
        joint_ps = whole_ps // turns
        if turns > 1 and whole_ps > min(step.latency_ps for step in steps):
            # who takes turns waits for the slowest
            steps = [attrs.evolve(step, passing_ps=step.latency_ps) for step in steps]
        steps = [
            attrs.evolve(step, busy_ps=joint_ps, kind=kind) if joint_ps > step.busy_ps else step
            for step in steps
        ]
        return steps, Reach(0, ((kind, (turns - 1) * joint_ps),))


class Meetings:
    """Counts them over the transfers of a team, for a rank that has as many as an average one."""

    def __init__(self, members: int) -> None:
        self._members = np.arange(members)
        self._known: set[Hashable] = set()  # kind, lane and column
        self._written = self._asked = self._read = 0
        self.lanes: set[int] = set()

    @property
    def signals(self) -> int:
        """Rows that tell others."""
        return self._written + self._share(self._asked)

    @property
    def readers(self) -> int:
        """Rows that wait for readers."""
        return self._share(self._read)

    def add(self, move: Transfer) -> int:
        """How many others a rank has to wait for before its transfer, for the first time."""
        self.lanes.add(move.lane)
        peers = [move.peer] if move.also is None else [move.peer, move.also.peer]
        first = sum(self._is_new("write", move.lane, peer) for peer in peers)
        self._written += first
        asked = 0
        for source in move.sources:
            if source.owner is not None:
                owner = np.where(move.peer == IDLE, IDLE, source.owner)
                self._read += self._fresh("read", move.lane, owner)
                asked += self._fresh("ask", 0, owner)
        self._asked += asked
        return first + self._share(asked)

    def _is_new(self, kind: str, lane: int, column: np.ndarray) -> bool:
        return self._fresh(kind, lane, column) > 0

    def _fresh(self, kind: str, lane: int, column: np.ndarray) -> int:
        """Pairs of different members in a column that has not been met."""
        key = kind, lane, column.tobytes()
        if key in self._known:
            return 0
        pairs = int(((column != IDLE) & (column != self._members)).sum())
        self._known.add(key)
        return pairs

    def _share(self, pairs: int) -> int:
        return -(-pairs // len(self._members))


_Strand = int | None
_Ways = tuple[bytes, ...]  # peers of transfers


@attrs.define(eq=False)
class _Passed:
    """What went the ways of one load so far."""

    load: TransferLoad
    sizes: np.ndarray  # (active members,) int64, bytes of all transfers together
    times: int = 0


@attrs.define(eq=False)
class _Stretch:
    """Rounds of the same strands that all, or none of them, cross between instances."""

    strands: frozenset[_Strand] = frozenset()
    crosses: bool = False
    rounds: int = 0
    first: Reach | None = None  # first bytes are under way
    passed: dict[int, _Passed] = attrs.field(factory=dict)  # by id of the load

    def add(self, passed: Sequence[Passed]) -> None:
        """Count transfers."""
        for load, sizes in passed:
            so_far = self.passed.setdefault(id(load), _Passed(load, np.zeros_like(sizes)))
            so_far.sizes = so_far.sizes + sizes
            so_far.times += 1

    def amounts(self, count: int) -> np.ndarray:
        """(parts,) int64, what it takes: loads are linear, so sizes are added up first."""
        total: np.ndarray = np.zeros(count, np.int64)
        for one in self.passed.values():
            total += one.load.exact(one.sizes, one.times)
        return total


class Chain:
    """All rounds of a team's plan."""

    def __init__(self, machine: PricingModel, plan: Plan, groups: Groups, width: int) -> None:
        self._machine = machine
        self._steps = Steps(machine, groups, width)
        self._meetings = Meetings(plan.columns)
        strands = {move.strand for one_round in plan.rounds for move in one_round.transfers}
        self._is_alone = len(strands) < 2  # its rounds in turn, so that no part is shared
        self._arrivals: dict[_Strand, int] = {}  # channels that nobody waited for
        self._reach: dict[_Strand, Reach] = {}
        self._ways: dict[_Strand, _Ways] = {}  # of the last step
        self._stretch = _Stretch()
        self._free_ps: np.ndarray = np.zeros(machine.vector.count, np.int64)
        self._served: dict[_Strand, Reach] = {}  # until when parts serve the stretches before
        self._server: dict[_Strand, Kind] = {}  # by what
        self._begun = Reach()  # the last round of the stretch before
        self._begins = Reach()  # the last round
        self._behind = Reach()  # how long the last of strands that take turns waits
        self._idle_ps = 0  # of a CC-core while the last round goes on
        self._told = Reach()  # when the last owner knows that it has been read
        self.total: np.ndarray = np.zeros(machine.vector.count, np.int64)
        self.first_ps = 0
        self._ready_ps = 0  # of the first round
        for one_round in plan.rounds:
            if one_round.transfers:
                self._add(one_round)
        self._close()

    @property
    def start_ps(self) -> int:
        """The signals of a rank that has come here.

        The word of the first that it waits for is under way while it tells the others.
        """
        first, signals = self._machine.row_ps, self._meetings.signals * self._machine.row_ps
        return signals - min(self._ready_ps, max(0, signals - first))

    @property
    def end_ps(self) -> int:
        """A wait for every channel of the last round, for every reader, and for every ring.

        Channels by which something has come already are waited for while the rest is on its way.
        """
        lanes, arrivals = len(self._meetings.lanes), sum(self._arrivals.values())
        late = min(arrivals, lanes)  # what comes last by each ring; the others meanwhile
        early_ps = (arrivals - late) * self._machine.row_ps - max(0, self._idle_ps)
        return max(0, early_ps) + (late + self._meetings.readers + lanes) * self._machine.row_ps

    @property
    def reach(self) -> Reach:
        """The longest chain."""
        return last_of(self._last.behind(self._behind), *self._served.values(), self._told)

    @property
    def _last(self) -> Reach:
        return last_of(*self._reach.values())

    def _add(self, one_round: Round) -> None:
        strands: dict[_Strand, list[Transfer]] = defaultdict(list)
        for move in one_round.transfers:
            strands[move.strand].append(move)
        passed = [self._steps.passed(moves) for moves in strands.values()]
        alone = [self._steps.of(*one) for one in zip(strands.values(), passed, strict=True)]
        before = self._last
        if None in strands:
            before, self._behind = before.behind(self._behind), Reach()
        self._open(frozenset(strands), any(step.crosses for step in alone))
        steps, turns = self._steps.in_step(alone)
        self._behind = last_of(self._behind, turns)
        self._stretch.add([one for its in passed for one in its])
        waited, begins = dict(self._arrivals), []
        for (strand, moves), step in zip(strands.items(), steps, strict=True):
            own = before if strand is None else self._reach.get(strand, Reach())
            arrived = sum(waited.values()) if strand is None else waited.get(strand, 0)
            came = last_of(own, self._served.get(strand, Reach()), self._begun)
            begins.append(self._go(strand, moves, step, (came, arrived)))
        if self._stretch.first is None:
            first = min(range(len(steps)), key=lambda one: begins[one].end_ps)
            self._stretch.first = begins[first].later(steps[first].latency_ps)
        self._begins = last_of(*begins)
        rows_ps = len(one_round.transfers) * self._machine.row_ps
        self._idle_ps = max(step.reach.end_ps for step in steps) - rows_ps
        self._stretch.rounds += 1

    def _go(
        self, strand: _Strand, moves: Sequence[Transfer], step: Step, after: tuple[Reach, int]
    ) -> Reach:
        """A step after others and so many arrivals; when it begins."""
        came, arrived = after
        waits_ps = self._waits(moves, arrived) * self._machine.row_ps
        begins = last_of(came, Reach(step.ready_ps)).later(waits_ps)
        now = begins.behind(self._passing(strand, moves, step).reach)
        self._reach[strand] = now
        if step.read_ps:
            self._told = last_of(self._told, now.later(step.read_ps))
        if strand is None:
            self._arrivals.clear()
        self._arrivals[strand] = _channels(moves)
        if not self.first_ps:
            self.first_ps, self._ready_ps = step.ready_ps + step.latency_ps, step.ready_ps
        return begins

    def _open(self, strands: frozenset[_Strand], crosses: bool) -> None:
        """Begin a new stretch unless the round goes on with the one before."""
        is_same = (strands, crosses) == (self._stretch.strands, self._stretch.crosses)
        if not (self._is_alone or is_same):
            self._close()
            if strands != self._stretch.strands:
                self._begun = self._begins
            self._stretch, self._behind = _Stretch(strands, crosses), Reach()

    def _close(self) -> None:
        """Parts serve the stretch after what they were asked for before."""
        amounts = self._stretch.amounts(self._machine.vector.count)
        self.total += amounts
        if self._is_alone or not self._stretch.passed:
            return
        times = self._machine.time_ps(amounts)
        used = np.flatnonzero(times)
        begin = self._stretch.first or Reach()
        free = np.maximum(self._free_ps[used], begin.end_ps) + times[used]
        self._free_ps[used] = free
        part = int(free.argmax())
        kind, strands = self._machine.vector.kind(int(used[part])), self._stretch.strands
        served = begin.until(int(free[part]), kind)
        self._share(begin.end_ps, served.end_ps, kind)
        late_ps = served.end_ps - last_of(*(self._reach[one] for one in strands)).end_ps
        before = self._stretch.rounds - 1  # rounds that hold up the begin of the last
        self._begins = self._begins.later(max(0, late_ps) * before // self._stretch.rounds)
        self._served.update(dict.fromkeys(strands, served))
        self._server.update(dict.fromkeys(strands, kind))

    def _share(self, begin_ps: int, end_ps: int, kind: Kind) -> None:
        """Other strands that are still served by such a part get half of it from now on."""
        for strand in self._served.keys() - self._stretch.strands:
            left_ps = self._served[strand].end_ps - begin_ps
            if self._server[strand] is kind and left_ps > 0:
                until_ps = min(begin_ps + 2 * left_ps, end_ps)
                self._served[strand] = self._served[strand].until(until_ps, kind)

    def _waits(self, moves: Sequence[Transfer], arrived: int) -> int:
        """Rows that only wait: the row that advances a ring waits once itself."""
        waits = 0
        for number, move in enumerate(moves):
            its_waits = self._meetings.add(move) + (0 if number else arrived)
            waits += max(0, its_waits - 1)
        return waits

    def _passing(self, strand: _Strand, moves: Sequence[Transfer], step: Step) -> Step:
        """What goes the way of the step before it is passed on by others: an average flight."""
        ways = tuple(move.peer.tobytes() for move in moves)
        again = self._ways.get(strand) == ways
        self._ways[strand] = ways
        if not again or not all(_is_passed_on(move) for move in moves):
            return step
        return attrs.evolve(step, latency_ps=step.passing_ps)


def _is_passed_on(move: Transfer) -> bool:
    """Whether everybody sends, to one other each, as soon as it has what it sends."""
    return move.also is None and not move.credit and bool((move.peer != IDLE).all())


def _channels(moves: Sequence[Transfer]) -> int:
    """Distinct lanes and columns of peers: what somebody may have to wait for."""
    mine = np.arange(len(moves[0].peer)) if moves else np.empty(0)
    remote = (move for move in moves if not np.array_equal(move.peer, mine))
    return len({(move.lane, move.peer.tobytes()) for move in remote})


@attrs.frozen(eq=False)
class Price:
    """What it takes to run the plans of all groups of a placeholder, nothing else running."""

    latency_ps: int
    bandwidth_ps: int
    bound_ps_by_kind: Mapping[Kind, int]  # of bandwidth_ps: which parts were the busiest
    is_chain: bool  # rounds in turn decide, not the busiest part
    bytes_by_part: np.ndarray = attrs.field(repr=False)  # (parts,) int64, of all rounds

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


def priced(machine: PricingModel, teams: Sequence[tuple[Plan, Groups]], width: int) -> Price:
    """The price of plans that run at the same time; `width` is the size of an element."""
    seen = None if machine.fold is None else machine.fold.teams(teams)
    if seen is None:
        machine = attrs.evolve(machine, fold=None)
    chains = [Chain(machine, *one, width) for one in (teams if seen is None else seen)]
    total: np.ndarray = np.zeros(machine.vector.count, np.int64)
    for chain in chains:
        total += chain.total
    first = max((chain.first_ps for chain in chains), default=0)
    start = max((chain.start_ps + chain.end_ps for chain in chains), default=0)
    reach = last_of(*(chain.reach for chain in chains))
    busy_ps, kind = machine.busiest(total)
    is_chain = reach.end_ps >= first + busy_ps
    if not is_chain:
        reach = Reach(first, ((kind, busy_ps),))
    shares = {kind: time for kind, time in reach.busy if time}
    return Price(
        latency_ps=machine.parts.model.cc_start_ps + start + reach.latency_ps,
        bandwidth_ps=sum(shares.values()),
        bound_ps_by_kind=MappingProxyType(shares),
        is_chain=is_chain,
        bytes_by_part=total,
    )


def least_ps(machine: PricingModel, teams: Sequence[tuple[Plan, Groups]]) -> int:
    """No more than the price: what the rounds of a strand take if all of them go the best way."""
    parts, model = machine.parts, machine.parts.model
    efa = parts.routes.topology.efa
    start = model.dma_start_ps if efa is None else min(model.dma_start_ps, efa.latency_ps)
    told = min(model.semaphore_local_ps, model.semaphore_remote_ps)
    step = machine.row_ps + model.semaphore_local_ps + start + told
    most = 0
    for plan, _ in teams:
        rounds: Counter[int | None] = Counter()
        for one_round in plan.rounds:
            rounds.update({move.strand for move in one_round.transfers})
        most = max(most, *rounds.values(), 0)
    return model.cc_start_ps + most * step
