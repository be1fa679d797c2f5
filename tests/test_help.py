"""Help texts end in examples that run, options say what they do, shells complete our names."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ncc_compiler.cli import commands
from ncc_runtime.cli import cli
from tests.chakra import messages
from tests.documents import ROOT
from tools.reference import commands_of

BASH = shutil.which("bash") or "bash"
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


def walked(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and those below it, by what is typed."""
    yield name, command
    for word, inner in commands_of(command, click.Context(command)).items():
        yield from walked(f"{name} {word}", inner)


COMMANDS = dict([*walked("nccc", commands), *walked("nccrt", cli)])


def examples(command: click.Command) -> list[str]:
    heading = "\b\nExamples:\n"
    assert command.epilog, "no examples"
    assert command.epilog.startswith(heading)
    return [line.removeprefix("  ") for line in command.epilog.removeprefix(heading).split("\n")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples name."""
    where = tmp_path_factory.mktemp("examples")
    data, models = ROOT / "tests" / "data" / "hlo", ROOT / "ir_examples"
    shutil.copy(data / "mlp_train_dp2_tp4.hlo", where / "step.hlo")
    shutil.copy(data / "mlp_train_dp2_tp4.in.npz", where / "inputs.npz")
    row = {"table": "mine", "instance": "trn2.48xlarge", "ranks": 8, "op": "all_reduce"}
    rows = {"rows": [{**row, "dtype": "bf16", "size_bytes": 1 << 20, "time_us": 60.0}]}
    (where / "rows.json").write_text(json.dumps(rows))
    report = {"results": [{"size(B)": 1 << 20, "type": "bf16", "time:avg(us)": 60.0}]}
    (where / "allr.json").write_text(json.dumps(report))
    (where / "own.toml").write_text('name = "own"\nbase = "trn2.48xlarge"\n')
    (where / "sizes.toml").write_text('[[grid]]\nop = "all_reduce"\nranks = 8\nsize = [64, 128]\n')
    for model, name in (
        (where / "step.hlo", "step"),
        (models / "pipeline_stage0.ir", "stage0"),
        (models / "pipeline_stage1.ir", "stage1"),
    ):
        assert ran(f"nccc compile {model} -o {name}.neff", where).returncode == 0
    partial = f"{models}/backup_workers.ir --partial-all-reduce next"
    assert ran(f"nccc compile {partial} -o backup.neff", where).returncode == 0
    groups = {"1": [0, 1], "2": [2, 3]}
    nodes = [messages.coll(1, messages.ALL_REDUCE, 64, pg_name="1")]
    other = [messages.coll(1, messages.ALL_REDUCE, 64, pg_name="2")]
    messages.write(where / "traces", [nodes, nodes, other, other])
    (where / "groups.json").write_text(json.dumps(groups))
    return where


ELSEWHERE = {
    "--dask tcp://": "a cluster, in tests/sweep/test_dask.py",
    "--best train.py:": "JAX, in tests/oracle/test_layouts.py",
}
"""What examples need that `make install` does not give, and where it is tested."""


def ran(line: str, where: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BASH, "-c", line],
        cwd=where,
        env={**os.environ, "PATH": PATH, "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_a_help_text_run(name: str, folder: Path) -> None:
    for line in examples(COMMANDS[name]):
        assert line.startswith(name), line
        assert len(line) <= 90
        if any(words in line for words in ELSEWHERE):
            continue
        done = ran(line, folder)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_examples_line_by_line(name: str, folder: Path) -> None:
    done = ran(f"{name} --help", folder)
    assert done.returncode == 0
    block = "\n".join(f"    {line}" for line in examples(COMMANDS[name]))
    assert done.stdout.endswith(f"\n  Examples:\n{block}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
    assert COMMANDS[name].help


def completed(line: str, folder: Path) -> list[str]:
    """What bash is offered at the end of a line."""
    words = line.split(" ")
    done = ran(
        words[0],
        folder,
        **{f"_{words[0].upper()}_COMPLETE": "bash_complete"},
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) - 1),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("nccrt ver", ["plain,verify"]),
        ("nccrt run --no-va", ["plain,--no-values"]),
        ("nccrt run --topology trn2.4", ["plain,trn2.48xlarge"]),
        ("nccrt run --topology ./ow", ["file,./ow"]),
        ("nccrt run st", ["file,st"]),
        ("nccrt run --placement sp", ["plain,spread"]),
        ("nccrt run --on trn2,nodes=2,l", ["plain,trn2,nodes=2,lnc=1", "plain,trn2,nodes=2,lnc=2"]),
        ("nccrt diff x.neff --on trn1n", ["plain,trn1n.32xlarge"]),
        ("nccrt run --algorithm all-ga", ["plain,all-gather="]),
        ("nccrt run --algorithm all-reduce=ring", ["plain,all-reduce=ring"]),
        ("nccrt bench reduce", ["plain,reduce_scatter"]),
        ("nccrt bench all_reduce -d bf", ["plain,bf16"]),
        ("nccrt topology show dgx", ["plain,dgx-h100"]),
        ("nccc compile st", ["file,st"]),
        ("nccc compile step.hlo -O ", ["plain,0", "plain,1", "plain,2"]),
        ("nccc compile --print graph-after=sche", ["plain,graph-after=schedule"]),
        ("nccc compile --pass-option schedule.w", ["plain,schedule.window="]),
    ],
)
def test_shells_complete(line: str, offered: list[str], folder: Path) -> None:
    assert completed(line, folder) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("name", ["nccc", "nccrt"])
def test_the_script_of_a_shell_is_printed(shell: str, name: str, folder: Path) -> None:
    done = ran(name, folder, **{f"_{name.upper()}_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0
    assert f"_{name.upper()}_COMPLETE={shell}_complete" in done.stdout
    if shell == "bash":  # its script is one that it takes
        assert ran(f'eval "$(_{name.upper()}_COMPLETE=bash_source {name})"', folder).stderr == ""


def test_the_function_of_bash_offers_the_words(folder: Path) -> None:
    script = """
    eval "$(_NCCRT_COMPLETE=bash_source nccrt)"
    COMP_WORDS=(nccrt run --algorithm all-reduce=ring) COMP_CWORD=3
    _nccrt_completion nccrt
    echo "${COMPREPLY[@]}"
    """
    assert ran(script, folder).stdout == "all-reduce=ring\n"
