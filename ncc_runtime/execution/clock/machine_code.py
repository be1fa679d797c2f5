"""The clock's kernel as machine code: compiled by numba once, and kept on disk as an object file.

numba is imported to compile only. What is kept is loaded by llvmlite alone, in a tenth of the time
that numba takes to be imported and to load from its own cache, which also looks at the file of a
function only, not at those of the functions that it calls. Here the name of the folder is a hash of
the sources of the kernel, of the versions of numba and llvmlite and of the processor, so no old
code survives a change, nor that of another machine on the same disk; the file begins with a hash of
what follows, so damaged code is never run.

Folders lie in the user's cache, or where that cannot be written in a temporary folder of the user's
own. Every process holds a lock on the folder that it uses. Folders that no process uses, and that
none has begun to use for a day, are removed but for the newest few. One process compiles at a time;
those that wait for it find the code when it is done. Locks are the system's, which frees them when
a process ends, however it ends.

What looks for the code is imported when it is needed: that takes longer than most runs of the
kernel without it (`uncompiled.py`).
"""

import contextlib
import fcntl
import importlib.util
import inspect
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ncc_runtime.execution.clock import kernel, max_min, tables
from ncc_runtime.execution.clock.tables import RECORDS, ClockState
from ncc_runtime.progress import phase

KEPT = 4
"""Folders that stay, the one in use among them."""

DAY_S = 86_400
"""Younger folders stay, for there are file systems without locks."""

_MODULES = (max_min, kernel)
"""Whose functions are compiled; the first module calls nothing of the second."""

_KINDS = tuple(RECORDS.get(field, np.dtype(np.int64)) for field in ClockState._fields)
"""Of the tables of a ClockState, in order."""

_PREFIX = "clock-"
_OBJECT = "kernel.o"
_LOCK = "in-use"
_COMPILING = "compiling"


def claim(digest: str) -> Path | None:
    """The folder of this version, locked until the process ends; None if none can be written."""
    from ncc_runtime.user_cache import folders

    for parent in folders():
        folder = parent / f"{_PREFIX}{digest}"
        with contextlib.suppress(OSError):
            _lock(folder)
            _sweep(parent, folder)
            return folder
    return None


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
    return folder is not None and (folder / _OBJECT).exists()


def run(machine: ClockState) -> int:
    """As `kernel.run`. The first call loads the machine code, or compiles it."""
    return _kernel()(machine)


@cache
def _kernel() -> Callable[[ClockState], int]:
    """`kernel.run`, and all that it calls, as machine code: what is kept, or compiled now."""
    folder = _folder()
    if (code := _kept(folder)) is None:
        with _alone(folder):
            if (code := _kept(folder)) is None:  # nor has another process compiled it meanwhile
                with _counted():
                    code = _compiled()
                _keep(folder, code)
    return _callable(*_loaded(code))


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


@attrs.frozen
class ObjectCode:
    """An object file, and the name that its function has."""

    name: str
    data: bytes


@contextlib.contextmanager
def _without_wrapping() -> Iterator[None]:
    """Compile indices as they are: in Python -1 is the last, and numba asks each whether it is.

    No index of the kernel is negative. A fifth of its time went into the question, for it does
    little else than follow numbers of records.
    """
    from numba.core.types import intp
    from numba.np import arrayobj

    def as_it_is(context: Any, builder: Any, kind: Any, index: Any, _: Any) -> Any:
        return context.cast(builder, index, kind, intp)

    wrapping = getattr(arrayobj, "fix_integer_index", None)
    if wrapping is None:  # of a numba that does it otherwise
        yield
        return
    arrayobj.fix_integer_index = as_it_is
    try:
        yield
    finally:
        arrayobj.fix_integer_index = wrapping


