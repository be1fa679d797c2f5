"""The price of a placeholder's plans: latency and bandwidth, all groups together, in picoseconds.

A round of a strand takes what its slowest first byte takes, and what its busiest part takes for the
bytes of all groups (`loads.py`). A strand's rounds follow one another; strands run side by side, so
no more is saved than the busiest part allows for all of them:

    time = start + max(the longest chain of rounds, first byte + the busiest part over all rounds)

Chains of different strands overlap freely and queues on a part are served without gaps: where
strands disturb each other, the price is low.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.collectives.loads import Kind, Loads, Parts
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
    amounts: np.ndarray


@attrs.frozen
class _Reach:
    """A chain of steps so far; compared by its end."""

    latency_ps: int = 0
    busy: tuple[tuple[Kind, int], ...] = ()

    @property
    def end_ps(self) -> int:
        return self.latency_ps + sum(time for _, time in self.busy)

    def after(self, step: _Step) -> "_Reach":
        busy = dict(self.busy)
        busy[step.kind] = busy.get(step.kind, 0) + step.busy_ps
        return _Reach(self.latency_ps + step.latency_ps, tuple(busy.items()))


def priced(parts: Parts, teams: Sequence[tuple[Plan, Groups]], width: int) -> Price:
    """The price of plans that run at the same time; `width` is the size of an element."""
    total: np.ndarray = np.zeros(parts.count, np.int64)
    first, longest, start = 0, _Reach(), 0
    for plan, groups in teams:
        chain = _Chain(parts, groups, width)
        for one_round in plan.rounds:
            chain.add(one_round)
        total += chain.total
        first, start = max(first, chain.first_ps), max(start, chain.start_ps)
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
        self._channels: dict[Hashable, int] = {}  # by lane and peers: the receiver's answer
        self._reach: dict[int | None, _Reach] = {}
        self.total: np.ndarray = np.zeros(parts.count, np.int64)
        self.first_ps = 0

    @property
    def start_ps(self) -> int:
        """One signal per channel from each receiver, and the slowest one's way."""
        answers = [answer for answer in self._channels.values() if answer]
        return len(answers) * self._parts.model.cc_instruction_ps + max(answers, default=0)

    @property
    def reach(self) -> _Reach:
        """The longest chain."""
        return max(self._reach.values(), key=lambda reach: reach.end_ps, default=_Reach())

    def add(self, one_round: Round) -> None:
        strands: dict[int | None, list[int]] = defaultdict(list)
        for number, move in enumerate(one_round.transfers):
            strands[move.strand].append(number)
        before = self.reach
        for strand, numbers in strands.items():
            step = self._step(one_round, numbers)
            came = before if strand is None else self._reach.get(strand, _Reach())
            self._reach[strand] = came.after(step)
            self.first_ps = self.first_ps or step.latency_ps
            self.total += step.amounts

    def _step(self, one_round: Round, numbers: Sequence[int]) -> _Step:
        found = []
        for number in numbers:
            move = one_round.transfers[number]
            active = move.peer != IDLE
            load = self._loads.of(move)
            self._channels.setdefault((move.lane, move.peer.tobytes()), load.ready_ps)
            found.append((load, move.size_bytes[active]))
        key = tuple((id(load), sizes.tobytes()) for load, sizes in found)
        if key not in self._known:
            model = self._parts.model
            amounts = np.sum([load.amounts(sizes, self._width) for load, sizes in found], axis=0)
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
