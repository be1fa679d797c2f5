"""Result types of ops that reduce dimensions: products, reductions, sliding windows.

The sentences of their rules stand in `op_tables/contractions.py`.
"""

import itertools
from collections.abc import Generator, Mapping

from ncc_compiler.ir.op_tables.contractions import (
    FACTORS,
    FOLDING_REGION,
    ONE_SHAPE,
    PRODUCTS,
    SCALAR_STARTS,
    START_FOR_EACH,
    WINDOW_SIZES,
)
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.rules import Complaint, NodePart
from ncc_compiler.ir.type_rules.context import (
    Inference,
    InferenceContext,
    TypeRule,
    are_distinct_dimensions,
    check_region,
    is_real,
    one_or_tuple,
)
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.windows import ConvolutionLabels, Window

_SIDES = ("lhs", "rhs")
_LISTS = ("batch_dims", "contracting_dims")


def check_product(ctx: InferenceContext) -> Inference:
    """Checks that sums of products can have the declared element type; returns a scalar of it."""
    left, right = (kind.dtype for kind in ctx.arrays[:2])
    kind = ctx.node.type
    wider = max(left, right, key=lambda operand: (operand.is_float, operand.bits))
    dtype = kind.dtype if isinstance(kind, ArrayType) else wider
    if is_real(left):
        fits = dtype.is_float or (dtype.is_integer and left.is_integer and right.is_integer)
    else:
        fits = dtype is left or (dtype.is_complex and left.is_complex)
    if left is not right and not (is_real(left) and is_real(right)):
        fact = f"{left.value} and {right.value} are not multiplied"
        yield ctx.complain_of(FACTORS, fact, 1)
    elif not fits:
        fact = f"{left.value} and {right.value} do not give {dtype.value}"
        yield ctx.complain_of(PRODUCTS, fact, NodePart.TYPE)
    return ArrayType(dtype)


def _dot(ctx: InferenceContext) -> Inference:
    if len(ctx.arrays) > 2 or ctx.attribute("sparsity") is not None:
        fact = "sparse operands are not supported"
        yield ctx.complain(6, fact, 2 if len(ctx.arrays) > 2 else NodePart.OP)
        return None
    return (yield from _product_type(ctx))


def _product_type(ctx: InferenceContext) -> Inference:
    """Batch dimensions, then the free ones of the left operand, then of the right one."""
    scalar = yield from check_product(ctx)
    assert isinstance(scalar, ArrayType), ctx.node.name
    is_valid = True
    for complaint in itertools.chain(_check_dot_dimensions(ctx), _check_dot_pairs(ctx)):
        is_valid = False
        yield complaint
    if not is_valid:
        return None
    free = [
        size
        for side, kind in zip(_SIDES, ctx.arrays, strict=False)
        for dimension, size in enumerate(kind.shape)
        if dimension not in _named_dimensions(ctx, side)
    ]
    batch = [ctx.arrays[0].shape[dimension] for dimension in ctx.node.integers("lhs_batch_dims")]
    return ArrayType(scalar.dtype, (*batch, *free))


def _named_dimensions(ctx: InferenceContext, side: str) -> tuple[int, ...]:
    """The batch, contracting and group dimensions of a side; all others are free."""
    names = (*_LISTS, "group_dims")
    return tuple(number for name in names for number in ctx.node.integers(f"{side}_{name}"))


def _ragged_dot(ctx: InferenceContext) -> Inference:
    """A product whose left operand consists of groups along the ragged dimension.

    As in XLA, the ragged dimension of the left operand has one of three roles. If it is free, the
    right operand has a dimension of groups. If it is contracting, the result has a dimension of
    groups in front. If it is a batch dimension, neither has.
    """
    left, right, sizes = ctx.arrays
    product = yield from _product_type(ctx)
    ragged = ctx.node.integers("lhs_ragged_dims")
    if len(ragged) != 1 or not 0 <= ragged[0] < left.rank:
        fact = f"{list(ragged)} is not one dimension of {left}"
        yield ctx.complain(6, fact, "lhs_ragged_dims" if ragged else NodePart.OP)
        return None
    if product is None:
        return None
    assert isinstance(product, ArrayType), ctx.node.name
    groups = ctx.node.integers("rhs_group_dims")
    batch, contracting = (ctx.node.integers(f"lhs_{name}") for name in _LISTS)
    free = tuple(d for d in range(left.rank) if d not in batch + contracting)
    role = next(dims for dims in (batch, contracting, free) if ragged[0] in dims)
    # sizes of groups may depend on the dimensions outside of the ragged one
    before = (() if role is batch else batch) + role[: role.index(ragged[0])]
    prefix = tuple(left.shape[d] for d in before)
    count = sizes.shape[-1:]
    if not sizes.dtype.is_integer or not count or sizes.shape not in (count, (*prefix, *count)):
        fact = f"sizes of groups are {sizes}"
        hint = f"as many integers as there are groups, for all or for each of {list(prefix)}"
        yield ctx.complain(8, fact, 2, hint)
        return None
    expected = count if role is free else ()
    if tuple(right.shape[d] for d in groups) != expected:
        fact = f"dimensions of groups are {list(groups)} of {right}, there are {count[0]} groups"
        hint = f"one dimension of size {count[0]}" if expected else "leave rhs_group_dims out"
        yield ctx.complain(7, fact, "rhs_group_dims" if groups else NodePart.OP, hint)
        return None
    return ArrayType(product.dtype, (*(count if role is contracting else ()), *product.shape))


