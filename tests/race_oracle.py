"""Happens-before of one placed collective, by brute force: a graph of rows and its closure.

Rows are nodes, one per rank; an access is compared with every other. It reads the queues of the
executable and shares nothing with the proofs. For programs without control flow.
"""

import collections
import itertools
from collections.abc import Iterator

import attrs
import networkx

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, Queue

Row = tuple[int, int, int]
"""(queue, rank, row)."""


@attrs.frozen
class Access:
    """What a row does to a stretch of a rank's memory."""

    row: Row
    memory: int
    start: int
    end: int
    writes: bool

    def clashes(self, other: "Access") -> bool:
        return (
            self.row[:2] != other.row[:2]
            and self.memory == other.memory
            and (self.writes or other.writes)
            and max(self.start, other.start) < min(self.end, other.end)
        )


class Oracle:
    """All rows of the collectives of an executable with one stream."""

    def __init__(self, executable: Executable) -> None:
        self._queues = executable.queues
        self._ranks = range(executable.ranks)
        self._cc = next(n for n, q in enumerate(self._queues) if isinstance(q, CcQueue))
        self._lanes = {q.lane: n for n, q in enumerate(self._queues) if isinstance(q, DmaQueue)}
        self.graph = networkx.DiGraph()
        self._made: dict[tuple[int, int], list[Row]] = collections.defaultdict(list)
        self._last: dict[tuple[int, int], Row] = {}  # by queue and rank
        for rank in self._ranks:
            for row in range(len(self._queue(self._cc).opcode)):
                self._add(rank, row)
        self.waits_are_met = all(self._wait(rank, row) for rank, row in self._cc_rows())

    def _queue(self, number: int) -> CcQueue | DmaQueue:
        queue = self._queues[number]
        assert isinstance(queue, CcQueue | DmaQueue)
        return queue

    def _cc_rows(self) -> Iterator[tuple[int, int]]:
        return itertools.product(self._ranks, range(len(self._queue(self._cc).opcode)))

    def _add(self, rank: int, row: int) -> None:
        """A row of a CC-core, and the ring row that it pushes."""
        queue = self._queue(self._cc)
        assert isinstance(queue, CcQueue)
        self._perform(self._cc, rank, row)
        pushes = queue.opcode[row] == CcOpcode.ADVANCE
        if pushes and queue.sync.posts[0].rank[row, rank] != IDLE:
            ring, ring_row = self._lanes[int(queue.ring[row])], int(queue.ring_row[row])
            self._perform(ring, rank, ring_row)
            self.graph.add_edge((self._cc, rank, row), (ring, rank, ring_row))

    def _perform(self, queue: int, rank: int, row: int) -> None:
        node = (queue, rank, row)
        self.graph.add_node(node)
        if (queue, rank) in self._last:
            self.graph.add_edge(self._last[queue, rank], node)
        self._last[queue, rank] = node
        for post in self._queue(queue).sync.posts:
            if post.rank[row, rank] != IDLE:
                self._made[int(post.rank[row, rank]), int(post.sem[row, rank])].append(node)

    def _wait(self, rank: int, row: int) -> bool:
        """Add what a wait orders; False if it waits for more than there is."""
        sync: Queue = self._queue(self._cc).sync
        sem = int(sync.wait_sem[row, rank % sync.wait_sem.shape[1]])
        value = int(sync.wait_value[row, rank % sync.wait_value.shape[1]])
        if row == 0 or sem == IDLE or value <= 0:  # the first waits for the trigger
            return True
        made = self._made[rank, sem]
        if value > len(made):
            return False
        self.graph.add_edge(made[value - 1], (self._cc, rank, row))
        return True

    @property
    def goes_on(self) -> bool:
        """Whether all rows can be performed."""
        return self.waits_are_met and networkx.is_directed_acyclic_graph(self.graph)

    def accesses(self) -> Iterator[Access]:
        """Of all rows that are performed."""
        for number, rank, row in self.graph.nodes:
            queue = self._queue(number)
            if not isinstance(queue, DmaQueue) or queue.peer[row, rank] == IDLE:
                continue
            size = int(queue.size_bytes[row, rank])
            for k, start in enumerate(queue.sources[row, rank].tolist()):
                if start != IDLE:
                    owner = rank
                    if queue.source_rank is not None:
                        owner = int(queue.source_rank[row, rank, k])
                    yield Access((number, rank, row), owner, start, start + size, False)
            targets = [(queue.peer, queue.target)]
            if queue.second_peer is not None and queue.second_peer[row, rank] != IDLE:
                targets.append((queue.second_peer, queue.second_target))
            for peer, target in targets:
                start = int(target[row, rank])
                end = start + size
                yield Access((number, rank, row), int(peer[row, rank]), start, end, True)

    def is_a_barrier(self) -> bool:
        """For a barrier of all ranks: nobody's last row comes before everybody's first."""
        last = len(self._queue(self._cc).opcode) - 1
        return self.goes_on and all(
            networkx.has_path(self.graph, (self._cc, one, 0), (self._cc, other, last))
            for one, other in itertools.product(self._ranks, self._ranks)
        )

    def is_free_of_races(self) -> bool:
        """For a program of one collective: no access is unordered, early or late."""
        if not self.goes_on:
            return False
        behind = {node: networkx.descendants(self.graph, node) for node in self.graph}
        accesses = [one for one in self.accesses() if one.end > one.start]
        last = len(self._queue(self._cc).opcode) - 1
        for one in accesses:
            if one.row not in behind[self._cc, one.memory, 0]:
                return False
            if (self._cc, one.memory, last) not in behind[one.row]:
                return False
        return all(
            other.row in behind[one.row] or one.row in behind[other.row]
            for one, other in itertools.combinations(accesses, 2)
            if one.clashes(other)
        )
