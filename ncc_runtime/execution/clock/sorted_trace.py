"""A trace too large for memory: in a temporary file, by queue, by rank, then in order.

So a block of a queue is one stretch of the file, and events are numbered as they lie there. The
file is mapped; pages that were read are let go after a few reads, so memory does not grow with the
run, whoever reads, but by what is read at once: 8 bytes an event of a whole column.
"""

import itertools
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property, partial

import numpy as np

from ncc_runtime.execution.clock.event_log import EventLog, told_of_no_room
from ncc_runtime.execution.clock.instances import Instances
from ncc_runtime.execution.clock.tables import NONE, RECORDS
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import Executable

_NAMES = RECORDS["event"].names or ()
_READS = 16  # of columns, until pages are let go


class EventFile:
    """Columns of events, one after another in an unnamed file, read and written through memory."""

    def __init__(self, count: int) -> None:
        kinds = {name: kind[0] for name, kind in (RECORDS["event"].fields or {}).items()}
        kinds["cause"] = np.dtype(narrowest(count))
        places = list(itertools.accumulate(map(partial(_bytes, count), kinds.values()), initial=0))
        with told_of_no_room(), tempfile.TemporaryFile(prefix="ncc-") as file:
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
            self.let_go()
        return self._columns[name]

    def write(self, places: np.ndarray, events: np.ndarray) -> None:
        """Put events to their places."""
        for name, column in self._columns.items():
            column[places] = events[name]
        self.let_go()

    def let_go(self) -> None:
        """Keep nothing of it in memory; what was written stays in the file."""
        self._map.madvise(mmap.MADV_DONTNEED)


def _bytes(count: int, kind: np.dtype[np.generic]) -> int:
    """Of a column, so that the next one begins on a page of its own."""
    return -(-count * kind.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE


class SortedTrace(Trace):
    """Events of alike instances, or of one, noted once; the file is made when it is first read."""

    def __init__(
        self,
        executable: Executable,
        log: EventLog,
        instances: Instances,
        latest_ps: int,
        sources: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        """`sources` says whence the increments came that events waited for, as rows of origin."""
        object.__setattr__(self, "executable", executable)
        vars(self).update(_log=log, _instances=instances, _latest_ps=latest_ps, _sources=sources)

    _log: EventLog
    _instances: Instances
    _latest_ps: int
    _sources: Callable[[np.ndarray], np.ndarray]

    def __len__(self) -> int:
        return int(self._counts.sum())

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
        latest, found = -1, NONE
        for events, place in self._placed():
            at = int(np.argmax(events["end"]))
            if events["end"][at] > latest:
                latest, found = int(events["end"][at]), int(place[at])
        return found

    @cached_property
    def _own_counts(self) -> np.ndarray:
        """How many events each queue has on each rank of one instance, (queues, ranks) int64."""
        queues, ranks = len(self.executable.queues), self._instances.ranks
        found = np.zeros(queues * ranks, np.int64)
        for events in self._log.chunks():
            found += np.bincount(self._cell(events), minlength=len(found))
        return found.reshape(queues, ranks)

    @cached_property
    def _counts(self) -> np.ndarray:
        return np.tile(self._own_counts, (1, self._instances.count))

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
            apart = self._apart[events["queue"]]
            for instance, some in enumerate(self._instances_of(events, where)):
                file.write(place + instance * apart, some)
        return file

    @cached_property
    def _apart(self) -> np.ndarray:
        """How far the same events of two instances are apart, (queues,) int64."""
        return np.asarray(self._own_counts.sum(axis=1))

    def _placed(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Events as they were noted, some at a time, and where those of instance 0 lie."""
        own, count = self._own_counts, self._instances.count
        before = (np.cumsum(self._apart) - self._apart) * count
        free = (before[:, None] + np.cumsum(own, axis=1) - own).ravel()
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
        """Events as each instance has them; `where` each of instance 0 lies."""
        instances = self._instances
        has_cause = events["cause"] != NONE
        cause = where[events["cause"][has_cause]].astype(np.int64)
        edges = np.cumsum(self._apart) * instances.count
        apart = self._apart[np.searchsorted(edges, cause, side="right")]
        source = self._sources(events)[has_cause] if instances.count > 1 else 0
        kinds = [(name, where.dtype if name == "cause" else events.dtype[name]) for name in _NAMES]
        found = events.astype(kinds)
        for instance in range(instances.count):
            found["rank"] = events["rank"] + instance * instances.ranks
            found["cause"][has_cause] = cause + apart * instances.origin[source, instance]
            yield found


def narrowest(count: int) -> type[np.signedinteger]:
    """What holds numbers of so many events."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64
