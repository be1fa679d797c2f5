"""Asynchronous operations become synchronous ones; send and recv become permutes.

`JoinHalves`: a start/done pair becomes one operation where it starts (XLA: async to sync). The
runtime runs every collective beside the engines anyway, and what overlaps follows from the order
of uses. A start's value is a tuple of operand, result and contexts; the tuple is kept, its contexts
are zeros that nobody reads, and a done is one of its elements.

`JoinTransfers`: a send and the recv that matches it become one `collective-permute`, where the data
is there. Every rank of a partitioned program runs both, and `match_transfers` brings the two sides
into one computation. The value of either is a tuple of data, a context and a token; the tuple is
kept, and a done is made of its elements.
"""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from ncc_compiler.ir.collectives import moves_slices, pairs_attribute
from ncc_compiler.ir.graph import Attribute, Callee, Module, Node, NodeId
from ncc_compiler.ir.transfers import match_transfers
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, rewrite_module

_START, _DONE, _UPDATE = "-start", "-done", "-update"
_WITHOUT_TUPLE = "all-reduce"  # its start gives what its done gives


@attrs.frozen
class JoinHalves(Pass):
    """No start, update or done is left; `async-start` becomes a call."""

    name: ClassVar[str] = "join-halves"

    def run(self, module: Module) -> Module:
        return rewrite_module(module, _joined, lambda node: is_half(node.op))


def is_half(op: str) -> bool:
    """Whether the op is the start, update or done of an operation that another op names."""
    return op.endswith((_START, _DONE)) or op == f"async{_UPDATE}"


def _joined(rebuild: Rebuild, node: Node) -> NodeId:
    if not is_half(node.op):
        return rebuild.add(node)
    if node.op.endswith(_START):
        return _start(rebuild, node)
    (operand,) = node.operands
    if node.op.endswith(_UPDATE) or node.op.removesuffix(_DONE) == _WITHOUT_TUPLE:
        return operand
    index = 0 if node.op == f"copy{_DONE}" else 1
    element = attrs.evolve(node, op="get-tuple-element", attributes={"index": index})
    return rebuild.add(element)


def _start(rebuild: Rebuild, node: Node) -> NodeId:
    """The operation itself, under the name of its start, and the tuple around it."""
    op = node.op.removesuffix(_START)
    if op == _WITHOUT_TUPLE:
        return rebuild.add(attrs.evolve(node, op=op))
    assert isinstance(node.type, TupleType), node.name
    kinds = node.type.elements
    plain = attrs.evolve(node, op=op, type=kinds[0 if op == "copy" else 1])
    if op == "async":
        callee = Callee(node.callee("calls"))
        plain = attrs.evolve(plain, op="call", attributes={"to_apply": callee})
    result = rebuild.add(plain)
    # the tuple of a copy-start has the result first
    operand = _operand_element(rebuild, node, kinds[1 if op == "copy" else 0])
    elements = [result, operand] if op == "copy" else [operand, result]
    for kind in kinds[2:]:  # contexts
        assert isinstance(kind, ArrayType), node.name
        elements.append(rebuild.constant(node, kind, 0))
    return rebuild.derived(node, "tuple", node.type, elements)


def _operand_element(rebuild: Rebuild, node: Node, kind: Type) -> NodeId:
    """The operands as an element of the start's tuple: a single array, or a tuple of them."""
    operands: Sequence[NodeId] = node.operands[:1] if moves_slices(node) else node.operands
    if isinstance(kind, TupleType) and (
        len(operands) != 1 or rebuild.nodes[operands[0]].type != kind
    ):
        return rebuild.derived(node, "tuple", kind, operands)
    return operands[0]


@attrs.frozen
class JoinTransfers(Pass):
    """No `send` or `recv` is left; ranks that receive nothing get zeros, as of a permute."""

    name: ClassVar[str] = "join-transfers"

    def run(self, module: Module) -> Module:
        def join(rebuild: Rebuild, node: Node) -> NodeId:
            return _JOINED[node.op](rebuild, node) if node.op in _JOINED else rebuild.add(node)

        return rewrite_module(match_transfers(module), join, lambda node: node.op in _JOINED)


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
        rebuild.derived(node, "get-tuple-element", element, [data], index=k)
        for k, element in enumerate(kind.elements)
    ]
    if len(parts) > 1:
        return rebuild.add(attrs.evolve(permute, operands=tuple(parts), type=kind))
    # A collective of one operand has an array for a result, not a tuple of one.
    single = rebuild.add(attrs.evolve(permute, operands=tuple(parts), type=kind.elements[0]))
    return rebuild.derived(node, "tuple", kind, [single])


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
