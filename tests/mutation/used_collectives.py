"""Programs in which an engine writes what collectives read, and reads what they write, twice.

Everything that a collective promises is made use of: the operand is final when it is triggered and
overwritten as soon as it is done, its result is read at once and overwritten by the next.
"""

from collections.abc import Sequence

import attrs

from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import (
    ALIGNMENT,
    Buffer,
    BufferId,
    BufferKind,
    Program,
    Semaphore,
    Tensor,
    TensorId,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.neff.table import Instr, InstrTable
from tests.programs import result_elements

VECTOR, STREAM = 0, 1
"""Semaphores."""

TIMES = 2


@attrs.define
class _Memory:
    """Buffers one after another, a tensor in each."""

    buffers: list[Buffer] = attrs.field(factory=list)
    tensors: list[Tensor] = attrs.field(factory=list)
    end: int = 0

    def add(self, name: str, kind: BufferKind, elements: int) -> TensorId:
        size = elements * DType.F32.size_bytes
        self.buffers.append(Buffer(name, kind, size, self.end))
        self.end += -(-size // ALIGNMENT) * ALIGNMENT
        self.tensors.append(Tensor(name, BufferId(len(self.tensors)), DType.F32, (elements,)))
        return TensorId(len(self.tensors) - 1)


def used_collective(
    op: CollectiveOp,
    ranks: int,
    size: int,
    *,
    pairs: tuple[tuple[int, int], ...] = (),
    reduction: Reduction = Reduction.ADD,
    in_place: bool = False,
) -> Program:
    """Two equal collectives on the same tensors of `size` elements; a barrier has none."""
    memory = _Memory()
    inputs = [memory.add(f"in{k}", BufferKind.INPUT, size) for k in range(TIMES)]
    elements = result_elements(op, size, ranks)
    outputs = [memory.add(f"out{k}", BufferKind.OUTPUT, elements) for k in range(TIMES)]
    operand = memory.add("operand", BufferKind.INTERNAL, size)
    result = operand if in_place else memory.add("result", BufferKind.INTERNAL, elements)
    has_tensors = op is not CollectiveOp.BARRIER
    placeholder = Placeholder(
        op=op,
        dtype=DType.F32 if has_tensors else DType.U8,
        operands=(operand,) if has_tensors else (),
        results=(result,) if has_tensors else (),
        reduction=reduction if op.reduces else None,
        groups=() if pairs else (tuple(range(ranks)),),
        pairs=pairs,
        root=0 if op.is_rooted else None,
        in_place=in_place,
    )
    placeholders = [attrs.evolve(placeholder, name=f"{op.value}.{k}") for k in range(TIMES)]
    return Program(
        name=f"used {op.value}",
        replica_count=1,
        num_partitions=ranks,
        hbm_bytes=memory.end,
        buffers=tuple(memory.buffers),
        tensors=tuple(memory.tensors),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        constants={},
        regions=(),
        attributes=(),
        semaphores=(Semaphore("vector", "Vector"), Semaphore("stream0", "stream 0")),
        placeholders=tuple(placeholders),
        queues=_queues(inputs, outputs, operand, result),
        origins=(),
    )


def _queues(inputs: Sequence[int], outputs: Sequence[int], operand: int, result: int):
    """Vector fills the operand, takes the result away, and fills the operand again."""
    rows = []
    for given, taken in zip(inputs, outputs, strict=True):
        number = len(rows) // 2 + 1
        rows.append(Instr("copy", (operand,), (given,), post_sem=VECTOR))
        rows.append(Instr("copy", (taken,), (result,), wait_sem=STREAM, wait_value=number))
    rows.append(Instr("copy", (operand,), (inputs[0],)))
    triggers = [
        Instr("ptc2", placeholder=number, wait_sem=VECTOR, wait_value=number + 1)
        for number in range(TIMES)
    ]
    queues = {engine: InstrTable.from_rows(()) for engine in ENGINES}
    queues[Engine.VECTOR] = InstrTable.from_rows(rows)
    queues[Engine.GPSIMD] = InstrTable.from_rows(triggers)
    return queues
