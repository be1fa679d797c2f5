"""Says why a program is stuck: who waits where, for what, and who would have to provide it."""

from collections.abc import Iterable

import attrs
import numpy as np

from ncc_runtime.errors import DeadlockError
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    Executable,
    descriptors,
    is_run_by,
)

SHOWN = 16
"""Waiting queues named in full; the rest are counted."""


@attrs.frozen
class Stuck:
    """A queue of a rank that cannot go on."""

    queue: int
    row: int
    rank: int
    sem: int  # IDLE: no semaphore
    awaited: int


def deadlock_report(
    executable: Executable, stuck: Iterable[Stuck], semaphores: np.ndarray
) -> DeadlockError:
    """An error naming queue, instruction, semaphore, value held and awaited, and who increments."""
    everybody = tuple(stuck)
    lines = [_line(executable, one, semaphores) for one in everybody[:SHOWN]]
    if len(everybody) > SHOWN:
        lines.append(f"… and {len(everybody) - SHOWN} more")
    return DeadlockError(
        f"deadlock: {len(everybody)} queues wait for what nothing will provide\n  "
        + "\n  ".join(lines)
    )


def _line(executable: Executable, stuck: Stuck, semaphores: np.ndarray) -> str:
    name = executable.semaphore_names(stuck.rank).get(stuck.sem, f"s{stuck.sem}")
    queue = executable.queues[stuck.queue]
    place = f"rank {stuck.rank}, queue {queue.name}, pc {stuck.row}"
    held = int(semaphores[stuck.rank, stuck.sem])
    if stuck.sem == IDLE or held >= stuck.awaited:
        return f"{place}: {_room(executable, stuck)}"
    return (
        f"{place}: waits for {name} >= {stuck.awaited}, it holds {held}; "
        f"{_provider(executable, stuck.rank, stuck.sem)}"
    )


def _room(executable: Executable, stuck: Stuck) -> str:
    """Which ring is too small for which run; anything else would have started."""
    core = executable.queues[stuck.queue]
    assert isinstance(core, CcQueue), core.name
    ring = next(
        queue
        for queue in executable.queues
        if isinstance(queue, DmaQueue)
        and is_run_by(queue, stuck.rank)
        and (queue.stream, queue.lane) == (core.stream, int(core.ring[stuck.row]))
    )
    size = ring.size_bytes[int(core.ring_row[stuck.row]), stuck.rank]
    return (
        f"pushes {int(descriptors(size))} descriptors to {ring.name}, which holds "
        f"{executable.topology.rank_ring_descriptors}"
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
    return "no queue increments it"
