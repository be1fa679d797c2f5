"""Folds and selections under a window: `reduce-window` and `select-and-scatter`.

As in XLA, padding and holes under the window are passed over. An associative fold takes one
dimension after another, and folds of 1, 2, 4, … neighbours from each other: log(size) operations.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ncc_runtime.execution.values.kernels.conversions import narrowed, widened
from ncc_runtime.execution.values.kernels.elementwise import FUNCTIONS
from ncc_runtime.execution.values.kernels.numbers import canonical_nans, total_order
from ncc_runtime.execution.values.kernels.regions import evaluate, single_opcode
from ncc_runtime.execution.values.kernels.work import Arrays, KernelCall
from ncc_runtime.neff.program import Region
from ncc_runtime.neff.shared.windows import Window, WindowDimension, read_window


def spread(array: np.ndarray, window: Window, fill: np.generic, first: int) -> np.ndarray:
    """The array with padding around and holes between its elements, as the window says.

    The window's dimensions begin at axis `first`; negative padding drops elements.
    """
    if all(d.low == d.high == 0 and d.base_dilation == 1 for d in window.dimensions):
        return array
    shape, kept, targets = list(array.shape), [slice(None)] * first, [slice(None)] * first
    for axis, dimension in enumerate(window.dimensions, start=first):
        shape[axis], kept_part, target = _padded_layout(dimension, array.shape[axis])
        kept.append(kept_part)
        targets.append(target)
    result = np.full(shape, fill, array.dtype)
    result[tuple(targets)] = array[tuple(kept)]
    return result


def _padded_layout(dimension: WindowDimension, length: int) -> tuple[int, slice, slice]:
    """The length with padding and holes; which elements stay; where they lie."""
    low, dilation = dimension.low, dimension.base_dilation
    dilated = (length - 1) * dilation + 1 if length else 0
    extent = max(0, dilated + low + dimension.high)
    first = max(0, -(low // dilation))  # of the elements: negative padding drops those before
    end = min(length, (extent - 1 - low) // dilation + 1)
    if first >= end:
        return extent, slice(0, 0), slice(0, 0)
    start, last = first * dilation + low, (end - 1) * dilation + low
    return extent, slice(first, end), slice(start, last + 1, dilation)


def padded_shape(shape: Sequence[int], window: Window) -> tuple[int, ...]:
    """The lengths of the window's dimensions with padding and holes."""
    lengths = zip(window.dimensions, shape, strict=True)
    return tuple(_padded_layout(dimension, length)[0] for dimension, length in lengths)


