"""The outer edge of both commands: what they say, closed streams, wrong usage, exit codes.

A command gives its result, warnings and refusals to a `Reply`. People get the result on standard
output, warnings and refusals on standard error; with `--json` all is in one object on standard
output.
"""

import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import attrs
import click

from ncc_runtime.errors import NccError, Notice, reason_of, shortened
from ncc_runtime.progress import heard_by
from ncc_runtime.progress_bar import ProgressBar

DONE, REFUSED, USAGE, OUR_FAULT, INTERRUPTED = 0, 1, 2, 3, 130
"""The exit codes."""

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_DID_YOU_MEAN = re.compile(r"\.? \(?Did you mean (?:one of:? )?(.*?)\?\)?$")


SCHEMA = 1
"""Of every object that a command prints."""


@attrs.frozen
class Refusal:
    """One thing that is wrong, and what helps; lines and columns count from 1."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    help: str = ""
    text: str = attrs.field(default="", eq=False)  # with excerpt and notes, for people

    def as_text(self) -> str:
        advice = f" ({self.help})" if self.help else ""
        return shortened(self.text or f"error: {self.message}{advice}")

    def as_json(self) -> dict[str, Any]:
        fields = attrs.asdict(self, filter=lambda attribute, _: attribute.name != "text")
        return {**fields, "message": shortened(self.message), "help": shortened(self.help)}


class Started(Protocol):
    """The processes that a launcher started, of which one tells what there is to tell."""

    number: int  # of this one

    @property
    def name(self) -> str:
        """Of this one, for messages."""

    @property
    def is_apart(self) -> bool:
        """Whether this one failed and others did not."""

    def tells_failure(self) -> bool:
        """Whether it is this one that tells of an error."""

    def end_all(self, code: int) -> None:
        """End them all after an error."""

    def abort(self, code: int) -> None:
        """End them all at once."""


class Reply:
    """What one command says."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.is_quiet = False
        self.is_silent = False  # as others of several processes say all
        self.processes: Started | None = None  # with which a launcher started this one
        self.progress = ProgressBar(sys.stderr, lambda: self.is_quiet or self.is_silent)
        self._result: Mapping[str, Any] = {}
        self._notices: dict[Notice, None] = {}  # in their order, each once
        self._refusals: list[Refusal] = []

    def give(self, *, fields: Callable[[], Mapping[str, Any]], text: Callable[[], str]) -> None:
        """The command's result; only the form that is wanted is made."""
        if self.is_silent:
            return
        if self.as_json:
            self._result = fields()
        else:
            shown = text()
            click.echo(shown, nl=not shown.endswith("\n"))

    def say(self, line: str) -> None:
        """A line of a result that is shown as it comes; `give` has the fields of all of them."""
        if not self.as_json and not self.is_silent:
            with self.progress.cleared():
                click.echo(line)

    def warn(self, notices: Iterable[Notice]) -> None:
        """Warnings, each said once and behind all else."""
        self._notices.update(dict.fromkeys(notices))

    def refuse(self, refusals: Iterable[Refusal]) -> None:
        """What was wrong."""
        self._refusals += refusals

    def join(self, processes: Started) -> None:
        """Speak for several processes: the first of them does."""
        self.processes, self.is_silent = processes, processes.number > 0

    def refuse_among(self, refusals: Iterable[Refusal]) -> None:
        """The same, where others of several processes may have been refused, too: one tells it."""
        if self.processes is not None:
            self.is_silent = not self.processes.tells_failure()
            if self.processes.is_apart:
                name = self.processes.name
                refusals = [
                    attrs.evolve(one, message=f"{name}: {one.message}", text="") for one in refusals
                ]
        self.refuse(refusals)

    def close(self) -> None:
        """Say what is left to say: the object, or refusals, and without one, warnings."""
        if self.is_silent:
            return
        if self.as_json:
            said = {
                "warnings": [attrs.asdict(notice) for notice in self._notices],
                "errors": [refusal.as_json() for refusal in self._refusals],
            }
            click.echo(json.dumps({"schema": SCHEMA, **self._result, **said}))
        elif self._refusals:
            _tell("\n".join(refusal.as_text() for refusal in self._refusals))
        elif not self.is_quiet:
            for notice in self._notices:
                _tell(shortened(f"warning: {notice}"))


