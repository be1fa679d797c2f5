"""From the kernel's event table to a trace, in memory or on disk, of one instance or of all.

`EventLog` takes events as the kernel logs them: in memory, and beyond a limit in a temporary file
without a name, which goes with the process however that ends. `trace_of` makes one of three traces:

- `Trace`, the columns as they are, where they fit in memory and one instance is all there is.
- `RepeatedTrace`, where one instance was simulated for all symmetric ones. An event of all
  instances stands together, in their order, so causes stay before what they cause. Columns are
  made when they are first read.
- `SortedTrace`, where memory is too small: a second file, by queue, by rank, then in order, so that
  all events of a queue and rank are one range of the file. The file is mapped; pages are dropped
  after a few reads, so memory grows with what is read at once and not with the run.
"""

import contextlib
import itertools
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import BinaryIO, cast

import numpy as np

from ncc_runtime.errors import LoweringError, reason_of
from ncc_runtime.execution.clock.instances import Instances
from ncc_runtime.execution.clock.tables import (
    EVENTS,
    LATEST,
    NONE,
    RECORDS,
    RING,
    SEMAPHORE,
    TAKEN,
    ClockState,
    empty,
)
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import Executable

IN_MEMORY = 1 << 23
"""Events that are kept in memory, 39 bytes each."""

CHUNK = 1 << 18
"""Events that are read back together."""

MOST_EVENTS = int(np.iinfo(np.int32).max)
"""Events of one simulated run: they name each other in 32 bits."""


class EventLog:
    """All events of one run, those that the kernel's table still holds among them."""

    def __init__(self, in_memory: int) -> None:
        self._in_memory = max(1, in_memory)
        self._file: BinaryIO | None = None
        self._events = empty("event", 0)

    @property
    def is_on_disk(self) -> bool:
        """Whether events have been moved to a file."""
        return self._file is not None

    def has_memory_for(self, events: int) -> bool:
        """Whether so many events may be kept in memory."""
        return events <= self._in_memory

    def first_table(self, events: int) -> np.ndarray:
        """An empty table for `events`, or for as many as may be kept in memory."""
        return empty("event", max(1, min(events, self._in_memory)))

    def room(self, machine: ClockState) -> ClockState:
        """The same machine with room for more events: a longer table, or an emptied one."""
        table, logged = machine.event, int(machine.counts[EVENTS])
        if logged > MOST_EVENTS - len(table):
            raise LoweringError(
                f"the run has more than {MOST_EVENTS:,} events, which the clock cannot number; "
                "run fewer trips of its loops"
            )
        if 2 * len(table) <= self._in_memory and not self.is_on_disk:
            more = empty("event", len(table))
            return machine._replace(event=np.concatenate((table, more)))
        self._append(table)
        machine.counts[TAKEN] = logged
        return machine

    def close(self, machine: ClockState) -> None:
        """The run is over."""
        rest = machine.event[: machine.counts[EVENTS] - machine.counts[TAKEN]]
        if self.is_on_disk:
            self._append(rest)
        else:
            self._events = rest

    @property
    def events(self) -> np.ndarray:
        """All of them, if they are in memory."""
        assert not self.is_on_disk, "events are read in chunks"
        return self._events

    def chunks(self) -> Iterator[np.ndarray]:
        """All of them, in order."""
        if self._file is None:
            yield from (self._events[at : at + CHUNK] for at in range(0, len(self._events), CHUNK))
            return
        self._file.seek(0)
        while len(some := np.fromfile(self._file, self._events.dtype, CHUNK)):
            yield some

    def _append(self, events: np.ndarray) -> None:
        with refusing_full_disk():
            if self._file is None:
                self._file = _unnamed_file()
                weakref.finalize(self, self._file.close)
            events.tofile(self._file)


def _unnamed_file() -> BinaryIO:
    """A file that is gone when it is closed, where temporary files lie."""
    import tempfile

    return cast("BinaryIO", tempfile.TemporaryFile(prefix="ncc-"))


@contextlib.contextmanager
def refusing_full_disk() -> Iterator[None]:
    """A context in which a temporary file that cannot be written is a LoweringError."""
    try:
        yield
    except OSError as error:
        import tempfile

        raise LoweringError(
            f"{tempfile.gettempdir()}: the events of the run cannot be kept there: "
            f"{reason_of(error)}; set TMPDIR to a folder with more room"
        ) from error


_NAMES = RECORDS["event"].names or ()
_READS = 16  # of columns, until pages are let go


