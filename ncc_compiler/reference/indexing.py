"""Ops that read or write at indices given by operands, and ops that only move elements.

Gather, scatter and dynamic slices compute an index for every element, as specified. The others copy
elements to places that follow from the shapes alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ncc_compiler.ir.graph import Node, Padding
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.contraction import combine_of
from ncc_compiler.reference.elementwise import Elementwise
from ncc_compiler.reference.step import OpStep, Value

Index: TypeAlias = tuple[int, ...]
Places: TypeAlias = tuple[Any, ...]
"""What numpy takes between brackets: numbers, slices, arrays of indices."""

_FAR = 2**62
"""Indices of u64 that int64 may not hold become this one, which is out of bounds too."""


def _shape(node: Node) -> Index:
    assert isinstance(node.type, ArrayType), node.name
    return node.type.shape


def _as_int64(indices: np.ndarray) -> np.ndarray:
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(_FAR))
    return indices.astype(np.int64)


def clamped_window(
    starts: Sequence[int], sizes: Sequence[int], shape: Sequence[int]
) -> tuple[slice, ...]:
    """The window of these sizes that starts as near to `starts` as the array allows."""
    firsts = [
        min(max(int(start), 0), limit - size)
        for start, size, limit in zip(starts, sizes, shape, strict=True)
    ]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _starts(operands: Sequence[np.ndarray]) -> list[int]:
    """Start indices given as scalars or as one vector."""
    return [int(start) for array in operands for start in array.reshape(-1).tolist()]


def _dynamic_slice(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    operand, *starts = operands
    return np.array(operand[clamped_window(_starts(starts), _shape(node), operand.shape)])


def _dynamic_update_slice(_: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    operand, update, *starts = operands
    result = operand.copy()
    result[clamped_window(_starts(starts), update.shape, operand.shape)] = update
    return result


def _gather(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """For every index of the result, the operand's index: clamped start plus offset.

    `places[d]` is the operand's index along dimension d, one for each element of the result.
    """
    operand, indices = operands[0], _as_int64(operands[1])
    offset_dims = node.integers("offset_dims")
    vector_dim = node.integer("index_vector_dim")
    sizes, batching = node.integers("slice_sizes"), node.integers("operand_batching_dims")
    if not operand.size or 0 in sizes:  # there is nothing to read, and XLA reads zeros
        return np.zeros(_shape(node), operand.dtype)
    grid = np.indices(_shape(node))
    batch = [grid[d] for d in range(len(grid)) if d not in offset_dims]
    places = [np.zeros(_shape(node), np.int64) for _ in sizes]
    for k, dimension in enumerate(node.integers("start_index_map")):
        # number k of the index vector of each batch position
        at = (*batch[:vector_dim], k, *batch[vector_dim:])
        start = indices[at if vector_dim < indices.ndim else tuple(batch)]
        places[dimension] = np.clip(start, 0, operand.shape[dimension] - sizes[dimension])
    pairs = zip(batching, node.integers("start_indices_batching_dims"), strict=True)
    for dimension, indices_dim in pairs:  # batch does not count the dimension of the vectors
        places[dimension] = batch[indices_dim - (indices_dim > vector_dim)]
    left_out = (*node.integers("collapsed_slice_dims"), *batching)
    kept = [d for d in range(operand.ndim) if d not in left_out]
    for dimension, offset_dim in zip(kept, offset_dims, strict=True):
        places[dimension] = places[dimension] + grid[offset_dim]
    return np.array(np.broadcast_to(operand[tuple(places)], _shape(node)))


def _pad(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Each result index is that of an operand element, or between them, or outside."""
    operand, value = operands
    padding = node.attributes["padding"]
    assert isinstance(padding, Padding), node.name
    result = np.full(_shape(node), value, operand.dtype)
    targets, sources = [], []
    for entry, size, count in zip(padding.dimensions, operand.shape, _shape(node), strict=True):
        low, _, interior = entry
        place = low + np.arange(size) * (interior + 1)
        inside = (place >= 0) & (place < count)
        targets.append(place[inside])
        sources.append(np.flatnonzero(inside))
    result[np.ix_(*targets)] = operand[np.ix_(*sources)]
    return result


