"""Regions: scalar computations applied to whole arrays, and folds of dimensions with them."""

import math
from collections.abc import Callable

import numpy as np

from ncc_runtime.execution.values.kernels import elementwise
from ncc_runtime.execution.values.kernels.numbers import MAY_KEEP_BITS, canonical_nans, keeps_bits
from ncc_runtime.neff.program import CONSTANT, Region
from ncc_runtime.neff.shared.dtypes import scalar

SUMS = {"add": np.add, "multiply": np.multiply}
"""Folds of float32 and float64 that numpy has a loop for, which goes pairwise."""
EXTREMES = {"maximum": np.maximum, "minimum": np.minimum}


def evaluate(region: Region, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The region's results, elementwise over arguments of one shape.

    Values that are only moved keep their bits; of those computed, a NaN that is a
    result, or whose bits are observed, becomes the canonical one.
    """
    values, observed = list(arguments), observed_in(region)
    shape = arguments[0].shape if arguments else ()
    for step in region.body:
        if step.opcode == CONSTANT:
            assert step.constant is not None, "a constant of a region has a value"
            values.append(np.broadcast_to(scalar(step.constant, step.dtype), shape))
        else:
            operands = [values[number] for number in step.operands]
            value = elementwise.apply(step.opcode, operands, step.dtype, step.attributes)
            is_computed = not keeps_bits(step.opcode, operands[0].dtype)
            is_observed = len(values) in observed
            values.append(canonical_nans(value) if is_computed and is_observed else value)
    return [values[number] for number in region.results]


def observed_in(region: Region) -> set[int]:
    """Values whose bits are results, are moved on, or tell one NaN from another."""
    observed = set(region.results)
    for step in region.body:
        if step.opcode in MAY_KEEP_BITS or step.attributes.get("type") == "TOTALORDER":
            observed.update(step.operands)
    return observed


def fold(
    region: Region, arrays: list[np.ndarray], initial: list[np.ndarray], dimensions: tuple[int, ...]
) -> list[np.ndarray]:
    """Fold dimensions (counted without the leading ranks) of arrays of one shape.

    Neighbours are combined pairwise, in order, until one is left; then the initial values from the
    left. Float32 and float64 sums use numpy's pairwise sum over a contiguous axis.
    """
    # Each array as [ranks, kept…, folded], contiguous; `dimensions` do not count the ranks.
    kept = [axis for axis in range(arrays[0].ndim) if axis - 1 not in dimensions]
    folded = [dimension + 1 for dimension in sorted(dimensions)]
    shape = tuple(arrays[0].shape[axis] for axis in kept)
    size = math.prod(arrays[0].shape[axis] for axis in folded)
    rows = [
        np.ascontiguousarray(array.transpose(*kept, *folded).reshape(*shape, size))
        for array in arrays
    ]
    trailing = [1] * (len(shape) - 1)
    start = [np.broadcast_to(value.reshape(-1, *trailing), shape) for value in initial]
    if not size:
        return start
    opcode = single_opcode(region)
    if (join := fold_of_rows(opcode, rows[0].dtype)) is not None:
        with np.errstate(all="ignore"):
            return [canonical_nans(join(start[0], rows[0]))]
    return evaluate(region, [*start, *_fold_pairwise(region, rows)])


def fold_of_rows(
    opcode: str, dtype: np.dtype
) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    """What joins rows [.., elements] by one operation behind initial values [..], by numpy's loops.

    None where there is none with the bits of a fold in pairs. NaNs may be any.
    """
    if opcode in SUMS and dtype in (np.float32, np.float64):
        join = SUMS[opcode]
        return lambda start, rows: join(start, join.reduce(rows, axis=-1))
    if opcode in EXTREMES and (dtype in (np.float32, np.float64) or dtype.kind in "iu"):
        either = elementwise.FUNCTIONS[opcode]
        return lambda start, rows: either(start, _extreme(opcode, rows))
    return None


def single_opcode(region: Region) -> str:
    """The opcode, where the region is one operation on its two parameters; else nothing."""
    if len(region.parameters) == 2 and len(region.body) == 1 and region.results == (2,):
        step = region.body[0]
        if sorted(step.operands) == [0, 1]:
            return step.opcode
    return ""


def _extreme(opcode: str, rows: np.ndarray) -> np.ndarray:
    """The largest or smallest of each row, which is one whatever the order; -0 is less than 0."""
    found = np.asarray(EXTREMES[opcode].reduce(rows, axis=-1))
    is_zero = found == 0
    if rows.dtype.kind == "f" and is_zero.any():  # numpy takes either one
        some = rows[is_zero]
        is_wanted = (some == 0) & (np.signbit(some) == (opcode == "minimum"))
        zero = found.dtype.type(0)
        wanted, other = (-zero, zero) if opcode == "minimum" else (zero, -zero)
        found[is_zero] = np.where(is_wanted.any(axis=-1), wanted, other)
    return found


def _fold_pairwise(region: Region, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Fold the last axis: neighbours are combined, and an odd last one is kept, in each round."""
    while (size := arrays[0].shape[-1]) > 1:
        even = size - size % 2
        pairs = evaluate(
            region,
            [array[..., 0:even:2] for array in arrays] + [array[..., 1:even:2] for array in arrays],
        )
        arrays = [
            np.concatenate((pair, array[..., even:]), axis=-1)
            for pair, array in zip(pairs, arrays, strict=True)
        ]
    return [array[..., 0] for array in arrays]
