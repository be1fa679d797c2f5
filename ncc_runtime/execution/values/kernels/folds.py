"""Folds of dimensions of arrays with a region.

Neighbours are combined in pairs, in order, and an odd last one is kept, until one is left; then the
initial values come from the left. Three kinds of folds have loops of their own, with the same bits:

- float32 and float64 sums are numpy's pairwise sums over a contiguous axis; where the dimensions
  folded are not the last ones, whole rows are added in the order of those sums. Products go one by
  one. So no array is transposed.
- What has one result in every order (integers, which wrap, and the largest and the smallest) is
  numpy's own reduction.
- Sums and products of narrow floats stay in float32, and are rounded in every round.

Rows of float32 and of bfloat16 have machine code for sums and extremes, with the same bits.

All others are computed by the region, on parts of the array that stay in the host's cache.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ncc_runtime.execution.values.kernels import loops
from ncc_runtime.execution.values.kernels.compiled import loop
from ncc_runtime.execution.values.kernels.conversions import narrowed, round_to, widened
from ncc_runtime.execution.values.kernels.elementwise import FUNCTIONS
from ncc_runtime.execution.values.kernels.numbers import HOST_FLOATS, is_narrow_float, wide_type
from ncc_runtime.execution.values.kernels.regions import evaluate, single_opcode
from ncc_runtime.neff.program import Region

PART_ELEMENTS = 1 << 17
"""Of what is folded at once where that takes temporaries: they stay in a core's cache."""

SUMS = {"add": np.add, "multiply": np.multiply}
"""Folds of float32 and float64 that numpy has a loop for, which goes pairwise."""

_EXTREMES = {"maximum": np.maximum, "minimum": np.minimum}
_OF_INTEGERS = {
    "add": np.add,
    "and": np.bitwise_and,
    "multiply": np.multiply,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    **_EXTREMES,
}
_OF_BOOLEANS = {
    "add": np.logical_or,
    "and": np.logical_and,
    "maximum": np.logical_or,
    "minimum": np.logical_and,
    "multiply": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}

_Fold = Callable[[np.ndarray], np.ndarray]
"""Of an array [rows, folded, columns] the folds, [rows, columns]. NaNs may be any."""


def fold(
    region: Region, arrays: list[np.ndarray], initial: list[np.ndarray], dimensions: tuple[int, ...]
) -> list[np.ndarray]:
    """Fold dimensions (counted without the leading ranks) of arrays of one shape."""
    folded = [dimension + 1 for dimension in sorted(dimensions)]
    kept = [axis for axis in range(arrays[0].ndim) if axis not in folded]
    shape = tuple(arrays[0].shape[axis] for axis in kept)
    size = math.prod(arrays[0].shape[axis] for axis in folded)
    trailing = [1] * (len(shape) - 1)
    start = [np.broadcast_to(value.reshape(-1, *trailing), shape) for value in initial]
    if not size:
        return start
    # as [rows, folded, columns]; what is between dimensions that are folded goes to the rows
    first = folded[0] if folded else arrays[0].ndim
    is_run = folded == list(range(first, first + len(folded)))
    before = math.prod(arrays[0].shape[:first] if is_run else shape)
    layout = before, size, math.prod(shape) // max(1, before)
    order = range(arrays[0].ndim) if is_run else (*kept, *folded)
    given = [np.ascontiguousarray(array.transpose(order)).reshape(layout) for array in arrays]
    join = _fold_by(single_opcode(region), given[0].dtype)
    with np.errstate(all="ignore"):
        results = _by_region(region, given) if join is None else [join(given[0])]
        return evaluate(region, [*start, *(result.reshape(shape) for result in results)])


def fold_of_rows(
    opcode: str, dtype: np.dtype
) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    """What joins rows [.., elements] by one operation behind initial values [..].

    None where only the region does. NaNs may be any.
    """
    join = _fold_by(opcode, dtype)
    if join is None:
        return None

    def joined(start: np.ndarray, rows: np.ndarray) -> np.ndarray:
        found = join(rows.reshape(-1, rows.shape[-1], 1)).reshape(rows.shape[:-1])
        return narrowed(FUNCTIONS[opcode](widened(start), widened(found)), dtype)

    return joined


def has_loop(opcode: str, dtype: np.dtype) -> bool:
    """Whether it folds with one operation, not by the region."""
    return _fold_by(opcode, dtype) is not None


