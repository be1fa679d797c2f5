"""Which words of parameters tables of counts are made of, and which parameters reach them.

A table is followed back through what only moves words, on a rank or between ranks: its words are
traced by performing the same moves on the numbers of the words. What computes ends the way, and
what is written several times, as the state of a loop is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from ncc_runtime.execution.values.compute import KERNELS
from ncc_runtime.execution.values.work import Work
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import Tensor
from ncc_runtime.neff.stages import Stage
from ncc_runtime.neff.table import NONE, Instr

UNKNOWN = -1
"""The source of a word that is computed, or comes from elsewhere."""

MOST_WORDS = 1 << 24
"""Of all ranks, of a tensor that is followed; larger ones are no tables, nor made into them."""

_SAME = ("copy", "convert")
_MOVED = ("broadcast", "concatenate", "reshape", "reverse", "slice", "transpose")

_Writer: TypeAlias = tuple[Instr | Placeholder, int]
"""What writes a tensor, and the tensor."""


class Sources:
    """The way back from tensors of one stage to its inputs and constants, as numbered words.

    `first` is the number of the first word of each input, whose words on all ranks are numbered
    through, rank after rank; `constant` numbers the words of a constant, alike on all ranks.
    """

    def __init__(
        self, stage: Stage, first: Sequence[int], constant: Callable[[np.ndarray], int]
    ) -> None:
        self._program, self._ranks = stage.program, stage.ranks
        self._first, self._constant_words = first, constant
        inputs = enumerate(self._program.inputs)
        self._inputs = {self._program.tensors[one].buffer: k for k, one in inputs}
        self._writers: dict[int, list[_Writer]] = {}  # by buffer
        self._feeding: dict[int, set[int]] = {}  # buffers from which one is computed
        for row in self._rows():
            self._note(row, row.results, row.operands)
        for one in self._program.placeholders:
            self._note(one, one.results, (*one.operands, *one.counts))

    def _rows(self) -> Iterator[Instr]:
        for table in self._program.queues.values():
            yield from (row for row in table if row.results)

    def _note(
        self, writer: Instr | Placeholder, results: Sequence[int], operands: Sequence[int]
    ) -> None:
        read = {int(self._program.tensors[one].buffer) for one in operands}
        for result in results:
            buffer = self._program.tensors[result].buffer
            self._writers.setdefault(buffer, []).append((writer, result))
            self._feeding.setdefault(buffer, set()).update(read)

    def of(self, number: int) -> np.ndarray:
        """Where each word of a tensor comes from, (ranks, elements) int64: a number, or UNKNOWN."""
        tensor = self._program.tensors[number]
        unknown = self._unknown(tensor)
        writers = self._writers.get(tensor.buffer, [])
        if unknown.size > MOST_WORDS:
            return unknown
        if tensor.buffer in self._inputs:
            given = self._inputs[tensor.buffer]
            return self._part(self._given(given), self._program.inputs[given], tensor)
        if tensor.buffer in self._program.constants:
            return self._constant(tensor)
        if len(writers) != 1:
            return unknown
        writer, result = writers[0]
        moved = self._moved(writer) if isinstance(writer, Instr) else self._sent(writer, result)
        return unknown if moved is None else self._part(moved, result, tensor)

    def _unknown(self, tensor: Tensor) -> np.ndarray:
        shape = len(self._ranks), tensor.elements
        return np.broadcast_to(np.int64(UNKNOWN), shape)

    def _given(self, number: int) -> np.ndarray:
        words = self._program.tensors[self._program.inputs[number]].elements
        size = len(self._ranks) * words
        return self._first[number] + np.arange(size, dtype=np.int64).reshape(-1, words)

    def _constant(self, tensor: Tensor) -> np.ndarray:
        data = self._program.constants[tensor.buffer]
        values = np.frombuffer(data, tensor.dtype.numpy, tensor.elements, tensor.offset)
        first = self._constant_words(values.astype(np.int64))
        words = first + np.arange(tensor.elements, dtype=np.int64)
        return np.broadcast_to(words, (len(self._ranks), tensor.elements))

    def _part(self, whole: np.ndarray, of: int, view: Tensor) -> np.ndarray:
        """What a tensor holds of another one of the same buffer, UNKNOWN where they do not fit."""
        other, width = self._program.tensors[of], view.dtype.size_bytes
        start, rest = divmod(view.offset - other.offset, width)
        end = start + view.elements
        if rest or start < 0 or end > whole.shape[1] or other.dtype != view.dtype:
            return self._unknown(view)
        return whole[:, start:end]

    def _moved(self, row: Instr) -> np.ndarray | None:
        """What an instruction that moves words writes; None for other instructions."""
        if row.opcode not in (*_SAME, *_MOVED):
            return None
        sources = [self.of(operand) for operand in row.operands]
        if row.opcode in _SAME:
            return sources[0]
        tensors, ranks = self._program.tensors, len(self._ranks)
        shaped = [
            source.reshape(ranks, *tensors[operand].shape)
            for source, operand in zip(sources, row.operands, strict=True)
        ]
        attributes = {} if row.attribute == NONE else self._program.attributes[row.attribute]
        results = tuple(tensors[result] for result in row.results)
        work = Work(self._program, row.opcode, attributes, results, self._ranks)
        return np.asarray(KERNELS[row.opcode](work, shaped)[0]).reshape(ranks, -1)

    def _sent(self, placeholder: Placeholder, result: int) -> np.ndarray | None:
        """What a collective that moves words writes; None for others, and between stages."""
        ranks = sorted(rank for group in placeholder.groups for rank in group)
        if ranks != self._ranks.tolist() or len({len(group) for group in placeholder.groups}) != 1:
            return None
        if placeholder.op not in (CollectiveOp.ALL_TO_ALL, CollectiveOp.ALL_GATHER):
            return None
        source = self.of(placeholder.operands[placeholder.results.index(result)])
        groups = np.searchsorted(self._ranks, np.array(placeholder.groups))
        by_member = source[groups]  # (groups, members, words)
        if placeholder.op is CollectiveOp.ALL_GATHER:
            found = np.repeat(by_member.reshape(len(groups), 1, -1), groups.shape[1], axis=1)
        else:
            cut = by_member.reshape(*groups.shape, groups.shape[1], -1)
            found = cut.swapaxes(1, 2).reshape(by_member.shape)
        whole: np.ndarray = np.empty((len(self._ranks), found.shape[2]), np.int64)
        whole[groups] = found
        return whole

    def reaching(self, number: int) -> tuple[int, ...]:
        """The inputs, by number, from which a tensor follows in any way."""
        seen: set[int] = set()
        left = {int(self._program.tensors[number].buffer)}
        while left:
            buffer = left.pop()
            seen.add(buffer)
            left |= self._feeding.get(buffer, set()) - seen
        return tuple(sorted(given for buffer, given in self._inputs.items() if buffer in seen))
