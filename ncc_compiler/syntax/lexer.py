"""Tokens of HLO text, few and long; plain lines as one token each.

One master pattern finds where a token starts. Attribute values and literals are then extended to
their closing bracket by a scan without recursion, so nesting has no limit and garbage has no cost.
What is no token becomes one of type BAD that carries the reason; the parser reports it.

Most lines of a large text are plain instructions as XLA prints them. One pattern matches the whole
line (`plain_statement`), several times as fast as tokens through the parser. It accepts a subset of
the grammar, with the same meaning; all other lines (tuples, operands with types, deep braces,
comments, faults) are left to the tokens.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ncc_compiler.syntax.tree import ArrayText, Attribute, Instruction, Operand, Word


class Statement(NamedTuple):
    """A line that is one instruction, in the place of its tokens."""

    type: str
    instruction: Instruction
    start: int
    end: int
    next_line: int  # where the next line's first word starts


# Groups whose alternatives can fail half-way are `(?>(?:...)*)` and not `(?:...)*+`, which Python
# before 3.11.5 does not match (gh-106052); Debian 12 has 3.11.2.
WORD = r"[^\W\d][\w.\-]*+"
_COMMENT = r"(?>/\*(?s:.*?)\*/)"
BLANK = rf"(?>(?:\s++|{_COMMENT})*)"
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

_LIST_WITH_BODIES = re.compile(rf"\{{(?>(?:{BLANK}%?{WORD}{BLANK},)*){BLANK}\{{")
_STRING = r'"(?:[^"\\\n]|\\.)*+"'
_FLAT = rf'(?>(?:[^{{}}()\[\]"/\n]++|{_STRING}|/(?!\*))*)'
_NESTED = rf"(?>(?:[^{{}}()\[\]\"/\n]++|{_STRING}|/(?!\*)|\{{{_FLAT}\}}|\[{_FLAT}\])*)"
# Groups: 1 ROOT, 2 name, 3 type, 4 and 5 `constant` or `parameter` and its payload, or 6 and 7
# another op and its operands.
_HEAD = re.compile(
    rf"""
    (?>(ROOT[ \t]+)?)(?!(?:ENTRY|ROOT)[ \t]*=)
    (%[\w.\-]++|{WORD})[ \t]*=[ \t]*
    ([a-z][a-z0-9]*+\[[^\[\]\n]*+\](?:\{{(?=[\d:}}])[\d,]*+(?::[^{{}}=\n]*+)?\}})?)[ \t]+
    (?: (constant|parameter)\(([^\s(){{}}\[\]"/]++|\{{[^(){{}}\[\]"/\n]*+\}})\)
      | (?!(?:constant|parameter)\()([a-z][a-z0-9\-]*+)\((%[\w.\-]++(?>(?:,\ %[\w.\-]++)*))?\)
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
# The next line must begin a statement or end a body; otherwise the tokens report the fault.
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
        name=Word(name.removeprefix("%"), head.start(2), head.end(2)),
        type=ArrayText(kind, head.start(3), head.end(3)),
        op=Word(op or literal_op, *head.span(6 if op else 4)),
        operands=_operands(inside, head.start(7)) if inside else (),
        payload=Word(payload, *head.span(5)) if literal_op else None,
        attributes=tuple(attributes),
        is_root=root is not None,
    )
    return Statement("STATEMENT", instruction, start, at, end.end())


def _operands(inside: str, start: int) -> tuple[Operand, ...]:
    """Names with `%`, separated by a comma and a blank."""
    operands = []
    for written in inside.split(", "):
        end = start + len(written)
        operands.append(Operand(written[1:], start, end))
        start = end + 2
    return tuple(operands)


class Lexeme(NamedTuple):
    """One token: text is source[start:end], but for BAD, where it is the complaint."""

    type: str
    text: str
    start: int
    end: int


def name_of(token: Lexeme) -> str:
    """The name, without its `%`, that a NAME is or a DEFINITION starts with."""
    return token.text.rstrip("= \t").removeprefix("%")


