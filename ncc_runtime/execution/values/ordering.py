"""Kernels that put elements in order.

A comparator that asks for the order of keys (one key or several, each a function of one element of
every operand, compared by LT or GT) becomes a stable argsort of those keys. Any other comparator
runs on whole arrays in a merge sort: all pairs of runs at once, each place by binary search.
"""

from collections.abc import Mapping

import numpy as np

from ncc_runtime.execution.values.comparators import Key, sort_keys
from ncc_runtime.execution.values.regions import evaluate
from ncc_runtime.execution.values.total_order import total_order
from ncc_runtime.execution.values.work import Arrays, Kernel, Work
from ncc_runtime.neff.program import Region


def _sort(work: Work, operands: Arrays) -> Arrays:
    axis = work.integer("dimension") + 1
    arrays = [np.moveaxis(array, axis, -1) for array in operands]
    if arrays[0].shape[-1] < 2 or not arrays[0].size:
        return [array.copy() for array in operands]
    region = work.region()
    order = _order_by_keys(region, arrays)
    if order is None:
        order = _order_by_merging(region, arrays)
    found = (np.take_along_axis(array, order, axis=-1) for array in arrays)
    return [np.moveaxis(array, -1, axis) for array in found]


def _order_by_keys(region: Region, arrays: Arrays) -> np.ndarray | None:
    """The stable order of the comparator's keys; nothing if it has none, or NaNs without order."""
    keys = sort_keys(region)
    if keys is None:
        return None
    columns = []
    for key in keys:
        (values,) = evaluate(key.region, [array for array in arrays for _ in range(2)])
        column = _comparable(np.broadcast_to(values, arrays[0].shape), key)
        if column is None:
            return None
        columns.append(column)
    if len(columns) == 1:
        return np.argsort(columns[0], axis=-1, kind="stable")
    return np.lexsort(columns[::-1], axis=-1)


def _comparable(values: np.ndarray, key: Key) -> np.ndarray | None:
    """Integers in the key's order, smallest first."""
    column = total_order(values if key.is_total else _one_zero(values))
    if not key.is_total and values.dtype.kind not in "biu" and bool((values != values).any()):
        return None
    return ~column if key.largest_first else column


def _one_zero(values: np.ndarray) -> np.ndarray:
    """Floats with -0 made 0, which they equal."""
    if values.dtype.kind in "biu":
        return values
    return np.where(values == 0, np.zeros((), values.dtype), values)


def _order_by_merging(region: Region, arrays: Arrays) -> np.ndarray:
    """Runs of 1, 2, 4 … elements are merged two by two; equals stay as they were."""
    shape = arrays[0].shape
    order = np.broadcast_to(np.arange(shape[-1]), shape)
    width = 1
    while width < shape[-1]:
        order = _merged(
            region, [np.take_along_axis(a, order, axis=-1) for a in arrays], order, width
        )
        width *= 2
    return order


def _merged(region: Region, arrays: Arrays, order: np.ndarray, width: int) -> np.ndarray:
    """The order after merging each run of even number with the one behind it."""
    size = order.shape[-1]
    positions = np.arange(size)
    is_left = positions % (2 * width) < width
    left = positions[is_left]
    middle = np.minimum(left - left % (2 * width) + width, size)
    end = np.minimum(middle + width, size)
    low = np.broadcast_to(middle, (*order.shape[:-1], len(left)))
    high = np.broadcast_to(end, low.shape)
    own = [array[..., left] for array in arrays]
    for _ in range(width.bit_length()):
        probe = np.minimum((low + high) // 2, size - 1)
        others = [np.take_along_axis(array, probe, axis=-1) for array in arrays]
        (goes_first,) = evaluate(
            region, [x for pair in zip(others, own, strict=True) for x in pair]
        )
        right = goes_first & (low < high)
        low, high = np.where(right, probe + 1, low), np.where(right | (low >= high), high, probe)
    # a comparator that is no order must still give a permutation
    ahead = np.maximum.accumulate(low, axis=-1) - middle
    taken = np.zeros(order.shape, bool)
    np.put_along_axis(taken, left + ahead, values=True, axis=-1)
    result = np.empty(order.shape, order.dtype)
    result[taken] = order[..., is_left].reshape(-1)
    result[~taken] = order[..., ~is_left].reshape(-1)
    return result


def _topk(work: Work, operands: Arrays) -> Arrays:
    """The first k in the total order, or in the reverse of it; equals by their places."""
    count, key = work.integer("k"), total_order(operands[0])
    if work.attributes["largest"]:
        key = ~key
    order = np.argsort(key, axis=-1, kind="stable")[..., :count]
    values = np.take_along_axis(operands[0], order, axis=-1)
    return [values, order.astype(work.results[1].dtype.numpy)]


ORDERING_KERNELS: Mapping[str, Kernel] = {"sort": _sort, "topk": _topk}
"""Kernels that order elements."""
