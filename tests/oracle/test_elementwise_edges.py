"""XLA's CPU backend on the values at which the definition of an elementwise op changes."""

import ml_dtypes
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.text.printer import print_module
from ncc_runtime.neff.shared.dtypes import DType
from tests.elementwise_programs import Line, edges, every_op, program
from tests.oracle.closeness import is_exact
from tests.oracle.xla import Xla
from tests.reference_runs import reference_outputs

WITHOUT_CODE = {"acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "mulhi", "sinh"}
"""XLA's CPU backend has none for these; StableHLO spells them out before they come to it.

jaxlib makes no StableHLO of a `mulhi` in HLO: that it is what JAX says is in test_stablehlo.py."""


NOT_OF_XLA = ("s1[", "u1[", "f6e")
OF_XLA = [dtype for dtype in DType if not f"{dtype.value}[".startswith(NOT_OF_XLA)]


def has_an_answer(dtype: DType, line: Line) -> bool:
    """Not where XLA's CPU backend stops, or does not do what the op means.

    It ends the process on complex numbers to pred, counts the bits of the byte that a narrow
    integer lies in, and scales the fraction of a number of 8 bits in that type, which overflows.
    It has no code for numbers of 1 and 6 bits, takes the largest number of f4e2m1fn for infinite,
    and its way to StableHLO has bitcasts neither of pred nor between complex types. Of complex
    numbers its maximum, LE and GE compare the real parts only, where StableHLO compares pairs.
    """
    if line.type.startswith(NOT_OF_XLA):
        return False
    if line.op == "convert" and dtype is DType.F4E2M1FN and line.type[0] in "su":
        return False
    unordered = line.op in ("maximum", "minimum", "clamp") or "direction=LE" in line.call
    if dtype.is_complex and (unordered or "direction=GE" in line.call):
        return False
    if line.op == "bitcast-convert" and (
        dtype.is_complex or "pred" in (dtype.value, line.type[:4])
    ):
        return False
    if line.op in WITHOUT_CODE or (line.op == "popcnt" and dtype in (DType.S2, DType.S4)):
        return False
    if line.op == "stochastic-convert":
        return dtype.size_bytes > 1 or dtype is DType.F8E5M2
    return not (dtype.is_complex and line.op == "convert" and line.type.startswith("pred"))


def is_unsaid(dtype: DType, line: Line, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Elements for which XLA's CPU backend says something that is no meaning of the op.

    Of an exponent it sees six bits, and a sign where there is none; a square root beside the
    negative axis it takes from above for both zeros.
    """
    if line.op == "power" and dtype.is_integer:
        wide = y.astype(object)
        return ((wide >= 64) | (wide >= 2 ** (dtype.bits - 1))).astype(bool)
    if line.op == "sqrt" and dtype.is_complex:
        return (x.imag == 0) & np.signbit(x.imag) & (x.real < 0)
    return np.zeros(x.shape, bool)


def _differs(line: Line, actual: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Exact ops agree but for the name of a NaN, others within four units in the last place.

    XLA's CPU takes numbers below the smallest normal one of its arithmetic for zero, and gives NaN
    where a dtype has no zero.
    """
    if is_exact(wanted):
        return actual != wanted
    limits = ml_dtypes.finfo(wanted.dtype)
    if wanted.dtype.kind == "c":
        precision = 32 * float(limits.eps)
        return ~np.isclose(actual, wanted, rtol=precision, atol=precision, equal_nan=True)
    units = 0 if line.is_exact else 1
    precision, least = 4 * units * float(limits.eps), 3 * units * float(limits.smallest_subnormal)
    a, b = (array.astype(np.float64) for array in (actual, wanted))
    flushed = float(np.finfo(np.float64 if wanted.dtype == np.float64 else np.float32).tiny)
    is_flushed = (np.abs(a) < flushed) & ((np.abs(b) < flushed) | np.isnan(b))
    same_sign = (np.signbit(a) == np.signbit(b)) | (b != 0)
    close = np.isclose(a, b, rtol=precision, atol=least, equal_nan=True)
    return ~((close & same_sign) | is_flushed)


@pytest.mark.parametrize("dtype", OF_XLA, ids=lambda dtype: dtype.value)
def test_an_elementwise_op_computes_what_xla_computes_at_every_edge(dtype: DType, xla: Xla) -> None:
    values = edges(dtype)
    x, y = np.repeat(values, values.size)[None], np.tile(values, values.size)[None]
    lines = [line for line in every_op(dtype, x.size) if has_an_answer(dtype, line)]
    text = program(dtype, lines, x.size)
    module = load_module(Source("edges.ir", text))
    theirs = xla.run(print_module(module), [x, y])
    run = ncc_runtime.load(ncc_compiler.compile_text(text)).run([x, y])
    with np.errstate(all="ignore"):
        meant = reference_outputs(module, [x, y])
        wrong = [
            line
            for line, right, *answers in zip(lines, theirs, run.outputs, meant, strict=True)
            for answer in answers
            if _is_wrong(line, answer, right, is_unsaid(dtype, line, x, y))
        ]
    assert wrong == []


def _is_wrong(line: Line, answer: np.ndarray, right: np.ndarray, unsaid: np.ndarray) -> bool:
    assert (answer.shape, answer.dtype) == (right.shape, right.dtype)
    differs = _differs(line, answer, right)
    return bool((differs & ~unsaid).any() if unsaid.any() else differs.any())
