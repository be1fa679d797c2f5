"""Random contractions, reductions and calls, each added to a drawing."""

from hypothesis import strategies as st

from ncc_compiler.ir.graph import Callee, Computation, Node, NodeId
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.shared.dtypes import DType
from tests.drawing import (
    FLOATS,
    INTEGERS,
    LARGEST,
    MOST_ELEMENTS,
    Drawing,
    Value,
    elements_of,
    rounding,
    summed,
)

WIDER = {DType.S8: DType.S32, DType.U8: DType.U32, DType.BF16: DType.F32, DType.F16: DType.F32}
"""What a dot may be asked to sum in, and to give, instead of its operands' dtype."""


def dot(drawing: Drawing) -> None:
    """Any dimensions of a value, contracted with a new parameter that fits."""
    x = drawing.pick(
        lambda value: (
            value.type.rank >= 1 and value.dtype in (*FLOATS, *INTEGERS) and value.bound <= 50
        )
    )
    if x is None:
        return
    names = drawing.draw(st.permutations(range(x.type.rank)))
    contracted = drawing.draw(st.integers(0, x.type.rank))
    batched = drawing.draw(st.integers(0, x.type.rank - contracted))
    lhs_contracting, lhs_batch = names[:contracted], names[contracted : contracted + batched]
    free = drawing.shape(1)
    y, rhs_contracting, rhs_batch = _matching(drawing, x, lhs_contracting, lhs_batch, free)
    kept = [k for k in range(x.type.rank) if k not in lhs_contracting + lhs_batch]
    shape = tuple(x.type.shape[k] for k in [*lhs_batch, *kept]) + free
    count = elements_of([x.type.shape[k] for k in lhs_contracting])
    bound = x.bound * y.bound * count
    error = x.error * y.bound * count + rounding(x.dtype, bound) * (count + 1)
    if x.dtype in INTEGERS:
        bound = error = 0.0
    result = drawing.draw(st.sampled_from([x.dtype, WIDER.get(x.dtype, x.dtype)]))
    if bound <= LARGEST and elements_of(shape) <= MOST_ELEMENTS:
        drawing.add(
            "dot",
            ArrayType(result, shape),
            [x, y],
            bound=bound,
            error=error,
            lhs_batch_dims=tuple(lhs_batch),
            rhs_batch_dims=tuple(rhs_batch),
            lhs_contracting_dims=tuple(lhs_contracting),
            rhs_contracting_dims=tuple(rhs_contracting),
        )


def _matching(drawing, x: Value, lhs_contracting, lhs_batch, free):
    """A parameter with the shared dimensions in some order, and where they are in it."""
    shared = [*lhs_contracting, *lhs_batch]
    sizes = [*(x.type.shape[k] for k in shared), *free]
    order = drawing.draw(st.permutations(range(len(sizes))))
    y = drawing.parameter(ArrayType(x.dtype, tuple(sizes[k] for k in order)))
    place = [order.index(k) for k in range(len(shared))]
    return y, place[: len(lhs_contracting)], place[len(lhs_contracting) :]


REDUCTIONS = {
    **dict.fromkeys(FLOATS, ("add", "maximum", "minimum")),
    **dict.fromkeys(INTEGERS, ("add", "maximum", "minimum", "multiply", "and", "or")),
    DType.PRED: ("and", "or", "maximum", "minimum"),
}
"""Ops to fold with, per dtype; a float product is ill-conditioned and left out."""


def folded(op: str, x: Value, count: int) -> tuple[float, float]:
    """Bound and error of `count` such values folded by an op."""
    return summed(x, count) if op == "add" else (x.bound, x.error)


