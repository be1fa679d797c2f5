"""Rows as the greedy run takes them: their waits and increments, worked out beforehand."""

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Queue
from ncc_runtime.verify.counting.increments import Increments, awaited, packed

BY_RANK = -2
"""In place of a semaphore: ranks wait for different ones, or for different values."""

_STRETCH = 256
"""Rows whose counters are worked out together."""


class Waits:
    """The waits of one queue."""

    def __init__(self, queue: Queue, ranks: int) -> None:
        self._ranks = ranks
        self._sems, self._values = awaited(queue, ranks), packed(queue.sync.wait_value)
        own = slice(None) if queue.ranks is None else queue.ranks
        sem, value = (
            column if column.shape[1] == 1 else column[:, own]
            for column in (self._sems, self._values)
        )
        column = sem[:, 0].astype(np.int64) if len(sem) else np.zeros(0, np.int64)
        alike = (sem == sem[:, :1]).all(axis=1)
        alike &= (value == value[:, :1]).all(axis=1) | (column == IDLE)
        self.sem: list[int] = np.where(alike, column, BY_RANK).tolist()
        self.value: list[int] = value[:, 0].tolist() if len(value) else []
        self._at = IDLE  # the stretch at hand
        self._counters = self._asked = np.zeros((0, ranks), np.int64)

    def by_rank(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """(counter, value) that each rank waits for; the counter behind the last for none."""
        stretch, place = divmod(row, _STRETCH)
        if stretch != self._at:
            rows = slice(stretch * _STRETCH, (stretch + 1) * _STRETCH)
            sem = self._sems[rows].astype(np.int64)
            counters = np.where(sem == IDLE, IDLE, sem * self._ranks + np.arange(self._ranks))
            self._counters = counters
            self._asked = np.broadcast_to(self._values[rows], counters.shape)
            self._at = stretch
        return self._counters[place], self._asked[place]


@attrs.frozen(eq=False)
class Action:
    """What a kind of row increments."""

    counters: np.ndarray  # (c,) all of them
    sources: np.ndarray  # (c,) and by which rank each
    everywhere: tuple[int, ...]  # semaphores that grow by one on every rank
    once: np.ndarray | None  # other counters, if it names none twice
    often: np.ndarray | None  # or else those


def action_of(increments: Increments, kind: int) -> Action:
    """Sorted into whole semaphores and single counters."""
    cells = increments.cells(np.array([kind]))
    unique = np.unique(cells.counter)
    if len(unique) < len(cells.counter):
        return Action(cells.counter, cells.source, (), None, cells.counter)
    sems = unique // increments.ranks
    everywhere, members = np.unique(sems, return_counts=True)
    everywhere = everywhere[members == increments.ranks]
    rest = unique[~np.isin(sems, everywhere)] if len(everywhere) else unique
    whole = tuple(everywhere.tolist())
    return Action(cells.counter, cells.source, whole, rest if len(rest) else None, None)
