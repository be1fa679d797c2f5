"""Files that users name, read with suspicion: up to a size, JSON up to a depth.

Every reader has a limit. An endless file (a device, a pipe whose writer never ends) is refused once
it exceeds that, and takes no more memory than a file of that size.
"""

import errno
import json
import os
import stat
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO

MOST_MODEL_BYTES = 1 << 30
MOST_NEFF_BYTES = 1 << 34
MOST_TOML_BYTES = 1 << 20
MOST_JSON_BYTES = 1 << 24

MOST_DEPTH = 64
"""How deep arrays and objects of a JSON document may nest; ours have four levels."""

MOST_DIGITS = 400
"""Digits of a number; Python prints no number of 4,300, and none that we read has 25."""

_PIECE = 1 << 24


def read_file(file: str | os.PathLike[str] | Traversable, most: int) -> bytes:
    """The bytes of a file of at most `most`; OSError, with its name, where it cannot be read."""
    source = file if isinstance(file, Traversable) else Path(file)
    with source.open("rb") as stream:
        return read_stream(stream, most, str(file))


def read_stream(stream: IO[bytes], most: int, name: str) -> bytes:
    """The rest of a stream; OSError where it is endless by its nature or longer than that."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # bytes in memory, as of an archive
        status = None
    if status is not None and not os.isatty(stream.fileno()):
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            raise OSError(errno.EINVAL, "is a device; give the name of a file", name)
        if stat.S_ISREG(status.st_mode) and status.st_size - stream.tell() > most:
            raise _too_large(most, name)
    pieces: list[bytes] = []
    left = most
    while piece := stream.read(min(_PIECE, left + 1)):
        left -= len(piece)
        if left < 0:
            raise _too_large(most, name)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(most: int, name: str) -> OSError:
    return OSError(errno.EFBIG, f"has more than {most} bytes, the most that is read of it", name)


def json_of(data: bytes | str) -> object:
    """The value of a JSON text; ValueError, in one line, where it is none or beyond the limits.

    Numbers are finite and short, so that they can be compared, stored and printed.
    """
    try:
        document: object = json.loads(data, parse_int=_integer, parse_constant=_refused_constant)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_DEPTH} deep") from None
    level, depth = [document], 0
    while level := [
        child
        for parent in level
        if isinstance(parent, dict | list)
        for child in (parent.values() if isinstance(parent, dict) else parent)
    ]:
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError(f"nested more than {MOST_DEPTH} deep")
    return document


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _refused_constant(word: str) -> object:
    raise ValueError(f"{word} is no number of JSON")
