"""Files given where another kind belongs are refused by what they are, with what to do instead."""

import time
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
from ncc_compiler import cli as nccc
from ncc_runtime import cli as nccrt
from ncc_runtime.input_files import MOST_RECOGNISED_BYTES, FileRole, recognised
from tests.chakra import messages
from tests.documents import ROOT

MEAN = ROOT / "ir_examples" / "distributed_mean.ir"

EXECUTION_PLAN = b"""{"name": "allreduce", "collective": "allreduce", "protocol": "LL",
  "inplace": true, "reuse_resources": false, "gpus": [{"id": 0, "input_chunks": 2,
  "output_chunks": 2, "scratch_chunks": 0, "threadblocks": [{"id": 0, "ops": [{"name": "put"}],
  "channels": []}], "channels": []}], "num_threads_per_block": 512, "min_message_size": 0}"""

OTHERS: dict[str, tuple[bytes, str]] = {
    "plan.json": (EXECUTION_PLAN, "an execution plan of MSCCL++"),
    "older.json": (
        EXECUTION_PLAN.replace(b'"collective"', b'"colletive"'),
        "an execution plan of MSCCL++",
    ),
    "topo.xml": (
        b'<?xml version="1.0"?>\n<!-- <algo> -->\n<system version="1"><cpu numaid="0"/></system>',
        "a topology of NCCL",
    ),
    "graph.xml": (b'<graphs version="1"><graph id="0"/></graphs>', "what NCCL found as rings"),
    "algo.json": (b'{"sccl_type": "algorithm", "steps": []}', "an object of SCCL or TACCL"),
    "sketch.json": (b'{"nics_per_node": 8, "intranode_sketch": {}}', "a communication sketch"),
    "flows.json": (b'{"1-Epoch_Duration": 2.5, "7-Flows": {}}', "an input or a schedule of TE-CCL"),
    "trace.json": (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "an execution trace"),
    "rank.bin": (messages.file_of([messages.comp(1)]), "an execution trace of a rank"),
    "timeline.json": (b'{"traceEvents": [{"ph": "X", "ts": 1}]}', "a timeline"),
    "module.mlir.txt": (
        b'#loc = loc("a")\nmodule @jit_f attributes {mhlo.num_partitions = 8 : i32} {\n}\n',
        "a module of MLIR",
    ),
}
"""Of no use here, whatever they are given as."""

OURS: dict[FileRole, tuple[str, bytes]] = {
    FileRole.MODEL: ("HLO text", MEAN.read_bytes()),
    FileRole.PROGRAM: ("a compiled program", ncc_compiler.compile_file(MEAN).data),
    FileRole.TOPOLOGY: ("a topology, for", b'# mine\nname = "own"\nbase = "trn2.48xlarge"\n'),
    FileRole.PLACEMENT: ("a placement", b'{"ranks": [[0, 0, 0]]}'),
    FileRole.PLAN: ("a plan in MSCCL XML", b'<algo name="ring" ngpus="2"></algo>'),
    FileRole.ARRAYS: ("a ZIP archive", b"PK\x03\x04" + bytes(40)),
    FileRole.ROWS: ("a file of measured rows", b'{"rows": [{"table": "a"}]}'),
    FileRole.FAULTS: ("faults during a run", b'# mine\n[[fault]]\nwhat = "rank 3 dead"\n'),
    FileRole.SWEEP: ("a sweep", b'# mine\n[common]\nop = "all_reduce"\n\n[[grid]]\nranks = 8\n'),
}
"""Each is right as one thing."""


@pytest.fixture(scope="module")
def neff(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("programs") / "mean.neff"
    ncc_compiler.compile_file(MEAN).save(path)
    return str(path)


def commands(role: FileRole, file: str, neff: str) -> tuple[str, list[str]]:
    """A command that is given the file in a role."""
    return {
        FileRole.MODEL: ("nccc", ["check", file]),
        FileRole.PROGRAM: ("nccrt", ["list", file]),
        FileRole.TOPOLOGY: ("nccrt", ["topology", "show", file]),
        FileRole.PLACEMENT: ("nccrt", ["list", neff, "--placement", file]),
        FileRole.PLAN: ("nccrt", ["list", neff, "--plan", file]),
        FileRole.ARRAYS: ("nccrt", ["run", neff, "--inputs", file]),
        FileRole.ROWS: ("nccrt", ["calibrate", file]),
        FileRole.FAULTS: ("nccrt", ["run", neff, "--faults", file]),
        FileRole.SWEEP: ("nccrt", ["sweep", file]),
    }[role]


def refusal(
    role: FileRole, path: Path, neff: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    name, words = commands(role, str(path), neff)
    code = (nccc if name == "nccc" else nccrt).main(words)
    return code, capsys.readouterr().err


@pytest.mark.parametrize("role", FileRole)
@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_programs_are_refused_by_name(
    role: FileRole, name: str, neff: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, what = OTHERS[name]
    (tmp_path / name).write_bytes(data)
    code, said = refusal(role, tmp_path / name, neff, capsys)
    assert code == 1
    assert said.count("\n") == 1
    assert f"{tmp_path / name}: " in said
    assert what in said


@pytest.mark.parametrize("role", FileRole)
@pytest.mark.parametrize("right", FileRole)
def test_files_of_ours_are_refused_where_another_belongs(
    role: FileRole, right: FileRole, neff: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    what, data = OURS[right]
    path = tmp_path / "file"
    path.write_bytes(data)
    if role is right:
        assert recognised(data, role) == ""
        return
    code, said = refusal(role, path, neff, capsys)
    assert code == 1
    assert what in said, said


def test_a_neff_of_another_compiler_is_told_from_a_damaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(ncc_compiler.compile_file(MEAN).data)
    data[24:40] = (2).to_bytes(8, "little") + (0).to_bytes(8, "little")
    damaged = bytes(data)
    data[40:168] = b"2.14.227.0+2d4f85be".ljust(128, b"\0")
    data[556:588] = bytes(32)
    for name, content, said in (
        ("damaged.neff", damaged, "damaged or from another version"),
        ("other.neff", bytes(data), "a .neff of another compiler, such as AWS's neuronx-cc"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert nccrt.main(["list", str(path)]) == 1
        assert said in capsys.readouterr().err


def test_real_arrays_and_models_are_not_held_for_something_else(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", arg0=np.ones(3))
    assert recognised((tmp_path / "a.npz").read_bytes(), FileRole.ARRAYS) == ""
    for model in (*(ROOT / "ir_examples").glob("*.ir"), *(ROOT / "tests/data").rglob("*.hlo")):
        assert recognised(model.read_bytes(), FileRole.MODEL) == "", model
        assert recognised(model.read_bytes(), FileRole.PROGRAM).startswith("HLO text"), model
    for topology in (ROOT / "ncc_runtime/topology").rglob("*.toml"):
        assert recognised(topology.read_bytes(), FileRole.TOPOLOGY) == "", topology


@pytest.mark.parametrize(
    "piece",
    [b"<!-- a -->", b"#  \n", b"// x\n", b'{"gpus": [', b"{", b" ", b"module ", b"ENTRY", b"%a = "],
)
def test_what_looks_like_many_kinds_is_decided_at_once(piece: bytes) -> None:
    started = time.process_time()
    recognised(piece * (MOST_RECOGNISED_BYTES // len(piece)), FileRole.ROWS)
    assert time.process_time() - started < 1
