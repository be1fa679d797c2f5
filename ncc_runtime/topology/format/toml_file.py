"""A TOML file that knows where its values stand, for complaints by line and column.

tomllib reads it, once a look at its brackets, dots and words has shown that this takes little:
tomllib takes memory by the square of a dotted key's length and recurses into brackets. Only when
something is wrong, tree-sitter's grammar finds the place of a key.
"""

import codecs
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ncc_runtime.errors import TopologyError, reason_of
from ncc_runtime.input_files import MOST_TOML_BYTES, FileRole, read_file, recognised

if TYPE_CHECKING:
    import os

    from tree_sitter import Node


_NUMBERS = re.compile(r"\d+")

MOST_DEPTH = 8
"""Keys of a dotted key, and brackets inside of brackets; a topology takes three of each."""

MOST_LETTERS = 256
"""Letters of a bare word: a key, a number or a date."""

_TOKEN = re.compile(
    r"""
    (?P<text>"{3}(?:[^\\]|\\.)*?(?:"{3}|\Z) | '{3}.*?(?:'{3}|\Z))
  | (?P<quoted>"(?:[^"\\\n]|\\.)*+"? | '[^'\n]*+'?)
  | (?P<word>[\w+-]++)
  | (?P<dot>[ \t]*\.[ \t]*)
  | (?P<open>[\[{]) | (?P<close>[\]}])
  | \#[^\n]*
    """,
    re.VERBOSE | re.DOTALL,
)

Path = Sequence[str | int]
"""Keys of tables and numbers of rows, from the top of the document."""


@attrs.frozen
class TomlFile:
    """The name of a file, and its text, in which errors find lines; "" for the shipped files."""

    origin: str
    text: str = attrs.field(default="", repr=False)
    rows: tuple[tuple[str, int], ...] = ()  # beginnings of keys that rows of [[level]] state

    @classmethod
    def read(
        cls, origin: str, file: "os.PathLike[str]", role: FileRole = FileRole.TOPOLOGY
    ) -> "TomlFile":
        """The text, with or without a mark of its byte order; TopologyError if there is none."""
        try:
            whole = read_file(file, MOST_TOML_BYTES)
            if other := recognised(whole, role):
                what = role.value if role is FileRole.FAULTS else f"a {role.value}"
                raise TopologyError(f"{origin}: not {what} in TOML, but {other}")
            data = whole.removeprefix(codecs.BOM_UTF8)  # errors of utf-8-sig count from behind it
            return cls(origin, data.decode() or "\n")  # "" would stand for a shipped file
        except OSError as error:
            raise TopologyError(f"{origin}: {reason_of(error)}") from error
        except UnicodeDecodeError as error:
            before = data[: error.start].decode()
            at = len(whole) - len(data) + error.start
            reason = f"not UTF-8 text at byte {at}; save it as UTF-8"
            raise TopologyError(f"{origin}{_after(before)}: {reason}") from error

    def tables(self) -> dict[str, Any]:
        """The document; TopologyError with line and column if it is not TOML."""
        self._check_extent()
        try:
            return tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            reason, _, at = str(error).partition(" (at ")
            numbers = _NUMBERS.findall(at)
            place = f":{':'.join(numbers)}" if numbers else _after(self.text)
            first, rest = reason[:1].lower(), reason[1:]
            raise TopologyError(f"{self.origin}{place}: not TOML: {first}{rest}") from error

    def _check_extent(self) -> None:
        """TopologyError where keys or brackets nest deep, or where a word is long."""
        depth = keys = 0
        before = None
        for token in _TOKEN.finditer(self.text):
            kind = token.lastgroup
            if kind == "open":
                depth += 1
            elif kind == "close":
                depth -= 1
            elif kind in ("word", "quoted"):
                keys = keys + 1 if before == "dot" else 1
            before = kind
            reason = ""
            if depth > MOST_DEPTH:
                reason = f"brackets more than {MOST_DEPTH} deep"
            elif keys > MOST_DEPTH:
                reason = f"a dotted key of more than {MOST_DEPTH} words"
            elif kind == "word" and token.end() - token.start() > MOST_LETTERS:
                reason = f"a key or a number of more than {MOST_LETTERS} letters"
            if reason:
                place = _after(self.text[: token.start()])
                raise TopologyError(f"{self.origin}{place}: {reason}")

    def error(self, key: str, reason: str) -> TopologyError:
        """A complaint about a dotted key, such as `link.latency_ps` or `level.Z.size`."""
        return self.error_at(self._path(key), key, reason)

    def error_at(self, path: Path, words: str, reason: str) -> TopologyError:
        """A complaint about the value at a path; `words` say of what."""
        about = f"{words}: " if words else ""
        return TopologyError(f"{self.origin}{self._place(path)}: {about}{reason}")

    def _path(self, key: str) -> Path:
        """Keys of a level count from its row; `fault 2` is that row."""
        word, space, number = key.partition(" ")
        if space and number.isdigit():
            return (word, int(number))
        for prefix, row in self.rows:
            if key.startswith(prefix):
                return ("level", row, key.removeprefix(prefix))
        return key.split(".")

    def states(self, key: str) -> bool:
        """Whether the file itself has a figure, and not its base."""
        return not self.text or tuple(self._path(key)) in self._starts()

    def _starts(self) -> dict[tuple[str | int, ...], int]:
        """Where every table, row and value begins, in bytes; of equal paths the first."""
        import tree_sitter  # only for errors: they load slowly
        import tree_sitter_toml

        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_toml.language()))
        root = parser.parse(self._data).root_node
        return {at: node.start_byte for at, node in reversed(list(_values(root)))}

    @property
    def _data(self) -> bytes:
        return self.text.encode()

    def _place(self, path: Path) -> str:
        """`:line:column` of the value, of as much of the path as there is, or of the base."""
        if not self.text:
            return ""
        starts = self._starts()
        known = (tuple(path[:end]) for end in range(len(path), 0, -1))
        start = next((starts[at] for at in known if at in starts), None)
        if start is None:  # a table that has no head of its own, or is an array of them
            below = (at for at, _ in starts.items() if path and at[:1] == tuple(path[:1]))
            start = min((starts[at] for at in below), default=None)
        if start is None:
            start = starts.get(("base",), starts.get(("name",), 0))
        return _after(self._data[:start].decode())


