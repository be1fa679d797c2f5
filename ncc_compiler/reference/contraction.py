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
from ncc_compiler.reference.numbers import dtype_of, narrowed, working
from ncc_compiler.reference.step import OpStep, Value, leaves
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.windows import ConvolutionLabels, Window, WindowDimension


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
        results = tuple(np.empty(shape, dtype) for dtype in _result_dtypes(region))
        for index in np.ndindex(shape):
            scalars = tuple(np.asarray(array[index]) for array in arguments)
            for result, scalar in zip(results, once(scalars), strict=True):
                result[index] = scalar
        return results

    return on_whole_arrays if _is_elementwise(region, step.module) else element_by_element


def _result_dtypes(region: Computation) -> list[np.dtype]:
    kind = region.nodes[region.root].type
    kinds = kind.elements if isinstance(kind, TupleType) else (kind,)
    return [one.dtype.numpy for one in kinds if isinstance(one, ArrayType)]


def combine_of(step: OpStep, rank: int) -> Combine:
    """The region of a step as a way to join accumulators and values."""
    apply = region_on_arrays(step, rank)
    return lambda accumulators, values: apply((*accumulators, *values))


def _is_elementwise(region: Computation, module: Module) -> bool:
    def allows(op: str, callee: object) -> bool:
        if op == "call" and isinstance(callee, Callee):
            return _is_elementwise(module.computations[callee.name], module)
        return op in _TRANSPARENT or op in ELEMENTWISE

    return all(allows(node.op, node.attributes.get("to_apply")) for node in region.nodes)


def map_(step: OpStep) -> list[Value]:
    """The region applied to the elements that stand in one place."""
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


