"""Which engine runs an op, and with which attributes: one row per op.

Elementwise arithmetic, comparisons, broadcasts and simple folds are the Vector engine's;
transcendental functions the Scalar engine's; matrix products the Tensor engine's; what moves data
without computing is a DMA of the Sync queue; the rest goes to GpSimd, which can run any code.
"""

from collections.abc import Callable, Mapping

import attrs

from ncc_compiler.ir.graph import Node
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import AttributeValue

Attributes = dict[str, AttributeValue]


@attrs.frozen
class Selection:
    """An opcode, the queue it is put into, and how its attributes are read off the node."""

    opcode: str
    engine: Engine
    attributes: Callable[[Node], Attributes]


def _none(_: Node) -> Attributes:
    return {}


def _dimensions(node: Node) -> Attributes:
    return {"dimensions": node.integers("dimensions")}


def _dimension(node: Node) -> Attributes:
    (dimension,) = node.integers("dimensions")
    return {"dimension": dimension}


def _iota(node: Node) -> Attributes:
    return {"iota_dimension": node.integer("iota_dimension")}


def _compare(node: Node) -> Attributes:
    kept = {key: node.attributes.get(key) for key in ("direction", "type")}
    return {key: str(value) for key, value in kept.items() if value is not None}


def _slice(node: Node) -> Attributes:
    names = ("start", "limit", "stride")
    return {name: tuple(entry[k] for entry in node.ranges()) for k, name in enumerate(names)}


def _dot(node: Node) -> Attributes:
    names = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")
    return {name: node.integers(f"{name}_dims") for name in names}


def _rows(engine: Engine, names: str) -> Mapping[str, Selection]:
    return {name: Selection(name, engine, _none) for name in names.split()}


SELECTORS: Mapping[str, Selection] = {
    **_rows(Engine.VECTOR, "add and divide maximum minimum multiply or remainder subtract xor"),
    **_rows(Engine.VECTOR, "abs ceil convert floor negate not sign select"),
    **_rows(Engine.SCALAR, "exponential log logistic power rsqrt sqrt tanh"),
    **_rows(Engine.GPSIMD, "partition-id replica-id"),
    **_rows(Engine.SYNC, "copy"),
    "broadcast": Selection("broadcast", Engine.VECTOR, _dimensions),
    "compare": Selection("compare", Engine.VECTOR, _compare),
    "concatenate": Selection("concatenate", Engine.SYNC, _dimension),
    "dot": Selection("dot", Engine.TENSOR, _dot),
    "iota": Selection("iota", Engine.GPSIMD, _iota),
    "reduce": Selection("reduce", Engine.VECTOR, _dimensions),  # any region: see `any_region`
    "slice": Selection("slice", Engine.SYNC, _slice),
    "transpose": Selection("transpose", Engine.SYNC, _dimensions),
}
"""Ops that become one instruction."""

COLLECTIVES: Mapping[str, CollectiveOp] = {op.value: op for op in CollectiveOp}
"""Ops that become one placeholder."""

_ONLY_NAMES = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "reshape"})
_EXPANDED_BY_PASSES = frozenset({"call"})

HANDLED_OPS = SELECTORS.keys() | COLLECTIVES.keys() | _ONLY_NAMES | _EXPANDED_BY_PASSES
"""Every op of the graph: an instruction, a placeholder, a name for data, or gone by now."""

ANY_REGION = Engine.GPSIMD
"""The engine of a fold whose region is more than one arithmetic operation."""
