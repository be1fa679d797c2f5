"""XML as elements that know their line and column; what could be hostile is refused.

A document type, and so every entity, is refused before it is read; so are files beyond a size, and
elements beyond a number or a depth. Nothing outside of the file is ever opened.
"""

from collections.abc import Mapping
from xml.parsers import expat

import attrs

from ncc_runtime.errors import PlanError

MOST_BYTES = 64 << 20
MOST_ELEMENTS = 1 << 18
MOST_DEPTH = 8


@attrs.frozen
class At:
    """A place in a text file, counted from 1."""

    line: int
    column: int

    def error(self, what: str) -> PlanError:
        """The error that names this place."""
        return PlanError(f"line {self.line}, column {self.column}: {what}")


@attrs.define(eq=False)
class Element:
    """A tag, its attributes and the elements inside."""

    name: str
    attributes: Mapping[str, str]
    line: int
    column: int
    children: "list[Element]" = attrs.field(factory=list)

    @property
    def at(self) -> At:
        """Where it begins."""
        return At(self.line, self.column)


def parse(data: bytes) -> Element:
    """The root element; PlanError with line and column where it is no XML that is taken."""
    if len(data) > MOST_BYTES:
        raise PlanError(f"{len(data)} bytes, a plan has at most {MOST_BYTES}")
    reader = _Reader()
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        what = expat.errors.messages.get(error.code, str(error))
        raise At(error.lineno, error.offset + 1).error(f"not XML: {what}") from None
    except (LookupError, ValueError) as error:  # an encoding that there is not
        raise reader.at.error(f"not XML: {error}") from None
    assert reader.root is not None, "expat refuses a document without elements"
    return reader.root


class _Reader:
    """Builds the tree."""

    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text

    @property
    def at(self) -> At:
        """Where the parser is."""
        parser = self.parser
        return At(parser.CurrentLineNumber, parser.CurrentColumnNumber + 1)

    def _doctype(self, *_: object) -> None:
        raise self.at.error("a document type or an entity, which a plan has not: leave it out")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        parser = self.parser
        element = Element(
            name, attributes, parser.CurrentLineNumber, parser.CurrentColumnNumber + 1
        )
        self._count += 1
        if self._count > MOST_ELEMENTS:
            raise element.at.error(f"more than {MOST_ELEMENTS} elements")
        if len(self._open) >= MOST_DEPTH:
            raise element.at.error(f"elements more than {MOST_DEPTH} deep")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, _: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        if text.strip():
            raise self.at.error(f"text {text.strip()[:20]!r} between elements, where none belongs")
