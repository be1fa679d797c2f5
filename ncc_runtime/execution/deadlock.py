"""Says why a program is stuck: who waits where, for what, and who would have to provide it."""

from collections.abc import Sequence

import numpy as np

from ncc_runtime.errors import DeadlockError
from ncc_runtime.lowering.executable import IDLE, Executable

SHOWN = 16
"""Waiting queues named in full; the rest are counted."""


def deadlock_report(
    executable: Executable, counters: Sequence[np.ndarray], semaphores: np.ndarray
) -> DeadlockError:
    """An error naming queue, instruction, semaphore, value held and awaited, and who increments."""
    lines: list[str] = []
    stuck = 0
    for number, queue in enumerate(executable.queues):
        length = len(queue.sync.wait_sem)
        for rank in np.flatnonzero(counters[number] < length).tolist():
            stuck += 1
            if len(lines) < SHOWN:
                row = int(counters[number][rank])
                lines.append(_line(executable, number, row, rank, semaphores))
    if stuck > len(lines):
        lines.append(f"… and {stuck - len(lines)} more")
    return DeadlockError(
        f"deadlock: {stuck} queues wait for semaphore values that nothing will provide\n  "
        + "\n  ".join(lines)
    )


def _line(executable: Executable, number: int, row: int, rank: int, semaphores: np.ndarray) -> str:
    queue = executable.queues[number]
    column = rank if queue.sync.wait_sem.shape[1] > 1 else 0
    sem = int(queue.sync.wait_sem[row, column])
    awaited = int(queue.sync.wait_value[row, column])
    name = executable.semaphore_names(rank).get(sem, f"s{sem}")
    return (
        f"rank {rank}, queue {queue.name}, pc {row}: waits for {name} >= {awaited}, "
        f"it holds {int(semaphores[rank, sem])}; {_provider(executable, rank, sem)}"
    )


def _provider(executable: Executable, rank: int, sem: int) -> str:
    """Which rows of which queue would increment a semaphore, over the whole program."""
    for queue in executable.queues:
        for post in queue.sync.posts:
            rows, senders = np.nonzero((post.rank == rank) & (post.sem == sem))
            if rows.size:
                sender, last = int(senders[0]), int(rows.max())
                return (
                    f"rank {sender}, queue {queue.name} increments it {rows.size} times, "
                    f"last at pc {last}"
                )
    return "no queue increments it" if sem != IDLE else "it waits for nothing"
