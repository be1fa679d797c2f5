"""Which instructions may write a result where one of their operands lies.

The hardware reads and writes HBM tile by tile. An elementwise operation has read a tile of all of
its operands before it writes that tile of its result, so the result may take an operand's memory,
element by element. An update of a slice, and a scatter, leave the rest of their first operands as
they are. All others may read what they have written already.
"""

from collections.abc import Sequence
from typing import Protocol

from ncc_runtime.neff.isa import OPCODES, Shape

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
) -> bool:
    """Whether an instruction may write a result exactly where an operand lies; by position."""
    written, read = results[result], operands[operand]
    if (written.shape, written.size_bytes) != (read.shape, read.size_bytes):
        return False
    if opcode == "dynamic-update-slice":
        return operand == 0
    if opcode == "scatter":  # of n arrays: these, their indices, n arrays of updates
        return operand == result
    return OPCODES[opcode].shape in _ELEMENTWISE
