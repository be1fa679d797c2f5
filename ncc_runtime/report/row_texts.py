"""Rows of queues in a few words, for timelines and critical paths."""

import functools
from collections.abc import Callable, Sequence
from typing import overload

import attrs

from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, EngineQueue, Executable, Queue
from ncc_runtime.neff.isa import PTC2
from ncc_runtime.neff.program import Program, short_place
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.neff.table import NONE, Instr


@attrs.frozen(eq=False)
class RowTexts:
    """Texts of the rows of one queue, in order."""

    name: Sequence[str]  # `dot y f32[8,8]`, `advance p3 all-reduce.1 round 5`
    place: Sequence[str]  # `model.py:12`, where the user's code is known; else empty
    # of a fusion with several lines `model.py:12 and 2 more`


class _Made(Sequence[str]):
    """Texts that are made when they are asked for: of most rows none is."""

    def __init__(self, count: int, make: Callable[[int], str]) -> None:
        self._count, self._make = count, functools.cache(make)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...
    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        rows = range(self._count)[row]
        return self._make(rows) if isinstance(rows, int) else [self._make(at) for at in rows]


def row_texts(executable: Executable, number: int) -> RowTexts:
    """The texts of the rows of a queue."""
    queue = executable.queues[number]
    if isinstance(queue, EngineQueue):
        program, rows = program_of(executable, queue), list(queue.table)
        return RowTexts(
            _Made(len(rows), lambda row: _instruction(executable, program, rows[row])),
            _Made(len(rows), lambda row: _lines(program, rows[row])),
        )
    if isinstance(queue, CcQueue):
        names = _Made(len(queue.opcode), lambda row: _cc_row(executable, queue, row))
    else:
        names = _Made(len(queue.opcode), lambda row: _dma_row(executable, queue, row))
    return RowTexts(names, [""] * len(names))


def program_of(executable: Executable, queue: Queue) -> Program:
    """The program of the ranks that run a queue."""
    return executable.stage_of(0 if queue.ranks is None else int(queue.ranks[0])).program


def placeholder_text(executable: Executable, number: int) -> str:
    """A collective in two words: `p3 all-reduce.1`."""
    placeholder = executable.program.placeholders[number]
    return f"p{number} {placeholder.name or placeholder.op.value}"


def lines_text(lines: Sequence[str]) -> str:
    """The first of some lines, and how many others there are: `model.py:12 and 2 more`."""
    return _and_more([short_place(line) for line in lines])


def _and_more(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"{lines[0]}{more}" if lines else ""


def _lines(program: Program, row: Instr) -> str:
    """Where an instruction comes from; of a fusion its own line, then those of its rows."""
    fusion = program.fusion_of(row)
    numbers = [row.origin, *(step.origin for step in fusion.body)] if fusion else [row.origin]
    places = (program.origins[number].place for number in numbers if number != NONE)
    return _and_more([*dict.fromkeys(place for place in places if place)])


def _instruction(executable: Executable, program: Program, row: Instr) -> str:
    if row.opcode == PTC2 and row.placeholder != NONE:
        return f"trigger {placeholder_text(executable, row.placeholder)}"
    if not row.results:
        return row.opcode
    result = program.tensors[row.results[0]]
    return f"{row.opcode} {result.name} {result.type_text}"


def _cc_row(executable: Executable, queue: CcQueue, row: int) -> str:
    opcode = CcOpcode(int(queue.opcode[row])).name.lower()
    if queue.placeholder[row] == IDLE:
        return f"{opcode} k{queue.jumps[row].block}" if row in queue.jumps else opcode
    return f"{opcode} {_of_plan(executable, queue, row)}"


def _dma_row(executable: Executable, queue: DmaQueue, row: int) -> str:
    opcode = DmaOpcode(int(queue.opcode[row]))
    reduction = executable.program.placeholders[int(queue.placeholder[row])].reduction
    word = opcode.name.lower()
    if opcode is DmaOpcode.REDUCE and reduction is not None:
        # the divisor of an average is applied by the last of its transfers only: all of them add
        combines = Reduction.ADD if reduction is Reduction.AVERAGE else reduction
        word += f".{combines.value}"
    return f"{word} {_of_plan(executable, queue, row)}"


def _of_plan(executable: Executable, queue: CcQueue | DmaQueue, row: int) -> str:
    what = placeholder_text(executable, int(queue.placeholder[row]))
    return what if queue.round[row] == IDLE else f"{what} round {queue.round[row]}"
