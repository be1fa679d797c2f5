"""What DMA descriptors do to memory: copies, reductions and fills between ranks.

Small transfers of many ranks are one gather and one scatter over the arena's windows; large ones
go rank by rank at the speed of memory, which needs no index arrays and no temporaries.

Sizes and offsets of variable-size collectives are known only at run time: LOAD rows of a CC-core
read them from memory into length registers, and transfers take them from there.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import MemoryFaultError
from ncc_runtime.execution.values.kernels.conversions import narrowed, widened
from ncc_runtime.execution.values.kernels.elementwise import FUNCTIONS
from ncc_runtime.execution.values.kernels.numbers import canonical_nans
from ncc_runtime.execution.values.memory import Arena
from ncc_runtime.execution.variable_sizes import CountsTable, RowCounts
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, RegisterLoad
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Program, TensorId
from ncc_runtime.neff.shared.reductions import Reduction

SMALL_BYTES = 16 * 1024
"""Up to this size one indexed call over all ranks beats a call per rank (docs/decisions.md)."""


def transfer(
    executable: Executable, arena: Arena, queue: DmaQueue, row: int, ranks: np.ndarray
) -> None:
    """Perform one row of a DMA ring for the ranks that have a transfer there."""
    for transfers in sized_transfers(executable, queue, row, ranks):
        transfers.perform(arena)


@attrs.define(eq=False)
class InFlight:
    """A transfer that has read its sources, and writes later."""

    sender: int
    data: np.ndarray  # (size,) uint8, its own copy
    sources: Sequence[tuple[int, int]]  # ranks, and addresses in their memory
    targets: Sequence[tuple[int, int]]
    has_landed: bool = False

    def land(self, arena: Arena) -> None:
        """Write it, once."""
        if not self.has_landed:
            for rank, address in self.targets:
                arena.row(rank, address, len(self.data))[:] = self.data
        self.has_landed = True

    def writes_what_is_read_by(self, other: "InFlight") -> bool:
        """Whether another transfer reads bytes that this one writes."""
        return any(
            rank == owner
            and address < source + len(other.data)
            and source < address + len(self.data)
            for rank, address in self.targets
            for owner, source in other.sources
        )


def begun_transfers(
    executable: Executable, arena: Arena, queue: DmaQueue, row: int, ranks: np.ndarray
) -> Iterator[InFlight]:
    """What one row of a DMA ring moves, read now; MemoryFaultError where there is no memory."""
    for transfers in sized_transfers(executable, queue, row, ranks):
        transfers.check_inside(queue.name, arena)
        for index, sender in enumerate(transfers.ranks.tolist()):
            data = transfers.read(arena, index).copy()
            sources, targets = transfers.sources_of(index), transfers.targets_of(index)
            yield InFlight(sender, data, tuple(sources), tuple(targets))


def sized_transfers(
    executable: Executable, queue: DmaQueue, row: int, ranks: np.ndarray
) -> "Iterator[SizedTransfers]":
    """What one row of a DMA ring moves for the ranks that have a transfer there, by size."""
    placeholder = executable.program.placeholders[int(queue.placeholder[row])]
    ranks = ranks[queue.peer[row, ranks] != IDLE]
    sizes = queue.size_bytes[row, ranks]
    for size in np.unique(sizes[sizes > 0]).tolist():
        yield SizedTransfers(queue, row, ranks[sizes == size], size, placeholder)


class SizedTransfers:
    """Transfers of one size in one row: from whose memory and where, to whom and where."""

    def __init__(
        self, queue: DmaQueue, row: int, ranks: np.ndarray, size: int, placeholder: Placeholder
    ) -> None:
        self.ranks = ranks
        self._opcode, self._placeholder = DmaOpcode(int(queue.opcode[row])), placeholder
        self._size, self._divisor = size, int(queue.divisor[row])
        self._sources = queue.sources[row, ranks]
        self._owners = np.broadcast_to(ranks[:, None], self._sources.shape)
        if queue.source_rank is not None:
            self._owners = queue.source_rank[row, ranks]
        self._peers, self._targets = queue.peer[row, ranks], queue.target[row, ranks]
        # Some transfers write to a second target too: by transfer, IDLE for none.
        self._second_peers = np.full_like(self._peers, IDLE)
        self._second_targets = np.full_like(self._targets, IDLE)
        if queue.second_peer is not None and queue.second_target is not None:
            self._second_peers = queue.second_peer[row, ranks]
            self._second_targets = queue.second_target[row, ranks]

    def perform(self, arena: Arena) -> None:
        if self._size <= SMALL_BYTES and len(self._peers) > 1:
            self._perform_together(arena)
            return
        for index in range(len(self._peers)):
            data = self.read(arena, index)
            for rank, address in self.targets_of(index):
                arena.row(rank, address, self._size)[:] = data

    def _perform_together(self, arena: Arena) -> None:
        dtype = self._placeholder.dtype.numpy
        windows = arena.windows(dtype, self._size // dtype.itemsize)
        offsets = self._sources // dtype.itemsize  # in elements; an idle source stays negative
        parts = [
            windows[owners, starts]
            for owners, starts in zip(self._owners.T, offsets.T, strict=True)
            if starts[0] >= 0
        ]
        written = (
            np.zeros((len(self._peers), 1), dtype) if self._opcode is DmaOpcode.FILL else parts[0]
        )
        if self._opcode is DmaOpcode.REDUCE:
            written = reduce_parts(parts, self._placeholder.reduction, self._divisor)
        windows[self._peers, self._targets // dtype.itemsize] = written
        second = np.flatnonzero(self._second_peers != IDLE)
        if len(second):
            starts = self._second_targets[second] // dtype.itemsize
            windows[self._second_peers[second], starts] = written[second]

    @property
    def size(self) -> int:
        """Bytes of each."""
        return self._size

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._placeholder.dtype.numpy.itemsize

    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Ranks and addresses of sources, (transfers, sources), and of targets; rank -1: none."""
        used = [k for k in range(self._sources.shape[1]) if self._sources[0, k] != IDLE]
        return (
            self._owners[:, used].astype(np.int64),
            self._sources[:, used].astype(np.int64),
            np.column_stack([self._peers, self._second_peers]).astype(np.int64),
            np.column_stack([self._targets, self._second_targets]).astype(np.int64),
        )

    def compute(self, sources: np.ndarray) -> np.ndarray:
        """What is written, [transfers, size] uint8, from sources, [sources, transfers, size]."""
        if self._opcode is DmaOpcode.FILL:
            return np.zeros(sources.shape[1:], np.uint8)
        if self._opcode is DmaOpcode.COPY:
            first: np.ndarray = sources[0]
            return first
        parts = list(sources.view(self._placeholder.dtype.numpy))
        return reduce_parts(parts, self._placeholder.reduction, self._divisor).view(np.uint8)

    def read(self, arena: Arena, index: int) -> np.ndarray:
        """The bytes that one transfer writes; those of a copy are a view of its source."""
        if self._opcode is DmaOpcode.FILL:
            return np.broadcast_to(np.uint8(0), (self._size,))
        parts = [arena.row(*source, self._size) for source in self.sources_of(index)]
        if self._opcode is DmaOpcode.COPY:
            return parts[0]
        typed = [part.view(self._placeholder.dtype.numpy) for part in parts]
        return reduce_parts(typed, self._placeholder.reduction, self._divisor).view(np.uint8)

    def sources_of(self, index: int) -> Iterator[tuple[int, int]]:
        """From whose memory one transfer reads, and where."""
        for owner, source in zip(self._owners[index], self._sources[index], strict=True):
            if source >= 0:
                yield int(owner), int(source)

    def targets_of(self, index: int) -> Iterator[tuple[int, int]]:
        """To whose memory one transfer writes, and where."""
        yield int(self._peers[index]), int(self._targets[index])
        if self._second_peers[index] != IDLE:
            yield int(self._second_peers[index]), int(self._second_targets[index])

    def check_inside(self, name: str, arena: Arena) -> None:
        """MemoryFaultError if a transfer reads or writes outside of the memory of a rank."""
        end = arena.bytes.shape[1] - self._size
        used = self._sources != IDLE
        for address, is_used in (
            (self._sources, used),
            (self._targets[:, None], np.True_),
            (self._second_targets[:, None], (self._second_peers != IDLE)[:, None]),
        ):
            wrong = np.argwhere(is_used & ((address < 0) | (address > end)))
            if len(wrong):
                at = tuple(wrong[0].tolist())
                raise MemoryFaultError(
                    f"rank {int(self.ranks[at[0]])}, queue {name}: bytes {int(address[at]):#x}.."
                    f"{int(address[at]) + self._size:#x} are outside of the memory of a rank"
                )


