"""Orders the operations of every computation so that collectives run beside compute.

The order of the graph is the order of the engines' queues, so this decides what stands before a
trigger and before a wait. Loops and branches are barriers of all queues: nothing moves over them.
What lies between two of them is a scheduling region, as in LLVM, and is ordered by itself.

The method is list scheduling for five in-order queues and the streams beside them. Whenever a queue
is free it takes the ready operation of the best priority: the one on the way to the next
collective. So triggers come as early as their data allow. Operations that lead to no collective
fill the time in which all others wait for one, or come at the end. An update (it reads a
collective and leads to none) always comes at the end, and so do its waits, in the order in which
the collectives started (`UpdateOrder`): how long a collective takes is not known here, and a queue
that waits too early keeps everything behind it waiting.

How quick collectives are is not known either. So the new order of a region is taken only if by
estimates at several speeds it ends no later than program order (`pays`).
"""

import functools
import heapq
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Computation, Module, NodeId
from ncc_compiler.ir.ops import OPS
from ncc_compiler.options import (
    MEMORY_PERCENT,
    SCHEDULE_FREE_BYTES,
    SCHEDULE_LIMIT_PERCENT,
    SCHEDULE_WINDOW,
)
from ncc_compiler.overlap.analyses import (
    LiveRanges,
    MemoryBudget,
    feeds_compute,
    live_ranges_of,
    peak_bytes,
)
from ncc_compiler.overlap.cost_model import CONTROL_FLOW, LIKELY, SPEEDS, OpWork, Speed, works_of
from ncc_compiler.overlap.memory_limit import first_within
from ncc_compiler.overlap.order_constraints import UpdateOrder, anti_dependences, shifted_starts
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, with_computations
from ncc_runtime.neff.isa import ENGINES, Engine

Priority = tuple[int, ...]
"""Smaller goes first: a class, then a place in it."""

TRIGGER, SOON, LATER, LAST = range(4)
"""Classes: collectives; what leads to one that feeds compute; to another one; to none."""


@attrs.frozen
class Task:
    """A node as the scheduler sees it; tasks are numbered from 0 in program order."""

    work: OpWork
    stream: int
    after: tuple[int, ...]  # tasks that come first
    priority: Priority = (LAST, 0)
    reads_collective: bool = False  # itself or through others
    start_after: int | None = None  # a task that is to start before this one, if it can

    @property
    def is_leading(self) -> bool:
        """Whether a collective waits for it, or it is one."""
        return self.priority[0] < LAST

    @property
    def is_update(self) -> bool:
        """Whether it reads a collective and leads to none."""
        return self.reads_collective and not self.is_leading


def list_schedule(
    tasks: Sequence[Task],
    ranges: LiveRanges,
    region: range,
    limit_bytes: float = math.inf,
    window: int | None = None,
) -> list[int]:
    """The nodes of a region in an order whose live values never take more than `limit_bytes`.

    Task k stands for node region[k]; program order must keep to the limit. At most `window` tasks
    may pass the first one that is left.
    """
    budget = MemoryBudget(ranges, region, limit_bytes)
    order = _Timeline(tasks, budget, region.start, window or len(tasks)).run()
    return [region[number] for number in order]


_Entry = tuple[Priority, int]  # a task's number behind its priority


