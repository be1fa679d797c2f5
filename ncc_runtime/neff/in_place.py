"""Which instructions may write a result where one of their operands lies.

The hardware reads and writes HBM tile by tile. An elementwise operation has read a tile of all of
its operands before it writes that tile of its result, so the result may take an operand's memory,
element by element. An update of a slice, and a scatter, leave the rest of their first operands as
they are. All others may read what they have written already.

A fusion goes through its arrays tile by tile, once for each reduction that waits for another, and
writes its results in the last pass. It may write a result over an operand where that pass reads
each tile of it in the turn that writes the tile: what it computes from the operand, it computes
element by element. What a reduction gives is complete before the last pass begins. Other values may
be made in any way, a gradient by a product, for they do not read the operand's memory.
"""

from collections.abc import Sequence
from typing import Protocol

from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import CONSTANT, FusedInstr, Fusion

_ELEMENTWISE = frozenset({Shape.UNARY, Shape.BINARY, Shape.TERNARY, Shape.MAP})


class ArrayLike(Protocol):
    """A shape, and the bytes that all of its elements take."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""

    @property
    def size_bytes(self) -> int:
        """Of all elements."""


def may_overwrite(
    opcode: str,
    results: Sequence[ArrayLike],
    operands: Sequence[ArrayLike],
    result: int,
    operand: int,
    fusion: Fusion | None = None,
) -> bool:
    """Whether an instruction may write a result exactly where an operand lies; by position.

    `fusion` is what a `fusion` performs.
    """
    written, read = results[result], operands[operand]
    if (written.shape, written.size_bytes) != (read.shape, read.size_bytes):
        return False
    if opcode == "dynamic-update-slice":
        return operand == 0
    if opcode == "scatter":  # of n arrays: these, their indices, n arrays of updates
        return operand == result
    if fusion is not None:
        return operand in read_in_turn(fusion)
    return OPCODES[opcode].shape in _ELEMENTWISE


def read_in_turn(fusion: Fusion) -> frozenset[int]:
    """The operands of which the last pass of a fusion reads an element only where it writes it.

    One walk over the body, with the operands that each value reads so as bits of an integer.
    """
    reading = {parameter: 1 << parameter for parameter in range(fusion.parameters)}
    elsewhere = 0
    for row in fusion.body:
        if row.opcode in (CONSTANT, "reduce"):
            continue
        read = 0
        for operand in row.operands:
            read |= reading.get(operand, 0)
        if read and not _is_elementwise(fusion, row):
            elsewhere |= read
        elif read:
            reading.update(dict.fromkeys(row.results, read))
    return frozenset(k for k in range(fusion.parameters) if not elsewhere >> k & 1)


def _is_elementwise(fusion: Fusion, row: FusedInstr) -> bool:
    """Whether each element of a row's results is made of those in its place, and of scalars.

    A cast between types of different sizes is not: it makes one element of several, or several.
    """
    shape = fusion.values[row.results[0]].shape
    return OPCODES[row.opcode].shape in _ELEMENTWISE and all(
        fusion.values[operand].shape in (shape, ()) for operand in row.operands
    )
