"""DMA rings at run time: the rows that CC-cores have pushed, and how many are done, per rank.

A ring holds so many descriptors: what is pushed next has to fit beside what is not done yet.
"""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, descriptors


class _Ring:
    """One ring on every rank."""

    def __init__(self, queue: DmaQueue, ranks: int, depth: int) -> None:
        self.queue = queue
        self.depth = depth
        sizes = queue.size_bytes
        sizes = sizes[:, :1] if sizes.strides[1] == 0 else sizes
        self._largest: list[int] = descriptors(sizes.max(axis=1)).tolist()  # of each row
        self._at_most = 0  # descriptors pushed and not done, on any rank, or more
        self.left = 0  # rows pushed and not done, of all ranks
        self.pushed: np.ndarray = np.zeros(ranks, np.int64)
        self.done: np.ndarray = np.zeros(ranks, np.int64)
        self.rows: np.ndarray = np.full((ranks, max(1, len(queue.opcode))), IDLE, np.int32)

    def push(self, ranks: np.ndarray, row: int) -> None:
        at = self.pushed[ranks]
        if at.max() >= self.rows.shape[1]:
            more = np.full_like(self.rows, IDLE)
            self.rows = np.concatenate((self.rows, more), axis=1)
        self.rows[ranks, at] = row
        self.pushed[ranks] = at + 1
        self.left += len(ranks)
        self._at_most += self._largest[row]

    def complete(self, ranks: np.ndarray) -> None:
        self.done[ranks] += 1
        self.left -= len(ranks)

    def room(self, row: int) -> np.ndarray | None:
        """On which ranks a row fits beside what is there, (ranks,) bool; None: on all."""
        if self._at_most + self._largest[row] <= self.depth:
            return None
        waiting: np.ndarray = np.zeros(len(self.done), np.int64)
        for rank in np.flatnonzero(self.done < self.pushed).tolist():
            waiting[rank] = self._waiting(rank)
        self._at_most = int(waiting.max())
        size = np.broadcast_to(self.queue.size_bytes[row], waiting.shape)
        return waiting + descriptors(size) <= self.depth

    def _waiting(self, rank: int) -> int:
        """Descriptors that a rank has pushed and not done."""
        rows = self.rows[rank, self.done[rank] : self.pushed[rank]]
        sizes = np.broadcast_to(self.queue.size_bytes, (len(self._largest), len(self.done)))
        return int(descriptors(sizes[rows, rank]).sum())


def _first_rank(queue: CcQueue | DmaQueue) -> int:
    """Queues of one stage have the same ranks."""
    return 0 if queue.ranks is None else int(queue.ranks[0])


class Rings:
    """All rings of an executable."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        depth = executable.topology.rank_ring_descriptors
        self._rings = {
            number: _Ring(queue, executable.ranks, depth)
            for number, queue in enumerate(executable.queues)
            if isinstance(queue, DmaQueue)
        }
        self._by_lane = {
            (ring.queue.stream, ring.queue.lane, _first_rank(ring.queue)): ring
            for ring in self._rings.values()
        }

    def room(self, queue: int, row: int) -> np.ndarray | None:
        """Where the ring has room for what a row pushes, (ranks,) bool; None: everywhere."""
        pushed = self._pushed(queue, row)
        if pushed is None:
            return None
        ring, run, pushes = pushed
        room = ring.room(run)
        return None if room is None else room | ~pushes

    def push(self, queue: int, row: int, ranks: np.ndarray) -> None:
        """What an ADVANCE of a CC-core hands over, on the ranks that do so."""
        pushed = self._pushed(queue, row)
        if pushed is None:
            return
        ring, run, pushes = pushed
        ranks = ranks[pushes[ranks]]
        if len(ranks):
            ring.push(ranks, run)

    def _pushed(self, queue: int, row: int) -> tuple[_Ring, int, np.ndarray] | None:
        """Of an ADVANCE the ring, the row of it that it pushes, and where, (ranks,) bool."""
        program = self._executable.queues[queue]
        if not isinstance(program, CcQueue) or program.opcode[row] != CcOpcode.ADVANCE:
            return None
        ring = self._by_lane[program.stream, int(program.ring[row]), _first_rank(program)]
        return ring, int(program.ring_row[row]), program.sync.posts[0].rank[row] != IDLE

    def ready(self) -> Iterator[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]]:
        """(queue, row, ranks, tail semaphore, its value) of what each ring performs next."""
        for number, ring in self._rings.items():
            if not ring.left:
                continue
            ranks = np.flatnonzero(ring.done < ring.pushed)
            rows = ring.rows[ranks, ring.done[ranks]]
            for row in np.unique(rows).tolist():
                alike = ranks[rows == row]
                tail = ring.queue.sync.wait_sem[row, alike]
                yield number, row, alike, tail, ring.done[alike] + 1

    def complete(self, queue: int, ranks: np.ndarray) -> None:
        """The rows that ranks stood at are done."""
        self._rings[queue].complete(ranks)

    def pending(self) -> bool:
        """Whether any ring has work left."""
        return any(ring.left for ring in self._rings.values())
