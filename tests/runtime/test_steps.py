"""Many steps: outputs fed back, batches, what is drawn; equal to running the steps by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError
from ncc_runtime.step_inputs import pairs_in
from tests.step_programs import batches, state, train

SWAP = """HloModule swap, replica_count=2
ENTRY e { a = f32[2] parameter(0) b = f32[2] parameter(1) c = s32[] parameter(2)
 one = s32[] constant(1) d = s32[] add(c, one)
 ROOT r = (f32[2], f32[2], s32[]) tuple(b, a, d) }"""

LOOP = """HloModule loop, replica_count=2
body { s = (s32[], s32[], f32[4]) parameter(0)
 i = s32[] get-tuple-element(s), index=0 n = s32[] get-tuple-element(s), index=1
 x = f32[4] get-tuple-element(s), index=2 one = s32[] constant(1) j = s32[] add(i, one)
 y = f32[4] add(x, x) ROOT t = (s32[], s32[], f32[4]) tuple(j, n, y) }
goes_on { s = (s32[], s32[], f32[4]) parameter(0) i = s32[] get-tuple-element(s), index=0
 n = s32[] get-tuple-element(s), index=1 ROOT p = pred[] compare(i, n), direction=LT }
ENTRY e { n = s32[] parameter(0) x = f32[4] parameter(1) zero = s32[] constant(0)
 s = (s32[], s32[], f32[4]) tuple(zero, n, x)
 w = (s32[], s32[], f32[4]) while(s), condition=goes_on, body=body
 one = s32[] constant(1) more = s32[] add(n, one)
 y = f32[4] get-tuple-element(w), index=2
 ROOT r = (s32[], f32[4]) tuple(more, y) }"""


def bits(arrays: Any) -> list[bytes]:
    return [np.asarray(array).tobytes() for array in arrays]


def test_steps_give_the_bits_of_running_them_by_hand() -> None:
    model, rows = ncc_runtime.load(train()), batches(5)
    runs = list(model.run_steps(7, state(), batches={"arg2": rows}))
    fed: Mapping[str, np.ndarray] = state()
    for step, run in enumerate(runs):
        by_hand = model.run({**fed, "arg2": rows[step % 5]})
        assert bits(by_hand.outputs) == bits(run.outputs)
        assert run.time_us == by_hand.time_us
        fed = {"arg0": by_hand.outputs[0], "arg1": by_hand.outputs[1]}


def test_a_run_between_two_steps_leaves_their_state_alone() -> None:
    text = "HloModule m, replica_count=2 ENTRY e { x = f32[8] parameter(0) y = f32[8] add(x, x) }"
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    array = np.arange(16, dtype=np.float32).reshape(2, 8)
    for step, run in enumerate(model.run_steps(4, array, feed={"out0": "arg0"}, clock=False)):
        np.testing.assert_array_equal(run.outputs[0], array * 2 ** (step + 1))
        other = np.full(8, step, np.float32)
        model.host_memory(other, clock=False)
        np.testing.assert_array_equal(model.run(other, clock=False).outputs[0][1], other * 2)


def test_steps_give_the_bits_of_running_them_through_files(tmp_path: Path) -> None:
    """`--outputs` of one run renamed to `--inputs` of the next."""
    neff, rows = tmp_path / "train.neff", batches(3)
    train().save(neff)
    np.savez(tmp_path / "in.npz", **state())
    np.savez(tmp_path / "batches.npz", arg2=rows)
    run = ["run", str(neff), "-q", "--inputs", str(tmp_path / "in.npz")]
    steps = ["--steps", "3", "--batches", str(tmp_path / "batches.npz")]
    assert main([*run, *steps, "--outputs", str(tmp_path / "steps.npz")]) == 0
    fed = state()
    for step in range(3):
        np.savez(tmp_path / "in.npz", **fed, arg2=rows[step])
        assert main([*run, "--outputs", str(tmp_path / "out.npz")]) == 0
        with np.load(tmp_path / "out.npz") as out:
            fed = {"arg0": out["out0"], "arg1": out["out1"]}
    with np.load(tmp_path / "steps.npz") as end:
        assert bits([end["out0"], end["out1"]]) == bits(fed.values())


def test_a_model_is_compiled_with_the_pairs_of_its_alias() -> None:
    assert train().program.aliases == ((0, 0), (1, 1))


def test_state_may_be_swapped_between_outputs_that_are_inputs() -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(SWAP))
    given = {0: np.float32([1, 2]), 1: np.float32([3, 4]), 2: np.int32(5)}
    feed = {"out0": "arg0", "out1": "arg1", "out2": "arg2"}
    for checked in (False, True):
        runs = list(model.run_steps(2, given, feed=feed, checked=checked))
        assert [run.outputs[0][0].tolist() for run in runs] == [[3, 4], [1, 2]]
        assert [run.outputs[1][0].tolist() for run in runs] == [[1, 2], [3, 4]]
        assert [int(run.outputs[2][0]) for run in runs] == [6, 7]


def test_an_output_may_feed_an_input_of_another_number() -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(SWAP))
    given = {0: np.float32([1, 2]), 1: np.float32([3, 4]), 2: np.int32(5)}
    runs = list(model.run_steps(3, given, feed={"out0": "arg1"}))
    assert [run.outputs[0][0].tolist() for run in runs] == [[3, 4]] * 3
    runs = list(model.run_steps(2, given, feed={"out1": "arg1"}))
    assert [run.outputs[0][0].tolist() for run in runs] == [[3, 4], [1, 2]]


def test_steps_in_which_loops_run_longer_take_longer() -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(LOOP))
    given = {0: np.int32(1), 1: np.ones(4, np.float32)}
    runs = list(model.run_steps(4, given, feed={"out0": "arg0", "out1": "arg1"}))
    times = [run.time_us or 0.0 for run in runs]
    assert times == sorted(set(times))
    assert [float(run.outputs[1][0, 0]) for run in runs] == [2.0, 8.0, 64.0, 1024.0]
    assert times[2] == model.run({0: np.int32(3), 1: np.ones(4, np.float32)}).time_us


def test_what_is_drawn_differs_from_step_to_step_and_not_from_run_to_run() -> None:
    model = ncc_runtime.load(train())
    runs, again = (
        list(model.run_steps(3, state(), draw=["arg2"], seed=4, feed={"out0": "arg0"}))
        for _ in range(2)
    )
    assert bits(run.outputs[2] for run in runs) == bits(run.outputs[2] for run in again)
    went_on = model.run_steps(
        1, {**state(), "arg0": runs[1].outputs[0]}, draw=["arg2"], seed=4, first=2,
        feed={"out0": "arg0"},
    )  # fmt: skip
    assert bits(next(went_on).outputs) == bits(runs[2].outputs)
    assert len({run.outputs[1].tobytes() for run in runs}) == 3


def test_outputs_are_copied_only_where_they_are_asked_for() -> None:
    runs = ncc_runtime.load(train()).run_steps(3, state(), draw=["arg2"], seed=0, outputs_at={2})
    assert [len(run.outputs) for run in runs] == [0, 0, 3]


def test_without_values_every_step_takes_the_same_time() -> None:
    model = ncc_runtime.load(train())
    times = {run.time_us for run in model.run_steps(3, values=False)}
    assert times == {model.run(values=False).time_us}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"feed": {"out2": "arg0"}}, "out2 is f32[] and cannot feed arg0 f32[8,4]"),
        ({"feed": {"out7": "arg0"}}, "the program has no output 'out7'; there are out0 to out2"),
        ({"feed": {"out0": "weights"}}, "no parameter takes 'weights'"),
        ({"feed": {"out0": "arg0", "out1": "arg0"}}, "arg0 f32[8,4] is fed by out0 and out1"),
        ({"draw": ["arg2"]}, "drawn at every step need a seed"),
        ({"draw": ["arg0"], "seed": 0}, "arg0 f32[8,4] is both fed by an output, in batches"),
        (
            {"batches": {"arg2": np.zeros((3, 2, 2), np.float32)}},
            "row of batches: arg2 has shape [2, 2]",
        ),
        ({"batches": {"arg2": np.zeros((0, 16, 8), np.float32)}}, "no row for the first step"),
        ({"batches": {"arg2": np.zeros((2, 16, 8), np.int32)}}, "row of batches: arg2 is int32"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    model = ncc_runtime.load(train())
    with pytest.raises(InputError) as error:
        model.run_steps(2, state(), **settings)
    assert message in str(error.value)


def test_without_an_alias_or_a_map_steps_are_refused() -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(SWAP))
    with pytest.raises(InputError, match="nothing says which outputs the next step takes"):
        model.run_steps(2, seed=0)


def test_pairs_are_read_with_ranges() -> None:
    assert list(pairs_in("out0=arg1, out2-3=arg4-5")) == [
        ("out0", "arg1"), ("out2", "arg4"), ("out3", "arg5"),
    ]  # fmt: skip
    for text in ("out0", "out0=", "out2-3=arg4-6", "out3-2=arg4-3"):
        with pytest.raises(InputError, match="out"):
            list(pairs_in(text))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "2"], "--keep goes with --steps N"),
        (["--steps", "2", "--resume"], "--resume goes with --checkpoint DIR"),
        (["--steps", "2", "--checkpoint-every", "1"], "goes with --checkpoint DIR"),
        (["--steps", "2", "--no-values", "--checkpoint", "x"], "--no-values has no state"),
        (
            ["--steps", "2", "--no-clock", "--fail", "at step 1: rank 0 dead"],
            "--fail needs the clock",
        ),
        (["--steps", "2", "--on-fault", "pray"], "--on-fault: 'pray' is none of spare, reroute"),
        (["--steps", "2", "--storage", "2"], "'2' is not a bandwidth such as"),
        (["--steps", "2", "--detect-time", "2"], "'2' is not a time such as"),
        (["--steps", "2", "--feed", "out0=arg0,out1=arg0"], "contradicts another of its pairs"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train().save(tmp_path / "t.neff")
    assert main(["run", str(tmp_path / "t.neff"), *options]) == 2
    assert message in capsys.readouterr().err