def _compiled() -> ObjectCode:
    """The kernel compiled by numba, all in one function."""
    import numba

    jit: Callable[..., Callable[[Any], Any]] = numba.njit
    typeof: Callable[[ClockState], Any] = vars(numba)["typeof"]
    functions: dict[str, Any] = {}
    for module in _MODULES:
        namespace = {**vars(module), **functions}  # in which calls find machine code
        for name, function in _functions(module).items():
            is_entry = name == kernel.run.__name__
            # A ClockState has many arrays. To pass them on and count references to them took longer
            # than the work, so all is inlined and nothing is counted: the entry holds the arrays,
            # and the kernel makes none. Wrappers would need symbols that only numba has.
            functions[name] = namespace[name] = jit(
                error_model="numpy",
                _nrt=False,
                forceinline=not is_entry,
                no_cfunc_wrapper=True,
                no_cpython_wrapper=True,
            )(types.FunctionType(function.__code__, namespace, name))
    entry = functions[kernel.run.__name__]
    state = ClockState(*(np.zeros(1, kind) for kind in _KINDS))
    signature = (typeof(state),)
    with _without_wrapping():
        entry.compile(signature)
    compiled = entry.overloads[signature]
    _, _, (data, _) = compiled.library.serialize_using_object_code()
    return ObjectCode(compiled.fndesc.llvm_func_name, data)


def _keep(folder: Path | None, code: ObjectCode) -> None:
    """Put it on disk, if that can be."""
    if folder is not None:
        from ncc_runtime.user_cache import keep

        keep(folder / _OBJECT, code.name.encode() + b"\n" + code.data)


def _kept(folder: Path | None) -> ObjectCode | None:
    """What lies on disk, if it is as it was written."""
    if folder is None:
        return None
    from ncc_runtime.user_cache import kept

    if (content := kept(folder / _OBJECT)) is None:
        return None
    name, _, data = content.partition(b"\n")
    return ObjectCode(name.decode(), data)


def _loaded(code: ObjectCode) -> tuple[int, object]:
    """The address of the function, and what must live as long as it is called."""
    import llvmlite.binding as llvm

    with contextlib.suppress(RuntimeError):  # llvmlite does so itself from 0.45 on
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(
        jit=True, codemodel="jitdefault"
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.data))
    engine.finalize_object()
    return engine.get_function_address(code.name), engine


def _callable(address: int, engine: object) -> Callable[[ClockState], int]:
    """A function of a ClockState at an address, as numba passes it."""
    # numba's calling convention: where the result and an exception go, then for each array who
    # counts it and its owner (nobody does, see `_compiled`), its length, the bytes of an item,
    # where it lies, its shape and its strides
    import ctypes

    arguments = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 7 * len(_KINDS)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *arguments)(address)

    def called(machine: ClockState) -> int:
        passed: list[int] = []
        for table, kind in zip(machine, _KINDS, strict=True):
            assert table.dtype == kind, "the machine code knows records of one kind"
            assert table.ndim == 1, "tables are lists of records"
            assert table.flags.c_contiguous, "records stand one after another"
            place = table.__array_interface__["data"][0]
            passed += [0, 0, len(table), table.itemsize, place, len(table), table.itemsize]
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        status = function(ctypes.addressof(result), ctypes.addressof(error), *passed)
        assert status == 0, "the kernel raises nothing"
        assert engine is not None, "it holds the code"
        return result.value

    return called


@cache
def _folder() -> Path | None:
    """The folder of this code, this numba and this processor; None if none can be written."""
    import hashlib
    import platform

    what = [sys.version, __file__, platform.machine()]
    with contextlib.suppress(OSError):  # the first processor's features: without /proc, none
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 13).partition("\n\n")[0].splitlines()
        what += [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    digest = hashlib.sha256("\n".join(what).encode())
    for module in (*_MODULES, tables, sys.modules[__name__]):
        digest.update(Path(str(module.__file__)).read_bytes())
    for package in ("numba", "llvmlite"):  # importlib.metadata takes ten times as long
        spec = importlib.util.find_spec(package)
        version = Path(str(spec and spec.origin)).with_name("_version.py")
        with contextlib.suppress(OSError):
            digest.update(version.read_bytes())
    return claim(digest.hexdigest()[:16])
