"""Mutants of programs on 8 to 64 ranks, of kinds that are never equivalent: all are refused."""

import random

import pytest

from ncc_runtime.errors import LoweringError
from tests.mutants import Mutant, sample
from tests.mutation.kinds import NEVER_EQUIVALENT
from tests.mutation.large_matrix import PLACES, Large, candidates, large_cases
from tests.mutation.rates import Outcome, Said, outcome, report

FAULTY = frozenset(("deadlock", "races", "values", "routes"))
"""What is wrong with a mutant that nobody searched: one of these."""

QUICK_PROGRAMS, QUICK_MUTANTS, MOST_RANKS = 12, 3, 32


def mutants_of(executable, seed: int) -> list[Mutant]:
    """One of each kind."""
    return sample(executable, seed, of_each_kind=1, kinds=NEVER_EQUIVALENT, most_cells=8)


def quick_cases() -> list[tuple[Large, object]]:
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
    for number, (large, executable) in enumerate(quick_cases()):
        assert not Said.of(executable).breach, str(large)
        few = random.Random(number).sample(mutants_of(executable, number), QUICK_MUTANTS)
        found += [outcome(str(large), mutant, FAULTY) for mutant in few]
    assert not [str(one) for one in found if not one.is_killed]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_all_large_programs_are_proved_and_their_mutants_refused(place: tuple[str, int, str, int]):
    found: list[Outcome] = []
    for large, executable in large_cases(place):
        assert not Said.of(executable).breach, str(large)
        found += [outcome(str(large), one, FAULTY) for one in mutants_of(executable, 3)]
    print(f"\n{place}\n{report(found)}")
    assert not [str(one) for one in found if not one.is_killed]
