"""Loops of runs without values: what inputs and the program tell, and what has to be said."""

from pathlib import Path

import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.driver import compile_text
from ncc_runtime.cli import main
from ncc_runtime.errors import ControlError, InputError
from ncc_runtime.runtime import Model

SUM = "sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }"

LOOPS = (
    f"HloModule loops, replica_count=4\n{SUM}"
    """
below { s = (s32[], s32[], f32[4]) parameter(0)
  at = s32[] get-tuple-element(s), index=0
  end = s32[] get-tuple-element(s), index=1
  ROOT less = pred[] compare(at, end), direction=LT }
turn { s = (s32[], s32[], f32[4]) parameter(0)
  at = s32[] get-tuple-element(s), index=0
  end = s32[] get-tuple-element(s), index=1
  x = f32[4] get-tuple-element(s), index=2
  two = s32[] constant(2)
  next = s32[] multiply(at, two)
  y = f32[4] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=sum
  ROOT out = (s32[], s32[], f32[4]) tuple(next, end, y) }
small { s = (f32[4]) parameter(0)
  x = f32[4] get-tuple-element(s), index=0
  first = f32[1] slice(x), slice={[0:1]}
  f = f32[] reshape(first)
  limit = f32[] constant(3000)
  ROOT less = pred[] compare(f, limit), direction=LT }
grow { s = (f32[4]) parameter(0)
  x = f32[4] get-tuple-element(s), index=0
  y = f32[4] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=sum
  ROOT out = (f32[4]) tuple(y) }
ENTRY main {
  n = s32[] parameter(0)
  x = f32[4] parameter(1)
  one = s32[] constant(1)
  start = (s32[], s32[], f32[4]) tuple(one, n, x)
  doubling = (s32[], s32[], f32[4]) while(start), condition=below, body=turn
  y = f32[4] get-tuple-element(doubling), index=2
  second = (f32[4]) tuple(y)
  growing = (f32[4]) while(second), condition=small, body=grow
  ROOT z = f32[4] get-tuple-element(growing), index=0 }
"""
)

LOCAL = (
    f"HloModule local, replica_count=4\n{SUM}"
    """
inner_below { s = (s32[], s32[], f32[]) parameter(0)
  at = s32[] get-tuple-element(s), index=0
  end = s32[] get-tuple-element(s), index=1
  ROOT less = pred[] compare(at, end), direction=LT }
inner_turn { s = (s32[], s32[], f32[]) parameter(0)
  at = s32[] get-tuple-element(s), index=0
  end = s32[] get-tuple-element(s), index=1
  x = f32[] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(at, one)
  y = f32[] add(x, x)
  ROOT out = (s32[], s32[], f32[]) tuple(next, end, y) }
even { x = f32[] parameter(0)
  ROOT y = f32[] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=sum }
odd { x = f32[] parameter(0) ROOT y = f32[] negate(x) }
outer_below { s = (s32[], s32[], f32[]) parameter(0)
  at = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT less = pred[] compare(at, three), direction=LT }
outer_turn { s = (s32[], s32[], f32[]) parameter(0)
  at = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  x = f32[] get-tuple-element(s), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  two = s32[] constant(2)
  id = u32[] replica-id()
  rank = s32[] convert(id)
  far = s32[] add(at, n)
  more = s32[] multiply(rank, far)
  start = (s32[], s32[], f32[]) tuple(zero, more, x)
  inner = (s32[], s32[], f32[]) while(start), condition=inner_below, body=inner_turn
  y = f32[] get-tuple-element(inner), index=2
  rest = s32[] remainder(far, two)
  z = f32[] conditional(rest, y, y), branch_computations={even, odd}
  next = s32[] add(at, one)
  ROOT out = (s32[], s32[], f32[]) tuple(next, n, z) }
ENTRY main {
  n = s32[] parameter(0), metadata={op_name="steps"}
  x = f32[] parameter(1)
  zero = s32[] constant(0)
  start = (s32[], s32[], f32[]) tuple(zero, n, x)
  outer = (s32[], s32[], f32[]) while(start), condition=outer_below, body=outer_turn
  ROOT z = f32[] get-tuple-element(outer), index=2 }
"""
)


