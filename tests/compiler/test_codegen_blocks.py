"""Rows, buffers and counts of loops and branches in generated programs."""

import pytest

from ncc_compiler.diagnostics import CompileError
from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, TEST, Engine
from ncc_runtime.neff.program import BlockKind, BufferKind, Program
from tests.compiler.small_modules import SUM
from tests.compiler.small_programs import REDUCED, compiled, rows

STATE = "(s32[], f32[4], f32[4])"


def loop(*body: str, root: str, limit: str = "constant(3)", step: str = "constant(1)") -> Program:
    """A counter, then two arrays that `body` computes on as %x and %y."""
    parts = (
        "%i = s32[] get-tuple-element(%p), index=0\n%x = f32[4] get-tuple-element(%p), index=1\n"
    )
    parts += "%y = f32[4] get-tuple-element(%p), index=2\n"
    before = (
        f"""{SUM}%below {{ %p = {STATE} parameter(0)
{parts} %n = s32[] {limit}
 ROOT %c = pred[] compare(%i, %n), direction=LT }}
%step {{ %p = {STATE} parameter(0)
{parts} %k = s32[] {step}
 %j = s32[] add(%i, %k)
"""
        + "\n".join(body)
        + f"\n ROOT %t = {STATE} tuple(%j, {root}) }}\n"
    )
    return compiled(
        "%a = f32[4] parameter(0)",
        "%b = f32[4] parameter(1)",
        "%z = s32[] constant(0)",
        f"%t = {STATE} tuple(%z, %a, %b)",
        f"%w = {STATE} while(%t), condition=%below, body=%step",
        before=before,
        level=1,
    )  # fmt: skip


def control(program: Program, engine: Engine) -> list[str]:
    return [row.opcode for row in rows(program, engine) if row.opcode in (LOOP, TEST, CASE, END)]


def copies_in_body(program: Program) -> list[tuple[str, str]]:
    sync = rows(program, Engine.SYNC)
    opcodes = [row.opcode for row in sync]
    inside = sync[opcodes.index(TEST) : opcodes.index(END)]

    def name(tensor: int) -> str:
        return program.buffers[program.tensors[tensor].buffer].name

    return [(name(r.operands[0]), name(r.results[0])) for r in inside if r.opcode == "copy"]


def test_every_queue_has_the_same_rows_of_control_flow():
    program = loop("%u = f32[4] tanh(%x)", root="%u, %y")
    assert all(control(program, engine) == [LOOP, TEST, END] for engine in ENGINES)


def test_what_the_body_gives_back_is_not_copied():
    program = loop("%u = f32[4] add(%x, %y)", root="%u, %y")
    assert copies_in_body(program) == [("j", "w.0"), ("u", "w.1")]
    state = {buffer.name for buffer in program.buffers if buffer.name.startswith("w.")}
    assert state == {"w.0", "w.1"}


def test_a_step_writes_into_the_state_whose_old_value_is_not_read():
    program = loop("%u = f32[4] tanh(%y)", "%v = f32[4] add(%u, %y)", root="%u, %v")
    assert copies_in_body(program) == [("j", "w.0"), ("v", "w.2")]


def test_arrays_that_change_places_go_by_a_spare():
    copies = copies_in_body(loop(root="%y, %x"))
    assert len(copies) == 4
    written: dict[str, str] = {}
    for source, target in copies:
        written[target] = written.get(source, source)
    assert (written["w.1"], written["w.2"]) == ("w.2", "w.1")


def test_an_array_that_takes_two_places_is_copied_once_more():
    copies = copies_in_body(loop("%u = f32[4] add(%x, %y)", root="%u, %u"))
    assert sorted(copies) == [("j", "w.0"), ("u", "w.1"), ("u", "w.2")]


