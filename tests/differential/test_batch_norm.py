"""Batch normalisation: what the executor makes of it against its definition in double precision."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.shared.dtypes import DType
from tests.reference_runs import run_text

SHAPES = [((4, 3), 1), ((4, 3), 0), ((2, 5, 3, 4), 1), ((2, 3, 6), 2), ((7,), 0), ((3, 0, 2), 2)]
TOLERANCE = {DType.F64: 1e-12, DType.F32: 1e-5, DType.F16: 3e-3, DType.BF16: 2e-2}


def program(shape: tuple[int, ...], feature: int, own: str, other: str) -> str:
    """All three, the last two on what the first gives."""
    whole = f"{own}[{','.join(map(str, shape))}]"
    features = f"{other}[{shape[feature]}]"
    common = f"epsilon=0.001, feature_index={feature}"
    triple = f"({whole}, {features}, {features})"
    return f"""
x = {whole} parameter(0)
scale = {features} parameter(1)
offset = {features} parameter(2)
g = {whole} parameter(3)
trained = {triple} batch-norm-training(x, scale, offset), {common}
y = {whole} get-tuple-element(trained), index=0
mean = {features} get-tuple-element(trained), index=1
variance = {features} get-tuple-element(trained), index=2
z = {whole} batch-norm-inference(y, scale, offset, mean, variance), {common}
slopes = {triple} batch-norm-grad(x, scale, mean, variance, g), {common}
ROOT all = ({triple}, {whole}, {triple}) tuple(trained, z, slopes)
"""


def inputs(shape: tuple[int, ...], feature: int, own: DType, other: DType) -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    size = (shape[feature],)
    whole, features = ((shape, own), (size, other))
    kinds = [whole, features, features, whole]
    return [(draw.standard_normal(s) + 0.5).astype(dtype.numpy) for s, dtype in kinds]


def assert_near(ours: np.ndarray, right: np.ndarray) -> None:
    """Within the rounding of the result's type, of its largest element."""
    assert (ours.shape, ours.dtype) == (right.shape, right.dtype)
    wide, wanted = ours.astype(np.float64), right.astype(np.float64)
    names = {dtype.numpy: tolerance for dtype, tolerance in TOLERANCE.items()}
    most = np.abs(wanted).max(initial=0.0, where=np.isfinite(wanted))
    np.testing.assert_allclose(wide, wanted, rtol=0, atol=names[right.dtype] * max(most, 1e-3))


@pytest.mark.parametrize(("shape", "feature"), SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.value)
def test_batch_norm_is_what_its_definition_says(dtype, shape, feature):
    text = program(shape, feature, dtype.value, dtype.value)
    given = inputs(shape, feature, dtype, dtype)
    outputs = ncc_runtime.load(ncc_compiler.compile_text(text)).run(given).outputs
    with np.errstate(all="ignore"):
        wanted = run_text(text, *(one[None] for one in given))
    for ours, right in zip(outputs, wanted, strict=True):
        assert_near(ours, right)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_operands_of_several_widths_are_computed_in_the_widest_and_rounded_once(level):
    text = program((4, 3, 5), 1, "bf16", "f32")
    given = inputs((4, 3, 5), 1, DType.BF16, DType.F32)
    neff = ncc_compiler.compile_text(text, CompileOptions(level=level))
    outputs = ncc_runtime.load(neff).run(given).outputs
    for ours, right in zip(outputs, run_text(text, *(one[None] for one in given)), strict=True):
        assert_near(ours, right)


def test_the_variance_beside_a_large_mean_is_exact():
    """As StableHLO computes it: the squared mean is not subtracted from the mean of squares."""
    text = """
x = f32[4,1] parameter(0)
s = f32[1] parameter(1)
t = (f32[4,1], f32[1], f32[1]) batch-norm-training(x, s, s), epsilon=0, feature_index=1
ROOT v = f32[1] get-tuple-element(t), index=2
"""
    x = np.array([[10000.0], [10001.0], [10000.0], [10001.0]], np.float32)
    run = ncc_runtime.load(ncc_compiler.compile_text(text)).run([x, np.ones(1, np.float32)])
    assert run.outputs[0].item() == 0.25


def test_derivatives_are_those_of_what_training_computes():
    shape, step = (3, 2, 4), 1e-6
    x, scale, offset, g = inputs(shape, 1, DType.F64, DType.F64)
    model = ncc_runtime.load(ncc_compiler.compile_text(program(shape, 1, "f64", "f64")))

    def weighted(*given: np.ndarray) -> float:
        return float((model.run([*given, g]).outputs[0][0] * g).sum())

    found = model.run([x, scale, offset, g]).outputs[4:]
    for number, slopes in enumerate(found):
        index = tuple(size - 1 for size in slopes[0].shape)
        moved = [[one.copy() for one in (x, scale, offset)] for _ in range(2)]
        moved[0][number][index] += step
        moved[1][number][index] -= step
        difference = (weighted(*moved[0]) - weighted(*moved[1])) / (2 * step)
        assert slopes[0][index] == pytest.approx(difference, rel=1e-6, abs=1e-7)


def test_batch_norms_in_a_loop_and_beside_it_share_one_region():
    text = """
HloModule looped
sum_f32 {
  a = f32[] parameter(0)
  ROOT r = f32[] negate(a)
}
more {
  s = (s32[], f32[4,3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT r = pred[] compare(i, three), direction=LT
}
turn {
  s = (s32[], f32[4,3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4,3] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  k = f32[3] constant({1, 2, 3})
  y = f32[4,3] batch-norm-inference(x, k, k, k, k), epsilon=1e-3, feature_index=1
  ROOT r = (s32[], f32[4,3]) tuple(next, y)
}
ENTRY main {
  x = f32[4,3] parameter(0)
  k = f32[3] constant({1, 2, 3})
  t = (f32[4,3], f32[3], f32[3]) batch-norm-training(x, k, k), epsilon=1e-3, feature_index=1
  y = f32[4,3] get-tuple-element(t), index=0
  v = f32[3] get-tuple-element(t), index=2
  zero = s32[] constant(0)
  start = (s32[], f32[4,3]) tuple(zero, y)
  ROOT w = (s32[], f32[4,3]) while(start), condition=more, body=turn
}
"""
    x = np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)
    outputs = ncc_runtime.load(ncc_compiler.compile_text(text)).run([x]).outputs
    for ours, right in zip(outputs, run_text(text, x[None]), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-5)
