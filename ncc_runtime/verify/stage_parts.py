"""An executable stage by stage: to each stage the program and the queues that its ranks run.

What is asked of one rank's queues is asked of such a part. It keeps the numbers of the whole, but
for blocks: those of other stages are left out, so its own count from 0.
"""

from collections.abc import Mapping

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable, Queue, is_run_by
from ncc_runtime.neff.program import AttributeValue, Program
from ncc_runtime.neff.stages import Stage
from ncc_runtime.neff.structure import control_rows


@attrs.frozen(eq=False)
class StagePart:
    """One stage of an executable; of a program alone, all of it."""

    executable: Executable
    ranks: np.ndarray  # (r,) who runs it
    label: str  # "" for a program alone
    positions: tuple[int, ...]  # of its queues, in the whole
    first_block: int = 0  # the number in the whole of its block 0

    @property
    def title(self) -> str:
        """What stands before what is said of it."""
        return f"{self.label}: " if self.label else ""


def parts_of(executable: Executable) -> tuple[StagePart, ...]:
    """Every stage's; each queue is one stage's (rule exe-W1)."""
    stages = executable.stages
    if len(stages) == 1:
        return (StagePart(executable, stages[0].ranks, "", tuple(range(len(executable.queues)))),)
    return tuple(_part(executable, stage) for stage in stages)


def first_runner(queue: Queue) -> int:
    """Tells queues of one name apart: each rank runs those of its own stage."""
    return 0 if queue.ranks is None else int(queue.ranks[0])


def _part(executable: Executable, stage: Stage) -> StagePart:
    first = int(stage.ranks[0])
    positions = tuple(n for n, queue in enumerate(executable.queues) if is_run_by(queue, first))
    blocks = _blocks(stage.program)
    own = attrs.evolve(
        executable,
        program=_with_blocks(stage.program, blocks) if stage.program.blocks else stage.program,
        queues=tuple(_renumbered(executable.queues[number], blocks) for number in positions),
    )
    return StagePart(own, stage.ranks, stage.label, positions, min(blocks, default=0))


def _blocks(program: Program) -> Mapping[int, int]:
    """The blocks that the program's control rows name, and their numbers in its part."""
    tables = program.queues.values()
    named = {row.block for table in tables for row in control_rows(program, table)}
    return {block: number for number, block in enumerate(sorted(named))}


def _with_blocks(program: Program, blocks: Mapping[int, int]) -> Program:
    return attrs.evolve(
        program,
        blocks=tuple(program.blocks[block] for block in blocks),
        attributes=tuple(_attributes(row, blocks) for row in program.attributes),
    )


def _attributes(
    row: Mapping[str, AttributeValue], blocks: Mapping[int, int]
) -> Mapping[str, AttributeValue]:
    block = row.get("block")
    return {**row, "block": blocks.get(block, IDLE)} if isinstance(block, int) else row


def _renumbered(queue: Queue, blocks: Mapping[int, int]) -> Queue:
    """The jumps of a queue in the numbers of its part."""
    if isinstance(queue, DmaQueue) or not queue.jumps:
        return queue
    jumps = {
        row: attrs.evolve(jump, block=blocks.get(jump.block, IDLE))
        for row, jump in queue.jumps.items()
    }
    return attrs.evolve(queue, jumps=jumps)
