"""What a rank performed, instruction by instruction, and which of it had to come before which.

Loops are unrolled and branches are as they were taken, since what is read is the trace of a run.
An instruction waits for others by its queue, which runs in order, and by semaphores. What a queue
knows of others is kept as a vector clock (Fidge, 1988; Mattern, 1988), so that of all that a step
waits for only that is told which nothing else implies. Data go from the instructions that wrote a
buffer last to those that read it; as freedom from races is proved, the order of these accesses in
one run is that of every run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.trace import Trace, works
from ncc_runtime.lowering.executable import IDLE, EngineQueue, Executable
from ncc_runtime.neff.table import NONE, Instr
from ncc_runtime.report.timeline.arrows import reports, triggers, waited


@attrs.frozen
class PerformedStep:
    """An instruction, or a collective, that a rank performed; steps are numbered from 0."""

    queue: int  # of the executable; of a collective that of its trigger
    row: int
    placeholder: int  # NONE for an instruction
    data: tuple[int, ...]  # the steps whose results it reads, ascending
    control: tuple[int, ...]  # other steps that it waited for, ascending


@attrs.frozen
class _Event:
    """A row that an engine performed."""

    start_ps: int
    queue: int
    event: int
    row: int
    placeholder: int
    is_work: bool
    post_sem: int
    wait_sem: int
    wait_value: int


class PerformedSteps:
    """The steps of the ranks of a trace that have columns of their own."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._queues = trace.queues_of(EngineQueue)
        self._semaphores = max(1, trace.executable.semaphore_count)
        self._trigger = triggers(trace)
        key, run = reports(trace, self._semaphores)
        order = np.argsort(key, kind="stable")
        self._report_key, self._report_run = key[order], run[order]

    def count(self, rank: int) -> int:
        """How many steps a rank performed."""
        return sum(len(events) for _, events in self._events_of_steps(rank))

    def path(self, rank: int) -> tuple[tuple[int, bytes], ...]:
        """The rows that a rank performed, by queue; ranks of one path have the same steps."""
        rows = self._trace.row
        return tuple(
            (number, rows[events].astype(np.int32).tobytes())
            for number, events in self._trace.blocks(self._queues, self._only(rank))
        )

    def of(self, rank: int) -> list[PerformedStep]:
        """What a rank performed, each step behind all that it waited for."""
        walk = _StepWalk(self._trace.executable, rank, self._reports(rank))
        for event in self._events(rank):
            walk.add(event)
        return walk.steps

    def events_of(self, rank: int, steps: Sequence[PerformedStep]) -> list[int]:
        """The event of each step of a rank's path; of a collective that of its trigger."""
        events = {number: iter(its.tolist()) for number, its in self._events_of_steps(rank)}
        return [next(events[step.queue]) for step in steps]

    def _events_of_steps(self, rank: int) -> Iterator[tuple[int, np.ndarray]]:
        """By queue, the events of instructions and triggers, in order."""
        for number, performed in self._trace.blocks(self._queues, self._only(rank)):
            queue = self._trace.executable.queues[number]
            assert isinstance(queue, EngineQueue), number
            rows = self._trace.row[performed]
            yield number, performed[works(queue)[rows] | (queue.table.placeholder[rows] != NONE)]

    def _only(self, rank: int) -> np.ndarray:
        return np.arange(self._trace.executable.representatives) == rank

    def _events(self, rank: int) -> list[_Event]:
        """The rows of all engines in the order in which they began: no row takes no time."""
        trace, found = self._trace, list[_Event]()
        for number, events in trace.blocks(self._queues, self._only(rank)):
            queue = trace.executable.queues[number]
            assert isinstance(queue, EngineQueue), number
            rows = trace.row[events]
            columns = (
                events,
                rows,
                queue.table.placeholder[rows],
                works(queue)[rows],
                queue.table.post_sem[rows],
                *waited(trace, number, events),
            )
            listed = (column.tolist() for column in columns)
            start_ps = trace.start_ps[events].tolist()
            found += [
                _Event(start, number, *rest) for start, *rest in zip(start_ps, *listed, strict=True)
            ]
        found.sort(key=lambda event: (event.start_ps, event.queue, event.event))
        return found

    def _reports(self, rank: int) -> Mapping[int, Sequence[int]]:
        """By semaphore, for each increment by a CC-core the event that triggered its collective.

        IDLE where the CC-core only said that it has read a predicate.
        """
        ends = (rank * self._semaphores, (rank + 1) * self._semaphores)
        first, end = np.searchsorted(self._report_key, ends)
        by_semaphore: dict[int, list[int]] = {}
        semaphores = (self._report_key[first:end] - ends[0]).tolist()
        runs = self._report_run[first:end].tolist()
        for semaphore, run in zip(semaphores, runs, strict=True):
            trigger = IDLE if run == IDLE else int(self._trigger[run])
            by_semaphore.setdefault(semaphore, []).append(trigger)
        return by_semaphore


