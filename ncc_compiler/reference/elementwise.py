"""Elementwise ops: what each computes for one element, as XLA defines it.

Every op works in the dtype of its operands and rounds to it once. Floats narrower than 32 bits are
computed in float32 and then rounded; sub-byte integers in a byte and then wrapped. Functions here
see only numpy's own dtypes, and numpy broadcasting lets a scalar meet an array. Ops on the bits of
elements go through Python's integers, one element at a time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from ncc_compiler.ir.graph import Node, Raw
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.reference.numbers import (
    FUNCTIONS,
    complex_quotient,
    converted,
    dtype_of,
    narrowed,
    working,
)
from ncc_runtime.neff.shared.dtypes import DType

Operands = Sequence[np.ndarray]


def _dtype(node: Node) -> DType:
    assert isinstance(node.type, ArrayType), node.name
    return node.type.dtype


def _for_each(function: Callable[..., int], dtype: DType, *arrays: np.ndarray) -> np.ndarray:
    """A function to Python integers, wrapped to the dtype."""
    objects = (working(array).astype(object) for array in arrays)
    values = np.asarray(np.frompyfunc(function, len(arrays), 1)(*objects), object)
    wrapped = np.asarray(np.frompyfunc(lambda value: _wrapped(value, dtype), 1, 1)(values), object)
    carrier = np.int64 if dtype.is_signed else np.uint64
    return narrowed(wrapped.astype(carrier), dtype)


def _wrapped(value: int, dtype: DType) -> int:
    low = value & ((1 << dtype.bits) - 1)
    return low - (1 << dtype.bits) if dtype.is_signed and low >> (dtype.bits - 1) else low


def _integers(function: Callable[..., int]) -> Callable[[Node, Operands], np.ndarray]:
    """An op on integers: `function` is given their bits, as unsigned numbers, and how many."""

    def meaning(node: Node, operands: Operands) -> np.ndarray:
        bits = _dtype(node).bits
        mask = (1 << bits) - 1
        return _for_each(
            lambda *values: function(bits, *(int(value) & mask for value in values)),
            _dtype(node),
            *operands,
        )

    return meaning


def _shift_right_arithmetic(bits: int, value: int, amount: int) -> int:
    """The highest bit is repeated, also of unsigned types."""
    signed = value - (1 << bits) if value >> (bits - 1) else value
    return signed >> min(amount, bits)


def _bits_of(array: np.ndarray, dtype: DType) -> list[int]:
    """The bits of the elements as unsigned numbers."""
    step, octets, mask = dtype.size_bytes, array.tobytes(), (1 << dtype.bits) - 1
    words = (octets[k : k + step] for k in range(0, len(octets), step))
    return [int.from_bytes(word, "little") & mask for word in words]


def _from_bits(raw: Sequence[int], dtype: DType) -> np.ndarray:
    """The elements that have these bits; the inverse of `_bits_of`."""
    if dtype is DType.PRED:
        return np.array([value != 0 for value in raw], bool)
    if dtype.is_integer and dtype.bits < 8:
        wrapped = [_wrapped(value, dtype) for value in raw]
        return np.array(wrapped, np.int64).astype(dtype.numpy)
    octets = b"".join(value.to_bytes(dtype.size_bytes, "little") for value in raw)
    return np.frombuffer(octets, dtype.numpy)


def _bitcast(node: Node, operands: Operands) -> np.ndarray:
    """The same bits in other elements; the first of several narrow ones has the lowest bits."""
    (array,) = operands
    assert isinstance(node.type, ArrayType), node.name
    source, target = dtype_of(array), node.type.dtype
    raw = _bits_of(array, source)
    if source.bits > target.bits:
        mask, steps = (1 << target.bits) - 1, range(0, source.bits, target.bits)
        raw = [(value >> shift) & mask for value in raw for shift in steps]
    elif source.bits < target.bits:
        count = target.bits // source.bits
        groups = (raw[k : k + count] for k in range(0, len(raw), count))
        raw = [sum(bits << (source.bits * k) for k, bits in enumerate(group)) for group in groups]
    # A region is applied to arrays, though its nodes are scalars.
    is_scalar_op = len(raw) != node.type.elements
    return _from_bits(raw, target).reshape(array.shape if is_scalar_op else node.type.shape)


_FORMATS = {DType.F16: 5, DType.BF16: 8, DType.F32: 8, DType.F64: 11}
"""Bits of the exponent; narrower floats are treated as one of these, which holds their values."""


def _to_last_place(x: np.ndarray, exponent: np.ndarray, mantissa_bits: int) -> np.ndarray:
    """Rounded to so many bits, halves to even.

    Without a mantissa the exponent's last bit decides what is even; with the (odd) bias added, that
    is an odd exponent.
    """
    last = exponent - min(mantissa_bits, 52)
    scaled = np.ldexp(x, -last)
    rounded = np.rint(scaled)
    if mantissa_bits == 0:
        rounds_down = (np.abs(scaled) == 1.5) & (exponent % 2 == 1)
        rounded = np.where(rounds_down, np.copysign(1.0, x), rounded)
    return np.ldexp(rounded, last)


def _reduce_precision(node: Node, operands: Operands) -> np.ndarray:
    """Rounded to a multiple of the last place of the reduced mantissa, by arithmetic."""
    (array,) = operands
    dtype = dtype_of(array)
    carrier = DType.F32 if dtype is DType.F8E8M0FNU else DType.F16
    source_bits = _FORMATS.get(dtype, _FORMATS[carrier])
    exponent_bits, mantissa_bits = node.integer("exponent_bits"), node.integer("mantissa_bits")
    x = array.astype(np.float64)
    min_exponent = 2 - (1 << (source_bits - 1))  # of the smallest normal number
    exponent = np.maximum(np.frexp(x)[1] - 1, min_exponent)
    rounded = np.where(np.isfinite(x), _to_last_place(x, exponent, mantissa_bits), x)
    if exponent_bits < source_bits:
        bias = (1 << (exponent_bits - 1)) - 1
        size = np.abs(rounded)
        rounded = np.where(size >= 2.0 ** (bias + 1), np.copysign(np.inf, x), rounded)
        rounded = np.where(size < 2.0 ** (1 - bias), np.copysign(0.0, x), rounded)
    if dtype not in _FORMATS:
        return rounded.astype(carrier.numpy).astype(dtype.numpy)
    return np.where(np.isnan(array), array, rounded.astype(dtype.numpy))


def _stochastic_convert(node: Node, operands: Operands) -> np.ndarray:
    """Away from zero with the probability of the fraction, in exact rational numbers."""
    dtype, bits = _dtype(node), dtype_of(operands[1]).bits
    high = (1 << (dtype.bits - 1)) - 1

    def rounded(x: float, random: int) -> int:
        if math.isnan(x):
            return 0
        if x >= high or x <= -high - 1:
            return high if x > 0 else -high - 1
        magnitude = abs(Fraction(x))
        truncated = magnitude.numerator // magnitude.denominator
        goes_up = random < int((magnitude - truncated) * 2**bits)
        return (truncated + goes_up) * (1 if x > 0 else -1)

    return _for_each(rounded, dtype, *operands)


BIT_OPS: Mapping[str, Callable[[Node, Operands], np.ndarray]] = {
    "bitcast": _bitcast,
    "bitcast-convert": _bitcast,
    "count-leading-zeros": _integers(lambda bits, value: bits - value.bit_length()),
    "popcnt": _integers(lambda _, value: value.bit_count()),
    "reduce-precision": _reduce_precision,
    "shift-left": _integers(lambda bits, value, by: value << by if by < bits else 0),
    "shift-right-arithmetic": _integers(_shift_right_arithmetic),
    "shift-right-logical": _integers(lambda _, value, by: value >> by),
    "stochastic-convert": _stochastic_convert,
}
"""What each op makes of its operands on one rank."""


Elementwise: TypeAlias = Callable[[Node, Sequence[np.ndarray]], np.ndarray]


def _is_integer(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu"


def _add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(x | y if x.dtype.kind == "b" else x + y)


def _multiply(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(x & y if x.dtype.kind == "b" else x * y)


def _defined_divisor(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The divisor, but 1 in place of 0 and where the quotient overflows (INT_MIN / -1)."""
    one = y.dtype.type(1)
    if y.dtype.kind == "u":
        return np.where(y == 0, one, y)
    overflows = (x == np.iinfo(x.dtype).min) & (y == -one)
    return np.where((y == 0) | overflows, one, y)


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Integers round towards zero; by zero gives all ones (-1); INT_MIN / -1 is INT_MIN."""
    if x.dtype.kind == "c":
        return complex_quotient(x, y)
    if not _is_integer(x):
        return np.asarray(x / y)
    divisor = _defined_divisor(x, y)
    quotient = (x - np.fmod(x, divisor)) // divisor
    return np.asarray(np.where(y == 0, ~y.dtype.type(0), quotient))


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Has the sign of the dividend; of integers by zero the dividend, INT_MIN % -1 is 0."""
    if not _is_integer(x):
        return np.asarray(np.fmod(x, y))
    return np.where(y == 0, x, np.fmod(x, _defined_divisor(x, y)))


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _integer_power(x, y) if _is_integer(x) else np.power(x, y)


