"""An order of operations for five queues and the streams beside them: list scheduling.

Whenever a queue is free it takes, of the operations whose operands are there, the one that leads to
the next collective. So triggers come as early as their data allow. What leads to none any more
fills the time in which all else waits for a collective, or comes at the end. If it reads a
collective itself (an update), it always comes at the end, and so do the waits for it, in the order
in which the collectives started (`updates.py`): how long one takes is not known here, and a queue
that waits too early keeps all behind it waiting.
"""

import heapq
import math
from collections.abc import Mapping, Sequence

import attrs

from ncc_compiler.overlap.lifetimes import Lifetimes, Remainder
from ncc_compiler.overlap.updates import Turns
from ncc_compiler.overlap.work import Work
from ncc_runtime.neff.isa import ENGINES, Engine

Rank = tuple[int, ...]
"""Who goes first: a class, then a place in it."""

TRIGGER, SOON, LATER, LAST = range(4)
"""Classes: collectives; what leads to one that feeds compute; to another one; to none."""


@attrs.frozen
class Task:
    """A node as the scheduler sees it; tasks are numbered from 0 in program order."""

    work: Work
    stream: int
    after: tuple[int, ...]  # tasks that come first
    rank: Rank = (LAST, 0)
    reads_collective: bool = False  # itself or through others
    held_until: int | None = None  # a task: not before it is on its way, if that can be

    @property
    def is_leading(self) -> bool:
        """Whether a collective waits for it, or it is one."""
        return self.rank[0] < LAST

    @property
    def is_update(self) -> bool:
        """Whether it reads a collective and leads to none."""
        return self.reads_collective and not self.is_leading


def arrange(
    tasks: Sequence[Task],
    lifetimes: Lifetimes,
    stretch: range,
    limit_bytes: float = math.inf,
    window: int | None = None,
) -> list[int]:
    """The nodes of a stretch, which the tasks stand for, in an order that keeps to the limit.

    In program order they keep to it, too. `window` tasks may pass the first one that is left.
    """
    remainder = Remainder(lifetimes, stretch, limit_bytes)
    order = _Timeline(tasks, remainder, stretch.start, window or len(tasks)).run()
    return [stretch[number] for number in order]


_Entry = tuple[Rank, int]


class _Queue:
    """Tasks of one engine: those that may start now, best first, and those that come later."""

    def __init__(self) -> None:
        self.now: list[_Entry] = []
        self.later: list[tuple[int, _Entry]] = []

    def next(self, free: int, done: Sequence[bool]) -> tuple[int, _Entry] | None:
        """When the engine, free from then on, could start which task."""
        while True:
            while self.later and self.later[0][0] <= free:
                heapq.heappush(self.now, heapq.heappop(self.later)[1])
            if self.now:
                if not done[self.now[0][1]]:
                    return free, self.now[0]
                heapq.heappop(self.now)
            elif self.later:
                if not done[self.later[0][1][1]]:
                    return self.later[0]
                heapq.heappop(self.later)
            else:
                return None


