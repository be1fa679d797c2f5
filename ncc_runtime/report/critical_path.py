"""The chain of events that a run's time is made of, walked back from the last event.

Each event started when the latest of what it waited for was there: its own queue, an increment, the
ring's previous transfer. So intervals of events and of increments in flight tile the whole run, and
add up to its time. Intervals of one collective, or of one engine of a rank, in a row are one step.
"""

import itertools
from collections.abc import Sequence
from functools import cached_property

import attrs

from ncc_runtime.execution.trace import NO_EVENT, Reason, Trace
from ncc_runtime.lowering.executable import IDLE, EngineQueue, Executable
from ncc_runtime.neff.program import Origin
from ncc_runtime.neff.stages import collective_origins
from ncc_runtime.report.row_texts import RowTexts, placeholder_text, row_texts


@attrs.frozen
class PathInterval:
    """An interval and its event; of an increment in flight, the event that waited for it."""

    event: int  # NO_EVENT: before the first event
    start_ps: int
    end_ps: int
    is_under_way: bool  # the increment had been made and was not yet seen


@attrs.frozen
class PathStep:
    """Neighbouring intervals of one collective, engine or CC-core."""

    what: str  # `p3 all-reduce.1`, `Tensor of rank 0: dot y f32[8,8]`, `launch`
    kind: str  # collective, engine, cc, launch
    placeholder: int | None
    ranks: tuple[int, ...]  # ascending
    start_ps: int
    time_ps: int
    under_way_ps: int  # of time_ps, increments between queues
    slowed_ps: int  # what sharing added to its events
    chain: tuple[int, ...] = attrs.field(repr=False, eq=len)  # its events in the trace, in order
    late: str  # what its first event waited for last
    line: str = ""  # of the user's code, `model.py:12`, of its collective or first instruction

    @property
    def events(self) -> int:
        return len(self.chain)


@attrs.frozen
class CriticalPath:
    """The steps, in order of time; their times add up to the run's."""

    steps: tuple[PathStep, ...]

    @property
    def time_ps(self) -> int:
        return sum(step.time_ps for step in self.steps)

    @property
    def slowed_ps(self) -> int:
        """What sharing added to events of the path."""
        return sum(step.slowed_ps for step in self.steps)

    def longest(self, count: int) -> tuple[PathStep, ...]:
        """The steps that take most, in order of time."""
        ranked = sorted(range(len(self.steps)), key=lambda at: (-self.steps[at].time_ps, at))
        return tuple(self.steps[at] for at in sorted(ranked[:count]))


def critical_path(trace: Trace) -> CriticalPath:
    """Why the run took as long as it did."""
    texts = _EventTexts(trace)
    groups = itertools.groupby(intervals_of(trace), lambda interval: texts.key(interval.event))
    return CriticalPath(tuple(_step(trace, texts, list(intervals)) for _, intervals in groups))


def intervals_of(trace: Trace) -> list[PathInterval]:
    """The chain, in order of time, from 0 to the run's end."""
    chain: list[PathInterval] = []
    if not len(trace):
        return chain
    event, until = trace.last_event, trace.time_ps
    while event != NO_EVENT:
        start, cause = int(trace.start_ps[event]), int(trace.cause[event])
        assert start <= until, f"event {event} started after what waited for it"
        chain.append(PathInterval(event, start, until, is_under_way=False))
        until = start
        made = int(trace.end_ps[cause]) if cause != NO_EVENT else until
        if made < until:
            chain.append(PathInterval(event, made, until, is_under_way=True))
            until = made
        assert len(chain) <= 2 * len(trace), "causes go round in a circle"
        event = cause
    if until > 0:
        chain.append(PathInterval(NO_EVENT, 0, until, is_under_way=False))
    return chain[::-1]


Key = tuple[str, int, int]
"""Kind, number and rank; neighbouring intervals of one key are one step."""


