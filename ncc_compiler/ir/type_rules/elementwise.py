"""Result types of elementwise ops, of ops that reinterpret the bits of elements, and of `map`.

Most take operands of a single type and return it. The sentences of their rules
stand in `op_tables/elementwise.py`.
"""

from collections.abc import Callable, Mapping

import attrs

from ncc_compiler.ir.op_tables.elementwise import DTYPE, SAME_TYPE
from ncc_compiler.ir.rules import NodePart
from ncc_compiler.ir.type_rules.context import (
    Inference,
    InferenceContext,
    TypeRule,
    are_distinct_dimensions,
    is_inexact,
    is_real,
    parameter_types,
    result_type,
)
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.shared.dtypes import DType


def _bitcast(ctx: InferenceContext) -> Inference:
    operand, kind = ctx.arrays[0], ctx.node.type
    if not isinstance(kind, ArrayType):
        return operand
    from_bits, to_bits = operand.dtype.bits, kind.dtype.bits
    fact = f"{operand} does not have the bits of {kind}"
    if (
        operand.elements * from_bits != kind.elements * to_bits
        or (from_bits != to_bits and (from_bits % 8 or to_bits % 8))
        or (kind.dtype is DType.PRED and operand.dtype is not DType.PRED)  # a byte is 0 or 1
    ):
        yield ctx.complain(1, fact, NodePart.TYPE)
    return kind


def _bitcast_convert(ctx: InferenceContext) -> Inference:
    operand, kind = ctx.arrays[0], ctx.node.type
    if not isinstance(kind, ArrayType):
        return operand
    if operand.dtype.is_complex is not kind.dtype.is_complex:
        fact = f"{operand.dtype.value} does not become {kind.dtype.value}"
        yield ctx.complain(2, fact, NodePart.TYPE)
        return kind
    shape = _converted_shape(operand, kind.dtype)
    if shape is None:
        fact = f"the last dimension of {operand} does not make one {kind.dtype.value} each"
        yield ctx.complain(1, fact, NodePart.TYPE)
        return kind
    return ArrayType(kind.dtype, shape)


