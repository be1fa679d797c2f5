"""DMA rings for thread blocks: both ends of a connection have the same, by turns over connections.

A slot is handed back by the ring that has read it, in the sender's lane; so thread blocks that are
connected share one. Connections of the same channel and the same distance share one too, so that
what all members do alike is one transfer.
"""

from collections.abc import Mapping

from ncc_runtime.collectives.plan import LANES
from ncc_runtime.plans.steps import NONE, Graph


def lanes_of(graph: Graph) -> Mapping[int, int]:
    """The lane of each thread block, by its number among all."""
    leader = list(range(graph.blocks))

    def lead(block: int) -> int:
        while leader[block] != block:
            leader[block] = leader[leader[block]]
            block = leader[block]
        return block

    kinds: dict[int, set[tuple[int, int]]] = {block: set() for block in leader}
    for node in graph.nodes:
        other = graph.received[node.number]
        if other == NONE:
            continue
        ends = node.block_number, graph.nodes[other].block_number
        kinds[ends[0]].add((node.block.channel, _distance(graph, node.gpu, node.block.to)))
        one, two = sorted(map(lead, ends))
        leader[two] = one
    joined: dict[int, set[tuple[int, int]]] = {}
    for block, its in kinds.items():
        joined.setdefault(lead(block), set()).update(its)
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    for block in sorted(joined):
        numbers.setdefault(tuple(sorted(joined[block])), len(numbers))
    return {block: numbers[tuple(sorted(joined[lead(block)]))] % LANES for block in kinds}


def _distance(graph: Graph, one: int, other: int) -> int:
    """How far gpus are apart, either way around."""
    away = (other - one) % graph.shape.gpus
    return min(away, graph.shape.gpus - away)
