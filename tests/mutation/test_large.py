"""Mutants of programs on 8 to 64 ranks, of kinds that are never equivalent: all are refused."""

import random

import pytest

from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.executable import Executable
from tests.mutation.large_matrix import PLACES, Large, candidates, large_cases, large_mutants
from tests.mutation.rates import FAULTY, Outcome, Said, outcome, report

QUICK_PROGRAMS, QUICK_MUTANTS, MOST_RANKS = 12, 3, 32
SLOW_MUTANTS = 8


def quick_cases() -> list[tuple[Large, Executable]]:
    """Some programs, each algorithm and place as likely as any other."""
    generator = random.Random(7)
    found = []
    some = [large for large in candidates() if large.place[3] <= MOST_RANKS]
    generator.shuffle(some)
    for large in some:
        try:
            found.append((large, large.executable()))
        except LoweringError:
            continue
        if len(found) == QUICK_PROGRAMS:
            break
    return found


def test_mutants_of_a_few_large_programs_are_refused():
    found = []
    for large, executable in quick_cases():
        assert not Said.of(executable).breach, str(large)
        few = large_mutants(large, executable, QUICK_MUTANTS)
        found += [outcome(str(large), mutant, FAULTY) for mutant in few]
    assert not [str(one) for one in found if not one.is_killed]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_all_large_programs_are_proved_and_their_mutants_refused(place: tuple[str, int, str, int]):
    found: list[Outcome] = []
    for large, executable in large_cases(place):
        assert not Said.of(executable).breach, str(large)
        mutants = large_mutants(large, executable, SLOW_MUTANTS)
        found += [outcome(str(large), one, FAULTY) for one in mutants]
    print(f"\n{place}\n{report(found)}")
    assert not [str(one) for one in found if not one.is_killed]
