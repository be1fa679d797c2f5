"""Runs as Python sees them: inputs that are missing, objects that print in one line."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import InputError
from ncc_runtime.runtime import Model

TEXT = """
ENTRY %two {
  %x = f32[16,4] parameter(0)
  %y = s32[] parameter(1)
  %c = f32[] convert(%y)
  %b = f32[16,4] broadcast(%c), dimensions={}
  ROOT %z = f32[16,4] add(%x, %b)
}
"""


@pytest.fixture(scope="module")
def model() -> Model:
    neff = ncc_compiler.compile_text(TEXT, ncc_compiler.CompileOptions(ranks=8))
    return ncc_runtime.load(neff)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], r"missing inputs: arg0 f32\[16,4\], arg1 s32\[\]; give them, or a seed"),
        ([np.zeros((16, 4), np.float32)], r"missing inputs: arg1 s32\[\];"),
        ({1: np.int32(3)}, r"missing inputs: arg0 f32\[16,4\];"),
    ],
)
def test_missing_inputs_are_named(model: Model, given: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        model.run(given)


def test_of_many_missing_inputs_some_are_named() -> None:
    lines = [f"%x{k} = f32[] parameter({k})" for k in range(20)]
    text = "ENTRY %m { " + " ".join(lines) + " ROOT %r = f32[] add(%x0, %x19) }"
    neff = ncc_compiler.compile_text(text, ncc_compiler.CompileOptions(ranks=2))
    with pytest.raises(InputError, match=r"arg7 f32\[\] and 12 more; give them"):
        ncc_runtime.load(neff).run([])


def test_a_seed_fills_what_is_missing(model: Model) -> None:
    ones = np.ones((16, 4), np.float32)
    first, again = (model.run([ones], seed=4).outputs[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, np.broadcast_to(first[:, :1, :1], first.shape))


def test_without_values_no_input_is_missing(model: Model) -> None:
    assert model.run(values=False).time_us


def test_a_program_without_parameters_misses_none() -> None:
    text = "ENTRY %m { ROOT %c = f32[] constant(3) }"
    neff = ncc_compiler.compile_text(text, ncc_compiler.CompileOptions(ranks=2))
    assert ncc_runtime.load(neff).run().outputs[0].tolist() == [3, 3]


def test_what_a_run_gives_prints_in_one_short_line(model: Model) -> None:
    neff = ncc_compiler.compile_text(TEXT, ncc_compiler.CompileOptions(ranks=8))
    run = model.run(seed=1)
    assert run.trace is not None
    executable = model.executable
    placed = (executable, executable.topology, executable.placement)
    for one in (neff, model, run, run.trace, run.trace.timelines[0], *run.traffic, *placed):
        assert len(repr(one)) < 200, type(one)
        assert "\n" not in repr(one)


def test_a_run_prints_what_it_has(model: Model) -> None:
    assert repr(model.run(seed=1, clock=False)) == "<Run: 1 outputs, 0 collectives, no clock>"


def test_a_collective_row_does_not_print_a_figure_for_each_rank() -> None:
    text = (
        "%add { %a = f32[] parameter(0) %b = f32[] parameter(1) ROOT %s = f32[] add(%a, %b) }\n"
        "ENTRY %m { %x = f32[16] parameter(0) ROOT %r = f32[16] all-reduce(%x), "
        "replica_groups={}, to_apply=%add }"
    )
    neff = ncc_compiler.compile_text(text, ncc_compiler.CompileOptions(ranks=64))
    (row,) = ncc_runtime.load(neff).run(values=False).collectives
    assert len(row.sent_by_rank) == 64
    assert "sent_by_rank" not in repr(row)
