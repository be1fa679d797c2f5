"""Type inference (XLA: shape inference): `RULES` has the rule of every op.

The rules stand in `type_rules/`, by subject like the rows of `op_tables/`; here are those of the
few ops without a subject. `verify.inferred` runs them.
"""

from collections.abc import Mapping

from ncc_compiler.ir.graph import Elided
from ncc_compiler.ir.type_rules.collectives import COLLECTIVE_RULES, NCC_RULES, VARIABLE_SIZE_RULES
from ncc_compiler.ir.type_rules.context import Inference, InferenceContext, TypeRule
from ncc_compiler.ir.type_rules.contractions import CONTRACTION_RULES, WINDOW_RULES
from ncc_compiler.ir.type_rules.control import CONTROL_RULES, TRANSFER_RULES
from ncc_compiler.ir.type_rules.elementwise import ELEMENTWISE_RULES
from ncc_compiler.ir.type_rules.indexing import INDEXING_RULES, MOVE_RULES, ORDERING_RULES
from ncc_compiler.ir.type_rules.numeric import NUMERIC_RULES
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.shared.dtypes import DType


def _declared(ctx: InferenceContext) -> Inference:
    """The result has the declared type."""
    yield from ()
    return ctx.node.type


def _rank_id(_: InferenceContext) -> Inference:
    yield from ()
    return ArrayType(DType.U32)


def _constant(ctx: InferenceContext) -> Inference:
    kind = ctx.node.type
    if isinstance(ctx.attribute("literal"), Elided):
        return kind
    array = ctx.node.literal().array
    if not isinstance(kind, ArrayType) or (array.dtype, array.shape) != (
        kind.dtype.numpy,
        kind.shape,
    ):
        yield ctx.complain(1, f"the value is {array.dtype}{list(array.shape)}, not {kind}")
    return kind


def _tuple(ctx: InferenceContext) -> Inference:
    yield from ()
    return TupleType(ctx.operands)


def _get_tuple_element(ctx: InferenceContext) -> Inference:
    kind, index = ctx.operands[0], ctx.node.integer("index")
    if not isinstance(kind, TupleType):
        yield ctx.complain(1, f"the operand is {kind}, not a tuple", 0)
        return None
    if not 0 <= index < len(kind.elements):
        count = len(kind.elements)
        yield ctx.complain(2, f"element {index} of a tuple of {count}: {kind}", "index")
        return None
    return kind.elements[index]


RULES: Mapping[str, TypeRule] = {
    "parameter": _declared,
    "constant": _constant,
    "tuple": _tuple,
    "get-tuple-element": _get_tuple_element,
    "partition-id": _rank_id,
    "replica-id": _rank_id,
    **ELEMENTWISE_RULES,
    **MOVE_RULES,
    **INDEXING_RULES,
    **ORDERING_RULES,
    **CONTRACTION_RULES,
    **WINDOW_RULES,
    **NUMERIC_RULES,
    **COLLECTIVE_RULES,
    **NCC_RULES,
    **VARIABLE_SIZE_RULES,
    **CONTROL_RULES,
    **TRANSFER_RULES,
}
"""One rule for each op of the table."""
