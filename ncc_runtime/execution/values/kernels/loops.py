"""Loops over elements that numpy has not, or has slowly: what numba makes machine code of.

They run as machine code only (`compiled.py`). Arrays are contiguous, given as pointers; the
annotations say to what. A loop without branches runs on vectors: so a choice is a conditional
expression here, and numbers are made 32 bits wide after each operation, since numba takes 64.

Floats are looked at as bits. A float16 or bfloat16 is the upper part of a float32, with fewer bits
of exponent; rounding to nearest even adds half a unit less one, and one if the last bit that stays
is odd, and a carry out of the mantissa goes into the exponent, as it should.
"""

from typing import Annotated

import numpy as np

Bytes = Annotated[np.ndarray, "uint8"]
Halves = Annotated[np.ndarray, "uint16"]
Words = Annotated[np.ndarray, "uint32"]
Longs = Annotated[np.ndarray, "int64"]
Singles = Annotated[np.ndarray, "float32"]
Doubles = Annotated[np.ndarray, "float64"]
RowsOfBytes = Annotated[np.ndarray, "uint8", "rows"]
RowsOfHalves = Annotated[np.ndarray, "uint16", "rows"]
RowsOfSingles = Annotated[np.ndarray, "float32", "rows"]

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_INFINITY = np.uint32(0x7F800000)
_NAN = np.uint32(0x7FC00000)
_SHORT_NAN = np.uint16(0x7FC0)
_0 = np.uint32(0)
_1 = np.uint32(1)


def _single(word: np.uint32) -> np.float32:
    return np.uint32(word).view(np.float32)


def _word(single: np.float32) -> np.uint32:
    return np.float32(single).view(np.uint32)


# ---- float32 and narrower floats. Private functions take a part of the narrow array, from `start`.


def widen_bfloat16(source: Halves, target: Singles, count: int) -> None:
    """To float32."""
    _widen_bfloat16(source, 0, target, count)


def widen_float16(source: Halves, target: Singles, count: int) -> None:
    """To float32; NaNs become quiet ones and keep their payload."""
    _widen_float16(source, 0, target, count)


def widen_byte(source: Bytes, target: Singles, table: Singles, count: int) -> None:
    """To float32, by a table of 256."""
    _widen_bytes(source, 0, target, count, table)


def narrow_bfloat16(source: Singles, target: Halves, count: int, keeps_nans: int) -> None:
    """From float32; a NaN keeps its sign only, or becomes the positive quiet one."""
    _narrow_to_bfloat16(source, target, 0, count, keeps_nans)


def narrow_float16(source: Singles, target: Halves, count: int, keeps_nans: int) -> None:
    """From float32; a NaN keeps sign and upper payload, or becomes the positive quiet one."""
    _narrow_to_float16(source, target, 0, count, keeps_nans)


def narrow_byte(source: Singles, target: Bytes, table: Bytes, count: int) -> None:
    """From float32, by a table of its upper 15 bits, the last of which stands for all below."""
    _narrow_to_bytes(source, target, 0, count, table)


def round_to_bfloat16(numbers: Singles, count: int) -> None:
    """To float32 numbers that are bfloat16 too; NaNs become the positive quiet one."""
    _round_to_bfloat16(numbers, count)


def round_to_float16(numbers: Singles, count: int) -> None:
    """To float32 numbers that are float16 too; NaNs become the positive quiet one."""
    _round_to_float16(numbers, count)


def round_to_byte(numbers: Singles, table: Singles, limits: Words, count: int) -> None:
    """To float32 numbers that a one-byte float has; by a table as that of `narrow_byte`, or limits.

    NaNs become its own one.
    """
    _round_to_bytes(numbers, count, table, limits)


def _widen_bfloat16(source: Halves, start: int, target: Singles, size: int) -> None:
    for i in range(size):
        target[i] = _single(np.uint32(source[start + i]) << np.uint32(16))


def _widen_float16(source: Halves, start: int, target: Singles, size: int) -> None:
    for i in range(size):
        half = np.uint32(source[start + i])
        is_nan = (half & np.uint32(0x7FFF)) > np.uint32(0x7C00)
        quiet = np.uint32(0x400000) if is_nan else _0
        target[i] = _single(np.uint32(_word(_of_float16(half)) | quiet))


def _widen_bytes(source: Bytes, start: int, target: Singles, size: int, table: Singles) -> None:
    for i in range(size):
        target[i] = table[source[start + i]]


