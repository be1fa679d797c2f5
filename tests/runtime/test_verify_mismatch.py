"""Programs that disagree about a collective they share hear before anything runs what differs."""

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.errors import MismatchError
from ncc_runtime.neff import container
from ncc_runtime.neff.program import Program
from ncc_runtime.pipeline import joint_program, stage_of
from tests.stage_programs import stage

ALL = "replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true"
CROSSED = "replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true"
PAIRS = "source_target_pairs={{0,4},{1,5}}"
PLACE = 'metadata={source_file="model.py" source_line=7}'


def reduced(rest: str = ALL, *, type_: str = "f32[4]", op: str = "add") -> Program:
    """One all-reduce of a parameter, called `total`."""
    scalar = type_.split("[")[0] + "[]"
    join = f"join {{\n  a = {scalar} parameter(0)\n  b = {scalar} parameter(1)\n"
    join += f"  ROOT c = {scalar} {op}(a, b)\n}}\n"
    body = f"  x = {type_} parameter(0)\n"
    body += f"  ROOT total = {type_} all-reduce(x), channel_id=1, {rest}, to_apply=join, {PLACE}"
    return stage(body, before=join)


def told(one: Program, other: Program) -> list[str]:
    """The lines of the refusal, without the first."""
    stages = [stage_of(one, range(4), "a.neff"), stage_of(other, range(4, 8), "b.neff")]
    with pytest.raises(MismatchError) as refusal:
        joint_program(stages)
    first, *lines = str(refusal.value).splitlines()
    assert first.startswith("the programs do not fit together, ")
    return [line.strip() for line in lines]


def changed(program: Program, **fields: object) -> Program:
    """The program with another first placeholder."""
    first, *others = program.placeholders
    return attrs.evolve(program, placeholders=(attrs.evolve(first, **fields), *others))


EVERYBODY = "ranks {0,1,2,3,4,5,6,7}"
FIRST = f"{EVERYBODY}, collective 0 on stream 0:"


@pytest.mark.parametrize(
    ("other", "what", "values"),
    [
        (reduced(type_="bf16[4]"), "dtypes differ", ("f32", "bf16")),
        (reduced(op="maximum"), "reductions differ", ("add", "maximum")),
        (reduced(type_="f32[2,3]"), "sizes of operands differ", ("4 elements", "6 elements")),
        (
            reduced(ALL.replace("0,1", "1,0")),
            "the order of members in their group differs",
            ("{0,1,2,3,4,5,6,7}", "{1,0,2,3,4,5,6,7}"),
        ),
    ],
    ids=["dtype", "reduction", "size", "order"],
)
def test_what_differs_is_told_with_operator_line_and_both_values(other, what, values):
    assert told(reduced(), other) == [
        f"{FIRST} {what}",
        f"rank 0 (a.neff): total at model.py:7: {values[0]}",
        f"rank 4 (b.neff): total at model.py:7: {values[1]}",
    ]


def test_operators_differ():
    gathered = stage(
        f"  x = f32[4] parameter(0)\n  ROOT all = f32[32] all-gather(x), channel_id=1, {ALL}, "
        f"dimensions={{0}}, {PLACE}"
    )
    title, one, other = told(reduced(), gathered)
    assert title == f"{FIRST} operators differ"
    assert one == "rank 0 (a.neff): total at model.py:7: all-reduce"
    assert other == "rank 4 (b.neff): all at model.py:7: all-gather"


def test_a_group_operator_that_meets_a_permute_is_told_as_such():
    sent = stage(
        f"  x = f32[4] parameter(0)\n  ROOT y = f32[4] collective-permute(x), channel_id=1, {PAIRS}"
    )
    title, one, other = told(reduced(CROSSED), sent)[:3]
    assert title == "ranks {0,4}, collective 0 on stream 0: operators differ"
    assert (one, other) == (
        "rank 0 (a.neff): total at model.py:7: all-reduce",
        "rank 4 (b.neff): y: collective-permute",
    )


def test_roots_differ():
    rooted = stage(
        "  x = f32[4] parameter(0)\n  ROOT y = f32[4] collective-broadcast(x), channel_id=1, "
        "replica_groups={{0,1,2,3,4,5,6,7}}"
    )
    assert told(rooted, changed(rooted, root=3)) == [
        f"{FIRST} roots differ",
        "rank 0 (a.neff): y: 0",
        "rank 4 (b.neff): y: 3",
    ]


