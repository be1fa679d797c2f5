"""Long runs of the clock: somebody hears how far they are, and they end when told to."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ncc_compiler
from ncc_runtime.execution.clock import clock, uncompiled
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.clock.tables import ClockState
from ncc_runtime.progress import heard_by
from tests.clock_runs import compiled, planned
from tests.listening import Heard
from tests.small_executables import LOOPED

ENDLESS = LOOPED.replace("constant(3)", "constant(2000000000)")
# Where the tests run in the background, a shell has SIGINT ignored, which processes inherit.
START = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
RUN = [sys.executable, "-c", START + "from ncc_runtime.cli import main; sys.exit(main())"]


class Told(Exception):  # noqa: N818 - not an error
    """Somebody has told it to end."""


def test_a_watcher_hears_of_more_and_more_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "STEPS_A_CALL", 1000)
    counts: list[int] = []
    executable = compiled(LOOPED.replace("constant(3)", "constant(400)"))
    heard, go_on = Heard(), clock._go_on

    def watched(machine: ClockState, expected: int | None) -> int:
        counts.extend(phase.done for phase in heard.now)
        return go_on(machine, expected)

    monkeypatch.setattr(clock, "_go_on", watched)
    with heard_by(heard):
        trace = simulate(executable, planned(executable))
    assert len(counts) > 10
    assert sorted(counts) == counts
    assert counts[-1] <= len(trace)
    assert heard.now == []


def test_pauses_change_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = compiled(LOOPED)
    whole = simulate(executable, planned(executable))
    monkeypatch.setattr(clock, "STEPS_A_CALL", 1)
    torn = simulate(executable, planned(executable))
    assert (torn.end_ps == whole.end_ps).all()
    assert (torn.cause == whole.cause).all()


def test_a_signal_is_heard_while_the_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(number: int, frame: object) -> None:
        raise Told

    monkeypatch.setattr(uncompiled, "STEPS_IF_KEPT", 0)
    monkeypatch.setattr(uncompiled, "STEPS_IF_NOT", 0)
    simulate(compiled(LOOPED), planned(compiled(LOOPED)))  # so that the kernel is compiled
    executable = compiled(ENDLESS)
    before = signal.signal(signal.SIGALRM, told)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1)
        with pytest.raises(Told):  # heard only at its end, it would be heard years from now
            simulate(executable, planned(executable))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def has_unnamed_file(process: int, folder: Path) -> bool:
    """Whether a process keeps a temporary file: a long run's events, so its clock is running."""
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            target = str(descriptor.readlink())
            if target.startswith(f"{folder}/") and target.endswith("(deleted)"):
                return True
    return False


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_control_c_ends_a_long_run_with_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    model = tmp_path / "endless.neff"
    model.write_bytes(ncc_compiler.compile_text(ENDLESS).data)
    command = ["run", str(model), "--no-values", "--no-verify", "--trace", "run.pftrace"]
    with subprocess.Popen(
        [*RUN, *command],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while not has_unnamed_file(process.pid, tmp_path):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert (out, err.strip()) == (b"", b"interrupted")
    assert list(tmp_path.iterdir()) == [model]
