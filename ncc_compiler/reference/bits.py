"""Ops that look at the bits of elements, one element at a time, as Python's integers have them."""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.reference.conversion import dtype_of, narrowed, working
from ncc_runtime.neff.dtypes import DType

Operands = Sequence[np.ndarray]


def _dtype(node: Node) -> DType:
    assert isinstance(node.type, ArrayType), node.name
    return node.type.dtype


def _for_each(function: Callable[..., int], dtype: DType, *arrays: np.ndarray) -> np.ndarray:
    """A function to Python integers, wrapped to the dtype."""
    objects = (working(array).astype(object) for array in arrays)
    found = np.asarray(np.frompyfunc(function, len(arrays), 1)(*objects), object)
    wrapped = np.asarray(np.frompyfunc(lambda value: _wrapped(value, dtype), 1, 1)(found), object)
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
    """The highest bit comes in again; numbers of no sign have one for this."""
    signed = value - (1 << bits) if value >> (bits - 1) else value
    return signed >> min(amount, bits)


def _raw(array: np.ndarray, dtype: DType) -> list[int]:
    """The bits of the elements as unsigned numbers."""
    flat = array.reshape(-1)
    step, octets, mask = dtype.size_bytes, flat.tobytes(), (1 << dtype.bits) - 1
    words = (octets[k : k + step] for k in range(0, len(octets), step))
    return [int.from_bytes(word, "little") & mask for word in words]


def _of_raw(raw: Sequence[int], dtype: DType) -> np.ndarray:
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
    raw = _raw(array, source)
    if source.bits > target.bits:
        mask, steps = (1 << target.bits) - 1, range(0, source.bits, target.bits)
        raw = [(value >> shift) & mask for value in raw for shift in steps]
    elif source.bits < target.bits:
        count = target.bits // source.bits
        groups = (raw[k : k + count] for k in range(0, len(raw), count))
        raw = [sum(one << (source.bits * k) for k, one in enumerate(group)) for group in groups]
    is_whole = len(raw) == node.type.elements  # else a region's scalar, for many at once
    return _of_raw(raw, target).reshape(node.type.shape if is_whole else array.shape)


_FORMATS = {DType.F16: 5, DType.BF16: 8, DType.F32: 8, DType.F64: 11}
"""Bits of the exponent; what is narrower is looked at as a wider float."""


def _to_last_place(x: np.ndarray, exponent: np.ndarray, mantissa_bits: int) -> np.ndarray:
    """Halves go to even; without a mantissa, an odd exponent is the even one with its bias."""
    last = exponent - min(mantissa_bits, 52)
    scaled = np.ldexp(x, -last)
    whole = np.rint(scaled)
    if mantissa_bits == 0:
        stays = (np.abs(scaled) == 1.5) & (exponent % 2 == 1)
        whole = np.where(stays, np.copysign(1.0, x), whole)
    return np.ldexp(whole, last)


def _reduce_precision(node: Node, operands: Operands) -> np.ndarray:
    """Rounded to a multiple of the last place that is left, by arithmetic."""
    (array,) = operands
    dtype = dtype_of(array)
    carrier = DType.F32 if dtype is DType.F8E8M0FNU else DType.F16
    own_bits = _FORMATS.get(dtype, _FORMATS[carrier])
    exponent_bits, mantissa_bits = node.integer("exponent_bits"), node.integer("mantissa_bits")
    x = array.astype(np.float64)
    least = 2 - (1 << (own_bits - 1))  # exponent of the smallest normal number
    exponent = np.maximum(np.frexp(x)[1] - 1, least)
    rounded = np.where(np.isfinite(x), _to_last_place(x, exponent, mantissa_bits), x)
    if exponent_bits < own_bits:
        bias = (1 << (exponent_bits - 1)) - 1
        size = np.abs(rounded)
        rounded = np.where(size >= 2.0 ** (bias + 1), np.copysign(np.inf, x), rounded)
        rounded = np.where(size < 2.0 ** (1 - bias), np.copysign(0.0, x), rounded)
    through = carrier if dtype not in _FORMATS else dtype
    narrow = rounded.astype(through.numpy).astype(dtype.numpy)
    return np.where(np.isnan(array), array, narrow) if dtype in _FORMATS else narrow


def _stochastic_convert(node: Node, operands: Operands) -> np.ndarray:
    """Away from zero with the probability of the fraction, in exact rational numbers."""
    dtype, bits = _dtype(node), dtype_of(operands[1]).bits
    high = (1 << (dtype.bits - 1)) - 1

    def rounded(x: float, random: int) -> int:
        if math.isnan(x):
            return 0
        if x >= high or x <= -high - 1:
            return high if x > 0 else -high - 1
        size = abs(Fraction(x))
        whole = size.numerator // size.denominator
        up = random < int((size - whole) * 2**bits)
        return (whole + up) * (1 if x > 0 else -1)

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
