"""What is said of code of the user's that is called while a program is traced."""

import contextlib
import functools
import traceback
from collections.abc import Iterator
from pathlib import Path

from ncc_compiler.diagnostics import CompileError, Diagnostic


def refusal(fact: str, advice: str = "", line: str = "") -> CompileError:
    """The error for what the user gave; `line` is file:line of the user's own code."""
    place = f"{line}: " if line else ""
    return CompileError([Diagnostic("input-C4", f"{place}{fact}", help=advice)])


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Raises CompileError for what the user's function, or a library that it calls, raises."""
    try:
        yield
    except CompileError:
        raise
    except (Exception, SystemExit) as error:
        fact = in_one_line(error)
        raise refusal(f"{what} failed: {fact}", _advice(fact)) from error


_ADVICE = {
    "required positional argument": "give the function with its arguments",
    "unexpected keyword argument": "options of the compiler are options=CompileOptions(level=2)",
    "requires a non-empty mesh": 'give the mesh: mesh={"data": 8}',
}
"""What helps, by what Python or JAX says."""


def _advice(fact: str) -> str:
    return next((advice for words, advice in _ADVICE.items() if words in fact), "")


def in_one_line(error: BaseException) -> str:
    """An exception, with the innermost line of code that is the user's."""
    text = " ".join(str(error).split("\n\n")[0].split())
    fact = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    if isinstance(error, SyntaxError) or not own:
        return fact
    return f"{fact} ({own[-1].filename}:{own[-1].lineno})"


_PACKAGES = frozenset({"site-packages", "dist-packages"})
_LIBRARIES = (
    Path(__file__).parents[1],
    Path(__file__).parents[2] / "ncc_runtime",
    Path(contextlib.__file__).parent,
)
_GENERATED = ("<frozen", "<attrs", "<eval_with_key", "<string>")


@functools.cache
def is_users(file: str) -> bool:
    """Whether code is of no library, nor made by one."""
    path = Path(file)
    return not (
        file.startswith(_GENERATED)
        or _PACKAGES.intersection(path.parts)
        or any(path.is_relative_to(library) for library in _LIBRARIES)
    )