def _narrow_to_bfloat16(
    source: Singles, target: Halves, start: int, size: int, keeps_nans: int
) -> None:
    sign = np.uint32(0x8000) if keeps_nans else _0
    for i in range(size):
        word = _word(source[i])
        nan = np.uint32(np.uint32(0x7FC0) | np.uint32(np.uint32(word >> np.uint32(16)) & sign))
        is_nan = (word & _MAGNITUDE) > _INFINITY
        number = np.uint32(_nearest_bfloat16(word) >> np.uint32(16))
        target[start + i] = np.uint16(nan if is_nan else number)


def _narrow_to_float16(
    source: Singles, target: Halves, start: int, size: int, keeps_nans: int
) -> None:
    kept = np.uint32(0x83FF) if keeps_nans else _0
    for i in range(size):
        word = _word(source[i])
        magnitude = np.uint32(word & _MAGNITUDE)
        sign = np.uint32(np.uint32(word >> np.uint32(16)) & np.uint32(0x8000))
        upper = np.uint32(magnitude >> np.uint32(13))
        odd = np.uint32(upper & _1)
        # rounded, with an exponent that is 112 smaller
        normal = np.uint32(magnitude + np.uint32(odd + np.uint32((1 << 32) - (112 << 23) + 0xFFF)))
        normal = np.uint32(min(np.uint32(normal >> np.uint32(13)), np.uint32(0x7C00)))
        # A subnormal float16 counts units of 2^-24, as the last bit of a float32 in [0.5, 1) does.
        sum_ = _word(_single(magnitude) + np.float32(0.5))
        subnormal = np.uint32(sum_ - np.uint32(0x3F000000))
        number = subnormal if magnitude < np.uint32(0x38800000) else normal
        number = np.uint32(number | sign)
        payload = np.uint32(sign | np.uint32(upper & np.uint32(0x3FF)))
        nan = np.uint32(np.uint32(0x7E00) | np.uint32(payload & kept))
        target[start + i] = np.uint16(nan if magnitude > _INFINITY else number)


def _narrow_to_bytes(source: Singles, target: Bytes, start: int, size: int, table: Bytes) -> None:
    for i in range(size):
        target[start + i] = table[_key(_word(source[i]))]


def _round_to_bfloat16(numbers: Singles, size: int) -> None:
    for i in range(size):
        numbers[i] = _rounded_to_bfloat16(numbers[i])


def _round_to_float16(numbers: Singles, size: int) -> None:
    for i in range(size):
        numbers[i] = _rounded_to_float16(numbers[i])


_SHIFT, _SMALLEST, _UNIT, _LARGEST, _BEYOND, _SIGN_BEYOND, _OWN_NAN, _SIGN_OF_ZERO = range(8)
"""Limits of a one-byte float, as words of float32: by how many bits its mantissa is shorter, 0 if
it is rounded by table; its smallest normal number; 2^23 times its smallest number; its largest
number; what is beyond that, and its sign if it has one; its NaN; the sign of zero if it has one."""


def _round_to_bytes(numbers: Singles, size: int, table: Singles, limits: Words) -> None:
    shift, smallest, unit = limits[_SHIFT], limits[_SMALLEST], _single(limits[_UNIT])
    largest, beyond, sign_beyond = limits[_LARGEST], limits[_BEYOND], limits[_SIGN_BEYOND]
    nan, zero = limits[_OWN_NAN], limits[_SIGN_OF_ZERO]
    if shift:
        for i in range(size):
            numbers[i] = _rounded(
                numbers[i], shift, smallest, unit, largest, beyond, sign_beyond, nan, zero
            )
    else:
        for i in range(size):
            numbers[i] = table[_key(_word(numbers[i]))]


def _rounded(
    number: np.float32,
    shift: np.uint32,
    smallest: np.uint32,
    unit: np.float32,
    largest: np.uint32,
    beyond: np.uint32,
    sign_beyond: np.uint32,
    nan: np.uint32,
    sign_of_zero: np.uint32,
) -> np.float32:
    """The nearest float32 that a narrower type has, by its limits."""
    word = _word(number)
    magnitude, sign = np.uint32(word & _MAGNITUDE), np.uint32(word & _SIGN)
    odd = np.uint32(np.uint32(magnitude >> shift) & _1)
    half = np.uint32(np.uint32(_1 << np.uint32(shift - _1)) - _1)
    normal = np.uint32(np.uint32(magnitude + np.uint32(half + odd)) >> shift)
    # the last bit of the sum counts what the last bit of a subnormal number does
    subnormal = _word(np.float32(_single(magnitude) + unit) - unit)
    rounded = subnormal if magnitude < smallest else np.uint32(normal << shift)
    own_sign = sign if rounded > _0 else np.uint32(sign & sign_of_zero)
    outside = np.uint32(beyond | np.uint32(sign & sign_beyond))
    rounded = outside if rounded > largest else np.uint32(rounded | own_sign)
    return _single(nan if magnitude > _INFINITY else rounded)


