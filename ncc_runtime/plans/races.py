"""Races: chunks that two steps use in no order; and receives whose target is free in time.

A step is before another if a chain of waits leads from it there, so that it is done when the other
starts, however fast the thread blocks are (happens-before). Slots are no such wait: a plan that is
right only because they are few is refused.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import PlanError
from ncc_runtime.plans.loops import FROM_OPERAND
from ncc_runtime.plans.msccl import Buffer
from ncc_runtime.plans.steps import NONE, Graph, chunks_of

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
    """The order in which chunks are used; PlanError for the first two steps that race.

    Each read is set against the last write before it, each write also against the reads since; if
    these are in order, all are.
    """
    nodes = graph.nodes
    writer: dict[int, int] = {}  # the last of each chunk
    readers: dict[int, list[int]] = {}  # of each chunk, since it was written
    first: set[tuple[int, int]] = set()
    earlier: list[int] = []  # steps that use a chunk,
    later: list[int] = []  # those that use it next,
    used: list[int] = []  # which chunk,
    is_first: list[bool] = []  # and whether it is then written for the first time
    for number in graph.order:
        node = nodes[number]
        kind, count = node.step.kind, node.step.count
        if kind.reads:
            is_output = node.source.buffer is Buffer.OUTPUT
            for index, chunk in enumerate(chunks_of(node.gpu, node.source, count)):
                readers.setdefault(chunk, []).append(number)
                if chunk in writer:
                    earlier.append(writer[chunk])
                    later.append(number)
                    used.append(chunk)
                    is_first.append(False)
                elif is_output:
                    first.add((number, node.source.index + index))
        if kind.writes:
            is_output = node.target.buffer is Buffer.OUTPUT
            for index, chunk in enumerate(chunks_of(node.gpu, node.target, count)):
                others = [one for one in readers.pop(chunk, ()) if one != number]
                is_new = chunk not in writer
                if not is_new:
                    others.append(writer[chunk])
                elif is_output:
                    first.add((number, node.target.index + index))  # a join reads what it writes
                writer[chunk] = number
                earlier += others
                later += [number] * len(others)
                used += [chunk] * len(others)
                is_first += [is_new and is_output] * len(others)
    before, after = np.array(earlier, np.int64), np.array(later, np.int64)
    sent = np.array(graph.sent, np.int64)
    comes = np.array(
        [
            sent[k] != NONE and one.step.kind.writes and not one.step.kind.joins
            for k, one in enumerate(nodes)
        ],
        bool,
    )
    asked = np.flatnonzero(comes[after])
    in_order = is_before(
        graph, np.append(before, before[asked]), np.append(after, sent[after[asked]])
    )
    races = np.flatnonzero(~in_order[: len(before)])
    if len(races):
        at = int(races[0])
        raise _race(graph, earlier[at], later[at], used[at])
    is_free = in_order[len(before) :]
    straight = comes.copy()
    straight[after[asked[~is_free]]] = False
    from_operand = comes.copy()
    from_operand[after[asked[~is_free & ~np.array(is_first, bool)[asked]]]] = False
    by_start = {"": straight, FROM_OPERAND: from_operand}
    heard = _heard(graph, straight)
    for buffer in (Buffer.INPUT, Buffer.OUTPUT):
        # what is fetched there first must be there before somebody else may write
        is_fetched = np.array([one.target.buffer is buffer for one in nodes], bool)
        by_start[buffer.value] = straight & (heard | ~is_fetched)
    lists = {start: column.tolist() for start, column in by_start.items()}
    return Ordered(graph, lists, frozenset(first))


def is_before(graph: Graph, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether each first step is done when its second starts, at any speed."""
    block = np.array([node.block_number for node in graph.nodes], np.int64)
    place = np.array([node.place for node in graph.nodes], np.int64)
    awaited = np.array(graph.awaited, np.int64)
    found: np.ndarray = (block[first] == block[second]) & (place[first] < place[second])
    named = awaited[second]
    found |= (named != NONE) & (block[named] == block[first]) & (place[named] >= place[first])
    # The rest is answered by what every step follows, a bit for each step that is asked for.
    rest = np.flatnonzero(~found)
    steps, bits = np.unique(first[rest], return_inverse=True)
    width = max(LEAST_WIDTH, MOST_BITS // max(1, len(block)))
    for low in range(0, len(steps), width):
        marked = {step: 1 << bit for bit, step in enumerate(steps[low : low + width].tolist())}
        followed = _followed(graph, marked)
        here = rest[(bits >= low) & (bits < low + width)]
        for at, earlier, later in zip(
            here.tolist(), first[here].tolist(), second[here].tolist(), strict=True
        ):
            found[at] = followed[later] & marked[earlier] != 0
    return found


def _followed(graph: Graph, marks: Mapping[int, int]) -> list[int]:
    """By step the marks of it and of all steps before it."""
    found = [0] * len(graph.nodes)
    for number in graph.order:
        known = marks.get(number, 0)
        for other in graph.preceding[number]:
            known |= found[other]
        found[number] = known
    return found


def _heard(graph: Graph, straight: np.ndarray) -> np.ndarray:
    """Whether each step that receives straight has a send that follows any step of its gpu."""
    found = np.zeros(len(graph.nodes), bool)
    followed = _followed(graph, {node.number: 1 << node.gpu for node in graph.nodes})
    for number in np.flatnonzero(straight).tolist():
        found[number] = followed[graph.sent[number]] >> graph.nodes[number].gpu & 1
    return found


def _race(graph: Graph, earlier: int, later: int, chunk: int) -> PlanError:
    first, second = graph.nodes[earlier], graph.nodes[later]
    writes = [
        one.step.kind.writes and chunk in chunks_of(one.gpu, one.target, one.step.count)
        for one in (first, second)
    ]
    does = "written twice" if all(writes) else "read and written"
    return second.error(
        f"race: {second.name_of(chunk)} of gpu {second.gpu} is {does} in no order; by {first} "
        f"(line {first.step.at.line}) too: a dependency is missing"
    )
