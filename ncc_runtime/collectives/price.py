"""The price of a placeholder's plans: latency and bandwidth, all groups together, in picoseconds.

A round of a strand takes what its slowest first byte takes, and what its busiest part takes for the
bytes of all groups (`loads.py`). A strand's rounds follow one another. Strands run in step, so
their bytes add up where they share a part; but k strands that share a link take turns there, so
that a k-th of them is under way at a time. No more is saved than the busiest part allows:

    time = handshakes + max(the longest chain, first byte + the busiest part over all rounds)

Every instruction of a CC-core counts: a signal per channel that its buffers are free, a row per
transfer, a wait per channel that something came in by.

Teams, which have plans of their own, meet in the last term only.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.collectives.loads import Kind, Load, Loads, Parts
from ncc_runtime.collectives.plan import IDLE, Plan, Round

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
        if self.latency_ps >= self.bandwidth_ps or not self.bound_ps_by_kind:
            return "latency"
        return max(self.bound_ps_by_kind, key=lambda kind: self.bound_ps_by_kind[kind]).value


@attrs.frozen(eq=False)
class _Step:
    """A round of one strand: its fixed time, and its time on the busiest part."""

    latency_ps: int
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
        busy = dict(self.busy)
        busy[step.kind] = busy.get(step.kind, 0) + step.busy_ps
        return _Reach(self.latency_ps + step.latency_ps + waits_ps, tuple(busy.items()))


def priced(parts: Parts, teams: Sequence[tuple[Plan, Groups]], width: int) -> Price:
    """The price of plans that run at the same time; `width` is the size of an element."""
    total: np.ndarray = np.zeros(parts.count, np.int64)
    first, longest, start = 0, _Reach(), 0
    for plan, groups in teams:
        chain = _Chain(parts, groups, width)
        for one_round in plan.rounds:
            chain.add(one_round)
        total += chain.total
        first, start = max(first, chain.first_ps), max(start, chain.start_ps + chain.end_ps)
        longest = max(longest, chain.reach, key=lambda reach: reach.end_ps)
    busy = parts.time_ps(total)
    busiest = int(busy.argmax())
    is_chain = longest.end_ps >= first + int(busy[busiest])
    reach = longest
    if not is_chain:
        reach = _Reach(first, ((parts.kind(busiest), int(busy[busiest])),))
    shares = {kind: time for kind, time in reach.busy if time}
    return Price(
        latency_ps=start + reach.latency_ps,
        bandwidth_ps=sum(shares.values()),
        bound_ps_by_kind=MappingProxyType(shares),
        is_chain=is_chain,
        bytes_by_part=total,
    )


class _Chain:
    """Adds up the rounds of one team; steps that are alike are worked out once."""

    def __init__(self, parts: Parts, groups: Groups, width: int) -> None:
        self._parts, self._width = parts, width
        self._loads = Loads(parts, groups)
        self._known: dict[Hashable, _Step] = {}
        self._together: dict[Hashable, Sequence[_Step]] = {}  # by steps of strands alone
        self._channels: dict[Hashable, int] = {}  # by lane and peers: the receiver's answer
        self._arrivals: dict[int | None, int] = {}  # by strand: channels that nobody waited for
        self._reach: dict[int | None, _Reach] = {}
        self._passed: dict[int, _Passed] = {}  # by id of the load
        self._lanes: set[int] = set()
        self.first_ps = 0

    @property
    def start_ps(self) -> int:
        """One signal per channel from each receiver, and the slowest one's way."""
        answers = [answer for answer in self._channels.values() if answer]
        return len(answers) * self._parts.model.cc_instruction_ps + max(answers, default=0)

    @property
    def end_ps(self) -> int:
        """A wait for every channel of the last round, and one for every ring."""
        rows = sum(self._arrivals.values()) + len(self._lanes)
        return rows * self._parts.model.cc_instruction_ps

    @property
    def reach(self) -> _Reach:
        """The longest chain."""
        return max(self._reach.values(), key=lambda reach: reach.end_ps, default=_Reach())

    @property
    def total(self) -> np.ndarray:
        """(parts,) int64, what all rounds take: loads are linear, so sizes are added up first."""
        total: np.ndarray = np.zeros(self._parts.count, np.int64)
        for passed in self._passed.values():
            total += passed.load.exact(passed.sizes, passed.times)
        return total

    def add(self, one_round: Round) -> None:
        strands: dict[int | None, list[int]] = defaultdict(list)
        for number, move in enumerate(one_round.transfers):
            strands[move.strand].append(number)
        before = self.reach
        waited = dict(self._arrivals)
        alone = [self._step(one_round, numbers) for numbers in strands.values()]
        for (strand, numbers), step in zip(strands.items(), self._in_step(alone), strict=True):
            came = before if strand is None else self._reach.get(strand, _Reach())
            arrived = sum(waited.values()) if strand is None else waited.get(strand, 0)
            # the first wait is in the row that advances a ring
            waits_ps = max(0, arrived - 1) * self._parts.model.cc_instruction_ps
            self._reach[strand] = came.after(step, waits_ps)
            if strand is None:
                self._arrivals.clear()
            self._arrivals[strand] = _channels(one_round, numbers)
            self.first_ps = self.first_ps or step.latency_ps

    def _in_step(self, steps: Sequence[_Step]) -> Sequence[_Step]:
        """Steps of strands that run at the same time."""
        key = tuple(map(id, steps))
        if len(steps) > 1 and key not in self._together:
            amounts = np.array([step.amounts for step in steps])
            ways = np.r_[self._parts.span(Kind.LINK), self._parts.span(Kind.EFA)]
            turns = max(1, int((amounts[:, ways] > 0).sum(axis=0).max(initial=0)))
            busy = self._parts.time_ps(amounts.sum(axis=0)) // turns
            busiest = int(busy.argmax())
            joint, kind = int(busy[busiest]), self._parts.kind(busiest)
            self._together[key] = [
                attrs.evolve(step, busy_ps=joint, kind=kind) if joint > step.busy_ps else step
                for step in steps
            ]
        return self._together.get(key, steps)

    def _step(self, one_round: Round, numbers: Sequence[int]) -> _Step:
        found = []
        for number in numbers:
            move = one_round.transfers[number]
            active = move.peer != IDLE
            self._lanes.add(move.lane)
            load = self._loads.of(move)
            self._channels.setdefault((move.lane, move.peer.tobytes()), load.ready_ps)
            sizes = move.size_bytes[active]
            none_yet = _Passed(load, np.zeros_like(sizes))
            self._passed.setdefault(id(load), none_yet).add(sizes)
            found.append((load, sizes))
        key = tuple((id(load), sizes.tobytes()) for load, sizes in found)
        if key not in self._known:
            model = self._parts.model
            amounts = np.sum([load.bounded(sizes, self._width) for load, sizes in found], axis=0)
            busy = self._parts.time_ps(amounts)
            busiest = int(busy.argmax())
            fixed = model.cc_instruction_ps + model.semaphore_local_ps
            self._known[key] = _Step(
                fixed + max(load.flight_ps for load, _ in found),
                int(busy[busiest]),
                self._parts.kind(busiest),
                amounts,
            )
        return self._known[key]


def _channels(one_round: Round, numbers: Sequence[int]) -> int:
    """Distinct lanes and columns of peers: what somebody may have to wait for."""
    moves = (one_round.transfers[number] for number in numbers)
    return len({(move.lane, move.peer.tobytes()) for move in moves})
