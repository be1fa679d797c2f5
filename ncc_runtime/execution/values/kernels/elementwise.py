"""Elementwise operations on arrays of any shape, with XLA's meaning at the edges.

Narrow floats (bfloat16, float16, fp8) are computed in float32 and rounded once, 2- and 4-bit
integers in 8 bits and wrapped. Integers wrap; division by zero gives all ones, its remainder the
dividend. pred adds as `or`, multiplies as `and`. An operand of fewer dimensions than the others is
one value for each rank.

Complex quotients follow C99, Annex G.5.1, as XLA's do: by zero and by infinity they are infinite
and zero, where numpy gives NaN. Complex numbers are ordered by real part, then by imaginary part.

Numpy has other loops for strided arrays than for contiguous ones, with other last bits. So every
operand of a transcendental function is made contiguous first: the bits must not depend on how many
ranks compute together.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ncc_runtime.execution.values.kernels import bits
from ncc_runtime.execution.values.kernels.compiled import loop
from ncc_runtime.execution.values.kernels.conversions import convert, narrowed, widened
from ncc_runtime.execution.values.kernels.numbers import may_be_nan, total_order, wide_type
from ncc_runtime.neff.shared.dtypes import DType

Parts = tuple[np.ndarray, np.ndarray]


def joined(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """Complex numbers of their parts."""
    dtype = np.result_type(real.dtype, np.complex64)
    result = np.empty(np.broadcast_shapes(real.shape, imaginary.shape), dtype)
    result.real, result.imag = real, imaginary
    return result


def quotient(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left / right."""
    plain = np.asarray(left / right)
    a, b, c, d = left.real, left.imag, right.real, right.imag
    unknown = np.isnan(plain.real) & np.isnan(plain.imag)
    by_zero = (c == 0) & (d == 0)
    if not (unknown | by_zero).any():
        return plain
    infinite = np.copysign(c.dtype.type(np.inf), c)
    is_number = ~(np.isnan(a) & np.isnan(b))
    result = np.where(by_zero & is_number, joined(infinite * a, infinite * b), plain)
    large = (np.isinf(a) | np.isinf(b)) & np.isfinite(c) & np.isfinite(d)
    result = np.where(unknown & large & ~by_zero, _scaled(_unit(a, b), (c, d), np.inf), result)
    small = (np.isinf(c) | np.isinf(d)) & np.isfinite(a) & np.isfinite(b)
    return np.where(unknown & small, _scaled((a, b), _unit(c, d), 0.0), result)


def _unit(x: np.ndarray, y: np.ndarray) -> Parts:
    """For each part 1 where it is infinite, else 0, with the part's sign."""
    one = x.dtype.type(1)
    return np.copysign(one * np.isinf(x), x), np.copysign(one * np.isinf(y), y)


def _scaled(left: Parts, right: Parts, factor: float) -> np.ndarray:
    """factor times left times the conjugate of right."""
    (a, b), (c, d) = left, right
    scale = a.dtype.type(factor)
    return joined(scale * (a * c + b * d), scale * (b * c - a * d))


def sign(array: np.ndarray) -> np.ndarray:
    """array / |array|; zero where it is zero."""
    size = np.abs(array)
    unit = joined(array.real / size, array.imag / size)
    return np.where(size == 0, array, unit)


def expm1(array: np.ndarray) -> np.ndarray:
    """e to the array, minus 1, exact near zero."""
    x, y = array.real.copy(), array.imag.copy()
    half = np.sin(y / 2)
    real = np.expm1(x) * np.cos(y) - 2 * half * half
    return joined(real, np.where(y == 0, y, np.exp(x) * np.sin(y)))


def log1p(array: np.ndarray) -> np.ndarray:
    """The logarithm of 1 + array: numpy's adds 1 first and loses what is small."""
    x, y = array.real.copy(), array.imag.copy()
    size = np.hypot(x + 1, y)
    near = (size > 0.5) & (size < 2)
    exact = np.log1p(np.where(near, x * (2 + x) + y * y, 0)) / 2
    return joined(np.where(near, exact, np.log(size)), np.arctan2(y, x + 1))


