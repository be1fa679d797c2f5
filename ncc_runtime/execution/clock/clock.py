"""The first clock: when every instruction would run, on idle links, in whole picoseconds.

Each row starts when its queue is free and the semaphore it waits for has been seen to hold the
value. Latency plus bytes over bandwidth per run of descriptors, engines by their peak, queues side
by side; nothing shares a link yet. The order of batches cannot change a time.
"""

from collections.abc import Sequence

import numpy as np

from ncc_runtime.execution.clock.costs import costs_of
from ncc_runtime.execution.clock.history import History
from ncc_runtime.execution.scheduler import Batch
from ncc_runtime.execution.trace import Event, Timeline, Trace
from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.timing import TimingModel


class Clock:
    """Performs batches by noting when they would run."""

    def __init__(self, executable: Executable, model: TimingModel) -> None:
        self._executable = executable
        self._costs = [costs_of(executable, model, queue) for queue in executable.queues]
        self._history = History(executable)
        self._free = [
            np.full(executable.ranks, model.launch_ps, np.int64) for _ in executable.queues
        ]
        self._events: list[list[Event]] = [[] for _ in executable.queues]

    def perform(self, batches: Sequence[Batch]) -> None:
        """Note the times of batches that are ready together."""
        for batch in batches:
            self._perform(batch)

    def trace(self) -> Trace:
        """The timelines, once everything has been performed."""
        return Trace(self._executable, tuple(Timeline.of(events) for events in self._events))

    def _perform(self, batch: Batch) -> None:
        row, ranks = batch.row, batch.ranks
        costs, sync = self._costs[batch.queue], self._executable.queues[batch.queue].sync
        reached = self._history.reached_ps(ranks, batch.wait_sem, batch.wait_value)
        start = np.maximum(self._free[batch.queue][ranks], reached)
        end = start + _cells(costs.complete, row, ranks)
        self._free[batch.queue][ranks] = start + _cells(costs.busy, row, ranks)
        self._events[batch.queue].append((row, ranks, start, end))
        for post, flight in zip(sync.posts, costs.flight, strict=True):
            rank = post.rank[row, ranks]
            made = rank != IDLE
            seen = end + _cells(flight, row, ranks)
            self._history.increment(rank[made], post.sem[row, ranks][made], seen[made])


def _cells(column: np.ndarray, row: int, ranks: np.ndarray) -> np.ndarray:
    """The cells of some ranks in a row whose column may be shared by all ranks."""
    cells = column[row]
    return cells[ranks] if len(cells) > 1 else np.broadcast_to(cells, ranks.shape)
