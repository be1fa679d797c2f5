"""Fusions block by block have the bits of their steps one after the other."""

import ml_dtypes
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.values import devices
from ncc_runtime.execution.values.kernels import blockwise
from ncc_runtime.execution.values.kernels.compute import compute
from ncc_runtime.execution.values.kernels.work import KernelCall
from ncc_runtime.neff.isa import FUSION

MODULE = """HloModule m, replica_count=3

add {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT c = {t}[] add(a, b) }}
max {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT c = {t}[] maximum(a, b) }}

ENTRY main {{
{body}
}}
"""

NORM = """  x = {t}[4,6,40] parameter(0)
  scale = {t}[40] parameter(1)
  zero = {t}[] constant(0)
  two = {t}[] constant(2)
  xx = {t}[4,6,40] multiply(x, x)
  sums = {t}[4,6] reduce(xx, zero), dimensions={{2}}, to_apply=add
  roots = {t}[4,6] rsqrt(sums)
  wide = {t}[4,6,40] broadcast(roots), dimensions={{0,1}}
  scales = {t}[4,6,40] broadcast(scale), dimensions={{2}}
  twos = {t}[4,6,40] broadcast(two), dimensions={{}}
  y = {t}[4,6,40] multiply(x, wide)
  z = {t}[4,6,40] multiply(y, scales)
  e = {t}[4,6,40] tanh(z)
  n = {t}[4,6,40] negate(e)
  ROOT w = {t}[4,6,40] divide(n, twos)"""

SOFTMAX = """  q = {t}[4,16,2,8] parameter(0)
  k = {t}[4,16,2,8] parameter(1)
  zero = {t}[] constant(0)
  low = {t}[] constant(-inf)
  s = {t}[4,2,16,16] dot(q, k), lhs_batch_dims={{0,2}}, rhs_batch_dims={{0,2}},
    lhs_contracting_dims={{3}}, rhs_contracting_dims={{3}}
  m = {t}[4,2,16] reduce(s, low), dimensions={{3}}, to_apply=max
  mw = {t}[4,2,16,16] broadcast(m), dimensions={{0,1,2}}
  d = {t}[4,2,16,16] subtract(s, mw)
  e = {t}[4,2,16,16] exponential(d)
  l = {t}[4,2,16] reduce(e, zero), dimensions={{3}}, to_apply=add
  lw = {t}[4,2,16,16] broadcast(l), dimensions={{0,1,2}}
  p = {t}[4,2,16,16] divide(e, lw)
  ROOT o = {t}[4,2,16,8] dot(p, k), lhs_batch_dims={{0,1}}, rhs_batch_dims={{0,2}},
    lhs_contracting_dims={{3}}, rhs_contracting_dims={{1}}"""

COLUMNS = """  x = {t}[24,40] parameter(0)
  w = {t}[40,24] parameter(1)
  zero = {t}[] constant(0)
  h = {t}[24,24] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  t = {t}[24,24] transpose(h), dimensions={{1,0}}
  u = {t}[24,24] tanh(t)
  v = {t}[24,24] multiply(u, h)
  sums = {t}[24] reduce(v, zero), dimensions={{0}}, to_apply=add
  wide = {t}[24,24] broadcast(sums), dimensions={{1}}
  r = {t}[24,24] subtract(v, wide)
  s = {t}[576] reshape(r)
  ROOT out = ({t}[24,24], {t}[24], {t}[576]) tuple(v, sums, s)"""


def loaded(body, kind):
    neff = ncc_compiler.compile_text(MODULE.format(t=kind, body=body.format(t=kind)))
    return ncc_runtime.load(neff)


def inputs_of(model, dtype):
    program = model.executable.program
    generator = np.random.default_rng(3)
    arrays = []
    for tensor in program.inputs:
        array = generator.standard_normal((3, *program.tensors[tensor].shape)).astype(dtype)
        array.reshape(-1)[::97] = np.array(-np.nan, dtype)  # not the canonical one
        arrays.append(array)
    return arrays


@pytest.mark.parametrize("kind", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("block", [64, 512, 4096, 1 << 20])
@pytest.mark.parametrize("body", [NORM, SOFTMAX, COLUMNS])
def test_a_model_has_the_same_bits_whatever_the_size_of_blocks(monkeypatch, body, block, kind):
    dtype = {"f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16}[kind]
    model = loaded(body, kind)
    arrays = inputs_of(model, dtype)
    plain = [out.tobytes() for out in model.run(*[arrays], clock=False, checked=True).outputs]
    monkeypatch.setattr(devices, "SMALL_BYTES", 0)
    monkeypatch.setattr(blockwise, "BLOCK_BYTES", block)
    monkeypatch.setattr(blockwise, "LEAST_ROW", 1)
    for threads in (1, 3):
        again = loaded(body, kind).run(*[arrays], clock=False, threads=threads)
        assert [out.tobytes() for out in again.outputs] == plain


@pytest.mark.parametrize("body", [NORM, SOFTMAX, COLUMNS])
def test_blocks_of_a_fusion_have_the_bits_of_its_steps(monkeypatch, body):
    monkeypatch.setattr(blockwise, "BLOCK_BYTES", 256)
    monkeypatch.setattr(blockwise, "LEAST_ROW", 1)
    program = loaded(body, "f32").executable.program
    generator = np.random.default_rng(1)
    ranks = np.arange(3, dtype=np.int32)
    assert program.fusions, "the compiler fuses"
    for number, fusion in enumerate(program.fusions):
        shapes = [fusion.values[k] for k in range(fusion.parameters)]
        operands = [
            generator.standard_normal((3, *one.shape)).astype(one.dtype.numpy) for one in shapes
        ]
        types = fusion.types(fusion.results)
        call = KernelCall(program, FUSION, {"fusion": number}, types, ranks)
        wanted = compute(call, operands)
        results = [np.empty((3, *kind.shape), kind.dtype.numpy) for kind in types]
        plan = blockwise.BlockPlan(program, fusion)
        plan.run(ranks, operands, results)
        for result, one in zip(results, wanted, strict=True):
            assert result.tobytes() == np.ascontiguousarray(one).tobytes()


def test_elementwise_steps_behind_a_product_are_cut():
    program = loaded(
        COLUMNS.replace("24,24] transpose(h), dimensions={{1,0}}", "24,24] add(h, h)"), "f32"
    ).executable.program
    plans = [blockwise.BlockPlan(program, fusion) for fusion in program.fusions]
    assert any(loop.steps for plan in plans for level in plan.levels for loop in level.loops)
