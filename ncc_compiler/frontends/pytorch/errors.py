"""How programs are refused that cannot be traced."""

import importlib.util
import os

from ncc_compiler.diagnostics import CompileError, Diagnostic


def refusal(fact: str, line: str = "", advice: str = "") -> CompileError:
    """The error for a PyTorch program; `line` is file:line of the user's own code."""
    place = f"{line}: " if line else ""
    return CompileError([Diagnostic("input-C4", f"{place}{fact}", help=advice)])


def require_torch() -> None:
    """Raises CompileError if PyTorch/XLA, or the torch that it is for, is not installed.

    PyTorch/XLA traces on its CPU client, unless the user has chosen another.
    """
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    for name in ("torch", "torch_xla"):
        if importlib.util.find_spec(name) is None:
            raise refusal(
                f"programs of PyTorch take {name}, which is not installed",
                advice="install both as they belong together: pip install 'neuron-ncc[torch]'",
            )
