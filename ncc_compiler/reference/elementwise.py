"""Elementwise ops: what each computes for one element, as XLA defines it.

Every op works in the dtype of its operands and rounds to it once. Floats narrower than 32 bits are
computed in float32 and then rounded; sub-byte integers in a byte and then wrapped. Functions here
see only numpy's own dtypes, and numpy broadcasting lets a scalar meet an array.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ncc_compiler.ir.graph import Node, Raw
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.reference.bits import BIT_OPS
from ncc_compiler.reference.conversion import converted, dtype_of, narrowed, working
from ncc_compiler.reference.functions import FUNCTIONS, complex_quotient

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
        return _outermost(np.greater, _maximum, x, y)
    larger = np.maximum(x, y)
    if x.dtype.kind != "f":
        return np.asarray(larger)
    return np.asarray(np.where((x == 0) & (y == 0), x + y, larger))


def _minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """NaN wins; -0 is less than +0; complex numbers are ordered by `_ordered`."""
    if x.dtype.kind == "c":
        return _outermost(np.less, _minimum, x, y)
    smaller = np.minimum(x, y)
    if x.dtype.kind != "f":
        return np.asarray(smaller)
    return np.asarray(np.where((x == 0) & (y == 0), -(-x + -y), smaller))


def _ordered(compare: Callable[..., np.ndarray], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Complex numbers compared by real part, or by the imaginary one where those are equal."""
    by_imaginary = compare(x.imag, y.imag)
    return np.where(x.real == y.real, by_imaginary, compare(x.real, y.real))


def _outermost(
    compare: Callable[..., np.ndarray],
    of_parts: Callable[..., np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
) -> np.ndarray:
    """The first of two complex numbers; all NaN where a part is. Of equal ones zeros may differ."""
    x, y = np.broadcast_arrays(x, y)
    result = np.where(_ordered(compare, x, y), x, y)
    result.real[x == y] = of_parts(x.real, y.real)[x == y]
    result.imag[x == y] = of_parts(x.imag, y.imag)[x == y]
    result[np.isnan(x) | np.isnan(y)] = complex(np.nan, np.nan)
    return result


def _clamp(least: np.ndarray, x: np.ndarray, most: np.ndarray) -> np.ndarray:
    """The upper bound wins over the lower one."""
    return _minimum(_maximum(least, x), most)


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


def _in_own_dtype(compute: Callable[..., np.ndarray]) -> Elementwise:
    """The op computed in a working dtype and rounded once to the dtype of the result."""

    def meaning(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
        assert isinstance(node.type, ArrayType), node.name
        result = np.asarray(compute(*map(working, operands)))
        return narrowed(result, node.type.dtype)

    return meaning


def _of_sign(compute: Callable[[np.ndarray], np.ndarray]) -> Elementwise:
    """What changes no bit of a float16 but its sign, so is not computed in a wider type."""
    in_own_dtype = _in_own_dtype(compute)

    def meaning(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
        is_half = operands[0].dtype == np.float16
        return np.asarray(compute(*operands)) if is_half else in_own_dtype(node, operands)

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
    """In Python's integers, which have as many bits as a product needs."""
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
    **{name: _in_own_dtype(compute) for name, compute in _ARITHMETIC.items()},
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