def reduce_parts(
    parts: list[np.ndarray], reduction: Reduction | None, divisor: int = 1
) -> np.ndarray:
    """Reduce the sources of a descriptor left to right, in float32, divide, and round once.

    Only the last step of an average divides. Integers wrap; float64 and complex stay in their own
    precision.
    """
    assert reduction is not None, "a reducing descriptor has a reduction"
    dtype, total = parts[0].dtype, widened(parts[0])
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            total = _COMBINE[reduction](total, widened(part))
        if divisor != 1:
            total = total / total.dtype.type(divisor)
        return canonical_nans(narrowed(total, dtype))


_COMBINE: dict[Reduction, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    reduction: FUNCTIONS["add" if reduction is Reduction.AVERAGE else reduction.value]
    for reduction in Reduction
}


OfAll = Callable[[np.ndarray, Callable[[np.ndarray], np.ndarray]], np.ndarray]
"""What a function of ranks of one process gives, (r, …), for ranks of all processes."""


class LengthRegisters:
    """The registers of the CC-cores of all ranks, one file a stream."""

    def __init__(self, executable: Executable, arena: Arena, of_all: OfAll) -> None:
        self._executable, self._arena, self._of_all = executable, arena, of_all
        self._files: dict[int, np.ndarray] = {}  # by stream: (ranks, registers) int64
        self._tables: dict[int, _GroupTables] = {}  # by placeholder
        counts: dict[int, int] = {}  # by stream: registers
        for queue in executable.queues:
            if isinstance(queue, CcQueue) and queue.loads:
                count = max(load.first + load.words for load in queue.loads.values())
                counts[queue.stream] = max(count, counts.get(queue.stream, 0))
        for stream, count in counts.items():
            self._files[stream] = np.zeros((executable.ranks, count), np.int64)

    def load(self, queue: CcQueue, row: int, ranks: np.ndarray) -> None:
        """Perform a LOAD; the first of a collective also checks all of its tables."""
        load, number = queue.loads[row], int(queue.placeholder[row])
        if not load.first:
            self._check(number, ranks)
        registers = self._files[queue.stream]
        words = self._of_all(ranks, functools.partial(self._read, load))
        registers[ranks, load.first : load.first + load.words] = words

    def _read(self, load: RegisterLoad, ranks: np.ndarray) -> np.ndarray:
        """The words as they are in memory, (r, words)."""
        dtype = load.dtype.numpy
        if len(load.address) == 1:
            words = self._arena.tensor(dtype, (load.words,), int(load.address[0]))
            found: np.ndarray = words[ranks - self._arena.first]
            return found
        size = load.words * dtype.itemsize
        rows = [self._arena.row(rank, int(load.address[rank]), size) for rank in ranks.tolist()]
        return np.stack(rows).view(dtype) if rows else np.empty((0, load.words), dtype)

    def _check(self, number: int, ranks: np.ndarray) -> None:
        if number not in self._tables:
            self._tables[number] = _GroupTables(self._executable, number)
        for stage in self._executable.stages:
            stage_ranks = ranks[np.isin(ranks, stage.ranks)]
            if len(stage_ranks):
                program = stage.program
                tensors = program.placeholders[number].counts
                tables = [
                    self._of_all(
                        stage_ranks, functools.partial(self._table, program, TensorId(tensor))
                    )
                    for tensor in tensors
                ]
                self._tables[number].add(stage_ranks, tables)

    def _table(self, program: Program, tensor: TensorId, ranks: np.ndarray) -> np.ndarray:
        """A table of counts as it is in memory, (r, *shape)."""
        kind = program.tensors[tensor]
        address = program.address(tensor)
        tables = self._arena.tensor(kind.dtype.numpy, kind.shape, address)
        found: np.ndarray = tables[ranks - self._arena.first]
        return found

    def resolved(self, queue: DmaQueue, row: int) -> DmaQueue:
        """A ring of one row: this one, with the sizes and addresses that the registers hold."""
        registers = queue.registers
        assert registers is not None, f"{queue.name} uses no registers"
        placeholder = self._executable.program.placeholders[int(queue.placeholder[row])]
        size = queue.size_bytes[row].astype(np.int64)
        sources, target = queue.sources[row], queue.target[row]
        if placeholder.op.is_counted:
            row_bytes = self._executable.program.row_bytes(placeholder)
            values = self._files[queue.stream]
            rows, source_offset, target_offset = (
                _register_values(values, column[row]) * row_bytes for column in registers.columns
            )
            size = np.where(registers.rows[row] == IDLE, size, rows)
            sources = np.where(sources == IDLE, IDLE, sources + source_offset[:, None])
            target = target + target_offset
        this_row = slice(row, row + 1)
        return attrs.evolve(
            queue,
            opcode=queue.opcode[this_row],
            placeholder=queue.placeholder[this_row],
            round=queue.round[this_row],
            divisor=queue.divisor[this_row],
            peer=queue.peer[this_row],
            sources=sources[None],
            target=target[None],
            size_bytes=size[None],
            source_rank=_row_of(queue.source_rank, row),
            second_peer=_row_of(queue.second_peer, row),
            second_target=_row_of(queue.second_target, row),
            registers=None,
        )


