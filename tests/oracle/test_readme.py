"""The README's way from a program of one's own to its timeline, as a reader would go it."""

import os
import subprocess
import sys
from pathlib import Path

from tests import documents

README = documents.ROOT / "README.md"


def test_a_program_of_ones_own_becomes_a_timeline(tmp_path: Path) -> None:
    shown = list(documents.blocks(README.read_text()))
    (program,) = [block for block in shown if block.name == "step.py"]
    (commands,) = [block for block in shown if block.language == "sh"]
    (tmp_path / program.name).write_text("\n".join(program.lines))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands.lines)],
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
