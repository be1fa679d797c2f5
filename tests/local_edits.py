"""Faults in the waits of one rank's own chains, made on all ranks alike."""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, EngineQueue, Executable


def with_waits(
    executable: Executable, number: int, waits: dict[int, tuple[int, int]]
) -> Executable:
    """Rows of a queue wait for other semaphores and values."""
    queue = executable.queues[number]
    sem, value = queue.sync.wait_sem.copy(), queue.sync.wait_value.copy()
    for row, (new_sem, new_value) in waits.items():
        sem[row], value[row] = new_sem, new_value
    sync = attrs.evolve(queue.sync, wait_sem=sem, wait_value=value)
    queues = list(executable.queues)
    queues[number] = attrs.evolve(queue, sync=sync)
    return attrs.evolve(executable, queues=tuple(queues))


def faults(executable: Executable) -> Iterator[tuple[str, Executable]]:
    """Each wait of an engine or for a trigger: dropped, for one less, moved behind its row."""
    for number, queue in enumerate(executable.queues):
        if isinstance(queue, DmaQueue):
            continue
        sem, value = queue.sync.wait_sem, queue.sync.wait_value
        for row in np.flatnonzero((sem != IDLE).any(axis=1)).tolist():
            if isinstance(queue, CcQueue) and not _is_trigger(executable, queue, row):
                continue
            here, asked = int(sem[row, 0]), int(value[row, 0])
            name = f"{queue.name} {row}"
            yield f"dropped, {name}", with_waits(executable, number, {row: (IDLE, 0)})
            if asked > 1:
                yield f"one less, {name}", with_waits(executable, number, {row: (here, asked - 1)})
            behind = row + 1
            if isinstance(queue, EngineQueue) and behind < len(sem) and sem[behind, 0] == IDLE:
                moved = {row: (IDLE, 0), behind: (here, asked)}
                yield f"moved, {name}", with_waits(executable, number, moved)


def _is_trigger(executable: Executable, queue: CcQueue, row: int) -> bool:
    (facts,) = (facts for facts in executable.streams if facts.stream == queue.stream)
    return int(queue.sync.wait_sem[row, 0]) == facts.trigger_sem
