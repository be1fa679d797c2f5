"""Stands in for the clock: each row takes a drawn time, so runs see orders that no machine has."""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ncc_runtime.execution.clock.clock import Halted, TimedRun
from ncc_runtime.execution.control_flow import RecordedDecisions
from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.execution.scheduler import QueueStates, RowBatch
from ncc_runtime.execution.trace import NO_EVENT, Reason, Trace
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, Jump


class RandomClock:
    """In place of `Clock`; knows queues that stop for ever, and completions lost or doubled."""

    def __init__(
        self,
        executable: Executable,
        decisions: RecordedDecisions,
        run_sizes: Mapping[int, Sequence[np.ndarray]] = MappingProxyType({}),
        *,
        seed: int = 0,
        longest_ps: int = 40,
    ) -> None:
        del run_sizes
        self._executable, self._decisions = executable, decisions
        self._seed, self._longest_ps = seed, longest_ps

    def run(self, disturbance: Disturbance, in_memory: int = 0) -> TimedRun:
        del in_memory
        return _Run(
            self._executable, self._decisions, disturbance, self._seed, self._longest_ps
        ).go()


class _Run:
    def __init__(
        self,
        executable: Executable,
        decisions: RecordedDecisions,
        disturbance: Disturbance,
        seed: int,
        longest_ps: int,
    ) -> None:
        self._executable, self._decisions = executable, decisions
        self._state = QueueStates(executable, self._decide)
        self._random = np.random.default_rng(seed)
        self._longest_ps = longest_ps
        self._dies_ps = {(q.queue, q.rank): q.start_ps for q in disturbance.queues if not q.speed}
        self._times = {(t.queue, t.rank, t.nth): t.completions for t in disturbance.transfers}
        self._occasion: dict[tuple[int, int, int], int] = defaultdict(int)
        self._performed: dict[tuple[int, int], int] = defaultdict(int)
        self._under_way: set[tuple[int, int]] = set()
        self._heap: list[tuple[int, int, int, int, int]] = []  # end, start, queue, rank, row
        self._halted: dict[tuple[int, int], Halted] = {}

    def _decide(self, batch: RowBatch, _: Jump) -> np.ndarray:
        taken = self._decisions.taken(batch.queue, batch.row)
        enters = []
        for rank in batch.ranks.tolist():
            key = batch.queue, batch.row, rank
            enters.append(bool(taken[rank][self._occasion[key]]))
            self._occasion[key] += 1
        return np.array(enters)

    def go(self) -> TimedRun:
        events, now = [], 0
        self._start_all(now)
        while self._heap:
            now, start, queue, rank, row = heapq.heappop(self._heap)
            self._under_way.discard((queue, rank))
            times = None
            if isinstance(self._executable.queues[queue], DmaQueue):
                nth = self._performed[queue, rank]
                times = np.array([self._times.get((queue, rank, nth), 1)])
                self._performed[queue, rank] += 1
            self._state.complete(_batch(queue, row, rank), times)
            events.append((queue, row, rank, start, now))
            self._start_all(now)
        columns = np.array(events, np.int64).reshape(-1, 5).T
        count = columns.shape[1]
        trace = Trace(
            self._executable,
            *columns,
            cause=np.full(count, NO_EVENT),
            reason=np.full(count, Reason.NONE, np.uint8),
            slowed_ps=np.zeros(count, np.int64),
        )
        stuck = (one for one in self._state.stuck() if (one.queue, one.rank) not in self._halted)
        halted = tuple(self._halted.values())
        return TimedRun(trace, tuple(stuck), halted, self._state.semaphores)

    def _start_all(self, now: int) -> None:
        for number, queue in enumerate(self._executable.queues):
            for rank in self._state.runners[number].tolist():
                if (number, rank) not in self._under_way:
                    self._start(number, queue, rank, now)

    def _start(self, number: int, queue: object, rank: int, now: int) -> None:
        who = np.array([rank])
        if isinstance(queue, DmaQueue):
            nth = self._performed[number, rank]
            row = int(self._state.rings.pushed_row(number, who, np.array([nth]))[0])
            if row == IDLE:
                return
        else:
            counter = self._state.counters[number]
            while isinstance(queue, CcQueue) and _is_idle(queue, int(counter[rank]), rank):
                self._state.complete(_batch(number, int(counter[rank]), rank))
            row = int(counter[rank])
            if row >= self._state.lengths[number]:
                return
            sem, value = self._state.awaited(number, row, who)
            if sem[0] != IDLE and self._state.semaphores[rank, sem[0]] < value[0]:
                return
        end = now + int(self._random.integers(1, self._longest_ps))
        dies_ps = self._dies_ps.get((number, rank))
        self._under_way.add((number, rank))
        if dies_ps is not None and dies_ps < end:
            since = max(now, dies_ps)
            self._halted[number, rank] = Halted(number, rank, row, since, None)
        else:
            heapq.heappush(self._heap, (end, now, number, rank, row))


def _is_idle(queue: CcQueue, row: int, rank: int) -> bool:
    if row >= len(queue.opcode):
        return False
    wait_sem = queue.sync.wait_sem[row]
    waits = wait_sem[rank if len(wait_sem) > 1 else 0] != IDLE
    return not waits and all(post.rank[row, rank] == IDLE for post in queue.sync.posts)


def _batch(queue: int, row: int, rank: int) -> RowBatch:
    nothing = np.array([IDLE])
    return RowBatch(queue, row, np.array([rank]), nothing, nothing)
