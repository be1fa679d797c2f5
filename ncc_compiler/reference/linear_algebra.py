"""Custom calls of linear algebra by their definitions: reflectors, pivots and sums in double.

What is unique is computed as LAPACK's conventions fix it: Householder reflectors whose result has
the sign opposite to the first element, partial pivots by the sum of absolute parts. Eigenvectors,
singular vectors and Schur forms are some that fit; they are not unique.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ncc_compiler.ir.custom_calls import TRSM, as_triangular_solve, call_of
from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.numbers import narrowed
from ncc_compiler.reference.numeric import triangular_solve
from ncc_compiler.reference.step import OpStep, Value

Results = tuple[Any, ...]
"""Of one routine on one matrix, in the order of the custom call's results."""


def linear_algebra(step: OpStep) -> list[Value]:
    """The results on each rank, matrix by matrix."""
    call = call_of(step.node)
    arrays = [step.arrays(position) for position in range(len(step.ranks))]
    if call.routine == TRSM:
        solve = as_triangular_solve(step.node, call)
        return [triangular_solve(solve, operands) for operands in arrays]
    return [_on_rank(step.node, operands) for operands in arrays]


def _on_rank(node: Node, operands: tuple[np.ndarray, ...]) -> Value:
    call = call_of(node)
    kinds = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
    rank = operands[0].ndim - (1 if call.routine.startswith("gtsv") else 2)
    results = []
    for kind in kinds:
        assert isinstance(kind, ArrayType), node.name
        results.append(np.zeros(kind.shape, kind.dtype.numpy))
    with np.errstate(all="ignore"):
        for index in np.ndindex(operands[0].shape[:rank]):
            matrices = [_in_double(array[index]) for array in operands]
            for result, kind, value in zip(
                results, kinds, _MEANINGS[call.routine](call.options, *matrices), strict=True
            ):
                assert isinstance(kind, ArrayType), node.name
                result[index] = narrowed(np.asarray(value), kind.dtype)
    return tuple(results) if isinstance(node.type, TupleType) else results[0]


def _in_double(array: np.ndarray) -> np.ndarray:
    """Floats in double precision; integers (pivots) as they are."""
    wide = {"f": np.float64, "c": np.complex128}
    return array.astype(wide.get(array.dtype.kind, array.dtype))


def _adjoint(matrix: np.ndarray) -> np.ndarray:
    return np.conj(matrix.T)


def _size(vector: np.ndarray) -> np.ndarray:
    """By which pivots are compared: the sum of the absolute parts."""
    return np.abs(vector.real) + np.abs(vector.imag)


def _reflector(column: np.ndarray) -> tuple[np.ndarray, Any, Any]:
    """v, tau, beta: the adjoint of I - tau v v* takes the column to beta in front of zeros."""
    first, rest = column[0], np.linalg.norm(column[1:])
    vector = np.concatenate([np.ones(1, column.dtype), column[1:]])
    if rest == 0 and first.imag == 0:
        vector[1:] = 0
        return vector, 0, first
    beta = -np.copysign(np.hypot(abs(first), rest), first.real)
    vector[1:] = column[1:] / (first - beta)
    return vector, (beta - first) / beta, beta


def _reflection(vector: np.ndarray, scale: Any) -> np.ndarray:
    return np.eye(len(vector)) - scale * np.outer(vector, vector.conj())


def _potrf(options: Mapping[str, Any], operand: np.ndarray) -> Results:
    """One triangle is replaced, the other one stays; info is the order of the minor that fails."""
    is_lower = options["uplo"] == "L"
    matrix = operand if is_lower else _adjoint(operand)
    size = len(matrix)
    factor, info = np.tril(matrix), 0
    for k in range(size):
        pivot = matrix[k, k].real - np.sum(np.abs(factor[k, :k]) ** 2)
        if not pivot > 0:
            info = k + 1
            break
        sums = factor[k + 1 :, :k] @ np.conj(factor[k, :k])
        factor[k, k] = np.sqrt(pivot)
        factor[k + 1 :, k] = (matrix[k + 1 :, k] - sums) / np.sqrt(pivot)
    if is_lower:
        return factor + np.triu(operand, 1), info
    return _adjoint(factor) + np.tril(operand, -1), info


