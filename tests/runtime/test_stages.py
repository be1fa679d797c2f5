"""Several programs in one run: what each computes, and what commands say of them."""

import json
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.errors import ControlError, InputError
from ncc_runtime.inputs import bound_inputs
from ncc_runtime.neff import container
from ncc_runtime.runtime import program_of
from tests.stage_programs import cut, stage

ROOT = Path(__file__).parents[2]
CUTS = {
    "halves": [range(4), range(4, 8)],
    "turns": [range(0, 8, 2), range(1, 8, 2)],
    "three": [range(1), range(1, 4), range(4, 8)],
}


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        *(("tests/data/hlo/collective_zoo.hlo", name) for name in CUTS),
        ("tests/data/hlo/fsdp_scan_layers.hlo", "three"),
        ("tests/data/hlo/ring_attention.hlo", "turns"),
    ],
)
def test_a_program_cut_into_stages_gives_the_same_bits_at_the_same_time(model, parts):
    program = program_of(ncc_compiler.compile_file(ROOT / model))
    inputs = [one.whole() for one in bound_inputs(program, {}, 0)]
    whole = ncc_runtime.load(program).run(inputs)
    pieces = ncc_runtime.load(cut(program, CUTS[parts])).run(
        [array[list(part)] for part in CUTS[parts] for array in inputs], checked=True
    )
    count = len(whole.outputs)
    for number, part in enumerate(CUTS[parts]):
        for k, wanted in enumerate(whole.outputs):
            found = pieces.outputs[number * count + k]
            assert found.tobytes() == wanted[list(part)].tobytes()
    assert pieces.time_us == whole.time_us


def example(name: str) -> bytes:
    return ncc_compiler.compile_file(ROOT / f"ir_examples/{name}.ir").data


def test_the_two_stages_of_the_example_train_one_network():
    parts = [(example("pipeline_stage0"), range(4)), (example("pipeline_stage1"), range(4, 8))]
    generator = np.random.default_rng(0)
    x, w1, w2, wanted = (
        generator.standard_normal(shape).astype(np.float32)
        for shape in ((16, 32), (4, 32, 16), (4, 16, 8), (16, 8))
    )
    run = ncc_runtime.load(parts).run([x, w1, w2, wanted], checked=True, shuffle_seed=1)
    one, two = np.concatenate(list(w1), 1).astype(float), np.concatenate(list(w2)).astype(float)
    a = np.maximum(x @ one, 0)
    dy = a @ two - wanted
    steps = x.T @ ((dy @ two.T) * (a > 0)), a.T @ dy
    norm = np.sqrt(sum((step**2).sum() for step in steps))
    updated, _, updated_too, _ = run.outputs
    np.testing.assert_allclose(np.concatenate(list(updated), 1), one - steps[0] / norm, 1e-4, 1e-4)
    np.testing.assert_allclose(np.concatenate(list(updated_too)), two - steps[1] / norm, 1e-4, 1e-4)


PAIRS = "source_target_pairs={{0,2},{1,3}}", "source_target_pairs={{2,4},{3,5}}"


def test_three_stages_pass_on_what_each_has_reduced():
    pairs = "replica_groups={{0,1},{2,3},{4,5}}, use_global_device_ids=true, to_apply=sum"
    first = stage(
        f"""
  x = f32[5] parameter(0)
  y = f32[5] all-reduce(x), channel_id=1, {pairs}
  ROOT sent = f32[5] collective-permute(y), channel_id=2, {PAIRS[0]}""",
        ranks=6,
    )
    middle = stage(
        f"""
  w = f32[5] parameter(0)
  got = f32[5] collective-permute(w), channel_id=2, {PAIRS[0]}
  z = f32[5] multiply(got, w)
  y = f32[5] all-reduce(z), channel_id=3, {pairs}
  sent = f32[5] collective-permute(y), channel_id=4, {PAIRS[1]}
  ROOT r = (f32[5], f32[5]) tuple(z, sent)""",
        ranks=6,
    )
    last = stage(
        f"""
  w = f32[5] parameter(0)
  got = f32[5] collective-permute(w), channel_id=4, {PAIRS[1]}
  ROOT y = f32[5] all-reduce(got), channel_id=5, {pairs}""",
        ranks=6,
    )
    parts = [(first, [0, 1]), (middle, [2, 3]), (last, [4, 5])]
    x, w = np.arange(10, dtype=np.float32).reshape(2, 5), np.float32([[2] * 5, [3] * 5])
    run = ncc_runtime.load(parts).run([x, w, x], checked=True)
    sent, z, _, y = run.outputs
    assert not sent.any()
    np.testing.assert_array_equal(z, x.sum(0) * w)
    np.testing.assert_array_equal(y, np.tile(2 * 5 * x.sum(0), (2, 1)))


