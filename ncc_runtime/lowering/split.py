"""Gives every stage queues of its own: of what is lowered together, the rows that are its.

A collective that stages share has all of its rows in the queues of each of them, the same rows in
the same order; cells of ranks that do not run a queue are idle.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Post, Registers, Sync
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import Stage, participants, stages_of

Owners = Mapping[int, np.ndarray]
"""By control row of a CC-core, the ranks whose program has it."""


def split(
    program: Program, core: CcQueue, rings: Sequence[DmaQueue], owners: Owners
) -> Iterator[CcQueue | DmaQueue]:
    """The queues of one stream, stage by stage; a program alone keeps what it has."""
    stages = stages_of(program)
    if len(stages) == 1:
        yield core
        yield from rings
        return
    for stage in stages:
        own = _OwnRows(program, stage)
        runs = {ring.lane: own.of(ring.placeholder) for ring in rings}
        rows = own.of(core.placeholder)
        for row, ranks in owners.items():
            rows[row] = int(stage.ranks[0]) in ranks
        if rows.any():
            yield own.core(core, rows, runs)
        for ring in rings:
            if runs[ring.lane].any():
                yield own.ring(ring, runs[ring.lane])


class _OwnRows:
    """What belongs to one stage."""

    def __init__(self, program: Program, stage: Stage) -> None:
        self._ranks = stage.ranks
        self._mask: np.ndarray = np.zeros(program.ranks, bool)
        self._mask[stage.ranks] = True
        first = int(stage.ranks[0])
        self._takes_part = np.array(
            [first in (participants(one) or ()) for one in program.placeholders] + [False]
        )

    def of(self, placeholder: np.ndarray) -> np.ndarray:
        """Which rows are of collectives in which the stage takes part, (n,) bool."""
        return self._takes_part[placeholder]  # IDLE is the last

    def core(self, queue: CcQueue, rows: np.ndarray, runs: Mapping[int, np.ndarray]) -> CcQueue:
        """Its rows of a CC-core's program."""
        ring_row = queue.ring_row.copy()
        for lane, kept in runs.items():
            moved = queue.ring == lane
            ring_row[moved] = (np.cumsum(kept) - 1)[ring_row[moved]]
        place = np.append(np.cumsum(rows) - rows, rows.sum())  # of each row, were it the next
        jumps = {
            int(place[row]): attrs.evolve(jump, target=int(place[jump.target]))
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
            loads={int(place[row]): load for row, load in queue.loads.items() if rows[row]},
            ranks=self._ranks,
        )

    def ring(self, queue: DmaQueue, rows: np.ndarray) -> DmaQueue:
        """Its rows of a DMA ring."""
        owner, also, target = queue.source_rank, queue.also_peer, queue.also_target
        registers = queue.registers
        return attrs.evolve(
            queue,
            opcode=queue.opcode[rows],
            placeholder=queue.placeholder[rows],
            round=queue.round[rows],
            divisor=queue.divisor[rows],
            peer=self._own(queue.peer, rows),
            sources=np.where(self._mask[:, None], queue.sources[rows], IDLE),
            target=self._own(queue.target, rows),
            size_bytes=self._own(queue.size_bytes, rows, 0),
            sync=self._sync(queue.sync, rows),
            source_rank=None if owner is None else np.where(self._mask[:, None], owner[rows], IDLE),
            also_peer=None if also is None else self._own(also, rows),
            also_target=None if target is None else self._own(target, rows),
            registers=None
            if registers is None
            else Registers(*(self._own(column, rows) for column in registers.columns)),
            ranks=self._ranks,
        )

    def _sync(self, sync: Sync, rows: np.ndarray) -> Sync:
        posts = (Post(self._own(post.rank, rows), self._own(post.sem, rows)) for post in sync.posts)
        return Sync(self._own(sync.wait_sem, rows), sync.wait_value[rows], tuple(posts))

    def _own(self, column: np.ndarray, rows: np.ndarray, idle: int = IDLE) -> np.ndarray:
        return np.where(self._mask, column[rows], column.dtype.type(idle))
