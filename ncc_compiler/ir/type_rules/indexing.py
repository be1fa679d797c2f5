"""Result types of ops that move or order elements: gather, scatter, slices, sort; custom calls.

The sentences of their rules stand in `op_tables/indexing.py`.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

import attrs

from ncc_compiler.ir.custom_calls import (
    APPROX_TOPK,
    IDENTITIES,
    TARGETS,
    TOPK,
    TRSM,
    ConfigError,
    approx_topk_of,
    as_triangular_solve,
    call_of,
    dtype_of_target,
    refusal_of,
    target_of,
)
from ncc_compiler.ir.graph import Callees, Padding
from ncc_compiler.ir.op_tables.collectives import NCC
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.rules import Complaint, NodePart, Place
from ncc_compiler.ir.type_rules.context import (
    Inference,
    InferenceContext,
    TypeRule,
    are_distinct_dimensions,
    check_region,
    listed,
    one_or_tuple,
    parameter_types,
    result_type,
    without_dimension,
)
from ncc_compiler.ir.type_rules.numeric import NUMERIC_RULES
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.lapack import OptionError, RoutineError, results_of

Shape: TypeAlias = tuple[int, ...]
ShapeInference: TypeAlias = Generator[Complaint, None, Shape | None]


def _are_in_order(dimensions: Sequence[int], rank: int) -> bool:
    return are_distinct_dimensions(dimensions, rank) and list(dimensions) == sorted(dimensions)


def _check_start_indices(ctx: InferenceContext, first: int) -> Inference:
    """The operands from `first` on are start indices; returns the operand's type if they are."""
    rank, starts = ctx.arrays[0].rank, ctx.arrays[first:]
    is_vector = len(starts) == 1 and starts[0].shape == (rank,)
    if not is_vector and (len(starts) != rank or any(start.rank for start in starts)):
        kinds = listed(starts) or "none"
        fact = f"start indices for an operand of rank {rank} are {kinds}"
        yield ctx.complain(1, fact, first, "one scalar for each dimension")
        return None
    for position, kind in enumerate(starts, first):
        if not kind.dtype.is_integer or kind.dtype != starts[0].dtype:
            fact = f"start indices are {starts[0]} and {kind}"
            fact = fact if kind.dtype.is_integer else f"a start index is {kind}, not an integer"
            yield ctx.complain(2, fact, position)
            return None
    return ctx.arrays[0]


def _check_slice_sizes(ctx: InferenceContext, key: str, number: int) -> Inference:
    """The sizes of a slice fit in the operand; returns the slice's type."""
    operand, sizes = ctx.arrays[0], ctx.node.integers(key)
    if len(sizes) != operand.rank:
        fact = f"{len(sizes)} sizes for an operand of rank {operand.rank}: {operand}"
        yield ctx.complain(number, fact, key)
        return None
    for dimension, (size, limit) in enumerate(zip(sizes, operand.shape, strict=True)):
        if not 0 <= size <= limit:
            fact = f"size {size} does not fit in dimension {dimension} of {operand}"
            yield ctx.complain(number, fact, key)
            return None
    return ArrayType(operand.dtype, sizes)


def _dynamic_slice(ctx: InferenceContext) -> Inference:
    operand = yield from _check_start_indices(ctx, 1)
    kind = yield from _check_slice_sizes(ctx, "dynamic_slice_sizes", 3)
    return kind if operand else None


def _dynamic_update_slice(ctx: InferenceContext) -> Inference:
    yield from _check_start_indices(ctx, 2)
    operand, update = ctx.arrays[:2]
    if update.dtype != operand.dtype or update.rank != operand.rank:
        yield ctx.complain(3, f"{update} does not update {operand}", 1)
    elif any(size > limit for size, limit in zip(update.shape, operand.shape, strict=True)):
        yield ctx.complain(4, f"{update} is larger than {operand}", 1)
    return operand


@attrs.frozen
class DimensionNumbers:
    """Dimension numbers of a gather or scatter, under names for both; with the attributes' keys."""

    indices: ArrayType
    vector_dim: int  # dimension of the indices that holds index vectors
    index_map: Shape  # operand dimension of each entry of an index vector
    map_key: str
    dropped: Shape  # operand dimensions that windows lack
    dropped_key: str
    batching: Shape  # of the operand
    batching_key: str
    indices_batching: Shape  # of the indices, one for each of the operand
    indices_batching_key: str

    @property
    def batch_shape(self) -> Shape:
        """The shape of the indices without the index vectors."""
        return without_dimension(self.indices.shape, self.vector_dim)


