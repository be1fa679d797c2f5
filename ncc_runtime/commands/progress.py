"""How far long work is, on standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import click


def note_compiling() -> None:
    """On a terminal, note that the clock is compiled first, which takes a while once."""
    if sys.stderr.isatty():
        from ncc_runtime.execution.clock.compiled import is_compiled

        if not is_compiled():
            click.echo("note: compiling the clock for this machine, once", err=True)


@contextlib.contextmanager
def shown_count(task: str, unit: str) -> Iterator[Callable[[int], None] | None]:
    """A callback that shows how many units a task has done; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn(f"{task}: {{task.completed:,}} {unit}")
    bar = Progress(
        SpinnerColumn(), text, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    )
    number = bar.add_task(task, total=None)

    def watch(count: int) -> None:
        bar.start()  # a short run shows nothing
        bar.update(number, completed=count)

    try:
        yield watch
    finally:
        bar.stop()
