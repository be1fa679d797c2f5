"""Passes on loops, branches and halves of operations."""

import pytest

from ncc_compiler.diagnostics import CompileError
from ncc_compiler.ir.graph import Module
from ncc_compiler.options import CompileOptions
from ncc_compiler.passes.inline_calls import InlineCalls
from ncc_compiler.passes.join_halves import JoinHalves
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.pipelines import pipeline
from tests.compiler.small_modules import SUM, entry_ops, load

COUNT = """%below { %p = (s32[], f32[2,3]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(3)
  ROOT %c = pred[] compare(%i, %n), direction=LT
}
%flip { %a = f32[2,3] parameter(0) ROOT %b = f32[2,3] negate(%a) }
%step { %p = (s32[], f32[2,3]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[2,3] get-tuple-element(%p), index=1
  %k = s32[] constant(1)
  %l = s32[] constant(2)
  %m = s32[] subtract(%l, %k)
  %j = s32[] add(%i, %m)
  %y = f32[2,3] call(%x), to_apply=%flip
  %z = f32[2,3] fusion(%x), kind=kLoop, calls=%flip
  %v = f32[2,3] add(%y, %z)
  %unused = f32[2,3] tanh(%v)
  %r = f32[2,3] reduce-scatter(%g), channel_id=1, replica_groups={{0,1}}, dimensions={1}, to_apply=%sum, use_global_device_ids=true
  %g = f32[2,6] all-gather(%v), channel_id=1, replica_groups={{0,1}}, dimensions={1}, use_global_device_ids=true
  ROOT %t = (s32[], f32[2,3]) tuple(%j, %r)
}
"""  # noqa: E501
LOOP = (
    "%x = f32[2,3] parameter(0)",
    "%k = s32[] constant(0)",
    "%t = (s32[], f32[2,3]) tuple(%k, %x)",
    "%w = (s32[], f32[2,3]) while(%t), condition=%below, body=%step",
)


def optimised(module: Module, level: int = 1) -> Module:
    options = CompileOptions(level=level, pass_options={"fuse.enabled": "0"})
    return run_passes(module, pipeline(options), verify_each=True)


def body_ops(level: int = 1) -> list[str]:
    module = load(*LOOP, header="HloModule m, num_partitions=2", before=SUM + COUNT)
    return [node.op for node in optimised(module, level).computations["step"].nodes]


def test_bodies_are_inlined_folded_merged_and_pruned() -> None:
    ops = body_ops()
    assert ops.count("negate") == 1  # a call and a fusion of the same
    assert not {"call", "fusion", "tanh", "subtract"} & set(ops)


def test_collectives_in_bodies_become_canonical() -> None:
    assert body_ops(0).count("transpose") == 2  # one for each collective on dimension 1
    assert body_ops(1).count("transpose") == 0  # the second undoes the first


def test_computations_of_loops_stay() -> None:
    module = load(*LOOP, header="HloModule m, num_partitions=2", before=SUM + COUNT)
    assert set(optimised(module).computations) == {"sum", "below", "step", "main"}


def test_bodies_that_many_loops_repeat_count_for_the_limit() -> None:
    texts = ["%f0 { %a = s32[] parameter(0) ROOT %b = s32[] negate(%a) }\n"]
    texts.append("%on { %a = s32[] parameter(0) ROOT %b = pred[] compare(%a, %a), direction=LT }\n")
    texts += [
        f"%f{k} {{ %a = s32[] parameter(0) %b = s32[] while(%a), condition=%on, body=%f{k - 1} "
        f"ROOT %c = s32[] while(%b), condition=%on, body=%f{k - 1} }}\n"
        for k in range(1, 40)
    ]
    lines = ("%x = s32[] parameter(0)", "%y = s32[] call(%x), to_apply=%f39")
    with pytest.raises(CompileError, match="inline-calls-C1"):
        InlineCalls().run(load(*lines, before="".join(texts)))


GROUP = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true"


REDUCES = f"{GROUP}, dimensions={{0}}, to_apply=%sum"
HALVES = [  # type and attributes of the start, type of the done, what stays
    ("all-reduce", "f32[4]", f"{GROUP}, to_apply=%sum", "f32[4]", ["all-reduce"]),
    ("all-gather", "(f32[4], f32[16])", f"{GROUP}, dimensions={{0}}", "f32[16]", ["all-gather"]),
    ("reduce-scatter", "((f32[4]), f32[1])", REDUCES, "f32[1]", ["reduce-scatter"]),
    ("async", "((f32[4]), f32[4], s32[])", "calls=%flip", "f32[4]", ["negate"]),
    ("copy", "(f32[4], f32[4], u32[])", "metadata={}", "f32[4]", []),
    (
        "collective-permute",
        "(f32[4], f32[4], u32[], u32[])",
        "channel_id=1, source_target_pairs={{0,1}}",
        "f32[4]",
        ["collective-permute"],
    ),
]


@pytest.mark.parametrize(("op", "kind", "attributes", "result", "left"), HALVES)
def test_a_start_and_its_done_are_one_operation(op, kind, attributes, result, left) -> None:
    flip = "%flip { %a = f32[4] parameter(0) ROOT %b = f32[4] negate(%a) }\n"
    lines = (
        "%x = f32[4] parameter(0)",
        f"%s = {kind} {op}-start(%x), {attributes}",
        f"%u = {kind} opt-barrier(%s)",
        f"%d = {result} {op}-done(%u)",
    )
    ops = entry_ops(optimised(load(*lines, before=SUM + flip)))
    names = {"tuple", "opt-barrier", "get-tuple-element"}  # a barrier stays where it is
    assert [op for op in ops if op not in names] == ["parameter", *left]


def test_operands_of_several_stay_together() -> None:
    kind = "((f32[4], f32[2]), (f32[16], f32[8]))"
    start = f"%s = {kind} all-gather-start(%x, %y), {GROUP}, dimensions={{0}}"
    done = "%d = (f32[16], f32[8]) all-gather-done(%s)"
    module = load("%x = f32[4] parameter(0)", "%y = f32[2] parameter(1)", start, done)
    assert entry_ops(JoinHalves().run(module)) == [
        *("parameter", "parameter", "all-gather", "tuple", "tuple", "get-tuple-element")
    ]