@pytest.mark.parametrize(
    ("limit", "step", "trips"),
    [
        ("constant(3)", "constant(1)", 3),
        ("constant(7)", "constant(2)", 4),
        ("constant(0)", "constant(1)", 0),
        ("constant(-5)", "constant(1)", 0),
        ("constant(3)", "constant(-1)", None),
        ("constant(2147483647)", "constant(2)", None),  # wraps round
        ("add(%i, %i)", "constant(1)", None),
    ],
)
def test_trips_are_counted_where_constants_say(limit, step, trips):
    assert loop(root="%x, %y", limit=limit, step=step).blocks[0].trip_count == trips


def test_a_predicate_that_nothing_computes_is_copied():
    before = "%on { ROOT %p = pred[] parameter(0) }\n"
    before += "%off { %p = pred[] parameter(0) ROOT %n = pred[] not(%p) }\n"
    program = compiled(
        "%x = pred[] parameter(0)", "%w = pred[] while(%x), condition=%on, body=%off", before=before
    )
    (block,) = program.blocks
    assert program.buffers[program.tensors[block.predicate].buffer].kind is BufferKind.INTERNAL
    assert program.tensors[block.predicate].name == "w.predicate"


def test_state_never_serves_as_the_predicate_of_a_branch():
    flips = "%one { ROOT %a = f32[4] parameter(0) }\n"
    flips += "%two { %a = f32[4] parameter(0) ROOT %n = f32[4] negate(%a) }\n"
    program = compiled(
        "%x = f32[4] parameter(0)",
        "%z = s32[] constant(0)",
        "%t = (s32[], f32[4]) tuple(%z, %x)",
        "%w = (s32[], f32[4]) while(%t), condition=%c, body=%b",
        before=flips + """%c { %p = (s32[], f32[4]) parameter(0)
 %i = s32[] get-tuple-element(%p), index=0
 ROOT %r = pred[] compare(%i, %i), direction=LT }
%b { %p = (s32[], f32[4]) parameter(0)
 %i = s32[] get-tuple-element(%p), index=0
 %x = f32[4] get-tuple-element(%p), index=1
 %y = f32[4] conditional(%i, %x, %x), branch_computations={%one, %two}
 %k = s32[] constant(1)
 %j = s32[] add(%i, %k)
 ROOT %t = (s32[], f32[4]) tuple(%j, %y) }
""",
    )  # fmt: skip
    cases = [block for block in program.blocks if block.kind is BlockKind.CASE]
    assert [(block.index, block.of) for block in cases] == [(0, 2), (1, 2)]
    assert {program.tensors[block.predicate].name for block in cases} == {"y.predicate"}


def test_values_across_a_loop_have_memory_of_their_own():
    program = loop("%u = f32[4] tanh(%x)", "%v = f32[4] negate(%u)", root="%v, %y")
    for one in program.buffers:
        if one.name.startswith("w.") or one.name == "c":
            others = [b for b in program.buffers if b is not one]
            assert all(b.end <= one.address or b.address >= one.end for b in others)


def test_a_stream_counts_that_it_has_read_the_predicate():
    program = loop(f"%u = f32[4] all-reduce(%x), {REDUCED}", root="%u, %y")
    streams = {k for k, one in enumerate(program.semaphores) if one.owner == "stream 0"}
    waits = [r.wait_value for r in rows(program, Engine.SYNC) if r.wait_sem in streams]
    assert max(waits) == 2  # the `test`, then the collective


def test_blocks_nest_at_most_64_deep():
    text = "%on { %a = s32[] parameter(0) ROOT %b = pred[] compare(%a, %a), direction=LT }\n"
    text += "%f0 { %a = s32[] parameter(0) ROOT %b = s32[] negate(%a) }\n"
    for k in range(1, 66):
        text += f"%f{k} {{ %a = s32[] parameter(0) "
        text += f"ROOT %b = s32[] while(%a), condition=%on, body=%f{k - 1} }}\n"
    lines = ("%x = s32[] parameter(0)", "%y = s32[] call(%x), to_apply=%f{}")
    compiled(lines[0], lines[1].format(64), before=text)
    with pytest.raises(CompileError, match="codegen-C5"):
        compiled(lines[0], lines[1].format(65), before=text)
