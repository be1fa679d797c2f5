"""Partial all-reduces: what they drop, carry and scale, held against numpy; what stays whole."""

from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import CompileError, Source
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.text.header import aliases
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.options import CompileOptions, LateGradients
from ncc_compiler.passes.inline_calls import InlineCalls
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.passes.partial_all_reduce import PartialAllReduce
from tests.compiler.small_modules import SUM, assert_same_bits
from tests.compiler.small_modules import load as load_lines
from tests.reference_runs import reference_outputs

RANKS = 4
ALL = "replica_groups={{0,1,2,3}}, to_apply=%sum"
PAIRS = "replica_groups={{0,2},{1,3}}, to_apply=%sum"
DROP, NEXT = LateGradients.DROP, LateGradients.NEXT


def load(*lines: str, before: str = "", attributes: str = "") -> Module:
    header = f"HloModule m, replica_count={RANKS}{attributes}"
    return load_lines(*lines, header=header, before=before)


def partial(module: Module, late: LateGradients) -> Module:
    """The module after the pass; its text reads back as the same graph."""
    changed = run_passes(module, [InlineCalls(), PartialAllReduce(late)], verify_each=True)
    text = print_module(changed)
    assert print_module(load_module(Source("again.ir", text))) == text
    return changed


def step_module(meaning: str = ALL, dtype: str = "f32", *, averages: bool = False) -> Module:
    """New weights from weights and a gradient, and a loss."""

    def reduced(operand: str) -> str:
        if not averages:
            return f"all-reduce({operand}), {meaning}"
        groups = "[[0, 1, 2, 3]]" if meaning == ALL else "[[0, 2], [1, 3]]"
        target = 'custom_call_target="ncc.avg_all_reduce"'
        return f'custom-call({operand}), {target}, backend_config={{"replica_groups": {groups}}}'

    return load(
        f"%w = {dtype}[6] parameter(0)",
        f"%g = {dtype}[6] parameter(1)",
        f"%l = {dtype}[] parameter(2)",
        f"%sum_g = {dtype}[6] {reduced('%g')}",
        f"%loss = {dtype}[] {reduced('%l')}",
        f"%new = {dtype}[6] subtract(%w, %sum_g)",
        f"%out = ({dtype}[6], {dtype}[]) tuple(%new, %loss)",
        attributes=", input_output_alias={ {0}: (0, {}, may-alias) }",
        before="" if averages else SUM.replace("f32", dtype),
    )


def given(seed: int = 0, dtype: type = np.float32) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    weights = np.broadcast_to(draw.normal(size=6), (RANKS, 6))
    values = [weights, draw.normal(size=(RANKS, 6)), draw.normal(size=RANKS)]
    values[1][:, 0] = -0.0  # of which a sum is -0.0 too
    return [np.ascontiguousarray(value, dtype) for value in values]


def flags(*ranks: int) -> np.ndarray:
    """A flag for each rank, set for these; [ranks, ranks], as every rank has all."""
    own = np.isin(np.arange(RANKS), ranks)
    return np.broadcast_to(own, (RANKS, RANKS)).copy()


EVERYBODY = flags(0, 1, 2, 3)


@pytest.mark.parametrize("late", LateGradients)
@pytest.mark.parametrize("meaning", [ALL, PAIRS])
@pytest.mark.parametrize(("averages", "dtype"), [(False, "f32"), (True, "f32"), (False, "bf16")])
def test_while_all_ranks_take_part_the_bits_are_those_of_the_program_as_it_was(
    late: LateGradients, meaning: str, averages: bool, dtype: str
) -> None:
    module = step_module(meaning, dtype, averages=averages)
    numpy_type = module.entry_computation.nodes[0].array.dtype.numpy.type
    inputs = given(dtype=numpy_type)
    expected = reference_outputs(module, inputs)
    extra = [EVERYBODY]
    if late is NEXT:
        extra += [EVERYBODY, np.full((RANKS, 6), -0.0, numpy_type)]
    found = reference_outputs(partial(module, late), [*inputs, *extra])
    assert_same_bits(found[:2], expected)
    if late is NEXT:
        assert_same_bits(found[2:], [np.full((RANKS, 6), -0.0, numpy_type)])


