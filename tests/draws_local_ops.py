"""Random ops of one rank, each added to a drawing; none does anything where nothing suits it."""

import math

import numpy as np
from hypothesis import strategies as st

from ncc_compiler.ir.graph import Literal
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.shared.dtypes import DType
from tests.drawing import (
    FLOATS,
    INTEGERS,
    LARGEST,
    Drawing,
    Value,
    elements_of,
    rounding,
)

FLOAT_UNARY = ("abs", "negate", "tanh", "logistic", "exponential", "sign", "floor", "ceil")
INTEGER_BINARY = (
    *("add", "subtract", "multiply", "divide", "remainder", "power"),
    *("maximum", "minimum", "and", "or", "xor"),
)


def _is_float(value: Value) -> bool:
    return value.dtype in FLOATS


def _blurred(value: Value, error: float, bound: float) -> float:
    """The error once more rounded; a value with one right answer still has one."""
    return error + rounding(value.dtype, bound) if error else 0.0


def new_parameter(drawing: Drawing) -> None:
    dtype = drawing.draw(st.sampled_from([DType.F32, *FLOATS, *INTEGERS, DType.PRED]))
    drawing.parameter(ArrayType(dtype, drawing.shape()))


def constant(drawing: Drawing) -> None:
    shape = drawing.shape(2)
    dtype = drawing.draw(st.sampled_from([*FLOATS, *INTEGERS, DType.PRED]))
    flat = [drawing.draw(st.integers(-3, 3)) for _ in range(elements_of(shape))]
    array = np.array(flat, np.int64).reshape(shape).astype(dtype.numpy)
    array.setflags(write=False)
    bound = 3.0 if dtype in FLOATS else 0.0
    drawing.add("constant", ArrayType(dtype, shape), [], bound=bound, literal=Literal(array))


def float_unary(drawing: Drawing) -> None:
    x = drawing.pick(_is_float)
    if x is None:
        return
    op = drawing.draw(
        st.sampled_from(
            ["abs", "negate", "tanh", "logistic", "exponential", "sign", "floor", "ceil"]
        )
    )
    if op in ("abs", "negate"):
        drawing.like(op, x, [x])
    elif op in ("tanh", "logistic"):
        drawing.add(op, x.type, [x], bound=1.0, error=x.error + 4 * rounding(x.dtype, 1.0))
    elif op == "exponential" and x.bound <= 4:
        bound = math.exp(x.bound)
        error = bound * math.expm1(x.error) + 4 * rounding(x.dtype, bound)
        drawing.add(op, x.type, [x], bound=bound, error=error)
    elif op in ("sign", "floor", "ceil") and x.is_exact:
        drawing.add(op, x.type, [x], bound=x.bound + 1)


def above_one(drawing: Drawing, x: Value) -> Value:
    """|x| + 1: where division, log and sqrt are tame."""
    size = drawing.like("abs", x, [x])
    one = drawing.full(1, x.type)
    bound = x.bound + 1
    return drawing.add("add", x.type, [size, one], bound=bound, error=_blurred(x, x.error, bound))


def float_unary_above_one(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: _is_float(value) and value.bound <= LARGEST)
    if x is None:
        return
    x = above_one(drawing, x)
    op = drawing.draw(st.sampled_from(["sqrt", "rsqrt", "log"]))
    error = x.error + 4 * rounding(x.dtype, x.bound)
    drawing.add(op, x.type, [x], bound=x.bound, error=error)


def partner(drawing: Drawing, x: Value) -> Value:
    """Another value of the same type, if need be a new parameter."""
    found = drawing.pick(lambda value: value.type == x.type and value != x)
    return found or drawing.parameter(x.type)


def float_binary(drawing: Drawing) -> None:
    x = drawing.pick(_is_float)
    if x is None:
        return
    y = partner(drawing, x)
    op = drawing.draw(st.sampled_from(["add", "subtract", "maximum", "minimum", "multiply"]))
    bound, error = {
        "multiply": (x.bound * y.bound, x.error * y.bound + y.error * x.bound),
        "maximum": (max(x.bound, y.bound), max(x.error, y.error)),
        "minimum": (max(x.bound, y.bound), max(x.error, y.error)),
    }.get(op, (x.bound + y.bound, x.error + y.error))
    if bound <= LARGEST:
        drawing.add(op, x.type, [x, y], bound=bound, error=_blurred(x, error, bound))


def float_quotient(drawing: Drawing) -> None:
    x = drawing.pick(_is_float)
    if x is None:
        return
    y = above_one(drawing, partner(drawing, x))
    op = drawing.draw(st.sampled_from(["divide", "remainder"]))
    if op == "divide":
        error = _blurred(x, x.error + y.error * x.bound, x.bound)
        drawing.add(op, x.type, [x, y], bound=x.bound, error=error)
    elif x.is_exact and y.is_exact:
        drawing.add(op, x.type, [x, y], bound=x.bound)