def _lu_factors(operand: np.ndarray) -> tuple[np.ndarray, list[int], int]:
    """L and U in one, the row that each was exchanged with, and the first pivot that is zero."""
    factors, pivots, info = np.array(operand), [], 0
    rows, columns = factors.shape
    for k in range(min(rows, columns)):
        pivot = k + int(np.argmax(_size(factors[k:, k])))
        pivots.append(pivot)
        factors[[k, pivot]] = factors[[pivot, k]]
        if factors[k, k] == 0:
            info = info or k + 1
            continue
        factors[k + 1 :, k] /= factors[k, k]
        factors[k + 1 :, k + 1 :] -= np.outer(factors[k + 1 :, k], factors[k, k + 1 :])
    return factors, pivots, info


def _getrf(_: Mapping[str, Any], operand: np.ndarray) -> Results:
    factors, pivots, info = _lu_factors(operand)
    return factors, [pivot + 1 for pivot in pivots], info


def _lu(_: Mapping[str, Any], operand: np.ndarray) -> Results:
    factors, pivots, _info = _lu_factors(operand)
    permutation = list(range(len(operand)))
    for row, other in enumerate(pivots):
        permutation[row], permutation[other] = permutation[other], permutation[row]
    return factors, pivots, permutation


def _qr_in_place(matrix: np.ndarray, first: int, scales: np.ndarray, pivoting: bool) -> list[int]:
    """Triangle and reflectors in place of the columns from `first` on; the order of the columns.

    With `pivoting` the longest remaining column comes next.
    """
    rows, columns = matrix.shape
    order = list(range(columns))
    for k in range(first, min(rows, columns)):
        if pivoting:
            lengths = np.linalg.norm(matrix[k:, k:], axis=0)
            longest = k + int(np.argmax(lengths))
            matrix[:, [k, longest]] = matrix[:, [longest, k]]
            order[k], order[longest] = order[longest], order[k]
        vector, scales[k], beta = _reflector(matrix[k:, k])
        matrix[k:, k + 1 :] = _adjoint(_reflection(vector, scales[k])) @ matrix[k:, k + 1 :]
        matrix[k, k], matrix[k + 1 :, k] = beta, vector[1:]
    return order


def _geqrf(_: Mapping[str, Any], operand: np.ndarray) -> Results:
    matrix, scales = np.array(operand), np.zeros(min(operand.shape), operand.dtype)
    _qr_in_place(matrix, 0, scales, pivoting=False)
    return matrix, scales


def _geqp3(_: Mapping[str, Any], operand: np.ndarray, pivots: np.ndarray) -> Results:
    """Columns with a pivot that is not zero come first, by exchanges from left to right."""
    if not operand.size:
        return operand, pivots, np.zeros(0)
    matrix, scales = np.array(operand), np.zeros(min(operand.shape), operand.dtype)
    order, fixed = list(range(operand.shape[1])), 0
    for column in np.flatnonzero(pivots).tolist():
        matrix[:, [fixed, column]] = matrix[:, [column, fixed]]
        order[fixed], order[column] = order[column], order[fixed]
        fixed += 1
    _qr_in_place(matrix[:, :fixed], 0, scales, pivoting=False)
    for k in range(min(fixed, len(matrix))):  # the free columns, under the same reflections
        vector = np.concatenate([np.ones(1), matrix[k + 1 :, k]])
        matrix[k:, fixed:] = _adjoint(_reflection(vector, scales[k])) @ matrix[k:, fixed:]
    moved = _qr_in_place(matrix, fixed, scales, pivoting=True)
    return matrix, [order[column] + 1 for column in moved], scales


