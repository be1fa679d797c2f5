"""`nccrt bench`: time, bandwidth and algorithm of one collective, size by size.

A program of one collective is made for each size, through the contract. Time is the clock's, from
the first rank's start to the last one's end, as `nccrt run` has it for a collective; the launch is
not part of it. Columns and factors are nccom-test's. Source: AWS Neuron SDK docs, nccom-test.rst.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
from rich.console import Console
from rich.table import Table

from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff import container
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
from ncc_runtime.report.run import SCHEMA


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
    {spelling: operator for operator, short in _OPERATORS for spelling in (operator.name, short)}
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
    """One measurement: an operator over all ranks, `size_bytes` on the larger side of a rank."""

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
        """(source, target): a ring, or ranks 2k and 2k+1 to each other (assumed)."""
        if self.operator.op is not CollectiveOp.PERMUTE:
            return ()
        if self.operator.is_exchange:
            return tuple((rank, rank ^ 1) for rank in range(self.ranks))
        return tuple((rank, (rank + 1) % self.ranks) for rank in range(self.ranks))


def program_of_case(case: Case) -> Program:
    """The case as a checked program: its collective `iterations` times over the same buffers."""
    if case.operator.is_exchange and case.ranks % 2:
        raise InputError(f"sendrecv is between pairs of ranks; {case.ranks} ranks are not even")
    element_bytes = case.dtype.size_bytes
    operand = Buffer("in", BufferKind.INPUT, case.operand_elements * element_bytes, 0)
    after = -(-operand.end // ALIGNMENT) * ALIGNMENT
    result = Buffer("out", BufferKind.OUTPUT, case.result_elements * element_bytes, after)
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


WIDTH = 120


@attrs.frozen
class Measured:
    """One line of a bench."""

    case: Case
    algorithm: str
    time_us: float
    checked: str | None  # the mode of the check that it passed

    @property
    def size_bytes(self) -> int:
        return self.case.elements * self.case.dtype.size_bytes

    @property
    def algbw_gb_per_s(self) -> float:
        return self.size_bytes / self.time_us / 1e3 if self.time_us else 0.0

    @property
    def busbw_gb_per_s(self) -> float:
        return self.algbw_gb_per_s * self.case.operator.wire_share(self.case.ranks)


def sizes(least: int, most: int, factor: int | None, step: int | None) -> Iterator[int]:
    """From the least to the most, by a factor (2 if there is neither) or a step."""
    size = least
    while size <= most:
        yield size
        size = size + step if step else size * (factor or 2)


def operands(case: Case, mode: str, generator: np.random.Generator) -> np.ndarray:
    """What the ranks give, [ranks, elements]: ones, or small whole numbers."""
    shape = (case.ranks, case.operand_elements)
    if mode == "all_ones":
        return np.ones(shape, case.dtype.numpy)
    return generator.integers(0, 4, shape, np.uint8).astype(case.dtype.numpy)


def check(case: Case, given: np.ndarray, results: np.ndarray) -> None:
    """Compare with the results of numpy; InputError names the first element that is wrong."""
    expected = _expected(case, given)
    exact = case.dtype.is_integer or not case.operator.op.reduces
    wide = np.int64 if case.dtype.is_integer else np.float64
    error = np.abs(results.astype(wide) - expected.astype(wide))
    # sums of non-negative numbers: each of at most `ranks` additions rounds once
    tolerance = 0.0 if exact else case.ranks * _epsilon(case.dtype)
    wrong = ~(error <= tolerance * np.abs(expected.astype(np.float64)))
    if wrong.any():
        rank, element = (int(at[0]) for at in np.nonzero(wrong))
        raise InputError(
            f"{case.operator.name} of {case.size_bytes} bytes: rank {rank} element {element} is "
            f"{results[rank, element]}, expected {expected[rank, element]}"
        )
    if case.operator.op is CollectiveOp.ALL_REDUCE and (results != results[:1]).any():
        raise InputError(f"{case.operator.name} of {case.size_bytes} bytes: the ranks differ")


def _epsilon(dtype: DType) -> float:
    """From 1 to the next larger value: its bits plus one. numpy has no finfo of all our types."""
    one = np.ones(1, dtype.numpy)
    above = (one.view(f"u{dtype.size_bytes}") + 1).view(dtype.numpy)
    return float(above[0]) - 1.0


def _expected(case: Case, given: np.ndarray) -> np.ndarray:
    """The results, [ranks, elements]; sums in 64 bits, wrapped to the integer type."""
    op, ranks = case.operator.op, case.ranks
    if op is CollectiveOp.PERMUTE:
        results = np.zeros_like(given)
        for source, target in case.pairs:
            results[target] = given[source]
        return results
    if op in (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_GATHER_V):
        return np.broadcast_to(given.reshape(-1), (ranks, given.size))
    if op in (CollectiveOp.ALL_TO_ALL, CollectiveOp.ALL_TO_ALL_V):
        chunks = given.reshape(ranks, ranks, -1)
        return chunks.swapaxes(0, 1).reshape(ranks, -1)
    wide = np.int64 if case.dtype.is_integer else np.float64
    total = given.astype(wide).sum(axis=0)
    if case.dtype.is_integer:
        total = total.astype(case.dtype.numpy)
    if op is CollectiveOp.ALL_REDUCE:
        return np.broadcast_to(total, given.shape)
    return total.reshape(ranks, -1)


def measured(case: Case, executable: Executable, mode: str | None) -> Measured:
    """The line of a case, whose program is placed and filled: by what, and its time."""
    return Measured(case, executable.lowered[0].name, collective_ps(executable) / 1e6, mode)


def as_json(lines: Sequence[Measured], place: Mapping[str, Any]) -> dict[str, Any]:
    """The object of `--json` and of the report file."""
    return {"schema": SCHEMA, **place, "results": [_json_line(line) for line in lines]}


def _json_line(line: Measured) -> dict[str, Any]:
    return {
        "op": line.case.operator.name,
        "size_bytes": line.size_bytes,
        "count_elems": line.case.elements,
        "type": type_name(line.case.dtype),
        "ranks": line.case.ranks,
        "iterations": line.case.iterations,
        "time_us": line.time_us,
        "algbw_gb_per_s": line.algbw_gb_per_s,
        "busbw_gb_per_s": line.busbw_gb_per_s,
        "algorithm": line.algorithm,
        "check": line.checked,
    }


def type_name(dtype: DType) -> str:
    """nccom-test's name of a type."""
    return next(name for name, known in DTYPES.items() if known is dtype)


def as_text(lines: Sequence[Measured], heading: str, *, show_algorithm: bool) -> str:
    """The table that `nccrt bench` prints."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, no_color=True, markup=False)
    console.print(heading)
    table = Table(box=None, pad_edge=False)
    columns = ["size(B)", "count(elems)", "type", "time(us)", "algbw(GB/s)", "busbw(GB/s)"]
    columns += ["algorithm"] if show_algorithm else []
    for column in columns:
        table.add_column(column, justify="right")
    for line in lines:
        figures = (line.time_us, line.algbw_gb_per_s, line.busbw_gb_per_s)
        cells = [str(line.size_bytes), str(line.case.elements), type_name(line.case.dtype)]
        cells += [f"{figure:.2f}" for figure in figures]
        table.add_row(*cells, *([line.algorithm] if show_algorithm else []))
    console.print(table)
    passed = {line.checked for line in lines if line.checked}
    for mode in sorted(passed):
        console.print(f"check {mode}: every value is as expected")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
