"""Collectives whose tables say how many rows go where: values, refusals, proofs and times."""

from collections.abc import Callable

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import CountsError, LoweringError, MismatchError
from ncc_runtime.neff.check import check
from ncc_runtime.neff.document import files_of, program_from
from ncc_runtime.neff.listing import parse_program, print_program
from tests.compiler.reading import load
from tests.counted_programs import OPS, Shape, buffers_of, counts_of, shapes, text_of
from tests.reference_runs import reference_outputs

PAIRS = Shape(groups=((2, 0), (3, 1)))
FOUR = Shape(groups=((0, 1, 2, 3),))


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=6)
@given(seed=st.integers(0, 1 << 20), shape=shapes(elements=("f32",)))
def test_values_are_those_of_the_reference(op: str, seed: int, shape: Shape) -> None:
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


TWICE = """HloModule twice, replica_count=4
ENTRY main {
  x = f32[12,3] parameter(0)
  out = f32[20,3] parameter(1)
  t0 = s32[4] parameter(2)
  t1 = s32[4] parameter(3)
  t2 = s32[4] parameter(4)
  t3 = s32[4] parameter(5)
  more = f32[12,3] multiply(x, x)
  ROOT r = f32[20,3] ragged-all-to-all(more, out, t0, t1, t2, t3), replica_groups={}
}"""


def test_programs_of_one_run_share_a_collective() -> None:
    plain = text_of("ragged-all-to-all", FOUR)
    tables = counts_of("ragged-all-to-all", FOUR, 5)
    operand, output = buffers_of("ragged-all-to-all", FOUR, 5)
    stages = [
        (ncc_compiler.compile_text(plain), [0, 2]),
        (ncc_compiler.compile_text(TWICE), [1, 3]),
    ]
    model = ncc_runtime.load(stages)
    given = {}
    for stage, ranks in enumerate(([0, 2], [1, 3])):
        for number, array in enumerate((operand, output, *tables)):
            given[6 * stage + number] = array[ranks]
    run = model.run(given, checked=True, shuffle_seed=1)
    squared = operand.copy()
    squared[[1, 3]] *= squared[[1, 3]]
    (expected,) = reference_outputs(load(plain), [squared, output, *tables])
    np.testing.assert_array_equal(run.outputs[0], expected[[0, 2]])
    np.testing.assert_array_equal(run.outputs[1], expected[[1, 3]])


def test_programs_that_disagree_about_tables_are_refused() -> None:
    one = ncc_compiler.compile_text(text_of("ragged-all-to-all", FOUR))
    other = attrs.evolve(FOUR, updates=2)
    two = ncc_compiler.compile_text(text_of("ragged-all-to-all", other))
    with pytest.raises(MismatchError, match="elements"):
        ncc_runtime.load([(one, [0, 1]), (two, [2, 3])])


LOOP = """HloModule loop, replica_count=4
cond {
  p = (s32[], f32[4096,64], s32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}
body {
  p = (s32[], f32[4096,64], s32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  v = f32[4096,64] get-tuple-element(p), index=1
  c = s32[4] get-tuple-element(p), index=2
  from = s32[4] constant({0, 1024, 2048, 3072})
  me = u32[] replica-id()
  own = s32[] convert(me)
  rows = s32[] constant(1024)
  first = s32[] multiply(own, rows)
  there = s32[4] broadcast(first), dimensions={}
  none = s32[] constant(0)
  next = s32[4] broadcast(none), dimensions={}
  r = f32[4096,64] ragged-all-to-all(v, v, from, c, there, c), replica_groups={}
  ROOT t = (s32[], f32[4096,64], s32[4]) tuple(j, r, next)
}
ENTRY main {
  x = f32[4096,64] parameter(0)
  c = s32[4] parameter(1)
  z = s32[] constant(0)
  t = (s32[], f32[4096,64], s32[4]) tuple(z, x, c)
  w = (s32[], f32[4096,64], s32[4]) while(t), condition=cond, body=body
  ROOT y = f32[4096,64] get-tuple-element(w), index=1
}"""


def test_the_clock_takes_the_size_of_each_turn_of_a_loop() -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(LOOP))
    x = np.arange(4 * 4096 * 64, dtype=np.float32).reshape(4, 4096, 64)
    counts = np.full((4, 4), 1024, np.int32)
    run = model.run([x, counts])
    (expected,) = reference_outputs(load(LOOP), [x, counts])
    np.testing.assert_array_equal(run.outputs[0], expected)
    assert run.trace is not None
    rank, start, end = run.trace.spans(0)
    first, *later = (end - start)[rank == 0].tolist()
    assert len(later) == 2
    assert later[0] == later[1]
    assert later[0] * 1.05 < first
    assert run.collectives[0].bytes_by_transport["intra_chip"] == 4 * 3 * 1024 * 64 * 4


def test_fewer_rows_take_less_time_and_what_is_assumed_is_said() -> None:
    shape = Shape(groups=((0, 1, 2, 3),), operand_rows=4096, slot=1024, width=256)
    model = ncc_runtime.load(ncc_compiler.compile_text(text_of("ncc.all_to_all_v", shape)))
    x, out = buffers_of("ncc.all_to_all_v", shape, 1)
    times = []
    for rows in (0, 512, 1024):
        table = np.zeros((4, 3, 4), np.uint32)
        table[:, 0] = table[:, 2] = rows
        run = model.run([x, out, table])
        assert run.notes == ()
        times.append(run.time_us)
    assert times == sorted(set(times))
    planned = model.run(values=False)
    assert planned.time_us == times[-1]
    assert planned.notes == ("p0 r: its counts are not known, full slots assumed",)


def test_tables_that_no_registers_hold_are_refused() -> None:
    shape = attrs.evolve(FOUR, updates=1025)
    neff = ncc_compiler.compile_text(text_of("ragged-all-to-all", shape))
    with pytest.raises(LoweringError, match="tables have 4100 entries, length registers hold 4096"):
        ncc_runtime.load(neff)


SHARED = """HloModule shared, replica_count=4
ENTRY main {
  x = f32[12,3] parameter(0)
  out = f32[20,3] parameter(1)
  t = s32[4] parameter(2)
  ROOT r = f32[20,3] ragged-all-to-all(x, out, t, t, t, t), replica_groups={}
}"""


def test_one_array_may_be_several_tables() -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(SHARED))
    assert all(proof.holds for proof in model.proofs)
    operand, output = buffers_of("ragged-all-to-all", FOUR, 7)
    given = [operand, output, np.diag([1, 2, 3, 4]).astype(np.int32)]
    (expected,) = reference_outputs(load(SHARED), given)
    np.testing.assert_array_equal(model.run(given, checked=True).outputs[0], expected)
