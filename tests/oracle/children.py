"""Fresh interpreters for jax: its devices and flags are settled when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(flags: str) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def run_module(module: str, *arguments: str, flags: str = "") -> str:
    """What a module of the tests prints when it is run."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env=environment(flags), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
