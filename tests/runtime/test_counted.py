"""Collectives whose tables say how many rows go where: values, refusals, proofs and times."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import CountsError
from ncc_runtime.neff.check import check
from ncc_runtime.neff.document import files_of, program_from
from ncc_runtime.neff.listing import parse_program, print_program
from tests.compiler.reading import load
from tests.counted_programs import SLOTTED, Shape, buffers_of, counts_of, text_of
from tests.reference_runs import reference_outputs

OPS = ("ragged-all-to-all", *SLOTTED)
PAIRS = Shape(groups=((2, 0), (3, 1)))
FOUR = Shape(groups=((0, 1, 2, 3),))


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    groups=st.sampled_from([((2, 0), (3, 1)), ((3, 1, 0, 2),), ((0,), (1,)), (tuple(range(6)),)]),
    operand_rows=st.integers(0, 9),
    slot=st.integers(0, 6),
    updates=st.integers(1, 3),
    number=st.sampled_from(["s32", "s64", "u32", "u64"]),
)
def test_values_are_those_of_the_reference(op: str, seed: int, **sizes: Any) -> None:
    shape = Shape(**sizes)
    given = [*buffers_of(op, shape, seed), *counts_of(op, shape, seed)]
    text = text_of(op, shape)
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    run = model.run(given, checked=True, shuffle_seed=seed)
    (expected,) = reference_outputs(load(text), given)
    np.testing.assert_array_equal(run.outputs[0], expected)


@pytest.mark.parametrize("op", OPS)
def test_a_program_obeys_the_rules_and_its_listing_reads_back(op: str) -> None:
    program = ncc_compiler.compile_text(text_of(op, PAIRS)).program
    assert check(program) == ()
    assert parse_program(print_program(program)) == program
    assert program_from(files_of(program)) == program


def refused(op: str, change: Callable[[list[np.ndarray]], None], shape: Shape = FOUR) -> str:
    """What is said of tables that fit, after a change."""
    tables = counts_of(op, shape, 3)
    change(tables)
    model = ncc_runtime.load(ncc_compiler.compile_text(text_of(op, shape)))
    with pytest.raises(CountsError) as error:
        model.run([*buffers_of(op, shape, 3), *tables])
    return str(error.value)


def put(table: int, at: tuple[int, ...], value: int) -> Callable[[list[np.ndarray]], None]:
    def change(tables: list[np.ndarray]) -> None:
        tables[table][at] = value

    return change


@pytest.mark.parametrize(
    ("op", "change", "said"),
    [
        ("ragged-all-to-all", put(1, (2, 3), -1), "rank 2 sends -1 rows to rank 3; a transfer"),
        ("ragged-all-to-all", put(0, (1, 0), 12), "its operand has 12"),
        ("ragged-all-to-all", put(2, (1, 0), 20), "whose output has 20"),
        ("ragged-all-to-all", put(3, (0, 2), 9), "rank 2 sends 1 rows to rank 0, which expects 9"),
        ("ncc.all_to_all_v", put(0, (3, 0, 1), 6), "rank 3 sends 6 rows to rank 1; a transfer"),
        ("ncc.all_to_all_v", put(0, (3, 1, 1), 12), "its operand has 12: correct the offset"),
        ("ncc.all_to_all_v", put(0, (3, 2, 1), 9), "which expects 9: what is sent and what"),
        ("ncc.all_gather_v", put(0, (1, 0, 2), 0), "an all-gather sends everybody the same rows"),
        ("ncc.reduce_scatter_v", put(0, (1, 0, 2), 0), "has 0 rows for rank 2, rank 0 has"),
    ],
)
def test_counts_that_do_not_fit_are_refused(
    op: str, change: Callable[[list[np.ndarray]], None], said: str
) -> None:
    assert said in refused(op, change)


def test_rows_that_two_ranks_write_are_refused() -> None:
    def change(tables: list[np.ndarray]) -> None:
        starts, rows, targets, received = tables
        for table in (starts, targets):
            table[:] = 0
        rows[:], received[:] = 1, 1

    said = refused("ragged-all-to-all", change)
    assert "rows 0..1 from rank 0 and rows 0..1 from rank 1 overlap at rank 0" in said
