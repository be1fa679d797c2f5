"""Spans that know the parts of the instruction they come from, for exact carets."""

import attrs

from ncc_compiler.diagnostics import Span
from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.rules import Part, Place
from ncc_compiler.syntax.tree import Instruction


@attrs.frozen(eq=False)
class InstructionSpan(Span):
    """The span of an opcode, with the instruction around it."""

    instruction: Instruction


def place_of(node: Node, place: Place) -> Span | None:
    """Where a part of a node was written; its opcode if the text has no such part."""
    span = node.span
    if not isinstance(span, InstructionSpan):
        return span
    start, end = _offsets(span, place)
    return Span(span.source, start, end)


def _offsets(span: InstructionSpan, place: Place) -> tuple[int, int]:
    written = span.instruction
    match place:
        case Part.TYPE:
            return written.type.start, written.type.end
        case Part.NAME:
            return written.name.start, written.name.end
        case int() if place < len(written.operands):
            return written.operands[place].start, written.operands[place].end
        case str():
            for attribute in written.attributes:
                if attribute.key == place:
                    return attribute.start, attribute.end
            if written.payload:
                return written.payload.start, written.payload.end
    return span.start, span.end
