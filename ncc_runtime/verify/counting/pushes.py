"""DMA rings: each run is pushed once, in order, by its own CC-core, and waits for that push."""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable
from ncc_runtime.verify.counting.increments import (
    Increments,
    Owners,
    awaited,
    first_runner,
    kinds_of_rows,
    packed,
)
from ncc_runtime.verify.places import place_of, queue_text


@attrs.frozen(eq=False)
class _Pushes:
    """What pushes the runs of one ring."""

    ring: int  # in Executable.queues
    core: int  # likewise
    rows: np.ndarray  # (pushes,) of the CC-core


def unpushed(
    executable: Executable, increments: Sequence[Increments], owners: Owners
) -> Iterator[str]:
    """Every breach, ring by ring."""
    queues = executable.queues
    cores = cores_of(executable)
    lanes = {(first_runner(q), q.stream, q.lane) for q in queues if isinstance(q, DmaQueue)}
    for queue in queues:
        if isinstance(queue, CcQueue):
            yield from _nowhere(queue, lanes)
    for number, ring in enumerate(queues):
        if not isinstance(ring, DmaQueue):
            continue
        at = cores.get((first_runner(ring), ring.stream))
        if at is None:
            if len(ring.opcode):
                yield f"{queue_text(ring)}: no CC-core of stream {ring.stream} pushes its rows"
            continue
        core = queues[at]
        assert isinstance(core, CcQueue), core.name
        rows = np.flatnonzero((core.opcode == CcOpcode.ADVANCE) & (core.ring == ring.lane))
        pushes = _Pushes(number, at, rows)
        checking = _Checking(executable, increments, pushes)
        found = tuple(checking.out_of_order())
        yield from found or checking.mismatched()
        yield from checking.miscounted(owners)


def cores_of(executable: Executable) -> Mapping[tuple[int, int], int]:
    """The CC-core queue by who runs it, its first rank, and by stream."""
    return {
        (first_runner(queue), queue.stream): number
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, CcQueue)
    }


def _nowhere(core: CcQueue, lanes: set[tuple[int, int, int]]) -> Iterator[str]:
    for row in np.flatnonzero(core.opcode == CcOpcode.ADVANCE).tolist():
        lane = int(core.ring[row])
        if (first_runner(core), core.stream, lane) not in lanes:
            yield f"{queue_text(core)}, pc {row}: advances lane {lane}, which has no ring"


class _Checking:
    """One ring and its CC-core."""

    def __init__(
        self, executable: Executable, increments: Sequence[Increments], pushes: _Pushes
    ) -> None:
        self._executable = executable
        self._pushes = pushes
        ring, core = executable.queues[pushes.ring], executable.queues[pushes.core]
        assert isinstance(ring, DmaQueue), ring.name
        assert isinstance(core, CcQueue), core.name
        self._ring, self._core = ring, core
        self._posted = increments[pushes.core]
        self._sem = awaited(ring, executable.ranks)
        self._ranks = executable.ranks

    def out_of_order(self) -> Iterator[str]:
        """The first push of another row than the next one."""
        pushed, runs = self._core.ring_row[self._pushes.rows], len(self._ring.opcode)
        due = np.arange(max(len(pushed), runs))
        both = min(len(pushed), runs)
        wrong = np.flatnonzero(pushed[:both] != due[:both])
        if len(wrong):
            push = int(wrong[0])
            row = int(self._pushes.rows[push])
            yield (
                f"{queue_text(self._core)}, pc {row}: pushes row {pushed[push]} of "
                f"{self._ring.name}, row {push} is due"
            )
        elif len(pushed) > runs:
            row = int(self._pushes.rows[runs])
            yield (
                f"{queue_text(self._core)}, pc {row}: pushes row {pushed[runs]} of "
                f"{self._ring.name}, which has {runs} rows, each pushed before"
            )
        elif len(pushed) < runs:
            yield f"{queue_text(self._ring)}, pc {len(pushed)}: no row pushes it"

    def mismatched(self) -> Iterator[str]:
        """Runs whose ranks or counter are not those of their push."""
        kinds = self._posted.kind[self._pushes.rows]
        waits = kinds_of_rows(self._sem)
        pairs = kinds * (int(waits.max(initial=0)) + 1) + waits
        for run in np.unique(pairs, return_index=True)[1].tolist():
            yield from self._mismatch(run, kinds[run : run + 1])

    def _mismatch(self, run: int, kind: np.ndarray) -> Iterator[str]:
        cells = self._posted.cells(kind)
        posted: np.ndarray = np.full(self._ranks, IDLE, np.int64)
        own = cells.counter % self._ranks == cells.source
        posted[cells.source[own]] = cells.counter[own] // self._ranks
        waits = np.broadcast_to(self._sem[run], (self._ranks,))
        for rank in np.flatnonzero(posted != waits)[:1].tolist():
            place = place_of(self._executable, self._pushes.ring, run, rank)
            push = int(self._pushes.rows[run])
            yield (
                f"{place}: waits for {self._name(rank, int(waits[rank]))}, its push "
                f"(queue {self._core.name}, pc {push}) increments "
                f"{self._name(rank, int(posted[rank]))}"
            )

    def _name(self, rank: int, sem: int) -> str:
        if sem == IDLE:
            return "nothing"
        return self._executable.semaphore_names(rank).get(sem, f"s{sem}")

    def miscounted(self, owners: Owners) -> Iterator[str]:
        """Runs that wait for another number than they have on their rank."""
        value, before = packed(self._ring.sync.wait_value), np.zeros(1, np.int64)
        step = max(1, (1 << 20) // max(1, self._ranks))
        for at in range(0, len(self._sem), step):
            rows = slice(at, at + step)
            active = self._sem[rows] != IDLE
            ordinal = before + np.cumsum(active, axis=0, dtype=np.int64)
            for row, rank in np.argwhere(active & (ordinal != value[rows]))[:1].tolist():
                asked = int(value[at + row, min(rank, value.shape[1] - 1)])
                due = int(ordinal[row, min(rank, ordinal.shape[1] - 1)])
                place = place_of(self._executable, self._pushes.ring, at + row, rank)
                yield f"{place}: waits for push {asked} of its ring, it is push {due}"
                return
            before = ordinal[-1]
        yield from self._overcounted(np.broadcast_to(before, (self._ranks,)), owners)

    def _overcounted(self, runs: np.ndarray, owners: Owners) -> Iterator[str]:
        """A tail that something else than the pushes increments, or several tails."""
        if not len(self._sem):
            return
        tail = np.broadcast_to(self._sem.max(axis=0), (self._ranks,)).astype(np.int64)
        active = self._sem != IDLE
        mixed = (active & (self._sem != self._sem.max(axis=0))).any(axis=0)
        counters = np.where(runs > 0, tail, 0) * self._ranks + np.arange(self._ranks)
        wrong = (runs > 0) & ((owners.total[counters] != runs) | mixed)
        for rank in np.flatnonzero(wrong)[:1].tolist():
            yield (
                f"rank {rank}, queue {self._ring.name}: {runs[rank]} runs, "
                f"{self._name(rank, int(tail[rank]))} is incremented "
                f"{owners.total[counters[rank]]} times"
            )
