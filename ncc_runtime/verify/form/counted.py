"""LOAD rows and length registers: tables lie in memory, and registers that are named are loaded."""

import functools
from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue
from ncc_runtime.verify.form.columns import at
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Ring, Subject


@rule("exe-W23")
def loads_read_memory(subject: Subject) -> Iterator[str]:
    """A LOAD, and no other row, reads a table, which lies in memory; it posts nothing."""
    for number, queue in subject.programs:
        loads = np.zeros(len(queue.opcode), bool)
        loads[[row for row in queue.loads if 0 <= row < len(loads)]] = True
        yield from subject.at_rows(
            number,
            loads != (queue.opcode == CcOpcode.LOAD),
            functools.partial(_no_load, loads),
        )
        yield from _outside(subject, queue)


def _no_load(loads: np.ndarray, row: int) -> str:
    return "reads a table and is no load" if loads[row] else "is a load that reads nothing"


def _outside(subject: Subject, queue: CcQueue) -> Iterator[str]:
    memory = subject.executable.hbm_bytes
    for row, load in queue.loads.items():
        size = load.words * load.dtype.size_bytes
        first, last = int(load.address.min()), int(load.address.max())
        if first < 0 or last + size > memory or load.words < 0 or load.first < 0:
            yield (
                f"queue {queue.name}, pc {row}: loads {load.words} words at {first:#x} into "
                f"registers from {load.first} on, memory ends at {memory:#x}"
            )


@rule("exe-W24")
def registers_are_of_counted_collectives(subject: Subject) -> Iterator[str]:
    """Runs of a counted collective name a register of rows that a LOAD fills; others name none."""
    placeholders = subject.executable.program.placeholders
    is_counted = np.array([one.op.is_counted for one in placeholders], bool)
    known = {
        program.stream: max((one.first + one.words for one in program.loads.values()), default=0)
        for _, program in subject.programs
    }
    for ring in subject.rings:
        counted = is_counted[ring.queue.placeholder][:, None] & ring.active
        yield from _registers(subject, ring, counted, known.get(ring.queue.stream, 0))


def _registers(subject: Subject, ring: Ring, counted: np.ndarray, known: int) -> Iterator[str]:
    registers = ring.queue.registers
    if registers is None:
        yield from subject.at_cells(
            ring.number, counted, lambda *_: "names no register that says how many rows it moves"
        )
        return
    rows = registers.rows
    yield from subject.at_cells(
        ring.number,
        counted != (rows != IDLE),
        lambda row, rank: (
            f"moves as many rows as register {at(rows, row, rank)} says"
            if at(rows, row, rank) != IDLE
            else "names no register that says how many rows it moves"
        ),
    )
    for column in registers.columns:
        yield from subject.at_cells(
            ring.number,
            (column < IDLE) | (column >= known) | ((column != IDLE) & ~counted),
            functools.partial(_unloaded, column, known),
        )


def _unloaded(column: np.ndarray, known: int, row: int, rank: int) -> str:
    return f"names register {at(column, row, rank)}, {known} are loaded"


RULES = (loads_read_memory, registers_are_of_counted_collectives)
