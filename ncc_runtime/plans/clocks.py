"""What each step knows to be done, and races: chunks that are used twice in no order.

A clock says for each thread block of some gpus how many of its steps are done for sure. Slots are
no order: a plan that is right only because they are few is refused.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import PlanError
from ncc_runtime.plans.msccl import Buffer, Ref
from ncc_runtime.plans.steps import NONE, Graph, Node

MOST_CELLS = 1 << 26
"""Cells of clocks that are held together."""

Chunk = tuple[int, Buffer, int]
"""Gpu, buffer and index."""


@attrs.frozen
class Access:
    """A step reads or writes a chunk."""

    number: int
    writes: bool


def accesses(graph: Graph) -> Mapping[Chunk, Sequence[Access]]:
    """Who reads and writes each chunk, in the order of the steps."""
    found: dict[Chunk, list[Access]] = defaultdict(list)
    for number in graph.order:
        for ref, writes in touched(graph.nodes[number]):
            chunk = graph.nodes[number].gpu, ref.buffer, ref.index
            found[chunk].append(Access(number, writes))
    return found


def read_first(used: Mapping[Chunk, Sequence[Access]]) -> frozenset[tuple[int, int]]:
    """Steps and chunks of the output that they read as they were before all steps."""
    found = set()
    for (_, buffer, index), its in used.items():
        if buffer is not Buffer.OUTPUT:
            continue
        for access in its:
            found.add((access.number, index))  # what it writes, it may read as it was
            if access.writes:
                break
    return frozenset(found)


def touched(node: Node) -> Iterator[tuple[Ref, bool]]:
    """The chunks that a step reads, then those that it writes."""
    kind = node.step.kind
    for does, writes, ref in ((kind.reads, False, node.source), (kind.writes, True, node.target)):
        if does:
            for index in range(ref.index, ref.index + node.step.count):
                yield Ref(ref.buffer, index), writes


class Clocks:
    """Which steps of a gpu are done when any step starts, a few gpus at a time."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._levels = list(_levels(graph))
        nodes = graph.nodes
        self._block = np.array([node.block_number for node in nodes], np.int64)
        self._place = np.array([node.place for node in nodes], np.int32)
        columns = (graph.before, graph.awaited, graph.sent)
        self._before = np.array(columns, np.int64).reshape(3, len(nodes))
        gpu_of = dict(zip(self._block.tolist(), (node.gpu for node in nodes), strict=True))
        self._gpu = np.array([gpu_of.get(block, -1) for block in range(graph.blocks)], np.int64)

    def by_gpus(self) -> Iterator[tuple[range, "Known"]]:
        """Runs of gpus, and what is known of their steps."""
        gpus, most = len(self._graph.algo.gpus), max(1, MOST_CELLS // max(1, len(self._place)))
        widths = np.bincount(self._gpu[self._gpu >= 0], minlength=gpus)
        first = 0
        while first < gpus:
            last, width = first + 1, int(widths[first])
            while last < gpus and width + widths[last] <= most:
                width += int(widths[last])
                last += 1
            yield range(first, last), self._known(first, last)
            first = last

    def _known(self, first: int, last: int) -> "Known":
        is_in = (self._gpu >= first) & (self._gpu < last)
        column = np.where(is_in, np.cumsum(is_in) - 1, -1)
        done: np.ndarray = np.zeros((len(self._place), int(is_in.sum())), np.int32)
        own = column[self._block]
        for numbers in self._levels:
            for preceding in self._before[:, numbers]:
                there = preceding >= 0
                if not there.any():
                    continue
                who, other = numbers[there], preceding[there]
                done[who] = np.maximum(done[who], done[other])
                inside = own[other] >= 0
                who, other = who[inside], other[inside]
                done[who, own[other]] = np.maximum(done[who, own[other]], self._place[other] + 1)
        return Known(done, own, self._place, self._gpu[is_in])


@attrs.frozen(eq=False)
class Known:
    """How many steps of each thread block of some gpus are done when a step starts."""

    done: np.ndarray  # (steps, blocks)
    column: np.ndarray  # (steps,) of the step's own block
    place: np.ndarray  # (steps,)
    of_gpu: np.ndarray  # (blocks,) whose they are

    def is_before(self, first: int, second: int) -> bool:
        """Whether the first step is done when the second starts, at any speed."""
        return bool(self.done[second, self.column[first]] > self.place[first])

    def is_heard_of(self, first: int, second: int) -> bool:
        """Whether any step of the first one's gpu is done when the second starts."""
        columns = self.of_gpu == self.of_gpu[self.column[first]]
        return bool((self.done[second, columns] > 0).any())


def _levels(graph: Graph) -> Iterator[np.ndarray]:
    """Steps by the longest way to them."""
    level = [0] * len(graph.nodes)
    for number in graph.order:
        level[number] = max((level[one] + 1 for one in graph.preceding(number)), default=0)
    by_level = np.argsort(level, kind="stable")
    edges = np.flatnonzero(np.diff(np.sort(level))) + 1
    yield from np.split(by_level, edges)


@attrs.frozen(eq=False)
class Uses:
    """What of these gpus' chunks is used when; races are refused on the way."""

    graph: Graph
    used: Mapping[Chunk, Sequence[Access]]
    known: Known

    def straight(self) -> Iterator[tuple[int, bool, bool]]:
        """Receives, and whether nobody uses the target any more when the send starts, by chunk.

        And whether it writes there first. PlanError for the first two steps that use a chunk in no
        order: each access is set against the last write before it, each write also against the
        reads since; if these are in order, all are.
        """
        for chunk, its in self.used.items():
            write: int | None = None
            reads: list[int] = []
            for access in its:
                others = [] if write is None else [write]
                others += reads if access.writes else []
                others = [one for one in others if one != access.number]
                self._check_order(chunk, others, access)
                sent = self.graph.sent[access.number]
                if access.writes and sent != NONE:
                    is_free = all(self.known.is_before(one, sent) for one in others)
                    yield access.number, is_free, write is None and chunk[1] is Buffer.OUTPUT
                if access.writes:
                    write, reads = access.number, []
                else:
                    reads.append(access.number)

    def _check_order(self, chunk: Chunk, others: Sequence[int], access: Access) -> None:
        for other in others:
            if not self.known.is_before(other, access.number):
                raise self._race(chunk, other, access)

    def _race(self, chunk: Chunk, other: int, access: Access) -> PlanError:
        first, second = self.graph.nodes[other], self.graph.nodes[access.number]
        gpu, buffer, index = chunk
        wrote = any(writes and ref == Ref(buffer, index) for ref, writes in touched(first))
        does = "written twice" if wrote and access.writes else "read and written"
        return second.error(
            f"race: {second.spelled(Ref(buffer, index))} of gpu {gpu} is {does} in no order; by "
            f"{first} (line {first.step.at.line}) too: a dependency is missing"
        )
