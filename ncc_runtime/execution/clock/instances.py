"""Symmetry reduction: of instances whose ranks do the same at the same times one is simulated.

Ranks of one *place*, their number inside their instance, form a class. The partition is equitable
(as in colour refinement of graphs) where every row of a class sends to, reads from and increments
ranks of one class, all in their own instances or each in another one. Then what a rank receives,
and what its bytes compete with on a part of the machine, is the same for all ranks of its class,
and so are their times. A semaphore that only one queue of one rank increments grows in the same
order everywhere.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.execution.clock.columns import DistinctRows, distinct_rows, paired_rows
from ncc_runtime.execution.control_flow import Decisions, PlannedDecisions
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable, Post, Queue, Sync
from ncc_runtime.machine_model.instances import (
    are_equally_fast,
    are_placed_alike,
    is_repeated,
    maps_of,
)
from ncc_runtime.machine_model.parts import Parts

_MAPS = 1 << 32  # more than there are maps between instances


@attrs.frozen(eq=False)
class Instances:
    """The number of symmetric instances, and which of them increments each one's semaphores."""

    count: int
    ranks: int  # of one
    source: np.ndarray  # (ranks * semaphores,) the row of `origin` for each semaphore
    origin: np.ndarray  # (maps, count) by instance, the incrementing one; row 0: itself

    def alone(self) -> "Instances":
        """The first as if there were no other."""
        return Instances(1, self.ranks, self.source, np.zeros((1, 1), np.int64))


def unreduced(executable: Executable) -> Instances:
    """No symmetry: every rank that has columns is simulated."""
    keys = executable.representatives * max(1, executable.semaphore_count)
    count = executable.ranks // executable.representatives
    return Instances(
        count, executable.representatives, np.zeros(keys, np.int64), np.zeros((1, 1), np.int64)
    )


def symmetric_instances(executable: Executable, parts: Parts, decisions: Decisions) -> Instances:
    """The instances of an executable as one where they are symmetric, else every rank."""
    count = executable.topology.nodes
    if (
        count == 1
        or executable.representatives < executable.ranks
        or not (are_placed_alike(parts) and are_equally_fast(parts))
        or not _controlled_alike(executable, decisions)
    ):
        return unreduced(executable)
    if not all(_rows_alike(queue, count) for queue in executable.queues):
        return unreduced(executable)
    return _Incrementers(executable, count).instances() or unreduced(executable)


def of_first_instance(queue: Queue, ranks: int) -> Queue:
    """The columns of the first ranks; ranks named in them may be others."""
    sync = queue.sync
    posts = tuple(Post(post.rank[:, :ranks], post.sem[:, :ranks]) for post in sync.posts)
    sync = Sync(sync.wait_sem[:, :ranks], sync.wait_value[:, :ranks], posts)
    if not isinstance(queue, DmaQueue):
        return attrs.evolve(queue, sync=sync)
    owners, second_peer = queue.source_rank, queue.second_peer
    return attrs.evolve(
        queue,
        sync=sync,
        peer=queue.peer[:, :ranks],
        sources=queue.sources[:, :ranks],
        size_bytes=queue.size_bytes[:, :ranks],
        source_rank=None if owners is None else owners[:, :ranks],
        second_peer=None if second_peer is None else second_peer[:, :ranks],
    )


def _controlled_alike(executable: Executable, decisions: Decisions) -> bool:
    """Whether all ranks run all queues and take the same jumps."""
    queues = executable.queues
    if any(queue.ranks is not None for queue in queues):
        return False
    jumps = [
        jump for queue in queues if not isinstance(queue, DmaQueue) for jump in queue.jumps.values()
    ]
    return not jumps or (
        isinstance(decisions, PlannedDecisions) and all(len(jump.shift) == 1 for jump in jumps)
    )


