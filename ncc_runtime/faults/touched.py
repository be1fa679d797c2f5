"""Which events of a disturbed run a fault touches by itself, and how much longer it made them.

A fault touches what it names: rows of a queue that it slows while it lasts, transfers over a part
that it slows, the transfer that it spoils, the start of a rank that it launches late. How much it
added there is told by the undisturbed run. Everything else that is late follows by causes.
"""

from collections.abc import Sequence
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.execution.clock.costs import engine_costs
from ncc_runtime.execution.disturbance import Disturbance, PartSpeed, QueueSpeed
from ncc_runtime.execution.trace import NO_EVENT, Trace
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.report.row_texts import program_of
from ncc_runtime.report.utilisation import kinds_of_transfers


@attrs.frozen(eq=False)
class OrderedTrace:
    """Events by queue, by rank, then in order: the k-th of a queue and rank is found at once."""

    trace: Trace

    @cached_property
    def events(self) -> np.ndarray:
        """(n,) the events in that order."""
        queues = range(len(self.trace.executable.queues))
        blocks = [events for _, events in self.trace.blocks(queues)]
        return np.concatenate([np.zeros(0, np.int64), *blocks])

    @cached_property
    def first(self) -> np.ndarray:
        """(queues * ranks + 1,) where the events of each queue and rank begin."""
        executable = self.trace.executable
        cell = self.cell(self.events)
        count = len(executable.queues) * executable.representatives
        return np.append(0, np.cumsum(np.bincount(cell, minlength=count)))

    def cell(self, events: np.ndarray) -> np.ndarray:
        """Queue and rank as one number: the index of `first`."""
        ranks = np.int64(self.trace.executable.representatives)
        return np.asarray(self.trace.queue[events] * ranks + self.trace.rank[events])

    def of(self, queue: int, rank: int) -> np.ndarray:
        """The events of a queue on a rank, in order."""
        cell = queue * self.trace.executable.representatives + rank
        return self.events[self.first[cell] : self.first[cell + 1]]

    def of_queue(self, queue: int) -> np.ndarray:
        """The events of a queue on all ranks."""
        ranks = self.trace.executable.representatives
        return self.events[self.first[queue * ranks] : self.first[(queue + 1) * ranks]]


@attrs.frozen(eq=False)
class Delays:
    """How much later each event of a disturbed run is than in the undisturbed one, columns of ps.

    The k-th row that a queue performs on a rank is the same one in both: they have the same
    decisions. Of a run that stalled, the last rows of some queues are missing.
    """

    undisturbed: OrderedTrace
    disturbed: OrderedTrace

    @cached_property
    def same(self) -> np.ndarray:
        """(n,) the event of the undisturbed run for each of the disturbed."""
        before, after = self.undisturbed, self.disturbed
        counts = np.diff(after.first)
        assert (counts <= np.diff(before.first)).all(), "two runs of one executable and decisions"
        at = np.arange(len(after.events)) + np.repeat(before.first[:-1] - after.first[:-1], counts)
        same = np.empty(len(at), np.int64)
        same[after.events] = before.events[at]
        return same

    @cached_property
    def start_ps(self) -> np.ndarray:
        """(n,) how much later it starts."""
        before, after = self.undisturbed.trace, self.disturbed.trace
        return np.asarray(after.start_ps - before.start_ps[self.same])

    @cached_property
    def end_ps(self) -> np.ndarray:
        """(n,) how much later it ends."""
        before, after = self.undisturbed.trace, self.disturbed.trace
        return np.asarray(after.end_ps - before.end_ps[self.same])

    @cached_property
    def longer_ps(self) -> np.ndarray:
        """(n,) how much longer it takes from its start to its end."""
        return self.end_ps - self.start_ps

    @cached_property
    def later_than_cause_ps(self) -> np.ndarray:
        """(n,) how much more time there is between the end of its cause and its start.

        Negative where it waited for something else in the undisturbed run: slack.
        """
        cause = np.asarray(self.disturbed.trace.cause)
        return self.start_ps - np.where(cause == NO_EVENT, 0, self.end_ps[cause])


@attrs.frozen(eq=False)
class Touched:
    """What one fault added by itself."""

    events: np.ndarray  # (k,) ascending
    longer_ps: np.ndarray  # (k,) int64, from start to end, not negative
    later_ps: np.ndarray  # (k,) int64, from the end of the cause to the start, not negative

    @property
    def added_ps(self) -> np.ndarray:
        """(k,) both, positive."""
        return np.asarray(self.longer_ps + self.later_ps)


