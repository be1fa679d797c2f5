"""`nccrt sweep`: rows, files, going on after a kill, and what is refused before the work."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ncc_compiler
from ncc_compiler.options import CompileOptions
from ncc_runtime import progress_bar
from ncc_runtime.cli import main
from ncc_runtime.sweep import workers
from ncc_runtime.sweep.points import SweepPoint
from ncc_runtime.sweep.results import PointResult, Status

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from ncc_runtime.entry import main; sys.exit(main())",
    "sweep",
]
SMALL = """[common]
op = "all_reduce"
[[grid]]
ranks = [2, 4]
size = { from = 64, to = 1024, factor = 4 }
algorithm = ["", "ring"]
[[point]]
ranks = 4096
size = 64
topology = "trn2.3xlarge"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "s.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swept(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> Any:
    assert main(["sweep", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_all_points_have_rows_and_a_second_time_nothing_is_computed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = swept(["s.toml", "-j", "2", "--csv", "a.csv"], capsys)
    assert (first["points"], first["done"], first["refused"], first["left"]) == (13, 12, 1, 0)
    kept = (folder / "s.jsonl").read_bytes()
    assert kept.count(b"\n") == 13
    monkeypatch.setattr(workers, "LocalPool", None)  # which would be needed
    assert swept(["s.toml", "--csv", "b.csv"], capsys) == first
    assert (folder / "s.jsonl").read_bytes() == kept
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    refused = [row for row in first["rows"] if row["status"] == "refused"]
    assert "4096 ranks do not fit on 1 trn2.3xlarge" in refused[0]["reason"]


def test_times_are_those_of_bench(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = swept(["s.toml", "-j", "1"], capsys)
    rows = {
        (row["ranks"], row["point"].get("algorithm"), row["point"]["size"]): row
        for row in found["rows"]
    }
    for ranks in (2, 4):
        for algorithm in (None, "ring"):
            words = ["bench", "all_reduce", "-r", str(ranks), "-b", "64", "-e", "1024", "-f", "4"]
            words += [] if algorithm is None else ["--algorithm", algorithm]
            assert main([*words, "--json"]) == 0
            for result in json.loads(capsys.readouterr().out)["results"]:
                row = rows[ranks, algorithm, result["size_bytes"]]
                assert row["time_us"] == result["time_us"]
                assert row["busbw_gb_per_s"] == result["busbw_gb_per_s"]
                assert row["used_algorithm"] == result["algorithm"]


def test_times_of_programs_are_those_of_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[1] / "data/hlo/mlp_train_dp2_tp4.hlo").read_text()
    (folder / "mlp.hlo").write_text(text)
    ncc_compiler.compile_text(text).save("mlp.neff")
    ncc_compiler.compile_text(text, CompileOptions(level=0)).save("slow.neff")
    (folder / "p.toml").write_text(
        '[[grid]]\nprogram = ["mlp.neff", "mlp.neff@0-3 mlp.neff@4-7", "slow.neff"]\n'
        'on = ["trn1", "trn2,nodes=2,placement=spread"]\ntask = "mlp"\n'
        'fault = ["", "rank 3 slow to 50%", "rank 3 dead"]\n'
        '[[point]]\nmodel = "mlp.hlo"\nlevel = 0\ntask = "mlp"\n'
    )
    found = swept(["p.toml", "-j", "2"], capsys)
    assert (found["points"], found["done"], found["refused"]) == (19, 13, 6)
    for row in found["rows"]:
        words = row["point"]
        program = row["program"] or words["program"]
        given = ["run", *program.split(), "--no-values"]
        given += ["--on", words["on"]] if "on" in words else []
        given += ["--fault", words["fault"]] if "fault" in words else []
        code = main([*given, "--json"])
        run = json.loads(capsys.readouterr().out)
        if words.get("fault") == "rank 3 dead":
            assert code == 1
            assert row["status"] == "refused"
            assert row["reason"].startswith("the run stalls: ")
        else:
            assert row["time_us"] == run["time_us"], words
            assert row["instances"] == run["nodes"]
    whole = [row for row in found["rows"] if "fault" not in row["point"]]
    assert {row["task"] for row in whole} == {"mlp"}
    fastest = min(whole, key=lambda row: row["time_us"])
    assert fastest["on_front"]


def test_points_of_one_key_are_computed_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "d.toml").write_text(
        '[common]\nop = "all_reduce"\nranks = 4\nsize = 64\n[[grid]]\n'
        'topology = ["", "trn2", "trn2.48xlarge"]\nlnc = [2]\n[[point]]\non = "trn2,lnc=2"\n'
        '[[point]]\nsize = "0KB"\n'
    )
    assert main(["sweep", "d.toml"]) == 1
    assert "d.toml:11:8: size: a size of no bytes" in capsys.readouterr().err
    (folder / "d.toml").write_text((folder / "d.toml").read_text().replace("0KB", "64"))
    assert swept(["d.toml"], capsys)["points"] == 1
    assert (folder / "d.jsonl").read_bytes().count(b"\n") == 1


def test_one_point_under_two_tasks_has_a_row_of_each(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    point = '[[point]]\nop = "all_reduce"\nranks = 4\nsize = 64\n'
    whole = [point, point + 'task = "a"\n', point + 'task = "b"\n', point + "samples = 8\n", point]
    (folder / "d.toml").write_text("".join(whole))
    found = swept(["d.toml"], capsys)
    tasks = [(row["task"], row["samples"], row["on_front"]) for row in found["rows"]]
    usual = "all_reduce of 64 B, fp32"
    assert sorted(tasks, key=str) == [
        ("a", None, True),
        (usual, 8, True),
        (usual, None, False),
        ("b", None, True),
    ]
    assert (found["points"], found["left"]) == (4, 0)
    assert (folder / "d.jsonl").read_bytes().count(b"\n") == 1


def test_a_column_of_the_csv_has_a_name_of_its_own(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[1] / "data/hlo/mlp_train_dp2_tp4.hlo").read_text()
    ncc_compiler.compile_text(text).save("mlp.neff")
    (folder / "p.toml").write_text('[[point]]\nprogram = "mlp.neff"\n')
    swept(["p.toml", "-j", "1", "--csv", "p.csv"], capsys)
    with (folder / "p.csv").open() as file:
        head, row = csv.reader(file)
    assert len(set(head)) == len(head)
    assert row[head.index("program")] == "mlp.neff"


def test_failed_points_are_computed_again_only_if_that_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(point: SweepPoint, programs: object) -> PointResult:
        return PointResult(point.key, Status.FAILED, "the host is out of memory")

    class HerePool:
        timeout_s = None

        def __init__(self, *_: object) -> None:
            pass

        def width(self) -> int:
            return 1

        def submit(self, points: list[SweepPoint]) -> Any:
            future: Any = workers.Future()
            found = workers.results_of(workers.version(), points, {}, None)
            future.set_result(found)
            return future

        def close(self) -> None:
            pass

    (folder / "f.toml").write_text('[[point]]\nop = "all_reduce"\nranks = 2\nsize = 64\n')
    monkeypatch.setattr(workers, "LocalPool", HerePool)
    with monkeypatch.context() as failures:
        failures.setattr(workers, "result_of", failing)
        assert swept(["f.toml"], capsys, 1)["failed"] == 1
    assert swept(["f.toml"], capsys, 1)["failed"] == 1
    assert swept(["f.toml", "--again"], capsys)["done"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give SWEEP.toml, or --best FILE.py:FUNCTION"),
        (["s.toml", "--best", "m.py:f"], 2, "give SWEEP.toml, or --best FILE.py:FUNCTION"),
        (["none.toml"], 1, "none.toml: no such file or directory"),
        (["s.toml", "--out", "s.toml"], 2, "--out would overwrite s.toml, which is read"),
        (["s.toml", "--csv", "s.jsonl"], 2, "--csv would overwrite s.jsonl, which --out writes"),
        (["s.toml", "--csv", "no/where.csv"], 1, "no/where.csv: there is no folder"),
        (["s.toml", "--plot", "a.pdf"], 2, "does not end in .svg or .png"),
        (["s.toml", "--dask", "tcp://x", "-j", "2"], 2, "--jobs is of this machine, and --dask of"),
        (["s.toml", "--timeout", "0"], 2, "--timeout"),
        (["--best", "m.py:f"], 2, "--best needs --ranks, over how many"),
        (["--best", "m.py:f", "--ranks", "4", "--axes", "a,a"], 2, "are no names of axes"),
        (["--best", "m.py:f", "--ranks", "4", "--samples", "x"], 2, "--samples: 'x' is neither"),
        (["s.toml", "--ranks", "4"], 2, "--ranks is for --best"),
        (["s.toml", "--series", "algorithm"], 2, "--series is for --plot"),
        (
            ["s.toml", "--plot", "a.svg", "--series", "algorihm"],
            1,
            "--series algorihm: no point has that key; there are op, ranks, size, algorithm",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(
    arguments: list[str], code: int, message: str, folder: Path, capsys: Any
) -> None:
    assert main(["sweep", *arguments]) == code
    assert message in capsys.readouterr().err
    assert not (folder / "s.jsonl").exists()


def test_without_dask_a_line_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["sweep", "s.toml", "--dask", "tcp://localhost:1"]) == 1
    assert capsys.readouterr().err == ("error: --dask needs Dask: pip install 'neuron-ncc[dask]'\n")


def test_lines_that_are_no_results_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "s.jsonl").write_text('{"schema": 1, "key": 3}\n')
    (warning,) = swept(["s.toml", "-j", "1"], capsys)["warnings"]
    assert warning["code"] == "broken-lines"
    assert "s.jsonl: 1 lines are no results of this version" in warning["message"]


def test_a_sweep_whose_points_are_all_refused_ends_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "r.toml").write_text(
        '[[point]]\nop = "all_reduce"\nranks = 4096\nsize = 64\ntopology = "trn2.3xlarge"\n'
    )
    found = swept(["r.toml"], capsys, 1)
    assert found["refused"] == 1
    assert found["errors"][0]["message"] == "no point of r.toml could be computed"


MANY = """[common]
op = "all_reduce"
[[grid]]
ranks = [2, 4, 8]
size = { from = 64, to = "1MB", factor = 2 }
algorithm = ["", "ring", "mesh"]
"""


def ended_table(folder: Path, name: str) -> list[list[str]]:
    done = subprocess.run(
        [*COMMAND, "many.toml", "-j", "2", "--out", f"{name}.jsonl", "--csv", f"{name}.csv", "-q"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stderr == ""
    with (folder / f"{name}.csv").open() as file:
        return list(csv.reader(file))


def killed_sweep(folder: Path, kills: int) -> None:
    """Run, kill, go on; then compare with what was never killed, and look at the lines."""
    (folder / "many.toml").write_text(MANY)
    expected = ended_table(folder, "whole")
    draw, rows = random.Random(7), folder / "killed.jsonl"
    torn = 0
    for number in range(1, kills + 1):
        before = rows.stat().st_size if rows.exists() else 0
        sweep = subprocess.Popen(
            [*COMMAND, "many.toml", "-j", "2", "--out", "killed.jsonl", "-q"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        # a share of the points each time, so that the last kill comes before the end; and one at
        # least, where the kill before came late
        share = (len(expected) - 1) * number // 20
        while sweep.poll() is None and not (
            rows.exists()
            and rows.stat().st_size > before
            and rows.read_bytes().count(b"\n") >= share
        ):
            time.sleep(0.005)
        time.sleep(draw.random() * 0.1)
        sweep.send_signal(signal.SIGKILL)
        _, said = sweep.communicate()
        assert b"Traceback" not in said  # loky's tracker tells of semaphores that it cleans up
        assert sweep.returncode == -signal.SIGKILL, "the sweep ended before it was killed"
        assert rows.stat().st_size > before
        if draw.random() < 0.5:  # as if it had been killed while it wrote
            whole = rows.read_bytes()
            rows.write_bytes(whole[: len(whole) - draw.randrange(1, 200)])
            torn += 1
    assert ended_table(folder, "killed") == expected
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    keys = [line["key"] for line in lines]
    assert len(keys) == len(set(keys)) == len(expected) - 1


def test_a_sweep_that_is_killed_goes_on_to_the_same_table(tmp_path: Path) -> None:
    killed_sweep(tmp_path, 2)


@pytest.mark.slow
def test_a_sweep_that_is_killed_ten_times_ends_with_the_same_table(tmp_path: Path) -> None:
    killed_sweep(tmp_path, 10)


def processes_of(sweep: int) -> list[int]:
    """Its children, and theirs."""
    path = Path(f"/proc/{sweep}/task/{sweep}/children")
    children = [int(word) for word in path.read_text().split()]
    return children + [each for child in children for each in processes_of(child)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_is_stopped_leaves_no_process(how: signal.Signals, tmp_path: Path) -> None:
    # so many points that no machine is through with them before it is stopped
    (tmp_path / "many.toml").write_text(MANY.replace("[2, 4, 8]", str([*range(2, 65)])))
    rows = tmp_path / "many.jsonl"
    with subprocess.Popen(
        [*COMMAND, "many.toml", "-j", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # where tests run in the background, shells have them ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as sweep:
        while not (rows.exists() and rows.read_bytes().count(b"\n") >= 10):
            assert sweep.poll() is None
            time.sleep(0.01)
        children = processes_of(sweep.pid)
        assert len(children) >= 2
        if how is signal.SIGINT:  # as a terminal does, to all
            os.killpg(sweep.pid, how)
        else:
            sweep.send_signal(how)
        said, errors = sweep.communicate(timeout=60)
    if how is not signal.SIGKILL:
        assert sweep.returncode == 130
        assert "left" in said.splitlines()[0]
        assert errors.strip() == "interrupted"
    until = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < until, "a process is left"
        time.sleep(0.05)


def test_progress_says_how_many_points_are_done_and_what_is_left(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bar, "FIRST_LINE_S", 0.0)
    monkeypatch.setattr(progress_bar, "LINE_S", 0.0)
    monkeypatch.setattr(progress_bar, "LOOK_S", 0.01)
    assert main(["sweep", "s.toml", "-j", "1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert any(" of 13 points (" in line and " left" in line for line in lines), lines