def atan2(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """-i log((x + iy) / sqrt(x^2 + y^2)), the principal value."""
    i = y.dtype.type(1j)
    return -i * np.log(quotient(x + i * y, np.sqrt(x * x + y * y)))


def compare(strict: Callable[..., np.ndarray], of_imaginary: Callable[..., np.ndarray]) -> Callable:
    """A comparison by real part, and where these are equal by imaginary part."""

    def compared(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        is_tie = left.real == right.real
        return strict(left.real, right.real) | (is_tie & of_imaginary(left.imag, right.imag))

    return compared


def choose(
    is_first: Callable[..., np.ndarray], of_parts: Callable[..., np.ndarray]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Of two numbers the one that comes first, NaN in both parts if any of the four parts is.

    Equal ones differ in the signs of zeros only, which `of_parts` settles as it does for floats. So
    the choice does not depend on the order in which numbers are joined.
    """
    before = compare(is_first, is_first)

    def chosen(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        result = np.where(before(left, right), left, right)
        settled = joined(of_parts(left.real, right.real), of_parts(left.imag, right.imag))
        result = np.where(left == right, settled, result)
        return np.where(np.isnan(left) | np.isnan(right), complex(np.nan, np.nan), result)

    return chosen


Function = Callable[..., np.ndarray]


def on_contiguous(function: Function) -> Function:
    """The function on contiguous copies of what is not contiguous."""

    def call(*arrays: np.ndarray) -> np.ndarray:
        return np.asarray(function(*(np.asarray(array, order="C") for array in arrays)))

    return call


def _by_kind(real: Function, of_complex: Function) -> Function:
    """One function for floats, another one for complex numbers."""

    def call(*arrays: np.ndarray) -> np.ndarray:
        return (of_complex if arrays[0].dtype.kind == "c" else real)(*arrays)

    return call


_complex_quotient = _by_kind(np.divide, quotient)


def _logistic(array: np.ndarray) -> np.ndarray:
    one = np.ones_like(array)
    return _complex_quotient(one, one + np.exp(-array))


def _rsqrt(array: np.ndarray) -> np.ndarray:
    return _complex_quotient(np.ones_like(array), np.sqrt(array))


def _erf(array: np.ndarray) -> np.ndarray:
    from scipy import special

    return np.asarray(special.erf(array))


_LOOPS: Mapping[str, Function] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": _by_kind(np.arctan2, atan2),
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cosh": np.cosh,
    "cosine": np.cos,
    "divide": _complex_quotient,
    "erf": _erf,
    "exponential": np.exp,
    "exponential-minus-one": _by_kind(np.expm1, expm1),
    "log": np.log,
    "log-plus-one": _by_kind(np.log1p, log1p),
    "logistic": _logistic,
    "multiply": np.multiply,
    "power": np.power,
    "rsqrt": _rsqrt,
    "sign": sign,
    "sine": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}

TRANSCENDENTAL: Mapping[str, Function] = {
    name: on_contiguous(function) for name, function in _LOOPS.items()
}
"""Opcodes for floats and complex numbers that are one function of contiguous arrays."""


Attributes = Mapping[str, object]


def apply(
    opcode: str, arrays: Sequence[np.ndarray], dtype: DType, attributes: Attributes
) -> np.ndarray:
    """One elementwise opcode; the result has `dtype`, rounded once."""
    # An array that lacks dimensions has the leading ones: one value for each rank.
    rank = max(array.ndim for array in arrays)
    operands = [array.reshape(array.shape + (1,) * (rank - array.ndim)) for array in arrays]
    with np.errstate(all="ignore"):
        if opcode in BY_DTYPE:
            return BY_DTYPE[opcode](*operands, dtype)
        if opcode == "compare":
            return _compare(operands, attributes)
        if opcode == "reduce-precision":
            exponent, mantissa = attributes["exponent_bits"], attributes["mantissa_bits"]
            assert isinstance(exponent, int), attributes
            assert isinstance(mantissa, int), attributes
            return bits.reduce_precision(operands[0], dtype, exponent, mantissa)
        return narrowed(FUNCTIONS[opcode](*map(widened, operands)), dtype.numpy)


def _select(
    condition: np.ndarray, if_true: np.ndarray, if_false: np.ndarray, _: DType
) -> np.ndarray:
    shape = np.broadcast_shapes(condition.shape, if_true.shape, if_false.shape)
    place = np.empty(shape, if_true.dtype)
    selected(condition, if_true, if_false, place)
    return place


def selected(
    condition: np.ndarray, if_true: np.ndarray, if_false: np.ndarray, out: np.ndarray
) -> None:
    """Write one of two by a condition; arrays are broadcast."""
    run = loop(f"select_{out.itemsize}", out.size) if out.itemsize <= _LONGEST else None
    # of what is broadcast as a whole, its one element
    cores = [
        array if any(array.strides) else array[(slice(1),) * array.ndim]
        for array in (if_true, if_false)
    ]
    is_dense = condition.shape == out.shape and condition.flags.c_contiguous
    is_dense = is_dense and out.flags.c_contiguous
    for array in cores:
        is_dense = is_dense and array.flags.c_contiguous and array.size in (1, out.size)
    if run is not None and is_dense:
        one, other = cores
        run(condition, one, int(one.size > 1), other, int(other.size > 1), out, out.size)
        return
    if out.dtype.isbuiltin != 1:  # numpy moves integers faster than types that it does not know
        bits = np.dtype(f"u{out.itemsize}")
        if_true, if_false, out = (array.view(bits) for array in (if_true, if_false, out))
    np.copyto(out, if_false)
    np.copyto(out, if_true, where=condition)


_LONGEST = 8
"""Bytes of an element that a loop selects."""


_DIRECTIONS: dict[str, Function] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


_OF_COMPLEX: dict[str, Function] = {
    "LT": compare(np.less, np.less),
    "LE": compare(np.less, np.less_equal),
    "GT": compare(np.greater, np.greater),
    "GE": compare(np.greater, np.greater_equal),
}


def _compare(arrays: list[np.ndarray], attributes: Attributes) -> np.ndarray:
    ordered = attributes.get("type") == "TOTALORDER"
    left, right = (total_order(array) if ordered else widened(array) for array in arrays)
    direction = str(attributes["direction"])
    if left.dtype.kind == "c" and direction in _OF_COMPLEX:
        return _OF_COMPLEX[direction](left, right)
    return _DIRECTIONS[direction](left, right)


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
    # -1 apart from the others: the smallest integer divided by it would trap
    unsafe = (right == 0) | (right == -1)
    divisor = np.where(unsafe, np.ones_like(right), right)
    rest = np.fmod(left, divisor)
    quotient = np.where(right == -1, np.negative(left), (left - rest) // divisor)
    return quotient, np.where(unsafe, np.zeros_like(left), rest)


def _power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    if not _is_integer(base):
        return TRANSCENDENTAL["power"](base, exponent)
    # Integers: repeated squaring that wraps.
    result, square, bits_left = np.ones_like(base), base.copy(), exponent.copy()
    bits_left[exponent < 0] = 0
    while bits_left.any():
        result = np.where(bits_left & 1, result * square, result)
        square = square * square
        bits_left = bits_left >> 1
    if base.dtype.kind == "u":
        return result
    # A negative exponent gives 0, but for bases of 1 and -1.
    sign = np.where(exponent & 1, base, np.ones_like(base))
    inverse = np.where(np.abs(base) == 1, sign, np.zeros_like(base))
    return np.where(exponent < 0, inverse, result)


def _maximum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """NaN wins; -0 is less than +0; complex numbers are ordered by real part, then imaginary."""
    if left.dtype.kind == "c":
        return choose(np.greater, _maximum)(left, right)
    larger = np.maximum(left, right)
    if left.dtype.kind != "f":
        return larger
    zeros = (left == 0) & (right == 0)
    return np.where(zeros, left + right, larger) if zeros.any() else larger  # -0 only if both are


def _minimum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """As `_maximum`, from the other end."""
    if left.dtype.kind == "c":
        return choose(np.less, _minimum)(left, right)
    smaller = np.minimum(left, right)
    if left.dtype.kind != "f":
        return smaller
    zeros = (left == 0) & (right == 0)
    return np.where(zeros, -(-left - right), smaller) if zeros.any() else smaller  # -0 if either is


def _clamp(low: np.ndarray, array: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where low > high it is high; NaN if any of them is."""
    return _minimum(_maximum(low, array), high)


def _of_sign(function: Callable[[np.ndarray], np.ndarray]) -> Function:
    """A function that changes a sign only: float16 as it is, since converting it changes NaNs."""

    def compute(array: np.ndarray, dtype: DType) -> np.ndarray:
        wide = array if array.dtype == np.float16 else widened(array)
        return narrowed(function(wide), dtype.numpy, keeps_nans=True)

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
    truncated = np.trunc(array)
    is_up = np.abs(array - truncated) >= array.dtype.type(0.5)
    return np.copysign(truncated + is_up * np.copysign(array.dtype.type(1), array), array)


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
    "complex": joined,
    "divide": _divide,
    "floor": np.floor,
    "imag": np.imag,
    "is-finite": np.isfinite,
    "maximum": _maximum,
    "minimum": _minimum,
    "multiply": _multiply,
    "not": np.invert,
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
    "abs": _of_sign(_abs),
    "bitcast-convert": bits.bitcast,
    "convert": convert,
    "copy": _same,
    "count-leading-zeros": bits.leading_zeros,
    "mulhi": bits.multiply_high,
    "negate": _of_sign(np.negative),
    "popcnt": bits.population_count,
    "real": _real,
    "select": _select,
    "sign": _of_sign(_sign),
    "shift-left": bits.shift_left,
    "shift-right-arithmetic": bits.shift_right_arithmetic,
    "shift-right-logical": bits.shift_right_logical,
    "stochastic-convert": bits.stochastic_convert,
}
"""Opcodes that are a function of arrays as they are and of the dtype of the result."""

PLAIN_LOOPS: Mapping[str, tuple[Function, bool]] = {
    "add": (np.add, False),
    "ceil": (np.ceil, False),
    "cosine": (np.cos, True),
    "divide": (np.divide, False),
    "exponential": (np.exp, True),
    "floor": (np.floor, False),
    "log": (np.log, True),
    "multiply": (np.multiply, False),
    "negate": (np.negative, False),
    "sine": (np.sin, True),
    "sqrt": (np.sqrt, True),
    "subtract": (np.subtract, False),
    "tanh": (np.tanh, True),
}
"""Opcodes that are one loop of numpy for float32 and float64, and whether it needs contiguous rows.

It can be told where to write.
"""


_OF_INTEGERS: Mapping[str, Function] = {
    "add": np.add,
    "and": np.bitwise_and,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "not": np.invert,
    "or": np.bitwise_or,
    "shift-left": np.left_shift,
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
}
_SHIFTS_RIGHT = {"shift-right-arithmetic": "i", "shift-right-logical": "u"}
"""For which kinds of integers numpy shifts so. Amounts that are too large give what they should."""

_OF_BOOLEANS: Mapping[str, Function] = {
    "add": np.bitwise_or,
    "and": np.bitwise_and,
    "multiply": np.bitwise_and,
    "not": np.invert,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _copied(array: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out, array, casting="unsafe")


def loop_of(
    opcode: str, attributes: Attributes, operands: Sequence[np.dtype], result: np.dtype
) -> tuple[Callable[..., object], bool] | None:
    """What computes an opcode as `apply` does, told by `out` where to write; None for many.

    And whether it needs contiguous rows. `out` may be no memory of operands.
    """
    first = operands[-1]
    is_own = first.isbuiltin == 1 and wide_type(first) == first and first.kind != "c"
    if opcode == "select":
        return selected, False
    if opcode == "copy":
        return _copied, False
    if opcode == "convert":
        is_exact = is_own and (not may_be_nan(first) or result.kind == "f")
        is_plain = result.isbuiltin == 1 and result.kind in "iuf" and result != np.float16
        return (_copied, False) if is_exact and is_plain else None
    if not is_own or len(set(operands)) > 1:
        return None
    if opcode == "compare" and attributes.get("type") != "TOTALORDER":
        return _DIRECTIONS[str(attributes["direction"])], False
    if first != result:
        return None
    if first.kind == "f":
        return PLAIN_LOOPS.get(opcode)
    function = (_OF_BOOLEANS if first.kind == "b" else _OF_INTEGERS).get(opcode)
    if first.kind in _SHIFTS_RIGHT.get(opcode, ""):
        function = np.right_shift
    return None if function is None else (function, False)