def _under(dimension: WindowDimension, length: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """For each position of the window: which element lies under this one of it; whether any."""
    place = (
        np.arange(dimension.positions(length)) * dimension.stride
        + offset * dimension.window_dilation
        - dimension.low
    )
    index = place // dimension.base_dilation
    is_there = (place % dimension.base_dilation == 0) & (index >= 0) & (index < length)
    return np.where(is_there, index, 0), is_there


def _taken(
    arrays: Sequence[np.ndarray], window: Window, offset: Sequence[int]
) -> tuple[Arrays, np.ndarray]:
    """What lies under one element of the window at all its positions, and where anything does."""
    shape = arrays[0].shape
    if 0 in shape:
        empty = window.positions(shape)
        return tuple(np.zeros(empty, array.dtype) for array in arrays), np.zeros(empty, bool)
    places = [
        _under(dimension, length, step)
        for dimension, length, step in zip(window.dimensions, shape, offset, strict=True)
    ]
    indices = np.ix_(*(index for index, _ in places))
    there = np.ones((), bool)
    for _, is_there in places:
        there = there[..., None] & is_there
    return tuple(np.asarray(array[indices]) for array in arrays), there


def convolution(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Floats are summed in float64 and rounded once; integers wrap in the result's dtype."""
    assert isinstance(node.type, ArrayType), node.name
    labels, window = node.attributes["dim_labels"], _window(node)
    assert isinstance(labels, ConvolutionLabels), node.name
    source, kernel = (summands(operand, node.type.dtype) for operand in operands)
    source = source.transpose(labels.input_dimensions)  # batch, features, spatial
    kernel = kernel.transpose(labels.kernel_dimensions)  # input features, output features, spatial
    flipped = tuple(
        slice(None, None, -1 if dimension.is_reversed else 1) for dimension in window.dimensions
    )
    parts = [
        _one_group(*pair, window)
        for pair in _groups(node, source, kernel[(slice(None), slice(None), *flipped)])
    ]
    total = np.concatenate(parts, axis=1)
    order = np.argsort(labels.result_dimensions, kind="stable")
    return narrowed(np.asarray(total.transpose(order)), node.type.dtype)


def _groups(
    node: Node, source: np.ndarray, kernel: np.ndarray
) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    """What is convolved with what; the results follow one another in the output features."""
    features, batches = node.integer("feature_group_count"), node.integer("batch_group_count")
    sources = np.split(source, features, axis=1) if features > 1 else np.split(source, batches)
    return list(zip(sources, np.split(kernel, len(sources), axis=1), strict=True))


def _one_group(source: np.ndarray, kernel: np.ndarray, window: Window) -> np.ndarray:
    positions = window.positions(source.shape[2:])
    shape = (source.shape[0], kernel.shape[1], *positions)
    total = np.zeros(shape, source.dtype)
    every = np.arange(int(np.prod(source.shape[2:]))).reshape(source.shape[2:])
    flat = source.reshape(*source.shape[:2], every.size)
    for offset in np.ndindex(kernel.shape[2:]):
        (index,), there = _taken([every], window, offset)
        rows = flat[:, :, index] * there
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
    wide = _sum_of_floats(step, arrays)
    if wide:
        arrays, initial = (tuple(map(_doubled, xs)) for xs in (arrays, initial))
    shape = window.positions(arrays[0].shape)
    accumulators = tuple(np.broadcast_to(value, shape) for value in initial)
    for offset in np.ndindex(*(dimension.size for dimension in window.dimensions)):
        values, there = _taken(arrays, window, offset)
        joined = (wide(accumulators[0], values[0]),) if wide else combine(accumulators, values)
        accumulators = tuple(
            np.where(there, new, old) for new, old in zip(joined, accumulators, strict=True)
        )
    dtypes = [dtype_of(operand) for operand in operands]
    results = tuple(narrowed(x, dtype) for x, dtype in zip(accumulators, dtypes, strict=False))
    return results if isinstance(step.node.type, TupleType) else np.array(results[0])


def _doubled(array: np.ndarray) -> np.ndarray:
    wide = working(array)
    return wide.astype(np.complex128 if wide.dtype.kind == "c" else np.float64)


def _sum_of_floats(step: OpStep, arrays: Sequence[np.ndarray]) -> np.ufunc | None:
    """The operation, where the region is a sum or a product of its two floats and no more."""
    region = step.callee()
    root = region.nodes[region.root]
    is_inexact = dtype_of(arrays[0]).is_float or dtype_of(arrays[0]).is_complex
    if not is_inexact or root.op not in _SUMS or set(root.operands) != set(region.parameters()):
        return None
    return np.add if root.op == "add" else np.multiply


def select_and_scatter(step: OpStep) -> list[Value]:
    """Every window selects one element of the first operand, to which the second's is scattered."""
    return [_select_and_scatter_on(step, position) for position in range(len(step.ranks))]


def _select_and_scatter_on(step: OpStep, position: int) -> np.ndarray:
    operand, source, initial = step.arrays(position)
    scatter = region_on_arrays(step, step.ranks[position], "scatter")
    chosen, any_there = _selected(step, position)
    result = np.full(operand.size, initial, operand.dtype)
    for index in np.argwhere(any_there):
        target, value = chosen[tuple(index)], source[tuple(index)]
        (result[target],) = scatter((np.asarray(result[target]), np.asarray(value)))
    return result.reshape(operand.shape)


def _selected(step: OpStep, position: int) -> tuple[np.ndarray, np.ndarray]:
    """For every window the flat index of the element it selects, and whether there is one."""
    operand, window = step.arrays(position)[0], _window(step.node)
    select = region_on_arrays(step, step.ranks[position], "select")
    every = np.arange(operand.size).reshape(operand.shape)
    shape = window.positions(operand.shape)
    best, chosen = np.zeros(shape, operand.dtype), np.zeros(shape, np.int64)
    any_there = np.zeros(shape, bool)
    for offset in np.ndindex(*(dimension.size for dimension in window.dimensions)):
        (values, index), there = _taken([operand, every], window, offset)
        (keeps,) = select((best, values))
        replaced = there & ~(any_there & keeps)
        best, chosen = np.where(replaced, values, best), np.where(replaced, index, chosen)
        any_there = any_there | there
    return chosen, any_there
