"""The rule of growing counters: what makes one run stand for all of them.

Every counter is incremented by one chain, so that "value n" names an increment; a wait asks for
one that is made, before the next control row; a DMA ring's rows are pushed in order; and a
jump shifts waited values by exactly what is incremented in the rows that it repeats or skips.
"""

import itertools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable, Queue, is_run_by
from ncc_runtime.neff.program import BlockKind
from ncc_runtime.verify.counting.flow import Flow, flow_of
from ncc_runtime.verify.counting.increments import (
    Increments,
    Owners,
    first_runner,
    increments_of,
    packed,
    runners,
)
from ncc_runtime.verify.counting.partings import relied_on_by_others
from ncc_runtime.verify.counting.pushes import unpushed
from ncc_runtime.verify.counting.shifts import wrong_shifts
from ncc_runtime.verify.counting.turns import out_of_turn
from ncc_runtime.verify.places import place_of
from ncc_runtime.verify.proof import Proof
from ncc_runtime.verify.stage_parts import parts_of

SHOWN = 8
"""Breaches of one kind that are told in full; the rest are counted."""

LARGEST_COUNT = 2**31 - 1
"""What a semaphore holds at most. Source: neuron-driver, semaphores are signed 32-bit."""


def prove_counters(executable: Executable, increments: Sequence[Increments] | None = None) -> Proof:
    """Checks every queue of every rank; `increments` are those of the executable, if at hand."""
    checking = _Checking(executable, tuple(increments or increments_of(executable)))
    kinds = (
        checking.strays(),
        checking.unowned(),
        checking.flow_breaches,
        checking.unreached(),
        unpushed(executable, checking.increments, checking.owners),
        checking.wrong_shifts(),
        checking.relied_on_by_others(),
        checking.too_large(),
    )
    breaches = tuple(breach for kind in kinds for breach in _shown(kind))
    return Proof("counters", checking.size(), breaches=breaches)


def _shown(breaches: Sequence[str] | Iterator[str]) -> Iterator[str]:
    found = iter(breaches)
    yield from itertools.islice(found, SHOWN)
    if more := sum(1 for _ in found):
        yield f"… and {more} more like the last"


