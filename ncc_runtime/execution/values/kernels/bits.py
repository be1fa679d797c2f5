"""Opcodes that look at bits: counts, shifts, reinterpretation, rounding to fewer bits or at random.

Narrow integers lie sign-extended in a byte each: bits above their own are masked off first.
"""

import functools
from collections.abc import Mapping

import numpy as np

from ncc_runtime.execution.values.kernels.conversions import convert, widened
from ncc_runtime.neff.shared.dtypes import DType


def _unsigned(array: np.ndarray, bits: int) -> np.ndarray:
    """The bits of integers as unsigned numbers of their width."""
    wide = widened(array)
    raw = wide.view(np.dtype(f"u{wide.dtype.itemsize}"))
    return raw if bits == 8 * raw.dtype.itemsize else raw & raw.dtype.type(2**bits - 1)


def population_count(array: np.ndarray, dtype: DType) -> np.ndarray:
    """How many bits are set."""
    return np.bitwise_count(_unsigned(array, dtype.bits)).astype(dtype.numpy)


def leading_zeros(array: np.ndarray, dtype: DType) -> np.ndarray:
    """How many bits stand above the highest that is set; all of them for 0."""
    filled = _unsigned(array, dtype.bits)
    shift = 1
    while shift < dtype.bits:
        filled = filled | (filled >> filled.dtype.type(shift))
        shift *= 2
    return (np.uint8(dtype.bits) - np.bitwise_count(filled)).astype(dtype.numpy)


def shift_left(array: np.ndarray, amount: np.ndarray, dtype: DType) -> np.ndarray:
    """Zeros come in at the right."""
    # numpy shifts all bits out where the amount is too large for the type, and negative ones are
    return _wrapped(_unsigned(array, dtype.bits) << _amounts(amount), dtype)


def shift_right_logical(array: np.ndarray, amount: np.ndarray, dtype: DType) -> np.ndarray:
    """Zeros come in at the left."""
    return _wrapped(_unsigned(array, dtype.bits) >> _amounts(amount), dtype)


def shift_right_arithmetic(array: np.ndarray, amount: np.ndarray, dtype: DType) -> np.ndarray:
    """Copies of the highest bit come in at the left, of unsigned integers too."""
    raw = _unsigned(array, dtype.bits)
    spare = raw.dtype.type(8 * raw.dtype.itemsize - dtype.bits)
    kind = np.dtype(f"i{raw.dtype.itemsize}")
    signed = (raw << spare).view(kind) >> spare.astype(kind)
    return _wrapped((signed >> _amounts(amount).view(kind)).view(raw.dtype), dtype)


def _amounts(amount: np.ndarray) -> np.ndarray:
    """Amounts to shift by, as unsigned numbers of the width that the shifted ones have."""
    return _unsigned(amount, 8 * amount.dtype.itemsize)


