"""Types of opcodes that are whole numerical methods."""

from collections.abc import Iterator

from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.lapack import ROUTINES, RoutineError, results_of
from ncc_runtime.neff.program import Tensor
from ncc_runtime.neff.rules.signature import Signature, dtype_differs, shape_differs

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
    """A square in the last two dimensions gives another."""
    (operand,), (result,) = signature.operands, signature.results
    yield from _no_square(operand)
    yield from shape_differs(result, operand.shape)
    yield from dtype_differs(result, operand.dtype)


def _no_square(operand: Tensor) -> Iterator[str]:
    if len(operand.shape) < 2 or operand.shape[-1] != operand.shape[-2]:
        yield f"{operand.type_text} does not end in a square"
    if not (operand.dtype.is_float or operand.dtype.is_complex):
        yield f"not defined on {operand.dtype.value}"


def triangular_solve(signature: Signature) -> Iterator[str]:
    """A square and what it is to give."""
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
        wanted = ", ".join(f"{d.value}[{','.join(map(str, s))}]" for d, s in possible[0])
        yield f"{routine} gives ({wanted}), the results are ({given})"
