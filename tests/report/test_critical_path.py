"""The chain of events that makes up a run's time."""

import itertools

import pytest

from ncc_runtime.execution.trace import NO_EVENT, Reason, Trace
from ncc_runtime.report.critical_path import CriticalPath, PathStep, critical_path, intervals_of
from ncc_runtime.report.performance import path_lines
from ncc_runtime.report.summary import WIDTH
from tests.report.traces import LAUNCH_PS, all_reduce, simple, written
from tests.small_executables import looped


def by_hand() -> Trace:
    """Rank 1 triggers late, rank 0's CC-core waits for it; its ring performs two rows."""
    rows = [
        ("GpSimd", 0, 0, 100, 200, NO_EVENT, Reason.NONE, 0),
        ("cc0", 0, 0, 250, 300, 0, Reason.SEMAPHORE, 0),
        ("cc0.dma0", 0, 0, 340, 900, 1, Reason.SEMAPHORE, 60),
        ("cc0.dma0", 1, 0, 500, 1200, 2, Reason.RING, 40),
        ("cc0", 1, 0, 1210, 1300, 3, Reason.SEMAPHORE, 0),
        ("cc0", 2, 0, 1300, 1310, 4, Reason.QUEUE, 0),
    ]
    return written(all_reduce(), rows)


def test_pieces_tile_the_run():
    pieces = [(one.event, one.start_ps, one.end_ps) for one in intervals_of(by_hand())]
    assert pieces == [
        (NO_EVENT, 0, 100),
        (0, 100, 200),
        (1, 200, 250),  # the trigger is under way
        (1, 250, 300),
        (2, 300, 340),
        (2, 340, 500),  # then the ring could go on
        (3, 500, 1200),
        (4, 1200, 1210),
        (4, 1210, 1300),
        (5, 1300, 1310),
    ]


def test_steps_are_the_launch_the_engine_and_the_collective():
    path = critical_path(by_hand())
    assert [step.kind for step in path.steps] == ["launch", "engine", "collective"]
    assert [step.time_ps for step in path.steps] == [100, 100, 1110]
    last = path.steps[-1]
    assert last.placeholder == 0
    assert last.events == 5
    assert last.under_way_ps == 50 + 40 + 10
    assert last.slowed_ps == path.slowed_ps == 100


def test_a_step_says_what_it_waited_for():
    launch, engine, collective = critical_path(by_hand()).steps
    assert launch.late == "the host"
    assert engine.late == "nothing, it started with the run"
    assert "trigger p0" in collective.late
    assert "rank 0" in collective.late


def test_a_busy_queue_is_named():
    path = critical_path(simple(all_reduce(repeat=2)))
    (second,) = [step for step in path.steps if step.placeholder == 1]
    assert second.late.startswith("cc0 of rank ")
    assert "busy with done p0" in second.late


@pytest.mark.parametrize("make", [all_reduce, lambda: all_reduce(8, repeat=3), looped])
def test_the_steps_add_up_to_the_time_of_the_run(make):
    trace = simple(make())
    path = critical_path(trace)
    assert path.time_ps == trace.time_ps
    assert path.steps[0].time_ps == LAUNCH_PS
    edges = [(step.start_ps, step.start_ps + step.time_ps) for step in path.steps]
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(edges))


def test_the_longest_steps_are_in_order_of_time():
    path = critical_path(simple(all_reduce(8, repeat=3)))
    few = path.longest(3)
    assert list(few) == sorted(few, key=lambda step: step.start_ps)
    assert min(step.time_ps for step in few) >= sorted(s.time_ps for s in path.steps)[-3]


def test_causes_that_lead_in_a_circle_are_a_fault():
    rows = [
        ("GpSimd", 0, 0, 5, 5, 1, Reason.QUEUE, 0),
        ("GpSimd", 0, 0, 5, 5, 0, Reason.QUEUE, 0),
    ]
    with pytest.raises(AssertionError, match="circle"):
        intervals_of(written(all_reduce(), rows))


def test_long_names_do_not_crowd_out_the_times_of_steps():
    name = "concatenate a.value.with.a.name.of.some.length f32[4,64]"
    head = f"Sync of rank 0: {name}", "engine", None, (0, 1)
    step = PathStep(*head, 12_345_000_000, 6_000, 0, 0, (0,), f"{name} (sync)")
    lines = [*path_lines(CriticalPath((step,)), WIDTH)]
    assert max(map(len, lines)) <= WIDTH
    text = " ".join(" ".join(lines).split())
    assert all(word in text for word in ("12345.000", "0.006", "0-1", *name.split(), "(sync)"))
