"""`dot`: result[batch…, lhs free…, rhs free…] = sum over the contracted indices.

Floats are summed in float64 and rounded once, so the oracle has no order of summation of its own;
integers are summed in the result's dtype and wrap.
"""

from collections.abc import Sequence

import numpy as np

from ncc_compiler.ir.graph import Node
from ncc_compiler.reference.conversion import narrowed, working
from ncc_runtime.neff.dtypes import DType


def dot(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """The two operands contracted, any dimensions, batch dimensions first in the result."""
    dtype = node.array.dtype
    lhs, rhs = (summands(operand, dtype) for operand in operands)
    left_names, right_names, result_names = _index_names(node, lhs.ndim, rhs.ndim)
    total = np.einsum(lhs, left_names, rhs, right_names, result_names, optimize=False)
    if dtype is DType.PRED:
        return np.asarray(total != 0)
    return narrowed(np.asarray(total), dtype)


def summands(operand: np.ndarray, result: DType) -> np.ndarray:
    if result.is_complex:
        return operand.astype(np.complex128)
    if result.is_integer and result.bits >= 8:
        return working(operand).astype(result.numpy)
    return working(operand).astype(np.float64 if result.is_float else np.int64)


def _index_names(
    node: Node, lhs_rank: int, rhs_rank: int
) -> tuple[list[int], list[int], list[int]]:
    """A number for each index: those that both operands share have the same one."""
    left = list(range(lhs_rank))
    right = list(range(lhs_rank, lhs_rank + rhs_rank))
    lhs_batch = node.integers("lhs_batch_dims")
    lhs_contracted = node.integers("lhs_contracting_dims")
    rhs_shared = node.integers("rhs_batch_dims") + node.integers("rhs_contracting_dims")
    for here, there in zip(lhs_batch + lhs_contracted, rhs_shared, strict=True):
        right[there] = left[here]
    shared = lhs_batch + lhs_contracted
    free = [name for name in left if name not in shared]
    free += [name for k, name in enumerate(right) if k not in rhs_shared]
    return left, right, [*lhs_batch, *free]
