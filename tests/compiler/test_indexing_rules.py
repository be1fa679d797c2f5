"""Gather, scatter, sort and their neighbours: types that follow, and each rule broken once."""

import pytest

from ncc_compiler.ir.custom_calls import PARTITION_IT
from ncc_compiler.ir.op_tables.indexing import INDEXING_ROWS
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.text.printer import print_module
from tests.compiler.broken_indexing import LINE, PREAMBLE, WRONG_INDEXING
from tests.compiler.reading import complaints, load, messages
from tests.compiler.rows_indexing import RIGHT_INDEXING


@pytest.mark.parametrize("line", RIGHT_INDEXING)
def test_the_type_follows_from_the_operands(line: str) -> None:
    assert complaints(f"{PREAMBLE}ROOT r = {line}\n") == []


@pytest.mark.parametrize("line", RIGHT_INDEXING)
def test_a_program_reads_back_as_it_is_printed(line: str) -> None:
    module = load(f"{PREAMBLE}ROOT r = {line}\n")
    assert load(print_module(module)) == module


@pytest.mark.parametrize(
    ("line", "rule", "column"), WRONG_INDEXING, ids=[rule for _, rule, _ in WRONG_INDEXING]
)
def test_a_broken_rule_is_found_at_its_place(line: str, rule: str, column: int) -> None:
    assert complaints(f"{PREAMBLE}ROOT r = {line}\n") == [f"{LINE}:{column + 9} {rule}"]


def test_every_rule_of_these_ops_is_broken_by_a_text() -> None:
    rules = {f"{op.name}-C{k + 1}" for op in INDEXING_ROWS for k in range(len(op.rules))}
    assert rules == {rule for _, rule, _ in WRONG_INDEXING}


def test_every_row_is_in_the_table_of_ops() -> None:
    assert all(OPS[row.name] is row for row in INDEXING_ROWS)


def test_what_was_never_partitioned_is_told_how_to_be() -> None:
    text = messages('x = f32[4] parameter(0)\nROOT y = f32[4] custom-call(x), '
                    'custom_call_target="Sharding", sharding={devices=[2]0,1}\n')  # fmt: skip
    assert "Sharding stands for partitioning that has not been done" in text
    assert PARTITION_IT in text


def test_an_unknown_target_names_the_known_ones() -> None:
    text = messages('x = f32[4] parameter(0)\nROOT y = f32[4] custom-call(x), '
                    'custom_call_target="mine$gemm"\n')  # fmt: skip
    assert "unknown custom call target mine$gemm" in text
    assert "TopK" in text
