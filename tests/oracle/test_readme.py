"""The README's way from a program of one's own to its timeline, as a reader would go it."""

import os
import subprocess
import sys
from pathlib import Path

from tests import documents

README = documents.ROOT / "README.md"


SET_UP = ("git", "python3", "pip")
"""First words of commands that make the environment which the tests run in."""


def test_a_program_of_ones_own_becomes_a_timeline(tmp_path: Path) -> None:
    shown = list(documents.blocks(README.read_text()))
    for block in shown:
        if block.name:
            (tmp_path / block.name).write_text("\n".join(block.lines))
    (commands,) = [block for block in shown if block.language == "sh"]
    lines = [line for line in commands.lines if line.split()[0] not in SET_UP]
    assert len(commands.lines) == 5
    assert len(lines) == 2
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join([*lines, "python notebook.py"])],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "predicted time" in done.stdout
    assert "proved:" in done.stdout
    assert (tmp_path / "step.pftrace").stat().st_size > 0
    assert done.stdout.splitlines()[-1].endswith(" us")
    assert "(512, 2048)" in done.stdout.splitlines()[-1]
