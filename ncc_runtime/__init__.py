"""The runtime: places a compiled program on a topology, fills its placeholders and runs it.

For example::

    import ncc_compiler, ncc_runtime

    neff = ncc_compiler.compile_file("step.hlo")
    model = ncc_runtime.load(neff, topology="trn2", nodes=2)
    run = model.run([x, w])
    print(run)

The names below load what they need when they are first used; importing the package is cheap. What
the user can mend is raised as an NccError.
"""

TYPE_CHECKING = False  # typing takes long to import, and commands wait for it
if TYPE_CHECKING:
    from ncc_runtime.errors import NccError
    from ncc_runtime.options import RunOptions
    from ncc_runtime.report.run import Run
    from ncc_runtime.report.topology.text import topologies
    from ncc_runtime.runtime import Model, load
    from ncc_runtime.topology.graph import Topology

    __version__: str

_HOMES = {
    "Model": "ncc_runtime.runtime",
    "NccError": "ncc_runtime.errors",
    "Run": "ncc_runtime.report.run",
    "RunOptions": "ncc_runtime.options",
    "Topology": "ncc_runtime.topology.graph",
    "load": "ncc_runtime.runtime",
    "topologies": "ncc_runtime.report.topology.text",
}

__all__ = [
    "Model",
    "NccError",
    "Run",
    "RunOptions",
    "Topology",
    "__version__",
    "load",
    "topologies",
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
