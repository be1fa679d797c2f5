"""Folds and selections under a window: `reduce-window` and `select-and-scatter`.

As in XLA, what the window covers beside the array is passed over.

Windows that slide over arrays whose first axes they leave alone.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ncc_runtime.execution.values.kernels.elementwise import FUNCTIONS
from ncc_runtime.execution.values.kernels.numbers import canonical_nans, widened
from ncc_runtime.execution.values.kernels.regions import evaluate, single_opcode
from ncc_runtime.execution.values.kernels.work import Arrays, KernelCall
from ncc_runtime.neff.program import Region
from ncc_runtime.neff.shared.windows import Window, WindowDimension, read_window


def spread(array: np.ndarray, window: Window, fill: np.generic, first: int) -> np.ndarray:
    """The array with padding around and holes between its elements, as the window says.

    The window's dimensions begin at axis `first`; padding below zero cuts elements off.
    """
    plain = all(one.low == one.high == 0 and one.base_dilation == 1 for one in window.dimensions)
    if plain:
        return array
    shape, kept, places = list(array.shape), [slice(None)] * first, [slice(None)] * first
    for axis, one in enumerate(window.dimensions, start=first):
        shape[axis], taken, place = _laid_out(one, array.shape[axis])
        kept.append(taken)
        places.append(place)
    result = np.full(shape, fill, array.dtype)
    result[tuple(places)] = array[tuple(kept)]
    return result


def _laid_out(one: WindowDimension, length: int) -> tuple[int, slice, slice]:
    """The length with padding and holes; which elements stay; where they lie."""
    dilated = (length - 1) * one.base_dilation + 1 if length else 0
    extent = max(0, dilated + one.low + one.high)
    first = max(0, -(one.low // one.base_dilation))
    end = min(length, (extent - 1 - one.low) // one.base_dilation + 1)
    if first >= end:
        return extent, slice(0, 0), slice(0, 0)
    start = first * one.base_dilation + one.low
    last = (end - 1) * one.base_dilation + one.low
    return extent, slice(first, end), slice(start, last + 1, one.base_dilation)


def element_under(
    array: np.ndarray, window: Window, offset: Sequence[int], first: int
) -> np.ndarray:
    """What lies under one element of the window at all its positions; a view."""
    cut = [slice(None)] * first
    for axis, (one, step) in enumerate(zip(window.dimensions, offset, strict=True), start=first):
        room = array.shape[axis] - one.reach
        if room < 0 or not array.shape[axis]:
            cut.append(slice(0, 0))
            continue
        start = step * one.window_dilation
        cut.append(slice(start, start + room // one.stride * one.stride + 1, one.stride))
    return array[tuple(cut)]


def reduce_window(call: KernelCall, operands: Arrays) -> Arrays:
    """A fold of what lies under the window, at each of its positions."""
    window = read_window(str(call.attributes["window"]))
    arrays, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    opcode = single_opcode(call.region())
    neutral = NEUTRAL[opcode](widened(arrays[0]).dtype) if opcode in NEUTRAL else None
    with np.errstate(all="ignore"):
        if neutral is None:
            return _in_order(call.region(), arrays, initial, window)
        return [_by_halves(arrays[0], initial[0], window, opcode, neutral)]


def _lowest(dtype: np.dtype) -> np.generic:
    if dtype.kind == "f":
        return dtype.type(-np.inf)
    return dtype.type(False) if dtype.kind == "b" else dtype.type(np.iinfo(dtype).min)


def _highest(dtype: np.dtype) -> np.generic:
    if dtype.kind == "f":
        return dtype.type(np.inf)
    return dtype.type(True) if dtype.kind == "b" else dtype.type(np.iinfo(dtype).max)


def _zero(dtype: np.dtype) -> np.generic | None:
    """-0 does not even change the sign of a zero."""
    return None if dtype.kind == "c" else dtype.type(-0.0 if dtype.kind == "f" else 0)


def _one(dtype: np.dtype) -> np.generic | None:
    return None if dtype.kind == "c" else dtype.type(1)


def _ones(dtype: np.dtype) -> np.generic:
    return dtype.type(True) if dtype.kind == "b" else np.invert(dtype.type(0))


NEUTRAL: Mapping[str, Callable[[np.dtype], np.generic | None]] = {
    "add": _zero,
    "and": _ones,
    "maximum": _lowest,
    "minimum": _highest,
    "multiply": _one,
    "or": _zero,
    "xor": _zero,
}
"""Associative operations, whose folds may be regrouped, and their neutral elements.