def _dimension_numbers(
    ctx: InferenceContext,
    indices: ArrayType,
    map_key: str,
    dropped_key: str,
    batching_key: str,
    indices_batching_key: str,
) -> DimensionNumbers:
    return DimensionNumbers(
        indices,
        ctx.node.integer("index_vector_dim"),
        ctx.node.integers(map_key),
        map_key,
        ctx.node.integers(dropped_key),
        dropped_key,
        ctx.node.integers(batching_key),
        batching_key,
        ctx.node.integers(indices_batching_key),
        indices_batching_key,
    )


def _check_index_vectors(
    ctx: InferenceContext, numbers: DimensionNumbers, position: int
) -> Inference:
    """Rules 1 to 3: the type of index vectors, and the dimensions that they index."""
    indices, operand = numbers.indices, ctx.arrays[0]
    if not indices.dtype.is_integer:
        yield ctx.complain(1, f"the indices are {indices}, not integers", position)
        return None
    if not 0 <= numbers.vector_dim <= indices.rank:
        fact = f"dimension {numbers.vector_dim} of {indices} holds no index vectors"
        yield ctx.complain(1, fact, "index_vector_dim")
        return None
    # a vector_dim behind the last dimension means that every index is a vector of one number
    vector_size = (*indices.shape, 1)[numbers.vector_dim]
    if len(numbers.index_map) != vector_size:
        fact = f"{len(numbers.index_map)} entries for index vectors of {vector_size} numbers"
        yield ctx.complain(2, fact, numbers.map_key)
    indexed = (*numbers.index_map, *numbers.batching)
    if not are_distinct_dimensions(numbers.index_map, operand.rank):
        fact = f"{list(numbers.index_map)} are not distinct dimensions of {operand}"
        yield ctx.complain(3, fact, numbers.map_key)
    elif len(set(indexed)) < len(indexed):
        fact = f"{list(numbers.index_map)} and batching {list(numbers.batching)} overlap"
        yield ctx.complain(3, fact, numbers.map_key)
    return indices


def _check_dropped(ctx: InferenceContext, numbers: DimensionNumbers, number: int) -> Inference:
    """Dimensions that windows lack are distinct dimensions of the operand, in order."""
    operand = ctx.arrays[0]
    lists = ((numbers.dropped_key, numbers.dropped), (numbers.batching_key, numbers.batching))
    for key, dimensions in lists:
        if not _are_in_order(dimensions, operand.rank):
            fact = f"{list(dimensions)} are not dimensions of {operand} in order"
            yield ctx.complain(number, fact, key)
            return None
    if set(numbers.dropped) & set(numbers.batching):
        fact = f"{list(numbers.dropped)} and batching {list(numbers.batching)} overlap"
        yield ctx.complain(number, fact, numbers.batching_key)
        return None
    return operand


def _check_batching(ctx: InferenceContext, numbers: DimensionNumbers, number: int) -> Inference:
    """Batching dimensions come in pairs of equal size; rules `number` and `number + 1`."""
    operand, indices = ctx.arrays[0], numbers.indices
    of_operand, of_indices = numbers.batching, numbers.indices_batching
    if (
        not are_distinct_dimensions(of_indices, indices.rank)
        or numbers.vector_dim in of_indices
        or len(of_operand) != len(of_indices)
    ):
        fact = f"{list(of_indices)} of {indices} do not pair with {list(of_operand)} of {operand}"
        yield ctx.complain(number, fact, numbers.indices_batching_key)
        return None
    for a, b in zip(of_operand, of_indices, strict=True):
        if operand.shape[a] != indices.shape[b]:
            fact = (
                f"batching sizes differ: {operand.shape[a]} and {indices.shape[b]} "
                f"(dimension {a} of {operand}, {b} of {indices})"
            )
            yield ctx.complain(number + 1, fact, numbers.indices_batching_key)
    return indices


