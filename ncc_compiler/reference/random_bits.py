"""`rng-bit-generator`: ThreeFry-2x32 and Philox-4x32 as XLA lays them out, number by number.

And `rng`, of which only the distribution is said: here by numpy's generator.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.conversion import narrowed
from ncc_compiler.reference.step import Step, Value
from ncc_runtime.neff.dtypes import DType

_LOW, _WORD = 2**32 - 1, 2**64


def _halves(number: int) -> tuple[int, int]:
    return number & _LOW, number >> 32 & _LOW


def _three_fry(key: int, counter: int) -> tuple[int, int]:
    """Two words of 32 bits. Source: Salmon et al., Parallel random numbers (2011), 20 rounds."""
    first, second = _halves(key)
    keys = (first, second, first ^ second ^ 0x1BD11BDA)
    x, y = _halves(counter)
    x, y = (x + first) & _LOW, (y + second) & _LOW
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = (x + y) & _LOW
            y = ((y << turn | y >> (32 - turn)) & _LOW) ^ x
        x = (x + keys[(group + 1) % 3]) & _LOW
        y = (y + keys[(group + 2) % 3] + group + 1) & _LOW
    return x, y


def _philox(key: int, counter: int) -> tuple[int, int, int, int]:
    """Four words of 32 bits from a counter of 128. Source: as above, 10 rounds."""
    a, b, c, d = (counter >> shift & _LOW for shift in (0, 32, 64, 96))
    low, high = _halves(key)
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = right >> 32 ^ b ^ low, right & _LOW, left >> 32 ^ d ^ high, left & _LOW
        low, high = (low + 0x9E3779B9) & _LOW, (high + 0xBB67AE85) & _LOW
    return a, b, c, d


def _three_fry_array(state: list[int], shape: tuple[int, ...], bits: int) -> tuple[np.ndarray, int]:
    """The numbers, and by how much the counter grows.

    A block gives one number of 64 bits. Of narrower ones it gives two: neighbours along the first
    dimension of even size, or else the largest.
    """
    key, counter = state
    sizes = shape or (1,)
    even = [d for d, size in enumerate(sizes) if size % 2 == 0]
    split = even[0] if even else sizes.index(max(sizes))
    blocks = tuple(
        -(-size // 2) if d == split and bits < 64 else size for d, size in enumerate(sizes)
    )
    result = np.zeros(sizes, np.uint64)
    for number, index in enumerate(np.ndindex(blocks)):
        x, y = _three_fry(key, (counter + number) % _WORD)
        if bits == 64:
            result[index] = x | y << 32
            continue
        for half, word in enumerate((x, y)):
            place = tuple(2 * i + half if d == split else i for d, i in enumerate(index))
            if place[split] < sizes[split]:
                result[place] = word
    return result.reshape(shape), math.prod(blocks)


def _philox_array(state: list[int], shape: tuple[int, ...], bits: int) -> tuple[np.ndarray, int]:
    """The numbers in order, four of a block, or two of 64 bits.

    Of a state of two words the key is the upper half of the counter as well.
    """
    key, low, high = state if len(state) == 3 else (*state, state[0])
    count = math.prod(shape)
    blocks = -(-count // (2 if bits == 64 else 4))

    def words() -> Iterator[int]:
        for number in range(blocks):
            a, b, c, d = _philox(key, (low + _WORD * high + number) % 2**128)
            yield from (a | b << 32, c | d << 32) if bits == 64 else (a, b, c, d)

    numbers = np.fromiter(words(), np.uint64, -1)[:count]
    return numbers.reshape(shape), blocks


def rng_bit_generator(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The state after, and the bits; narrower numbers are the low bits of 32."""
    assert isinstance(node.type, TupleType), node.name
    kind = node.type.elements[1]
    assert isinstance(kind, ArrayType), node.name
    state = [int(word) for word in operands[0]]
    width = int(kind.dtype.value[1:])
    generate = _philox_array
    if node.attributes["algorithm"] == "rng_three_fry":
        generate = _three_fry_array
    numbers, grown = generate(state, kind.shape, width)
    after = state[1] + grown
    if len(state) == 3:
        state[2] = (state[2] + after // _WORD) % _WORD
    state[1] = after % _WORD
    return np.array(state, np.uint64), _as_bits(numbers, kind.dtype, width)


def _as_bits(numbers: np.ndarray, dtype: DType, width: int) -> np.ndarray:
    """The lowest bits as numbers of the dtype."""
    if width < 8:
        return narrowed(numbers.astype(np.uint8), dtype)
    return numbers.astype(np.dtype(f"u{width // 8}")).view(dtype.numpy)


def rng(step: Step) -> list[Value]:
    """Numbers of the distribution, others on each rank and for each node."""
    return [_drawn(step.node, rank, step.arrays(k)) for k, rank in enumerate(step.ranks)]


def _drawn(node: Node, rank: int, operands: Sequence[np.ndarray]) -> np.ndarray:
    dtype, shape = node.array.dtype, node.array.shape
    generator = np.random.default_rng([rank, *node.name.encode()])
    if dtype.is_integer:
        low, high = (int(one) for one in operands)
        carrier = np.int64 if dtype.is_signed else np.uint64
        return narrowed(generator.integers(low, max(high, low + 1), shape, carrier), dtype)
    first, second = (float(one) for one in operands)
    if node.attributes["distribution"] == "rng_normal":
        return narrowed(generator.normal(first, second, shape), dtype)
    return narrowed(generator.uniform(first, second, shape), dtype)
