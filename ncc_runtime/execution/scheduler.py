"""Runs the queues of all ranks in parallel, ordered by semaphores only.

A queue is a program counter per rank. What is ready on several ranks at the same row forms one
batch; whatever is ready on several queues at the same time is unordered by the program and may run
side by side. Nothing here knows what an instruction does: a `perform` callback does it, so values
and clock share one scheduler. Semaphores only grow and have one incrementing queue each, so every
order of ready batches ends in the same state (docs/isa.md).
"""

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.deadlock import deadlock_report
from ncc_runtime.lowering.executable import IDLE, Executable, Queue


@attrs.frozen(eq=False)
class Batch:
    """One row of one queue, ready on some ranks."""

    queue: int  # position in Executable.queues
    row: int
    ranks: np.ndarray  # (r,) int32, ascending


Perform = Callable[[Sequence[Batch]], None]


class Scheduler:
    """Program counters and semaphore values of all queues, as arrays."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.semaphores: np.ndarray = np.zeros(
            (executable.ranks, max(1, executable.semaphore_count)), np.int64
        )
        self._queues = executable.queues
        self._lengths = [queue_length(queue) for queue in self._queues]
        self.counters = [np.zeros(executable.ranks, np.int64) for _ in self._queues]
        self._live = [number for number, length in enumerate(self._lengths) if length]

    def run(self, perform: Perform, shuffle: np.random.Generator | None = None) -> None:
        """Perform every row of every queue once; raises DeadlockError if that cannot be done.

        With `shuffle`, single batches of random ready ranks are taken in random order.
        """
        pick = self._everything_ready if shuffle is None else _random_pick(self, shuffle)
        while batches := pick():
            perform(batches)
            for batch in batches:
                self._complete(batch)
        if self._live:
            raise deadlock_report(self.executable, self.counters, self.semaphores)

    def _everything_ready(self) -> list[Batch]:
        return [batch for queue in list(self._live) for batch in self.ready(queue)]

    def ready(self, queue: int) -> Iterator[Batch]:
        """The batches of one queue that may start now: one per row some ranks stand at."""
        counter = self.counters[queue]
        length = self._lengths[queue]
        row = int(counter[0])
        if row < length and (counter == row).all():
            yield from self._ready_at(queue, row, None)
            return
        rows = np.unique(counter)
        for row in rows.tolist():
            if row < length:
                yield from self._ready_at(queue, row, np.flatnonzero(counter == row))
        if rows[0] >= length:
            self._live.remove(queue)

    def _ready_at(self, queue: int, row: int, ranks: np.ndarray | None) -> Iterator[Batch]:
        sync = self._queues[queue].sync
        sem, value = sync.wait_sem[row], sync.wait_value[row]
        everybody = ranks is None
        if ranks is None:
            ranks = np.arange(self.executable.ranks)
        if len(sem) > 1 and not everybody:
            sem, value = sem[ranks], value[ranks]
        held = self.semaphores[ranks, sem]
        free = (held >= value) | (sem == IDLE)
        if free.all():
            yield Batch(queue, row, ranks)
        elif free.any():
            yield Batch(queue, row, ranks[free])

    def _complete(self, batch: Batch) -> None:
        """Move the program counters on and increment what the row posts."""
        self.counters[batch.queue][batch.ranks] = batch.row + 1
        for post in self._queues[batch.queue].sync.posts:
            rank, sem = post.rank[batch.row, batch.ranks], post.sem[batch.row, batch.ranks]
            if rank.min(initial=0) == IDLE:
                rank, sem = rank[rank != IDLE], sem[rank != IDLE]
            np.add.at(self.semaphores, (rank, sem), 1)


def queue_length(queue: Queue) -> int:
    """Rows of a queue's program."""
    return len(queue.sync.wait_sem)


def _random_pick(scheduler: Scheduler, generator: np.random.Generator) -> Callable[[], list[Batch]]:
    """One random batch of a random non-empty subset of its ranks at a time."""

    def pick() -> list[Batch]:
        batches = scheduler._everything_ready()
        if not batches:
            return []
        chosen = batches[generator.integers(len(batches))]
        mask = generator.random(len(chosen.ranks)) < generator.random()
        mask[generator.integers(len(mask))] = True
        return [attrs.evolve(chosen, ranks=chosen.ranks[mask])]

    return pick
