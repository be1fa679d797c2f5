"""Runs with faults: `nccrt run --fault`, and `Model.run(faults=…)`."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError, StallError
from ncc_runtime.faults.text import parse

STEP = """
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY step {
  x = f32[64] parameter(0)
  total = f32[64] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=sum
  n = f32[] constant(4)
  by = f32[64] broadcast(n), dimensions={}
  ROOT mean = f32[64] divide(total, by)
}
"""
LATE = "rank 3 late by 20us"
DEAD = "at 20us: rank 3 dead"
FLIP = "bit 20 of transfer 0 of cc0.dma0 on rank 0 flips"


@pytest.fixture(scope="module")
def neff(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("faults") / "step.neff"
    ncc_compiler.compile_text(STEP).save(path)
    return str(path)


Answer = tuple[int, str, str]


@pytest.fixture
def run(neff: str, capsys: pytest.CaptureFixture[str]):
    """`nccrt run` of the step on trn2: exit code, standard output and standard error."""

    def answer(*words: object) -> Answer:
        code = main(["run", neff, "--topology", "trn2", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return answer


def test_a_run_that_ends_has_values_a_time_and_blame(run, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    code, text, error = run("--fault", LATE, "--seed", 0, "--outputs", out)
    assert (code, error) == (0, "")
    assert "fault: rank 3 late by 20us (assumed)" in text
    assert "all rows are performed, values are right (proved)" in text
    assert "20.000 us more" in text
    code, text, _ = run("--seed", 0, "--outputs", tmp_path / "sound.npz")
    assert code == 0
    assert "fault" not in text
    with np.load(out) as late, np.load(tmp_path / "sound.npz") as sound:
        np.testing.assert_array_equal(late["out0"], sound["out0"])


def test_a_stall_is_reported_and_writes_no_outputs(run, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    code, text, error = run("--fault", DEAD, "--seed", 0, "--outputs", out)
    assert code == 1
    assert error.splitlines() == ["error: the run stalls: cc0 of rank 3 or rank 3 stands still"]
    assert "stall: nothing can go on after" in text
    assert "what hosts report" in text
    assert not out.exists()


def test_a_stall_is_an_object_with_the_error_beside_the_report(run) -> None:
    code, text, _ = run("--fault", DEAD, "--no-values", "--json")
    found = json.loads(text)
    assert code == 1
    assert found["fault_report"]["outcome"] == "stall"
    assert found["time_us"] is None
    (error,) = found["errors"]
    assert error["message"].startswith("the run stalls: ")


def test_wrong_values_say_in_which_outputs(run) -> None:
    code, text, _ = run("--fault", FLIP, "--seed", 0)
    assert code == 0
    assert "outcome: wrong values, and nothing says so" in text
    assert re.search(r"^  out0 on rank 1: 1 of 256 elements, by up to ", text, re.MULTILINE)


def test_without_values_the_report_says_so(run) -> None:
    code, text, _ = run("--fault", LATE, "--no-values")
    assert code == 0
    assert "values are right (by time; no values were computed)" in text
    assert "\noutputs" not in text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--fault", FLIP, "--no-values"], 1, "changes data alone: leave out --no-values"),
        (["--fault", LATE, "--no-clock"], 2, "--no-clock goes with no --fault or --faults"),
        (["--fault", LATE, "--checked"], 2, "--checked goes with no --fault or --faults"),
        (["--fault", LATE, "--shuffle", 1], 2, "--shuffle goes with no --fault or --faults"),
        (["--fault", LATE, "--steps", 2], 2, "say with --fail what dies for good during the steps"),
        (["--fault", "rank 3 daed"], 2, "column 8, at 'daed': expected dead, late or slow; did"),
        (["--fault", ""], 2, "column 1, at the end: expected adapter, at,"),
        (["--fault", "rank 9 dead"], 1, "there is no rank 9; there is rank 0 to 3"),
        (["--faults", "no_such.toml"], 1, "no_such.toml: no such file or directory"),
        (["--fault-seed", 1], 2, "--fault-seed goes with --fault or --faults"),
        (["--fault", LATE, "--fault-seed", -1], 2, "-1 is not in the range x>=0"),
        (["--exec-timeout", 1], 2, "--exec-timeout goes with --fault or --faults"),
        *(
            (["--fault", DEAD, "--exec-timeout", seconds], 1, "must be more than 0 and at most")
            for seconds in ("0", "-1", "nan", "inf", "1e400", "1e7")
        ),
        (["--fault", DEAD, "--exec-timeout", "soon"], 2, "'soon' is not a valid float"),
    ],
)
def test_what_does_not_go_is_refused_in_a_line(run, words: list, code: int, said: str) -> None:
    got, text, error = run(*words)
    assert (got, text) == (code, "")
    assert said in error
    assert error.count("\n") == 1


def test_the_timeout_of_the_environment_counts_where_none_is_given(run, monkeypatch) -> None:
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "2")
    assert "at 2,000,000.000 us: NRT_" in run("--fault", DEAD, "--no-values")[1]
    assert "at 5.000 us: NRT_" in run("--fault", DEAD, "--no-values", "--exec-timeout", "5e-6")[1]
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "soon")
    code, _, error = run("--fault", DEAD, "--no-values")
    assert code == 1
    assert "NEURON_RT_EXEC_TIMEOUT=soon is no number of seconds" in error


def test_hosts_that_give_up_a_run_that_would_end_are_told(run) -> None:
    code, text, _ = run("--fault", LATE, "--no-values", "--exec-timeout", "50e-6")
    assert code == 0
    assert "\nhosts give up after 50us, before it ends: a false alarm\n" in text
    assert "give up" not in run("--fault", LATE, "--no-values")[1]


@pytest.mark.parametrize("fault", [LATE, DEAD])
def test_the_timeline_has_the_fault_and_what_stalled(run, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    code, _, _ = run("--fault", fault, "--no-values", "--trace", path)
    assert code == (1 if fault == DEAD else 0)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert fault in names
    assert ("stalled cc0 of rank 3" in names) is (fault == DEAD)


def test_files_come_behind_texts_and_the_seed_draws(run, tmp_path: Path) -> None:
    path = tmp_path / "drawn.toml"
    path.write_text('[[fault]]\nwhat = "rank * late by uniform(0us, 90us)"\nsource = "ours"\n')
    both = ["--fault", "rank 1 slow to 50%", "--faults", path, "--no-values", "--json"]
    found = [json.loads(run(*both, *more)[1]) for more in ([], ["--fault-seed", 0])]
    other = json.loads(run(*both, "--fault-seed", 1)[1])
    assert [each["source"] for each in found[0]["fault_report"]["faults"]] == ["assumed", "ours"]
    assert found[0]["time_us"] == found[1]["time_us"] != other["time_us"]
    assert other["fault_report"]["seed"] == 1


def test_python_takes_texts_faults_and_paths(neff: str, tmp_path: Path) -> None:
    path = tmp_path / "late.toml"
    path.write_text(f'[[fault]]\nwhat = "{LATE}"\n')
    model = ncc_runtime.load(neff, "trn2")
    ways = [LATE, [LATE], parse(LATE), (parse(LATE),), path, [path]]
    times = {model.run(seed=0, values=False, faults=way).time_us for way in ways}
    assert times == {model.run(seed=0, values=False).time_us + 20}
    for wrong in (3, [3], {LATE}):
        with pytest.raises(InputError, match="faults are texts such as"):
            model.run(seed=0, faults=wrong)
    with pytest.raises(InputError, match="the clock"):
        model.run(seed=0, faults=LATE, clock=False)
    with pytest.raises(InputError, match="faults happen in one run"):
        next(model.run_steps(2, seed=0, feed={"out0": "arg0"}, faults=LATE))


def test_python_has_the_report_of_a_stall_and_no_result(neff: str) -> None:
    stalled = ncc_runtime.load(neff, "trn2").run(seed=0, faults=DEAD)
    assert (stalled.outputs, stalled.time_us) == ([], None)
    assert stalled.faults is not None
    assert not stalled.faults.is_complete
    assert "culprit: cc0 of rank 3 or rank 3 stands still" in str(stalled)
    assert stalled._repr_html_()
    with pytest.raises(StallError, match="the run stalls"):
        _ = stalled.result


def test_a_fault_after_the_end_is_told(run) -> None:
    code, text, _ = run("--fault", "at 120ms: rank 3 dead", "--fault", LATE, "--no-values")
    assert code == 0
    assert "fault: at 120ms: rank 3 dead (assumed); the run is over before it" in text
    assert "fault: rank 3 late by 20us (assumed)\n" in text
    code, text, _ = run("--fault", "at 120ms: rank 3 dead", "--no-values", "--json")
    assert [one["begins_us"] for one in json.loads(text)["fault_report"]["faults"]] == [None]


def test_a_nan_has_no_distance(run) -> None:
    _, text, _ = run("--fault", FLIP.replace("20", "30"), "--seed", 2)
    assert "\n  out0 on rank 1: 1 of 256 elements, 1 of them NaN\n" in text
