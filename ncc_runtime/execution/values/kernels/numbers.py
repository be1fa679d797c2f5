"""NaNs, the total order of floats, and the types that numbers are computed in.

The NaN of a result is the operand's where bits are only moved, else the canonical one: which NaN
arithmetic keeps depends on numpy's loops, not on the program.
"""

import functools

import numpy as np

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


@functools.cache  # numpy makes the names of its types anew each time
def may_be_nan(dtype: np.dtype) -> bool:
    """Whether it is a type of floats or of complex numbers."""
    return dtype.kind in "fc" or "float" in dtype.name


def has_nan(array: np.ndarray) -> bool:
    """Whether float32 or float64 that are not empty have a NaN, which is greater than all."""
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(array.max()))


def canonical_nans(array: np.ndarray) -> np.ndarray:
    """The array with every NaN the positive quiet one, so that no bit depends on the batch."""
    if not may_be_nan(array.dtype):
        return array
    if array.dtype.kind == "c":  # each part by itself: the other one may be a number
        parts = np.ascontiguousarray(array).view(array.real.dtype)
        return canonical_nans(parts).view(array.dtype).reshape(array.shape)
    if array.dtype in HOST_FLOATS and array.size and not has_nan(array):
        return array
    if array.dtype.itemsize == 1:
        is_nan = _nans_of_a_byte(array.dtype)[array.view(np.uint8)]
    elif array.dtype.itemsize == 2:
        infinity = np.array(np.inf, array.dtype).view(np.uint16)
        is_nan = (array.view(np.uint16) & np.uint16(0x7FFF)) > infinity
    else:
        is_nan = np.isnan(array)
    if not is_nan.any():
        return array
    return np.where(is_nan, np.array(np.nan, array.dtype), array)


HOST_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


@functools.cache
def _nans_of_a_byte(dtype: np.dtype) -> np.ndarray:
    """Which of the 256 elements of a type of one byte are NaNs."""
    with np.errstate(invalid="ignore"):  # one type raises it for its NaNs
        return np.isnan(np.arange(256, dtype=np.uint8).view(dtype))


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
    order = raw >> (8 * raw.dtype.itemsize - 1)  # all ones where the sign is set
    order &= np.iinfo(raw.dtype).max
    order ^= raw
    return order


NARROW_INTEGERS = ("int1", "int2", "int4", "uint1", "uint2", "uint4")


@functools.cache
def is_narrow_float(dtype: np.dtype) -> bool:
    """Whether it is a float that is computed in float32."""
    return dtype == np.float16 or (dtype.isbuiltin != 1 and "float" in dtype.name)


@functools.cache
def wide_type(dtype: np.dtype) -> np.dtype:
    """What it is computed in: float32 for narrow floats, 8 bits for fewer, else itself."""
    if is_narrow_float(dtype):
        return np.dtype(np.float32)
    if dtype.name in NARROW_INTEGERS:
        return np.dtype(np.uint8 if dtype.name[0] == "u" else np.int8)
    return dtype
