"""Whole numerical methods: Fourier transforms, Cholesky factors, triangular systems."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from ncc_runtime.execution.values.conversion import widened
from ncc_runtime.execution.values.work import Arrays, Kernel, Work

_TRANSFORMS: Mapping[str, Callable[..., np.ndarray]] = {
    "FFT": np.fft.fftn,
    "IFFT": np.fft.ifftn,
    "RFFT": np.fft.rfftn,
    "IRFFT": np.fft.irfftn,
}


def fft(work: Work, operands: Arrays) -> Arrays:
    """The transform in the precision of the operand."""
    (array,), (result,) = operands, work.results
    if not array.size or not result.elements:
        return [np.zeros((len(work.ranks), *result.shape), result.dtype.numpy)]
    lengths = work.integers("fft_length")
    axes = tuple(range(array.ndim - len(lengths), array.ndim))
    with np.errstate(all="ignore"):
        found = _TRANSFORMS[str(work.attributes["fft_type"])](array, s=lengths, axes=axes)
    return [found.astype(result.dtype.numpy, copy=False)]


def cholesky(work: Work, operands: Arrays) -> Arrays:
    """The triangle L or its adjoint; all NaN where the matrix is not positive definite."""
    matrices = widened(operands[0])
    stack = matrices.reshape(math.prod(matrices.shape[:-2]), *matrices.shape[-2:])
    factors = _factors(stack, not work.attributes["lower"])
    factors[np.isnan(factors).any(axis=(-1, -2))] = np.nan  # LAPACK lets some of them pass
    return [factors.reshape(matrices.shape).astype(work.results[0].dtype.numpy, copy=False)]


def _factors(stack: np.ndarray, upper: bool) -> np.ndarray:
    """LAPACK's factors; those that have none are found by halving."""
    try:
        return np.linalg.cholesky(stack, upper=upper)
    except np.linalg.LinAlgError:
        if len(stack) == 1:
            return np.full_like(stack, np.nan)
    half = len(stack) // 2
    return np.concatenate([_factors(stack[:half], upper), _factors(stack[half:], upper)])


def triangular_solve(work: Work, operands: Arrays) -> Arrays:
    """Substitution: each row that is known is taken out of all rows that are not yet."""
    matrix, known = map(widened, operands)
    is_lower, on_left = bool(work.attributes["lower"]), bool(work.attributes["left_side"])
    if work.attributes["transpose_a"] == "ADJOINT":
        matrix = matrix.conj()
    is_transposed = work.attributes["transpose_a"] != "NO_TRANSPOSE"
    if is_transposed is on_left:  # X A = B is the transpose of A' X' = B'
        matrix, is_lower = matrix.swapaxes(-1, -2), not is_lower
    rows = np.array(known if on_left else known.swapaxes(-1, -2), order="C")
    size = matrix.shape[-1]
    with np.errstate(all="ignore"):
        for k in range(size) if is_lower else reversed(range(size)):
            if not work.attributes["unit_diagonal"]:
                rows[..., k, :] /= matrix[..., k, k, None]
            rest = slice(k + 1, size) if is_lower else slice(0, k)
            rows[..., rest, :] -= matrix[..., rest, k, None] * rows[..., k, None, :]
        found = rows if on_left else rows.swapaxes(-1, -2)
        return [found.astype(work.results[0].dtype.numpy, copy=False)]


def _lapack(work: Work, operands: Arrays) -> Arrays:
    from ncc_runtime.execution.values.lapack import lapack  # scipy takes a while to load

    return lapack(work, operands)


METHOD_KERNELS: Mapping[str, Kernel] = {
    "lapack": _lapack,
    "cholesky": cholesky,
    "fft": fft,
    "triangular-solve": triangular_solve,
}