def test_groups_with_other_members_are_told_once():
    other = CROSSED.replace("{0,4},{1,5}", "{0,5},{1,4}")
    lines = told(reduced(CROSSED), reduced(other))
    assert lines == [
        "ranks {0,4,5}, members of groups differ",
        "rank 0 (a.neff): total at model.py:7: {0,4}",
        "rank 4 (b.neff): total at model.py:7: {0,5}",
    ]


def sent(pairs: str) -> Program:
    return stage(
        f"  x = f32[4] parameter(0)\n  ROOT y = f32[4] collective-permute(x), channel_id=1, {pairs}"
    )


def test_pairs_with_other_members_differ():
    assert told(sent(PAIRS), sent("source_target_pairs={{0,5},{1,4}}"))[:3] == [
        "ranks {0,4,5}, pairs differ",
        "rank 0 (a.neff): y: {{0,4}}",
        "rank 4 (b.neff): y: {{0,5}}",
    ]


def test_pairs_that_go_the_other_way_differ():
    assert told(sent(PAIRS), sent("source_target_pairs={{4,0},{1,5}}")) == [
        "ranks {0,4}, collective 0 on stream 0: pairs differ",
        "rank 0 (a.neff): y: {{0,4}}",
        "rank 4 (b.neff): y: {{4,0}}",
    ]


def test_the_same_collective_on_another_stream():
    assert told(reduced(), changed(reduced(), stream=2)) == [
        f"{EVERYBODY}, streams differ",
        "rank 0 (a.neff): total at model.py:7: 0",
        "rank 4 (b.neff): total at model.py:7: 2",
    ]


TWICE = f"""
  x = f32[4] parameter(0)
  one = f32[4] all-reduce(x), channel_id=1, {ALL}, to_apply=sum, {PLACE}
  ROOT two = f32[4] all-reduce(one), channel_id=2, {ALL}, to_apply=sum"""


def test_another_number_of_collectives():
    assert told(stage(TWICE), reduced()) == [
        f"{EVERYBODY}, mismatching number of cc ops",
        "rank 0 (a.neff): 2, the first without partner is two",
        "rank 4 (b.neff): 1",
    ]


def test_a_side_without_any_hears_why_that_may_be():
    alone = stage("  ROOT x = f32[4] parameter(0)")
    assert told(alone, reduced())[1:] == [
        "rank 0 (a.neff): 0; one whose result nothing uses is not compiled, return it",
        "rank 4 (b.neff): 1, the first without partner is total at model.py:7",
    ]


LOOP = """below {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(TRIPS)
  ROOT c = pred[] compare(i, n), direction=LT
}
step {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4] get-tuple-element(p), index=1
  BODY
  k = s32[] constant(1)
  j = s32[] add(i, k)
  ROOT t = (s32[], f32[4]) tuple(j, y)
}
"""
LOOPED = """
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  state = (s32[], f32[4]) tuple(zero, x)
  last = (s32[], f32[4]) while(state), condition=below, body=step
  ROOT y = f32[4] get-tuple-element(last), index=1"""
SUMMED = f"y = f32[4] all-reduce(x), channel_id=1, {ALL}, to_apply=sum"


SUMMED_BY_THREE = SUMMED.replace(",3,4,5,6,7", "")
LOOPED_TWICE = LOOPED.replace("ROOT y", "z") + (
    "\n  state2 = (s32[], f32[4]) tuple(zero, z)"
    "\n  last2 = (s32[], f32[4]) while(state2), condition=below2, body=step2"
    "\n  ROOT y = f32[4] get-tuple-element(last2), index=1"
)


def looped(trips: int, body: str = SUMMED) -> Program:
    before = LOOP.replace("TRIPS", str(trips)).replace("BODY", body)
    return stage(LOOPED, before=before)


def test_a_loop_around_one_side_only():
    assert told(reduced(), looped(3)) == [
        f"{FIRST} loops and branches around them differ",
        "rank 0 (a.neff): total at model.py:7: none",
        "rank 4 (b.neff): y: loop last (3 trips)",
    ]


