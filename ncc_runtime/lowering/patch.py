"""Patches the engine queues: each placeholder becomes a write that triggers its CC-core."""

from collections.abc import Mapping

import numpy as np

from ncc_runtime.lowering.executable import IDLE, EngineQueue, Post, Sync
from ncc_runtime.neff.isa import ENGINES
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.table import NONE, InstrTable


def patched_queues(program: Program, trigger_sems: Mapping[int, int]) -> list[EngineQueue]:
    """The engine queues in hardware order; `trigger_sems` is keyed by stream."""
    return [
        EngineQueue(engine.value, engine, program.queues[engine], sync)
        for engine in ENGINES
        if engine in program.queues
        for sync in (_sync(program, program.queues[engine], trigger_sems),)
    ]


def _sync(program: Program, table: InstrTable, trigger_sems: Mapping[int, int]) -> Sync:
    """Waits and increments of the table; the second increment is a placeholder's trigger."""
    streams = [placeholder.stream for placeholder in program.placeholders]
    triggers = np.array([trigger_sems[stream] for stream in streams], np.int32)
    is_trigger = table.placeholder != NONE
    trigger = np.full(len(table), IDLE, np.int32)
    trigger[is_trigger] = triggers[table.placeholder[is_trigger]]
    mine = np.arange(program.ranks, dtype=np.int32)
    posts = []
    for sem in (table.post_sem.astype(np.int32), trigger):
        if (sem != NONE).any():
            rank = np.where(sem[:, None] != NONE, mine[None, :], IDLE)
            posts.append(Post(rank, np.broadcast_to(sem[:, None], rank.shape)))
    return Sync(
        wait_sem=table.wait_sem.astype(np.int32)[:, None],
        wait_value=table.wait_value.astype(np.int64)[:, None],
        posts=tuple(posts),
    )


def trigger_order(program: Program) -> list[int]:
    """Placeholders in the order the queues trigger them, stream by stream."""
    triggered = [
        int(number)
        for engine in ENGINES
        if engine in program.queues
        for number in program.queues[engine].placeholder.tolist()
        if number != NONE
    ]
    return sorted(triggered, key=lambda number: program.placeholders[number].stream)


def stream_semaphores(program: Program) -> dict[int, int]:
    """The semaphore by which the engines learn that a stream's placeholders are complete."""
    owners = {semaphore.owner: index for index, semaphore in enumerate(program.semaphores)}
    streams = sorted({placeholder.stream for placeholder in program.placeholders})
    return {stream: owners.get(f"stream {stream}", IDLE) for stream in streams}
