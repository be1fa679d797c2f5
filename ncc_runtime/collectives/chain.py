"""The rounds of one team in time: chains of steps, and parts that serve one stretch after another.

A *stretch* is as many rounds of the same strands as stay inside instances, or as cross between
them. In a stretch, strands overlap as far as its busiest part allows; what follows waits for it. A
CC-core performs its rows in order: other strands begin when the last round before has begun, and a
part that both use serves one stretch after the other, or both by halves where they meet.
"""

from collections import defaultdict
from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.loads import Load
from ncc_runtime.collectives.machine import Groups, Machine
from ncc_runtime.collectives.meetings import Meetings
from ncc_runtime.collectives.plan import IDLE, Plan, Round, Transfer
from ncc_runtime.collectives.reach import Reach, last_of
from ncc_runtime.collectives.steps import Passed, Step, Steps
from ncc_runtime.parts import Kind

_Strand = int | None
_Ways = tuple[bytes, ...]  # peers of transfers


@attrs.define(eq=False)
class _Passed:
    """What went the ways of one load so far."""

    load: Load
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

    def __init__(self, machine: Machine, plan: Plan, groups: Groups, width: int) -> None:
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
