"""Takes collectives of several operands apart, so that each operand can start when it is there.

Frameworks and XLA join the gradients of a step into one collective at its end, which starts when
the last of them is there: nothing of it runs beside compute. Which ones start together, `bucket`
decides anew, by when they are ready.

    a, b, c ─▶ all-reduce ─▶ (A, B, C)        a ─▶ all-reduce ─▶ A    b ─▶ all-reduce ─▶ B   …
"""

from typing import ClassVar

import attrs

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.graph import Module, Node, NodeId
from ncc_compiler.ir.types import TupleType
from ncc_compiler.overlap.bucket import BUCKETED
from ncc_compiler.overlap.erase_tokens import has_token
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, provenance, rewrite_module


@attrs.frozen
class TakeApart(Pass):
    """Of the collectives that `bucket` joins; 0 in `enabled` leaves them as they were written."""

    name: ClassVar[str] = "take-apart"

    enabled: int = 1

    def run(self, module: Module) -> Module:
        return rewrite_module(module, _apart, _is_joined) if self.enabled else module


def _is_joined(node: Node) -> bool:
    """Whether it has several operands that could be joined again, none of them a token."""
    is_tuple = node.op in BUCKETED and isinstance(node.type, TupleType)
    return (
        is_tuple and len({array.dtype for array in leaves(node.type)}) == 1 and not has_token(node)
    )


def _apart(rebuild: Rebuild, node: Node) -> NodeId:
    """A collective for each operand, and under the name of all the tuple of their results."""
    if not _is_joined(node):
        return rebuild.add(node)
    assert isinstance(node.type, TupleType), node.name
    parts = tuple(
        rebuild.add(
            attrs.evolve(node, name=rebuild.fresh(f"{node.name}.part"), type=kind, operands=(one,))
        )
        for one, kind in zip(node.operands, node.type.elements, strict=True)
    )
    return rebuild.add(Node(node.name, "tuple", node.type, parts, provenance(node), node.span))
