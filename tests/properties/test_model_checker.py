"""The proofs agree with all interleavings, on random programs with and without faults."""

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.text.printer import print_module
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.program import Program
from tests.draws_graphs import Case, cases
from tests.draws_local_order import drawn_program
from tests.draws_loops import looping_modules
from tests.draws_queues import busy_modules
from tests.draws_small_queues import small_programs
from tests.example_count import examples
from tests.model_checker_pairs import decide
from tests.model_checker_ways import TooManyWaysError, ways
from tests.mutants import Mutant, sites
from tests.mutation.rates import Said, outcome

MOST_CELLS = 2000
"""Rows times ranks of a program that is searched."""

MOST_WAYS = 12

quick = settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])


def executable_of(module: Module, topology: str) -> Executable:
    return ncc_runtime.load(ncc_compiler.compile_text(print_module(module)), topology).executable


def is_small(executable: Executable) -> bool:
    rows = sum(len(queue.sync.wait_sem) for queue in executable.queues)
    try:
        return rows * executable.ranks <= MOST_CELLS and len(ways(executable.program)) <= MOST_WAYS
    except TooManyWaysError:
        return False


@settings(quick, max_examples=examples(120))
@given(program=small_programs(), topology=st.sampled_from(("trn1", "trn2")))
def test_programs_made_by_hand_are_proved_if_and_only_if_no_run_fails(
    program: Program, topology: str
):
    executable = ncc_runtime.load(program, topology).executable
    found = decide(executable)
    assert bool(found.kinds) == bool(Said.of(executable).refuted), found


@quick
@given(seed=st.integers(0, 10_000))
def test_programs_with_blocks_are_proved_if_and_only_if_no_run_fails(seed: int):
    program = drawn_program(seed)
    assume(not any(_overlaps(program, number) for number in range(len(program.placeholders))))
    executable = ncc_runtime.load(program, "trn1").executable
    assume(is_small(executable))
    found = decide(executable, most_states=500)
    assert bool(found.kinds) == bool(Said.of(executable).refuted), found


def _overlaps(program: Program, number: int) -> bool:
    """Whether a collective's operand and result overlap, against rule neff-P6."""
    placeholder = program.placeholders[number]
    first, second = placeholder.operands[0], placeholder.results[0]
    distance = abs(program.address(first) - program.address(second))
    return distance < program.tensors[first].size_bytes


@quick
@given(case=cases(most_ops=5))
def test_random_models_are_proved_and_no_run_of_them_fails(case: Case):
    executable = executable_of(case.module, "trn1")
    assert not Said.of(executable).breach
    if is_small(executable):
        assert not decide(executable).kinds


@quick
@given(module=busy_modules(most_ops=12))
def test_models_with_busy_queues_are_proved_and_no_run_of_them_fails(module: Module):
    executable = executable_of(module, "trn1")
    assert not Said.of(executable).breach
    if is_small(executable):
        assert not decide(executable).kinds


@settings(quick, max_examples=12)
@given(module=looping_modules(most_ops=3))
def test_models_with_loops_are_proved_and_no_run_of_them_fails(module: Module):
    executable = executable_of(module, "trn1")
    assert not Said.of(executable).breach
    if is_small(executable):
        assert not decide(executable, most_states=500).kinds


@settings(quick, max_examples=examples(40))
@given(case=cases(most_ops=4), data=st.data(), seed=st.integers(0, 9))
def test_a_random_fault_of_a_random_model_is_refused_by_the_right_proof(
    case: Case, data: st.DataObject, seed: int
):
    executable = executable_of(case.module, "trn1")
    assume(is_small(executable))
    places = list(sites(executable, seed, most_cells=3))
    assume(places)
    kind = data.draw(st.sampled_from(sorted({kind for kind, _, _ in places})))
    _, about, make = data.draw(st.sampled_from([one for one in places if one[0] == kind]))
    found = outcome("drawn", Mutant(kind, about, make()))
    assert found.is_right or not found.faults, str(found)
    assert found.is_explained, str(found)