def _step(trace: Trace, texts: "_EventTexts", intervals: Sequence[PathInterval]) -> PathStep:
    events = list(dict.fromkeys(interval.event for interval in intervals))
    start, end = intervals[0].start_ps, intervals[-1].end_ps
    if events[0] == NO_EVENT:
        return PathStep("launch", "launch", None, (), start, end - start, 0, 0, (), "the host")
    kind, number, _ = texts.key(events[0])
    ranks = tuple(sorted({int(trace.rank[event]) for event in events}))
    return PathStep(
        what=texts.what(events),
        kind=kind,
        placeholder=number if kind == "collective" else None,
        ranks=ranks,
        start_ps=start,
        time_ps=end - start,
        under_way_ps=sum(
            interval.end_ps - interval.start_ps for interval in intervals if interval.is_under_way
        ),
        slowed_ps=sum(int(trace.slowed_ps[event]) for event in events),
        chain=tuple(events),
        late=texts.late(events[0]),
        line=texts.line(events[0]),
    )


class _EventTexts:
    """Events in words; the texts of a queue are made when first needed."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._texts: dict[int, RowTexts] = {}
        self._semaphores: dict[int, dict[int, str]] = {}

    @cached_property
    def _executable(self) -> Executable:
        return self._trace.executable

    def key(self, event: int) -> Key:
        """The key of the step that an event belongs to."""
        if event == NO_EVENT:
            return "launch", 0, 0
        number, placeholder = int(self._trace.queue[event]), self._placeholder(event)
        if placeholder != IDLE:
            return "collective", placeholder, 0
        is_engine = isinstance(self._executable.queues[number], EngineQueue)
        return "engine" if is_engine else "cc", number, int(self._trace.rank[event])

    def _placeholder(self, event: int) -> int:
        queue = self._executable.queues[int(self._trace.queue[event])]
        if isinstance(queue, EngineQueue):
            return IDLE
        return int(queue.placeholder[int(self._trace.row[event])])

    def what(self, events: Sequence[int]) -> str:
        """The heading of a step."""
        placeholder = self._placeholder(events[0])
        if placeholder != IDLE:
            return placeholder_text(self._executable, placeholder)
        first, last = self._row(events[0]), self._row(events[-1])
        more = "" if len(events) == 1 else f" … {last}"
        return f"{self._queue(events[0])}: {first}{more}"

    def late(self, event: int) -> str:
        """What an event waited for last."""
        trace, cause = self._trace, int(self._trace.cause[event])
        reason = Reason(int(trace.reason[event]))
        if cause == NO_EVENT:
            return "nothing, it started with the run"
        before = f"{self._row(cause)} on rank {int(trace.rank[cause])}"
        if reason is Reason.SEMAPHORE:
            return f"{before} ({self._semaphore(event)})"
        return f"{self._queue(event)}, busy with {self._row(cause)}"

    def _queue(self, event: int) -> str:
        name = self._executable.queues[int(self._trace.queue[event])].name
        return f"{name} of rank {int(self._trace.rank[event])}"

    def line(self, event: int) -> str:
        """The line of the user's code that an event comes from; empty where it is not known."""
        placeholder = self._placeholder(event)
        if placeholder != IDLE:
            return self._origins[placeholder].place
        return self._texts_of(event).place[int(self._trace.row[event])]

    @cached_property
    def _origins(self) -> Sequence[Origin]:
        return collective_origins(self._executable.program)

    def _row(self, event: int) -> str:
        return self._texts_of(event).name[int(self._trace.row[event])]

    def _texts_of(self, event: int) -> RowTexts:
        number = int(self._trace.queue[event])
        if number not in self._texts:
            self._texts[number] = row_texts(self._executable, number)
        return self._texts[number]

    def _semaphore(self, event: int) -> str:
        rank = int(self._trace.rank[event])
        wait_sem = self._executable.queues[int(self._trace.queue[event])].sync.wait_sem
        column = rank if wait_sem.shape[1] > 1 else 0
        sem = int(wait_sem[int(self._trace.row[event]), column])
        if rank not in self._semaphores:
            self._semaphores[rank] = self._executable.semaphore_names(rank)
        return self._semaphores[rank].get(sem, "a semaphore")