class _Queue:
    """Tasks of one engine: those that may start now, best first, and those that come later."""

    def __init__(self) -> None:
        self.now: list[_Entry] = []
        self.later: list[tuple[int, _Entry]] = []

    def next(self, free: int, done: Sequence[bool]) -> tuple[int, _Entry] | None:
        """When an engine that is free from `free` on could start its best task, and which.

        Tasks that are done are dropped: where memory has room for nothing else, the first task
        that is left is taken out of its turn.
        """
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
    """The clocks of queues and streams, and the tasks that are ready, while an order is made."""

    def __init__(self, tasks: Sequence[Task], budget: MemoryBudget, start: int, window: int):
        self._tasks, self._budget, self._start = tasks, budget, start
        self._window = window
        self._beyond: list[int] = []  # ready, but behind the window
        self._free = dict.fromkeys(ENGINES, 0)
        self._leading = {engine: _Queue() for engine in ENGINES}
        self._filling = {engine: _Queue() for engine in ENGINES}
        self._updating = {engine: _Queue() for engine in ENGINES}
        self._stream_free: dict[int, int] = {}
        self._missing = [len(task.after) for task in tasks]  # predecessors that are not done
        self._users: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for other in task.after:
                self._users[other].append(number)
        self._ready = [0] * len(tasks)
        self._waits_in_flight = [False] * len(tasks)  # its last operand comes from a collective
        self._done = [False] * len(tasks)
        self._free_of_cost: list[int] = []  # ready, of those that take no time
        self._shifted: dict[int, list[int]] = {}  # ready, by the task that is to start first
        self._early_updates: list[int] = []  # ready, but other updates go first
        self._update_order: UpdateOrder | None = None  # once all collectives are on their way
        self._leading_left = sum(task.is_leading for task in tasks)
        self.order: list[int] = []

    def run(self) -> list[int]:
        for number, missing in enumerate(self._missing):
            if not missing:
                self._release(number)
        self._take_free_of_cost()
        while len(self.order) < len(self._tasks):
            self._take(self._best())
            self._take_free_of_cost()
        return self.order

    def _best(self) -> int:
        """The next task: one that leads to a collective, unless all of those wait for one."""
        leading = self._next(self._leading)
        if leading is not None:
            start, number = leading
            if not self._waits_in_flight[number] or start > self._ready[number]:
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
        return self._budget.first - self._start

    def _next(self, queues: Mapping[Engine, _Queue]) -> tuple[int, int] | None:
        """Of tasks that memory has room for, the one that can start first, and when."""
        candidates = [
            candidate
            for engine, queue in queues.items()
            if (candidate := queue.next(self._free[engine], self._done)) is not None
        ]
        for start, (_, number) in sorted(candidates):
            if self._budget.has_room(self._start + number):
                return start, number
        return None

    def _take_free_of_cost(self) -> None:
        """Ops that only rename data (tuples, reshapes) come as soon as their operands."""
        while self._free_of_cost:
            self._take(heapq.heappop(self._free_of_cost))

    def _take(self, number: int) -> None:
        self._done[number] = True
        self.order.append(number)
        self._budget.run(self._start + number)
        end = self._run(number)
        # What only renames a collective's result is in flight as that is.
        is_flight = self._tasks[number].work.latency > 0 or (
            self._tasks[number].work.engine is None and self._waits_in_flight[number]
        )
        for user in self._users[number]:
            if end > self._ready[user]:
                self._ready[user], self._waits_in_flight[user] = end, is_flight
            self._missing[user] -= 1
            if not self._missing[user]:
                self._release(user)
        self._wake_waiting(number)

    def _run(self, number: int) -> int:
        """When its results are there."""
        task = self._tasks[number]
        if task.work.engine is None:
            return self._ready[number]
        end = max(self._free[task.work.engine], self._ready[number]) + task.work.duration
        self._free[task.work.engine] = end
        if not task.work.latency:
            return end
        start = max(end, self._stream_free.get(task.stream, 0))
        self._stream_free[task.stream] = start + task.work.latency
        return start + task.work.latency

    def _release(self, number: int) -> None:
        """Give a task whose operands are there to its queue, or put it where it waits for more."""
        task = self._tasks[number]
        if task.work.engine is None:
            heapq.heappush(self._free_of_cost, number)
        elif number >= self._first + self._window:
            heapq.heappush(self._beyond, number)
        elif task.is_update and not (self._update_order and self._update_order.may_run(number)):
            self._early_updates.append(number)
        elif task.start_after is not None and not self._done[task.start_after]:
            self._shifted.setdefault(task.start_after, []).append(number)
        else:
            entry = self._ready[number], (task.priority, number)
            heapq.heappush(self._queues_of(task)[task.work.engine].later, entry)

    def _queues_of(self, task: Task) -> Mapping[Engine, _Queue]:
        if task.is_leading:
            return self._leading
        return self._updating if task.is_update else self._filling

    def _wake_waiting(self, number: int) -> None:
        """Release the tasks that waited for this one to be on its way."""
        waiting = self._shifted.pop(number, [])
        if self._tasks[number].is_leading:
            self._leading_left -= 1
            if not self._leading_left:
                self._update_order = self._order_of_updates()
                waiting += self._take_early_updates()
        elif self._update_order and self._update_order.take(number):
            waiting += self._take_early_updates()
        while self._beyond and self._beyond[0] < self._first + self._window:
            waiting.append(heapq.heappop(self._beyond))
        for other in waiting:
            if not self._done[other]:
                self._release(other)

    def _take_early_updates(self) -> list[int]:
        updates, self._early_updates = self._early_updates, []
        return updates

    def _order_of_updates(self) -> UpdateOrder:
        """The order of updates that are left and take time."""
        started = [number for number in self.order if self._tasks[number].work.latency]
        updates = [
            number
            for number, task in enumerate(self._tasks)
            if task.is_update and task.work.engine is not None and not self._done[number]
        ]
        return UpdateOrder([task.after for task in self._tasks], started, updates)


