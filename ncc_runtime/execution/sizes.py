"""How many bytes transfers of counted collectives move: what a run has seen, or what is assumed.

The clock and the reports read the sizes of an executable; here they are set to what was moved. In
a loop that is the mean of all turns for the reports, while the clock gets every one. Without
values, sizes follow from counts that are constants of the program; else a slot is taken to be full,
and where offsets are free every transfer to have an even share of what there is.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.count_rules import Table
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder, even_share
from ncc_runtime.neff.program import Program


class SizeRecord:
    """The sizes of transfers, as they are performed."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._total: dict[int, np.ndarray] = {}  # by queue: (rows, ranks) int64
        self._times: dict[int, np.ndarray] = {}
        self._seen: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}  # ranks and sizes
        for number, queue in enumerate(executable.queues):
            if isinstance(queue, DmaQueue) and queue.registers is not None:
                self._total[number] = np.zeros(queue.peer.shape, np.int64)
                self._times[number] = np.zeros(queue.peer.shape, np.int64)
                self._seen[number] = []

    def add(self, number: int, row: int, ranks: np.ndarray, sizes: np.ndarray) -> None:
        """A row has been performed on ranks, and moved so many bytes on each."""
        self._total[number][row, ranks] += sizes
        self._times[number][row, ranks] += 1
        self._seen[number].append((ranks, sizes))

    def turns(self) -> Mapping[int, Sequence[np.ndarray]]:
        """Of rings that perform rows several times: for each rank all sizes, in order."""
        ranks = self._executable.ranks
        return {
            number: _by_rank(self._seen[number], ranks)
            for number, times in self._times.items()
            if (times > 1).any()
        }

    def sized(self) -> Executable:
        """The executable with these sizes; rows that were not performed keep theirs."""
        found = {
            number: np.where(
                times > 0,
                -(-self._total[number] // np.maximum(times, 1)),
                _queue(self._executable, number).size_bytes,
            )
            for number, times in self._times.items()
        }
        return _with_sizes(self._executable, found)


def _by_rank(seen: Sequence[tuple[np.ndarray, np.ndarray]], ranks: int) -> list[np.ndarray]:
    rank, size = (np.concatenate(column) for column in zip(*seen, strict=True))
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
    """The executable with the sizes that are assumed without values, and what is said of them."""
    said = {
        number: _words(executable, placeholder)
        for number, placeholder in enumerate(executable.program.placeholders)
        if placeholder.op.is_counted
    }
    if not said:
        return executable, ()
    sizes = {
        number: _assumed_sizes(executable.program, queue, said)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, DmaQueue) and queue.registers is not None
    }
    return _with_sizes(executable, sizes), tuple(_notes(executable.program, said))


_Words = np.ndarray | None
"""The words of a collective's tables that count rows sent; None if they are known when it runs."""


def _words(executable: Executable, placeholder: Placeholder) -> _Words:
    """What the registers that count rows will hold on every rank, by number, if it is constant."""
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
            known = [_constant(program, tensor) for tensor in placeholder.counts]
            tables = [table for table in known if table is not None]
            if len(tables) < len(known):
                continue
            table = Table.of(program, placeholder)
            for group in placeholder.groups:
                members = len(group)
                alike = [np.stack([one] * members) for one in tables]
                said = table.said(alike, members)
                ranks = np.array(group)
                table.check_own(said, ranks, np.stack([ranks] * members))
                table.check_group(said, group)


def _assumed_sizes(program: Program, queue: DmaQueue, said: Mapping[int, _Words]) -> np.ndarray:
    assert queue.registers is not None, queue.name
    sizes = queue.size_bytes.astype(np.int64)
    for number, words in said.items():
        own = np.flatnonzero(queue.placeholder == number)
        placeholder = program.placeholders[number]
        width = program.row_bytes(placeholder)
        if words is not None:
            register = queue.registers.rows[own]
            rows = words.astype(np.int64)[np.maximum(register, 0)] * width
            sizes[own] = np.where(register == IDLE, sizes[own], rows)
        elif placeholder.op is CollectiveOp.RAGGED_ALL_TO_ALL:
            entries = program.tensors[placeholder.counts[0]].elements
            most = int(sizes[own].max(initial=0))
            sizes[own] = np.where(
                queue.registers.rows[own] == IDLE, sizes[own], even_share(most, entries, width)
            )
    return sizes


def _notes(program: Program, said: Mapping[int, _Words]) -> Sequence[str]:
    """What the report says of collectives whose counts are not known."""
    found = []
    for number, words in said.items():
        placeholder = program.placeholders[number]
        if words is None:
            is_ragged = placeholder.op is CollectiveOp.RAGGED_ALL_TO_ALL
            what = "an even share for every member" if is_ragged else "full slots"
            name = placeholder.name or placeholder.op.value
            found.append(f"p{number} {name}: its counts are not known, {what} assumed")
    return found