_Clock = dict[object, int]
"""By queue or stream, the last of its steps that is known to be complete."""


class _StepWalk:
    """Goes through what the engines of a rank did, and makes steps of instructions and triggers."""

    def __init__(
        self, executable: Executable, rank: int, reports_of: Mapping[int, Sequence[int]]
    ) -> None:
        self.steps: list[PerformedStep] = []
        self._executable = executable
        self._program = executable.stage_of(rank).program
        self._reports = reports_of
        self._instrs: dict[int, list[Instr]] = {}  # by queue
        self._collectives: dict[int, int] = {}  # step by event of its trigger
        self._known: dict[object, _Clock] = {}  # by queue or stream, of what is next in it
        self._places: list[object] = []  # by step, its queue or stream
        self._after: list[_Clock] = []  # by step, what is known once it is complete
        self._posts: dict[int, list[_Clock]] = {}  # by semaphore of an engine, its increments
        self._writers: dict[int, tuple[int, ...]] = {}  # by buffer, since it was written whole
        self._memory = executable.program.donated()  # outputs in the memory of inputs

    def add(self, event: _Event) -> None:
        """A row; rows before it in its queue, and those that it waited for, were added."""
        known = self._known.setdefault(event.queue, {})
        if event.wait_sem != IDLE and event.wait_value > 0:
            _join(known, self._increment(event.wait_sem, event.wait_value))
        if event.placeholder != NONE:
            placeholder = self._program.placeholders[event.placeholder]
            stream = ("stream", placeholder.stream)
            # it is done on its stream, behind the collectives before it; its engine goes on
            of_stream = self._known.setdefault(stream, {})
            _join(of_stream, known)
            self._collectives[event.event] = len(self.steps)
            read = (*placeholder.operands, *placeholder.counts)
            self._add_step(event, stream, of_stream, read, placeholder.results)
        elif event.is_work:
            if event.queue not in self._instrs:
                queue = self._executable.queues[event.queue]
                assert isinstance(queue, EngineQueue), event.queue
                self._instrs[event.queue] = list(queue.table)
            instr = self._instrs[event.queue][event.row]
            self._add_step(event, event.queue, known, instr.operands, instr.results)
        if event.post_sem != NONE:
            self._posts.setdefault(event.post_sem, []).append(dict(known))

    def _increment(self, semaphore: int, value: int) -> _Clock:
        """What is known after the increment that makes a semaphore so large."""
        if semaphore in self._posts:
            return self._posts[semaphore][value - 1]
        before = self._reports[semaphore][:value]
        trigger = next((event for event in reversed(before) if event != IDLE), None)
        return {} if trigger is None else self._after[self._collectives[trigger]]

    def _add_step(
        self,
        event: _Event,
        place: object,
        known: _Clock,
        read: Iterable[int],
        written: Iterable[int],
    ) -> None:
        number = len(self.steps)
        writers = (self._writers.get(self._buffer(tensor), ()) for tensor in read)
        data = {step for steps in writers for step in steps}
        latest = data.union(known.values())
        control = [step for step in latest - data if not self._is_implied(step, latest)]
        self.steps.append(
            PerformedStep(
                queue=event.queue,
                row=event.row,
                placeholder=event.placeholder,
                data=tuple(sorted(data)),
                control=tuple(sorted(control)),
            )
        )
        known[place] = number
        self._places.append(place)
        self._after.append(dict(known))
        for tensor in written:
            view, buffer = self._executable.program.tensors[tensor], self._buffer(tensor)
            is_whole = view.size_bytes >= self._executable.program.buffers[buffer].size_bytes
            others = () if is_whole else self._writers.get(buffer, ())
            self._writers[buffer] = (*others, number)

    def _is_implied(self, step: int, others: Iterable[int]) -> bool:
        """Whether one of the others comes behind a step."""
        place = self._places[step]
        return any(self._after[other].get(place, -1) >= step for other in others if other != step)

    def _buffer(self, tensor: int) -> int:
        buffer = self._executable.program.tensors[tensor].buffer
        return self._memory.get(buffer, buffer)


def _join(clock: _Clock, other: Mapping[object, int]) -> None:
    """The clock learns what the other knows."""
    for place, step in other.items():
        if clock.get(place, -1) < step:
            clock[place] = step
