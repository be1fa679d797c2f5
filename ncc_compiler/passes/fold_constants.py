"""Constant folding: computes what depends on constants only, at compile time.

Only where every way of computing a value gives the same bits: moves of elements, integer
arithmetic, and single float operations that IEEE rounds once. Nothing transcendental, nothing that
sums; and nothing where XLA and numpy differ at the edges (division by zero, conversions out of
range). Those stay for the devices.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs
import numpy as np

from ncc_compiler.ir.graph import Literal, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.options import FOLD_LIMIT_BYTES
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, provenance, rewrite_module

Evaluate = Callable[[Node, list[np.ndarray]], np.ndarray | None]


def evaluate(node: Node, operands: list[np.ndarray]) -> np.ndarray | None:
    """The value of the node as a read-only array; None where devices might compute another one."""
    rule = _RULES.get(node.op)
    if rule is None:
        return None
    if not node.array.elements:  # nothing is computed, however large the other dimensions are
        empty = np.empty(node.array.shape, node.array.dtype.numpy)
        empty.setflags(write=False)
        return empty
    with np.errstate(all="ignore"):
        value = rule(node, operands)
    if value is None:
        return None
    assert value.dtype == node.array.dtype.numpy, (node.name, value.dtype)
    assert value.shape == node.array.shape, (node.name, value.shape)
    value = np.array(value, order="C")
    value.setflags(write=False)
    return value


def _copy(_: Node, operands: list[np.ndarray]) -> np.ndarray:
    return operands[0]


def _reshape(node: Node, operands: list[np.ndarray]) -> np.ndarray:
    return operands[0].reshape(node.array.shape)


def _broadcast(node: Node, operands: list[np.ndarray]) -> np.ndarray:
    """Operand dimension k becomes result dimension dimensions[k]; they need not be in order."""
    (operand,) = operands
    dimensions, shape = node.integers("dimensions"), node.array.shape
    order = sorted(range(operand.ndim), key=lambda k: dimensions[k])
    aligned = [1] * len(shape)
    for k in order:
        aligned[dimensions[k]] = operand.shape[k]
    return np.broadcast_to(operand.transpose(order).reshape(aligned), shape)


def _transpose(node: Node, operands: list[np.ndarray]) -> np.ndarray:
    return operands[0].transpose(node.integers("dimensions"))


def _slice(node: Node, operands: list[np.ndarray]) -> np.ndarray:
    return operands[0][tuple(slice(*entry) for entry in node.ranges())]


def _concatenate(node: Node, operands: list[np.ndarray]) -> np.ndarray:
    (dimension,) = node.integers("dimensions")
    return np.concatenate(operands, axis=dimension)


def _iota(node: Node, _: list[np.ndarray]) -> np.ndarray | None:
    dtype, shape = node.array.dtype.numpy, node.array.shape
    dimension = node.integer("iota_dimension")
    if not _is_host_number(dtype):
        return None
    column = np.arange(shape[dimension]).astype(dtype)
    aligned = [1] * len(shape)
    aligned[dimension] = shape[dimension]
    return np.broadcast_to(column.reshape(aligned), shape)


def _select(_: Node, operands: list[np.ndarray]) -> np.ndarray:
    predicate, when_true, when_false = operands
    return np.where(predicate, when_true, when_false)


_HOST_FLOATS = ("float32", "float64")


def _is_host_number(dtype: np.dtype) -> bool:
    """Numbers the host computes with itself; a narrower float would be rounded twice."""
    return dtype.name in _HOST_FLOATS or _is_integer(dtype)


def _is_integer(dtype: np.dtype) -> bool:
    return dtype.kind in "iu" and dtype.isbuiltin == 1


def _arithmetic(function: np.ufunc) -> Evaluate:
    """Integers wrap; float32 and float64 are rounded once. NaNs stay: their bits vary by host."""

    def rule(_: Node, operands: list[np.ndarray]) -> np.ndarray | None:
        if not _is_host_number(operands[0].dtype):
            return None
        value: np.ndarray = np.asarray(function(*operands))
        return None if np.isnan(value).any() else value

    return rule


def _negate(_: Node, operands: list[np.ndarray]) -> np.ndarray | None:
    """Of a NaN too, the sign alone changes."""
    return np.negative(operands[0]) if _is_host_number(operands[0].dtype) else None


def _divide(node: Node, operands: list[np.ndarray]) -> np.ndarray | None:
    """Integers are rounded towards zero; a quotient that the type does not have is not folded."""
    dividend, divisor = operands
    if dividend.dtype.name in _HOST_FLOATS:
        return _arithmetic(np.divide)(node, operands)
    if not _is_integer(dividend.dtype) or not _divisible(dividend, divisor):
        return None
    return np.asarray((dividend - np.fmod(dividend, divisor)) // divisor)


def _remainder(_: Node, operands: list[np.ndarray]) -> np.ndarray | None:
    """The sign of the dividend, as XLA has it."""
    dividend, divisor = operands
    if not _is_integer(dividend.dtype) or not _divisible(dividend, divisor):
        return None
    return np.asarray(np.fmod(dividend, divisor))


def _divisible(dividend: np.ndarray, divisor: np.ndarray) -> bool:
    """No division by zero and no overflow (the least integer by -1)."""
    if dividend.dtype.kind == "u":
        return bool((divisor != 0).all())
    overflow = (dividend == np.iinfo(dividend.dtype).min) & (divisor == -1)
    return bool((divisor != 0).all()) and not overflow.any()


def _of_integers(function: np.ufunc) -> Evaluate:
    """For functions whose float form has edges of its own (NaN, signs of zero)."""

    def rule(_: Node, operands: list[np.ndarray]) -> np.ndarray | None:
        value: np.ndarray = np.asarray(function(*operands))
        return value if _is_integer(operands[0].dtype) else None

    return rule


def _bitwise(function: np.ufunc) -> Evaluate:
    """Logical on pred, bit by bit on integers."""

    def rule(_: Node, operands: list[np.ndarray]) -> np.ndarray | None:
        dtype = operands[0].dtype
        if dtype.kind != "b" and not _is_integer(dtype):
            return None
        value: np.ndarray = np.asarray(function(*operands))
        return value

    return rule


COMPARISONS: Mapping[str, np.ufunc] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
"""Of numbers, by the direction of a `compare`."""


def _compare(node: Node, operands: list[np.ndarray]) -> np.ndarray | None:
    """Integers and pred only: floats compare in two ways, with and without a total order."""
    dtype = operands[0].dtype
    if dtype.kind != "b" and not _is_integer(dtype):
        return None
    value: np.ndarray = np.asarray(COMPARISONS[str(node.attributes["direction"])](*operands))
    return value


def _convert(node: Node, operands: list[np.ndarray]) -> np.ndarray | None:
    """Between numbers of the host, where the value is in the target's range."""
    (value,) = operands
    target = node.array.dtype.numpy
    from_float = value.dtype.name in _HOST_FLOATS
    from_integer = value.dtype.kind == "b" or _is_integer(value.dtype)
    if target.name in _HOST_FLOATS and (from_float or from_integer):
        return value.astype(target)
    if _is_integer(target) and (from_integer or (from_float and _is_in_range(value, target))):
        return value.astype(target)
    return None


