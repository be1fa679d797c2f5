"""Sums of products: `dot` and `convolution`, both as one matrix product per rank, and `ragged-dot`.

np.matmul is given a stack with the ranks first, so each rank's product is a BLAS call of its own
and its bits do not depend on how many ranks there are. Narrow floats are summed in float32 and
rounded once.
"""

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ncc_runtime.execution.values.kernels.conversions import narrowed, widened
from ncc_runtime.execution.values.kernels.numbers import wide_type
from ncc_runtime.execution.values.kernels.windows import element_under, spread
from ncc_runtime.execution.values.kernels.work import Arrays, KernelCall, ThreadMemory
from ncc_runtime.neff.program import AttributeValue
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.windows import ConvolutionLabels, Window, read_labels, read_window

PATCH_ELEMENTS = 1 << 19
"""Elements of one rank that a convolution may lay out at once; or as many as its result has."""

_EXACT_BITS = {np.float32: 24, np.float64: 53}
"""Bits of a whole number that a float holds, whatever they are."""


_WIDENED = ThreadMemory(), ThreadMemory()
"""For the operands of a product of one rank, in the type that it is summed in."""

_SUMS = ThreadMemory()
"""For the product of one rank before it is rounded."""


def dot(call: KernelCall, operands: Arrays, out: np.ndarray | None = None) -> Arrays:
    """[ranks, batch…, free dimensions of the left operand…, of the right one…], perhaps in `out`.

    `out` is [ranks, *shape] with each rank's elements row by row. Operands of other types than they
    are summed in are converted rank by rank.
    """
    depth = math.prod(_sizes(operands[0], call.integers("lhs_contracting")))
    dtype, kind = _summing_dtype(call.results[0].dtype, operands, depth), call.results[0].dtype
    result = out
    if result is None or result.dtype != kind.numpy:
        result = np.empty((len(call.ranks), *call.results[0].shape), kind.numpy)
    if all(array.dtype == dtype for array in operands):
        left, right = matrices_of(call, operands)
        shape = (*left.shape[:-1], right.shape[-1])
        if result.dtype == dtype:
            _product(left, right, result.reshape(shape, copy=False))
        else:
            result[...] = _rounded(_product(left, right), kind).reshape(result.shape)
        return [result]
    given: list[np.ndarray] = [*operands]
    for rank in range(len(call.ranks)):
        for side, array in enumerate(operands):
            if not rank or array.strides[0]:  # else it is one for all ranks
                given[side] = _summand(array[rank : rank + 1], dtype, _WIDENED[side])
        left, right = matrices_of(call, given)
        shape = (*left.shape[:-1], right.shape[-1])
        place = result[rank : rank + 1]
        if result.dtype == dtype:
            _product(left, right, place.reshape(shape, copy=False))
        else:
            sums = _product(left, right, _SUMS.array(shape, dtype))
            place[...] = _rounded(sums, kind).reshape(place.shape)
    return [result]


def _summand(array: np.ndarray, dtype: np.dtype, memory: ThreadMemory) -> np.ndarray:
    """The array in another type, laid out as it is, as a product reads it; perhaps in `memory`."""
    if array.dtype == dtype:
        return array
    out = memory.array(array.shape, dtype) if array.flags.c_contiguous else None
    if wide_type(array.dtype) == dtype:
        return widened(array, out=out)
    if out is None:
        return array.astype(dtype)
    np.copyto(out, array, casting="unsafe")
    return out


