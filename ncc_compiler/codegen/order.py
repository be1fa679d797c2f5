"""Who must wait for whom: happens-before between the queues, kept as vector clocks (Mattern 1989).

A queue is an engine or a communication stream. An engine runs its instructions one after the
other; a stream completes its collectives one after the other, each after its trigger. A clock
holds, for every queue, how many of its items are known to be complete. An instruction waits only
for what its queue does not know yet; knowledge travels with every wait, so most waits that data
dependences ask for are not needed.

Control flow stands between full barriers: before each control row Sync waits for all other queues,
then they wait for Sync. So on every path of a run, what was before a control row is complete behind
it; and it is enough to count every block once, in program order.
"""

from collections.abc import Iterable, Iterator, Mapping

import attrs

from ncc_compiler.codegen.lowered import ControlStep, LoweredProgram, ProgramStep
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
    known: Clock = ()  # to every queue behind it: all that was before


@attrs.frozen
class Order:
    """For every step: where it is done, what was complete before it, what it waits for."""

    streams: tuple[int, ...]  # stream ids; queue 5 is the first of them, after the five engines
    done: tuple[Point, ...]  # a collective is done on its stream
    before: tuple[Clock, ...]  # known when the instruction (or the trigger) starts
    waits: tuple[tuple[Point, ...], ...]  # in the order in which they must be fulfilled
    barriers: tuple[Barrier, ...] = ()  # one for each row

    @property
    def queues(self) -> int:
        """Number of queues, engines and streams together."""
        return len(ENGINES) + len(self.streams)


def order_steps(lowered: LoweredProgram) -> Order:
    """The waits that data dependencies need, and no more; linear in the number of steps."""
    streams = sorted({step.collective.stream for step in lowered.steps if step.collective})
    walk = _ClockWalk(lowered, tuple(streams))
    for item in in_order(lowered):
        if isinstance(item, ControlStep):
            walk.add_barrier(item)
        else:
            walk.add_step(item)
    return Order(
        tuple(streams),
        tuple(walk.done),
        tuple(walk.before),
        tuple(walk.waits),
        tuple(walk.barriers),
    )


def in_order(lowered: LoweredProgram) -> Iterator[ProgramStep | ControlStep]:
    """Steps, and the control rows before them."""
    first = 0
    for row in lowered.control_steps:
        yield from lowered.steps[first : row.at]
        yield row
        first = row.at
    yield from lowered.steps[first:]


def streams_in_blocks(lowered: LoweredProgram) -> Mapping[int, frozenset[int]]:
    """For each block, the streams of the collectives in it, at any depth."""
    streams_of: dict[int, set[int]] = {block: set() for block in range(len(lowered.blocks))}
    open_blocks: list[int] = []
    for item in in_order(lowered):
        if isinstance(item, ProgramStep):
            used = {item.collective.stream} if item.collective is not None else ()
            for block in open_blocks:
                streams_of[block].update(used)
        elif item.opcode in (LOOP, CASE):
            open_blocks.append(item.block)
        elif item.opcode == END:
            open_blocks.pop()
    return {block: frozenset(streams) for block, streams in streams_of.items()}


