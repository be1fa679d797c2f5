"""Numerical methods: Fourier transforms, Cholesky factors, triangular systems, random bits.

`rng-bit-generator` is ThreeFry-2x32 and Philox-4x32, laid out over the array as XLA does. Source:
Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from ncc_runtime.execution.values.kernels.conversions import widened
from ncc_runtime.execution.values.kernels.work import Arrays, Kernel, KernelCall

_TRANSFORMS: Mapping[str, Callable[..., np.ndarray]] = {
    "FFT": np.fft.fftn,
    "IFFT": np.fft.ifftn,
    "RFFT": np.fft.rfftn,
    "IRFFT": np.fft.irfftn,
}


def fft(call: KernelCall, operands: Arrays) -> Arrays:
    """The transform in the precision of the operand."""
    (array,), (result,) = operands, call.results
    if not array.size or not result.elements:
        return [np.zeros((len(call.ranks), *result.shape), result.dtype.numpy)]
    lengths = call.integers("fft_length")
    axes = tuple(range(array.ndim - len(lengths), array.ndim))
    with np.errstate(all="ignore"):
        transformed = _TRANSFORMS[str(call.attributes["fft_type"])](array, s=lengths, axes=axes)
    return [transformed.astype(result.dtype.numpy, copy=False)]


def cholesky(call: KernelCall, operands: Arrays) -> Arrays:
    """The triangle L or its adjoint; all NaN where the matrix is not positive definite."""
    matrices = widened(operands[0])
    stack = matrices.reshape(math.prod(matrices.shape[:-2]), *matrices.shape[-2:])
    factors = _factors(stack, not call.attributes["lower"])
    factors[np.isnan(factors).any(axis=(-1, -2))] = np.nan  # LAPACK does not refuse every NaN
    return [factors.reshape(matrices.shape).astype(call.results[0].dtype.numpy, copy=False)]


def _factors(stack: np.ndarray, upper: bool) -> np.ndarray:
    """LAPACK's factors, NaN for matrices that have none.

    numpy refuses a stack as a whole, so it is halved until such a matrix is alone.
    """
    try:
        return np.linalg.cholesky(stack, upper=upper)
    except np.linalg.LinAlgError:
        if len(stack) == 1:
            return np.full_like(stack, np.nan)
    half = len(stack) // 2
    return np.concatenate([_factors(stack[:half], upper), _factors(stack[half:], upper)])


def triangular_solve(call: KernelCall, operands: Arrays) -> Arrays:
    """Substitution: each row that is solved is subtracted from all rows that are not yet."""
    matrix, right_side = map(widened, operands)
    is_lower, on_left = bool(call.attributes["lower"]), bool(call.attributes["left_side"])
    if call.attributes["transpose_a"] == "ADJOINT":
        matrix = matrix.conj()
    is_transposed = call.attributes["transpose_a"] != "NO_TRANSPOSE"
    if is_transposed is on_left:  # X A = B is the transpose of A' X' = B'
        matrix, is_lower = matrix.swapaxes(-1, -2), not is_lower
    rows = np.array(right_side if on_left else right_side.swapaxes(-1, -2), order="C")
    size = matrix.shape[-1]
    with np.errstate(all="ignore"):
        for k in range(size) if is_lower else reversed(range(size)):
            if not call.attributes["unit_diagonal"]:
                rows[..., k, :] /= matrix[..., k, k, None]
            rest = slice(k + 1, size) if is_lower else slice(0, k)
            rows[..., rest, :] -= matrix[..., rest, k, None] * rows[..., k, None, :]
        solution = rows if on_left else rows.swapaxes(-1, -2)
        return [solution.astype(call.results[0].dtype.numpy, copy=False)]


def _lapack(call: KernelCall, operands: Arrays) -> Arrays:
    # scipy takes a while to load
    from ncc_runtime.execution.values.kernels.linear_algebra import lapack

    return lapack(call, operands)


METHOD_KERNELS: Mapping[str, Kernel] = {
    "lapack": _lapack,
    "cholesky": cholesky,
    "fft": fft,
    "triangular-solve": triangular_solve,
}


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_HALF = np.uint64(32)


def rng_bit_generator(call: KernelCall, operands: Arrays) -> Arrays:
    """The next state, and random bits in every element."""
    (state,), bits = operands, call.results[1]
    is_wide = bits.dtype.size_bytes == np.dtype(np.uint64).itemsize
    with np.errstate(over="ignore"):
        if call.attributes["algorithm"] == "rng_three_fry":
            numbers, blocks = _three_fry_array(state, bits.shape, is_wide)
        else:
            numbers, blocks = _philox_array(state, bits.shape, is_wide)
        low, high = _advanced(state, np.uint64(blocks))
    next_state = np.stack([state[:, 0], low, high][: state.shape[1]], axis=1)
    dtype = bits.dtype  # of which a number gives its lowest bits
    if dtype.numpy.isbuiltin != 1:
        return [next_state, numbers.astype(np.uint8).astype(dtype.numpy)]
    return [next_state, numbers.astype(np.dtype(f"u{dtype.size_bytes}")).view(dtype.numpy)]


def _halves(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return words.astype(np.uint32), (words >> _HALF).astype(np.uint32)


def _joined(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(np.uint64) | high.astype(np.uint64) << _HALF


def _advanced(state: np.ndarray, steps: np.ndarray | np.uint64) -> tuple[np.ndarray, np.ndarray]:
    """The counter of 128 bits after some steps; a state of two words has its key as upper half."""
    low, high = state[:, 1], state[:, 2 % state.shape[1]]
    if np.ndim(steps):
        low, high = low[:, None], high[:, None]
    next_low = low + steps
    return next_low, high + (next_low < low)  # the carry


def _three_fry_array(
    state: np.ndarray, shape: tuple[int, ...], is_wide: bool
) -> tuple[np.ndarray, int]:
    """A block gives 64 bits: one number, or two neighbours along one dimension."""
    sizes = list(shape or (1,))
    split = next((d for d, size in enumerate(sizes) if size % 2 == 0), sizes.index(max(sizes)))
    blocks = list(sizes)
    if not is_wide:
        blocks[split] = -(-sizes[split] // 2)
    count = math.prod(blocks)
    counters = state[:, 1, None] + np.arange(count, dtype=np.uint64)
    pair = _three_fry(_halves(state[:, 0, None]), _halves(counters))
    if is_wide:
        return _joined(*pair).reshape(len(state), *shape), count
    halves = [half.reshape(len(state), *blocks) for half in pair]
    doubled = [2 * size if d == split else size for d, size in enumerate(blocks)]
    numbers = np.stack(halves, axis=split + 2).reshape(len(state), *doubled)
    used = (slice(None), *(slice(0, size) for size in sizes))  # an odd size leaves numbers over
    return numbers[used].reshape(len(state), *shape), count


def _three_fry(
    key: tuple[np.ndarray, np.ndarray], counter: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << np.uint32(rotation) | y >> np.uint32(32 - rotation)) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _philox_array(
    state: np.ndarray, shape: tuple[int, ...], is_wide: bool
) -> tuple[np.ndarray, int]:
    """A block gives 128 bits: four numbers in a row, or two."""
    count = math.prod(shape)
    blocks = -(-count // (2 if is_wide else 4))
    low, high = _advanced(state, np.arange(blocks, dtype=np.uint64))
    words = _philox(_halves(state[:, 0, None]), (*_halves(low), *_halves(high)))
    numbers = [_joined(*words[:2]), _joined(*words[2:])] if is_wide else list(words)
    flat = np.stack(numbers, axis=2).reshape(len(state), blocks * len(numbers))
    return flat[:, :count].reshape(len(state), *shape), blocks


_Four = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _philox(key: tuple[np.ndarray, np.ndarray], counter: _Four) -> _Four:
    (a, b, c, d), (low, high) = counter, key
    for _ in range(10):
        left_low, left_high = _halves(a.astype(np.uint64) * _MULTIPLIERS[0])
        right_low, right_high = _halves(c.astype(np.uint64) * _MULTIPLIERS[1])
        a, b, c, d = right_high ^ b ^ low, right_low, left_high ^ d ^ high, left_low
        low, high = low + _WEYL[0], high + _WEYL[1]
    return a, b, c, d