def _reverse(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return np.array(np.flip(operands[0], node.integers("dimensions")))


def _get_dimension_size(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    (dimension,) = node.integers("dimensions")
    return np.asarray(operands[0].shape[dimension], np.int32)


INDEXING: Mapping[str, Elementwise] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "reverse": _reverse,
    "get-dimension-size": _get_dimension_size,
}
"""What each op makes of its operands on one rank."""


def scatter(step: OpStep) -> list[Value]:
    """Join windows of the updates to the operands, one after the other in the order of indices."""
    return [_scatter_on(step, position) for position in range(len(step.ranks))]


def _scatter_on(step: OpStep, position: int) -> Value:
    arrays = step.arrays(position)
    count = len(arrays) // 2
    results, updates = [array.copy() for array in arrays[:count]], arrays[count + 1 :]
    combine = combine_of(step, step.ranks[position])
    for window, place in _windows(step.node, arrays[count], results[0].shape, updates[0].shape):
        before = tuple(np.array(result[place]) for result in results)
        shape = before[0].shape
        values = tuple(np.array(update[window]).reshape(shape) for update in updates)
        for result, after in zip(results, combine(before, values), strict=True):
            result[place] = after
    return tuple(results) if isinstance(step.node.type, TupleType) else results[0]


def _windows(
    node: Node, indices: np.ndarray, shape: Index, updates: Index
) -> Iterator[tuple[Places, Places]]:
    """Where each window lies in the updates and in the operands; none that sticks out."""
    window_dims = node.integers("update_window_dims")
    # The indices with their vectors last; a vector_dim behind the last means vectors of one.
    vector_dim = node.integer("index_vector_dim")
    vectors = _as_int64(indices)
    if vector_dim == vectors.ndim:
        vectors = vectors[..., None]
    vectors = np.moveaxis(vectors, vector_dim, -1)
    batching = node.integers("input_batching_dims")
    left_out = (*node.integers("inserted_window_dims"), *batching)
    inner = iter(updates[d] for d in window_dims)
    sizes = [1 if d in left_out else next(inner) for d in range(len(shape))]
    for index in np.ndindex(vectors.shape[:-1]):
        starts = [0] * len(shape)
        for k, dimension in enumerate(node.integers("scatter_dims_to_operand_dims")):
            starts[dimension] = int(vectors[(*index, k)])
        pairs = zip(batching, node.integers("scatter_indices_batching_dims"), strict=True)
        for dimension, indices_dim in pairs:  # index does not count the dimension of the vectors
            starts[dimension] = index[indices_dim - (indices_dim > vector_dim)]
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        if min(starts, default=0) >= 0 and all(e <= n for e, n in zip(ends, shape, strict=True)):
            outer = iter(index)
            window = tuple(
                slice(None) if d in window_dims else next(outer) for d in range(len(updates))
            )
            yield window, tuple(slice(s, e) for s, e in zip(starts, ends, strict=True))


def _iota(node: Node, _: Sequence[np.ndarray]) -> np.ndarray:
    """Each element is its own index along one dimension."""
    result = node.array
    if 0 in result.shape:  # np.indices counts along every dimension, however long
        return np.zeros(result.shape, result.dtype.numpy)
    index: np.ndarray = np.indices(result.shape)[node.integer("iota_dimension")]
    return index.astype(result.dtype.numpy)


def _broadcast(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Dimension k of the operand becomes dimension dimensions[k] of the result."""
    result, dimensions = node.array, node.integers("dimensions")
    operand = operands[0].transpose(np.argsort(dimensions, kind="stable"))
    sizes = [1] * result.rank
    for dimension, size in zip(sorted(dimensions), operand.shape, strict=True):
        sizes[dimension] = size
    return np.broadcast_to(operand.reshape(sizes), result.shape).copy()


def _reshape(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return operands[0].reshape(node.array.shape)


def _transpose(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return operands[0].transpose(node.integers("dimensions")).copy()


def _slice(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return operands[0][tuple(slice(*bound) for bound in node.ranges())].copy()


def _concatenate(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(operands, axis=node.integers("dimensions")[0])


MOVEMENT: Mapping[str, Elementwise] = {
    "iota": _iota,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
}
"""What each op makes of its operands on one rank."""
