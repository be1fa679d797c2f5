"""Ops with windows and numerical methods as instructions: engine, attributes, costs."""

import pytest

from ncc_compiler.diagnostics import CompileError
from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.table import Instr
from tests.compiler.small_modules import SUM
from tests.compiler.small_programs import compiled

REGIONS = (
    SUM
    + """%ge {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %r = pred[] compare(%a, %b), direction=GE
}
%odd {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %c = f32[] add(%a, %a)
  ROOT %r = f32[] add(%c, %b)
}
"""
)


def only(program: Program, opcode: str) -> tuple[Engine, Instr]:
    ((engine, row),) = [
        (engine, row)
        for engine in ENGINES
        for row in program.queues[engine]
        if row.opcode == opcode
    ]
    return engine, row


LABELS = "dim_labels=b01f_01io->b01f"


def test_a_convolution_runs_on_the_tensor_engine_and_is_charged_its_products() -> None:
    program = compiled(
        "x = f32[2,8,8,4] parameter(0)",
        "k = f32[3,3,2,6] parameter(1)",
        "r = f32[2,8,8,6] convolution(x, k), window={size=3x3 pad=1_1x1_1}, "
        f"{LABELS}, feature_group_count=2",
    )
    engine, row = only(program, "convolution")
    assert engine is Engine.TENSOR
    assert row.flops == 2 * (2 * 8 * 8 * 6) * (3 * 3 * 2)
    assert program.attributes[row.attribute] == {
        "window": "{size=3x3 pad=1_1x1_1}",
        "dim_labels": "b01f_01io->b01f",
        "feature_groups": 2,
        "batch_groups": 1,
    }


@pytest.mark.parametrize(("region", "engine"), [("sum", Engine.VECTOR), ("odd", Engine.GPSIMD)])
def test_the_region_says_which_engine_folds_under_a_window(region: str, engine: Engine) -> None:
    program = compiled(
        "x = f32[6,6] parameter(0)",
        "s = f32[] parameter(1)",
        f"r = f32[5,4] reduce-window(x, s), window={{size=2x3}}, to_apply=%{region}",
        before=REGIONS,
    )
    found, row = only(program, "reduce-window")
    assert found is engine
    assert row.elements == 5 * 4 * 6
    number = program.attributes[row.attribute]["region"]
    assert program.regions[number].name == region


def test_a_selection_has_two_regions() -> None:
    program = compiled(
        "x = f32[6] parameter(0)",
        "y = f32[3] parameter(1)",
        "s = f32[] parameter(2)",
        "r = f32[6] select-and-scatter(x, y, s), window={size=2 stride=2}, "
        "select=%ge, scatter=%sum",
        before=REGIONS,
    )
    engine, row = only(program, "select-and-scatter")
    attributes = program.attributes[row.attribute]
    names = [program.regions[attributes[f"{k}_region"]].name for k in ("select", "scatter")]
    assert (engine, names) == (Engine.GPSIMD, ["ge", "sum"])


@pytest.mark.parametrize(
    ("line", "opcode", "elements"),
    [
        ("c64[4,9] fft(x), fft_type=RFFT, fft_length={16}", "fft", 4 * 9 * 5),
        ("f32[4,4] cholesky(q), lower=true", "cholesky", 4 * 4 * 4),
        ("f32[4,16] triangular-solve(q, x), left_side=true", "triangular-solve", 4 * 16 * 4),
        ("(u64[2], u32[5]) rng-bit-generator(u), algorithm=rng_philox", "rng-bit-generator", 7),
    ],
)
def test_a_method_runs_on_gpsimd_and_is_charged_its_steps(
    line: str, opcode: str, elements: int
) -> None:
    program = compiled(
        "x = f32[4,16] parameter(0)",
        "q = f32[4,4] parameter(1)",
        "u = u64[2] parameter(2)",
        f"r = {line}",
    )
    engine, row = only(program, opcode)
    assert (engine, row.elements) == (Engine.GPSIMD, elements)


def test_more_operations_than_can_be_counted_are_refused() -> None:
    with pytest.raises(CompileError, match="codegen-C4"):
        compiled(
            "x = f32[6,6,6] parameter(0)",
            "s = f32[] parameter(1)",
            "r = f32[6,6,6] reduce-window(x, s), window={size=99999999x99999999x99999999 "
            "pad=99999998_0x99999998_0x99999998_0}, to_apply=%sum",
        )
