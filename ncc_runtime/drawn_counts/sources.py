"""Which words of parameters tables of counts are made of, and which parameters reach them.

A table is followed back through what only moves words: its words are traced by performing the same
moves on the numbers of the words. Other instructions, collectives, and what is written several
times, as the state of a loop is, end the way.
"""

from collections.abc import Iterator
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.execution.values.compute import KERNELS
from ncc_runtime.execution.values.work import Work
from ncc_runtime.neff.program import Program, Tensor
from ncc_runtime.neff.table import NONE, Instr

UNKNOWN = -1
"""The source of a word that is computed, or comes from elsewhere."""

_SAME = ("copy", "convert")
_MOVED = ("broadcast", "concatenate", "reshape", "reverse", "slice", "transpose")

_Writer: TypeAlias = tuple[Instr | None, int]
"""The instruction that writes a tensor, None for a collective, and the tensor."""


@attrs.frozen(eq=False)
class Words:
    """The words that a program is given: its inputs one after the other, then constants."""

    first: (
        np.ndarray
    )  # (inputs + 1,) int64, the number of the first word of each input, and the end
    constants: list[np.ndarray]  # their words, in order


class Sources:
    """The way back from tensors of one program to its inputs and constants."""

    def __init__(self, program: Program) -> None:
        self._program = program
        elements = [program.tensors[tensor].elements for tensor in program.inputs]
        first: np.ndarray = np.concatenate(([0], np.cumsum(elements, dtype=np.int64)))
        self.words = Words(first, [])
        self._inputs = {program.tensors[one].buffer: k for k, one in enumerate(program.inputs)}
        self._numbered = int(first[-1])  # words that have a number
        self._writers: dict[int, list[_Writer]] = {}  # by buffer
        self._feeding: dict[int, set[int]] = {}  # buffers from which one is computed
        for row in _rows(program):
            self._note(row, row.results, row.operands)
        for one in program.placeholders:
            self._note(None, one.results, (*one.operands, *one.counts))

    def _note(self, row: Instr | None, results: tuple[int, ...], operands: tuple[int, ...]) -> None:
        read = {int(self._program.tensors[one].buffer) for one in operands}
        for result in results:
            buffer = self._program.tensors[result].buffer
            self._writers.setdefault(buffer, []).append((row, result))
            self._feeding.setdefault(buffer, set()).update(read)

    def of(self, number: int) -> np.ndarray:
        """Where each word of a tensor comes from, (elements,) int64: a word's number or UNKNOWN.

        Numbers are those of `words`.
        """
        tensor = self._program.tensors[number]
        unknown: np.ndarray = np.full(tensor.elements, UNKNOWN, np.int64)
        if tensor.buffer in self._inputs:
            given = self._inputs[tensor.buffer]
            return self._part(self._given(given), self._program.inputs[given], tensor)
        if tensor.buffer in self._program.constants:
            return self._constant(tensor)
        writers = self._writers.get(tensor.buffer, [])
        if len(writers) != 1:
            return unknown
        row, result = writers[0]
        moved = None if row is None else self._moved(row)
        return unknown if moved is None else self._part(moved, result, tensor)

    def _given(self, number: int) -> np.ndarray:
        first, end = self.words.first[number : number + 2].tolist()
        return np.arange(first, end, dtype=np.int64)

    def _constant(self, tensor: Tensor) -> np.ndarray:
        data = self._program.constants[tensor.buffer]
        values = np.frombuffer(data, tensor.dtype.numpy, tensor.elements, tensor.offset)
        self.words.constants.append(values.astype(np.int64))
        first = self._numbered
        self._numbered += len(values)
        return np.arange(first, self._numbered, dtype=np.int64)

    def _part(self, whole: np.ndarray, of: int, view: Tensor) -> np.ndarray:
        """What a tensor holds of another one of the same buffer, UNKNOWN where they do not fit."""
        other, width = self._program.tensors[of], view.dtype.size_bytes
        start, rest = divmod(view.offset - other.offset, width)
        unknown: np.ndarray = np.full(view.elements, UNKNOWN, np.int64)
        if rest or start < 0 or start + view.elements > len(whole) or other.dtype != view.dtype:
            return unknown
        return whole[start : start + view.elements]

    def _moved(self, row: Instr) -> np.ndarray | None:
        """What an instruction that moves words writes; None for other instructions."""
        if row.opcode not in (*_SAME, *_MOVED):
            return None
        sources = [self.of(operand) for operand in row.operands]
        if row.opcode in _SAME:
            return sources[0]
        tensors = self._program.tensors
        shaped = [
            source.reshape(1, *tensors[operand].shape)
            for source, operand in zip(sources, row.operands, strict=True)
        ]
        attributes = {} if row.attribute == NONE else self._program.attributes[row.attribute]
        results = tuple(tensors[result] for result in row.results)
        work = Work(self._program, row.opcode, attributes, results, np.zeros(1, np.int32))
        return np.asarray(KERNELS[row.opcode](work, shaped)[0]).reshape(-1)

    def reaching(self, number: int) -> tuple[int, ...]:
        """The inputs, by number, from which a tensor follows in any way."""
        seen: set[int] = set()
        left = {int(self._program.tensors[number].buffer)}
        while left:
            buffer = left.pop()
            seen.add(buffer)
            left |= self._feeding.get(buffer, set()) - seen
        return tuple(sorted(given for buffer, given in self._inputs.items() if buffer in seen))


def _rows(program: Program) -> Iterator[Instr]:
    for table in program.queues.values():
        yield from (row for row in table if row.results)
