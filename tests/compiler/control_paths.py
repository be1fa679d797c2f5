"""Which way a queue takes through rows of control flow, and what its jumps do to counts."""

import enum
from collections.abc import Iterable, Mapping

import numpy as np

from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, TEST
from ncc_runtime.neff.program import Block, BlockKind, Program
from ncc_runtime.neff.table import NONE, Instr

MOST_TRIPS = 3

Row = tuple[str, int]
"""An opcode of control flow, and its block."""


def enters(block: Block, value: int, trips: int) -> bool:
    """Whether a predicate's name leads into a block, after so many trips round a loop."""
    if block.kind is BlockKind.LOOP:
        return trips < MOST_TRIPS and hash(("goes on", value)) % 4 != 0
    return hash(("branch", value)) % block.of == block.index


class Jump(enum.Enum):
    """What a row of control flow did."""

    NONE = "goes on"
    BACK = "repeats the rows behind `loop`"
    OUT = "passes over the rows behind it"


class Path:
    """One queue's way; rows of control flow by position."""

    def __init__(self, rows: Mapping[int, Row], blocks: tuple[Block, ...]) -> None:
        self._rows, self._blocks = rows, blocks
        self._at = {row: position for position, row in rows.items()}
        self._trips: dict[int, int] = {}

    def follow(self, position: int, value: int) -> tuple[int, Jump]:
        """Where to go on from a row of control flow, given the name of its block's predicate."""
        opcode, block = self._rows[position]
        if opcode == LOOP:
            self._trips[block] = 0
        if opcode in (TEST, CASE):
            if not enters(self._blocks[block], value, self._trips.get(block, 0)):
                return self._at[END, block] + 1, Jump.OUT
            self._trips[block] = self._trips.get(block, 0) + 1
        if opcode == END and (LOOP, block) in self._at:
            return self._at[LOOP, block] + 1, Jump.BACK
        return position + 1, Jump.NONE


def control_rows(program: Program, rows: Iterable[Instr]) -> dict[int, Row]:
    """The rows of control flow of a queue, by position."""
    return {
        position: (row.opcode, int(program.attributes[row.attribute]["block"]))  # type: ignore[arg-type]
        for position, row in enumerate(rows)
        if row.opcode in (LOOP, TEST, CASE, END)
    }


def streams_of_blocks(program: Program) -> dict[int, set[int]]:
    """The streams with a placeholder in each block, at any depth."""
    found: dict[int, set[int]] = {block: set() for block in range(len(program.blocks))}
    for engine in ENGINES:
        rows = list(program.queues[engine])
        within: list[int] = []
        for position, row in enumerate(rows):
            opcode, block = control_rows(program, [row]).get(0, ("", 0))
            if opcode in (LOOP, CASE):
                within.append(block)
            elif opcode == END:
                assert within.pop() == block, f"{engine.value}, row {position}"
            if row.placeholder != NONE:
                for one in within:
                    found[one].add(program.placeholders[row.placeholder].stream)
    return found


class Shifts:
    """Increments of the rows that a jump repeats or passes over, for all semaphores."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._streams = streams_of_blocks(program)
        self._sems = {one.owner: number for number, one in enumerate(program.semaphores)}

    def of(self, block: int, jump: Jump) -> np.ndarray:
        """What a queue adds to all that it waits for when it jumps."""
        program = self._program
        is_loop = program.blocks[block].kind is BlockKind.LOOP
        decides = TEST if is_loop else CASE
        first = LOOP if jump is Jump.BACK else decides
        total = np.zeros(len(program.semaphores), np.int64)
        for engine in ENGINES:
            rows = list(program.queues[engine])
            marks = {row: position for position, row in control_rows(program, rows).items()}
            within = rows[marks[first, block] + 1 : marks[END, block] + 1]
            for row in within:
                if row.post_sem != NONE:
                    total[row.post_sem] += 1
                if row.placeholder != NONE:
                    total[self._stream(program.placeholders[row.placeholder].stream)] += 1
        for opcode, inner in control_rows(program, within).values():  # alike in every queue
            if opcode in (TEST, CASE):
                for stream in self._streams[inner]:
                    total[self._stream(stream)] += 1
        return total if jump is Jump.BACK else -total

    def followers(self, row: Row) -> set[int]:
        """The streams that read the predicate at this row."""
        opcode, block = row
        return self._streams[block] if opcode in (TEST, CASE) else set()

    def _stream(self, stream: int) -> int:
        return self._sems[f"stream {stream}"]
