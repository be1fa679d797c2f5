"""Passes that inline, merge, drop and simplify."""

import pytest

from ncc_compiler.diagnostics import CompileError
from ncc_compiler.ir.verify import verify
from ncc_compiler.passes.common_subexpressions import CommonSubexpressions
from ncc_compiler.passes.inline_calls import InlineCalls
from ncc_compiler.passes.remove_dead_code import RemoveDeadCode
from ncc_compiler.passes.simplify import Simplify
from tests.compiler.small_modules import SUM, entry_ops, load


def test_inlining_puts_the_body_where_the_call_was():
    double = "%double { %x = f32[2] parameter(0) ROOT %y = f32[2] add(%x, %x) }\n"
    module = load(
        "%x = f32[2] parameter(0)",
        "%a = f32[2] call(%x), to_apply=%double",
        "%b = f32[2] call(%a), to_apply=%double",
        before=double,
    )
    inlined = InlineCalls().run(module)
    assert entry_ops(inlined) == ["parameter", "add", "add"]
    assert list(inlined.computations) == ["main"]
    assert verify(inlined) == ()


def test_inlining_resolves_calls_of_callers():
    bodies = (
        "%one { %x = f32[] parameter(0) ROOT %y = f32[] negate(%x) }\n"
        "%two { %x = f32[] parameter(0) ROOT %y = f32[] call(%x), to_apply=%one }\n"
    )
    module = load("%x = f32[] parameter(0)", "%c = f32[] call(%x), to_apply=%two", before=bodies)
    assert entry_ops(InlineCalls().run(module)) == ["parameter", "negate"]


def test_calls_that_would_explode_are_refused():
    bodies = "%c0 { %x = f32[] parameter(0) ROOT %y = f32[] negate(%x) }\n"
    for depth in range(1, 40):
        bodies += (
            f"%c{depth} {{ %x = f32[] parameter(0) %y = f32[] call(%x), to_apply=%c{depth - 1} "
            f"ROOT %z = f32[] call(%y), to_apply=%c{depth - 1} }}\n"
        )
    module = load("%x = f32[] parameter(0)", "%c = f32[] call(%x), to_apply=%c39", before=bodies)
    with pytest.raises(CompileError, match="the limit is 2000000"):
        InlineCalls().run(module)


def test_equal_collectives_are_one_whatever_their_channels():
    module = load(
        "%x = f32[4] parameter(0)",
        "%a = f32[4] all-reduce(%x), channel_id=1, to_apply=%sum",
        "%b = f32[4] all-reduce(%x), channel_id=2, to_apply=%sum",
        "%c = f32[4] add(%a, %b)",
        before=SUM,
    )
    assert entry_ops(CommonSubexpressions().run(module)) == ["parameter", "all-reduce", "add"]


@pytest.mark.parametrize(
    "second", ["replica_groups={{0},{1}}", "replica_groups={{0,1}}, channel_id=1"]
)
def test_collectives_over_other_groups_stay_apart(second):
    module = load(
        "%x = f32[4] parameter(0)",
        "%a = f32[4] all-reduce(%x), replica_groups={{0,1}}, to_apply=%sum",
        f"%b = f32[4] all-reduce(%x), {second}, to_apply=%sum",
        "%c = f32[4] add(%a, %b)",
        before=SUM,
        header="HloModule m, replica_count=2, num_partitions=2",
    )
    assert entry_ops(CommonSubexpressions().run(module)).count("all-reduce") == 2


def test_parameters_are_never_merged():
    module = load("%x = f32[] parameter(0)", "%y = f32[] parameter(1)", "%z = f32[] add(%x, %y)")
    assert CommonSubexpressions().run(module) == module


def test_the_sign_of_zero_keeps_constants_apart():
    module = load("%x = f32[] constant(0)", "%y = f32[] constant(-0)", "%z = f32[] divide(%x, %y)")
    assert entry_ops(CommonSubexpressions().run(module)).count("constant") == 2


def test_dead_nodes_go_and_parameters_stay():
    module = load(
        "%x = f32[4] parameter(0)",
        "%y = f32[4] parameter(1)",
        "%dead = f32[4] all-reduce(%x), to_apply=%sum",
        "%z = f32[4] negate(%x)",
        before=SUM,
    )
    pruned = RemoveDeadCode().run(module)
    assert entry_ops(pruned) == ["parameter", "parameter", "negate"]
    assert list(pruned.computations) == ["main"]


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("%r = f32[2,3] copy(%x)", []),
        ("%r = f32[2,3] reshape(%x)", []),
        ("%r = f32[2,3] transpose(%x), dimensions={0,1}", []),
        ("%r = f32[2,3] broadcast(%x), dimensions={0,1}", []),
        ("%r = f32[2,3] convert(%x)", []),
        ("%r = f32[2,3] slice(%x), slice={[0:2],[0:3]}", []),
        ("%r = f32[2,3] concatenate(%x), dimensions={1}", []),
        ("%r = f32[2,1,3] broadcast(%x), dimensions={0,2}", ["reshape"]),
        ("%r = f32[3,2] transpose(%x), dimensions={1,0}", ["transpose"]),
        ("%r = f32[3,2] broadcast(%x), dimensions={1,0}", ["broadcast"]),
        ("%r = f32[2,2] slice(%x), slice={[0:2],[0:2]}", ["slice"]),
    ],
)
def test_operations_that_do_nothing_go(line, left):
    module = load("%x = f32[2,3] parameter(0)", line)
    assert entry_ops(RemoveDeadCode().run(Simplify().run(module))) == ["parameter", *left]


def test_a_transpose_of_single_rows_is_a_reshape():
    module = load("%x = f32[1,3] parameter(0)", "%r = f32[3,1] transpose(%x), dimensions={1,0}")
    assert entry_ops(Simplify().run(module)) == ["parameter", "reshape"]


def test_elements_of_a_tuple_are_taken_from_where_they_were_put_in():
    module = load(
        "%x = f32[] parameter(0)",
        "%y = f32[] negate(%x)",
        "%t = (f32[], f32[]) tuple(%x, %y)",
        "%e = f32[] get-tuple-element(%t), index=1",
    )
    assert entry_ops(RemoveDeadCode().run(Simplify().run(module))) == ["parameter", "negate"]
