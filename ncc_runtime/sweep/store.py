"""Results on disk: a JSON line for each finished point, appended as points end.

Only the process that began a sweep writes, and holds a lock on the file while it does. Lines go to
the system as they are written, so that nothing is lost when the process is killed, at whatever
moment; once a second they also go to the disk itself, so that a power failure costs a second. Of a
line that is cut off, or otherwise no result of this schema, nothing counts, and the point is
computed again. What counts of a point is its last line.
"""

import contextlib
import errno
import fcntl
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec

from ncc_runtime.errors import InputError, reason_of
from ncc_runtime.sweep.results import PointResult, Status

SCHEMA = 1
"""Of a line; lines of another are left where they are, and do not count."""

SYNC_S = 1.0
"""Between two moments at which lines go to the disk itself."""

_BEGIN = b'{"schema": '
"""Of every line, so that no other file is taken for one of ours, and cut."""


class _ResultLine(msgspec.Struct):
    schema: int


class ResultFile:
    """The results of a file, and the end of it, to which more are appended.

    - `results`: by key of the point
    - `broken`: lines that do not count
    """

    def __init__(self, path: str, stream: io.FileIO) -> None:
        """`stream` is at the beginning of the file, and not buffered."""
        self.path = path
        self.results: dict[str, PointResult] = {}
        self.broken = 0
        self._stream = stream
        self._synced_s = time.monotonic()
        whole = 0
        reader = io.BufferedReader(stream)
        for line in reader:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            if (result := _result(line)) is not None:
                self.results[result.key] = result
            else:
                self.broken += 1
        reader.detach()
        stream.truncate(whole)  # a line whose writer was killed
        stream.seek(whole)

    def add(self, results: Sequence[PointResult], words: Mapping[str, Mapping[str, Any]]) -> None:
        """Append results; `words` say by key what each point is, for who reads the file.

        OSError with the file's name if it cannot be written.
        """
        lines = []
        for result in results:
            self.results[result.key] = result
            fields = {"schema": SCHEMA, **attrs.asdict(result), "point": words[result.key]}
            lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
        with _named(self.path):
            left = memoryview("".join(lines).encode())
            while left:
                left = left[self._stream.write(left) :]
            if time.monotonic() - self._synced_s > SYNC_S:
                self._synced_s = time.monotonic()
                os.fsync(self._stream.fileno())


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors of a stream, which names no file, have its name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


@contextlib.contextmanager
def result_file(path: str) -> Iterator[ResultFile]:
    """The results in a file, which is made if it is not there, and kept locked.

    InputError if it is no such file, or another sweep writes to it; OSError with its name.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise InputError(f"{path}: is no file that can go on; give another file with --out")
    try:
        stream = Path(path).open("a+b", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise InputError(
                    f"{path}: another sweep is writing to it; wait for its end, or give another "
                    "file with --out"
                ) from None
            # a file system without locks
        stream.seek(0)
        begin = stream.read(len(_BEGIN))
        if begin != _BEGIN[: len(begin)]:
            raise InputError(f"{path}: no results of a sweep; give another file with --out")
        stream.seek(0)
        yield ResultFile(path, stream)
        with _named(path):
            os.fsync(stream.fileno())


def _result(line: bytes) -> PointResult | None:
    """The result of a line; None if it is none of this schema."""
    try:
        if msgspec.json.decode(line, type=_ResultLine).schema != SCHEMA:
            return None
        result = msgspec.json.decode(line, type=PointResult)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if result.status is Status.DONE and result.time_us is None else result
