"""Constants of equal elements that begin a value in place: filled there, and stored nowhere."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.program import BufferKind
from tests.reference_runs import run_text

STACK = """HloModule scan
below { p = (s32[], f32[4,64], f32[4,64], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(4)
  ROOT c = pred[] compare(i, n), direction=LT
}
body { p = (s32[], f32[4,64], f32[4,64], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = f32[4,64] get-tuple-element(p), index=1
  b = f32[4,64] get-tuple-element(p), index=2
  x = f32[64] get-tuple-element(p), index=3
  z = s32[] constant(0)
  k = s32[] constant(1)
  y = f32[64] tanh(x)
  r = f32[1,64] reshape(y)
  d = f32[4,64] dynamic-update-slice(a, r, i, z)
  e = f32[4,64] dynamic-update-slice(b, r, z, z)
  j = s32[] add(i, k)
  ROOT t = (s32[], f32[4,64], f32[4,64], f32[64]) tuple(j, d, e, y)
}
ENTRY main {
  x = f32[64] parameter(0)
  o = f32[] constant(0)
  zero = s32[] constant(0)
  f = f32[4,64] broadcast(o), dimensions={}
  t = (s32[], f32[4,64], f32[4,64], f32[64]) tuple(zero, f, f, x)
  w = (s32[], f32[4,64], f32[4,64], f32[64]) while(t), condition=below, body=body
  a = f32[4,64] get-tuple-element(w), index=1
  b = f32[4,64] get-tuple-element(w), index=2
  ROOT r = (f32[4,64], f32[4,64]) tuple(a, b)
}"""


@pytest.mark.parametrize("level", [1, 2])
def test_the_stacks_of_a_scan_are_in_memory_once(level: int) -> None:
    neff = ncc_compiler.compile_text(STACK, CompileOptions(level=level))
    constants = [one for one in neff.program.buffers if one.kind is BufferKind.CONSTANT]
    assert max(one.size_bytes for one in constants) == 4
    assert neff.program.hbm_bytes < 256 + 2 * 1024 + 1024
    x = np.linspace(-2, 2, 64, dtype=np.float32).reshape(1, 64)
    found = ncc_runtime.load(neff).run([x], checked=True).outputs
    for one, other in zip(found, run_text(STACK, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_small_arrays_and_others_stay_constants() -> None:
    text = STACK.replace("constant(0)\n  zero", "constant(-0)\n  zero")
    options = CompileOptions(level=1, pass_options={"fill-arrays.limit_bytes": "1024"})
    program = ncc_compiler.compile_text(text, options).program
    sizes = [one.size_bytes for one in program.buffers if one.kind is BufferKind.CONSTANT]
    assert max(sizes) == 1024
