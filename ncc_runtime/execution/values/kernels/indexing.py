"""Kernels that read or write windows whose starts are data, and that pad.

Starts are one index array per dimension, [ranks, *batch]; all windows come from one indexing of a
strided view that has every window. Only partial dimensions take part: those that a window does not
have all of.

Scatter: updates are sorted by their targets, then combined on whole arrays. The operands become a
table of rows: one row for each index of the partial dimensions, all full dimensions in the row. An
update is a row for a target row. Stable sorting brings the updates of one target together in the
order of the indices. Where the region is associative they are combined pairwise, else one after
the other; both are a few calls of the region on whole arrays. Where machine code knows the region,
and the targets are not many more than the updates, nothing is sorted.
"""

import math
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels import loops
from ncc_runtime.execution.values.kernels.compiled import loop
from ncc_runtime.execution.values.kernels.ordering import stable_order
from ncc_runtime.execution.values.kernels.regions import evaluate, single_opcode
from ncc_runtime.execution.values.kernels.work import Arrays, KernelCall, KernelInto
from ncc_runtime.neff.program import Region

_LONGEST = 8
"""Bytes of an element that numpy has integers for."""

_FAR = 2**62
"""Indices of u64 that int64 may not hold become this one, which is out of bounds too."""


def as_int64(indices: np.ndarray) -> np.ndarray:
    """Indices of any integer type as int64; those beyond int64 stay out of bounds."""
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
    partial, full = _partial_and_full(array, sizes)
    index = _window_index(array, starts, partial, sizes, batch)
    order = [*full, *partial]
    table = array.transpose(0, *(d + 1 for d in (*partial, *full)))
    if all(sizes[d] == 1 for d in partial) and table.flags.c_contiguous:
        found = _rows_at(table, index).reshape(*batch, *(sizes[d] for d in order))
    else:
        found = _windows(array, partial, full, sizes, writeable=False)[index]
    back = np.argsort(order, kind="stable")
    return found.transpose(*range(len(batch)), *(len(batch) + int(axis) for axis in back))


def _rows_at(
    table: np.ndarray, index: Sequence[np.ndarray], out: np.ndarray | None = None
) -> np.ndarray:
    """Rows of a contiguous table whose first dimensions are indexed, with all that is below."""
    shape = table.shape[: len(index)]
    numbers = index[0]
    for column, size in zip(index[1:], shape[1:], strict=True):  # mixed radix
        numbers = numbers * size + column
    bits = np.dtype(f"u{table.itemsize}") if table.itemsize <= _LONGEST else table.dtype
    row = table.shape[len(index) :]
    rows = table.view(bits).reshape(-1, *([math.prod(row)] if math.prod(row) > 1 else []))
    found = None
    if out is not None:
        found = out.view(bits).reshape(*numbers.shape, *rows.shape[1:], copy=False)
    # indices are clamped already: with this mode numpy writes where it is told
    return np.take(rows, numbers, axis=0, out=found, mode="clip").view(table.dtype)


