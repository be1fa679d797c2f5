"""What the command line says of errors in a model."""

from ncc_compiler.diagnostics import CompileError, Diagnostic, render_all
from ncc_runtime.command_line import Refusal


def refusals_of(error: Exception) -> list[Refusal]:
    """The messages of an error in the user's input; none if the fault is the compiler's."""
    if isinstance(error, CompileError):
        refusals = [*map(_of_diagnostic, error.shown, render_all(error.shown))]
        more = error.more()
        return [*refusals, Refusal("more", more)] if more else refusals
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
