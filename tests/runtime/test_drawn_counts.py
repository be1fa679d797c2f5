"""A seed fills tables of counts with numbers that fit, or says which parameter it cannot."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.codegen.generate import generate
from ncc_compiler.driver import load_text
from ncc_runtime.errors import CountsError
from ncc_runtime.inputs import bound_inputs
from ncc_runtime.neff.stages import stages_of
from ncc_runtime.random_counts import UNKNOWN, Sources, drawn_counts
from ncc_runtime.report.run import Run
from ncc_runtime.runtime import Model
from tests.counted_programs import OPS, Shape, buffers_of, counts_of, shapes, text_of

FOUR = Shape(groups=((0, 1, 2, 3),))


def model_of(text: str) -> Model:
    return ncc_runtime.load(ncc_compiler.compile_text(text))


def moved(run: Run) -> int:
    return sum(sum(one.bytes_by_transport.values()) for one in run.collectives)


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=5)
@given(seed=st.integers(0, 1 << 20), shape=shapes(elements=("f32",)))
def test_a_seed_runs_any_collective_of_variable_size(op: str, seed: int, shape: Shape) -> None:
    model_of(text_of(op, shape)).run(seed=seed, verify=False, clock=False)


@pytest.mark.parametrize("op", OPS)
def test_a_seed_moves_rows_the_same_every_time_and_others_move_others(op: str) -> None:
    model = model_of(text_of(op, FOUR))
    first, again, other = (model.run(seed=seed) for seed in (1, 1, 2))
    assert moved(first) == moved(again)
    assert len({0, moved(first), moved(other)}) == 3
    np.testing.assert_array_equal(first.outputs[0], again.outputs[0])


@pytest.mark.parametrize("op", OPS)
def test_tables_that_are_given_are_kept_and_the_rest_fits_them(op: str) -> None:
    tables = counts_of(op, FOUR, 5)
    model = model_of(text_of(op, FOUR))
    whole = model.run([*buffers_of(op, FOUR, 5), *tables])
    for missing in range(len(tables)):
        known = {2 + k: table for k, table in enumerate(tables) if k != missing}
        run = model.run(known, seed=3)
        if op == "ragged-all-to-all" and missing != 2:
            assert moved(run) == moved(whole)


def test_other_parameters_hold_what_they_held_without_tables() -> None:
    program = ncc_compiler.compile_text(text_of("ragged-all-to-all", FOUR)).program
    plain = [*bound_inputs(program, {}, 7)]
    drawn = [*bound_inputs(program, {}, 7, functools.partial(drawn_counts, program))]
    for number in (0, 1):
        np.testing.assert_array_equal(plain[number], drawn[number])


def ragged(body: str, tables: str, *, more: str = "") -> str:
    return f"""HloModule m, replica_count=4
