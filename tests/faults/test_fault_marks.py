"""Faults on a timeline: when each was there, and rows that never ran."""

import attrs

from ncc_runtime.execution.disturbance import (
    Disturbance,
    MemoryFault,
    PartSpeed,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.execution.scheduler import Stuck
from ncc_runtime.faults.fault_marks import fault_marks
from ncc_runtime.lowering.executable import DmaQueue
from tests.report.traces import all_reduce, simple


@attrs.frozen
class Fault:
    name: str
    disturbance: Disturbance


def test_each_fault_has_its_times_until_the_end_of_the_run():
    trace = simple(all_reduce())
    flapping = tuple(PartSpeed(0, 0, start, start + 300) for start in (5_000, 1_000, 1_200))
    faults = [
        Fault("flapping", Disturbance(parts=flapping)),
        Fault("slow", Disturbance(queues=(QueueSpeed(0, 1, 50, 2_000),))),
        Fault("flipped", Disturbance(memory=(MemoryFault(0, 64, 3, 7_000),))),
        Fault("late rank", Disturbance(late_start_ps={2: 4_000})),
        Fault("after the end", Disturbance(queues=(QueueSpeed(0, 1, 50, 10**15),))),
    ]
    found = [(mark.track, mark.start_ps, mark.end_ps) for mark in fault_marks(trace, faults)]
    assert found == [
        ("flapping", 1_000, 1_500),
        ("flapping", 5_000, 5_300),
        ("slow", 2_000, trace.time_ps),
        ("flipped", 7_000, 7_001),
        ("late rank", 0, 4_000),
    ]


def test_a_spoilt_transfer_is_marked_until_its_increments_are_seen():
    trace = simple(all_reduce())
    ring = trace.queues_of(DmaQueue)[0]
    late = Disturbance(transfers=(TransferFault(ring, 1, 2, late_ps=600),))
    (mark,) = fault_marks(trace, [Fault("late", late)])
    (events,) = [own for _, own in trace.blocks([ring])]
    event = [event for event in events.tolist() if trace.rank[event] == 1][2]
    assert (mark.start_ps, mark.end_ps) == (trace.start_ps[event], trace.end_ps[event] + 600)


def test_a_stalled_row_is_marked_from_the_last_that_ran():
    trace = simple(all_reduce())
    row = len(trace.executable.queues[trace.queues_of(DmaQueue)[0]].opcode) - 1
    ring = trace.queues_of(DmaQueue)[0]
    (mark,) = fault_marks(trace, [], [Stuck(ring, row, 3, 0, 1)])
    assert mark.track == f"stalled {trace.executable.queues[ring].name} of rank 3"
    own = (trace.queue == ring) & (trace.rank == 3)
    assert (mark.start_ps, mark.end_ps) == (
        trace.end_ps[own].max(),
        trace.time_ps * 11 // 10 + 1,
    )
