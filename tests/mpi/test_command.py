"""`nccrt run` among several processes: what it says, reads, writes, and refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncc_compiler
from benchmarks.processes import MOST, text_of
from ncc_runtime.sharded_arrays import open_sharded
from tests.mpi.launch import NCCRT, ROOT, mpirun, told

MODEL = ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo"
INPUTS = str(MODEL.with_suffix(".in.npz"))
OF_ONE_HOST = ("host_s", "host_memory", "options")


@pytest.fixture(scope="module")
def neff(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("neff") / "m.neff"
    path.write_bytes(ncc_compiler.compile_file(MODEL).data)
    return str(path)


def nccrt(count: int, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return mpirun(count, *NCCRT, "run", *words, **settings)


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    with open_sharded(str(folder)) as arrays:
        return {name: np.asarray(one) for name, one in arrays.items()}


def without_host(document: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in document.items()
        if key not in OF_ONE_HOST and not key.startswith("host")
    }


def test_report_and_timeline_are_those_of_one_process(neff, tmp_path):
    said = {}
    for count in (1, 4):
        words = ["--inputs", INPUTS, "--json", "--trace", str(tmp_path / f"{count}.json")]
        done = nccrt(count, neff, "--topology", "trn2", "--threads", "1", *words)
        assert (done.returncode, told(done)) == (0, [])
        said[count] = json.loads(done.stdout)
    for document in said.values():
        del document["verified"]["seconds"]
        for proof in document["verified"]["proofs"]:
            proof.pop("seconds", None)
    assert without_host(said[4]) == without_host(said[1])
    assert len(said[4]["host_memory"]["processes"]) == 4
    assert (tmp_path / "4.json").read_bytes() == (tmp_path / "1.json").read_bytes()


def test_the_text_is_said_once(neff):
    done = nccrt(4, neff, "--topology", "trn2", "--inputs", INPUTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("predicted time") == 1
    assert len(told(done)) == 1  # a warning of the hardware's rules on groups


def test_one_process_writes_the_execution_traces(neff, tmp_path):
    for count in (1, 2):
        words = ["--inputs", INPUTS, "--threads", "1", "--chakra", str(tmp_path / f"{count}")]
        done = nccrt(count, neff, "--topology", "trn2", "-q", *words)
        assert (done.returncode, told(done)) == (0, [])
    alone, both = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "12"
    )
    assert alone == both


def test_without_values_one_process_does_all(neff):
    done = nccrt(2, neff, "--topology", "trn2", "--no-values", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("predicted time") == 1


def test_outputs_of_pipeline_stages_are_shown_and_written(tmp_path):
    words = []
    for stage, ranks in ((0, "0-3"), (1, "4-7")):
        path = tmp_path / f"{stage}.neff"
        compiled = ncc_compiler.compile_file(ROOT / f"ir_examples/pipeline_stage{stage}.ir")
        path.write_bytes(compiled.data)
        words.append(f"{path}@{ranks}")
    shown, found = [], []
    for count in (1, 4):
        folder = tmp_path / f"outputs{count}"
        done = nccrt(count, *words, "--seed", "0", "--outputs", f"{folder}/")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        start = lines.index("outputs")
        shown.append(lines[start : start + 6])
        found.append(arrays_of(folder))
    assert shown[0] == shown[1]
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        np.testing.assert_array_equal(found[1][name], array)


FED = """HloModule m, num_partitions=8
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[16,4] parameter(0)
  y = f32[16,4] all-reduce(x), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}},
    use_global_device_ids=true, to_apply=sum
  z = f32[16,4] tanh(y)
  ROOT w = f32[16,4] add(z, x)
}"""


def test_outputs_are_inputs_of_any_number_of_processes(tmp_path):
    path = tmp_path / "m.neff"
    path.write_bytes(ncc_compiler.compile_text(FED).data)
    ends = []
    for counts in ((1, 1, 1), (4, 2, 1), (1, 4, 3)):
        given: list[str] = ["--seed", "2"]
        for step, count in enumerate(counts):
            folder = tmp_path / f"{counts}{step}"
            done = nccrt(count, str(path), *given, "--outputs", f"{folder}/")
            assert done.returncode == 0, done.stderr
            given = ["--inputs", str(folder)]
        ends.append(arrays_of(folder)["out0"])
    np.testing.assert_array_equal(ends[1], ends[0])
    np.testing.assert_array_equal(ends[2], ends[0])


@pytest.mark.parametrize(
    ("count", "words", "code", "message"),
    [
        (9, [], 1, "9 processes for 8 ranks: each holds at least one; start at most 8"),
        (2, ["--outputs", "out.npz"], 1, "name a folder, --outputs out/"),
        (2, ["--inputs", "nowhere.npz"], 1, "nowhere.npz: no such file or directory"),
        (2, ["--fault", "at 1us: link c0-c1 down"], 1, "takes one process, and there are 2"),
        (2, ["--steps", "2"], 1, "--steps goes with one process, and 2 were started"),
        (2, ["--threads", "0"], 2, "0 is not in the range"),
        (2, ["--memory", "1MB"], 1, "bytes of host memory and the budget is 1048576"),
    ],
)
def test_what_is_wrong_is_said_once(neff, count, words, code, message):
    done = nccrt(count, neff, "--topology", "trn2", *words)
    (line,) = told(done)
    assert done.returncode == code
    assert message in line
    assert not line.startswith("error: process ")  # all come to the same


def test_nobody_waits_for_one_that_cannot_say_what_is_wrong():
    command = f"exec {' '.join(NCCRT)} run nowhere.neff --json > /dev/full"
    done = mpirun(2, "sh", "-c", command, seconds=60)
    assert done.returncode == 1
    assert told(done) == ["error: <standard output>: no space left on device"]


def test_json_says_what_is_wrong_in_one_object(neff):
    done = nccrt(2, neff, "--topology", "trn2", "--inputs", "nowhere.npz", "--json")
    assert done.returncode == 1
    (error,) = json.loads(done.stdout)["errors"]
    assert error["message"] == "nowhere.npz: no such file or directory"


def test_processes_without_mpi4py_are_refused_with_what_installs_it(neff):
    fails = "0:none:import 1:none:import"
    done = nccrt(2, neff, "--topology", "trn2", environment={"FAILS": fails})
    (line,) = told(done)
    assert done.returncode == 1
    assert "need mpi4py; `pip install 'neuron-ncc[mpi]'`" in line


@pytest.mark.parametrize(
    ("number", "place", "way", "code", "message"),
    [
        (2, "perform", "memory", 1, "the host is out of memory: no room"),
        (0, "perform", "unexpected", 3, "a fault of ours: ValueError: unexpected"),
        (3, "perform", "refused", 1, "arg0 holds 9; s4 goes from -8 to 7"),
        (0, "write", "memory", 1, "the host is out of memory: no room"),
        (2, "write", "unexpected", 3, "a fault of ours: ValueError: unexpected"),
    ],
)
def test_a_process_that_fails_ends_all_with_its_name(
    neff, tmp_path, number, place, way, code, message
):
    fails = {"FAILS": f"{number}:{way}:{place}"}
    words = ["--topology", "trn2", "--outputs", f"{tmp_path}/out/"]
    done = nccrt(4, neff, *words, environment=fails, seconds=100)
    (line,) = (line for line in told(done) if line.startswith("error:"))
    assert done.returncode == code
    assert line.startswith(f"error: process {number} of 4 on ")
    assert message in line
    assert not list(tmp_path.glob("out/*.json"))


@pytest.mark.parametrize("place", ["perform", "write"])
def test_the_launcher_names_a_process_that_is_killed(neff, tmp_path, place):
    words = ["--topology", "trn2", "--outputs", f"{tmp_path}/out/"]
    fails = {"FAILS": f"2:killed:{place}"}
    done = nccrt(4, neff, *words, environment=fails, seconds=100)
    assert done.returncode != 0
    assert "rank 2" in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.glob("out/*.json"))


def test_memory_is_shared_and_a_limit_that_one_process_breaks_is_kept_by_four():
    words = [sys.executable, "benchmarks/processes.py", "--layers", "1", "--processes", "1,4"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 process: exit code 1" in done.stdout
    assert "4 processes: exit code 0" in done.stdout
    assert MOST <= 1.2


def test_sixty_four_ranks_of_the_benchmark_are_what_it_says():
    assert ncc_compiler.compile_text(text_of(1, size=16)).program.ranks == 64
