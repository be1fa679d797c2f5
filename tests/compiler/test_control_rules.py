"""Loops, branches, tokens and halves of operations: types that follow, each rule broken once."""

import pytest

from ncc_compiler.ir.graph import Callees
from ncc_compiler.ir.op_tables.control import CONTROL_ROWS, TRANSFER_ROWS
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.text.printer import print_module
from tests.compiler.reading import SUM, complaints, load, node

PREAMBLE = (
    "HloModule m, replica_count=4\n"
    + SUM
    + """goes_on {
  a = (s32[], f32[4]) parameter(0)
  b = s32[] get-tuple-element(a), index=0
  ROOT c = pred[] compare(b, b), direction=LT
}
step {
  ROOT a = (s32[], f32[4]) parameter(0)
}
flip {
  a = f32[4] parameter(0)
  ROOT b = f32[4] negate(a)
}
first {
  a = f32[4] parameter(0)
  b = f32[1] slice(a), slice={[0:1]}
  ROOT c = f32[] reshape(b)
}
running {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] add(a, b)
  d = s32[] convert(c)
  ROOT e = (s32[], f32[]) tuple(d, c)
}
twice {
  a = f32[4] parameter(0)
  ROOT b = (f32[4], f32[4]) tuple(a, a)
}
x = f32[4] parameter(0)
s = f32[] parameter(1)
i = s32[] parameter(2)
p = pred[] parameter(3)
t = (s32[], f32[4]) parameter(4)
k = token[] parameter(5)
g = (f32[4], f32[16]) parameter(6)
a = ((f32[4]), f32[4], u32[]) parameter(7)
"""
)
LINE = PREAMBLE.count("\n") + 1

EVERYBODY = "replica_groups={{0,1,2,3}}"
RIGHT = (
    "(s32[], f32[4]) while(t), condition=goes_on, body=step",
    "f32[4] conditional(p, x, x), true_computation=flip, false_computation=flip",
    "f32[4] conditional(i, x, x, x), branch_computations={flip, flip, flip}",
    "f32[4] conditional(i, x), branch_computations={flip}",
    "f32[4] fusion(x), kind=kLoop, calls=flip",
    "(s32[4], f32[]) scan(x, s), dimensions={0}, num_carries=1, to_apply=running",
    "(f32[4,3], f32[4]) scan(x), dimensions={1}, num_carries=1, to_apply=twice",
    "(s32[4], f32[]) scan(x, s), dimensions={0}, num_carries=1, is_reverse=true, "
    "is_associative=false, to_apply=running",
    "token[] after-all()",
    "token[] after-all(k, k)",
    "(s32[], f32[4]) opt-barrier(t)",
    "f32[4] optimization-barrier(x)",
    f"f32[4] all-reduce-start(x), {EVERYBODY}, to_apply=sum",
    "f32[4] all-reduce-done(x)",
    f"(f32[4], f32[16]) all-gather-start(x), {EVERYBODY}, dimensions={{0}}",
    f"((f32[4], f32[4]), (f32[16], f32[16])) all-gather-start(x, x), {EVERYBODY}, dimensions={{0}}",
    "f32[16] all-gather-done(g)",
    "(f32[4], f32[4], u32[], u32[]) collective-permute-start(x), source_target_pairs={{0,1}}",
    "f32[4] collective-permute-done(a)",
    "(f32[4], f32[4]) collective-broadcast-start(x), replica_groups={{1,0}}",
    f"((f32[4]), f32[1]) reduce-scatter-start(x), {EVERYBODY}, dimensions={{0}}, to_apply=sum",
    f"((f32[4]), f32[4], s32[]) all-to-all-start(x), {EVERYBODY}, dimensions={{0}}",
    "(f32[4], f32[4], u32[]) copy-start(x)",
    "f32[4] copy-done(g)",
    "((f32[4]), f32[4], u32[]) async-start(x), calls=flip, async_execution_thread=\"other\"",
    "((f32[4]), f32[4], u32[]) async-update(a)",
    "f32[4] async-done(a), calls=flip",
)  # fmt: skip

