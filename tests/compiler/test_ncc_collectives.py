"""Collectives that HLO lacks, written as custom calls: their rules, places, text and meaning."""

import json

import numpy as np
import pytest

from ncc_compiler.diagnostics import CompileError, Source
from ncc_compiler.driver import compile_text
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.shared.reductions import Reduction
from tests.compiler.reading import complaints
from tests.reference_runs import run_text

HEADER = "HloModule m, replica_count=4\n"


def call(target: str, operands: str = "x", kind: str = "f32[4]", **config: object) -> str:
    """A custom call with a backend_config, as XLA prints one."""
    text = f", backend_config={json.dumps(config)}" if config else ""
    return f'{kind} custom-call({operands}), custom_call_target="ncc.{target}"{text}'


def program(line: str, operand: str = "f32[4]", header: str = HEADER) -> str:
    return f"{header}x = {operand} parameter(0)\nROOT r = {line}\n"


def placeholders(text: str, level: int = 1) -> tuple[Placeholder, ...]:
    return compile_text(text, CompileOptions(level=level)).program.placeholders


PAIRS = [[0, 1], [2, 3]]
WRONG = [
    (call("avg_all_reduce", kind="s32[4]"), "s32[4]", "ncc.avg_all_reduce-C6", "x)"),
    (call("reduce", reduction="mean", root=0), "f32[4]", "ncc.reduce-C6", '"reduction"'),
    (call("reduce", reduction="and", root=0), "f32[4]", "ncc.reduce-C6", '"reduction"'),
    (call("reduce", reduction="add", root=4), "f32[4]", "ncc.reduce-C7", '"root"'),
    (call("reduce", reduction="add", root=-1), "f32[4]", "ncc.reduce-C7", '"root"'),
    (call("gather", replica_groups=PAIRS, root=2, dimensions=[0], kind="f32[8]"), "f32[4]",
     "ncc.gather-C8", '"root"'),
    (call("scatter", root=0, dimensions=[0], kind="f32[1]"), "f32[3]", "ncc.scatter-C8", "x)"),
    (call("barrier", replica_groups=[[0, 1], [2, 4]]), "f32[4]", "ncc.barrier-C2", "4]]"),
    (call("barrier", use_global_device_ids=True), "f32[4]", "ncc.barrier-C5", '"use_global'),
    (call("barrier", root=1), "f32[4]", "custom-call-C3", '{"root'),
    ('f32[4] custom-call(x), custom_call_target="ncc.barrier", backend_config={a = 1 : i64}',
     "f32[4]", "custom-call-C3", "{a"),
    (call("reduce", root=0), "f32[4]", "op-C3", "custom-call"),
    (call("reduce", reduction="add", root=[0]), "f32[4]", "attribute-C1", "[0]"),
    ("f32[4] ncc.barrier(x)", "f32[4]", "op-C1", "ncc.barrier"),
    (call("all_reduce"), "f32[4]", "custom-call-C1", "custom_call_target"),
    ("f32[4] collective-broadcast(x), replica_groups={{0,1,1}}", "f32[4]",
     "collective-broadcast-C1", "1}}"),
    ("f32[4] collective-broadcast(x), replica_groups={{}}", "f32[4]",
     "collective-broadcast-C3", "replica_groups"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "operand", "rule", "place"), WRONG)
def test_a_broken_rule_is_found_at_its_place(
    line: str, operand: str, rule: str, place: str
) -> None:
    column = f"ROOT r = {line}".index(place) + 1
    assert complaints(program(line, operand)) == [f"3:{column} {rule}"]


@pytest.mark.parametrize("spell", [json.dumps, lambda config: json.dumps(json.dumps(config))])
def test_a_configuration_may_be_an_object_or_a_string(spell) -> None:
    config = spell({"replica_groups": PAIRS, "root": 1, "reduction": "maximum"})
    line = f'f32[4] custom-call(x), custom_call_target="ncc.reduce", backend_config={config}'
    (found,) = placeholders(program(line))
    assert (found.op, found.reduction) == (CollectiveOp.REDUCE, Reduction.MAXIMUM)
    assert (found.groups, found.root) == (((0, 1), (2, 3)), 1)


@pytest.mark.parametrize("groups", [PAIRS, "[2,2]<=[4]", "[2,2]<=[2,2]T(1,0)"])
def test_what_is_printed_reads_back(groups: object) -> None:
    line = call("gather", replica_groups=groups, dimensions=[0], root=1, kind="f32[8]")
    module = load_module(Source("a.ir", program(line)))
    assert load_module(Source("b.ir", print_module(module))) == module


