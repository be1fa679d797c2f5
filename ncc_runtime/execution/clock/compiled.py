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
"""Younger folders stay, for there are file systems without locks."""

_PREFIX = "clock-"
_LOCK = "in-use"


def claim(digest: str) -> Path | None:
    """The folder of this version, locked until the process ends; None if none can be written."""
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
    folder = Path(tempfile.gettempdir()) / f"ncc-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        # machine code that somebody else put there would run as this user
        is_private = status.st_uid == os.getuid() and not status.st_mode & 0o22
        if stat.S_ISDIR(status.st_mode) and is_private:
            yield folder


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
    """Remove the oldest folders that no process uses."""
    folders = []
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process has removed it
            folders.append((folder == used, folder.stat().st_mtime, folder))
    folders.sort()
    for is_used, time_s, folder in folders[:-KEPT]:
        if not is_used and time_s < time.time() - DAY_S:
            # the lock cannot be taken where a process holds its own
            with contextlib.suppress(OSError), (folder / _LOCK).open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)


Function = TypeVar("Function", bound=Callable[..., object])


_jit: Callable[..., Callable[[Any], Any]] = numba.njit


def compiled(function: Function) -> Function:
    """The function as machine code that other compiled functions call."""
    return _jitted(function, no_cpython_wrapper=True)


def entry(function: Function) -> Function:
    """The same for one that Python calls; compiled when first called."""
    return _jitted(function, no_cpython_wrapper=False)


def _jitted(function: Function, no_cpython_wrapper: bool) -> Function:
    # A ClockState has many arrays. To pass them on and count references to them took longer than
    # the work, so all is inlined and nothing is counted: entries hold the arrays, and the kernel
    # makes none.
    jitted: Function = _jit(
        cache=_cache() is not None,
        error_model="numpy",
        _nrt=False,
        forceinline=no_cpython_wrapper,
        no_cfunc_wrapper=True,
        no_cpython_wrapper=no_cpython_wrapper,
    )(function)
    if _cache() is not None:
        code_cache = vars(jitted)["_cache"]
        _ignore_full_disk(code_cache)
        _load_without_compiler(code_cache)
    return jitted


def _ignore_full_disk(code_cache: Any) -> None:
    """On a full disk machine code is not kept; numba would end the run."""
    save = code_cache.save_overload

    def saved(*what: object) -> None:
        with contextlib.suppress(OSError):
            save(*what)

    vars(code_cache)["save_overload"] = saved


def _load_without_compiler(code_cache: Any) -> None:
    """Load kept machine code without the set-up of numba's compiler, which takes longer."""
    load, load_only = code_cache.load_overload, getattr(code_cache, "_load_overload", None)
    if load_only is None:  # a private name of numba, which a release may change
        return

    def loaded(signature: object, context: object) -> object:
        overload = load_only(signature, context)
        return load(signature, context) if overload is None else overload

    vars(code_cache)["load_overload"] = loaded


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
