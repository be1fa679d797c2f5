"""Compiles the functions of the clock's kernel with numba, and keeps the machine code on disk.

numba's own cache looks at the file of a function only, not at those of the functions it calls: here
the folder of the cache is named by all sources of this package together, so no old code survives a
change.
"""

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

from ncc_runtime.execution.clock.machine_code import claim

Function = TypeVar("Function", bound=Callable[..., object])


_jit: Callable[..., Callable[[Any], Any]] = numba.njit


def compiled(function: Function) -> Function:
    """The function as machine code that other compiled functions call."""
    return _made(function, no_cpython_wrapper=True)


def entry(function: Function) -> Function:
    """The same for one that Python calls; compiled when first called."""
    return _made(function, no_cpython_wrapper=False)


def _made(function: Function, no_cpython_wrapper: bool) -> Function:
    # the arrays of a Machine are many: passing them on, and counting references to them, took
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