def _rows_alike(queue: Queue, count: int) -> bool:
    """Whether the rows of a queue do the same in all instances."""
    sync = queue.sync
    same = [sync.wait_sem, sync.wait_value, *(post.sem for post in sync.posts)]
    partners = [post.rank for post in sync.posts]
    if isinstance(queue, DmaQueue):
        same.append(queue.size_bytes)
        partners.append(queue.peer)
        if queue.second_peer is not None:
            partners.append(queue.second_peer)
        if queue.source_rank is not None:
            partners += [queue.source_rank[..., k] for k in range(queue.source_rank.shape[2])]
        else:
            same += [queue.sources[..., k] != IDLE for k in range(queue.sources.shape[2])]
    return all(is_repeated(column, count) for column in same) and all(
        maps_of(_of_all_ranks(distinct_rows(column), column), count) is not None
        for column in partners
    )


def _of_all_ranks(rows: DistinctRows, column: np.ndarray) -> np.ndarray:
    """The different rows of a column, of all ranks."""
    return np.broadcast_to(rows.rows, (len(rows.rows), column.shape[1]))


class _Incrementers:
    """Which queue and rank increments each semaphore of one instance."""

    def __init__(self, executable: Executable, count: int) -> None:
        self._executable, self._count = executable, count
        self._ranks = executable.ranks // count
        self._semaphores = max(1, executable.semaphore_count)
        self._maps: dict[bytes, int] = {np.arange(count).tobytes(): 0}
        self._incrementer = np.full(self._ranks * self._semaphores, IDLE, np.int64)

    def instances(self) -> Instances | None:
        """The instances as one; None if several queues or ranks increment one semaphore."""
        for number, queue in enumerate(self._executable.queues):
            for post in queue.sync.posts:
                if not all(self._add(key, poster) for key, poster in self._different(number, post)):
                    return None
        source = np.where(self._incrementer == IDLE, 0, self._incrementer % _MAPS)
        maps = np.stack([np.frombuffer(content, np.int64) for content in self._maps])
        return Instances(self._count, self._ranks, source, np.argsort(maps, axis=1))

    def _different(self, queue: int, post: Post) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Semaphores that the different rows of a post increment, and by which queue and rank."""
        rank, sem = distinct_rows(post.rank), distinct_rows(post.sem)
        everybody = _of_all_ranks(rank, post.rank)
        nodes = maps_of(everybody, self._count)
        assert nodes is not None
        maps = self._numbers(nodes)
        first = queue * np.int64(self._ranks)
        for rank_row, sem_row, _ in paired_rows(rank, sem):
            ranks = everybody[rank_row, : self._ranks]
            row, poster = np.nonzero(ranks != IDLE)
            sems = np.broadcast_to(sem.rows[sem_row, : self._ranks], ranks.shape)[row, poster]
            key = (ranks[row, poster] % self._ranks).astype(np.int64) * self._semaphores + sems
            yield key, (first + poster) * _MAPS + maps[rank_row[row], poster]

    def _numbers(self, nodes: np.ndarray) -> np.ndarray:
        """The numbers of maps, (different, ranks of one)."""
        flat = np.ascontiguousarray(nodes.transpose(0, 2, 1).reshape(-1, self._count), np.int64)
        known = self._maps
        numbers = [known.setdefault(nodes_of.tobytes(), len(known)) for nodes_of in flat]
        return np.array(numbers, np.int64).reshape(len(nodes), -1)

    def _add(self, key: np.ndarray, incrementer: np.ndarray) -> bool:
        """Record which queue and rank increments semaphores; whether no other one does."""
        before = self._incrementer[key]
        self._incrementer[key] = incrementer
        is_new = (before == IDLE) | (before == incrementer)
        return bool(is_new.all() and (self._incrementer[key] == incrementer).all())


def places_in_instances(ranks: DistinctRows, count: int) -> DistinctRows:
    """A column of ranks as places in their instances."""
    rows = ranks.rows
    return DistinctRows(np.where(rows == IDLE, IDLE, rows % count), ranks.index)