def test_what_is_dropped_is_made_up_for_by_what_takes_part() -> None:
    w, g, loss = given()
    outputs = reference_outputs(partial(step_module(), DROP), [w, g, loss, flags(0, 1, 3)])
    taken = [0, 1, 3]
    np.testing.assert_allclose(outputs[0], w - g[taken].sum(axis=0) * np.float32(4 / 3), rtol=1e-6)
    np.testing.assert_allclose(outputs[1], np.full(RANKS, loss[taken].mean() * 4), rtol=1e-6)


def test_every_group_is_scaled_by_its_own_members() -> None:
    w, g, loss = given()
    outputs = reference_outputs(partial(step_module(PAIRS), DROP), [w, g, loss, flags(0, 1, 3)])
    np.testing.assert_allclose(outputs[0][[0, 2]], w[[0, 2]] - 2 * g[0], rtol=1e-6)
    np.testing.assert_allclose(outputs[0][[1, 3]], w[[1, 3]] - (g[1] + g[3]), rtol=1e-6)


def test_groups_of_several_sizes_are_scaled_each_by_its_own() -> None:
    meaning = PAIRS.replace("{0,2},{1,3}", "{0,2,3},{1}")
    w, g, loss = given()
    outputs = reference_outputs(partial(step_module(meaning), DROP), [w, g, loss, flags(0, 1, 3)])
    np.testing.assert_allclose(outputs[0][0], w[0] - (g[0] + g[3]) * 1.5, rtol=1e-6)
    np.testing.assert_allclose(outputs[0][1], w[1] - g[1], rtol=1e-6)


def test_a_group_of_which_nobody_takes_part_adds_nothing() -> None:
    w, g, loss = given()
    outputs = reference_outputs(partial(step_module(PAIRS), DROP), [w, g, loss, flags(0, 2)])
    np.testing.assert_allclose(outputs[0][[0, 2]], w[[0, 2]] - (g[0] + g[2]), rtol=1e-6)
    assert_same_bits([outputs[0][[1, 3]]], [w[[1, 3]]])
    assert not outputs[1][[1, 3]].any()


@pytest.mark.parametrize("dtype", ["bf16", "f64"])
def test_what_takes_part_is_scaled_as_exactly_as_its_type_can_hold(dtype: str) -> None:
    module = step_module(dtype=dtype)
    numpy_type = module.entry_computation.nodes[0].array.dtype.numpy.type
    w, g, loss = np.zeros((RANKS, 6)), np.full((RANKS, 6), 100.0), np.zeros(RANKS)
    inputs = [array.astype(numpy_type) for array in (w, g, loss)]
    outputs = reference_outputs(partial(module, DROP), [*inputs, flags(0, 1, 3)])
    # 4/3 is no number of any of these types, 3 times 100 times 4/3 is
    assert_same_bits([outputs[0]], [np.full((RANKS, 6), -400.0, numpy_type)])


def test_a_gradient_that_is_not_a_number_is_dropped_too() -> None:
    w, g, loss = given()
    g[2], loss[2] = np.nan, np.nan
    outputs = reference_outputs(partial(step_module(), DROP), [w, g, loss, flags(0, 1, 3)])
    assert all(np.isfinite(output).all() for output in outputs)


def test_late_gradients_are_added_when_they_are_there() -> None:
    """Rank 2 is late in step 0, busy in step 1 and takes part in step 2; losses are not carried."""
    module = partial(step_module(), NEXT)
    states = [(flags(0, 1, 3), EVERYBODY), (flags(0, 1, 3), flags(0, 1, 3)), (EVERYBODY, EVERYBODY)]
    carried = np.full((RANKS, 6), -0.0, np.float32)
    expected = [[0, 1, 3], [0, 1, 3], [0, 1, 2, 3]]
    first_late = given(0)[1][2]
    for step, (takes_part, begins) in enumerate(states):
        w, g, loss = given(step)
        outputs = reference_outputs(module, [w, g, loss, takes_part, begins, carried])
        total = g[expected[step]].sum(axis=0)
        if step == 2:
            total = total + first_late
        np.testing.assert_allclose(outputs[0], w - total, rtol=1e-5, atol=1e-6)
        mean = loss[expected[step]].mean()
        np.testing.assert_allclose(outputs[1], np.full(RANKS, mean * 4), rtol=1e-5)
        carried = outputs[2]
        assert_same_bits([carried[2]], [first_late if step < 2 else np.full(6, -0.0, np.float32)])
        assert not carried[[0, 1, 3]].any()


