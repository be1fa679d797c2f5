"""The clock's kernel as machine code: compiled by numba once, and kept on disk.

numba's own cache looks at the file of a function only, not at those of the functions that it calls.
Here the name of the cache's folder is a hash of the sources of the kernel, of numba's version and
of the processor, so no old code survives a change, nor that of another machine on the same disk.

Folders lie in the user's cache, or where that cannot be written in a temporary folder of the user's
own. Every process holds a lock on the folder that it uses. Folders that no process uses, and that
none has begun to use for a day, are removed but for the newest few. One process compiles at a time;
those that wait for it find the code when it is done. Locks are the system's, which frees them when
a process ends, however it ends.

numba, and what looks for its code, are imported when the code is needed: that takes longer than
most runs of the kernel without it (`uncompiled.py`).
"""

import contextlib
import fcntl
import inspect
import os
import stat
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ncc_runtime.execution.clock import kernel, max_min, tables
from ncc_runtime.execution.clock.tables import ClockState
from ncc_runtime.progress import phase

KEPT = 4
"""Folders that stay, the one in use among them."""

DAY_S = 86_400
"""Younger folders stay, for there are file systems without locks."""

_MODULES = (max_min, kernel)
"""Whose functions are compiled; the first module calls nothing of the second."""

_PREFIX = "clock-"
_LOCK = "in-use"
_COMPILING = "compiling"


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
    import tempfile

    import platformdirs

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
                import shutil

                shutil.rmtree(folder)


@contextlib.contextmanager
def _alone(folder: Path | None) -> Iterator[None]:
    """Wait while another process compiles into a folder; where nothing can be locked, do not."""
    if folder is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        waiting = phase("waiting for a process that compiles the clock", "")
        with contextlib.suppress(OSError), waiting:
            lock = stack.enter_context((folder / _COMPILING).open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_loaded() -> bool:
    """Whether this process has the machine code."""
    return _kernel.cache_info().currsize > 0


def is_kept() -> bool:
    """Whether the machine code lies on disk."""
    folder = _folder()
    return folder is not None and any(folder.glob(f"*/kernel.{kernel.run.__name__}-*.nbc"))


def run(machine: ClockState) -> int:
    """As `kernel.run`. The first call loads the machine code, or compiles it."""
    if is_loaded() or is_kept():
        return _kernel()(machine)
    with _alone(_folder()), _counted():
        return _kernel()(machine)


def _functions(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """What a file of the kernel defines."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return {name: each for name, each in functions if each.__module__ == module.__name__}


@contextlib.contextmanager
def _counted() -> Iterator[None]:
    """A phase that counts the functions that numba compiles."""
    from numba.core import event

    count = sum(len(_functions(module)) for module in _MODULES)
    with phase("compiling the clock, once on this machine", "functions", count) as now:

        class CompiledFunctions(event.Listener):
            def on_start(self, _: object) -> None:
                pass

            def on_end(self, _: object) -> None:
                now.done = min(now.done + 1, count - 1)  # some are compiled for several types

        with event.install_listener("numba:compile", CompiledFunctions()):
            yield


@cache
def _kernel() -> Callable[[ClockState], int]:
    """`kernel.run` for numba, and all that it calls; each is compiled when it is first called."""
    import numba

    jit: Callable[..., Callable[[Any], Any]] = numba.njit
    folder = _folder()
    if folder is not None:
        vars(numba.config)["CACHE_DIR"] = str(folder)
    functions: dict[str, Any] = {}
    for module in _MODULES:
        namespace = {**vars(module), **functions}  # in which calls find machine code
        for name, function in _functions(module).items():
            is_entry = name == kernel.run.__name__
            # A ClockState has many arrays. To pass them on and count references to them took longer
            # than the work, so all is inlined and nothing is counted: the entry holds the arrays,
            # and the kernel makes none.
            functions[name] = namespace[name] = jit(
                cache=is_entry and folder is not None,
                error_model="numpy",
                _nrt=False,
                forceinline=not is_entry,
                no_cfunc_wrapper=True,
                no_cpython_wrapper=not is_entry,
            )(types.FunctionType(function.__code__, namespace, name))
    entry = functions[kernel.run.__name__]
    if folder is not None:
        code_cache = vars(entry)["_cache"]
        _ignore_full_disk(code_cache)
        _load_without_compiler(code_cache)
        _forget_damaged(code_cache)
    machine_code: Callable[[ClockState], int] = entry
    return machine_code


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


def _forget_damaged(code_cache: Any) -> None:
    """Compile again where kept files are damaged, as by a loss of power; numba would raise."""
    load = code_cache.load_overload

    def loaded(signature: object, context: object) -> object:
        try:
            return load(signature, context)
        except Exception:  # noqa: BLE001 - of pickle or LLVM, which raise many kinds
            with contextlib.suppress(OSError):
                code_cache.flush()
            return None

    vars(code_cache)["load_overload"] = loaded


@cache
def _folder() -> Path | None:
    """The folder of this code, this numba and this processor; None if none can be written."""
    import hashlib
    import importlib.metadata
    import platform

    what = [importlib.metadata.version("numba"), sys.version, __file__, platform.machine()]
    with contextlib.suppress(OSError):  # the first processor's features: without /proc, none
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 13).partition("\n\n")[0].splitlines()
        what += [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    digest = hashlib.sha256("\n".join(what).encode())
    for module in (*_MODULES, tables, sys.modules[__name__]):
        digest.update(Path(str(module.__file__)).read_bytes())
    return claim(digest.hexdigest()[:16])