def _rounded_to_bfloat16(number: np.float32) -> np.float32:
    word = _word(number)
    is_nan = (word & _MAGNITUDE) > _INFINITY
    return _single(_NAN if is_nan else np.uint32(_nearest_bfloat16(word) & np.uint32(0xFFFF0000)))


def _nearest_bfloat16(word: np.uint32) -> np.uint32:
    """In the upper half; not for NaNs."""
    odd = np.uint32(np.uint32(word >> np.uint32(16)) & _1)
    return np.uint32(word + np.uint32(odd + np.uint32(0x7FFF)))


def _rounded_to_float16(number: np.float32) -> np.float32:
    shift, smallest, unit = np.uint32(13), np.uint32(0x38800000), np.float32(0.5)
    largest = np.uint32(0x477FE000)
    return _rounded(number, shift, smallest, unit, largest, _INFINITY, _SIGN, _NAN, _SIGN)


def _of_float16(half: np.uint32) -> np.float32:
    """A NaN stays one, quiet or not."""
    moved = np.uint32(np.uint32(half & np.uint32(0x7FFF)) << np.uint32(13))
    # As a float32 its exponent is 112 too small, also where the float16 is subnormal.
    number = _word(_single(moved) * np.float32(2.0**112))
    number = number if moved < np.uint32(0x0F800000) else np.uint32(moved | _INFINITY)
    sign = np.uint32(np.uint32(half & np.uint32(0x8000)) << np.uint32(16))
    return _single(np.uint32(number | sign))


def _key(word: np.uint32) -> np.uint32:
    below = _1 if word & np.uint32(0x1FFFF) else _0
    return np.uint32(np.uint32(word >> np.uint32(17)) | below)


# ---- the larger and the smaller one: -0 is less than +0, NaN wins


def maximum_float32(source: Singles, target: Singles, count: int) -> None:
    """Of each pair the larger one."""
    for i in range(count):
        target[i] = _larger(source[i], target[i])


def minimum_float32(source: Singles, target: Singles, count: int) -> None:
    """Of each pair the smaller one."""
    for i in range(count):
        target[i] = _smaller(source[i], target[i])


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


def _larger(one: np.float32, other: np.float32) -> np.float32:
    larger = one if one > other or one != one else other
    both = _single(np.uint32(_word(one) & _word(other)))
    return both if one == other else larger


def _smaller(one: np.float32, other: np.float32) -> np.float32:
    smaller = one if one < other or one != one else other
    either = _single(np.uint32(_word(one) | _word(other)))
    return either if one == other else smaller


# ---- folds of rows of float32


def sum_rows(source: Singles, target: Singles, rows: int, size: int, stack: Longs) -> None:
    """Of each row zero plus its sum, in the order of numpy's pairwise sum.

    That halves what has more than `UNROLLED` elements. The stack has room for `STACK_WORDS`.
    """
    for row in range(rows):
        target[row] = np.float32(0) + _pairwise_sum(source, row * size, size, stack)


def largest_of_rows(source: Words, target: Words, rows: int, size: int) -> None:
    """Of each row the largest, of at least one; NaN wins, -0 is less than +0."""
    for row in range(rows):
        largest, has_nan = np.int32(-0x80000000), _0
        for i in range(row * size, row * size + size):
            largest = max(largest, _in_order(source[i]))
            has_nan = np.uint32(has_nan | _is_nan(source[i]))
        target[row] = _NAN if has_nan else _of_order(largest)


def smallest_of_rows(source: Words, target: Words, rows: int, size: int) -> None:
    """Of each row the smallest, of at least one; NaN wins, -0 is less than +0."""
    for row in range(rows):
        smallest, has_nan = np.int32(0x7FFFFFFF), _0
        for i in range(row * size, row * size + size):
            smallest = min(smallest, _in_order(source[i]))
            has_nan = np.uint32(has_nan | _is_nan(source[i]))
        target[row] = _NAN if has_nan else _of_order(smallest)


