"""Random values of parameters, drawn at memory speed: each follows from a key and its place alone.

An array is cut into blocks. Each has a generator of its own, a stream that numpy's SeedSequence
spawns for the key and the number of the block, so blocks are drawn in any order by any number of
threads. Only words of the bit generator are used, which numpy keeps as they are from release to
release: a seed gives the same values with all of them.

Floats are normal. Sixteen bits of a word choose one of 65,536 equally probable quantiles from a
table in the type itself, and more bits of it replace the last ones of a mantissa that has room for
them: a wide array holds few values twice. That takes a quarter of the time of a ziggurat. No value
is farther from zero than 4.4.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.threads import Threads

BLOCK = 1 << 17
"""Numbers that one generator draws: its start takes little then, and they stay in the cache."""

VERSION = 1
"""To be raised when a seed draws other values: a job does not go on from a checkpoint of others."""

_SPREAD = {np.dtype(np.float32): 9, np.dtype(np.float64): 38}
"""Last bits of a mantissa that are drawn too: beside them 2^-14 of a value is left, about the
distance of quantiles near one."""


def drawn(
    dtype: DType, shape: tuple[int, ...], seed: int, key: Sequence[int], threads: Threads
) -> np.ndarray:
    """An array of normal floats, integers from 0 to 7, or fair booleans.

    `key` says which array it is among those that are drawn from the seed.
    """
    return drawn_rows(dtype, shape, (0, shape[0]) if shape else (0, 1), seed, key, threads)


def drawn_rows(
    dtype: DType,
    shape: tuple[int, ...],
    rows: tuple[int, int],
    seed: int,
    key: Sequence[int],
    threads: Threads,
) -> np.ndarray:
    """The same from one row of dimension 0 up to another, without the rest."""
    first, end = rows
    array: np.ndarray = np.empty((end - first, *shape[1:]) if shape else (), dtype.numpy)
    flat = array.reshape(-1)
    if dtype.is_complex:
        flat = flat.view(flat.real.dtype)
    per_row = math.prod(shape[1:]) * (1 + dtype.is_complex)
    begin, in_all = first * per_row, (shape[0] if shape else 1) * per_row

    def draw(number: int) -> None:
        sequence = np.random.SeedSequence(seed, spawn_key=(*key, number))
        generator = np.random.SFC64(sequence)
        start = number * BLOCK - begin  # of its numbers in what is drawn
        size = min(BLOCK, in_all - number * BLOCK)
        if start >= 0 and start + size <= flat.size:
            _fill(flat[start : start + size], dtype, generator)
            return
        block = np.empty(size, flat.dtype)
        _fill(block, dtype, generator)
        there = slice(max(0, start), min(flat.size, start + size))
        flat[there] = block[there.start - start : there.stop - start]

    blocks = range(begin // BLOCK, -(-(begin + flat.size) // BLOCK)) if flat.size else ()
    threads.perform([functools.partial(draw, number) for number in blocks])
    return array


def _fill(part: np.ndarray, dtype: DType, generator: np.random.SFC64) -> None:
    def words(size_bytes: int) -> np.ndarray:
        """A random word of so many bytes for each number."""
        count = -(-part.size * size_bytes // 8)
        return generator.random_raw(count).view(f"u{size_bytes}")[: part.size]

    if dtype is DType.PRED:
        part[...] = words(1) & 1
    elif dtype.is_integer:
        limit = min(8, 2 ** max(1, dtype.bits - 1))  # of one bit: 1, or the -1 that it wraps to
        part[...] = words(1) & (limit - 1)
    else:
        size_bytes = part.itemsize
        table, bits = _quantiles_in(part.dtype), part.view(f"u{size_bytes}")
        if size_bytes <= 2:
            # with mode="raise" numpy would write into a temporary first
            np.take(table, words(2), out=bits, mode="clip")
            return
        word = words(size_bytes)
        np.take(table, word >> (8 * size_bytes - 16), out=bits, mode="clip")
        word &= (1 << _SPREAD[part.dtype]) - 1
        bits ^= word


@functools.cache
def _quantiles_in(dtype: np.dtype) -> np.ndarray:
    """The quantiles in a type, as words of its size."""
    with np.errstate(invalid="ignore"):  # some types have no sign: NaN
        return _quantiles().astype(dtype).view(f"u{dtype.itemsize}")


@functools.cache
def _quantiles() -> np.ndarray:
    """65,536 float32: in the middle of each of as many equally probable intervals, both signs."""
    x = np.linspace(0, 6, 1 << 14)
    density = np.exp(-x * x / 2)
    # the integral from 0 by the trapezoidal rule, of all there is on this side
    share = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    share /= share[-1]
    middle = (np.arange(1 << 15) + 0.5) / (1 << 15)
    positive = np.interp(middle, share, x).astype(np.float32)
    return np.concatenate([positive, -positive])
