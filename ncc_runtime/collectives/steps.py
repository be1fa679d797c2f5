"""What a round of one strand takes: a fixed time, and the time of its busiest part."""

from collections.abc import Hashable, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.loads import Load
from ncc_runtime.collectives.machine import Groups, Machine
from ncc_runtime.collectives.plan import IDLE, Transfer
from ncc_runtime.collectives.reach import Reach
from ncc_runtime.parts import Kind

Passed = tuple[Load, np.ndarray]
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

    def __init__(self, machine: Machine, groups: Groups, width: int) -> None:
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
        key = tuple((load, load.told(sizes, self._width)) for load, sizes in passed)
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
            fixed + max(load.flight_ps for load, _ in passed),
            fixed + max(load.passing_ps for load, _ in passed),
            max(load.ready_ps for load, _ in passed),
            max(load.read_ps for load, _ in passed),
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
