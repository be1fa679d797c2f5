"""Ops that slide a window: convolution, reduce-window, select-and-scatter.

Nothing is padded or dilated here. For each position of the window and each of its elements it is
computed which element of the array lies there, if any.
"""

from collections.abc import Sequence

import numpy as np

from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.contraction import summands
from ncc_compiler.reference.conversion import dtype_of, narrowed, working
from ncc_compiler.reference.folding import Arrays, combine_of, region_on_arrays
from ncc_compiler.reference.step import Step, Value
from ncc_runtime.neff.windows import ConvolutionLabels, Window, WindowDimension


def _window(node: Node) -> Window:
    window = node.attributes["window"]
    assert isinstance(window, Window), node.name
    return window


def _under(one: WindowDimension, length: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """For each position of the window: which element lies under this one of it; whether any."""
    place = np.arange(one.positions(length)) * one.stride + offset * one.window_dilation - one.low
    index = place // one.base_dilation
    is_there = (place % one.base_dilation == 0) & (index >= 0) & (index < length)
    return np.where(is_there, index, 0), is_there


def _taken(
    arrays: Sequence[np.ndarray], window: Window, offset: Sequence[int]
) -> tuple[Arrays, np.ndarray]:
    """What lies under one element of the window at all its positions, and where anything does."""
    shape = arrays[0].shape
    if 0 in shape:
        empty = window.positions(shape)
        return tuple(np.zeros(empty, array.dtype) for array in arrays), np.zeros(empty, bool)
    found = [
        _under(one, length, step)
        for one, length, step in zip(window.dimensions, shape, offset, strict=True)
    ]
    indices = np.ix_(*(index for index, _ in found))
    there = np.ones((), bool)
    for _, is_there in found:
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
    flipped = tuple(slice(None, None, -1 if one.is_reversed else 1) for one in window.dimensions)
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


def reduce_window(step: Step) -> list[Value]:
    """Elements under the window are folded in its order, beginning with the initial value.

    As in XLA, padding and holes are passed over. Sums and products of floats are computed in
    float64 and rounded once.
    """
    return [_reduce_window_on(step, position) for position in range(len(step.ranks))]


def _reduce_window_on(step: Step, position: int) -> Value:
    operands, window = step.arrays(position), _window(step.node)
    arrays, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    combine = combine_of(step, step.ranks[position])
    wide = _sum_of_floats(step, arrays)
    if wide:
        arrays, initial = (tuple(map(_doubled, xs)) for xs in (arrays, initial))
    shape = window.positions(arrays[0].shape)
    accumulators = tuple(np.broadcast_to(value, shape) for value in initial)
    for offset in np.ndindex(*(one.size for one in window.dimensions)):
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


def _sum_of_floats(step: Step, arrays: Sequence[np.ndarray]) -> np.ufunc | None:
    """The operation, where the region is a sum or a product of its two floats and no more."""
    region = step.callee()
    root = region.nodes[region.root]
    is_inexact = dtype_of(arrays[0]).is_float or dtype_of(arrays[0]).is_complex
    if not is_inexact or root.op not in _SUMS or set(root.operands) != set(region.parameters()):
        return None
    return np.add if root.op == "add" else np.multiply


def select_and_scatter(step: Step) -> list[Value]:
    """Every window selects one element of the first operand, to which the second's is scattered."""
    return [_select_and_scatter_on(step, position) for position in range(len(step.ranks))]


def _select_and_scatter_on(step: Step, position: int) -> np.ndarray:
    operand, source, initial = step.arrays(position)
    scatter = region_on_arrays(step, step.ranks[position], "scatter")
    chosen, any_there = _selected(step, position)
    result = np.full(operand.size, initial, operand.dtype)
    for index in np.argwhere(any_there):
        target, value = chosen[tuple(index)], source[tuple(index)]
        (result[target],) = scatter((np.asarray(result[target]), np.asarray(value)))
    return result.reshape(operand.shape)


def _selected(step: Step, position: int) -> tuple[np.ndarray, np.ndarray]:
    """For every window the flat index of the element it selects, and whether there is one."""
    operand, window = step.arrays(position)[0], _window(step.node)
    select = region_on_arrays(step, step.ranks[position], "select")
    every = np.arange(operand.size).reshape(operand.shape)
    shape = window.positions(operand.shape)
    best, chosen = np.zeros(shape, operand.dtype), np.zeros(shape, np.int64)
    any_there = np.zeros(shape, bool)
    for offset in np.ndindex(*(one.size for one in window.dimensions)):
        (values, index), there = _taken([operand, every], window, offset)
        (keeps,) = select((best, values))
        replaced = there & ~(any_there & keeps)
        best, chosen = np.where(replaced, values, best), np.where(replaced, index, chosen)
        any_there = any_there | there
    return chosen, any_there