def test_loops_with_other_numbers_of_trips():
    assert told(looped(2), looped(3))[1:] == [
        "rank 0 (a.neff): y: loop last (2 trips)",
        "rank 4 (b.neff): y: loop last (3 trips)",
    ]


def test_one_loop_that_meets_two():
    body = f"w = f32[4] all-reduce(x), channel_id=1, {ALL}, to_apply=sum\n  "
    body += f"y = f32[4] all-reduce(w), channel_id=2, {ALL}, to_apply=sum"
    before = LOOP.replace("TRIPS", "3").replace("BODY", SUMMED)
    again = before.replace("below", "below2").replace("step", "step2").replace("_id=1", "_id=2")
    lines = told(looped(3, body), stage(LOOPED_TWICE, before=before + again))
    assert lines == [
        f"{EVERYBODY}, collective 1 on stream 0: loops and branches around them differ",
        "rank 0 (a.neff): y: loop last (3 trips)",
        "rank 4 (b.neff): y: loop last2 (3 trips)",
    ]


def refused(*programs: Program) -> list[str]:
    """The lines of the refusal of programs that run on a rank each, without the first."""
    stages = [stage_of(one, [rank], f"{rank}.neff") for rank, one in enumerate(programs)]
    with pytest.raises(MismatchError) as refusal:
        joint_program(stages)
    return [line.strip() for line in str(refusal.value).splitlines()[1:]]


def permuted(result: str, operand: str, pairs: str) -> str:
    """A permute of some pairs, as in 0,1},{1,2."""
    where = f"channel_id=1, source_target_pairs={{{{{pairs}}}}}"
    return f"{result} = f32[4] collective-permute({operand}), {where}"


def test_trips_that_differ_behind_a_program_that_does_not_know_them():
    rounds = stage(
        LOOPED, ranks=3, before=LOOP.replace("TRIPS", "3").replace("BODY", SUMMED_BY_THREE)
    )
    unknown, four = (
        attrs.evolve(rounds, blocks=(attrs.evolve(rounds.blocks[0], trip_count=trips),))
        for trips in (None, 4)
    )
    assert refused(unknown, rounds, four) == [
        "ranks {0,1,2}, collective 0 on stream 0: loops and branches around them differ",
        "rank 1 (1.neff): y: loop last (3 trips)",
        "rank 2 (2.neff): y: loop last (4 trips)",
    ]


def test_loops_of_two_neighbours_that_meet_two_of_a_third():
    """The first two have one loop in common; the third has one with each of them."""

    def rounds(first: str, second: str) -> Program:
        body = f"{permuted('w', 'x', first)}\n  {permuted('y', 'w', second)}"
        before = LOOP.replace("TRIPS", "3").replace("BODY", body)
        return stage(LOOPED, ranks=3, before=before)

    before = LOOP.replace("TRIPS", "3")
    again = before.replace("below", "below2").replace("step", "step2")
    loops = [
        text.replace("BODY", permuted("y", "x", pair))
        for text, pair in ((before, "0,2"), (again, "1,2"))
    ]
    third = stage(LOOPED_TWICE, ranks=3, before="".join(loops))
    assert refused(rounds("0,2", "0,1"), rounds("0,1", "1,2"), third) == [
        "ranks {1,2}, collective 0 on stream 0: loops and branches around them differ",
        "rank 1 (1.neff): y: loop last (3 trips)",
        "rank 2 (2.neff): y: loop last2 (3 trips)",
    ]


def split(first: str, second: str) -> Program:
    """Two all-reduces one after the other."""
    ids = "use_global_device_ids=true, to_apply=sum"
    return stage(
        f"""
  x = f32[4] parameter(0)
  one = f32[4] all-reduce(x), channel_id=1, replica_groups={first}, {ids}
  ROOT two = f32[4] all-reduce(one), channel_id=2, replica_groups={second}, {ids}"""
    )


def test_groups_of_one_collective_that_meet_two():
    whole = reduced("replica_groups={{0,4},{1,5},{2,3},{6,7}}, use_global_device_ids=true")
    parts = split("{{0,4},{1,2,3},{5,6,7}}", "{{0,2,3},{1,5},{4,6,7}}")
    assert told(whole, parts)[0].startswith(
        "ranks {1,5}, its groups meet two collectives, which would have to be one"
    )


