"""Common subexpression elimination: what is the same is computed once."""

from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Attribute, Module, Node, NodeId
from ncc_compiler.ir.ops import BARRIERS, OPS
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, rewrite_computation, with_computations

# Attributes that say where a node comes from or how it is to be laid out, not what it computes.
# Channels pair collectives in XLA; here every rank runs the same instructions in the same order.
_WITHOUT_MEANING = frozenset({"metadata", "sharding", "channel_id"})


@attrs.frozen
class CommonSubexpressions(Pass):
    """Of equal nodes with equal operands the first stays.

    Collectives too: the same operator over the same groups and operand gives the same value on
    each rank, as do `partition-id` and `replica-id`, which differ between ranks only. A barrier
    is there for what it does, and of two `opt-barrier` each begins a computation of its own.
    """

    name: ClassVar[str] = "common-subexpressions"

    def run(self, module: Module) -> Module:
        computations = {
            name: rewrite_computation(computation, _Merge())
            for name, computation in module.computations.items()
        }
        return with_computations(module, computations)


class _Merge:
    """Nodes seen in one computation, by what they compute."""

    def __init__(self) -> None:
        self._seen: dict[object, NodeId] = {}

    def __call__(self, rebuild: Rebuild, node: Node) -> NodeId:
        is_unknown = node.op == "constant" and not node.has_value()
        is_own = node.op == "parameter" or node.op in BARRIERS or is_unknown
        if is_own or OPS[node.op].has_side_effect:
            return rebuild.add(node)
        key = (node.op, node.type, node.operands, _meaning(node))
        if key not in self._seen:
            self._seen[key] = rebuild.add(node)
        return self._seen[key]


def _meaning(node: Node) -> tuple[tuple[str, Attribute], ...]:
    """What the attributes say of the value, in one order; whether a channel is there, not which.

    A channel's presence is part of how replica groups are read.
    """
    kept = [item for item in node.attributes.items() if item[0] not in _WITHOUT_MEANING]
    kept.append(("channel_id", "channel_id" in node.attributes))
    if len(kept) > 1:
        kept.sort(key=lambda item: item[0])
    return tuple(kept)
