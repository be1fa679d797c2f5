"""The program before it has an order, addresses and semaphores: steps over logical buffers.

A tensor is a view of a whole buffer; reshapes are views of their operand's buffer and need no step.
Between two control rows a buffer is written by one step at most, and by updates of it in place:
graph values are written once (as in SSA form). Only the state of loops and the results of
conditionals are written in several places.
"""

from collections.abc import Mapping

import attrs

from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.isa import FUSION, Engine
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import (
    ArrayInfo,
    AttributeValue,
    Block,
    BufferKind,
    Fusion,
    Origin,
    Region,
    Sharding,
)


@attrs.frozen
class LogicalBuffer:
    """A buffer that has no address yet (XLA has the word)."""

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
    """What the runtime's clock reads of an instruction; the columns of `neff/table.py`."""

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
class ControlStep:
    """A row of control flow, before the step at position `at`; every queue gets it."""

    at: int
    opcode: str
    block: int
    origin: Origin


@attrs.frozen
class LoweredFusion:
    """A fusion whose rows have no numbers of origins yet, and their origins."""

    fusion: Fusion
    origins: tuple[Origin, ...]  # by row of its body


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
    control_steps: tuple[ControlStep, ...] = ()  # in program order
    blocks: tuple[Block, ...] = ()
    parameters: tuple[ArrayInfo, ...] = ()
    shardings: tuple[Sharding, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    results: tuple[ArrayInfo, ...] = ()
    donated: Mapping[int, int] = attrs.field(factory=dict)
    """By buffer of an output: the input's buffer in whose memory it lies (`donations.py`)."""
    fusions: tuple[LoweredFusion, ...] = ()

    def fusion_of(self, step: ProgramStep) -> Fusion | None:
        """What a step performs that is a fusion."""
        if step.opcode != FUSION:
            return None
        number = step.attributes["fusion"]
        assert isinstance(number, int), step.origin
        return self.fusions[number].fusion


def without_aliases(lowered: LoweredProgram, alias_of: Mapping[int, int]) -> LoweredProgram:
    """The program without the buffers that lie in others; their tensors are views of those."""
    if not alias_of:
        return lowered
    kept = [number for number in range(len(lowered.buffers)) if number not in alias_of]
    row = {number: position for position, number in enumerate(kept)}

    def row_of(buffer: int) -> int:
        while buffer in alias_of:
            buffer = alias_of[buffer]
        return row[buffer]

    return attrs.evolve(
        lowered,
        buffers=tuple(lowered.buffers[number] for number in kept),
        tensors=tuple(
            attrs.evolve(tensor, buffer=row_of(tensor.buffer)) for tensor in lowered.tensors
        ),
    )
