"""Elementwise operations on arrays of any shape, with XLA's meaning at the edges.

Narrow floats (bfloat16, float16, fp8) are computed in float32 and rounded once, 2- and 4-bit
integers in 8 bits and wrapped. Integers wrap; division by zero gives all ones, its remainder the
dividend. pred adds as `or`, multiplies as `and`. An operand of fewer dimensions than the others is
one value for each rank.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ncc_runtime.execution.values import bits, complex_numbers
from ncc_runtime.execution.values.conversion import convert, widened
from ncc_runtime.execution.values.total_order import total_order
from ncc_runtime.execution.values.transcendental import TRANSCENDENTAL
from ncc_runtime.neff.dtypes import DType

Attributes = Mapping[str, object]
Function = Callable[..., np.ndarray]


def apply(
    opcode: str, arrays: Sequence[np.ndarray], dtype: DType, attributes: Attributes
) -> np.ndarray:
    """One elementwise opcode; the result has `dtype`, rounded once."""
    operands = _aligned(arrays)
    with np.errstate(all="ignore"):
        if opcode in BY_DTYPE:
            return BY_DTYPE[opcode](*operands, dtype)
        if opcode == "compare":
            return _compare(operands, attributes)
        if opcode == "reduce-precision":
            return _reduce_precision(operands[0], dtype, attributes)
        result = FUNCTIONS[opcode](*map(widened, operands))
        return result.astype(dtype.numpy, copy=False)


def _aligned(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Every array with equally many dimensions; those that lack some have the leading ones."""
    most = max(array.ndim for array in arrays)
    return [array.reshape(array.shape + (1,) * (most - array.ndim)) for array in arrays]


def _select(condition: np.ndarray, chosen: np.ndarray, other: np.ndarray, _: DType) -> np.ndarray:
    return np.where(condition, chosen, other)


_DIRECTIONS: dict[str, Function] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


_OF_COMPLEX: dict[str, Function] = {
    "LT": complex_numbers.compare(np.less, np.less),
    "LE": complex_numbers.compare(np.less, np.less_equal),
    "GT": complex_numbers.compare(np.greater, np.greater),
    "GE": complex_numbers.compare(np.greater, np.greater_equal),
}


def _compare(arrays: list[np.ndarray], attributes: Attributes) -> np.ndarray:
    ordered = attributes.get("type") == "TOTALORDER"
    left, right = (total_order(array) if ordered else widened(array) for array in arrays)
    direction = str(attributes["direction"])
    if left.dtype.kind == "c" and direction in _OF_COMPLEX:
        return _OF_COMPLEX[direction](left, right)
    return _DIRECTIONS[direction](left, right)


def _reduce_precision(array: np.ndarray, dtype: DType, attributes: Attributes) -> np.ndarray:
    kept = [attributes[name] for name in ("exponent_bits", "mantissa_bits")]
    exponent, mantissa = (number for number in kept if isinstance(number, int))
    return bits.reduce_precision(array, dtype, exponent, mantissa)


def _is_integer(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu"


def _add(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left | right if left.dtype == bool else left + right


def _multiply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if left.dtype == bool:
        return left & right
    return TRANSCENDENTAL["multiply"](left, right) if left.dtype.kind == "c" else left * right


def _divide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if left.dtype.kind == "c":
        return TRANSCENDENTAL["divide"](left, right)
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
        return TRANSCENDENTAL["power"](base, exponent)
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
    """NaN wins; -0 is less than +0; complex numbers are ordered by real part, then imaginary."""
    if left.dtype.kind == "c":
        return complex_numbers.choose(np.greater, _maximum)(left, right)
    larger = np.maximum(left, right)
    if left.dtype.kind != "f":
        return larger
    zeros = (left == 0) & (right == 0)
    return np.where(zeros, left + right, larger) if zeros.any() else larger  # -0 only if both are


def _minimum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """As `_maximum`, from the other end."""
    if left.dtype.kind == "c":
        return complex_numbers.choose(np.less, _minimum)(left, right)
    smaller = np.minimum(left, right)
    if left.dtype.kind != "f":
        return smaller
    zeros = (left == 0) & (right == 0)
    return np.where(zeros, -(-left - right), smaller) if zeros.any() else smaller  # -0 if either is


def _clamp(least: np.ndarray, array: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Where least > most it is most; NaN if any of them is."""
    return _minimum(_maximum(least, array), most)


def _in_own_type(function: Callable[[np.ndarray], np.ndarray]) -> Function:
    """What touches a sign only: float16 as it is, since converting it changes NaNs."""

    def compute(array: np.ndarray, dtype: DType) -> np.ndarray:
        wide = array if array.dtype == np.float16 else widened(array)
        return function(wide).astype(dtype.numpy, copy=False)

    return compute


def _abs(array: np.ndarray) -> np.ndarray:
    return TRANSCENDENTAL["abs"](array) if array.dtype.kind == "c" else np.abs(array)


def _sign(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "c":
        return TRANSCENDENTAL["sign"](array)
    if array.dtype.kind != "f":
        return np.sign(array)
    return np.where((array == 0) | np.isnan(array), array, np.sign(array))


def _round_away(array: np.ndarray) -> np.ndarray:
    """Halves away from zero."""
    whole = np.trunc(array)
    is_up = np.abs(array - whole) >= array.dtype.type(0.5)
    return np.copysign(whole + is_up * np.copysign(array.dtype.type(1), array), array)


def _not(array: np.ndarray) -> np.ndarray:
    return ~array


def _same(array: np.ndarray, _: DType) -> np.ndarray:
    return array


def _real(array: np.ndarray, _: DType) -> np.ndarray:
    return array.real if array.dtype.kind == "c" else array


FUNCTIONS: dict[str, Function] = {
    **TRANSCENDENTAL,
    "add": _add,
    "and": np.bitwise_and,
    "ceil": np.ceil,
    "clamp": _clamp,
    "complex": complex_numbers.joined,
    "divide": _divide,
    "floor": np.floor,
    "imag": np.imag,
    "is-finite": np.isfinite,
    "maximum": _maximum,
    "minimum": _minimum,
    "multiply": _multiply,
    "not": _not,
    "or": np.bitwise_or,
    "power": _power,
    "remainder": _remainder,
    "round-nearest-afz": _round_away,
    "round-nearest-even": np.rint,
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
}
"""Opcodes that are one function of widened arrays."""

BY_DTYPE: dict[str, Function] = {
    "abs": _in_own_type(_abs),
    "bitcast-convert": bits.bitcast,
    "convert": convert,
    "copy": _same,
    "count-leading-zeros": bits.leading_zeros,
    "mulhi": bits.multiply_high,
    "negate": _in_own_type(np.negative),
    "popcnt": bits.population_count,
    "real": _real,
    "select": _select,
    "sign": _in_own_type(_sign),
    "shift-left": bits.shift_left,
    "shift-right-arithmetic": bits.shift_right_arithmetic,
    "shift-right-logical": bits.shift_right_logical,
    "stochastic-convert": bits.stochastic_convert,
}
"""Opcodes that are a function of arrays as they are and of the dtype of the result."""
