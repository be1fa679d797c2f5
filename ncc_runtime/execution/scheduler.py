"""Runs the queues of all ranks in parallel, ordered by semaphores only.

An engine or CC-core queue is a program counter per rank; a DMA ring is a list of pushed rows per
rank. What is ready on several ranks at the same row forms one batch; whatever is ready on several
queues at the same time is unordered by the program and may run side by side. Nothing here knows
what an instruction does: `perform` does it, and `decide` says where control flow goes. Semaphores
only grow and have one incrementing queue each, so every order of ready batches ends in the same
state (docs/isa.md). An ADVANCE also waits until its ring has room, which the ring itself makes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import attrs
import numpy as np

from ncc_runtime.execution.deadlock import Stuck, deadlock_report
from ncc_runtime.execution.rings import Rings
from ncc_runtime.lowering.executable import IDLE, Decision, DmaQueue, Executable, Jump, Queue


@attrs.frozen(eq=False)
class Batch:
    """One row of one queue, ready on some ranks."""

    queue: int  # position in Executable.queues
    row: int
    ranks: np.ndarray  # (r,) ascending
    wait_sem: np.ndarray  # (r,) what each rank has waited for, IDLE for nothing
    wait_value: np.ndarray  # (r,) int64, and the value it has been seen to reach


Perform = Callable[[Sequence[Batch]], None]


class Decide(Protocol):
    """Where control flow goes: True where a rank enters the rows behind a `test` or `case`."""

    def __call__(self, batch: Batch, jump: Jump) -> np.ndarray: ...


class Scheduler:
    """Program counters and semaphore values of all queues, as arrays."""

    def __init__(self, executable: Executable, decide: Decide) -> None:
        self.executable = executable
        self._decide = decide
        width = max(1, executable.semaphore_count)
        self.semaphores: np.ndarray = np.zeros((executable.ranks, width), np.int64)
        self._queues = executable.queues
        self._lengths = [queue_length(queue) for queue in self._queues]
        self._everybody = np.arange(executable.ranks)
        self._runners = [
            self._everybody if queue.ranks is None else queue.ranks for queue in self._queues
        ]
        self._counters = [
            self._at_start(runners, length)
            for runners, length in zip(self._runners, self._lengths, strict=True)
        ]
        self._offsets = [
            np.zeros_like(self.semaphores) if _jumps(queue) else None for queue in self._queues
        ]
        self._rings = Rings(executable)
        self._posts: np.ndarray = np.zeros(executable.semaphore_count, np.int64)  # on any rank
        self._asleep: dict[int, tuple[int, int]] = {}  # by queue: semaphore, its posts at the time
        self._programs = [
            number
            for number, queue in enumerate(self._queues)
            if self._lengths[number] and not isinstance(queue, DmaQueue)
        ]

    def _at_start(self, runners: np.ndarray, length: int) -> np.ndarray:
        """Where ranks stand before the first row; who does not run the queue is at its end."""
        counter: np.ndarray = np.full(len(self._everybody), length, np.int64)
        counter[runners] = 0
        return counter

    def run(self, perform: Perform, shuffle: np.random.Generator | None = None) -> None:
        """Perform every row as often as control flow says; DeadlockError if that cannot be done.

        With `shuffle`, single batches of random ready ranks are taken in random order.
        """
        pick = self._everything_ready if shuffle is None else _random_pick(self, shuffle)
        while batches := pick():
            perform(batches)
            for batch in batches:
                self._complete(batch)
        if self._programs or self._rings.pending():
            raise deadlock_report(self.executable, self._stuck(), self.semaphores)

    def _everything_ready(self) -> list[Batch]:
        found = [batch for queue in list(self._programs) for batch in self._ready(queue)]
        found += [Batch(*ready) for ready in self._rings.ready()]
        return found

    def _ready(self, queue: int) -> Iterator[Batch]:
        """The batches of one program that may start now: one per row some ranks stand at."""
        if queue in self._asleep:
            sem, posts = self._asleep[queue]
            if self._posts[sem] == posts:
                return
            del self._asleep[queue]
        counter, runners = self._counters[queue], self._runners[queue]
        length = self._lengths[queue]
        row = int(counter[runners[0]])
        standing = counter if runners is self._everybody else counter[runners]
        if row < length and (standing == row).all():
            yield from self._ready_at(queue, row, runners)
            return
        rows = np.unique(counter)
        for row in rows.tolist():
            if row < length:
                yield from self._ready_at(queue, row, np.flatnonzero(counter == row))
        if rows[0] >= length:
            self._programs.remove(queue)

    def _ready_at(self, queue: int, row: int, ranks: np.ndarray) -> Iterator[Batch]:
        sem, value = self._awaited(queue, row, ranks)
        enough = (self.semaphores[ranks, sem] >= value) | (sem == IDLE)
        room = self._rings.room(queue, row)
        free = enough if room is None else enough & room[ranks]
        if free.all():
            yield Batch(queue, row, ranks, sem, value)
        elif free.any():
            yield Batch(queue, row, ranks[free], sem[free], value[free])
        elif not enough.any() and ranks is self._runners[queue] and (sem == sem[0]).all():
            self._asleep[queue] = (int(sem[0]), int(self._posts[sem[0]]))

    def _awaited(self, queue: int, row: int, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What ranks wait for at a row: semaphores, and values corrected by the jumps so far."""
        sync, offsets = self._queues[queue].sync, self._offsets[queue]
        sem, value = sync.wait_sem[row], sync.wait_value[row]
        if len(sem) > 1:
            sem, value = sem[ranks], value[ranks]
        else:
            sem, value = np.full(len(ranks), sem[0]), np.full(len(ranks), value[0])
        return sem, value if offsets is None else value + offsets[ranks, sem]

    def _complete(self, batch: Batch) -> None:
        """Move on, increment what the row posts, push what it pushes."""
        queue = self._queues[batch.queue]
        if isinstance(queue, DmaQueue):
            self._rings.complete(batch.queue, batch.ranks)
        else:
            self._move_on(batch)
            self._rings.push(batch.queue, batch.row, batch.ranks)
        for post in queue.sync.posts:
            rank, sem = post.rank[batch.row, batch.ranks], post.sem[batch.row, batch.ranks]
            if rank.min(initial=0) == IDLE:
                rank, sem = rank[rank != IDLE], sem[rank != IDLE]
            self.semaphores[rank, sem] += 1  # ranks of a row share none that is waited for
            self._posts[sem] += 1

    def _move_on(self, batch: Batch) -> None:
        counter = self._counters[batch.queue]
        counter[batch.ranks] = batch.row + 1
        jump = _jumps(self._queues[batch.queue]).get(batch.row)
        offsets = self._offsets[batch.queue]
        if jump is None or offsets is None:
            return
        leaves = np.ones(len(batch.ranks), bool)
        if jump.decision is not Decision.ALWAYS:
            leaves = ~self._decide(batch, jump)
        leaving = batch.ranks[leaves]
        counter[leaving] = jump.target
        shift = jump.shift if len(jump.shift) == 1 else jump.shift[leaving]
        offsets[leaving, : jump.shift.shape[1]] += shift

    def _stuck(self) -> Iterator[Stuck]:
        """Who still has rows to perform, and what each waits for."""
        for queue in self._programs:
            counter = self._counters[queue]
            for rank in np.flatnonzero(counter < self._lengths[queue]).tolist():
                row = int(counter[rank])
                sem, value = self._awaited(queue, row, np.array([rank]))
                yield Stuck(queue, row, rank, int(sem[0]), int(value[0]))


def queue_length(queue: Queue) -> int:
    """Rows of a queue's program."""
    return len(queue.sync.wait_sem)


_NO_JUMPS: Mapping[int, Jump] = MappingProxyType({})


def _jumps(queue: Queue) -> Mapping[int, Jump]:
    return _NO_JUMPS if isinstance(queue, DmaQueue) else queue.jumps


def _random_pick(scheduler: Scheduler, generator: np.random.Generator) -> Callable[[], list[Batch]]:
    """One random batch of a random non-empty subset of its ranks at a time."""

    def pick() -> list[Batch]:
        batches = scheduler._everything_ready()
        if not batches:
            return []
        chosen = batches[generator.integers(len(batches))]
        mask = generator.random(len(chosen.ranks)) < generator.random()
        mask[generator.integers(len(mask))] = True
        return [
            attrs.evolve(
                chosen,
                ranks=chosen.ranks[mask],
                wait_sem=chosen.wait_sem[mask],
                wait_value=chosen.wait_value[mask],
            )
        ]

    return pick
