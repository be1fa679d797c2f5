"""Replaces ops that are another op or a number under a name of their own."""

from typing import ClassVar

import attrs
import numpy as np

from ncc_compiler.ir.custom_calls import IDENTITIES, TOPK, target_of, wants_largest
from ncc_compiler.ir.graph import Attribute, Literal, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, rewrite_module

_SPELLED_OUT = frozenset({"custom-call", "get-dimension-size", "ragged-dot"})


@attrs.frozen
class SpellOut(Pass):
    """Afterwards there is no custom call, no question for the size of a dimension, and no product
    that is ragged in name only.
    """

    name: ClassVar[str] = "spell-out"

    def run(self, module: Module) -> Module:
        def spelled_out(rebuild: Rebuild, node: Node) -> NodeId:
            if node.op == "get-dimension-size":
                return _dimension_size(rebuild, node)
            if node.op == "custom-call":
                return _custom_call(module, rebuild, node)
            if node.op == "ragged-dot":
                return rebuild.add(_dot_of_batches(node))
            return rebuild.add(node)

        return rewrite_module(module, spelled_out, lambda node: node.op in _SPELLED_OUT)


def _dimension_size(rebuild: Rebuild, node: Node) -> NodeId:
    dimensions = node.attributes["dimensions"]
    assert isinstance(dimensions, tuple), node.name
    (dimension,) = dimensions
    assert isinstance(dimension, int), node.name
    size = np.array(rebuild.type_of(node.operands[0]).shape[dimension], np.int32)
    size.setflags(write=False)
    constant = attrs.evolve(node, op="constant", operands=())
    return rebuild.add(
        attrs.evolve(constant, attributes={"literal": Literal(size), **_place(node)})
    )


def _dot_of_batches(node: Node) -> Node:
    """Where the ragged dimension is a batch dimension, a dot, whatever group a batch is in."""
    if node.integers("lhs_ragged_dims")[0] not in node.integers("lhs_batch_dims"):
        return node
    kept = {
        key: value
        for key, value in node.attributes.items()
        if key not in ("lhs_ragged_dims", "rhs_group_dims")
    }
    return attrs.evolve(node, op="dot", operands=node.operands[:2], attributes=kept)


def _custom_call(module: Module, rebuild: Rebuild, node: Node) -> NodeId:
    target = target_of(node)
    if target in IDENTITIES:
        return node.operands[0]
    assert target == TOPK, target
    assert isinstance(node.type, TupleType), node.name
    values = node.type.elements[0]
    assert isinstance(values, ArrayType), node.name
    count = {"k": values.shape[-1], "largest": wants_largest(module, node)}
    return rebuild.add(attrs.evolve(node, op="topk", attributes={**count, **_place(node)}))


def _place(node: Node) -> dict[str, Attribute]:
    """What says where the node is from."""
    return {key: node.attributes[key] for key in ("metadata",) if key in node.attributes}
