"""XLA's CPU backend as an oracle for HLO texts: a child process that is asked over a pipe."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.oracle import arrays
from tests.oracle.children import ROOT, environment

FLAGS = (
    "--xla_force_host_platform_device_count=16 --xla_allow_excess_precision=false "
    "--xla_disable_hlo_passes=spmd-partitioning,sharding-propagation,shardy-xla,sharding-remover"
)


class CannotRunError(Exception):
    """XLA's CPU backend reads the text, but has no code for it, or breaks down."""


class Xla:
    """Runs texts that name their ranks in the header, on inputs [ranks, *shape]."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._child = self._started()

    def _started(self) -> "subprocess.Popen[str]":
        with (Path(self._folder.name) / "stderr").open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.oracle.xla_server"],
                env=environment(FLAGS),
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def run(self, text: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs [ranks, *shape]. Raises ValueError if it is no HLO, and CannotRunError."""
        where = Path(self._folder.name)
        (where / "model.hlo").write_text(text)
        arrays.save(where / "in.npz", arrays.numbered("in", inputs))
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(f"{where}\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            said = (where / "stderr").read_text()[-2000:]
            self._child.communicate()
            self._child = self._started()
            raise CannotRunError(f"XLA broke down: {said}")
        if answer.startswith("unreadable"):
            raise ValueError(f"{answer}\n{text}")
        if answer.strip():
            raise CannotRunError(answer.strip())
        return list(arrays.load(where / "out.npz").values())

    def close(self) -> None:
        """End the process, if it still runs."""
        self._child.communicate()
        self._folder.cleanup()
