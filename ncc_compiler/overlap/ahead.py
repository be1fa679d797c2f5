"""How many layers ahead weights are gathered, and how many late gradients are scattered.

A layer is counted by its collective: of one computation and stream, layer k begins where the result
of the k-th all-gather is first read, and is over where it is last read; its gradients are there
where the operands of the k-th reduce-scatter are. AWS calls the distances
NEURON_FSDP_NUM_LAYER_EARLY_AG_SHIFT and NEURON_FSDP_NUM_LAYER_LATE_RS_SHIFT.
"""

from collections.abc import Collection, Mapping, Sequence

from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Computation
from ncc_compiler.overlap.lifetimes import Lifetimes
from ncc_compiler.overlap.reach import chosen_before

_GATHERS = frozenset({"all-gather"})
_SCATTERS = frozenset({"reduce-scatter", "ncc.avg_reduce_scatter"})


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


def _gathers(lifetimes: Lifetimes, layers: Sequence[int], early: int) -> dict[int, int]:
    """All-gathers wait for the layer so much earlier to begin, or the one before to be over."""
    found = {}
    for k, one in enumerate(layers):
        earlier = layers[k - max(1, early)] if k >= max(1, early) else None
        readers = lifetimes.readers[earlier] if earlier is not None else ()
        if readers:
            found[one] = readers[0] if early else readers[-1]
    return found


def _scatters(
    body: Computation, lifetimes: Lifetimes, layers: Sequence[int], late: int
) -> dict[int, int]:
    """Reduce-scatters wait for the gradients of the layer so much later, or of the last one."""
    made = [
        max(maker for operand in body.nodes[one].operands for maker in lifetimes.made_in[operand])
        for one in layers
    ]
    last = len(layers) - 1
    return {layers[k]: made[min(k + late, last)] for k in range(last)}


def _by_stream(body: Computation, ops: Collection[str]) -> Collection[Sequence[int]]:
    """The collectives of these ops, in order, for each stream."""
    found: dict[int, list[int]] = {}
    for position, node in enumerate(body.nodes):
        if node.op in ops:
            found.setdefault(written_stream(node) or 0, []).append(position)
    return found.values()
