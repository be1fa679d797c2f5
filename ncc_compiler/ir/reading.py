"""Small texts of the syntax tree to data, each text once: types, attributes, literals.

A Reading belongs to one build: it caches by text, because real programs repeat the same few types
and attributes, and it collects the diagnostics of the stage.
"""

import difflib
import math
import re
from collections.abc import Collection

from ncc_compiler.diagnostics import MOST_SHOWN, Diagnostic, Note, Source, Span
from ncc_compiler.ir.attributes import read_attribute
from ncc_compiler.ir.graph import Attribute, Elided, Literal, Raw
from ncc_compiler.ir.kept_attributes import FORMS
from ncc_compiler.ir.layouts import layout_fault
from ncc_compiler.ir.literals import LiteralError, read_literal
from ncc_compiler.ir.op_row import AttributeDef, Kind, OpDef
from ncc_compiler.ir.types import ArrayType, TokenType, TupleType, Type
from ncc_compiler.syntax import tree
from ncc_runtime.neff.dtypes import DType

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](.*)", re.DOTALL)
_DIMENSIONS = re.compile(r"\s*(?:[0-9]{1,19}\s*(?:,\s*[0-9]{1,19}\s*)*)?")
_COMMENT = re.compile(r"/\*.*?\*/")
_DTYPES = {dtype.value: dtype for dtype in DType}


MAX_RANK = 32
"""Dimensions of an array; numpy ends at 64, and reshapes may need as many again."""


MOST_COMPARED = 200_000
"""Words that misspelt ones of a text are compared with; beyond, complaints have no suggestion."""


