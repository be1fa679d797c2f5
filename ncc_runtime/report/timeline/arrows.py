"""Arrows from the instruction that triggers a collective, and to those that wait for it, by run.

A wait names a semaphore of the rank and a value. Values in a program count as if every block ran
once; each jump that a rank took shifts them. Rows in which a rank has nothing to do are no events,
so a jump shows only in where the rank's next event is.
"""

from collections.abc import Mapping
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, EngineQueue, Jump
from ncc_runtime.neff.table import NONE


def waited(trace: Trace, number: int, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(semaphore or IDLE, value) of the events of a queue; whole ranks, by rank, in order."""
    queue = trace.executable.queues[number]
    assert isinstance(queue, EngineQueue | CcQueue), "rings wait for their own tail"
    row, rank = trace.row[events], trace.rank[events]
    sem, value = queue.sync.wait_sem, queue.sync.wait_value
    sem = sem[row, rank if sem.shape[1] > 1 else 0].astype(np.int64)
    value = value[row, rank if value.shape[1] > 1 else 0].astype(np.int64)
    following = np.append(row[1:], -1)[: len(row)]
    goes_on = np.append(rank[1:] == rank[:-1], False)[: len(rank)]
    for at in queue.jumps:
        jumps = goes_on & _is_taken(queue.jumps, at, row, following)
        count = np.cumsum(jumps) - jumps  # taken before each event
        count -= count[np.searchsorted(rank, rank)]  # of its rank, as events come by rank
        shift = queue.jumps[at].shift
        has_shift = (sem != IDLE) & (sem < shift.shape[1])
        owner = rank if len(shift) > 1 else np.zeros_like(rank)
        value += count * np.where(has_shift, shift[owner, np.where(has_shift, sem, 0)], 0)
    return sem, value


def _is_taken(
    jumps: Mapping[int, Jump], at: int, row: np.ndarray, following: np.ndarray
) -> np.ndarray:
    """Whether a jump lies between each event and the one that follows it, (n,) bool."""
    jump = jumps[at]
    if jump.target <= at:
        inner = [
            _is_repeated(other.target, end, row, following)
            for end, other in jumps.items()
            if jump.target < other.target <= end < at
        ]
        return _is_repeated(jump.target, at, row, following) & ~np.any(
            [np.zeros_like(row), *inner], axis=0
        )
    back = jumps.get(jump.target - 1)
    opens = at + 1 if back is None or back.block != jump.block else back.target
    stays = np.where(following > at, following < jump.target, following >= opens)
    return np.asarray((row == at) & ~stays)


def _is_repeated(first: int, last: int, row: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Whether an event and the next are rows of a loop, and the next has no later row."""
    return (first <= following) & (following <= row) & (row <= last)


NO_ARROW = 0

_REPORTS = (CcOpcode.DONE, CcOpcode.TEST, CcOpcode.CASE)


@attrs.frozen(eq=False)
class Arrows:
    """From triggers to runs of collectives (positions in `Trace.runs`), and on to their waiters.

    The arrow to run k has number k + 1; arrows from runs are numbered after these.
    """

    trigger: np.ndarray  # (runs,) event
    run: np.ndarray  # (n,) position in Trace.runs, ascending
    consumer: np.ndarray  # (n,) event

    def leaving(self, events: np.ndarray) -> np.ndarray:
        """Numbers of the arrows that begin at triggers, NO_ARROW elsewhere."""
        return _numbers(self.trigger, self._by_trigger, 1, events)

    def arriving(self, events: np.ndarray) -> np.ndarray:
        """Numbers of the arrows that end at consumers, NO_ARROW elsewhere."""
        return _numbers(self.consumer, self._by_consumer, 1 + len(self.trigger), events)

    @cached_property
    def _by_trigger(self) -> np.ndarray:
        return np.argsort(self.trigger, kind="stable")

    @cached_property
    def _by_consumer(self) -> np.ndarray:
        return np.argsort(self.consumer, kind="stable")

    def from_runs(self, runs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Columns of numbers of the arrows that leave runs, as many as a run has at most."""
        first = np.searchsorted(self.run, runs)
        count = np.searchsorted(self.run, runs, side="right") - first
        base = 1 + len(self.trigger)
        return tuple(
            np.where(turn < count, base + first + turn, NO_ARROW)
            for turn in range(int(count.max(initial=0)))
        )


def _numbers(ends: np.ndarray, order: np.ndarray, base: int, events: np.ndarray) -> np.ndarray:
    """base + place in `ends`, which `order` sorts, for events that are there, else NO_ARROW."""
    if not len(ends):
        return np.full(len(events), NO_ARROW, np.int64)
    at = np.minimum(np.searchsorted(ends, events, sorter=order), len(ends) - 1)
    return np.where(ends[order[at]] == events, base + order[at], NO_ARROW)


def arrows_of(trace: Trace) -> Arrows:
    """The arrows of all ranks."""
    run, consumer = _consumers(trace)
    return Arrows(triggers(trace), run, consumer)


def triggers(trace: Trace) -> np.ndarray:
    """The event that triggered each run: of a placeholder and rank, the k-th the k-th."""
    triggers = [np.zeros((3, 0), np.int64)]
    for number, events in trace.blocks(trace.queues_of(EngineQueue)):
        queue = trace.executable.queues[number]
        assert isinstance(queue, EngineQueue)
        placeholder = queue.table.placeholder[trace.row[events]]
        events, placeholder = events[placeholder != NONE], placeholder[placeholder != NONE]
        triggers.append(np.stack((placeholder, trace.rank[events], events)).astype(np.int64))
    placeholder, rank, events = np.concatenate(triggers, axis=1)
    runs, ranks = trace.runs, trace.executable.ranks
    triggered = placeholder * ranks + rank
    by_trigger = np.argsort(triggered, kind="stable")
    ran = runs.placeholder.astype(np.int64) * ranks + runs.rank
    by_run = np.argsort(ran, kind="stable")
    ran, triggered = ran[by_run], triggered[by_trigger]
    nth = np.arange(len(ran)) - np.searchsorted(ran, ran)
    at = np.searchsorted(triggered, ran) + nth  # of a run that stalled some triggers had no effect
    assert (triggered[at] == ran).all(), "a collective ran without its trigger"
    trigger = np.empty(len(by_run), np.int64)
    trigger[by_run] = events[by_trigger][at]
    return trigger


def _consumers(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """(run, event) for every event of an engine that waited for the report of that run."""
    semaphores = max(1, trace.executable.semaphore_count)
    key, maker = reports(trace, semaphores)
    order = np.argsort(key, kind="stable")
    key, maker = key[order], maker[order]
    runs, events = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, block in trace.blocks(trace.queues_of(EngineQueue)):
        sem, value = waited(trace, number, block)
        # a wait for value v ends with the v-th report on its semaphore; CC-cores alone report there
        waited_key = trace.rank[block].astype(np.int64) * semaphores + sem
        at = np.searchsorted(key, waited_key) + value - 1
        inside = (sem != IDLE) & (value > 0) & (at < len(key))
        inside[inside] = key[at[inside]] == waited_key[inside]
        run = maker[at[inside]]
        runs.append(run[run != IDLE])
        events.append(block[inside][run != IDLE])
    run, event = np.concatenate(runs), np.concatenate(events)
    order = np.lexsort((event, run))
    return run[order], event[order]


def reports(trace: Trace, semaphores: int) -> tuple[np.ndarray, np.ndarray]:
    """(rank * semaphores + semaphore, run or IDLE) of increments for engines, in order."""
    last = trace.runs.last
    by_event = np.argsort(last, kind="stable")
    keys, makers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, events in trace.blocks(trace.queues_of(CcQueue)):
        queue = trace.executable.queues[number]
        assert isinstance(queue, CcQueue)
        events = events[np.isin(queue.opcode[trace.row[events]], _REPORTS)]
        row, rank = trace.row[events], trace.rank[events]
        for post in queue.sync.posts[:1]:
            is_local = post.rank[row, rank] == rank
            reports, to = events[is_local], rank[is_local].astype(np.int64)
            keys.append(to * semaphores + post.sem[row[is_local], to])
            at = np.minimum(np.searchsorted(last[by_event], reports), len(last) - 1)
            run = by_event[at]
            makers.append(np.where(last[run] == reports, run, IDLE))
    return np.concatenate(keys), np.concatenate(makers)
