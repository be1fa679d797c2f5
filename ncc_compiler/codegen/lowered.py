"""The program before it has an order, addresses and semaphores: steps over buffers.

A tensor is a view of a buffer; reshapes are views of their operand's buffer and need no step.
Between two marks of control flow a buffer is written by one step at most, and by updates of it in
place. Graph values are written once; only the state of loops and the results of conditionals are
written in several places.
"""

from collections.abc import Mapping

import attrs

from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import (
    AttributeValue,
    Block,
    BufferKind,
    Origin,
    Parameter,
    Region,
    Sharding,
)


@attrs.frozen
class LogicalBuffer:
    """A buffer that has no address yet."""

    name: str
    kind: BufferKind
    size_bytes: int
    data: bytes | None = None  # of constants
    origin: Origin | None = None  # of constants without value


@attrs.frozen
class TensorView:
    """A typed view of a whole buffer."""

    name: str
    buffer: int
    type: ArrayType


@attrs.frozen
class InstructionCosts:
    """What the clock reads of an instruction; the columns of `neff/table.py`."""

    flops: int = 0
    elements: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@attrs.frozen
class ProgramStep:
    """One instruction without its waits; a collective's tensors are those of its placeholder."""

    opcode: str
    engine: Engine
    results: tuple[int, ...]
    operands: tuple[int, ...]
    origin: Origin
    attributes: Mapping[str, AttributeValue] = attrs.field(factory=dict)
    collective: Placeholder | None = None
    costs: InstructionCosts = InstructionCosts()


@attrs.frozen
class ControlRow:
    """A row of control flow, before the step at position `at`; every queue gets it."""

    at: int
    opcode: str
    block: int
    origin: Origin


@attrs.frozen
class LoweredProgram:
    """Steps in program order, an order that respects data; ids are positions in the tuples."""

    name: str
    replica_count: int
    num_partitions: int
    buffers: tuple[LogicalBuffer, ...]
    tensors: tuple[TensorView, ...]
    steps: tuple[ProgramStep, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    regions: tuple[Region, ...]
    marks: tuple[ControlRow, ...] = ()  # in program order
    blocks: tuple[Block, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    shardings: tuple[Sharding, ...] = ()


def without_aliases(draft: LoweredProgram, moved: Mapping[int, int]) -> LoweredProgram:
    """The draft where some buffers are gone, their tensors being views of others."""
    if not moved:
        return draft
    kept = [number for number in range(len(draft.buffers)) if number not in moved]
    row = {number: position for position, number in enumerate(kept)}

    def home(buffer: int) -> int:
        while buffer in moved:
            buffer = moved[buffer]
        return row[buffer]

    return attrs.evolve(
        draft,
        buffers=tuple(draft.buffers[number] for number in kept),
        tensors=tuple(attrs.evolve(tensor, buffer=home(tensor.buffer)) for tensor in draft.tensors),
    )
