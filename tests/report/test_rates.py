"""Steps and tokens in a second, and the part of the matrix engines' peak that is used."""

import re
from pathlib import Path

import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.codegen.generate import generate
from ncc_compiler.driver import load_text
from ncc_runtime.errors import InputError
from ncc_runtime.neff.check import check
from ncc_runtime.neff.listing import parse_program, print_program
from ncc_runtime.report.rates import PerStep, rates_json, rates_lines, rates_of
from tests.stage_programs import stage

ROOT = Path(__file__).parents[2]


def text(dtype: str, after: str = "", ranks: int = 2) -> str:
    return f"""HloModule dots, replica_count={ranks}
ENTRY e {{
 a = {dtype}[128,256] parameter(0)
 b = {dtype}[256,512] parameter(1)
 y = {dtype}[128,512] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
{after} ROOT r = {dtype}[128,512] negate(y)
}}
"""


def rates(hlo: str, per_step: str | int | None = None, topology: str = "trn2", **place):
    model = ncc_runtime.load(ncc_compiler.compile_text(hlo), topology, **place)
    run = model.run(values=False, verify=False)
    result = rates_of(run.trace, per_step)
    assert result is not None
    return result, run.time_us / 1e6


# published, of a physical core: trn2 79 Tflop/s in bf16 and 20 in f32; two cores at lnc 2
@pytest.mark.parametrize(
    ("dtype", "lnc", "peak"),
    [("bf16", 2, 158e12), ("bf16", 1, 79e12), ("f32", 2, 40e12), ("f16", 2, 158e12)],
)
def test_the_utilisation_is_flops_over_time_and_peak(dtype: str, lnc: int, peak: float) -> None:
    result, seconds = rates(text(dtype), lnc=lnc)
    flops = 2 * 128 * 256 * 512
    assert result.flops == 2 * flops
    assert result.peak_flops_per_s == peak
    assert result.model_flops_utilisation == pytest.approx(flops / (seconds * peak))
    assert result.steps_per_s == pytest.approx(1 / seconds)
    assert result.per_s("tokens") is None
    assert rates_json(result)["peak_dtype"] == dtype
    assert "AWS Neuron SDK docs" in result.peak_source