def element_under(
    array: np.ndarray, window: Window, offset: Sequence[int], first: int
) -> np.ndarray:
    """The elements under one element of the window at all its positions; a view."""
    index = [slice(None)] * first
    for axis, (dimension, step) in enumerate(
        zip(window.dimensions, offset, strict=True), start=first
    ):
        room = array.shape[axis] - dimension.reach
        if room < 0 or not array.shape[axis]:
            index.append(slice(0, 0))
            continue
        start, stride = step * dimension.window_dilation, dimension.stride
        index.append(slice(start, start + room // stride * stride + 1, stride))
    return array[tuple(index)]


def reduce_window(call: KernelCall, operands: Arrays) -> Arrays:
    """A fold of what lies under the window, at each of its positions."""
    window = read_window(str(call.attributes["window"]))
    arrays, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    opcode = single_opcode(call.region())
    neutral = NEUTRAL[opcode](widened(arrays[0]).dtype) if opcode in NEUTRAL else None
    with np.errstate(all="ignore"):
        if neutral is None:
            return _fold_in_order(call.region(), arrays, initial, window)
        return [_fold_in_parts(arrays[0], initial[0], window, opcode, neutral)]


def _lowest(dtype: np.dtype) -> np.generic:
    if dtype.kind == "f":
        return dtype.type(-np.inf)
    return dtype.type(False) if dtype.kind == "b" else dtype.type(np.iinfo(dtype).min)


def _highest(dtype: np.dtype) -> np.generic:
    if dtype.kind == "f":
        return dtype.type(np.inf)
    return dtype.type(True) if dtype.kind == "b" else dtype.type(np.iinfo(dtype).max)


def _zero(dtype: np.dtype) -> np.generic | None:
    """-0: the sum of -0 and x is x, also where x is -0."""
    return None if dtype.kind == "c" else dtype.type(-0.0 if dtype.kind == "f" else 0)


def _one(dtype: np.dtype) -> np.generic | None:
    return None if dtype.kind == "c" else dtype.type(1)


def _all_ones(dtype: np.dtype) -> np.generic:
    return dtype.type(True) if dtype.kind == "b" else np.invert(dtype.type(0))


NEUTRAL: Mapping[str, Callable[[np.dtype], np.generic | None]] = {
    "add": _zero,
    "and": _all_ones,
    "maximum": _lowest,
    "minimum": _highest,
    "multiply": _one,
    "or": _zero,
    "xor": _zero,
}
"""Associative operations, whose folds may be regrouped, and their neutral elements.

Sums and products of floats are grouped too: pairs of halves have smaller errors than one by one.
"""


_PART_ELEMENTS = 1 << 17
"""Elements that are folded at once: temporaries stay in a core's cache."""

_ALONE = WindowDimension(size=1)


def _fold_in_parts(
    array: np.ndarray, initial: np.ndarray, window: Window, opcode: str, neutral: np.generic
) -> np.ndarray:
    """The fold by one operation, of some rows at a time where first dimensions are left alone."""
    rank = len(window.dimensions)
    alone = next((k for k, one in enumerate(window.dimensions) if one != _ALONE), rank)
    rows = array.reshape(math.prod(array.shape[: alone + 1]), *array.shape[alone + 1 :])
    start = np.repeat(initial, len(rows) // len(array))
    rest = Window(window.dimensions[alone:])
    step = max(1, _PART_ELEMENTS // max(1, math.prod(rows.shape[1:])))
    folded = [
        _fold_by_doubling(rows[k : k + step], start[k : k + step], rest, opcode, neutral)
        for k in range(0, max(1, len(rows)), step)
    ]
    result = folded[0] if len(folded) == 1 else np.concatenate(folded)
    return result.reshape(*array.shape[: alone + 1], *result.shape[1:])


def _fold_by_doubling(
    array: np.ndarray, initial: np.ndarray, window: Window, opcode: str, neutral: np.generic
) -> np.ndarray:
    """The fold by one operation, one dimension after another; narrow floats are rounded once."""
    combine, folded, start = FUNCTIONS[opcode], widened(array), widened(initial)
    is_float_extreme = opcode in _EXTREMES and folded.dtype.kind == "f"
    if is_float_extreme:
        combine, wide = _EXTREMES[opcode], folded.dtype
        folded, start = (_ordered(one, opcode) for one in (folded, start))
        limits = np.iinfo(folded.dtype)
        neutral = folded.dtype.type(limits.min if opcode == "maximum" else limits.max)
    for axis, dimension in enumerate(window.dimensions, start=1):
        folded = spread(folded, Window((dimension,)), neutral, axis)
        folded = _fold_along(folded, dimension, axis, combine)
    result = np.asarray(combine(start.reshape(-1, *([1] * (folded.ndim - 1))), folded))
    if is_float_extreme:
        result = total_order(result.view(wide)).view(wide)  # which is its own inverse
    return canonical_nans(narrowed(result, array.dtype))


_EXTREMES: Mapping[str, Callable[..., np.ndarray]] = {
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def _ordered(array: np.ndarray, opcode: str) -> np.ndarray:
    """Floats as whole numbers in their total order, where a NaN is chosen before all others."""
    is_nan = np.isnan(array)
    if is_nan.any():
        nan = array.dtype.type(np.nan)
        array = np.where(is_nan, nan if opcode == "maximum" else np.copysign(nan, -1), array)
    return total_order(array)


def _fold_along(
    array: np.ndarray, dimension: WindowDimension, axis: int, combine: Callable[..., np.ndarray]
) -> np.ndarray:
    """Folds of `size` neighbours along one axis, at all positions of the window.

    `block` has folds of 1, 2, 4, … neighbours; the binary digits of `size` say which to combine.
    """

    def along_axis(part: slice) -> tuple[slice, ...]:
        return (*[slice(None)] * axis, part)

    size, stride, dilation = dimension.size, dimension.stride, dimension.window_dilation
    room = array.shape[axis] - dimension.reach
    extent = stride * (room // stride) + 1 if room >= 0 else 0  # of all positions
    block, count, done = array, 1, 0  # elements of a fold of the block, and in the result
    result: np.ndarray | None = None
    while done < size:
        if size & count:
            start = done * dilation
            positions = slice(start, start + extent, stride) if extent else slice(0, 0)
            part = block[along_axis(positions)]
            result = part if result is None else combine(result, part)
            done += count
        if done < size:
            step = count * dilation
            head = block[along_axis(slice(0, max(0, block.shape[axis] - step)))]
            block, count = combine(head, block[along_axis(slice(step, None))]), 2 * count
    assert result is not None, "a window has an element"
    return result


def _fold_in_order(region: Region, arrays: Arrays, initial: Arrays, window: Window) -> Arrays:
    """The fold by a region, one element of the window after another, at all positions at once."""
    exists = _element_mask(arrays[0].shape[1:], window)
    padded = [spread(array, window, array.dtype.type(0), 1) for array in arrays]
    sizes = [dimension.size for dimension in window.dimensions]
    shape = element_under(padded[0], window, [0] * len(sizes), 1).shape
    folded = [
        np.broadcast_to(start.reshape(-1, *([1] * (len(shape) - 1))), shape) for start in initial
    ]
    for offset in np.ndindex(*sizes):
        values = [element_under(array, window, offset, 1) for array in padded]
        mask = element_under(exists, window, offset, 0)
        combined = evaluate(region, [*folded, *values])
        folded = [np.where(mask, new, old) for new, old in zip(combined, folded, strict=True)]
    return folded


def _element_mask(shape: tuple[int, ...], window: Window) -> np.ndarray:
    """False for padding and holes of the padded array, true for its elements."""
    return spread(np.ones(shape, np.bool_), window, np.False_, 0)


def select_and_scatter(call: KernelCall, operands: Arrays) -> Arrays:
    """Every window selects an element of the first operand, to which the second's is scattered."""
    operand, source, initial = operands
    window = read_window(str(call.attributes["window"]))
    with np.errstate(all="ignore"):
        selected = _selected(call, operand, window)
        return [_scattered(call, operand, source, initial, selected, window)]


def _selected(call: KernelCall, operand: np.ndarray, window: Window) -> np.ndarray:
    """Which element of the window is selected at each position; -1: there is none."""
    select = call.region("select_region")
    padded = spread(operand, window, operand.dtype.type(0), 1)
    exists = _element_mask(operand.shape[1:], window)
    best: np.ndarray | None = None
    selected = np.zeros(0, np.int64)
    for number, offset in enumerate(np.ndindex(*(d.size for d in window.dimensions))):
        values = element_under(padded, window, offset, 1)
        mask = element_under(exists, window, offset, 0)
        if best is None:
            best, selected = values, np.full(values.shape, -1, np.int64)
        (keeps,) = evaluate(select, [best, values])
        replaced = mask & ((selected < 0) | ~keeps)
        best, selected = np.where(replaced, values, best), np.where(replaced, number, selected)
    return selected


def _scattered(
    call: KernelCall,
    operand: np.ndarray,
    source: np.ndarray,
    initial: np.ndarray,
    selected: np.ndarray,
    window: Window,
) -> np.ndarray:
    """Sources combined in the order of positions.

    An element lies under larger offsets of the window at earlier positions: hence from the last
    offset to the first.
    """
    scatter = call.region("scatter_region")
    start = initial.reshape(-1, *([1] * (operand.ndim - 1)))
    result = np.broadcast_to(start, operand.shape).copy()
    padded = spread(result, window, operand.dtype.type(0), 1)
    offsets = list(np.ndindex(*(d.size for d in window.dimensions)))
    for number in reversed(range(len(offsets))):
        target = element_under(padded, window, offsets[number], 1)
        (combined,) = evaluate(scatter, [target, source])
        target[...] = np.where(selected == number, combined, target)
    # Without the padding again; elements that negative padding dropped keep the initial value.
    inside, kept = [slice(None)], [slice(None)]
    for axis, dimension in enumerate(window.dimensions, start=1):
        size = result.shape[axis]
        first = max(0, -dimension.low)
        end = max(first, min(size, size + dimension.high))
        inside.append(slice(first + dimension.low, end + dimension.low))
        kept.append(slice(first, end))
    result[tuple(kept)] = padded[tuple(inside)]
    return result
