"""The folders where numba keeps the machine code of the clock, one for each version of its sources.

They lie in the user's cache, or in a temporary folder of the user's own where that cannot be
written. Every process holds a lock on the folder it uses. Folders that nobody uses, nor has begun
to use for a day, are removed but for the newest few.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs

KEPT = 4
"""Folders that stay, the one in use among them."""

DAY_S = 86_400
"""So young, a folder stays: there are file systems without locks."""

_PREFIX = "clock-"
_LOCK = "in-use"


def claim(digest: str) -> Path | None:
    """The folder of this version, locked until the process ends; None where none can be written."""
    for parent in _parents():
        folder = parent / f"{_PREFIX}{digest}"
        with contextlib.suppress(OSError):
            _lock(folder)
            _sweep(parent, folder)
            return folder
    return None


def _parents() -> Iterator[Path]:
    """Where folders may lie, the best first."""
    cache = Path(platformdirs.user_cache_dir("ncc"))
    if cache.is_absolute():  # without a home it is not
        yield cache
    own = Path(tempfile.gettempdir()) / f"ncc-{os.getuid()}"
    with contextlib.suppress(OSError):
        own.mkdir(mode=0o700, exist_ok=True)
        found = own.lstat()
        # machine code that somebody else put there would run as this user
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o22:
            yield own


def _lock(folder: Path) -> None:
    """Take a lock that others may share; OSError if nothing can be written there."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            os.utime(folder)
            return
        os.close(lock)  # somebody swept the folder before it was locked


def _sweep(parent: Path, used: Path) -> None:
    """Remove the oldest folders that nobody uses."""
    begun = []
    for one in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process has removed it
            begun.append((one == used, one.stat().st_mtime, one))
    begun.sort()
    for is_used, time_s, one in begun[:-KEPT]:
        if not is_used and time_s < time.time() - DAY_S:
            with contextlib.suppress(OSError):
                _remove_unused(one)


def _remove_unused(folder: Path) -> None:
    with (folder / _LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
