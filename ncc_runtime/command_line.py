"""The outer edge of both commands: closed streams, readers that leave, wrong usage, exit codes."""

import atexit
import contextlib
import errno
import gc
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import click

DONE, REFUSED, USAGE, OUR_FAULT, INTERRUPTED = 0, 1, 2, 3, 130
"""The exit codes."""

_NEW_CONTAINERS = 500_000
"""Objects made between collections of cycles: few are garbage, and each pass walks over all."""

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_DID_YOU_MEAN = re.compile(r"\.? \(?Did you mean (?:one of:? )?(.*?)\?\)?$")


def perform(
    commands: click.Group, name: str, given: Sequence[str], report: Callable[[Exception], int]
) -> int:
    """Run a command line; returns the exit code. `report` says what is wrong and gives the code.

    Streams that are closed swallow what is written to them. Like the standard tools, a command
    whose reader has left stops without a word.
    """
    # Python has None for a stream that is closed; its number must not become a file's either
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:
            nowhere = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - stays open
            setattr(sys, stream, nowhere)
    try:
        with cycles_collected_seldom():
            return _run(commands, name, given, report)
    except (BrokenPipeError, SystemExit):  # click exits where it meets a broken pipe itself
        for output in (sys.stdout, sys.stderr):
            _silence(output)
        return REFUSED


def _silence(stream: TextIO) -> None:
    """Discard what the stream still holds, and whatever is written to it from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def cycles_collected_seldom() -> Iterator[None]:
    """Raise the threshold of the cycle collector, and skip it when the process ends."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    before = gc.get_threshold()
    gc.set_threshold(_NEW_CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def check_written(written: Mapping[str, str | None], read: Iterable[str]) -> None:
    """Wrong usage if a file that options name would overwrite one that is read, or another.

    By whatever name: a link, or another spelling of the path.
    """
    in_use = [(path, "which is read") for path in read]
    for option, path in written.items():
        if path is None:
            continue
        for other, why in in_use:
            if _is_same_file(path, other):
                same = "" if path == other else f" ({other})"
                fact = f"{option} would overwrite {path}{same}, {why}"
                raise click.UsageError(f"{fact}; give another name")
        in_use.append((path, f"which {option} writes"))


def _is_same_file(path: str, other: str) -> bool:
    """Whether writing one file loses the other: equal files by whatever names, links included.

    What is no regular file (`/dev/null`, a terminal) loses nothing.
    """
    try:
        return Path(path).samefile(other) and Path(path).is_file()
    except OSError:  # one of them does not exist yet
        return os.path.realpath(path) == os.path.realpath(other)


def _run(
    commands: click.Group, name: str, given: Sequence[str], report: Callable[[Exception], int]
) -> int:
    try:
        commands.main(list(given), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if (
            error.filename is None and error.errno in _CANNOT_WRITE
        ):  # files that we write have names
            error.filename = "<standard output>"
            _silence(sys.stdout)  # what it still holds would fail again when the process ends
        return report(error)
    except click.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except Exception as error:  # noqa: BLE001 - the border: any fault becomes a line and a code
        return report(error)
    return DONE


def tell(message: str) -> None:
    """A message on standard error; where that cannot be written, the exit code has to do."""
    try:
        click.echo(message, err=True)
    except BrokenPipeError:
        raise
    except OSError:
        _silence(sys.stderr)


def wrong_usage(error: click.UsageError) -> tuple[str, str]:
    """The fact in one line, with a suggestion if there is one, and where to read on."""
    fact = " ".join(error.format_message().split()).removesuffix(".")
    fact = _DID_YOU_MEAN.sub(r"; did you mean \1?", fact[:1].lower() + fact[1:])
    return fact, "" if error.ctx is None else f"see {error.ctx.command_path} --help"