ENTRY main {{
  x = f32[12,3] parameter(0)
  out = f32[20,3] parameter(1)
{body}
  r = f32[20,3] ragged-all-to-all(x, out, {tables}), replica_groups={{}}
{more}
  ROOT t = (f32[20,3]) tuple(r)
}}"""


MOVED = {
    "reshape and slice": """  all = s32[5,4] parameter(2)
  r0 = s32[1,4] slice(all), slice={[0:1],[0:4]}
  r1 = s32[1,4] slice(all), slice={[1:2],[0:4]}
  r2 = s32[1,4] slice(all), slice={[3:4],[0:4]}
  r3 = s32[1,4] slice(all), slice={[4:5],[0:4]}
  a = s32[4] reshape(r0)
  b = s32[4] reshape(r1)
  c = s32[4] reshape(r2)
  d = s32[4] reshape(r3)""",
    "columns of a transposed array": """  all = s32[4,4] parameter(2)
  turned = s32[4,4] transpose(all), dimensions={1,0}
  r0 = s32[1,4] slice(turned), slice={[0:1],[0:4]}
  r1 = s32[1,4] slice(turned), slice={[1:2],[0:4]}
  r2 = s32[1,4] slice(turned), slice={[2:3],[0:4]}
  r3 = s32[1,4] slice(turned), slice={[3:4],[0:4]}
  a = s32[4] reshape(r0)
  b = s32[4] reshape(r1)
  c = s32[4] reshape(r2)
  d = s32[4] reshape(r3)""",
    "floats and narrow numbers": """  p = f32[4] parameter(2)
  q = s8[4] parameter(3)
  s = bf16[4] parameter(4)
  d = s32[4] parameter(5)
  a = s32[4] convert(p)
  b = s32[4] convert(q)
  c = s32[4] convert(s)""",
    "one tuple": """  p = (s32[4], s32[4]) parameter(2)
  q = (s32[4], s32[4]) parameter(3)
  e = s32[4] get-tuple-element(p), index=1
  a = s32[4] copy(e)
  b = s32[4] get-tuple-element(p), index=0
  c = s32[4] get-tuple-element(q), index=0
  d = s32[4] get-tuple-element(q), index=1""",
    "a broadcast": """  p = s32[] parameter(2)
  q = s32[4] parameter(3)
  a = s32[4] broadcast(p), dimensions={}
  b = s32[4] parameter(4)
  c = s32[4] reverse(q), dimensions={0}
  d = s32[4] parameter(5)""",
    "constants": """  b = s32[4] parameter(2)
  d = s32[4] parameter(3)
  a = s32[4] constant({0, 3, 6, 9})
  c = s32[4] constant({0, 5, 10, 15})""",
}


@pytest.mark.parametrize("way", MOVED)
@pytest.mark.parametrize("level", [0, 1])
def test_tables_are_found_behind_what_moves_words(way: str, level: int) -> None:
    options = ncc_compiler.CompileOptions(level=level)
    neff = ncc_compiler.compile_text(ragged(MOVED[way], "a, b, c, d"), options)
    model = ncc_runtime.load(neff)
    for seed in range(3):
        run = model.run(seed=seed)
        assert way == "constants" or moved(run) > 0


def test_tables_are_found_inside_of_fusions() -> None:
    """Moved and converted words, a scalar that is written into its row, and what computes."""
    fused = """fused {
  p = f32[2,2] parameter(0)
  q = s32[4] parameter(1)
  t = f32[2,2] transpose(p), dimensions={1,0}
  r = f32[4] reshape(t)
  a = s32[4] convert(r)
  one = s32[] constant(1)
  b = s32[4] broadcast(one), dimensions={}
  c = s32[4] copy(q)
  d = s32[4] multiply(q, b)
  ROOT all = (s32[4], s32[4], s32[4], s32[4]) tuple(a, b, c, d)
}
"""
    body = """  p = f32[2,2] parameter(2)
  q = s32[4] parameter(3)
  all = (s32[4], s32[4], s32[4], s32[4]) fusion(p, q), calls=fused
  a = s32[4] get-tuple-element(all), index=0
  b = s32[4] get-tuple-element(all), index=1
  c = s32[4] get-tuple-element(all), index=2
  d = s32[4] get-tuple-element(all), index=3"""
    head, entry = ragged(body, "a, b, c, d").split("\n", 1)
    program = generate(load_text(f"{head}\n{fused}{entry}"))
    first = [start + 4 * np.arange(4) for start in (0, 0, 1000, 2000)]
    sources = Sources(stages_of(program)[0], first, lambda values: 5000 + int(values[0]))
    of = {tensor.name: number for number, tensor in enumerate(program.tensors)}
    assert sources.of(of["all.0"])[1].tolist() == [1004, 1006, 1005, 1007]
    assert sources.of(of["all.1"])[1].tolist() == [5001] * 4
    assert sources.of(of["all.2"])[1].tolist() == [2004, 2005, 2006, 2007]
    assert sources.of(of["all.3"])[1].tolist() == [UNKNOWN] * 4


@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_have_one_table_of_counts_are_drawn_one_that_fits_all(seed: int) -> None:
    """What a rank sends to others it also gets from them, so one table for all has equal counts."""
    tables = """  n = s32[4] parameter(2), sharding={replicated}
  a = s32[4] constant({0, 3, 6, 9})
  c = s32[4] constant({0, 5, 10, 15})"""
    text = ragged(tables, "a, n, c, n").replace("replica_count", "num_partitions")
    text = text.replace("ENTRY main", "ENTRY main_spmd").replace(
        "replica_groups={}", "replica_groups={{0,1,2,3}}, channel_id=1"
    )
    model = model_of(text)
    program = model.executable.program
    table = [*bound_inputs(program, {}, seed, functools.partial(drawn_counts, program))][2]
    assert len(np.unique(table.whole())) == 1
    assert moved(model.run(seed=seed)) == 4 * 3 * 12 * table.array[0, 0]


def test_one_table_serves_the_way_there_and_back() -> None:
    names = ("from", "sent", "there", "received", "to", "back")
    body = "\n".join(f"  {name} = s32[4] parameter({k + 2})" for k, name in enumerate(names))
    back = (
        "  zero = f32[] constant(0)\n  room = f32[12,3] broadcast(zero), dimensions={}\n"
        "  h = f32[12,3] ragged-all-to-all(r, room, to, received, back, sent), replica_groups={}"
    )
    text = ragged(body, "from, sent, there, received", more=back).replace("tuple(r)", "tuple(h)")
    model = model_of(text.replace("t = (f32[20,3])", "t = (f32[12,3])"))
    assert moved(model.run(seed=1)) > 0


def test_a_word_that_is_count_and_offset_at_once_moves_nothing_where_it_must_not() -> None:
    body = "  p = s32[4] parameter(2)"
    model = model_of(ragged(body, "p, p, p, p"))
    for seed in range(4):
        model.run(seed=seed)


def test_computed_offsets_fit_an_even_share() -> None:
    body = """  sent = s32[4] parameter(2)
  received = s32[4] all-to-all(sent), dimensions={0}, replica_groups={}
  me = u32[] replica-id()
  own = s32[] convert(me)
  five = s32[] constant(5)
  first = s32[] multiply(own, five)
  there = s32[4] broadcast(first), dimensions={}
  three = s32[] constant(3)
  threes = s32[4] broadcast(three), dimensions={}
  place = s32[4] iota(), iota_dimension=0
  from = s32[4] multiply(place, threes)"""
    model = model_of(ragged(body, "from, sent, there, received"))
    assert moved(model.run(seed=1)) > 0


def test_what_cannot_be_told_is_said_with_the_parameter_and_the_remedy() -> None:
    body = """  p = s32[4] parameter(2)
  a = s32[4] parameter(3)
  b = s32[4] add(p, p)
  c = s32[4] parameter(4)
  d = s32[4] multiply(p, p)"""
    model = model_of(ragged(body, "a, b, c, d"))
    with pytest.raises(CountsError) as error:
        model.run(seed=1)
    said = str(error.value)
    assert "what is sent and what is received must be equal" in said or "rows" in said
    assert (
        "its tables follow from arg2 s32[4], arg3 s32[4], arg4 s32[4], which a seed filled" in said
    )
    assert said.endswith("give them")


def test_what_is_given_in_full_is_refused_as_it_is() -> None:
    tables = [*buffers_of("ragged-all-to-all", FOUR, 1), *counts_of("ragged-all-to-all", FOUR, 1)]
    tables[3] = tables[3] + 1
    with pytest.raises(CountsError) as error:
        model_of(text_of("ragged-all-to-all", FOUR)).run(tables, seed=1)
    assert "seed" not in str(error.value)


def test_programs_of_one_run_draw_tables_that_fit_each_other() -> None:
    plain = text_of("ragged-all-to-all", FOUR)
    doubled = plain.replace("ragged-all-to-all(x,", "ragged-all-to-all(more,").replace(
        "  ROOT", "  more = f32[12,3] add(x, x)\n  ROOT"
    )
    stages = [
        (ncc_compiler.compile_text(plain), [0, 2]),
        (ncc_compiler.compile_text(doubled), [1, 3]),
    ]
    assert moved(ncc_runtime.load(stages).run(seed=2)) > 0
