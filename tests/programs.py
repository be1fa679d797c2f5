"""Small programs made by hand: one collective between parameters and results, no compiler."""

from collections.abc import Sequence

from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import (
    Buffer,
    BufferId,
    BufferKind,
    Program,
    Semaphore,
    Tensor,
    TensorId,
)
from ncc_runtime.neff.reductions import Reduction
from ncc_runtime.neff.table import Instr, InstrTable


def result_elements(op: CollectiveOp, elements: int, members: int) -> int:
    """Elements of a result on one rank, for an operand of `elements`."""
    if op is CollectiveOp.ALL_GATHER:
        return elements * members
    return elements // members if op is CollectiveOp.REDUCE_SCATTER else elements


def collective_program(
    op: CollectiveOp,
    ranks: int,
    sizes: Sequence[int],
    *,
    groups: tuple[tuple[int, ...], ...] = (),
    pairs: tuple[tuple[int, int], ...] = (),
    dtype: DType = DType.F32,
    reduction: Reduction = Reduction.ADD,
    repeat: int = 1,
) -> Program:
    """`repeat` equal collectives, one after another, each over tensors of `sizes` elements."""
    if op is not CollectiveOp.PERMUTE and not groups:
        groups = (tuple(range(ranks)),)
    members = len(groups[0]) if groups else ranks
    buffers: list[Buffer] = []
    tensors: list[Tensor] = []

    def tensor(name: str, kind: BufferKind, elements: int) -> TensorId:
        address = max((one.address + one.size_bytes for one in buffers), default=0)
        size = elements * dtype.size_bytes
        buffers.append(Buffer(name, kind, size, -(-address // 64) * 64))
        tensors.append(Tensor(name, BufferId(len(buffers) - 1), dtype, (elements,)))
        return TensorId(len(tensors) - 1)

    inputs, outputs, placeholders = [], [], []
    for number in range(repeat):
        names = [(f"{number}.{index}", size) for index, size in enumerate(sizes)]
        operands = tuple(tensor(f"in{name}", BufferKind.INPUT, size) for name, size in names)
        results = tuple(
            tensor(f"out{name}", BufferKind.OUTPUT, result_elements(op, size, members))
            for name, size in names
        )
        inputs += operands
        outputs += results
        placeholders.append(
            Placeholder(
                op=op,
                dtype=dtype,
                operands=operands,
                results=results,
                reduction=reduction if op.reduces else None,
                groups=groups,
                pairs=pairs,
                name=f"{op.value}.{number}",
            )
        )
    queues = {engine: InstrTable.from_rows(()) for engine in ENGINES}
    queues[Engine.GPSIMD] = InstrTable.from_rows(
        Instr("ptc2", placeholder=number) for number in range(len(placeholders))
    )
    last = max(one.address + one.size_bytes for one in buffers)
    return Program(
        name=op.value,
        replica_count=1,
        num_partitions=ranks,
        hbm_bytes=-(-last // 64) * 64,
        buffers=tuple(buffers),
        tensors=tuple(tensors),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        constants={},
        regions=(),
        attributes=(),
        semaphores=(Semaphore("stream0", "stream 0"),),
        placeholders=tuple(placeholders),
        queues=queues,
        origins=(),
    )
