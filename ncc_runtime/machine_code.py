"""Functions as machine code: compiled by numba once, and kept on disk as object files.

numba is imported to compile only. What is kept is loaded by llvmlite alone, in a tenth of the time
that numba takes to be imported and to load from its own cache, which also looks at the file of a
function only, not at those of the functions that it calls. Here the name of the folder is a hash of
the sources of the functions, of the versions of numba and llvmlite and of the processor, so no old
code survives a change, nor that of another machine on the same disk; the file begins with a hash of
what follows, so damaged code is never run.

Folders lie in the user's cache. Every process holds a lock on the folder that it uses. Folders that
no process uses, and that none has begun to use for a day, are removed but for the newest few. One
process compiles at a time; those that wait for it find the code when it is done. Locks are the
system's, which frees them when a process ends, however it ends.

Functions raise nothing, allocate nothing and take no index from the end (-1). They are called by
address, as numba passes arguments: first where a result and an exception go, then the arguments.
"""

import contextlib
import fcntl
import importlib.util
import inspect
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from ncc_runtime.progress import phase
from ncc_runtime.user_cache import folders, keep, kept

KEPT = 4
"""Folders of one code that stay, the one in use among them."""

DAY_S = 86_400
"""Younger folders stay, for there are file systems without locks."""

_OBJECT = "kernel.o"
_LOCK = "in-use"
_COMPILING = "compiling"

Signatures = Mapping[str, tuple[Any, ...]]
"""numba's types of the arguments, by function that is called from outside."""


@attrs.frozen
class ObjectCode:
    """The object file of a function, and the name that it has there."""

    name: str
    data: bytes


class MachineCode:
    """Functions of some modules, compiled together.

    `name` is that of its folders, `subject` what a user is told that is compiled. `modules` hold
    the functions, each module after those that it calls; `sources` are other modules whose change
    changes the code. `signatures` is called when numba is there.
    """

    def __init__(
        self,
        name: str,
        subject: str,
        modules: Sequence[types.ModuleType],
        signatures: Callable[[], Signatures],
        sources: Sequence[types.ModuleType] = (),
    ) -> None:
        self._name, self._subject = name, subject
        self._modules, self._sources = modules, sources
        self._signatures = signatures
        self._addresses: Mapping[str, int] | None = None
        self._engine: object = None  # holds the code
        self._lock = threading.Lock()

    @property
    def is_loaded(self) -> bool:
        """Whether this process has the machine code."""
        return self._addresses is not None

    @property
    def is_kept(self) -> bool:
        """Whether the machine code lies on disk."""
        return self._folder is not None and (self._folder / _OBJECT).exists()

    def addresses(self) -> Mapping[str, int]:
        """Where each function lies. The first call loads what is kept, or compiles it."""
        with self._lock:
            if self._addresses is None:
                folder = self._folder
                if (code := _kept(folder)) is None:
                    with self._alone():
                        if (code := _kept(folder)) is None:  # nor has another process compiled it
                            code = self._compiled()
                            _keep(folder, code)
                self._addresses, self._engine = _loaded(code)
            return self._addresses

    @cached_property
    def _folder(self) -> Path | None:
        """The folder of this code, this numba and this processor; None if none can be written."""
        import hashlib
        import platform

        what = [sys.version, __file__, platform.machine()]
        with contextlib.suppress(OSError):  # the first processor's features: without /proc, none
            with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
                lines = file.read(1 << 13).partition("\n\n")[0].splitlines()
            what += [line for line in lines if line.startswith(("model name", "flags", "Features"))]
        digest = hashlib.sha256("\n".join(what).encode())
        for module in (*self._modules, *self._sources, sys.modules[__name__]):
            digest.update(Path(str(module.__file__)).read_bytes())
        for package in ("numba", "llvmlite"):  # importlib.metadata takes ten times as long
            spec = importlib.util.find_spec(package)
            version = Path(str(spec and spec.origin)).with_name("_version.py")
            with contextlib.suppress(OSError):
                digest.update(version.read_bytes())
        return claim(self._name, digest.hexdigest()[:16])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait while another process compiles; where nothing can be locked, do not."""
        folder = self._folder
        if folder is None:
            yield
            return
        with contextlib.ExitStack() as stack:
            waiting = phase(f"waiting for a process that compiles {self._subject}", "")
            with contextlib.suppress(OSError), waiting:
                lock = stack.enter_context((folder / _COMPILING).open("ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _compiled(self) -> dict[str, ObjectCode]:
        """The functions that are called from outside, compiled by numba with all that they call."""
        import numba
        from numba.core import event

        jit: Callable[..., Callable[[Any], Any]] = numba.njit
        signatures = self._signatures()
        functions: dict[str, Any] = {}
        for module in self._modules:
            namespace = {**vars(module), **functions}  # in which calls find machine code
            members = inspect.getmembers(module, inspect.isfunction)
            for name, function in members:
                if function.__module__ != module.__name__:
                    continue
                # To pass arrays on and to count references to them would take longer than the work,
                # so all is inlined and nothing is counted: the caller holds the arrays, and
                # functions make none. Wrappers would need symbols that only numba has.
                functions[name] = namespace[name] = jit(
                    error_model="numpy",
                    _nrt=False,
                    forceinline=name not in signatures,
                    no_cfunc_wrapper=True,
                    no_cpython_wrapper=True,
                )(types.FunctionType(function.__code__, namespace, name))
        title = f"compiling {self._subject}, once on this machine"
        with phase(title, "functions", len(functions)) as now:

            class CompiledFunctions(event.Listener):
                def on_start(self, _: object) -> None:
                    pass

                def on_end(self, _: object) -> None:
                    now.done = min(now.done + 1, len(functions) - 1)  # some for several types

            code = {}
            counted = event.install_listener("numba:compile", CompiledFunctions())
            with counted, _without_wrapping():
                for name, signature in signatures.items():
                    functions[name].compile(signature)
                    compiled = functions[name].overloads[signature]
                    _, _, (data, _) = compiled.library.serialize_using_object_code()
                    code[name] = ObjectCode(compiled.fndesc.llvm_func_name, data)
            return code


@contextlib.contextmanager
def _without_wrapping() -> Iterator[None]:
    """Compile indices as they are: in Python -1 is the last, and numba asks each whether it is.

    A fifth of the clock's time went into the question, for it does little else than follow numbers
    of records.
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