def test_two_collectives_of_a_third_that_neighbours_make_one():
    x = "  x = f32[4] parameter(0)\n  "
    apart = f"{x}{permuted('y', 'x', '0,1')}\n  ROOT {permuted('z', 'y', '2,0')}"
    bodies = (
        apart,
        *(f"{x}ROOT {permuted('y', 'x', pairs)}" for pairs in ("0,1},{1,2", "2,0},{1,2")),
    )
    assert refused(*(stage(body, ranks=3) for body in bodies)) == [
        "ranks {1,2}, its groups meet two collectives, which would have to be one",
        "rank 0 (0.neff): y",
        "rank 0 (0.neff): z",
        "rank 2 (2.neff): y",
    ]


def test_orders_that_wait_for_each_other():
    one = split("{{0,4},{1,2,3},{5,6,7}}", "{{0,1,2,3,4,5,6,7}}")
    other = split("{{0,1,2,3,4,5,6,7}}", "{{0,4},{1,2,3},{5,6,7}}")
    assert told(one, other) == [
        "shared collectives stand in orders in which their programs wait for each other",
        "rank 0 (a.neff): one comes before two",
        "rank 4 (b.neff): one comes before two",
    ]


def on_two_streams(first: int, second: int, joined: str) -> Program:
    """Two all-reduces, each on a stream of its own; the second is of what `joined` names."""
    rest = [
        f'{ALL}, to_apply=sum, frontend_attributes={{stream_id="{one}"}}' for one in (first, second)
    ]
    return stage(
        f"""
  x = f32[4] parameter(0)
  a = f32[4] all-reduce(x), channel_id=1, {rest[0]}
  b = f32[4] all-reduce({joined}), channel_id=2, {rest[1]}
  ROOT t = (f32[4], f32[4]) tuple(a, b)"""
    )


def test_orders_on_several_streams_matter_where_engines_wait():
    """No stream holds up another, but an operand has to be there."""
    lines = told(on_two_streams(0, 1, "a"), on_two_streams(1, 0, "a"))
    assert lines[1:] == ["rank 0 (a.neff): a comes before b", "rank 4 (b.neff): a comes before b"]
    free = on_two_streams(0, 1, "x"), on_two_streams(1, 0, "x")
    ranks = range(4), range(4, 8)
    run = ncc_runtime.load(list(zip(free, ranks, strict=True))).run(seed=0)
    assert np.array_equal(run.outputs[0], run.outputs[1])


def test_worlds_differ():
    other = stage("  ROOT x = f32[4] parameter(0)", ranks=16)
    with pytest.raises(MismatchError) as refusal:
        ncc_runtime.load([(reduced(), range(4)), (other, range(4, 16))])
    assert str(refusal.value) == (
        "stage is compiled for 1 replicas x 8 partitions, stage for 1 replicas x 16 partitions; "
        "compile every program for all ranks of the run"
    )


def many(shape: str) -> Program:
    """Ten all-reduces, each of a size of its own."""
    sizes = [f"f32[{shape}{k + 1}]" for k in range(10)]
    rows = [f"  p{k} = {size} parameter({k})" for k, size in enumerate(sizes)]
    rows += [
        f"  r{k} = {size} all-reduce(p{k}), channel_id={k + 1}, {ALL}, to_apply=sum"
        for k, size in enumerate(sizes)
    ]
    results = ", ".join(f"r{k}" for k in range(10))
    return stage("\n".join([*rows, f"  ROOT t = ({', '.join(sizes)}) tuple({results})"]))


def test_many_mismatches_are_counted():
    lines = told(many(""), many("2,"))
    assert sum("sizes of operands differ" in line for line in lines) == 8
    assert lines[-1] == "… and 2 more"


def test_the_command_refuses_with_exit_code_1(tmp_path, capsys):
    words = []
    for name, program, ranks in (("a", reduced(), "0-3"), ("b", reduced(type_="bf16[4]"), "4-7")):
        container.save(container.pack(program), tmp_path / f"{name}.neff")
        words.append(f"{tmp_path}/{name}.neff@{ranks}")
    for command in ("run", "list", "explain"):
        assert main([command, *words]) == 1
        message = capsys.readouterr().err
        assert message.startswith("error: the programs do not fit together, 1 mismatch\n")
        assert f"rank 4 ({tmp_path}/b.neff): total at model.py:7: bf16" in message