_NO_COLLECTIVE = 2**62  # behind every place in the order of collectives


_NARROWER = (32, 8)
"""Windows that are tried where memory is too short for the usual one."""


@attrs.frozen
class Schedule(Pass):
    """A computation takes at most `limit_percent` of the memory that it took before.

    That is of its parameters, its results and the values that live at the same time. Up to
    `free_bytes` are taken in any case. If all that could go ahead took more, no node goes ahead of
    more than `window` others. That is an estimate; an order is kept if with it the whole program
    takes at most `memory_percent` of what it took (`memory_limit.py`).

    An all-gather starts `early_all_gather_layers` layers ahead, and a reduce-scatter
    `late_reduce_scatter_layers` layers late; without these, as early as data and memory allow.
    """

    name: ClassVar[str] = "schedule"

    limit_percent: int = SCHEDULE_LIMIT_PERCENT
    free_bytes: int = SCHEDULE_FREE_BYTES
    window: int = SCHEDULE_WINDOW
    memory_percent: int = MEMORY_PERCENT
    early_all_gather_layers: int | None = None
    late_reduce_scatter_layers: int | None = None

    def run(self, module: Module) -> Module:
        orders: dict[str, Orders] = {}
        for name, feeds in feeds_compute(module).items():
            body = module.computations[name]
            if any(OPS[node.op].collective for node in body.nodes):
                orders[name] = self.orders(module, body, works_of(module, body), feeds)
        strict = self.strict()
        narrower = (attrs.evolve(strict, window=window) for window in _NARROWER)
        tried = (self, strict, *narrower)
        forms = (functools.partial(one._scheduled, module, orders) for one in tried)
        return first_within(module, forms, self.memory_percent)

    def strict(self) -> "Schedule":
        """The pass that allows no more memory than program order by its own estimate."""
        return attrs.evolve(self, limit_percent=100, free_bytes=0)

    def _scheduled(self, module: Module, orders: Mapping[str, "Orders"]) -> Module:
        computations = dict(module.computations)
        for name, each in orders.items():
            order = self.order(each)
            if order != [*range(len(order))]:
                computations[name] = reordered(module.computations[name], order)
        return with_computations(module, computations)

    def orders(
        self,
        module: Module,
        body: Computation,
        works: Sequence[OpWork],
        feeds: Sequence[bool],
    ) -> "Orders":
        """The orders that a computation may have, of which `order` takes one."""
        kept = (body.root,) if body.name == module.entry else ()
        layers = self.early_all_gather_layers, self.late_reduce_scatter_layers
        return Orders(body, works, feeds, kept, *layers)

    def order(self, orders: "Orders") -> list[int]:
        """The positions of a computation's nodes in their new order."""
        more = max(self.free_bytes, orders.total_bytes * self.limit_percent // 100)
        limit = orders.peak_bytes + max(0, more - orders.total_bytes)
        return orders.within(limit, self.window)


class Orders:
    """The orders of a computation's nodes that use so many bytes or so many."""

    def __init__(
        self,
        body: Computation,
        works: Sequence[OpWork],
        feeds: Sequence[bool],
        kept: Sequence[int],
        early: int | None,
        late: int | None,
    ) -> None:
        """`kept` are live to the end, `early` and `late` layers of collectives as `Schedule` has
        them.
        """
        region_ids = region_ids_of(body)
        self._ranges = live_ranges_of(body, region_ids, kept)
        shifted = shifted_starts(body, self._ranges, early, late)
        others_before = anti_dependences(body, self._ranges)
        self._regions = [
            (region, _tasks(body, region, works, feeds, shifted, others_before))
            for region in _regions(region_ids)
        ]
        self.peak_bytes = max(peak_bytes(self._ranges, region) for region, _ in self._regions)
        """What values take at once in program order."""
        always_live = [node for node in body.nodes if node.op in ("constant", "parameter")]
        always_live += [body.nodes[position] for position in kept]
        self.total_bytes = self.peak_bytes + sum(
            array.size_bytes for node in always_live for array in leaves(node.type)
        )
        """The same with parameters, constants and what is kept."""

    def within(self, limit_bytes: float, window: int) -> list[int]:
        """The positions in the order that takes no more than so much."""
        order: list[int] = []
        for number, (region, tasks) in enumerate(self._regions):
            if not any(task.work.latency for task in tasks):
                order += region
                continue
            # First without the limit: to keep it costs overlap, and time to schedule.
            scheduled, peak = self._unlimited[number]
            if peak > limit_bytes:
                limited = list_schedule(tasks, self._ranges, region, limit_bytes, window)
                scheduled = self._if_it_pays(limited, region, tasks)
            order += scheduled
        return order

    @functools.cached_property
    def _unlimited(self) -> Mapping[int, tuple[Sequence[int], int]]:
        """By region with collectives: the order if memory does not matter, or program order where
        that does not pay; and how many bytes the former takes.
        """
        unlimited = {}
        for number, (region, tasks) in enumerate(self._regions):
            if any(task.work.latency for task in tasks):
                scheduled = list_schedule(tasks, self._ranges, region)
                peak = peak_bytes(self._ranges, scheduled)
                unlimited[number] = self._if_it_pays(scheduled, region, tasks), peak
        return unlimited

    def _if_it_pays(
        self, scheduled: Sequence[int], region: range, tasks: Sequence[Task]
    ) -> Sequence[int]:
        numbers = [position - region.start for position in scheduled]
        return scheduled if pays(tasks, numbers) else region


def pays(tasks: Sequence[Task], order: Sequence[int]) -> bool:
    """Whether tasks end no later in this order than in their own: at the likely speed of
    collectives, and in share of the time on average over `SPEEDS`."""
    own = range(len(tasks))
    shares = {
        speed: end_of(tasks, order, speed) / max(1, end_of(tasks, own, speed)) for speed in SPEEDS
    }
    return shares[LIKELY] <= 1 and sum(shares.values()) <= len(SPEEDS)


def ends_of(body: Computation, works: Sequence[OpWork]) -> list[int]:
    """When the last node of a computation ends, in its order, at each of `SPEEDS`."""
    tasks = [
        Task(work, written_stream(node) or 0, node.operands)
        for node, work in zip(body.nodes, works, strict=True)
    ]
    return [end_of(tasks, range(len(tasks)), speed) for speed in SPEEDS]


def end_of(tasks: Sequence[Task], order: Sequence[int], speed: Speed) -> int:
    """When the last task ends: every engine and every stream takes its tasks in this order."""
    engines = dict.fromkeys(ENGINES, 0)
    streams: dict[int, int] = {}
    ends = [0] * len(tasks)
    for number in order:
        task = tasks[number]
        end = max([ends[other] for other in task.after], default=0)
        if task.work.engine is not None:
            end = max(end, engines[task.work.engine]) + task.work.duration
            engines[task.work.engine] = end
        if task.work.latency:
            end = max(end, streams.get(task.stream, 0)) + task.work.latency_at(speed)
            streams[task.stream] = end
        ends[number] = end
    return max(ends, default=0)


def region_ids_of(body: Computation) -> list[int]:
    """For each node the number of its region; a loop or branch is a region by itself."""
    ids, current = [], 0
    for node in body.nodes:
        if node.op in CONTROL_FLOW:
            ids.append(current + 1)
            current += 2
        else:
            ids.append(current)
    return ids


def _regions(region_ids: Sequence[int]) -> list[range]:
    """The positions of each region."""
    edges = [k for k in range(1, len(region_ids)) if region_ids[k] != region_ids[k - 1]]
    starts, ends = [0, *edges], [*edges, len(region_ids)]
    return [range(first, last) for first, last in zip(starts, ends, strict=True)]


def _tasks(
    body: Computation,
    region: range,
    works: Sequence[OpWork],
    feeds: Sequence[bool],
    shifted: Mapping[int, int],
    others_before: Mapping[int, Sequence[int]],
) -> list[Task]:
    """The tasks of a region, numbered from its first node; arguments are by node."""
    first = region.start
    region_works = works[first : region.stop]
    after: list[tuple[int, ...]] = []
    reads_collective: list[bool] = []
    for position in region:
        predecessors = {*body.nodes[position].operands, *others_before.get(position, ())}
        others = tuple(sorted(other - first for other in predecessors if other in region))
        after.append(others)
        reads_collective.append(
            any(region_works[other].latency or reads_collective[other] for other in others)
        )
    priorities = _priorities(region_works, after, reads_collective, feeds[first : region.stop])
    tasks = []
    for number, position in enumerate(region):
        until = shifted.get(position)
        tasks.append(
            Task(
                work=region_works[number],
                stream=written_stream(body.nodes[position]) or 0,
                after=after[number],
                priority=priorities[number],
                reads_collective=reads_collective[number],
                start_after=until - first if until is not None and until in region else None,
            )
        )
    return tasks


def _priorities(
    works: Sequence[OpWork],
    after: Sequence[Sequence[int]],
    reads_collective: Sequence[bool],
    feeds: Sequence[bool],
) -> list[Priority]:
    """The priorities of tasks: by the next collective that each leads to."""
    places = _earliest_order(works, after)
    fillers = _filler_priorities(works, after, reads_collective, places)
    # The place of the next collective that a task leads to: of those that feed compute, of others.
    soon, later = [_NO_COLLECTIVE] * len(works), [_NO_COLLECTIVE] * len(works)
    priorities: list[Priority] = [(LAST, 0)] * len(works)
    for number in range(len(works) - 1, -1, -1):  # users before what they use
        if works[number].latency:
            (soon if feeds[number] else later)[number] = places[number]
        next_soon, next_later = soon[number], later[number]
        if works[number].latency:
            priorities[number] = TRIGGER, min(next_soon, next_later)
        elif next_soon < _NO_COLLECTIVE:
            priorities[number] = SOON, next_soon
        elif next_later < _NO_COLLECTIVE:
            priorities[number] = LATER, next_later
        else:
            priorities[number] = LAST, *fillers[number]
        for other in after[number]:
            soon[other] = min(soon[other], next_soon)
            later[other] = min(later[other], next_later)
    return priorities


def _filler_priorities(
    works: Sequence[OpWork],
    after: Sequence[Sequence[int]],
    reads_collective: Sequence[bool],
    collective_places: Mapping[int, int],
) -> list[Priority]:
    """The priorities, in their class, of tasks that lead to no collective.

    Updates come last; among them those first with the longest path behind them. Before updates
    comes what they read besides collectives, by the collective that the first of them reads.
    """
    count = len(works)
    latest_read = [0] * count  # the last collective that a task is or reads
    first_update = [_NO_COLLECTIVE - 1] * count  # that of the first update that a task leads to
    for number, others in enumerate(after):
        reads = max((latest_read[other] for other in others), default=0)
        latest_read[number] = collective_places.get(number, reads)
    path_behind = [0] * count  # the critical path from here to the end, this task included
    priorities: list[Priority] = [(0,)] * count
    for number in range(count - 1, -1, -1):
        path_behind[number] += works[number].duration
        is_update = reads_collective[number]
        if is_update:
            priorities[number] = _NO_COLLECTIVE, -path_behind[number]
        else:
            priorities[number] = (first_update[number],)
        for other in after[number]:
            path_behind[other] = max(path_behind[other], path_behind[number])
            update = latest_read[number] if is_update else first_update[number]
            first_update[other] = min(first_update[other], update)
    return priorities


def _earliest_order(works: Sequence[OpWork], after: Sequence[Sequence[int]]) -> Mapping[int, int]:
    """The collectives in the order in which they could start if engines had no other work."""
    done: list[int] = []
    for work, others in zip(works, after, strict=True):
        start = max([done[other] for other in others], default=0)
        done.append(start + work.duration + work.latency)
    collectives = [number for number, work in enumerate(works) if work.latency]
    collectives.sort(key=lambda number: done[number] - works[number].latency)
    return {number: place for place, number in enumerate(collectives)}


def reordered(body: Computation, order: Sequence[int]) -> Computation:
    """The computation with its nodes in this order."""
    rebuild = Rebuild(body)
    rebuild.new_ids = [NodeId(-1)] * len(body.nodes)
    for position in order:
        rebuild.new_ids[position] = rebuild.add(rebuild.rewired(body.nodes[position]))
    return rebuild.finish()
