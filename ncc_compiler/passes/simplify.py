"""Algebraic simplification: copies, identities and tuple round trips go."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Module, Node, NodeId
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, rewrite_module


@attrs.frozen
class Simplify(Pass):
    """Values stay, bit for bit; each rule replaces a node by a value that is already there.

    A `copy` is one of them: values are written once, and layouts carry no meaning here. An
    `opt-barrier` stays: what is computed behind it is not what was computed before it, so that a
    recomputation (JAX's `checkpoint`) takes place as the program states it.
    """

    name: ClassVar[str] = "simplify"

    def run(self, module: Module) -> Module:
        return rewrite_module(module, _simplified, lambda node: node.op in _RULES)


def _simplified(rebuild: Rebuild, node: Node) -> NodeId:
    rule = _RULES.get(node.op)
    simpler = rule(rebuild, node) if rule else None
    if isinstance(simpler, Node):  # a simpler node may be simpler still
        return _simplified(rebuild, simpler)
    return rebuild.add(node) if simpler is None else simpler


Rule = Callable[[Rebuild, Node], NodeId | Node | None]
"""The value that the node equals, a simpler node in its place, or None."""


def _operand(_: Rebuild, node: Node) -> NodeId:
    return node.operands[0]


def _same_type(rebuild: Rebuild, node: Node) -> NodeId | None:
    """For ops that do nothing when the type stays."""
    operand = node.operands[0]
    return operand if rebuild.nodes[operand].type == node.type else None


def _reshape(rebuild: Rebuild, node: Node) -> NodeId | Node | None:
    source = rebuild.nodes[node.operands[0]]
    if source.type != node.type and source.op == "reshape":
        return attrs.evolve(node, operands=source.operands)
    return _same_type(rebuild, node)


def _element(rebuild: Rebuild, node: Node) -> NodeId | None:
    """An element of a tuple that was put together here."""
    source = rebuild.nodes[node.operands[0]]
    return source.operands[node.integer("index")] if source.op == "tuple" else None


def _transpose(rebuild: Rebuild, node: Node) -> Node | None:
    """One that moves dimensions of size 1 only keeps the order of the elements.

    One of a transpose or a broadcast is one with other dimensions.
    """
    shape, order = rebuild.type_of(node.operands[0]).shape, node.integers("dimensions")
    moved = [d for d in order if shape[d] != 1]
    if moved == sorted(moved):
        return _as_reshape(node)
    source = rebuild.nodes[node.operands[0]]
    if source.op == "transpose":
        dimensions = tuple(source.integers("dimensions")[d] for d in order)
    elif source.op == "broadcast":
        dimensions = tuple(order.index(d) for d in source.integers("dimensions"))
    else:
        return None
    attributes = {**node.attributes, "dimensions": dimensions}
    return attrs.evolve(node, op=source.op, operands=source.operands, attributes=attributes)


def _broadcast(rebuild: Rebuild, node: Node) -> Node | None:
    """One that repeats nothing keeps the elements, and their order where dimensions keep theirs."""
    operand, dimensions = rebuild.type_of(node.operands[0]), node.integers("dimensions")
    large = [d for d, size in zip(dimensions, operand.shape, strict=True) if size != 1]
    same_elements = operand.elements == node.array.elements and large == sorted(large)
    return _as_reshape(node) if same_elements else None


def _single(_: Rebuild, node: Node) -> NodeId | None:
    return node.operands[0] if len(node.operands) == 1 else None


def _as_reshape(node: Node) -> Node:
    kept = {key: value for key, value in node.attributes.items() if key != "dimensions"}
    return attrs.evolve(node, op="reshape", attributes=kept)


_RULES: Mapping[str, Rule] = {
    "broadcast": _broadcast,
    "concatenate": _single,
    "convert": _same_type,
    "copy": _operand,
    "get-tuple-element": _element,
    "reshape": _reshape,
    "slice": _same_type,
    "transpose": _transpose,
}
