"""Runs of odd sizes: many trips, several programs, nothing to do, one rank, stuck queues."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import DeadlockError
from ncc_runtime.execution.clock import clock, event_log
from ncc_runtime.execution.clock.clock import collective_ps, simulate
from ncc_runtime.execution.trace import traffic_of
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.runtime import program_of
from ncc_runtime.topology.routes import Transport
from tests.clock_comparison import performed_in
from tests.clock_runs import agreed, collective, compiled, planned, timed, transfers
from tests.programs import collective_program
from tests.small_executables import LOOPED, raised
from tests.stage_programs import cut, stage


def looped(trips: int) -> str:
    return LOOPED.replace("constant(3)", f"constant({trips})")


def test_a_loop_of_many_trips_is_timed_as_by_the_reference():
    trace, _ = agreed(compiled(looped(70)))
    rows = sum(len(queue.sync.wait_sem) for queue in trace.executable.queues)
    assert len(trace) > 10 * rows  # the log had to grow


def test_every_trip_of_a_loop_takes_the_same_time_however_many_there_are():
    trace = timed(compiled(looped(1500)))
    runs = trace.spans(0)[1].reshape(4, 1500)
    periods = np.diff(runs[0])
    assert (periods[1:] == periods[1]).all()
    assert timed(compiled(looped(1501))).time_ps - trace.time_ps == periods[1]


def test_a_loop_of_no_trips_performs_only_its_test():
    trace, _ = agreed(compiled(looped(0)))
    assert not len(trace.spans(0)[0])
    assert len(trace.spans(1)[0]) == 4


@pytest.mark.parametrize("parts", [(range(4), range(4, 8)), (range(0, 8, 2), range(1, 8, 2))])
def test_programs_that_run_together_take_the_time_of_the_one_they_are_cut_from(parts):
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [1 << 16], repeat=2)
    whole, _ = agreed(ncc_runtime.load(program).executable)
    pieces, _ = agreed(ncc_runtime.load(cut(program, parts)).executable)
    assert pieces.time_ps == whole.time_ps


def all_reduces(count: int, name: str):
    groups = (
        "channel_id={0}, use_global_device_ids=true, replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}"
    )
    lines = ["  x0 = f32[64] parameter(0)"] + [
        f"  x{k + 1} = f32[64] all-reduce(x{k}), {groups.format(k + 1)}, to_apply=sum"
        for k in range(count)
    ]
    return stage("\n".join([*lines, f"  ROOT r = f32[64] negate(x{count})"]), name=name)


def test_programs_with_rings_of_different_lengths_run_side_by_side():
    """A queue of one program sleeps on ranks of the other, though their semaphores are alike."""
    parts = [(all_reduces(1, "few"), range(4)), (all_reduces(6, "many"), range(4, 8))]
    executable = ncc_runtime.load(parts, algorithms={"all-reduce": "ring"}).executable
    trace, _ = agreed(executable)
    for number, queue in enumerate(executable.queues):
        ranks = trace.rank[trace.queue == number]
        assert queue.ranks is not None
        assert set(ranks.tolist()) <= set(queue.ranks.tolist())


LOCAL = """HloModule m, replica_count={ranks}
ENTRY e {{ x = f32[4096] parameter(0)
 y = f32[4096] negate(x)
 ROOT r = f32[4096] exponential(y)
}}
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_program_without_collectives_takes_its_instructions_and_a_launch(ranks):
    trace, _ = agreed(compiled(LOCAL.format(ranks=ranks)))
    assert sorted(trace.rank.tolist()) == sorted([*range(ranks)] * (len(trace) // ranks))
    assert trace.start_ps.min() == 15_000_000
    assert trace.time_ps > 15_000_000


@pytest.mark.parametrize("op", [CollectiveOp.ALL_REDUCE, CollectiveOp.ALL_GATHER])
def test_a_collective_of_one_rank_is_a_copy(op):
    trace, _ = agreed(collective(op, "ring", 1, 1 << 16))
    assert {one.rank for one in performed_in(trace)} == {0}
    assert {peer for peer, *_ in transfers(trace, 0)} == {0}
    (moved,) = traffic_of(trace)
    assert moved.of(Transport.LOCAL) == moved.sent.sum() == 4 << 16


def test_a_program_that_does_nothing_has_an_empty_trace():
    neff = ncc_compiler.compile_text("ENTRY e { ROOT x = f32[4] parameter(0) }")
    executable = ncc_runtime.load(program_of(neff)).executable
    trace = timed(executable)
    assert len(trace) == len(performed_in(trace))
    agreed(executable)


def test_a_wait_for_more_than_ever_comes_is_a_deadlock_by_the_clock_alone():
    ring = collective(CollectiveOp.ALL_REDUCE, "ring", 4, 64)
    row = int(np.flatnonzero(ring.queues[5].sync.wait_sem[:, 0] >= 0)[-1])
    stuck = raised(ring, "cc0", row, 2, by=5)
    with pytest.raises(DeadlockError, match=r"rank 2, queue cc0, pc \d+: waits for"):
        simulate(stuck, planned(stuck))
    with pytest.raises(DeadlockError, match=r"rank 2, queue cc0, pc \d+: waits for"):
        collective_ps(stuck)


def test_increments_that_their_only_queue_has_seen_take_no_memory(monkeypatch):
    machines = []

    def noted(executable, machine, *rest):
        machines.append(machine)
        return event_log.trace_of(executable, machine, *rest)

    monkeypatch.setattr(clock, "trace_of", noted)
    timed(compiled(looped(2000)))
    semaphores = machines[0].semaphore[machines[0].semaphore["has_one"] == 1]
    assert semaphores["held"].max() > 10_000
    assert semaphores["room"].max() < 50
