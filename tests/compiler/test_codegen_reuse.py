"""Updates and loops that work where their data lies, and where they must not."""

from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.codegen import placement
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.program import Program
from tests.compiler.small_programs import compiled, rows
from tests.reference_runs import run_text

HLO = Path(__file__).parents[1] / "data" / "hlo"

STATE = "(s32[], f32[4,2], f32[4,2])"
NESTED = f"""HloModule m
below {{ p = {STATE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}}
fill {{ p = {STATE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = f32[4,2] get-tuple-element(p), index=1
  w = f32[4,2] get-tuple-element(p), index=2
  z = s32[] constant(0)
  k = s32[] constant(1)
  row = f32[1,2] dynamic-slice(w, i, z), dynamic_slice_sizes={{1,2}}
  twice = f32[1,2] add(row, row)
  b = f32[4,2] dynamic-update-slice(a, twice, i, z)
  c = f32[4,2] dynamic-update-slice(b, row, k, z)
  j = s32[] add(i, k)
  ROOT t = {STATE} tuple(j, c, w)
}}
again {{ p = {STATE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = f32[4,2] get-tuple-element(p), index=1
  w = f32[4,2] get-tuple-element(p), index=2
  z = s32[] constant(0)
  t = {STATE} tuple(z, a, w)
  o = {STATE} while(t), condition=below, body=fill
  b = f32[4,2] get-tuple-element(o), index=1
  k = s32[] constant(1)
  j = s32[] add(i, k)
  ROOT u = {STATE} tuple(j, b, w)
}}
ENTRY main {{
  w = f32[4,2] parameter(0)
  a = f32[4,2] negate(w)
  z = s32[] constant(0)
  t = {STATE} tuple(z, a, w)
  o = {STATE} while(t), condition=below, body=again
  ROOT b = f32[4,2] get-tuple-element(o), index=1
}}
"""
VALUES = np.arange(8, dtype=np.float32).reshape(1, 4, 2) + 1


def copied_bytes(program: Program) -> list[int]:
    """What copies write, in no order."""
    return [
        row.bytes_out
        for engine in ENGINES
        for row in program.queues[engine]
        if row.opcode == "copy"
    ]


def updates(program: Program) -> list[bool]:
    """Of each update, whether it is in place."""
    found = [row for row in rows(program, Engine.SYNC) if row.opcode == "dynamic-update-slice"]
    home = [tensor.buffer for tensor in program.tensors]
    return [home[row.results[0]] == home[row.operands[0]] for row in found]


@pytest.mark.parametrize("level", [0, 1])
def test_nested_loops_carry_arrays_in_one_place(level: int) -> None:
    program = ncc_compiler.compile_text(NESTED, CompileOptions(level=level)).program
    assert updates(program) == [True, True]
    assert set(copied_bytes(program)) == {4}  # counters


@pytest.mark.parametrize("level", [0, 1])
def test_loops_that_work_in_place_compute_the_same(level: int) -> None:
    neff = ncc_compiler.compile_text(NESTED, CompileOptions(level=level))
    (found,) = ncc_runtime.load(neff).run([VALUES], checked=True).outputs
    (expected,) = run_text(NESTED, VALUES)
    np.testing.assert_array_equal(found, expected)


def test_the_layers_of_a_scan_are_copied_in_no_round() -> None:
    text = (HLO / "fsdp_scan_layers.hlo").read_text()
    program = ncc_compiler.compile_text(text).program
    assert updates(program) == [True]
    assert max(copied_bytes(program)) < 4 * 8 * 64 * 4  # of all parameters


LINES = (
    "%x = f32[4] parameter(0)",
    "%u = f32[1] parameter(1)",
    "%i = s32[] parameter(2)",
    "%a = f32[4] negate(%x)",
)
UPDATE = "%b = f32[4] dynamic-update-slice(%a, %u, %i)"


@pytest.mark.parametrize(
    ("lines", "in_place"),
    [
        ([UPDATE, "%z = f32[4] abs(%b)"], True),
        ([UPDATE], True),  # the result is an output
        ([UPDATE, "%z = f32[4] add(%b, %a)"], False),  # read later
        ([UPDATE, "%z = (f32[4], f32[4]) tuple(%a, %b)"], False),  # both are outputs
        ([UPDATE.replace("%a", "%x")], False),  # a parameter
        (["%r = f32[1] slice(%a), slice={[1:2]}", UPDATE.replace("%u", "%r")], True),
        (["%v = f32[4] dynamic-update-slice(%a, %a, %i)"], False),  # it reads what it writes
    ],
)
def test_an_update_is_in_place_only_if_its_operand_is_dead(lines, in_place) -> None:
    assert updates(compiled(*LINES, *lines)) == [in_place]


def test_an_update_in_place_costs_its_slice() -> None:
    (row,) = rows(compiled(*LINES, UPDATE), Engine.SYNC)
    assert (row.elements, row.bytes_in, row.bytes_out) == (1, 8, 4)


def test_a_copy_of_what_nobody_else_reads_is_no_instruction() -> None:
    program = compiled(*LINES, "%c = f32[4] copy(%a)", "%z = f32[4] abs(%c)")
    assert copied_bytes(program) == []


def test_which_operands_a_fusion_may_overwrite_is_asked_once(monkeypatch):
    """Not for each pair of its results and operands."""
    count, asked = 40, []
    read_in_turn = placement.read_in_turn
    monkeypatch.setattr(
        placement, "read_in_turn", lambda fusion: asked.append(fusion) or read_in_turn(fusion)
    )
    sort = "dimensions={0}, to_apply=less"
    lines = [f"x{k} = f32[64] parameter({k})" for k in range(count)]
    lines += [f"s{k} = f32[64] sort(x{k}), {sort}" for k in range(count)]
    lines += [f"y{k} = f32[64] tanh(s{k})" for k in range(count)]
    lines += [f"z{k} = f32[64] sort(y{k}), {sort}" for k in range(count)]
    parts = ", ".join(f"y{k}" for k in range(count))
    lines += [f"whole = f32[{64 * count}] concatenate({parts}), dimensions={{0}}"]
    kinds = ", ".join(["f32[64]"] * count)
    results = ", ".join(f"z{k}" for k in range(count))
    less = (
        "less { a = f32[] parameter(0) b = f32[] parameter(1) "
        "ROOT c = pred[] compare(a, b), direction=LT }"
    )
    root = f"ROOT r = ({kinds}, f32[{64 * count}]) tuple({results}, whole)"
    body = "\n".join([*lines, root])
    program = ncc_compiler.compile_text(f"{less}\nENTRY e {{ {body} }}").program
    (fusion,) = program.fusions
    assert len(fusion.results) == count + 1
    assert 0 < len(asked) <= 2  # by each placement
