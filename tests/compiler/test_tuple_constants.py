"""Constants that are tuples, and ops that add nothing to what their operand is."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import CompileError
from ncc_compiler.options import CompileOptions
from tests.compiler.reading import complaints, load
from tests.reference_runs import run_text


def outputs_of(text: str, *inputs: np.ndarray) -> list[np.ndarray]:
    """What every level computes and the reference says, of the one rank."""
    wanted = run_text(text, *(one[None] for one in inputs))
    for level in (0, 1, 2):
        model = ncc_runtime.load(ncc_compiler.compile_text(text, CompileOptions(level=level)))
        for ours, right in zip(model.run(list(inputs)).outputs, wanted, strict=True):
            np.testing.assert_array_equal(ours, right)
    return [one[0] for one in wanted]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("(f32[2], s32[]) constant(({1, 2}, 3))", [[1, 2], 3]),
        ("(s32[]) constant((7))", [7]),
        (
            "(c64[], pred[2]) constant(( (1, -2), /* a, b */ {true, false} ))",
            [1 - 2j, [True, False]],
        ),
        (
            "((s32[2,2], f32[]), (s8[0], (u8[]))) constant((({{1,2},{3,4}}, inf), ({}, (9))))",
            [[[1, 2], [3, 4]], np.inf, [], 9],
        ),
        (
            "((s32[]), (s32[], pred[])) constant(/*0*/ ((5), /*index=1, (*/ (3 /*)*/, true)) )",
            [5, 3, True],
        ),
        ("(f32[2]{0}, s32[]) constant((\n  f32[2] {1, 2},\n  3\n))", [[1, 2], 3]),
    ],
)
def test_a_tuple_constant_holds_what_it_says(line, values):
    found = outputs_of(f"ROOT t = {line}\n")
    assert [one.tolist() for one in found] == values


def test_a_tuple_constant_starts_a_loop():
    text = """
few {
  s = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(4)
  ROOT r = pred[] compare(i, n), direction=LT
}
turn {
  s = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[2] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[2] add(x, x)
  ROOT r = (s32[], f32[2]) tuple(j, y)
}
ENTRY main {
  c = (s32[], f32[2]) constant((1, {1, 3}))
  c.0 = (s32[], f32[2]) while(c), condition=few, body=turn
  ROOT x = f32[2] get-tuple-element(c.0), index=1
}
"""
    assert outputs_of(text)[0].tolist() == [8, 24]


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("(f32[2], s32[]) constant(({1, 2}))", "1:35 literal-C1"),
        ("(f32[2], s32[]) constant({1, 2})", "1:35 literal-C1"),
        ("(f32[2], s32[]) constant(({1, 2}, 3)) ", ""),
        ("(f32[2], s32[]) constant(({1, 2, 3}, 3))", "1:36 literal-C1"),
        ("(f32[2], s32[]) constant(({1, 2}, 3.5))", "1:44 literal-C2"),
        ("() constant((1))", "1:22 literal-C1"),
        ("(s32[], s32[]) constant((1, 2), (3))", "1:34 literal-C1"),
        ("(s32[]) constant({...})", "1:27 literal-C3"),
    ],
)
def test_a_literal_that_does_not_fit_its_tuple_is_refused_at_its_place(line, place):
    assert complaints(f"ROOT r = {line}\n") == ([place] if place else [])


def test_values_of_a_tuple_may_be_left_out():
    module = load(
        "t = (f32[2], f32[3]) constant({...})\nROOT x = f32[3] get-tuple-element(t), index=1"
    )
    assert [node.has_value() for node in module.entry_computation.nodes[:2]] == [False, False]


def test_an_empty_tuple_is_a_constant():
    assert outputs_of(
        "x = f32[] parameter(0)\nt = () constant(())\nROOT r = f32[] add(x, x)",
        np.ones((), np.float32),
    ) == [2]


DOMAIN = 'domain={kind="sharding", entry={{devices=[2]0,1}, {replicated}}, exit={maximal device=0}}'


def test_a_domain_gives_back_its_operand():
    text = f"""
x = f32[4] parameter(0)
t = (f32[4], f32[4]) tuple(x, x)
d = (f32[4], f32[4]) domain(t), {DOMAIN}
e = f32[4] get-tuple-element(d), index=1
ROOT r = f32[4] add(e, x)
"""
    assert outputs_of(text, np.arange(4, dtype=np.float32))[0].tolist() == [0, 2, 4, 6]


def test_a_dependency_on_a_token_gives_back_its_operand():
    text = """
x = f32[4] parameter(0)
t = token[] after-all()
d = f32[4] add-dependency(x, t)
ROOT r = f32[4] add(d, x)
"""
    assert outputs_of(text, np.arange(4, dtype=np.float32))[0].tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("f32[4] domain(x)", "op-C3"),
        ('f32[4] domain(x), domain={kind="sharding", entry={replicated}}', "attribute-C1"),
        ("f32[4] domain(x), domain={sharding}", "attribute-C1"),
        (f"f32[3] domain(x), {DOMAIN}", "op-C5"),
        ("f32[4] add-dependency(x, x)", "add-dependency-C1"),
    ],
)
def test_what_adds_nothing_is_checked_all_the_same(line, rule):
    (found,) = complaints(f"x = f32[4] parameter(0)\nROOT r = {line}\n")
    assert found.endswith(f" {rule}")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("(f32[3], token[]) infeed(t)", "make it a parameter"),
        ("token[] outfeed(x, t), outfeed_shape=f32[4]{0}", "make it a result"),
        ("f32[4] set-dimension-size(x, n), dimensions={0}", "keep the largest size"),
        ("f32[2,2] dynamic-reshape(x, n, n)", "keep the largest size"),
        ("u64[1] rng-get-and-update-state(), delta=1", "rng-bit-generator"),
        ("f32[4] scaled-dot(x, x, x, x)", "multiply the operands by their scales"),
    ],
)
def test_ops_without_a_meaning_here_are_refused_by_name_with_advice(line, advice):
    head = "x = f32[4] parameter(0)\nn = s32[] parameter(1)\nt = token[] after-all()\n"
    with pytest.raises(CompileError) as caught:
        load(f"{head}ROOT r = {line}\n")
    (one,) = caught.value.diagnostics
    assert one.code == "op-C1"
    assert "is not supported" in one.message
    assert advice in one.help
