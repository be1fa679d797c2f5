"""Kernels that read or write windows whose place is data, and that pad or reverse.

A place is one index array per dimension, [ranks, *batch]; the windows at all of them come in one
indexing of a strided view that has every window. Only dimensions that a window cuts take part.

Scatter: updates sorted by their targets, then joined on whole arrays.

The operands become a table of rows: one row for each index of the dimensions that windows cut, all
other dimensions in the row. An update is a row for a target row. Stable sorting brings the updates
of one target together in the order of the indices. Where the region is associative they are joined
pairwise, else one after the other; both are a few calls of the region on whole arrays.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels.regions import evaluate
from ncc_runtime.execution.values.kernels.work import Arrays, Kernel, KernelCall
from ncc_runtime.neff.program import Region

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


def _dynamic_slice(call: KernelCall, operands: Arrays) -> Arrays:
    array, sizes = operands[0], call.results[0].shape
    if not call.results[0].elements:
        return [np.empty((len(array), *sizes), array.dtype)]
    return [windows_at(array, _starts(operands[1:]), sizes, array.shape[:1])]


def _dynamic_update_slice(_: KernelCall, operands: Arrays) -> Arrays:
    result = operands[0].copy()
    update_slice(result, *operands[1:])
    return [result]


def update_slice(array: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> None:
    """Overwrite a slice of the array of every rank."""
    if update.size:
        _write_window(array, _starts(starts), update)


def _gather(call: KernelCall, operands: Arrays) -> Arrays:
    array, vector_dim = operands[0], call.integer("index_vector_dim")
    sizes = call.integers("slice_sizes")
    if not (array.size and call.results[0].elements and all(sizes)):
        # XLA reads zeros where there is nothing, also through a window that is collapsed to nothing
        return [np.zeros((len(array), *call.results[0].shape), array.dtype)]
    vectors = index_vectors(operands[1], vector_dim)
    batch = vectors.shape[:-1]
    batching = call.integers("operand_batching_dims")
    starts = [np.zeros(batch, np.int64) for _ in sizes]
    for number, dimension in enumerate(call.integers("start_index_map")):
        starts[dimension] = vectors[..., number]
    axes = batching_axes(call.integers("start_indices_batching_dims"), vector_dim)
    for dimension, axis in zip(batching, axes, strict=True):
        starts[dimension] = counted(batch, axis)
    dropped = (*call.integers("collapsed_slice_dims"), *batching)
    kept = [size for d, size in enumerate(sizes) if d not in dropped]
    found = windows_at(array, starts, sizes, batch).reshape(*batch, *kept)
    offsets = [d + 1 for d in call.integers("offset_dims")]
    return [np.moveaxis(found, range(len(batch), found.ndim), offsets)]


def batching_axes(dimensions: tuple[int, ...], vector_dim: int) -> list[int]:
    """Batching dimensions of indices as axes of their vectors: ranks in front, vectors last."""
    return [d + 1 - (d > vector_dim) for d in dimensions]


def _pad(call: KernelCall, operands: Arrays) -> Arrays:
    """Elements go to every (interior + 1)-th place from `low` on, as far as there are places."""
    array, value = operands
    shape = call.results[0].shape
    result = np.empty((len(array), *shape), array.dtype)
    result[:] = value.reshape(-1, *([1] * len(shape)))
    targets, sources = [slice(None)], [slice(None)]
    numbers = (call.integers("low"), call.integers("interior"), array.shape[1:], shape)
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


def _reverse(call: KernelCall, operands: Arrays) -> Arrays:
    return [np.flip(operands[0], tuple(d + 1 for d in call.integers("dimensions")))]


INDEXING_KERNELS: Mapping[str, Kernel] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "reverse": _reverse,
}
"""Kernels that place windows or elements."""


_ASSOCIATIVE = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "xor"})


@attrs.frozen
class _ScatterLayout:
    """How operands and updates become tables of rows; axes count the ranks."""

    cut: list[int]  # of the operand: what a target row is an index of
    full: list[int]  # of the operand: what a row holds
    outer: list[int]  # of the updates: one for each dimension of the indices
    update_cut: list[int | None]  # of the updates, for each cut dimension; None: one element
    update_full: list[int]


def scatter(call: KernelCall, operands: Arrays) -> Arrays:
    """The operands with updates joined to them; windows that do not fit are left out."""
    count = len(operands) // 2
    arrays, updates = operands[:count], operands[count + 1 :]
    if not arrays[0].size or not updates[0].size:
        return [array.copy() for array in arrays]
    layout = _layout(call, arrays[0], updates[0])
    targets, fits = _targets(call, layout, arrays[0], operands[count], updates[0])
    tables = [_rows(array, layout.cut, layout.full) for array in arrays]
    found = [_update_rows(update, layout)[fits] for update in updates]
    _join(call.region(), tables, targets[fits], found)
    order = np.argsort([0, *layout.cut, *layout.full])
    shape = [arrays[0].shape[axis] for axis in (0, *layout.cut, *layout.full)]
    return [table.reshape(shape).transpose(order) for table in tables]


def _layout(call: KernelCall, array: np.ndarray, update: np.ndarray) -> _ScatterLayout:
    window_axes = [d + 1 for d in call.integers("update_window_dims")]
    dropped = {*call.integers("inserted_window_dims"), *call.integers("input_batching_dims")}
    kept = [d for d in range(array.ndim - 1) if d not in dropped]
    axis_of: dict[int, int] = dict(zip(kept, window_axes, strict=True))
    indexed = call.integers("scatter_dims_to_operand_dims")
    full = [d for d in kept if d not in indexed and update.shape[axis_of[d]] == array.shape[d + 1]]
    cut = [d for d in range(array.ndim - 1) if d not in full]
    return _ScatterLayout(
        cut=[d + 1 for d in cut],
        full=[d + 1 for d in full],
        outer=[axis for axis in range(1, update.ndim) if axis not in window_axes],
        update_cut=[axis_of.get(d) for d in cut],
        update_full=[axis_of[d] for d in full],
    )


def _rows(array: np.ndarray, cut: list[int], full: list[int]) -> np.ndarray:
    """A fresh table [ranks and cut dimensions, full dimensions]."""
    width = math.prod(array.shape[axis] for axis in full)
    return np.array(array.transpose(0, *cut, *full).reshape(-1, width), order="C")


def _update_rows(update: np.ndarray, layout: _ScatterLayout) -> np.ndarray:
    """A row for each rank, index and element of the cut window, in this order."""
    inner = [axis for axis in layout.update_cut if axis is not None]
    width = math.prod(update.shape[axis] for axis in layout.update_full)
    return update.transpose(0, *layout.outer, *inner, *layout.update_full).reshape(-1, width)


def _targets(
    call: KernelCall,
    layout: _ScatterLayout,
    array: np.ndarray,
    indices: np.ndarray,
    update: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The target row of each update row, and whether its whole window fits."""
    starts = _window_starts(call, indices, array.ndim - 1)
    batch = starts.shape[1:]
    window = [1 if axis is None else update.shape[axis] for axis in layout.update_cut]
    fits = np.ones(batch, bool)
    rows = counted(batch, 0).reshape(*batch, *([1] * len(window)))
    for position, axis in enumerate(layout.cut):
        start, size = starts[axis - 1], array.shape[axis]
        fits &= (start >= 0) & (start <= size - window[position])
        offset = np.arange(window[position]).reshape(-1, *([1] * (len(window) - position - 1)))
        place = np.where(fits, start, 0).reshape(*batch, *([1] * len(window))) + offset
        rows = rows * size + place
    whole = (*batch, *window)
    spread = np.broadcast_to(fits.reshape(*batch, *([1] * len(window))), whole)
    return np.broadcast_to(rows, whole).reshape(-1), spread.reshape(-1)


