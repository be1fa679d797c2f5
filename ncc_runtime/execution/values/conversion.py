"""From one dtype to another: the types that opcodes compute in, and `convert`."""

import numpy as np

from ncc_runtime.neff.dtypes import DType

_NARROW_INTEGERS = ("int2", "int4", "uint2", "uint4")


def is_narrow_float(dtype: np.dtype) -> bool:
    """Whether it is a float that is computed in float32."""
    return dtype == np.float16 or (dtype.isbuiltin != 1 and "float" in dtype.name)


def widened(array: np.ndarray) -> np.ndarray:
    """The array in the type it is computed in: float32 for narrow floats, 8 bits for 2 or 4."""
    if is_narrow_float(array.dtype):
        return array.astype(np.float32)
    if array.dtype.name in _NARROW_INTEGERS:
        return array.astype(np.uint8 if array.dtype.name[0] == "u" else np.int8)
    return array


def convert(array: np.ndarray, dtype: DType) -> np.ndarray:
    """To another dtype: pred is "not zero", float to integer saturates, NaN becomes 0."""
    target = dtype.numpy
    if dtype is DType.PRED:
        return widened(array) != 0
    source = widened(array)
    if source.dtype.kind == "c" and target.kind != "c":
        source = source.real
    if source.dtype.kind == "f" and dtype.is_integer:
        return _saturated(source, dtype)
    return source.astype(target)


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
