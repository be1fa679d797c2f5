"""Types of opcodes that work on the bits of elements, and of `map`."""

from collections.abc import Iterator

from ncc_runtime.neff.rules.signature import Signature, dtype_differs, shape_differs


def bitcast_convert(signature: Signature) -> Iterator[str]:
    """Narrower elements come in one more dimension, wider ones take the last one up."""
    (operand,), (result,) = signature.operands, signature.results
    one, other = operand.dtype, result.dtype
    if one.is_complex is not other.is_complex:
        yield f"{one.value} does not become {other.value}"
        return
    if one.bits == other.bits:
        yield from shape_differs(result, operand.shape)
        return
    wide, narrow = (operand, result) if one.bits > other.bits else (result, operand)
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
    region, dtypes = signature.regions[number], tuple(one.dtype for one in signature.operands)
    if region.parameters != dtypes or region.result_dtypes() != (result.dtype,):
        text = ", ".join(dtype.value for dtype in dtypes)
        yield f"region r{number} ({region.name}) does not map ({text}) to {result.dtype.value}"
