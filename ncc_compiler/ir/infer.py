"""The type of each op's result, from its operands and attributes, and what is wrong with them."""

from collections.abc import Callable, Mapping

from ncc_compiler.ir.facts import (
    Facts,
    Findings,
    Rule,
    are_distinct_dimensions,
    parameter_types,
    result_type,
)
from ncc_compiler.ir.infer_collectives import COLLECTIVE_RULES
from ncc_compiler.ir.infer_contractions import CONTRACTION_RULES
from ncc_compiler.ir.infer_moves import MOVE_RULES
from ncc_compiler.ir.ops import DTYPE, SAME_TYPE
from ncc_compiler.ir.rules import Part
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.dtypes import DType

Allows = Callable[[DType], bool]


def _declared(facts: Facts) -> Findings:
    """The result is whatever the text says."""
    yield from ()
    return facts.node.type


def _index(_: Facts) -> Findings:
    yield from ()
    return ArrayType(DType.U32)


def _constant(facts: Facts) -> Findings:
    array, kind = facts.node.literal().array, facts.node.type
    if not isinstance(kind, ArrayType) or (array.dtype, array.shape) != (
        kind.dtype.numpy,
        kind.shape,
    ):
        yield facts.complain(1, f"the value is {array.dtype}{list(array.shape)}, not {kind}")
    return kind


def _tuple(facts: Facts) -> Findings:
    yield from ()
    return TupleType(facts.operands)


def _get_tuple_element(facts: Facts) -> Findings:
    kind, index = facts.operands[0], facts.node.integer("index")
    if not isinstance(kind, TupleType):
        yield facts.complain(1, f"the operand is {kind}, not a tuple", 0)
        return None
    if not 0 <= index < len(kind.elements):
        count = len(kind.elements)
        yield facts.complain(2, f"element {index} of a tuple of {count}: {kind}", "index")
        return None
    return kind.elements[index]


def _call(facts: Facts) -> Findings:
    callee = facts.callee()
    if callee is None:
        return None
    wanted = parameter_types(callee)
    if len(wanted) != len(facts.operands):
        fact = f"%{callee.name} takes {len(wanted)} operands, {len(facts.operands)} are given"
        yield facts.complain(1, fact, "to_apply")
    for position, (given, kind) in enumerate(zip(facts.operands, wanted, strict=False)):
        if given != kind:
            fact = (
                f"operand {position} is {given}, parameter {position} of %{callee.name} is {kind}"
            )
            yield facts.complain(2, fact, position)
    return result_type(callee)


def _is_arithmetic(dtype: DType) -> bool:
    return dtype is not DType.PRED


def _is_real(dtype: DType) -> bool:
    return dtype is not DType.PRED and not dtype.is_complex


def _is_ordered(dtype: DType) -> bool:
    return not dtype.is_complex


def _is_bitwise(dtype: DType) -> bool:
    return dtype is DType.PRED or dtype.is_integer


def _has_sign(dtype: DType) -> bool:
    return dtype.is_signed or dtype.is_float or dtype.is_complex


