"""Fingerprints: what a byte of memory holds, as one number.

Every extent of every rank gets a random odd number R when a placeholder begins, and element p of it
the fingerprint R * B^p, where B is one random number and products and sums wrap at 64 bits. A copy
keeps fingerprints, a join adds them whatever the reduction, a division multiplies by a random odd
number that stands for the divisor, zeros are 0. Two ways to compute the same give one number; two
different sums of operands give different ones, but for an accident of 2^-30 or much less.

Since R is one number for an extent, what any element of a cell holds follows from what the first
one does: a factor B for each element between. So cells need not be cut where transfers read.

Memory that a placeholder has not written has fingerprints too, so reading it shows.
"""

import functools

import attrs
import numpy as np

SEED = 20_260_105
LOW_BITS = 14
"""Of an exponent, that are looked up together."""
_ODD = np.uint64(1)


@attrs.frozen(eq=False)
class Powers:
    """B^p for p from 0 up to a bound, as products of two looked up."""

    low: np.ndarray  # (up to 1 << LOW_BITS,) uint64
    high: np.ndarray  # (n,) uint64: B^(k << LOW_BITS)

    @classmethod
    def up_to(cls, most: int) -> "Powers":
        """A table for exponents from 0 to `most`."""
        base = np.random.default_rng(SEED).integers(0, 1 << 60, 1, np.uint64) * 8 + 5
        low = _powers(base, min(1 << LOW_BITS, most + 1))
        return cls(low, _powers(low[-1:] * base, (most >> LOW_BITS) + 1))

    def __call__(self, exponents: np.ndarray) -> np.ndarray:
        """B to each of these."""
        if len(self.high) == 1:
            return self.low[exponents]
        low = self.low[exponents & ((1 << LOW_BITS) - 1)]
        low *= self.high[exponents >> LOW_BITS]
        return low


def _powers(base: np.ndarray, count: int) -> np.ndarray:
    """1, base, base^2 …, (count,) uint64; `base` is (1,)."""
    factors = np.repeat(base, count)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def symbols(ranks: int, extents: int) -> np.ndarray:
    """A random odd number R for every extent of every rank, (ranks, extents) uint64."""
    generator = np.random.default_rng(SEED + 1)
    return generator.integers(0, 1 << 63, (ranks, extents), np.uint64) * 2 + _ODD


@functools.cache
def factor(divisor: int) -> np.uint64:
    """The number that a division by this multiplies by; 1 for 1."""
    if divisor == 1:
        return _ODD
    generator = np.random.default_rng((SEED, divisor & 0xFFFF_FFFF))
    return generator.integers(0, 1 << 63, dtype=np.uint64) * np.uint64(2) + _ODD
