"""Types of numerical methods (fft, cholesky, LAPACK …) and of opcodes that slide a window."""

from collections.abc import Iterator

from ncc_runtime.neff.program import Typed
from ncc_runtime.neff.rules.signature import Signature, dtype_differs, shape_differs
from ncc_runtime.neff.rules.structural import folds, starts_differ
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.lapack import ROUTINES, RoutineError, results_of
from ncc_runtime.neff.shared.windows import ConvolutionLabels, Window, read_labels, read_window

_COMPLEX = {DType.F32: DType.C64, DType.F64: DType.C128}
_REAL = {wide: narrow for narrow, wide in _COMPLEX.items()}
_RESULTS = {  # fft_type → dtype of the operand → dtype of the result
    "FFT": {dtype: dtype for dtype in _REAL},
    "IFFT": {dtype: dtype for dtype in _REAL},
    "RFFT": _COMPLEX,
    "IRFFT": _REAL,
}
_TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
_STATES = {"rng_three_fry": ((2,),), "rng_philox": ((2,), (3,)), "rng_default": ((2,), (3,))}


def fft(signature: Signature) -> Iterator[str]:
    """A transform of the last dimensions; the real side has fft_length, the other half, plus 1."""
    (operand,), (result,) = signature.operands, signature.results
    kind, lengths = signature.text("fft_type"), signature.integers("fft_length")
    if operand.dtype not in _RESULTS.get(kind, {}):
        yield f"fft_type {kind!r} on {operand.dtype.value}"
        return
    if not 1 <= len(lengths) <= min(3, len(operand.shape)) or min(lengths) < 0:
        yield f"fft_length is {list(lengths)} for {operand.type_text}"
        return
    half = (*lengths[:-1], lengths[-1] // 2 + 1 if lengths[-1] else 0)
    kept = operand.shape[: -len(lengths)]
    if operand.shape != kept + (half if kind == "IRFFT" else lengths):
        yield f"{operand.type_text} does not end in fft_length {list(lengths)}"
    yield from shape_differs(result, kept + (half if kind == "RFFT" else lengths))
    yield from dtype_differs(result, _RESULTS[kind][operand.dtype])


def cholesky(signature: Signature) -> Iterator[str]:
    """A square matrix in the last two dimensions, and its factor."""
    (operand,), (result,) = signature.operands, signature.results
    yield from _no_square(operand)
    yield from shape_differs(result, operand.shape)
    yield from dtype_differs(result, operand.dtype)


def _no_square(operand: Typed) -> Iterator[str]:
    if len(operand.shape) < 2 or operand.shape[-1] != operand.shape[-2]:
        yield f"{operand.type_text} does not end in a square"
    if not (operand.dtype.is_float or operand.dtype.is_complex):
        yield f"not defined on {operand.dtype.value}"


def triangular_solve(signature: Signature) -> Iterator[str]:
    """A square matrix and right-hand sides of the same batch."""
    matrix, other = signature.operands
    complaints = [*_no_square(matrix)]
    yield from complaints
    if complaints:
        return
    side = -2 if signature.attributes["left_side"] else -1
    fits = len(other.shape) == len(matrix.shape) and other.shape[side] == matrix.shape[-1]
    if not fits or other.shape[:-2] != matrix.shape[:-2] or other.dtype is not matrix.dtype:
        yield f"{matrix.type_text} does not fit {other.type_text}"
    if signature.text("transpose_a") not in _TRANSPOSES:
        yield f"transpose_a is {signature.text('transpose_a')!r}, known: {', '.join(_TRANSPOSES)}"
    yield from shape_differs(signature.results[0], other.shape)
    yield from dtype_differs(signature.results[0], other.dtype)


def rng_bit_generator(signature: Signature) -> Iterator[str]:
    """A state gives the next state and random integers."""
    (state,), (after, bits) = signature.operands, signature.results
    algorithm = signature.text("algorithm")
    if algorithm not in _STATES:
        yield f"algorithm is {algorithm!r}, known: {', '.join(_STATES)}"
    elif state.dtype is not DType.U64 or state.shape not in _STATES[algorithm]:
        yield f"{algorithm} has no state {state.type_text}"
    yield from shape_differs(after, state.shape)
    yield from dtype_differs(after, state.dtype)
    if not bits.dtype.is_integer:
        yield f"bits are {bits.type_text}, must be integers"


def lapack(signature: Signature) -> Iterator[str]:
    """A routine of the table, with the options, operands and results of its row."""
    routine = signature.text("routine")
    if routine not in ROUTINES:
        yield f"routine is {routine!r}, known: {', '.join(ROUTINES)}"
        return
    options = {name: value for name, value in signature.attributes.items() if name != "routine"}
    operands = [(tensor.dtype, tensor.shape) for tensor in signature.operands]
    try:
        possible = results_of(routine, options, operands)
    except RoutineError as error:
        yield str(error)
        return
    if tuple((tensor.dtype, tensor.shape) for tensor in signature.results) not in possible:
        given = ", ".join(tensor.type_text for tensor in signature.results)
        expected = ", ".join(f"{d.value}[{','.join(map(str, s))}]" for d, s in possible[0])
        yield f"{routine} gives ({expected}), the results are ({given})"


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
    if tuple(dimension.size for dimension in window.dimensions) != tuple(
        kernel.shape[d] for d in labels.kernel_dimensions[2:]
    ):
        yield f"window {window} is not as large as the kernel {kernel.type_text}"
    yield from _does_not_slide(window)


def _does_not_slide(window: Window) -> Iterator[str]:
    for along in window.dimensions:
        if min(along.size, along.stride, along.base_dilation, along.window_dilation) < 1:
            yield f"window {window} has sizes, strides or dilations below 1"
            return


def _group_breaches(signature: Signature, labels: ConvolutionLabels) -> Iterator[str]:
    source, kernel = signature.operands
    groups = (signature.integer("feature_groups"), signature.integer("batch_groups"))
    if min(groups) != 1:
        yield f"{groups[0]} feature groups and {groups[1]} batch groups, one of them must be 1"
        return
    batch, features = (source.shape[d] for d in labels.input_dimensions[:2])
    inputs, outputs = (kernel.shape[d] for d in labels.kernel_dimensions[:2])
    if features != inputs * groups[0] or outputs % max(groups) or batch % groups[1]:
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
    if any(dimension.is_reversed for dimension in window.dimensions):
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
    if any(max(along.base_dilation, along.window_dilation) > 1 for along in window.dimensions):
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
