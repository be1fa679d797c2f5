"""The programs of docs/torch.md, run as a reader would, give what the document shows."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import documents

BLOCKS = list(documents.blocks((documents.ROOT / "docs" / "torch.md").read_text()))
PROGRAMS = [block for block in BLOCKS if block.name]


def shown() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each program with the output that stands behind it."""
    for block, following in itertools.pairwise(BLOCKS):
        if block.name:
            yield block.name, following.lines if following.language == "text" else ()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in PROGRAMS:
        (tmp_path / block.name).write_text("\n".join(block.lines) + "\n")
    return tmp_path


def performed(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(documents.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "output"), list(shown()))
def test_a_program_prints_what_is_shown(name: str, output: tuple[str, ...], folder: Path) -> None:
    printed = performed([sys.executable, name], folder)
    if output:
        assert documents.is_shown(output, printed), printed
    else:
        first, second = printed.split()
        assert first == second


def test_the_commands_compile_and_run(folder: Path) -> None:
    _, commands = [block for block in BLOCKS if block.language == "sh"]
    printed = performed(["bash", "-ec", "\n".join(commands.lines)], folder)
    assert "ddp.neff: 8 ranks" in printed
    assert "predicted time" in printed