def examples(*lines: str) -> str:
    """The end of a help text: command lines, each as it is."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _set_quiet(context: click.Context, _: click.Parameter, is_quiet: bool) -> None:
    context.obj.is_quiet = is_quiet


def replying(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--json` and `-q` to a command, which gets its Reply as first argument."""
    as_json = click.option(  # read by `perform`, as what is wrong with the usage is JSON, too
        "--json", is_flag=True, expose_value=False, help="One JSON object on standard output."
    )
    quiet = click.option(
        *("-q", "--quiet"),
        is_flag=True,
        expose_value=False,
        callback=_set_quiet,
        help="Leave out warnings and progress.",
    )
    return as_json(quiet(click.pass_obj(command)))


def perform(
    commands: click.Group,
    name: str,
    given: Sequence[str],
    refusals_of: Callable[[Exception], list[Refusal]],
    join: Callable[[], Started] | None = None,
) -> int:
    """Run a command line; returns the exit code. `refusals_of` gives nothing for our own faults.

    `join` gives the processes that a launcher started: one of them says what there is to say.

    Streams that are closed swallow what is written to them. Like the standard tools, a command
    whose reader has left stops without a word.
    """
    # Python has None for a stream that is closed; its number must not become a file's either
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:
            nowhere = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - stays open
            setattr(sys, stream, nowhere)
    reply = Reply(as_json="--json" in given)
    try:
        with heard_by(reply.progress):
            return _run(commands, name, given, reply, refusals_of, join)
    except (BrokenPipeError, SystemExit) as stop:
        if reply.processes is not None:  # others would wait for it
            reply.processes.abort(REFUSED)
        if isinstance(stop, SystemExit) and stop.code == DONE:  # words for a shell to complete
            return DONE
        for output in (sys.stdout, sys.stderr):  # click exits itself where a pipe is broken
            _silence(output)
        return REFUSED


def _silence(stream: TextIO) -> None:
    """Discard what the stream still holds, and whatever is written to it from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


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
    commands: click.Group,
    name: str,
    given: Sequence[str],
    reply: Reply,
    refusals_of: Callable[[Exception], list[Refusal]],
    join: Callable[[], Started] | None,
) -> int:
    code = DONE
    try:
        try:
            try:
                if join is not None:
                    reply.join(join())
                stopped = commands.main(
                    list(given), prog_name=name, standalone_mode=False, obj=reply
                )
            finally:
                reply.progress.close()
            if stopped is not None:  # by --help or --version, which have said all
                return DONE
        except BrokenPipeError:
            raise
        except click.Abort as error:
            if not isinstance(error.__cause__, EOFError):  # which click takes for an interrupt
                reply.refuse([Refusal("interrupted", "interrupted", text="interrupted")])
                reply.close()
                return INTERRUPTED
            code, refusals = _judged(error.__cause__, name, refusals_of)
            reply.refuse(refusals)
        except click.exceptions.NoArgsIsHelpError as error:
            _tell(error.format_message())
            return USAGE
        except Exception as error:  # noqa: BLE001 - the border: any fault becomes a line and a code
            code, refusals = _judged(error, name, refusals_of)
            reply.refuse_among(refusals)
        reply.close()
        sys.stdout.flush()
        if code != DONE and reply.processes is not None:
            reply.processes.end_all(code)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        _silence(sys.stdout)  # what it still holds would fail again when the process ends
        _tell(f"error: <standard output>: {reason_of(error)}")
        if reply.processes is not None:  # others would wait for it
            reply.processes.abort(REFUSED)
        return REFUSED
    return code


def _judged(
    error: Exception, name: str, refusals_of: Callable[[Exception], list[Refusal]]
) -> tuple[int, list[Refusal]]:
    """The exit code of an error, and what to say of it."""
    if isinstance(error, click.UsageError):
        fact, advice = wrong_usage(error)
        return USAGE, [Refusal("usage", fact, help=advice)]
    if isinstance(error, NccError):
        return REFUSED, [Refusal("refused", str(error))]
    if isinstance(error, OSError):
        path = None if error.filename is None else str(error.filename)
        place = "" if path is None else f"{path}: "
        if path is None and error.errno in _CANNOT_WRITE:  # files that we write have names
            _silence(sys.stdout)
            place = "<standard output>: "
        return REFUSED, [Refusal("file", f"{place}{reason_of(error)}", path)]
    if refusals := refusals_of(error):
        if error.__cause__ is not None and os.environ.get("NCC_DEBUG"):
            traceback.print_exception(error.__cause__)  # perhaps of the user's own code
        return REFUSED, refusals
    if os.environ.get("NCC_DEBUG"):
        traceback.print_exception(error)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    fact = f"{name} failed, which is a fault of ours: {what}"
    return OUR_FAULT, [Refusal("internal", fact, help="report it; NCC_DEBUG=1 shows the traceback")]


def _tell(message: str) -> None:
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
