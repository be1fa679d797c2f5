"""Scatter: updates sorted by their targets, then joined on whole arrays.

The operands become a table of rows: one row for each index of the dimensions that windows cut, all
other dimensions in the row. An update is a row for a target row. Stable sorting brings the updates
of one target together in the order of the indices. Where the region is associative they are joined
pairwise, else one after the other; both are a few calls of the region on whole arrays.
"""

import itertools
import math

import attrs
import numpy as np

from ncc_runtime.execution.values.indexing import batching_axes, counted, index_vectors
from ncc_runtime.execution.values.regions import evaluate
from ncc_runtime.execution.values.work import Arrays, Work
from ncc_runtime.neff.program import Region

_ASSOCIATIVE = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "xor"})


@attrs.frozen
class _Layout:
    """How operands and updates become tables of rows; axes count the ranks."""

    cut: list[int]  # of the operand: what a target row is an index of
    full: list[int]  # of the operand: what a row holds
    outer: list[int]  # of the updates: one for each dimension of the indices
    update_cut: list[int | None]  # of the updates, for each cut dimension; None: one element
    update_full: list[int]


def scatter(work: Work, operands: Arrays) -> Arrays:
    """The operands with updates joined to them; windows that do not fit are left out."""
    count = len(operands) // 2
    arrays, updates = operands[:count], operands[count + 1 :]
    if not arrays[0].size or not updates[0].size:
        return [array.copy() for array in arrays]
    layout = _layout(work, arrays[0], updates[0])
    targets, fits = _targets(work, layout, arrays[0], operands[count], updates[0])
    tables = [_rows(array, layout.cut, layout.full) for array in arrays]
    found = [_update_rows(update, layout)[fits] for update in updates]
    _join(work.region(), tables, targets[fits], found)
    order = np.argsort([0, *layout.cut, *layout.full])
    shape = [arrays[0].shape[axis] for axis in (0, *layout.cut, *layout.full)]
    return [table.reshape(shape).transpose(order) for table in tables]


def _layout(work: Work, array: np.ndarray, update: np.ndarray) -> _Layout:
    window_axes = [d + 1 for d in work.integers("update_window_dims")]
    dropped = {*work.integers("inserted_window_dims"), *work.integers("input_batching_dims")}
    kept = [d for d in range(array.ndim - 1) if d not in dropped]
    axis_of: dict[int, int] = dict(zip(kept, window_axes, strict=True))
    indexed = work.integers("scatter_dims_to_operand_dims")
    full = [d for d in kept if d not in indexed and update.shape[axis_of[d]] == array.shape[d + 1]]
    cut = [d for d in range(array.ndim - 1) if d not in full]
    return _Layout(
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


def _update_rows(update: np.ndarray, layout: _Layout) -> np.ndarray:
    """A row for each rank, index and element of the cut window, in this order."""
    inner = [axis for axis in layout.update_cut if axis is not None]
    width = math.prod(update.shape[axis] for axis in layout.update_full)
    return update.transpose(0, *layout.outer, *inner, *layout.update_full).reshape(-1, width)


def _targets(
    work: Work, layout: _Layout, array: np.ndarray, indices: np.ndarray, update: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The target row of each update row, and whether its whole window fits."""
    starts = _starts(work, indices, array.ndim - 1)
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


def _starts(work: Work, indices: np.ndarray, rank: int) -> np.ndarray:
    """[operand dimension, ranks, *batch]: where each window starts."""
    vector_dim = work.integer("index_vector_dim")
    vectors = index_vectors(indices, vector_dim)
    batch = vectors.shape[:-1]
    starts = np.zeros((rank, *batch), np.int64)
    for number, dimension in enumerate(work.integers("scatter_dims_to_operand_dims")):
        starts[dimension] = vectors[..., number]
    axes = batching_axes(work.integers("scatter_indices_batching_dims"), vector_dim)
    for dimension, axis in zip(work.integers("input_batching_dims"), axes, strict=True):
        starts[dimension] = counted(batch, axis)
    return starts


def _join(region: Region, tables: Arrays, targets: np.ndarray, updates: Arrays) -> None:
    """Join update rows to their target rows, in order for each target."""
    order = np.argsort(targets, kind="stable")
    targets, updates = targets[order], [update[order] for update in updates]
    if _is_associative(region):
        targets, updates = _joined_pairwise(region, targets, updates)
    turn = _turns(targets)
    by_turn = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn)).tolist()
    for start, end in itertools.pairwise([0, *ends]):
        now = by_turn[start:end]
        rows = targets[now]
        given = [table[rows] for table in tables] + [update[now] for update in updates]
        for table, joined in zip(tables, evaluate(region, given), strict=True):
            table[rows] = joined


def _turns(targets: np.ndarray) -> np.ndarray:
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
        kept = np.flatnonzero(_turns(targets) % 2 == 0)
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
