"""Queues of a pipeline's stages, out of those that a stream has for all of them.

A stream is lowered once for the whole program. Where ranks run different programs, every stage gets
queues of its own with the rows that belong to it. A collective that stages share has all of its
rows in the queues of each of them, in the same order; cells of ranks of other stages are idle.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Post, Registers, Sync
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import Stage, participants, stages_of


def split_by_stage(
    program: Program,
    core: CcQueue,
    rings: Sequence[DmaQueue],
    control_row_ranks: Mapping[int, np.ndarray],
) -> Iterator[CcQueue | DmaQueue]:
    """The queues of one stream, stage by stage; unchanged where all ranks run one program.

    `control_row_ranks` gives, by control row of the CC-core, the ranks whose program has it.
    """
    stages = stages_of(program)
    if len(stages) == 1:
        yield core
        yield from rings
        return
    for stage in stages:
        stage_queues = _StageQueues(program, stage)
        ring_rows = {ring.lane: stage_queues.rows_of(ring.placeholder) for ring in rings}
        core_rows = stage_queues.rows_of(core.placeholder)
        for row, ranks in control_row_ranks.items():
            core_rows[row] = int(stage.ranks[0]) in ranks
        if core_rows.any():
            yield stage_queues.core(core, core_rows, ring_rows)
        for ring in rings:
            if ring_rows[ring.lane].any():
                yield stage_queues.ring(ring, ring_rows[ring.lane])


class _StageQueues:
    """Selects the rows and cells of one stage; `rows` are masks over the rows of a queue."""

    def __init__(self, program: Program, stage: Stage) -> None:
        self._ranks = stage.ranks
        self._is_member: np.ndarray = np.zeros(program.ranks, bool)
        self._is_member[stage.ranks] = True
        first = int(stage.ranks[0])
        # by placeholder; IDLE, which is -1, reads the False at the end
        self._takes_part = np.array(
            [first in (participants(each) or ()) for each in program.placeholders] + [False]
        )

    def rows_of(self, placeholder: np.ndarray) -> np.ndarray:
        """Which rows are of collectives in which the stage takes part, (rows,) bool."""
        return self._takes_part[placeholder]

    def core(
        self, queue: CcQueue, rows: np.ndarray, ring_rows: Mapping[int, np.ndarray]
    ) -> CcQueue:
        """The stage's rows of a CC-core program, which push the stage's rows of rings."""
        ring_row = queue.ring_row.copy()
        for lane, is_kept in ring_rows.items():
            of_lane = queue.ring == lane
            ring_row[of_lane] = (np.cumsum(is_kept) - 1)[ring_row[of_lane]]
        # The new number of each row that is kept, and of the next one kept of the others: a jump
        # may lead to a row of another stage, or behind the last one.
        number = np.append(np.cumsum(rows) - rows, rows.sum())
        jumps = {
            int(number[row]): attrs.evolve(jump, target=int(number[jump.target]))
            for row, jump in queue.jumps.items()
            if rows[row]
        }
        return attrs.evolve(
            queue,
            opcode=queue.opcode[rows],
            placeholder=queue.placeholder[rows],
            round=queue.round[rows],
            ring=queue.ring[rows],
            ring_row=ring_row[rows],
            sync=self._sync(queue.sync, rows),
            jumps=jumps,
            loads={int(number[row]): load for row, load in queue.loads.items() if rows[row]},
            ranks=self._ranks,
        )

    def ring(self, queue: DmaQueue, rows: np.ndarray) -> DmaQueue:
        """The stage's rows of a DMA ring."""
        source_rank, second_peer = queue.source_rank, queue.second_peer
        second_target, registers = queue.second_target, queue.registers
        of_stage = self._is_member[:, None]
        return attrs.evolve(
            queue,
            opcode=queue.opcode[rows],
            placeholder=queue.placeholder[rows],
            round=queue.round[rows],
            divisor=queue.divisor[rows],
            peer=self._cells(queue.peer, rows),
            sources=np.where(of_stage, queue.sources[rows], IDLE),
            target=self._cells(queue.target, rows),
            size_bytes=self._cells(queue.size_bytes, rows, 0),
            sync=self._sync(queue.sync, rows),
            source_rank=None
            if source_rank is None
            else np.where(of_stage, source_rank[rows], IDLE),
            second_peer=None if second_peer is None else self._cells(second_peer, rows),
            second_target=None if second_target is None else self._cells(second_target, rows),
            registers=None
            if registers is None
            else Registers(*(self._cells(column, rows) for column in registers.columns)),
            ranks=self._ranks,
        )

    def _sync(self, sync: Sync, rows: np.ndarray) -> Sync:
        posts = (
            Post(self._cells(post.rank, rows), self._cells(post.sem, rows)) for post in sync.posts
        )
        return Sync(self._cells(sync.wait_sem, rows), sync.wait_value[rows], tuple(posts))

    def _cells(self, column: np.ndarray, rows: np.ndarray, idle: int = IDLE) -> np.ndarray:
        """The rows of a column, idle at ranks of other stages."""
        return np.where(self._is_member, column[rows], column.dtype.type(idle))