def _orthogonal(reflectors: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The product of all reflections, a square matrix."""
    product = np.eye(len(reflectors), dtype=reflectors.dtype)
    for k, scale in enumerate(scales):
        vector = np.zeros(len(reflectors), reflectors.dtype)
        vector[k], vector[k + 1 :] = 1, reflectors[k + 1 :, k]
        product = product @ _reflection(vector, scale)
    return product


def _orgqr(_: Mapping[str, Any], reflectors: np.ndarray, scales: np.ndarray) -> Results:
    return (_orthogonal(reflectors, scales)[:, : reflectors.shape[1]],)


def _ormqr(
    options: Mapping[str, Any], reflectors: np.ndarray, scales: np.ndarray, operand: np.ndarray
) -> Results:
    factor = _orthogonal(reflectors, scales)
    factor = factor if options["trans"] == "N" else _adjoint(factor)
    return (factor @ operand if options["side"] == "L" else operand @ factor,)


def _gehrd(options: Mapping[str, Any], operand: np.ndarray) -> Results:
    matrix, scales = np.array(operand), np.zeros(max(0, len(operand) - 1), operand.dtype)
    for k in range(options["ilo"] - 1, options["ihi"] - 1):
        part = slice(k + 1, options["ihi"])
        vector, scales[k], beta = _reflector(matrix[part, k])
        reflection = _reflection(vector, scales[k])
        matrix[: options["ihi"], part] = matrix[: options["ihi"], part] @ reflection
        matrix[part, k + 1 :] = _adjoint(reflection) @ matrix[part, k + 1 :]
        matrix[k + 1, k], matrix[k + 2 : options["ihi"], k] = beta, vector[1:]
    return matrix, scales, 0


def _sytrd(options: Mapping[str, Any], operand: np.ndarray) -> Results:
    """The upper triangle is reduced from its end: as the lower one of the reversed matrix."""
    is_lower, size = options["uplo"] == "L", len(operand)
    matrix = np.array(operand) if is_lower else np.array(operand[::-1, ::-1])
    full = np.tril(matrix) + _adjoint(np.tril(matrix, -1))
    full[range(size), range(size)] = full[range(size), range(size)].real
    scales, off_diagonal = np.zeros(max(0, size - 1), operand.dtype), np.zeros(max(0, size - 1))
    for k in range(size - 1):
        vector, scales[k], beta = _reflector(full[k + 1 :, k])
        reflection = _reflection(vector, scales[k])
        full[k + 1 :, k + 1 :] = _adjoint(reflection) @ full[k + 1 :, k + 1 :] @ reflection
        off_diagonal[k] = np.real(beta)
        matrix[k + 1, k], matrix[k + 2 :, k] = beta, vector[1:]
    diagonal = full[range(size), range(size)].real
    matrix[range(size), range(size)] = diagonal
    if is_lower:
        return matrix, diagonal, off_diagonal, scales, 0
    return matrix[::-1, ::-1], diagonal[::-1], off_diagonal[::-1], scales[::-1], 0


def _syevd(options: Mapping[str, Any], operand: np.ndarray) -> Results:
    vectors, values = _eigh(options, operand)
    return vectors if options["jobz"] == "V" else 0, values, 0


def _eigh(options: Mapping[str, Any], operand: np.ndarray) -> Results:
    triangle = np.tril(operand) if options["uplo"] == "L" else np.triu(operand)
    if not np.isfinite(triangle).all():
        return np.nan, np.nan
    values, vectors = np.linalg.eigh(operand, UPLO=options["uplo"])
    return vectors, values


def _svd(options: Mapping[str, Any], operand: np.ndarray) -> Results:
    """The first result is the operand's memory, whose values LAPACK leaves undefined."""
    if not np.isfinite(operand).all():
        return 0, 0, 0, 0, -4
    left, values, right = np.linalg.svd(operand, full_matrices=options["jobz"] == "A")
    return (0, values, 0, 0, 0) if options["jobz"] == "N" else (0, values, left, right, 0)


def _geev(options: Mapping[str, Any], operand: np.ndarray) -> Results:
    is_real = operand.dtype.kind == "f"
    if not np.isfinite(operand).all():
        return *((0,) * (4 if is_real else 3)), -4
    values, right = np.linalg.eig(operand)
    left: Any = 0
    if options["jobvl"] == "V" and operand.size:  # u* A = w u*: rows of the inverse
        left = _adjoint(np.linalg.inv(right))
        left = left / np.linalg.norm(left, axis=0)
    parts = (np.real(values), np.imag(values)) if is_real else (values,)
    return *parts, left, right if options["jobvr"] == "V" else 0, 0


def _gees(options: Mapping[str, Any], operand: np.ndarray) -> Results:
    """Invariant subspaces are split off one by one: of an eigenvector, or of a conjugate pair."""
    is_real, size = operand.dtype.kind == "f", len(operand)
    form, vectors = np.array(operand), np.eye(size, dtype=operand.dtype)
    first = 0
    while first < size:
        values, columns = np.linalg.eig(form[first:, first:])
        basis = columns[:, :1]
        if is_real and values[0].imag:
            basis = np.stack([columns[:, 0].real, columns[:, 0].imag], axis=1)
        basis = basis.real if is_real else basis
        unitary = np.eye(size, dtype=operand.dtype)
        unitary[first:, first:] = np.linalg.qr(basis, mode="complete")[0]
        if basis.shape[1] == 2:
            unitary = unitary @ _standardized(_adjoint(unitary) @ form @ unitary, first)
        form, vectors = _adjoint(unitary) @ form @ unitary, vectors @ unitary
        first += basis.shape[1]
        form[first:, :first] = np.triu(form[first:, :first], size)
    values = _real_schur_eigenvalues(form) if is_real else np.diag(form)
    parts = (values.real, values.imag) if is_real else (values,)
    return form, vectors if options["jobvs"] == "V" else 0, *parts, 0, 0


def _standardized(form: np.ndarray, first: int) -> np.ndarray:
    """The rotation that makes the diagonal elements of a 2 x 2 block equal, as LAPACK's are."""
    (a, b), (c, d) = form[first : first + 2, first : first + 2]
    angle = 0.5 * np.arctan2(a - d, b + c)
    rotation = np.eye(len(form))
    rotation[first : first + 2, first : first + 2] = [
        [np.cos(angle), np.sin(angle)],
        [-np.sin(angle), np.cos(angle)],
    ]
    return rotation


def _real_schur_eigenvalues(form: np.ndarray) -> np.ndarray:
    """In order; of a conjugate pair, the one with the positive imaginary part first."""
    values = np.diag(form).astype(np.complex128)
    for k in np.flatnonzero(np.diag(form, -1)).tolist():
        imaginary = np.sqrt(abs(form[k, k + 1])) * np.sqrt(abs(form[k + 1, k]))
        values[k : k + 2] += [1j * imaginary, -1j * imaginary]
    return values


def _gtsv(
    _: Mapping[str, Any],
    lower: np.ndarray,
    middle: np.ndarray,
    upper: np.ndarray,
    operand: np.ndarray,
) -> Results:
    """Elimination of the dense matrix, where each row is exchanged with the next one at most.

    The second upper diagonal of U takes the memory of the lower diagonal.
    """
    size = len(middle)
    if not size:
        return lower, middle, upper, operand, 0
    matrix = np.diag(middle) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)
    right = np.array(operand)
    for k in range(size - 1):
        if _size(matrix[k + 1, k]) > _size(matrix[k, k]):
            matrix[[k, k + 1]] = matrix[[k + 1, k]]
            right[[k, k + 1]] = right[[k + 1, k]]
        if matrix[k, k] == 0:
            return lower, middle, upper, operand, k + 1
        factor = matrix[k + 1, k] / matrix[k, k]
        matrix[k + 1] -= factor * matrix[k]
        right[k + 1] -= factor * right[k]
    if matrix[-1, -1] == 0:
        return lower, middle, upper, operand, size
    second = np.concatenate([lower[:1], np.diag(matrix, 2), lower[-1:]])[:size]
    first = np.concatenate([np.diag(matrix, 1), upper[-1:]])
    return second, np.diag(matrix), first, np.linalg.solve(np.triu(matrix), right), 0


def _gtsv_perturbed(options: Mapping[str, Any], *diagonals: np.ndarray) -> Results:
    """Of a regular matrix; how a singular one is perturbed is not specified."""
    return (_gtsv(options, *diagonals)[3],)


_MEANINGS: Mapping[str, Callable[..., Results]] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "geqrf": _geqrf,
    "geqp3": _geqp3,
    "orgqr": _orgqr,
    "ormqr": _ormqr,
    "syevd": _syevd,
    "gesdd": _svd,
    "gesvd": _svd,
    "geev": _geev,
    "gees": _gees,
    "gehrd": _gehrd,
    "sytrd": _sytrd,
    "gtsv": _gtsv,
    "gtsv-perturbed": _gtsv_perturbed,
    "eigh": _eigh,
    "lu": _lu,
}