ARRAY = r"[a-z][a-z0-9]*\[[^\[\]\n]*\](?:[ \t]*\{[ \t]*(?=[-\d:}])[-\d,\s]*(?::[^{}=\n]*)?\})?"
"""An array type and its layout, if any; faults inside are found when the type is read."""
_MASTER = re.compile(
    rf"""
    (?P<SKIP>(?>(?:\s++|\ufeff|//[^\n]*|{_COMMENT})+))
  | (?P<ATTRIBUTE>,{BLANK}(?P<key>{WORD})[ \t]*=[ \t]*)
  | (?P<ARRAY>{ARRAY})
  | (?P<DEFINITION>(?!(?:ENTRY|ROOT)[ \t]*=)(?:%[\w.\-]++|{WORD})[ \t]*=)
  | (?P<NAME>%[\w.\-]++|{WORD})
  | (?P<ROW>\d+[ \t]+(?:"(?:[^"\\\n]|\\.)*"|\{{[^{{}}\n]*\}}))
  | (?P<PUNCTUATION>->|[(){{}},:])
  | (?P<NUMBER>-?\d[\w.\-]*+)
    """,
    re.VERBOSE,
)
_PUNCTUATION = {
    "(": "_LPAR",
    ")": "_RPAR",
    "{": "_LBRACE",
    "}": "_RBRACE",
    ",": "_COMMA",
    ":": "_COLON",
    "->": "_ARROW",
}
_KEYWORDS = {
    "HloModule": "HLO_MODULE",
    "ENTRY": "ENTRY",
    "ROOT": "ROOT",
    "FileNames": "TABLE",
    "FunctionNames": "TABLE",
    "FileLocations": "TABLE",
    "StackFrames": "TABLE",
}
_LITERAL_OPS = {"constant", "parameter"}
_BRACKET = re.compile(
    rf"""[()\[\]{{}}]
      | "(?:[^"\\]|\\.)*+"
      | {_COMMENT}
      | " | /\*
      | \n[ \t]*(?:ROOT\s+)?(?:%[\w.\-]++|[^\W\d][\w.\-]*+)\s*=\s*(?:[a-z][a-z0-9]*\[|\()
    """,
    re.VERBOSE,
)
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_CLOSERS = frozenset(_CLOSES.values())
_MAX_FAILURES = 100
_BEFORE_OPS = frozenset({"ARRAY", "_RPAR", "DEFINITION"})
_MESH = re.compile(
    r"mesh\[[^\[\]\n]*\](?:\s*,\s*device_ids=\((?:[^()\n]|\([^()\n]*\))*\))?\s*\{[^{}\n]*\}"
)
_IOTA = re.compile(r"\[[^\[\]\n]*\]\s*<=\s*\[[^\[\]\n]*\](?:\s*T\([^()\n]*\))?")
_TYPE = re.compile(r"[a-z][a-z0-9]*\[[^\[\]\n]*\](?:\{[^{}=\n]*\})?")  # outfeed_shape=f32[4]{0}
_PLAIN = re.compile(r'"(?:[^"\\\n]|\\.)*+"|[^\s,(){}"]+')


def tokens(text: str) -> Iterator[Lexeme | Statement]:
    """The tokens of a text, comments left out, a plain line as one of them; never raises."""
    return _tokens(text, 0, len(text), by_line=True)


def expand_statements(text: str, lexed: Iterable[Lexeme | Statement]) -> Iterator[Lexeme]:
    """The same tokens, with each Statement replaced by the tokens of its line."""
    for token in lexed:
        if isinstance(token, Statement):
            yield from _tokens(text, token.start, token.end, by_line=False)
        else:
            yield token


def _tokens(text: str, at: int, end: int, *, by_line: bool) -> Iterator[Any]:
    """The tokens that start in [at, end); with `by_line` plain lines are Statements.

    `before` is the type of the last token: `constant` is an op after a type, else a name.
    """
    before, starts_line = "", by_line
    brackets = _Brackets(text)
    match_at = _MASTER.match
    while at < end:
        while starts_line and (statement := plain_statement(text, at)):
            yield statement
            at = statement.next_line
        starts_line = False
        match = match_at(text, at)
        if match is None:
            bad = _bad_token(text, at) if at < end else None
            if bad is None:
                at = _line_end(text, at)
                continue
            token = bad
            yield token
        elif (kind := match.lastgroup) == "SKIP":
            at = match.end()
            starts_line = by_line and "\n" in match[0]
            continue
        elif kind == "NAME" and before in _BEFORE_OPS and match[0] in _LITERAL_OPS:
            for token in _with_payload(brackets, match):
                yield token
        else:
            token = _attribute(brackets, match) if kind == "ATTRIBUTE" else _plain(kind, match)
            yield token
        at, before = token.end, token.type