Sums and products of floats are grouped too: pairs of halves, which errs less than one by one.
"""


def _by_halves(
    array: np.ndarray, initial: np.ndarray, window: Window, opcode: str, neutral: np.generic
) -> np.ndarray:
    """The fold by one operation, one dimension after another; narrow floats are rounded once."""
    join, folded = FUNCTIONS[opcode], widened(array)
    for axis, one in enumerate(window.dimensions, start=1):
        folded = spread(folded, Window((one,)), neutral, axis)
        folded = _along(folded, one, axis, join)
    start = widened(initial).reshape(-1, *([1] * (folded.ndim - 1)))
    return canonical_nans(np.asarray(join(start, folded)).astype(array.dtype, copy=False))


def _along(
    array: np.ndarray, one: WindowDimension, axis: int, join: Callable[..., np.ndarray]
) -> np.ndarray:
    """Folds of `size` neighbours from folds of 1, 2, 4, … of them."""
    window = Window((one,))
    block, width, done = array, 1, 0
    result: np.ndarray | None = None
    while done < one.size:
        if one.size & width:
            piece = _pieces(block, array.shape[axis], window, done, axis)
            result = piece if result is None else join(result, piece)
            done += width
        if done < one.size:
            step = width * one.window_dilation
            head, tail = [slice(None)] * array.ndim, [slice(None)] * array.ndim
            head[axis], tail[axis] = slice(0, max(0, block.shape[axis] - step)), slice(step, None)
            block, width = join(block[tuple(head)], block[tuple(tail)]), 2 * width
    assert result is not None, "a window has an element"
    return result


def _pieces(block: np.ndarray, length: int, window: Window, done: int, axis: int) -> np.ndarray:
    """The folds that begin at one element of the window, at each of its positions."""
    (one,) = window.dimensions
    count = one.stride * ((length - one.reach) // one.stride) + 1 if length >= one.reach else 0
    start = done * one.window_dilation
    cut = [slice(None)] * block.ndim
    cut[axis] = slice(start, start + count, one.stride) if count else slice(0, 0)
    return block[tuple(cut)]


def _in_order(region: Region, arrays: Arrays, initial: Arrays, window: Window) -> Arrays:
    """The fold by a region, one element of the window after another, at all positions at once."""
    there = _covered(arrays[0].shape[1:], window)
    padded = [spread(array, window, array.dtype.type(0), 1) for array in arrays]
    sizes = [one.size for one in window.dimensions]
    shape = element_under(padded[0], window, [0] * len(sizes), 1).shape
    folded = [
        np.broadcast_to(start.reshape(-1, *([1] * (len(shape) - 1))), shape) for start in initial
    ]
    for offset in np.ndindex(*sizes):
        values = [element_under(array, window, offset, 1) for array in padded]
        mask = element_under(there, window, offset, 0)
        joined = evaluate(region, [*folded, *values])
        folded = [np.where(mask, new, old) for new, old in zip(joined, folded, strict=True)]
    return folded


def _covered(shape: tuple[int, ...], window: Window) -> np.ndarray:
    """Where the array has elements, padding and holes aside."""
    return spread(np.ones(shape, np.bool_), window, np.False_, 0)


def select_and_scatter(call: KernelCall, operands: Arrays) -> Arrays:
    """Every window's choice among the first operand's elements receives the second's."""
    operand, source, initial = operands
    window = read_window(str(call.attributes["window"]))
    with np.errstate(all="ignore"):
        chosen = _chosen(call, operand, window)
        return [_scattered(call, [operand, source, initial], chosen, window)]


def _chosen(call: KernelCall, operand: np.ndarray, window: Window) -> np.ndarray:
    """Which element of the window is selected at each position; -1: there is none."""
    select = call.region("select_region")
    padded = spread(operand, window, operand.dtype.type(0), 1)
    there = _covered(operand.shape[1:], window)
    best: np.ndarray | None = None
    chosen = np.zeros(0, np.int64)
    for number, offset in enumerate(np.ndindex(*(one.size for one in window.dimensions))):
        values = element_under(padded, window, offset, 1)
        mask = element_under(there, window, offset, 0)
        if best is None:
            best, chosen = values, np.full(values.shape, -1, np.int64)
        (keeps,) = evaluate(select, [best, values])
        replaced = mask & ((chosen < 0) | ~keeps)
        best, chosen = np.where(replaced, values, best), np.where(replaced, number, chosen)
    return chosen


def _scattered(
    call: KernelCall, operands: Arrays, chosen: np.ndarray, window: Window
) -> np.ndarray:
    """Sources joined in their order: at an element, later offsets are earlier positions."""
    operand, source, initial = operands
    scatter = call.region("scatter_region")
    start = initial.reshape(-1, *([1] * (operand.ndim - 1)))
    result = np.broadcast_to(start, operand.shape).copy()
    canvas = spread(result, window, operand.dtype.type(0), 1)
    offsets = list(np.ndindex(*(one.size for one in window.dimensions)))
    for number in reversed(range(len(offsets))):
        target = element_under(canvas, window, offsets[number], 1)
        (joined,) = evaluate(scatter, [target, source])
        target[...] = np.where(chosen == number, joined, target)
    return _cut_back(canvas, result, window)


def _cut_back(canvas: np.ndarray, result: np.ndarray, window: Window) -> np.ndarray:
    """The elements of the canvas put back to where they came from."""
    inside, outside = [slice(None)], [slice(None)]
    for axis, one in enumerate(window.dimensions, start=1):
        size = result.shape[axis]
        first, end = max(0, -one.low), min(size, size + one.high)
        inside.append(slice(first + one.low, max(first, end) + one.low))
        outside.append(slice(first, max(first, end)))
    result[tuple(outside)] = canvas[tuple(inside)]
    return result
