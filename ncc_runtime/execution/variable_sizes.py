"""Variable-size collectives (all-to-all-v and the like): their tables of counts, and their sizes.

Tables are checked so that counts and offsets fit the buffers and each other: a rank's own numbers
when they are known, those of a group when all of its ranks' are.

The clock and the reports read the sizes of an executable, so these are set to what was moved. In a
loop that is the mean of all trips for the reports, while the clock gets the size of every trip.
Without values, sizes follow from counts that are constants of the program; otherwise a slot is
assumed to be full, and where offsets are free every transfer to have an even share of the buffer.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.errors import CountsError
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder, even_share
from ncc_runtime.neff.program import Program

_Text: TypeAlias = Callable[[tuple[int, int, int]], str]
"""The text of a fault at (rank, member, update); {peer} stands for the member's rank."""


@attrs.frozen(eq=False)
class RowCounts:
    """The numbers of some ranks' tables, (ranks, members, updates) int64; rows of dimension 0."""

    rows: np.ndarray  # that go to each member
    source: np.ndarray  # from which row of the operand on
    received: np.ndarray  # that come from each member
    target: np.ndarray | None  # to which row of the member's result on; None: to a slot


@attrs.frozen
class CountsTable:
    """The tables of a variable-size collective: what their numbers may be."""

    name: str
    op: CollectiveOp
    operand_rows: int
    result_rows: int
    most: int  # rows of one transfer

    @classmethod
    def of(cls, program: Program, placeholder: Placeholder) -> "CountsTable":
        """The facts of a placeholder; its groups are of one size."""
        shapes = [
            program.tensors[tensor].shape
            for tensor in (placeholder.operands[0], placeholder.results[0])
        ]
        operand, result = (shape[0] for shape in shapes)
        has_slots = placeholder.op in (CollectiveOp.ALL_GATHER_V, CollectiveOp.ALL_TO_ALL_V)
        slot = result // len(placeholder.groups[0]) if has_slots else result
        name = f"{placeholder.name or 'a collective'} ({placeholder.op.value})"
        return cls(name, placeholder.op, operand, result, slot)

    def counts_of(self, tables: Sequence[np.ndarray], members: int) -> RowCounts:
        """The numbers of tables, each [ranks, *shape]."""
        wide = [table.astype(np.int64) for table in tables]
        if self.op is CollectiveOp.RAGGED_ALL_TO_ALL:
            source, rows, target, received = (
                table.reshape(len(table), members, -1) for table in wide
            )
            return RowCounts(rows, source, received, target)
        rows, source, received = (wide[0][:, row, :, None] for row in range(3))
        return RowCounts(rows, source, received, None)

    def check_ranks(self, counts: RowCounts, ranks: np.ndarray, groups: np.ndarray) -> None:
        """CountsError for the first number that fits no buffer; `groups` are those of the ranks."""
        for wrong, text in self._faults_of_ranks(counts):
            if wrong.any():
                rank, member, update = np.unravel_index(int(wrong.argmax()), wrong.shape)
                at = int(rank), int(member), int(update)
                peer = int(groups[rank, member])
                fault = text(at).format(peer=peer)
                raise CountsError(f"{self.name}: rank {int(ranks[rank])} {fault}")

    def _faults_of_ranks(self, counts: RowCounts) -> Iterator[tuple[np.ndarray, _Text]]:
        rows, source, target = counts.rows, counts.source, counts.target
        yield (
            (rows < 0) | (rows > self.most),
            lambda at: (
                f"sends {rows[at]} rows to rank {{peer}}; a transfer moves 0 to {self.most}, "
                f"as many as {self._where} has"
            ),
        )
        yield (
            (rows > 0) & ((source < 0) | (source > self.operand_rows - rows)),
            lambda at: (
                f"sends rows {source[at]}..{source[at] + rows[at]} to rank {{peer}}, its operand "
                f"has {self.operand_rows}: correct the offset or the count"
            ),
        )
        if target is not None:
            yield (
                (rows > 0) & ((target < 0) | (target > self.result_rows - rows)),
                lambda at: (
                    f"writes rows {target[at]}..{target[at] + rows[at]} at rank {{peer}}, whose "
                    f"output has {self.result_rows}: correct the offset or the count"
                ),
            )
        if self.op is CollectiveOp.ALL_GATHER_V:
            yield (
                (rows != rows[:, :1]) | (source != source[:, :1]),
                lambda at: (
                    f"sends rows {source[at]}..{source[at] + rows[at]} to rank {{peer}} and others "
                    "elsewhere: an all-gather sends everybody the same rows"
                ),
            )

    @property
    def _where(self) -> str:
        return "the output" if self.op is CollectiveOp.RAGGED_ALL_TO_ALL else "a slot"

    def check_group(self, counts: RowCounts, group: Sequence[int]) -> None:
        """CountsError for the first numbers of a group that do not fit each other."""
        rows, received = counts.rows, counts.received.swapaxes(0, 1)
        if self.op is CollectiveOp.REDUCE_SCATTER_V:
            self._check_equal_rows(rows, group)
        wrong = rows != received
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0].tolist())
            raise CountsError(
                f"{self.name}: rank {group[at[0]]} sends {rows[at]} rows to rank {group[at[1]]}, "
                f"which expects {received[at]}: what is sent and what is received must be equal"
            )
        if counts.target is not None:
            self._check_disjoint(counts.target, rows, group)

    def _check_equal_rows(self, rows: np.ndarray, group: Sequence[int]) -> None:
        wrong = rows != rows[:1]
        if wrong.any():
            source, member, _ = np.argwhere(wrong)[0].tolist()
            raise CountsError(
                f"{self.name}: rank {group[source]} has {rows[source, member, 0]} rows for rank "
                f"{group[member]}, rank {group[0]} has {rows[0, member, 0]}: chunks that are "
                "joined have equally many rows"
            )

    def _check_disjoint(self, target: np.ndarray, rows: np.ndarray, group: Sequence[int]) -> None:
        """No two transfers write one row of a member."""
        for member, to in enumerate(group):
            start, count = target[:, member].ravel(), rows[:, member].ravel()
            writes = np.flatnonzero(count > 0)
            writes = writes[np.argsort(start[writes], kind="stable")]
            ends = start[writes] + count[writes]
            overlaps = np.flatnonzero(ends[:-1] > start[writes][1:])
            if len(overlaps):
                updates = target.shape[2]
                first, second = writes[overlaps[0] : overlaps[0] + 2].tolist()
                raise CountsError(
                    f"{self.name}: rows {start[first]}..{start[first] + count[first]} from rank "
                    f"{group[first // updates]} and rows "
                    f"{start[second]}..{start[second] + count[second]} from rank "
                    f"{group[second // updates]} overlap at rank {to}: correct the output offsets"
                )


