"""What events of engines and CC-cores waited for: semaphores of their rank, and which value.

Values in a program count as if every block ran once; each jump that a rank took shifts them. Rows
in which a rank has nothing to do are no events, so jumps are seen by where the rank is found next.
"""

from collections.abc import Mapping

import numpy as np

from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import IDLE, CcQueue, EngineQueue, Jump


def waited(trace: Trace, number: int, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(semaphore or IDLE, value) of the events of a queue; whole ranks, by rank, in order."""
    queue = trace.executable.queues[number]
    assert isinstance(queue, EngineQueue | CcQueue), "rings wait for their own tail"
    row, rank = trace.row[events], trace.rank[events]
    sem, value = queue.sync.wait_sem, queue.sync.wait_value
    sem = sem[row, rank if sem.shape[1] > 1 else 0].astype(np.int64)
    value = value[row, rank if value.shape[1] > 1 else 0].astype(np.int64)
    following = np.append(row[1:], -1)[: len(row)]
    goes_on = np.append(rank[1:] == rank[:-1], False)[: len(rank)]
    for at in queue.jumps:
        jumps = goes_on & _is_taken(queue.jumps, at, row, following)
        count = np.cumsum(jumps) - jumps
        count -= count[np.searchsorted(rank, rank)]
        value += count * _shift(queue.jumps[at], sem, rank)
    return sem, value


def _is_taken(
    jumps: Mapping[int, Jump], at: int, row: np.ndarray, following: np.ndarray
) -> np.ndarray:
    """Whether a jump lies between each event and the one that follows it, (n,) bool."""
    jump = jumps[at]
    if jump.target <= at:
        inner = [
            _is_repeated(other.target, end, row, following)
            for end, other in jumps.items()
            if jump.target < other.target <= end < at
        ]
        return _is_repeated(jump.target, at, row, following) & ~np.any(
            [np.zeros_like(row), *inner], axis=0
        )
    back = jumps.get(jump.target - 1)
    opens = at + 1 if back is None or back.block != jump.block else back.target
    stays = np.where(following > at, following < jump.target, following >= opens)
    return np.asarray((row == at) & ~stays)


def _is_repeated(first: int, last: int, row: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Whether an event and the next are rows of a loop, and the next comes no later."""
    return (first <= following) & (following <= row) & (row <= last)


def _shift(jump: Jump, sem: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """What a jump adds to the value of each event's semaphore."""
    known = (sem != IDLE) & (sem < jump.shift.shape[1])
    owner = rank if len(jump.shift) > 1 else np.zeros_like(rank)
    return np.where(known, jump.shift[owner, np.where(known, sem, 0)], 0)
