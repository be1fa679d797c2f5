"""The cases of `nccrt bench`: programs of one collective, what ranks give, what they must get.

A program is made for each size, through the contract. Operators, types and factors are
nccom-test's. Source: AWS Neuron SDK docs, nccom-test.rst.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.errors import InputError
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

Groups = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]


@attrs.frozen
class Operator:
    """An operator of nccom-test: ours, and the part of an algorithm's bandwidth that a wire has."""

    name: str
    op: CollectiveOp
    is_exchange: bool = False  # neighbours in pairs, not a ring of all ranks

    def wire_share(self, ranks: int) -> float:
        """busbw / algbw of groups of that many ranks, as nccom-test has it."""
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
    """One row: an operator over all ranks or in groups, `size_bytes` on a rank's larger side."""

    operator: Operator
    ranks: int
    dtype: DType
    size_bytes: int
    iterations: int = 1
    custom_groups: Groups = ()  # of equal size, each rank in one; none: one group of all
    custom_pairs: Pairs = ()  # of a permute, (source, target); none: those of the operator

    @property
    def groups(self) -> Groups:
        """The replica groups, or one of all ranks."""
        return self.custom_groups or (tuple(range(self.ranks)),)

    @property
    def members(self) -> int:
        """Ranks of a group."""
        return len(self.groups[0])

    @property
    def chunk(self) -> int:
        """Elements of one rank's share where buffers are cut into equal shares, at least one."""
        return max(1, self.size_bytes // (self.dtype.size_bytes * self.members))

    @property
    def elements(self) -> int:
        """Elements of the larger side: as many as fit `size_bytes`, at least one of each share."""
        if self.operator.op in (CollectiveOp.ALL_REDUCE, CollectiveOp.PERMUTE):
            return max(1, self.size_bytes // self.dtype.size_bytes)
        return self.chunk * self.members

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
        columns = np.arange(self.members, dtype="<u4")
        is_gather = self.operator.op is CollectiveOp.ALL_GATHER_V
        full = np.full_like(columns, self.chunk)
        return np.stack([full, columns * (0 if is_gather else self.chunk), full]).tobytes()

    @property
    def pairs(self) -> Pairs:
        """(source, target): the custom ones, a ring, or ranks 2k and 2k+1 (assumed)."""
        if self.operator.op is not CollectiveOp.PERMUTE:
            return ()
        if self.custom_pairs:
            return self.custom_pairs
        if self.operator.is_exchange:
            return tuple((rank, rank ^ 1) for rank in range(self.ranks))
        return tuple((rank, (rank + 1) % self.ranks) for rank in range(self.ranks))


def checked_groups(document: object, ranks: int) -> Groups:
    """Replica groups of equal size, each rank in one of them; InputError for anything else.

    `document` is a list of lists of ranks, or an object whose only value that is.
    """
    groups = tuple(tuple(group) for group in _rows_of(document, "replica groups", ranks))
    sizes = {len(group) for group in groups}
    if len(sizes) != 1 or min(sizes) < 2:
        said = ", ".join(str(size) for size in sorted(sizes))
        raise InputError(f"replica groups have equal sizes of at least 2 ranks, not {said}")
    seen: dict[int, int] = {}
    for number, group in enumerate(groups):
        for rank in group:
            if rank in seen:
                raise InputError(f"rank {rank} is twice in groups {seen[rank]} and {number}")
            seen[rank] = number
    missing = [rank for rank in range(ranks) if rank not in seen]
    if missing:
        raise InputError(f"rank {missing[0]} of {ranks} is in no group ({len(missing)} are not)")
    return groups


def checked_pairs(document: object, ranks: int) -> Pairs:
    """(source, target) pairs, each rank a source and a target at most once; InputError else."""
    pairs = []
    for number, row in enumerate(_rows_of(document, "source-target pairs", ranks)):
        if len(row) != 2:
            raise InputError(f"pair {number}: {row} is not [source, target]")
        pairs.append((row[0], row[1]))
    for side, what in enumerate(("source", "target")):
        seen: dict[int, int] = {}
        for number, pair in enumerate(pairs):
            other = seen.setdefault(pair[side], number)
            if other != number:
                raise InputError(f"rank {pair[side]} is the {what} of pairs {other} and {number}")
    return tuple(pairs)


def _rows_of(document: object, what: str, ranks: int) -> list[list[int]]:
    rows = document
    if isinstance(document, dict) and len(document) == 1:
        (rows,) = document.values()
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise InputError(f"{what} are a list of lists of ranks, such as [[0, 1], [2, 3]]")
    for number, row in enumerate(rows):
        for rank in row:
            if type(rank) is not int or not 0 <= rank < ranks:
                fact = f"{rank!r} is no rank of 0 to {ranks - 1}"
                raise InputError(f"{what}: row {number}: {fact}")
    return rows


def program_of_case(case: Case) -> Program:
    """The case as a checked program: its collective `iterations` times over the same buffers."""
    if case.operator.is_exchange and case.ranks % 2 and not case.custom_pairs:
        raise InputError(f"sendrecv is between pairs of ranks; {case.ranks} ranks are not even")
    element_bytes = case.dtype.size_bytes
    operand = Buffer("in", BufferKind.INPUT, case.operand_elements * element_bytes, 0)
    after = -(-operand.end // ALIGNMENT) * ALIGNMENT
    result = Buffer("out", BufferKind.OUTPUT, case.result_elements * element_bytes, after)
    buffers, tensors, constants = [operand, result], [], {}
    hbm_bytes = -(-result.end // ALIGNMENT) * ALIGNMENT
    if case.operator.op.is_counted:
        buffers.append(Buffer("table", BufferKind.CONSTANT, len(case.table), hbm_bytes))
        tensors.append(Tensor("table", BufferId(2), DType.U32, (3, case.members)))
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
        groups=() if op is CollectiveOp.PERMUTE else case.groups,
        pairs=case.pairs,
        counts=(2,) if op.is_counted else (),
        name=f"{case.operator.name}.{number}",
    )


def sizes(least: int, most: int, factor: int | None, step: int | None) -> Iterator[int]:
    """From the least to the most, by a factor (2 if there is neither) or a step."""
    size = least
    while size <= most:
        yield size
        size = size + step if step else size * (factor or 2)


def operands(case: Case, mode: str, generator: "np.random.Generator") -> np.ndarray:
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
    # sums of non-negative numbers: each of fewer additions than members rounds once
    tolerance = 0.0 if exact else case.members * _epsilon(case.dtype)
    wrong = ~(error <= tolerance * np.abs(expected.astype(np.float64)))
    if wrong.any():
        rank, element = (int(at[0]) for at in np.nonzero(wrong))
        raise InputError(
            f"{case.operator.name} of {case.size_bytes} bytes: rank {rank} element {element} is "
            f"{results[rank, element]}, expected {expected[rank, element]}"
        )
    if case.operator.op is CollectiveOp.ALL_REDUCE:
        for group in case.groups:
            if (results[list(group)] != results[group[0]]).any():
                fact = f"{case.operator.name} of {case.size_bytes} bytes: the ranks differ"
                raise InputError(fact)


def _epsilon(dtype: DType) -> float:
    """From 1 to the next larger value: its bits plus one. numpy has no finfo of all our types."""
    one = np.ones(1, dtype.numpy)
    above = (one.view(f"u{dtype.size_bytes}") + 1).view(dtype.numpy)
    return float(above[0]) - 1.0


def _expected(case: Case, given: np.ndarray) -> np.ndarray:
    """The results, [ranks, elements]; sums in 64 bits, wrapped to the integer type."""
    if case.operator.op is CollectiveOp.PERMUTE:
        results = np.zeros_like(given)
        for source, target in case.pairs:
            results[target] = given[source]
        return results
    of_groups = [_expected_of_group(case, given[list(group)]) for group in case.groups]
    results = np.empty((case.ranks, case.result_elements), of_groups[0].dtype)
    for group, of_group in zip(case.groups, of_groups, strict=True):
        results[list(group)] = of_group
    return results


def _expected_of_group(case: Case, given: np.ndarray) -> np.ndarray:
    """The results of one group's members, from what they give."""
    op, members = case.operator.op, case.members
    if op in (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_GATHER_V):
        return np.broadcast_to(given.reshape(-1), (members, given.size))
    if op in (CollectiveOp.ALL_TO_ALL, CollectiveOp.ALL_TO_ALL_V):
        chunks = given.reshape(members, members, -1)
        return chunks.swapaxes(0, 1).reshape(members, -1)
    wide = np.int64 if case.dtype.is_integer else np.float64
    total = given.astype(wide).sum(axis=0)
    if case.dtype.is_integer:
        total = total.astype(case.dtype.numpy)
    if op is CollectiveOp.ALL_REDUCE:
        return np.broadcast_to(total, given.shape)
    return total.reshape(members, -1)


def type_name(dtype: DType) -> str:
    """nccom-test's name of a type."""
    return next(name for name, known in DTYPES.items() if known is dtype)