_BRANCHES = "true_computation=%s, false_computation=%s"
WRONG = (
    ("(s32[], f32[4]) while(t), condition=step, body=step", "while-C1", 26),
    ("f32[4] while(x), condition=goes_on, body=flip", "while-C1", 17),
    ("(s32[], f32[4]) while(t), condition=goes_on, body=flip", "while-C2", 45),
    (f"f32[4] conditional(s, x, x), {_BRANCHES % ('flip', 'flip')}", "conditional-C1", 19),
    (f"f32[4] conditional(i, x, x), {_BRANCHES % ('flip', 'flip')}", "conditional-C2", 7),
    ("f32[4] conditional(p, x), true_computation=flip", "conditional-C2", 7),
    ("f32[4] conditional(p, x, x), branch_computations={flip, flip}", "conditional-C2", 7),
    ("f32[4] conditional(i, x, x), branch_computations={flip}", "conditional-C3", 7),
    ("f32[4] conditional(i, x, s), branch_computations={flip, flip}", "conditional-C4", 25),
    ("f32[4] conditional(i, x, x), branch_computations={flip, first}", "conditional-C5", 7),
    ("f32[4] fusion(x, x), calls=flip", "fusion-C1", 21),
    ("f32[4] fusion(s), calls=flip", "fusion-C2", 14),
    ("(f32[]) scan(s), dimensions={0}, num_carries=0, to_apply=first", "scan-C1", 17),
    ("(s32[4], f32[]) scan(x, s), dimensions={}, num_carries=1, to_apply=running", "scan-C1", 28),
    ("(s32[4], f32[]) scan(x, s), dimensions={0}, num_carries=3, to_apply=running", "scan-C2", 44),
    ("(s32[4], f32[]) scan(x, i), dimensions={0}, num_carries=1, to_apply=running", "scan-C3", 59),
    ("(s32[4]) scan(x, s), dimensions={0}, num_carries=0, to_apply=running", "scan-C1", 21),
    ("(f32[4]) scan(x), dimensions={0}, num_carries=1, to_apply=flip", "scan-C4", 0),
    ("token[] after-all(k, x)", "after-all-C1", 21),
    ("f32[4] add-dependency(x, x)", "add-dependency-C1", 25),
    ("f32[16] all-gather-done(x)", "all-gather-done-C1", 24),
    ("f32[1] reduce-scatter-done(x)", "reduce-scatter-done-C1", 27),
    ("f32[4] all-to-all-done(x)", "all-to-all-done-C1", 23),
    ("f32[4] collective-permute-done(x)", "collective-permute-done-C1", 31),
    ("f32[4] collective-broadcast-done(x)", "collective-broadcast-done-C1", 33),
    ("f32[4] ragged-all-to-all-done(x)", "ragged-all-to-all-done-C1", 30),
    ("f32[4] copy-done(x)", "copy-done-C1", 17),
    ("((f32[4], f32[4]), f32[4]) async-start(x, x), calls=flip", "async-start-C1", 46),
    ("((f32[]), f32[4]) async-start(s), calls=flip", "async-start-C2", 30),
    ("f32[4] async-update(x)", "async-update-C1", 20),
    ("f32[4] async-done(x)", "async-done-C1", 18),
    ("(f32[4], f32[4]) all-gather-start(x), dimensions={0}", "op-C5", 0),
    ("((f32[4]), f32[4], pred[]) async-start(x), calls=flip", "op-C5", 0),
)


@pytest.mark.parametrize("line", RIGHT)
def test_the_type_follows_from_the_operands(line: str) -> None:
    assert complaints(f"{PREAMBLE}ROOT r = {line}\n") == []


@pytest.mark.parametrize("line", RIGHT)
def test_a_program_reads_back_as_it_is_printed(line: str) -> None:
    module = load(f"{PREAMBLE}ROOT r = {line}\n")
    assert load(print_module(module)) == module


@pytest.mark.parametrize(("line", "rule", "column"), WRONG)
def test_a_broken_rule_is_found_at_its_place(line: str, rule: str, column: int) -> None:
    assert complaints(f"{PREAMBLE}ROOT r = {line}\n") == [f"{LINE}:{column + 10} {rule}"]


def test_every_rule_of_these_ops_is_broken_by_a_text() -> None:
    others = [op for op in OPS.values() if op not in TRANSFER_ROWS]
    halves = [op for op in others if op.name.endswith("-done") or "async" in op.name]
    rules = {f"{op.name}-C{k + 1}" for op in (*CONTROL_ROWS, *halves) for k in range(len(op.rules))}
    assert rules - {rule for _, rule, _ in WRONG} == {"call-C1", "call-C2"}  # in test_verify


def test_a_start_has_the_rules_of_its_collective() -> None:
    text = f"{PREAMBLE}ROOT r = (f32[4], f32[16]) all-gather-start(x), dimensions={{1}}\n"
    assert complaints(text) == [f"{LINE}:61 all-gather-start-C7"]


def test_branches_are_read_as_computations_in_order() -> None:
    line = "r = f32[4] conditional(i, x, x), branch_computations={%flip, flip}"
    found = node(load(f"{PREAMBLE}ROOT {line}\n"), "r").attributes["branch_computations"]
    assert found == Callees(("flip", "flip"))


@pytest.mark.parametrize("value", ["flip", "{flip flip}", "{,}"])
def test_branches_that_are_no_list_of_computations_are_refused(value: str) -> None:
    line = f"r = f32[4] conditional(i, x), branch_computations={value}"
    (found,) = complaints(f"{PREAMBLE}ROOT {line}\n")
    assert found.endswith("attribute-C1")


def test_a_branch_that_does_not_exist_is_named() -> None:
    line = "r = f32[4] conditional(i, x, x), branch_computations={flip, flop}"
    assert complaints(f"{PREAMBLE}ROOT {line}\n") == [f"{LINE}:59 computation-C2"]


def test_a_loop_that_runs_itself_is_refused_at_its_body() -> None:
    text = """round {
  a = s32[] parameter(0)
  ROOT b = s32[] while(a), condition=test, body=round
}
test {
  a = s32[] parameter(0)
  ROOT b = pred[] compare(a, a), direction=LT
}
ENTRY main {
  a = s32[] parameter(0)
  ROOT b = s32[] while(a), condition=test, body=round
}
"""
    assert complaints(text) == ["3:49 computation-C3"]
