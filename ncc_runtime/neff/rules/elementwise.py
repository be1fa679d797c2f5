"""Types of elementwise opcodes: equal shapes, and dtypes that the operation is defined on.

Also of opcodes that work on the bits of elements, and of `map`.
"""

from collections.abc import Callable, Iterator, Mapping

from ncc_runtime.neff.rules.signature import Signature, dtype_differs, shape_differs
from ncc_runtime.neff.shared.dtypes import DType

_BITWISE = frozenset({"and", "not", "or", "xor"})
_INTEGRAL = frozenset(
    {
        *("count-leading-zeros", "mulhi", "popcnt"),
        *("shift-left", "shift-right-arithmetic", "shift-right-logical"),
    }
)
_CONTINUOUS = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "cosine"),
        *("exponential", "exponential-minus-one", "log", "log-plus-one", "logistic"),
        *("rsqrt", "sine", "sinh", "sqrt", "tan", "tanh"),
    }
)
_REAL = frozenset({"cbrt", "ceil", "erf", "floor", "round-nearest-afz", "round-nearest-even"})
_ARITHMETIC = frozenset({"abs", "divide", "negate", "power", "remainder", "subtract"})
_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
_COMPARE_TYPES: Mapping[str, Callable[[DType], bool]] = {
    "FLOAT": lambda dtype: dtype.is_float or dtype.is_complex,
    "TOTALORDER": lambda dtype: dtype.is_float,
    "SIGNED": lambda dtype: dtype.is_signed,
    "UNSIGNED": lambda dtype: dtype is DType.PRED or (dtype.is_integer and not dtype.is_signed),
}


def same_types(signature: Signature) -> Iterator[str]:
    """Operands and result of one type, on which the opcode is defined."""
    first = signature.operands[0]
    yield from _operands_differ(signature)
    yield from shape_differs(signature.results[0], first.shape)
    yield from dtype_differs(signature.results[0], first.dtype)
    if not _is_defined(signature.opcode, first.dtype):
        yield f"not defined on {first.dtype.value}"


def _operands_differ(signature: Signature) -> Iterator[str]:
    if len({(operand.shape, operand.dtype) for operand in signature.operands}) > 1:
        types = " and ".join(operand.type_text for operand in signature.operands)
        yield f"operands differ: {types}"


def _is_defined(opcode: str, dtype: DType) -> bool:
    if opcode in _BITWISE:
        return dtype is DType.PRED or dtype.is_integer
    if opcode in _CONTINUOUS:
        return dtype.is_float or dtype.is_complex
    if opcode in _INTEGRAL:
        return dtype.is_integer
    if opcode in _REAL:
        return dtype.is_float
    if opcode == "sign":
        return dtype.is_signed or dtype.is_float or dtype.is_complex
    if opcode in _ARITHMETIC and dtype is DType.PRED:
        return False
    return not (opcode == "remainder" and dtype.is_complex)


def convert(signature: Signature) -> Iterator[str]:
    """Any dtype to any other; of a complex number to another kind, the real part."""
    result, operand = signature.results[0], signature.operands[0]
    yield from shape_differs(result, operand.shape)


def compare(signature: Signature) -> Iterator[str]:
    """Two operands of one type to pred."""
    direction = signature.attributes["direction"]
    yield from _operands_differ(signature)
    yield from shape_differs(signature.results[0], signature.operands[0].shape)
    yield from dtype_differs(signature.results[0], DType.PRED)
    if direction not in _DIRECTIONS:
        yield f"direction is {direction!r}, known are {', '.join(_DIRECTIONS)}"
    kind = signature.attributes.get("type")
    if kind is not None and kind not in _COMPARE_TYPES:
        yield f"type is {kind!r}, known are {', '.join(_COMPARE_TYPES)}"
    elif kind is not None and not _COMPARE_TYPES[str(kind)](signature.operands[0].dtype):
        yield f"{signature.operands[0].dtype.value} is not compared as {kind}"


def select(signature: Signature) -> Iterator[str]:
    """A pred, a scalar or of their shape, and two operands of one type."""
    condition, chosen, other = signature.operands
    if condition.dtype is not DType.PRED or condition.shape not in ((), chosen.shape):
        yield f"condition is {condition.type_text}, choices are {chosen.type_text}"
    if (chosen.dtype, chosen.shape) != (other.dtype, other.shape):
        yield f"choices differ: {chosen.type_text} and {other.type_text}"
    yield from shape_differs(signature.results[0], chosen.shape)
    yield from dtype_differs(signature.results[0], chosen.dtype)