@pytest.fixture(scope="module")
def loops() -> Model:
    return ncc_runtime.load(compile_text(LOOPS))


def refusal(model: Model, inputs=(), **counts: int) -> str:
    with pytest.raises(ControlError) as caught:
        model.run(inputs, values=False, trip_counts=counts)
    return str(caught.value)


def test_every_loop_that_has_to_be_said_is_named_at_once(loops: Model) -> None:
    assert refusal(loops) == (
        "data decides how often doubling runs and how often growing runs (doubling follows from "
        "arg0 s32[], which is not given; growing follows from the result of p0 y); without values "
        "say it: --trip-count doubling=N --trip-count growing=N"
    )
    assert refusal(loops, [np.int32(9)]).endswith("p0 y); without values say it: --trip-count "
                                                  "growing=N")  # fmt: skip
    assert "doubling" in refusal(loops, growing=2)


@pytest.mark.parametrize("n", [-1, 1, 2, 9, 1000])
def test_inputs_decide_a_loop_that_the_compiler_cannot_count(loops: Model, n: int) -> None:
    trips = next(k for k in range(20) if 2**k >= n)
    by_input = loops.run({0: np.int32(n)}, values=False, trip_counts={"growing": 2})
    said = loops.run(values=False, trip_counts={"growing": 2, "doubling": trips})
    assert by_input.time_us == said.time_us
    assert by_input.outputs == []


def test_what_is_said_goes_before_what_inputs_say(loops: Model) -> None:
    counts = {"growing": 1, "doubling": 3}
    given = loops.run([np.int32(1000)], values=False, trip_counts=counts)
    assert given.time_us == loops.run(values=False, trip_counts=counts).time_us


@pytest.mark.parametrize("n", [0, 1, 4])
def test_ranks_may_differ_and_branches_follow_too(n: int) -> None:
    """As the same program is timed with values, decision by decision of every rank."""
    model = ncc_runtime.load(compile_text(LOCAL))
    times = model.run({"steps": np.int32(n)}, values=False)
    full = model.run([np.int32(n), np.float32(1)])
    assert times.time_us == full.time_us
    assert [one.start_us for one in times.collectives] == [one.start_us for one in full.collectives]


def test_a_counted_loop_keeps_its_trips_where_one_of_its_name_is_decided_by_inputs() -> None:
    same_names = LOCAL.replace("inner = (", "outer = (").replace("(inner)", "(outer)")
    model = ncc_runtime.load(compile_text(same_names))
    assert {block.name for block in model.executable.program.blocks} == {"outer", "z"}
    times = model.run({"steps": np.int32(4)}, values=False)
    assert times.time_us == model.run([np.int32(4), np.float32(1)]).time_us


def test_a_loop_of_constants_alone_needs_nobody() -> None:
    text = LOOPS.replace("n = s32[] parameter(0)", "n = s32[] constant(100)")
    model = ncc_runtime.load(compile_text(text.replace("x = f32[4] parameter(1)\n  one", "x = f32[4] parameter(0)\n  one")))  # fmt: skip  # noqa: E501
    counted = model.run(values=False, trip_counts={"growing": 1})
    said = model.run(values=False, trip_counts={"growing": 1, "doubling": 7})
    assert counted.time_us == said.time_us


def test_joined_programs_are_decided_as_one() -> None:
    compiled = compile_text(LOOPS)
    model = ncc_runtime.load([(compiled, [0, 1]), (compiled, [2, 3])])
    inputs = {0: np.int32(9), 2: np.int32(9)}
    by_input = model.run(inputs, values=False, trip_counts={"growing": 1})
    said = model.run(values=False, trip_counts={"growing": 1, "doubling": 4})
    assert by_input.time_us == said.time_us
    assert "arg2 s32[], which is not given" in refusal(model, {0: np.int32(9)}, growing=1)


