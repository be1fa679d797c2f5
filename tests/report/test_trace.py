"""Views of a trace: queues, blocks, runs of collectives, traffic."""

import numpy as np
import pytest

from ncc_runtime.execution.trace import TrafficCounter, traffic_of
from ncc_runtime.lowering.executable import CcQueue, DmaQueue
from tests.report.traces import LAUNCH_PS, ROW_PS, all_reduce, simple
from tests.small_executables import looped


def test_a_timeline_has_what_its_queue_did_in_order():
    trace = simple(all_reduce())
    for number, timeline in enumerate(trace.timelines):
        assert len(timeline.row) == (trace.queue == number).sum()
        for rank in np.unique(timeline.rank):
            assert (np.diff(timeline.start_ps[timeline.rank == rank]) >= 0).all()


@pytest.mark.parametrize("most", [1, 7, 10**6])
def test_blocks_have_every_event_once_and_no_rank_of_a_queue_twice(most: int):
    trace = simple(all_reduce())
    queues = range(len(trace.executable.queues))
    blocks = list(trace.blocks(queues, most=most))
    found = np.concatenate([events for _, events in blocks])
    assert sorted(found.tolist()) == list(range(len(trace)))
    ranks = [(queue, rank) for queue, events in blocks for rank in np.unique(trace.rank[events])]
    assert len(ranks) == len(set(ranks))


def test_blocks_of_some_ranks_have_their_events_only():
    trace = simple(all_reduce())
    wanted = np.array([False, True, False, True])
    found = [events for _, events in trace.blocks(range(len(trace.executable.queues)), wanted)]
    assert set(trace.rank[np.concatenate(found)].tolist()) == {1, 3}
    assert trace.count(wanted) == sum(map(len, found))


def test_a_run_of_a_collective_goes_from_its_trigger_to_its_report():
    trace = simple(all_reduce(repeat=2))
    (number,) = trace.queues_of(CcQueue)
    for placeholder in (0, 1):
        rank, start, end = trace.spans(placeholder)
        assert rank.tolist() == [0, 1, 2, 3]
        queue = trace.executable.queues[number]
        own = (trace.queue == number) & (queue.placeholder[trace.row] == placeholder)
        for one in range(4):
            events = own & (trace.rank == one)
            assert start[one] == trace.start_ps[events].min()
            assert end[one] == trace.end_ps[events].max()


def test_a_collective_in_a_loop_has_a_run_for_every_turn():
    trace = simple(looped())
    rank, start, end = trace.spans(0)
    assert rank.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert (start.reshape(4, 3)[:, 1:] >= end.reshape(4, 3)[:, :-1]).all()


def test_traffic_of_a_trace_is_that_which_is_counted_row_by_row():
    trace = simple(all_reduce())
    counter = TrafficCounter(trace.executable)
    for number in trace.queues_of(DmaQueue):
        queue = trace.executable.queues[number]
        for row in range(len(queue.opcode)):
            ranks = trace.rank[(trace.queue == number) & (trace.row == row)]
            counter.add(queue, row, ranks)
    (got,), (wanted,) = traffic_of(trace), counter.traffic()
    assert (got.sent == wanted.sent).all()
    buffers = got.sent_by_rank.sum() // (64 * 4)
    assert buffers == 2 * (4 - 1)  # a ring: all but one share out, and once more round


def test_the_time_is_that_of_the_last_event():
    trace = simple(all_reduce())
    assert trace.time_ps == trace.end_ps.max() > LAUNCH_PS + ROW_PS
