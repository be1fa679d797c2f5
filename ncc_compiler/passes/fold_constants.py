"""Computes what depends on constants only, once, at compile time."""

from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Literal, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.options import FOLD_LIMIT_BYTES
from ncc_compiler.passes.evaluate import can_evaluate, evaluate
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, rewrite_module


@attrs.frozen
class FoldConstants(Pass):
    """Only where the value is the one the devices would compute, and never into a large one."""

    name: ClassVar[str] = "fold-constants"

    limit_bytes: int = FOLD_LIMIT_BYTES

    def run(self, module: Module) -> Module:
        return rewrite_module(module, self._folded)

    def _folded(self, rebuild: Rebuild, node: Node) -> NodeId:
        small = isinstance(node.type, ArrayType) and node.type.size_bytes <= self.limit_bytes
        if not small or not can_evaluate(node.op):
            return rebuild.add(node)
        literals = [rebuild.nodes[operand].attributes.get("literal") for operand in node.operands]
        arrays = [literal.array for literal in literals if isinstance(literal, Literal)]
        value = evaluate(node, arrays) if len(arrays) == len(literals) else None
        if value is None:
            return rebuild.add(node)
        kept = {key: node.attributes[key] for key in ("metadata",) if key in node.attributes}
        folded = Node(node.name, "constant", node.type, (), {"literal": Literal(value), **kept})
        return rebuild.add(attrs.evolve(folded, span=node.span))