def clamp(signature: Signature) -> Iterator[str]:
    """The least value, an operand, the greatest value; bounds may be scalars."""
    least, operand, most = signature.operands
    for bound in (least, most):
        if bound.dtype is not operand.dtype or bound.shape not in ((), operand.shape):
            yield f"a bound is {bound.type_text}, the operand {operand.type_text}"
    yield from shape_differs(signature.results[0], operand.shape)
    yield from dtype_differs(signature.results[0], operand.dtype)


_PARTS = {DType.C64: DType.F32, DType.C128: DType.F64}


def part(signature: Signature) -> Iterator[str]:
    """Real numbers of what may be complex."""
    (operand,), (result,) = signature.operands, signature.results
    yield from shape_differs(result, operand.shape)
    yield from dtype_differs(result, _PARTS.get(operand.dtype, operand.dtype))
    if not operand.dtype.is_float and not operand.dtype.is_complex:
        yield f"not defined on {operand.dtype.value}"


def absolute(signature: Signature) -> Iterator[str]:
    """Real numbers of what may be complex, integers of integers."""
    if signature.operands[0].dtype.is_complex:
        yield from part(signature)
    else:
        yield from same_types(signature)


def complex_(signature: Signature) -> Iterator[str]:
    """Two real operands to complex numbers of twice the width."""
    result, operand = signature.results[0], signature.operands[0]
    yield from _operands_differ(signature)
    yield from shape_differs(result, operand.shape)
    if _PARTS.get(result.dtype) is not operand.dtype:
        yield f"{operand.dtype.value} does not make {result.dtype.value}"


def is_finite(signature: Signature) -> Iterator[str]:
    """Floats to pred."""
    (operand,), (result,) = signature.operands, signature.results
    yield from shape_differs(result, operand.shape)
    yield from dtype_differs(result, DType.PRED)
    if not operand.dtype.is_float:
        yield f"not defined on {operand.dtype.value}"


def bitcast_convert(signature: Signature) -> Iterator[str]:
    """Narrower elements add a dimension behind the last; wider ones absorb the last."""
    (operand,), (result,) = signature.operands, signature.results
    source, target = operand.dtype, result.dtype
    if source.is_complex is not target.is_complex:
        yield f"{source.value} does not become {target.value}"
        return
    if source.bits == target.bits:
        yield from shape_differs(result, operand.shape)
        return
    wide, narrow = (operand, result) if source.bits > target.bits else (result, operand)
    count, rest = divmod(wide.dtype.bits, narrow.dtype.bits)
    if rest or narrow.shape != (*wide.shape, count):
        yield f"{operand.type_text} does not have the bits of {result.type_text}"


def reduce_precision(signature: Signature) -> Iterator[str]:
    """Floats of one type."""
    (operand,), (result,) = signature.operands, signature.results
    yield from shape_differs(result, operand.shape)
    yield from dtype_differs(result, operand.dtype)
    if not operand.dtype.is_float:
        yield f"not defined on {operand.dtype.value}"
    exponent, mantissa = (signature.integer(f"{name}_bits") for name in ("exponent", "mantissa"))
    if exponent < 1 or mantissa < 0:
        yield f"{exponent} bits of exponent and {mantissa} of mantissa make no float"


def stochastic_convert(signature: Signature) -> Iterator[str]:
    """A float and as many random bits to a signed integer."""
    (operand, random), (result,) = signature.operands, signature.results
    yield from shape_differs(result, operand.shape)
    if not operand.dtype.is_float or not result.dtype.is_signed:
        yield f"no conversion at random from {operand.dtype.value} to {result.dtype.value}"
    is_unsigned = random.dtype.is_integer and not random.dtype.is_signed
    if not is_unsigned or (random.shape, random.dtype.bits) != (operand.shape, operand.dtype.bits):
        yield f"random bits of {operand.type_text} are {random.type_text}"


def map_(signature: Signature) -> Iterator[str]:
    """A region of one scalar each of operands of one shape."""
    (result,), number = signature.results, signature.integer("region")
    if not signature.operands:
        yield "no operands"
        return
    for operand in signature.operands:
        yield from shape_differs(result, operand.shape)
    if not 0 <= number < len(signature.regions):
        yield f"region {number}, there are {len(signature.regions)}"
        return
    region, dtypes = (
        signature.regions[number],
        tuple(operand.dtype for operand in signature.operands),
    )
    if region.parameters != dtypes or region.result_dtypes() != (result.dtype,):
        text = ", ".join(dtype.value for dtype in dtypes)
        yield f"region r{number} ({region.name}) does not map ({text}) to {result.dtype.value}"
