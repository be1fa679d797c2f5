"""Fusions as instructions: rows, constants, costs, the engine; all of it in one listing."""

import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.codegen.generate import generate
from ncc_compiler.diagnostics import CompileError
from ncc_compiler.driver import load_text
from ncc_runtime.neff.check import check
from ncc_runtime.neff.isa import ENGINES, FUSION, Engine
from ncc_runtime.neff.listing import print_program
from ncc_runtime.neff.products import products_of
from ncc_runtime.neff.program import Fusion, Program
from ncc_runtime.neff.table import Instr
from tests.runtime.test_neff_fusions import LISTING

STEP = """HloModule step
larger {
  v = f32[] parameter(0)
  k = s32[] parameter(1)
  w = f32[] parameter(2)
  l = s32[] parameter(3)
  g = pred[] compare(v, w), direction=GE
  r = f32[] select(g, v, w)
  m = s32[] select(g, k, l)
  ROOT t = (f32[], s32[]) tuple(r, m)
}
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
fused_softmax {
  x = bf16[4,6] parameter(0)
  table = f32[6] constant({0, 1, 2, 3, 4, 5})
  wide = f32[4,6] convert(x), metadata={source_file="model.py" source_line=7}
  scale = f32[] constant(0.125)
  scales = f32[4,6] broadcast(scale), dimensions={}
  scaled = f32[4,6] multiply(wide, scales), metadata={source_file="model.py" source_line=8}
  bias = f32[4,6] broadcast(table), dimensions={1}
  biased = f32[4,6] add(scaled, bias)
  e = f32[4,6] exponential(biased)
  zero = f32[] constant(0)
  s = f32[4] reduce(e, zero), dimensions={1}, to_apply=sum
  sb = f32[4,6] broadcast(s), dimensions={0}
  p = f32[4,6] divide(e, sb), metadata={source_file="model.py" source_line=9}
  which = s32[4,6] iota(), iota_dimension=1
  low = f32[] constant(-inf)
  none = s32[] constant(0)
  best = (f32[4], s32[4]) reduce(p, which, low, none), dimensions={1}, to_apply=larger
  at = s32[4] get-tuple-element(best), index=1
  rows = s32[2,2] reshape(at)
  ROOT result = (f32[4,6], s32[2,2], bf16[4,6]) tuple(p, rows, x)
}
ENTRY step {
  x = bf16[4,6] parameter(0)
  f = (f32[4,6], s32[2,2], bf16[4,6]) fusion(x), kind=kInput, calls=fused_softmax
  p = f32[4,6] get-tuple-element(f), index=0
  at = s32[2,2] get-tuple-element(f), index=1
  same = bf16[4,6] get-tuple-element(f), index=2
  ROOT result = (f32[4,6], s32[2,2], bf16[4,6]) tuple(p, at, same)
}
"""


def generated(text: str) -> Program:
    program = generate(load_text(text))
    assert check(program) == ()
    return program


def the_fusion(program: Program) -> tuple[Engine, Instr, Fusion]:
    """The only fusion of a program, where it stands, and its instruction."""
    ((engine, row),) = [
        (engine, row)
        for engine in ENGINES
        for row in program.queues[engine]
        if row.opcode == FUSION
    ]
    fusion = program.fusion_of(row)
    assert fusion is not None
    return engine, row, fusion


def of_body(body: str, parameters: str, result: str) -> tuple[Engine, Instr, Fusion]:
    """The fusion of these operations; each parameter is `name=type`."""
    named = [one.split("=") for one in parameters.split()]
    inside = "\n".join(f"{name} = {kind} parameter({k})" for k, (name, kind) in enumerate(named))
    names = ", ".join(name for name, _ in named)
    text = f"""HloModule m
      sum {{ a=f32[] parameter(0) b=f32[] parameter(1) ROOT c=f32[] add(a,b) }}
      fused {{ {inside} {body} }}
      ENTRY e {{ {inside} ROOT f = {result} fusion({names}), calls=fused }}"""
    return the_fusion(generated(text))


def test_a_fusion_is_listed_with_its_rows_their_types_and_lines() -> None:
    assert print_program(generated(STEP)) == LISTING.read_text()


def test_the_program_of_the_listing_computes_a_softmax() -> None:
    x = np.linspace(-8, 8, 24).reshape(1, 4, 6).astype("bfloat16")
    p, at, same = ncc_runtime.load(generated(STEP)).run([x]).outputs
    scores = np.exp(x.astype(np.float32) / 8 + np.arange(6))
    np.testing.assert_allclose(p, scores / scores.sum(-1, keepdims=True), rtol=1e-5)
    assert at.tolist() == [[[5, 5], [5, 5]]]
    assert same.tobytes() == x.tobytes()


