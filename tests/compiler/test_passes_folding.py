"""The pass that folds constants."""

import numpy as np
import pytest

from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.graph import Literal
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.passes.fold_constants import FoldConstants
from ncc_compiler.passes.remove_dead_code import RemoveDeadCode
from tests.compiler.small_modules import assert_same_bits, entry_node, entry_ops, load
from tests.reference_runs import reference_outputs


def test_a_value_of_constants_becomes_a_constant():
    module = load(
        "%c = s32[] constant(3)",
        "%b = s32[4] broadcast(%c), dimensions={}",
        "%i = s32[4] iota(), iota_dimension=0",
        "%m = s32[4] multiply(%b, %i)",
    )
    folded = RemoveDeadCode().run(FoldConstants().run(module))
    literal = entry_node(folded, "constant").attributes["literal"]
    assert isinstance(literal, Literal)
    assert literal.array.tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize(("elements", "stays"), [(16384, False), (16385, True)])
def test_no_constant_above_64_kib_is_made(elements, stays):
    module = load("%c = f32[] constant(1)", f"%b = f32[{elements}] broadcast(%c), dimensions={{}}")
    assert ("broadcast" in entry_ops(FoldConstants().run(module))) == stays


@pytest.mark.parametrize(
    "line",
    [
        "%r = s64[1000000000000,0] iota(), iota_dimension=0",
        "%r = s64[0,1000000000000] iota(), iota_dimension=1",
        "%r = f32[1000000000000,0,9] broadcast(%f), dimensions={}",
        "%r = f32[0,1000000000000] transpose(%e), dimensions={1,0}",
        "%r = f32[2000000000000,0] concatenate(%e, %e), dimensions={0}",
        "%r = f32[500000000000,0] slice(%e), slice={[0:1000000000000:2], [0:0]}",
        "%r = f32[1000000000000,0] add(%e, %e)",
        "%r = pred[1000000000000,0] compare(%i, %i), direction=LT",
        "%r = f32[1000000000000,0] convert(%i)",
        "%r = f32[0] reshape(%e)",
    ],
)
def test_arrays_without_elements_are_folded_without_memory(line):
    lines = [
        "%f = f32[] constant(1)",
        "%e = f32[1000000000000,0] constant({})",
        "%i = s32[1000000000000,0] iota(), iota_dimension=0",
    ]
    module = RemoveDeadCode().run(FoldConstants().run(load(*lines, line)))
    assert entry_ops(module) == ["constant"]
    assert load_module(Source("printed.ir", print_module(module))) == module


@pytest.mark.parametrize(
    "last",
    [
        "%r = f32[] exponential(%f)",
        "%r = s32[] divide(%i, %zero)",
        "%r = s32[] remainder(%i, %zero)",
        "%r = s32[] divide(%least, %minus)",
        "%r = s32[] convert(%huge)",
        "%r = f32[] maximum(%f, %huge)",
        "%r = bf16[] convert(%f)",
    ],
)
def test_what_is_not_the_same_everywhere_is_left_to_the_devices(last):
    module = load(
        "%f = f32[] constant(0.3)",
        "%huge = f32[] constant(3e9)",
        "%i = s32[] constant(7)",
        "%zero = s32[] constant(0)",
        "%minus = s32[] constant(-1)",
        "%least = s32[] constant(-2147483648)",
        last,
    )
    assert entry_ops(FoldConstants().run(module))[-1] != "constant"


NUMBERS = {
    "s32": "{ -2147483648, -7, -1, 0, 1, 3, 2147483647 }",
    "u8": "{ 0, 1, 2, 7, 128, 200, 255 }",
    "f32": "{ -inf, -2.5, -0, 0, 1e-45, 3.4e38, nan }",
    "f64": "{ -inf, -2.5, -0, 0, 1e-320, 1e300, nan }",
    "pred": "{ true, false, true, true, false, false, true }",
}
EVERYWHERE = ["add", "multiply", "maximum", "minimum", "compare", "select", "convert"]
OPS_BY_DTYPE = {
    "f32": ["subtract", "divide", "remainder", "negate"],
    "f64": ["subtract", "divide", "remainder", "negate"],
    "s32": ["subtract", "divide", "remainder", "and", "or", "xor", "not", "negate"],
    "u8": ["subtract", "divide", "remainder", "and", "or", "xor", "not"],
    "pred": ["and", "or", "xor", "not"],
}


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for dtype, ops in OPS_BY_DTYPE.items() for op in [*EVERYWHERE, *ops]],
)
def test_folded_values_are_those_of_the_reference(op, dtype):
    operands, result, more = "%a, %b", dtype, ""
    if op in ("negate", "not"):
        operands = "%a"
    elif op == "compare":
        result, more = "pred", ", direction=LE"
    elif op == "select":
        operands = "%p, %a, %b"
    elif op == "convert":
        operands, result = "%a", "f32"
    module = load(
        f"%a = {dtype}[7] constant({NUMBERS[dtype]})",
        f"%p = pred[7] constant({NUMBERS['pred']})",
        f"%s = {dtype}[6] slice(%a), slice={{[1:7]}}",
        f"%t = {dtype}[1] slice(%a), slice={{[2:3]}}",
        f"%b = {dtype}[7] concatenate(%s, %t), dimensions={{0}}",
        f"%r = {result}[7] {op}({operands}){more}",
        header="HloModule m",
    )
    with np.errstate(all="ignore"):
        expected = reference_outputs(module, [])
        assert_same_bits(reference_outputs(FoldConstants().run(module), []), expected)
