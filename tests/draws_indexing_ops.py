"""Random gathers, scatters, slices at places that are data, pads and sorts, added to a drawing.

Indices are parameters, so some of them are far out of bounds.
"""

import numpy as np
from hypothesis import strategies as st

from ncc_compiler.ir.graph import Callee, Computation, Literal, Node, NodeId, Padding
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.shared.dtypes import DType
from tests.drawing import FLOATS, INTEGERS, LARGEST, Drawing, Value, elements_of, summed

INDEX_DTYPES = (DType.S32, DType.U32, DType.S8, DType.U8)


def _indices(drawing: Drawing, dtype: DType, shape) -> Value:
    indices = drawing.parameter(ArrayType(dtype, tuple(shape)))
    if not indices.type.elements:
        drawing.values.remove(indices)  # other ops want elements
    return indices


def _starts(drawing: Drawing, rank: int) -> list[Value]:
    dtype = drawing.draw(st.sampled_from(INDEX_DTYPES))
    if drawing.chance(3):
        return [_indices(drawing, dtype, (rank,))]
    return [drawing.parameter(ArrayType(dtype)) for _ in range(rank)]


def _some_of(drawing: Drawing, shape) -> tuple[int, ...]:
    return tuple(drawing.draw(st.integers(1, size)) for size in shape)


def _some_value(drawing: Drawing) -> Value:
    value = drawing.pick(lambda value: value.type.elements <= 512)
    return value or drawing.parameter(ArrayType(DType.F32, drawing.shape()))


def dynamic_slice(drawing: Drawing) -> None:
    x = _some_value(drawing)
    sizes = _some_of(drawing, x.type.shape)
    operands = [x, *_starts(drawing, x.type.rank)]
    drawing.like("dynamic-slice", x, operands, sizes, dynamic_slice_sizes=sizes)


def dynamic_update_slice(drawing: Drawing) -> None:
    x = _some_value(drawing)
    update = drawing.parameter(ArrayType(x.dtype, _some_of(drawing, x.type.shape)))
    bound = max(x.bound, update.bound)
    operands = [x, update, *_starts(drawing, x.type.rank)]
    drawing.add("dynamic-update-slice", x.type, operands, bound=bound, error=x.error)


def _places(drawing: Drawing, x: Value, batching: list[int]):
    """Indices that speak of some dimensions of x, and the attributes that say which.

    Gives the indices, the shape of their batch, the dimensions, where vectors are, and which
    dimensions of the indices pair with the batching ones.
    """
    speakable = [d for d in range(x.type.rank) if d not in batching]
    chosen = drawing.draw(st.permutations(speakable))
    index_map = tuple(chosen[: drawing.draw(st.integers(0, len(chosen)))])
    free = [drawing.draw(st.integers(1, 3)) for _ in range(drawing.draw(st.integers(0, 2)))]
    sizes = [*free, *(x.type.shape[d] for d in batching)]
    order = drawing.draw(st.permutations(range(len(sizes))))
    batch = [sizes[k] for k in order]
    vector_dim, shape = drawing.draw(st.integers(0, len(batch))), list(batch)
    if len(index_map) == 1 and drawing.chance(2):
        vector_dim = len(batch)  # no dimension of its own
    else:
        shape.insert(vector_dim, len(index_map))
    dtype = drawing.draw(st.sampled_from(INDEX_DTYPES))
    indices = _indices(drawing, dtype, shape)
    places = [order.index(len(free) + k) for k in range(len(batching))]
    pairs = tuple(place + (place >= vector_dim) for place in places)
    return indices, tuple(batch), index_map, vector_dim, pairs


def _roles(drawing: Drawing, x: Value):
    """Each dimension of x is kept by windows, or dropped by them, or goes with batches."""
    roles = [drawing.draw(st.sampled_from(["kept", "dropped", "batch"])) for _ in x.type.shape]
    return tuple(
        [d for d, role in enumerate(roles) if role == wanted]
        for wanted in ("kept", "dropped", "batch")
    )


def _mixed(drawing: Drawing, window, batch):
    """Where the window's dimensions are among all, and the shape of all."""
    rank = len(window) + len(batch)
    places = sorted(drawing.draw(st.permutations(range(rank)))[: len(window)])
    inside, outside = iter(window), iter(batch)
    return tuple(places), tuple(next(inside) if d in places else next(outside) for d in range(rank))


def gather(drawing: Drawing) -> None:
    x = _some_value(drawing)
    kept, dropped, batching = _roles(drawing, x)
    indices, batch, index_map, vector_dim, pairs = _places(drawing, x, batching)
    window = _some_of(drawing, [x.type.shape[d] for d in kept])
    sizes = dict(zip(kept, window, strict=True))
    offset_dims, shape = _mixed(drawing, window, batch)
    drawing.like(
        "gather",
        x,
        [x, indices],
        shape,
        offset_dims=offset_dims,
        collapsed_slice_dims=tuple(dropped),
        start_index_map=index_map,
        operand_batching_dims=tuple(batching),
        start_indices_batching_dims=pairs,
        index_vector_dim=vector_dim,
        slice_sizes=tuple(sizes.get(d, 1) for d in range(x.type.rank)),
        indices_are_sorted=False,
    )


