"""Operations that are written in two halves, start and done, become one where they start.

The runtime runs every collective beside the engines, so a start has nothing to add: what overlaps
is decided by the order of uses. A start's value is a tuple of operand, result and contexts; the
tuple is kept, its contexts are zeros that nobody reads, and a done is one of its elements.
"""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from ncc_compiler.ir.collectives import moves_slices
from ncc_compiler.ir.graph import Callee, Module, Node, NodeId
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
    """Whether the op starts, carries on or ends an operation that another op names."""
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
    given = _operands(rebuild, node, kinds[1 if op == "copy" else 0])
    head = [result, given] if op == "copy" else [given, result]
    contexts = [_context(rebuild, node, kind) for kind in kinds[2:]]
    return rebuild.derived(node, "tuple", node.type, [*head, *contexts])


def _operands(rebuild: Rebuild, node: Node, kind: Type) -> NodeId:
    """The operand as the tuple holds it: alone, or in a tuple of its own."""
    operands: Sequence[NodeId] = node.operands[:1] if moves_slices(node) else node.operands
    if isinstance(kind, TupleType) and (len(operands) != 1 or not _is(rebuild, operands[0], kind)):
        return rebuild.derived(node, "tuple", kind, operands)
    return operands[0]


def _is(rebuild: Rebuild, operand: NodeId, kind: Type) -> bool:
    return rebuild.nodes[operand].type == kind


def _context(rebuild: Rebuild, node: Node, kind: Type) -> NodeId:
    assert isinstance(kind, ArrayType), node.name
    return rebuild.constant(node, kind, 0)
