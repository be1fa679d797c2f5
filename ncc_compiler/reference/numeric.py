"""Ops that are numerical methods, by their definitions and in double precision.

Random bits: `rng-bit-generator` is ThreeFry-2x32 and Philox-4x32 as XLA lays them out, number by
number; of `rng` only the distribution is specified, here by numpy's generator.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.numbers import in_double, narrowed
from ncc_compiler.reference.step import OpStep, Value

Method = Callable[[Node, Sequence[np.ndarray]], Value]


def _rounded(node: Node, array: np.ndarray) -> np.ndarray:
    assert isinstance(node.type, ArrayType), node.name
    return narrowed(array, node.type.dtype)


def _waves(size: int, sign: int) -> np.ndarray:
    """The matrix of a discrete Fourier transform: [k, m] is e to the sign 2 pi i k m / size."""
    products = np.outer(np.arange(size), np.arange(size)) % max(size, 1)
    return np.exp(sign * 2j * np.pi * products / max(size, 1))


def fft(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Sums of waves over the last dimensions; inverse transforms divide by their number."""
    kind, lengths = str(node.attributes["fft_type"]), node.integers("fft_length")
    array, sign = operands[0].astype(np.complex128), 1 if kind.startswith("I") else -1
    for axis, length in enumerate(lengths, start=array.ndim - len(lengths)):
        if kind == "IRFFT" and axis == array.ndim - 1:
            array = _real_waves(array, length)
        else:
            product = np.tensordot(array, _waves(length, sign), axes=(axis, 0))
            array = np.moveaxis(product, -1, axis)
        array = array / max(length, 1) if sign > 0 else array
    if kind == "RFFT":
        array = array[..., : lengths[-1] // 2 + 1 if lengths[-1] else 0]
    return _rounded(node, array)


def _real_waves(array: np.ndarray, length: int) -> np.ndarray:
    """Half a spectrum as a real array: all but the lowest and highest frequencies count twice."""
    count = array.shape[-1]
    weights = np.where(np.isin(np.arange(count), (0, length / 2)), 1, 2)
    return ((array * weights) @ _waves(length, 1)[:count]).real


def cholesky(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """L of A = L L*, column by column; NaN where A is not positive. Reads one triangle only."""
    given = in_double(operands[0])
    is_lower = bool(node.attributes["lower"])
    matrix = given if is_lower else np.conj(np.swapaxes(given, -1, -2))
    factor = np.zeros_like(matrix)
    positive = np.ones(matrix.shape[:-2], bool)
    for k in range(matrix.shape[-1]):
        rest = (
            matrix[..., k:, k] - (factor[..., k:, :k] @ np.conj(factor[..., k, :k, None]))[..., 0]
        )
        pivot = rest[..., 0].real
        positive &= pivot > 0
        factor[..., k:, k] = rest / np.sqrt(pivot)[..., None]
        factor[..., k, k] = np.sqrt(pivot)
    factor = factor if is_lower else np.conj(np.swapaxes(factor, -1, -2))
    factor[~positive] = np.nan
    return _rounded(node, factor)


def triangular_solve(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """X of op(A) X = B, or of X op(A) = B, row by row."""
    matrix, given = map(in_double, operands)
    lower, transposed = bool(node.attributes["lower"]), node.attributes["transpose_a"]
    if transposed != "NO_TRANSPOSE":
        matrix, lower = np.swapaxes(matrix, -1, -2), not lower
    if transposed == "ADJOINT":
        matrix = np.conj(matrix)
    if not node.attributes["left_side"]:
        matrix, given, lower = np.swapaxes(matrix, -1, -2), np.swapaxes(given, -1, -2), not lower
    result = np.zeros_like(given)
    rows = range(matrix.shape[-1])
    for k in rows if lower else reversed(rows):
        known = slice(0, k) if lower else slice(k + 1, None)
        sums = (matrix[..., k, None, known] @ result[..., known, :])[..., 0, :]
        row = given[..., k, :] - sums
        divisor = 1 if node.attributes["unit_diagonal"] else matrix[..., k, k, None]
        result[..., k, :] = row / divisor
    if not node.attributes["left_side"]:
        result = np.swapaxes(result, -1, -2)
    return _rounded(node, result)


def _batch_norm_operands(
    node: Node, operands: Sequence[np.ndarray]
) -> tuple[tuple[np.ndarray, ...], tuple[int, ...]]:
    """Operands in double precision, features last in large ones; the axes that means run over."""
    feature, rank = node.integer("feature_index"), operands[0].ndim
    wide = map(in_double, operands)
    moved = tuple(np.moveaxis(x, feature, -1) if x.ndim == rank else x for x in wide)
    return moved, tuple(range(rank - 1))


def _batch_norm_results(node: Node, *arrays: np.ndarray) -> Value:
    """The first array with its features where they were; each rounded to its declared type."""
    first = np.moveaxis(arrays[0], -1, node.integer("feature_index"))
    kinds = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
    results = tuple(
        narrowed(array, kind.dtype)
        for array, kind in zip((first, *arrays[1:]), kinds, strict=True)
        if isinstance(kind, ArrayType)
    )
    return results if isinstance(node.type, TupleType) else results[0]


def _mean(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """NaN where there is nothing, without the warning that numpy's own gives."""
    return np.asarray(array.sum(axes) / np.float64(np.prod([array.shape[axis] for axis in axes])))


def batch_norm_inference(node: Node, operands: Sequence[np.ndarray]) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset."""
    (x, scale, offset, mean, variance), _ = _batch_norm_operands(node, operands)
    deviation = np.sqrt(variance + node.number("epsilon"))
    return _batch_norm_results(node, (x - mean) / deviation * scale + offset)


def batch_norm_training(node: Node, operands: Sequence[np.ndarray]) -> Value:
    """The same with the mean and the variance of the operand, which are results, too."""
    (x, scale, offset), axes = _batch_norm_operands(node, operands)
    mean = _mean(x, axes)
    variance = _mean((x - mean) ** 2, axes)
    deviation = np.sqrt(variance + node.number("epsilon"))
    result = (x - mean) / deviation * scale + offset
    return _batch_norm_results(node, result, mean, variance)


def batch_norm_grad(node: Node, operands: Sequence[np.ndarray]) -> Value:
    """Derivatives for operand, scale and offset of what training computes, by the chain rule.

    With u = (x - mean) / deviation: dx = scale / deviation * (g - mean(g) - u * mean(g * u)).
    """
    (x, scale, mean, variance, g), axes = _batch_norm_operands(node, operands)
    deviation = np.sqrt(variance + node.number("epsilon"))
    u = (x - mean) / deviation
    x_grad = scale / deviation * (g - _mean(g, axes) - u * _mean(g * u, axes))
    scale_grad = (g * (x - mean)).sum(axes) / deviation
    return _batch_norm_results(node, x_grad, scale_grad, g.sum(axes))


def sized_work(node: Node, _: Sequence[np.ndarray]) -> Value:
    """Nobody knows what it computes."""
    raise ValueError(f"{node.name} is work of which only sizes are known")


METHODS: Mapping[str, Method] = {
    "batch-norm-grad": batch_norm_grad,
    "batch-norm-inference": batch_norm_inference,
    "batch-norm-training": batch_norm_training,
    "fft": fft,
    "cholesky": cholesky,
    "triangular-solve": triangular_solve,
    "ncc.work": sized_work,
}
"""What each method makes of its operands on one rank."""


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
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = (x + y) & _LOW
            y = ((y << rotation | y >> (32 - rotation)) & _LOW) ^ x
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
    dimension of even size, or along the largest if there is none.
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
            target = tuple(2 * i + half if d == split else i for d, i in enumerate(index))
            if target[split] < sizes[split]:
                result[target] = word
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
    bits = int(kind.dtype.value[1:])
    generate = _philox_array
    if node.attributes["algorithm"] == "rng_three_fry":
        generate = _three_fry_array
    numbers, blocks = generate(state, kind.shape, bits)
    counter = state[1] + blocks
    if len(state) == 3:  # the counter has 128 bits
        state[2] = (state[2] + counter // _WORD) % _WORD
    state[1] = counter % _WORD
    if bits < 8:
        return np.array(state, np.uint64), narrowed(numbers.astype(np.uint8), kind.dtype)
    low_bits = numbers.astype(np.dtype(f"u{bits // 8}")).view(kind.dtype.numpy)
    return np.array(state, np.uint64), low_bits


def rng(step: OpStep) -> list[Value]:
    """Numbers of the distribution, others on each rank and for each node."""
    return [_random(step.node, rank, step.arrays(k)) for k, rank in enumerate(step.ranks)]


def _random(node: Node, rank: int, operands: Sequence[np.ndarray]) -> np.ndarray:
    dtype, shape = node.array.dtype, node.array.shape
    generator = np.random.default_rng([rank, *node.name.encode()])
    if dtype.is_integer:
        low, high = map(int, operands)
        carrier = np.int64 if dtype.is_signed else np.uint64
        return narrowed(generator.integers(low, max(high, low + 1), shape, carrier), dtype)
    first, second = map(float, operands)
    if node.attributes["distribution"] == "rng_normal":
        return narrowed(generator.normal(first, second, shape), dtype)
    return narrowed(generator.uniform(first, second, shape), dtype)
