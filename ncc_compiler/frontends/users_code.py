"""What is said of code of the user's that is called while a program is traced."""

import contextlib
import traceback
from collections.abc import Iterator

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
        is_without = isinstance(error, TypeError) and "required positional argument" in fact
        advice = "give the function with its arguments" if is_without else ""
        raise refusal(f"{what} failed: {fact}", advice) from error


def in_one_line(error: BaseException) -> str:
    """An exception, with the innermost line of code that is the user's."""
    text = " ".join(str(error).split("\n\n")[0].split())
    fact = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    if isinstance(error, SyntaxError) or not own:
        return fact
    return f"{fact} ({own[-1].filename}:{own[-1].lineno})"


def _is_users(file: str) -> bool:
    parts = file.replace("\\", "/").split("/")
    libraries = ("site-packages", "dist-packages", "ncc_compiler", "ncc_runtime", "importlib")
    return not file.startswith("<frozen") and not any(part in libraries for part in parts)
