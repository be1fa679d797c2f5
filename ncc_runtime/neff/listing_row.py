"""One row of a listing as words, taken from left to right with complaints that name the line."""

import json
import re

from ncc_runtime.errors import NeffError

_WORD = re.compile(r'((?:"(?:[^"\\]|\\.)*"|[^\s";])+)|;.*|(")')
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)


class Row:
    """The words of a line and how far they are read."""

    def __init__(self, number: int, line: str) -> None:
        self.number = number
        matches = list(_WORD.finditer(line))
        self._words = [match[1] for match in matches if match[1]]
        self._at = 0
        if any(match[2] for match in matches):
            raise self.wrong("a quote is not closed")

    def wrong(self, message: str) -> NeffError:
        """The complaint about this line, to be raised."""
        return NeffError(f"line {self.number}: {message}")

    def is_done(self) -> bool:
        """Whether every word is read."""
        return self._at == len(self._words)

    def peek(self) -> str:
        """The next word, empty at the end."""
        return "" if self.is_done() else self._words[self._at]

    def end(self) -> None:
        """Complain of words that are left."""
        if not self.is_done():
            raise self.wrong(f"{self.peek()!r} is one word too many")

    def word(self, what: str) -> str:
        """The next word, whatever it is; `what` was expected if there is none."""
        if self.is_done():
            raise self.wrong(f"{what} expected at the end")
        self._at += 1
        return self._words[self._at - 1]

    def keyword(self, wanted: str) -> None:
        """The next word, which must be this one."""
        found = self.word(repr(wanted))
        if found != wanted:
            raise self.wrong(f"{wanted!r} expected, found {found!r}")

    def accept(self, wanted: str) -> bool:
        """Read the next word if it is this one."""
        taken = self.peek() == wanted
        self._at += taken
        return taken

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """The next word, which must have this form."""
        found = self.word(what)
        match = pattern.fullmatch(found)
        if match is None:
            raise self.wrong(f"{what} expected, found {found!r}")
        return match

    def integer(self, what: str) -> int:
        return int(self.match(_INTEGER, what)[0])

    def name(self, what: str) -> str:
        """A word, or any text in quotes."""
        return self.unquoted(self.word(what))

    def unquoted(self, word: str) -> str:
        """The text that a word stands for."""
        if not word.startswith('"'):
            return word
        try:
            return str(json.loads(word))
        except ValueError as error:
            raise self.wrong(f"{word} is no text in quotes: {error}") from error

    def ids(self, prefix: str) -> tuple[int, ...]:
        """A list such as `t3, t4`, possibly empty."""
        found: list[int] = []
        more = True
        while more and re.fullmatch(rf"{prefix}\d{{1,20}},?", self.peek(), re.ASCII):
            word = self.word("an id")
            more = word.endswith(",")
            found.append(int(word[len(prefix) :].rstrip(",")))
        return tuple(found)

    def numbered(self, prefix: str, number: int) -> None:
        """The id at the start of a row, which counts the rows of its section."""
        self.keyword(f"{prefix}{number}")
