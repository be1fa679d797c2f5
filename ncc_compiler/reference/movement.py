"""Ops whose result elements are copies of operand elements, or follow from the shape alone."""

from collections.abc import Mapping, Sequence

import numpy as np

from ncc_compiler.ir.graph import Node
from ncc_compiler.reference.elementwise import Elementwise


def _iota(node: Node, _: Sequence[np.ndarray]) -> np.ndarray:
    """Each element is its own index along one dimension."""
    result = node.array
    if 0 in result.shape:  # np.indices counts along every dimension, however long
        return np.zeros(result.shape, result.dtype.numpy)
    index: np.ndarray = np.indices(result.shape)[node.integer("iota_dimension")]
    return index.astype(result.dtype.numpy)


def _broadcast(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Dimension k of the operand becomes dimension dimensions[k] of the result."""
    result, dimensions = node.array, node.integers("dimensions")
    operand = operands[0].transpose(np.argsort(dimensions, kind="stable"))
    sizes = [1] * result.rank
    for dimension, size in zip(sorted(dimensions), operand.shape, strict=True):
        sizes[dimension] = size
    return np.broadcast_to(operand.reshape(sizes), result.shape).copy()


def _reshape(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return operands[0].reshape(node.array.shape)


def _transpose(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return operands[0].transpose(node.integers("dimensions")).copy()


def _slice(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return operands[0][tuple(slice(*bound) for bound in node.ranges())].copy()


def _concatenate(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(operands, axis=node.integers("dimensions")[0])


MOVEMENT: Mapping[str, Elementwise] = {
    "iota": _iota,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
}
"""What each op makes of its operands on one rank."""