def _wrapped(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Unsigned numbers as integers of the dtype, by their low bits."""
    if dtype.bits < 8:
        return raw.astype(dtype.numpy)
    return raw.view(dtype.numpy)


def multiply_high(left: np.ndarray, right: np.ndarray, dtype: DType) -> np.ndarray:
    """The upper half of the bits that a product has."""
    if dtype.bits < 64:
        wide = np.dtype(np.int64 if dtype.is_signed else np.uint64)
        product = left.astype(wide) * right.astype(wide)
        return (product >> wide.type(dtype.bits)).astype(dtype.numpy)
    # Schoolbook multiplication in digits of 32 bits.
    first, second = _unsigned(left, 64), _unsigned(right, 64)
    half, low = np.uint64(32), np.uint64(2**32 - 1)
    middle = (first >> half) * (second & low) + ((first & low) * (second & low) >> half)
    other_middle = (first & low) * (second >> half) + (middle & low)
    product = (first >> half) * (second >> half) + (middle >> half) + (other_middle >> half)
    if dtype.is_signed:  # a negative factor x was multiplied as x + 2^64
        product -= np.where(left < 0, second, np.uint64(0))
        product -= np.where(right < 0, first, np.uint64(0))
    return product.view(dtype.numpy)


def bitcast(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The same bits as another dtype; the first of several narrow elements has the lowest bits.

    A pred is a byte, of which any bit makes it true.
    """
    source, target = array.dtype, dtype.numpy
    if source == target:
        return array
    if source in _few_bits() or target in _few_bits():
        return _repacked(array, _few_bits().get(source, 8 * source.itemsize), dtype)
    carrier = np.dtype(np.uint8) if dtype is DType.PRED else target
    array = np.ascontiguousarray(array)
    if source.itemsize > target.itemsize:
        array = array[..., np.newaxis].view(carrier)
    elif source.itemsize < target.itemsize:
        array = array.view(carrier)[..., 0]
    else:
        array = array.view(carrier)
    return array != 0 if dtype is DType.PRED else array


@functools.cache
def _few_bits() -> Mapping[np.dtype, int]:
    """The types that do not fill the byte that they lie in."""
    return {dtype.numpy: dtype.bits for dtype in DType if dtype.bits < 8}


def _repacked(array: np.ndarray, from_bits: int, dtype: DType) -> np.ndarray:
    """The same bits, lowest first, as elements of another size in a last dimension."""
    octets = np.ascontiguousarray(array)[..., np.newaxis].view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, bitorder="little")[..., :from_bits]
    if from_bits > dtype.bits:
        return _from_bits(bits.reshape(*array.shape, from_bits // dtype.bits, dtype.bits), dtype)
    if from_bits < dtype.bits:
        bits = bits.reshape(*array.shape[:-1], dtype.bits)
    return _from_bits(bits, dtype)


def _from_bits(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements of the bits in the last dimension."""
    octets = np.packbits(np.ascontiguousarray(bits), axis=-1, bitorder="little")
    if dtype.is_integer and dtype.bits < 8:
        return octets[..., 0].astype(dtype.numpy)
    if dtype is DType.PRED:
        return octets[..., 0] != 0
    return octets.view(dtype.numpy)[..., 0]


_FORMATS = {
    DType.BF16: (8, 7),
    DType.F16: (5, 10),
    DType.F32: (8, 23),
    DType.F64: (11, 52),
}
"""Bits of exponent and mantissa."""


def reduce_precision(
    array: np.ndarray, dtype: DType, exponent_bits: int, mantissa_bits: int
) -> np.ndarray:
    """Floats rounded to nearest even as if they had fewer bits; what is too small becomes 0.

    XLA computes 8-bit floats as float16 here, and f8e8m0 (powers of two) as float32.
    """
    if dtype not in _FORMATS:
        carrier = DType.F32 if dtype is DType.F8E8M0FNU else DType.F16
        wide = reduce_precision(convert(array, carrier), carrier, exponent_bits, mantissa_bits)
        return convert(wide, dtype)
    source_exponent, source_mantissa = _FORMATS[dtype]
    wide = np.ascontiguousarray(array)
    raw = wide.view(np.dtype(f"u{wide.dtype.itemsize}"))
    number = raw.dtype.type
    sign = raw & number(1 << (8 * wide.dtype.itemsize - 1))
    magnitude = raw ^ sign  # magnitudes of floats are ordered as their bits are
    infinity = number(((1 << source_exponent) - 1) << source_mantissa)
    is_nan = magnitude > infinity
    if mantissa_bits < source_mantissa:
        # To nearest even: half a unit less one, and one if the last bit that stays is odd. A carry
        # out of the mantissa goes into the exponent, as it should.
        dropped = source_mantissa - mantissa_bits
        odd = (magnitude >> number(dropped)) & number(1)
        magnitude = magnitude + number((1 << (dropped - 1)) - 1) + odd
        magnitude = (magnitude >> number(dropped)) << number(dropped)
    if exponent_bits < source_exponent:
        source_bias, bias = (1 << (source_exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        smallest = number((source_bias - bias + 1) << source_mantissa)
        overflow = number((source_bias + bias + 1) << source_mantissa)
        magnitude = np.where(magnitude < smallest, number(0), magnitude)
        magnitude = np.where(magnitude >= overflow, infinity, magnitude)
    rounded = (sign | np.minimum(magnitude, infinity)).view(wide.dtype)
    return np.where(is_nan, wide, rounded)


def stochastic_convert(array: np.ndarray, random: np.ndarray, dtype: DType) -> np.ndarray:
    """Floats to integers, away from zero where the random bits are less than the fraction."""
    wide = widened(array)
    magnitude = np.abs(wide)
    truncated = np.floor(magnitude)
    bits = _few_bits().get(random.dtype, 8 * random.dtype.itemsize)
    fraction = (magnitude - truncated).astype(np.float64)
    threshold = convert(np.ldexp(fraction, bits), DType(f"u{bits}"))
    rounded = convert(truncated, DType.S64) + (widened(random) < widened(threshold))
    high = 2.0 ** (dtype.bits - 1)
    fits = (wide > -high) & (wide < (high if dtype.bits == 64 else high - 1))
    signed = np.where(wide < 0, -rounded, rounded).astype(dtype.numpy)
    return np.where(fits, signed, convert(array, dtype))
