"""Regions: scalar computations applied to whole arrays."""

import numpy as np

from ncc_runtime.execution.values.kernels import elementwise
from ncc_runtime.execution.values.kernels.numbers import MAY_KEEP_BITS, canonical_nans, keeps_bits
from ncc_runtime.neff.program import CONSTANT, Region
from ncc_runtime.neff.shared.dtypes import scalar


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


def single_opcode(region: Region) -> str:
    """The opcode, where the region is one operation on its two parameters; else nothing."""
    if len(region.parameters) == 2 and len(region.body) == 1 and region.results == (2,):
        step = region.body[0]
        if sorted(step.operands) == [0, 1]:
            return step.opcode
    return ""