def _is_inexact(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_complex


def _is_float(dtype: DType) -> bool:
    return dtype.is_float


def _is_any(_: DType) -> bool:
    return True


def _check_operands(facts: Facts, allows: Allows) -> Findings:
    """The operands are of one type, and the op is defined for it; gives that type."""
    first = facts.arrays[0]
    for position, kind in enumerate(facts.arrays):
        if kind != first:
            fact = f"operands differ: {first} and {kind}"
            yield facts.complain_of(SAME_TYPE, fact, position)
            return None
    if not allows(first.dtype):
        fact = f"{facts.node.op} is not defined for {first.dtype.value}"
        yield facts.complain_of(DTYPE, fact, 0)
        return None
    return first


def _elementwise(allows: Allows) -> Rule:
    """All operands and the result have one type."""

    def rule(facts: Facts) -> Findings:
        return (yield from _check_operands(facts, allows))

    return rule


def _convert(facts: Facts) -> Findings:
    operand, kind = facts.arrays[0], facts.node.type
    if not isinstance(kind, ArrayType):
        return operand
    if operand.dtype.is_complex and not kind.dtype.is_complex:
        fact = f"{operand.dtype.value} does not convert to {kind.dtype.value}"
        yield facts.complain(1, fact, Part.TYPE)
    return ArrayType(kind.dtype, operand.shape)


_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
_COMPARISONS: Mapping[str, Allows] = {
    "FLOAT": _is_inexact,
    "TOTALORDER": _is_float,
    "SIGNED": lambda dtype: dtype.is_signed,
    "UNSIGNED": lambda dtype: dtype is DType.PRED or (dtype.is_integer and not dtype.is_signed),
}


def _compare(facts: Facts) -> Findings:
    left, right = facts.arrays
    direction, order = facts.attribute("direction"), facts.attribute("type")
    if left != right:
        yield facts.complain(1, f"operands differ: {left} and {right}", 1)
    if direction not in _DIRECTIONS:
        known = ", ".join(_DIRECTIONS)
        yield facts.complain(2, f"unknown direction {direction}", "direction", f"one of {known}")
    elif left.dtype.is_complex and direction not in ("EQ", "NE"):
        yield facts.complain(2, f"{left.dtype.value} has no order", "direction")
    allows = _COMPARISONS.get(order) if isinstance(order, str) else None
    if order is not None and not (allows and allows(left.dtype)):
        known = ", ".join(name for name, allows in _COMPARISONS.items() if allows(left.dtype))
        fact = f"{left.dtype.value} is not compared as {order}"
        yield facts.complain(3, fact, "type", f"as {known}" if known else "")
    return ArrayType(DType.PRED, left.shape)


def _select(facts: Facts) -> Findings:
    chosen, on_true, on_false = facts.arrays
    if chosen != ArrayType(DType.PRED, on_true.shape):
        wanted = ArrayType(DType.PRED, on_true.shape)
        yield facts.complain(1, f"the first operand is {chosen}, not {wanted}", 0)
    if on_true != on_false:
        yield facts.complain(2, f"operands differ: {on_true} and {on_false}", 2)
    return on_true


def _iota(facts: Facts) -> Findings:
    kind, dimension = facts.node.type, facts.node.integer("iota_dimension")
    if not isinstance(kind, ArrayType) or not are_distinct_dimensions([dimension], kind.rank):
        fact = f"{kind} has no dimension {dimension}"
        yield facts.complain(1, fact, "iota_dimension")
    elif kind.dtype is DType.PRED:
        yield facts.complain(2, "iota counts numbers, not pred", Part.TYPE)
    return kind


_ELEMENTWISE: Mapping[str, Allows] = {
    "abs": _is_real,
    "add": _is_any,
    "and": _is_bitwise,
    "ceil": _is_float,
    "copy": _is_any,
    "divide": _is_arithmetic,
    "exponential": _is_inexact,
    "floor": _is_float,
    "log": _is_inexact,
    "logistic": _is_inexact,
    "maximum": _is_ordered,
    "minimum": _is_ordered,
    "multiply": _is_any,
    "negate": _is_arithmetic,
    "not": _is_bitwise,
    "or": _is_bitwise,
    "power": _is_arithmetic,
    "remainder": _is_real,
    "rsqrt": _is_inexact,
    "sign": _has_sign,
    "sqrt": _is_inexact,
    "subtract": _is_arithmetic,
    "tanh": _is_inexact,
    "xor": _is_bitwise,
}

RULES: Mapping[str, Rule] = {
    "parameter": _declared,
    "constant": _constant,
    "tuple": _tuple,
    "get-tuple-element": _get_tuple_element,
    "call": _call,
    "convert": _convert,
    "compare": _compare,
    "select": _select,
    "iota": _iota,
    "partition-id": _index,
    "replica-id": _index,
    **{op: _elementwise(allows) for op, allows in _ELEMENTWISE.items()},
    **MOVE_RULES,
    **CONTRACTION_RULES,
    **COLLECTIVE_RULES,
}
"""One rule for each op of the table."""
