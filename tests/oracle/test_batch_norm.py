"""Batch normalisation as XLA's CPU backend computes it, from HLO text and from StableHLO."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.driver import compile_file
from ncc_runtime.neff.shared.dtypes import DType
from tests.differential.test_batch_norm import SHAPES, assert_near, inputs, program
from tests.oracle.xla import Xla

HEADER = "HloModule bn, replica_count=1, num_partitions=1\n\n"


def in_xlas_form(text: str) -> str:
    """With braces and marks around names, which XLA's parser wants."""
    return f"{HEADER}ENTRY %main {{{text}}}\n"


@pytest.mark.parametrize(("shape", "feature"), [one for one in SHAPES if 0 not in one[0]])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_batch_norm_computes_what_xla_computes(
    dtype: str, shape: tuple[int, ...], feature: int, xla: Xla
) -> None:
    text = in_xlas_form(program(shape, feature, dtype, dtype))
    given = inputs(shape, feature, DType(dtype), DType(dtype))
    # XLA computes 16 bits in float32 but rounds in between, so it is asked in float32
    wide = text.replace(f"{dtype}[", "f32[") if dtype.endswith("16") else text
    exact = np.float32 if dtype.endswith("16") else DType(dtype).numpy
    theirs = xla.run(wide, [one[None].astype(exact) for one in given])
    ours = ncc_runtime.load(ncc_compiler.compile_text(text)).run(given).outputs
    flat = [0, 1, 2] if dtype.endswith("16") else range(len(ours))
    for number in flat:  # later ones begin with what was rounded
        assert_near(ours[number], theirs[number].astype(ours[number].dtype))


STABLEHLO = """
func.func @main(%x: tensor<4x3xf32>, %s: tensor<3xf32>, %g: tensor<4x3xf32>)
    -> (tensor<4x3xf32>, tensor<4x3xf32>, tensor<3xf32>) {
  %0:3 = "stablehlo.batch_norm_training"(%x, %s, %s) <{epsilon = 1.0e-3 : f32,
    feature_index = 1 : i64}> : (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>)
  %1 = "stablehlo.batch_norm_inference"(%x, %s, %s, %0#1, %0#2) <{epsilon = 1.0e-3 : f32,
    feature_index = 1 : i64}> : (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>,
    tensor<3xf32>) -> tensor<4x3xf32>
  %2:3 = "stablehlo.batch_norm_grad"(%x, %s, %0#1, %0#2, %g) <{epsilon = 1.0e-3 : f32,
    feature_index = 1 : i64}> : (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>,
    tensor<4x3xf32>) -> (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>)
  return %1, %2#0, %2#1 : tensor<4x3xf32>, tensor<4x3xf32>, tensor<3xf32>
}
"""


def test_batch_norm_comes_from_stablehlo(tmp_path):
    (tmp_path / "bn.mlir").write_text(STABLEHLO)
    x, scale, _, g = inputs((4, 3), 1, DType.F32, DType.F32)
    run = ncc_runtime.load(compile_file(tmp_path / "bn.mlir")).run([x, scale, g])
    variance = x.var(axis=0) + 1e-3
    u = (x - x.mean(axis=0)) / np.sqrt(variance)
    of_x = scale / np.sqrt(variance) * (g - g.mean(axis=0) - u * (g * u).mean(axis=0))
    for ours, right in zip(
        run.outputs, (u * scale + scale, of_x, (g * u).sum(axis=0)), strict=True
    ):
        np.testing.assert_allclose(ours[0], right, atol=1e-5)


RNG = """
func.func @main() -> (tensor<50xf32>, tensor<50xi32>) {
  %a = stablehlo.constant dense<2.0> : tensor<f32>
  %b = stablehlo.constant dense<3.0> : tensor<f32>
  %i = stablehlo.constant dense<-1> : tensor<i32>
  %j = stablehlo.constant dense<2> : tensor<i32>
  %s = stablehlo.constant dense<50> : tensor<1xi64>
  %0 = stablehlo.rng %a, %b, %s, distribution = UNIFORM
    : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<50xf32>
  %1 = stablehlo.rng %i, %j, %s, distribution = UNIFORM
    : (tensor<i32>, tensor<i32>, tensor<1xi64>) -> tensor<50xi32>
  return %0, %1 : tensor<50xf32>, tensor<50xi32>
}
"""


def test_rng_comes_from_stablehlo(tmp_path):
    (tmp_path / "rng.mlir").write_text(RNG)
    floats, integers = ncc_runtime.load(compile_file(tmp_path / "rng.mlir")).run([]).outputs
    assert ((floats >= 2) & (floats < 3)).all()
    assert set(integers.ravel().tolist()) == {-1, 0, 1}


@pytest.mark.parametrize(
    "line",
    [
        "f32[2,3] batch-norm-inference(%x, %v, %v, %v, %v), epsilon=1e-05, feature_index=1",
        "f32[7] rng(%s, %s), distribution=rng_normal",
        'f32[2,3] domain(%x), domain={kind="sharding", entry={replicated}, exit={replicated}}',
        "f32[2,3] add-dependency(%x, %t)",
        "pred[2,3] compare(%x, %x), direction=LT",
    ],
)
def test_xla_reads_what_is_printed(line):
    from jaxlib import _hlo

    from ncc_compiler.diagnostics import Source
    from ncc_compiler.ir.load import load_module
    from ncc_compiler.ir.text.printer import print_module

    head = "x = f32[2,3] parameter(0)\nv = f32[3] parameter(1)\ns = f32[] parameter(2)\n"
    module = load_module(Source("a.ir", f"{head}t = token[] after-all()\nROOT r = {line}\n"))
    theirs = _hlo.hlo_module_from_text(print_module(module)).to_string()
    again = load_module(Source("b.ir", theirs), 1)
    ours, read = (one.entry_computation.nodes[-1] for one in (module, again))
    assert (read.op, read.type, dict(read.attributes)) == (
        ours.op,
        ours.type,
        dict(ours.attributes),
    )
