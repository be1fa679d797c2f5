"""Elementwise operations on arrays of any shape, with XLA's meaning at the edges.

Narrow floats (bfloat16, float16, fp8) are computed in float32 and rounded once, 4-bit integers in
8 bits and wrapped. Integers wrap;
division by zero gives all ones, its remainder the dividend. pred adds as `or`, multiplies as `and`.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ncc_runtime.neff.dtypes import DType

Attributes = Mapping[str, object]
Function = Callable[..., np.ndarray]


def apply(
    opcode: str, arrays: list[np.ndarray], dtype: DType, attributes: Attributes
) -> np.ndarray:
    """One elementwise opcode; the result has `dtype`, rounded once."""
    with np.errstate(all="ignore"):
        if opcode == "convert":
            return convert(arrays[0], dtype)
        if opcode == "compare":
            return _compare(arrays, attributes)
        if opcode == "select":
            return np.where(arrays[0], arrays[1], arrays[2])
        result = FUNCTIONS[opcode](*(_widened(array) for array in arrays))
        return result.astype(dtype.numpy, copy=False)


def _is_narrow(dtype: np.dtype) -> bool:
    return dtype == np.float16 or (dtype.isbuiltin != 1 and "float" in dtype.name)


def _widened(array: np.ndarray) -> np.ndarray:
    """The array in the type it is computed in: float32 for narrow floats, 8 bits for 4."""
    if _is_narrow(array.dtype):
        return array.astype(np.float32)
    if array.dtype == DType.S4.numpy:
        return array.astype(np.int8)
    return array.astype(np.uint8) if array.dtype == DType.U4.numpy else array


def convert(array: np.ndarray, dtype: DType) -> np.ndarray:
    """To another dtype: pred is "not zero", float to integer saturates, NaN becomes 0."""
    target = dtype.numpy
    if dtype is DType.PRED:
        return array != np.zeros((), array.dtype)
    source = _widened(array)
    if source.dtype.kind == "c" and target.kind != "c":
        source = source.real
    if source.dtype.kind == "f" and dtype.is_integer:
        return _saturated(source, dtype)
    return source.astype(target)


def _saturated(array: np.ndarray, dtype: DType) -> np.ndarray:
    bits = 4 if dtype in (DType.S4, DType.U4) else dtype.size_bytes * 8
    low = -(2 ** (bits - 1)) if dtype.is_signed else 0
    high = 2 ** (bits - 1) - 1 if dtype.is_signed else 2**bits - 1
    wide = array.astype(np.float64)
    holder = np.dtype(np.uint64) if bits == 64 and not dtype.is_signed else np.dtype(np.int64)
    inside = (wide > float(low) - 1) & (wide < float(high) + (0.0 if bits == 64 else 1.0))
    whole = np.where(inside, np.trunc(wide), 0).astype(holder)
    whole = np.where(wide >= float(high) + (0 if bits == 64 else 1), holder.type(high), whole)
    whole = np.where(wide <= float(low), holder.type(low), whole)
    return np.where(np.isnan(wide), holder.type(0), whole).astype(dtype.numpy)


_DIRECTIONS: dict[str, Function] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def _compare(arrays: list[np.ndarray], attributes: Attributes) -> np.ndarray:
    left, right = (_widened(array) for array in arrays)
    if attributes.get("type") == "TOTALORDER" and left.dtype.kind == "f":
        left, right = _total_order(left), _total_order(right)
    return _DIRECTIONS[str(attributes["direction"])](left, right)


def _total_order(array: np.ndarray) -> np.ndarray:
    """Integers in IEEE 754's total order: -NaN < -inf < … < -0 < +0 < … < inf < NaN."""
    bits = array.view(np.dtype(f"i{array.dtype.itemsize}"))
    return np.where(bits < 0, ~bits ^ np.iinfo(bits.dtype).min, bits)


def _is_integer(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu"


def _add(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left | right if left.dtype == bool else left + right


def _multiply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left & right if left.dtype == bool else left * right


def _divide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if not _is_integer(left):
        return left / right
    quotient, _ = _truncated(left, right)
    return np.where(right == 0, ~np.zeros_like(left), quotient)


def _remainder(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if not _is_integer(left):
        return np.fmod(left, right)
    _, rest = _truncated(left, right)
    return np.where(right == 0, left, rest)


def _truncated(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quotient towards zero and remainder of the dividend's sign; 0 where the divisor is 0."""
    if left.dtype.kind == "u":
        divisor = np.where(right == 0, np.ones_like(right), right)
        return left // divisor, left % divisor
    # -1 is taken apart: the smallest integer divided by it would trap
    unsafe = (right == 0) | (right == -1)
    divisor = np.where(unsafe, np.ones_like(right), right)
    rest = np.fmod(left, divisor)
    quotient = np.where(right == -1, np.negative(left), (left - rest) // divisor)
    return quotient, np.where(unsafe, np.zeros_like(left), rest)


def _power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    if not _is_integer(base):
        return np.power(base, exponent)
    result, square, left = np.ones_like(base), base.copy(), exponent.copy()
    left[exponent < 0] = 0
    while left.any():
        result = np.where(left & 1, result * square, result)
        square = square * square
        left = left >> 1
    if base.dtype.kind == "u":
        return result
    sign = np.where(exponent & 1, base, np.ones_like(base))
    inverse = np.where(np.abs(base) == 1, sign, np.zeros_like(base))
    return np.where(exponent < 0, inverse, result)


def _maximum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if left.dtype.kind != "f":
        return np.maximum(left, right)
    zeros = (left == 0) & (right == 0)
    return np.where(zeros, left + right, np.maximum(left, right))  # -0 only if both are


def _minimum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if left.dtype.kind != "f":
        return np.minimum(left, right)
    zeros = (left == 0) & (right == 0)
    return np.where(zeros, -(-left - right), np.minimum(left, right))  # -0 if either is


def _sign(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f":
        return np.sign(array)
    return np.where(array == 0, array, np.sign(array))


def _logistic(array: np.ndarray) -> np.ndarray:
    one = array.dtype.type(1)
    return one / (one + np.exp(-array))


def _rsqrt(array: np.ndarray) -> np.ndarray:
    return array.dtype.type(1) / np.sqrt(array)


def _not(array: np.ndarray) -> np.ndarray:
    return ~array


def _same(array: np.ndarray) -> np.ndarray:
    return array


FUNCTIONS: dict[str, Function] = {
    "abs": np.abs,
    "add": _add,
    "and": np.bitwise_and,
    "ceil": np.ceil,
    "copy": _same,
    "divide": _divide,
    "exponential": np.exp,
    "floor": np.floor,
    "log": np.log,
    "logistic": _logistic,
    "maximum": _maximum,
    "minimum": _minimum,
    "multiply": _multiply,
    "negate": np.negative,
    "not": _not,
    "or": np.bitwise_or,
    "power": _power,
    "remainder": _remainder,
    "rsqrt": _rsqrt,
    "sign": _sign,
    "sqrt": np.sqrt,
    "subtract": np.subtract,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}
"""Opcodes that are one function of widened arrays; `convert`, `compare`, `select` are in apply."""