def touched(delays: Delays, disturbance: Disturbance) -> Touched:
    """The events that a fault made longer, or start later after their cause."""
    trace = delays.disturbed.trace
    longer: np.ndarray = np.zeros(len(trace), bool)
    put_off: np.ndarray = np.zeros(len(trace), bool)
    _by_queues(delays.disturbed, disturbance.queues, longer, put_off)
    _by_parts(delays.disturbed, disturbance.parts, longer)
    cause = np.asarray(trace.cause)
    late: list[int] = []  # events whose increments are seen late
    for fault in disturbance.transfers:
        events = delays.disturbed.of(fault.queue, fault.rank)[fault.nth : fault.nth + 1]
        longer[events] |= fault.longer_ps > 0
        late += events.tolist() if fault.late_ps > 0 else []
    if late:
        put_off |= np.isin(cause, late)
    ranks = [rank for rank, ps in disturbance.late_start_ps.items() if ps > 0]
    if ranks:
        put_off |= (cause == NO_EVENT) & np.isin(trace.rank, ranks)
    longer_ps = np.where(longer, np.maximum(delays.longer_ps, 0), 0)
    later_ps = np.where(put_off, np.maximum(delays.later_than_cause_ps, 0), 0)
    events = np.flatnonzero(longer_ps + later_ps)
    return Touched(events, longer_ps[events], later_ps[events])


def _by_queues(
    ordered: OrderedTrace, speeds: Sequence[QueueSpeed], longer: np.ndarray, put_off: np.ndarray
) -> None:
    """Mark rows that run on a slowed queue, and those that start late as it stood still."""
    trace = ordered.trace
    by_cell: dict[tuple[int, int], list[QueueSpeed]] = {}
    for speed in speeds:
        by_cell.setdefault((speed.queue, speed.rank), []).append(speed)
    for (queue, rank), own in by_cell.items():
        events = ordered.of(queue, rank)
        start, cause = trace.start_ps[events], trace.cause[events]
        longer[events] |= _overlap(own, start, trace.end_ps[events])
        still = [speed for speed in own if speed.speed == 0]
        ready = np.where(cause == NO_EVENT, 0, trace.end_ps[cause])
        put_off[events] |= _overlap(still, np.minimum(ready, start), start + 1)


def _by_parts(ordered: OrderedTrace, speeds: Sequence[PartSpeed], longer: np.ndarray) -> None:
    """Mark transfers, and instructions that move data, over slowed parts while they are slow."""
    if not speeds:
        return
    trace, executable = ordered.trace, ordered.trace.executable
    model = TimingModel.from_topology(executable.topology)
    parts = Parts(executable.routes, model, executable.ranks)
    by_part: dict[int, list[PartSpeed]] = {}
    for speed in speeds:
        by_part.setdefault(speed.part, []).append(speed)
    for number, queue in enumerate(executable.queues):
        if isinstance(queue, CcQueue):
            continue
        events = ordered.of_queue(number)
        row, rank = trace.row[events], trace.rank[events]
        if isinstance(queue, DmaQueue):
            sends = queue.peer[row, rank] != IDLE
            events, row, rank = events[sends], row[sends], rank[sends]
            kind, usage = kinds_of_transfers(parts, queue, row, rank)
        start, end = trace.start_ps[events], trace.end_ps[events]
        for part, own in by_part.items():
            if isinstance(queue, DmaQueue):
                passes = np.isin(kind, usage.transfer[usage.part == part])
            else:
                moves = engine_costs(program_of(executable, queue), model, queue).traffic > 0
                passes = moves[row] & (parts.stack[rank] == part)
            longer[events[passes]] |= _overlap(own, start[passes], end[passes])


def _overlap(
    speeds: Sequence[QueueSpeed] | Sequence[PartSpeed], low_ps: np.ndarray, high_ps: np.ndarray
) -> np.ndarray:
    """Which intervals [low, high) meet the time of at least one of these, (n,) bool."""
    starts = np.sort([speed.start_ps for speed in speeds])
    ends = np.sort([speed.end_ps for speed in speeds])
    # those that have begun before the interval's end, without those that are over by its start
    return np.searchsorted(starts, high_ps, "left") > np.searchsorted(ends, low_ps, "right")