def test_what_is_carried_is_an_input_that_takes_an_output() -> None:
    module = partial(step_module(), NEXT)
    assert list(aliases(module)) == [((0,), 0, ()), ((2,), 5, ())]
    one = load("%g = f32[6] parameter(0)", f"%s = f32[6] all-reduce(%g), {ALL}", before=SUM)
    assert list(aliases(partial(one, NEXT))) == [((1,), 3, ())]
    assert not list(aliases(partial(one, DROP)))


def test_of_one_all_reduce_of_many_operands_each_is_carried_or_scaled() -> None:
    module = load(
        "%w = f32[6] parameter(0)",
        "%g = f32[6] parameter(1)",
        "%l = f32[] parameter(2)",
        f"%both = (f32[6], f32[]) all-reduce(%g, %l), {ALL}",
        "%sum_g = f32[6] get-tuple-element(%both), index=0",
        "%loss = f32[] get-tuple-element(%both), index=1",
        "%new = f32[6] subtract(%w, %sum_g)",
        "%out = (f32[6], f32[]) tuple(%new, %loss)",
        before=SUM,
    )
    inputs, extra = given(), [flags(0, 1), EVERYBODY, np.full((RANKS, 6), -0.0, np.float32)]
    apart = reference_outputs(partial(step_module(), NEXT), [*inputs, *extra])
    assert_same_bits(reference_outputs(partial(module, NEXT), [*inputs, *extra]), apart)


def test_what_goes_through_one_tuple_is_told_apart() -> None:
    """As a shard_map returns it: the loss is no gradient, nor does it wait behind one."""
    module = load(
        "%w = f32[6] parameter(0)",
        "%g = f32[6] parameter(1)",
        "%l = f32[] parameter(2)",
        f"%sum_g = f32[6] all-reduce(%g), {ALL}",
        f"%sum_l = f32[] all-reduce(%l), {ALL}",
        "%both = (f32[], f32[6]) tuple(%sum_l, %sum_g)",
        "%sum = f32[6] get-tuple-element(%both), index=1",
        "%new = f32[6] subtract(%w, %sum)",
        "%one = f32[] get-tuple-element(%both), index=0",
        "%loss = f32[] copy(%one)",
        "%out = (f32[6], f32[]) tuple(%new, %loss)",
        before=SUM,
    )
    inputs, extra = given(), [flags(0, 1), EVERYBODY, np.full((RANKS, 6), -0.0, np.float32)]
    apart = reference_outputs(partial(step_module(), NEXT), [*inputs, *extra])
    assert_same_bits(reference_outputs(partial(module, NEXT), [*inputs, *extra]), apart)


def test_what_waits_behind_another_part_of_a_tuple_is_partial() -> None:
    module = load(
        "%w = f32[6] parameter(0)",
        "%g = f32[6] parameter(1)",
        f"%sum_g = f32[6] all-reduce(%g), {ALL}",
        "%both = (f32[6], f32[6]) tuple(%w, %sum_g)",
        "%weights = f32[6] get-tuple-element(%both), index=0",
        "%all = f32[24] all-gather(%weights), dimensions={0}, replica_groups={{0,1,2,3}}",
        "%sum = f32[6] get-tuple-element(%both), index=1",
        "%out = (f32[24], f32[6]) tuple(%all, %sum)",
        before=SUM,
    )
    names = [node.name for node in partial(module, DROP).entry_computation.nodes]
    assert "sum_g.partial" in names


