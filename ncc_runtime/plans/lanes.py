"""DMA rings for thread blocks: both ends of a connection have the same, by turns over connections.

A slot is handed back by the ring that has read it, in the sender's lane; so thread blocks that are
connected share one. Connections of the same channel and the same distance share one too, so that
what all members do alike is one transfer.
"""

from collections.abc import Mapping, Sequence

from ncc_runtime.collectives.plan import LANES
from ncc_runtime.plans.msccl import Kind
from ncc_runtime.plans.steps import NONE, Graph


def lanes_of(graph: Graph) -> Mapping[int, int]:
    """The lane of each thread block, by its number among all."""
    kinds: list[set[tuple[int, int]]] = [set() for _ in range(graph.blocks)]
    ends: list[tuple[int, int]] = []
    for node in graph.nodes:
        other = graph.received[node.number]
        if other == NONE:
            continue
        ends.append((node.block_number, graph.nodes[other].block_number))
        kinds[node.block_number].add(
            (node.block.channel, _distance(graph, node.gpu, node.block.to))
        )
    parts = _connected(graph.blocks, ends)
    joined: dict[int, set[tuple[int, int]]] = {}
    for part, its in zip(parts, kinds, strict=True):
        joined.setdefault(part, set()).update(its)
    kind_of = {part: tuple(sorted(its)) for part, its in joined.items()}
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    moving = {node.block_number for node in graph.nodes if node.step.kind is not Kind.NOP}
    for block in sorted(moving):  # a block that moves nothing takes no lane
        numbers.setdefault(kind_of[parts[block]], len(numbers))
    return {block: numbers.get(kind_of[part], 0) % LANES for block, part in enumerate(parts)}


def _connected(blocks: int, ends: Sequence[tuple[int, int]]) -> list[int]:
    """By thread block, which are connected, directly or through others: they have one number."""
    # scipy would do this too, and takes longer to load than the rest of the plan to be read.
    beside: list[set[int]] = [set() for _ in range(blocks)]
    for one, other in ends:
        beside[one].add(other)
        beside[other].add(one)
    found = [NONE] * blocks
    parts = 0
    for first in range(blocks):
        if found[first] != NONE:
            continue
        found[first] = parts
        reached = [first]
        for block in reached:
            fresh = [one for one in beside[block] if found[one] == NONE]
            for one in fresh:
                found[one] = parts
            reached += fresh
        parts += 1
    return found


def _distance(graph: Graph, one: int, other: int) -> int:
    """How far gpus are apart, either way around."""
    away = (other - one) % graph.shape.gpus
    return min(away, graph.shape.gpus - away)
