"""Small programs made by hand: one collective between parameters and results, no compiler."""

from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np

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


def result_elements(op: CollectiveOp, elements: int, members: int) -> int:
    """Elements of a result on one rank, for an operand of `elements`."""
    if op in (CollectiveOp.ALL_GATHER, CollectiveOp.GATHER, CollectiveOp.ALL_GATHER_V):
        return elements * members
    cuts = (CollectiveOp.REDUCE_SCATTER, CollectiveOp.SCATTER, CollectiveOp.REDUCE_SCATTER_V)
    is_cut = op in cuts
    return elements // members if is_cut else elements


@attrs.define
class _Memory:
    """Buffers and tensors laid out one after another."""

    dtype: DType
    buffers: list[Buffer] = attrs.field(factory=list)
    tensors: list[Tensor] = attrs.field(factory=list)
    constants: dict[BufferId, bytes] = attrs.field(factory=dict)

    @property
    def end(self) -> int:
        last = max((one.address + one.size_bytes for one in self.buffers), default=0)
        return -(-last // ALIGNMENT) * ALIGNMENT

    def tensor(self, name: str, kind: BufferKind, elements: int) -> TensorId:
        self.buffers.append(Buffer(name, kind, elements * self.dtype.size_bytes, self.end))
        buffer = BufferId(len(self.buffers) - 1)
        self.tensors.append(Tensor(name, buffer, self.dtype, (elements,)))
        return TensorId(len(self.tensors) - 1)

    def table(self, words: np.ndarray) -> TensorId:
        """A constant of unsigned words."""
        self.buffers.append(Buffer("table", BufferKind.CONSTANT, words.nbytes, self.end))
        buffer = BufferId(len(self.buffers) - 1)
        self.constants[buffer] = words.tobytes()
        self.tensors.append(Tensor("table", buffer, DType.U32, words.shape))
        return TensorId(len(self.tensors) - 1)


def _tables(memory: _Memory, op: CollectiveOp, members: int, elements: int) -> tuple[int, ...]:
    """Of an operator of variable size: slots are full, but a ragged one moves nothing."""
    if not op.is_counted:
        return ()
    if op is CollectiveOp.RAGGED_ALL_TO_ALL:
        return tuple(memory.table(np.zeros(members, "<u4")) for _ in range(4))
    full = elements if op is CollectiveOp.ALL_GATHER_V else elements // members
    step = 0 if op is CollectiveOp.ALL_GATHER_V else full
    rows = np.full(members, full, "<u4")
    return (memory.table(np.stack([rows, np.arange(members, dtype="<u4") * step, rows])),)


LINK_DOWN = str(Path(__file__).parent / "data" / "link_down.toml")
"""trn2.48xlarge without the links between chips 0 and 1."""


def collective_program(
    op: CollectiveOp,
    ranks: int,
    sizes: Sequence[int],
    *,
    groups: tuple[tuple[int, ...], ...] = (),
    pairs: tuple[tuple[int, int], ...] = (),
    root: int = 0,
    dtype: DType = DType.F32,
    reduction: Reduction = Reduction.ADD,
    repeat: int = 1,
) -> Program:
    """`repeat` equal collectives, one after another, each over tensors of `sizes` elements.

    A barrier names no tensors, so give it no sizes.
    """
    if op is not CollectiveOp.PERMUTE and not groups:
        groups = (tuple(range(ranks)),)
    members = len(groups[0]) if groups else ranks
    memory = _Memory(dtype)
    placeholders = []
    for number in range(repeat):
        operands = [
            memory.tensor(f"in{number}.{index}", BufferKind.INPUT, size)
            for index, size in enumerate(sizes)
        ]
        results = [
            memory.tensor(
                f"out{number}.{index}", BufferKind.OUTPUT, result_elements(op, size, members)
            )
            for index, size in enumerate(sizes)
        ]
        placeholders.append(
            Placeholder(
                op=op,
                dtype=dtype,
                operands=tuple(operands),
                results=tuple(results),
                reduction=reduction if op.reduces else None,
                groups=groups,
                pairs=pairs,
                root=root if op.is_rooted else None,
                name=f"{op.value}.{number}",
                counts=_tables(memory, op, members, sizes[0]) if sizes else (),
            )
        )
    return _program(op.value, ranks, memory, placeholders)


def _program(
    name: str, ranks: int, memory: _Memory, placeholders: Sequence[Placeholder]
) -> Program:
    """Placeholders triggered in order by the GpSimd queue, and nothing else."""
    triggers = (Instr("ptc2", placeholder=number) for number in range(len(placeholders)))
    queues = {engine: InstrTable.from_rows(()) for engine in ENGINES}
    queues[Engine.GPSIMD] = InstrTable.from_rows(triggers)
    return Program(
        name=name,
        replica_count=1,
        num_partitions=ranks,
        hbm_bytes=memory.end,
        buffers=tuple(memory.buffers),
        tensors=tuple(memory.tensors),
        inputs=tuple(TensorId(tensor) for one in placeholders for tensor in one.operands),
        outputs=tuple(TensorId(tensor) for one in placeholders for tensor in one.results),
        constants=memory.constants,
        regions=(),
        attributes=(),
        semaphores=(Semaphore("stream0", "stream 0"),),
        placeholders=tuple(placeholders),
        queues=queues,
        origins=(),
    )


LOOP_OF_PAIRS = """
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
body { s = (s32[], f32[64]) parameter(0)
 i = s32[] get-tuple-element(s), index=0 x = f32[64] get-tuple-element(s), index=1
 one = s32[] constant(1) j = s32[] add(i, one)
 y = f32[64] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=sum
 ROOT t = (s32[], f32[64]) tuple(j, y) }
goes_on { s = (s32[], f32[64]) parameter(0) i = s32[] get-tuple-element(s), index=0
 n = s32[] constant(3) ROOT p = pred[] compare(i, n), direction=LT }
ENTRY e { x = f32[64] parameter(0) zero = s32[] constant(0)
 s = (s32[], f32[64]) tuple(zero, x)
 w = (s32[], f32[64]) while(s), condition=goes_on, body=body
 ROOT r = f32[64] get-tuple-element(w), index=1 }
"""
"""Three trips with an all-reduce of two groups of two ranks."""
