"""Errors as the command line shows them: text for people, one JSON object for scripts."""

import json
from collections.abc import Iterable

import attrs

from ncc_compiler.diagnostics import CompileError, Diagnostic, render_all
from ncc_runtime.errors import NccError, reason_of, shortened

SCHEMA = 1


@attrs.frozen
class Refusal:
    """One thing that is wrong; lines and columns count from 1."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    help: str = ""
    text: str = attrs.field(default="", eq=False)  # with excerpt and notes, for people


def refusals_of(error: Exception) -> list[Refusal]:
    """The messages of an error in the user's input; none if the fault is the compiler's."""
    if isinstance(error, CompileError):
        refusals = [*map(_of_diagnostic, error.shown, render_all(error.shown))]
        more = error.more()
        return [*refusals, Refusal("more", more)] if more else refusals
    if isinstance(error, NccError):
        return [Refusal("file", str(error))]
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        file = None if error.filename is None else str(error.filename)
        return [Refusal("file", f"{place}{reason_of(error)}", file)]
    if isinstance(error, MemoryError):
        return [Refusal("memory", "the host is out of memory", help="give it a smaller model")]
    return []


def _of_diagnostic(diagnostic: Diagnostic, text: str) -> Refusal:
    span = diagnostic.span
    line, column = span.source.position(span.start) if span else (None, None)
    return Refusal(
        code=diagnostic.code,
        message=diagnostic.message,
        file=span.source.name if span else None,
        line=line,
        column=column,
        help=diagnostic.help,
        text=text,
    )


def our_fault(error: Exception) -> Refusal:
    """A fault of the compiler, in one line that asks for a report."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return Refusal(
        "internal",
        f"the compiler failed on this model, which is a fault of ours: {what}",
        help="report it with the model; NCC_DEBUG=1 shows the traceback",
    )


def as_text(refusals: Iterable[Refusal]) -> str:
    """One paragraph for each."""
    texts = []
    for refusal in refusals:
        advice = f" ({refusal.help})" if refusal.help else ""
        texts.append(shortened(refusal.text or f"error: {refusal.message}{advice}"))
    return "\n".join(texts)


def as_json(refusals: Iterable[Refusal]) -> str:
    """One object with a list of all."""
    rows = [
        attrs.asdict(
            attrs.evolve(refusal, message=shortened(refusal.message), help=shortened(refusal.help)),
            filter=lambda attribute, _: attribute.name != "text",
        )
        for refusal in refusals
    ]
    return json.dumps({"schema": SCHEMA, "errors": rows})
