"""Text to syntax tree, by lark; a line that cannot be read is reported and left out.

Recovery is panic mode: after an error the parser's stacks are cut back to where the next line that
starts a statement can be read. Names defined by lines left out are remembered in `File.broken`, so
that their uses are not reported as well.
"""

import functools
import hashlib
import io
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import lark
from lark import Lark
from lark.exceptions import UnexpectedToken
from lark.lexer import Lexer
from lark.parsers.lalr_analysis import Shift

from ncc_compiler.diagnostics import Diagnostic, Source, Span
from ncc_compiler.syntax.grow import TreeBuilder
from ncc_compiler.syntax.lexer import Lexeme, expand_statements, name_of, tokens
from ncc_compiler.syntax.tree import File
from ncc_runtime.user_cache import folders, keep, kept

MAX_ERRORS = 20
"""Syntax errors reported of one text; more would be consequences of the first."""

_HEADING = re.compile(
    r"[ \t]*(ENTRY\s+)?(%[\w.\-]+|[^\W\d][\w.\-]*)(?!\s*=)[^\n]*\{[ \t\r]*(?://[^\n]*)?(?=\n|$)"
)
_STATEMENT_STARTS = frozenset({"DEFINITION", "ROOT"})
_LINE_STARTS = _STATEMENT_STARTS | {"_RBRACE", "NAME", "ENTRY", "TABLE", "ROW"}
_SPELLINGS = {
    "DEFINITION": "a definition such as '%y = …'",
    "_LBRACE": "'{'",
    "ARRAY": "a type such as f32[2,3]",
    "NAME": "a name",
    "LITERAL": "a literal",
    "_LPAR": "'('",
    "_RPAR": "')'",
    "_COMMA": "','",
    "_COLON": "':'",
    "_ARROW": "'->'",
    "_RBRACE": "'}'",
    "ATTRIBUTE": "an attribute such as ', index=0'",
    "ROW": "a row of the table",
}
"""How messages name terminals, in the order in which a message lists them."""


class _Tokens(Lexer):
    """Our tokens in the place of lark's own."""

    def __init__(self, lexer_conf: object) -> None:
        del lexer_conf

    __future_interface__ = 2

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[Any]:
        del parser_state
        return tokens(lexer_state.text.text)


@functools.cache
def _lark() -> Lark:
    """The parser, whose tables lark makes once: that takes longer than to parse most texts.

    They lie in the user's cache, in a file for each grammar, release of lark and version of this
    file, whose classes the tables name.
    """
    text = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    version = hashlib.sha256(f"{sys.version}\n{lark.__version__}\n{__name__}\n{text}".encode())
    version.update(Path(__file__).read_bytes())
    name = f"grammar-{version.hexdigest()[:16]}.tables"
    for folder in folders():
        if (tables := kept(folder / name)) is not None:
            return Lark.load(io.BytesIO(tables))
    parser = Lark(
        text,
        parser="lalr",
        lexer=_Tokens,
        start="module",
        transformer=TreeBuilder(),
        maybe_placeholders=True,
    )
    saved = io.BytesIO()
    parser.save(saved)
    any(keep(folder / name, saved.getvalue()) for folder in folders())  # in the first that can be
    return parser


def parse(source: Source) -> tuple[File, tuple[Diagnostic, ...]]:
    """The tree of whatever could be read, and what is wrong with the rest."""
    return _Parsing(source).run()