def test_a_header_is_not_needed_for_the_ids_to_be_ranks() -> None:
    line = call("avg_all_reduce", replica_groups=[[0, 5], [1, 4], [2, 3]])
    (found,) = placeholders(program(line, header=""))
    assert found.groups == ((0, 5), (1, 4), (2, 3))
    assert (found.op, found.reduction) == (CollectiveOp.ALL_REDUCE, Reduction.AVERAGE)


def rows(*values: float, dtype: object = np.float32) -> np.ndarray:
    return np.array(values, dtype)[:, None]


def test_an_average_is_rounded_once() -> None:
    import ml_dtypes

    text = program(call("avg_all_reduce", kind="bf16[1]"), "bf16[1]")
    [result] = run_text(text, rows(256, 1, 1, 0, dtype=ml_dtypes.bfloat16))
    assert result.astype(np.float32).ravel().tolist() == [64.5] * 4


def test_only_the_root_gets_a_reduction() -> None:
    line = call("reduce", replica_groups=[[3, 0], [1, 2]], reduction="add", root=1, kind="f32[1]")
    [result] = run_text(program(line, "f32[1]"), rows(1, 10, 100, 1000))
    assert result.ravel().tolist() == [1001, 0, 110, 0]


def test_a_scatter_gives_member_k_of_the_group_chunk_k_of_the_root() -> None:
    line = call("scatter", replica_groups=[[2, 0], [1, 3]], root=0, dimensions=[0], kind="f32[1]")
    given = np.arange(8, dtype=np.float32).reshape(4, 2)
    [result] = run_text(program(line, "f32[2]"), given)
    assert result.ravel().tolist() == [5, 2, 4, 3]


def test_who_is_in_no_group_of_a_broadcast_gets_zeros() -> None:
    line = "f32[1] collective-broadcast(x), replica_groups={{2,0}}"
    [result] = run_text(program(line, "f32[1]"), rows(1, 2, 3, 4))
    assert result.ravel().tolist() == [3, 0, 3, 0]


def test_a_gather_on_an_inner_dimension_becomes_one_of_byte_ranges() -> None:
    line = call("gather", root=0, dimensions=[1], kind="f32[2,12]")
    (found,) = placeholders(program(line, "f32[2,3]"))
    assert found.op is CollectiveOp.GATHER


ORDERED = f"""{HEADER}x = f32[4] parameter(0)
y = f32[4] add(x, x)
{{}}
ROOT r = f32[4] multiply({{}}, x)
"""


def test_whoever_uses_the_value_of_a_barrier_waits_for_it() -> None:
    text = ORDERED.format(f"b = {call('barrier', 'y')}", "b")
    queue = compile_text(text).program.queues[Engine.VECTOR]
    multiply = next(row for row in queue if row.opcode == "multiply")
    assert multiply.wait_sem != -1


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_barrier_stays_although_nobody_uses_its_token(level: int) -> None:
    token = call("barrier", "", "token[]")
    text = ORDERED.format(f"b = {token}\nc = {token}", "y")
    assert [one.op for one in placeholders(text, level)] == [CollectiveOp.BARRIER] * 2


def test_a_barrier_in_a_loop_keeps_the_loop() -> None:
    text = f"""{HEADER}
cond {{
  s = (s32[]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  k = s32[] constant(3)
  ROOT p = pred[] compare(n, k), direction=LT
}}
body {{
  s = (s32[]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  t = {call("barrier", "", "token[]")}
  one = s32[] constant(1)
  m = s32[] add(n, one)
  ROOT r = (s32[]) tuple(m)
}}
ENTRY main {{
  x = f32[4] parameter(0)
  z = s32[] constant(0)
  i = (s32[]) tuple(z)
  w = (s32[]) while(i), condition=cond, body=body
  ROOT r = f32[4] add(x, x)
}}
"""
    assert len(placeholders(text)) == 1


def test_a_dialect_of_mlir_is_refused_with_an_example() -> None:
    line = 'f32[4] custom-call(x), custom_call_target="ncc.reduce", backend_config={root = 1}'
    with pytest.raises(CompileError, match=r'backend_config=\{"reduction": "add", "root": 0\}'):
        compile_text(program(line))
