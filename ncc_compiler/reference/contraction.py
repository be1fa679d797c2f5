"""Ops that fold dimensions away: dot products, `reduce`, and sliding windows.

`dot` is result[batch…, lhs free…, rhs free…] = sum over the contracted indices. Floats are summed
in float64 and rounded once, so the oracle has no order of summation of its own; integers are summed
in the result's dtype and wrap. `reduce` folds with its region in the order of the elements.

Windows (convolution, reduce-window, select-and-scatter) pad and dilate nothing. For each position
of the window and each of its elements it is computed which element of the array lies there, if any.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_compiler.ir.graph import Callee, Computation, Module, Node
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.elementwise import ELEMENTWISE
from ncc_compiler.reference.numbers import dtype_of, in_double, narrowed, working
from ncc_compiler.reference.step import OpStep, Value, leaves
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.windows import ConvolutionLabels, Window, WindowDimension


def dot(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """The two operands contracted, any dimensions, batch dimensions first in the result."""
    dtype = node.array.dtype
    lhs, rhs = (_summands(operand, dtype) for operand in operands)
    left_names, right_names, result_names = _index_names(node, lhs.ndim, rhs.ndim)
    total = np.einsum(lhs, left_names, rhs, right_names, result_names, optimize=False)
    if dtype is DType.PRED:
        return np.asarray(total != 0)
    return narrowed(np.asarray(total), dtype)


def ragged_dot(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """A dot for each group; an index of the ragged dimension takes part in that of its group only.

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
    index = np.arange(lhs.shape[ragged])
    is_in = (ends - sizes[..., None] <= index) & (index < ends)  # [before…, group, index]
    masks = np.moveaxis(is_in, -2, 0)
    if siblings is contracting:
        return np.stack([_masked_dot(node, lhs, rhs, mask) for mask in masks])
    result = np.zeros(node.array.shape, node.array.dtype.numpy)
    (axis,) = node.integers("rhs_group_dims")
    # the dot of one group, whose rhs has no dimension of groups
    dimensions = {
        name: tuple(d - (d > axis) for d in node.integers(name))
        for name in ("rhs_batch_dims", "rhs_contracting_dims")
    }
    group_dot = attrs.evolve(node, attributes={**node.attributes, **dimensions})
    for group, mask in enumerate(masks):
        product = dot(group_dot, (lhs, np.take(rhs, group, axis=axis)))
        result = result + np.where(
            _with_trailing_ones(mask, result.ndim), product, np.zeros_like(product)
        )
    return result