class _Parsing:
    """One text on its way through the parser."""

    def __init__(self, source: Source) -> None:
        parser: Any = _lark().parse_interactive(source.text)
        self._source = source
        self._state = parser.parser_state
        self._tokens: Iterator[Any] = parser.lexer_thread.lex(parser.parser_state)
        self._diagnostics: list[Diagnostic] = []
        self._broken: set[str] = set()
        self._by_line = True  # until the first line that does not fit

    def run(self) -> tuple[File, tuple[Diagnostic, ...]]:
        feed, token = self._state.feed_token, None
        while True:
            try:
                if token is not None:
                    feed(token)
                for token in self._tokens:
                    feed(token)
                break
            except UnexpectedToken as error:
                if self._by_line:
                    token = self._expand_lines(token)
                    continue
                token = self._recover(token, error.expected)
                if token is None:
                    break
        return self._finish(), tuple(self._diagnostics)

    def _expand_lines(self, token: Any) -> Any:
        """From this token on lines are tokens, so that an error names a place inside its line."""
        self._by_line = False
        rest = itertools.chain([token], self._tokens)
        self._tokens = expand_statements(self._source.text, rest)
        return next(self._tokens)

    def _finish(self) -> File:
        length = len(self._source.text)
        end: Any = Lexeme("$END", "", length, length)
        try:
            file: File = self._state.feed_token(end, is_end=True)
        except UnexpectedToken as error:
            if len(self._diagnostics) < MAX_ERRORS:
                self._report(end, error.expected)
            self._cut_back("ROOT")
            self._close_body()
            file = self._state.feed_token(end, is_end=True)
        return attrs.evolve(
            file,
            source=self._source,
            broken=frozenset(self._broken),
            is_whole=not self._diagnostics,
        )

    def _recover(self, token: Any, expected: Any) -> Any:
        """Report, cut the stacks back, and return the token to continue with, if any."""
        self._report(token, expected)
        if len(self._diagnostics) >= MAX_ERRORS:
            return None
        line_start = self._source.text.rfind("\n", 0, token.start) + 1
        heading = _HEADING.match(self._source.text, line_start)
        if heading and not self._starts_line(token) and self._cut_back("ENTRY"):
            self._open_body(heading)
        skipped = False
        for following in itertools.chain([token], self._tokens):
            if following.type == "DEFINITION":
                self._broken.add(name_of(following))
            if self._starts_line(following) and self._resumes_at(following, skipped=skipped):
                if following.type == "DEFINITION":
                    self._broken.discard(name_of(following))
                return following
            skipped = True
        self._cut_back("ROOT")
        return None

    def _resumes_at(self, token: Any, *, skipped: bool) -> bool:
        """Whether the parser, cut back, can go on with this first token of a line."""
        if token.type in _STATEMENT_STARTS:
            return self._cut_back("ROOT")
        if token.type in ("ENTRY", "NAME"):
            if not _HEADING.match(self._source.text, token.start) or not self._cut_back("ENTRY"):
                return False
            self._close_body()
            return True
        return token.type in _LINE_STARTS and skipped and self._cut_back(token.type)

    def _cut_back(self, terminal: str) -> bool:
        """Drop the innermost unfinished constructs until `terminal` may follow."""
        states, values = self._state.state_stack, self._state.value_stack
        # a computation may also follow once the `}` of an open one is supplied
        closing = "_RBRACE" if terminal == "ENTRY" else terminal
        for depth in range(len(states), 0, -1):
            if self._accepts(depth, terminal) or self._accepts(depth, closing):
                # the value stack is one shorter: the start state has no value
                for value in values[depth - 1 :]:
                    if isinstance(value, Lexeme) and value.type == "DEFINITION":
                        self._broken.add(name_of(value))
                del states[depth:]
                del values[depth - 1 :]
                return True
        return False

    def _accepts(self, depth: int, terminal: str) -> bool:
        """Whether the parser, cut back to this depth, could shift the terminal.

        Plays the reductions that come before the shift on a copy of the LALR stack.
        """
        states = self._state.parse_conf.states
        if terminal not in states[self._state.state_stack[depth - 1]]:
            return False
        stack = self._state.state_stack[:depth]
        while True:
            action, rule = states[stack[-1]].get(terminal, (None, None))
            if action is Shift or action is None:
                return action is Shift
            del stack[len(stack) - len(rule.expansion) :]
            stack.append(states[stack[-1]][rule.origin.name][1])

    def _close_body(self) -> None:
        """Supply the `}` of an open computation, and of those written in place inside of it."""
        stack = self._state.state_stack
        while self._accepts(len(stack), "_RBRACE") and not self._accepts(len(stack), "ENTRY"):
            self._feed("_RBRACE", "}")

    def _open_body(self, heading: re.Match[str]) -> None:
        """Read a faulty heading as one without signature, so that its body is a body."""
        self._close_body()
        if heading[1]:
            self._feed("ENTRY", "ENTRY")
        self._feed("NAME", heading[2], heading.start(2))
        self._feed("_LBRACE", "{")
        end = heading.end()
        rest = self._tokens
        self._tokens = (token for token in rest if token.start >= end)

    def _feed(self, terminal: str, text: str, start: int = 0) -> None:
        token: Any = Lexeme(terminal, text, start, start + len(text))
        self._state.feed_token(token)

    def _starts_line(self, token: Any) -> bool:
        """Whether only blanks precede it in its line; reads only these, since lines may be long."""
        text, at = self._source.text, token.start - 1
        while at >= 0 and text[at] != "\n" and text[at].isspace():
            at -= 1
        return at < 0 or text[at] == "\n"

    def _report(self, token: Any, expected: Any) -> None:
        """Say what the terminals `expected` are in words, and what stands there instead."""
        span = Span(self._source, token.start, token.end)
        is_unfinished = _STATEMENT_STARTS.isdisjoint(expected)  # in the middle of a statement
        # among operands an operation may stand in place of a name: not named, since few mean that
        unusual = {"_LPAR", "CALLEE"} if "_RPAR" in expected else set()
        spelled = [text for key, text in _SPELLINGS.items() if key in set(expected) - unusual]
        listed = " or ".join(filter(None, [", ".join(spelled[:-1]), *spelled[-1:]]))
        if token.type == "BAD":  # the lexer says what is wrong
            message = token.text
        elif token.type == "$END":
            span = self._behind_line_before(token)
            message = f"expected {listed}, found the end of the file"
        elif is_unfinished and self._starts_line(token):
            span = self._behind_line_before(token)
            message = f"expected {listed}, found the end of the line"
        else:
            message = f"expected {listed}, found {token.text.strip()[:40]!r}"
        help_text = _advice(token.type, expected)
        self._diagnostics.append(Diagnostic("syntax-C1", message, span, help=help_text))

    def _behind_line_before(self, token: Any) -> Span:
        end = len(self._source.text[: token.start].rstrip())
        return Span(self._source, end, end + 1)


def _advice(kind: str, expected: Any) -> str:
    if kind == "NAME" and "ARRAY" in expected and "NAME" not in expected:
        return "the result type stands before the op: %y = f32[2,3] add(%a, %b)"
    if kind == "_LBRACE" and "ARRAY" in expected:
        return "an attribute stands behind a comma: negate(%a), index=0"
    if kind == "ATTRIBUTE" and "_RPAR" in expected:
        return "attributes stand behind the operands' ')'"
    if kind == "$END" and "_RBRACE" in expected:
        return "close the computation with '}'"
    return ""
