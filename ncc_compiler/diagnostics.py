"""Errors in the user's program: spans, diagnostics, rendering with carets.

A span holds offsets into its source; line, column and carets are worked out when it is printed.
"""

import functools
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import numpy as np

_PIECE = 1 << 20  # characters of a text that are searched at once


@attrs.frozen(eq=False)
class Source:
    """A text with a name; the name is what messages print."""

    name: str
    text: str

    @functools.cached_property
    def _line_starts(self) -> "np.ndarray":
        """(lines,) int32: of a text that is all line ends a list would take forty times as much."""
        import numpy as np  # slow to import, and wrong usage has no lines

        starts: list[np.ndarray] = [np.zeros(1, np.int32)]
        for at in range(0, len(self.text), _PIECE):
            # UTF-32 has four bytes for each character, so positions in the array are offsets
            piece = self.text[at : at + _PIECE].encode("utf-32-le", "surrogatepass")
            ends = np.flatnonzero(np.frombuffer(piece, "<u4") == ord("\n"))
            starts.append((ends + (at + 1)).astype(np.int32))
        return np.concatenate(starts)

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        line = int(self._line_starts.searchsorted(offset, "right"))
        return line, offset - int(self._line_starts[line - 1]) + 1

    def line(self, number: int) -> str:
        """The text of a line, counted from 1, without its end."""
        start = int(self._line_starts[number - 1])
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")


@attrs.frozen(eq=False)
class Span:
    """A range of a source, [start, end) in characters."""

    source: Source
    start: int
    end: int

    def __str__(self) -> str:
        line, column = self.source.position(self.start)
        return f"{self.source.name}:{line}:{column}"


@attrs.frozen
class Note:
    """A second place that explains the first."""

    message: str
    span: Span


@attrs.frozen
class Diagnostic:
    """One complaint: a rule's code, the fact, its place, and what to do about it."""

    code: str
    message: str
    span: Span | None = None
    notes: tuple[Note, ...] = ()
    help: str = ""

    def render(self) -> str:
        """The complaint as text: place, fact, the line with carets, notes, help."""
        place = f"{self.span}: " if self.span else ""
        lines = [f"{place}error[{self.code}]: {self.message}"]
        if self.span:
            lines += _excerpt(self.span)
        for note in self.notes:
            lines += [f"{note.span}: note: {note.message}", *_excerpt(note.span)]
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)


def render_all(diagnostics: Iterable[Diagnostic]) -> list[str]:
    """Each as text; the same advice of the same rule is printed the first time only."""
    texts, shown = [], set()
    for diagnostic in diagnostics:
        advice = (diagnostic.code, diagnostic.help)
        texts.append(
            (attrs.evolve(diagnostic, help="") if advice in shown else diagnostic).render()
        )
        shown.add(advice)
    return texts


_EXCERPT_WIDTH = 120


def _excerpt(span: Span) -> list[str]:
    """The line of the span and carets under it; long lines are cut around the carets."""
    number, column = span.source.position(span.start)
    text = span.source.line(number).replace("\t", " ")
    length = max(1, min(span.end - span.start, len(text) - column + 1))
    first = max(0, column - 1 - _EXCERPT_WIDTH // 3) if len(text) > _EXCERPT_WIDTH else 0
    shown = text[first : first + _EXCERPT_WIDTH]
    head, tail = ("…" if first else ""), ("…" if first + _EXCERPT_WIDTH < len(text) else "")
    at = column - 1 - first
    carets = "^" * max(1, _cells(shown[at : at + length]))
    margin = f"{number:>5} | "
    indent = len(margin) + len(head) + _cells(shown[:at])
    return [f"{margin}{head}{shown}{tail}", " " * indent + carets]


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    columns = 0
    for character in text:
        if unicodedata.category(character) not in ("Mn", "Me", "Cf"):  # combining: no width
            columns += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return columns


MAX_SHOWN = 50
"""Diagnostics of one text that are printed; nobody reads more, and rendering takes time."""


class CompileError(Exception):
    """The program is wrong; holds every diagnostic of the stage that found it so."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        return "\n".join([*render_all(self.shown), *filter(None, [self.more()])])

    @property
    def shown(self) -> tuple[Diagnostic, ...]:
        """Those that are printed."""
        return self.diagnostics[:MAX_SHOWN]

    def more(self) -> str:
        """How many are left out, if any."""
        left_out = len(self.diagnostics) - MAX_SHOWN
        return f"{left_out} more errors are not shown" if left_out > 0 else ""


class InternalError(Exception):
    """We are wrong: a pass broke the graph, or an invariant of ours does not hold."""
