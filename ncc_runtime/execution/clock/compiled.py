"""Compiles the functions of the clock's kernel with numba, and keeps the machine code on disk.

numba's own cache looks at the file of a function only, not at those of the functions that it calls.
Here the name of the cache's folder is a hash of all sources of this package, so no old code
survives a change.

Folders lie in the user's cache, or where that cannot be written in a temporary folder of the user's
own. Every process holds a lock on the folder that it uses. Folders that no process uses, and that
none has begun to use for a day, are removed but for the newest few.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
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


Function = TypeVar("Function", bound=Callable[..., object])


_jit: Callable[..., Callable[[Any], Any]] = numba.njit


def compiled(function: Function) -> Function:
    """The function as machine code that other compiled functions call."""
    return _made(function, no_cpython_wrapper=True)


def entry(function: Function) -> Function:
    """The same for one that Python calls; compiled when first called."""
    return _made(function, no_cpython_wrapper=False)


def _made(function: Function, no_cpython_wrapper: bool) -> Function:
    # the arrays of a ClockState are many: passing them on, and counting references to them, took
    # longer than the work; entries hold the arrays, and nothing in the kernel makes any
    made: Function = _jit(
        cache=_cache() is not None,
        error_model="numpy",
        _nrt=False,
        forceinline=no_cpython_wrapper,
        no_cfunc_wrapper=True,
        no_cpython_wrapper=no_cpython_wrapper,
    )(function)
    if _cache() is not None:
        kept = vars(made)["_cache"]
        _keep_if_there_is_room(kept)
        _load_without_compiler(kept)
    return made


def _keep_if_there_is_room(code: Any) -> None:
    """On a full disk nothing is kept, and all else goes on: numba would end the run."""
    save = code.save_overload

    def saved(*what: object) -> None:
        with contextlib.suppress(OSError):
            save(*what)

    vars(code)["save_overload"] = saved


def _load_without_compiler(code: Any) -> None:
    """What is kept needs nothing that numba compiles by; to get all that ready takes longer."""
    load, load_only = code.load_overload, getattr(code, "_load_overload", None)
    if load_only is None:  # numba's own name, of no release's promise
        return

    def loaded(signature: object, context: object) -> object:
        found = load_only(signature, context)
        return load(signature, context) if found is None else found

    vars(code)["load_overload"] = loaded


def is_compiled() -> bool:
    """Whether the machine code is there, so that the clock starts at once."""
    folder = _cache()
    return folder is not None and any(folder.rglob("*.nbc"))


@cache
def _cache() -> Path | None:
    """Tell numba where to keep what it compiles; None if nowhere."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = claim(digest.hexdigest()[:16])
    if folder is not None:
        vars(numba.config)["CACHE_DIR"] = str(folder)
    return folder