def _integer_power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Repeated squaring that wraps; a negative exponent gives 0 unless the base is 1 or -1."""
    one, zero = base.dtype.type(1), base.dtype.type(0)
    result, square = np.broadcast_to(one, np.broadcast_shapes(base.shape, exponent.shape)), base
    for bit in range(8 * base.dtype.itemsize):
        is_set = (exponent >> exponent.dtype.type(bit)) & one == one
        result = np.where(is_set, result * square, result)
        square = square * square
    if base.dtype.kind == "u":
        return result
    alternating = np.where(exponent & one == one, -one, one)
    reciprocal = np.where(base == one, one, np.where(base == -one, alternating, zero))
    return np.where(exponent < 0, reciprocal, result)


def _maximum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """NaN wins; -0 is less than +0; complex numbers are ordered by `_ordered`."""
    if x.dtype.kind == "c":
        return _complex_extremum(np.greater, _maximum, x, y)
    larger = np.maximum(x, y)
    if x.dtype.kind != "f":
        return np.asarray(larger)
    return np.asarray(np.where((x == 0) & (y == 0), x + y, larger))


def _minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """NaN wins; -0 is less than +0; complex numbers are ordered by `_ordered`."""
    if x.dtype.kind == "c":
        return _complex_extremum(np.less, _minimum, x, y)
    smaller = np.minimum(x, y)
    if x.dtype.kind != "f":
        return np.asarray(smaller)
    return np.asarray(np.where((x == 0) & (y == 0), -(-x + -y), smaller))


def _ordered(compare: Callable[..., np.ndarray], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Complex numbers compared by real part, or by the imaginary one where those are equal."""
    by_imaginary = compare(x.imag, y.imag)
    return np.where(x.real == y.real, by_imaginary, compare(x.real, y.real))


