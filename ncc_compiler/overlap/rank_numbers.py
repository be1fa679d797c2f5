"""Whole numbers that ranks compute from their ids alone, for all ranks at once."""

from collections.abc import Callable, Mapping

import numpy as np

from ncc_compiler.ir.graph import Computation, Literal, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.passes.evaluate import COMPARISONS

Numbers = np.ndarray
"""(ranks,) int64, or bool for pred."""


class RankNumbers:
    """Values of nodes of one element; None where something else than the rank decides them."""

    def __init__(self, module: Module, body: Computation) -> None:
        self._body = body
        self._partitions = module.num_partitions
        self._ranks: np.ndarray = np.arange(module.ranks)
        self._known: dict[int, Numbers | None] = {}

    def of(self, position: int) -> Numbers | None:
        """The value of a node on each rank."""
        pending = [position]
        while pending:
            node = self._body.nodes[pending[-1]]
            missing = [one for one in _needs(node) if one not in self._known]
            pending += missing
            if not missing:
                self._known.setdefault(pending.pop(), self._value(node))
        return self._known[position]

    def _value(self, node: Node) -> Numbers | None:
        if not _is_number(node):
            return None
        match node.op:
            case "partition-id":
                return self._ranks % self._partitions
            case "replica-id":
                return self._ranks // self._partitions
            case "constant" if isinstance(node.attributes["literal"], Literal):
                value = node.literal().array.astype(np.int64).reshape(-1)
                return np.broadcast_to(value, self._ranks.shape)
            case "dynamic-slice":
                return self._looked_up(node)
        given = [self._known[operand] for operand in _needs(node)]
        numbers = [one for one in given if one is not None]
        if len(numbers) < len(given):
            return None
        if node.op == "compare":
            return np.asarray(COMPARISONS[str(node.attributes["direction"])](*numbers))
        return _in_range(node, _RULES[node.op](*numbers)) if node.op in _RULES else None

    def _looked_up(self, node: Node) -> Numbers | None:
        """An element of a list of constants, at a place that the rank decides."""
        table = self._body.nodes[node.operands[0]]
        place = self._known[node.operands[1]] if len(node.operands) == 2 else None
        if place is None or not table.has_value() or table.array.rank != 1:
            return None
        values = table.literal().array.astype(np.int64)
        return values[np.clip(place, 0, len(values) - 1)]


def _needs(node: Node) -> tuple[NodeId, ...]:
    """The operands whose numbers decide the number of a node."""
    if not _is_number(node):
        return ()
    if node.op == "dynamic-slice":
        return node.operands[1:]
    return node.operands if node.op in _RULES or node.op == "compare" else ()


def _is_number(node: Node) -> bool:
    kind = node.type
    return isinstance(kind, ArrayType) and kind.elements == 1 and kind.dtype.numpy.kind in "biu"


def _in_range(node: Node, found: Numbers) -> Numbers | None:
    """The numbers, where none of them wraps in the node's type."""
    dtype = node.array.dtype.numpy
    if dtype.kind == "b":
        return found.astype(bool)
    if not dtype.isbuiltin:
        return None
    found = found.astype(np.int64)
    info = np.iinfo(dtype)
    return found if ((found >= info.min) & (found <= min(info.max, 2**62))).all() else None


_UNKNOWN = np.iinfo(np.int64).max  # in the range of no type here


def _same(value: Numbers) -> Numbers:
    return value


def _quotient(dividend: Numbers, divisor: Numbers) -> Numbers:
    """Towards zero; nothing is sure where the divisor is not positive."""
    return np.where(
        divisor > 0, np.sign(dividend) * (abs(dividend) // np.maximum(divisor, 1)), _UNKNOWN
    )


def _rest(dividend: Numbers, divisor: Numbers) -> Numbers:
    return np.where(divisor > 0, np.fmod(dividend, np.maximum(divisor, 1)), _UNKNOWN)


def _chosen(predicate: Numbers, one: Numbers, other: Numbers) -> Numbers:
    return np.where(predicate, one, other)


def _clamped(least: Numbers, value: Numbers, most: Numbers) -> Numbers:
    return np.minimum(np.maximum(least, value), most)


_RULES: Mapping[str, Callable[..., Numbers]] = {
    "add": np.add,
    "broadcast": _same,
    "clamp": _clamped,
    "convert": _same,
    "copy": _same,
    "divide": _quotient,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "remainder": _rest,
    "reshape": _same,
    "select": _chosen,
    "slice": _same,
    "subtract": np.subtract,
}