def claim(name: str, digest: str) -> Path | None:
    """The folder of this version, locked until the process ends; None if none can be written."""
    for parent in folders():
        folder = parent / f"{name}-{digest}"
        with contextlib.suppress(OSError):
            _lock(folder)
            _sweep(parent, name, folder)
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


def _sweep(parent: Path, name: str, used: Path) -> None:
    """Remove the oldest folders of a code that no process uses."""
    folders = []
    for folder in parent.glob(f"{name}-*"):
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


def _keep(folder: Path | None, code: Mapping[str, ObjectCode]) -> None:
    """Put it on disk, if that can be."""
    if folder is None:
        return
    content = b"".join(
        f"{name} {each.name} {len(each.data)}\n".encode() + each.data for name, each in code.items()
    )
    keep(folder / _OBJECT, content)


def _kept(folder: Path | None) -> dict[str, ObjectCode] | None:
    """What lies on disk, if it is as it was written."""
    if folder is None or (content := kept(folder / _OBJECT)) is None:
        return None
    code = {}
    while content:
        line, _, content = content.partition(b"\n")
        name, in_file, size = line.decode().split()
        code[name] = ObjectCode(in_file, content[: int(size)])
        content = content[int(size) :]
    return code


def _loaded(code: Mapping[str, ObjectCode]) -> tuple[dict[str, int], object]:
    """The addresses of functions, and what must live as long as they are called."""
    import llvmlite.binding as llvm

    with contextlib.suppress(RuntimeError):  # llvmlite does so itself from 0.45 on
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(
        jit=True, codemodel="jitdefault"
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    for each in code.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(each.data))
    engine.finalize_object()
    return {name: engine.get_function_address(each.name) for name, each in code.items()}, engine
