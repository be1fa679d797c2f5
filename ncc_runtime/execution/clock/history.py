"""When each semaphore reached each of its values, for all ranks, as one flat array."""

import numpy as np

from ncc_runtime.lowering.executable import IDLE, Executable


class History:
    """Times of increments; the v-th increment of a semaphore makes its value v."""

    def __init__(self, executable: Executable) -> None:
        self._width = max(1, executable.semaphore_count)
        counts = np.zeros(executable.ranks * self._width, np.int64)
        for queue in executable.queues:
            for post in queue.sync.posts:
                made = post.rank != IDLE
                keys = post.rank[made].astype(np.int64) * self._width + post.sem[made]
                counts += np.bincount(keys, minlength=len(counts))
        self._room = counts  # increments there is room for, per semaphore
        self._start = np.concatenate(([0], np.cumsum(counts)))[:-1]
        self._held = np.zeros(len(counts), np.int64)
        self._times = np.zeros(int(counts.sum()), np.int64)

    def reached_ps(self, rank: np.ndarray, sem: np.ndarray, value: np.ndarray) -> np.ndarray:
        """When semaphores reached values; 0 where sem is IDLE or the value needs no increment."""
        keys = rank.astype(np.int64) * self._width + sem
        waits = (sem != IDLE) & (value > 0)
        at = np.where(waits, self._start[np.where(waits, keys, 0)] + value - 1, 0)
        if not self._times.size:
            return np.zeros(len(rank), np.int64)
        return np.where(waits, self._times[at], 0)

    def _grow(self) -> None:
        """Twice the room for every semaphore: loops increment more often than rows are counted."""
        start = 2 * self._start
        moved = np.repeat(start - self._start, self._room) + np.arange(len(self._times))
        times = np.zeros(2 * len(self._times), np.int64)
        times[moved] = self._times
        self._room, self._start, self._times = 2 * self._room, start, times

    def increment(self, rank: np.ndarray, sem: np.ndarray, time_ps: np.ndarray) -> None:
        """Record increments, at most one of each semaphore in a call.

        Increments of one queue are seen in its order: a later one never counts before an earlier.
        """
        keys = rank.astype(np.int64) * self._width + sem
        held = self._held[keys]
        if (held >= self._room[keys]).any():
            self._grow()
        at = self._start[keys] + held
        before = np.where(held > 0, self._times[np.maximum(at - 1, 0)], 0)
        self._times[at] = np.maximum(time_ps, before)
        self._held[keys] = held + 1