def test_inputs_are_checked_and_the_slice_has_a_budget(loops: Model) -> None:
    with pytest.raises(InputError, match="arg0 has shape"):
        loops.run([np.zeros(7, np.int32)], values=False)
    with pytest.raises(InputError, match=r"what predicates follow from needs .* --trip-count says"):
        loops.run([np.int32(9)], values=False, trip_counts={"growing": 1}, memory_bytes=10)


def test_the_command_takes_inputs_for_times_alone(tmp_path: Path, capsys) -> None:
    compile_text(LOOPS).save(tmp_path / "m.neff")
    np.savez(tmp_path / "in.npz", arg0=np.int32(9))
    words = ["run", str(tmp_path / "m.neff"), "--no-values", "--trip-count", "growing=2"]
    given = ["--inputs", str(tmp_path / "in.npz")]
    shown = []
    for more in (given, [*given, "--no-verify"], ["--trip-count", "doubling=4"]):
        assert main([*words, *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        shown.append([line for line in lines if line.startswith("predicted time")])
    assert shown[0] == shown[1] == shown[2] != []
    assert main([*words, "--no-verify"]) == 1
    assert "--trip-count doubling=N" in capsys.readouterr().err


def test_a_number_of_trips_is_said_for_all_loops_of_a_name() -> None:
    text = """
below { s = (f32[]) parameter(0)
  x = f32[] get-tuple-element(s), index=0
  limit = f32[] constant(3000)
  ROOT less = pred[] compare(x, limit), direction=LT }
double { s = (f32[]) parameter(0)
  x = f32[] get-tuple-element(s), index=0
  y = f32[] add(x, x)
  ROOT out = (f32[]) tuple(y) }
outer { s = (f32[]) parameter(0) ROOT grow = (f32[]) while(s), condition=below, body=double }
ENTRY main { x = f32[] parameter(0)
  s = (f32[]) tuple(x)
  ROOT grow = (f32[]) while(s), condition=below, body=outer }
"""
    model = ncc_runtime.load(compile_text(text))
    assert refusal(model).startswith("data decides how often grow runs (one number for all 2 of")
    time = {n: model.run(values=False, trip_counts={"grow": n}).time_us for n in (1, 2, 4)}
    assert time[4] - time[2] == pytest.approx((time[2] - time[1]) * 4, rel=0.2)


def test_of_a_row_with_several_results_the_one_that_is_needed_decides() -> None:
    """The smallest key decides; the payload that is sorted with it does not."""
    text = """HloModule sorted, replica_count=2
less { a = s32[] parameter(0) b = s32[] parameter(1) c = f32[] parameter(2)
  d = f32[] parameter(3) ROOT r = pred[] compare(a, b), direction=LT }
positive { s = (s32[], f32[8]) parameter(0)
  left = s32[] get-tuple-element(s), index=0
  none = s32[] constant(0)
  ROOT more = pred[] compare(left, none), direction=GT }
turn { s = (s32[], f32[8]) parameter(0)
  left = s32[] get-tuple-element(s), index=0
  y = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  fewer = s32[] subtract(left, one)
  ROOT out = (s32[], f32[8]) tuple(fewer, y) }
ENTRY main { keys = s32[8] parameter(0)
  x = f32[8] parameter(1)
  both = (s32[8], f32[8]) sort(keys, x), dimensions={0}, to_apply=less
  key = s32[8] get-tuple-element(both), index=0
  first = s32[1] slice(key), slice={[0:1]}
  count = s32[] reshape(first)
  y = f32[8] get-tuple-element(both), index=1
  start = (s32[], f32[8]) tuple(count, y)
  loop = (s32[], f32[8]) while(start), condition=positive, body=turn
  ROOT z = f32[8] get-tuple-element(loop), index=1 }
"""
    model = ncc_runtime.load(compile_text(text))
    keys = np.array([[9, 4, 6, 5, 8, 7, 11, 10], [3, 13, 5, 8, 9, 7, 6, 12]], np.int32)
    given = [keys, np.ones((2, 8), np.float32)]
    computed, timed = model.run(given).trace, model.run(given, values=False).trace
    assert computed is not None
    assert timed is not None
    assert timed.time_ps == computed.time_ps
    assert len(timed) == len(computed)
