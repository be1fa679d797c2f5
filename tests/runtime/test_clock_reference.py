"""The clock against its slow reference: the same times, causes and reasons to the picosecond."""

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import PlaceOptions
from tests.clock_comparison import largest_gap
from tests.clock_reference import Reference
from tests.clock_runs import agreed, compiled, planned, recorded
from tests.draws_clock import busy_texts, placed, placed_collectives
from tests.draws_loops import inputs_of, looping_modules
from tests.draws_neff import programs
from tests.example_count import examples
from tests.programs import collective_program

few = settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
NAMED = [(op, name) for op, algorithms in ALGORITHMS.items() for name in algorithms]
PLACES = (
    PlaceOptions("trn2"),
    PlaceOptions("trn2", 2),
    PlaceOptions("trn2", placement="spread"),
    PlaceOptions("trn1", placement="spread"),
    PlaceOptions("trn1", 2),
)


def check_algorithm(op: CollectiveOp, name: str, place: PlaceOptions, ranks: int) -> None:
    pairs = tuple((rank, (rank + 3) % ranks) for rank in range(ranks))
    program = collective_program(
        op,
        ranks,
        [] if op is CollectiveOp.BARRIER else [1 << 17],
        pairs=pairs if op is CollectiveOp.PERMUTE else (),
    )
    executable = placed(program, place, op, name)
    if executable is not None:
        agreed(executable)


@pytest.mark.parametrize(("op", "name"), NAMED)
def test_every_algorithm_on_two_instances_is_timed_as_by_the_reference(op, name):
    check_algorithm(op, name, PlaceOptions("trn2", 2), 4)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize(("op", "name"), NAMED)
def test_every_algorithm_anywhere_is_timed_as_by_the_reference(op, name, place):
    check_algorithm(op, name, place, 8)


@given(executable=placed_collectives())
@few
def test_random_collectives_are_timed_as_by_the_reference(executable):
    agreed(executable)


@given(text=busy_texts())
@few
def test_compute_beside_streams_of_collectives_is_timed_as_by_the_reference(text):
    agreed(compiled(text))


@given(program=programs(most_steps=4), trips=st.integers(0, 5))
@few
def test_planned_loops_and_branches_are_timed_as_by_the_reference(program, trips):
    executable = ncc_runtime.load(program, "trn2").executable
    agreed(executable, planned(executable, {block.name: trips for block in program.blocks}))


@given(module=looping_modules())
@few
def test_loops_and_branches_that_values_decide_are_timed_as_by_the_reference(module):
    neff = ncc_compiler.compile_text(print_module(module))
    executable = ncc_runtime.load(neff).executable
    agreed(executable, recorded(executable, [inputs_of(module)]))


@given(executable=placed_collectives())
@few
def test_whole_rates_are_as_near_to_exact_ones_as_their_rounding_lets_them(executable):
    """Each rate is less than the exact share by less than 1 MB/s for its part and 1 for itself.

    What flows leave by that goes to the others of their parts, less than 1 MB/s for each. So no
    rate is off by more than 2 + flows MB/s; a time is off by no more than the slowest rate is.
    """
    decisions = planned(executable)
    exact = Reference(executable, decisions, is_exact=True).run()
    rates = [[rate for _, rate in instant.rates] for instant in exact.network.instants]
    slowest = min((rate for found in rates for rate in found), default=Fraction(1))
    most = max(map(len, rates), default=0)
    gap = largest_gap(simulate(executable, decisions), exact.performed)
    assert gap * slowest <= (2 + most if most else 0)
