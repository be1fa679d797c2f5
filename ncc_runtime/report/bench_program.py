"""Programs of one collective, made through the contract: what `nccrt bench` measures."""

from collections.abc import Mapping
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.neff import container
from ncc_runtime.neff.dtypes import DType
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
from ncc_runtime.neff.reductions import Reduction
from ncc_runtime.neff.table import Instr, InstrTable


@attrs.frozen
class Operator:
    """An operator of nccom-test: ours, and the part of an algorithm's bandwidth that a wire has."""

    name: str
    op: CollectiveOp
    is_exchange: bool = False  # neighbours in pairs, not a ring of all ranks

    def wire_share(self, ranks: int) -> float:
        """busbw / algbw, as nccom-test has it."""
        if self.op is CollectiveOp.PERMUTE:
            return 1.0
        steps = 2 if self.op is CollectiveOp.ALL_REDUCE else 1
        return steps * (ranks - 1) / ranks


_OPERATORS = (
    (Operator("all_reduce", CollectiveOp.ALL_REDUCE), "allr"),
    (Operator("all_gather", CollectiveOp.ALL_GATHER), "allg"),
    (Operator("reduce_scatter", CollectiveOp.REDUCE_SCATTER), "redsct"),
    (Operator("alltoall", CollectiveOp.ALL_TO_ALL), "all_to_all"),
    (Operator("alltoallv", CollectiveOp.ALL_TO_ALL_V), "all_to_allv"),
    (Operator("all_gatherv", CollectiveOp.ALL_GATHER_V), "allgv"),
    (Operator("permute", CollectiveOp.PERMUTE), "perm"),
    (Operator("sendrecv", CollectiveOp.PERMUTE, is_exchange=True), "sr"),
)
OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {spelling: one for one, other in _OPERATORS for spelling in (one.name, other)}
)
"""By nccom-test's spellings. Source: AWS Neuron SDK docs, nccom-test.rst."""

DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        "uint8": DType("u8"),
        "int8": DType("s8"),
        "uint16": DType("u16"),
        "int16": DType("s16"),
        "uint32": DType("u32"),
        "int32": DType("s32"),
        "fp8e4": DType("f8e4m3fn"),
        "fp16": DType("f16"),
        "bf16": DType("bf16"),
        "fp32": DType("f32"),
    }
)
"""By nccom-test's names."""


@attrs.frozen
class Case:
    """What is measured: an operator over all ranks, `size_bytes` on the larger side of a rank."""

    operator: Operator
    ranks: int
    dtype: DType
    size_bytes: int
    iterations: int = 1

    @property
    def chunk(self) -> int:
        """Elements of one rank's share where buffers are cut into equal shares, at least one."""
        return max(1, self.size_bytes // (self.dtype.size_bytes * self.ranks))

    @property
    def elements(self) -> int:
        """Elements of the larger side: as many as fit `size_bytes`, at least one of each share."""
        if self.operator.op in (CollectiveOp.ALL_REDUCE, CollectiveOp.PERMUTE):
            return max(1, self.size_bytes // self.dtype.size_bytes)
        return self.chunk * self.ranks

    @property
    def operand_elements(self) -> int:
        """Elements that a rank gives."""
        is_gather = self.operator.op in (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_GATHER_V)
        return self.chunk if is_gather else self.elements

    @property
    def result_elements(self) -> int:
        """Elements that a rank gets."""
        return self.chunk if self.operator.op is CollectiveOp.REDUCE_SCATTER else self.elements

    @property
    def table(self) -> bytes:
        """Of an operator of variable size, its metadata: all slots are full."""
        columns = np.arange(self.ranks, dtype="<u4")
        is_gather = self.operator.op is CollectiveOp.ALL_GATHER_V
        full = np.full_like(columns, self.chunk)
        return np.stack([full, columns * (0 if is_gather else self.chunk), full]).tobytes()

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Who sends to whom: a ring, or ranks 2k and 2k+1 to each other (assumed)."""
        if self.operator.op is not CollectiveOp.PERMUTE:
            return ()
        if self.operator.is_exchange:
            return tuple((rank, rank ^ 1) for rank in range(self.ranks))
        return tuple((rank, (rank + 1) % self.ranks) for rank in range(self.ranks))


def program_of_case(case: Case) -> Program:
    """The case as a checked program: its collective `iterations` times over the same buffers."""
    if case.operator.is_exchange and case.ranks % 2:
        raise InputError(f"sendrecv is between pairs of ranks; {case.ranks} ranks are not even")
    width = case.dtype.size_bytes
    operand = Buffer("in", BufferKind.INPUT, case.operand_elements * width, 0)
    after = -(-operand.end // ALIGNMENT) * ALIGNMENT
    result = Buffer("out", BufferKind.OUTPUT, case.result_elements * width, after)
    buffers, tensors, constants = [operand, result], [], {}
    hbm_bytes = -(-result.end // ALIGNMENT) * ALIGNMENT
    if case.operator.op.is_counted:
        buffers.append(Buffer("table", BufferKind.CONSTANT, len(case.table), hbm_bytes))
        tensors.append(Tensor("table", BufferId(2), DType.U32, (3, case.ranks)))
        constants[BufferId(2)] = case.table
        hbm_bytes = -(-buffers[-1].end // ALIGNMENT) * ALIGNMENT
    queues = {engine: InstrTable.from_rows(()) for engine in ENGINES}
    rows = [Instr("ptc2", placeholder=number) for number in range(case.iterations)]
    queues[Engine.GPSIMD] = InstrTable.from_rows(rows)
    program = Program(
        name=case.operator.name,
        replica_count=1,
        num_partitions=case.ranks,
        hbm_bytes=hbm_bytes,
        buffers=tuple(buffers),
        tensors=(
            Tensor("in", BufferId(0), case.dtype, (case.operand_elements,)),
            Tensor("out", BufferId(1), case.dtype, (case.result_elements,)),
            *tensors,
        ),
        inputs=(TensorId(0),),
        outputs=(TensorId(1),),
        constants=constants,
        regions=(),
        attributes=(),
        semaphores=(Semaphore("stream0", "stream 0"),),
        placeholders=tuple(_placeholder(case, number) for number in range(case.iterations)),
        queues=queues,
        origins=(),
    )
    return container.unpack(container.pack(program), "<bench>")


def _placeholder(case: Case, number: int) -> Placeholder:
    op = case.operator.op
    return Placeholder(
        op=op,
        dtype=case.dtype,
        operands=(0,),
        results=(1,),
        reduction=Reduction.ADD if op.reduces else None,
        groups=() if op is CollectiveOp.PERMUTE else (tuple(range(case.ranks)),),
        pairs=case.pairs,
        counts=(2,) if op.is_counted else (),
        name=f"{case.operator.name}.{number}",
    )
