"""Files and folders that appear complete or not at all, even if their writer dies.

A writer fills a temporary file beside the target and renames it. All the while it holds a lock on
the temporary file, which the system takes away when the writer dies. So a temporary file that can
be locked has no writer any more; the next writer in the same directory removes it.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ncc_runtime.errors import InputError


def check_target(path: str | os.PathLike[str], suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a file that could not be written, before anything is done for it; InputError."""
    place = os.fspath(path)
    if Path(place).is_dir():
        raise InputError(f"{place}: is a directory; give the name of a file")
    if suffixes and not place.endswith(suffixes):
        raise InputError(f"{place}: name a file that ends in {', '.join(suffixes)}")
    folder = Path(os.path.realpath(place)).parent
    if not folder.is_dir():
        raise InputError(f"{place}: there is no folder {folder}")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A stream whose contents become the file when all is written; the old file stays until then.

    A symbolic link is followed. What is no regular file (`/dev/stdout`, a pipe) is written to.
    Raises OSError with the name of the file, and leaves nothing, if it cannot be written.
    """
    place = os.fspath(path)
    try:
        if _is_special(place):
            with Path(place).open("wb") as special:
                yield special
            return
        target = Path(os.path.realpath(place))
        temporary, stream = _locked_temporary(target.parent)
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)  # after a successful replace there is none
    except BrokenPipeError:  # of a pipe, whose reader has left
        raise
    except OSError as error:  # of the stream, which names no file, or of the temporary file
        raise OSError(error.errno, error.strerror, place) from error
    sync(target.parent)
    _sweep(target.parent)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that at any moment either the old one or the complete new one is there."""
    with replacing(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write files into, which gets its name when all are written.

    InputError if something that is not an empty folder has the name, or there is no folder around
    it. Raises OSError, and leaves nothing, if a file cannot be written.
    """
    check_whole_folder(path)
    target = Path(os.path.realpath(path))
    temporary, handle = _locked_folder(target.parent)
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        os.close(handle)
        shutil.rmtree(temporary, ignore_errors=True)  # after a successful replace there is none
    sync(target.parent)
    _sweep(target.parent)


def check_whole_folder(path: str | os.PathLike[str]) -> None:
    """Refuse a folder that could not be made, before anything is done for it; InputError."""
    place = os.fspath(path)
    target = Path(os.path.realpath(place))
    if not target.parent.is_dir():
        raise InputError(f"{place}: there is no folder {target.parent}")
    if target.exists() and not target.is_dir():
        raise InputError(f"{place}: is a file; give the name of a folder")
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{place}: is not empty; give another folder, or empty this one")


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        temporary = parent / f".ncc-{os.urandom(8).hex()}.tmp"
        temporary.mkdir()
        try:
            handle = os.open(temporary, os.O_RDONLY)
        except FileNotFoundError:  # somebody swept it before it was locked
            continue
        with contextlib.suppress(OSError):  # a file system without locks: nothing is swept there
            fcntl.flock(handle, fcntl.LOCK_EX)
        if temporary.exists():
            return temporary, handle
        os.close(handle)


def _is_special(place: str) -> bool:
    """Whether something other than a regular file is there; OSError if a directory is."""
    try:
        mode = Path(place).stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return not stat.S_ISREG(mode)


def _locked_temporary(directory: Path) -> tuple[Path, BinaryIO]:
    while True:
        temporary = directory / f".ncc-{os.urandom(8).hex()}.tmp"
        stream = temporary.open("xb")
        with contextlib.suppress(OSError):  # a file system without locks: nothing is swept there
            fcntl.flock(stream, fcntl.LOCK_EX)
        if os.fstat(stream.fileno()).st_nlink:
            return temporary, stream
        stream.close()  # somebody swept it before it was locked


def sync(directory: Path) -> None:
    """Make the new name survive a power failure; not every file system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sweep(directory: Path) -> None:
    """Remove the temporary files of dead writers."""
    for temporary in directory.glob(f".ncc-{'[0-9a-f]' * 16}.tmp"):
        with contextlib.suppress(OSError):  # its writer lives, or it is gone or not ours
            _remove_unlocked(temporary)


def _remove_unlocked(path: Path) -> None:
    is_folder = path.is_dir() and not path.is_symlink()
    access = os.O_RDONLY if is_folder else os.O_RDWR
    handle = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if is_folder or stat.S_ISREG(os.fstat(handle).st_mode):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_folder:
                shutil.rmtree(path)
            else:
                path.unlink()
    finally:
        os.close(handle)
