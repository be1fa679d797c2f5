"""Dense linear algebra: each matrix of a batch through scipy's LAPACK, one after the other.

BLAS runs on one thread (runtime.py), so a matrix gets the same bits whatever is beside it. Every
function below takes the options and operands of one matrix and gives its results in the order of
neff/shared/lapack.py; None stands for one that LAPACK leaves undefined.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.linalg import lapack as scipy_lapack

from ncc_runtime.execution.values.kernels.work import Arrays, KernelCall
from ncc_runtime.neff.shared.lapack import COMPLEX_NAMES

Options = Mapping[str, Any]
Results = tuple[Any, ...]

_BLOCK = 64
"""Rows of workspace for each column: what LAPACK's own blocks ask for, or more."""


def lapack(call: KernelCall, operands: Arrays) -> Arrays:
    """The results of a routine on every matrix of the batch."""
    routine = str(call.attributes["routine"])
    compute = _ROUTINES[routine]
    rank = operands[0].ndim - (1 if routine.startswith("gtsv") else 2)
    batch = operands[0].shape[:rank]
    count = math.prod(batch)
    matrices = [array.reshape(count, *array.shape[rank:]) for array in operands]
    shapes = [(len(call.ranks), *result.shape) for result in call.results]
    results = [
        np.zeros((count, *shape[rank:]), result.dtype.numpy)
        for shape, result in zip(shapes, call.results, strict=True)
    ]
    with np.errstate(all="ignore"):
        for k in range(count):
            values = compute(call.attributes, *(array[k] for array in matrices))
            for result, value in zip(results, values, strict=True):
                if value is not None:
                    result[k] = value
    return [result.reshape(shape) for result, shape in zip(results, shapes, strict=True)]


def _routine(name: str, dtype: np.dtype) -> Any:
    """Scipy's wrapper of a routine for an element type; it copies what it is given."""
    if dtype.kind == "c":
        name = COMPLEX_NAMES.get(name, name)
    letter = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}[f"{dtype.kind}{dtype.itemsize}"]
    return getattr(scipy_lapack, letter + name)


def _potrf(options: Options, matrix: np.ndarray) -> Results:
    if not matrix.size:
        return matrix, 0
    factor, info = _routine("potrf", matrix.dtype)(matrix, lower=options["uplo"] == "L", clean=0)
    return factor, info


def _getrf(_: Options, matrix: np.ndarray) -> Results:
    """Pivots are counted from 1."""
    if not matrix.size:
        return matrix, None, 0
    factors, pivots, info = _routine("getrf", matrix.dtype)(matrix)
    return factors, pivots + 1, info


def _lu(options: Options, matrix: np.ndarray) -> Results:
    """Row k of the product of L and U is row permutation[k] of the matrix."""
    permutation = np.arange(len(matrix))
    if not matrix.size:
        return matrix, None, permutation
    factors, pivots, _info = _getrf(options, matrix)
    for row, other in enumerate(pivots - 1):
        permutation[[row, other]] = permutation[[other, row]]
    return factors, pivots - 1, permutation


def _geqrf(_: Options, matrix: np.ndarray) -> Results:
    if not matrix.size:
        return matrix, None
    lwork = _BLOCK * matrix.shape[1]
    factors, scales, _work, _info = _routine("geqrf", matrix.dtype)(matrix, lwork=lwork)
    return factors, scales


def _geqp3(_: Options, operand: np.ndarray, pivots: np.ndarray) -> Results:
    """Columns whose pivot is not 0 go first and stay there, which scipy's wrapper cannot say.

    So these are factored by themselves, as LAPACK does, and then the free ones of what remains.
    """
    if not operand.size:
        return operand, pivots, None
    rows, columns = operand.shape
    matrix, order, fixed = np.array(operand), np.arange(1, columns + 1), 0
    for column in np.flatnonzero(pivots).tolist():
        order[[fixed, column]] = order[[column, fixed]]
        matrix[:, [fixed, column]] = matrix[:, [column, fixed]]
        fixed += 1
    scales = np.zeros(min(rows, columns), matrix.dtype)
    done = min(fixed, rows)
    if fixed:
        matrix[:, :fixed], scales[:done] = _geqrf({}, matrix[:, :fixed])
        adjoint = {"side": "L", "trans": "C"}
        (matrix[:, fixed:],) = _ormqr(adjoint, matrix, scales[:done], matrix[:, fixed:])
    if done < rows and fixed < columns:
        lwork = 2 * columns + _BLOCK * (columns + 1)
        factors, free_order, free_scales, _work, _info = _routine("geqp3", matrix.dtype)(
            matrix[done:, fixed:], lwork=lwork
        )
        matrix[done:, fixed:], scales[done:] = factors, free_scales
        matrix[:done, fixed:] = matrix[:done, fixed:][:, free_order - 1]
        order[fixed:] = order[fixed:][free_order - 1]
    return matrix, order, scales