def _partial_and_full(array: np.ndarray, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """The dimensions that a window does not have all of, and the others."""
    partial = [d for d, size in enumerate(sizes) if size != array.shape[d + 1]]
    return partial, [d for d in range(len(sizes)) if d not in partial]


def _windows(
    array: np.ndarray, partial: list[int], full: list[int], sizes: Sequence[int], *, writeable: bool
) -> np.ndarray:
    """A view [ranks, *starts, *full, *window]: every window along the partial dimensions."""
    moved = array.transpose(0, *(d + 1 for d in (*partial, *full)))
    inner = tuple(sizes[d] for d in partial)
    axes = tuple(range(1, len(partial) + 1))
    raw = moved.view(f"V{array.itemsize}")  # numpy names float8_e5m2 `<f1` and knows no such type
    windows = np.lib.stride_tricks.sliding_window_view(raw, inner, axes, writeable=writeable)
    return windows.view(array.dtype)


def _window_index(
    array: np.ndarray,
    starts: Sequence[np.ndarray],
    partial: list[int],
    sizes: Sequence[int],
    batch: tuple[int, ...],
) -> tuple[np.ndarray, ...]:
    """The index of each rank and of each clamped start, all of the batch's shape."""
    clamped = (np.minimum(np.maximum(starts[d], 0), array.shape[d + 1] - sizes[d]) for d in partial)
    return (counted(batch, 0), *clamped)


def counted(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Each element's own index along one axis."""
    column = np.arange(shape[axis]).reshape(-1, *([1] * (len(shape) - axis - 1)))
    return np.broadcast_to(column, shape)


class SliceAtStarts:
    """A slice of the array of every rank, at starts that are data; it is clamped to fit.

    Starts are scalars, one for each dimension, or one vector. All arrays stay where they are; what
    they hold counts when the slice is read or written, which is one indexing of one view.
    """

    def __init__(
        self, array: np.ndarray, starts: Arrays, sizes: Sequence[int], *, writeable: bool
    ) -> None:
        partial, full = _partial_and_full(array, sizes)
        self._windows = _windows(array, partial, full, sizes, writeable=writeable)
        columns = [column for one in starts for column in one.reshape(len(array), -1).T]
        self._starts = [columns[d] for d in partial]
        self._most = [array.shape[d + 1] - sizes[d] for d in partial]
        self._clamped = [np.empty(len(array), np.int64) for _ in partial]
        self._index = (np.arange(len(array)), *self._clamped)
        self._to_windows = (0, *(d + 1 for d in (*full, *partial)))
        self._from_windows = np.argsort(self._to_windows).tolist()

    def _read_starts(self) -> None:
        for start, most, clamped in zip(self._starts, self._most, self._clamped, strict=True):
            np.maximum(as_int64(start), 0, out=clamped)
            np.minimum(clamped, most, out=clamped)

    def read(self, target: np.ndarray) -> None:
        """Copy the slice, [ranks, *sizes], into an array."""
        self._read_starts()
        target[...] = self._windows[self._index].transpose(self._from_windows)

    def write(self, update: np.ndarray) -> None:
        """Overwrite the slice, [ranks, *sizes]."""
        self._read_starts()
        self._windows[self._index] = update.transpose(self._to_windows)


def _dynamic_slice(call: KernelCall, operands: Arrays, out: np.ndarray | None = None) -> Arrays:
    array, sizes = operands[0], call.results[0].shape
    result = np.empty((len(array), *sizes), array.dtype) if out is None else out
    if result.size:
        SliceAtStarts(array, operands[1:], sizes, writeable=False).read(result)
    return [result]


def _dynamic_update_slice(_: KernelCall, operands: Arrays, out: np.ndarray | None = None) -> Arrays:
    result = np.empty_like(operands[0], order="C") if out is None else out
    result[...] = operands[0]
    update_slice(result, *operands[1:])
    return [result]


def update_slice(array: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> None:
    """Overwrite a slice of the array of every rank, clamped to fit."""
    if update.size:
        SliceAtStarts(array, [*starts], update.shape[1:], writeable=True).write(update)


def _gather(call: KernelCall, operands: Arrays, out: np.ndarray | None = None) -> Arrays:
    array, vector_dim = operands[0], call.integer("index_vector_dim")
    sizes = call.integers("slice_sizes")
    if not (array.size and call.results[0].elements and all(sizes)):
        # XLA reads zeros from an empty array, and through an empty window that is collapsed.
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
    offsets = [d + 1 for d in call.integers("offset_dims")]
    own_axes = range(len(batch), len(batch) + len(kept))
    if out is not None:
        place = np.moveaxis(out, offsets, own_axes)
        partial, _ = _partial_and_full(array, sizes)
        are_rows = all(sizes[d] == 1 for d in partial) and partial == [*range(len(partial))]
        if are_rows and place.flags.c_contiguous and array.flags.c_contiguous:
            index = _window_index(array, starts, partial, sizes, batch)
            _rows_at(array, index, out=place)
            return [out]
    windows = windows_at(array, starts, sizes, batch).reshape(*batch, *kept)
    return [np.moveaxis(windows, own_axes, offsets)]


def batching_axes(dimensions: tuple[int, ...], vector_dim: int) -> list[int]:
    """Batching dimensions of indices as axes of their vectors: ranks in front, vectors last."""
    return [d + 1 - (d > vector_dim) for d in dimensions]


def _pad(call: KernelCall, operands: Arrays, out: np.ndarray | None = None) -> Arrays:
    """Elements go to every (interior + 1)-th index from `low` on, as far as the result reaches."""
    array, value = operands
    shape = call.results[0].shape
    result = np.empty((len(array), *shape), array.dtype) if out is None else out
    result[:] = value.reshape(-1, *([1] * len(shape)))
    targets, sources = [slice(None)], [slice(None)]
    numbers = (call.integers("low"), call.integers("interior"), array.shape[1:], shape)
    for low, interior, size, result_size in zip(*numbers, strict=True):
        step = interior + 1
        first = min(max(0, -(low // step)), size)  # the first element at an index of 0 or more
        end = min(size, max(first, -((low - result_size) // step)))
        start = low + first * step
        targets.append(slice(start, start + (end - first) * step, step))
        sources.append(slice(first, end))
    if result[tuple(targets)].size:
        result[tuple(targets)] = array[tuple(sources)]
    return [result]


_ASSOCIATIVE = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "xor"})


@attrs.frozen
class _ScatterLayout:
    """How operands and updates become tables of rows; axes count the ranks."""

    partial: list[int]  # of the operand: what a target row is an index of
    full: list[int]  # of the operand: what a row holds
    outer: list[int]  # of the updates: one for each dimension of the indices
    update_partial: list[int | None]  # of the updates, by partial dimension; None: one element
    update_full: list[int]

    @property
    def axes(self) -> tuple[int, ...]:
        """Of the operand, in the order of its table [ranks and partial dimensions, full ones]."""
        return 0, *self.partial, *self.full


def scatter(call: KernelCall, operands: Arrays, out: np.ndarray | None = None) -> Arrays:
    """The operands combined with updates, the first perhaps in `out`.

    Windows that do not fit are left out.
    """
    count = len(operands) // 2
    arrays, updates = operands[:count], operands[count + 1 :]
    if not arrays[0].size or not updates[0].size:
        return [array.copy() for array in arrays]
    layout = _scatter_layout(call, arrays[0].shape[1:], updates[0].shape[1:])
    targets, fits = _targets(call, layout, arrays[0], operands[count], updates[0])
    axes = layout.axes
    row_size = math.prod(arrays[0].shape[axis] for axis in layout.full)
    tables = []
    for number, array in enumerate(arrays):
        moved, place = array.transpose(axes), None if out is None else out.transpose(axes)
        if number or place is None or not place.flags.c_contiguous:
            place = np.empty(moved.shape, moved.dtype)
        place[...] = moved
        tables.append(place.reshape(-1, row_size))
    update_rows = [_update_rows(update, layout) for update in updates]
    if not fits.all():
        targets, update_rows = targets[fits], [update[fits] for update in update_rows]
    _combine(call.region(), tables, targets, update_rows)
    shape = [arrays[0].shape[axis] for axis in axes]
    results = [table.reshape(shape).transpose(np.argsort(axes)) for table in tables]
    if out is not None and np.may_share_memory(results[0], out):
        results[0] = out
    return results


def elements_of_row(call: KernelCall, shape: Sequence[int], updated: Sequence[int]) -> int:
    """Elements of a row of a scatter's table. Shapes are without ranks."""
    return math.prod(shape[axis - 1] for axis in _scatter_layout(call, shape, updated).full)


def scatters_in_place(call: KernelCall, shape: Sequence[int], updated: Sequence[int]) -> bool:
    """Whether `out` is the table that updates are written to. Shapes are without ranks."""
    axes = _scatter_layout(call, shape, updated).axes
    return axes == (*range(len(axes)),)


def _scatter_layout(
    call: KernelCall, shape: Sequence[int], updated: Sequence[int]
) -> _ScatterLayout:
    window = call.integers("update_window_dims")
    dropped = {*call.integers("inserted_window_dims"), *call.integers("input_batching_dims")}
    kept = [d for d in range(len(shape)) if d not in dropped]
    axis_of: dict[int, int] = dict(zip(kept, [d + 1 for d in window], strict=True))
    indexed = call.integers("scatter_dims_to_operand_dims")
    full = [d for d in kept if d not in indexed and updated[axis_of[d] - 1] == shape[d]]
    partial = [d for d in range(len(shape)) if d not in full]
    return _ScatterLayout(
        partial=[d + 1 for d in partial],
        full=[d + 1 for d in full],
        outer=[d + 1 for d in range(len(updated)) if d not in window],
        update_partial=[axis_of.get(d) for d in partial],
        update_full=[axis_of[d] for d in full],
    )


def _update_rows(update: np.ndarray, layout: _ScatterLayout) -> np.ndarray:
    """A row for each rank, index and element of the partial window, in this order."""
    inner = [axis for axis in layout.update_partial if axis is not None]
    row_size = math.prod(update.shape[axis] for axis in layout.update_full)
    return update.transpose(0, *layout.outer, *inner, *layout.update_full).reshape(-1, row_size)


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
    window = [1 if axis is None else update.shape[axis] for axis in layout.update_partial]
    window_ones = [1] * len(window)
    fits = np.ones(batch, bool)
    # Row numbers are mixed radix: the rank, then the index along each partial dimension.
    rows = counted(batch, 0).reshape(*batch, *window_ones)
    for position, axis in enumerate(layout.partial):
        start, size = starts[axis - 1], array.shape[axis]
        fits &= (start >= 0) & (start <= size - window[position])
        offset = np.arange(window[position]).reshape(-1, *([1] * (len(window) - position - 1)))
        index = np.where(fits, start, 0).reshape(*batch, *window_ones) + offset
        rows = rows * size + index
    shape = (*batch, *window)
    row_fits = np.broadcast_to(fits.reshape(*batch, *window_ones), shape)
    return np.broadcast_to(rows, shape).reshape(-1), row_fits.reshape(-1)


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


def _combine(region: Region, tables: Arrays, targets: np.ndarray, updates: Arrays) -> None:
    """Combine update rows with their target rows, in order for each target."""
    if len(tables) == 1 and _join_by_lists(region, tables[0], targets, updates[0]):
        return
    order = stable_order(targets)
    targets = targets[order]
    is_first = np.ones(len(targets), bool)
    np.not_equal(targets[1:], targets[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    counts = np.diff(firsts, append=len(targets))
    if _is_associative(region):
        is_alone = counts == 1
        alone, others = firsts[is_alone], np.repeat(~is_alone, counts)
        _combine_rows(region, tables, targets[alone], updates, order[alone])
        rows = [update[order[others]] for update in updates]
        targets, rows = _combined_pairwise(region, targets[others], rows)
        _combine_rows(region, tables, targets, rows, np.arange(len(targets)))
        return
    # The first update of every target at once, then the second, and so on.
    for number in range(int(counts.max(initial=0))):
        chosen = firsts[counts > number] + number
        _combine_rows(region, tables, targets[chosen], updates, order[chosen])


_JOIN_OF_OPCODE = {
    "add": loops.ADD,
    "maximum": loops.MAXIMUM,
    "minimum": loops.MINIMUM,
    "multiply": loops.MULTIPLY,
}

_TARGETS_PER_UPDATE = 8
"""With more targets than that, to look at each of them takes longer than to sort the updates."""


def _join_by_lists(
    region: Region, table: np.ndarray, targets: np.ndarray, updates: np.ndarray
) -> bool:
    """Combine by machine code, with the same bits; False, and nothing is done, where it does not.

    It keeps the updates of a target in a linked list, in their order.
    """
    rows, size = table.shape
    join = _JOIN_OF_OPCODE.get(single_opcode(region))
    is_single = table.dtype == updates.dtype == np.float32 and table.flags.c_contiguous
    if join is None or not is_single or rows > _TARGETS_PER_UPDATE * len(targets):
        return False
    run, count = loop("join_updates", updates.size), len(targets)
    if run is None or count >= loops.NOTHING:
        return False
    targets, updates = np.ascontiguousarray(targets), np.ascontiguousarray(updates)
    first, following = np.full(rows, loops.NOTHING), np.empty(count, np.uint32)
    deepest = count.bit_length()
    partial, depths = np.empty(deepest * size, np.float32), np.empty(deepest, np.int64)
    run(join, table, rows, size, targets, updates, count, first, following, partial, depths)
    return True


_PART_ELEMENTS = 1 << 17
"""Elements that are combined at once: temporaries stay in a core's cache."""


def _combine_rows(
    region: Region, tables: Arrays, targets: np.ndarray, updates: Arrays, rows: np.ndarray
) -> None:
    """Combine rows of updates with target rows, all different."""
    step = max(1, _PART_ELEMENTS // max(1, tables[0].shape[1]))
    for start in range(0, len(targets), step):
        own, other = targets[start : start + step], rows[start : start + step]
        arguments = [table[own] for table in tables] + [update[other] for update in updates]
        for table, combined in zip(tables, evaluate(region, arguments), strict=True):
            table[own] = combined


def _combined_pairwise(
    region: Region, targets: np.ndarray, updates: Arrays
) -> tuple[np.ndarray, Arrays]:
    """One row for each target, of rows whose equal targets are neighbours."""
    while len(targets):
        is_first = np.ones(len(targets), bool)
        np.not_equal(targets[1:], targets[:-1], out=is_first[1:])
        firsts = np.flatnonzero(is_first)
        if len(firsts) == len(targets):
            break
        counts = np.diff(firsts, append=len(targets))
        number = np.arange(len(targets)) - np.repeat(firsts, counts)  # of those of its target
        kept = np.flatnonzero(number % 2 == 0)
        has_partner = number[kept] + 1 < np.repeat(counts, (counts + 1) // 2)
        left = kept[has_partner]
        pairs = [update[left] for update in updates] + [update[left + 1] for update in updates]
        combined = evaluate(region, pairs)
        targets, updates = targets[kept], [update[kept] for update in updates]
        for update, values in zip(updates, combined, strict=True):
            update[has_partner] = values
    return targets, updates


def _is_associative(region: Region) -> bool:
    """Whether each result combines its own two parameters alone, by an associative operation."""
    count = len(region.results)
    for number, result in enumerate(region.results):
        if result == number + count:
            continue  # the update: the last one stays, which is associative
        step = region.body[result - 2 * count] if result >= 2 * count else None
        if step is None or step.opcode not in _ASSOCIATIVE:
            return False
        if sorted(step.operands) != [number, number + count]:
            return False
    return True


INDEXING_KERNELS: Mapping[str, KernelInto] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "scatter": scatter,
}
"""Kernels that place windows or elements."""