def _gather(ctx: InferenceContext) -> Inference:
    operand = ctx.arrays[0]
    numbers = _dimension_numbers(
        ctx,
        ctx.arrays[1],
        "start_index_map",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
    )
    indices = yield from _check_index_vectors(ctx, numbers, 1)
    window = yield from _check_slice_sizes(ctx, "slice_sizes", 4)
    dropped = yield from _check_dropped(ctx, numbers, 5)
    if not (indices and isinstance(window, ArrayType) and dropped):
        return None
    for dimension in (*numbers.dropped, *numbers.batching):
        if window.shape[dimension] > 1:
            fact = f"slice size {window.shape[dimension]} of dimension {dimension} is above 1"
            yield ctx.complain(6, fact, "slice_sizes")
    yield from _check_batching(ctx, numbers, 9)
    left_out = (*numbers.dropped, *numbers.batching)
    sizes = [size for d, size in enumerate(window.shape) if d not in left_out]
    shape = yield from _gather_shape(ctx, sizes, numbers.batch_shape)
    return None if shape is None else ArrayType(operand.dtype, shape)


def _gather_shape(ctx: InferenceContext, sizes: list[int], batch: Shape) -> ShapeInference:
    """The shape of a gather: sizes of the window at offset_dims, those of the batch elsewhere.

    Rules 7 and 8.
    """
    offsets = ctx.node.integers("offset_dims")
    if len(offsets) != len(sizes):
        fact = f"{len(offsets)} dimensions for windows of {len(sizes)}"
        yield ctx.complain(7, fact, "offset_dims")
        return None
    rank = len(offsets) + len(batch)
    if not _are_in_order(offsets, rank):
        fact = f"{list(offsets)} are not dimensions of a result of rank {rank} in order"
        yield ctx.complain(8, fact, "offset_dims")
        return None
    window_sizes, batch_sizes = iter(sizes), iter(batch)
    return tuple(next(window_sizes if d in offsets else batch_sizes) for d in range(rank))


def _scatter(ctx: InferenceContext) -> Inference:
    kinds, count = ctx.arrays, len(ctx.arrays) // 2
    operands, updates = kinds[:count], kinds[count + 1 :]
    if [kind.dtype for kind in operands] != [kind.dtype for kind in updates]:
        fact = f"operands are {listed(operands) or 'none'}, updates are {listed(updates) or 'none'}"
        yield ctx.complain(4, fact, len(kinds) - 1, "operands, indices, updates")
        return None
    scalars = [ArrayType(kind.dtype) for kind in operands]
    yield from check_region(ctx, 13, scalars * 2, one_or_tuple(scalars))
    for position, kind in enumerate(kinds):
        first = operands[0] if position < count else updates[0]
        if position != count and kind.shape != first.shape:
            yield ctx.complain(5, f"shapes differ: {first} and {kind}", position)
            return None
    numbers = _dimension_numbers(
        ctx,
        ctx.arrays[count],
        "scatter_dims_to_operand_dims",
        "inserted_window_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
    )
    indices = yield from _check_index_vectors(ctx, numbers, count)
    dropped = yield from _check_dropped(ctx, numbers, 6)
    if indices and dropped:
        yield from _check_batching(ctx, numbers, 11)
        yield from _check_updates(ctx, numbers, updates[0])
    return one_or_tuple(operands)


def _check_updates(
    ctx: InferenceContext, numbers: DimensionNumbers, updates: ArrayType
) -> Inference:
    """Rules 7 to 10: updates are windows that fit in the operand, one for each index vector."""
    windows, operand = ctx.node.integers("update_window_dims"), ctx.arrays[0]
    left_out = (*numbers.dropped, *numbers.batching)
    limits = [size for d, size in enumerate(operand.shape) if d not in left_out]
    if len(windows) != len(limits):
        fact = f"{len(windows)} dimensions for windows of {len(limits)}"
        yield ctx.complain(7, fact, "update_window_dims")
        return None
    if not _are_in_order(windows, updates.rank):
        fact = f"{list(windows)} are not dimensions of {updates} in order"
        yield ctx.complain(8, fact, "update_window_dims")
        return None
    others = tuple(size for d, size in enumerate(updates.shape) if d not in windows)
    last = len(ctx.arrays) - 1
    if others != numbers.batch_shape:
        fact = f"updates go to {list(others)} places, the indices say {list(numbers.batch_shape)}"
        yield ctx.complain(9, fact, last)
    for dimension, limit in zip(windows, limits, strict=True):
        if updates.shape[dimension] > limit:
            fact = f"dimension {dimension} of {updates} is a window on {limit} elements"
            yield ctx.complain(10, fact, last)
    return updates


INDEXING_RULES: Mapping[str, TypeRule] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
"""The rules of ops with indices as operands."""


