"""The rows that a program without control flow performs, in the order of one run.

Every order that semaphores allow ends in the same state (docs/isa.md), and without control flow
nothing depends on values: one run of the queues, in which nothing is performed, gives an order for
all runs. They need no program counters and no semaphores any more.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.scheduler import AtOnce, RowBatch, Scheduler
from ncc_runtime.execution.trace import Traffic, TrafficCounter
from ncc_runtime.lowering.executable import CcQueue, DmaQueue, EngineQueue, Executable, Jump
from ncc_runtime.neff.isa import OPCODES, Shape

NORMAL_FORM = "normal form"
"""A collective computed at once, as a function of its operands (`values/normal_form.py`)."""

LITERAL = "literal"
"""A collective of which every descriptor was performed, in some of its runs at least."""


@attrs.frozen(eq=False)
class Tape:
    """Rounds of batches. Those of a round are unordered; CC-cores and control rows are left out."""

    rounds: tuple[tuple[RowBatch, ...], ...]
    traffic: tuple[Traffic, ...]  # per placeholder
    interpreters: Mapping[int, str]  # by placeholder, how it is performed

    @property
    def row_by_row(self) -> set[int]:
        """Placeholders whose transfers are performed one by one."""
        return {number for number, how in self.interpreters.items() if how == LITERAL}


def tape_of(
    executable: Executable,
    at_once: Sequence[AtOnce] = (),
    sent: Mapping[int, Traffic] | None = None,
) -> Tape | None:
    """None if values decide what is performed: jumps, or collectives of variable size.

    `sent` is what each collective at once moves. DeadlockError as `Scheduler.run`.
    """
    queues, program = executable.queues, executable.program
    if any(placeholder.op.is_counted for placeholder in program.placeholders):
        return None
    if any(queue.jumps for queue in queues if not isinstance(queue, DmaQueue)):
        return None
    rounds: list[tuple[RowBatch, ...]] = []
    counter, by = TrafficCounter(executable), dict[int, str]()

    def record(batches: Sequence[RowBatch]) -> None:
        kept = []
        for batch in batches:
            queue = queues[batch.queue]
            if batch.collective is not None:
                number = batch.collective.placeholder
                by.setdefault(number, NORMAL_FORM)
                counter.add_performed((sent or {})[number], number, batch.ranks)
            elif isinstance(queue, CcQueue):
                continue
            elif isinstance(queue, EngineQueue):
                name = queue.table.opcode_names[int(queue.table.opcode[batch.row])]
                if OPCODES[name].shape is Shape.CONTROL:
                    continue
            else:
                counter.add(queue, batch.row, batch.ranks)
                by[int(queue.placeholder[batch.row])] = LITERAL
            kept.append(batch)
        if kept:
            rounds.append(tuple(kept))

    Scheduler(executable, _no_jump, at_once=at_once).run(record)
    return Tape(tuple(rounds), counter.traffic(), by)


def _no_jump(batch: RowBatch, jump: Jump) -> np.ndarray:
    raise AssertionError(f"{batch} has no jump {jump}")
