"""How programs are refused that cannot be traced."""

from ncc_compiler.diagnostics import CompileError, Diagnostic


def refusal(fact: str, line: str = "", advice: str = "") -> CompileError:
    """The error for a PyTorch program; `line` is file:line of the user's own code."""
    place = f"{line}: " if line else ""
    return CompileError([Diagnostic("input-C4", f"{place}{fact}", help=advice)])
