"""The runtime: places a compiled program on a topology, fills its placeholders and runs it."""

TYPE_CHECKING = False  # typing takes long to import, and commands wait for it
if TYPE_CHECKING:
    from ncc_runtime.options import RunOptions
    from ncc_runtime.report.run import Run
    from ncc_runtime.runtime import Model, load

__all__ = ["Model", "Run", "RunOptions", "load"]

_MODULE_OF = {
    "Model": "ncc_runtime.runtime",
    "Run": "ncc_runtime.report.run",
    "RunOptions": "ncc_runtime.options",
    "load": "ncc_runtime.runtime",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is used: importing the package alone stays light."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULE_OF[name]), name)