def _plain(kind: str | None, match: re.Match[str]) -> Lexeme:
    text = match[0]
    if kind == "NAME":
        kind = _KEYWORDS.get(text, "NAME")
    elif kind == "PUNCTUATION":
        kind = _PUNCTUATION[text]
    assert kind is not None, text
    return Lexeme(kind, text, match.start(), match.end())


def _bad_token(text: str, at: int) -> Lexeme | None:
    """A BAD token for text that starts no other; None for a line that is a comment after `#`."""
    if text[at] == "#" and not text[text.rfind("\n", 0, at) + 1 : at].strip():
        return None
    if text.startswith("/*", at):
        return Lexeme("BAD", "'/*' is never closed", at, len(text))
    if text[at] == '"':
        string = _PLAIN.match(text, at)
        fact = "a string stands where none is expected" if string else "'\"' is never closed"
        return Lexeme("BAD", fact, at, string.end() if string else _line_end(text, at))
    return Lexeme("BAD", f"unexpected character {text[at]!r}", at, at + 1)


def _attribute(brackets: "_Brackets", match: re.Match[str]) -> Lexeme:
    """`key=value` of `, key=value`; the value reaches to the end of its brackets.

    If the value is a computation, the key alone: the instructions are tokens themselves.
    """
    text, start, at, key = match.string, match.start("key"), match.end(), match["key"]
    if holds_computations(key, text, at):
        return Lexeme("CALLEE", text[start:at], start, at)
    value = _MESH.match(text, at) or _IOTA.match(text, at) or _TYPE.match(text, at)
    if value:
        return Lexeme("ATTRIBUTE", text[start : value.end()], start, value.end())
    if text.startswith(("{", "[", "("), at):
        end = brackets.closing(at)
        if end < 0:
            return Lexeme("BAD", f"{text[at]!r} is never closed", at, at + 1)
        return Lexeme("ATTRIBUTE", text[start:end], start, end)
    value = _PLAIN.match(text, at)
    if value is None:
        fact = f"attribute {match['key']} has no value"
        return Lexeme("BAD", fact, start, max(start + 1, match.end("key")))
    return Lexeme("ATTRIBUTE", text[start : value.end()], start, value.end())


def _with_payload(brackets: "_Brackets", match: re.Match[str]) -> Iterator[Lexeme]:
    """`constant` or `parameter`, and the text in its parentheses as one LITERAL."""
    text, at = match.string, match.end()
    yield Lexeme("NAME", match[0], match.start(), at)
    if not text.startswith("(", at):
        return
    end = brackets.closing(at)
    if end < 0:
        yield Lexeme("BAD", "'(' is never closed", at, at + 1)
        return
    yield Lexeme("_LPAR", "(", at, at + 1)
    inner = text[at + 1 : end - 1]
    lead = len(inner) - len(inner.lstrip())
    if lead < len(inner):
        yield Lexeme("LITERAL", inner.strip(), at + 1 + lead, at + 1 + len(inner.rstrip()))
    yield Lexeme("_RPAR", ")", end - 1, end)


class _Brackets:
    """Finds closing brackets in one text, and gives up on a text that is full of open ones."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._failures = 0

    def closing(self, at: int) -> int:
        """The offset behind the bracket that closes the one at `at`, or -1.

        The search ends at the next line that looks like a definition, so that a bracket left open
        is blamed where it stands and costs no more than its own statement.
        """
        end = self._search(at) if self._failures < _MAX_FAILURES else -1
        self._failures += end < 0
        return end

    def _search(self, at: int) -> int:
        awaited: list[str] = []  # closing brackets, the innermost last
        for match in _BRACKET.finditer(self._text, at):
            mark = match[0]
            if mark in _CLOSES:
                awaited.append(_CLOSES[mark])
            elif mark in _CLOSERS:
                if mark != awaited.pop():
                    return -1
                if not awaited:
                    return match.end()
            elif mark[0] == "\n" or mark in ('"', "/*"):  # a definition, or never closed
                return -1
        return -1


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return end if end >= 0 else len(text)
