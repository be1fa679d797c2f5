"""The program before it has an order, addresses and semaphores: steps over buffers.

Every buffer is written by one step at most, because graph values are written once. A tensor is a
view of a buffer; reshapes are views of their operand's buffer and need no step.
"""

from collections.abc import Mapping

import attrs

from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import AttributeValue, BufferKind, Origin, Region


@attrs.frozen
class DraftBuffer:
    """A buffer that has no address yet."""

    name: str
    kind: BufferKind
    size_bytes: int
    data: bytes | None = None  # of constants


@attrs.frozen
class DraftTensor:
    """A typed view of a whole buffer."""

    name: str
    buffer: int
    type: ArrayType


@attrs.frozen
class Costs:
    """What the clock reads of an instruction; the columns of `neff/table.py`."""

    flops: int = 0
    elements: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@attrs.frozen
class Step:
    """One instruction without its waits; a collective's tensors are those of its placeholder."""

    opcode: str
    engine: Engine
    results: tuple[int, ...]
    operands: tuple[int, ...]
    origin: Origin
    attributes: Mapping[str, AttributeValue] = attrs.field(factory=dict)
    collective: Placeholder | None = None
    costs: Costs = Costs()


@attrs.frozen
class Draft:
    """Steps in program order, an order that respects data; ids are positions in the tuples."""

    name: str
    replica_count: int
    num_partitions: int
    buffers: tuple[DraftBuffer, ...]
    tensors: tuple[DraftTensor, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    regions: tuple[Region, ...]
