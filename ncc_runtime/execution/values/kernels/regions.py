"""Regions: scalar computations applied to whole arrays, and folds of dimensions with them."""

import numpy as np

from ncc_runtime.execution.values.kernels import elementwise
from ncc_runtime.execution.values.kernels.numbers import MAY_KEEP_BITS, canonical_nans, keeps_bits
from ncc_runtime.neff.listing import scalar
from ncc_runtime.neff.program import Region, RegionInstr

_SUMS = {"add": np.add, "multiply": np.multiply}


def evaluate(region: Region, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The region's results, elementwise over arguments of one shape.

    Values that are only moved keep their bits; of those computed, a NaN that is a
    result, or whose bits are observed, becomes the canonical one.
    """
    values = list(arguments)
    seen = _seen(region)
    shape = arguments[0].shape if arguments else ()
    for step in region.body:
        if step.opcode == "constant":
            assert step.constant is not None, "a constant of a region has a value"
            values.append(np.broadcast_to(scalar(step.constant, step.dtype), shape))
        else:
            operands = [values[number] for number in step.operands]
            value = elementwise.apply(step.opcode, operands, step.dtype, step.attributes)
            is_new = len(values) in seen and not keeps_bits(step.opcode, operands[0].dtype)
            values.append(canonical_nans(value) if is_new else value)
    return [values[number] for number in region.results]


def _seen(region: Region) -> set[int]:
    """Values whose bits are results, are moved on, or tell one NaN from another."""
    readers = [step for step in region.body if _observes_bits(step)]
    return {*region.results, *(number for step in readers for number in step.operands)}


def _observes_bits(step: RegionInstr) -> bool:
    """Whether its result hangs on which NaN an operand is."""
    return step.opcode in MAY_KEEP_BITS or step.attributes.get("type") == "TOTALORDER"


def fold(
    region: Region, arrays: list[np.ndarray], initial: list[np.ndarray], dimensions: tuple[int, ...]
) -> list[np.ndarray]:
    """Fold dimensions (counted without the leading ranks) of arrays of one shape.

    Neighbours are joined pairwise, in order, until one is left; the initial values join from the
    left. Float32 and float64 sums use numpy's pairwise sum over a contiguous axis.
    """
    flat = [_folded_last(array, dimensions) for array in arrays]
    shape = flat[0].shape[:-1]
    start = [_spread(first, shape) for first in initial]
    if not flat[0].shape[-1]:
        return start
    opcode = single_opcode(region)
    if opcode in _SUMS and flat[0].dtype in (np.float32, np.float64):
        joined = [_SUMS[opcode].reduce(flat[0], axis=-1)]
    else:
        joined = _pairwise(region, flat)
    return evaluate(region, [*start, *joined])


def _folded_last(array: np.ndarray, dimensions: tuple[int, ...]) -> np.ndarray:
    """The array as [ranks, kept…, folded], contiguous."""
    kept = [axis for axis in range(array.ndim) if axis - 1 not in dimensions]
    moved = array.transpose(*kept, *(axis + 1 for axis in sorted(dimensions)))
    shape = [array.shape[axis] for axis in kept]
    size = int(np.prod([array.shape[axis + 1] for axis in dimensions], dtype=np.int64))
    return np.ascontiguousarray(moved.reshape(*shape, size))


def _spread(initial: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An initial value [ranks] over [ranks, …]."""
    return np.broadcast_to(initial.reshape(-1, *([1] * (len(shape) - 1))), shape)


def single_opcode(region: Region) -> str:
    """The opcode, where the region is one operation on its two parameters; else nothing."""
    if len(region.parameters) == 2 and len(region.body) == 1 and region.results == (2,):
        step = region.body[0]
        if sorted(step.operands) == [0, 1]:
            return step.opcode
    return ""


def _pairwise(region: Region, arrays: list[np.ndarray]) -> list[np.ndarray]:
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