def _is_in_range(value: np.ndarray, target: np.dtype) -> bool:
    """Whether every float, truncated to an integer, is inside the target's range.

    2^62 stays clear of the bounds of 64 bits, which floats cannot hold exactly.
    """
    high = min(float(np.iinfo(target).max), 2.0**62)
    low = max(float(np.iinfo(target).min), -(2.0**62))
    return bool((np.isfinite(value) & (value > low) & (value < high)).all())


_RULES: Mapping[str, Evaluate] = {
    "add": _arithmetic(np.add),
    "and": _bitwise(np.bitwise_and),
    "broadcast": _broadcast,
    "compare": _compare,
    "concatenate": _concatenate,
    "convert": _convert,
    "copy": _copy,
    "divide": _divide,
    "iota": _iota,
    "maximum": _of_integers(np.maximum),
    "minimum": _of_integers(np.minimum),
    "multiply": _arithmetic(np.multiply),
    "negate": _negate,
    "not": _bitwise(np.invert),
    "or": _bitwise(np.bitwise_or),
    "remainder": _remainder,
    "reshape": _reshape,
    "select": _select,
    "slice": _slice,
    "subtract": _arithmetic(np.subtract),
    "transpose": _transpose,
    "xor": _bitwise(np.bitwise_xor),
}


@attrs.frozen
class FoldConstants(Pass):
    """Folds where the value is the one that devices compute, and the constant is not too large."""

    name: ClassVar[str] = "fold-constants"

    limit_bytes: int = FOLD_LIMIT_BYTES

    def run(self, module: Module) -> Module:
        return rewrite_module(module, self._folded)

    def _folded(self, rebuild: Rebuild, node: Node) -> NodeId:
        is_small = isinstance(node.type, ArrayType) and node.type.size_bytes <= self.limit_bytes
        operands = [rebuild.nodes[operand] for operand in node.operands]
        if not is_small or not all(operand.has_value() for operand in operands):
            return rebuild.add(node)
        value = evaluate(node, [operand.literal().array for operand in operands])
        if value is None:
            return rebuild.add(node)
        attributes = {"literal": Literal(value), **provenance(node)}
        return rebuild.add(attrs.evolve(node, op="constant", operands=(), attributes=attributes))