class SizeRecord:
    """The sizes of transfers, as they are performed."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._total: dict[int, np.ndarray] = {}  # by queue: (rows, ranks) int64
        self._times: dict[int, np.ndarray] = {}
        self._runs: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}  # ranks and sizes
        for number, queue in enumerate(executable.queues):
            if isinstance(queue, DmaQueue) and queue.registers is not None:
                self._total[number] = np.zeros(queue.peer.shape, np.int64)
                self._times[number] = np.zeros(queue.peer.shape, np.int64)
                self._runs[number] = []

    def add(self, number: int, row: int, ranks: np.ndarray, sizes: np.ndarray) -> None:
        """A row has been performed on ranks and moved these sizes, in bytes."""
        self._total[number][row, ranks] += sizes
        self._times[number][row, ranks] += 1
        self._runs[number].append((ranks, sizes))

    def repeated(self) -> Mapping[int, Sequence[np.ndarray]]:
        """By queue, for rings that perform a row several times: sizes of each rank, in order."""
        ranks = self._executable.ranks
        return {
            number: _by_rank(self._runs[number], ranks)
            for number, times in self._times.items()
            if (times > 1).any()
        }

    def fingerprint(self) -> Hashable:
        """Equal for runs of one executable in which each rank's ring moves the same sizes."""
        ranks = self._executable.ranks
        return tuple(
            (number, tuple(sizes.tobytes() for sizes in _by_rank(runs, ranks)))
            for number, runs in self._runs.items()
            if runs
        )

    def agrees_with(self, other: "SizeRecord") -> bool:
        """Whether rings of all ranks moved the same sizes, as far as both went."""
        ranks = self._executable.ranks
        for number, runs in self._runs.items():
            if runs and other._runs[number]:
                here, there = _by_rank(runs, ranks), _by_rank(other._runs[number], ranks)
                for one, another in zip(here, there, strict=True):
                    both = min(len(one), len(another))
                    if (one[:both] != another[:both]).any():
                        return False
        return True

    def sized(self) -> Executable:
        """The executable with these sizes; rows that were not performed keep theirs."""
        sizes = {
            number: np.where(
                times > 0,
                -(-self._total[number] // np.maximum(times, 1)),
                _queue(self._executable, number).size_bytes,
            )
            for number, times in self._times.items()
        }
        return _with_sizes(self._executable, sizes)


def _by_rank(runs: Sequence[tuple[np.ndarray, np.ndarray]], ranks: int) -> list[np.ndarray]:
    rank, size = (np.concatenate(column) for column in zip(*runs, strict=True))
    order = np.argsort(rank, kind="stable")
    return np.split(size[order], np.searchsorted(rank[order], np.arange(1, ranks)))


def _queue(executable: Executable, number: int) -> DmaQueue:
    queue = executable.queues[number]
    assert isinstance(queue, DmaQueue), queue.name
    return queue


def _with_sizes(executable: Executable, sizes: Mapping[int, np.ndarray]) -> Executable:
    if not sizes:
        return executable
    queues = [
        attrs.evolve(_queue(executable, number), size_bytes=sizes[number])
        if number in sizes
        else queue
        for number, queue in enumerate(executable.queues)
    ]
    return attrs.evolve(executable, queues=tuple(queues))


def assumed(executable: Executable) -> tuple[Executable, tuple[str, ...]]:
    """The executable with the sizes that are assumed without values, and notes for the report."""
    words_of = {
        number: _words(executable, placeholder)
        for number, placeholder in enumerate(executable.program.placeholders)
        if placeholder.op.is_counted
    }
    if not words_of:
        return executable, ()
    sizes = {
        number: _assumed_sizes(executable.program, queue, words_of)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, DmaQueue) and queue.registers is not None
    }
    return _with_sizes(executable, sizes), tuple(_notes(executable.program, words_of))