SCATTER_REGIONS = {
    **dict.fromkeys(FLOATS, ("add", "maximum", "minimum", "take")),
    **dict.fromkeys(INTEGERS, ("add", "multiply", "maximum", "and", "xor", "take", "mix")),
    DType.PRED: ("and", "or", "take"),
}


def _computation(drawing: Drawing, name: str, rows) -> Callee:
    nodes = tuple(
        Node(f"n{k}", op, type_, tuple(map(NodeId, operands)), attributes)
        for k, (op, type_, operands, attributes) in enumerate(rows)
    )
    drawing.computations[name] = Computation(name, nodes, NodeId(len(nodes) - 1))
    return Callee(name)


def _parameters(*dtypes: DType):
    return [
        ("parameter", ArrayType(dtype), (), {"parameter_number": k})
        for k, dtype in enumerate(dtypes)
    ]


def _joining(drawing: Drawing, how: str, dtype: DType) -> Callee:
    if how not in ("take", "mix"):
        return drawing.region(how, dtype)
    kind, rows = ArrayType(dtype), _parameters(dtype, dtype)
    if how == "take":
        return _computation(drawing, f"take_{dtype.value}", [*rows, ("copy", kind, (1,), {})])
    # 2 a + a b + b: neither commutative nor associative
    rows += [("add", kind, (0, 0), {}), ("multiply", kind, (0, 1), {})]
    rows += [("add", kind, (2, 3), {}), ("add", kind, (4, 1), {})]
    return _computation(drawing, f"mix_{dtype.value}", rows)


def _crossing(drawing: Drawing, one: DType, other: DType) -> Callee:
    """Of two operands: the first takes its update, the second counts how often."""
    first, second = ArrayType(one), ArrayType(other)
    rows = _parameters(one, other, one, other)
    rows += [("xor" if one is not DType.PRED else "or", first, (0, 2), {})]
    rows += [("add", second, (1, 1), {}), ("add", second, (5, 3), {})]
    rows += [("tuple", TupleType((first, second)), (4, 6), {})]
    return _computation(drawing, f"cross_{one.value}_{other.value}", rows)


def _scattered(drawing: Drawing, x: Value):
    """The shape of updates for x, the indices, and the attributes of a scatter."""
    kept, dropped, batching = _roles(drawing, x)
    indices, batch, index_map, vector_dim, pairs = _places(drawing, x, batching)
    window = _some_of(drawing, [x.type.shape[d] for d in kept])
    window_dims, shape = _mixed(drawing, window, batch)
    return (
        shape,
        indices,
        {
            "update_window_dims": window_dims,
            "inserted_window_dims": tuple(dropped),
            "scatter_dims_to_operand_dims": index_map,
            "input_batching_dims": tuple(batching),
            "scatter_indices_batching_dims": pairs,
            "index_vector_dim": vector_dim,
            "indices_are_sorted": False,
            "unique_indices": False,
        },
    )


def scatter(drawing: Drawing) -> None:
    x = _some_value(drawing)
    shape, indices, numbers = _scattered(drawing, x)
    update = drawing.parameter(ArrayType(x.dtype, shape))
    how = drawing.draw(st.sampled_from(SCATTER_REGIONS[x.dtype]))
    bound, error = max(x.bound, update.bound), x.error
    if how == "add" and x.dtype in FLOATS:
        sum_bound, sum_error = summed(update, elements_of(shape))
        bound, error = x.bound + sum_bound, x.error + summed(x, 1)[1] + 2 * sum_error
    if bound <= LARGEST:
        region = _joining(drawing, how, x.dtype)
        drawing.add(
            "scatter",
            x.type,
            [x, indices, update],
            bound=bound,
            error=error,
            **numbers,
            to_apply=region,
        )


def scatter_of_two(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.dtype in (*INTEGERS, DType.PRED))
    if x is None:
        return
    shape, indices, numbers = _scattered(drawing, x)
    y = drawing.parameter(ArrayType(DType.S32, x.type.shape))
    updates = [drawing.parameter(ArrayType(kind.dtype, shape)) for kind in (x, y)]
    region = _crossing(drawing, x.dtype, y.dtype)
    operands, facts = [x, y, indices, *updates], [(0.0, 0.0), (0.0, 0.0)]
    drawing.elements("scatter", operands, [x.type, y.type], facts, **numbers, to_apply=region)


