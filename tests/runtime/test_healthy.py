"""Beside the time on a damaged machine stands that with nothing down or slow."""

import json
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime import Topology
from ncc_runtime.cli import main
from ncc_runtime.errors import LoweringError
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.programs import LINK_DOWN, collective_program

KB = 1 << 10
LOOP = """
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
body { s = (s32[], f32[65536]) parameter(0)
 i = s32[] get-tuple-element(s), index=0 x = f32[65536] get-tuple-element(s), index=1
 one = s32[] constant(1) j = s32[] add(i, one)
 y = f32[65536] all-reduce(x), to_apply=sum,
   replica_groups={{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}
 ROOT t = (s32[], f32[65536]) tuple(j, y) }
goes_on { s = (s32[], f32[65536]) parameter(0) i = s32[] get-tuple-element(s), index=0
 n = s32[] constant(5) ROOT p = pred[] compare(i, n), direction=LT }
ENTRY e { x = f32[65536] parameter(0) first = s32[] parameter(1)
 s = (s32[], f32[65536]) tuple(first, x)
 w = (s32[], f32[65536]) while(s), condition=goes_on, body=body
 ROOT r = f32[65536] get-tuple-element(w), index=1 }
"""


def test_runs_carry_the_time_on_the_healthy_machine() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [64 * KB])
    whole = ncc_runtime.load(program, "trn2").run(values=False, verify=False)
    assert whole.healthy_us is None
    for damage in ({"down": ["c0-c1"]}, {"slow": ["c0-c1=10%"]}, {"slow": ["c5.core0=50%"]}):
        run = ncc_runtime.load(program, "trn2", **damage).run(values=False, verify=False)
        assert run.healthy_us == whole.time_us
        assert run.time_us > run.healthy_us
        assert run.as_dict()["healthy_us"] == run.healthy_us
        assert f"healthy: {run.healthy_us:.3f} us, with nothing down or slow" in str(run)
        assert f"healthy: {run.healthy_us:.3f} us" in run._repr_html_()
        without_clock = ncc_runtime.load(program, "trn2", **damage).run(
            values=False, verify=False, clock=False
        )
        assert without_clock.healthy_us is None


def test_the_healthy_machine_has_the_same_policy() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 32, [256 * KB])
    for policy in ("neuron", "best"):
        settings = {"policy": policy, "times_only": True}
        damaged = ncc_runtime.load(program, LINK_DOWN, **settings)
        whole = ncc_runtime.load(program, "trn2", **settings)
        times = [each.run(values=False, verify=False) for each in (damaged, whole)]
        assert times[0].healthy_us == times[1].time_us


def test_decisions_that_values_took_hold_on_the_healthy_machine() -> None:
    neff = ncc_compiler.compile_text(LOOP)
    inputs = [np.ones((16, 65536), np.float32), np.full((16,), 2, np.int32)]
    whole = ncc_runtime.load(neff, "trn2").run(inputs)
    damaged = ncc_runtime.load(neff, "trn2", down=["c0-c1"])
    run = damaged.run(inputs)
    assert run.collectives[0].runs == 3
    assert run.healthy_us == whole.time_us
    assert run.time_us > run.healthy_us
    timed = damaged.run(inputs, values=False, verify=False)
    assert (timed.time_us, timed.healthy_us) == (run.time_us, run.healthy_us)
    again = damaged.run([inputs[0], np.full((16,), 4, np.int32)])
    assert again.collectives[0].runs == 1
    assert again.healthy_us < run.healthy_us


def test_pipeline_stages_have_a_healthy_time_too() -> None:
    folder = Path(__file__).parents[2] / "ir_examples"
    stages = [ncc_compiler.compile_file(str(folder / f"pipeline_stage{n}.ir")) for n in (0, 1)]
    half = 4
    parts = [(stages[0], range(half)), (stages[1], range(half, 2 * half))]
    whole = ncc_runtime.load(parts, "trn2", placement="spread").run(seed=0)
    run = ncc_runtime.load(parts, "trn2", placement="spread", down=["c0-c1"]).run(seed=0)
    assert run.healthy_us == whole.time_us


def test_what_cannot_run_on_the_healthy_machine_leaves_its_time_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [64 * KB])
    model = ncc_runtime.load(program, LINK_DOWN, algorithms={"all-reduce": "synthesised"})

    def refused(*_: object, **__: object) -> None:
        raise LoweringError("no room")

    monkeypatch.setattr("ncc_runtime.runtime.lower", refused)
    run = model.run(values=False, verify=False)
    assert run.healthy_us is None
    assert "healthy" not in str(run)


def test_sizes_that_follow_from_values_leave_the_healthy_time_open() -> None:
    program = collective_program(CollectiveOp.ALL_TO_ALL_V, 16, [4096])
    model = ncc_runtime.load(program, "trn2", down=["c0-c1"])
    assert model.run(seed=0).healthy_us is None
    assert model.run(values=False, verify=False).healthy_us is not None


def test_a_topology_without_its_faults_is_the_one_it_is_based_on() -> None:
    damaged, whole = Topology.load(LINK_DOWN, nodes=2), Topology.load("trn2", nodes=2)
    healthy = damaged.healthy
    assert damaged.active_faults
    assert not healthy.active_faults
    assert not healthy.links.is_down.any()
    assert (healthy.links.bandwidth_bytes_per_s == whole.links.bandwidth_bytes_per_s).all()
    assert healthy.nodes == 2
    assert whole.healthy is whole


def test_bench_has_a_column_of_the_healthy_machine_where_something_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "all_reduce", "-r", "16", "-b", "64KB"]
    report = str(tmp_path / "report.json")
    assert main([*words, "--json"]) == 0
    (whole,) = json.loads(capsys.readouterr().out)["results"]
    assert whole["healthy_us"] is None
    assert main([*words, "--down", "c0-c1", "--json", "--report-to-json-file", report]) == 0
    (damaged,) = json.loads(capsys.readouterr().out)["results"]
    assert damaged["healthy_us"] == whole["time_us"] < damaged["time_us"]
    (row,) = json.loads(Path(report).read_text())["results"]
    assert row["healthy(us)"] == whole["time_us"]
    assert main([*words, "--down", "c0-c1"]) == 0
    assert "healthy(us)" in capsys.readouterr().out
    assert main(words) == 0
    assert "healthy(us)" not in capsys.readouterr().out


def test_explanations_have_the_healthy_time() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [64 * KB])
    (whole,) = ncc_runtime.load(program, "trn2").explain().rows
    explanation = ncc_runtime.load(program, "trn2", slow=["c0-c1=10%"]).explain()
    (row,) = explanation.rows
    assert whole.healthy is None
    assert (row.healthy.name, row.healthy.time_ps) == (
        whole.choice.chosen.name,
        whole.price.time_ps,
    )
    assert f"  healthy: {whole.price.time_ps / 1e6:.3f} us by {row.healthy.name}" in str(
        explanation
    )


def test_diffs_have_the_healthy_time_of_each_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    neff = str(tmp_path / "loop.neff")
    ncc_compiler.compile_text(LOOP).save(neff)
    words = ["diff", neff, "--on", "trn2", "--on", "trn2,down=c0-c1", "--trip-count", "w=2"]
    assert main([*words, "--json"]) == 0
    whole, damaged = json.loads(capsys.readouterr().out)["places"]
    assert whole["healthy_us"] is None
    assert damaged["healthy_us"] == whole["time_us"]
    assert main(words) == 0
    assert f"     healthy: {whole['time_us']:.3f} us" in capsys.readouterr().out
