"""A real Dask cluster of a scheduler and workers: rows as without it, whoever is lost."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import ncc_compiler
from ncc_runtime.cli import main
from ncc_runtime.sweep import workers
from ncc_runtime.sweep.points import SweepPoint
from ncc_runtime.sweep.results import PointResult, Status
from ncc_runtime.sweep.store import ResultFile
from ncc_runtime.sweep.workers import DaskPool, computed
from tests.sweep.strange_points import strange
from tests.sweep.test_workers import EXPECTED, POINTS

pytestmark = pytest.mark.dask

ROOT = Path(__file__).parents[2]
DASK = [sys.executable, "-m", "dask"]
SWEEP = """[[grid]]
program = ["mlp.neff", "mlp.neff@0-3 mlp.neff@4-7"]
topology = ["own.toml", "trn1"]
nodes = [1, 2, 4]
algorithm = ["", "all-reduce=ring"]
[[grid]]
op = ["all_reduce", "all_gather"]
ranks = [2, 4, 8]
size = { from = 64, to = "16MB", factor = 2 }
"""


class Cluster:
    """A scheduler, and workers that can be added and killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "scheduler.json"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._begun("scheduler", "--port", "0", "--no-dashboard")
        until = time.monotonic() + 60
        while not self._file.exists():
            assert time.monotonic() < until, "no scheduler"
            time.sleep(0.05)

    @property
    def address(self) -> str:
        return str(json.loads(self._file.read_text())["address"])

    @property
    def file(self) -> str:
        return str(self._file)

    def add_worker(self, *options: str, path: Path = ROOT) -> None:
        """Workers find the functions of tests, and none of the files of a sweep."""
        given = ("--nthreads", "1", "--no-dashboard", "--local-directory", str(self._folder))
        self.workers.append(self._begun("worker", *given, *options, path=path))

    def _begun(self, what: str, *options: str, path: Path = ROOT) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(
                [*DASK, what, "--scheduler-file", str(self._file), "--interface", "lo", *options],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(path)},
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    begun = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield begun
    finally:
        begun.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SWEEP)
    (tmp_path / "own.toml").write_text('name = "own"\nbase = "trn2.48xlarge"\n')
    ncc_compiler.compile_file(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo").save("mlp.neff")
    return tmp_path


def rows(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["sweep", "s.toml", *arguments, "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_a_cluster_has_the_rows_of_one_machine(
    cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = rows(["-j", "2", "--out", "here.jsonl"], capsys)
    assert here["done"] > 100
    cluster.add_worker("--no-nanny")
    cluster.add_worker("--no-nanny")
    there = rows(["--dask", cluster.address, "--out", "there.jsonl"], capsys)
    assert there == here


def test_a_worker_that_is_killed_in_the_middle_costs_no_row_and_doubles_none(
    cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = rows(["-j", "2", "--out", "here.jsonl"], capsys)
    cluster.add_worker("--no-nanny")
    cluster.add_worker("--no-nanny")
    sweep = [
        sys.executable,
        "-c",
        "import sys; from ncc_runtime.entry import main; sys.exit(main())",
    ]
    sweep += ["sweep", "s.toml", "--dask", cluster.file, "--out", "there.jsonl", "-q"]
    with subprocess.Popen(sweep, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        there = folder / "there.jsonl"
        while not (there.exists() and there.read_bytes().count(b"\n") >= 20):
            assert process.poll() is None
            time.sleep(0.005)
        before = there.read_bytes().count(b"\n")
        os.kill(cluster.workers[0].pid, signal.SIGKILL)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0
    assert said == b""
    lines = [json.loads(line) for line in there.read_text().splitlines()]
    assert before < len(lines) == expected["points"] == len({line["key"] for line in lines})
    assert rows(["--out", "there.jsonl"], capsys) == expected


class StrangeDaskPool(DaskPool):
    """Workers that lose some points."""

    deadly: frozenset[str] = frozenset()

    def submit(self, points: Sequence[SweepPoint]) -> "Future[list[PointResult]]":
        return self.sent(strange, self.deadly, frozenset(), frozenset(), "/tmp", points, {}, None)


def test_a_point_that_kills_its_workers_has_failed_and_no_other(cluster: Cluster) -> None:
    cluster.add_worker("--nanny")
    cluster.add_worker("--nanny")
    pool = StrangeDaskPool(cluster.address, {}, None)
    try:
        pool.deadly = frozenset({POINTS[2].key})
        found = [result for results in computed(POINTS[:6], pool) for result in results]
    finally:
        pool.close()
    assert len(found) == 6
    failed = [result for result in found if result.status is Status.FAILED]
    assert [result.key for result in failed] == [POINTS[2].key]
    done = {result.key: result for result in found if result.status is Status.DONE}
    assert done == {p.key: EXPECTED[p.key] for p in POINTS[:6] if p is not POINTS[2]}


def test_workers_of_another_version_are_refused(
    cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    cluster.add_worker("--no-nanny")
    monkeypatch.setattr(workers, "version", lambda: "other")
    assert main(["sweep", "s.toml", "--dask", cluster.address, "-q"]) == 1
    assert "and this is other; install the same" in capsys.readouterr().err


def test_workers_without_the_package_are_told(
    cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ncc_runtime").mkdir()
    (folder / "ncc_runtime/__init__.py").write_text('raise ImportError("not here")')
    cluster.add_worker("--no-nanny", path=folder)
    assert main(["sweep", "s.toml", "--dask", cluster.address, "-q"]) == 1
    assert "cannot import neuron-ncc: not here; install there" in capsys.readouterr().err


def test_a_cluster_without_workers_is_not_waited_for_for_ever(
    cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(workers, "WORKERS_S", 0.5)
    assert main(["sweep", "s.toml", "--dask", cluster.address, "-q"]) == 1
    assert "has no worker after 0.5 s: start some" in capsys.readouterr().err


def test_workers_that_are_all_lost_are_not_waited_for_for_ever(
    cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    cluster.add_worker("--no-nanny")
    monkeypatch.setattr(workers, "WORKERS_S", 10)
    added = ResultFile.add

    def add(file: ResultFile, *given: Any) -> None:
        added(file, *given)
        with contextlib.suppress(ProcessLookupError):
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
        monkeypatch.setattr(workers, "WORKERS_S", 0.5)
        monkeypatch.setattr(workers, "LOOK_S", 0.2)

    monkeypatch.setattr(ResultFile, "add", add)
    assert main(["sweep", "s.toml", "--dask", cluster.address, "-q"]) == 1
    assert "has had no worker for 0.5 s; what is computed is kept" in capsys.readouterr().err
    assert (folder / "s.jsonl").read_text()


def test_a_scheduler_that_does_not_answer_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(workers, "CONNECT_S", 1.0)
    (folder / "broken.json").write_text("[]")
    for address in ("tcp://127.0.0.1:9", "nonsense://x", "none.json", "broken.json"):
        assert main(["sweep", "s.toml", "--dask", address, "-q"]) == 1
        assert f"no Dask scheduler answers at {address}: " in capsys.readouterr().err


def test_a_cluster_that_goes_away_leaves_what_was_computed(
    cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.add_worker("--no-nanny")
    sweep = [
        sys.executable,
        "-c",
        "import sys; from ncc_runtime.entry import main; sys.exit(main())",
    ]
    sweep += ["sweep", "s.toml", "--dask", cluster.address, "-q"]
    with subprocess.Popen(sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as gone:
        kept = folder / "s.jsonl"
        while not (kept.exists() and kept.read_bytes().count(b"\n") >= 10):
            assert gone.poll() is None
            time.sleep(0.005)
        os.kill(cluster.scheduler.pid, signal.SIGKILL)
        _, said = gone.communicate(timeout=120)
    assert gone.returncode == 1
    assert "is gone; what is computed is kept" in said
    assert rows(["-j", "2"], capsys)["left"] == 0
