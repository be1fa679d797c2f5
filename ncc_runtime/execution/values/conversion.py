"""From one dtype to another: the types that opcodes compute in, and `convert`."""

import numpy as np

from ncc_runtime.execution.values.nans import quiet_nans
from ncc_runtime.neff.dtypes import DType

_NARROW_INTEGERS = ("int1", "int2", "int4", "uint1", "uint2", "uint4")


def is_narrow_float(dtype: np.dtype) -> bool:
    """Whether it is a float that is computed in float32."""
    return dtype == np.float16 or (dtype.isbuiltin != 1 and "float" in dtype.name)


def widened(array: np.ndarray) -> np.ndarray:
    """The array in the type it is computed in: float32 for narrow floats, 8 bits for fewer."""
    if is_narrow_float(array.dtype):
        return array.astype(np.float32)
    if array.dtype.name in _NARROW_INTEGERS:
        return array.astype(np.uint8 if array.dtype.name[0] == "u" else np.int8)
    return array


def convert(array: np.ndarray, dtype: DType) -> np.ndarray:
    """To another dtype: pred is "not zero", float to integer saturates, NaN becomes 0.

    To a float, a NaN keeps its sign and what there is room for of its payload.
    """
    target = dtype.numpy
    if array.dtype == target:
        return array
    if dtype is DType.PRED:
        return widened(array) != 0
    source = widened(array)
    if source.dtype.kind == "c" and target.kind != "c":
        source = source.real
    if source.dtype.kind == "f" and dtype.is_integer:
        return _saturated(source, dtype)
    return _rounded(source, array.dtype, target)


def _rounded(wide: np.ndarray, source: np.dtype, target: np.dtype) -> np.ndarray:
    """To a float or complex type; float16 has quiet NaNs only, and of float64 their sign."""
    if target == np.float16 and wide.dtype.kind == "f":
        if wide.dtype == np.float64:
            wide = np.where(np.isnan(wide), np.copysign(np.nan, wide), wide)
        return quiet_nans(wide).astype(target)
    result = wide.astype(target)
    return quiet_nans(result) if source == np.float16 and target in _HOST_FLOATS else result


_HOST_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def _saturated(array: np.ndarray, dtype: DType) -> np.ndarray:
    bits = dtype.bits
    low = -(2 ** (bits - 1)) if dtype.is_signed else 0
    high = 2 ** (bits - 1) - 1 if dtype.is_signed else 2**bits - 1
    wide = array.astype(np.float64)
    holder = np.dtype(np.uint64) if bits == 64 and not dtype.is_signed else np.dtype(np.int64)
    inside = (wide > float(low) - 1) & (wide < float(high) + (0.0 if bits == 64 else 1.0))
    whole = np.where(inside, np.trunc(wide), 0).astype(holder)
    whole = np.where(wide >= float(high) + (0 if bits == 64 else 1), holder.type(high), whole)
    whole = np.where(wide <= float(low), holder.type(low), whole)
    return np.where(np.isnan(wide), holder.type(0), whole).astype(dtype.numpy)