def _fold_by(opcode: str, dtype: np.dtype) -> _Fold | None:
    """What folds with one operation; None if only the region does."""
    wide = wide_type(dtype)
    if dtype in HOST_FLOATS and opcode in SUMS:
        return _added if opcode == "add" else lambda array: np.multiply.reduce(array, axis=1)
    if wide.kind in "iu" and opcode in _OF_INTEGERS:
        ufunc = _OF_INTEGERS[opcode]
        return _in_wide_type(lambda array: ufunc.reduce(array, axis=1, dtype=wide), dtype)
    if wide.kind == "b" and opcode in _OF_BOOLEANS:
        of_booleans = _OF_BOOLEANS[opcode]
        return lambda array: of_booleans.reduce(array, axis=1)
    join: _Fold | None = None
    if wide.kind == "f" and opcode in _EXTREMES:
        join = _in_wide_type(lambda array: _extreme(opcode, array), dtype)
    elif is_narrow_float(dtype) and opcode in SUMS:
        join = partial(_narrow_pairs, SUMS[opcode])
    if join is not None and dtype.name == "bfloat16" and opcode in _LOOPS_OF_BFLOAT16_ROWS:
        return partial(_of_bfloat16_rows, opcode, join)
    return join


def _in_wide_type(join: _Fold, dtype: np.dtype) -> _Fold:
    """The fold of narrow numbers by one of wide ones, in parts."""
    if wide_type(dtype) == dtype:
        return join

    def joined(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [narrowed(join(widened(arrays[0])), dtype)]

    return lambda array: _in_parts(joined, [array])[0]


_LOOPS_OF_BFLOAT16_ROWS = {
    "add": "sum_rows_of_bfloat16",
    "maximum": "largest_of_bfloat16_rows",
    "minimum": "smallest_of_bfloat16_rows",
}


def _of_bfloat16_rows(opcode: str, otherwise: _Fold, array: np.ndarray) -> np.ndarray:
    """By machine code where whole rows of bfloat16 are folded, else by the other fold.

    Both give the same numbers. Longer rows are summed in parts, for a sum has room for a whole one.
    """
    rows, size, columns = array.shape
    run = None
    if columns == 1 and size <= PART_ELEMENTS and array.flags.c_contiguous:
        run = loop(_LOOPS_OF_BFLOAT16_ROWS[opcode], array.size)
    if run is None:
        return otherwise(array)
    room = [np.empty(size + 1, np.float32)] if opcode == "add" else []
    of_rows = np.empty((rows, 1), array.dtype)
    run(array, of_rows, rows, size, *room)
    return of_rows


_LOOPS_OF_ROWS = {"maximum": "largest_of_rows", "minimum": "smallest_of_rows"}


def _extreme(opcode: str, array: np.ndarray) -> np.ndarray:
    """The largest or smallest, which is one whatever the order; -0 is less than 0."""
    rows, size, columns = array.shape
    if columns == 1 and array.dtype == np.float32 and array.flags.c_contiguous:
        run = loop(_LOOPS_OF_ROWS[opcode], array.size)
        if run is not None:
            of_rows = np.empty((rows, 1), np.float32)
            run(array, of_rows, rows, size)
            return of_rows
    found = np.asarray(_EXTREMES[opcode].reduce(array, axis=1))
    is_zero = found == 0
    if is_zero.any():  # numpy takes either one
        zero = found.dtype.type(0)
        wanted, other = (-zero, zero) if opcode == "minimum" else (zero, -zero)
        rows, columns = np.nonzero(is_zero)
        step = max(1, PART_ELEMENTS // array.shape[1])
        for start in range(0, len(rows), step):
            at = rows[start : start + step], columns[start : start + step]
            some = array[at[0], :, at[1]]
            is_wanted = (some == 0) & (np.signbit(some) == (opcode == "minimum"))
            found[at] = np.where(is_wanted.any(axis=-1), wanted, other)
    return found


# ---- float32 and float64 sums


def _added(array: np.ndarray) -> np.ndarray:
    """Sums with the bits of numpy's sum over a contiguous axis."""
    rows, size, columns = array.shape
    if columns == 1:
        run = loop("sum_rows", array.size) if array.dtype == np.float32 else None
        if run is None or not array.flags.c_contiguous:
            return np.add.reduce(array[..., 0], axis=1)[:, None]
        of_rows = np.empty((rows, 1), np.float32)
        run(array, of_rows, rows, size, np.empty(loops.STACK_WORDS, np.int64))
        return of_rows
    found = np.empty((rows, columns), array.dtype)
    # of what stays in the cache while it is summed
    width = max(1, PART_ELEMENTS // loops.ACCUMULATORS)
    height = max(1, width // columns)
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            part = np.moveaxis(array[row : row + height, :, column : column + width], 1, 0)
            # the sum begins with zero: -0 alone gives 0
            found[row : row + height, column : column + width] = 0 + _pairwise_sum(part)
    return found


def _pairwise_sum(array: np.ndarray) -> np.ndarray:
    """The sum over the first axis, in the order of numpy's pairwise sum."""
    size = len(array)
    if size > loops.UNROLLED:
        half = size // 2 - size // 2 % loops.ACCUMULATORS
        return _pairwise_sum(array[:half]) + _pairwise_sum(array[half:])
    if size < loops.ACCUMULATORS:
        total = np.full(array.shape[1:], -0.0, array.dtype)
        done = 0
    else:
        sums = array[: loops.ACCUMULATORS].copy()
        done = size - size % loops.ACCUMULATORS
        for start in range(loops.ACCUMULATORS, done, loops.ACCUMULATORS):
            np.add(sums, array[start : start + loops.ACCUMULATORS], out=sums)
        pairs = sums[0::2] + sums[1::2]
        total = (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])
    for row in array[done:]:
        np.add(total, row, out=total)
    return total


# ---- neighbours in pairs


def _narrow_pairs(ufunc: np.ufunc, array: np.ndarray) -> np.ndarray:
    """Sums or products of narrow floats: pairs of neighbours, rounded in every round."""

    def joined(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        numbers = np.ascontiguousarray(widened(arrays[0]))
        while (size := numbers.shape[1]) > 1:
            pairs = ufunc(numbers[:, 0 : size - 1 : 2], numbers[:, 1:size:2])
            round_to(pairs, array.dtype)
            if size % 2:
                pairs = np.concatenate((pairs, numbers[:, -1:]), axis=1)
            numbers = pairs
        return [narrowed(numbers[:, 0], array.dtype)]

    return _in_parts(joined, [array])[0]


def _by_region(region: Region, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Pairs of neighbours combined by the region."""

    def joined(given: Sequence[np.ndarray]) -> list[np.ndarray]:
        parts = list(given)
        while (size := parts[0].shape[1]) > 1:
            even = size - size % 2
            # a region reads them more than once
            ends = [np.ascontiguousarray(part[:, k:even:2]) for k in (0, 1) for part in parts]
            pairs = evaluate(region, ends)
            if size % 2:
                pairs = [
                    np.concatenate((pair, part[:, even:]), axis=1)
                    for pair, part in zip(pairs, parts, strict=True)
                ]
            parts = pairs
        return [part[:, 0] for part in parts]

    return _in_parts(joined, arrays)


def _in_parts(
    join: Callable[[Sequence[np.ndarray]], list[np.ndarray]], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """A fold of arrays [rows, folded, columns] part by part.

    Parts along the folded axis are as long as a power of two, so that pairs are the same.
    """
    rows, size, columns = arrays[0].shape
    if rows * size * columns <= PART_ELEMENTS or size == 1:
        return join(arrays)
    if rows > 1:
        step = max(1, PART_ELEMENTS // (size * columns))
        parts = [[a[k : k + step] for a in arrays] for k in range(0, rows, step)]
        axis = 0
    elif columns > 1:
        step = max(1, PART_ELEMENTS // size)
        parts = [[a[..., k : k + step] for a in arrays] for k in range(0, columns, step)]
        axis = 1
    else:
        step = 1 << (PART_ELEMENTS.bit_length() - 1)
        parts = [[a[:, k : k + step] for a in arrays] for k in range(0, size, step)]
        folded = [_in_parts(join, part) for part in parts]
        stacked = [np.stack(results, axis=1) for results in zip(*folded, strict=True)]
        return _in_parts(join, stacked)
    folded = [_in_parts(join, part) for part in parts]
    return [np.concatenate(results, axis=axis) for results in zip(*folded, strict=True)]
