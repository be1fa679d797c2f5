"""Types of opcodes that slide a window: shapes follow from how many positions it has."""

from collections.abc import Iterator

from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.rules.signature import Signature, dtype_differs, shape_differs
from ncc_runtime.neff.rules.structural import folds, starts_differ
from ncc_runtime.neff.windows import ConvolutionLabels, Window, read_labels, read_window


def convolution(signature: Signature) -> Iterator[str]:
    """Sums of products over the kernel at every position of the window, in groups."""
    try:
        window = read_window(signature.text("window"))
        labels = read_labels(signature.text("dim_labels"))
    except ValueError as error:
        yield str(error)
        return
    complaints = [*_kernel_breaches(signature, window, labels)] or [
        *_group_breaches(signature, labels)
    ]
    yield from complaints
    if complaints:
        return
    source, kernel = signature.operands
    (batch, _, *spatial), groups = labels.input_dimensions, signature.integer("batch_groups")
    sizes = (
        source.shape[batch] // groups,
        kernel.shape[labels.kernel_dimensions[1]],
        *window.positions([source.shape[d] for d in spatial]),
    )
    shape = dict(zip(labels.result_dimensions, sizes, strict=True))
    yield from shape_differs(signature.results[0], tuple(shape[d] for d in range(len(shape))))
    result = signature.results[0]
    if any(side.dtype.is_complex for side in signature.operands) != result.dtype.is_complex:
        yield f"{source.type_text} and {kernel.type_text} do not make {result.type_text}"


def _kernel_breaches(
    signature: Signature, window: Window, labels: ConvolutionLabels
) -> Iterator[str]:
    for operand in signature.operands:
        if len(operand.shape) != labels.spatial + 2:
            yield f"{operand.type_text} does not have the dimensions of {labels}"
            return
    kernel = signature.operands[1]
    if tuple(one.size for one in window.dimensions) != tuple(
        kernel.shape[d] for d in labels.kernel_dimensions[2:]
    ):
        yield f"window {window} is not as large as the kernel {kernel.type_text}"
    yield from _does_not_slide(window)


def _does_not_slide(window: Window) -> Iterator[str]:
    for one in window.dimensions:
        if min(one.size, one.stride, one.base_dilation, one.window_dilation) < 1:
            yield f"window {window} has sizes, strides or dilations below 1"
            return


def _group_breaches(signature: Signature, labels: ConvolutionLabels) -> Iterator[str]:
    source, kernel = signature.operands
    groups = (signature.integer("feature_groups"), signature.integer("batch_groups"))
    if min(groups) != 1:
        yield f"{groups[0]} feature groups and {groups[1]} batch groups, one of them must be 1"
        return
    batch, given = (source.shape[d] for d in labels.input_dimensions[:2])
    taken, made = (kernel.shape[d] for d in labels.kernel_dimensions[:2])
    if given != taken * groups[0] or made % max(groups) or batch % groups[1]:
        yield f"{source.type_text} and {kernel.type_text} do not divide into {max(groups)} groups"


def _window_of(signature: Signature) -> Window | str:
    """The window, or what is wrong with it."""
    try:
        window = read_window(signature.text("window"))
    except ValueError as error:
        return str(error)
    rank = len(signature.operands[0].shape)
    if len(window.dimensions) != rank:
        return f"window {window} does not have {rank} dimensions"
    if any(one.is_reversed for one in window.dimensions):
        return f"window {window} is reversed"
    return next(_does_not_slide(window), window)


def reduce_window(signature: Signature) -> Iterator[str]:
    """n arrays, then n initial values; the region takes n accumulators, then n elements."""
    count = len(signature.results)
    arrays, initial = signature.operands[:count], signature.operands[count:]
    if not count or len(initial) != count:
        yield f"{len(signature.operands)} operands, {2 * count} needed for {count} results"
        return
    window = _window_of(signature)
    if isinstance(window, str):
        yield window
        return
    if any(array.shape != arrays[0].shape for array in arrays):
        yield f"arrays differ: {', '.join(array.type_text for array in arrays)}"
        return
    for result in signature.results:
        yield from shape_differs(result, window.positions(arrays[0].shape))
    yield from starts_differ(signature, arrays, initial)
    dtypes = tuple(array.dtype for array in arrays)
    yield from folds(signature, "region", dtypes * 2, dtypes)


def select_and_scatter(signature: Signature) -> Iterator[str]:
    """Each window of the first operand selects an element, which the second is scattered into."""
    operand, source, initial = signature.operands
    window = _window_of(signature)
    if isinstance(window, str):
        yield window
        return
    if any(max(one.base_dilation, one.window_dilation) > 1 for one in window.dimensions):
        yield f"window {window} is dilated"
    yield from shape_differs(signature.results[0], operand.shape)
    yield from dtype_differs(signature.results[0], operand.dtype)
    positions = window.positions(operand.shape)
    if (source.dtype, source.shape) != (operand.dtype, positions):
        yield f"source is {source.type_text}, the window has {list(positions)} positions"
    if (initial.dtype, initial.shape) != (operand.dtype, ()):
        yield f"initial value is {initial.type_text}, must be {operand.dtype.value}[]"
    pair = (operand.dtype, operand.dtype)
    yield from folds(signature, "select_region", pair, (DType.PRED,))
    yield from folds(signature, "scatter_region", pair, (operand.dtype,))
