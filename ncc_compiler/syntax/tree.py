"""The syntax tree: names and values as written, each with its offsets in the source."""

from typing import TypeAlias

import attrs

from ncc_compiler.diagnostics import Source, Span

MAX_TYPE_DEPTH = 32
"""Tuples nest at most this deep; deeper ones are complained about and cut off."""

MAX_INLINE_DEPTH = 32
"""The same for operations in the place of operands, and computations in the place of names."""


@attrs.frozen(eq=False)
class Word:
    """A piece of text with its place: a name without its `%`, an opcode, a literal."""

    text: str
    start: int
    end: int

    def span(self, source: Source) -> Span:
        return Span(source, self.start, self.end)


@attrs.frozen(eq=False)
class ArrayText:
    """`f32[2,3]{1,0}` as it was written."""

    text: str
    start: int
    end: int
    depth: int = 0


@attrs.frozen(eq=False)
class TupleText:
    """`(f32[], (s32[2]))`; a depth above MAX_TYPE_DEPTH means that elements were cut off."""

    elements: "tuple[TypeText, ...]"
    start: int
    end: int
    depth: int


TypeText: TypeAlias = ArrayText | TupleText


@attrs.frozen(eq=False)
class Operand(Word):
    """The name of an operand, with the type before it, if one is repeated there.

    An operation that is written in its place is `inline`; it has no name until it is spelt out.
    """

    type: TypeText | None = None
    inline: "Instruction | None" = None


Body: TypeAlias = "tuple[Instruction, ...]"
"""The instructions of a computation."""


@attrs.frozen(eq=False)
class Attribute:
    """`key=value`; the value starts at `value_start`.

    Where computations are written in the place of their names, `inline` holds names and bodies
    instead of a value.
    """

    key: str
    value: str
    start: int
    value_start: int
    end: int
    inline: "tuple[Word | Body, ...]" = ()


@attrs.frozen(eq=False)
class Instruction:
    """`ROOT name = type op(operands), attributes`; a type that is left out is inferred later.

    The payload is the text in the parentheses of `parameter` and `constant`. A depth above
    MAX_INLINE_DEPTH means that operands and attributes were cut off.
    """

    name: Word
    type: TypeText | None
    op: Word
    operands: tuple[Operand, ...]
    payload: Word | None
    attributes: tuple[Attribute, ...]
    is_root: bool
    depth: int = 0  # of operations and computations written in place


@attrs.frozen(eq=False)
class ComputationSignature:
    """`(p: f32[]) -> f32[]` behind a computation's name."""

    parameters: tuple[TypeText, ...]
    result: TypeText


@attrs.frozen(eq=False)
class ComputationText:
    """A named list of instructions; `name` is None where the text has no braces around them."""

    name: Word | None
    is_entry: bool
    signature: ComputationSignature | None
    instructions: tuple[Instruction, ...]
    attributes: tuple[Attribute, ...] = ()


@attrs.frozen(eq=False)
class SourceTable:
    """One preamble table (`FileNames`, `StackFrames` …) with its rows as written."""

    name: Word
    rows: tuple[Word, ...]


@attrs.frozen(eq=False)
class File:
    """A whole text. `broken` holds the names whose definitions could not be read."""

    source: Source
    name: str | None
    header: tuple[Attribute, ...]
    tables: tuple[SourceTable, ...]
    computations: tuple[ComputationText, ...]
    broken: frozenset[str] = frozenset()
    is_whole: bool = True  # no line was left out
