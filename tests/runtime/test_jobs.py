"""Jobs go on after faults: with which bits, on which cores, and what time they lose."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError, PlacementError
from ncc_runtime.jobs.checkpoints import CheckpointFolder, JobInputs
from ncc_runtime.jobs.job import JobOptions, JobResult, RunningJob
from ncc_runtime.jobs.recovery import JobFault, OnFault, changed_collectives, with_spares
from ncc_runtime.neff.program import Program
from ncc_runtime.options import LoadOptions
from ncc_runtime.placement import Placement, place
from ncc_runtime.runtime import Model, load_on
from ncc_runtime.topology.graph import build
from tests.step_programs import batches, state, train


def job(
    options: JobOptions,
    *,
    smaller: tuple[Program, ...] = (),
    given: Mapping[str, np.ndarray] | None = None,
    spares: int | None = None,
    nodes: int = 1,
    lnc: int = 1,
    algorithm: str = "ring",
    strategy: str = "linear",
) -> JobResult:
    placement = place(build("trn2.48xlarge", nodes, lnc), 4, strategy)
    if spares is not None:
        placement = with_spares(placement, spares)
    rows = {"arg2": batches(5)}
    given = state() if given is None else given

    def load(program: Program, placement: Placement) -> Model:
        return load_on(program, placement, LoadOptions({"all-reduce": algorithm}))

    model = load(train().program, placement)
    return RunningJob(model, load, options, given, batches=rows, smaller=smaller).run()


def faults(*texts: str) -> tuple[JobFault, ...]:
    return tuple(map(JobFault.of_text, texts))


def outputs(result: JobResult) -> list[bytes]:
    assert result.last is not None
    return [array.tobytes() for array in result.last.outputs]


def test_a_spare_takes_the_place_of_a_dead_rank_with_the_same_bits() -> None:
    undisturbed = job(JobOptions(12))
    result = job(JobOptions(12, 4, faults("at step 7: rank 2 dead", "at step 9: rank 2 dead")))
    assert outputs(result) == outputs(undisturbed)
    assert [recovery.how for recovery in result.recoveries] == ["spare", "spare"]
    assert all(recovery.is_same_arithmetic for recovery in result.recoveries)
    assert [recovery.resumed_step for recovery in result.recoveries] == [4, 8]
    assert [recovery.lost_steps for recovery in result.recoveries] == [3, 1]
    assert result.last is not None
    taken = {tuple(place) for place in result.last.executable.placement.places.tolist()}
    assert taken.isdisjoint({(0, 0, 2), (0, 0, 4)})  # where rank 2 was, and its first spare


@pytest.mark.parametrize("algorithm", ["ring", "mesh", "single-step-mesh", "rdh"])
@pytest.mark.parametrize("lnc", [1, 2])
def test_where_the_arithmetic_is_said_to_be_the_same_bits_are(algorithm: str, lnc: int) -> None:
    undisturbed = job(JobOptions(6), algorithm=algorithm, lnc=lnc)
    said = []
    for fault in (
        "at step 3: rank 0 dead",
        "at step 3: rank 2 dead",
        "at step 3: rank 3 dead",
        "at step 3: link c0-c1 down",
    ):
        result = job(JobOptions(6, 2, faults(fault)), algorithm=algorithm, lnc=lnc)
        if result.stopped is not None:  # what is forced cannot run where a spare is
            assert algorithm == "rdh"
            continue
        said.append(all(recovery.is_same_arithmetic for recovery in result.recoveries))
        if said[-1]:
            assert outputs(result) == outputs(undisturbed)
    assert said[-1]  # the dead link is not used


def test_the_time_is_split_into_what_was_lost() -> None:
    options = JobOptions(
        *(12, 4, faults("at step 7: rank 2 dead")),
        detect_s=5.0,
        restart_s=7.0,
        storage_bytes_per_s=1e6,
    )
    result = job(options)
    assert result.lost_s["detection"] == 5.0
    read_s = 4 * 256 / 1e6  # one instance holds all of the state of four ranks
    assert result.lost_s["restart"] == pytest.approx(7.0 + read_s)
    assert result.lost_s["checkpoints"] == pytest.approx(3 * read_s)
    assert result.lost_s["lost work"] == pytest.approx(3 * result.step_us[0] / 1e6)
    end = result.events[-1]
    assert end.at_s + end.seconds == pytest.approx(result.total_s)
    assert len(result.step_us) == 12
    for before, after in zip(result.events, result.events[1:], strict=False):
        assert before.at_s + before.seconds == pytest.approx(after.at_s)


def test_without_checkpoints_a_fault_sends_the_job_to_its_start() -> None:
    result = job(JobOptions(6, None, faults("at step 5: rank 0 dead")))
    assert result.recoveries[0].resumed_step == 0
    assert result.recoveries[0].lost_steps == 5
    assert outputs(result) == outputs(job(JobOptions(6)))


def test_a_fault_may_send_the_job_to_before_the_checkpoint_it_began_from(tmp_path: Path) -> None:
    def load(program: Program, placement: Placement) -> Model:
        return load_on(program, placement, LoadOptions({"all-reduce": "ring"}))

    model = load(train().program, place(build("trn2.48xlarge", 1, 1), 4))
    rows = {"arg2": batches(5)}
    first = RunningJob(model, load, JobOptions(4, 2), state(), batches=rows)
    folder = CheckpointFolder(
        str(tmp_path / "ck"), [model.executable.program], JobInputs(None, first.feed)
    )
    with folder.opened():
        first.run(folder)
        begin = folder.newest()
        assert begin is not None
        assert begin.step == 4
        (tmp_path / "ck" / "step-00000004" / "rank-00000.safetensors").write_bytes(b"")
        options = JobOptions(8, None, faults("at step 6: rank 2 dead"))
        result = RunningJob(model, load, options, state(), batches=rows).run(folder, begin)
    (recovery,) = result.recoveries
    assert (recovery.resumed_step, recovery.lost_steps) == (2, 4)
    undisturbed = job(JobOptions(8))
    assert recovery.lost_s == pytest.approx(2 * undisturbed.step_us[0] / 1e6)  # of steps 4 and 5
    assert (result.first_step, len(result.step_us)) == (2, 6)
    assert outputs(result) == outputs(undisturbed)


def test_a_dead_link_is_routed_around_with_the_same_bits_where_transfers_are() -> None:
    options = JobOptions(9, 2, faults("at step 5: link c0-c1 down"))
    result = job(options, strategy="spread", algorithm="mesh")
    (recovery,) = result.recoveries
    assert recovery.how == OnFault.REROUTE
    assert recovery.refused == ("spare: a spare core replaces no link",)
    assert recovery.is_same_arithmetic
    assert outputs(result) == outputs(job(JobOptions(9), strategy="spread", algorithm="mesh"))
    assert result.last is not None
    assert "c0-c1 down" in result.last.executable.placement.where


def test_fewer_replicas_go_on_with_state_that_is_alike() -> None:
    smaller = (train(2, "two").program, train(3, "three").program)
    result = job(
        JobOptions(9, 3, faults("at step 7: rank 1 dead"), on_fault=(OnFault.SHRINK,)),
        smaller=smaller,
    )
    (recovery,) = result.recoveries
    assert recovery.what.startswith("three for 3 ranks instead of 4")
    assert [(each.name, each.change) for each in recovery.changed] == [
        ("three", "for 3 ranks instead of 4")
    ]
    # the same by hand: six steps of four ranks, then three of three
    model = ncc_runtime.load(train(), "trn2.48xlarge", lnc=1, algorithms={"all-reduce": "ring"})
    *_, before = model.run_steps(6, state(), batches={"arg2": batches(5)})
    fed = {"arg0": before.outputs[0][0], "arg1": before.outputs[1][0]}
    three = ncc_runtime.load(smaller[1], "trn2.48xlarge", lnc=1, algorithms={"all-reduce": "ring"})
    runs = three.run_steps(3, fed, first=6, batches={"arg2": batches(5)[:, :3]})
    *_, end = runs
    assert outputs(result) == [array.tobytes() for array in end.outputs]


def test_a_smaller_program_is_never_said_to_give_the_same_bits() -> None:
    """Also where none of its collectives reduces: what each rank gathers is less."""
    programs = []
    for ranks in (4, 3):
        text = f"""
        HloModule gathers, replica_count={ranks}, input_output_alias={{ {{0}}: (0, {{}}) }}
        sum {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT total = f32[] add(a, b) }}
        ENTRY step {{
          w = f32[8] parameter(0)
          x = f32[1,8] parameter(1)
          all = f32[{ranks},8] all-gather(x), replica_groups={{}}, dimensions={{0}}
          zero = f32[] constant(0)
          total = f32[8] reduce(all, zero), dimensions={{0}}, to_apply=sum
          new = f32[8] add(w, total)
          ROOT out = (f32[8]) tuple(new)
        }}"""
        programs.append(ncc_compiler.compile_text(text).program)

    def load(program: Program, placement: Placement) -> Model:
        return load_on(program, placement, LoadOptions())

    model = load(programs[0], place(build("trn2.48xlarge"), 4))
    options = JobOptions(3, 1, faults("at step 1: rank 1 dead"), on_fault=(OnFault.SHRINK,))
    given = {"arg0": np.zeros(8, np.float32), "arg1": np.ones((1, 8), np.float32)}
    result = RunningJob(model, load, options, given, smaller=programs[1:]).run()
    (recovery,) = result.recoveries
    assert not recovery.is_same_arithmetic
    assert [each.change for each in recovery.changed] == ["for 3 ranks instead of 4"]
    assert result.last is not None
    assert result.last.outputs[0][0].tolist() == [4.0 + 2 * 3.0] * 8


@pytest.mark.parametrize(("dtype", "names"), [("c64", ["total"]), ("s32", [])])
def test_sums_that_round_depend_on_the_algorithm(dtype: str, names: list[str]) -> None:
    program = ncc_compiler.compile_text(f"""HloModule sums, replica_count=8
    sum {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) ROOT c = {dtype}[] add(a, b) }}
    ENTRY step {{ x = {dtype}[64] parameter(0)
      ROOT total = {dtype}[64] all-reduce(x), replica_groups={{}}, to_apply=sum }}""").program
    one, two = (
        load_on(program, place(build("trn2.48xlarge"), 8), LoadOptions({"all-reduce": name}))
        for name in ("ring", "rdh")
    )
    assert [each.name for each in changed_collectives(one.executable, two.executable)] == names
    assert not list(changed_collectives(one.executable, one.executable))


def test_state_that_differs_between_ranks_is_given_to_no_smaller_program() -> None:
    given = {"arg0": np.random.default_rng(0).standard_normal((4, 8, 4)).astype(np.float32)}
    given["arg1"] = np.zeros((8, 4), np.float32)
    options = JobOptions(6, 2, faults("at step 3: rank 1 dead"), on_fault=(OnFault.SHRINK,))
    result = job(options, smaller=(train(3).program,), given=given)
    assert result.last is None
    assert result.stopped is not None
    assert "arg0 f32[8,4] differs between ranks" in result.stopped


def test_ranks_that_a_smaller_job_has_not_cannot_die() -> None:
    options = JobOptions(
        *(
            9,
            3,
            faults("at step 4: rank 1 dead", "at step 7: rank 3 dead", "at step 8: rank 2 dead"),
        ),
        on_fault=(OnFault.SHRINK,),
    )
    result = job(options, smaller=(train(3).program, train(2).program))
    assert [recovery.fault.rank for recovery in result.recoveries] == [1, 2]
    assert result.last is not None
    assert result.last.executable.ranks == 2


def test_a_link_may_be_named_twice() -> None:
    options = JobOptions(6, 2, faults("at step 3: link c0-c1 down", "at step 5: link c0-c1 down"))
    result = job(options, strategy="spread")
    assert [recovery.how for recovery in result.recoveries] == ["reroute"]
    assert result.lost_s["detection"] == options.detect_s


def test_a_link_that_no_transfer_passes_is_not_missed() -> None:
    """All ranks are on one chip; when one dies, no spare is looked for behind the dead link."""
    options = JobOptions(6, 2, faults("at step 3: link c0-c1 down"))
    result = job(options)
    assert not result.recoveries
    assert result.total_s == pytest.approx(result.useful_s + result.lost_s["checkpoints"])
    assert result.events[1].text == "link c0-c1 dies in step 3; no transfer passes it"
    assert outputs(result) == outputs(job(JobOptions(6)))
    both = faults("at step 3: link c0-c1 down", "at step 4: rank 2 dead")
    later = job(JobOptions(6, 2, both))
    assert [recovery.how for recovery in later.recoveries] == ["spare"]
    assert later.last is not None
    assert "c0-c1 down" in later.last.executable.placement.where


SHARDED = """HloModule zero, num_partitions={ranks}, input_output_alias={{ {{}}: (0, {{}}) }}
sum {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT total = f32[] add(a, b) }}
ENTRY e {{
  m = f32[{rows},2] parameter(0), sharding={{devices=[{ranks},1]<=[{ranks}]}}
  g = f32[12,2] parameter(1)
  s = f32[{rows},2] reduce-scatter(g), channel_id=1, replica_groups={{{{{group}}}}},
    use_global_device_ids=true, dimensions={{0}}, to_apply=sum
  ROOT n = f32[{rows},2] add(m, s)
}}"""


def sharded(ranks: int) -> Program:
    group = ",".join(map(str, range(ranks)))
    text = SHARDED.format(ranks=ranks, rows=12 // ranks, group=group)
    return ncc_compiler.compile_text(text).program


def test_sharded_state_is_cut_anew_for_fewer_ranks() -> None:
    """The optimizer's state of ZeRO: each rank has its own rows of it."""
    four, three = sharded(4), sharded(3)
    given = {
        "arg0": np.arange(24, dtype=np.float32).reshape(12, 2),
        "arg1": np.ones((12, 2), np.float32),
    }
    options = JobOptions(4, 2, faults("at step 3: rank 3 dead"), on_fault=(OnFault.SHRINK,))
    place_four = place(build("trn2.48xlarge"), 4)
    result = RunningJob(
        ncc_runtime.load(four),
        lambda program, placement: load_on(program, placement, LoadOptions()),
        options,
        given,
        smaller=(three,),
    ).run()
    assert place_four.ranks == 4
    assert result.last is not None
    # two steps add 4 each, two add 3
    end = result.last.outputs[0].reshape(12, 2)
    assert end.tolist() == (given["arg0"] + 2 * 4 + 2 * 3).tolist()


