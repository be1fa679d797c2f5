"""Kernels that put elements in order.

A comparator takes two scalars of each operand, side by side. If it is `key(left) < key(right)`, or
that for a first key and, where the first keys are equal, for a second and so on, then a stable
argsort of the keys does the same. A key is whatever the region computes from one side alone.

Any other comparator runs on whole arrays in a merge sort: all pairs of runs at once, the position
of each element by binary search.
"""

from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels.numbers import total_order
from ncc_runtime.execution.values.kernels.regions import evaluate
from ncc_runtime.execution.values.kernels.work import Arrays, Kernel, KernelCall
from ncc_runtime.neff.program import Region, RegionInstr


@attrs.frozen
class Key:
    """What elements are sorted by: `region` gives it as its only result, from the left side."""

    region: Region
    largest_first: bool
    is_total: bool  # by the total order of floats; else NaNs are not ordered


def sort_keys(region: Region) -> list[Key] | None:
    """The keys of a comparator, most significant first; None if it is of another form."""
    (result,) = region.results
    return _ComparatorReader(region).keys(result)


class _ComparatorReader:
    """A comparator whose parameters 2k are left and 2k + 1 right."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._count = len(region.parameters)
        known: dict[object, int] = {}
        self._numbers = (_value_numbers(region, 0, known), _value_numbers(region, 1, known))

    def keys(self, value: int) -> list[Key] | None:
        """The keys that a pred value of the region compares."""
        keys: list[Key] = []
        while (key := self._compared(value, ("LT", "GT"))) is None:
            parts = self._first_and_rest(value)
            if parts is None:
                return None
            key, value = parts
            keys.append(key)
        return [*keys, key]

    def _first_and_rest(self, value: int) -> tuple[Key, int] | None:
        """The first key and what decides among equals, of `first or (equal and rest)`."""
        for first, others in self._in_both_orders(value, "or"):
            key = self._compared(first, ("LT", "GT"))
            if key is None:
                continue
            for equal, rest in self._in_both_orders(others, "and"):
                if self._is_equality(equal, key):
                    return key, rest
        return None

    def _in_both_orders(self, value: int, opcode: str) -> Iterator[tuple[int, int]]:
        """The operands of a value that such an opcode computes, and the same swapped."""
        step = self._step(value)
        if step is not None and step.opcode == opcode:
            left, right = step.operands
            yield left, right
            yield right, left

    def _step(self, value: int) -> RegionInstr | None:
        return self._region.body[value - self._count] if value >= self._count else None

    def _compared(self, value: int, directions: tuple[str, ...]) -> Key | None:
        """The key of a comparison of one key on both sides, in one of these directions."""
        step = self._step(value)
        if step is None or step.opcode != "compare":
            return None
        direction = step.attributes["direction"]
        left, right = step.operands
        is_swapped = not self._is_key(left, right)
        if is_swapped:
            left, right = right, left
        if direction not in directions or not self._is_key(left, right):
            return None
        body = self._region.body[: max(0, left - self._count + 1)]
        return Key(
            attrs.evolve(self._region, body=body, results=(left,)),
            (direction == "GT") != is_swapped,
            step.attributes.get("type") == "TOTALORDER",
        )

    def _is_key(self, left: int, right: int) -> bool:
        """Whether two values are one function, of left parameters only and of right ones."""
        of_left, of_right = self._numbers[0][left], self._numbers[1][right]
        return of_left is not None and of_left == of_right

    def _is_equality(self, value: int, key: Key) -> bool:
        """Whether a pred value says that the keys are equal, in the sense of their comparison."""
        equality = self._compared(value, ("EQ",))
        if equality is None or equality.is_total != key.is_total:
            return False
        (compared,), (equated,) = key.region.results, equality.region.results
        return self._numbers[0][compared] == self._numbers[0][equated]


def _value_numbers(region: Region, side: int, known: dict[object, int]) -> list[int | None]:
    """Value numbering: each value's number as a function of one side's parameters.

    Equal functions have equal numbers, on both sides. None: the value reads the other side.
    """
    numbers: list[int | None] = [
        known.setdefault(number // 2, len(known)) if number % 2 == side else None
        for number in range(len(region.parameters))
    ]
    for step in region.body:
        operands = tuple(numbers[operand] for operand in step.operands)
        attributes = tuple(sorted(step.attributes.items()))
        expression = (step.opcode, step.dtype, attributes, step.constant, operands)
        numbers.append(None if None in operands else known.setdefault(expression, len(known)))
    return numbers


_INDEX_BITS = 32


def _packed(keys: np.ndarray) -> np.ndarray | None:
    """Whole numbers in the order of keys, and then of the places along the last axis, their end.

    They are unique, so any sort of them is stable, also the quickest. None for keys too wide.
    """
    if keys.dtype.itemsize == 8 and keys.dtype.kind == "i" and keys.size:
        limits = np.iinfo(np.int32)
        if keys.min() >= limits.min and keys.max() <= limits.max:
            keys = keys.astype(np.int32)
    if keys.dtype.itemsize > 4 or keys.shape[-1] >> _INDEX_BITS:
        return None
    wide = keys.astype(np.uint64 if keys.dtype.kind == "u" else np.int64)
    wide <<= _INDEX_BITS
    wide |= np.arange(keys.shape[-1]).astype(wide.dtype)
    return wide


def _places(packed: np.ndarray) -> np.ndarray:
    """What was packed becomes the places."""
    packed &= packed.dtype.type((1 << _INDEX_BITS) - 1)
    return packed.view(np.int64)


def stable_order(keys: np.ndarray) -> np.ndarray:
    """The stable ascending order of whole numbers along the last axis."""
    packed = _packed(keys) if keys.dtype.itemsize > 2 else None  # numpy counts short ones
    if packed is None:
        return np.argsort(keys, axis=-1, kind="stable")
    packed.sort(axis=-1)
    return _places(packed)


def _sort(call: KernelCall, operands: Arrays) -> Arrays:
    axis = call.integer("dimension") + 1
    arrays = [np.moveaxis(array, axis, -1) for array in operands]
    if arrays[0].shape[-1] < 2 or not arrays[0].size:
        return [array.copy() for array in operands]
    region = call.region()
    order = _order_by_keys(region, arrays)
    if order is None:
        order = _order_by_merging(region, arrays)
    results = (np.take_along_axis(array, order, axis=-1) for array in arrays)
    return [np.moveaxis(array, -1, axis) for array in results]


def _order_by_keys(region: Region, arrays: Arrays) -> np.ndarray | None:
    """The stable order by the comparator's keys; None if it has none, or for NaNs without order."""
    keys = sort_keys(region)
    if keys is None:
        return None
    columns = []
    for key in keys:
        (values,) = evaluate(key.region, [array for array in arrays for _ in range(2)])
        values = np.broadcast_to(values, arrays[0].shape)
        if not key.is_total and values.dtype.kind not in "biu":
            if (values != values).any():
                return None
            values = np.where(values == 0, np.zeros((), values.dtype), values)  # -0 equals 0
        column = total_order(values)
        columns.append(~column if key.largest_first else column)
    if len(columns) == 1:
        return stable_order(columns[0])
    return np.lexsort(columns[::-1], axis=-1)  # the last key is the first to lexsort