def _masked_dot(node: Node, lhs: np.ndarray, rhs: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The dot over those contracted indices that are in a group; `mask` is [batch…, contracted…].

    Both operands are transposed to [batch…, contracted…, free…], so that the mask leads.
    """
    sides, dimensions = [], {}
    for side, operand in (("lhs", lhs), ("rhs", rhs)):
        batch, contracting = (node.integers(f"{side}_{k}_dims") for k in ("batch", "contracting"))
        shared = batch + contracting
        rest = (d for d in range(operand.ndim) if d not in shared)
        moved = operand.transpose(*shared, *rest)
        sides.append(np.where(_with_trailing_ones(mask, moved.ndim), moved, np.zeros_like(moved)))
        dimensions[f"{side}_batch_dims"] = tuple(range(len(batch)))
        dimensions[f"{side}_contracting_dims"] = tuple(range(len(batch), len(shared)))
    return dot(attrs.evolve(node, attributes=dimensions), sides)


def _with_trailing_ones(mask: np.ndarray, rank: int) -> np.ndarray:
    """A mask of the leading dimensions, so that it broadcasts over an array of this rank."""
    return mask.reshape(mask.shape + (1,) * (rank - mask.ndim))


def _summands(operand: np.ndarray, result: DType) -> np.ndarray:
    """An operand in the type that its products are summed in."""
    if result.is_complex:
        return operand.astype(np.complex128)
    if result.is_integer and result.bits >= 8:
        return working(operand).astype(result.numpy)
    return working(operand).astype(np.float64 if result.is_float else np.int64)


def _index_names(
    node: Node, lhs_rank: int, rhs_rank: int
) -> tuple[list[int], list[int], list[int]]:
    """Numbers that name indices for einsum: an index that both operands have is named once."""
    left = list(range(lhs_rank))
    right = list(range(lhs_rank, lhs_rank + rhs_rank))
    lhs_batch = node.integers("lhs_batch_dims")
    lhs_contracted = node.integers("lhs_contracting_dims")
    rhs_shared = node.integers("rhs_batch_dims") + node.integers("rhs_contracting_dims")
    lhs_shared = lhs_batch + lhs_contracted
    for lhs_dim, rhs_dim in zip(lhs_shared, rhs_shared, strict=True):
        right[rhs_dim] = left[lhs_dim]
    free = [name for name in left if name not in lhs_shared]
    free += [name for k, name in enumerate(right) if k not in rhs_shared]
    return left, right, [*lhs_batch, *free]


Arrays: TypeAlias = tuple[np.ndarray, ...]
Combine: TypeAlias = Callable[[Arrays, Arrays], Arrays]
"""Accumulators and values, equally many arrays of one shape, to new accumulators."""

_TRANSPARENT = {"parameter", "constant", "tuple", "get-tuple-element"}


def region_on_arrays(step: OpStep, rank: int, key: str = "to_apply") -> Callable[[Arrays], Arrays]:
    """The region of a step, applied to arrays of one shape element by element.

    Where all its ops are elementwise, one evaluation on whole arrays gives all elements at once.
    """
    region = step.callee(key)

    def once(arguments: Arrays) -> Arrays:
        (result,) = step.evaluate(region, (rank,), [arguments])
        return leaves(result)

    def on_whole_arrays(arguments: Arrays) -> Arrays:
        shape = arguments[-1].shape
        return tuple(np.broadcast_to(array, shape) for array in once(arguments))

    def element_by_element(arguments: Arrays) -> Arrays:
        shape = arguments[-1].shape
        kind = region.nodes[region.root].type
        kinds = kind.elements if isinstance(kind, TupleType) else (kind,)
        results = tuple(
            np.empty(shape, kind.dtype.numpy) for kind in kinds if isinstance(kind, ArrayType)
        )
        for index in np.ndindex(shape):
            scalars = tuple(np.asarray(array[index]) for array in arguments)
            for result, scalar in zip(results, once(scalars), strict=True):
                result[index] = scalar
        return results

    return on_whole_arrays if _is_elementwise(region, step.module) else element_by_element


def combine_of(step: OpStep, rank: int) -> Combine:
    """The region of a step as a function of accumulators and values."""
    apply = region_on_arrays(step, rank)
    return lambda accumulators, values: apply((*accumulators, *values))


def _is_elementwise(region: Computation, module: Module) -> bool:
    def allows(op: str, callee: object) -> bool:
        if op == "call" and isinstance(callee, Callee):
            return _is_elementwise(module.computations[callee.name], module)
        return op in _TRANSPARENT or op in ELEMENTWISE

    return all(allows(node.op, node.attributes.get("to_apply")) for node in region.nodes)


def map_(step: OpStep) -> list[Value]:
    """The region applied to the elements of all operands at each index."""
    return [
        np.array(region_on_arrays(step, rank)(step.arrays(position))[0])
        for position, rank in enumerate(step.ranks)
    ]


def reduce(step: OpStep) -> list[Value]:
    """Fold the listed dimensions of several arrays at once, from their initial values."""
    return [_reduce_on(step, position) for position in range(len(step.ranks))]


def _reduce_on(step: OpStep, position: int) -> Value:
    operands = step.arrays(position)
    arrays, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    folded = sorted(step.node.integers("dimensions"))
    kept = [k for k in range(arrays[0].ndim) if k not in folded]
    shape = tuple(arrays[0].shape[k] for k in kept)
    count = math.prod(arrays[0].shape[k] for k in folded)
    rows = [array.transpose(kept + folded).reshape(*shape, count) for array in arrays]
    combine = combine_of(step, step.ranks[position])
    accumulators = tuple(np.broadcast_to(value, shape) for value in initial)
    for k in range(count):
        accumulators = combine(accumulators, tuple(row[..., k] for row in rows))
    results = tuple(np.array(array) for array in accumulators)
    return results if isinstance(step.node.type, TupleType) else results[0]


def _window(node: Node) -> Window:
    window = node.attributes["window"]
    assert isinstance(window, Window), node.name
    return window


def _indices_under(
    dimension: WindowDimension, length: int, offset: int
) -> tuple[np.ndarray, np.ndarray]:
    """Along one dimension, the array's index under window element `offset`, at each position.

    And whether there is one: not in the padding, nor in the holes of a dilated array.
    """
    dilated = (
        np.arange(dimension.positions(length)) * dimension.stride
        + offset * dimension.window_dilation
        - dimension.low
    )
    index = dilated // dimension.base_dilation
    exists = (dilated % dimension.base_dilation == 0) & (index >= 0) & (index < length)
    return np.where(exists, index, 0), exists


def _elements_under(
    arrays: Sequence[np.ndarray], window: Window, offset: Sequence[int]
) -> tuple[Arrays, np.ndarray]:
    """The elements under window element `offset` at all positions, and where there are any."""
    shape = arrays[0].shape
    if 0 in shape:
        positions = window.positions(shape)
        empty = tuple(np.zeros(positions, array.dtype) for array in arrays)
        return empty, np.zeros(positions, bool)
    by_dimension = [
        _indices_under(dimension, length, step)
        for dimension, length, step in zip(window.dimensions, shape, offset, strict=True)
    ]
    indices = np.ix_(*(index for index, _ in by_dimension))
    exists = np.ones((), bool)
    for _, along_dimension in by_dimension:  # an outer product
        exists = exists[..., None] & along_dimension
    return tuple(np.asarray(array[indices]) for array in arrays), exists


def convolution(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Floats are summed in float64 and rounded once; integers wrap in the result's dtype."""
    assert isinstance(node.type, ArrayType), node.name
    labels, window = node.attributes["dim_labels"], _window(node)
    assert isinstance(labels, ConvolutionLabels), node.name
    source, kernel = (_summands(operand, node.type.dtype) for operand in operands)
    source = source.transpose(labels.input_dimensions)  # batch, features, spatial
    kernel = kernel.transpose(labels.kernel_dimensions)  # input features, output features, spatial
    reversed_axes = tuple(2 + d for d, entry in enumerate(window.dimensions) if entry.is_reversed)
    kernel = np.flip(kernel, reversed_axes)
    # Groups split the features or the batch; their results follow one another as output features.
    features, batches = node.integer("feature_group_count"), node.integer("batch_group_count")
    sources = np.split(source, features, axis=1) if features > 1 else np.split(source, batches)
    kernels = np.split(kernel, len(sources), axis=1)
    parts = [_convolved(*group, window) for group in zip(sources, kernels, strict=True)]
    total = np.concatenate(parts, axis=1)
    order = np.argsort(labels.result_dimensions, kind="stable")
    return narrowed(np.asarray(total.transpose(order)), node.type.dtype)


def _convolved(source: np.ndarray, kernel: np.ndarray, window: Window) -> np.ndarray:
    """One group; [batch, output features, spatial…]."""
    positions = window.positions(source.shape[2:])
    shape = (source.shape[0], kernel.shape[1], *positions)
    total = np.zeros(shape, source.dtype)
    flat_index = np.arange(int(np.prod(source.shape[2:]))).reshape(source.shape[2:])
    flat = source.reshape(*source.shape[:2], flat_index.size)
    for offset in np.ndindex(kernel.shape[2:]):
        (index,), exists = _elements_under([flat_index], window, offset)
        rows = flat[:, :, index] * exists
        total += np.einsum("bf...,fo->bo...", rows, kernel[(slice(None), slice(None), *offset)])
    return total


_SUMS = {"add", "multiply"}


def reduce_window(step: OpStep) -> list[Value]:
    """Elements under the window are folded in its order, beginning with the initial value.

    As in XLA, padding and holes are passed over. Sums and products of floats are computed in
    float64 and rounded once.
    """
    return [_reduce_window_on(step, position) for position in range(len(step.ranks))]


def _reduce_window_on(step: OpStep, position: int) -> Value:
    operands, window = step.arrays(position), _window(step.node)
    arrays, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    combine = combine_of(step, step.ranks[position])
    float_op = _float_sum_or_product(step, arrays)
    if float_op:
        arrays, initial = (tuple(map(in_double, xs)) for xs in (arrays, initial))
    shape = window.positions(arrays[0].shape)
    accumulators = tuple(np.broadcast_to(value, shape) for value in initial)
    for offset in np.ndindex(*(dimension.size for dimension in window.dimensions)):
        values, exists = _elements_under(arrays, window, offset)
        if float_op:
            combined: Arrays = (float_op(accumulators[0], values[0]),)
        else:
            combined = combine(accumulators, values)
        accumulators = tuple(
            np.where(exists, new, old) for new, old in zip(combined, accumulators, strict=True)
        )
    dtypes = [dtype_of(operand) for operand in operands]
    results = tuple(narrowed(x, dtype) for x, dtype in zip(accumulators, dtypes, strict=False))
    return results if isinstance(step.node.type, TupleType) else np.array(results[0])


def _float_sum_or_product(step: OpStep, arrays: Sequence[np.ndarray]) -> np.ufunc | None:
    """The operation, where the region is a sum or a product of its two floats and no more."""
    region = step.callee()
    root = region.nodes[region.root]
    is_inexact = dtype_of(arrays[0]).is_float or dtype_of(arrays[0]).is_complex
    if not is_inexact or root.op not in _SUMS or set(root.operands) != set(region.parameters()):
        return None
    return np.add if root.op == "add" else np.multiply


def select_and_scatter(step: OpStep) -> list[Value]:
    """Every window selects an element of the first operand, to which the second's is scattered."""
    return [_select_and_scatter_on(step, position) for position in range(len(step.ranks))]


def _select_and_scatter_on(step: OpStep, position: int) -> np.ndarray:
    operand, source, initial = step.arrays(position)
    scatter = region_on_arrays(step, step.ranks[position], "scatter")
    selected, is_any = _selected(step, position)
    result = np.full(operand.size, initial, operand.dtype)
    for index in np.argwhere(is_any):
        target, value = selected[tuple(index)], source[tuple(index)]
        (result[target],) = scatter((np.asarray(result[target]), np.asarray(value)))
    return result.reshape(operand.shape)


def _selected(step: OpStep, position: int) -> tuple[np.ndarray, np.ndarray]:
    """For every window the flat index of the element it selects, and whether there is one."""
    operand, window = step.arrays(position)[0], _window(step.node)
    select = region_on_arrays(step, step.ranks[position], "select")
    flat_index = np.arange(operand.size).reshape(operand.shape)
    shape = window.positions(operand.shape)
    best, selected = np.zeros(shape, operand.dtype), np.zeros(shape, np.int64)
    is_any = np.zeros(shape, bool)
    for offset in np.ndindex(*(dimension.size for dimension in window.dimensions)):
        (values, index), exists = _elements_under([operand, flat_index], window, offset)
        (keeps,) = select((best, values))
        replaced = exists & ~(is_any & keeps)
        best, selected = np.where(replaced, values, best), np.where(replaced, index, selected)
        is_any = is_any | exists
    return selected, is_any
