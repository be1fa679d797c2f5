"""Files that appear whole or not at all, whatever becomes of their writer.

A writer fills a temporary file beside the target and renames it. All the while it holds a lock on
the temporary file, which the system takes away when the writer dies. So a temporary file that can
be locked has no writer any more; the next writer in the same directory removes it.
"""

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A stream whose contents become the file when all is written; the old one stays till then.

    A symbolic link is followed. Raises OSError, and leaves nothing, if the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    temporary, stream = _locked_temporary(target.parent)
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)  # after a successful replace there is none
    _sync(target.parent)
    _sweep(target.parent)


def _locked_temporary(directory: Path) -> tuple[Path, BinaryIO]:
    while True:
        temporary = directory / f".ncc-{secrets.token_hex(8)}.tmp"
        stream = temporary.open("xb")
        with contextlib.suppress(OSError):  # a file system without locks: nothing is swept there
            fcntl.flock(stream, fcntl.LOCK_EX)
        if os.fstat(stream.fileno()).st_nlink:
            return temporary, stream
        stream.close()  # somebody swept it before it was locked


def _sync(directory: Path) -> None:
    """Make the new name survive a power failure; not every file system can be asked to."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sweep(directory: Path) -> None:
    """Remove the temporary files of dead writers."""
    for left in directory.glob(".ncc-*.tmp"):
        with contextlib.suppress(OSError):  # its writer lives, or it is gone or not ours
            _remove_unlocked(left)


def _remove_unlocked(path: Path) -> None:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    finally:
        os.close(handle)