def _orgqr(_: Options, matrix: np.ndarray, scales: np.ndarray) -> Results:
    if not matrix.size or not scales.size:
        return (np.eye(*matrix.shape),)
    lwork = _BLOCK * matrix.shape[1]
    return (_routine("orgqr", matrix.dtype)(matrix, scales, lwork=lwork)[0],)


def _ormqr(
    options: Options, reflectors: np.ndarray, scales: np.ndarray, matrix: np.ndarray
) -> Results:
    if not matrix.size or not scales.size:
        return (matrix,)
    adjoint = "C" if matrix.dtype.kind == "c" else "T"
    trans = "N" if options["trans"] == "N" else adjoint
    lwork = _BLOCK * (max(matrix.shape) + _BLOCK + 1)
    columns = reflectors[:, : len(scales)]
    multiply = _routine("ormqr", matrix.dtype)
    return (multiply(options["side"], trans, columns, scales, matrix, lwork)[0],)


def _syevd(options: Options, matrix: np.ndarray) -> Results:
    """LAPACK takes NaN for small and would give finite numbers."""
    if not matrix.size:
        return None, None, 0
    with_vectors = options["jobz"] == "V"
    triangle = np.tril(matrix) if options["uplo"] == "L" else np.triu(matrix)
    if not np.isfinite(triangle).all():
        return np.nan if with_vectors else None, np.nan, 0
    decompose = _routine("syevd", matrix.dtype)
    values, vectors, info = decompose(matrix, compute_v=with_vectors, lower=options["uplo"] == "L")
    return vectors if with_vectors else None, values, info


def _eigh(options: Options, matrix: np.ndarray) -> Results:
    vectors, values, info = _syevd({"jobz": "V", **options}, matrix)
    return (vectors, values) if info == 0 else (np.nan, np.nan)


def _svd(name: str) -> "Compute":
    """gesdd or gesvd; an empty matrix has no singular values, and any vectors are its own."""

    def compute(options: Options, matrix: np.ndarray) -> Results:
        job, (rows, columns) = options["jobz"], matrix.shape
        if not matrix.size:
            with_vectors = job == "A"
            both = (np.eye(rows), np.eye(columns)) if with_vectors else (None, None)
            return matrix, None, *both, 0
        left, values, right, info = _routine(name, matrix.dtype)(
            matrix, compute_uv=job != "N", full_matrices=job == "A"
        )
        vectors = (left, right) if job != "N" else (None, None)
        return None, values, *vectors, info

    return compute


def _geev(options: Options, matrix: np.ndarray) -> Results:
    is_real = matrix.dtype.kind == "f"
    if not matrix.size or not np.isfinite(matrix).all():
        nothing = (None,) * (4 if is_real else 3)
        return *nothing, 0 if not matrix.size else -4
    jobs = [options[name] == "V" for name in ("jobvl", "jobvr")]
    *values, left, right, info = _routine("geev", matrix.dtype)(
        matrix, compute_vl=jobs[0], compute_vr=jobs[1]
    )
    vectors = [v if job else None for job, v in zip(jobs, (left, right), strict=True)]
    if is_real:
        vectors = [v if v is None else _complex_vectors(values[1], v) for v in vectors]
    return *values, *vectors, info


def _complex_vectors(imaginary: np.ndarray, packed: np.ndarray) -> np.ndarray:
    """Complex vectors: a pair of conjugate ones is held as real and imaginary part of the first."""
    vectors = packed.astype(np.result_type(packed.dtype, np.complex64))
    for first in np.flatnonzero(imaginary > 0):
        vectors[:, first] = packed[:, first] + 1j * packed[:, first + 1]
        vectors[:, first + 1] = vectors[:, first].conj()
    return vectors


def _gees(options: Options, matrix: np.ndarray) -> Results:
    is_real = matrix.dtype.kind == "f"
    if not matrix.size:
        return *((None,) * (4 if is_real else 3)), 0, 0
    with_vectors = options["jobvs"] == "V"
    form, count, *values, vectors, _work, info = _routine("gees", matrix.dtype)(
        lambda *_: False, matrix, compute_v=with_vectors, sort_t=0
    )
    return form, vectors if with_vectors else None, *values, count, info