def _converted_shape(operand: ArrayType, dtype: DType) -> tuple[int, ...] | None:
    """The shape of the operand's bits as elements of a dtype; None if elements do not fill up.

    Narrower elements get a new last dimension, wider ones take up the last dimension.
    """
    from_bits, to_bits = operand.dtype.bits, dtype.bits
    if from_bits == to_bits:
        return operand.shape
    if max(from_bits, to_bits) % min(from_bits, to_bits):  # 6 bits and 8
        return None
    if from_bits > to_bits:
        return (*operand.shape, from_bits // to_bits)
    fills = operand.shape and operand.shape[-1] * from_bits == to_bits
    return operand.shape[:-1] if fills else None


def _reduce_precision(ctx: InferenceContext) -> Inference:
    operand = ctx.arrays[0]
    if not operand.dtype.is_float:
        fact = f"reduce-precision is not defined for {operand.dtype.value}"
        yield ctx.complain_of(DTYPE, fact, 0)
    for key, least in (("exponent_bits", 1), ("mantissa_bits", 0)):
        if ctx.node.integer(key) < least:
            yield ctx.complain(2, f"{key} is {ctx.node.integer(key)}", key)
    return operand


def _stochastic_convert(ctx: InferenceContext) -> Inference:
    operand, random = ctx.arrays
    kind = ctx.node.type
    dtype = kind.dtype if isinstance(kind, ArrayType) else DType.S32
    if not operand.dtype.is_float or not dtype.is_signed:
        fact = f"{operand.dtype.value} is not rounded to {dtype.value} at random"
        yield ctx.complain(1, fact, NodePart.TYPE)
    is_unsigned = random.dtype.is_integer and not random.dtype.is_signed
    if not is_unsigned or (random.shape, random.dtype.bits) != (operand.shape, operand.dtype.bits):
        yield ctx.complain(2, f"random bits of {operand} are {random}", 1)
    return ArrayType(dtype, operand.shape)


def _map(ctx: InferenceContext) -> Inference:
    shape, callee = ctx.arrays[0].shape, ctx.callee()
    for position, kind in enumerate(ctx.arrays):
        if kind.shape != shape:
            yield ctx.complain(1, f"operands differ: {ctx.arrays[0]} and {kind}", position)
    dimensions = ctx.attribute("dimensions")
    if dimensions is not None and dimensions != tuple(range(len(shape))):
        yield ctx.complain(2, f"{ctx.arrays[0]} has {len(shape)} dimensions", "dimensions")
    if callee is None:
        return None
    scalars = [ArrayType(kind.dtype) for kind in ctx.arrays]
    result = result_type(callee)
    if parameter_types(callee) != scalars or not isinstance(result, ArrayType) or result.shape:
        scalars_text = ", ".join(map(str, scalars))
        yield ctx.complain(3, f"%{callee.name} does not map ({scalars_text})", "to_apply")
        return None
    return ArrayType(result.dtype, shape)


BIT_RULES: Mapping[str, TypeRule] = {
    "bitcast": _bitcast,
    "bitcast-convert": _bitcast_convert,
    "map": _map,
    "reduce-precision": _reduce_precision,
    "stochastic-convert": _stochastic_convert,
}
"""One rule for each of these ops."""


DTypeTest = Callable[[DType], bool]


def _is_arithmetic(dtype: DType) -> bool:
    return dtype is not DType.PRED


def _is_bitwise(dtype: DType) -> bool:
    return dtype is DType.PRED or dtype.is_integer


def _is_integer(dtype: DType) -> bool:
    return dtype.is_integer


def _has_sign(dtype: DType) -> bool:
    return dtype.is_signed or dtype.is_float or dtype.is_complex


def _is_float(dtype: DType) -> bool:
    return dtype.is_float


def _is_any(_: DType) -> bool:
    return True


def _check_operands(ctx: InferenceContext, allows: DTypeTest) -> Inference:
    """The operands have one type, for which the op is defined; returns it."""
    first = ctx.arrays[0]
    for position, kind in enumerate(ctx.arrays):
        if kind != first:
            fact = f"operands differ: {first} and {kind}"
            yield ctx.complain_of(SAME_TYPE, fact, position)
            return None
    if not allows(first.dtype):
        fact = f"{ctx.node.op} is not defined for {first.dtype.value}"
        yield ctx.complain_of(DTYPE, fact, 0)
        return None
    return first


_PART_TYPES = {DType.C64: DType.F32, DType.C128: DType.F64}
_COMPLEX_TYPES = {part: kind for kind, part in _PART_TYPES.items()}


def _with_dtype(allows: DTypeTest, dtypes: Callable[[DType], DType]) -> TypeRule:
    """All operands have one type; the result has its shape and another dtype."""

    def rule(ctx: InferenceContext) -> Inference:
        kind = yield from _check_operands(ctx, allows)
        if not isinstance(kind, ArrayType):
            return None
        return attrs.evolve(kind, dtype=dtypes(kind.dtype))

    return rule


def _part(dtype: DType) -> DType:
    """The type of the absolute value and of the real and imaginary part."""
    return _PART_TYPES.get(dtype, dtype)


def _convert(ctx: InferenceContext) -> Inference:
    """To the declared dtype; a complex number becomes its real part."""
    yield from ()
    operand, kind = ctx.arrays[0], ctx.node.type
    return ArrayType(kind.dtype, operand.shape) if isinstance(kind, ArrayType) else operand


_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
_COMPARISONS: Mapping[str, DTypeTest] = {
    "FLOAT": is_inexact,
    "TOTALORDER": _is_float,
    "SIGNED": lambda dtype: dtype.is_signed,
    "UNSIGNED": lambda dtype: dtype is DType.PRED or (dtype.is_integer and not dtype.is_signed),
}


def _compare(ctx: InferenceContext) -> Inference:
    left, right = ctx.arrays
    direction, order = ctx.attribute("direction"), ctx.attribute("type")
    if left != right:
        yield ctx.complain(1, f"operands differ: {left} and {right}", 1)
    if direction not in _DIRECTIONS:
        known = ", ".join(_DIRECTIONS)
        yield ctx.complain(2, f"unknown direction {direction}", "direction", f"one of {known}")
    allows = _COMPARISONS.get(order) if isinstance(order, str) else None
    if order is not None and not (allows and allows(left.dtype)):
        known = ", ".join(name for name, allows in _COMPARISONS.items() if allows(left.dtype))
        fact = f"{left.dtype.value} is not compared as {order}"
        yield ctx.complain(3, fact, "type", f"as {known}" if known else "")
    return ArrayType(DType.PRED, left.shape)


def _select(ctx: InferenceContext) -> Inference:
    mask, on_true, on_false = ctx.arrays
    if mask.dtype is not DType.PRED or mask.shape not in ((), on_true.shape):
        expected = ArrayType(DType.PRED, on_true.shape)
        yield ctx.complain(1, f"the first operand is {mask}, not {expected}", 0)
    if on_true != on_false:
        yield ctx.complain(2, f"operands differ: {on_true} and {on_false}", 2)
    return on_true


def _clamp(ctx: InferenceContext) -> Inference:
    """Operands are the lower bound, the array, and the upper bound."""
    kind = ctx.arrays[1]
    for position in (0, 2):
        bound = ctx.arrays[position]
        if bound.dtype is not kind.dtype or bound.shape not in ((), kind.shape):
            yield ctx.complain(1, f"a bound of {kind} is {bound}", position)
    return kind


def _iota(ctx: InferenceContext) -> Inference:
    kind, dimension = ctx.node.type, ctx.node.integer("iota_dimension")
    if not isinstance(kind, ArrayType) or not are_distinct_dimensions([dimension], kind.rank):
        fact = f"{kind} has no dimension {dimension}"
        yield ctx.complain(1, fact, "iota_dimension")
    elif kind.dtype is DType.PRED:
        yield ctx.complain(2, "iota counts numbers, not pred", NodePart.TYPE)
    return kind


def _same_type(allows: DTypeTest, names: str) -> Mapping[str, TypeRule]:
    """The rule of ops whose operands and result have one type."""

    def rule(ctx: InferenceContext) -> Inference:
        return (yield from _check_operands(ctx, allows))

    return dict.fromkeys(names.split(), rule)


ELEMENTWISE_RULES: Mapping[str, TypeRule] = {
    **_same_type(_is_any, "add copy maximum minimum multiply"),
    **_same_type(_is_arithmetic, "divide negate power subtract"),
    **_same_type(_is_bitwise, "and not or xor"),
    **_same_type(
        _is_integer,
        "count-leading-zeros mulhi popcnt shift-left shift-right-arithmetic shift-right-logical",
    ),
    **_same_type(_is_float, "cbrt ceil erf floor round-nearest-afz round-nearest-even"),
    **_same_type(
        is_inexact,
        "acos acosh asin asinh atan atan2 atanh cosh cosine exponential exponential-minus-one log "
        "log-plus-one logistic rsqrt sine sinh sqrt tan tanh",
    ),
    **_same_type(is_real, "remainder"),
    **_same_type(_has_sign, "sign"),
    "abs": _with_dtype(_is_arithmetic, _part),
    "clamp": _clamp,
    "compare": _compare,
    "complex": _with_dtype(
        lambda dtype: dtype in _COMPLEX_TYPES, lambda dtype: _COMPLEX_TYPES[dtype]
    ),
    "convert": _convert,
    "imag": _with_dtype(is_inexact, _part),
    "iota": _iota,
    "is-finite": _with_dtype(_is_float, lambda _: DType.PRED),
    "real": _with_dtype(is_inexact, _part),
    "select": _select,
    **BIT_RULES,
}
"""One rule for each elementwise op."""
