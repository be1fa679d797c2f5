"""One greedy run of all queues of all ranks: an order that their waits allow, and who is stuck.

Each row runs once, with its static values; jumps are not taken. Counters only grow and each has
one incrementing chain (`counters.py`), so what one run completes, every run completes. A run of
descriptors is performed right behind its push: it waits for nothing else, so a ring empties by
itself, and only a run that is larger than its ring never finds room.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    EngineQueue,
    Executable,
    descriptors,
)
from ncc_runtime.verify.counting.increments import (
    Increments,
    awaited,
    first_runner,
    increments_of,
    kinds_of_rows,
    packed,
)
from ncc_runtime.verify.counting.pushes import cores_of
from ncc_runtime.verify.deadlock.rows import BY_RANK, Action, Waits, action_of


class Batch(NamedTuple):
    """One row of one queue, on some ranks."""

    queue: int  # position in Executable.queues
    row: int
    ranks: np.ndarray | None  # (r,) ascending; None: all, and all run the queue


@attrs.frozen(eq=False)
class GreedyRun:
    """What a run completes."""

    batches: Sequence[Batch]  # each after all that it waits for
    reached: Mapping[int, np.ndarray]  # by queue but for DMA rings: (ranks,) rows completed
    held: np.ndarray  # (semaphores, ranks), at the end
    too_long: Mapping[tuple[int, int], np.ndarray]  # queue and row of pushes: ranks without room

    def stuck(self, executable: Executable) -> Sequence[tuple[int, int]]:
        """(queue, rank) of those that have rows left."""
        return [
            (queue, rank)
            for queue, rows in self.reached.items()
            for rank in np.flatnonzero(rows < len(executable.queues[queue].sync.wait_sem)).tolist()
        ]


def greedy(executable: Executable, increments: Sequence[Increments] | None = None) -> GreedyRun:
    """Run everything that can run; `increments` are those of the executable, if at hand."""
    run = _Run(executable, increments or increments_of(executable))
    while run.advance():
        pass
    return run.result()


def oversized(executable: Executable) -> Mapping[tuple[int, int], np.ndarray]:
    """Pushes, by queue and row of the CC-core, of runs that no ring of a lane can hold."""
    found: dict[tuple[int, int], np.ndarray] = {}
    cores = cores_of(executable)
    for ring in executable.queues:
        if not isinstance(ring, DmaQueue) or not len(ring.opcode):
            continue
        number = cores.get((first_runner(ring), ring.stream))
        if number is not None:
            core = executable.queues[number]
            assert isinstance(core, CcQueue), core.name
            pushes = (core.opcode == CcOpcode.ADVANCE) & (core.ring == ring.lane)
            for run, large in _large_runs(executable, ring):
                rows = np.flatnonzero(pushes & (core.ring_row == run))[:1]
                found |= {(number, row): large for row in rows.tolist()}
    return found


def _large_runs(executable: Executable, ring: DmaQueue) -> Iterator[tuple[int, np.ndarray]]:
    """Runs that are larger than their ring, and on which ranks."""
    room, sizes = executable.topology.rank_ring_descriptors, packed(ring.size_bytes)
    waits = awaited(ring, executable.ranks)
    for run in np.flatnonzero(descriptors(sizes.max(axis=1)) > room).tolist():
        active = waits[run] != IDLE
        large = np.broadcast_to(active & (descriptors(sizes[run]) > room), (executable.ranks,))
        if large.any():
            yield run, large


class _Program:
    """An engine's or a CC-core's queue, and where it stands."""

    def __init__(
        self, number: int, queue: EngineQueue | CcQueue, kinds: list[int], ranks: int
    ) -> None:
        self.number = number
        self.length = len(queue.sync.wait_sem)
        self.runners = queue.ranks
        self.waits = Waits(queue, ranks)
        self.kinds = kinds
        self.at: int | np.ndarray = 0  # an array where those who run it stand at different rows
        self.pushes: Sequence[tuple[_Ring, int] | None] = [None] * self.length  # ring and run
        self._ranks = ranks

    def rows(self) -> np.ndarray:
        """Where each rank stands, (ranks,); those who do not run it at its end."""
        if self.runners is None or not isinstance(self.at, int):
            return np.broadcast_to(self.at, (self._ranks,))
        found = np.full(self._ranks, self.length, np.int64)
        found[self.runners] = self.at
        return found


@attrs.frozen(eq=False)
class _Ring:
    """The runs of a DMA ring."""

    number: int
    kinds: list[int]  # of increments, by run
    active: Sequence[np.ndarray | None]  # ranks that have each run; None: all who run it
    runners: np.ndarray | None  # None: everybody


class _Run:
    """Positions and counters."""

    def __init__(self, executable: Executable, increments: Sequence[Increments]) -> None:
        self._executable = executable
        self._increments = increments
        self._ranks = executable.ranks
        width = max(1, executable.semaphore_count)
        self._flat: np.ndarray = np.zeros(width * self._ranks + 1, np.int64)
        self._flat[-1] = np.iinfo(np.int64).max  # for those who do not wait
        self._held = self._flat[:-1].reshape(width, self._ranks)
        self._least = [0] * width  # each semaphore holds that on every rank, or more
        self._late: dict[int, int] = {}  # what every rank's is to grow by, by semaphore
        self._actions: list[dict[int, Action]] = [{} for _ in increments]
        self._batches: list[Batch] = []
        self._too_long = oversized(executable)
        self._rings: dict[tuple[int, int, int], _Ring] = {}
        self._programs: list[_Program] = []
        for number, queue in enumerate(executable.queues):
            kinds = increments[number].kind.tolist()
            if isinstance(queue, DmaQueue):
                ring = _Ring(number, kinds, _active(queue, self._ranks), queue.ranks)
                self._rings[first_runner(queue), queue.stream, queue.lane] = ring
            else:
                self._programs.append(_Program(number, queue, kinds, self._ranks))
        for program in self._programs:
            self._link(program)

    def _link(self, program: _Program) -> None:
        """Which runs each row of a CC-core pushes."""
        queue = self._executable.queues[program.number]
        if not isinstance(queue, CcQueue):
            return
        pushes: list[tuple[_Ring, int] | None] = [None] * program.length
        rows = np.flatnonzero(queue.opcode == CcOpcode.ADVANCE)
        lanes, runs = queue.ring[rows].tolist(), queue.ring_row[rows].tolist()
        for row, lane, run in zip(rows.tolist(), lanes, runs, strict=True):
            ring = self._rings.get((first_runner(queue), queue.stream, lane))
            if ring is not None and 0 <= run < len(ring.kinds):
                pushes[row] = (ring, run)
        program.pushes = pushes

    def result(self) -> GreedyRun:
        reached = {program.number: program.rows() for program in self._programs}
        self._catch_up()
        return GreedyRun(self._batches, reached, self._held, self._too_long)

    def advance(self) -> bool:
        """Let each queue go as far as it can; whether any moved.

        Its ranks part only when no queue can go on with all of its ranks: programs that share a
        collective come through it side by side, and batches stay few.
        """
        together = [program for program in self._programs if isinstance(program.at, int)]
        moved = [self._together(program, may_part=False) for program in together]
        if not any(moved):
            moved = [self._advance(program) for program in self._programs]
        return any(moved)

    def _advance(self, program: _Program) -> bool:
        ever = False
        while self._together(program) if isinstance(program.at, int) else self._apart(program):
            ever = True
        return ever

    def _together(self, program: _Program, *, may_part: bool = True) -> bool:
        """All who run it at one row, as long as all can go on; whether any can or could."""
        assert isinstance(program.at, int), "ranks are apart"
        first: int = program.at
        row = first
        sems, values, too_long = program.waits.sem, program.waits.value, self._too_long
        while row < program.length:
            sem, free = sems[row], None
            if sem == BY_RANK or (sem >= 0 and self._least[sem] < values[row]):
                free = self._enough(program.waits, row)
                if sem >= 0:
                    self._least[sem] = int(self._held[sem].min())
            if too_long and (program.number, row) in too_long:
                free = self._free(program, row)
            if free is not None and not free.all():
                program.at = row
                if not may_part:
                    return row > first
                go_on = bool((free if program.runners is None else free[program.runners]).any())
                program.at = program.rows().copy() if go_on else row
                return go_on or row > first
            self._perform(program, row, None)
            row += 1
        program.at = row
        return row > first

    def _apart(self, program: _Program) -> bool:
        """Ranks at different rows, one row each; whether any could go on."""
        assert isinstance(program.at, np.ndarray), "ranks are together"
        at = program.at
        moved = False
        for row in np.unique(at).tolist():
            if row >= program.length:
                continue
            ranks = np.flatnonzero(at == row)
            ranks = ranks[self._free(program, row)[ranks]]
            if len(ranks):
                self._perform(program, row, ranks)
                at[ranks] = row + 1
                moved = True
        standing = at if program.runners is None else at[program.runners]
        if (standing == standing[0]).all():
            program.at = int(standing[0])
        return moved

    def _free(self, program: _Program, row: int) -> np.ndarray:
        """Whose wait is satisfied, and whose run finds room, (ranks,) bool."""
        free = self._enough(program.waits, row)
        large = self._too_long.get((program.number, row))
        return free if large is None else free & ~large

    def _enough(self, waits: Waits, row: int) -> np.ndarray:
        """Whose wait is satisfied, or who does not wait, (ranks,) bool."""
        counters, asked = waits.by_rank(row)
        if self._late:
            self._catch_up()
        return self._flat.take(counters) >= asked

    def _perform(self, program: _Program, row: int, ranks: np.ndarray | None) -> None:
        """A row, on all who run it if no ranks are named, and the run that it pushes."""
        self._batches.append(
            Batch(program.number, row, program.runners if ranks is None else ranks)
        )
        self._increment(program.number, program.kinds[row], ranks)
        push = program.pushes[row]
        if push is None:
            return
        ring, run = push
        active = ring.active[run]
        if ranks is not None and active is not None:
            active = np.intersect1d(ranks, active, assume_unique=True)
        elif active is None:
            active = ranks
        self._batches.append(Batch(ring.number, run, ring.runners if active is None else active))
        self._increment(ring.number, ring.kinds[run], active)

    def _increment(self, queue: int, kind: int, ranks: np.ndarray | None) -> None:
        action = self._actions[queue].get(kind)
        if action is None:
            action = self._actions[queue][kind] = action_of(self._increments[queue], kind)
        if ranks is not None:
            among: np.ndarray = np.zeros(self._ranks, bool)
            among[ranks] = True
            np.add.at(self._flat, action.counters[among[action.sources]], 1)
            return
        for sem in action.everywhere:
            self._least[sem] += 1
            self._late[sem] = self._late.get(sem, 0) + 1
        if action.once is not None:
            self._flat[action.once] += 1
        elif action.often is not None:
            np.add.at(self._flat, action.often, 1)

    def _catch_up(self) -> None:
        """Add to the counters what whole semaphores have grown by since the last time."""
        for sem, more in self._late.items():
            self._held[sem] += more
        self._late.clear()


def _active(ring: DmaQueue, ranks: int) -> Sequence[np.ndarray | None]:
    """By run, the ranks that have it; runs of equal ranks share them."""
    column = awaited(ring, ranks)
    kinds = kinds_of_rows(column)
    _, first = np.unique(kinds, return_index=True)
    found: list[np.ndarray | None] = []
    for row in first.tolist():
        mask = np.broadcast_to(column[row] != IDLE, (ranks,))
        own = mask if ring.ranks is None else mask[ring.ranks]
        found.append(None if own.all() else np.flatnonzero(mask))
    return [found[kind] for kind in kinds.tolist()]
