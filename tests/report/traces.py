"""Traces for tests: events written by hand, or by a clock of the simplest kind."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

import ncc_compiler
from ncc_compiler.options import CompileOptions
from ncc_runtime.execution.scheduler import RowBatch, Scheduler
from ncc_runtime.execution.trace import NO_EVENT, Reason, Trace
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable, Jump
from ncc_runtime.lowering.lower import lower
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.runtime import program_of
from tests.programs import collective_program

DTYPES = (np.int16, np.int32, np.int32, np.int64, np.int64, np.int32, np.uint8, np.int64)

ROW_PS, SEEN_PS, LAUNCH_PS = 10_500, 700, 2_000


def placed(text: str, level: int = 1, **place: object) -> Executable:
    program = program_of(ncc_compiler.compile_text(text, CompileOptions(level=level)))
    return lower(program, place_on(PlaceOptions(**place), program.ranks), {})


def all_reduce(ranks: int = 4, elements: int = 64, repeat: int = 1) -> Executable:
    program = collective_program(CollectiveOp.ALL_REDUCE, ranks, [elements], repeat=repeat)
    place = place_on(PlaceOptions("trn1", placement="spread"), ranks)
    return lower(program, place, {"all-reduce": "ring"})


Row = tuple[str, int, int, int, int, int, Reason, int]
"""Queue, row, rank, start, end, cause, reason, slowed."""


def written(executable: Executable, rows: Sequence[Row]) -> Trace:
    names = [queue.name for queue in executable.queues]
    numbers = [(names.index(queue), *rest) for queue, *rest in rows]
    columns = zip(*numbers, strict=True)
    pairs = zip(columns, DTYPES, strict=True)
    return Trace(executable, *(np.array(column, dtype) for column, dtype in pairs))


def simple(executable: Executable) -> Trace:
    """Every row takes ROW_PS, every increment SEEN_PS; rings start the next row half way."""
    clock = _SimpleClock(executable)
    Scheduler(executable, clock.decide).run(clock.perform)
    return written(executable, clock.rows)


class _SimpleClock:
    def __init__(self, executable: Executable) -> None:
        self._queues, self._blocks = executable.queues, executable.program.blocks
        self.rows: list[Row] = []
        self._seen: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._free: dict[tuple[int, int], tuple[int, int]] = {}
        self._turns: dict[tuple[int, int, int], int] = defaultdict(int)

    def perform(self, batches: Sequence[RowBatch]) -> None:
        for batch in batches:
            queue = self._queues[batch.queue]
            for at, rank in enumerate(batch.ranks.tolist()):
                if isinstance(queue, DmaQueue) or self._is_active(batch, at):
                    self._row(batch, at, rank)

    def decide(self, batch: RowBatch, jump: Jump) -> np.ndarray:
        """Loops take as many turns as the compiler saw."""
        trips, found = self._blocks[jump.block].trip_count, []
        for rank in batch.ranks.tolist():
            turn = self._turns[batch.queue, batch.row, rank] % (trips + 1)
            self._turns[batch.queue, batch.row, rank] = turn + 1
            found.append(turn < trips)
        return np.array(found)

    def _is_active(self, batch: RowBatch, at: int) -> bool:
        posts = self._queues[batch.queue].sync.posts
        rank = batch.ranks[at]
        return batch.wait_sem[at] != IDLE or any(
            post.rank[batch.row, rank] != IDLE for post in posts
        )

    def _row(self, batch: RowBatch, at: int, rank: int) -> None:
        queue, event = self._queues[batch.queue], len(self.rows)
        is_ring = isinstance(queue, DmaQueue)
        start, cause = self._free.get((batch.queue, rank), (LAUNCH_PS, NO_EVENT))
        reason = Reason.RING if is_ring else Reason.QUEUE
        sem, value = int(batch.wait_sem[at]), int(batch.wait_value[at])
        if sem != IDLE and value > 0 and self._seen[rank, sem][value - 1][0] > start:
            start, cause = self._seen[rank, sem][value - 1]
            reason = Reason.SEMAPHORE
        reason = Reason.NONE if cause == NO_EVENT else reason
        end = start + ROW_PS
        self.rows.append((queue.name, batch.row, rank, start, end, cause, reason, 0))
        self._free[batch.queue, rank] = (start + ROW_PS // 2 if is_ring else end, event)
        for post in queue.sync.posts:
            to = int(post.rank[batch.row, rank])
            if to != IDLE:
                key = to, int(post.sem[batch.row, rank])
                self._seen[key].append((end + SEEN_PS, event))
