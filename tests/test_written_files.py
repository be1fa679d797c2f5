"""Files that commands write: never one that is read, whole or not at all, and told by name."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ncc_compiler.cli import main as nccc
from ncc_runtime.cli import main as nccrt

MODEL = """HloModule m, replica_count=4
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY m { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), replica_groups={}, to_apply=sum }
"""
ROWS = """{"rows": [{"table": "t", "instance": "trn1.32xlarge", "ranks": 32, "op": "all_reduce",
 "dtype": "fp32", "size_bytes": 1024, "time_us": 1.0}]}"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, its .neff under several names, inputs and other files that commands read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.ir").write_text(MODEL)
    assert nccc(["compile", "m.ir", "-o", "m.neff"]) == 0
    np.savez("in.npz", arg0=np.zeros(4, np.float32))
    (tmp_path / "here").symlink_to(".")
    return tmp_path


def linked(folder: Path, kind: str, source: str, suffix: str) -> str:
    """Another name of a file."""
    if kind == "itself":
        return source
    name = f"{kind}{suffix}"
    if kind == "symbolic":
        (folder / name).symlink_to(source)
    elif kind == "hard":
        (folder / name).hardlink_to(source)
    else:
        (folder / name).hardlink_to(source)
        return f"here/../{folder.name}/{name}"
    return name