def test_pairs_and_groups_of_other_stages_are_none_of_a_stages_business():
    silent = stage("  x = f32[3] parameter(0)\n  ROOT y = f32[3] negate(x)")
    busy = stage(
        """
  x = f32[3] parameter(0)
  p = f32[3] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{4,5}}
  b = f32[3] collective-broadcast(x), channel_id=2, replica_groups={{0,1,2,3},{6,4}}
  ROOT r = (f32[3], f32[3]) tuple(p, b)"""
    )
    x = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
    run = ncc_runtime.load([(silent, range(4)), (busy, range(4, 8))]).run([x, x], checked=True)
    zeros = np.zeros(3, np.float32)
    np.testing.assert_array_equal(run.outputs[0], -x)
    np.testing.assert_array_equal(run.outputs[1], [zeros, x[0], zeros, zeros])
    np.testing.assert_array_equal(run.outputs[2], [x[2], zeros, x[2], zeros])
    assert [row.group_size for row in run.collectives] == [4, 2]


def test_one_stage_may_reduce_in_place_and_the_other_not():
    groups = "replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=sum"
    text = f"""
  x = f32[300] parameter(0)
  y = f32[300] negate(x)
  z = f32[300] all-reduce(y), channel_id=1, {groups}
"""
    one = stage(text + "  ROOT r = f32[300] negate(z)")
    other = stage(text + "  ROOT r = (f32[300], f32[300]) tuple(z, y)")
    assert [program.placeholders[0].in_place for program in (one, other)] == [True, False]
    x = np.arange(8 * 300, dtype=np.float32).reshape(8, 300)
    parts = [(one, range(3)), (other, range(3, 8))]
    for algorithm in ("ring", "mesh", "rdh", "kangaring", "single-step-mesh"):
        run = ncc_runtime.load(parts, algorithms={"all-reduce": algorithm}).run(
            [x[:3], x[3:]], checked=True
        )
        total = -x.sum(0)
        wanted = [np.tile(-total, (3, 1)), np.tile(total, (5, 1)), -x[3:]]
        assert all(map(np.array_equal, run.outputs, wanted))


def test_an_id_is_that_of_the_whole_world():
    body = "  ROOT id = u32[] partition-id()"
    run = ncc_runtime.load([(stage(body), [1, 3]), (stage(body), [0, 2, 4, 5, 6, 7])]).run()
    assert [output.tolist() for output in run.outputs] == [[1, 3], [0, 2, 4, 5, 6, 7]]


ROUNDS = """below {
  p = (s32[], s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT c = pred[] compare(i, n), direction=LT
}
step {
  p = (s32[], s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  x = f32[2] get-tuple-element(p), index=2
  y = f32[2] all-reduce(x), channel_id=1, GROUPS, to_apply=sum
  k = s32[] constant(1)
  j = s32[] add(i, k)
  ROOT t = (s32[], s32[], f32[2]) tuple(j, n, y)
}
""".replace("GROUPS", "replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true")
ROUNDS_BODY = """
  n = s32[] parameter(0)
  x = f32[2] parameter(1)
  zero = s32[] constant(0)
  state = (s32[], s32[], f32[2]) tuple(zero, n, x)
  last = (s32[], s32[], f32[2]) while(state), condition=below, body=step
  ROOT y = f32[2] get-tuple-element(last), index=2"""


def test_stages_go_round_a_loop_together():
    rounds = stage(ROUNDS_BODY, before=ROUNDS)
    model = ncc_runtime.load(cut(rounds, CUTS["halves"]))
    n, x = np.int32(3), np.arange(8, dtype=np.float32).reshape(4, 2)
    run = model.run([n, x, n, x + 1], checked=True)
    np.testing.assert_array_equal(run.outputs[0], 4 * (x + x + 1))
    np.testing.assert_array_equal(run.outputs[1], run.outputs[0])
    assert [row.runs for row in run.collectives] == [3]


def test_stages_that_part_at_a_predicate_are_named():
    model = ncc_runtime.load(cut(stage(ROUNDS_BODY, before=ROUNDS), CUTS["halves"]))
    x = np.zeros(2, np.float32)
    with pytest.raises(ControlError, match="is 0 on rank 0 and 1 on rank 4 of the same group"):
        model.run([np.int32(2), x, np.int32(3), x])


