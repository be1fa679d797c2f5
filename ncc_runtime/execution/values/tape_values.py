"""A tape in static single assignment: what rows write into buffers, and who reads it.

A value is what a row writes into a buffer, or an input or constant, or, where paths of loops and
branches meet, one of several such. What a row reads has been written as its buffer, and nothing
else has been written there since (neff-M8).
"""

from collections.abc import Mapping, Sequence

import attrs

from ncc_runtime.execution.scheduler import RowBatch
from ncc_runtime.execution.tape import BlockTape, Nodes, Tape
from ncc_runtime.execution.values.normal_form import NormalForm
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.neff.program import READ_ONLY, Program, TensorId
from ncc_runtime.neff.table import Instr


@attrs.frozen(eq=False)
class TapeRow:
    """An instruction or a collective; operands and results as values."""

    key: object  # queue and row, or placeholder
    operands: tuple[int, ...]
    results: tuple[int, ...]
    blocks: tuple[int, ...]  # around it
    overlapped: tuple[int, ...]  # operands where results are written
    rest: tuple[int, ...]  # values of which results write over a part
    instr: Instr | None  # of an engine; or
    form: NormalForm | None  # of a collective
    sizes: tuple[int, ...]  # of results, in elements


class TapeValues:
    """What each row of a tape writes, and what others read of it; values are numbers."""

    def __init__(self, tape: Tape, forms: Mapping[int, NormalForm]) -> None:
        """`forms` are the normal forms of collectives."""
        self._executable, self._forms = tape.executable, forms
        program = self.program = tape.executable.program
        self.buffer: list[int] = []  # by value
        self.unwritten: set[int] = set()  # values that are read and that nothing has written
        self.met: dict[int, list[int]] = {}  # by value where paths meet, those that come there
        self.rows: list[TapeRow] = []
        self.predicates: dict[int, int] = {}  # by block
        self.around: dict[int, tuple[int, ...]] = {}  # by block, those around it
        self._buffer_of = [int(tensor.buffer) for tensor in program.tensors]
        now: dict[int, int] = {}  # by buffer
        self.constants = {int(buffer): self._new(int(buffer)) for buffer in program.constants}
        now.update(self.constants)
        self.inputs = [self._new(self._buffer_of[tensor]) for tensor in program.inputs]
        now.update({self.buffer[value]: value for value in self.inputs})
        donated = program.donated()
        for output, source in donated.items():  # it holds what its input held until it is written
            now[int(output)] = now[int(source)]
        self.is_fixed = [  # by buffer, whether nothing is ever written where it lies
            buffer.kind in READ_ONLY and number not in donated.values()
            for number, buffer in enumerate(program.buffers)
        ]
        now = self._walk(tape.nodes, now, ())
        self.outputs = [self._read(now, tensor) for tensor in program.outputs]

    def _new(self, buffer: int) -> int:
        self.buffer.append(buffer)
        return len(self.buffer) - 1

    def _read(self, now: dict[int, int], tensor: int) -> int:
        buffer = self._buffer_of[tensor]
        if buffer not in now:
            now[buffer] = self._new(buffer)
            self.unwritten.add(now[buffer])
        return now[buffer]

    def _walk(self, nodes: Nodes, now: dict[int, int], blocks: tuple[int, ...]) -> dict[int, int]:
        """The values of buffers behind some nodes, from those before."""
        for node in nodes:
            if not isinstance(node, BlockTape):
                for batch in node.batches:
                    self._perform(batch, now, blocks)
                continue
            inside, self.around[node.block] = (*blocks, node.block), blocks
            predicate = self.program.blocks[node.block].predicate
            written = sorted(self._written((*node.before, *node.body)))
            if node.is_loop:
                for buffer in written:
                    value = self._new(buffer)
                    self.met[value] = [now[buffer]] if buffer in now else []
                    now[buffer] = value
                heads = dict(now)
                now = self._walk(node.before, now, inside)
                self.predicates[node.block] = self._read(now, predicate)
                ends = self._walk(node.body, dict(now), inside)
                for buffer in written:
                    self.met[heads[buffer]].append(ends[buffer])
            else:
                self.predicates[node.block] = self._read(now, predicate)
                ends = self._walk(node.body, dict(now), inside)
                for buffer in written:
                    value = self._new(buffer)
                    self.met[value] = [ends[buffer], *([now[buffer]] if buffer in now else [])]
                    now[buffer] = value
        return now

    def _written(self, nodes: Nodes) -> set[int]:
        """The buffers that some nodes write."""
        found = set()
        for node in nodes:
            if isinstance(node, BlockTape):
                found |= self._written((*node.before, *node.body))
            else:
                for batch in node.batches:
                    _, results = self._tensors(batch)
                    found |= {self._buffer_of[tensor] for tensor in results}
        return found

    def _tensors(self, batch: RowBatch) -> tuple[Sequence[int], Sequence[int]]:
        """Operands and results of a row."""
        queue = self._executable.queues[batch.queue]
        if batch.collective is not None:
            number = batch.collective.placeholder
            if not self._forms[number].classes:
                return (), ()  # a barrier writes nothing
            placeholder = self.program.placeholders[number]
            return placeholder.operands, placeholder.results
        if isinstance(queue, EngineQueue):
            instr = queue.table[batch.row]
            return instr.operands, instr.results
        return (), ()

    def _perform(self, batch: RowBatch, now: dict[int, int], blocks: tuple[int, ...]) -> None:
        """Add a row."""
        read, written = self._tensors(batch)
        if not written:
            return
        queue, tensors = self._executable.queues[batch.queue], self.program.tensors
        key: object = batch.queue, batch.row
        instr = form = None
        if batch.collective is not None:
            key = batch.collective.placeholder
            form = self._forms[batch.collective.placeholder]
        elif isinstance(queue, EngineQueue):
            instr = queue.table[batch.row]
        operands = tuple(self._read(now, tensor) for tensor in read)
        overlapped = tuple(
            value
            for tensor, value in zip(read, operands, strict=True)
            if any(_overlap(self.program, tensor, result) for result in written)
        )
        rest = []
        for tensor in written:
            buffer = self._buffer_of[tensor]
            is_part = tensors[TensorId(tensor)].size_bytes < self.program.buffers[buffer].size_bytes
            if is_part and buffer in now:
                rest.append(now[buffer])
        results = tuple(self._new(self._buffer_of[tensor]) for tensor in written)
        sizes = tuple(tensors[TensorId(tensor)].elements for tensor in written)
        now.update({self.buffer[value]: value for value in results})
        self.rows.append(
            TapeRow(key, operands, results, blocks, overlapped, tuple(rest), instr, form, sizes)
        )


def _overlap(program: Program, one: int, other: int) -> bool:
    """Whether two tensors share memory."""
    start, begin = program.address(one), program.address(other)
    size, length = (program.tensors[TensorId(tensor)].size_bytes for tensor in (one, other))
    return start < begin + length and begin < start + size


def are_together(tape: Tape) -> bool:
    """Whether all ranks perform all rows of a tape together, and each collective at once."""
    executable = tape.executable
    batches = (batch for one in tape.rounds for batch in one.batches)
    is_one = len(executable.stages) == 1 and not tape.row_by_row
    return is_one and all(len(batch.ranks) == executable.ranks for batch in batches)
