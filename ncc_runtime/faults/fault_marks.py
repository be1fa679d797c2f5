"""Faults and stalled rows as intervals of a timeline."""

from collections.abc import Iterator, Sequence

import numpy as np

from ncc_runtime.execution.clock.clock import Halted
from ncc_runtime.execution.scheduler import Stuck
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.blame import Disturbing
from ncc_runtime.faults.touched import OrderedTrace
from ncc_runtime.report.row_texts import row_texts
from ncc_runtime.report.timeline.marks import Mark

MOST_STALLED = 64
"""Stalled rows that a timeline shows, those that waited longest."""


def fault_marks(
    trace: Trace, faults: Sequence[Disturbing], stalled: Sequence[Stuck | Halted] = ()
) -> list[Mark]:
    """A track for each fault, with when it was there; and one for each row that never ran.

    A stalled row is shown from the end of the last one of its queue until somewhat after all that
    happened.
    """
    ordered = OrderedTrace(trace)
    until_ps = trace.time_ps
    if stalled:
        begins = (began_ps(ordered, fault) for fault in faults)
        until_ps = max([until_ps, *(ps for ps in begins if ps is not None)]) * 11 // 10 + 1
    marks = [
        Mark(fault.name, fault.name, low, high)
        for fault in faults
        for low, high in _intervals(_spans(ordered, fault), until_ps)
    ]
    executable = trace.executable
    waits: list[tuple[int, Stuck | Halted]] = []
    for one in {(one.queue, one.rank): one for one in stalled}.values():
        events = ordered.of(one.queue, one.rank)
        waits.append((int(trace.end_ps[events[-1]]) if len(events) else 0, one))
    for since_ps, one in sorted(waits, key=lambda wait: wait[0])[:MOST_STALLED]:
        text = row_texts(executable, one.queue).name[one.row]
        name = f"{executable.queues[one.queue].name} of rank {one.rank}"
        marks.append(Mark(f"stalled {name}", f"stalled: {text}", since_ps, until_ps))
    return marks


def began_ps(ordered: OrderedTrace, fault: Disturbing) -> int | None:
    """When a fault was there first; None if it is one of transfers that were not performed."""
    return min((low for low, _ in _spans(ordered, fault)), default=None)


def _spans(ordered: OrderedTrace, fault: Disturbing) -> list[tuple[int, int]]:
    """From when until when a fault was there, in any order."""
    trace, disturbance = ordered.trace, fault.disturbance
    found = [(one.start_ps, one.end_ps) for one in disturbance.queues]
    found += [(one.start_ps, one.end_ps) for one in disturbance.parts]
    found += [(0, ps) for ps in disturbance.late_start_ps.values()]
    found += [(flip.at_ps, flip.at_ps + 1) for flip in disturbance.memory]
    for spoilt in disturbance.transfers:
        nth = slice(spoilt.nth, spoilt.nth + 1)
        events = ordered.of(spoilt.queue, spoilt.rank)[nth]
        found += [
            (int(trace.start_ps[event]), int(trace.end_ps[event]) + spoilt.late_ps)
            for event in events.tolist()
        ]
    return found


def _intervals(found: Sequence[tuple[int, int]], until_ps: int) -> Iterator[tuple[int, int]]:
    """The same, up to a time; those that overlap are one."""
    low, high = np.array(sorted(set(found)), np.int64).reshape(-1, 2).T
    reach = np.maximum.accumulate(high)
    first = np.flatnonzero(np.append(True, low[1:] > reach[:-1])[: len(low)])
    last = np.append(first[1:], len(low))[: len(first)] - 1
    for begin, end in zip(low[first].tolist(), reach[last].tolist(), strict=True):
        if begin < until_ps:
            yield begin, min(end, until_ps)
