"""What a fault does in the end: nothing, wrong values, a stall, an error, or an endless loop.

Most faults change when rows run and which run at all, not what they compute. A completion that is
lost or late, a queue or a part of the machine that is slow or stops: a semaphore then holds at
most as many increments as rows have ended that make them. So every row that starts finds done what
it finds done in some order of the undisturbed program, and the program is proved for every order:
whatever has run has the values that it always has. If all of it has run, nothing is wrong.

This says nothing of a completion that comes twice, and of flipped bits. Their values are played in
the order of the clock's times, and compared bit by bit with those of an undisturbed run.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.errors import NccError
from ncc_runtime.execution.clock.clock import Clock, TimedRun
from ncc_runtime.execution.clock.event_log import MOST_EVENTS
from ncc_runtime.execution.control_flow import (
    Decisions,
    PlannedDecisions,
    RecordedDecisions,
    ValueDecisions,
    undecided,
)
from ncc_runtime.execution.disturbance import (
    ALWAYS_PS,
    NOTHING,
    Disturbance,
    joined_transfers,
)
from ncc_runtime.execution.scheduler import RowBatch, Scheduler
from ncc_runtime.execution.trace import Trace
from ncc_runtime.execution.values.devices import Devices
from ncc_runtime.execution.variable_sizes import SizeRecord
from ncc_runtime.faults.play import EndlessError, Playback, Played
from ncc_runtime.faults.waits import StallTables, WaitGraph, stalled_run, wait_graph
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.verify.counters import Edges, on_rank

MOST_ROUNDS = 8
"""How often a run is timed anew as its values decide otherwise than those that it was timed for."""


class Effect(enum.StrEnum):
    """What a fault does."""

    HARMLESS = "harmless"  # everything is performed, and all outputs have the same bits
    WRONG = "wrong values"  # everything is performed, and nothing says that outputs differ
    STALL = "stall"  # some queues wait for ever
    ERROR = "error"  # a device refuses what it is to do
    ENDLESS = "endless loop"  # a loop that follows from data does not end


@attrs.frozen
class OutputDifference:
    """How an output differs from that of an undisturbed run; sizes of differences as float64."""

    output: int
    ranks: tuple[int, ...]  # on which any element differs
    elements: int  # that differ, on all ranks
    of: int  # elements, on all ranks
    largest: float  # |value - undisturbed|; inf if one of them is; nan if both are NaN everywhere
    relative: float  # |value - undisturbed| / |undisturbed|, where that is not zero
    nans: int  # elements that are NaN and were none


@attrs.frozen(eq=False)
class FaultOutcome:
    """What a disturbed run comes to."""

    effect: Effect
    is_proved: bool  # of values: they follow from the proofs of the program; else by comparison
    timed: TimedRun | None  # None: it has no end
    differences: tuple[OutputDifference, ...] = ()
    has_race: bool = False  # rows wait for what may be there too early: other times, other values
    error: str = ""  # what a device refuses
    outputs: Sequence[np.ndarray] = ()  # of a run that was played to its end
    is_settled: bool = True  # else control flow follows from times: no times found that agree
    has_same_rows: bool = True  # its rows are those of the undisturbed run, as far as it comes


class Laboratory:
    """A placed program and its inputs, to be run again and again with faults.

    Values are computed when a fault needs them, or when data decides control flow.
    """

    def __init__(
        self,
        executable: Executable,
        inputs: Callable[[], Iterable[RankedArray]],
        *,
        is_proved: bool = True,
        clock: Clock | None = None,
        memory_bytes: int | None = None,
        threads: int = 1,
    ) -> None:
        """`inputs` gives what `DeviceMemory.load` takes; `is_proved`: all proofs of it hold.

        A clock is given where control flow is decided otherwise than by these inputs. Runs side by
        side may take `memory_bytes` of this host; None: 80 % of what is free.
        """
        self.memory_bytes = memory_bytes
        self._threads = threads
        executable.check_is_whole()
        self.executable = executable
        self._inputs = inputs
        self._arrays: list[RankedArray] | None = None
        self._is_proved = is_proved
        self._devices: Devices | None = None
        self._undisturbed: _Undisturbed | None = None
        decisions: Decisions
        sized, runs = executable, {}
        if clock is not None:
            self.clock = clock
            self.trace: Trace = clock.run(NOTHING, in_memory=MOST_EVENTS).trace
            return
        if _follows_data(executable):
            values = self.undisturbed
            decisions, sized = values.decisions, values.sizes.sized()
            runs = dict(values.sizes.repeated())
        else:
            decisions = PlannedDecisions(executable, {})
        self.clock = Clock(sized, decisions, run_sizes=runs)
        self.trace = self.clock.run(NOTHING, in_memory=MOST_EVENTS).trace

    @cached_property
    def _edges(self) -> Edges:
        return Edges(self.executable)

    @cached_property
    def _stall_tables(self) -> StallTables:
        return StallTables(self.executable)

    @property
    def undisturbed(self) -> "_Undisturbed":
        """The values of a run without faults."""
        if self._undisturbed is None:
            self._undisturbed = _undisturbed(self._loaded_devices())
        return self._undisturbed

    def may_play_values(self, disturbance: Disturbance) -> bool:
        """Whether what a disturbance does may not follow from times and proofs alone."""
        doubles = any(fault.completions > 1 for fault in disturbance.transfers)
        return doubles or _flips_bits(disturbance) or not self._is_proved

    def outcome(self, disturbance: Disturbance) -> FaultOutcome:
        """What a run comes to that is disturbed so."""
        if self._is_proved and not _flips_bits(disturbance):
            timed = self.clock.run(disturbance, in_memory=MOST_EVENTS)
            doubled = _doubled(timed.trace, self._edges, disturbance)
            if doubled is not None and not doubled.is_early:
                return FaultOutcome(
                    Effect.HARMLESS if timed.is_complete else Effect.STALL,
                    is_proved=True,
                    timed=timed,
                    has_race=doubled.has_race,
                )
        before = self.undisturbed
        try:
            timed, played = self.played(disturbance)
        except EndlessError:
            return FaultOutcome(Effect.ENDLESS, is_proved=False, timed=None)
        except NccError as error:
            return FaultOutcome(Effect.ERROR, is_proved=False, timed=None, error=str(error))
        differences: tuple[OutputDifference, ...] = ()
        effect = Effect.STALL
        if not played.stuck and not timed.halted:
            differences = differences_of(self.executable, played.outputs, self.undisturbed.outputs)
            effect = Effect.WRONG if differences else Effect.HARMLESS
        return FaultOutcome(
            effect,
            is_proved=False,
            timed=timed,
            differences=differences,
            has_race=played.has_race,
            outputs=() if effect is Effect.STALL else played.outputs,
            is_settled=not played.diverged,
            has_same_rows=played.decisions.agree_with(before.decisions),
        )

    def waits(self, outcome: FaultOutcome) -> WaitGraph:
        """Who waits for whom in a run that stalled, and the culprits."""
        timed = outcome.timed
        assert timed is not None, "it has no end"
        run = stalled_run(timed.trace, timed.stuck, timed.held, timed.halted, self._stall_tables)
        return wait_graph(run)

    def played(self, disturbance: Disturbance) -> tuple[TimedRun, Played]:
        """The times and the values of a run that is disturbed so.

        Where values decide otherwise than the clock was told, it runs again with what they decided,
        until both agree or MOST_ROUNDS runs have not. NccError as devices report it; EndlessError.
        """
        clock, expected, sizes = self.clock, self.undisturbed.decisions, self.undisturbed.sizes
        for _ in range(MOST_ROUNDS):
            timed = clock.run(disturbance, in_memory=MOST_EVENTS)
            devices = self._loaded_devices()
            playback = Playback(devices, disturbance, expected, len(self.trace))
            with devices:
                played = playback.run(timed)
            if not played.diverged and played.sizes.agrees_with(sizes):
                break
            expected, sizes = played.decisions, played.sizes
            clock = Clock(sizes.sized(), expected, run_sizes=sizes.repeated())
        return timed, played

    def _loaded_devices(self) -> Devices:
        if self._arrays is None:
            self._arrays = list(self._inputs())
        if self._devices is None:
            self._devices = Devices(self.executable, self._threads)
        self._devices.arena.bytes[:] = 0  # memory that is read before it is written reads the same
        self._devices.memory.load(self._arrays)
        return self._devices


@attrs.frozen(eq=False)
class _Undisturbed:
    """The values of a run without faults."""

    outputs: list[np.ndarray]
    decisions: RecordedDecisions
    sizes: SizeRecord


def _undisturbed(devices: Devices) -> _Undisturbed:
    executable = devices.executable
    sizes = SizeRecord(executable)
    decisions = RecordedDecisions(executable.ranks, ValueDecisions(executable, devices))

    def perform(batches: Sequence[RowBatch]) -> None:
        devices.perform(batches)
        for batch in batches:
            queue = executable.queues[batch.queue]
            if isinstance(queue, DmaQueue) and queue.registers is not None:
                moved, row = devices.resolved(batch)
                sizes.add(batch.queue, batch.row, batch.ranks, moved.size_bytes[row, batch.ranks])

    with devices:
        Scheduler(executable, decisions).run(perform)
    outputs = [one.whole() for one in devices.outputs()]
    return _Undisturbed(outputs, decisions, sizes)


def _follows_data(executable: Executable) -> bool:
    """Whether values decide where control flow goes, or how much transfers move."""
    is_counted = any(placeholder.op.is_counted for placeholder in executable.program.placeholders)
    return is_counted or bool(undecided(executable.program.blocks, {}))


def _flips_bits(disturbance: Disturbance) -> bool:
    return bool(disturbance.memory) or any(fault.flipped_bits for fault in disturbance.transfers)


@attrs.frozen
class _Doubled:
    """What completions that come twice do to those who wait for later ones."""

    is_early: bool  # a row started before the increments were made that it waits for
    has_race: bool  # a row waits for a later one, whenever it started


def _doubled(trace: Trace, edges: Edges, disturbance: Disturbance) -> _Doubled | None:
    """Whether rows start too early in a run: without that its order is one that is proved.

    None where it is not to be seen without playing the run: where jumps shift what is awaited, or
    several queues increment a counter.
    """
    executable = trace.executable
    joined = joined_transfers(disturbance.transfers).values()
    doubled = [fault for fault in joined if fault.completions > 1]
    if not doubled:
        return _Doubled(is_early=False, has_race=False)
    if any(not isinstance(queue, DmaQueue) and queue.jumps for queue in executable.queues):
        return None
    is_early = has_race = False
    for fault in doubled:
        ring = executable.queues[fault.queue]
        events = np.flatnonzero((trace.queue == fault.queue) & (trace.rank == fault.rank))
        if fault.nth >= len(events):
            continue
        rows, ends = trace.row[events], trace.end_ps[events]
        cells = [(post.rank[:, fault.rank], post.sem[:, fault.rank]) for post in ring.sync.posts]
        for ranks, sems in cells:
            rank, sem = int(ranks[rows[fault.nth]]), int(sems[rows[fault.nth]])
            if rank == IDLE:
                continue
            if sem * executable.ranks + rank in edges.several:
                return None
            makes = np.any([(to == rank) & (what == sem) for to, what in cells], axis=0)[rows]
            made_at, number = np.sort(ends[makes]), int(makes[: fault.nth + 1].sum())
            for waiter, queue in enumerate(executable.queues):
                value = np.where(
                    on_rank(queue.sync.wait_sem, rank) == sem,
                    on_rank(queue.sync.wait_value, rank),
                    0,
                )
                if isinstance(queue, DmaQueue) or value.max(initial=0) <= number:
                    continue
                has_race = True
                waits = np.flatnonzero((trace.queue == waiter) & (trace.rank == rank))
                waits = waits[value[trace.row[waits]] > number]
                awaited = value[trace.row[waits]]
                never = np.int64(ALWAYS_PS)
                ready = np.append(made_at, never)[np.minimum(awaited - 1, len(made_at))]
                is_early |= bool((trace.start_ps[waits] < ready).any())
    return _Doubled(is_early, has_race)


def differences_of(
    executable: Executable, outputs: Sequence[np.ndarray], undisturbed: Sequence[np.ndarray]
) -> tuple[OutputDifference, ...]:
    """Where outputs, each [ranks of its stage, *shape], differ in a bit."""
    owners = [stage.ranks for stage in executable.stages for _ in stage.program.outputs]
    found = []
    for number, (ranks, new, old) in enumerate(zip(owners, outputs, undisturbed, strict=True)):
        differs = _differing_elements(new, old)
        if not differs.any():
            continue
        wide = np.complex128 if new.dtype.kind == "c" else np.float64
        with np.errstate(all="ignore"):
            values, expected = new[differs].astype(wide), old[differs].astype(wide)
            apart = np.abs(values - expected)
            relative = (apart / np.abs(expected))[expected != 0]
        found.append(
            OutputDifference(
                output=number,
                ranks=tuple(ranks[differs.reshape(len(ranks), -1).any(axis=1)].tolist()),
                elements=int(differs.sum()),
                of=new.size,
                largest=_largest(apart),
                relative=_largest(relative),
                nans=int((np.isnan(values) & ~np.isnan(expected)).sum()),
            )
        )
    return tuple(found)


def _differing_elements(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Which elements differ in a bit, in the shape of the arrays."""
    size = new.dtype.itemsize
    bytes_of = (np.ascontiguousarray(array).view(np.uint8) for array in (new.ravel(), old.ravel()))
    first, second = (each.reshape(-1, size) for each in bytes_of)
    return np.asarray((first != second).any(axis=1).reshape(new.shape))


def _largest(numbers: np.ndarray) -> float:
    """The largest that is a number; 0 if there is none."""
    numbers = numbers[~np.isnan(numbers)]
    return float(numbers.max(initial=0.0))
