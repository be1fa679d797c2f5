"""How many layers ahead weights are gathered, and how many late gradients are scattered.

A layer is known by its collectives (`layers.py`): of one computation and stream, layer k begins
where a result of its all-gathers is first read, and is over where one is last read; its gradients
are there where the operands of its reduce-scatters are. AWS calls the distances
NEURON_FSDP_NUM_LAYER_EARLY_AG_SHIFT and NEURON_FSDP_NUM_LAYER_LATE_RS_SHIFT.
"""

from collections.abc import Collection, Mapping, Sequence

from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Computation
from ncc_compiler.overlap.layers import layers_of
from ncc_compiler.overlap.lifetimes import Lifetimes
from ncc_compiler.overlap.reach import chosen_before

_GATHERS = frozenset({"all-gather"})
_SCATTERS = frozenset({"reduce-scatter", "ncc.avg_reduce_scatter"})

Layer = Sequence[int]
"""The collectives of a layer."""


def held_until(
    body: Computation, lifetimes: Lifetimes, early: int | None, late: int | None
) -> Mapping[int, int]:
    """For collectives that start later than they could, the node that they wait for."""
    found: dict[int, int] = {}
    if early is not None:
        for layers in _by_stream(body, _GATHERS):
            found |= _gathers(lifetimes, layers, early)
    if late:
        for layers in _by_stream(body, _SCATTERS):
            found |= _scatters(body, lifetimes, layers, late)
    before = chosen_before(body, found) if found else []
    bits = {one: 1 << k for k, one in enumerate(sorted(found))}
    return {one: until for one, until in found.items() if not before[until] & bits[one]}


def _gathers(lifetimes: Lifetimes, layers: Sequence[Layer], early: int) -> dict[int, int]:
    """All-gathers wait for the layer so much earlier to begin, or the one before to be over."""
    found: dict[int, int] = {}
    distance = max(1, early)
    for earlier, layer in zip(layers, layers[distance:], strict=False):
        readers = [reader for one in earlier for reader in lifetimes.readers[one]]
        if readers:
            found |= dict.fromkeys(layer, min(readers) if early else max(readers))
    return found


def _scatters(
    body: Computation, lifetimes: Lifetimes, layers: Sequence[Layer], late: int
) -> dict[int, int]:
    """Reduce-scatters wait for the gradients of the layer so much later, or of the last one."""
    made = [
        max(
            maker
            for one in layer
            for operand in body.nodes[one].operands
            for maker in lifetimes.made_in[operand]
        )
        for layer in layers
    ]
    last = len(layers) - 1
    return {one: made[min(k + late, last)] for k in range(last) for one in layers[k]}


def _by_stream(body: Computation, ops: Collection[str]) -> list[list[Layer]]:
    """The layers of the collectives of these ops, in order, for each stream."""
    found: dict[int, list[int]] = {}
    for position, node in enumerate(body.nodes):
        if node.op in ops:
            found.setdefault(written_stream(node) or 0, []).append(position)
    return [
        [
            [places[k] for k in layer]
            for layer in layers_of([body.nodes[place].type for place in places])
        ]
        for places in found.values()
    ]
