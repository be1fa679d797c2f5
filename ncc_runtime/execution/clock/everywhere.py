"""The trace of all ranks, of what the kernel has noted of one instance of those that are alike.

An event of all instances stands together, in their order: causes stay before what they cause.
Columns of so many are made when they are first read.
"""

from functools import cached_property, partial

import numpy as np

from ncc_runtime.execution.clock.event_log import EventLog
from ncc_runtime.execution.clock.instances import Instances
from ncc_runtime.execution.clock.sorted_trace import SortedTrace
from ncc_runtime.execution.clock.tables import (
    EVENTS,
    LATEST,
    NONE,
    RECORDS,
    RING,
    SEMAPHORE,
    Machine,
    empty,
)
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import Executable


def trace_of(
    executable: Executable, machine: Machine, instances: Instances, log: EventLog
) -> Trace:
    """Every event of every rank that is seen; on disk what memory is not for."""
    machine = machine._replace(event=empty("event", 0), increment=empty("increment", 0))
    if instances.ranks == executable.seen:
        instances = instances.alone()
    sources = partial(_sources, machine, instances)
    many = int(machine.counts[EVENTS]) * instances.count
    if log.is_on_disk or (instances.count > 1 and not log.has_memory_for(many)):
        return SortedTrace(executable, log, instances, int(machine.counts[LATEST]), sources)
    event = log.events
    if instances.count == 1:
        return Trace(executable, *(event[name] for name in RECORDS["event"].names or ()))
    return AlikeTrace(executable, event, sources(event), instances)


class AlikeTrace(Trace):
    """Events of alike instances, noted once."""

    def __init__(
        self, executable: Executable, event: np.ndarray, source: np.ndarray, instances: Instances
    ) -> None:
        object.__setattr__(self, "executable", executable)
        vars(self).update(_event=event, _source=source, _instances=instances)

    _event: np.ndarray
    _source: np.ndarray  # whence the increment came that each waited for, rows of Instances.origin
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
        found = self._instances.origin.astype(cause.dtype)[self._source]
        found += (cause * self._instances.count)[:, None]
        found[cause == NONE] = NONE
        return found.reshape(-1)

    @cached_property
    def reason(self) -> np.ndarray:
        return self._repeated("reason")

    @cached_property
    def slowed_ps(self) -> np.ndarray:
        return self._repeated("slowed")

    def _repeated(self, name: str) -> np.ndarray:
        return np.repeat(self._event[name], self._instances.count)


def _sources(machine: Machine, instances: Instances, event: np.ndarray) -> np.ndarray:
    """Whence the increment came that each event waited for last, rows of Instances.origin.

    What a ring waits for is pushed by its own rank.
    """
    source = np.zeros(len(event), np.int64)
    queues = machine.queue
    came = np.flatnonzero((event["reason"] == SEMAPHORE) & (queues["kind"][event["queue"]] != RING))
    queue, row, rank = (event[name][came].astype(np.int64) for name in ("queue", "row", "rank"))
    at = machine.row["wait_sem"][queues["base"][queue] + row] + queues["wait_sem"][queue] * rank
    key = rank * machine.sizes[0]["semaphores"] + machine.cells[at]
    source[came] = instances.source[key]
    return source