def integer_op(drawing: Drawing) -> None:
    """Integers wrap and have one right answer, so anything goes, zero divisors included."""
    x = drawing.pick(lambda value: value.dtype in INTEGERS)
    if x is None:
        return
    unary = ["not", "negate", "copy"] + (["abs", "sign"] if x.dtype.is_signed else [])
    binary = [
        "add",
        "subtract",
        "multiply",
        "divide",
        "remainder",
        "maximum",
        "minimum",
        "and",
        "or",
        "xor",
        "power",
    ]
    op = drawing.draw(st.sampled_from([*binary, *unary]))
    operands = [x] if op in unary else [x, partner(drawing, x)]
    drawing.add(op, x.type, operands)


def logical_op(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.dtype is DType.PRED)
    if x is None:
        return
    op = drawing.draw(st.sampled_from(["and", "or", "xor", "not"]))
    drawing.add(op, x.type, [x] if op == "not" else [x, partner(drawing, x)])


def compare(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.is_exact)
    if x is None:
        return
    y = drawing.pick(lambda value: value.type == x.type and value.is_exact) or x
    direction = drawing.draw(st.sampled_from(["EQ", "NE", "LT", "LE", "GT", "GE"]))
    drawing.add("compare", ArrayType(DType.PRED, x.type.shape), [x, y], direction=direction)


def select(drawing: Drawing) -> None:
    condition = drawing.pick(lambda value: value.dtype is DType.PRED)
    if condition is None:
        return
    x = drawing.pick(lambda value: value.type.shape == condition.type.shape)
    assert x is not None
    y = partner(drawing, x)
    bound, error = max(x.bound, y.bound), max(x.error, y.error)
    drawing.add("select", x.type, [condition, x, y], bound=bound, error=error)


def convert(drawing: Drawing) -> None:
    x = drawing.pick(lambda _: True)
    if x is None:
        return
    small = _is_float(x) or x.dtype.size_bytes == 1
    targets = [*(FLOATS if small else ()), *((*INTEGERS, DType.PRED) if x.is_exact else ())]
    target = drawing.draw(st.sampled_from(targets))
    bound = (x.bound if _is_float(x) else 255.0) if target in FLOATS else 0.0
    error = x.error + rounding(target, bound) if x.error else 0.0
    drawing.add("convert", ArrayType(target, x.type.shape), [x], bound=bound, error=error)


def rank_number(drawing: Drawing) -> None:
    op = drawing.draw(st.sampled_from(["partition-id", "replica-id"]))
    drawing.add(op, ArrayType(DType.U32), [])


def iota(drawing: Drawing) -> None:
    shape = (*drawing.shape(2), drawing.draw(st.integers(1, 4)))
    dtype = drawing.draw(st.sampled_from([*FLOATS, *INTEGERS]))
    dimension = drawing.draw(st.integers(0, len(shape) - 1))
    bound = 4.0 if dtype in FLOATS else 0.0
    drawing.add("iota", ArrayType(dtype, shape), [], bound=bound, iota_dimension=dimension)


def broadcast(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.type.rank <= 2 and value.type.elements <= 64)
    if x is None:
        return
    shape, dimensions = list(x.type.shape), list(range(x.type.rank))
    for _ in range(drawing.draw(st.integers(1, 2))):
        at = drawing.draw(st.integers(0, len(shape)))
        shape.insert(at, drawing.draw(st.integers(1, 4)))
        dimensions = [k + (k >= at) for k in dimensions]
    drawing.like("broadcast", x, [x], shape, dimensions=tuple(dimensions))


def reshape(drawing: Drawing) -> None:
    x = drawing.pick(lambda _: True)
    if x is None:
        return
    sizes = [size for size in x.type.shape if size > 1]
    merged = [math.prod(sizes[:2]), *sizes[2:]] if drawing.chance(2) else [1, *sizes]
    drawing.like("reshape", x, [x], merged)


def transpose(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.type.rank >= 2)
    if x is None:
        return
    order = tuple(drawing.draw(st.permutations(range(x.type.rank))))
    drawing.like("transpose", x, [x], [x.type.shape[k] for k in order], dimensions=order)


def cut(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.type.rank >= 1)
    if x is None:
        return
    bounds = []
    for size in x.type.shape:
        start = drawing.draw(st.integers(0, size - 1))
        limit = drawing.draw(st.integers(start + 1, size))
        bounds.append((start, limit, drawing.draw(st.integers(1, 3))))
    shape = [len(range(*bound)) for bound in bounds]
    drawing.like("slice", x, [x], shape, slice=tuple(bounds))


def concatenate(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.type.rank >= 1)
    if x is None:
        return
    y = partner(drawing, x)
    dimension = drawing.draw(st.integers(0, x.type.rank - 1))
    parts = drawing.draw(st.sampled_from([[x], [x, y], [y, x, x]]))
    shape = list(x.type.shape)
    shape[dimension] *= len(parts)
    bound, error = max(x.bound, y.bound), max(x.error, y.error)
    type_ = ArrayType(x.dtype, tuple(shape))
    drawing.add("concatenate", type_, parts, bound=bound, error=error, dimensions=(dimension,))