def matrices_of(call: KernelCall, operands: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Both operands of a dot as [ranks, *batches, rows, columns], views where that is possible."""
    left, right = operands
    return (
        _matrices(left, call.integers("lhs_batch"), call.integers("lhs_contracting"), is_left=True),
        _matrices(
            right, call.integers("rhs_batch"), call.integers("rhs_contracting"), is_left=False
        ),
    )


def _matrices(
    array: np.ndarray, batch: tuple[int, ...], summed: tuple[int, ...], *, is_left: bool
) -> np.ndarray:
    """An operand as [ranks, *batches, rows, columns], where the summed index is the inner one.

    It is a view where BLAS can read that; one array for all ranks is laid out once.
    """
    if len(array) > 1 and not array.strides[0]:
        one = _matrices(array[:1], batch, summed, is_left=is_left)
        return np.broadcast_to(one, (len(array), *one.shape[1:]))
    axes, shape = _matrix_axes(array.shape, batch, summed, is_left)
    found = array.transpose(axes).reshape(shape)
    is_readable = array.itemsize in found.strides[-2:] or 1 in found.shape[-2:]
    return found if is_readable else np.ascontiguousarray(found)


@functools.lru_cache(maxsize=4096)
def _matrix_axes(
    shape: tuple[int, ...], batch: tuple[int, ...], summed: tuple[int, ...], is_left: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of [ranks, …] in the order of a stack of matrices, and the shape of that."""
    ranks, *sizes = shape
    free = _other_axes(len(sizes), batch + summed)
    first, second = (free, summed) if is_left else (summed, free)
    rows, columns = (math.prod(sizes[axis] for axis in axes) for axes in (first, second))
    axes = (0, *(axis + 1 for axis in (*batch, *first, *second)))
    return axes, (ranks, *(sizes[axis] for axis in batch), rows, columns)


def is_laid_out_alike(
    attributes: Mapping[str, AttributeValue],
    shapes: Sequence[tuple[int, ...]],
    blocks: Sequence[tuple[int, ...]],
) -> bool:
    """Whether BLAS is given the matrices of blocks as it is given those of the whole operands.

    It may be told to read a matrix transposed, and then sum in another order.
    """

    def transposed(shape: tuple[int, ...], side: str) -> bool:
        array = np.empty((1, *shape), np.int8)  # of which nothing is touched
        batch, summed = attributes[f"{side}_batch"], attributes[f"{side}_contracting"]
        assert isinstance(batch, tuple), batch
        assert isinstance(summed, tuple), summed
        matrices = _matrices(array, batch, summed, is_left=side == "lhs")
        return np.may_share_memory(matrices, array) and matrices.strides[-1] != 1

    return all(
        transposed(shape, side) == transposed(block, side)
        for side, shape, block in zip(("lhs", "rhs"), shapes, blocks, strict=True)
    )


def ragged_dot(call: KernelCall, operands: Arrays) -> Arrays:
    """One matrix product for each group of each rank, of the rows (or summed indices) in it.

    The left operand as [ranks, batches, parts, rows, rest, other]: `rows` is the ragged dimension,
    `parts` and `rest` are the dimensions of its kind (free or summed) before and behind it.
    """
    left, right, sizes = operands
    left_batch, right_batch = call.integers("lhs_batch"), call.integers("rhs_batch")
    left_sum, right_sum = call.integers("lhs_contracting"), call.integers("rhs_contracting")
    left_free = _other_axes(left.ndim - 1, left_batch + left_sum)
    right_free = _other_axes(right.ndim - 1, right_batch + right_sum + call.integers("rhs_group"))
    ragged = call.integer("lhs_ragged")
    is_summed = ragged in left_sum
    siblings = left_sum if is_summed else left_free
    position = siblings.index(ragged)
    outer = _sizes(left, left_batch + siblings[:position])
    depth, columns = math.prod(_sizes(left, left_sum)), math.prod(_sizes(right, right_free))
    ranks, groups = len(call.ranks), sizes.shape[-1]
    batches, parts = math.prod(_sizes(left, left_batch)), math.prod(outer[len(left_batch) :])
    rows, rest = left.shape[ragged + 1], math.prod(_sizes(left, siblings[position + 1 :]))

    wide_left, wide_right = _summands(call, [left, right], depth)
    axes = (*left_batch, *siblings, *(left_free if is_summed else left_sum))
    wide_left = wide_left.transpose(0, *(axis + 1 for axis in axes))
    wide_left = wide_left.reshape(ranks, batches, parts, rows, rest, -1)
    if is_summed:
        axes = (*right_batch, *right_sum, *right_free)
        right_shape: tuple[int, ...] = (ranks, batches, parts, rows, rest, columns)
        result = np.zeros((ranks, groups, batches, wide_left.shape[-1], columns), wide_left.dtype)
    else:
        axes = (*call.integers("rhs_group"), *right_batch, *right_sum, *right_free)
        right_shape = (ranks, groups, batches, depth, columns)
        result = np.zeros((ranks, batches, parts, rows, rest, columns), wide_left.dtype)
    wide_right = wide_right.transpose(0, *(axis + 1 for axis in axes)).reshape(right_shape)

    if sizes.ndim == 2:
        sizes = sizes.reshape(ranks, *[1] * len(outer), groups)
    sizes = np.broadcast_to(sizes, (ranks, *outer, groups)).reshape(ranks, batches, parts, groups)
    ends = np.cumsum(sizes, axis=-1, dtype=np.int64)
    starts = np.clip(ends - sizes, 0, rows)
    for rank, batch, part, group in np.ndindex(ranks, batches, parts, groups):
        at = (rank, batch, part)
        in_group = slice(starts[(*at, group)], max(0, ends[(*at, group)]))
        left_rows = wide_left[at][in_group]
        left_rows = left_rows.reshape(left_rows.shape[0] * rest, wide_left.shape[-1])
        if is_summed:
            right_rows = wide_right[at][in_group].reshape(len(left_rows), columns)
            result[rank, group, batch] += _product(left_rows.T, right_rows)
        else:
            product = _product(left_rows, wide_right[rank, group, batch])
            result[at][in_group] += product.reshape(-1, rest, columns)
    return [_rounded(result.reshape(ranks, *call.results[0].shape), call.results[0].dtype)]


def _other_axes(rank: int, taken: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis in range(rank) if axis not in taken)


def _sizes(array: np.ndarray, axes: tuple[int, ...]) -> list[int]:
    return [array.shape[axis + 1] for axis in axes]


def _summands(call: KernelCall, operands: Arrays, count: int) -> Arrays:
    """The operands in the dtype that `count` of their products are summed in."""
    dtype = _summing_dtype(call.results[0].dtype, operands, count)
    return [_converted(array, dtype) for array in operands]


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return widened(array) if wide_type(array.dtype) == dtype else array.astype(dtype, copy=False)


def _summing_dtype(result: DType, operands: Arrays, count: int) -> np.dtype:
    """Floats take BLAS; so do integers whose every sum a float holds exactly."""
    names = {array.dtype.name for array in operands} | {result.numpy.name}
    if result.is_complex:
        return np.dtype(np.complex128 if "complex128" in names else np.complex64)
    if result.is_float:
        return np.dtype(np.float64 if "float64" in names else np.float32)
    if result is DType.PRED:
        return np.dtype(np.float32)
    # of the largest magnitudes, less what -2^k has beyond 2^k - 1
    bits = sum(8 * array.dtype.itemsize - (array.dtype.kind == "i") for array in operands)
    bits += count.bit_length()
    for dtype, exact in _EXACT_BITS.items():
        if bits <= exact:
            return np.dtype(dtype)
    return result.numpy if result.numpy.isbuiltin == 1 else np.dtype(np.int64)


def _product(left: np.ndarray, right: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.matmul(left, right, out=out)


def _rounded(sums: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.PRED:
        return sums != 0
    with np.errstate(all="ignore"):
        if dtype.is_integer and sums.dtype.kind == "f":  # exact; int64 wraps to narrower types
            sums = sums.astype(np.int64)
        if wide_type(dtype.numpy) == sums.dtype:
            return narrowed(sums, dtype.numpy)
        return sums.astype(dtype.numpy, copy=False)


_PATCHES, _OTHER_SUMS = ThreadMemory(), ThreadMemory()
"""For what one rank's convolution lays out at once, and the products of some taps."""


def convolution(call: KernelCall, operands: Arrays, out: np.ndarray | None = None) -> Arrays:
    """im2col: the elements under each element of the kernel side by side, times the kernel.

    Rank by rank: what is laid out is larger than the operands. Perhaps in `out`, [ranks, *shape].
    """
    window = read_window(str(call.attributes["window"]))
    labels = read_labels(str(call.attributes["dim_labels"]))
    input_features, _, *spatial = labels.kernel_dimensions
    depth = math.prod(_sizes(operands[1], (input_features, *spatial)))
    dtype, kind = _summing_dtype(call.results[0].dtype, operands, depth), call.results[0].dtype
    groups = max(call.integer("feature_groups"), call.integer("batch_groups"))
    result = out
    if result is None or result.dtype != kind.numpy:
        result = np.empty((len(call.ranks), *call.results[0].shape), kind.numpy)
    # the result as [ranks, groups, batch, spatial…, features]
    places = result.transpose(0, *(axis + 1 for axis in labels.result_dimensions))
    batch, features, *positions = places.shape[1:]
    places = places.reshape(-1, batch, groups, features // groups, *positions, copy=False)
    places = places.transpose(0, 2, 1, *range(4, places.ndim), 3)
    for rank in range(len(call.ranks)):
        source, kernel = (
            _summand(array[rank : rank + 1], dtype, memory)
            for array, memory in zip(operands, _WIDENED, strict=True)
        )
        source = _grouped_source(call, source, labels, groups)
        source = np.ascontiguousarray(spread(source, window, dtype.type(0), first=3))
        taps = _grouped_kernel(kernel, labels, window, groups)
        place = places[rank : rank + 1]
        if place.flags.c_contiguous and place.dtype == dtype:
            _sum_over_taps(source, taps, window, place)
        else:
            sums = _sum_over_taps(source, taps, window, _SUMS.array(place.shape, dtype))
            place[...] = _rounded(sums, kind)
    return [result]


def _grouped_source(
    call: KernelCall, source: np.ndarray, labels: ConvolutionLabels, groups: int
) -> np.ndarray:
    """The input as [ranks, groups, batch, spatial…, features]."""
    batch, features, *spatial = (axis + 1 for axis in labels.input_dimensions)
    moved = source.transpose(0, batch, *spatial, features)
    if call.integer("batch_groups") > 1:
        return moved.reshape(len(moved), groups, moved.shape[1] // groups, *moved.shape[2:])
    split = moved.reshape(*moved.shape[:-1], groups, moved.shape[-1] // groups)
    return np.moveaxis(split, -2, 1)


def _grouped_kernel(
    kernel: np.ndarray, labels: ConvolutionLabels, window: Window, groups: int
) -> np.ndarray:
    """The kernel as [ranks, groups, taps, input features, output features]."""
    inputs, outputs, *spatial = (axis + 1 for axis in labels.kernel_dimensions)
    moved = kernel.transpose(0, *spatial, inputs, outputs)
    moved = np.flip(moved, tuple(1 + d for d, x in enumerate(window.dimensions) if x.is_reversed))
    taps = math.prod(moved.shape[1:-2])
    split = moved.reshape(len(moved), taps, moved.shape[-2], groups, moved.shape[-1] // groups)
    return np.moveaxis(split, 3, 1)


def _sum_over_taps(
    source: np.ndarray, taps: np.ndarray, window: Window, total: np.ndarray
) -> np.ndarray:
    """Products for as many taps at once as fit, written to `total`."""
    offsets = list(np.ndindex(*(dimension.size for dimension in window.dimensions)))
    *shape, depth = element_under(source, window, offsets[0], first=3).shape
    rows = math.prod(shape[2:])
    sums = total.reshape(*shape[:2], rows, -1, copy=False)
    room = max(PATCH_ELEMENTS, sums.size)
    step = max(1, room // max(1, math.prod(shape[1:]) * depth))
    for start in range(0, len(offsets), step):
        chosen = offsets[start : start + step]
        patches = _patches(source, window, chosen).reshape(*shape[:2], rows, len(chosen) * depth)
        kernel = taps[:, :, start : start + step].reshape(*shape[:2], -1, sums.shape[-1])
        if not start:
            _product(patches, kernel, sums)
        else:
            part = _product(patches, kernel, _OTHER_SUMS.array(sums.shape, sums.dtype))
            with np.errstate(all="ignore"):
                np.add(sums, part, out=sums)
    return total


def _patches(source: np.ndarray, window: Window, offsets: Sequence[tuple[int, ...]]) -> np.ndarray:
    """[…, positions…, taps, features]: what lies under some elements of the kernel."""
    first = element_under(source, window, offsets[0], first=3)
    if len(offsets) == 1 and first.flags.c_contiguous:
        return first
    *shape, features = first.shape
    patches = _PATCHES.array((*shape, len(offsets), features), source.dtype)
    # taps that follow each other in the kernel's last dimension lie side by side in the source, too
    is_dense = bool(window.dimensions) and window.dimensions[-1].window_dilation == 1
    tap = 0
    while tap < len(offsets):
        count = 1
        while is_dense and tap + count < len(offsets) and offsets[tap + count][-1]:
            count += 1
        part = element_under(source, window, offsets[tap], first=3)
        if part.size:
            runs = (*shape, count * features)
            part = np.lib.stride_tricks.as_strided(part, runs, part.strides)
            patches[..., tap : tap + count, :].reshape(runs, copy=False)[...] = part
        tap += count
    return patches
