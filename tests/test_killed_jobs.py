"""Slow: a checkpointing run killed at 100 random moments goes on, to the same bits at the end."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ncc_runtime.jobs.checkpoints import MANIFEST, CheckpointFolder, JobInputs
from ncc_runtime.random_values import VERSION
from tests.step_programs import train

pytestmark = pytest.mark.slow

KILLS = 100
STEPS = 2000
COMMAND = [sys.executable, "-c", "import sys; from ncc_runtime.cli import main; sys.exit(main())"]


def test_a_run_that_is_killed_a_hundred_times_ends_with_the_same_bits(tmp_path: Path) -> None:
    neff, checkpoints, draw = tmp_path / "train.neff", tmp_path / "ck", random.Random(5)
    train().save(neff)
    run = [*COMMAND, "run", str(neff), "-q", "--seed", "3", "--draw", "arg2", "--no-clock"]
    run += ["--steps", str(STEPS)]
    going_on = [*run, "--checkpoint", str(checkpoints), "--checkpoint-every", "1", "--resume"]
    whole = tmp_path / "whole.npz"
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "timeout": 600}
    subprocess.run([*run, "--outputs", str(whole)], **quiet)
    kills = in_writing = newest = 0
    while kills < KILLS:
        job = subprocess.Popen(going_on, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if draw.random() < 0.9:  # while it writes, not while it starts
            before = newest
            while job.poll() is None and newest_step(checkpoints) <= before:
                time.sleep(0.001)
        time.sleep(draw.random() * 0.2)
        os.kill(job.pid, signal.SIGKILL)
        _, said = job.communicate()
        assert said == b""
        assert job.returncode == -signal.SIGKILL, "the job ended before it was killed"
        kills += 1
        in_writing += any(not (folder / MANIFEST).exists() for folder in checkpoints.glob("step-*"))
        drawn = hashlib.sha256(f"drawn {VERSION}\n".encode()).hexdigest()
        inputs = JobInputs(3, ((0, 0), (1, 1)), draw=(2,), data_sha256=drawn)
        folder = CheckpointFolder(str(checkpoints), [train().program], inputs)
        found = folder.newest()
        assert not folder.notices  # what counts is whole
        assert found is None or found.step >= newest
        newest = newest if found is None else found.step
    assert in_writing > KILLS // 4
    end = tmp_path / "end.npz"
    subprocess.run([*going_on, "--outputs", str(end)], **quiet)
    assert end.read_bytes() == whole.read_bytes()
    left = {entry.name for folder in checkpoints.iterdir() for entry in folder.iterdir()}
    assert left == {MANIFEST, *(f"rank-{rank:05d}.safetensors" for rank in range(4))}


def newest_step(checkpoints: Path) -> int:
    """Of the directories there, whole or not."""
    return max((int(folder.name[5:]) for folder in checkpoints.glob("step-*")), default=0)
