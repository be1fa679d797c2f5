"""Ops that are whole numerical methods, by their definitions and in double precision."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.conversion import narrowed, working
from ncc_compiler.reference.step import Value

Method = Callable[[Node, Sequence[np.ndarray]], Value]


def _rounded(node: Node, array: np.ndarray) -> np.ndarray:
    assert isinstance(node.type, ArrayType), node.name
    return narrowed(array, node.type.dtype)


def _doubled(array: np.ndarray) -> np.ndarray:
    wide = working(array)
    return wide.astype(np.complex128 if wide.dtype.kind == "c" else np.float64)


def _waves(size: int, sign: int) -> np.ndarray:
    """Element [k, m] is e to the sign 2 pi i k m / size."""
    turns = np.outer(np.arange(size), np.arange(size)) % max(size, 1)
    return np.exp(sign * 2j * np.pi * turns / max(size, 1))


def _along(array: np.ndarray, matrix: np.ndarray, axis: int) -> np.ndarray:
    """The array multiplied by a matrix along one axis."""
    return np.moveaxis(np.tensordot(array, matrix, axes=(axis, 0)), -1, axis)


def fft(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Sums of waves over the last dimensions; inverse transforms divide by their number."""
    kind, lengths = str(node.attributes["fft_type"]), node.integers("fft_length")
    array, sign = operands[0].astype(np.complex128), 1 if kind.startswith("I") else -1
    for axis, length in enumerate(lengths, start=array.ndim - len(lengths)):
        if kind == "IRFFT" and axis == array.ndim - 1:
            array = _real_waves(array, length)
        else:
            array = _along(array, _waves(length, sign), axis)
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
    given = _doubled(operands[0])
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
    matrix, given = map(_doubled, operands)
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
    wide = (_doubled(array) for array in operands)
    moved = tuple(np.moveaxis(one, feature, -1) if one.ndim == rank else one for one in wide)
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
    of_x = scale / deviation * (g - _mean(g, axes) - u * _mean(g * u, axes))
    of_scale = (g * (x - mean)).sum(axes) / deviation
    return _batch_norm_results(node, of_x, of_scale, g.sum(axes))


METHODS: Mapping[str, Method] = {
    "batch-norm-grad": batch_norm_grad,
    "batch-norm-inference": batch_norm_inference,
    "batch-norm-training": batch_norm_training,
    "fft": fft,
    "cholesky": cholesky,
    "triangular-solve": triangular_solve,
}
"""What each method makes of its operands on one rank."""
