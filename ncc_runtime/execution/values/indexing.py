"""Kernels that read or write windows whose place is data, and that pad or reverse.

A place is one index array per dimension, [ranks, *batch]; the windows at all of them come in one
indexing of a strided view that has every window. Only dimensions that a window cuts take part.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ncc_runtime.execution.values.work import Arrays, Kernel, Work

_FAR = 2**62
"""Where indices of u64 that int64 cannot hold are put: out of every bound."""


def as_int64(indices: np.ndarray) -> np.ndarray:
    """Indices of any integer type, those beyond int64 still out of every bound."""
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(_FAR))
    return indices.astype(np.int64, copy=False)


def index_vectors(indices: np.ndarray, vector_dim: int) -> np.ndarray:
    """Indices [ranks, …] as int64 with the numbers of each index vector last."""
    if vector_dim == indices.ndim - 1:  # the ranks come in front
        return as_int64(indices)[..., None]
    return as_int64(np.moveaxis(indices, vector_dim + 1, -1))


def windows_at(
    array: np.ndarray, starts: Sequence[np.ndarray], sizes: Sequence[int], batch: tuple[int, ...]
) -> np.ndarray:
    """[*batch, *sizes]: windows of the array at `starts`, which are clamped to fit.

    The first dimension of the batch is the ranks; there is at least one element in a window.
    """
    cut, full = _cut_and_full(array, sizes)
    view = _windows(array, cut, full, sizes, writeable=False)
    found = view[_where(array, starts, cut, sizes, batch)]
    order = np.argsort([*full, *cut], kind="stable")
    return found.transpose(*range(len(batch)), *(len(batch) + int(axis) for axis in order))


def _write_window(array: np.ndarray, starts: Sequence[np.ndarray], update: np.ndarray) -> None:
    """Overwrite one window of every rank, clamped to fit."""
    sizes = update.shape[1:]
    cut, full = _cut_and_full(array, sizes)
    view = _windows(array, cut, full, sizes, writeable=True)
    where = _where(array, starts, cut, sizes, array.shape[:1])
    view[where] = update.transpose(0, *(d + 1 for d in (*full, *cut)))


def _cut_and_full(array: np.ndarray, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """The dimensions that a window does not have all of, and the others."""
    cut = [d for d, size in enumerate(sizes) if size != array.shape[d + 1]]
    return cut, [d for d in range(len(sizes)) if d not in cut]


def _windows(
    array: np.ndarray, cut: list[int], full: list[int], sizes: Sequence[int], *, writeable: bool
) -> np.ndarray:
    """A view [ranks, *places, *full, *window]: every window along the cut dimensions."""
    moved = array.transpose(0, *(d + 1 for d in (*cut, *full)))
    inner = tuple(sizes[d] for d in cut)
    axes = tuple(range(1, len(cut) + 1))
    raw = moved.view(f"V{array.itemsize}")  # numpy names float8_e5m2 `<f1` and knows no such type
    windows = np.lib.stride_tricks.sliding_window_view(raw, inner, axes, writeable=writeable)
    return windows.view(array.dtype)


def _where(
    array: np.ndarray,
    starts: Sequence[np.ndarray],
    cut: list[int],
    sizes: Sequence[int],
    batch: tuple[int, ...],
) -> tuple[np.ndarray, ...]:
    """The index of each rank and of each clamped start, all of the batch's shape."""
    return (counted(batch, 0), *(np.clip(starts[d], 0, array.shape[d + 1] - sizes[d]) for d in cut))


def _starts(operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Start indices, given as scalars or as one vector, one array [ranks] per dimension."""
    columns = (array.reshape(len(array), -1) for array in operands)
    return [as_int64(column) for array in columns for column in array.T]


def counted(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Each element's own index along one axis."""
    column = np.arange(shape[axis]).reshape(-1, *([1] * (len(shape) - axis - 1)))
    return np.broadcast_to(column, shape)


def _dynamic_slice(work: Work, operands: Arrays) -> Arrays:
    array, sizes = operands[0], work.results[0].shape
    if not work.results[0].elements:
        return [np.empty((len(array), *sizes), array.dtype)]
    return [windows_at(array, _starts(operands[1:]), sizes, array.shape[:1])]


def _dynamic_update_slice(_: Work, operands: Arrays) -> Arrays:
    result = operands[0].copy()
    update_slice(result, *operands[1:])
    return [result]


def update_slice(array: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> None:
    """Overwrite a slice of the array of every rank."""
    if update.size:
        _write_window(array, _starts(starts), update)


def _gather(work: Work, operands: Arrays) -> Arrays:
    array, vector_dim = operands[0], work.integer("index_vector_dim")
    sizes = work.integers("slice_sizes")
    if not (array.size and work.results[0].elements and all(sizes)):
        # XLA reads zeros where there is nothing, also through a window that is collapsed to nothing
        return [np.zeros((len(array), *work.results[0].shape), array.dtype)]
    vectors = index_vectors(operands[1], vector_dim)
    batch = vectors.shape[:-1]
    batching = work.integers("operand_batching_dims")
    starts = [np.zeros(batch, np.int64) for _ in sizes]
    for number, dimension in enumerate(work.integers("start_index_map")):
        starts[dimension] = vectors[..., number]
    axes = batching_axes(work.integers("start_indices_batching_dims"), vector_dim)
    for dimension, axis in zip(batching, axes, strict=True):
        starts[dimension] = counted(batch, axis)
    dropped = (*work.integers("collapsed_slice_dims"), *batching)
    kept = [size for d, size in enumerate(sizes) if d not in dropped]
    found = windows_at(array, starts, sizes, batch).reshape(*batch, *kept)
    offsets = [d + 1 for d in work.integers("offset_dims")]
    return [np.moveaxis(found, range(len(batch), found.ndim), offsets)]


def batching_axes(dimensions: tuple[int, ...], vector_dim: int) -> list[int]:
    """Batching dimensions of indices as axes of their vectors: ranks in front, vectors last."""
    return [d + 1 - (d > vector_dim) for d in dimensions]


def _pad(work: Work, operands: Arrays) -> Arrays:
    """Elements go to every (interior + 1)-th place from `low` on, as far as there are places."""
    array, value = operands
    shape = work.results[0].shape
    result = np.empty((len(array), *shape), array.dtype)
    result[:] = value.reshape(-1, *([1] * len(shape)))
    targets, sources = [slice(None)], [slice(None)]
    numbers = (work.integers("low"), work.integers("interior"), array.shape[1:], shape)
    for low, interior, size, places in zip(*numbers, strict=True):
        step = interior + 1
        first = min(max(0, -(low // step)), size)  # the first element at a place of 0 or more
        last = min(size, max(first, -((low - places) // step)))
        start = low + first * step
        targets.append(slice(start, start + (last - first) * step, step))
        sources.append(slice(first, last))
    if result[tuple(targets)].size:
        result[tuple(targets)] = array[tuple(sources)]
    return [result]


def _reverse(work: Work, operands: Arrays) -> Arrays:
    return [np.flip(operands[0], tuple(d + 1 for d in work.integers("dimensions")))]


INDEXING_KERNELS: Mapping[str, Kernel] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "reverse": _reverse,
}
"""Kernels that place windows or elements."""
