"""Result types of ops that slide a window over dimensions."""

from collections.abc import Mapping

from ncc_compiler.ir.facts import (
    Facts,
    Findings,
    Rule,
    one_or_tuple,
    parameter_types,
    result_type,
)
from ncc_compiler.ir.infer_contractions import check_fold, check_product, folded_arrays
from ncc_compiler.ir.ops_windows import WINDOW_SIZES
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.windows import ConvolutionLabels, Window


def _window(facts: Facts) -> Window:
    window = facts.attribute("window")
    assert isinstance(window, Window), facts.node.name
    return window


def _check_sizes(facts: Facts) -> Findings:
    """The window can slide."""
    for dimension, one in enumerate(_window(facts).dimensions):
        if min(one.size, one.stride, one.base_dilation, one.window_dilation) < 1:
            fact = f"dimension {dimension} of the window {_window(facts)}"
            yield facts.complain_of(WINDOW_SIZES, fact, "window")
            return None
    return facts.arrays[0]


def _convolution(facts: Facts) -> Findings:
    labels = facts.attribute("dim_labels")
    assert isinstance(labels, ConvolutionLabels), facts.node.name
    for position, kind in enumerate(facts.arrays):
        if kind.rank != labels.spatial + 2:
            fact = f"{labels} is for {labels.spatial + 2} dimensions, the operand is {kind}"
            yield facts.complain(1, fact, position)
            return None
    if not (yield from _check_kernel(facts, labels)) or not (yield from _check_sizes(facts)):
        return None
    scalar = yield from check_product(facts)
    assert isinstance(scalar, ArrayType), facts.node.name
    groups = yield from _check_groups(facts, labels)
    if not isinstance(groups, ArrayType):
        return None
    (batch, _, *spatial), sizes = labels.input_dimensions, facts.arrays[0].shape
    counts = (
        sizes[batch] // facts.node.integer("batch_group_count"),
        facts.arrays[1].shape[labels.kernel_dimensions[1]],
        *_window(facts).positions([sizes[d] for d in spatial]),
    )
    shape = dict(zip(labels.result_dimensions, counts, strict=True))
    return ArrayType(scalar.dtype, tuple(shape[d] for d in range(len(shape))))


def _check_kernel(facts: Facts, labels: ConvolutionLabels) -> Findings:
    """The window's sizes are the kernel's."""
    kernel, window = facts.arrays[1], _window(facts)
    wanted = tuple(kernel.shape[d] for d in labels.kernel_dimensions[2:])
    if tuple(one.size for one in window.dimensions) == wanted:
        return kernel
    sizes = "x".join(map(str, wanted)) or "nothing"
    fact = f"the window is {window}, the kernel's spatial dimensions are {sizes}"
    yield facts.complain(2, fact, "window" if window.dimensions else 1)
    return None


def _check_groups(facts: Facts, labels: ConvolutionLabels) -> Findings:
    """Features and batch divide into the groups."""
    source, kernel = facts.arrays
    features, batches = (
        facts.node.integer("feature_group_count"),
        facts.node.integer("batch_group_count"),
    )
    if min(features, batches) != 1:
        fact = f"feature_group_count is {features}, batch_group_count is {batches}"
        at = "batch_group_count" if features > 1 or batches < 1 else "feature_group_count"
        yield facts.complain(4, fact, at)
        return None
    batch, given = (source.shape[d] for d in labels.input_dimensions[:2])
    taken, made = (kernel.shape[d] for d in labels.kernel_dimensions[:2])
    wrong = False
    if given != taken * features:
        wrong = True
        fact = f"{given} features of {source}, {taken} of {kernel}, in {features} groups"
        yield facts.complain(5, fact, 1)
    if made % (features * batches):
        wrong = True
        fact = f"{made} output features of {kernel} in {features * batches} groups"
        yield facts.complain(6, fact, 1)
    if batch % batches:
        wrong = True
        yield facts.complain(7, f"a batch of {batch} in {batches} groups: {source}", 0)
    return None if wrong else kernel


def _reduce_window(facts: Facts) -> Findings:
    arrays = yield from folded_arrays(facts)
    if not arrays:
        return None
    window = _window(facts)
    if len(window.dimensions) != arrays[0].rank:
        fact = f"the window {window} does not have the {arrays[0].rank} dimensions of {arrays[0]}"
        yield facts.complain(3, fact, "window" if window.dimensions else 0)
        return None
    if not (yield from _check_sizes(facts)):
        return None
    if any(one.is_reversed for one in window.dimensions):
        yield facts.complain(5, f"the window {window} is reversed", "window")
    yield from check_fold(facts, arrays)
    shape = window.positions(arrays[0].shape)
    return one_or_tuple([ArrayType(kind.dtype, shape) for kind in arrays])


def _select_and_scatter(facts: Facts) -> Findings:
    operand, source, start = facts.arrays
    window = _window(facts)
    if len(window.dimensions) != operand.rank:
        fact = f"the window {window} does not have the {operand.rank} dimensions of {operand}"
        yield facts.complain(1, fact, "window" if window.dimensions else 0)
        return None
    if not (yield from _check_sizes(facts)):
        return None
    if any(
        one.is_reversed or one.base_dilation > 1 or one.window_dilation > 1
        for one in window.dimensions
    ):
        yield facts.complain(3, f"the window is {window}", "window")
        return None
    wanted = window.positions(operand.shape)
    if source.shape != wanted:
        fact = f"{window} has {list(wanted)} positions on {operand}, the source is {source}"
        yield facts.complain(4, fact, 1)
    scalar = ArrayType(operand.dtype)
    if source.dtype is not operand.dtype or start != scalar:
        position = 1 if source.dtype is not operand.dtype else 2
        fact = f"{facts.arrays[position]} for an operand of {operand}"
        yield facts.complain(5, fact, position)
    yield from _takes_two(facts, "select", 6, ArrayType(DType.PRED))
    yield from _takes_two(facts, "scatter", 7, scalar)
    return operand


def _takes_two(facts: Facts, key: str, number: int, result: ArrayType) -> Findings:
    """The region takes two scalars of the operand and returns this."""
    callee, scalar = facts.callee(key), ArrayType(facts.arrays[0].dtype)
    if callee is None:
        return None
    given = parameter_types(callee)
    if given != [scalar, scalar] or result_type(callee) != result:
        taken = ", ".join(map(str, given))
        fact = (
            f"%{callee.name} takes ({taken}) and returns {result_type(callee)}; "
            f"({scalar}, {scalar}) and {result} are needed"
        )
        yield facts.complain(number, fact, key)
    return None


WINDOW_RULES: Mapping[str, Rule] = {
    "convolution": _convolution,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
}