def _complex_extremum(
    compare: Callable[..., np.ndarray],
    of_parts: Callable[..., np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
) -> np.ndarray:
    """The first of two complex numbers; all NaN where a part is.

    Where both are equal they may differ in the signs of zeros: each part as of real numbers.
    """
    x, y = np.broadcast_arrays(x, y)
    result = np.where(_ordered(compare, x, y), x, y)
    result.real[x == y] = of_parts(x.real, y.real)[x == y]
    result.imag[x == y] = of_parts(x.imag, y.imag)[x == y]
    result[np.isnan(x) | np.isnan(y)] = complex(np.nan, np.nan)
    return result


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The upper bound wins over the lower one."""
    return _minimum(_maximum(low, x), high)


_ARITHMETIC: Mapping[str, Callable[..., np.ndarray]] = {
    **FUNCTIONS,
    "add": _add,
    "and": np.bitwise_and,
    "clamp": _clamp,
    "divide": _divide,
    "maximum": _maximum,
    "minimum": _minimum,
    "multiply": _multiply,
    "negate": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "power": _power,
    "remainder": _remainder,
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
}


def _in_working_dtype(compute: Callable[..., np.ndarray]) -> Elementwise:
    """The op computed in a working dtype and rounded once to the dtype of the result."""

    def meaning(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
        assert isinstance(node.type, ArrayType), node.name
        result = np.asarray(compute(*map(working, operands)))
        return narrowed(result, node.type.dtype)

    return meaning


def _of_sign(compute: Callable[[np.ndarray], np.ndarray]) -> Elementwise:
    """An op that changes no bit of a float16 but its sign, so is not computed in a wider type."""
    in_working_dtype = _in_working_dtype(compute)

    def meaning(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
        is_half = operands[0].dtype == np.float16
        return np.asarray(compute(*operands)) if is_half else in_working_dtype(node, operands)

    return meaning


def _real(_: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return operands[0].real if operands[0].dtype.kind == "c" else operands[0].copy()


def _copy(_: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return operands[0].copy()


def _convert(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return converted(operands[0], node)


_DIRECTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}


def _mulhi(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """The upper half of the product, in Python's integers."""
    dtype = dtype_of(operands[0])
    first, second = (working(operand).astype(object) for operand in operands)
    high = np.asarray((first * second) >> dtype.bits)
    return narrowed(high.astype(working(operands[0]).dtype), node.array.dtype)


def _word(node: Node, key: str) -> str:
    """An attribute that is a bare word, as `LT` of `direction=LT`; absent means empty."""
    value = node.attributes.get(key, "")
    return value.text if isinstance(value, Raw) else str(value)


def _total_order(x: np.ndarray) -> np.ndarray:
    """Integers in the order -NaN < -inf < … < -0 < +0 < … < inf < NaN.

    Some types of 8 bits have one NaN only, without a sign; float32 gives it one. Narrower types
    have their sign inside the byte.
    """
    dtype = dtype_of(x)
    if dtype.value.endswith(("fnuz", "fnu")) or dtype.bits < 8:
        x = working(x)
    bits = x.view(np.dtype(f"int{8 * x.dtype.itemsize}"))
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def _compare(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    is_total = _word(node, "type") == "TOTALORDER"
    x, y = map(_total_order if is_total else working, operands)
    compare = _DIRECTIONS[_word(node, "direction")]
    is_by_parts = x.dtype.kind == "c" and _word(node, "direction") not in ("EQ", "NE")
    return np.asarray(_ordered(compare, x, y) if is_by_parts else compare(x, y))


def _select(_: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    condition, if_true, if_false = operands
    return np.where(condition, if_true, if_false)


ELEMENTWISE: Mapping[str, Elementwise] = {
    **{name: _in_working_dtype(compute) for name, compute in _ARITHMETIC.items()},
    **{name: _of_sign(_ARITHMETIC[name]) for name in ("abs", "negate", "sign")},
    "copy": _copy,
    "real": _real,
    "convert": _convert,
    "compare": _compare,
    "mulhi": _mulhi,
    "select": _select,
    **BIT_OPS,
}
"""What each elementwise op makes of its operands on one rank."""
