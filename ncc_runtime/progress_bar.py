"""Shows on standard error how far long work is: bars on a terminal, elsewhere seldom a line.

A thread looks at the phases under way several times a second, so that the work itself only counts.
Work that is over soon is not shown. Bars are removed when it ends. What is no terminal, such as the
log of a batch job, gets whole lines without control characters: the first after ten seconds of a
phase, then one each half minute.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from ncc_runtime.progress import Phase, heard_by

if TYPE_CHECKING:  # slow to import, and only long work on terminals needs it
    from rich.progress import Progress, TaskID

LOOK_S = 0.2
"""Between two looks at the phases."""

BAR_S = 0.5
"""Age of a phase from which a terminal shows it."""

FIRST_LINE_S, LINE_S = 10.0, 30.0
"""Age of a phase at its first line, and the time between two lines."""


@contextlib.contextmanager
def shown(is_quiet: Callable[[], bool] = lambda: False) -> "Iterator[ProgressBar]":
    """A context in which standard error shows how far work is, unless it should be quiet."""
    bar = ProgressBar(sys.stderr, is_quiet)
    try:
        with heard_by(bar):
            yield bar
    finally:
        bar.close()


class ProgressBar:
    """A listener that shows phases; the outermost is shown first."""

    def __init__(self, stream: TextIO, is_quiet: Callable[[], bool]) -> None:
        self._stream, self._is_quiet = stream, is_quiet
        self._has_bars = stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._phases: list[Phase] = []
        self._lock = threading.Lock()  # of all that follows
        self._bars: Progress | None = None
        self._tasks: dict[Phase, TaskID] = {}
        self._lines: dict[Phase, float] = {}  # when a line told of a phase
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def began(self, phase: Phase) -> None:
        if self._is_quiet():
            return
        with self._lock:
            self._phases.append(phase)
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="progress", daemon=True)
            self._thread.start()

    def ended(self, phase: Phase) -> None:
        with self._lock:
            if phase in self._phases:
                self._phases.remove(phase)
            self._lines.pop(phase, None)
            if self._bars is not None and phase in self._tasks:
                self._bars.remove_task(self._tasks.pop(phase))
                if not self._tasks:
                    self._remove_bars()

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """A context for other output to the terminal: bars are gone, and come back after it."""
        with self._lock:
            self._remove_bars()
            yield

    def close(self) -> None:
        """Show nothing any more."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._remove_bars()

    def _look(self) -> None:
        while not self._closing.wait(LOOK_S):
            with self._lock, contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                self._show_bars() if self._has_bars else self._write_line()

    def _show_bars(self) -> None:
        now = time.monotonic()
        for phase in self._phases:
            if phase not in self._tasks and now - phase.began_s > BAR_S:
                bars = self._bars = self._bars or _new_bars(self._stream)
                bars.start()
                self._tasks[phase] = bars.add_task(
                    phase.task, total=phase.total, count=_count(phase)
                )
        if self._bars is not None:
            for phase, task in self._tasks.items():
                self._bars.update(task, completed=phase.done, count=_count(phase))
            self._bars.refresh()

    def _remove_bars(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks.clear()

    def _write_line(self) -> None:
        now = time.monotonic()
        old = [phase for phase in self._phases if now - phase.began_s >= FIRST_LINE_S]
        if old and any(now - self._lines.get(phase, 0.0) >= LINE_S for phase in old):
            self._lines.update(dict.fromkeys(self._phases, now))
            lines = "; ".join(line_of(phase, now) for phase in self._phases)
            self._stream.write(f"progress: {lines}\n")
            self._stream.flush()


def line_of(phase: Phase, now_s: float) -> str:
    """`values: 1,200 of 4,800 instructions (25%), about 0:01:12 left`."""
    passed_s, count = now_s - phase.began_s, _count(phase)
    if not phase.total or not phase.done:
        return f"{phase.task}: {', '.join(filter(None, [count, 'for ' + _duration(passed_s)]))}"
    done = min(phase.done, phase.total)
    left_s = passed_s * (phase.total - done) / done
    return f"{phase.task}: {count} ({100 * done // phase.total}%), about {_duration(left_s)} left"


def _count(phase: Phase) -> str:
    """What is done, of how much."""
    if phase.total is None:
        return f"{phase.done:,} {phase.unit}" if phase.unit else ""
    return f"{min(phase.done, phase.total):,} of {phase.total:,} {phase.unit}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _new_bars(stream: TextIO) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeftColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TimeLeftColumn(compact=True),
        console=Console(file=stream, force_terminal=True),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
