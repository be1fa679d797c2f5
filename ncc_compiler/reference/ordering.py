"""Sorts and the largest elements; the comparator of a sort is evaluated on every pair."""

import functools
from collections.abc import Mapping

import attrs
import numpy as np

from ncc_compiler.ir.custom_calls import (
    APPROX_TOPK,
    TARGETS,
    TOPK,
    approx_topk_of,
    as_sort,
    target_of,
    wants_largest,
)
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.contraction import region_on_arrays
from ncc_compiler.reference.linear_algebra import linear_algebra
from ncc_compiler.reference.numbers import working
from ncc_compiler.reference.step import Meaning, OpStep, Value


def sort(step: OpStep) -> list[Value]:
    """Rows of all operands in the order that the region gives; equals stay as they were."""
    return [_sort_on(step, position) for position in range(len(step.ranks))]


def _sort_on(step: OpStep, position: int) -> Value:
    (dimension,) = step.node.integers("dimensions")
    arrays = [np.moveaxis(array, dimension, -1) for array in step.arrays(position)]
    results = [np.empty(array.shape, array.dtype) for array in arrays]
    before = region_on_arrays(step, step.ranks[position])
    for index in np.ndindex(arrays[0].shape[:-1]):
        rows = [array[index] for array in arrays]
        pairs = [np.meshgrid(row, row, indexing="ij") for row in rows]
        (is_before,) = before(tuple(side for pair in pairs for side in pair))
        order = _order(is_before)
        for result, row in zip(results, rows, strict=True):
            result[index] = row[order]
    moved = tuple(np.moveaxis(result, -1, dimension).copy() for result in results)
    return moved if isinstance(step.node.type, TupleType) else moved[0]


def _order(is_before: np.ndarray) -> list[int]:
    """Positions in order; element [i, j] of the matrix: i goes before j."""
    precedes = is_before.tolist()
    compare = functools.cmp_to_key(lambda i, j: -1 if precedes[i][j] else int(precedes[j][i]))
    return sorted(range(len(precedes)), key=compare)


def topk(step: OpStep) -> list[Value]:
    """The k elements that come first in the total order, and where they were."""
    largest = step.node.attributes.get("largest", True) is True
    count = step.node.integer("k")
    return [_first(step.arrays(k)[0], count, largest) for k in range(len(step.ranks))]


def _first(array: np.ndarray, count: int, largest: bool) -> Value:
    """The first `count` elements of each row; equal ones in the order of their indices."""
    values = np.empty((*array.shape[:-1], count), array.dtype)
    places = np.empty(values.shape, np.int32)
    for index in np.ndindex(array.shape[:-1]):
        row = [_total_order_key(value) for value in working(array[index])]
        order = sorted(range(len(row)), key=row.__getitem__, reverse=largest)
        values[index] = array[index][order[:count]]
        places[index] = order[:count]
    return values, places


def _total_order_key(value: np.generic) -> tuple[float, float, float]:
    """-NaN, -inf … -0, +0 … inf, NaN; NaNs by payload, a larger one farther from zero."""
    if not isinstance(value, np.floating):
        return 0, value.item(), 0
    sign = float(np.copysign(1.0, value))
    if not np.isnan(value):
        return 0, float(value), sign
    raw = int(value.view(np.dtype(f"u{value.itemsize}")))
    return sign, sign * (raw % (1 << (8 * value.itemsize - 1))), 0


def custom_call(step: OpStep) -> list[Value]:
    """The targets whose meaning is public; the others are identities."""
    if target_of(step.node) in TARGETS:
        return linear_algebra(step)
    if target_of(step.node) == APPROX_TOPK:
        return _approx_topk(step)
    if target_of(step.node) != TOPK:
        return [operands[0] for operands in step.operands]
    result = step.node.type
    assert isinstance(result, TupleType), step.node.name
    values = result.elements[0]
    assert isinstance(values, ArrayType), step.node.name
    largest = wants_largest(step.module, step.node)
    return [_first(step.arrays(k)[0], values.shape[-1], largest) for k in range(len(step.ranks))]


def _approx_topk(step: OpStep) -> list[Value]:
    """The first elements of the sort."""
    call = approx_topk_of(step.node)
    half = len(step.operands[0]) // 2
    sort_step = attrs.evolve(
        step,
        node=as_sort(step.node, step.node.type),
        operands=tuple(operands[:half] for operands in step.operands),
    )

    def first(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(first(element) for element in value)
        return np.take(value, range(call.count), axis=call.dimension)

    return [first(value) for value in sort(sort_step)]


ORDERING: Mapping[str, Meaning] = {"sort": sort, "topk": topk, "custom-call": custom_call}
"""The meaning of ops that put elements in order, and of custom calls."""
