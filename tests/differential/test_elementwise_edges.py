"""Every elementwise op on the edges of every dtype: the executor's bits against the reference's."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.load import load_module
from ncc_runtime.neff.dtypes import DType
from tests.reference_runs import reference_outputs

FLOATS = [DType.F32, DType.F64, DType.F16, DType.BF16, DType.F8E4M3FN, DType.F8E5M2]
INTEGERS = [DType.S4, DType.S8, DType.S16, DType.S32, DType.S64]
UNSIGNED = [DType.U4, DType.U8, DType.U16, DType.U32, DType.U64]
APPROXIMATE = ("exponential", "log", "tanh", "logistic", "rsqrt", "power")
ARITHMETIC = ["add", "subtract", "multiply", "divide", "remainder", "power", "maximum", "minimum"]
OPS_OF_FLOATS = [
    *ARITHMETIC,
    *[
        "abs",
        "negate",
        "sign",
        "floor",
        "ceil",
        "sqrt",
        "exponential",
        "log",
        "tanh",
        "logistic",
        "rsqrt",
        "copy",
    ],
]
OPS_OF_INTEGERS = [*ARITHMETIC, *["and", "or", "xor", "not", "abs", "negate", "sign", "copy"]]
OPS_OF_UNSIGNED = [*ARITHMETIC, *["and", "or", "xor", "not", "copy"]]
OPS_OF_PRED = ["and", "or", "xor", "not", "add", "multiply", "maximum", "minimum", "copy"]
UNARY = {"not", "copy", *OPS_OF_FLOATS[len(ARITHMETIC) :]}
OPS_BY_DTYPE = {
    **dict.fromkeys(FLOATS, OPS_OF_FLOATS),
    **dict.fromkeys(INTEGERS, OPS_OF_INTEGERS),
    **dict.fromkeys(UNSIGNED, OPS_OF_UNSIGNED),
    DType.PRED: OPS_OF_PRED,
}


def edges(dtype: DType) -> np.ndarray:
    """Values at which the definition of some op changes."""
    if dtype is DType.PRED:
        return np.array([False, True])
    if dtype.is_float:
        numbers = [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -3, 1.75, 100, -100, np.inf, -np.inf, np.nan]
        return np.array(numbers).astype(dtype.numpy)
    bits = int(dtype.value[1:])
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.is_signed else (0, 2**bits - 1)
    numbers = [low, low + 1, high, high - 1, 0, 1, 2, 3, 5, *((-1, -2, -3) if low else ())]
    carrier = np.int64 if dtype.is_signed else np.uint64
    return np.array(numbers, carrier).astype(dtype.numpy)


def program(dtype: DType, count: int) -> tuple[str, list[str]]:
    """One instruction for each op, direction of compare and conversion, all of them results."""
    kind, truth = f"{dtype.value}[{count}]", f"pred[{count}]"
    lines = [f"{kind} {op}({'x' if op in UNARY else 'x, y'})" for op in OPS_BY_DTYPE[dtype]]
    lines += [f"{truth} compare(x, y), direction={d}" for d in ("EQ", "NE", "LT", "LE", "GT", "GE")]
    if dtype.is_float:
        lines.append(f"{truth} compare(x, y), direction=LT, type=TOTALORDER")
    lines += [f"{target.value}[{count}] convert(x)" for target in OPS_BY_DTYPE]
    rows = [f"  r{k} = {line}" for k, line in enumerate(lines)]
    types = ", ".join(line.split()[0] for line in lines)
    names = ", ".join(f"r{k}" for k in range(len(lines)))
    body = "\n".join(rows)
    text = f"""ENTRY main {{
  x = {kind} parameter(0)
  y = {kind} parameter(1)
{body}
  ROOT all = ({types}) tuple({names})
}}
"""
    return text, lines


def differs(line: str, actual: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether more than the name of a NaN, or of an approximate op the last bits, differ."""
    assert actual.dtype == wanted.dtype
    if wanted.dtype.kind in "biu":
        return not np.array_equal(actual, wanted)
    approximate = line.split()[1].startswith(APPROXIMATE)
    is_wide = wanted.dtype in (np.float32, np.float64)
    precision = (1e-6 if is_wide else 2.0**-6) if approximate else 0.0
    a, b = actual.astype(np.float64), wanted.astype(np.float64)
    same_sign = np.signbit(a) == np.signbit(b)
    close = np.isclose(a, b, rtol=precision, atol=0) & (same_sign | np.isnan(b))
    return not (close | (np.isnan(a) & np.isnan(b))).all()


@pytest.mark.parametrize("dtype", list(OPS_BY_DTYPE), ids=lambda dtype: dtype.value)
def test_an_elementwise_op_agrees_with_the_reference_at_every_edge(dtype):
    values = edges(dtype)
    x, y = (grid.reshape(1, -1) for grid in np.meshgrid(values, values))
    text, lines = program(dtype, x.size)
    module = load_module(Source("edges.ir", text), None)
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    pairs = zip(lines, model.run([x, y]).outputs, reference_outputs(module, [x, y]), strict=True)
    assert [line for line, actual, wanted in pairs if differs(line, actual, wanted)] == []
