"""Between dtypes: `convert` as XLA defines it, and the working dtypes that ops compute in."""

import functools

import numpy as np

from ncc_compiler.ir.graph import Node
from ncc_runtime.neff.dtypes import DType


@functools.cache
def _by_numpy_dtype() -> dict[np.dtype, DType]:
    return {dtype.numpy: dtype for dtype in DType}


def dtype_of(array: np.ndarray) -> DType:
    """The element type that this numpy dtype holds."""
    return _by_numpy_dtype()[array.dtype]


def working(array: np.ndarray) -> np.ndarray:
    """The values in a dtype that numpy itself computes in, exactly."""
    dtype = dtype_of(array)
    if dtype.is_float and dtype.size_bytes < 4:
        return array.astype(np.float32)
    if dtype.is_integer and dtype.bits < 8:
        return array.astype(np.int8 if dtype.is_signed else np.uint8)
    return array


def narrowed(array: np.ndarray, dtype: DType) -> np.ndarray:
    """A result in a working dtype, rounded to nearest even or wrapped."""
    if dtype.is_integer and dtype.bits < 8:
        return _wrapped_to_few_bits(array, dtype)
    return array.astype(dtype.numpy, copy=False)


def _wrapped_to_few_bits(array: np.ndarray, dtype: DType) -> np.ndarray:
    values = 1 << dtype.bits
    low = array.astype(np.int64) & (values - 1)
    is_negative = (low >= values // 2) & dtype.is_signed
    return np.where(is_negative, low - values, low).astype(dtype.numpy)


def converted(array: np.ndarray, node: Node) -> np.ndarray:
    """The array in the dtype of the node's result.

    Floats saturate to integers and NaN becomes 0; integers wrap; anything but zero is true;
    float types are rounded to nearest even, and NaNs keep their sign.
    """
    dtype = node.array.dtype
    if dtype_of(array) is dtype:
        return array
    wide = working(array)
    if dtype is DType.PRED:
        return np.asarray(wide != 0)
    if dtype.is_integer:
        if wide.dtype.kind in "fc":
            return _saturated(wide.real, dtype)
        return narrowed(wide, dtype)
    if dtype.is_complex:
        return wide.astype(dtype.numpy)
    rounded = _rounded(wide.real, dtype)
    source = array if array.dtype.kind != "c" else np.ascontiguousarray(array.real)
    has_payloads = dtype_of(source) in _MANTISSAS and dtype in _MANTISSAS
    return _with_payloads(source, rounded) if has_payloads else rounded


def _saturated(array: np.ndarray, dtype: DType) -> np.ndarray:
    low, high = _integer_range(dtype)
    wide = np.trunc(array.astype(np.float64))
    inside = (wide >= low) & (wide < float(high + 1))
    carrier = np.uint64 if dtype is DType.U64 else np.int64
    exact = np.where(inside, wide, 0).astype(carrier)
    edge = np.where(wide > 0, carrier(high), carrier(min(0, low)))
    result = np.where(inside, exact, np.where(np.isnan(wide), carrier(0), edge))
    return narrowed(result, dtype)


def _integer_range(dtype: DType) -> tuple[int, int]:
    bits = dtype.bits
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.is_signed else (0, 2**bits - 1)


_MANTISSAS = {DType.BF16: 7, DType.F16: 10, DType.F32: 23, DType.F64: 52}


def _with_payloads(source: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """The rounded floats with the NaNs of the source, cut or filled with zeros at the right.

    As the conversions of XLA's CPU: quiet but from bfloat16 to float32, whose upper half it is;
    to bfloat16, and from float64 to float16, only the sign is kept.
    """
    before, after = dtype_of(source), dtype_of(rounded)
    old, new = _MANTISSAS[before], _MANTISSAS[after]
    is_signalling = before is DType.BF16 and after is DType.F32
    is_lost = after is DType.BF16 or (before, after) == (DType.F64, DType.F16)
    quiet, infinity = 1 << (new - 1), (1 << (after.bits - 1)) - (1 << new)

    def carried(raw: int) -> int:
        sign, payload = raw >> (before.bits - 1), 0 if is_lost else raw & ((1 << old) - 1)
        moved = payload << new >> old
        return sign << (after.bits - 1) | infinity | moved | (0 if is_signalling else quiet)

    result, wrong = np.array(rounded), np.isnan(source)
    raw = source[wrong].view(np.dtype(f"u{before.size_bytes}")).tolist()
    bits = np.array([carried(one) for one in raw], np.dtype(f"u{after.size_bytes}"))
    result[wrong] = bits.view(rounded.dtype)
    return result


def _rounded(array: np.ndarray, dtype: DType) -> np.ndarray:
    """To a float type; numpy would round an integer twice on its way to f16."""
    if dtype is DType.F16 and array.dtype.kind in "iu":
        return array.astype(np.float64).astype(np.float16)
    return array.astype(dtype.numpy)