def _window_starts(call: KernelCall, indices: np.ndarray, rank: int) -> np.ndarray:
    """[operand dimension, ranks, *batch]: where each window starts."""
    vector_dim = call.integer("index_vector_dim")
    vectors = index_vectors(indices, vector_dim)
    batch = vectors.shape[:-1]
    starts = np.zeros((rank, *batch), np.int64)
    for number, dimension in enumerate(call.integers("scatter_dims_to_operand_dims")):
        starts[dimension] = vectors[..., number]
    axes = batching_axes(call.integers("scatter_indices_batching_dims"), vector_dim)
    for dimension, axis in zip(call.integers("input_batching_dims"), axes, strict=True):
        starts[dimension] = counted(batch, axis)
    return starts


def _join(region: Region, tables: Arrays, targets: np.ndarray, updates: Arrays) -> None:
    """Join update rows to their target rows, in order for each target."""
    order = np.argsort(targets, kind="stable")
    targets, updates = targets[order], [update[order] for update in updates]
    if _is_associative(region):
        targets, updates = _joined_pairwise(region, targets, updates)
    repetition = _repetitions(targets)
    by_repetition = np.argsort(repetition, kind="stable")
    ends = np.cumsum(np.bincount(repetition)).tolist()
    for start, end in itertools.pairwise([0, *ends]):
        now = by_repetition[start:end]
        rows = targets[now]
        given = [table[rows] for table in tables] + [update[now] for update in updates]
        for table, joined in zip(tables, evaluate(region, given), strict=True):
            table[rows] = joined


def _repetitions(targets: np.ndarray) -> np.ndarray:
    """How many equal targets stand before each, where equal ones are neighbours."""
    positions = np.arange(len(targets))
    is_first = np.ones(len(targets), bool)
    is_first[1:] = targets[1:] != targets[:-1]
    return positions - np.maximum.accumulate(np.where(is_first, positions, 0))


def _joined_pairwise(
    region: Region, targets: np.ndarray, updates: Arrays
) -> tuple[np.ndarray, Arrays]:
    """One row for each target, of rows whose equal targets are neighbours."""
    while (targets[1:] == targets[:-1]).any():
        kept = np.flatnonzero(_repetitions(targets) % 2 == 0)
        following = np.append(targets[1:], -1)
        has_partner = following[kept] == targets[kept]
        left = kept[has_partner]
        pairs = [update[left] for update in updates] + [update[left + 1] for update in updates]
        joined = evaluate(region, pairs)
        targets, updates = targets[kept], [update[kept] for update in updates]
        for update, one in zip(updates, joined, strict=True):
            update[has_partner] = one
    return targets, updates


def _is_associative(region: Region) -> bool:
    """Whether each result joins only its own two parameters, by an operation that may regroup."""
    count = len(region.results)
    for number, result in enumerate(region.results):
        if result == number + count:
            continue  # the later one stays
        step = region.body[result - 2 * count] if result >= 2 * count else None
        own = [number, number + count]
        if step is None or sorted(step.operands) != own or step.opcode not in _ASSOCIATIVE:
            return False
    return True