def test_of_mixed_types_the_peak_is_that_of_most_flops_and_the_rest_is_named() -> None:
    more = (
        " c = f32[128,64] parameter(2)\n d = f32[64,128] parameter(3)\n"
        " z = f32[128,128] dot(c, d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    )
    hlo = text("bf16", more)
    hlo = hlo.replace(
        "ROOT r = bf16[128,512] negate(y)",
        "n = bf16[128,512] negate(y)\n ROOT r = (bf16[128,512], f32[128,128]) tuple(n, z)",
    )
    result, seconds = rates(hlo)
    large, small = 2 * 128 * 256 * 512, 2 * 128 * 64 * 128
    assert {dtype.value: flops for dtype, flops in result.flops_by_dtype.items()} == {
        "bf16": 2 * large,
        "f32": 2 * small,
    }
    assert result.model_flops_utilisation == pytest.approx((large + small) / (seconds * 158e12))
    _, line = rates_lines(result)
    assert line.endswith("a rank, whose peak in bf16 is 158 Tflop/s; 5.9% of the flops are f32")


LOOP = """HloModule loop, replica_count=2
body { p = (s32[], f32[8,8]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 x = f32[8,8] get-tuple-element(p), index=1
 one = s32[] constant(1)
 j = s32[] add(i, one)
 y = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 ROOT t = (s32[], f32[8,8]) tuple(j, y) }
cond { p = (s32[], f32[8,8]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 n = s32[] constant(5)
 ROOT c = pred[] compare(i, n), direction=LT }
ENTRY e {
 x = f32[8,8] parameter(0)
 z = s32[] constant(0)
 t = (s32[], f32[8,8]) tuple(z, x)
 w = (s32[], f32[8,8]) while(t), condition=cond, body=body
 ROOT r = f32[8,8] get-tuple-element(w), index=1
}
"""


def test_products_in_a_loop_count_as_often_as_it_runs() -> None:
    assert rates(LOOP)[0].flops == 2 * 5 * 2 * 8**3


def test_tokens_are_those_of_one_run() -> None:
    result, seconds = rates(text("bf16"), 4096)
    assert result.per_s("tokens") == pytest.approx(4096 / seconds)
    assert next(rates_lines(result)).endswith(f"{4096 / seconds:,.1f} tokens/s")


@pytest.mark.parametrize(
    ("words", "amount", "unit"),
    [
        ("8192 tokens", 8192, "tokens"),
        ("8,192 tokens", 8192, "tokens"),
        ("8_192", 8192, "tokens"),
        (" 32  sequences ", 32, "sequences"),
        ("1 step", 1, "steps"),
        ("2 step", 2, "steps"),
        ("8192 token", 8192, "tokens"),
        ("1,048,576", 1 << 20, "tokens"),
        ("007 tokens", 7, "tokens"),
        ("1 batch", 1, "batches"),
        ("12 training images", 12, "training images"),
    ],
)
def test_what_a_run_does_is_an_amount_of_a_plural_noun(words: str, amount: int, unit: str) -> None:
    assert PerStep.parse(words) == PerStep(amount, unit)


@pytest.mark.parametrize(
    "words",
    [
        *("", "tokens", "0 tokens", "-3 tokens", "1.5 tokens", "8 to/ks"),
        *("1,5 tokens", "1e3 tokens", "8192tokens", "1__0 tokens"),
        pytest.param("9" * 5000 + " tokens", id="more digits than Python reads"),
    ],
)
def test_anything_else_is_refused(words: str) -> None:
    with pytest.raises(InputError, match=re.escape(repr(words))):
        PerStep.parse(words)


def test_of_any_unit_it_is_told_how_many_a_second() -> None:
    result, seconds = rates(text("bf16"), "32 sequences")
    assert result.per_s("sequences") == pytest.approx(32 / seconds)
    assert rates_json(result)["per_step"] == {
        "amount": 32,
        "unit": "sequences",
        "per_s": result.per_s("sequences"),
    }
    assert rates_json(result)["tokens_per_s"] is None
    line = next(rates_lines(result))
    assert "where one run is a step of 32 sequences, " in line
    assert line.endswith(" sequences/s")


def test_a_run_of_several_steps_counts_as_many() -> None:
    result, seconds = rates(text("bf16"), "4 steps")
    assert result.steps_per_s == pytest.approx(4 / seconds)
    assert next(rates_lines(result)).endswith(" steps/s, where one run is 4 steps")


def test_a_run_from_python_tells_its_rates() -> None:
    run = ncc_runtime.load(ncc_compiler.compile_text(text("bf16"))).run(values=False, verify=False)
    result = run.rates("64 tokens")
    assert result is not None
    assert result.as_dict() == run.as_dict("64 tokens")["rates"]
    assert str(result).splitlines() == list(rates_lines(result))


AGAIN = """HloModule again
ENTRY e {
 x = f32[8,16] parameter(0)
 w = f32[16,32] parameter(1)
 v = f32[16,32] parameter(2)
 y = f32[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 t = (f32[8,16], f32[8,32]) tuple(x, y)
 b = (f32[8,16], f32[8,32]) opt-barrier(t)
 c = f32[8,16] get-tuple-element(b), index=0
 z = f32[8,32] dot(c, OTHER), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={NAME}
 u = f32[8,32] get-tuple-element(b), index=1
 ROOT r = f32[8,32] multiply(z, u)
}
"""


@pytest.mark.parametrize(
    ("other", "name", "is_repeated"),
    [
        ("w", "", True),
        ("v", "", False),
        ("v", 'op_name="jit(f)/checkpoint/rematted_computation/dot_general"', True),
    ],
)
def test_what_is_computed_again_counts_for_the_hardware_only(
    other: str, name: str, is_repeated: bool
) -> None:
    hlo = AGAIN.replace("OTHER", other).replace("NAME", name)
    neff = ncc_compiler.compile_text(hlo, ncc_compiler.CompileOptions(level=0, ranks=1))
    result = rates_of(ncc_runtime.load(neff).run(values=False, verify=False).trace)
    assert result is not None
    flops = 2 * 8 * 16 * 32
    assert (result.flops, result.repeated_flops) == (2 * flops, flops * is_repeated)
    model, hardware = result.model_flops_utilisation, result.hardware_flops_utilisation
    assert hardware == pytest.approx(model * (1 + is_repeated))
    assert ("hardware flops utilisation" in str(result)) == is_repeated


def test_products_of_other_values_are_not_repeated_though_their_lines_are() -> None:
    """A chain x -> x @ w -> (x @ w) @ w: the same line of the source, as in a loop over layers."""
    line = 'metadata={source_file="model.py" source_line=3}'
    dots = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    hlo = f"""HloModule chain
ENTRY e {{
 x = f32[8,8] parameter(0)
 w = f32[8,8] parameter(1)
 y = f32[8,8] dot(x, w), {dots}, {line}
 ROOT z = f32[8,8] dot(y, w), {dots}, {line}
}}
"""
    assert rates(hlo)[0].repeated_flops == 0


FUSED = """HloModule fused
%again (a: f32[8,16], b: f32[16,32]) -> f32[8,32] {
 %a = f32[8,16] parameter(0)
 %b = f32[16,32] parameter(1)
 %n = f32[8,16] negate(%a)
 %d = f32[8,32] dot(%n, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 ROOT %t = f32[8,32] tanh(%d)
}
ENTRY e {
 x = f32[8,16] parameter(0)
 w = f32[16,32] parameter(1)
 n = f32[8,16] OP(x)
 y = f32[8,32] dot(n, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 z = f32[8,32] fusion(x, w), kind=kOutput, calls=%again
 ROOT r = f32[8,32] multiply(z, y)
}
"""


@pytest.mark.parametrize(("op", "is_repeated"), [("negate", True), ("abs", False)])
def test_a_product_inside_a_fusion_may_be_that_of_an_instruction(
    op: str, is_repeated: bool
) -> None:
    program = generate(load_text(FUSED.replace("OP", op), ranks=1))
    assert any("fusion" in table.names() for table in program.queues.values())
    result = rates_of(ncc_runtime.load(program).run(values=False, verify=False).trace)
    assert result is not None
    flops = 2 * 8 * 16 * 32
    assert (result.flops, result.repeated_flops) == (2 * flops, flops * is_repeated)


def test_a_loops_state_is_another_value_at_every_turn() -> None:
    hlo = LOOP.replace(
        "ROOT t = (s32[], f32[8,8]) tuple(j, y)",
        "q = f32[8,8] dot(y, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        " ROOT t = (s32[], f32[8,8]) tuple(j, q)",
    )
    result = rates(hlo)[0]
    assert result.flops == 2 * 2 * 5 * 2 * 8**3
    assert result.repeated_flops == 0


def test_an_output_that_is_updated_as_itself_in_an_inputs_memory_is_a_value() -> None:
    hlo = """HloModule donated, input_output_alias={ {0}: (0, {}, may-alias) }
ENTRY e {
 w = f32[16,8] parameter(0)
 row = f32[1,8] parameter(1)
 i = s32[] parameter(2)
 z = s32[] constant(0)
 u = f32[16,8] dynamic-update-slice(w, row, i, z)
 y = f32[16,16] dot(u, u), lhs_contracting_dims={1}, rhs_contracting_dims={1}
 ROOT t = (f32[16,8], f32[16,16]) tuple(u, y)
}
"""
    listing = print_program(ncc_compiler.compile_text(hlo).program)
    assert "t4 = t0, t1" in listing  # what the input has is read as the output's, which is there
    program = parse_program(listing.replace("t4 = t0, t1", "t4 = t4, t1"))
    assert check(program) == ()
    result = rates_of(ncc_runtime.load(program).run(values=False, verify=False).trace)
    assert result is not None
    assert (result.flops, result.repeated_flops) == (2 * 16 * 8 * 16, 0)


def test_without_matrix_products_there_is_no_utilisation() -> None:
    body = "x = f32[8] parameter(0)\n ROOT n = f32[8] negate(x)"
    hlo = f"HloModule n, replica_count=2\nENTRY e {{ {body} }}\n"
    result, _ = rates(hlo)
    assert result.model_flops_utilisation is None
    assert len(list(rates_lines(result))) == 1
    found = rates_json(result)
    assert found["matrix_flops"] == 0
    assert found["peak_dtype"] is found["peak_flops_per_s_of_a_rank"] is None


def test_one_instance_that_stands_for_all_counts_for_all() -> None:
    neff = ncc_compiler.compile_text(text("bf16", ranks=128))
    found = []
    for times_only in (True, False):
        model = ncc_runtime.load(neff, "trn2", times_only=times_only)
        run = model.run(values=False, verify=False)
        found.append((model.executable.representatives, rates_of(run.trace)))
    assert [ranks for ranks, _ in found] == [64, 128]
    assert found[0][1] == found[1][1]
    assert found[0][1].flops == 128 * 2 * 128 * 256 * 512


def test_ranks_of_several_programs_count_their_own_products() -> None:
    body = (
        "a = f32[{n},8] parameter(0)\n  b = f32[8,8] parameter(1)\n"
        "  ROOT y = f32[{n},8] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    )
    parts = [(stage(body.format(n=8)), range(3)), (stage(body.format(n=16)), range(3, 8))]
    run = ncc_runtime.load(parts, "trn2").run(values=False)
    result = rates_of(run.trace)
    assert result is not None
    assert result.flops == 3 * 2 * 8**3 + 5 * 2 * 16 * 8 * 8


@pytest.mark.slow
def test_of_a_llama_step_the_flops_are_about_six_for_each_parameter_and_token() -> None:
    """Kaplan et al., 2020, table 1: 2 N forward, 4 N backward; attention comes on top."""
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/llama_4l_64ranks.hlo")
    run = ncc_runtime.load(neff, "trn2", times_only=True).run(values=False, verify=False)
    program = neff.program
    sharded = [program.tensors[tensor] for tensor in program.inputs]
    parameters = 64 * sum(
        one.elements for one in sharded if len(one.shape) == 2 and one.dtype.is_float
    )
    result = rates_of(run.trace, 16 * 2048)
    assert result is not None
    assert result.flops / (6 * parameters * 16 * 2048) == pytest.approx(1.05, abs=0.1)
    assert next(iter(result.flops_by_dtype)).value == "bf16"
