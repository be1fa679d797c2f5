"""`nccrt run`: what it says of the time, and the timeline that it writes."""

import json
import re
from pathlib import Path

import pytest

import ncc_compiler
from ncc_runtime import progress_bar
from ncc_runtime.cli import main

MODEL = """sum { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[64] parameter(0)
 y = f32[64] negate(x)
 s = f32[64] all-reduce(y), replica_groups={{0,1,2,3}}, to_apply=sum,
  metadata={op_name="jit(f)/layer_0/psum" source_file="m.py" source_line=7}
 ROOT z = f32[64] exponential(s) }
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "m.neff"
    ncc_compiler.compile_text(MODEL).save(path)
    return str(path)


def test_json_has_the_critical_path_and_it_adds_up(model: str, capsys):
    assert main(["run", model, "--no-values", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    timeline = found["timeline"]
    steps = timeline["critical_path"]
    assert sum(step["time_us"] for step in steps) == pytest.approx(found["time_us"])
    assert [step["kind"] for step in steps if step["placeholder"] == 0] == ["collective"]
    (row,) = found["collectives"]
    assert timeline["collective_us"] == row["time_us"]
    assert timeline["exposed_us"] == row["exposed_us"] == row["time_us"]  # nothing runs beside it
    assert timeline["all_reduce"]["time_us"] == row["time_us"]
    assert 0 < timeline["utilisation"]["hbm"][0]["share"] < 0.01  # 256 bytes in tens of us


def test_without_a_clock_there_is_no_timeline(model: str, capsys):
    assert main(["run", model, "--no-clock", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["timeline"] is None


def test_the_text_names_overlap_and_the_longest_steps(model: str, capsys):
    assert main(["run", model, "--no-values"]) == 0
    text = capsys.readouterr().out
    for words in ("predicted time", "a rank on average: compute", "all-reduces", "critical path"):
        assert words in text
    assert "p0 s" in text


@pytest.mark.parametrize("name", ["m.pftrace", "m.json"])
def test_a_timeline_is_written_without_a_word(model: str, tmp_path: Path, name: str, capsys):
    path = tmp_path / name
    assert main(["run", model, "--no-values", "--trace", str(path)]) == 0
    assert path.stat().st_size > 1000
    assert capsys.readouterr().err == ""


def test_ranks_of_the_timeline_can_be_chosen(model: str, tmp_path: Path):
    path = tmp_path / "m.json"
    arguments = ["run", model, "--no-values", "--trace", str(path), "--trace-ranks", "0,2-3"]
    assert main(arguments) == 0
    events = json.loads(path.read_text())["traceEvents"]
    names = {
        one["args"]["name"].split(" (")[0] for one in events if one.get("name") == "process_name"
    }
    assert names - {"links"} == {"rank 0", "rank 2", "rank 3"}


def test_a_collective_says_where_it_comes_from(model: str, tmp_path: Path, capsys):
    path = tmp_path / "m.json"
    assert main(["run", model, "--no-values", "--trace", str(path)]) == 0
    events = json.loads(path.read_text())["traceEvents"]
    slices = [one["args"] for one in events if one["ph"] == "X" and one["cat"] == "collective"]
    assert len(slices) == 4
    for found in slices:
        assert found["line"] == "m.py:7"
        assert found["op_name"] == "jit(f)/layer_0/psum"
        assert (found["groups"], found["group_size"]) == (1, 4)
    text = capsys.readouterr().out
    assert text.count("m.py:7") == 3  # in the table, and on the critical path with the trigger
    assert main(["explain", model]) == 0
    assert "1 group of 4 ({0,1,2,3}): p0 (m.py:7)\n" in capsys.readouterr().out
    assert main(["explain", model, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["collectives"]
    assert (row["names"], row["lines"]) == (["s"], ["m.py:7"])


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--trace", "m.txt"], 2, "does not end in .pftrace, .json"),
        (["--trace", "m.json", "--no-clock"], 2, "--trace needs the clock"),
        (["--trace-ranks", "0"], 2, "--trace-ranks goes with --trace"),
        (["--trace", "m.json", "--trace-ranks", "x"], 2, "are no ranks, such as 0-3,8"),
        (["--trace", "m.json", "--trace-ranks", "4"], 2, "rank 4 is not below"),
        (["--trace", "none/m.json"], 1, "there is no folder"),
    ],
)
def test_a_timeline_that_cannot_be_is_refused_before_anything_runs(
    model: str, options: list[str], code: int, message: str, capsys
):
    assert main(["run", model, "--no-values", *options]) == code
    assert message in capsys.readouterr().err


def test_a_terminal_sees_how_far_a_run_with_a_timeline_is(
    model: str, tmp_path: Path, capsys, monkeypatch
):
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_bar, "BAR_S", 0.0)
    monkeypatch.setattr(progress_bar, "LOOK_S", 0.001)
    assert main(["run", model, "--no-values", "--trace", str(tmp_path / "m.json")]) == 0
    # which of the steps are seen is a matter of when a busy machine looks
    assert re.search(r" [0-9]+ of [0-9]+ [a-z]+", capsys.readouterr().err)