def _after(before: str) -> str:
    """`:line:column` of what follows a text."""
    return f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


PathNodes = Iterator[tuple[tuple[str | int, ...], "Node"]]


def _values(root: "Node") -> PathNodes:
    """Every table, row and value with its path, in the order of the document."""
    rows: dict[tuple[str | int, ...], int] = {}
    for node in root.named_children:
        if node.type == "pair":
            yield from _pair(node, ())
            continue
        if node.type not in ("table", "table_array_element"):
            continue
        head, *body = node.named_children
        path = _under_rows(_keys(head), rows)
        if node.type == "table_array_element":
            rows[path] = rows.get(path, -1) + 1
            path = (*path, rows[path])
        yield path, head
        for child in body:
            if child.type == "pair":
                yield from _pair(child, path)


def _under_rows(
    keys: tuple[str, ...], rows: dict[tuple[str | int, ...], int]
) -> tuple[str | int, ...]:
    """A table inside the last row of an array of tables counts from that row."""
    path: tuple[str | int, ...] = ()
    for number, key in enumerate(keys):
        path = (*path, key)
        if path in rows and number < len(keys) - 1:
            path = (*path, rows[path])
    return path


def _pair(node: "Node", above: tuple[str | int, ...]) -> PathNodes:
    head, value = node.named_children[0], node.named_children[-1]
    yield from _value(value, (*above, *_keys(head)))


def _value(node: "Node", path: tuple[str | int, ...]) -> PathNodes:
    yield path, node
    if node.type == "inline_table":
        for child in node.named_children:
            if child.type == "pair":
                yield from _pair(child, path)
    elif node.type == "array":
        members = (child for child in node.named_children if child.type != "comment")
        for number, child in enumerate(members):
            yield from _value(child, (*path, number))


def _keys(node: "Node") -> tuple[str, ...]:
    """The words of a bare, quoted or dotted key."""
    if node.type == "dotted_key":
        return tuple(word for child in node.named_children for word in _keys(child))
    text = (node.text or b"").decode()
    return (next(iter(tomllib.loads(f"{text} = 0"))),) if node.type == "quoted_key" else (text,)
