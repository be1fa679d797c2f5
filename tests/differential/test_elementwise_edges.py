"""Every elementwise op on the edges of every dtype: the executor's bits against the reference's."""

import ml_dtypes
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.load import load_module
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.shared.dtypes import DType
from tests.elementwise_programs import Line, edges, every_op, program
from tests.reference_runs import reference_outputs


def differs(line: Line, actual: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether more than a computed NaN's bits, or of an approximate op the last bits, differ."""
    assert actual.dtype == wanted.dtype
    is_float = wanted.dtype.kind in "fc" or "float" in wanted.dtype.name
    if not is_float:
        return not np.array_equal(actual, wanted)
    if line.keeps_bits and wanted.dtype.kind != "c":
        return actual.tobytes() != wanted.tobytes()
    if wanted.dtype.kind == "c":
        return _differs_as_complex(line, actual, wanted)
    limits = ml_dtypes.finfo(wanted.dtype)
    precision, least = (0.0, 0.0) if line.is_exact else _precision(limits)
    with np.errstate(invalid="ignore"):
        a, b = actual.astype(np.float64), wanted.astype(np.float64)
    same_sign = (np.signbit(a) == np.signbit(b)) | np.isnan(b)
    close = np.isclose(a, b, rtol=precision, atol=least, equal_nan=True) & same_sign
    return not close.all()


def _precision(limits: ml_dtypes.finfo) -> tuple[float, float]:
    """Relative and absolute: three units in the last place."""
    return 3 * float(limits.eps), 3 * float(limits.smallest_subnormal)


def _differs_as_complex(line: Line, actual: np.ndarray, wanted: np.ndarray) -> bool:
    """A small part may be lost beside a large one."""
    if line.op in ("copy", "negate", "select", "map", "convert", "complex", "bitcast-convert"):
        return not np.array_equal(actual, wanted, equal_nan=True)
    precision = 32 * float(np.finfo(wanted.dtype).eps)
    return not np.isclose(actual, wanted, rtol=precision, atol=precision, equal_nan=True).all()


def grid(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of edges, for one rank."""
    values = edges(dtype)
    x, y = (np.repeat(values, values.size), np.tile(values, values.size))
    return x.reshape(1, -1), y.reshape(1, -1)


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_an_elementwise_op_agrees_with_the_reference_at_every_edge(dtype):
    x, y = grid(dtype)
    lines = every_op(dtype, x.size)
    text = program(dtype, lines, x.size)
    module = load_module(Source("edges.ir", text), None)
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    with np.errstate(all="ignore"):
        wanted = reference_outputs(module, [x, y])
    pairs = zip(lines, model.run([x, y]).outputs, wanted, strict=True)
    assert [line for line, actual, right in pairs if differs(line, actual, right)] == []


INEXACT = [DType.F32, DType.F64, DType.C64, DType.C128, DType.BF16]


@pytest.mark.parametrize("dtype", INEXACT, ids=lambda dtype: dtype.value)
def test_no_bit_of_a_result_hangs_on_how_many_ranks_compute_together(dtype):
    """Numpy's loops differ between the middle of an array and its ends."""
    lines = [line for line in every_op(dtype, 37) if "iota" not in line.call]
    draw = np.random.default_rng(1)
    real = (draw.standard_normal((2, 5, 37)) * 4).astype(np.float64)
    x, y = (real[0] + 1j * real[1], real[1] - 1j) if dtype.is_complex else real
    x, y = x.astype(dtype.numpy), y.astype(dtype.numpy)
    body = program(dtype, lines, 37)
    five = ncc_compiler.compile_text(body, CompileOptions(ranks=5))
    together = ncc_runtime.load(five).run([x, y]).outputs
    alone = ncc_runtime.load(ncc_compiler.compile_text(body))
    for rank in range(5):
        one = alone.run([x[rank : rank + 1], y[rank : rank + 1]]).outputs
        for line, many, single in zip(lines, together, one, strict=True):
            assert many[rank].tobytes() == single[0].tobytes(), line