@pytest.mark.parametrize(
    ("words", "source", "option", "suffix"),
    [
        (["run", "m.neff", "--inputs", "in.npz"], "in.npz", "--outputs", ".npz"),
        (["run", "m.neff"], "m.neff", "--outputs", ".npz"),
        (["run", "m.neff@0-1", "m.neff@2-3"], "m.neff", "--trace", ".json"),
        (["run", "m.neff", "--inputs", "in.npz"], "in.npz", "--trace", ".json"),
        (["run", "m.neff", "--placement", "p.json"], "p.json", "--trace", ".json"),
        (["run", "m.neff", "--on", "t.toml,nodes=1"], "t.toml", "--trace", ".json"),
        (["run", "m.neff", "--plan", "all-reduce=x.xml"], "x.xml", "--trace", ".json"),
        (["explain", "m.neff"], "m.neff", "--save-plan", ".json"),
        (["explain", "m.neff", "--plan", "x.xml"], "x.xml", "--save-plan", ".xml"),
        (["bench", "all_reduce", "-r", "4", "--topology", "t.toml"], "t.toml",
         "--report-to-json-file", ".json"),
        (["report", "m.neff", "--placement", "p.json"], "p.json", "--output", ".html"),
        (["topology", "show", "t.toml"], "t.toml", "--svg", ".svg"),
        (["calibrate", "rows.json"], "rows.json", "--out", ".toml"),
    ],
)  # fmt: skip
def test_what_is_read_is_not_written(
    folder: Path, capsys, words: list[str], source: str, option: str, suffix: str
) -> None:
    texts = {
        "p.json": "[]",
        "t.toml": 'base = "trn2"\n',
        "x.xml": "<algo/>",
        "rows.json": ROWS,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    before = (folder / source).read_bytes()
    for kind in ("symbolic", "hard", "spelling"):
        target = linked(folder, kind, source, suffix)
        capsys.readouterr()
        assert nccrt([*words, option, target]) == 2
        assert f"{option} would overwrite {target} (" in capsys.readouterr().err
        assert (folder / source).read_bytes() == before


def test_two_options_may_not_write_one_file(folder: Path, capsys) -> None:
    (folder / "one.npz").touch()
    (folder / "one.json").symlink_to("one.npz")
    assert nccrt(["run", "m.neff", "--outputs", "one.npz", "--trace", "one.json"]) == 2
    error = capsys.readouterr().err
    assert "--trace would overwrite one.json (one.npz), which --outputs writes" in error


@pytest.mark.parametrize("kind", ["itself", "symbolic", "hard", "spelling"])
def test_a_model_is_not_overwritten(folder: Path, capsys, kind: str) -> None:
    target = linked(folder, kind, "m.ir", ".neff")
    assert nccc(["compile", "m.ir", "-o", target]) == 2
    assert f"-o would overwrite {target}" in capsys.readouterr().err
    assert (folder / "m.ir").read_text() == MODEL


WRITERS = [
    (nccc, ["compile", "m.ir", "-o", "x.neff"], "x.neff"),
    (nccrt, ["run", "m.neff", "--outputs", "x.npz"], "x.npz"),
    (nccrt, ["run", "m.neff", "--outputs", "x.safetensors"], "x.safetensors"),
    (nccrt, ["run", "m.neff", "--trace", "x.pftrace"], "x.pftrace"),
    (nccrt, ["run", "m.neff", "--trace", "x.json.gz"], "x.json.gz"),
    (nccrt, ["explain", "m.neff", "--save-plan", "x.json"], "x.json"),
    (nccrt, ["bench", "all_reduce", "-r", "4", "--report-to-json-file", "y.json"], "y.json"),
    (nccrt, ["bench", "all_reduce", "-r", "4", "--report-to-csv-file", "y.csv"], "y.csv"),
    (nccrt, ["bench", "all_reduce", "-r", "4", "--plot", "y.svg"], "y.svg"),
    (nccrt, ["report", "m.neff", "-o", "x.html"], "x.html"),
    (nccrt, ["topology", "show", "trn2", "--svg", "x.svg"], "x.svg"),
]


@pytest.mark.parametrize(("command", "words", "target"), WRITERS)
def test_a_full_disk_is_told_with_the_file(
    folder: Path, capsys, monkeypatch, command, words: list[str], target: str
) -> None:
    """Both what is no regular file, and a disk that fills up, which leaves the old file."""
    (folder / target).symlink_to("/dev/full")
    assert command(words) == 1
    assert f"error: {target}: " in (error := capsys.readouterr().err)
    assert "no space left on device" in error
    assert Path("/dev/full").is_char_device()
    (folder / target).unlink()
    (folder / target).write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert command(words) == 1
    assert f"error: {target}: " in (error := capsys.readouterr().err)
    assert "no space left on device" in error
    assert (folder / target).read_text() == "old"
    assert not list(folder.glob(".ncc-*"))


def shell(words: list[str], **how) -> "subprocess.Popen[str]":
    """A command as the shell starts it in the foreground, where SIGINT is not ignored."""
    module = {"nccc": "ncc_compiler", "nccrt": "ncc_runtime"}[words[0]]
    heard = "import _signal; _signal.signal(_signal.SIGINT, _signal.default_int_handler); "
    code = heard + f"import sys; from {module}.entry import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *words[1:]]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **how)


def test_a_message_that_cannot_be_written_leaves_the_exit_code(folder: Path) -> None:
    code = "import sys; from ncc_runtime.entry import main; sys.exit(main())"
    with Path("/dev/full").open("w") as full:
        for words, status in ((["topology", "list", "--x"], 2), (["list", "no.neff"], 1)):
            command = [sys.executable, "-c", code, *words]
            assert (
                subprocess.run(command, stderr=full, cwd=folder, check=False).returncode == status
            )


@pytest.mark.parametrize("command", ["nccc", "nccrt"])
def test_an_interrupt_while_a_command_is_loaded_is_one_line(tmp_path: Path, command: str) -> None:
    """The last module that it imports first is replaced by one that waits for the interrupt."""
    (tmp_path / "click.py").write_text(
        "print('loading', flush=True)\nimport time\ntime.sleep(60)\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths}
    with shell([command, "--help"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "interrupted\n")
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize("words", [["nccrt", "run", "m.neff"], ["nccc", "compile", "m.ir"]])
def test_an_interrupt_at_any_moment_is_one_line(folder: Path, words: list[str]) -> None:
    """From when our code runs: Python's own start and end answer as Python does."""
    for delay in np.linspace(0.03, 1.2, 40):
        with shell(words, stdout=subprocess.PIPE, cwd=folder) as process:
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            error = process.communicate()[1]
        if (process.returncode, error) not in ((130, "interrupted\n"), (0, "")):
            # Python itself, or the import of the module that takes care of interrupts
            assert "in load" not in error, (delay, error)
            assert "in run" not in error, (delay, error)
    assert not list(folder.glob(".ncc-*"))
