"""Computes what depends on constants only, once, at compile time."""

from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Literal, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.options import FOLD_LIMIT_BYTES
from ncc_compiler.passes.evaluate import evaluate
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, provenance, rewrite_module


@attrs.frozen
class FoldConstants(Pass):
    """Only where the value is the one the devices would compute, and never into a large one."""

    name: ClassVar[str] = "fold-constants"

    limit_bytes: int = FOLD_LIMIT_BYTES

    def run(self, module: Module) -> Module:
        return rewrite_module(module, self._folded)

    def _folded(self, rebuild: Rebuild, node: Node) -> NodeId:
        small = isinstance(node.type, ArrayType) and node.type.size_bytes <= self.limit_bytes
        operands = [rebuild.nodes[operand] for operand in node.operands]
        if not small or not all(operand.has_value() for operand in operands):
            return rebuild.add(node)
        value = evaluate(node, [operand.literal().array for operand in operands])
        if value is None:
            return rebuild.add(node)
        attributes = {"literal": Literal(value), **provenance(node)}
        return rebuild.add(attrs.evolve(node, op="constant", operands=(), attributes=attributes))