def _row_of(column: np.ndarray | None, row: int) -> np.ndarray | None:
    return None if column is None else column[row : row + 1]


def _register_values(file: np.ndarray, register: np.ndarray) -> np.ndarray:
    """The value of each rank's register, 0 where none is named; (ranks,)."""
    values = np.take_along_axis(file, np.maximum(register, 0)[:, None], axis=1)[:, 0]
    return np.where(register == IDLE, 0, values)


class _GroupTables:
    """The tables of one collective, of each rank and execution, until a group is complete."""

    def __init__(self, executable: Executable, number: int) -> None:
        placeholder: Placeholder = executable.program.placeholders[number]
        self._table = CountsTable.of(executable.program, placeholder)
        self._groups = {rank: group for group in placeholder.groups for rank in group}
        self._executions: dict[int, int] = {}  # by rank, how often it has run the collective
        # By group and execution: the columns of the ranks that have arrived.
        self._waiting: dict[tuple[tuple[int, ...], int], dict[int, Mapping[str, np.ndarray]]] = {}

    def add(self, ranks: np.ndarray, tables: list[np.ndarray]) -> None:
        """Add the tables of ranks; CountsError if they do not fit, or those of a complete group."""
        groups = np.array([self._groups[rank] for rank in ranks.tolist()])
        counts = self._table.counts_of(tables, groups.shape[1])
        self._table.check_ranks(counts, ranks, groups)
        for position, rank in enumerate(ranks.tolist()):
            group, execution = self._groups[rank], self._executions.get(rank, 0)
            self._executions[rank] = execution + 1
            arrived = self._waiting.setdefault((group, execution), {})
            arrived[rank] = {
                name: column[position]
                for name, column in attrs.asdict(counts, recurse=False).items()
                if column is not None
            }
            if len(arrived) == len(group):
                del self._waiting[group, execution]
                columns = {
                    name: np.stack([arrived[member][name] for member in group])
                    for name in arrived[group[0]]
                }
                complete = RowCounts(
                    columns["rows"], columns["source"], columns["received"], columns.get("target")
                )
                self._table.check_group(complete, group)
