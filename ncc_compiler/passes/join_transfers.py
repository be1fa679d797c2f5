"""A send and the recv of the same transfer become one permute, where the data is there.

Every rank of a partitioned program runs both, and `match_transfers` brings the two sides into one
computation. The value of either is a tuple of data, a context and a token; the tuple is kept, and a
done is made of its elements.
"""

from typing import ClassVar

import attrs

from ncc_compiler.ir.collectives import pairs_attribute
from ncc_compiler.ir.graph import Attribute, Module, Node, NodeId
from ncc_compiler.ir.transfers import match_transfers
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, rewrite_module


@attrs.frozen
class JoinTransfers(Pass):
    """No `send` or `recv` is left; ranks that receive nothing get zeros, as of a permute."""

    name: ClassVar[str] = "join-transfers"

    def run(self, module: Module) -> Module:
        return rewrite_module(match_transfers(module), _joined, lambda node: node.op in _JOINED)


def _joined(rebuild: Rebuild, node: Node) -> NodeId:
    return _JOINED[node.op](rebuild, node) if node.op in _JOINED else rebuild.add(node)


def _send(rebuild: Rebuild, node: Node) -> NodeId:
    data, token = node.operands
    return _started(rebuild, node, data, token)


def _recv(rebuild: Rebuild, node: Node) -> NodeId:
    """The permute, under the name of the recv; `match_transfers` has given it the data."""
    token, data = node.operands
    permuted = _permuted(rebuild, node, data)
    return _started(rebuild, node, permuted, token)


def _permuted(rebuild: Rebuild, node: Node, data: NodeId) -> NodeId:
    pairs = pairs_attribute(node)
    assert pairs is not None, node.name
    attributes: dict[str, Attribute] = {"source_target_pairs": pairs}
    for key in ("channel_id", "metadata", "frontend_attributes"):
        if key in node.attributes:
            attributes[key] = node.attributes[key]
    permute = attrs.evolve(
        node, name=rebuild.fresh(node.name), op="collective-permute", attributes=attributes
    )
    kind = rebuild.nodes[data].type
    if not isinstance(kind, TupleType):
        return rebuild.add(attrs.evolve(permute, operands=(data,), type=kind))
    parts = [
        rebuild.derived(node, "get-tuple-element", one, [data], index=k)
        for k, one in enumerate(kind.elements)
    ]
    if len(parts) > 1:
        return rebuild.add(attrs.evolve(permute, operands=tuple(parts), type=kind))
    alone = rebuild.add(attrs.evolve(permute, operands=tuple(parts), type=kind.elements[0]))
    return rebuild.derived(node, "tuple", kind, [alone])


def _started(rebuild: Rebuild, node: Node, data: NodeId, token: NodeId) -> NodeId:
    """The tuple that the start of a transfer gives."""
    assert isinstance(node.type, TupleType), node.name
    kind = node.type.elements[1]
    assert isinstance(kind, ArrayType), node.name
    context = rebuild.constant(node, kind, 0)
    started = attrs.evolve(node, op="tuple", operands=(data, context, token), attributes={})
    return rebuild.add(started)


def _send_done(rebuild: Rebuild, node: Node) -> NodeId:
    return rebuild.add(attrs.evolve(node, op="get-tuple-element", attributes={"index": 2}))


def _recv_done(rebuild: Rebuild, node: Node) -> NodeId:
    assert isinstance(node.type, TupleType), node.name
    (started,) = node.operands
    parts = [
        rebuild.derived(node, "get-tuple-element", kind, [started], index=k)
        for k, kind in zip((0, 2), node.type.elements, strict=True)
    ]
    return rebuild.add(attrs.evolve(node, op="tuple", operands=tuple(parts), attributes={}))


_JOINED = {"send": _send, "recv": _recv, "send-done": _send_done, "recv-done": _recv_done}
