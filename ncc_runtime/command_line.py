"""What both commands do alike at their edge: closed streams, readers that leave, wrong usage."""

import atexit
import contextlib
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

DONE, REFUSED, USAGE, OUR_FAULT, INTERRUPTED = 0, 1, 2, 3, 130
"""The exit codes."""

_NEW_CONTAINERS = 500_000
"""How many objects a command makes until it looks for dead cycles: few are, all are walked over."""

_DID_YOU_MEAN = re.compile(r"\.? \(?Did you mean (?:one of:? )?(.*?)\?\)?$")


def perform(
    commands: click.Group, name: str, given: Sequence[str], report: Callable[[Exception], int]
) -> int:
    """Run a command line; returns the exit code. `report` says what is wrong and gives the code.

    Streams that are closed swallow what is written to them. Like the standard tools, a command
    whose reader has left stops without a word.
    """
    _replace_closed_streams()
    try:
        with cycles_collected_seldom():
            return _run(commands, name, given, report)
    except (BrokenPipeError, SystemExit):  # click exits where it meets a broken pipe itself
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return REFUSED


def _replace_closed_streams() -> None:
    """Python has None for a stream that is closed; its number must not become a file's either."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - stays open
            setattr(sys, name, nowhere)


@contextlib.contextmanager
def cycles_collected_seldom() -> Iterator[None]:
    """Neither while the command runs nor, other than that, when the process ends."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    before = gc.get_threshold()
    gc.set_threshold(_NEW_CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _run(
    commands: click.Group, name: str, given: Sequence[str], report: Callable[[Exception], int]
) -> int:
    try:
        commands.main(list(given), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except click.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except Exception as error:  # noqa: BLE001 - the border: any fault becomes a line and a code
        return report(error)
    return DONE


def wrong_usage(error: click.UsageError) -> tuple[str, str]:
    """The fact in one line, with what was perhaps meant, and where to read on."""
    fact = " ".join(error.format_message().split()).removesuffix(".")
    fact = _DID_YOU_MEAN.sub(r"; did you mean \1?", fact[:1].lower() + fact[1:])
    return fact, "" if error.ctx is None else f"see {error.ctx.command_path} --help"
