"""Checks of a plan in chunks: that it has no race, and that it does what its operator promises.

Races are chunks that two steps use in no order, one of them writing. A step is before another if a
chain of waits leads from it there, so that it is done when the other starts, however fast the
thread blocks are (happens-before, Lamport 1978). Slots are no such wait: a plan that is right only
because they are few is refused. The same order says which receives find their target free.

Results are checked by a symbolic run of all steps. A chunk holds its number and a bit for each gpu
that contributed; joining adds bits. What goes wrong (a chunk that nobody wrote, two that do not
belong together, a gpu twice) is kept with the value and reported if it reaches a result.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from ncc_runtime.errors import PlanError
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.plans.chunk_places import FROM_OPERAND, ChunkContents
from ncc_runtime.plans.msccl_file import BUFFERS, INPUT, OUTPUT
from ncc_runtime.plans.msccl_graph import NONE, Graph, chunks_of, places_of

MOST_BITS = 1 << 30
"""Of all steps together: what each is known to follow. 128 MiB at a time."""

LEAST_WIDTH = 1 << 10
"""Bits of a step, of however many there are."""


@attrs.frozen(eq=False)
class Ordered:
    """A plan without deadlock or race."""

    graph: Graph
    straight: Mapping[str, Sequence[bool]]
    """By `Loop.start` and step: whether it receives to its target at once, without a slot."""
    first: frozenset[tuple[int, int]]
    """Steps, and the chunks of the output that they use before any has written there."""


def ordered(graph: Graph) -> Ordered:
    """Check all pairs of steps that use a chunk; PlanError for the first two that race.

    Each read is set against the last write before it, each write also against the reads since; if
    these are in order, all are.
    """
    steps, sent = graph.steps, graph.sent
    reads, writes = steps.which("reads").tolist(), steps.which("writes").tolist()
    reads_output = (steps.which("reads") & (_buffer(graph.source) == OUTPUT)).tolist()
    writes_output = (steps.which("writes") & (_buffer(graph.target) == OUTPUT)).tolist()
    sources, targets, counts = (
        column.tolist() for column in (graph.source, graph.target, steps.count)
    )
    writer: dict[int, int] = {}  # the last of each chunk
    readers: dict[int, list[int]] = {}  # of each chunk, since it was written
    first: set[tuple[int, int]] = set()
    earlier: list[int] = []  # steps that use a chunk,
    later: list[int] = []  # those that use it next,
    used: list[int] = []  # which chunk,
    is_first: list[bool] = []  # and whether it is then written for the first time
    for number in graph.order:
        if reads[number]:
            for chunk in range(sources[number], sources[number] + counts[number]):
                if chunk in readers:
                    readers[chunk].append(number)
                else:
                    readers[chunk] = [number]
                if chunk in writer:
                    earlier.append(writer[chunk])
                    later.append(number)
                    used.append(chunk)
                    is_first.append(False)
                elif reads_output[number]:
                    first.add((number, chunk))
        if writes[number]:
            for chunk in range(targets[number], targets[number] + counts[number]):
                others = [reader for reader in readers.pop(chunk, ()) if reader != number]
                is_new = chunk not in writer
                if not is_new:
                    others.append(writer[chunk])
                elif writes_output[number]:
                    first.add((number, chunk))  # a join reads what it writes
                writer[chunk] = number
                earlier += others
                later += [number] * len(others)
                used += [chunk] * len(others)
                is_first += [is_new and writes_output[number]] * len(others)
    before, after = np.array(earlier, np.int64), np.array(later, np.int64)
    # receives whose send may write to their target at once, without a slot: those before whose
    # send all earlier uses of the target are done
    receives = (sent != NONE) & steps.which("writes") & ~steps.which("joins")
    into_target = np.flatnonzero(receives[after])
    senders = sent[after[into_target]]
    in_order = is_before(graph, np.append(before, before[into_target]), np.append(after, senders))
    races = np.flatnonzero(~in_order[: len(before)])
    if len(races):
        at = int(races[0])
        raise _race(graph, earlier[at], later[at], used[at])
    is_free = in_order[len(before) :]
    straight = receives.copy()
    straight[after[into_target[~is_free]]] = False
    from_operand = receives.copy()
    overwrites = ~is_free & ~np.array(is_first, bool)[into_target]
    from_operand[after[into_target[overwrites]]] = False
    by_start = {"": straight, FROM_OPERAND: from_operand}
    is_started = _is_receiver_started(graph, straight)
    for buffer in (INPUT, OUTPUT):
        # the copy of the operand into this buffer comes before all steps of the gpu; a send that
        # follows none of them could be overwritten by it
        is_fetched = _buffer(graph.target) == buffer
        by_start[BUFFERS[buffer].value] = straight & (is_started | ~is_fetched)
    lists = {start: column.tolist() for start, column in by_start.items()}
    return Ordered(graph, lists, frozenset(first))


def _buffer(chunks: np.ndarray) -> np.ndarray:
    """The buffers that chunks are of."""
    _, buffer, _ = places_of(chunks)
    return buffer


def is_before(graph: Graph, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether each first step is done when its second starts, at any speed."""
    block, place, awaited = graph.steps.block, graph.steps.place, graph.awaited
    before: np.ndarray = (block[first] == block[second]) & (place[first] < place[second])
    named = awaited[second]
    before |= (named != NONE) & (block[named] == block[first]) & (place[named] >= place[first])
    # The rest needs transitive closure: what every step follows, a bit for each first step. Vector
    # clocks (`order.py`) say the same, and are longer: one number per thread block at each step. On
    # a ring of 34,272 steps in 1,088 thread blocks they took 0.35 s, the bits 0.11 s.
    rest = np.flatnonzero(~before)
    steps, bits = np.unique(first[rest], return_inverse=True)
    width = max(LEAST_WIDTH, MOST_BITS // max(1, len(block)))
    for low in range(0, len(steps), width):
        marks = [0] * len(block)
        for bit, step in enumerate(steps[low : low + width].tolist()):
            marks[step] = 1 << bit
        followed = _followed(graph, marks)
        here = rest[(bits >= low) & (bits < low + width)]
        for at, earlier, later in zip(
            here.tolist(), first[here].tolist(), second[here].tolist(), strict=True
        ):
            before[at] = followed[later] & marks[earlier] != 0
    return before


def _followed(graph: Graph, marks: Sequence[int]) -> list[int]:
    """By step the marks of it and of all steps before it."""
    union = [*marks, 0]  # NONE, -1 as an index, finds the last
    before, awaited, copied, sent = (column.tolist() for column in graph.waits)
    for step in graph.order:
        union[step] |= (
            union[before[step]] | union[awaited[step]] | union[copied[step]] | union[sent[step]]
        )
    return union


def _is_receiver_started(graph: Graph, straight: np.ndarray) -> np.ndarray:
    """By step that receives straight: whether its send follows a step of the receiving gpu."""
    followed = _followed(graph, [1 << gpu for gpu in graph.gpu.tolist()])
    is_started = np.zeros(len(graph.steps), bool)
    for step in np.flatnonzero(straight).tolist():
        is_started[step] = followed[graph.sent[step]] >> int(graph.gpu[step]) & 1
    return is_started


def _race(graph: Graph, earlier: int, later: int, chunk: int) -> PlanError:
    steps = graph.steps
    writes = [
        steps.which("writes")[step] and 0 <= chunk - graph.target[step] < steps.count[step]
        for step in (earlier, later)
    ]
    does = "written twice" if all(writes) else "read and written"
    return graph.error(
        later,
        f"race: {graph.name_of(later, chunk)} of gpu {graph.gpu[later]} is {does} in no order; by "
        f"{graph.name(earlier)} (line {steps.line[earlier]}) too: a dependency is missing",
    )


MOST_NAMED = 8
"""Gpus that a message names."""


class ChunkValue(NamedTuple):
    """What a chunk holds."""

    sources: int  # a bit for each gpu that contributed
    chunk: int
    fault: str = ""  # the first thing that went wrong with it
    number: int = NONE  # the step that wrote it here


@attrs.frozen(eq=False)
class CheckedResult:
    """What the symbolic run of a correct plan shows of its steps."""

    complete: frozenset[tuple[int, int]]  # steps and their chunks that join the last contribution


def performed(graph: Graph, placeholder: Placeholder) -> CheckedResult:
    """Perform all steps; PlanError that names the first chunk of a result that is wrong."""
    run = _SymbolicRun(graph)
    run.perform()
    shape = graph.shape
    index = np.arange(shape.chunks(OUTPUT))
    for gpu in range(shape.gpus):
        if shape.is_cleared(placeholder, gpu):
            continue
        places = shape.canonical(np.full(len(index), gpu), np.full(len(index), OUTPUT), index)
        for chunk, at in enumerate(chunks_of(np.array(gpu), *places).tolist()):
            expected = shape.contents(placeholder, gpu, chunk)
            value = run.holds(at)
            if (
                value is None
                or value.fault
                or (value.sources, value.chunk) != (expected.sources, expected.chunk)
            ):
                raise _wrong(graph, gpu, chunk, expected, value)
    return CheckedResult(frozenset(run.complete))


class _SymbolicRun:
    """The chunks of all gpus."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._all_gpus = (1 << graph.shape.gpus) - 1
        self._sent: dict[int, list[ChunkValue]] = {}  # by send
        self._held: dict[int, ChunkValue] = {}  # by chunk: what steps have written
        self.complete: set[tuple[int, int]] = set()

    def perform(self) -> None:
        """All steps: each receives, reads, joins, writes, sends."""
        graph, steps = self._graph, self._graph.steps
        rows = zip(
            *(
                column.tolist()
                for column in (
                    steps.which("receives"),
                    steps.which("joins"),
                    steps.which("reads"),
                    steps.which("writes"),
                    steps.which("sends"),
                    graph.source,
                    graph.target,
                    steps.count,
                    graph.sent,
                )
            ),
            strict=True,
        )
        table = list(rows)
        for step in graph.order:
            receives, joins, reads, writes, sends, source, target, count, sent = table[step]
            if not (receives or reads):
                continue  # a nop
            values = self._sent.pop(sent) if receives else self._read(step, source, count)
            if joins:
                # a join at home reads its target, one that receives its source
                ours = self._read(step, source if receives else target, count)
                values = [self._joined(step, *pair) for pair in zip(values, ours, strict=True)]
                self.complete.update(
                    (step, place)
                    for place, value in enumerate(values)
                    if value.sources == self._all_gpus and not value.fault
                )
            if writes:
                for place, (sources, chunk, fault, _) in enumerate(values):
                    self._held[target + place] = ChunkValue(sources, chunk, fault, step)
            if sends:
                self._sent[step] = values

    def holds(self, at: int) -> ChunkValue | None:
        """The value that a step wrote in a chunk, else that of the gpu's operand; or None."""
        value = self._held.get(at)
        if value is not None:
            return value
        gpu, buffer, index = places_of(at)
        given = self._graph.shape.given(gpu, buffer, index)
        return None if given is None else ChunkValue(1 << gpu, given)

    def _read(self, step: int, first: int, count: int) -> list[ChunkValue]:
        values = []
        for chunk in range(first, first + count):
            value = self._held.get(chunk) or self.holds(chunk)
            if value is None:
                name = self._graph.name_of(step, chunk)
                fault = f"{_named(self._graph, step)} reads {name}, which nothing has written"
                value = ChunkValue(0, 0, fault)
            values.append(value)
        return values

    def _joined(self, step: int, one: ChunkValue, other: ChunkValue) -> ChunkValue:
        fault = one.fault or other.fault
        if not fault and one.chunk != other.chunk:
            fault = f"{_named(self._graph, step)} joins chunk {one.chunk} to chunk {other.chunk}"
        repeated = one.sources & other.sources
        if not fault and repeated:
            named = _named(self._graph, step)
            fault = f"{named} joins the contribution of {_gpus(repeated)} twice"
        return ChunkValue(one.sources | other.sources, one.chunk, fault)


def _wrong(
    graph: Graph, gpu: int, chunk: int, expected: ChunkContents, actual: ChunkValue | None
) -> PlanError:
    what, steps = _difference(expected, actual), graph.steps
    at, last = graph.algo.at, "no step writes there"
    _, written, _ = places_of(graph.target[steps.which("writes")])
    if not graph.shape.in_place and OUTPUT not in written:
        last = 'no step writes to o: say inplace="1" if i and o are one buffer'
    if actual is not None and actual.number != NONE:
        at, last = steps.at(actual.number), f"last written by {graph.name(actual.number)}"
    where = f"chunk {chunk} of the result of gpu {gpu}"
    return at.error(f"not {graph.shape.op.value}: {where} {what}; {last}")


def _difference(expected: ChunkContents, actual: ChunkValue | None) -> str:
    if actual is None:
        return "is never written"
    if actual.fault:
        return f"is wrong: {actual.fault}"
    if actual.chunk != expected.chunk:
        sources = _gpus(actual.sources)
        return f"holds chunk {actual.chunk} of {sources}, not chunk {expected.chunk}"
    missing, extra = expected.sources & ~actual.sources, actual.sources & ~expected.sources
    words = [f"lacks the contribution of {_gpus(missing)}"] if missing else []
    words += [f"has a contribution of {_gpus(extra)}"] if extra else []
    return " and ".join(words)


def _named(graph: Graph, step: int) -> str:
    return f"{graph.name(step)} (line {graph.steps.line[step]})"


def _gpus(sources: int) -> str:
    numbers = [gpu for gpu in range(sources.bit_length()) if sources >> gpu & 1]
    more = f", … ({len(numbers)})" if len(numbers) > MOST_NAMED else ""
    shown = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"gpu{'s' if len(numbers) > 1 else ''} {shown}{more}"