def _in_order(word: np.uint32) -> np.int32:
    """A whole number that is larger where the float is."""
    number = np.int32(word)
    return np.int32(number ^ np.int32(np.int32(number >> np.int32(31)) & np.int32(0x7FFFFFFF)))


def _of_order(number: np.int32) -> np.uint32:
    """The float of which `_in_order` makes a whole number, as a word: twice done is undone."""
    return np.uint32(_in_order(np.uint32(number)))


def _is_nan(word: np.uint32) -> np.uint32:
    return _1 if (word & _MAGNITUDE) > _INFINITY else _0


ACCUMULATORS, UNROLLED = 8, 128
"""Of numpy's pairwise sum: up to 128 elements are added to eight sums in turn."""

_DEEPEST = 64
"""A size of 64 bits is not halved more often."""

_SUMS = 3 * _DEEPEST
"""Where the stack has sums, behind parts that wait to be summed."""

STACK_WORDS = 5 * _DEEPEST
"""Of each part its start, size and depth, and of each sum its bits and depth."""


def _pairwise_sum(source: Singles, start: int, size: int, stack: Longs) -> np.float32:
    stack[0], stack[1], stack[2] = start, size, 0
    top, sums_top = 3, _SUMS  # behind the last part, and the last sum
    total = np.float32(0)
    while top:
        top -= 3
        first, count, depth = stack[top], stack[top + 1], stack[top + 2]
        while count > UNROLLED:  # the first half comes first
            half = count // 2 - count // 2 % ACCUMULATORS
            depth += 1
            stack[top], stack[top + 1], stack[top + 2] = first + half, count - half, depth
            top += 3
            count = half
        total = _unrolled_sum(source, first, count)
        while sums_top > _SUMS and stack[sums_top - 1] == depth:  # of the half before it
            sums_top -= 2
            total = _single(np.uint32(stack[sums_top])) + total
            depth -= 1
        stack[sums_top], stack[sums_top + 1] = np.int64(_word(total)), depth
        sums_top += 2
    return total


def _unrolled_sum(source: Singles, start: int, size: int) -> np.float32:
    done = size - size % ACCUMULATORS
    total = np.float32(-0.0)
    if done:
        a, b, c, d = source[start], source[start + 1], source[start + 2], source[start + 3]
        e, f, g, h = source[start + 4], source[start + 5], source[start + 6], source[start + 7]
        for i in range(start + ACCUMULATORS, start + done, ACCUMULATORS):
            a, b, c, d = a + source[i], b + source[i + 1], c + source[i + 2], d + source[i + 3]
            e, f, g, h = e + source[i + 4], f + source[i + 5], g + source[i + 6], h + source[i + 7]
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(start + done, start + size):
        total = total + source[i]
    return total


# ---- folds of rows of bfloat16