def suggestion(word: str, known: Collection[str], nearness: float = 0.6) -> str:
    """`did you mean …?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=nearness)
    alike = [one for one in near if one[:1] == word[:1]]  # the first letter is seldom the wrong one
    return f"did you mean {(alike or near)[0]}?" if near else ""


def limits_fault(kind: Type | None) -> tuple[str, str] | None:
    """The rule and the fact, of an array with too many dimensions or too large ones."""
    if not isinstance(kind, ArrayType):
        parts = kind.elements if isinstance(kind, TupleType) else ()
        return next(filter(None, map(limits_fault, parts)), None)
    if kind.rank > MAX_RANK:
        return "type-C5", f"the array has {kind.rank} dimensions, more than {MAX_RANK}"
    if math.prod(size or 1 for size in kind.shape) * kind.dtype.size_bytes >= 1 << 63:
        return "type-C4", f"{kind} does not fit in 2^63 bytes"
    return None


class Reading:
    """Reads the small texts of one source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.found: list[Diagnostic] = []
        self._types: dict[str, Type | None] = {}
        self._values: dict[tuple[Kind, str], Attribute] = {}
        self._raw: dict[str, Raw] = {}
        self._misspelt: dict[tuple[str, str], str] = {}
        self._compared = 0  # words, with misspelt ones

    def complain(
        self, code: str, message: str, at: tuple[int, int], hint: str = "", *notes: Note
    ) -> None:
        """Add a diagnostic at [start, end) of the source."""
        self.found.append(Diagnostic(code, message, self.span(*at), notes, hint))

    def span(self, start: int, end: int) -> Span:
        return Span(self.source, start, end)

    def type_of(self, written: tree.TypeText) -> Type | None:
        """The type, or None after a complaint."""
        if isinstance(written, tree.TupleText):
            return self._tuple_of(written)
        if written.text not in self._types:
            found = len(self.found)
            kind = self._array_of(written)
            if len(self.found) > found:
                return None
            self._types[written.text] = kind
        return self._types[written.text]

    def _tuple_of(self, written: tree.TupleText) -> Type | None:
        if written.depth > tree.MAX_TYPE_DEPTH:
            fact = f"tuples nest {written.depth} deep, at most {tree.MAX_TYPE_DEPTH} are read"
            self.complain("type-C3", fact, (written.start, written.start + 1))
            return None
        elements = [self.type_of(element) for element in written.elements]
        known = tuple(element for element in elements if element is not None)
        return TupleType(known) if len(known) == len(elements) else None

    def _array_of(self, written: tree.ArrayText) -> Type | None:
        match = _ARRAY.fullmatch(written.text)
        assert match, written.text
        name, start = match[1], written.start
        inside = _COMMENT.sub("", match[2])
        if name == "token" and not inside:
            return TokenType() if self._has_sound_layout(match, start, 0) else None
        if name not in _DTYPES:
            hint = suggestion(name, _DTYPES) or "known are " + ", ".join(_DTYPES)
            self.complain(
                "type-C1", f"unknown element type {name}", (start, start + len(name)), hint
            )
            return None
        place = (start + match.start(2), start + max(match.end(2), match.start(2) + 1))
        if not _DIMENSIONS.fullmatch(inside):
            hint = "dynamic dimensions are not supported" if "<=" in inside or "?" in inside else ""
            fact = f"dimensions {inside!r} are not a list of numbers"
            self.complain("type-C2", fact, place, hint)
            return None
        shape = tuple(map(int, inside.split(","))) if inside.strip() else ()
        kind = ArrayType(_DTYPES[name], shape)
        if fault := limits_fault(kind):
            self.complain(*fault, place)
            return None
        return kind if self._has_sound_layout(match, start, kind.rank) else None

    def _has_sound_layout(self, match: re.Match[str], start: int, rank: int) -> bool:
        """Whether what stands behind the dimensions is a layout of the array, or nothing."""
        layout = match[3].strip()
        fault = layout_fault(layout, rank) if layout else ""
        if fault:
            at = (start + match.start(3), start + match.end(3))
            hint = "correct it, or leave the layout out"
            self.complain("type-C6", fault, at, hint)
        return not fault

    def suggestion(self, word: str, known: Collection[str]) -> str:
        """`did you mean …?`, for complaints that are printed and while few words were compared."""
        self._compared += len(known)
        if len(self.found) >= MOST_SHOWN or self._compared > MOST_COMPARED:
            return ""
        return suggestion(word, known)

    def misspelt(self, key: str, row: OpDef) -> str:
        """The key of the op that this one is meant to be, as a suggestion, if any is near."""
        found = self._misspelt.get((key, row.name))
        if found is None:
            known = {one.name for one in row.attributes} | FORMS.keys()
            found = "" if key in known else suggestion(key, sorted(known), 0.8)
            self._misspelt[key, row.name] = found
        return found

    def raw(self, text: str) -> Raw:
        """A text kept as it is."""
        return self._raw.setdefault(text, Raw(text))

    def attribute(self, written: tree.Attribute, row: AttributeDef) -> Attribute | None:
        """The value of an attribute that the op knows, or None after a complaint."""
        key = (row.kind, written.value)
        if key not in self._values:
            try:
                self._values[key] = read_attribute(row.kind, written.value)
            except ValueError as error:
                self.complain(
                    "attribute-C1", f"{row.name}: {error}", (written.value_start, written.end)
                )
                return None
        return self._values[key]

    def payload(self, written: tree.Instruction, row: OpDef, kind: Type) -> Attribute | None:
        """What the parentheses of `parameter` and `constant` hold, or None after a complaint."""
        definition, payload = row.payload, written.payload
        assert definition
        if payload is None:
            example = f"{row.name}({definition.kind.value})"
            fact = f"{row.name} holds no {definition.name.replace('_', ' ')}"
            at = (written.operands[0].start, written.operands[-1].end) if written.operands else None
            self.complain(
                "op-C3", fact, at or (written.op.start, written.op.end), f"write {example}"
            )
            return None
        if definition.kind is Kind.LITERAL:
            return self._literal(payload, kind, written)
        text = tree.Attribute(
            definition.name, payload.text, payload.start, payload.start, payload.end
        )
        return self.attribute(text, definition)

    def _literal(
        self, payload: tree.Word, kind: Type, written: tree.Instruction
    ) -> Literal | Elided | None:
        if isinstance(kind, TupleType):
            fact = f"the literal is not a tuple of {len(kind.elements)}"
            hint = "write (a, b, …), an element for each of the type"
            self.complain("literal-C1", fact, (payload.start, payload.end), hint)
            return None
        if not isinstance(kind, ArrayType):
            fact = f"a constant is an array, not {kind}"
            place = written.type or written.op
            self.complain("literal-C1", fact, (place.start, place.end))
            return None
        try:
            return read_literal(payload.text, kind)
        except LiteralError as error:
            at = (payload.start, payload.end)
            if error.word and error.word != payload.text:
                inside = re.search(rf"(?<![\w.+-]){re.escape(error.word)}(?![\w.])", payload.text)
                offset = payload.start + (inside.start() if inside else 0)
                at = (offset, offset + len(error.word)) if inside else at
            self.complain(f"literal-C{error.number}", str(error), at, error.hint)
            return None
