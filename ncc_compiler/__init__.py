"""The compiler: partitioned XLA programs to engine instructions and collective placeholders.

For example::

    neff = ncc_compiler.compile_file("step.hlo")
    neff.save("step.neff")

The names below load what they need when they are first used; importing the package is cheap. A
program that is wrong is a CompileError with every diagnostic.
"""

TYPE_CHECKING = False  # typing takes long to import, and commands wait for it
if TYPE_CHECKING:
    from ncc_compiler.codegen.generate import Neff as Neff
    from ncc_compiler.diagnostics import CompileError as CompileError
    from ncc_compiler.driver import compile_file as compile_file
    from ncc_compiler.driver import compile_text as compile_text
    from ncc_compiler.driver import compile_trace as compile_trace
    from ncc_compiler.frameworks import from_jax as from_jax
    from ncc_compiler.frameworks import from_torch as from_torch
    from ncc_compiler.options import CompileOptions as CompileOptions

    __version__: str

_HOMES = {
    "CompileError": "ncc_compiler.diagnostics",
    "CompileOptions": "ncc_compiler.options",
    "Neff": "ncc_compiler.codegen.generate",
    "compile_file": "ncc_compiler.driver",
    "compile_text": "ncc_compiler.driver",
    "compile_trace": "ncc_compiler.driver",
    "from_jax": "ncc_compiler.frameworks",
    "from_torch": "ncc_compiler.frameworks",
}

__all__ = [
    "CompileError",
    "CompileOptions",
    "Neff",
    "__version__",
    "compile_file",
    "compile_text",
    "compile_trace",
    "from_jax",
    "from_torch",
]


def __getattr__(name: str) -> object:
    """Load a public name from the module where it lives."""
    import importlib

    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("neuron-ncc")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
