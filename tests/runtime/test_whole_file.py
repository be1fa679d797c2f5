"""Files that appear whole or not at all, and what is left where a writer was killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ncc_runtime.array_files import write_arrays
from ncc_runtime.neff.container import save
from ncc_runtime.neff.whole_file import replacing

WRITER = """
import sys
from ncc_runtime.neff.whole_file import replacing
with replacing(sys.argv[1]) as stream:
    stream.write(b"half")
    stream.flush()
    print("writing", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "m.neff"
    path.write_bytes(b"old")
    return path


@pytest.fixture
def writer(target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process in the middle of writing the target."""
    command = [sys.executable, "-c", WRITER, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_the_next_writer_removes_what_a_killed_one_left(
    target: Path, writer: subprocess.Popen[bytes]
) -> None:
    kill(writer)
    assert len(names_in(target.parent)) == 2
    assert target.read_bytes() == b"old"
    save(b"new", target)
    assert names_in(target.parent) == ["m.neff"]
    assert target.read_bytes() == b"new"


def test_outputs_leave_and_sweep_alike(target: Path, writer: subprocess.Popen[bytes]) -> None:
    kill(writer)
    write_arrays(str(target.with_name("o.npz")), [np.zeros(3)])
    assert names_in(target.parent) == ["m.neff", "o.npz"]


def test_a_writer_at_work_is_left_alone(target: Path, writer: subprocess.Popen[bytes]) -> None:
    save(b"first", target)
    assert len(names_in(target.parent)) == 2
    assert target.read_bytes() == b"first"
    writer.communicate(b"go on\n")
    assert writer.returncode == 0
    assert target.read_bytes() == b"half"
    assert names_in(target.parent) == ["m.neff"]


def test_what_only_looks_like_a_temporary_file_stays(tmp_path: Path) -> None:
    (tmp_path / ".ncc-folder.tmp").mkdir()
    (tmp_path / ".ncc-link.tmp").symlink_to("elsewhere")
    (tmp_path / "elsewhere").touch()
    os.mkfifo(tmp_path / ".ncc-pipe.tmp")
    save(b"new", tmp_path / "m.neff")
    assert names_in(tmp_path) == [
        ".ncc-folder.tmp",
        ".ncc-link.tmp",
        ".ncc-pipe.tmp",
        "elsewhere",
        "m.neff",
    ]


def test_many_writers_of_one_file_all_succeed(tmp_path: Path) -> None:
    versions = [bytes([k]) * 100_000 for k in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda data: save(data, tmp_path / "m.neff"), versions * 8))
    assert (tmp_path / "m.neff").read_bytes() in versions
    assert names_in(tmp_path) == ["m.neff"]


def test_an_exception_keeps_the_old_file(target: Path) -> None:
    def fail_halfway() -> None:
        with replacing(target) as stream:
            stream.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert target.read_bytes() == b"old"
    assert names_in(target.parent) == ["m.neff"]
