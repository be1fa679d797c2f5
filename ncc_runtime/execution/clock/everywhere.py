"""The trace of all ranks, of what the kernel has noted of one instance of those that are alike.

An event of all instances stands together, in their order: causes stay before what they cause.
"""

import numpy as np

from ncc_runtime.execution.clock.instances import Instances
from ncc_runtime.execution.clock.tables import EVENTS, NONE, RECORDS, RING, SEMAPHORE, Machine
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import Executable


def trace_of(executable: Executable, machine: Machine, instances: Instances) -> Trace:
    """Every event of every rank."""
    event = machine.event[: machine.counts[EVENTS]]
    names = RECORDS["event"].names or ()
    if instances.count == 1:
        return Trace(executable, *(event[name] for name in names))
    made = {"rank": _ranks(event["rank"], instances), "cause": _causes(machine, event, instances)}
    columns = (made.get(name, event[name]) for name in names)
    return Trace(executable, *(_repeated(column, instances.count) for column in columns))


def _repeated(column: np.ndarray, count: int) -> np.ndarray:
    """What is noted of each instance, or of one for so many, as one column."""
    if column.ndim == 1:
        column = np.broadcast_to(np.ascontiguousarray(column)[:, None], (len(column), count))
    return column.reshape(-1)


def _ranks(rank: np.ndarray, instances: Instances) -> np.ndarray:
    first = np.arange(instances.count, dtype=rank.dtype) * np.int32(instances.ranks)
    return np.asarray(rank[:, None] + first)


def _causes(machine: Machine, event: np.ndarray, instances: Instances) -> np.ndarray:
    """The causes of all instances' events, which may be another's."""
    is_small = len(event) * instances.count <= np.iinfo(np.int32).max
    found = (instances.origin.astype(np.int32 if is_small else np.int64))[
        _sources(machine, event, instances)
    ]
    found += (event["cause"].astype(found.dtype) * found.dtype.type(instances.count))[:, None]
    found[event["cause"] == NONE] = NONE
    return found


def _sources(machine: Machine, event: np.ndarray, instances: Instances) -> np.ndarray:
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
