"""An executable stage by stage: of each stage the program and the queues that its ranks run.

What is proved of one rank's queues is proved of such a part. Its placeholders, semaphores, ranks
and streams have the numbers of the whole executable. Queues and blocks of other stages are left
out, so those of the part count from 0.
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
    queues: tuple[int, ...]  # the places in the whole of its queues
    ranks: np.ndarray  # (r,) who runs it
    label: str  # "" for a program alone
    first_block: int = 0  # the number in the whole of its block 0

    @property
    def title(self) -> str:
        """What stands in messages before what is said of it."""
        return f"{self.label}: " if self.label else ""


def parts_of(executable: Executable) -> tuple[StagePart, ...]:
    """Every stage's; each queue is one stage's (rule exe-W1)."""
    stages = executable.stages
    if len(stages) == 1:
        return (StagePart(executable, tuple(range(len(executable.queues))), stages[0].ranks, ""),)
    return tuple(_part(executable, stage) for stage in stages)


def first_runner(queue: Queue) -> int:
    """The first rank that runs a queue, which tells apart queues of one name in several stages."""
    return 0 if queue.ranks is None else int(queue.ranks[0])


def _part(executable: Executable, stage: Stage) -> StagePart:
    first = int(stage.ranks[0])
    places = [place for place, one in enumerate(executable.queues) if is_run_by(one, first)]
    tables = stage.program.queues.values()
    named = {row.block for table in tables for row in control_rows(stage.program, table)}
    blocks = {block: number for number, block in enumerate(sorted(named))}  # new numbers, by old
    own = attrs.evolve(
        executable,
        program=_with_blocks(stage.program, blocks) if stage.program.blocks else stage.program,
        queues=tuple(_renumbered(executable.queues[place], blocks) for place in places),
    )
    return StagePart(own, tuple(places), stage.ranks, stage.label, min(blocks, default=0))


def _with_blocks(program: Program, blocks: Mapping[int, int]) -> Program:
    """The program of a stage with its own blocks alone, and their numbers in its attributes."""

    def renumbered(row: Mapping[str, AttributeValue]) -> Mapping[str, AttributeValue]:
        block = row.get("block")
        return {**row, "block": blocks.get(block, IDLE)} if isinstance(block, int) else row

    return attrs.evolve(
        program,
        blocks=tuple(program.blocks[block] for block in blocks),
        attributes=tuple(map(renumbered, program.attributes)),
    )


def _renumbered(queue: Queue, blocks: Mapping[int, int]) -> Queue:
    """The jumps of a queue in the numbers of its part."""
    if isinstance(queue, DmaQueue) or not queue.jumps:
        return queue
    jumps = {
        row: attrs.evolve(jump, block=blocks.get(jump.block, IDLE))
        for row, jump in queue.jumps.items()
    }
    return attrs.evolve(queue, jumps=jumps)
