"""NaNs, the total order of floats, the types that opcodes compute in, and `convert`.

The NaN of a result is the operand's where bits are only moved, else the canonical one: which NaN
arithmetic keeps depends on numpy's loops, not on the program.
"""

import functools

import numpy as np

from ncc_runtime.neff.shared.dtypes import DType

MAY_KEEP_BITS = frozenset(
    {
        *("abs", "bitcast-convert", "complex", "convert", "copy", "imag", "negate", "real"),
        *("reduce-precision", "select", "sign"),
    }
)
"""Opcodes that do no arithmetic with a NaN: they move it, change its sign or its type."""

_COMPUTES_COMPLEX = frozenset({"abs", "sign"})


def keeps_bits(opcode: str, operand: np.dtype) -> bool:
    """Whether the NaNs of a result are the operand's; complex `abs` and `sign` compute theirs."""
    if opcode in _COMPUTES_COMPLEX and operand.kind == "c":
        return False
    return opcode in MAY_KEEP_BITS


def quiet_nans(array: np.ndarray) -> np.ndarray:
    """Floats of 16, 32 or 64 bits with the highest payload bit of every NaN set, as converters do.

    Numpy's own conversions of float16 do so on some hosts only.
    """
    is_nan = np.isnan(array)
    if not is_nan.any():
        return array
    raw = np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}"))
    highest = raw.dtype.type(1 << (np.finfo(array.dtype).nmant - 1))
    return np.where(is_nan, raw | highest, raw).view(array.dtype)


def has_nan(array: np.ndarray) -> bool:
    """Whether float32 or float64 that are not empty have a NaN, which is greater than all."""
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(array.max()))


@functools.cache  # numpy makes the names of its types anew each time
def may_be_nan(dtype: np.dtype) -> bool:
    """Whether it is a type of floats or of complex numbers."""
    return dtype.kind in "fc" or "float" in dtype.name


def canonical_nans(array: np.ndarray) -> np.ndarray:
    """The array with every NaN the positive quiet one, so that no bit depends on the batch."""
    if not may_be_nan(array.dtype):
        return array
    if array.dtype.kind == "c":  # each part by itself: the other one may be a number
        parts = np.ascontiguousarray(array).view(array.real.dtype)
        return canonical_nans(parts).view(array.dtype).reshape(array.shape)
    if array.dtype in HOST_FLOATS and array.size and not has_nan(array):
        return array
    with np.errstate(invalid="ignore"):  # one 8-bit type raises it for its NaNs
        is_nan = np.isnan(array)
    if not is_nan.any():
        return array
    return np.where(is_nan, np.array(np.nan, array.dtype), array)


_FEW_BITS = ("float4_", "float6_")


def total_order(array: np.ndarray) -> np.ndarray:
    """Integers in the order -NaN < -inf < … < -0 < +0 < … < inf < NaN; other types as they are."""
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind == "b" or "int" in array.dtype.name:  # of 4 bits and less
        return array.astype(np.int8)
    # Some types have one NaN, with the bits of a -0; in others the sign is not the byte's top bit.
    if array.dtype.name.endswith(("fnuz", "fnu")) or array.dtype.name.startswith(_FEW_BITS):
        array = array.astype(np.float32)
    raw = np.ascontiguousarray(array).view(np.dtype(f"i{array.dtype.itemsize}"))
    return np.where(raw < 0, raw ^ np.iinfo(raw.dtype).max, raw)


_NARROW_INTEGERS = ("int1", "int2", "int4", "uint1", "uint2", "uint4")


def is_narrow_float(dtype: np.dtype) -> bool:
    """Whether it is a float that is computed in float32."""
    return dtype == np.float16 or (dtype.isbuiltin != 1 and "float" in dtype.name)


@functools.cache
def wide_type(dtype: np.dtype) -> np.dtype:
    """The type that arithmetic is in: float32 for narrow floats, 8 bits for fewer."""
    if is_narrow_float(dtype):
        return np.dtype(np.float32)
    if dtype.name in _NARROW_INTEGERS:
        return np.dtype(np.uint8 if dtype.name[0] == "u" else np.int8)
    return dtype


def widened(array: np.ndarray) -> np.ndarray:
    """The array in the type it is computed in."""
    return array.astype(wide_type(array.dtype), copy=False)


def convert(array: np.ndarray, dtype: DType) -> np.ndarray:
    """To another dtype: pred is "not zero", float to integer saturates, NaN becomes 0.

    To a float, a NaN keeps its sign and as much of its payload as the type has bits for.
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
    return quiet_nans(result) if source == np.float16 and target in HOST_FLOATS else result


HOST_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def _saturated(array: np.ndarray, dtype: DType) -> np.ndarray:
    bits = dtype.bits
    low = -(2 ** (bits - 1)) if dtype.is_signed else 0
    high = 2 ** (bits - 1) - 1 if dtype.is_signed else 2**bits - 1
    wide = array.astype(np.float64)
    carrier = np.dtype(np.uint64) if bits == 64 and not dtype.is_signed else np.dtype(np.int64)
    # The first float above the range: of 64 bits float(high) is rounded up to it already.
    above = float(high) + (0.0 if bits == 64 else 1.0)
    inside = (wide > float(low) - 1) & (wide < above)
    result = np.where(inside, np.trunc(wide), 0).astype(carrier)
    result = np.where(wide >= above, carrier.type(high), result)
    result = np.where(wide <= float(low), carrier.type(low), result)
    return np.where(np.isnan(wide), carrier.type(0), result).astype(dtype.numpy)