class EventFile:
    """Columns of events, one after another in an unnamed file, read and written through memory."""

    def __init__(self, count: int) -> None:
        kinds = {name: kind[0] for name, kind in (RECORDS["event"].fields or {}).items()}
        kinds["cause"] = np.dtype(narrowest(count))
        # each column begins on a page of its own, so that pages can be dropped by column
        page = mmap.PAGESIZE
        sizes = [-(-count * kind.itemsize // page) * page for kind in kinds.values()]
        places = list(itertools.accumulate(sizes, initial=0))
        with refusing_full_disk(), _unnamed_file() as file:
            if hasattr(os, "posix_fallocate"):  # all of it now: later, a full disk is a crash
                os.posix_fallocate(file.fileno(), 0, places[-1])
            else:
                file.truncate(places[-1])
            self._map = mmap.mmap(file.fileno(), places[-1])
        self._columns = {
            name: np.frombuffer(self._map, kind, count, place)
            for (name, kind), place in zip(kinds.items(), places, strict=False)
        }
        self._reads = 0

    def column(self, name: str) -> np.ndarray:
        """One field of all events."""
        self._reads += 1
        if self._reads % _READS == 0:
            self.drop_pages()
        return self._columns[name]

    def write(self, places: np.ndarray, events: np.ndarray) -> None:
        """Put events to their places."""
        for name, column in self._columns.items():
            column[places] = events[name]
        self.drop_pages()

    def drop_pages(self) -> None:
        """Keep nothing of it in memory; what was written stays in the file."""
        self._map.madvise(mmap.MADV_DONTNEED)


class SortedTrace(Trace):
    """Events of one instance, logged once for all; the file is made when it is first read."""

    def __init__(
        self,
        executable: Executable,
        log: EventLog,
        instances: Instances,
        latest_ps: int,
        sources: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        """`sources` gives the rows of `origin` for the increments that events waited for."""
        object.__setattr__(self, "executable", executable)
        vars(self).update(_log=log, _instances=instances, _latest_ps=latest_ps, _sources=sources)

    _log: EventLog
    _instances: Instances
    _latest_ps: int
    _sources: Callable[[np.ndarray], np.ndarray]

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def time_ps(self) -> int:
        return self._latest_ps

    @property
    def queue(self) -> np.ndarray:
        return self._file.column("queue")

    @property
    def row(self) -> np.ndarray:
        return self._file.column("row")

    @property
    def rank(self) -> np.ndarray:
        return self._file.column("rank")

    @property
    def start_ps(self) -> np.ndarray:
        return self._file.column("start")

    @property
    def end_ps(self) -> np.ndarray:
        return self._file.column("end")

    @property
    def cause(self) -> np.ndarray:
        return self._file.column("cause")

    @property
    def reason(self) -> np.ndarray:
        return self._file.column("reason")

    @property
    def slowed_ps(self) -> np.ndarray:
        return self._file.column("slowed")

    @cached_property
    def last_event(self) -> int:
        """Of those that end last, the first that was performed."""
        latest_ps, latest_event = -1, NONE
        for events, place in self._placed():
            last = int(np.argmax(events["end"]))
            if events["end"][last] > latest_ps:
                latest_ps, latest_event = int(events["end"][last]), int(place[last])
        return latest_event

    @cached_property
    def _instance_counts(self) -> np.ndarray:
        """How many events each queue has on each rank of one instance, (queues, ranks) int64."""
        queues, ranks = len(self.executable.queues), self._instances.ranks
        counts = np.zeros(queues * ranks, np.int64)
        for events in self._log.chunks():
            counts += np.bincount(self._cell(events), minlength=len(counts))
        return counts.reshape(queues, ranks)

    @cached_property
    def counts(self) -> np.ndarray:
        return np.tile(self._instance_counts, (1, self._instances.count))

    def _cell(self, events: np.ndarray) -> np.ndarray:
        """Queue and rank of events as one number."""
        return np.asarray(events["queue"] * np.int64(self._instances.ranks) + events["rank"])

    def _ordered(self, low: int, high: int) -> np.ndarray:
        return np.arange(low, high)

    @cached_property
    def _file(self) -> EventFile:
        file = EventFile(len(self))
        where = np.concatenate([place for _, place in self._placed()])
        for events, place in self._placed():
            stride = self._instance_stride[events["queue"]]
            for instance, copies in enumerate(self._instances_of(events, where)):
                file.write(place + instance * stride, copies)
        return file

    @cached_property
    def _instance_stride(self) -> np.ndarray:
        """Events from one instance's copy of an event to the next instance's, (queues,) int64."""
        return np.asarray(self._instance_counts.sum(axis=1))

    def _placed(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Events as they were logged, a chunk at a time, and the places of those of instance 0."""
        counts, count = self._instance_counts, self._instances.count
        before = (np.cumsum(self._instance_stride) - self._instance_stride) * count
        # by queue and rank, the place of the next event
        free = (before[:, None] + np.cumsum(counts, axis=1) - counts).ravel()
        for events in self._log.chunks():
            cell = self._cell(events)
            order = np.argsort(cell.astype(np.min_scalar_type(len(free))), kind="stable")
            many = np.bincount(cell, minlength=len(free))
            first = np.cumsum(many) - many
            place = np.empty(len(events), narrowest(len(self)))
            place[order] = np.arange(len(events)) + (free - first)[cell[order]]
            free += many
            yield events, place

    def _instances_of(self, events: np.ndarray, where: np.ndarray) -> Iterator[np.ndarray]:
        """Events as each instance has them; `where` gives the places of those of instance 0."""
        instances = self._instances
        has_cause = events["cause"] != NONE
        cause = where[events["cause"][has_cause]].astype(np.int64)
        ends = np.cumsum(self._instance_stride) * instances.count  # of the events of each queue
        stride = self._instance_stride[np.searchsorted(ends, cause, side="right")]
        source = self._sources(events)[has_cause] if instances.count > 1 else 0
        kinds = [(name, where.dtype if name == "cause" else events.dtype[name]) for name in _NAMES]
        copies = events.astype(kinds)
        for instance in range(instances.count):
            copies["rank"] = events["rank"] + instance * instances.ranks
            copies["cause"][has_cause] = cause + stride * instances.origin[source, instance]
            yield copies


def narrowest(count: int) -> type[np.signedinteger]:
    """The narrowest signed type that numbers `count` events."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64


def trace_of(
    executable: Executable, machine: ClockState, instances: Instances, log: EventLog
) -> Trace:
    """The trace of every rank that has columns, on disk if it is too large for memory."""
    machine = machine._replace(event=empty("event", 0), increment=empty("increment", 0))
    if instances.ranks == executable.representatives:
        instances = instances.alone()
    sources = partial(_sources, machine, instances)
    events = int(machine.counts[EVENTS]) * instances.count
    if log.is_on_disk or (instances.count > 1 and not log.has_memory_for(events)):
        return SortedTrace(executable, log, instances, int(machine.counts[LATEST]), sources)
    event = log.events
    if instances.count == 1:
        return Trace(executable, *(event[name] for name in RECORDS["event"].names or ()))
    return RepeatedTrace(executable, event, sources(event), instances)


class RepeatedTrace(Trace):
    """Events of symmetric instances, logged once for all."""

    def __init__(
        self, executable: Executable, event: np.ndarray, source: np.ndarray, instances: Instances
    ) -> None:
        object.__setattr__(self, "executable", executable)
        vars(self).update(_event=event, _source=source, _instances=instances)

    _event: np.ndarray
    _source: np.ndarray  # (n,) row of Instances.origin: where the awaited increment came from
    _instances: Instances

    def __len__(self) -> int:
        return len(self._event) * self._instances.count

    @cached_property
    def time_ps(self) -> int:
        return int(self._event["end"].max(initial=0))

    @cached_property
    def queue(self) -> np.ndarray:
        return self._repeated("queue")

    @cached_property
    def row(self) -> np.ndarray:
        return self._repeated("row")

    @cached_property
    def rank(self) -> np.ndarray:
        first = np.arange(self._instances.count, dtype=np.int32) * np.int32(self._instances.ranks)
        return np.asarray(self._event["rank"][:, None] + first).reshape(-1)

    @cached_property
    def start_ps(self) -> np.ndarray:
        return self._repeated("start")

    @cached_property
    def end_ps(self) -> np.ndarray:
        return self._repeated("end")

    @cached_property
    def cause(self) -> np.ndarray:
        """May be of another instance."""
        is_small = len(self) <= np.iinfo(np.int32).max
        cause = self._event["cause"].astype(np.int32 if is_small else np.int64)
        # the copies of an event stand together: number * count + instance
        causes = self._instances.origin.astype(cause.dtype)[self._source]
        causes += (cause * self._instances.count)[:, None]
        causes[cause == NONE] = NONE
        return causes.reshape(-1)

    @cached_property
    def reason(self) -> np.ndarray:
        return self._repeated("reason")

    @cached_property
    def slowed_ps(self) -> np.ndarray:
        return self._repeated("slowed")

    def _repeated(self, name: str) -> np.ndarray:
        return np.repeat(self._event[name], self._instances.count)


def _sources(machine: ClockState, instances: Instances, event: np.ndarray) -> np.ndarray:
    """By event, the row of `origin` for the increment that it waited for last.

    A ring waits for pushes of its own rank, so its events have row 0: the same instance.
    """
    source = np.zeros(len(event), np.int64)
    queues = machine.queue
    waited = np.flatnonzero(
        (event["reason"] == SEMAPHORE) & (queues["kind"][event["queue"]] != RING)
    )
    queue, row, rank = (event[name][waited].astype(np.int64) for name in ("queue", "row", "rank"))
    cell = machine.row["wait_sem"][queues["base"][queue] + row] + queues["wait_sem"][queue] * rank
    key = rank * machine.sizes[0]["semaphores"] + machine.cells[cell]
    source[waited] = instances.source[key]
    return source
