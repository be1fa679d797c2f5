"""What takes long to make, kept from one command to the next.

A kept file begins with a hash of what follows, so that damaged contents are never used, and appears
whole or not at all. A full disk or one that cannot be written is no reason to end a run.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import platformdirs


def folders() -> Iterator[Path]:
    """Folders that only this user can write, the best first; made where they are not there.

    The user's cache, then a temporary folder of the user's own. What lies there may be run as code:
    where somebody else could have put it, a folder is left out.
    """
    cache = Path(platformdirs.user_cache_dir("ncc"))
    with contextlib.suppress(OSError):
        if cache.is_absolute():  # without a home it is not
            cache.mkdir(parents=True, exist_ok=True)
            yield cache
    import tempfile

    with contextlib.suppress(OSError):  # there may be none, either
        folder = Path(tempfile.gettempdir()) / f"ncc-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_private = status.st_uid == os.getuid() and not status.st_mode & 0o22
        if stat.S_ISDIR(status.st_mode) and is_private:
            yield folder


def kept(path: Path) -> bytes | None:
    """What a file holds, if it is there and as it was written."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, content = content[:32], content[32:]
    return content if hashlib.sha256(content).digest() == digest else None


def keep(path: Path, content: bytes) -> bool:
    """Write a file; whether that was possible."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        try:
            part.write_bytes(hashlib.sha256(content).digest() + content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError:
        return False
    return True
