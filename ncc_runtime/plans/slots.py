"""What making transfers starts from: facts of a checked plan, and the slots of its connections."""

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from ncc_runtime.collectives.extents import ALIGNMENT, Scratch
from ncc_runtime.plans.loops import Loop
from ncc_runtime.plans.steps import Connection, Graph, Node


@attrs.frozen(eq=False)
class Facts:
    """What is known of a plan before it is given sizes."""

    graph: Graph
    straight: Mapping[str, Sequence[bool]]  # of `Ordered`
    first: frozenset[tuple[int, int]]  # steps, and chunks of the output that they read first
    complete: frozenset[tuple[int, int]]
    cleared: frozenset[int]  # gpus whose results are zeros
    divisor: int


def slots_of(
    facts: Facts, loop: Loop, scratch: Mapping[int, Scratch]
) -> Mapping[Connection, tuple[int, int, int]]:
    """Where the slots of each connection lie at its receiver: first, size, how many."""
    graph, straight = facts.graph, facts.straight[loop.start]
    counts: Counter[Connection] = Counter()
    most: dict[Connection, int] = {}
    for node in graph.nodes:
        if not node.step.kind.sends:
            continue
        if straight[graph.received[node.number]]:
            continue
        connection = connection_of(node)
        counts[connection] += 1
        most[connection] = max(most.get(connection, 0), node.step.count)
    found = {}
    gpus = graph.shape.gpus
    for connection in sorted(counts, key=lambda one: (one[2], (one[1] - one[0]) % gpus, one)):
        size = -(-most[connection] * loop.width // ALIGNMENT) * ALIGNMENT
        count = min(graph.slots, counts[connection])
        found[connection] = scratch[connection[1]].take(size * count), size, count
    return found


def connection_of(node: Node) -> Connection:
    """Of a step that sends."""
    return node.gpu, node.block.to, node.block.channel
