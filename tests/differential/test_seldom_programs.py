"""Programs that random graphs seldom give: empty arrays, odd dtypes, mixed tuples, nested calls."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.shared.dtypes import DType
from tests.draws_graphs import random_array
from tests.reference_runs import assert_close, reference_outputs

HEADER = "HloModule seldom, num_partitions=4\n"
ALL = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true"


def region(dtype: str, op: str = "add") -> str:
    return f"""
fold {{
  a = {dtype}[] parameter(0)
  b = {dtype}[] parameter(1)
  ROOT r = {dtype}[] {op}(a, b)
}}
"""


def entry(*lines: str) -> str:
    *body, last = lines
    return "ENTRY main {\n" + "".join(f"  {line}\n" for line in body) + f"  ROOT {last}\n}}\n"


def all_reduce_of(dtype: str, op: str, shape: str = "5") -> str:
    kind = f"{dtype}[{shape}]"
    line = f"r = {kind} all-reduce(x), {ALL}, to_apply=fold"
    return region(dtype, op) + entry(f"x = {kind} parameter(0)", line)


PROGRAMS = {
    "all-reduce of nothing": all_reduce_of("f32", "add", "0,3"),
    "all-gather of nothing": entry(
        "x = f32[2,0] parameter(0)", f"r = f32[8,0] all-gather(x), {ALL}, dimensions={{0}}"
    ),
    "broadcast of nothing to dimensions in another order": entry(
        "x = f32[0,3] parameter(0)", "r = f32[3,2,0] broadcast(x), dimensions={2,0}"
    ),
    "reduce of nothing": region("f32")
    + entry(
        "x = f32[0,3] parameter(0)",
        "five = f32[] constant(5)",
        "r = f32[3] reduce(x, five), dimensions={0}, to_apply=fold",
    ),
    "dot over nothing": entry(
        "x = f32[2,0] parameter(0)",
        "y = f32[0,3] parameter(1)",
        "r = f32[2,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ),
    "pred add": all_reduce_of("pred", "add"),
    "pred multiply": all_reduce_of("pred", "multiply"),
    "s4 add": all_reduce_of("s4", "add"),
    "u4 maximum": all_reduce_of("u4", "maximum"),
    "s64 multiply": all_reduce_of("s64", "multiply"),
    "f64 add": all_reduce_of("f64", "add"),
    "f8e4m3fn maximum": all_reduce_of("f8e4m3fn", "maximum"),
    "bf16 by f32 dot": entry(
        "x = bf16[2,4] parameter(0)",
        "y = f32[4,3] parameter(1)",
        "r = f32[2,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ),
    "s8 dot summed in s32": entry(
        "x = s8[2,4] parameter(0)",
        "y = s8[4,3] parameter(1)",
        "r = s32[2,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ),
    "all-gather of two dtypes": entry(
        "x = f32[2,3] parameter(0)",
        "y = s8[4,3] parameter(1)",
        f"r = (f32[2,12], s8[4,12]) all-gather(x, y), {ALL}, dimensions={{1}}",
    ),
    "permute of two dtypes": entry(
        "x = f32[2,3] parameter(0)",
        "y = s8[4,3] parameter(1)",
        "r = (f32[2,3], s8[4,3]) collective-permute(x, y), channel_id=1, "
        "source_target_pairs={{0,3},{2,2}}",
    ),
    "permute of nobody": entry(
        "x = f32[2] parameter(0)",
        "r = f32[2] collective-permute(x), channel_id=1, source_target_pairs={}",
    ),
    "a nested tuple": entry(
        "x = f32[2] parameter(0)",
        "t = (f32[2], f32[2]) tuple(x, x)",
        "r = ((f32[2], f32[2]), f32[2]) tuple(t, x)",
    ),
    "a collective inside a call": region("f32")
    + f"""
inner {{
  x = f32[2] parameter(0)
  y = f32[2] all-reduce(x), {ALL}, to_apply=fold
  ROOT t = (f32[2], f32[2]) tuple(x, y)
}}
"""
    + entry(
        "x = f32[2] parameter(0)",
        "pair = (f32[2], f32[2]) call(x), to_apply=inner",
        "before = f32[2] get-tuple-element(pair), index=0",
        "after = f32[2] get-tuple-element(pair), index=1",
        "r = f32[2] subtract(after, before)",
    ),
}


def input_of(type_: ArrayType, ranks: int, seed: int) -> np.ndarray:
    if type_.dtype not in (DType.S4, DType.U4):
        return random_array(type_, ranks, seed)
    byte = random_array(ArrayType(DType.U8, type_.shape), ranks, seed) & 7
    return byte.astype(type_.dtype.numpy)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_seldom_program_computes_what_the_reference_says(name, level):
    text = HEADER + PROGRAMS[name]
    module = load_module(Source("seldom.ir", text), None)
    entry_nodes = module.entry_computation
    types = [entry_nodes.nodes[position].type for position in entry_nodes.parameters()]
    inputs = [input_of(type_, module.ranks, seed) for seed, type_ in enumerate(types)]
    neff = ncc_compiler.compile_text(text, options=CompileOptions(level=level))
    outputs = ncc_runtime.load(neff).run(inputs).outputs
    for actual, wanted in zip(outputs, reference_outputs(module, inputs), strict=True):
        assert actual.dtype == wanted.dtype
        assert_close(actual, wanted)
