"""Methods of records, compiled once on a machine.

attrs writes the methods of a class as a text and has Python compile it, for each class in every
process: a fifth of the time of a short command, which has some three hundred. Python keeps the
bytecode of files, and not of such texts. Here it is kept in the user's cache, in a file for each
command, by a hash of the text: to the same text belongs the same bytecode, whoever wrote it. What
is not there is compiled as ever, and so is everything if attrs should come to compile its texts
otherwise.
"""

import hashlib
import importlib.util
import marshal
import re
import zlib
from types import CodeType
from typing import Any

from ncc_runtime.user_cache import folders, keep, kept

MOST = 4_000
"""Texts that are kept; in case of more, of other versions, those of this process alone."""

_SALT = re.compile(r"(?<=hash\(\()\s+-?\d+")


class RecordCode:
    """The bytecode that a command has from its last runs, and what it compiled itself."""

    def __init__(self, command: str) -> None:
        self._name = f"{command}-{importlib.util.MAGIC_NUMBER.hex()}.records"
        self._known: dict[bytes, CodeType] = {}
        self._used: dict[bytes, CodeType] = {}
        for folder in folders():
            if (content := kept(folder / self._name)) is not None:
                self._known = marshal.loads(content)  # noqa: S302 - this user's own, and undamaged
                return

    def compiled(self, text: Any, filename: str, mode: str, *how: Any, **settings: Any) -> Any:
        """What `compile` gives; kept if attrs calls it as it does today."""
        if how or settings or not isinstance(text, str):
            return compile(text, filename, mode, *how, **settings)
        if "hash((" in text:
            # attrs adds a number that differs between classes, and so between processes
            text, count = _SALT.subn(f" {zlib.crc32(filename.encode())}", text)
            if not count:
                return compile(text, filename, mode)
        key = hashlib.sha256(f"{filename}\n{mode}\n{text}".encode()).digest()
        if (code := self._known.get(key)) is None:
            code = compile(text, filename, mode)
        self._used[key] = code
        return code

    def save(self) -> None:
        """Keep what is new for the next run."""
        if self._used.keys() <= self._known.keys():
            return
        every = {**self._known, **self._used}
        content = marshal.dumps(every if len(every) <= MOST else self._used)
        any(keep(folder / self._name, content) for folder in folders())  # in the first that can be


def used_for(command: str) -> RecordCode:
    """From now on classes have their methods from there."""
    from attr import _make as attrs_in_the_making

    code = RecordCode(command)
    # a global of that name hides Python's own `compile` from that one file
    attrs_in_the_making.compile = code.compiled  # type: ignore[attr-defined]
    return code
