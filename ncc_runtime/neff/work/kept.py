"""What stays in SBUF from one instruction of a queue to the next, and so is not loaded from HBM.

An engine's result stays where the next instruction of the queue computes with all of it. If nobody
else reads it, it is not stored, either. It may take half of SBUF, which would else hold the next
tile (assumed); the memory that the compiler gave it in HBM is only not used.
"""

from collections.abc import Iterable, Iterator, Mapping

import attrs
import numpy as np

from ncc_runtime.neff.isa import OPCODES, PTC2, WAIT, Shape
from ncc_runtime.neff.program import BufferKind, Program
from ncc_runtime.neff.table import Instr, InstrTable
from ncc_runtime.neff.work.moves import MOVES
from ncc_runtime.neff.work.work import SBUF_BYTES

MOST_BYTES = SBUF_BYTES // 2
"""What may stay."""


@attrs.frozen
class Kept:
    """What one instruction does not load, and does not store: its tensors, by number."""

    loads: frozenset[int] = frozenset()
    stores: frozenset[int] = frozenset()

    def among(
        self, instr: Instr, operands: Iterable[int], results: Iterable[int]
    ) -> frozenset[int]:
        """Which values those are, given those of its operands and results."""
        loaded = zip(instr.operands, operands, strict=True)
        stored = zip(instr.results, results, strict=True)
        return frozenset(
            {value for tensor, value in loaded if tensor in self.loads}
            | {value for tensor, value in stored if tensor in self.stores}
        )


NOTHING_KEPT = Kept()
_PASSED_BY = frozenset({PTC2, WAIT})


def kept_in_sbuf(program: Program, table: InstrTable) -> Mapping[int, Kept]:
    """By row of a queue what stays between it and the rows beside it, if anything does."""
    kept: dict[int, Kept] = {}
    pairs = list(_handed_on(program, table))
    if not pairs:
        return kept
    writers, readers = _accesses(program)
    for row, following, made, read in pairs:
        view = program.tensors[made]
        if writers[view.buffer] != 1 or view.size_bytes > MOST_BYTES:
            continue
        before = kept.get(following, NOTHING_KEPT)
        kept[following] = attrs.evolve(before, loads=before.loads | {read})
        is_inside = program.buffers[view.buffer].kind is BufferKind.INTERNAL
        if is_inside and readers[view.buffer] == 1:
            before = kept.get(row, NOTHING_KEPT)
            kept[row] = attrs.evolve(before, stores=before.stores | {made})
    return kept


def _handed_on(program: Program, table: InstrTable) -> Iterator[tuple[int, int, int, int]]:
    """A row, the next one, what the first made, and what the next one reads of the same bytes.

    At most waits and triggers of collectives are between them.
    """
    starts, tensors = table.start.tolist(), table.tensors.tolist()
    opcodes = [table.opcode_names[opcode] for opcode in table.opcode.tolist()]
    results = table.result_count.tolist()
    last, made = -1, dict[tuple[int, int, int], int]()
    for row, opcode in enumerate(opcodes):
        if opcode in _PASSED_BY:
            continue
        if not _is_of_engines(opcode):
            made = {}
            continue
        first, end = starts[row], starts[row + 1]
        middle = first + results[row]
        if made:
            for read in dict.fromkeys(tensors[middle:end]):
                found = made.get(_bytes_of(program, read))
                if found is not None:
                    yield last, row, found, read
        made = {_bytes_of(program, tensor): tensor for tensor in tensors[first:middle]}
        last = row


def _is_of_engines(opcode: str) -> bool:
    """Whether engines compute, so that results come to lie in SBUF; moves go from HBM to HBM."""
    is_moved = opcode in MOVES or opcode == "scatter"
    return not is_moved and OPCODES[opcode].shape not in (Shape.CONTROL, Shape.SIZED)


def _bytes_of(program: Program, tensor: int) -> tuple[int, int, int]:
    view = program.tensors[tensor]
    return view.buffer, view.offset, view.size_bytes


def _accesses(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """How many instructions, placeholders and blocks write and read each buffer, (buffers,)."""
    buffer_of = np.array([tensor.buffer for tensor in program.tensors], np.int64)
    count = len(program.buffers)
    writers, readers = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for table in program.queues.values():
        sizes = np.diff(table.start)
        row = np.repeat(np.arange(len(table)), sizes)
        is_result = np.arange(len(row)) - table.start[row] < table.result_count[row]
        at = row * count + buffer_of[table.tensors]
        for accesses, mine in ((writers, is_result), (readers, ~is_result)):
            accesses += np.bincount(np.unique(at[mine]) % count, minlength=count)
    for one in program.placeholders:
        np.add.at(writers, buffer_of[list(one.results)], 1)
        np.add.at(readers, buffer_of[[*one.operands, *one.counts]], 1)
    np.add.at(readers, buffer_of[[block.predicate for block in program.blocks]], 1)
    return writers, readers