def sum_rows_of_bfloat16(
    source: Halves, target: Halves, rows: int, size: int, room: Singles
) -> None:
    """Of each row, of at least one element, the sum of neighbours in pairs, rounded in every round.

    An odd last one is kept. The room has two parts of (size + 1) // 2.
    """
    for row in range(rows):
        start, pairs = row * size, size // 2
        for i in range(pairs):
            one = _of_bfloat16(source[start + 2 * i])
            room[i] = _rounded_to_bfloat16(one + _of_bfloat16(source[start + 2 * i + 1]))
        if size % 2:
            room[pairs] = _of_bfloat16(source[start + size - 1])
        here, there, left = 0, (size + 1) // 2, (size + 1) // 2
        while left > 1:
            for i in range(left // 2):
                pair = room[here + 2 * i] + room[here + 2 * i + 1]
                room[there + i] = _rounded_to_bfloat16(pair)
            if left % 2:
                room[there + left // 2] = room[here + left - 1]
            here, there, left = there, here, (left + 1) // 2
        target[row] = np.uint16(_word(room[here]) >> np.uint32(16))


def largest_of_bfloat16_rows(source: Halves, target: Halves, rows: int, size: int) -> None:
    """Of each row the largest, of at least one; NaN wins, -0 is less than +0."""
    for row in range(rows):
        largest, has_nan = np.int16(-0x8000), np.uint16(0)
        for i in range(row * size, row * size + size):
            largest = max(largest, _in_short_order(source[i]))
            has_nan = np.uint16(has_nan | _is_short_nan(source[i]))
        target[row] = _SHORT_NAN if has_nan else _of_short_order(largest)


def smallest_of_bfloat16_rows(source: Halves, target: Halves, rows: int, size: int) -> None:
    """Of each row the smallest, of at least one; NaN wins, -0 is less than +0."""
    for row in range(rows):
        smallest, has_nan = np.int16(0x7FFF), np.uint16(0)
        for i in range(row * size, row * size + size):
            smallest = min(smallest, _in_short_order(source[i]))
            has_nan = np.uint16(has_nan | _is_short_nan(source[i]))
        target[row] = _SHORT_NAN if has_nan else _of_short_order(smallest)


def _of_bfloat16(half: np.uint16) -> np.float32:
    return _single(np.uint32(np.uint32(half) << np.uint32(16)))


def _in_short_order(half: np.uint16) -> np.int16:
    """A whole number that is larger where the float is."""
    number = np.int16(half)
    return np.int16(number ^ np.int16(np.int16(number >> np.int16(15)) & np.int16(0x7FFF)))


def _of_short_order(number: np.int16) -> np.uint16:
    """The float of which `_in_short_order` makes a whole number: twice done is undone."""
    return np.uint16(_in_short_order(np.uint16(number)))


def _is_short_nan(half: np.uint16) -> np.uint16:
    is_nan = np.uint16(half & np.uint16(0x7FFF)) > np.uint16(0x7F80)
    return np.uint16(1) if is_nan else np.uint16(0)


# ---- scatters into rows of float32

NOTHING = np.uint32(0xFFFFFFFF)
"""Stands for no update."""


def join_updates(
    join: int,
    table: Singles,
    rows: int,
    size: int,
    targets: Longs,
    updates: Singles,
    count: int,
    first: Words,
    following: Words,
    partial: Singles,
    depths: Longs,
) -> None:
    """Join rows of a table with updates, those of one row in pairs of neighbours before.

    `first` gets the first update of each row, and holds `NOTHING` before, `following` the next one
    of the same row. There is room for as many partial results, and depths, as `count` has bits.
    """
    for back in range(count):
        last = count - 1 - back
        target = targets[last]
        following[last] = first[target]
        first[target] = np.uint32(last)
    for row in range(rows):
        update = first[row]
        if update == NOTHING:
            continue
        held = 0
        while update != NOTHING:
            start = np.int64(update) * size
            for i in range(size):
                partial[held * size + i] = updates[start + i]
            depth = 0
            while held > 0 and depths[held - 1] == depth:  # its neighbour, of as many updates
                held -= 1
                _join_rows(join, partial, held * size, partial, (held + 1) * size, size)
                depth += 1
            depths[held] = depth
            held += 1
            update = following[update]
        while held > 1:
            held -= 1
            _join_rows(join, partial, (held - 1) * size, partial, held * size, size)
        _join_rows(join, table, row * size, partial, 0, size)
        for i in range(row * size, row * size + size):
            number = table[i]
            table[i] = _single(_NAN) if number != number else number


def _join_rows(join: int, total: Singles, at: int, part: Singles, start: int, size: int) -> None:
    for i in range(size):
        total[at + i] = _joined(join, total[at + i], part[start + i])


# ---- one of two, by a condition. Either may be one element for all: its step is 0 then, else 1.


def select_1(
    condition: Bytes, one: Bytes, step: int, other: Bytes, step_: int, target: Bytes, count: int
) -> None:
    """Elements of a byte."""
    _select(condition, one, step, other, step_, target, count)


def select_2(
    condition: Bytes, one: Halves, step: int, other: Halves, step_: int, target: Halves, count: int
) -> None:
    """Elements of two bytes."""
    _select(condition, one, step, other, step_, target, count)


def select_4(
    condition: Bytes, one: Words, step: int, other: Words, step_: int, target: Words, count: int
) -> None:
    """Elements of four bytes."""
    _select(condition, one, step, other, step_, target, count)


def select_8(
    condition: Bytes, one: Longs, step: int, other: Longs, step_: int, target: Longs, count: int
) -> None:
    """Elements of eight bytes."""
    _select(condition, one, step, other, step_, target, count)


def _select(
    condition: Bytes,
    one: np.ndarray,
    step: int,
    other: np.ndarray,
    step_: int,
    target: np.ndarray,
    count: int,
) -> None:
    if step and step_:
        for i in range(count):
            target[i] = one[i] if condition[i] else other[i]
    elif step:
        last = other[0]
        for i in range(count):
            target[i] = one[i] if condition[i] else last
    else:
        first = one[0]
        for i in range(count):
            target[i] = first if condition[i] else other[i * step_]


# ---- collectives of narrow floats as functions of their operands (`normal_form.py`)

TILE = 32768
"""Elements of a register: it stays in the second cache, and rows are read long enough in turn."""

BFLOAT16, FLOAT16, BYTE = range(3)
"""How elements are stored; they are joined as float32."""

ADD, MULTIPLY, MAXIMUM, MINIMUM, FIRST = range(5)
"""How they are joined; FIRST takes the part."""


def evaluate(
    kind: int,
    join: int,
    steps: Longs,
    step_count: int,
    count: int,
    leaf_bytes: RowsOfBytes,
    leaf_halves: RowsOfHalves,
    bytes_: Bytes,
    halves: Halves,
    registers: RowsOfSingles,
    register_count: int,
    widened: Singles,
    canonical: Bytes,
    rounded: Singles,
    limits: Words,
) -> None:
    """What steps make of rows of `count` elements, tile by tile.

    Leaves and the result are given as pointers to both types; those of `kind` are used. A step is
    register, divisor, number of parts, parts: a leaf, or ~register. There is room for one more
    register. The last four are tables of a one-byte float.
    """
    part = registers[register_count]  # a part of one byte an element, widened
    for start in range(0, count, TILE):
        size = min(TILE, count - start)
        at, total = 0, part
        for step in range(step_count):
            total = registers[steps[at]]
            divisor, parts = steps[at + 1], steps[at + 2]
            # the result is narrowed, and an extreme is a number that there is
            is_rounded = step + 1 < step_count and join < MAXIMUM
            for number in range(parts):
                leaf = steps[at + 3 + number]
                how = join if number else FIRST
                rounds = is_rounded and number == parts - 1 and divisor == 1
                if leaf >= 0 and kind == BFLOAT16:
                    _join_bfloat16(how, rounds, leaf_halves[leaf], start, total, size)
                elif leaf >= 0 and kind == FLOAT16:
                    _join_float16(how, rounds, leaf_halves[leaf], start, total, size)
                elif leaf >= 0 and number:
                    _widen_bytes(leaf_bytes[leaf], start, part, size, widened)
                    _join_register(how, part, total, size)
                elif leaf >= 0:
                    _widen_bytes(leaf_bytes[leaf], start, total, size, widened)
                elif number or ~leaf != steps[at]:
                    _join_register(how, registers[~leaf], total, size)
            if divisor != 1:
                for i in range(size):
                    total[i] = total[i] / np.float32(divisor)
            is_done = kind != BYTE and divisor == 1 and leaf >= 0
            if is_rounded and not is_done:
                if kind == BFLOAT16:
                    _round_to_bfloat16(total, size)
                elif kind == FLOAT16:
                    _round_to_float16(total, size)
                else:
                    _round_to_bytes(total, size, rounded, limits)
            at += 3 + parts
        if kind == BFLOAT16:
            _narrow_to_bfloat16(total, halves, start, size, 0)
        elif kind == FLOAT16:
            _narrow_to_float16(total, halves, start, size, 0)
        else:
            _narrow_to_bytes(total, bytes_, start, size, canonical)


def _join_bfloat16(
    join: int, rounds: bool, part: Halves, start: int, total: Singles, size: int
) -> None:
    if rounds:
        for i in range(size):
            number = _single(np.uint32(part[start + i]) << np.uint32(16))
            total[i] = _rounded_to_bfloat16(_joined(join, total[i], number))
    else:
        for i in range(size):
            number = _single(np.uint32(part[start + i]) << np.uint32(16))
            total[i] = _joined(join, total[i], number)


def _join_float16(
    join: int, rounds: bool, part: Halves, start: int, total: Singles, size: int
) -> None:
    if rounds:
        for i in range(size):
            number = _of_float16(np.uint32(part[start + i]))
            total[i] = _rounded_to_float16(_joined(join, total[i], number))
    else:
        for i in range(size):
            number = _of_float16(np.uint32(part[start + i]))
            total[i] = _joined(join, total[i], number)


def _join_register(join: int, part: Singles, total: Singles, size: int) -> None:
    for i in range(size):
        total[i] = _joined(join, total[i], part[i])


def _joined(join: int, total: np.float32, part: np.float32) -> np.float32:
    if join == ADD:
        return total + part
    if join == MULTIPLY:
        return total * part
    if join == MAXIMUM:
        return _larger(total, part)
    if join == MINIMUM:
        return _smaller(total, part)
    return part
