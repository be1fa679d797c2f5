"""What a pass is, and how a list of them runs.

A pass takes a verified module and returns one that verifies and means the same on every rank, bit
for bit. Its fields are its options; `nccc --pass-option NAME.FIELD=VALUE` sets them.
"""

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar

import attrs

from ncc_compiler.diagnostics import InternalError
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.verify import verify
from ncc_runtime.progress import steps


@attrs.frozen
class Pass(abc.ABC):
    """The base of all passes, which are frozen attrs classes."""

    name: ClassVar[str]

    @abc.abstractmethod
    def run(self, module: Module) -> Module:
        """The module after the pass."""


Observer = Callable[[str, Module], None]


def run_passes(
    module: Module,
    passes: Sequence[Pass],
    *,
    verify_each: bool = False,
    observe: Observer | None = None,
) -> Module:
    """Run the passes in order; `observe` is shown every result with the name of its pass.

    The result of the last pass is verified, with `verify_each` that of every pass. Raises
    InternalError, which names the pass (or all of them), where verification fails.
    """
    for number, current in enumerate(steps(passes, "compiling", "passes"), start=1):
        module = current.run(module)
        if verify_each:
            _verify(module, f"pass {number}, {current.name},")
        if observe is not None:
            observe(current.name, module)
    if passes and not verify_each:
        _verify(module, "one of the passes " + ", ".join(current.name for current in passes))
    return module


def _verify(module: Module, who: str) -> None:
    complaints = verify(module)
    if complaints:
        first = "; ".join(complaint.message for complaint in complaints[:3])
        raise InternalError(f"{who} broke the graph: {first}")