class _Checking:
    """One executable."""

    def __init__(self, executable: Executable, increments: tuple[Increments, ...]) -> None:
        self.increments = increments
        self.owners = Owners.of(executable, increments)
        self._executable = executable
        self._ranks = executable.ranks
        self._flow, self.flow_breaches = flow_of(executable)

    def size(self) -> str:
        counters, made = self.owners.total.astype(bool).sum(), self.owners.total.sum()
        return f"{counters} semaphores, {made} increments"

    def strays(self) -> Iterator[str]:
        """Increments of what there is not."""
        for number, one in enumerate(self.increments):
            for row, rank in one.strays():
                place = place_of(self._executable, number, row, rank)
                yield f"{place}: increments a semaphore that there is not"

    def unowned(self) -> Iterator[str]:
        """Counters of several chains whose increments come in no one order."""
        shared = np.flatnonzero(self.owners.shared).tolist()
        varying = self._varying(shared)
        relied = [counter for counter in shared if not self._is_join(counter, counter in varying)]
        steady = [counter for counter in relied if counter not in varying]
        yield from out_of_turn(self._executable, self.increments, self.owners, steady)
        for counter in relied:
            if counter not in varying:
                continue
            sem, rank = divmod(counter, self._ranks)
            name = _name(self._executable, rank, sem)
            yield f"rank {rank}: several queues increment {name}, and there is control flow"

    def _varying(self, counters: Sequence[int]) -> frozenset[int]:
        """Those that are incremented by a program with control flow."""
        parts = parts_of(self._executable)
        repeating = [len(part.executable.program.blocks) > 0 for part in parts]
        if all(repeating) or not any(repeating):
            return frozenset(counters if all(repeating) else ())
        looked_for: np.ndarray = np.zeros(len(self.owners.total), bool)
        looked_for[list(counters)] = True
        found: set[int] = set()
        for queue, one in zip(self._executable.queues, self.increments, strict=True):
            first = first_runner(queue)
            if any(
                repeats and first in part.ranks
                for repeats, part in zip(repeating, parts, strict=True)
            ):
                for cells in one.stretches(np.arange(len(one.first))):
                    found.update(cells.counter[looked_for[cells.counter]].tolist())
        return frozenset(found)

    def _is_join(self, counter: int, varies: bool) -> bool:
        """Whether every wait asks for all of its increments, which are made once."""
        sem, rank = divmod(counter, self._ranks)
        total = self.owners.total[counter]
        waited = False
        for queue in self._executable.queues:
            if not is_run_by(queue, rank):
                continue
            column, value = packed(queue.sync.wait_sem), packed(queue.sync.wait_value)
            rows = column[:, min(rank, column.shape[1] - 1)] == sem
            waited = waited or bool(rows.any())
            if (value[rows, min(rank, value.shape[1] - 1)] < total).any():
                return False
        return not waited or not varies

    def unreached(self) -> Iterator[str]:
        """Waits for increments that are never made, or not before the next control row."""
        flow = self._flow
        if flow is None:
            return
        queues = enumerate(self._executable.queues)
        waiting = [(number, queue) for number, queue in queues if not isinstance(queue, DmaQueue)]
        for event, total in enumerate(self._totals(flow)):
            counted: dict[int, _Counted] = {}  # by who runs a queue
            for number, queue in waiting:
                first_rank = first_runner(queue)
                if first_rank not in counted:
                    counted[first_rank] = _Counted.of(total, queue, self._ranks)
                rows = flow.stretch(number, event)
                yield from self._unreached_in(number, rows, counted[first_rank])

    def _totals(self, flow: Flow) -> Iterator[np.ndarray]:
        """What has been incremented before each control row, and at the end; one array, grown."""
        total, made = np.zeros_like(self.owners.total), [0] * len(self.increments)
        for event in range(len(flow.events)):
            limits = [flow.limit(number, event) for number in range(len(made))]
            for one, first, last in zip(self.increments, made, limits, strict=True):
                one.add(total, slice(first, last))
            made = limits
            yield total
        yield self.owners.total

    def _unreached_in(self, number: int, rows: slice, counted: "_Counted") -> Iterator[str]:
        sync = self._executable.queues[number].sync
        sem, value = packed(sync.wait_sem[rows]), packed(sync.wait_value[rows])
        for row, rank in counted.unreached(sem, value):
            row_sem = int(sem[row, min(rank, sem.shape[1] - 1)])
            asked = int(value[row, min(rank, value.shape[1] - 1)])
            yield self._unreached_text((number, rows.start + row, rank), row_sem, asked, counted)

    def _unreached_text(
        self, at: tuple[int, int, int], sem: int, asked: int, counted: "_Counted"
    ) -> str:
        number, row, rank = at
        place = place_of(self._executable, number, row, rank)
        if not 0 <= sem < self._executable.semaphore_count:
            return f"{place}: waits for semaphore {sem}, there are {len(counted.least)}"
        counter = sem * self._ranks + rank
        name, total = _name(self._executable, rank, sem), int(self.owners.total[counter])
        text = f"{place}: waits for {name} >= {asked}, "
        if total < asked:
            return f"{text}which is incremented {total} times in all"
        by_then = int(counted.total[counter])
        return f"{text}which is incremented {by_then} times before the next control row"

    def wrong_shifts(self) -> Iterator[str]:
        """Jumps that shift waited values by too much or too little."""
        if self._flow is not None and self._flow.events:
            yield from wrong_shifts(self._executable, self.increments, self._flow)

    def relied_on_by_others(self) -> Iterator[str]:
        """Increments in blocks that ranks wait for which may go another way."""
        if self._flow is not None and self._flow.events:
            yield from relied_on_by_others(self._executable, self.increments, self._flow)

    def too_large(self) -> Iterator[str]:
        """Counters that do not fit, with the trips of loops that are known."""
        total = self.owners.total
        if self._flow is not None and self._flow.events:
            total = self._with_trips(self._flow)
        for counter in np.flatnonzero(total > LARGEST_COUNT).tolist():
            sem, rank = divmod(counter, self._ranks)
            name = _name(self._executable, rank, sem)
            yield (
                f"rank {rank}: {name} is incremented {total[counter]:.0f} times, "
                f"a semaphore holds at most {LARGEST_COUNT}"
            )

    def _with_trips(self, flow: Flow) -> np.ndarray:
        total: np.ndarray = np.zeros(len(self.owners.total), np.float64)
        blocks = self._executable.program.blocks
        for number, one in enumerate(self.increments):
            times = [1.0]
            for event, (opcode, block) in enumerate((*flow.events, ("", IDLE))):
                made: np.ndarray = np.zeros(len(total), np.int64)
                one.add(made, flow.stretch(number, event))
                total += made * times[-1]
                trips = blocks[block].trip_count if block != IDLE else None
                if opcode == "loop":
                    times.append(times[-1] * (1 if trips is None else trips + 1))
                elif opcode == "test":
                    times[-1] = times[-2] * (1 if trips is None else trips)
                elif opcode == "end" and blocks[block].kind is BlockKind.LOOP:
                    times.pop()
        return total


@attrs.frozen(eq=False)
class _Counted:
    """What has been counted up to some place, on ranks that run the same queues."""

    total: np.ndarray  # by counter, on all ranks
    runners: np.ndarray  # (r,) those ranks
    held: np.ndarray  # (semaphores, r)
    least: np.ndarray  # (semaphores,), on the rank that has least

    @classmethod
    def of(cls, total: np.ndarray, queue: Queue, ranks: int) -> "_Counted":
        held = total.reshape(-1, ranks)
        held = held if queue.ranks is None else held[:, queue.ranks]
        return cls(total, runners(queue, ranks), held, held.min(axis=1))

    def unreached(self, sem: np.ndarray, value: np.ndarray) -> Iterator[tuple[int, int]]:
        """(row, rank) of waits, (n, ranks or 1), for more than that."""
        ranks = len(self.runners)
        sem = sem if sem.shape[1] in (1, ranks) else sem[:, self.runners]
        value = value if value.shape[1] in (1, ranks) else value[:, self.runners]
        step = max(1, (1 << 20) // max(1, ranks))
        for at in range(0, len(sem), step):
            rows, asked = sem[at : at + step], value[at : at + step]
            known = (rows >= 0) & (rows < len(self.least))
            there = np.where(known, rows, 0)
            if rows.shape[1] == asked.shape[1] == 1 and len(self.least):
                bad = (rows != IDLE) & (~known | (asked > self.least[there]))
                if not bad.any():
                    continue
            if len(self.least):
                held = self.held[there, np.arange(ranks)[None, :]]
                bad = (rows != IDLE) & (~known | (asked > held))
            else:
                bad = np.broadcast_to(rows != IDLE, (len(rows), ranks))
            for row, place in np.argwhere(bad).tolist():
                yield at + row, int(self.runners[place])


def _name(executable: Executable, rank: int, sem: int) -> str:
    return executable.semaphore_names(rank).get(sem, f"s{sem}")