def test_only_all_reduces_without_a_collective_behind_them_are_partial() -> None:
    """The sums of a divided model stay whole, those of its gradients do not."""
    text = Path("tests/data/hlo/mlp_train_dp2_tp4.hlo").read_text(encoding="utf-8")
    neff = ncc_compiler.compile_text(text, CompileOptions(partial_all_reduce="drop"))
    names = [placeholder.name for placeholder in neff.program.placeholders]
    assert [".partial" in name for name in names] == [False, True, True, True]


@pytest.mark.parametrize(
    ("reduction", "dtype", "fact"),
    [
        ("maximum", "f32", "its reduction is maximum"),
        ("add", "s32", "its elements are s32"),
        ("add", "f8e4m3fn", "its elements are f8e4m3fn"),
    ],
)
def test_sums_of_floats_only(reduction: str, dtype: str, fact: str) -> None:
    region = SUM.replace("add", reduction).replace("f32", dtype)
    lines = f"%g = {dtype}[6] parameter(0)", f"%s = {dtype}[6] all-reduce(%g), {ALL}"
    with pytest.raises(CompileError, match=fact):
        partial(load(*lines, before=region), DROP)


def test_a_sum_that_another_collective_needs_is_named_with_it() -> None:
    lines = (
        "%g = f32[4] parameter(0)",
        f"%s = f32[4] all-reduce(%g), {ALL}",
        "%t = f32[4] negate(%s)",
        "%all = f32[16] all-gather(%t), dimensions={0}, replica_groups={{0,1,2,3}}",
    )
    with pytest.raises(CompileError, match="of s all depends on its result"):
        partial(load(*lines, before=SUM), DROP)


def test_a_program_without_all_reduces_is_refused() -> None:
    with pytest.raises(CompileError, match="m has no all-reduce"):
        partial(load("%g = f32[4] parameter(0)", "%n = f32[4] negate(%g)"), DROP)


def test_all_reduces_in_loops_are_refused() -> None:
    text = f"""{SUM}
    %body {{ %s = (s32[], f32[4]) parameter(0) %i = s32[] get-tuple-element(%s), index=0
      %x = f32[4] get-tuple-element(%s), index=1 %one = s32[] constant(1)
      %j = s32[] add(%i, %one) %y = f32[4] all-reduce(%x), {ALL}
      ROOT %t = (s32[], f32[4]) tuple(%j, %y) }}
    %cond {{ %s = (s32[], f32[4]) parameter(0) %i = s32[] get-tuple-element(%s), index=0
      %n = s32[] constant(3) ROOT %c = pred[] compare(%i, %n), direction=LT }}
    ENTRY %main {{ %i = s32[] constant(0) %x = f32[4] parameter(0)
      %t = (s32[], f32[4]) tuple(%i, %x)
      ROOT %w = (s32[], f32[4]) while(%t), condition=%cond, body=%body }}"""
    with pytest.raises(CompileError, match="y stands in a loop or branch"):
        partial(load_module(Source("loop.ir", text), 4), DROP)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("late", LateGradients)
def test_every_level_computes_what_the_graph_means(level: int, late: LateGradients) -> None:
    """The placed program, bit for bit: with all ranks as it was, with some as the reference."""
    text = print_module(step_module())
    options = CompileOptions(level=level, partial_all_reduce=late.value)
    changed = ncc_runtime.load(ncc_compiler.compile_text(text, options), "trn2")
    whole = ncc_runtime.load(ncc_compiler.compile_text(text, CompileOptions(level=level)), "trn2")
    inputs = given()
    names = [changed.executable.program.parameter(k).name for k in range(3, 4 + 2 * (late is NEXT))]
    assert names == ["takes_part", "begins", "carried.sum_g"][: len(names)]
    extra = [EVERYBODY]
    if late is NEXT:
        extra += [EVERYBODY, np.full((RANKS, 6), -0.0, np.float32)]
        assert changed.executable.program.result(2).name == "carried.sum_g"
    found = changed.run([*inputs, *extra], clock=False).outputs
    assert_same_bits(list(found)[:2], list(whole.run(inputs, clock=False).outputs))
    extra[0] = flags(0, 3)
    found = changed.run([*inputs, *extra], clock=False).outputs
    expected = reference_outputs(partial(step_module(), late), [*inputs, *extra])
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