def _order_by_merging(region: Region, arrays: Arrays) -> np.ndarray:
    """Runs of 1, 2, 4 … elements are merged two by two; equals stay as they were."""
    shape = arrays[0].shape
    order = np.broadcast_to(np.arange(shape[-1]), shape)
    run = 1
    while run < shape[-1]:
        ordered = [np.take_along_axis(array, order, axis=-1) for array in arrays]
        order = _merged(region, ordered, order, run)
        run *= 2
    return order


def _merged(region: Region, arrays: Arrays, order: np.ndarray, run: int) -> np.ndarray:
    """The order after merging each run of even number with the one behind it.

    Every element of a left run searches the right run for how many elements go before it.
    """
    size = order.shape[-1]
    positions = np.arange(size)
    is_left = positions % (2 * run) < run
    left = positions[is_left]
    middle = np.minimum(left - left % (2 * run) + run, size)
    end = np.minimum(middle + run, size)
    low = np.broadcast_to(middle, (*order.shape[:-1], len(left)))
    high = np.broadcast_to(end, low.shape)
    left_values = [array[..., left] for array in arrays]
    for _ in range(run.bit_length()):
        probe = np.minimum((low + high) // 2, size - 1)
        probed = [np.take_along_axis(array, probe, axis=-1) for array in arrays]
        (goes_first,) = evaluate(
            region, [x for pair in zip(probed, left_values, strict=True) for x in pair]
        )
        right = goes_first & (low < high)
        low, high = np.where(right, probe + 1, low), np.where(right | (low >= high), high, probe)
    # A running maximum: a comparator that is no order must still give a permutation.
    ahead = np.maximum.accumulate(low, axis=-1) - middle
    taken = np.zeros(order.shape, bool)
    np.put_along_axis(taken, left + ahead, values=True, axis=-1)
    result = np.empty(order.shape, order.dtype)
    result[taken] = order[..., is_left].reshape(-1)
    result[~taken] = order[..., ~is_left].reshape(-1)
    return result


def _topk(call: KernelCall, operands: Arrays) -> Arrays:
    """The first k in the total order, or in the reverse of it; equals by their indices."""
    count, key = call.integer("k"), total_order(operands[0])
    if call.attributes["largest"]:
        key = ~key
    packed = _packed(key)
    if packed is None or count == packed.shape[-1]:
        order = stable_order(key)[..., :count]
    else:
        packed.partition(count, axis=-1)
        order = _places(np.sort(packed[..., :count], axis=-1))
    values = np.take_along_axis(operands[0], order, axis=-1)
    return [values, order.astype(call.results[1].dtype.numpy)]


ORDERING_KERNELS: Mapping[str, Kernel] = {"sort": _sort, "topk": _topk}
"""Kernels that order elements."""
