"""Races of a rank's own chains: the proof against concrete ways, and against what is compiled."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.options import CompileOptions
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.verify.counters import prove_counters
from ncc_runtime.verify.engine_races import prove_local
from tests import local_oracle
from tests.draws_graphs import Case, cases
from tests.draws_local_order import drawn_program
from tests.draws_loops import looping_modules
from tests.example_count import examples
from tests.local_edits import faults
from tests.mutation.engine_programs import model_text

LEVELS = st.sampled_from([0, 1, 2])
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]


def placed(text: str, level: int = 1, topology: str = "trn2") -> Executable:
    neff = ncc_compiler.compile_text(text, options=CompileOptions(level=level))
    return ncc_runtime.load(neff, topology).executable


def verdicts(executable: Executable) -> tuple[bool, bool] | None:
    """Whether the proof, and whether some way, finds a race; None where other proofs decide."""
    if not prove_counters(executable).holds:
        return None
    try:
        raced = bool(local_oracle.races(executable))
    except (local_oracle.StuckError, local_oracle.TooManyWaysError):
        return None
    return not prove_local(executable).holds, raced


def test_the_proof_agrees_with_all_ways_of_programs_that_wait_at_random():
    found = [verdicts(ncc_runtime.load(drawn_program(seed, 3)).executable) for seed in range(40)]
    decided = [pair for pair in found if pair is not None]
    assert [pair for pair in decided if pair[0] != pair[1]] == []
    assert {pair[0] for pair in decided} == {False, True}
    assert len(decided) > 25


@pytest.mark.parametrize("name", ["two_streams", "loop", "branch", "local_loop"])
def test_the_proof_agrees_with_all_ways_about_every_fault_of_a_wait(name):
    executable = placed(model_text(name, 2))
    found = {about: verdicts(mutant) for about, mutant in faults(executable)}
    decided = {about: pair for about, pair in found.items() if pair is not None}
    assert {about: pair for about, pair in decided.items() if pair[0] != pair[1]} == {}
    assert (True, True) in decided.values()


@given(module=looping_modules(most_ops=4), level=LEVELS)
@settings(max_examples=examples(15), suppress_health_check=QUIET)
def test_no_loop_or_branch_that_is_compiled_is_called_a_race(module, level):
    assert prove_local(placed(print_module(module), level)).texts == ()


@given(case=cases(), level=LEVELS)
@settings(max_examples=examples(15), suppress_health_check=QUIET)
def test_no_program_that_is_compiled_is_called_a_race(case: Case, level):
    assert prove_local(placed(print_module(case.module), level, "trn1")).texts == ()
