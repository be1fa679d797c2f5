"""The back end in one function: a canonical graph to the program of a `.neff`, and its bytes."""

from pathlib import Path

import attrs

from ncc_compiler.codegen.emit import Layout, emit
from ncc_compiler.codegen.in_place import share
from ncc_compiler.codegen.lower import lower
from ncc_compiler.codegen.memory import place_buffers
from ncc_compiler.codegen.order import order_steps
from ncc_compiler.diagnostics import InternalError
from ncc_compiler.ir.graph import Module
from ncc_runtime.neff import check, container
from ncc_runtime.neff.program import Program


@attrs.frozen
class Neff:
    """A compiled program and the bytes of its file."""

    program: Program = attrs.field(repr=lambda program: f"<{program.name}>")
    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")

    def save(self, path: str | Path) -> None:
        """Write the file; whoever looks sees the old one or the new one, never a part."""
        container.save(self.data, Path(path))


def generate(module: Module) -> Program:
    """The program of a module without calls whose collectives are canonical."""
    draft = lower(module)
    order = order_steps(draft)
    sharing = share(draft, order)
    addresses, hbm_bytes = place_buffers(draft, order, sharing)
    return emit(draft, order, Layout(sharing, addresses, hbm_bytes))


def seal(program: Program) -> Neff:
    """The program as a file, once the contract's own checks have nothing to say."""
    complaints = check.check(program)
    if complaints:
        raise InternalError("the generated program breaks its contract: " + "; ".join(complaints))
    return Neff(program, container.pack(program))