def reduce(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.dtype in REDUCTIONS)
    if x is None:
        return
    op = drawing.draw(st.sampled_from(REDUCTIONS[x.dtype]))
    dimensions, shape, count = _folded_dimensions(drawing, x)
    initial = drawing.scalar(x.dtype, drawing.draw(st.integers(0, 1)))
    bound, error = folded(op, x, count + 1)
    bound = max(bound, 1.0) if x.dtype in FLOATS else 0.0
    if bound <= LARGEST:
        drawing.add(
            "reduce",
            ArrayType(x.dtype, shape),
            [x, initial],
            bound=bound,
            error=error,
            dimensions=dimensions,
            to_apply=drawing.region(op, x.dtype),
        )


def _folded_dimensions(drawing: Drawing, x: Value):
    """Some dimensions, the shape of the others, and how many elements fold into one."""
    every = range(x.type.rank)
    some = {k for k in every if drawing.chance(2)}
    shape = tuple(size for k, size in enumerate(x.type.shape) if k not in some)
    return tuple(sorted(some)), shape, elements_of([x.type.shape[k] for k in some])


def largest_and_where(drawing: Drawing) -> None:
    """A reduce of two operands, as argmax is written; ties go to the smaller index."""
    x = drawing.pick(lambda value: value.is_exact and value.type.rank >= 1)
    if x is None:
        return
    axis = drawing.draw(st.integers(0, x.type.rank - 1))
    index_type = ArrayType(DType.S32, x.type.shape)
    index = drawing.add("iota", index_type, [], iota_dimension=axis)
    dimensions, shape, _ = _folded_dimensions(drawing, x)
    operands = [x, index, drawing.scalar(x.dtype, 0), drawing.scalar(DType.S32, 1)]
    types = [ArrayType(x.dtype, shape), ArrayType(DType.S32, shape)]
    drawing.elements(
        "reduce",
        operands,
        types,
        [(x.bound, 0.0), (0.0, 0.0)],
        dimensions=dimensions,
        to_apply=_better(drawing, x.dtype),
    )


def _better(drawing: Drawing, dtype: DType) -> Callee:
    value, index, truth = ArrayType(dtype), ArrayType(DType.S32), ArrayType(DType.PRED)
    rows = [
        ("parameter", value, (), {"parameter_number": 0}),
        ("parameter", index, (), {"parameter_number": 1}),
        ("parameter", value, (), {"parameter_number": 2}),
        ("parameter", index, (), {"parameter_number": 3}),
        ("compare", truth, (0, 2), {"direction": "GT"}),
        ("compare", truth, (0, 2), {"direction": "EQ"}),
        ("compare", truth, (1, 3), {"direction": "LT"}),
        ("and", truth, (5, 6), {}),
        ("or", truth, (4, 7), {}),
        ("select", value, (8, 0, 2), {}),
        ("select", index, (8, 1, 3), {}),
        ("tuple", TupleType((value, index)), (9, 10), {}),
    ]
    return _computation(drawing, f"better_{dtype.value}", rows)


def _computation(drawing: Drawing, name: str, rows) -> Callee:
    nodes = tuple(
        Node(f"n{k}", op, type_, tuple(map(NodeId, operands)), attributes)
        for k, (op, type_, operands, attributes) in enumerate(rows)
    )
    drawing.computations[name] = Computation(name, nodes, NodeId(len(nodes) - 1))
    return Callee(name)


def call(drawing: Drawing) -> None:
    """A computation that gives back its two arguments the other way round."""
    x, y = drawing.pick(lambda _: True), drawing.pick(lambda _: True)
    if x is None or y is None:
        return
    rows = [
        ("parameter", x.type, (), {"parameter_number": 0}),
        ("parameter", y.type, (), {"parameter_number": 1}),
        ("copy", y.type, (1,), {}),
        ("tuple", TupleType((y.type, x.type)), (2, 0), {}),
    ]
    callee = _computation(drawing, f"swap_{len(drawing.computations)}", rows)
    facts = [(y.bound, y.error), (x.bound, x.error)]
    drawing.elements("call", [x, y], [y.type, x.type], facts, to_apply=callee)
