"""Random elementwise ops that the plainer ones of `draws_local_ops` leave out."""

import math

from hypothesis import strategies as st

from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.shared.dtypes import DType
from tests.drawing import FLOATS, INTEGERS, LARGEST, Drawing, Value, rounding
from tests.draws_local_ops import above_one, partner

BIT_OPS = (
    *("popcnt", "count-leading-zeros"),
    *("shift-left", "shift-right-arithmetic", "shift-right-logical"),
)
RANDOM = {DType.F32: DType.U32, DType.BF16: DType.U16, DType.F16: DType.U16}
SAME_BITS = {
    DType.F32: (DType.S32, DType.U32),
    DType.S32: (DType.U32,),
    DType.U32: (DType.S32,),
    DType.S8: (DType.U8,),
    DType.U8: (DType.S8,),
}
OTHER_INTEGERS = [dtype for dtype in DType if dtype.is_integer and dtype not in INTEGERS]
NARROW_FLOATS = [
    dtype
    for dtype in DType
    if dtype.is_float and dtype.size_bytes == 1 and dtype is not DType.F8E8M0FNU
]


def _is_float(value: Value) -> bool:
    return value.dtype in FLOATS


def _is_exact_float(value: Value) -> bool:
    return value.dtype in FLOATS and value.is_exact


def _is_integer(value: Value) -> bool:
    return value.dtype in INTEGERS


def _smooth(drawing: Drawing, op: str, operands: list[Value], bound: float, slope: float) -> None:
    """A function that is computed within two units in the last place, and no steeper than this."""
    dtype = operands[0].dtype
    error = slope * sum(value.error for value in operands) + 4 * rounding(dtype, bound)
    drawing.add(op, operands[0].type, operands, bound=bound, error=error)


def bounded_function(drawing: Drawing) -> None:
    """Sine, cosine and the error function stay between -1 and 1."""
    x = drawing.pick(_is_float)
    if x is not None:
        _smooth(drawing, drawing.draw(st.sampled_from(["sine", "cosine", "erf"])), [x], 1.0, 1.2)


def tangent(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: _is_float(value) and value.bound <= 1)
    if x is not None:
        _smooth(drawing, "tan", [x], 1.6, 3.5)


def exponential_less_one(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: _is_float(value) and value.bound <= 4 and value.error < 1)
    if x is not None:
        bound = math.exp(x.bound)
        _smooth(drawing, "exponential-minus-one", [x], bound, 3 * bound)


def function_above_one(drawing: Drawing) -> None:
    """Where a cube root, a logarithm, an angle and a power are tame."""
    x = drawing.pick(lambda value: _is_float(value) and value.bound <= LARGEST)
    if x is None:
        return
    base = above_one(drawing, x)
    op = drawing.draw(st.sampled_from(["cbrt", "log-plus-one", "atan2", "power"]))
    if op == "atan2":
        _smooth(drawing, op, [partner(drawing, base), base], 1.6, 1.0)
    elif op == "power":
        half = drawing.full(drawing.draw(st.sampled_from([0.5, 1.5, -0.5])), base.type)
        if base.bound <= LARGEST**0.5:
            _smooth(drawing, op, [base, half], base.bound**1.5, 2 * base.bound**0.5)
    else:
        _smooth(drawing, op, [base], base.bound, 1.0)


def rounded(drawing: Drawing) -> None:
    """To whole numbers or to fewer bits; half a unit that is uncertain would be one."""
    x = drawing.pick(_is_exact_float)
    if x is None:
        return
    op = drawing.draw(
        st.sampled_from(["round-nearest-afz", "round-nearest-even", "reduce-precision"])
    )
    if op == "reduce-precision":
        exponent, mantissa = drawing.draw(st.integers(5, 11)), drawing.draw(st.integers(0, 24))
        bits = {"exponent_bits": exponent, "mantissa_bits": mantissa}
        drawing.add(op, x.type, [x], bound=2 * x.bound, **bits)
    else:
        drawing.add(op, x.type, [x], bound=x.bound + 1)


def bit_op(drawing: Drawing) -> None:
    """Any amounts of shifts: what is beyond the width has an answer too."""
    x = drawing.pick(_is_integer)
    if x is not None:
        op = drawing.draw(st.sampled_from(BIT_OPS))
        drawing.add(op, x.type, [x, partner(drawing, x)] if op.startswith("shift") else [x])


def bitcast_convert(drawing: Drawing) -> None:
    """To elements as wide, and of integers also to their bytes; of a float that is an input."""
    x = drawing.pick(
        lambda value: (
            value.dtype in SAME_BITS
            and (_is_integer(value) or drawing.nodes[value.node].op == "parameter")
        )
    )
    if x is None:
        return
    shape, targets = x.type.shape, list(SAME_BITS[x.dtype])
    if x.dtype in (DType.S32, DType.U32) and drawing.chance(2):
        shape, targets = (*shape, 4), [DType.U8, DType.S8]
    target = drawing.draw(st.sampled_from(targets))
    drawing.add("bitcast-convert", ArrayType(target, shape), [x])


