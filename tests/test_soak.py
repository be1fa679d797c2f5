"""Repeated runs grow by nothing, and what measures it finds what does."""

import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.soak import TRIFLES, figures, growth

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("taken", "is_leak"),
    [
        ([1e5] * 30, False),
        ([1e5 + 300 * k for k in range(30)], True),
        ([*np.linspace(5e4, 1e5, 10), *[1e5] * 20], False),  # all that is loaded at first
        ([1e5 + 3000 * (k % 2) for k in range(30)], False),  # of which half is given back
        ([1e5 + 3000 * (k % 2) + 300 * k for k in range(30)], True),
        ([1e5 - 100 * k for k in range(30)], False),
    ],
)
def test_a_figure_grows_if_a_line_through_it_does(taken, is_leak):
    assert growth("resident KiB", taken).is_leak == is_leak


def forgotten(name: str, folder: Path, kept: list[Any]) -> None:
    """Make something and keep it."""
    if name == "resident KiB":
        kept.append(np.ones(1 << 17))
    elif name == "objects":
        kept += [[] for _ in range(20)]
    elif name == "open files":
        kept.append((folder / "file").open("w"))
    elif name == "threads":
        kept.append(threading.Event())
        threading.Thread(target=kept[-1].wait, daemon=True).start()
    elif name == "children":
        kept.append(subprocess.Popen(["sleep", "60"]))
    else:
        path = Path(tempfile.gettempdir() if "temporary" in name else os.environ["XDG_CACHE_HOME"])
        (path / f"left-{len(kept)}").touch()
        kept.append(path)


@pytest.mark.parametrize(
    "name",
    [name if name == "objects" else pytest.param(name, marks=pytest.mark.slow) for name in TRIFLES],
)
def test_what_every_round_forgets_is_found(name, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("temporary", "cache"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept: list[Any] = []
    taken = []
    try:
        for _ in range(12):
            forgotten(name, tmp_path, kept)
            taken.append(figures()[name])
    finally:
        for one in kept:
            if isinstance(one, threading.Event):
                one.set()
            elif isinstance(one, subprocess.Popen):
                one.kill()
                one.wait()
            elif isinstance(one, io.IOBase):
                one.close()
    assert growth(name, taken).is_leak


@pytest.mark.slow
def test_a_minute_of_repeated_runs_grows_by_nothing(tmp_path: Path):
    report = tmp_path / "soak.json"
    command = [sys.executable, str(ROOT / "benchmarks/soak.py"), "--minutes", "0.6"]
    done = subprocess.run(
        [*command, "--json", str(report)], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(report.read_text())
    assert figures["rounds"] >= 12
    assert not any(one["is_leak"] for one in figures["figures"])