def _check_dot_dimensions(ctx: InferenceContext) -> Inference:
    for side, kind in zip(_SIDES, ctx.arrays, strict=False):
        dimensions = _named_dimensions(ctx, side)
        if not are_distinct_dimensions(dimensions, kind.rank):
            fact = f"{list(dimensions)} are not distinct dimensions of {kind}"
            yield ctx.complain(1, fact, f"{side}_contracting_dims")
    return None


def _check_dot_pairs(ctx: InferenceContext) -> Inference:
    left, right = ctx.arrays[:2]
    for name in _LISTS:
        lhs, rhs = (ctx.node.integers(f"{side}_{name}") for side in _SIDES)
        role = name.removesuffix("_dims")
        if len(lhs) != len(rhs):
            fact = f"{len(lhs)} {role} dimensions on the left, {len(rhs)} on the right"
            yield ctx.complain(2, fact, f"rhs_{name}")
        for a, b in zip(lhs, rhs, strict=False):
            if not (0 <= a < left.rank and 0 <= b < right.rank):
                continue
            if left.shape[a] != right.shape[b]:
                fact = (
                    f"{role} sizes differ: {left.shape[a]} and {right.shape[b]} "
                    f"(dimension {a} of {left}, {b} of {right})"
                )
                yield ctx.complain(3, fact, f"rhs_{name}")
    return None


def folded_arrays(ctx: InferenceContext) -> Generator[Complaint, None, tuple[ArrayType, ...]]:
    """The arrays that an op reduces, whose second half of operands are initial values.

    Empty after a complaint about their number or shapes.
    """
    count, kinds = len(ctx.operands) // 2, ctx.arrays
    if len(kinds) % 2:
        fact = f"{count + 1} arrays and {count} initial values"
        place, hint = len(kinds) - 1, "arrays come first, then initial values"
        yield ctx.complain_of(START_FOR_EACH, fact, place, hint)
        return ()
    arrays = kinds[:count]
    for position, kind in enumerate(arrays):
        if kind.shape != arrays[0].shape:
            fact = f"shapes differ: {arrays[0]} and {kind}"
            yield ctx.complain_of(ONE_SHAPE, fact, position)
            return ()
    return arrays


def check_fold(ctx: InferenceContext, arrays: tuple[ArrayType, ...]) -> Inference:
    """Initial values and `to_apply` fit the arrays that are reduced."""
    for position, (kind, start) in enumerate(zip(arrays, ctx.arrays[len(arrays) :], strict=True)):
        if start != ArrayType(kind.dtype):
            fact = f"the initial value of {kind} is {start}, not {ArrayType(kind.dtype)}"
            yield ctx.complain_of(SCALAR_STARTS, fact, len(arrays) + position)
    number = OPS[ctx.node.op].rules.index(FOLDING_REGION) + 1
    scalars = [ArrayType(kind.dtype) for kind in arrays]
    yield from check_region(ctx, number, scalars * 2, one_or_tuple(scalars))
    return None


def _reduce(ctx: InferenceContext) -> Inference:
    dimensions = ctx.node.integers("dimensions")
    arrays = yield from folded_arrays(ctx)
    if not arrays:
        return None
    if not are_distinct_dimensions(dimensions, arrays[0].rank):
        fact = f"{list(dimensions)} are not distinct dimensions of {arrays[0]}"
        yield ctx.complain(3, fact, "dimensions")
        return None
    yield from check_fold(ctx, arrays)
    kept = [size for d, size in enumerate(arrays[0].shape) if d not in dimensions]
    return one_or_tuple([ArrayType(kind.dtype, tuple(kept)) for kind in arrays])


CONTRACTION_RULES: Mapping[str, TypeRule] = {
    "dot": _dot,
    "ragged-dot": _ragged_dot,
    "reduce": _reduce,
}


def _window(ctx: InferenceContext) -> Window:
    window = ctx.attribute("window")
    assert isinstance(window, Window), ctx.node.name
    return window


def _check_window(ctx: InferenceContext) -> Inference:
    """Sizes, strides and dilations of the window are positive."""
    for dimension, entry in enumerate(_window(ctx).dimensions):
        if min(entry.size, entry.stride, entry.base_dilation, entry.window_dilation) < 1:
            fact = f"dimension {dimension} of the window {_window(ctx)}"
            yield ctx.complain_of(WINDOW_SIZES, fact, "window")
            return None
    return ctx.arrays[0]


