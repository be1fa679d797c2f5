"""Who must wait for whom: the partial order of the queues, kept as vector clocks.

A queue is an engine or a communication stream. An engine runs its instructions one after the
other; a stream completes its collectives one after the other, each after its trigger. A clock
holds, for every queue, how many of its items are known to be complete. An instruction waits only
for what its queue does not know yet; knowledge travels with every wait.

Control flow stands between full barriers: before each of its rows Sync waits for everybody, then
everybody for Sync. So whatever way a run takes, what was before a row is complete behind it, and
counting every block once, in program order, says what each queue knows.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping

import attrs

from ncc_compiler.codegen.lowered import ControlRow, LoweredProgram, ProgramStep
from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, TEST, Engine

_SYNC = ENGINES.index(Engine.SYNC)

Clock = tuple[int, ...]  # per queue, the number of items known to be complete


@attrs.frozen
class Point:
    """The completion of the `count`-th item of a queue, counted from 1."""

    queue: int
    count: int

    def is_known_to(self, clock: Clock) -> bool:
        return clock[self.queue] >= self.count


@attrs.frozen
class Barrier:
    """How the queues meet before a row of control flow, which is one more item of each engine."""

    gather: tuple[Point, ...]  # what Sync waits for; if anything, in an item of its own
    gathered: Point | None  # what the others wait for: the last item of Sync, if it has one
    waits: tuple[bool, ...]  # per engine, whether it waits for that
    rows: tuple[Point, ...]  # per engine, where its row of control flow is done


@attrs.frozen
class Order:
    """For every step: where it is done, what was complete before it, what it waits for."""

    streams: tuple[int, ...]  # stream ids; queue 5 is the first of them, after the five engines
    done: tuple[Point, ...]  # a collective is done on its stream
    before: tuple[Clock, ...]  # known when the instruction (or the trigger) starts
    waits: tuple[tuple[Point, ...], ...]  # in the order in which they must be fulfilled
    barriers: tuple[Barrier, ...] = ()  # one for each mark

    @property
    def queues(self) -> int:
        """Number of queues, engines and streams together."""
        return len(ENGINES) + len(self.streams)


def order_steps(draft: LoweredProgram) -> Order:
    """The waits that data dependencies need, and no more; linear in the number of steps."""
    streams = sorted({step.collective.stream for step in draft.steps if step.collective})
    walk = _Walk(draft, tuple(streams))
    for item in in_order(draft):
        if isinstance(item, ControlRow):
            walk.meet(item)
        else:
            walk.visit(item)
    return Order(
        tuple(streams),
        tuple(walk.done),
        tuple(walk.before),
        tuple(walk.waits),
        tuple(walk.barriers),
    )


def in_order(draft: LoweredProgram) -> Iterator[ProgramStep | ControlRow]:
    """Steps, and the marks before them."""
    first = 0
    for mark in draft.marks:
        yield from draft.steps[first : mark.at]
        yield mark
        first = mark.at
    yield from draft.steps[first:]


def streams_in_blocks(draft: LoweredProgram) -> Mapping[int, frozenset[int]]:
    """For each block, the streams of the collectives in it, at any depth."""
    found: dict[int, set[int]] = {block: set() for block in range(len(draft.blocks))}
    open_blocks: list[int] = []
    for item in in_order(draft):
        if isinstance(item, ProgramStep):
            used = {item.collective.stream} if item.collective is not None else ()
            for block in open_blocks:
                found[block].update(used)
        elif item.opcode in (LOOP, CASE):
            open_blocks.append(item.block)
        elif item.opcode == END:
            open_blocks.pop()
    return {block: frozenset(streams) for block, streams in found.items()}


class _Walk:
    """Clocks after each step, in program order."""

    def __init__(self, draft: LoweredProgram, streams: tuple[int, ...]) -> None:
        self._draft = draft
        self._queue_of_stream = {
            stream: len(ENGINES) + index for index, stream in enumerate(streams)
        }
        queues = len(ENGINES) + len(streams)
        self._latest: list[list[int]] = [[0] * queues for _ in range(queues)]
        self._after: list[Clock] = []
        self._writer: dict[int, int] = {}  # buffer → step, since the last mark
        self._readers: dict[int, list[int]] = {}  # buffer → steps, since the last mark
        self._streams = streams_in_blocks(draft)
        self._unheard: set[int] = set()  # streams that the next barrier waits for in any case
        self.done: list[Point] = []
        self.before: list[Clock] = []
        self.waits: list[tuple[Point, ...]] = []
        self.barriers: list[Barrier] = []

    def visit(self, step: ProgramStep) -> None:
        queue = ENGINES.index(step.engine)
        known = self._latest[queue]
        self.waits.append(self._wait(known, self._needed(step)))
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
        self._remember(step, len(self.done) - 1)

    def _buffers(self, tensors: Iterable[int]) -> set[int]:
        return {self._draft.tensors[tensor].buffer for tensor in tensors}

    def _remember(self, step: ProgramStep, number: int) -> None:
        for buffer in self._buffers(step.operands):
            self._readers.setdefault(buffer, []).append(number)
        for buffer in self._buffers(step.results):
            self._writer[buffer] = number
            self._readers.pop(buffer, None)

    def _needed(self, step: ProgramStep) -> set[int]:
        """Who wrote what it reads, and who wrote or read what it overwrites."""
        written = self._buffers(step.results)
        readers = (self._readers.get(buffer, ()) for buffer in written)
        writers = (self._writer.get(buffer) for buffer in written | self._buffers(step.operands))
        return {*itertools.chain.from_iterable(readers)}.union(
            writer for writer in writers if writer is not None
        )

    def meet(self, mark: ControlRow) -> None:
        """A barrier of all queues, then a row of control flow in each engine."""
        sync = self._latest[_SYNC]
        gather = self._gather(sync)
        sync[_SYNC] += bool(gather)
        gathered = Point(_SYNC, sync[_SYNC]) if sync[_SYNC] else None
        waits, rows = [], []
        for queue in range(len(ENGINES)):
            known = self._latest[queue]
            waits.append(gathered is not None and not gathered.is_known_to(tuple(known)))
            if queue != _SYNC:
                _join(known, sync)
        for queue in range(len(ENGINES)):
            self._latest[queue][queue] += 1
            rows.append(Point(queue, self._latest[queue][queue]))
        self.barriers.append(Barrier(gather, gathered, tuple(waits), tuple(rows)))
        self._acknowledge(mark, sync)
        self._writer.clear()
        self._readers.clear()

    def _gather(self, known: list[int]) -> tuple[Point, ...]:
        """Learn of everything; streams first, a collective that is done was triggered."""
        waits = []
        for queue in reversed(range(len(self._latest))):
            point = Point(queue, self._latest[queue][queue])
            if queue in self._unheard or not point.is_known_to(tuple(known)):
                waits.append(point)
                _join(known, self._latest[queue])
        self._unheard.clear()
        return tuple(waits)

    def _acknowledge(self, mark: ControlRow, known: Iterable[int]) -> None:
        """Streams with work in the block read the predicate too, and count that they have.

        Who leaves the block by its `test` or `case` has not waited for that, so whatever is known
        at its end, the next barrier waits for these streams again.
        """
        queues = {self._queue_of_stream[stream] for stream in self._streams[mark.block]}
        if mark.opcode == END:
            self._unheard |= queues
        if mark.opcode not in (TEST, CASE):
            return
        for queue in queues:
            _join(self._latest[queue], known)
            self._latest[queue][queue] += 1

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


def live_across_control_flow(draft: LoweredProgram) -> frozenset[int]:
    """Buffers that are touched on both sides of a mark, and those that predicates lie in."""
    segment, found, segments = 0, set[int](), dict[int, int]()
    for item in in_order(draft):
        if isinstance(item, ControlRow):
            segment += 1
            continue
        for tensor in (*item.results, *item.operands):
            buffer = draft.tensors[tensor].buffer
            if segments.setdefault(buffer, segment) != segment:
                found.add(buffer)
    predicates = (draft.tensors[block.predicate].buffer for block in draft.blocks)
    return frozenset(found.union(predicates))


def accesses(draft: LoweredProgram, order: Order) -> tuple[tuple[Point, ...], ...]:
    """For every buffer, when each step that touches it is done with it."""
    found: list[list[Point]] = [[] for _ in draft.buffers]
    for step, point in zip(draft.steps, order.done, strict=True):
        for buffer in {draft.tensors[t].buffer for t in (*step.results, *step.operands)}:
            found[buffer].append(point)
    return tuple(tuple(points) for points in found)
