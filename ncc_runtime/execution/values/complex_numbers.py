"""Arithmetic of complex numbers where numpy's own gives NaN for what has a limit, and their order.

Quotients follow C99, Annex G.5.1, as XLA's do: by zero and by infinity they are infinite and zero.
"""

from collections.abc import Callable

import numpy as np

Parts = tuple[np.ndarray, np.ndarray]


def joined(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """Complex numbers of their parts."""
    result = np.empty(np.broadcast_shapes(real.shape, imaginary.shape), _complex_of(real.dtype))
    result.real, result.imag = real, imaginary
    return result


def _complex_of(dtype: np.dtype) -> np.dtype:
    return np.result_type(dtype, np.complex64)


def quotient(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left / right."""
    plain = np.asarray(left / right)
    a, b, c, d = left.real, left.imag, right.real, right.imag
    unknown = np.isnan(plain.real) & np.isnan(plain.imag)
    by_zero = (c == 0) & (d == 0)
    if not (unknown | by_zero).any():
        return plain
    infinite = np.copysign(c.dtype.type(np.inf), c)
    is_number = ~(np.isnan(a) & np.isnan(b))
    result = np.where(by_zero & is_number, joined(infinite * a, infinite * b), plain)
    large = (np.isinf(a) | np.isinf(b)) & np.isfinite(c) & np.isfinite(d)
    result = np.where(unknown & large & ~by_zero, _scaled(_unit(a, b), (c, d), np.inf), result)
    small = (np.isinf(c) | np.isinf(d)) & np.isfinite(a) & np.isfinite(b)
    return np.where(unknown & small, _scaled((a, b), _unit(c, d), 0.0), result)


def _unit(x: np.ndarray, y: np.ndarray) -> Parts:
    """The signs of what is infinite, zeros of the sign of what is not."""
    one = x.dtype.type(1)
    return np.copysign(one * np.isinf(x), x), np.copysign(one * np.isinf(y), y)


def _scaled(left: Parts, right: Parts, factor: float) -> np.ndarray:
    """factor times left times the conjugate of right."""
    (a, b), (c, d) = left, right
    scale = a.dtype.type(factor)
    return joined(scale * (a * c + b * d), scale * (b * c - a * d))


def sign(array: np.ndarray) -> np.ndarray:
    """array / |array|; zero where it is zero."""
    size = np.abs(array)
    unit = joined(array.real / size, array.imag / size)
    return np.where(size == 0, array, unit)


def expm1(array: np.ndarray) -> np.ndarray:
    """e to the array, minus 1, exact near zero."""
    x, y = array.real.copy(), array.imag.copy()
    half = np.sin(y / 2)
    real = np.expm1(x) * np.cos(y) - 2 * half * half
    return joined(real, np.where(y == 0, y, np.exp(x) * np.sin(y)))


def log1p(array: np.ndarray) -> np.ndarray:
    """The logarithm of 1 + array: numpy's adds 1 first and loses what is small."""
    x, y = array.real.copy(), array.imag.copy()
    size = np.hypot(x + 1, y)
    near = (size > 0.5) & (size < 2)
    exact = np.log1p(np.where(near, x * (2 + x) + y * y, 0)) / 2
    return joined(np.where(near, exact, np.log(size)), np.arctan2(y, x + 1))


def atan2(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """-i log((x + iy) / sqrt(x^2 + y^2)), the principal value."""
    i = y.dtype.type(1j)
    return -i * np.log(quotient(x + i * y, np.sqrt(x * x + y * y)))


def compare(strict: Callable[..., np.ndarray], of_imaginary: Callable[..., np.ndarray]) -> Callable:
    """A comparison by real part, and where these are equal by imaginary part."""

    def compared(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        is_tie = left.real == right.real
        return strict(left.real, right.real) | (is_tie & of_imaginary(left.imag, right.imag))

    return compared


def choose(
    is_first: Callable[..., np.ndarray], of_parts: Callable[..., np.ndarray]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Of two numbers the one that comes first, NaN in both parts if any of the four parts is.

    Equal ones differ in the signs of zeros only, which `of_parts` settles as it does for floats. So
    the choice does not hang on the order in which many numbers meet.
    """
    before = compare(is_first, is_first)

    def chosen(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        result = np.where(before(left, right), left, right)
        settled = joined(of_parts(left.real, right.real), of_parts(left.imag, right.imag))
        result = np.where(left == right, settled, result)
        return np.where(np.isnan(left) | np.isnan(right), complex(np.nan, np.nan), result)

    return chosen