_Words = np.ndarray | None
"""The words of a collective's tables that count rows sent; None if they are known when it runs."""


def _words(executable: Executable, placeholder: Placeholder) -> _Words:
    """By register, the rows that it will count on every rank, if the table is a constant."""
    if len(executable.stages) > 1:
        return None
    first = int(placeholder.op is CollectiveOp.RAGGED_ALL_TO_ALL)
    table = _constant(executable.program, placeholder.counts[first])
    return None if table is None else np.tile(table.ravel(), first + 1)


def _constant(program: Program, tensor: int) -> np.ndarray | None:
    """The value of a tensor that is a constant of the program."""
    view = program.tensors[tensor]
    data = program.constants.get(view.buffer)
    if data is None:
        return None
    words = np.frombuffer(data, view.dtype.numpy, view.elements, view.offset)
    return words.reshape(view.shape)


def check_counts(executable: Executable) -> None:
    """CountsError where tables that are constants do not fit."""
    for stage in executable.stages:
        program = stage.program
        for placeholder in program.placeholders:
            if not placeholder.op.is_counted or len(executable.stages) > 1:
                continue
            constants = [_constant(program, tensor) for tensor in placeholder.counts]
            tables = [table for table in constants if table is not None]
            if len(tables) < len(constants):
                continue
            table = CountsTable.of(program, placeholder)
            for group in placeholder.groups:
                members = len(group)
                # a constant is the same on all ranks
                counts = table.counts_of([np.stack([each] * members) for each in tables], members)
                ranks = np.array(group)
                table.check_ranks(counts, ranks, np.stack([ranks] * members))
                table.check_group(counts, group)


def _assumed_sizes(program: Program, queue: DmaQueue, words_of: Mapping[int, _Words]) -> np.ndarray:
    assert queue.registers is not None, queue.name
    sizes = queue.size_bytes.astype(np.int64)
    for number, words in words_of.items():
        rows = np.flatnonzero(queue.placeholder == number)
        placeholder = program.placeholders[number]
        row_bytes = program.row_bytes(placeholder)
        register = queue.registers.rows[rows]
        if words is not None:
            counted = words.astype(np.int64)[np.maximum(register, 0)] * row_bytes
            sizes[rows] = np.where(register == IDLE, sizes[rows], counted)
        elif placeholder.op is CollectiveOp.RAGGED_ALL_TO_ALL:
            entries = program.tensors[placeholder.counts[0]].elements
            share = even_share(int(sizes[rows].max(initial=0)), entries, row_bytes)
            sizes[rows] = np.where(register == IDLE, sizes[rows], share)
    return sizes


def _notes(program: Program, words_of: Mapping[int, _Words]) -> Sequence[str]:
    """Notes for the report on collectives whose counts are not known."""
    notes = []
    for number, words in words_of.items():
        placeholder = program.placeholders[number]
        if words is None:
            is_ragged = placeholder.op is CollectiveOp.RAGGED_ALL_TO_ALL
            what = "an even share for every member" if is_ragged else "full slots"
            name = placeholder.name or placeholder.op.value
            notes.append(f"p{number} {name}: its counts are not known, {what} assumed")
    return notes