class _Timeline:
    def __init__(
        self, tasks: Sequence[Task], remainder: Remainder, start: int, window: int
    ) -> None:
        self._tasks, self._remainder, self._start = tasks, remainder, start
        self._window = window
        self._beyond: list[int] = []  # ready, but behind the window
        self._free = dict.fromkeys(ENGINES, 0)
        self._leading = {engine: _Queue() for engine in ENGINES}
        self._filling = {engine: _Queue() for engine in ENGINES}
        self._updating = {engine: _Queue() for engine in ENGINES}
        self._stream_free: dict[int, int] = {}
        self._missing = [len(task.after) for task in tasks]
        self._users: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for other in task.after:
                self._users[other].append(number)
        self._ready = [0] * len(tasks)
        self._flies = [False] * len(tasks)  # a collective is the last thing that it waits for
        self._done = [False] * len(tasks)
        self._names: list[int] = []  # ready, of those that take no time
        self._holding: dict[int, list[int]] = {}  # ready, until that task is on its way
        self._held_back: list[int] = []  # ready updates whose turn has not come
        self._turns: Turns | None = None  # of updates, when all collectives are on their way
        self._left = sum(task.is_leading for task in tasks)
        self.order: list[int] = []

    def run(self) -> list[int]:
        for number, missing in enumerate(self._missing):
            if not missing:
                self._release(number)
        self._take_names()
        while len(self.order) < len(self._tasks):
            self._take(self._best())
            self._take_names()
        return self.order

    def _best(self) -> int:
        """The next task: one that leads to a collective, unless all of those wait for one."""
        leading = self._next(self._leading)
        if leading is not None:
            start, number = leading
            if not self._flies[number] or start > self._ready[number]:
                return number
        filling = self._next(self._filling)
        if filling is not None and (leading is None or filling[0] < leading[0]):
            return filling[1]
        if leading is None:
            leading = self._next(self._updating) or filling
        return self._first if leading is None else leading[1]

    @property
    def _first(self) -> int:
        """The first task that is left."""
        return self._remainder.first - self._start

    def _next(self, queues: Mapping[Engine, _Queue]) -> tuple[int, int] | None:
        """Of tasks that memory has room for, the one that can start first, and when."""
        found = [
            one
            for engine, queue in queues.items()
            if (one := queue.next(self._free[engine], self._done)) is not None
        ]
        for start, (_, number) in sorted(found):
            if self._remainder.has_room(self._start + number):
                return start, number
        return None

    def _take_names(self) -> None:
        """Names for data take no time: they come as soon as what they name."""
        while self._names:
            self._take(heapq.heappop(self._names))

    def _take(self, number: int) -> None:
        self._done[number] = True
        self.order.append(number)
        self._remainder.run(self._start + number)
        end = self._run(number)
        is_flight = self._tasks[number].work.flight > 0 or (
            self._tasks[number].work.engine is None and self._flies[number]
        )
        for user in self._users[number]:
            if end > self._ready[user]:
                self._ready[user], self._flies[user] = end, is_flight
            self._missing[user] -= 1
            if not self._missing[user]:
                self._release(user)
        self._let_go(number)

    def _run(self, number: int) -> int:
        """When its results are there."""
        task = self._tasks[number]
        if task.work.engine is None:
            return self._ready[number]
        end = max(self._free[task.work.engine], self._ready[number]) + task.work.duration
        self._free[task.work.engine] = end
        if not task.work.flight:
            return end
        start = max(end, self._stream_free.get(task.stream, 0))
        self._stream_free[task.stream] = start + task.work.flight
        return start + task.work.flight

    def _release(self, number: int) -> None:
        """Give a task whose operands are there to its queue, or put it where it waits for more."""
        task = self._tasks[number]
        if task.work.engine is None:
            heapq.heappush(self._names, number)
        elif number >= self._first + self._window:
            heapq.heappush(self._beyond, number)
        elif task.is_update and not (self._turns and self._turns.has_come(number)):
            self._held_back.append(number)
        elif task.held_until is not None and not self._done[task.held_until]:
            self._holding.setdefault(task.held_until, []).append(number)
        else:
            entry = self._ready[number], (task.rank, number)
            heapq.heappush(self._queues_of(task)[task.work.engine].later, entry)

    def _queues_of(self, task: Task) -> Mapping[Engine, _Queue]:
        if task.is_leading:
            return self._leading
        return self._updating if task.is_update else self._filling

    def _let_go(self, number: int) -> None:
        """Release whoever waited for this task to be on its way."""
        waiting = self._holding.pop(number, [])
        if self._tasks[number].is_leading:
            self._left -= 1
            if not self._left:
                self._turns = self._turns_now()
                waiting += self._take_held_back()
        elif self._turns and self._turns.take(number):
            waiting += self._take_held_back()
        while self._beyond and self._beyond[0] < self._first + self._window:
            waiting.append(heapq.heappop(self._beyond))
        for one in waiting:
            if not self._done[one]:
                self._release(one)

    def _take_held_back(self) -> list[int]:
        found, self._held_back = self._held_back, []
        return found

    def _turns_now(self) -> Turns:
        """Of updates that are left, and take time."""
        started = [number for number in self.order if self._tasks[number].work.flight]
        updates = [
            number
            for number, task in enumerate(self._tasks)
            if task.is_update and task.work.engine is not None and not self._done[number]
        ]
        return Turns([task.after for task in self._tasks], started, updates)
