"""What an instruction costs: arithmetic, elements and HBM traffic, for the clock to read."""

import math

from ncc_compiler.codegen.draft import Costs
from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.types import ArrayType

_MOST_FLOPS = 2**63 - 1  # of the column


def costs(node: Node, results: list[ArrayType], operands: list[ArrayType]) -> Costs:
    """Costs of a node; folds count the elements they read, everything else those it writes."""
    flops = _dot_flops(node, results[0], operands[0]) if node.op == "dot" else 0
    if flops > _MOST_FLOPS:
        text = f"the product takes {flops} operations, at most {_MOST_FLOPS} can be counted"
        raise CompileError([Diagnostic("codegen-C4", text, node.span)])
    walked = operands[: len(operands) // 2] if node.op == "reduce" else results
    return Costs(
        flops=flops,
        elements=sum(array.elements for array in walked),
        bytes_in=sum(array.size_bytes for array in operands),
        bytes_out=sum(array.size_bytes for array in results),
    )


def _dot_flops(node: Node, result: ArrayType, lhs: ArrayType) -> int:
    """A multiplication and an addition for each result element and contracted index."""
    contracted = [lhs.shape[dimension] for dimension in node.integers("lhs_contracting_dims")]
    return 2 * result.elements * math.prod(contracted)
