"""What is told of a run whose events are not kept: the same as its trace tells."""

import numpy as np
import pytest

from ncc_runtime.execution.clock import clock
from ncc_runtime.execution.clock.clock import Clock, collective_ps, simulate
from ncc_runtime.execution.clock.tables import BEYOND
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.clock_runs import collective, compiled, planned
from tests.small_executables import LOOPED

PROGRAMS = {
    "ring": lambda: collective(CollectiveOp.ALL_REDUCE, "ring", 16, 1 << 16),
    "two instances": lambda: collective(CollectiveOp.ALL_REDUCE, "ring", 128, 1 << 16, nodes=2),
    "uneven": lambda: collective(CollectiveOp.ALL_GATHER, "mesh", 8, 1003, nodes=2),
    "all-to-all": lambda: collective(CollectiveOp.ALL_TO_ALL, "direct", 16, 1 << 12),
    "loop": lambda: compiled(LOOPED.replace("constant(3)", "constant(40)")),
}


@pytest.fixture(scope="module", params=PROGRAMS)
def executable(request: pytest.FixtureRequest) -> Executable:
    return PROGRAMS[request.param]()


def test_spans_are_the_first_starts_and_last_ends_of_the_events(executable: Executable) -> None:
    trace, spans = (
        simulate(executable, planned(executable)),
        Clock(executable, planned(executable)).spans(),
    )
    assert spans.time_ps == trace.time_ps
    for number, timeline in enumerate(trace.timelines):
        rows = len(executable.queues[number].sync.wait_sem)
        start, end = np.full(rows, BEYOND), np.zeros(rows, np.int64)
        np.minimum.at(start, timeline.row, timeline.start_ps)
        np.maximum.at(end, timeline.row, timeline.end_ps)
        assert (spans.start_ps[number] == start).all()
        assert (spans.end_ps[number] == end).all()


def test_a_collective_takes_as_long_as_its_trace_says(executable: Executable) -> None:
    _, start, end = simulate(executable, planned(executable)).spans(0)
    assert collective_ps(executable) == end.max() - start.min()


@pytest.mark.parametrize("few", [1, 2, 5])
def test_room_for_increments_changes_no_time(
    executable: Executable, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = simulate(executable, planned(executable))
    monkeypatch.setattr(clock, "FEW", few)
    cramped = simulate(executable, planned(executable))
    for column in ("queue", "row", "rank", "start_ps", "end_ps", "cause", "reason", "slowed_ps"):
        assert (getattr(cramped, column) == getattr(usual, column)).all(), column
