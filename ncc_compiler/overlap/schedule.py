"""Orders the operations of every computation so that collectives run beside compute.

The order of the graph is the order of the engines' queues, so this is where it is settled what
stands before a trigger and before a wait. Loops and branches are meeting points of all queues:
nothing moves over them, and what stands between two of them is ordered by `timeline.py`.

An order of operations for five queues and the streams beside them: list scheduling.

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
from typing import ClassVar

import attrs

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Computation, Module, NodeId
from ncc_compiler.ir.ops import OPS
from ncc_compiler.options import SCHEDULE_FREE_BYTES, SCHEDULE_LIMIT_PERCENT, SCHEDULE_WINDOW
from ncc_compiler.overlap.ahead import Turns, held_until, kept_orders
from ncc_compiler.overlap.dependences import (
    Lifetimes,
    Remainder,
    feeds_compute,
    lifetimes_of,
    peak_bytes,
)
from ncc_compiler.overlap.work import CONTROL_FLOW, Work, works_of
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild
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


_NONE = 2**62


@attrs.frozen
class Schedule(Pass):
    """A computation takes at most `limit_percent` of the memory that it took before.

    That is of its parameters, its results and the values that live at the same time. Up to
    `free_bytes` are taken in any case: so little decides of no program whether it fits. If all
    that could go ahead took more, no node goes ahead of more than `window` others.

    An all-gather starts `early_all_gather_layers` layers ahead, and a reduce-scatter
    `late_reduce_scatter_layers` layers late; without these, as early as data and memory allow.
    """

    name: ClassVar[str] = "schedule"

    limit_percent: int = SCHEDULE_LIMIT_PERCENT
    free_bytes: int = SCHEDULE_FREE_BYTES
    window: int = SCHEDULE_WINDOW
    early_all_gather_layers: int | None = None
    late_reduce_scatter_layers: int | None = None

    def run(self, module: Module) -> Module:
        computations = dict(module.computations)
        for name, feeds in feeds_compute(module).items():
            body = module.computations[name]
            if any(OPS[node.op].collective for node in body.nodes):
                order = self.order(module, body, works_of(module, body), feeds)
                computations[name] = reordered(body, order)
        return attrs.evolve(module, computations=computations)

    def order(
        self, module: Module, body: Computation, works: Sequence[Work], feeds: Sequence[bool]
    ) -> list[int]:
        """The positions of a computation's nodes in their new order."""
        stretches = _stretches(body)
        kept = (body.root,) if body.name == module.entry else ()
        lifetimes = lifetimes_of(body, stretches, kept)
        late = self.late_reduce_scatter_layers
        held = held_until(body, lifetimes, self.early_all_gather_layers, late)
        after = kept_orders(body, lifetimes)
        runs = _runs(stretches)
        limit = self._limit(body, kept, max(peak_bytes(lifetimes, stretch) for stretch in runs))
        order: list[int] = []
        for stretch in runs:
            tasks = _tasks(body, stretch, _Facts(works, feeds, held, after))
            if not any(task.work.flight for task in tasks):
                order += stretch
                continue
            found = arrange(tasks, lifetimes, stretch)
            if peak_bytes(lifetimes, found) > limit:
                found = arrange(tasks, lifetimes, stretch, limit, self.window)
            order += found
        return order

    def _limit(self, body: Computation, kept: Sequence[int], peak: int) -> int:
        """What values may take at once, where they take so much in program order."""
        there = [node for node in body.nodes if node.op in ("constant", "parameter")]
        there += [body.nodes[position] for position in kept]
        whole = peak + sum(array.size_bytes for node in there for array in leaves(node.type))
        more = max(self.free_bytes, whole * self.limit_percent // 100) - whole
        return peak + max(0, more)


@attrs.frozen
class _Facts:
    """Of the nodes of a computation, by position."""

    works: Sequence[Work]
    feeds: Sequence[bool]
    held: Mapping[int, int]
    after: Mapping[int, Sequence[int]]


def _stretches(body: Computation) -> list[int]:
    """The number of each node's stretch; loops and branches are one by themselves."""
    found, number = [], 0
    for node in body.nodes:
        if node.op in CONTROL_FLOW:
            found.append(number + 1)
            number += 2
        else:
            found.append(number)
    return found


def _runs(stretches: Sequence[int]) -> list[range]:
    """The positions of each stretch."""
    edges = [k for k in range(1, len(stretches)) if stretches[k] != stretches[k - 1]]
    starts, ends = [0, *edges], [*edges, len(stretches)]
    return [range(first, last) for first, last in zip(starts, ends, strict=True)]


def _tasks(body: Computation, stretch: range, facts: _Facts) -> list[Task]:
    """The tasks of a stretch, numbered from its first node."""
    first = stretch.start
    works = facts.works[first : stretch.stop]
    after = [
        tuple(sorted({need - first for need in needs if first <= need < stretch.stop}))
        for position in stretch
        for needs in ((*body.nodes[position].operands, *facts.after.get(position, ())),)
    ]
    reads = _reads_collective(works, after)
    ranks = _ranks(_Stretch(works, after, reads), facts.feeds[first : stretch.stop])
    tasks = []
    for number, position in enumerate(stretch):
        until = facts.held.get(position)
        tasks.append(
            Task(
                work=works[number],
                stream=written_stream(body.nodes[position]) or 0,
                after=after[number],
                rank=ranks[number],
                reads_collective=reads[number],
                held_until=until - first if until is not None and until in stretch else None,
            )
        )
    return tasks


@attrs.frozen
class _Stretch:
    """The tasks of a stretch, by number."""

    works: Sequence[Work]
    after: Sequence[Sequence[int]]
    reads: Sequence[bool]  # a collective, itself or through others


def _reads_collective(works: Sequence[Work], after: Sequence[Sequence[int]]) -> list[bool]:
    reads: list[bool] = []
    for others in after:
        reads.append(any(works[other].flight or reads[other] for other in others))
    return reads


def _ranks(stretch: _Stretch, feeds: Sequence[bool]) -> list[Rank]:
    """The classes of tasks: by the next collective that each leads to."""
    works, turns = stretch.works, _turns(stretch.works, stretch.after)
    ahead = _ahead(stretch, turns)
    soon, later = [_NONE] * len(works), [_NONE] * len(works)
    ranks: list[Rank] = [(LAST, 0)] * len(works)
    for number in range(len(works) - 1, -1, -1):
        if works[number].flight:
            (soon if feeds[number] else later)[number] = turns[number]
        next_soon, next_later = soon[number], later[number]
        ranks[number] = _rank(works[number], next_soon, next_later) or (LAST, *ahead[number])
        for other in stretch.after[number]:
            soon[other] = min(soon[other], next_soon)
            later[other] = min(later[other], next_later)
    return ranks


def _ahead(stretch: _Stretch, turns: Mapping[int, int]) -> list[Rank]:
    """The places of tasks that lead to no collective.

    Of updates, whose turn comes anyway, those first that most work waits for; before them what
    they need else, by the collective that they read.
    """
    count = len(stretch.works)
    turn, wanted, work_behind = [0] * count, [_NONE - 1] * count, [0] * count
    for number, others in enumerate(stretch.after):
        turn[number] = turns.get(number, max((turn[other] for other in others), default=0))
    found: list[Rank] = [(0,)] * count
    for number in range(count - 1, -1, -1):
        work_behind[number] += stretch.works[number].duration
        is_update = stretch.reads[number]
        found[number] = (_NONE, -work_behind[number]) if is_update else (wanted[number],)
        for other in stretch.after[number]:
            work_behind[other] = max(work_behind[other], work_behind[number])
            wanted[other] = min(wanted[other], turn[number] if is_update else wanted[number])
    return found


def _turns(works: Sequence[Work], after: Sequence[Sequence[int]]) -> Mapping[int, int]:
    """The collectives in the order in which they could start if engines had no other work."""
    done: list[int] = []
    for work, others in zip(works, after, strict=True):
        start = max([done[other] for other in others], default=0)
        done.append(start + work.duration + work.flight)
    collectives = [number for number, work in enumerate(works) if work.flight]
    collectives.sort(key=lambda number: done[number] - works[number].flight)
    return {number: turn for turn, number in enumerate(collectives)}


def _rank(work: Work, soon: int, later: int) -> Rank | None:
    """Of a collective, or what leads to one."""
    if work.flight:
        return TRIGGER, min(soon, later)
    if soon < _NONE:
        return SOON, soon
    return (LATER, later) if later < _NONE else None


def reordered(body: Computation, order: Sequence[int]) -> Computation:
    """The computation with its nodes in this order."""
    rebuild = Rebuild(body)
    rebuild.new_ids = [NodeId(-1)] * len(body.nodes)
    for position in order:
        rebuild.new_ids[position] = rebuild.add(rebuild.rewired(body.nodes[position]))
    return rebuild.finish()