def _convolution(ctx: InferenceContext) -> Inference:
    labels = ctx.attribute("dim_labels")
    assert isinstance(labels, ConvolutionLabels), ctx.node.name
    for position, kind in enumerate(ctx.arrays):
        if kind.rank != labels.spatial + 2:
            fact = f"{labels} is for {labels.spatial + 2} dimensions, the operand is {kind}"
            yield ctx.complain(1, fact, position)
            return None
    if not (yield from _check_kernel(ctx, labels)) or not (yield from _check_window(ctx)):
        return None
    scalar = yield from check_product(ctx)
    assert isinstance(scalar, ArrayType), ctx.node.name
    groups = yield from _check_group_counts(ctx, labels)
    if not isinstance(groups, ArrayType):
        return None
    (batch, _, *spatial), sizes = labels.input_dimensions, ctx.arrays[0].shape
    # batch, features, spatial dimensions: the order of `labels.result_dimensions`
    counts = (
        sizes[batch] // ctx.node.integer("batch_group_count"),
        ctx.arrays[1].shape[labels.kernel_dimensions[1]],
        *_window(ctx).positions([sizes[d] for d in spatial]),
    )
    shape = dict(zip(labels.result_dimensions, counts, strict=True))
    return ArrayType(scalar.dtype, tuple(shape[d] for d in range(len(shape))))


def _check_kernel(ctx: InferenceContext, labels: ConvolutionLabels) -> Inference:
    """The window's sizes are the kernel's."""
    kernel, window = ctx.arrays[1], _window(ctx)
    expected = tuple(kernel.shape[d] for d in labels.kernel_dimensions[2:])
    if tuple(entry.size for entry in window.dimensions) == expected:
        return kernel
    sizes = "x".join(map(str, expected)) or "nothing"
    fact = f"the window is {window}, the kernel's spatial dimensions are {sizes}"
    yield ctx.complain(2, fact, "window" if window.dimensions else 1)
    return None


def _check_group_counts(ctx: InferenceContext, labels: ConvolutionLabels) -> Inference:
    """The group counts divide features and batch."""
    source, kernel = ctx.arrays
    features = ctx.node.integer("feature_group_count")
    batches = ctx.node.integer("batch_group_count")
    if min(features, batches) != 1:
        fact = f"feature_group_count is {features}, batch_group_count is {batches}"
        at = "batch_group_count" if features > 1 or batches < 1 else "feature_group_count"
        yield ctx.complain(4, fact, at)
        return None
    batch, input_features = (source.shape[d] for d in labels.input_dimensions[:2])
    kernel_inputs, kernel_outputs = (kernel.shape[d] for d in labels.kernel_dimensions[:2])
    is_valid = True
    if input_features != kernel_inputs * features:
        is_valid = False
        fact = f"{input_features} features of {source}, {kernel_inputs} of {kernel}, "
        yield ctx.complain(5, f"{fact}in {features} groups", 1)
    if kernel_outputs % (features * batches):
        is_valid = False
        fact = f"{kernel_outputs} output features of {kernel} in {features * batches} groups"
        yield ctx.complain(6, fact, 1)
    if batch % batches:
        is_valid = False
        yield ctx.complain(7, f"a batch of {batch} in {batches} groups: {source}", 0)
    return kernel if is_valid else None


def _reduce_window(ctx: InferenceContext) -> Inference:
    arrays = yield from folded_arrays(ctx)
    if not arrays:
        return None
    window = _window(ctx)
    if len(window.dimensions) != arrays[0].rank:
        fact = f"the window {window} does not have the {arrays[0].rank} dimensions of {arrays[0]}"
        yield ctx.complain(3, fact, "window" if window.dimensions else 0)
        return None
    if not (yield from _check_window(ctx)):
        return None
    if any(entry.is_reversed for entry in window.dimensions):
        yield ctx.complain(5, f"the window {window} is reversed", "window")
    yield from check_fold(ctx, arrays)
    shape = window.positions(arrays[0].shape)
    return one_or_tuple([ArrayType(kind.dtype, shape) for kind in arrays])


def _select_and_scatter(ctx: InferenceContext) -> Inference:
    operand, source, start = ctx.arrays
    window = _window(ctx)
    if len(window.dimensions) != operand.rank:
        fact = f"the window {window} does not have the {operand.rank} dimensions of {operand}"
        yield ctx.complain(1, fact, "window" if window.dimensions else 0)
        return None
    if not (yield from _check_window(ctx)):
        return None
    if any(
        entry.is_reversed or entry.base_dilation > 1 or entry.window_dilation > 1
        for entry in window.dimensions
    ):
        yield ctx.complain(3, f"the window is {window}", "window")
        return None
    expected = window.positions(operand.shape)
    if source.shape != expected:
        fact = f"{window} has {list(expected)} positions on {operand}, the source is {source}"
        yield ctx.complain(4, fact, 1)
    scalar = ArrayType(operand.dtype)
    if source.dtype is not operand.dtype or start != scalar:
        position = 1 if source.dtype is not operand.dtype else 2
        fact = f"{ctx.arrays[position]} for an operand of {operand}"
        yield ctx.complain(5, fact, position)
    yield from check_region(ctx, 6, [scalar, scalar], ArrayType(DType.PRED), "select")
    yield from check_region(ctx, 7, [scalar, scalar], scalar, "scatter")
    return operand


WINDOW_RULES: Mapping[str, TypeRule] = {
    "convolution": _convolution,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
}
