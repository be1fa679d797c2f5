"""Who must wait for whom: the partial order of the queues, kept as vector clocks.

A queue is an engine or a communication stream. An engine runs its instructions one after the
other; a stream completes its collectives one after the other, each after its trigger. A clock
holds, for every queue, how many of its items are known to be complete. An instruction waits only
for what its queue does not know yet; knowledge travels with every wait.
"""

from collections.abc import Iterable

import attrs

from ncc_compiler.codegen.draft import Draft, Step
from ncc_runtime.neff.isa import ENGINES

Clock = tuple[int, ...]  # per queue, the number of items known to be complete


@attrs.frozen
class Point:
    """The completion of the `count`-th item of a queue, counted from 1."""

    queue: int
    count: int

    def is_known_to(self, clock: Clock) -> bool:
        return clock[self.queue] >= self.count


@attrs.frozen
class Order:
    """For every step: where it is done, what was complete before it, what it waits for."""

    streams: tuple[int, ...]  # stream ids; queue 5 is the first of them, after the five engines
    done: tuple[Point, ...]  # a collective is done on its stream
    before: tuple[Clock, ...]  # known when the instruction (or the trigger) starts
    waits: tuple[tuple[Point, ...], ...]  # in the order in which they must be fulfilled

    @property
    def queues(self) -> int:
        """Number of queues, engines and streams together."""
        return len(ENGINES) + len(self.streams)


def order_steps(draft: Draft) -> Order:
    """The waits that data dependencies need, and no more; linear in the number of steps."""
    streams = sorted({step.collective.stream for step in draft.steps if step.collective})
    walk = _Walk(draft, tuple(streams))
    for step in draft.steps:
        walk.visit(step)
    return Order(tuple(streams), tuple(walk.done), tuple(walk.before), tuple(walk.waits))


class _Walk:
    """Clocks after each step, in program order."""

    def __init__(self, draft: Draft, streams: tuple[int, ...]) -> None:
        self._draft = draft
        self._queue_of_stream = {
            stream: len(ENGINES) + index for index, stream in enumerate(streams)
        }
        queues = len(ENGINES) + len(streams)
        self._latest: list[list[int]] = [[0] * queues for _ in range(queues)]
        self._after: list[Clock] = []
        self._writer: dict[int, int] = {}  # buffer → step
        self.done: list[Point] = []
        self.before: list[Clock] = []
        self.waits: list[tuple[Point, ...]] = []

    def visit(self, step: Step) -> None:
        queue = ENGINES.index(step.engine)
        known = self._latest[queue]
        self.waits.append(self._wait(known, self._producers(step)))
        self.before.append(tuple(known))
        known[queue] += 1
        if step.collective is not None:
            queue = self._queue_of_stream[step.collective.stream]
            event = self._latest[queue]
            _join(event, known)
            event[queue] += 1
            known = event
        self._after.append(tuple(known))
        self.done.append(Point(queue, known[queue]))
        for tensor in step.results:
            self._writer[self._draft.tensors[tensor].buffer] = len(self.done) - 1

    def _producers(self, step: Step) -> set[int]:
        buffers = {self._draft.tensors[tensor].buffer for tensor in step.operands}
        return {self._writer[buffer] for buffer in buffers if buffer in self._writer}

    def _wait(self, known: list[int], producers: Iterable[int]) -> tuple[Point, ...]:
        """Learn of the producers, latest first: what a later one knows need not be awaited."""
        waits = []
        for producer in sorted(producers, reverse=True):
            point = self.done[producer]
            if known[point.queue] < point.count:
                waits.append(point)
                _join(known, self._after[producer])
        return tuple(waits)


def _join(clock: list[int], other: Iterable[int]) -> None:
    for queue, count in enumerate(other):
        clock[queue] = max(clock[queue], count)


def accesses(draft: Draft, order: Order) -> tuple[tuple[Point, ...], ...]:
    """For every buffer, when each step that touches it is done with it."""
    found: list[list[Point]] = [[] for _ in draft.buffers]
    for step, point in zip(draft.steps, order.done, strict=True):
        for buffer in {draft.tensors[t].buffer for t in (*step.results, *step.operands)}:
            found[buffer].append(point)
    return tuple(tuple(points) for points in found)