def _gehrd(options: Options, matrix: np.ndarray) -> Results:
    if not matrix.size:
        return matrix, None, 0
    low, high = options["ilo"] - 1, options["ihi"] - 1
    lwork = _BLOCK * (len(matrix) + _BLOCK + 1)
    factors, scales, info = _routine("gehrd", matrix.dtype)(matrix, lo=low, hi=high, lwork=lwork)
    return factors, scales, info


def _sytrd(options: Options, matrix: np.ndarray) -> Results:
    if not matrix.size:
        return matrix, None, None, None, 0
    reduce = _routine("sytrd", matrix.dtype)
    factors, *rest = reduce(matrix, lower=options["uplo"] == "L", lwork=_BLOCK * len(matrix))
    return factors, *rest


def _gtsv(
    _: Options, lower: np.ndarray, middle: np.ndarray, upper: np.ndarray, right: np.ndarray
) -> Results:
    """Diagonals have n elements each; the first of the lower and the last of the upper are unused.

    The right side may have no columns, which LAPACK refuses.
    """
    if not middle.size:
        return lower, middle, upper, right, 0
    if len(middle) == 1:
        info = int(not middle[0])
        return lower, middle, upper, right if info else right / middle[0], info
    columns = right if right.size else np.zeros((len(middle), 1), right.dtype)
    below, middle, above, solved, info = _routine("gtsv", middle.dtype)(
        lower[1:], middle, upper[:-1], columns
    )
    below, above = np.concatenate([lower[:1], below]), np.concatenate([above, upper[-1:]])
    return below, middle, above, solved[:, : right.shape[1]], info


def _gtsv_perturbed(
    _: Options, lower: np.ndarray, middle: np.ndarray, upper: np.ndarray, given: np.ndarray
) -> Results:
    """Partial pivoting; a pivot too small to divide by is moved away from zero.

    By machine precision times the largest element of U, and again by twice as much until the
    quotient is finite: as LAPACK's lagts does with a negative job. No step makes a pivot that is
    NaN divide, so matrices that are not finite are separated from the others first.
    """
    if not all(np.isfinite(diagonal).all() for diagonal in (lower[1:], middle, upper[:-1])):
        return (np.full_like(given, np.nan),)
    size, solved = len(middle), np.array(given)
    pivots, above, beyond = np.array(middle), np.array(upper), np.zeros_like(middle)
    below = np.array(lower)
    for k in range(size - 1):
        if abs(pivots[k]) >= abs(below[k + 1]):
            factor = below[k + 1] / pivots[k] if pivots[k] else pivots[k]
        else:
            factor = pivots[k] / below[k + 1]
            pivots[k], above[k], pivots[k + 1], beyond[k], above[k + 1] = (
                *(below[k + 1], pivots[k + 1], above[k]),
                *(above[k + 1] if k + 2 < size else 0, 0),
            )
            solved[[k, k + 1]] = solved[[k + 1, k]]
            if k + 2 < size:
                above[k + 1] = -factor * beyond[k]
        if pivots[k]:
            pivots[k + 1] -= factor * above[k]
            solved[k + 1] -= factor * solved[k]
    above, beyond = above[: size - 1], beyond[: size - 2]
    largest = max(np.abs(part).max(initial=0) for part in (pivots, above, beyond))
    numbers = np.finfo(middle.dtype)
    first_step = numbers.eps * largest or numbers.tiny
    for k in reversed(range(size)):
        right = solved[k]
        if k + 1 < size:
            right = right - above[k] * solved[k + 1]
        if k + 2 < size:
            right = right - beyond[k] * solved[k + 2]
        pivot, step = pivots[k], first_step
        while not np.isfinite(right / pivot).all() and np.isfinite(right).all():
            pivot, step = pivot + (step if pivot.real >= 0 else -step), 2 * step
        solved[k] = right / pivot
    return (solved,)


Compute = Callable[..., Results]

_ROUTINES: Mapping[str, Compute] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "geqrf": _geqrf,
    "geqp3": _geqp3,
    "orgqr": _orgqr,
    "ormqr": _ormqr,
    "syevd": _syevd,
    "gesdd": _svd("gesdd"),
    "gesvd": _svd("gesvd"),
    "geev": _geev,
    "gees": _gees,
    "gehrd": _gehrd,
    "sytrd": _sytrd,
    "gtsv": _gtsv,
    "gtsv-perturbed": _gtsv_perturbed,
    "eigh": _eigh,
    "lu": _lu,
}