def test_a_scalar_is_written_into_its_row_unless_it_loses_bits_there() -> None:
    _, row, fusion = of_body(
        "n = f32[] constant(nan(0x1234)) m = f32[] constant(-0) ROOT r = f32[] add(n, m)",
        "x=f32[]",
        "f32[]",
    )
    assert [step.constant for step in fusion.body] == ["-0.0", None]
    assert len(row.operands) == fusion.parameters == 2


def test_a_reshape_of_the_same_type_needs_no_row() -> None:
    _, _, fusion = of_body(
        "y = f32[2,3] reshape(x) b = s32[6] bitcast(y) ROOT r = s32[6] negate(b)",
        "x=f32[2,3]",
        "s32[6]",
    )
    assert [step.opcode for step in fusion.body] == ["bitcast-convert", "reshape", "negate"]


@pytest.mark.parametrize(
    ("body", "engine"),
    [
        ("y = f32[8,8] tanh(x) ROOT r = f32[8,8] add(x, y)", Engine.VECTOR),
        ("y = f32[8,8] tanh(x) ROOT r = f32[8,8] exponential(y)", Engine.SCALAR),
        (
            "y = f32[8,8] tanh(x) ROOT r = f32[8,8] dot(y, x), "
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            Engine.TENSOR,
        ),
    ],
)
def test_a_fusion_stands_in_the_queue_of_the_engine_that_works_longest(
    body: str, engine: Engine
) -> None:
    assert of_body(body, "x=f32[8,8]", "f32[8,8]")[0] is engine


def test_products_inside_of_a_fusion_are_counted_with_their_types() -> None:
    text = """HloModule m
      fused { x = bf16[8,16] parameter(0) w = bf16[16,4] parameter(1)
        y = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT z = f32[4,4] dot(y, y), lhs_contracting_dims={0}, rhs_contracting_dims={0} }
      ENTRY e { x = bf16[8,16] parameter(0) w = bf16[16,4] parameter(1)
        ROOT f = f32[4,4] fusion(x, w), calls=fused }"""
    program = generated(text)
    _, row, _ = the_fusion(program)
    found = [(one.opcode, one.dtype.value, one.flops) for one in products_of(program, row)]
    assert found == [("dot", "bf16", 2 * 8 * 16 * 4), ("dot", "f32", 2 * 8 * 4 * 4)]
    assert row.flops == sum(flops for _, _, flops in found)


def test_each_parameter_is_read_once_and_a_slice_reads_no_more_than_it_gives() -> None:
    _, row, _ = of_body(
        "s = f32[1,8] dynamic-slice(x, i, i), dynamic_slice_sizes={1,8} "
        "t = f32[1,8] add(s, s) u = f32[1,8] multiply(t, y) ROOT r = f32[1,8] subtract(u, y)",
        "x=f32[100,8] i=s32[] y=f32[1,8]",
        "f32[1,8]",
    )
    assert (row.bytes_in, row.bytes_out, row.elements) == (32 + 4 + 32, 32, 4 * 8)


def test_two_fusions_of_one_computation_are_one_fusion_of_the_program() -> None:
    text = """HloModule m
      fused { x = f32[4] parameter(0) y = f32[4] negate(x) ROOT r = f32[4] tanh(y) }
      ENTRY e { x = f32[4] parameter(0) a = f32[4] fusion(x), calls=fused
        ROOT b = f32[4] fusion(a), calls=fused }"""
    program = generated(text)
    assert len(program.fusions) == 1
    assert [row.opcode for engine in ENGINES for row in program.queues[engine]] == [FUSION] * 2


def test_a_fusion_of_too_many_operations_is_refused() -> None:
    size = 2**31
    text = f"""HloModule m
      sum {{ a=s8[] parameter(0) b=s8[] parameter(1) ROOT c=s8[] add(a,b) }}
      fused {{ x = s8[] parameter(0) z = s8[] constant(0)
        y = s8[{size},{size}] broadcast(x), dimensions={{}}
        e = s8[{size},{size}] abs(y) n = s8[{size},{size}] negate(e)
        ROOT r = s8[] reduce(n, z), dimensions={{0,1}}, to_apply=sum }}
      ENTRY e {{ x = s8[] parameter(0) ROOT f = s8[] fusion(x), calls=fused }}"""
    with pytest.raises(CompileError, match=f"fusion %fused takes {3 * size**2} operations"):
        generated(text)
