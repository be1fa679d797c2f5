"""The price of a placeholder's plans: latency and bandwidth, all groups together, in picoseconds.

A round of a strand takes what its slowest first byte takes, and what its busiest part takes for the
bytes of all groups (`loads.py`). A strand's rounds follow one another. Where everybody passes on
what came, the way of a piece leads over all members: its flights count as average ones. Strands run
in step, so their bytes add up where they share a part; but k strands that share a link take turns
there, so that a k-th of them is under way at a time, and the last begins k-1 turns late. No more is
saved than the busiest part allows:

    time = signals + max(the longest chain, first byte + the busiest part over all rounds)

Every instruction of a CC-core counts: signals that it has come here, a row per transfer, a wait per
channel that something came in by, per owner and reader of operands (`meetings.py`).

Teams, which have plans of their own, meet in the last term only.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.collectives.folds import FoldedParts
from ncc_runtime.collectives.loads import Load, Loads
from ncc_runtime.collectives.meetings import Meetings
from ncc_runtime.collectives.plan import IDLE, Plan, Round, Transfer
from ncc_runtime.instances import FirstParts
from ncc_runtime.parts import Kind, Parts

Groups = np.ndarray
"""(groups, members) ranks."""


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


@attrs.frozen(eq=False)
class _Step:
    """A round of one strand: its fixed time, and its time on the busiest part."""

    latency_ps: int
    passing_ps: int  # on an average way
    ready_ps: int  # until it is known that others have come here
    read_ps: int  # until others know that they have been read
    busy_ps: int
    kind: Kind
    amounts: np.ndarray  # no less than what it takes


@attrs.define(eq=False)
class _Passed:
    """What went the ways of one load so far."""

    load: Load
    sizes: np.ndarray  # (active members,) int64, bytes of all transfers together
    times: int = 0

    def add(self, sizes: np.ndarray) -> None:
        """Count one more transfer."""
        self.sizes = self.sizes + sizes
        self.times += 1


@attrs.frozen
class _Reach:
    """A chain of steps so far; compared by its end."""

    latency_ps: int = 0
    busy: tuple[tuple[Kind, int], ...] = ()

    @property
    def end_ps(self) -> int:
        return self.latency_ps + sum(time for _, time in self.busy)

    def after(self, step: _Step, waits_ps: int) -> "_Reach":
        """One more step."""
        more = _Reach(step.latency_ps + waits_ps, ((step.kind, step.busy_ps),))
        return self.behind(more)

    def behind(self, other: "_Reach") -> "_Reach":
        """Both in turn."""
        busy = dict(self.busy)
        for kind, time in other.busy:
            busy[kind] = busy.get(kind, 0) + time
        return _Reach(self.latency_ps + other.latency_ps, tuple(busy.items()))

    def later(self, latency_ps: int) -> "_Reach":
        """The same so much later."""
        return attrs.evolve(self, latency_ps=self.latency_ps + latency_ps)


@attrs.frozen(eq=False)
class Machine:
    """What plans are priced on."""

    parts: Parts
    cc_cores: int = 1  # of a rank, that run the placeholder's stream
    known: dict[bytes, Loads] | None = None  # by groups, where many sizes are priced; None: none
    fold: FoldedParts | None = None  # if the first instance stands for all

    def loads(self, groups: Groups) -> Loads:
        """The loads of a team, which do not depend on sizes."""
        first = None if self.fold is None else self.fold.parts
        if self.known is None:
            return Loads(self.parts, groups, first)
        return self.known.setdefault(groups.tobytes(), Loads(self.parts, groups, first))

    @property
    def vector(self) -> Parts | FirstParts:
        """The parts that amounts are of."""
        return self.parts if self.fold is None else self.fold.parts

    @property
    def row_ps(self) -> int:
        """The time of one row of a CC-core program."""
        return -(-self.parts.model.cc_instruction_ps // self.cc_cores)

    def time_ps(self, amounts: np.ndarray) -> np.ndarray:
        """What amounts take, each part alone with them."""
        times = self.vector.time_ps(amounts)
        rows = self.vector.span(Kind.CC_CORE)
        times[rows] = -(-times[rows] // self.cc_cores)
        return times


def priced(machine: Machine, teams: Sequence[tuple[Plan, Groups]], width: int) -> Price:
    """The price of plans that run at the same time; `width` is the size of an element."""
    parts = machine.parts
    seen = None if machine.fold is None else machine.fold.teams(teams)
    if seen is None:
        machine = attrs.evolve(machine, fold=None)
    total: np.ndarray = np.zeros(machine.vector.count, np.int64)
    first, longest, start = 0, _Reach(), 0
    for plan, groups in teams if seen is None else seen:
        chain = _Chain(machine, groups, plan.columns, width)
        for one_round in plan.rounds:
            chain.add(one_round)
        total += chain.total
        first, start = max(first, chain.first_ps), max(start, chain.start_ps + chain.end_ps)
        longest = max(longest, chain.reach, key=lambda reach: reach.end_ps)
    busy = machine.time_ps(total)
    busiest = int(busy.argmax())
    is_chain = longest.end_ps >= first + int(busy[busiest])
    reach = longest
    if not is_chain:
        reach = _Reach(first, ((machine.vector.kind(busiest), int(busy[busiest])),))
    shares = {kind: time for kind, time in reach.busy if time}
    return Price(
        latency_ps=parts.model.cc_start_ps + start + reach.latency_ps,
        bandwidth_ps=sum(shares.values()),
        bound_ps_by_kind=MappingProxyType(shares),
        is_chain=is_chain,
        bytes_by_part=total,
    )


def least_ps(machine: Machine, teams: Sequence[tuple[Plan, Groups]]) -> int:
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


class _Chain:
    """Adds up the rounds of one team; steps that are alike are worked out once."""

    def __init__(self, machine: Machine, groups: Groups, columns: int, width: int) -> None:
        self._machine, self._parts, self._width = machine, machine.parts, width
        self._loads = machine.loads(groups)
        self._known: dict[Hashable, _Step] = {}
        self._together: dict[Hashable, Sequence[_Step]] = {}  # by steps of strands alone
        self._turns: dict[Hashable, _Reach] = {}  # alike: how long the last of them waits
        self._meetings = Meetings(columns)
        self._arrivals: dict[int | None, int] = {}  # by strand: channels that nobody waited for
        self._reach: dict[int | None, _Reach] = {}
        self._ways: dict[int | None, tuple[bytes, ...]] = {}  # by strand: the last step's
        self._behind = _Reach()  # how long the last of strands that take turns waits
        self._told = _Reach()  # when the last owner knows that it has been read
        self._passed: dict[int, _Passed] = {}  # by id of the load
        self.first_ps = 0

    @property
    def start_ps(self) -> int:
        """The signals of a rank that has come here."""
        return self._meetings.signals * self._machine.row_ps

    @property
    def end_ps(self) -> int:
        """A wait for every channel of the last round, for every reader, and for every ring."""
        rows = sum(self._arrivals.values()) + self._meetings.readers + len(self._meetings.lanes)
        return rows * self._machine.row_ps

    @property
    def reach(self) -> _Reach:
        """The longest chain."""
        last = self._last.behind(self._behind)
        return max(last, self._told, key=lambda reach: reach.end_ps)

    @property
    def _last(self) -> _Reach:
        return max(self._reach.values(), key=lambda reach: reach.end_ps, default=_Reach())

    @property
    def total(self) -> np.ndarray:
        """(parts,) int64, what all rounds take: loads are linear, so sizes are added up first."""
        total: np.ndarray = np.zeros(self._machine.vector.count, np.int64)
        for passed in self._passed.values():
            total += passed.load.exact(passed.sizes, passed.times)
        return total

    def add(self, one_round: Round) -> None:
        strands: dict[int | None, list[int]] = defaultdict(list)
        for number, move in enumerate(one_round.transfers):
            strands[move.strand].append(number)
        before = self._last
        if None in strands:
            before, self._behind = before.behind(self._behind), _Reach()
        waited = dict(self._arrivals)
        alone = [self._step(one_round, numbers) for numbers in strands.values()]
        for (strand, numbers), step in zip(strands.items(), self._in_step(alone), strict=True):
            came = before if strand is None else self._reach.get(strand, _Reach())
            arrived = sum(waited.values()) if strand is None else waited.get(strand, 0)
            moves = [one_round.transfers[number] for number in numbers]
            waits_ps = self._waits(moves, arrived) * self._machine.row_ps
            answered = _Reach(step.ready_ps)
            came = max(came, answered, key=lambda reach: reach.end_ps)
            now = came.after(self._passing(strand, moves, step), waits_ps)
            self._reach[strand] = now
            if step.read_ps:
                self._told = max(self._told, now.later(step.read_ps), key=lambda one: one.end_ps)
            if strand is None:
                self._arrivals.clear()
            self._arrivals[strand] = _channels(moves)
            self.first_ps = self.first_ps or step.ready_ps + step.latency_ps

    def _waits(self, moves: Sequence[Transfer], arrived: int) -> int:
        """Rows that only wait: the row that advances a ring waits once itself."""
        waits = 0
        for number, move in enumerate(moves):
            its_waits = self._meetings.add(move) + (0 if number else arrived)
            waits += max(0, its_waits - 1)
        return waits

    def _passing(self, strand: int | None, moves: Sequence[Transfer], step: _Step) -> _Step:
        """What goes the way of the step before it is passed on by others: an average flight."""
        ways = tuple(move.peer.tobytes() for move in moves)
        again = self._ways.get(strand) == ways
        self._ways[strand] = ways
        if not again or not all(_is_passed_on(move) for move in moves):
            return step
        return attrs.evolve(step, latency_ps=step.passing_ps)

    def _in_step(self, steps: Sequence[_Step]) -> Sequence[_Step]:
        """Steps of strands that run at the same time."""
        key = tuple(map(id, steps))
        if len(steps) > 1 and key not in self._together:
            amounts = np.array([step.amounts for step in steps])
            span = self._machine.vector.span
            ways = np.r_[tuple(span(kind) for kind in (Kind.LINK, Kind.DMA, Kind.EFA))]
            turns = max(1, int((amounts[:, ways] > 0).sum(axis=0).max(initial=0)))
            whole = self._machine.time_ps(amounts.sum(axis=0))
            busiest = int(whole.argmax())
            joint, kind = int(whole[busiest]) // turns, self._machine.vector.kind(busiest)
            if turns > 1:  # who takes turns waits for the slowest
                steps = [attrs.evolve(step, passing_ps=step.latency_ps) for step in steps]
            self._together[key] = [
                attrs.evolve(step, busy_ps=joint, kind=kind) if joint > step.busy_ps else step
                for step in steps
            ]
            self._turns[key] = _Reach(0, ((kind, (turns - 1) * joint),))
        behind = self._turns.get(key, _Reach())
        self._behind = max(self._behind, behind, key=lambda reach: reach.end_ps)
        return self._together.get(key, steps)

    def _step(self, one_round: Round, numbers: Sequence[int]) -> _Step:
        found = []
        for number in numbers:
            move = one_round.transfers[number]
            active = move.peer != IDLE
            load = self._loads.of(move)
            sizes = move.size_bytes[active]
            none_yet = _Passed(load, np.zeros_like(sizes))
            self._passed.setdefault(id(load), none_yet).add(sizes)
            found.append((load, sizes))
        key = tuple((id(load), sizes.tobytes()) for load, sizes in found)
        if key not in self._known:
            amounts = np.sum([load.bounded(sizes, self._width) for load, sizes in found], axis=0)
            busy = self._machine.time_ps(amounts)
            busiest = int(busy.argmax())
            # rings that work side by side are advanced one after the other
            lanes = len({one_round.transfers[number].lane for number in numbers})
            fixed = lanes * self._machine.row_ps + self._parts.model.semaphore_local_ps
            self._known[key] = _Step(
                fixed + max(load.flight_ps for load, _ in found),
                fixed + max(load.passing_ps for load, _ in found),
                max(load.ready_ps for load, _ in found),
                max(load.read_ps for load, _ in found),
                int(busy[busiest]),
                self._machine.vector.kind(busiest),
                amounts,
            )
        return self._known[key]


def _is_passed_on(move: Transfer) -> bool:
    """Whether everybody sends, to one other each, as soon as it has what it sends."""
    return move.also is None and not move.credit and bool((move.peer != IDLE).all())


def _channels(moves: Sequence[Transfer]) -> int:
    """Distinct lanes and columns of peers: what somebody may have to wait for."""
    mine = np.arange(len(moves[0].peer)) if moves else np.empty(0)
    remote = (move for move in moves if not np.array_equal(move.peer, mine))
    return len({(move.lane, move.peer.tobytes()) for move in remote})