def _broadcast(ctx: InferenceContext) -> Inference:
    operand, kind, dimensions = ctx.arrays[0], ctx.node.type, ctx.node.integers("dimensions")
    if not isinstance(kind, ArrayType):
        yield ctx.complain(2, f"the result is {kind}, not an array", NodePart.TYPE)
        return None
    if len(dimensions) != operand.rank:
        fact = f"{len(dimensions)} dimensions for an operand of rank {operand.rank}: {operand}"
        yield ctx.complain(1, fact, "dimensions", "say for each where it goes in the result")
        return None
    if not are_distinct_dimensions(dimensions, kind.rank):
        fact = f"{_braces(dimensions)} are not distinct dimensions of {kind}"
        yield ctx.complain(2, fact, "dimensions")
        return None
    for source, target in enumerate(dimensions):
        if operand.shape[source] != kind.shape[target]:
            fact = (
                f"dimension {source} of {operand} becomes dimension {target} of {kind}: "
                f"sizes {operand.shape[source]} and {kind.shape[target]}"
            )
            yield ctx.complain(3, fact, "dimensions")
    return ArrayType(operand.dtype, kind.shape)


def _braces(numbers: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def _reshape(ctx: InferenceContext) -> Inference:
    operand, kind = ctx.arrays[0], ctx.node.type
    if not isinstance(kind, ArrayType) or kind.elements != operand.elements:
        count = kind.elements if isinstance(kind, ArrayType) else 0
        fact = f"{operand} has {operand.elements} elements, {kind} has {count}"
        yield ctx.complain(1, fact, NodePart.TYPE)
        return None
    return ArrayType(operand.dtype, kind.shape)


def _transpose(ctx: InferenceContext) -> Inference:
    operand, dimensions = ctx.arrays[0], ctx.node.integers("dimensions")
    if sorted(dimensions) != list(range(operand.rank)):
        fact = f"{_braces(dimensions)} is no permutation of the {operand.rank} of {operand}"
        yield ctx.complain(1, fact, "dimensions")
        return None
    return ArrayType(operand.dtype, tuple(operand.shape[source] for source in dimensions))


def _slice(ctx: InferenceContext) -> Inference:
    operand, ranges = ctx.arrays[0], ctx.node.ranges()
    if len(ranges) != operand.rank:
        fact = f"{len(ranges)} ranges for an operand of rank {operand.rank}: {operand}"
        yield ctx.complain(1, fact, "slice")
        return None
    shape, is_valid = [], True
    for dimension, (start, limit, stride) in enumerate(ranges):
        if not (0 <= start <= limit <= operand.shape[dimension] and stride >= 1):
            fact = f"[{start}:{limit}:{stride}] does not cut dimension {dimension} of {operand}"
            is_valid = False
            yield ctx.complain(2, fact, "slice", "0 <= start <= limit <= size, stride >= 1")
        shape.append(-(-(limit - start) // max(1, stride)))  # rounded up
    return ArrayType(operand.dtype, tuple(shape)) if is_valid else None


def _concatenate(ctx: InferenceContext) -> Inference:
    first, dimensions = ctx.arrays[0], ctx.node.integers("dimensions")
    if len(dimensions) != 1 or not are_distinct_dimensions(dimensions, first.rank):
        fact = f"{_braces(dimensions)} is not one dimension of {first}"
        yield ctx.complain(1, fact, "dimensions")
        return None
    dimension, total = dimensions[0], 0
    for position, kind in enumerate(ctx.arrays):
        if kind.dtype != first.dtype or kind.rank != first.rank:
            yield ctx.complain(2, f"operands do not fit: {first} and {kind}", position)
            return None
        if without_dimension(kind.shape, dimension) != without_dimension(first.shape, dimension):
            fact = f"operands differ beside dimension {dimension}: {first} and {kind}"
            yield ctx.complain(3, fact, position)
        total += kind.shape[dimension]
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    return ArrayType(first.dtype, shape)


MOVE_RULES: Mapping[str, TypeRule] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
}


_MAX_S32 = 2**31 - 1


def _pad(ctx: InferenceContext) -> Inference:
    (operand, value), padding = ctx.arrays, ctx.attribute("padding")
    assert isinstance(padding, Padding), ctx.node.name
    if value != ArrayType(operand.dtype):
        yield ctx.complain(2, f"the value is {value}, not {ArrayType(operand.dtype)}", 1)
    if len(padding.dimensions) != operand.rank:
        fact = f"{len(padding.dimensions)} entries for an operand of rank {operand.rank}: {operand}"
        yield ctx.complain(1, fact, "padding")
        return None
    shape, is_valid = [], True
    for dimension, (low, high, interior) in enumerate(padding.dimensions):
        size = operand.shape[dimension]
        shape.append(low + size + max(size - 1, 0) * interior + high)
        if interior < 0 or shape[-1] < 0:
            fact = f"dimension {dimension} of {operand} becomes {shape[-1]}"
            fact = f"interior padding {interior} of dimension {dimension}" if interior < 0 else fact
            is_valid = False
            yield ctx.complain(3, fact, "padding")
    return ArrayType(operand.dtype, tuple(shape)) if is_valid else None


def _reverse(ctx: InferenceContext) -> Inference:
    operand, dimensions = ctx.arrays[0], ctx.node.integers("dimensions")
    if not are_distinct_dimensions(dimensions, operand.rank):
        fact = f"{list(dimensions)} are not distinct dimensions of {operand}"
        yield ctx.complain(1, fact, "dimensions")
    return operand


def _get_dimension_size(ctx: InferenceContext) -> Inference:
    operand, dimensions = ctx.arrays[0], ctx.node.integers("dimensions")
    if len(dimensions) != 1 or not are_distinct_dimensions(dimensions, operand.rank):
        fact = f"{list(dimensions)} is not one dimension of {operand}"
        yield ctx.complain(1, fact, "dimensions")
    elif operand.shape[dimensions[0]] > _MAX_S32:
        yield ctx.complain(2, f"{operand.shape[dimensions[0]]} does not fit in s32", 0)
    return ArrayType(DType.S32)


def _sort(ctx: InferenceContext) -> Inference:
    kinds, dimensions = ctx.arrays, ctx.node.integers("dimensions")
    for position, kind in enumerate(kinds):
        if kind.shape != kinds[0].shape:
            yield ctx.complain(1, f"shapes differ: {kinds[0]} and {kind}", position)
    if len(dimensions) != 1 or not are_distinct_dimensions(dimensions, kinds[0].rank):
        fact = f"{list(dimensions)} is not one dimension of {kinds[0]}"
        yield ctx.complain(2, fact, "dimensions")
    pairs = [ArrayType(kind.dtype) for kind in kinds for _ in range(2)]
    yield from check_region(ctx, 3, pairs, ArrayType(DType.PRED))
    return one_or_tuple(kinds)


def _topk(ctx: InferenceContext) -> Inference:
    operand, count = ctx.arrays[0], ctx.node.integer("k")
    if not operand.rank or not 0 <= count <= operand.shape[-1] <= _MAX_S32:
        yield ctx.complain(1, f"{operand} has no {count} elements in its last dimension", "k")
        return None
    if operand.dtype.is_complex:
        yield ctx.complain(2, f"{operand.dtype.value} has no order", 0)
    return _values_and_indices(operand, count)


def _values_and_indices(operand: ArrayType, count: int) -> TupleType:
    shape = (*operand.shape[:-1], count)
    return TupleType((ArrayType(operand.dtype, shape), ArrayType(DType.S32, shape)))


def _custom_call(ctx: InferenceContext) -> Inference:
    target, key = target_of(ctx.node), "custom_call_target"
    if target in TARGETS:
        return (yield from _linear_algebra(ctx))
    refusal = refusal_of(target, (name for name in OPS if name.startswith(NCC)))
    if refusal is not None:
        yield ctx.complain(1, refusal.fact, key, refusal.advice)
    elif target == TOPK:
        return (yield from _custom_topk(ctx))
    elif target == APPROX_TOPK:
        return (yield from _approx_topk(ctx))
    elif target in IDENTITIES and ctx.operands != (ctx.node.type,):
        operands = listed(ctx.operands) or "nothing"
        yield ctx.complain(2, f"{target} takes {operands} and returns {ctx.node.type}")
    return ctx.node.type


def _linear_algebra(ctx: InferenceContext) -> Inference:
    """The routine gives the result types, the target the element type."""
    target = target_of(ctx.node)
    try:
        call = call_of(ctx.node)
    except ConfigError as error:
        yield ctx.complain(4, f"{target}: {error}", "backend_config")
        return None
    if len(ctx.arrays) != len(ctx.operands) or not ctx.operands:
        yield ctx.complain(2, f"{target} takes arrays, not {listed(ctx.operands) or 'nothing'}")
        return None
    dtype = dtype_of_target(target)
    if dtype not in (None, ctx.arrays[0].dtype):
        fact = f"{target} takes {dtype.value if dtype else ''}, not {ctx.arrays[0]}"
        yield ctx.complain(2, fact, 0)
        return None
    if call.routine == TRSM:
        if len(ctx.arrays) != 2:
            yield ctx.complain(2, f"{target} takes 2 operands, not {len(ctx.arrays)}")
            return None
        solve = attrs.evolve(ctx, node=as_triangular_solve(ctx.node, call))
        return (yield from NUMERIC_RULES["triangular-solve"](solve))
    operands = [(array.dtype, array.shape) for array in ctx.arrays]
    try:
        possible = results_of(call.routine, call.options, operands)
    except OptionError as error:
        yield ctx.complain(4, f"{target}: {error}", "backend_config")
        return None
    except RoutineError as error:
        yield ctx.complain(2, f"{target}: {error}")
        return None
    kinds = [one_or_tuple([ArrayType(*array) for array in results]) for results in possible]
    return ctx.node.type if ctx.node.type in kinds else kinds[0]


def _approx_topk(ctx: InferenceContext) -> Inference:
    """Arrays of one shape, an initial value for each, and a comparator of two scalars of each."""
    try:
        call = approx_topk_of(ctx.node)
    except ConfigError as error:
        place: Place = "backend_config" if "backend_config" in ctx.node.attributes else NodePart.OP
        yield ctx.complain(4, f"{APPROX_TOPK}: {error}", place)
        return None
    half = len(ctx.operands) // 2
    kinds, initial = ctx.arrays[:half], ctx.arrays[half:]
    shapes = {kind.shape for kind in kinds}
    if (
        len(ctx.arrays) != len(ctx.operands)
        or initial != tuple(ArrayType(kind.dtype) for kind in kinds)
        or len(shapes) != 1
    ):
        fact = f"{APPROX_TOPK} takes arrays of one shape and an initial value of each"
        yield ctx.complain(2, f"{fact}, not {listed(ctx.operands) or 'nothing'}")
        return None
    (shape,) = shapes
    if not 0 <= call.dimension < len(shape) or not 0 <= call.count <= shape[call.dimension]:
        fact = f"{kinds[0]} has no {call.count} elements in dimension {call.dimension}"
        yield ctx.complain(4, f"{APPROX_TOPK}: {fact}", "backend_config")
        return None
    called = ctx.attribute("called_computations")
    if not isinstance(called, Callees) or len(called.names) != 1:
        yield ctx.complain(2, f"{APPROX_TOPK} needs one called computation, which compares")
        return None
    comparator = ctx.computation(called.names[0])
    expected = [ArrayType(kind.dtype) for kind in kinds for _ in range(2)]
    if comparator is not None:
        takes, returns = parameter_types(comparator), result_type(comparator)
        if takes != expected or returns != ArrayType(DType.PRED):
            fact = f"%{comparator.name} takes ({listed(takes)}) and returns {returns}; "
            fact += f"({listed(expected)}) and pred[] are needed"
            yield ctx.complain(2, fact, "called_computations")
    first = (*shape[: call.dimension], call.count, *shape[call.dimension + 1 :])
    return one_or_tuple([ArrayType(kind.dtype, first) for kind in kinds])


def _custom_topk(ctx: InferenceContext) -> Inference:
    """The declared result has the number of elements."""
    result = ctx.node.type
    operand = ctx.operands[0] if len(ctx.operands) == 1 else None
    first = result.elements[0] if isinstance(result, TupleType) and result.elements else None
    if isinstance(operand, ArrayType) and isinstance(first, ArrayType):
        has_order = operand.rank and first.rank and not operand.dtype.is_complex
        if has_order and first.shape[-1] <= operand.shape[-1] <= _MAX_S32:
            return _values_and_indices(operand, first.shape[-1])
    operands = listed(ctx.operands) or "nothing"
    yield ctx.complain(2, f"{TOPK} takes {operands} and returns {result}")
    return None


ORDERING_RULES: Mapping[str, TypeRule] = {
    "pad": _pad,
    "reverse": _reverse,
    "get-dimension-size": _get_dimension_size,
    "sort": _sort,
    "topk": _topk,
    "custom-call": _custom_call,
}
"""The rules of ops that order, pad or reverse, and of custom calls."""