class _ClockWalk:
    """Clocks after each step, in program order."""

    def __init__(self, lowered: LoweredProgram, streams: tuple[int, ...]) -> None:
        self._lowered = lowered
        self._queue_of_stream = {
            stream: len(ENGINES) + index for index, stream in enumerate(streams)
        }
        queues = len(ENGINES) + len(streams)
        self._latest: list[list[int]] = [[0] * queues for _ in range(queues)]  # clock of each queue
        self._after: list[Clock] = []  # clock of each step's queue once the step is done
        self._writer: dict[int, int] = {}  # buffer → step, since the last row
        self._readers: dict[int, list[int]] = {}  # buffer → steps, since the last row
        self._streams = streams_in_blocks(lowered)
        self._unjoined: set[int] = set()  # streams that the next barrier waits for in any case
        self.done: list[Point] = []
        self.before: list[Clock] = []
        self.waits: list[tuple[Point, ...]] = []
        self.barriers: list[Barrier] = []

    def add_step(self, step: ProgramStep) -> None:
        """An instruction; a collective is done on its stream, which knows what its trigger knew."""
        queue = ENGINES.index(step.engine)
        known = self._latest[queue]
        read, written = self._buffers(step.operands), self._buffers(step.results)
        # Dependences: read after write and write after write, then write after read.
        producers = {self._writer[buffer] for buffer in read | written if buffer in self._writer}
        for buffer in written:
            producers.update(self._readers.pop(buffer, ()))
        self.waits.append(self._wait(known, producers))
        self.before.append(tuple(known))
        known[queue] += 1
        if step.collective is not None:
            queue = self._queue_of_stream[step.collective.stream]
            trigger, known = known, self._latest[queue]
            _join(known, trigger)
            known[queue] += 1
        self._after.append(tuple(known))
        number = len(self.done)
        self.done.append(Point(queue, known[queue]))
        for buffer in read - written:
            self._readers.setdefault(buffer, []).append(number)
        self._writer.update(dict.fromkeys(written, number))

    def _buffers(self, tensors: Iterable[int]) -> set[int]:
        """Where tensors lie; an output in a donated input's memory counts as that input."""
        donated = self._lowered.donated
        buffers = (self._lowered.tensors[tensor].buffer for tensor in tensors)
        return {donated.get(buffer, buffer) for buffer in buffers}

    def add_barrier(self, row: ControlStep) -> None:
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
        before = tuple(sync)
        for queue in range(len(ENGINES)):
            self._latest[queue][queue] += 1
            rows.append(Point(queue, self._latest[queue][queue]))
        self.barriers.append(Barrier(gather, gathered, tuple(waits), tuple(rows), before))
        self._acknowledge(row, sync)
        self._writer.clear()
        self._readers.clear()

    def _gather(self, known: list[int]) -> tuple[Point, ...]:
        """Sync's waits for everything; streams first, since a collective implies its trigger."""
        waits = []
        for queue in reversed(range(len(self._latest))):
            point = Point(queue, self._latest[queue][queue])
            if queue in self._unjoined or not point.is_known_to(tuple(known)):
                waits.append(point)
                _join(known, self._latest[queue])
        self._unjoined.clear()
        return tuple(waits)

    def _acknowledge(self, row: ControlStep, known: Iterable[int]) -> None:
        """Streams with work in the block read the predicate too, and count that they have.

        A path that leaves the block by its `test` or `case` has not waited for that: whatever is
        known at the block's end, the next barrier waits for these streams again.
        """
        queues = {self._queue_of_stream[stream] for stream in self._streams[row.block]}
        if row.opcode == END:
            self._unjoined |= queues
        if row.opcode not in (TEST, CASE):
            return
        for queue in queues:
            _join(self._latest[queue], known)
            self._latest[queue][queue] += 1

    def _wait(self, known: list[int], producers: Iterable[int]) -> tuple[Point, ...]:
        """The waits for the producers, latest first: what a later one knows needs no wait."""
        waits = []
        for producer in sorted(producers, reverse=True):
            point = self.done[producer]
            if known[point.queue] < point.count:
                waits.append(point)
                _join(known, self._after[producer])
        return tuple(waits)


def _join(clock: list[int], other: Iterable[int]) -> None:
    """The clock learns what the other knows: the maximum of both, queue by queue."""
    for queue, count in enumerate(other):
        clock[queue] = max(clock[queue], count)


def live_across_control_flow(lowered: LoweredProgram) -> frozenset[int]:
    """Buffers that are accessed on both sides of a control row, and those of predicates."""
    segment, crossing, segments = 0, set[int](), dict[int, int]()
    for item in in_order(lowered):
        if isinstance(item, ControlStep):
            segment += 1
            continue
        for tensor in (*item.results, *item.operands):
            buffer = lowered.tensors[tensor].buffer
            if segments.setdefault(buffer, segment) != segment:
                crossing.add(buffer)
    predicates = (lowered.tensors[block.predicate].buffer for block in lowered.blocks)
    return frozenset(crossing.union(predicates))


def accesses(lowered: LoweredProgram, order: Order) -> tuple[tuple[Point, ...], ...]:
    """For every buffer, when each step that touches it is done with it."""
    points_of: list[list[Point]] = [[] for _ in lowered.buffers]
    for step, point in zip(lowered.steps, order.done, strict=True):
        for buffer in {lowered.tensors[t].buffer for t in (*step.results, *step.operands)}:
            points_of[buffer].append(point)
    return tuple(tuple(points) for points in points_of)
