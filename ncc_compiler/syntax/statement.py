"""Plain instructions, one to a line as XLA prints them, read whole.

Most lines of a large text are such, and one pattern reads one several times as fast as its tokens
take through the parser. What the pattern takes is a part of what the grammar takes, with the same
meaning; whatever is not plain (a tuple, an operand with its type, deep braces, comments, a fault)
is left to the tokens.
"""

import re
from typing import NamedTuple

from ncc_compiler.syntax.tree import ArrayText, Attribute, Instruction, Operand, Word


class Statement(NamedTuple):
    """A line that is one instruction, in the place of its tokens."""

    type: str
    instruction: Instruction
    start: int
    end: int
    next_line: int  # where the next line's first word starts


WORD = r"[^\W\d][\w.\-]*+"
BLANK = r"(?:\s|/\*(?:[^*]|\*(?!/))*+\*/)*+"
_CALLEE_KEYS = frozenset(
    {
        "body",
        "calls",
        "condition",
        "false_computation",
        "scatter",
        "select",
        "to_apply",
        "true_computation",
    }
)
CALLEE_LISTS = frozenset({"branch_computations", "called_computations"})
"""Keys of attributes that name several computations."""

_LIST_WITH_BODIES = re.compile(rf"\{{(?:{BLANK}%?{WORD}{BLANK},)*+{BLANK}\{{")
_STRING = r'"(?:[^"\\\n]|\\.)*+"'
_FLAT = rf'(?:[^{{}}()\[\]"/\n]++|{_STRING}|/(?!\*))*+'
_NESTED = rf"(?:[^{{}}()\[\]\"/\n]++|{_STRING}|/(?!\*)|\{{{_FLAT}\}}|\[{_FLAT}\])*+"
_HEAD = re.compile(
    rf"""
    (ROOT[ \t]+)?+(?!(?:ENTRY|ROOT)[ \t]*=)
    (%[\w.\-]++|{WORD})[ \t]*=[ \t]*
    ([a-z][a-z0-9]*+\[[^\[\]\n]*+\](?:\{{(?=[\d:}}])[\d,]*+(?::[^{{}}=\n]*+)?\}})?)[ \t]+
    (?: (constant|parameter)\(([^\s(){{}}\[\]"/]++|\{{[^(){{}}\[\]"/\n]*+\}})\)
      | (?!(?:constant|parameter)\()([a-z][a-z0-9\-]*+)\((%[\w.\-]++(?:,\ %[\w.\-]++)*+)?\)
    )
    """,
    re.VERBOSE,
)
_ATTRIBUTE = re.compile(
    rf"""
    ,[ ]?({WORD})=
    ( \{{{_NESTED}\}} | \[[\d,]*+\]<=\[[\d,]*+\](?:T\([\d,]*+\))? | {_STRING}
      | [^\s,(){{}}"\[\]]++ )
    (?=[,\n]|\Z)
    """,
    re.VERBOSE,
)
# what comes next begins a statement or ends a body: a fault there is told as one of tokens is
_END = re.compile(rf"\n\s*+(?=ROOT[ \t]|(?:%[\w.\-]++|{WORD})[ \t]*=|\}})")


def holds_computations(key: str, text: str, at: int) -> bool:
    """Whether the value at `at` of an attribute is a computation itself instead of its name."""
    if key in _CALLEE_KEYS:
        return text.startswith("{", at)
    return key in CALLEE_LISTS and _LIST_WITH_BODIES.match(text, at) is not None


def plain_statement(text: str, start: int) -> Statement | None:
    """The plain instruction that starts here and ends with its line, if there is one."""
    head = _HEAD.match(text, start)
    if head is None:
        return None
    attributes, at = [], head.end()
    while match := _ATTRIBUTE.match(text, at):
        key, value = match.groups()
        if holds_computations(key, text, match.start(2)):
            return None
        at = match.end()
        attributes.append(Attribute(key, value, match.start(1), at - len(value), at))
    end = _END.match(text, at)
    if end is None:
        return None
    root, name, kind, literal_op, payload, op, inside = head.groups()
    instruction = Instruction(
        name=_name(name, head.start(2)),
        type=ArrayText(kind, head.start(3), head.end(3)),
        op=Word(op, head.start(6), head.end(6)) if op else _word(head, 4),
        operands=_operands(inside, head.start(7)) if inside else (),
        payload=Word(payload, head.start(5), head.end(5)) if literal_op else None,
        attributes=tuple(attributes),
        is_root=root is not None,
    )
    return Statement("STATEMENT", instruction, start, at, end.end())


def _word(match: re.Match[str], group: int) -> Word:
    return Word(match[group], match.start(group), match.end(group))


def _name(written: str, start: int) -> Word:
    """A name without its `%`, at a place that includes it."""
    return Word(written.removeprefix("%"), start, start + len(written))


def _operands(inside: str, start: int) -> tuple[Operand, ...]:
    """Names with `%`, separated by a comma and a blank."""
    found = []
    for written in inside.split(", "):
        end = start + len(written)
        found.append(Operand(written[1:], start, end))
        start = end + 2
    return tuple(found)