def test_inputs_are_of_the_ranks_of_their_program():
    model = ncc_runtime.load(cut(stage("  ROOT x = f32[3] parameter(0)"), [range(3), range(3, 8)]))
    x = np.ones((3, 3), np.float32)
    with pytest.raises(InputError, match=r"arg1 has shape \[3, 2\]; the program takes \[5, 3\]"):
        model.run([x, np.ones((3, 2), np.float32)])
    assert [output.shape for output in model.run([x], seed=1).outputs] == [(3, 3), (5, 3)]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((range(4), range(3, 8)), "rank 3 is given to one and to other; a rank runs one program"),
        ((range(3), [4, 6, 7]), "no program is given for ranks 3,5 of 8"),
        ((range(4), range(4, 9)), "other is compiled for 8 ranks, .* there is no rank 8"),
        ((range(8), []), "other has no ranks"),
        ((range(4), [10**30]), "there is no rank 1000000"),
    ],
)
def test_every_rank_runs_one_program(ranks, message):
    body = "  ROOT x = f32[3] parameter(0)"
    programs = stage(body, name="one"), stage(body, name="other")
    with pytest.raises(InputError, match=message):
        ncc_runtime.load(list(zip(programs, ranks, strict=True)))


def test_ranks_may_be_an_array():
    body = "  ROOT id = u32[] partition-id()"
    parts = [(stage(body), np.arange(0, 8, 2)), (stage(body), np.arange(1, 8, 2))]
    assert [ids.tolist() for ids in ncc_runtime.load(parts).run().outputs] == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
    ]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The two stages of the example, as a command takes them."""
    found = []
    for number, ranks in enumerate(("0-1,3,2", "4-7")):
        path = tmp_path / f"stage{number}.neff"
        path.write_bytes(example(f"pipeline_stage{number}"))
        found.append(f"{path}@{ranks}")
    return found


def test_json_says_whose_outputs_are_which(words: list[str], capsys):
    assert main(["run", *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "pipeline_stage0 + pipeline_stage1"
    assert [one["op"] for one in report["collectives"]] == [
        "collective-permute",
        "all-reduce",
        "collective-permute",
        "all-reduce",
    ]
    assert report["outputs"]["out2"] == {
        "shape": [16, 8],
        "dtype": "f32",
        "name": "",
        "whole_shape": None,
        "program": "pipeline_stage1",
        "ranks": [4, 5, 6, 7],
    }
    assert report["instructions"]["engine"] == 4 * 9 + 4 * 9


def test_files_number_arrays_one_program_after_the_other(words: list[str], tmp_path, capsys):
    wanted = np.zeros((16, 8), np.float32)
    np.savez(tmp_path / "in.npz", arg3=wanted)
    out = str(tmp_path / "out.npz")
    arguments = ["--inputs", str(tmp_path / "in.npz"), "--seed", "0", "--outputs", out]
    assert main(["run", *words, *arguments]) == 0
    with np.load(out) as file:
        shapes = {name: file[name].shape for name in file.files}
    assert shapes["out0"] == (4, 32, 16)
    assert shapes["out3"] == (4, 16, 16)
    assert "out2  f32[16,8]       4-7    " in capsys.readouterr().out


def test_a_listing_is_of_the_program_that_the_rank_runs(words: list[str], capsys):
    assert main(["list", *words, "--rank", "5", "--queue", "GpSimd"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(
        "program pipeline_stage1 on 1 x trn2.48xlarge, lnc 2, linear; policy neuron\nrank 5 of 8"
    )
    assert shown.count("queue GpSimd") == 1
    assert [line.split()[2] for line in shown.splitlines() if " write " in line] == [
        "p0",
        "p1",
        "p2",
        "p3",
    ]


def test_shared_collectives_are_explained_once(words: list[str], capsys):
    assert main(["explain", *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(one["ids"], one["groups"], one["group_size"]) for one in report["collectives"]] == [
        ([0], 1, 8),
        ([1], 1, 4),
        ([2], 1, 8),
        ([3], 1, 8),
    ]


def test_places_of_several_programs_are_compared(words: list[str], capsys):
    assert main(["diff", *words, "--on", "trn1", "--on", "trn2"]) == 0
    assert "4 of 4 collectives change" in capsys.readouterr().out


def test_several_programs_name_their_ranks(words: list[str], capsys):
    assert main(["run", words[0], words[1].removesuffix("@4-7")]) == 2
    assert "names no ranks, as in a.neff@0-3 b.neff@4-7" in capsys.readouterr().err


@pytest.mark.parametrize("run", ["7-4", "4-99999999999", "9" * 5000], ids=["back", "far", "long"])
def test_a_run_of_ranks_is_short_and_goes_up(words: list[str], run: str, capsys):
    assert main(["run", words[0], words[1].replace("@4-7", f"@4,{run}")]) == 2
    found = capsys.readouterr().err
    fact = f"{run[:20]} is no run of ranks, such as 4-7"
    assert found == f"error: invalid value for 'PROGRAM': {fact} (see nccrt run --help)\n"


def test_one_program_may_name_all_ranks(tmp_path: Path, capsys):
    path = tmp_path / "mean.neff"
    container.save(container.pack(program_of(example("distributed_mean"))), path)
    outputs = []
    for word in (str(path), f"{path}@0-7"):
        assert main(["list", word]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
