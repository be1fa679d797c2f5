"""Patches the engine queues: each placeholder becomes a write that triggers its CC-core."""

from collections.abc import Iterator, Mapping

import numpy as np

from ncc_runtime.lowering.columns import Row
from ncc_runtime.lowering.executable import IDLE, Decision, EngineQueue, Jump, Post, Sync
from ncc_runtime.lowering.structure import Shifts, announced, markers
from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, TEST, Engine
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import Stage, stages_of
from ncc_runtime.neff.table import NONE, InstrTable


def patched_queues(
    stage: Stage, trigger_sems: Mapping[int, int], shifts: Mapping[int, Shifts], seen: int
) -> list[EngineQueue]:
    """The engine queues in hardware order, for the first ranks; `trigger_sems` is by stream."""
    program = stage.program
    ranks = None if len(stage.ranks) == program.ranks else stage.ranks
    return [
        EngineQueue(
            engine.value,
            engine,
            program.queues[engine],
            _sync(stage, engine, trigger_sems, seen),
            _jumps(program, program.queues[engine], shifts),
            ranks,
        )
        for engine in ENGINES
        if engine in program.queues
    ]


def _jumps(program: Program, table: InstrTable, shifts: Mapping[int, Shifts]) -> dict[int, Jump]:
    """Where the queue may go on elsewhere: out of a loop, past a branch, back to a loop's start."""
    jumps = {}
    opened: dict[int, int] = {}
    decided: dict[int, int] = {}
    for row, marker in markers(program, table).items():
        block = marker.block
        if marker.opcode in (LOOP, CASE):
            opened[block] = row
        if marker.opcode in (TEST, CASE):
            decided[block] = row
        if marker.opcode != END:
            continue
        is_loop = opened[block] != decided[block]
        if is_loop:
            back = shifts[block].repeated[None, :]
            jumps[row] = Jump(opened[block] + 1, block, Decision.ALWAYS, back)
        out = -shifts[block].skipped[None, :]
        decision = Decision.TEST if is_loop else Decision.CASE
        jumps[decided[block]] = Jump(row + 1, block, decision, out)
    return jumps


def _sync(stage: Stage, engine: Engine, trigger_sems: Mapping[int, int], seen: int) -> Sync:
    """Waits and increments of a queue; behind the first come the triggers of each stream."""
    program = stage.program
    table = program.queues[engine]
    mine: np.ndarray = np.full(program.ranks, IDLE, np.int32)
    mine[stage.ranks] = stage.ranks
    mine = mine[:seen]
    is_all = len(stage.ranks) == program.ranks
    posts = []
    for sem in (table.post_sem.astype(np.int32), *_triggers(program, engine, trigger_sems)):
        if (sem != NONE).any():
            rank = np.where(sem[:, None] != NONE, mine[None, :], IDLE)
            sems = np.broadcast_to(sem[:, None], rank.shape)
            posts.append(Post(rank, sems if is_all else np.where(rank == IDLE, IDLE, sems)))
    return Sync(
        wait_sem=table.wait_sem.astype(np.int32)[:, None],
        wait_value=table.wait_value.astype(np.int64)[:, None],
        posts=tuple(posts),
    )


def _triggers(
    program: Program, engine: Engine, trigger_sems: Mapping[int, int]
) -> Iterator[np.ndarray]:
    """Per stream, its trigger semaphore where a placeholder or a predicate is ready for it."""
    table, told = program.queues[engine], announced(program, engine)
    streams = np.array([placeholder.stream for placeholder in program.placeholders], np.int32)
    is_trigger = table.placeholder != NONE
    triggered = np.full(len(table), IDLE, np.int32)
    triggered[is_trigger] = streams[table.placeholder[is_trigger]]
    for stream, sem in trigger_sems.items():
        rows = triggered == stream
        rows[[row for row, hearing in told.items() if stream in hearing]] = True
        yield np.where(rows, np.int32(sem), np.int32(IDLE))


def stream_semaphores(program: Program) -> dict[int, Row]:
    """The semaphore by which the engines learn that a stream's placeholders are complete."""
    stages = stages_of(program)
    streams = sorted({placeholder.stream for placeholder in program.placeholders})
    found: dict[int, Row] = {stream: np.full(1, IDLE, np.int32) for stream in streams}
    for stage in stages:
        semaphores = enumerate(stage.program.semaphores)
        owners = {semaphore.owner: index for index, semaphore in semaphores}
        for stream in streams:
            sem = owners.get(f"stream {stream}", IDLE)
            if len(stages) == 1:
                found[stream][0] = sem
                continue
            found[stream] = np.broadcast_to(found[stream], program.ranks).copy()
            found[stream][stage.ranks] = sem
    return found