def test_a_job_stops_where_nothing_is_left_to_try() -> None:
    result = job(JobOptions(6, 2, faults("at step 3: rank 1 dead"), spares=0))
    assert result.last is None
    assert result.stopped is not None
    for word in ("spare: no spare core is left", "a dead rank needs another core", "--smaller"):
        assert word in result.stopped


def test_spares_are_on_more_instances_if_need_be() -> None:
    full = place(build("trn2.48xlarge"), 64)
    assert with_spares(full, 0) is full
    larger = with_spares(full, 3)
    assert larger.topology.nodes == 2
    assert larger.places.tolist() == full.places.tolist()
    with pytest.raises(PlacementError, match="spare cores beside 4 ranks need"):
        with_spares(place(build("trn2.3xlarge"), 4), 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("at step 1: rank 4 dead", "ranks are 0 to 3"),
        ("at step 9: rank 1 dead", "the job has steps 0 to 5"),
        ("at step 1: link c0-c99 down", "c99"),
        ("rank 1 at 3", "is not of the form 'at step 7: rank 3 dead'"),
        ("at step 1: link efa down", "is neither a link"),
    ],
)
def test_a_fault_of_what_is_not_there_is_refused_before_the_first_step(
    text: str, message: str
) -> None:
    with pytest.raises(ncc_runtime.NccError, match=message):
        job(JobOptions(6, 2, faults(text)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (train(4), "is for 4 ranks, train for 4"),
        (ncc_compiler.compile_text("ENTRY e { ROOT x = f32[2] parameter(0) }"), "has 1 inputs"),
    ],
)
def test_another_program_is_no_smaller_one(other: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(JobOptions(6), smaller=(other.program,))


def test_the_command_tells_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train().save(tmp_path / "t.neff")
    run = ["run", str(tmp_path / "t.neff"), "--steps", "6", "--draw", "arg2", "--seed", "0"]
    fail = ["--checkpoint", str(tmp_path / "ck"), "--checkpoint-every", "2", "--fail"]
    assert main([*run, *fail, "at step 3: rank 1 dead", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["job"]
    assert told["recoveries"][0]["how"] == "spare"
    assert told["total_s"] == pytest.approx(told["useful_s"] + sum(told["lost_s"].values()))
    stop = ["--on-fault", "stop", "--resume", "--fail", "at step 7: rank 1 dead"]
    run[3] = "8"
    assert main([*run, "--checkpoint", str(tmp_path / "ck"), *stop, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["job"]["stopped"] == told["errors"][0]["message"]
    assert main([*run, "--no-values", "--checkpoint-every", "2"]) == 0
    assert "step time: first " in capsys.readouterr().out