def pad(drawing: Drawing) -> None:
    x = _some_value(drawing)
    value = drawing.parameter(ArrayType(x.dtype))
    padding, shape = [], []
    for size in x.type.shape:
        low, interior = drawing.draw(st.integers(-3, 3)), drawing.draw(st.integers(0, 2))
        inside = low + size + (size - 1) * interior
        high = max(drawing.draw(st.integers(-3, 3)), 1 - inside)
        padding.append((low, high, interior))
        shape.append(inside + high)
    bound = max(x.bound, value.bound)
    if elements_of(shape) <= 2048:
        kind = ArrayType(x.dtype, tuple(shape))
        padded = Padding(tuple(padding))
        drawing.add("pad", kind, [x, value], bound=bound, error=x.error, padding=padded)


def reverse(drawing: Drawing) -> None:
    x = _some_value(drawing)
    turned = tuple(d for d in range(x.type.rank) if drawing.chance(2))
    drawing.like("reverse", x, [x], dimensions=turned)


def topk(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.is_exact and value.type.rank >= 1)
    if x is None:
        return
    count = drawing.draw(st.integers(1, x.type.shape[-1]))
    shape = (*x.type.shape[:-1], count)
    types = [ArrayType(x.dtype, shape), ArrayType(DType.S32, shape)]
    largest = drawing.draw(st.booleans())
    drawing.elements("topk", [x], types, [(x.bound, 0.0), (0.0, 0.0)], k=count, largest=largest)


def _canonical(rows, value: int, dtype: DType) -> int:
    """As JAX prepares floats for a sort: every NaN one NaN, every zero +0."""
    kind, truth = ArrayType(dtype), ArrayType(DType.PRED)
    nan, zero = (_literal(number, dtype) for number in ("nan", 0))
    at = len(rows)
    rows += [
        ("constant", kind, (), {"literal": nan}),
        ("constant", kind, (), {"literal": zero}),
        ("compare", truth, (value, value), {"direction": "NE"}),
        ("compare", truth, (value, at + 1), {"direction": "EQ"}),
        ("select", kind, (at + 3, at + 1, value), {}),
        ("select", kind, (at + 2, at, at + 4), {}),
    ]
    return at + 5


def _literal(number, dtype: DType) -> Literal:
    array = np.array(number, np.float32).astype(dtype.numpy)
    array.setflags(write=False)
    return Literal(array)


def comparator(drawing: Drawing, dtypes: list[DType], how: str) -> Callee:
    """A comparator of one of several forms; of two operands, `then` looks at both."""
    truth, rows = ArrayType(DType.PRED), _parameters(*(d for d in dtypes for _ in range(2)))
    direction = drawing.draw(st.sampled_from(["LT", "GT"]))
    is_float = dtypes[0] in FLOATS
    order = {"type": "TOTALORDER"} if is_float and drawing.chance(2) else {}
    left, right = 0, 1
    if how == "jax" and is_float:
        left, right = (_canonical(rows, side, dtypes[0]) for side in (0, 1))
        order = {"type": "TOTALORDER"}
    if how == "not":
        opposite = {"LT": "GE", "GT": "LE"}[direction]
        rows += [("compare", truth, (left, right), {"direction": opposite, **order})]
        rows += [("not", truth, (len(rows) - 1,), {})]
    else:
        rows += [("compare", truth, (left, right), {"direction": direction, **order})]
    if how == "then" and len(dtypes) > 1:
        first = len(rows) - 1
        rows += [("compare", truth, (left, right), {"direction": "EQ", **order})]
        rows += [("compare", truth, (3, 2), {"direction": direction})]
        rows += [("and", truth, (first + 2, first + 1), {})]
        rows += [("or", truth, (first, first + 3), {})]
    return _computation(drawing, f"order_{len(drawing.computations)}", rows)


def sort(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.is_exact and value.type.rank >= 1)
    if x is None:
        return
    operands = [x]
    if drawing.chance(2):
        dtype = drawing.draw(st.sampled_from([DType.F32, DType.S8]))
        operands.append(drawing.parameter(ArrayType(dtype, x.type.shape)))
    dimension = drawing.draw(st.integers(0, x.type.rank - 1))
    how = drawing.draw(st.sampled_from(["plain", "jax", "then", "not"]))
    region = comparator(drawing, [one.dtype for one in operands], how)
    attributes = {"dimensions": (dimension,), "is_stable": True, "to_apply": region}
    if len(operands) == 1:
        drawing.like("sort", x, operands, **attributes)
        return
    facts = [(one.bound, one.error) for one in operands]
    drawing.elements("sort", operands, [one.type for one in operands], facts, **attributes)


INDEXING_OPS = (
    dynamic_slice,
    dynamic_update_slice,
    gather,
    scatter,
    scatter_of_two,
    pad,
    reverse,
    topk,
    sort,
)
