"""A model that runs again, and a loop that goes on, compute what the first run and trip compute."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_runtime.execution.values import devices
from ncc_runtime.execution.values.kernels.bound import bound
from ncc_runtime.neff.program import FusedInstr, Fusion, ValueType
from ncc_runtime.neff.shared.dtypes import DType
from tests.draws_graphs import Case, cases
from tests.draws_loops import inputs_of, looping_modules
from tests.example_count import examples

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(
    path
    for folder in ("ir_examples", "tests/data/hlo")
    for path in (ROOT / folder).iterdir()
    if path.suffix in (".ir", ".hlo") and "llama" not in path.name
)


def bits(run: ncc_runtime.Run) -> list[bytes]:
    return [array.tobytes() for array in run.outputs]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), level=st.sampled_from([0, 1]), turn=st.integers(1, 3))
def test_calls_made_for_a_program_have_the_bits_of_its_rows(case: Case, level: int, turn: int):
    """Also for other inputs: those of each rank go to another one."""
    options = ncc_compiler.CompileOptions(level=level)
    neff = ncc_compiler.compile_text(print_module(case.module), options=options)
    model = ncc_runtime.load(neff, "trn1")
    inputs = [list(case.inputs), [np.roll(array, turn, 0) for array in case.inputs]]
    by_rows = [bits(model.run(given, checked=True, clock=False)) for given in inputs]
    for _ in range(3):
        for given_arrays, wanted in zip(inputs, by_rows, strict=True):
            assert bits(model.run(given_arrays, clock=False)) == wanted


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(module=looping_modules(), level=st.sampled_from([0, 1]), at_first=st.integers(0, 2))
def test_a_trip_by_calls_has_the_bits_of_a_trip_by_rows(module, level, at_first):
    options = ncc_compiler.CompileOptions(level=level)
    model = ncc_runtime.load(ncc_compiler.compile_text(print_module(module), options=options))
    array = inputs_of(module)
    wanted = bits(model.run([array], checked=True, clock=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "RUNS_BEFORE_CALLS", at_first)
        assert bits(model.run([array], clock=False)) == wanted
        assert bits(model.run([array], clock=False)) == wanted


LARGE = "mlp_train_dp8.hlo", "data_parallel_step.ir"
"""Programs whose literal runs take many seconds."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path.name in LARGE else [], id=path.name)
        for path in PROGRAMS
    ],
)
def test_real_programs_compute_the_same_again(path: Path):
    model = ncc_runtime.load(ncc_compiler.compile_file(path))
    wanted = bits(model.run(seed=0, checked=True, clock=False))
    for seed in (0, 1, 0):
        found = bits(model.run(seed=seed, clock=False))
        assert (found == wanted) == (seed == 0)


def test_a_bitcast_that_changes_the_shape_does_the_same_again():
    text = """HloModule m, replica_count=2
ENTRY main {
  x = f32[3,2] parameter(0)
  a = u8[3,2,4] bitcast-convert(x)
  b = f32[3,2] bitcast-convert(a)
  ROOT y = f32[3,2] add(b, b)
}"""
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    inputs = [np.full((2, 3, 2), value, np.float32) for value in (1.5, -0.1)]
    for array in (*inputs, *inputs):
        np.testing.assert_array_equal(model.run([array], clock=False).outputs[0], array + array)


def test_results_that_lie_on_one_another_s_operands_are_saved_first():
    """Two values swap places; each is its operand in another shape, so nothing computes it anew."""
    program = ncc_compiler.compile_text("ENTRY e { ROOT x = f32[1] parameter(0) }").program
    flat, square = ValueType(DType.F32, (8,)), ValueType(DType.F32, (2, 4))
    body = (FusedInstr("reshape", (2,), (0,)), FusedInstr("reshape", (3,), (1,)))
    fusion = Fusion("swapped", (flat, flat, square, square), 2, body, (3, 2))
    memory = np.arange(16, dtype=np.float32).reshape(1, 16)  # of one rank: without gaps
    operands = [memory[:, :8], memory[:, 8:]]
    results = [one.reshape(1, 2, 4) for one in operands]
    for call in bound(program, fusion, np.arange(1), operands, results, [False, False]):
        call()
    assert memory[0].tolist() == [*range(8, 16), *range(8)]
