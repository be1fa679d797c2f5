"""`dot`: result[batch…, lhs free…, rhs free…] = sum over the contracted indices; `ragged-dot`.

Floats are summed in float64 and rounded once, so the oracle has no order of summation of its own;
integers are summed in the result's dtype and wrap.
"""

from collections.abc import Sequence

import attrs
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


def ragged_dot(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """A dot for each group, of which an index of the ragged dimension sees that of its own group.

    An index that is in no group adds nothing.
    """
    lhs, rhs, sizes = operands
    ragged = node.integers("lhs_ragged_dims")[0]
    batch, contracting = (node.integers(f"lhs_{name}_dims") for name in ("batch", "contracting"))
    if ragged in batch:
        return dot(node, (lhs, rhs))
    free = tuple(d for d in range(lhs.ndim) if d not in batch + contracting)
    siblings = contracting if ragged in contracting else free
    before = batch + siblings[: siblings.index(ragged)]
    sizes = np.broadcast_to(sizes, (*(lhs.shape[d] for d in before), sizes.shape[-1]))
    ends = np.cumsum(sizes.astype(np.int64), axis=-1)[..., None]
    place = np.arange(lhs.shape[ragged])
    is_in = (ends - sizes[..., None] <= place) & (place < ends)  # [before…, group, place]
    groups = np.moveaxis(is_in, -2, 0)
    if siblings is contracting:
        return np.stack([_dot_within(node, lhs, rhs, group) for group in groups])
    result = np.zeros(node.array.shape, node.array.dtype.numpy)
    (axis,) = node.integers("rhs_group_dims")
    numbers = {
        name: tuple(d - (d > axis) for d in node.integers(name))
        for name in ("rhs_batch_dims", "rhs_contracting_dims")
    }
    alone = attrs.evolve(node, attributes={**node.attributes, **numbers})
    for position, group in enumerate(groups):
        product = dot(alone, (lhs, np.take(rhs, position, axis=axis)))
        result = result + np.where(_spread(group, result.ndim), product, np.zeros_like(product))
    return result


def _dot_within(node: Node, lhs: np.ndarray, rhs: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The dot over those contracted indices that are in a group."""
    sides, numbers = [], {}
    for side, operand in (("lhs", lhs), ("rhs", rhs)):
        batch, contracting = (node.integers(f"{side}_{k}_dims") for k in ("batch", "contracting"))
        shared = batch + contracting
        rest = (d for d in range(operand.ndim) if d not in shared)
        moved = operand.transpose(*shared, *rest)
        sides.append(np.where(_spread(group, moved.ndim), moved, np.zeros_like(moved)))
        numbers[f"{side}_batch_dims"] = tuple(range(len(batch)))
        numbers[f"{side}_contracting_dims"] = tuple(range(len(batch), len(shared)))
    return dot(attrs.evolve(node, attributes=numbers), sides)


def _spread(group: np.ndarray, rank: int) -> np.ndarray:
    """What is said of the leading dimensions, for an array of a rank."""
    return group.reshape(group.shape + (1,) * (rank - group.ndim))


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
