"""Spans that know the parts of the instruction they come from, for exact carets."""

import re

import attrs

from ncc_compiler.diagnostics import Span
from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.rules import Number, Part, Place
from ncc_compiler.syntax.tree import Instruction

_NUMBER = re.compile(r"-?\d+")


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
        case Part.TYPE if written.type is not None:
            return written.type.start, written.type.end
        case Part.NAME:
            return written.name.start, written.name.end
        case int() if place < len(written.operands):
            return written.operands[place].start, written.operands[place].end
        case str() | Number():
            return _attribute_offsets(span, place)
    return span.start, span.end


def _attribute_offsets(span: InstructionSpan, place: str | Number) -> tuple[int, int]:
    key = place.key if isinstance(place, Number) else place
    for attribute in span.instruction.attributes:
        if attribute.key != key:
            continue
        if isinstance(place, Number):
            found = list(_NUMBER.finditer(attribute.value))
            if place.position < len(found):
                start, end = found[place.position].span()
                return attribute.value_start + start, attribute.value_start + end
        return attribute.start, attribute.end
    payload = span.instruction.payload
    return (payload.start, payload.end) if payload else (span.start, span.end)
