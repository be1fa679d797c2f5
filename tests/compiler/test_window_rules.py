"""Ops with windows and numerical methods: types that follow, and each rule broken once."""

import pytest

from ncc_compiler.ir.op_tables.contractions import WINDOW_ROWS
from ncc_compiler.ir.op_tables.numeric import NUMERIC_ROWS, WORK
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.text.printer import print_module
from tests.compiler.broken_windows import LINE, PREAMBLE, RIGHT_WINDOWS, WRONG_WINDOWS
from tests.compiler.reading import complaints, load

ROWS = [row for row in (*WINDOW_ROWS, *NUMERIC_ROWS) if row.name != WORK]
"""Sized work is a custom call, and has tests of its own."""


@pytest.mark.parametrize("line", RIGHT_WINDOWS)
def test_the_type_follows_from_the_operands(line: str) -> None:
    assert complaints(f"{PREAMBLE}ROOT r = {line}\n") == []


@pytest.mark.parametrize(
    "line", [line for line in RIGHT_WINDOWS if " convolution" not in line and " dot" not in line]
)
def test_another_type_is_refused(line: str) -> None:
    op = next(row.name for row in ROWS if f" {row.name}(" in line)
    kind, call = line.split(f" {op}(")
    rule = f"{op}-C3" if op in ("rng", "rng-bit-generator") else "op-C5"
    wrong = f"({kind}, f32[]) {op}({call}"
    assert complaints(f"{PREAMBLE}ROOT r = {wrong}\n") == [f"{LINE}:10 {rule}"]


@pytest.mark.parametrize("line", RIGHT_WINDOWS)
def test_a_program_reads_back_as_it_is_printed(line: str) -> None:
    module = load(f"{PREAMBLE}ROOT r = {line}\n")
    assert load(print_module(module)) == module


@pytest.mark.parametrize(
    ("line", "rule", "column"), WRONG_WINDOWS, ids=[rule for _, rule, _ in WRONG_WINDOWS]
)
def test_a_broken_rule_is_found_at_its_place(line: str, rule: str, column: int) -> None:
    assert complaints(f"{PREAMBLE}ROOT r = {line}\n") == [f"{LINE}:{column + 9} {rule}"]


def test_every_rule_of_these_ops_is_broken_by_a_text() -> None:
    rules = {f"{op.name}-C{k + 1}" for op in ROWS for k in range(len(op.rules))}
    assert rules <= {rule for _, rule, _ in WRONG_WINDOWS}


def test_every_row_is_in_the_table_of_ops() -> None:
    assert all(OPS[row.name] is row for row in ROWS)
