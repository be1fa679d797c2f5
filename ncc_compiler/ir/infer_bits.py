"""Types of ops that work on the bits of elements, and of `map`."""

from collections.abc import Mapping

from ncc_compiler.ir.facts import Facts, Findings, Rule, parameter_types, result_type
from ncc_compiler.ir.ops_elementwise import DTYPE
from ncc_compiler.ir.rules import Part
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.dtypes import DType


def _bitcast(facts: Facts) -> Findings:
    operand, kind = facts.arrays[0], facts.node.type
    if not isinstance(kind, ArrayType):
        return operand
    from_bits, to_bits = operand.dtype.bits, kind.dtype.bits
    fact = f"{operand} does not have the bits of {kind}"
    if (
        operand.elements * from_bits != kind.elements * to_bits
        or (from_bits != to_bits and (from_bits % 8 or to_bits % 8))
        or (kind.dtype is DType.PRED and operand.dtype is not DType.PRED)  # not any byte is one
    ):
        yield facts.complain(1, fact, Part.TYPE)
    return kind


def _bitcast_convert(facts: Facts) -> Findings:
    operand, kind = facts.arrays[0], facts.node.type
    if not isinstance(kind, ArrayType):
        return operand
    if operand.dtype.is_complex is not kind.dtype.is_complex:
        fact = f"{operand.dtype.value} does not become {kind.dtype.value}"
        yield facts.complain(2, fact, Part.TYPE)
        return kind
    shape = _reshaped(operand, kind.dtype)
    if shape is None:
        fact = f"the last dimension of {operand} does not make one {kind.dtype.value} each"
        yield facts.complain(1, fact, Part.TYPE)
        return kind
    return ArrayType(kind.dtype, shape)


def _reshaped(operand: ArrayType, dtype: DType) -> tuple[int, ...] | None:
    """The shape of the operand as elements of a dtype; None if its bits do not make whole ones."""
    from_bits, to_bits = operand.dtype.bits, dtype.bits
    if from_bits == to_bits:
        return operand.shape
    if max(from_bits, to_bits) % min(from_bits, to_bits):  # 6 bits and 8
        return None
    if from_bits > to_bits:
        return (*operand.shape, from_bits // to_bits)
    is_whole = operand.shape and operand.shape[-1] * from_bits == to_bits
    return operand.shape[:-1] if is_whole else None


def _reduce_precision(facts: Facts) -> Findings:
    operand = facts.arrays[0]
    if not operand.dtype.is_float:
        fact = f"reduce-precision is not defined for {operand.dtype.value}"
        yield facts.complain_of(DTYPE, fact, 0)
    for key, least in (("exponent_bits", 1), ("mantissa_bits", 0)):
        if facts.node.integer(key) < least:
            yield facts.complain(2, f"{key} is {facts.node.integer(key)}", key)
    return operand


def _stochastic_convert(facts: Facts) -> Findings:
    operand, random = facts.arrays
    kind = facts.node.type
    dtype = kind.dtype if isinstance(kind, ArrayType) else DType.S32
    if not operand.dtype.is_float or not dtype.is_signed:
        fact = f"{operand.dtype.value} is not rounded to {dtype.value} at random"
        yield facts.complain(1, fact, Part.TYPE)
    is_unsigned = random.dtype.is_integer and not random.dtype.is_signed
    if not is_unsigned or (random.shape, random.dtype.bits) != (operand.shape, operand.dtype.bits):
        yield facts.complain(2, f"random bits of {operand} are {random}", 1)
    return ArrayType(dtype, operand.shape)


def _map(facts: Facts) -> Findings:
    shape, callee = facts.arrays[0].shape, facts.callee()
    for position, kind in enumerate(facts.arrays):
        if kind.shape != shape:
            yield facts.complain(1, f"operands differ: {facts.arrays[0]} and {kind}", position)
    dimensions = facts.attribute("dimensions")
    if dimensions is not None and dimensions != tuple(range(len(shape))):
        yield facts.complain(2, f"{facts.arrays[0]} has {len(shape)} dimensions", "dimensions")
    if callee is None:
        return None
    wanted = [ArrayType(kind.dtype) for kind in facts.arrays]
    result = result_type(callee)
    if parameter_types(callee) != wanted or not isinstance(result, ArrayType) or result.shape:
        given = ", ".join(map(str, wanted))
        yield facts.complain(3, f"%{callee.name} does not map ({given})", "to_apply")
        return None
    return ArrayType(result.dtype, shape)


BIT_RULES: Mapping[str, Rule] = {
    "bitcast": _bitcast,
    "bitcast-convert": _bitcast_convert,
    "map": _map,
    "reduce-precision": _reduce_precision,
    "stochastic-convert": _stochastic_convert,
}
"""One rule for each of these ops."""
