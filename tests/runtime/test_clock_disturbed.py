"""The clock under faults against its slow reference, to the picosecond."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncc_runtime.execution.clock.clock import Clock
from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.clock_comparison import first_difference
from tests.clock_reference import Reference
from tests.clock_runs import collective, compiled, permute, planned
from tests.draws_clock import busy_texts, placed_collectives
from tests.draws_disturbances import drawn_disturbance
from tests.small_executables import LOOPED

few = settings(max_examples=25, suppress_health_check=list(HealthCheck))

CROSSING = [(0, 5), (5, 0), (1, 4), (4, 1), (2, 7), (7, 2), (3, 6)]
PROGRAMS = {
    "loop": lambda: compiled(LOOPED),
    "ring": lambda: collective(CollectiveOp.ALL_REDUCE, "ring", 8, 1 << 16),
    "mesh": lambda: collective(CollectiveOp.ALL_REDUCE, "mesh", 4, 100_003),
    "permute": lambda: permute(CROSSING, 1 << 20, 8, "trn1"),
    "two instances": lambda: collective(CollectiveOp.ALL_GATHER, "mesh", 8, 4096, nodes=2),
    "ring over instances": lambda: collective(CollectiveOp.ALL_REDUCE, "ring", 8, 5000, nodes=2),
}


def agreed(clock: Clock, disturbance: Disturbance, executable: Executable) -> None:
    """Both clocks on the same disturbed run: the same events, and the same that are left over."""
    run = clock.run(disturbance)
    reference = Reference(executable, planned(executable), disturbance=disturbance).run()
    difference = first_difference(run.trace, reference.performed)
    assert not difference, f"{difference} under {disturbance}"
    stuck, halted = reference.left_over()
    assert {(each.queue, each.rank, each.row) for each in run.stuck} == stuck, disturbance
    ours = {(each.queue, each.rank, each.row, each.since_ps) for each in run.halted}
    assert ours == halted, disturbance


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("count", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_disturbed_runs_are_timed_as_by_the_reference(name: str, count: int) -> None:
    executable = PROGRAMS[name]()
    clock = Clock(executable, planned(executable))
    undisturbed = clock.run().trace
    for seed in range(count):
        agreed(clock, drawn_disturbance(executable, undisturbed, seed), executable)


@given(executable=placed_collectives(), seed=st.integers(0, 2**32))
@few
def test_random_collectives_under_faults_are_timed_as_by_the_reference(executable, seed):
    clock = Clock(executable, planned(executable))
    agreed(clock, drawn_disturbance(executable, clock.run().trace, seed), executable)


@given(text=busy_texts(), seed=st.integers(0, 2**32))
@few
def test_compute_and_collectives_under_faults_are_timed_as_by_the_reference(text, seed):
    executable = compiled(text)
    clock = Clock(executable, planned(executable))
    agreed(clock, drawn_disturbance(executable, clock.run().trace, seed), executable)
