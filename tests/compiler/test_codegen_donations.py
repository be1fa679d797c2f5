"""Outputs in the memory of donated inputs: when they are, when not, and what a program computes."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.isa import ENGINES
from ncc_runtime.neff.program import Program
from tests.reference_runs import run_text

STEP = """HloModule step, input_output_alias={{ {{0}}: (0, {{}}, may-alias), {{1}}: (1, {{}}) }}
ENTRY step {{
  w = f32[4,8] parameter(0)
  c = f32[16,8] parameter(1)
  x = f32[4,8] parameter(2)
  z = s32[] constant(0)
  {lines}
}}"""
UPDATES = """g = f32[4,8] multiply(w, x)
  h = f32[4,8] subtract(w, g)
  u = f32[1,8] slice(h), slice={[0:1],[0:8]}
  d = f32[16,8] dynamic-update-slice(c, u, z, z)
  s = f32[4,8] slice(d), slice={[0:4],[0:8]}
  ROOT t = (f32[4,8], f32[16,8], f32[4,8]) tuple(h, d, s)"""
SHAPES = (4, 8), (16, 8), (4, 8)


def arrays() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.standard_normal((1, *shape)).astype(np.float32) for shape in SHAPES]


def step(lines: str) -> Program:
    return ncc_compiler.compile_text(STEP.format(lines=lines)).program


def donated(program: Program) -> set[tuple[int, int]]:
    """Numbers of outputs and inputs in one place."""
    pairs = program.donated()
    return {
        (output, number)
        for output, one in enumerate(program.outputs)
        for number, other in enumerate(program.inputs)
        if pairs.get(program.tensors[one].buffer) == program.tensors[other].buffer
    }


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_state_is_in_memory_once(level: int) -> None:
    neff = ncc_compiler.compile_text(STEP.format(lines=UPDATES), CompileOptions(level=level))
    assert donated(neff.program) == {(0, 0), (1, 1)}
    sizes = 128 + 512 + 128 + 64 + 128  # w, c, x, z, s
    assert neff.program.hbm_bytes == sizes
    update = next(
        row
        for engine in ENGINES
        for row in neff.program.queues[engine]
        if row.opcode == "dynamic-update-slice"
    )
    assert update.bytes_out == 32  # its slice only


TUPLE = "ROOT t = (f32[4,8], f32[16,8], f32[4,8]) tuple"


@pytest.mark.parametrize(
    ("lines", "pairs"),
    [
        (f"{TUPLE}(w, c, x)", {(0, 0), (1, 1)}),  # passed through
        (f"h = f32[4,8] negate(w)\n {TUPLE}(h, c, w)", {(1, 1)}),  # w is read behind h
        (f"h = f32[4,8] reverse(w), dimensions={{0}}\n {TUPLE}(h, c, x)", {(1, 1)}),
        (f"h = f32[4,8] add(w, w)\n {TUPLE}(h, c, x)", {(0, 0), (1, 1)}),
        (f"{TUPLE}(x, c, w)", {(1, 1)}),
        (
            "m = f32[8,8] dot(w, w), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
            "h = f32[4,8] dot(x, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
            f"{TUPLE}(h, c, x)",
            {(0, 0), (1, 1)},
        ),
    ],
)
def test_an_input_is_overwritten_once_nobody_reads_it(
    lines: str, pairs: set[tuple[int, int]]
) -> None:
    text = STEP.format(lines=lines)
    neff = ncc_compiler.compile_text(text)
    assert donated(neff.program) == pairs
    model = ncc_runtime.load(neff)
    expected = run_text(text, *arrays())
    for shuffle_seed in (None, 1, 2):
        found = model.run(arrays(), checked=True, shuffle_seed=shuffle_seed).outputs
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


CARRIED = """HloModule decode, input_output_alias={ {1}: (0, {}) }
below { p = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}
body { p = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  c = f32[4,8] get-tuple-element(p), index=1
  z = s32[] constant(0)
  k = s32[] constant(1)
  row = f32[1,8] dynamic-slice(c, i, z), dynamic_slice_sizes={1,8}
  twice = f32[1,8] add(row, row)
  j = s32[] add(i, k)
  d = f32[4,8] dynamic-update-slice(c, twice, j, z)
  ROOT t = (s32[], f32[4,8]) tuple(j, d)
}
ENTRY main {
  c = f32[4,8] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[4,8]) tuple(z, c)
  ROOT w = (s32[], f32[4,8]) while(t), condition=below, body=body
}"""


def test_a_cache_that_a_loop_carries_is_nowhere_copied() -> None:
    neff = ncc_compiler.compile_text(CARRIED)
    assert donated(neff.program) == {(1, 0)}
    copied = [
        row.bytes_out
        for engine in ENGINES
        for row in neff.program.queues[engine]
        if row.opcode == "copy"
    ]
    assert max(copied, default=0) <= 4
    cache = arrays()[0]
    found = ncc_runtime.load(neff).run([cache], checked=True).outputs
    for one, other in zip(found, run_text(CARRIED, cache), strict=True):
        np.testing.assert_array_equal(one, other)


def test_runs_and_steps_begin_with_the_inputs_that_were_given() -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(STEP.format(lines=UPDATES)))
    w, c, x = arrays()
    first, second = (model.run([w, c, x]).outputs for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)

    def after(w: np.ndarray, c: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
        h, d = w - w * x, c.copy()
        d[:, 0] = h[:, 0]
        return h, d, d[:, 0:4]

    feeds: tuple[dict[str, str] | None, ...] = (
        None,
        {"out2": "arg2"},
        {"out0": "arg2", "out2": "arg0"},
    )
    for feed in feeds:
        state = [w, c, x]
        pairs = {"out0": "arg0", "out1": "arg1"} if feed is None else feed
        for run in model.run_steps(3, [w, c, x], feed=feed):
            results = after(*state)
            for one, other in zip(run.outputs, results, strict=True):
                np.testing.assert_array_equal(one, other)
            for output, number in pairs.items():
                state[int(number[3:])] = results[int(output[3:])]
