"""Loops over elements that numpy has not, or has slowly: what numba makes machine code of.

They run as machine code only (`compiled.py`). Arrays are rows of elements, given as pointers; the
annotations say of what. A loop without branches runs on vectors: so a choice is a conditional
expression here, and numbers are 32 bits wide where elements are.

Floats are looked at as bits. A float16 or bfloat16 is the upper part of a float32, with fewer bits
of exponent; rounding to nearest even adds half a unit less one, and one if the last bit that stays
is odd, and a carry out of the mantissa goes into the exponent, as it should. One-byte floats go
through tables (`narrow.py`).
"""

from typing import Annotated

import numpy as np

Bytes = Annotated[np.ndarray, "uint8"]
Halves = Annotated[np.ndarray, "uint16"]
Words = Annotated[np.ndarray, "uint32"]
Singles = Annotated[np.ndarray, "float32"]
Doubles = Annotated[np.ndarray, "float64"]

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_NAN = np.uint32(0x7FC00000)
_0 = np.uint32(0)
_1 = np.uint32(1)


# ---- float32 and narrower floats


def widen_bfloat16(source: Halves, target: Words, count: int) -> None:
    """To float32."""
    for i in range(count):
        target[i] = np.uint32(source[i]) << np.uint32(16)


def widen_float16(source: Halves, target: Words, count: int) -> None:
    """To float32; NaNs become quiet ones and keep their payload."""
    for i in range(count):
        target[i] = _of_float16(np.uint32(source[i]))


def widen_byte(source: Bytes, target: Words, table: Words, count: int) -> None:
    """To float32, by a table of 256."""
    for i in range(count):
        target[i] = table[source[i]]


def narrow_bfloat16(source: Words, target: Halves, count: int, keeps_nans: int) -> None:
    """From float32; a NaN keeps its sign only, or becomes the positive quiet one."""
    sign = np.uint32(0x8000) if keeps_nans else _0
    for i in range(count):
        word = source[i]
        nan = np.uint32(0x7FC0) | ((word >> np.uint32(16)) & sign)
        is_nan = (word & _MAGNITUDE) > _INFINITY
        target[i] = np.uint16(nan if is_nan else _rounded_to_bfloat16(word) >> np.uint32(16))


def narrow_float16(source: Words, target: Halves, count: int, keeps_nans: int) -> None:
    """From float32; a NaN keeps sign and upper payload, or becomes the positive quiet one."""
    kept = np.uint32(0x83FF) if keeps_nans else _0
    for i in range(count):
        target[i] = np.uint16(_to_float16(source[i], kept))


def narrow_byte(source: Words, target: Bytes, table: Bytes, count: int) -> None:
    """From float32, by a table of its upper 15 bits, the last of which stands for all below."""
    for i in range(count):
        target[i] = table[_key(source[i])]


def round_to_bfloat16(words: Words, count: int) -> None:
    """To float32 numbers that are bfloat16 too; NaNs become the positive quiet one."""
    for i in range(count):
        word = words[i]
        is_nan = (word & _MAGNITUDE) > _INFINITY
        words[i] = _NAN if is_nan else _rounded_to_bfloat16(word) & np.uint32(0xFFFF0000)


def round_to_float16(words: Words, count: int) -> None:
    """To float32 numbers that are float16 too; NaNs become the positive quiet one."""
    for i in range(count):
        words[i] = _of_float16(_to_float16(words[i], _0))


def round_to_byte(words: Words, table: Words, count: int) -> None:
    """To float32 numbers that a one-byte float has, by a table as `narrow_byte` uses it."""
    for i in range(count):
        words[i] = table[_key(words[i])]


def _rounded_to_bfloat16(word: np.uint32) -> np.uint32:
    """In the upper half; not for NaNs."""
    odd = np.uint32(word >> np.uint32(16)) & _1
    return np.uint32(word + np.uint32(odd + np.uint32(0x7FFF)))


def _of_float16(half: np.uint32) -> np.uint32:
    moved = np.uint32(np.uint32(half & np.uint32(0x7FFF)) << np.uint32(13))
    # As a float32 its exponent is 112 too small, also where the float16 is subnormal.
    number = _word(_single(moved) * np.float32(2.0**112))
    number = number if moved < np.uint32(0x0F800000) else np.uint32(moved | _INFINITY)
    number = np.uint32(moved | _NAN) if moved > np.uint32(0x0F800000) else number
    return np.uint32(number | np.uint32(np.uint32(half & np.uint32(0x8000)) << np.uint32(16)))


def _to_float16(word: np.uint32, kept_of_nan: np.uint32) -> np.uint32:
    magnitude = np.uint32(word & _MAGNITUDE)
    sign = np.uint32(np.uint32(word >> np.uint32(16)) & np.uint32(0x8000))
    upper = np.uint32(magnitude >> np.uint32(13))
    odd = np.uint32(upper & _1)
    normal = np.uint32(magnitude + np.uint32(odd + np.uint32(0xFFF - (112 << 23) + (1 << 32))))
    normal = np.uint32(normal >> np.uint32(13))
    normal = np.uint32(min(normal, np.uint32(0x7C00)))
    # A subnormal float16 counts units of 2^-24, as the last bit of a float32 in [0.5, 1) does.
    sum_ = _word(_single(magnitude) + np.float32(0.5))
    subnormal = np.uint32(sum_ - np.uint32(0x3F000000))
    number = subnormal if magnitude < np.uint32(0x38800000) else normal
    number = np.uint32(number | sign)
    payload = np.uint32(sign | np.uint32(upper & np.uint32(0x3FF)))
    nan = np.uint32(np.uint32(0x7E00) | np.uint32(payload & kept_of_nan))
    return nan if magnitude > _INFINITY else number


def _single(word: np.uint32) -> np.float32:
    return np.uint32(word).view(np.float32)


def _word(single: np.float32) -> np.uint32:
    return np.float32(single).view(np.uint32)


def _key(word: np.uint32) -> np.uint32:
    return (word >> np.uint32(17)) | (_1 if word & np.uint32(0x1FFFF) else _0)


# ---- the larger and the smaller one: -0 is less than +0, NaN wins


def maximum_float32(source: Singles, target: Singles, count: int) -> None:
    """Of each pair the larger one."""
    for i in range(count):
        one, other = source[i], target[i]
        larger = one if one > other or one != one else other
        both = _single(np.uint32(_word(one) & _word(other)))
        target[i] = both if one == other else larger


def minimum_float32(source: Singles, target: Singles, count: int) -> None:
    """Of each pair the smaller one."""
    for i in range(count):
        one, other = source[i], target[i]
        smaller = one if one < other or one != one else other
        either = _single(np.uint32(_word(one) | _word(other)))
        target[i] = either if one == other else smaller


def maximum_float64(source: Doubles, target: Doubles, count: int) -> None:
    """Of each pair the larger one."""
    for i in range(count):
        one, other = source[i], target[i]
        larger = one if one > other or one != one else other
        both = np.float64(one).view(np.uint64) & np.float64(other).view(np.uint64)
        target[i] = np.uint64(both).view(np.float64) if one == other else larger


def minimum_float64(source: Doubles, target: Doubles, count: int) -> None:
    """Of each pair the smaller one."""
    for i in range(count):
        one, other = source[i], target[i]
        smaller = one if one < other or one != one else other
        either = np.float64(one).view(np.uint64) | np.float64(other).view(np.uint64)
        target[i] = np.uint64(either).view(np.float64) if one == other else smaller
