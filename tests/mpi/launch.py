"""Starts processes as a user does, with more of them than the machine has processors."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
NCCRT = [sys.executable, "-m", "tests.mpi.command"]

_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun(
    count: int, *words: str, environment: Mapping[str, str] | None = None, seconds: int = 300
) -> subprocess.CompletedProcess[str]:
    """What so many processes of a command say; nothing hangs."""
    is_open_mpi = (
        "Open MPI"
        in subprocess.run(
            ["mpirun", "--version"], capture_output=True, text=True, check=True
        ).stdout
    )
    more = ["--oversubscribe"] if is_open_mpi else []
    return subprocess.run(
        ["mpirun", *more, "-n", str(count), *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=seconds,
        env={**os.environ, **_AS_ROOT, **(environment or {})},
        check=False,
    )


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of ours on standard error, without those of the launcher."""
    return [line for line in done.stderr.splitlines() if line.startswith(("error:", "warning:"))]
