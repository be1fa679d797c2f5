"""Types of elementwise opcodes: shapes equal, dtypes that the operation is defined on."""

from collections.abc import Iterator

from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.rules.signature import Signature, dtype_differs, shape_differs

_BITWISE = frozenset({"and", "not", "or", "xor"})
_CONTINUOUS = frozenset({"exponential", "log", "logistic", "rsqrt", "sqrt", "tanh"})
_ORDERED = frozenset({"ceil", "floor", "maximum", "minimum", "remainder"})  # not for complex
_ARITHMETIC = frozenset({"abs", "divide", "negate", "power", "remainder", "sign", "subtract"})
_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
_COMPARE_TYPES = ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")


def same_types(signature: Signature) -> Iterator[str]:
    """Operands and result of one type, on which the opcode is defined."""
    first = signature.operands[0]
    yield from _operands_alike(signature)
    yield from shape_differs(signature.results[0], first.shape)
    yield from dtype_differs(signature.results[0], first.dtype)
    if not _is_defined(signature.opcode, first.dtype):
        yield f"not defined on {first.dtype.value}"


def _operands_alike(signature: Signature) -> Iterator[str]:
    if len({(operand.shape, operand.dtype) for operand in signature.operands}) > 1:
        types = " and ".join(operand.type_text for operand in signature.operands)
        yield f"operands differ: {types}"


def _is_defined(opcode: str, dtype: DType) -> bool:
    if opcode in _BITWISE:
        return dtype is DType.PRED or dtype.is_integer
    if opcode in _CONTINUOUS:
        return dtype.is_float or dtype.is_complex
    if opcode in ("ceil", "floor"):
        return dtype.is_float
    if opcode in _ARITHMETIC and dtype is DType.PRED:
        return False
    return not (opcode in _ORDERED and dtype.is_complex)


def convert(signature: Signature) -> Iterator[str]:
    """Any dtype to any other but complex to what is not."""
    result, operand = signature.results[0], signature.operands[0]
    yield from shape_differs(result, operand.shape)
    if operand.dtype.is_complex and not result.dtype.is_complex:
        yield f"no conversion from {operand.dtype.value} to {result.dtype.value}"


def compare(signature: Signature) -> Iterator[str]:
    """Two operands of one type to pred."""
    direction = signature.attributes["direction"]
    yield from _operands_alike(signature)
    yield from shape_differs(signature.results[0], signature.operands[0].shape)
    yield from dtype_differs(signature.results[0], DType.PRED)
    if direction not in _DIRECTIONS:
        yield f"direction is {direction!r}, known are {', '.join(_DIRECTIONS)}"
    elif signature.operands[0].dtype.is_complex and direction not in ("EQ", "NE"):
        yield f"complex numbers have no order: {direction}"
    kind = signature.attributes.get("type", "FLOAT")
    if kind not in _COMPARE_TYPES:
        yield f"type is {kind!r}, known are {', '.join(_COMPARE_TYPES)}"


def select(signature: Signature) -> Iterator[str]:
    """A pred and two operands of one type, all of one shape."""
    condition, chosen, other = signature.operands
    if condition.dtype is not DType.PRED or condition.shape != chosen.shape:
        yield f"condition is {condition.type_text}, choices are {chosen.type_text}"
    if (chosen.dtype, chosen.shape) != (other.dtype, other.shape):
        yield f"choices differ: {chosen.type_text} and {other.type_text}"
    yield from shape_differs(signature.results[0], chosen.shape)
    yield from dtype_differs(signature.results[0], chosen.dtype)