def stochastic_convert(drawing: Drawing) -> None:
    x = drawing.pick(_is_exact_float)
    if x is None:
        return
    random = drawing.parameter(ArrayType(RANDOM[x.dtype], x.type.shape))
    target = drawing.draw(st.sampled_from([DType.S8, DType.S32]))
    drawing.add("stochastic-convert", ArrayType(target, x.type.shape), [x, random])


def clamp(drawing: Drawing) -> None:
    """Bounds are scalars or arrays, and may stand the wrong way round."""
    x = drawing.pick(lambda value: _is_float(value) or _is_integer(value))
    if x is None:
        return
    bounds = []
    for _ in range(2):
        number = drawing.draw(st.integers(0, 3))
        scalar = drawing.draw(st.booleans())
        bounds.append(drawing.scalar(x.dtype, number) if scalar else drawing.full(number, x.type))
    bound = max(x.bound, 3.0) if _is_float(x) else 0.0
    drawing.add("clamp", x.type, [bounds[0], x, bounds[1]], bound=bound, error=x.error)


def question(drawing: Drawing) -> None:
    """Whether a float is finite, or before another one in the total order."""
    x = drawing.pick(_is_exact_float)
    if x is None:
        return
    kind = ArrayType(DType.PRED, x.type.shape)
    if drawing.chance(3):
        drawing.add("is-finite", kind, [x])
        return
    y = drawing.pick(lambda value: value.type == x.type and value.is_exact) or x
    direction = drawing.draw(st.sampled_from(["EQ", "NE", "LT", "LE", "GT", "GE"]))
    drawing.add("compare", kind, [x, y], direction=direction, type="TOTALORDER")


def choice_of_a_whole(drawing: Drawing) -> None:
    """A scalar predicate chooses between arrays."""
    x = drawing.pick(lambda value: value.dtype is not DType.PRED)
    if x is None:
        return
    y, yes = partner(drawing, x), drawing.parameter(ArrayType(DType.PRED))
    bound, error = max(x.bound, y.bound), max(x.error, y.error)
    drawing.add("select", x.type, [yes, x, y], bound=bound, error=error)


def mapped(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: _is_float(value) or _is_integer(value))
    if x is None:
        return
    y = partner(drawing, x)
    region = drawing.region(drawing.draw(st.sampled_from(["maximum", "minimum"])), x.dtype)
    bound, error = max(x.bound, y.bound), max(x.error, y.error)
    everywhere = tuple(range(x.type.rank))
    facts = {"dimensions": everywhere, "to_apply": region}
    drawing.add("map", x.type, [x, y], bound=bound, error=error, **facts)


def by_complex_numbers(drawing: Drawing) -> None:
    """The size, or a part, of a product of complex numbers."""
    x = drawing.pick(lambda value: value.dtype is DType.F32 and value.bound <= LARGEST**0.5)
    if x is None:
        return
    y = partner(drawing, x)
    kind = ArrayType(DType.C64, x.type.shape)
    z = drawing.node("complex", kind, [x.node, y.node])
    product = drawing.node("multiply", kind, [z, z])
    size = x.bound + y.bound
    error = 2 * size * (x.error + y.error) + 8 * rounding(x.dtype, size * size)
    op = drawing.draw(st.sampled_from(["abs", "real", "imag"]))
    found = drawing.node(op, x.type, [product])
    drawing.values.append(Value(found, x.type, size * size, error))


def there_and_back(drawing: Drawing) -> None:
    """A value that has one right answer, through a dtype of another width, and doubled there."""
    x = drawing.pick(lambda value: value.is_exact and value.dtype is not DType.PRED)
    if x is None:
        return
    small = _is_float(x) and x.bound <= 6
    target = drawing.draw(st.sampled_from([*OTHER_INTEGERS, *(NARROW_FLOATS if small else ())]))
    op = drawing.draw(st.sampled_from(["add", "minimum"] if _is_float(x) else ["add", "divide"]))
    kind = ArrayType(target, x.type.shape)
    narrow = drawing.node("convert", kind, [x.node])
    joined = drawing.node(op, kind, [narrow, narrow])
    found = drawing.node("convert", x.type, [joined])
    bound = 2.2 * x.bound + 1 if _is_float(x) else 0.0
    drawing.values.append(Value(found, x.type, bound))


ELEMENTWISE_OPS = (
    bounded_function,
    tangent,
    exponential_less_one,
    function_above_one,
    rounded,
    bit_op,
    bitcast_convert,
    stochastic_convert,
    clamp,
    question,
    choice_of_a_whole,
    mapped,
    by_complex_numbers,
    there_and_back,
)
