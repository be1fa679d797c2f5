"""Rules of the graph that belong to no single op, and the places in the text for complaints.

`sentence("dot-C3")` is the text of any rule, of this file or of a row of `OPS`. docs/ir.md
lists the same sentences, and a test compares them. A `Complaint` names a part of a node (`Place`);
`place_of` finds where that part was written, for exact carets.
"""

import enum
import re
from collections.abc import Mapping
from typing import TypeAlias

import attrs

from ncc_compiler.diagnostics import Span
from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.ops import OPS
from ncc_compiler.syntax.tree import Instruction

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "syntax": (
        "the text follows the grammar",
        "operations and computations written in place nest at most 32 deep",
    ),
    "type": (
        "the element type is one of the table",
        "every dimension is a number >= 0, and none is dynamic",
        "tuples nest at most 32 deep",
        "an array has fewer than 2^63 bytes, dimensions of size 0 counted as 1",
        "an array has at most 32 dimensions",
        "a layout names every dimension once, and what follows the order is well formed",
    ),
    "literal": (
        "a value's braces follow the shape",
        "every element is a number of the element type and in its range",
        "the value is written out, or left out as a whole, of an array: `{...}`",
    ),
    "attribute": (
        "the value has the form that the op asks for",
        "no attribute is given twice",
        "the key is neither one that only others have, nor a misspelling of one that belongs here",
    ),
    "name": (
        "every name that is used is defined in the same computation",
        "no name is defined twice",
        "no value is computed from itself",
    ),
    "computation": (
        "one computation is the entry",
        "every computation that is named exists",
        "no computation calls itself, directly or through others",
        "one instruction is the root",
        "the signature says what parameters and root say",
        "parameters are numbered 0, 1, 2 … without gaps",
        "a computation has an instruction",
    ),
    "header": (
        "every attribute of the header that XLA knows has the form that XLA gives it",
        "input_output_alias pairs arrays of the result and of parameters that are equally large, "
        "each at most once",
        "buffer_donor names arrays of parameters that input_output_alias does not name",
        "entry_computation_layout has the types of the entry's parameters and result",
    ),
    "ranks": (
        "replica_count and num_partitions are numbers from 1 to 1048576, and so is their product",
        "the number of ranks asked for is the header's, or enough for the ids of the program",
        "ids in groups and pairs are below 1048576",
    ),
    "frames": (
        "the tables of source locations refer to rows that exist",
        "a row of FileLocations and StackFrames holds numbers by their names",
    ),
    "op": (
        "the op is one of the table",
        "the number of operands is right",
        "every required attribute is given",
        "operands are arrays, where the op does not take tuples",
        "the declared type is the one that follows from the operands",
        "what carries on or ends an op of the table takes the start of the same op",
        "a type before an operand is that of its definition",
        "a result type is left out only where it follows from operands and attributes",
    ),
    "graph": (
        "operands come before their users, and the root is a node",
        "callees come before their callers",
    ),
}
"""Rules by family; sentence k is rule `<family>-C<k>`."""


class NodePart(enum.Enum):
    """A part of a node's text that a complaint can point at."""

    OP = "op"
    TYPE = "type"
    NAME = "name"


@attrs.frozen
class Number:
    """The k-th number in the value of an attribute."""

    key: str
    position: int


Place: TypeAlias = NodePart | int | str | Number
"""A part, the position of an operand, the key of an attribute, or a number in its value."""


@attrs.frozen
class Complaint:
    """A broken rule of a node, before it is turned into a Diagnostic."""

    rule: str
    message: str
    at: Place = NodePart.OP
    help: str = ""


def sentence(rule: str) -> str:
    """The text of a rule; KeyError for one that does not exist."""
    family, _, number = rule.rpartition("-C")
    rules = OPS[family].rules if family in OPS else FAMILIES[family]
    if not 1 <= int(number) <= len(rules):
        raise KeyError(rule)
    return rules[int(number) - 1]


def rule_of(op: str, rule: str) -> str:
    """The id of the op's rule with this sentence, where several ops share the sentence."""
    return f"{op}-C{OPS[op].rules.index(rule) + 1}"


_NUMBER = re.compile(r"-?\d+")


@attrs.frozen(eq=False)
class InstructionSpan(Span):
    """The span of an opcode, with its instruction."""

    instruction: Instruction


def place_of(node: Node, place: Place) -> Span | None:
    """Where a part of a node was written; its opcode if the text has no such part."""
    span = node.span
    if not isinstance(span, InstructionSpan):
        return span
    written = span.instruction
    start, end = span.start, span.end
    match place:
        case NodePart.TYPE if written.type is not None:
            start, end = written.type.start, written.type.end
        case NodePart.NAME:
            start, end = written.name.start, written.name.end
        case int() if place < len(written.operands):
            start, end = written.operands[place].start, written.operands[place].end
        case str() | Number():
            start, end = _attribute_offsets(span, place)
    return Span(span.source, start, end)


def _attribute_offsets(span: InstructionSpan, place: str | Number) -> tuple[int, int]:
    """An attribute or a number in it; else the payload, the place of `constant` and `parameter`."""
    key = place.key if isinstance(place, Number) else place
    for attribute in span.instruction.attributes:
        if attribute.key != key:
            continue
        if isinstance(place, Number):
            numbers = list(_NUMBER.finditer(attribute.value))
            if place.position < len(numbers):
                start, end = numbers[place.position].span()
                return attribute.value_start + start, attribute.value_start + end
        return attribute.start, attribute.end
    payload = span.instruction.payload
    return (payload.start, payload.end) if payload else (span.start, span.end)
