"""Every mutant that some interleaving can show is refused, and by the right proof."""

import functools
import random
from collections.abc import Mapping, Sequence

import pytest

from ncc_runtime.lowering.executable import Executable
from tests.mutants import sample
from tests.mutation.kinds import NEVER_EQUIVALENT
from tests.mutation.rates import Outcome, Said, outcome, report
from tests.mutation.small_matrix import MACHINES, Small, cases

QUICK_PROGRAMS, QUICK_MUTANTS = 30, 5


@functools.cache
def quick_cases() -> Mapping[Small, Executable]:
    """Some programs of the matrix, each algorithm at least as likely as any other."""
    everything = cases()
    names = sorted({(small.name, small.algorithm) for small in everything})
    generator = random.Random(1)
    picked = generator.sample(names, QUICK_PROGRAMS)
    alike = ([one for one in everything if (one.name, one.algorithm) == name] for name in picked)
    return {small: everything[small] for small in map(generator.choice, alike)}


@pytest.fixture(scope="module")
def quick() -> list[Outcome]:
    """Verdicts on a few mutants of each of them."""
    found = []
    for number, (small, executable) in enumerate(quick_cases().items()):
        mutants = sample(executable, number, of_each_kind=1)
        few = random.Random(number).sample(mutants, QUICK_MUTANTS)
        found += [outcome(str(small), mutant) for mutant in few]
    return found


def test_programs_of_the_matrix_are_proved():
    for small, executable in quick_cases().items():
        assert not Said.of(executable).breach, str(small)


def test_every_fault_is_refused_by_the_right_proof(quick: list[Outcome]):
    _check(quick)


def test_kinds_that_large_programs_take_are_never_equivalent(quick: list[Outcome]):
    _check_kinds(quick)


def _check(found: Sequence[Outcome]) -> None:
    faulty = [one for one in found if one.faults]
    assert faulty
    assert not [str(one) for one in faulty if not one.is_killed]
    assert not [str(one) for one in faulty if not one.is_right]


def _check_kinds(found: Sequence[Outcome]) -> None:
    used = [one for one in found if " used" in one.program and one.kind in NEVER_EQUIVALENT]
    assert not [str(one) for one in used if not one.faults]


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_the_whole_matrix_is_proved_and_all_its_faults_are_refused(machine: str):
    found = []
    for small, executable in cases(machine).items():
        assert not Said.of(executable).breach, str(small)
        found += [outcome(str(small), one) for one in sample(executable, 0, of_each_kind=1)]
    print(f"\n{machine}\n{report(found)}")
    _check(found)
    _check_kinds(found)
    often = {one.kind for one in found if one.faults and " used" in one.program}
    here = {one.kind for one in found}
    assert here & NEVER_EQUIVALENT <= often
