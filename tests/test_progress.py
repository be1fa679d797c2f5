"""How far long work is, as seen by who listens, on a terminal, in a log and in a pipe."""

import fcntl
import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime import progress_bar
from ncc_runtime.progress import Phase, heard_by, phase, steps
from ncc_runtime.progress_bar import ProgressBar, line_of
from tests.listening import Heard

MODEL = """HloModule m, replica_count=4
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[64] parameter(0) y = f32[64] all-reduce(x), replica_groups={}, to_apply=sum
 ROOT z = f32[64] negate(y) }
"""


def test_phases_of_a_compilation_and_of_a_run_are_heard_and_end_with_all_done() -> None:
    heard = Heard()
    with heard_by(heard):
        neff = ncc_compiler.compile_text(MODEL)
        ncc_runtime.load(neff).run(seed=0)
    assert heard.now == []
    assert heard.tasks() >= {
        "reading the program",
        "compiling",
        "generating instructions",
        "choosing algorithms",
        "filling placeholders",
        "proofs",
        "values",
        "times",
    }
    values = next(each for each in heard.over if each.task == "values")
    assert values.done == values.total


def test_python_programs_may_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar.shown():
        ncc_runtime.load(ncc_compiler.compile_text(MODEL)).run(seed=0)
    assert capsys.readouterr() == ("", "")  # it is over soon


def test_without_a_listener_phases_do_nothing() -> None:
    with phase("work", "things", 3) as now:
        now.done = 2
    assert list(steps("abc", "work", "letters")) == ["a", "b", "c"]


def test_a_phase_ends_with_an_error_too() -> None:
    heard = Heard()
    with heard_by(heard), pytest.raises(ValueError, match="no"), phase("work", "things"):
        raise ValueError("no")
    assert heard.now == []


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (Phase("values", "rows", 4800, 1200, 0.0), "1,200 of 4,800 rows (25%), about 0:01:12 left"),
        (Phase("values", "rows", 4800, 0, 0.0), "0 of 4,800 rows, for 0:00:24"),
        (Phase("values", "events", None, 1_000_000, 0.0), "1,000,000 events, for 0:00:24"),
        (Phase("values", "events", 10, 12, 0.0), "10 of 10 events (100%), about 0:00:00 left"),
        (Phase("values", "", None, 0, 0.0), "for 0:00:24"),
    ],
)
def test_a_line_says_what_is_done_and_what_is_left(now: Phase, line: str) -> None:
    assert line_of(now, 24.0) == f"values: {line}"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "LOOK_S", 0.01)
    monkeypatch.setattr(progress_bar, "FIRST_LINE_S", 0.05)
    monkeypatch.setattr(progress_bar, "LINE_S", 0.2)


def logged(seconds: float, *, is_quiet: bool = False) -> list[str]:
    """Lines in a log, of work inside other work."""
    stream = io.StringIO()
    bar = ProgressBar(stream, lambda: is_quiet)
    with heard_by(bar), phase("outer", "things", 2) as outer, phase("inner", "parts"):
        outer.done = 1
        time.sleep(seconds)
    bar.close()
    return stream.getvalue().splitlines()


@pytest.mark.usefixtures("hurried")
def test_a_log_gets_a_line_after_a_while_and_then_seldom() -> None:
    lines = logged(0.6)
    assert 2 <= len(lines) <= 4
    for line in lines:
        assert re.fullmatch(
            r"progress: outer: 1 of 2 things \(50%\), about 0:00:0\d left; inner: 0 parts, "
            r"for 0:00:0\d",
            line,
        )


@pytest.mark.usefixtures("hurried")
def test_short_work_and_quiet_commands_write_nothing() -> None:
    assert logged(0.0) == []
    assert logged(0.3, is_quiet=True) == []


WORK = """
import sys, time
import click
from ncc_runtime import progress_bar
from ncc_runtime.command_line import perform, replying
from ncc_runtime.progress import phase
progress_bar.LOOK_S, progress_bar.BAR_S, progress_bar.FIRST_LINE_S = 0.02, 0.05, 0.05

@click.group()
def commands(): pass

@commands.command()
@replying
def work(reply):
    with phase("working", "things", 4) as now:
        for now.done in range(4):
            reply.say(f"row {now.done}")
            time.sleep(0.15)
    reply.give(fields=lambda: {"rows": 4}, text=lambda: "done")

sys.exit(perform(commands, "test", sys.argv[1:], lambda error: []))
"""


def on_terminal(*arguments: str) -> tuple[str, str]:
    """Standard output, a pipe, and standard error, a terminal, of a command that works a while."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", WORK, "work", *arguments],
        stdout=subprocess.PIPE,
        stderr=follower,
        env=environment,
        text=True,
        check=True,
    )
    os.close(follower)
    fcntl.fcntl(leader, fcntl.F_SETFL, os.O_NONBLOCK)
    shown = b""
    try:
        while some := os.read(leader, 1 << 16):
            shown += some
    except OSError:
        pass
    os.close(leader)
    return done.stdout, shown.decode()


def test_a_terminal_gets_a_bar_that_is_removed_and_a_pipe_only_the_result() -> None:
    out, shown = on_terminal()
    assert out == "row 0\nrow 1\nrow 2\nrow 3\ndone\n"
    assert "working" in shown
    assert "2 of 4 things" in shown
    assert "\x1b[2K" in shown[-16:]  # the line is erased


def test_a_quiet_command_shows_no_bar() -> None:
    assert on_terminal("-q")[1] == ""


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    done = subprocess.run(
        [sys.executable, "-c", WORK, "work"], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("done\n")
    assert re.match(r"progress: working: \d of 4 things", done.stderr)
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr


def test_a_reader_of_progress_that_leaves_does_not_end_the_work(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run([sys.executable, "-c", WORK, "work"], stdout=out, stderr=writer)
    os.close(writer)
    assert done.returncode == 0
    assert (tmp_path / "out").read_text().endswith("done\n")
