"""Every mutant that some interleaving can show is refused, and by the right proof."""

import functools
import random
from collections.abc import Mapping, Sequence

import pytest

from ncc_runtime.errors import LoweringError, PlacementError
from ncc_runtime.lowering.executable import Executable
from tests.model_checker_pairs import decide
from tests.mutants import sample
from tests.mutation.kinds import NEVER_EQUIVALENT
from tests.mutation.rates import Outcome, Said, outcome, report
from tests.mutation.small_matrix import MACHINES, Small, candidates, cases, small_mutants

QUICK_PROGRAMS, QUICK_MUTANTS, SLOW_MUTANTS = 30, 5, 16


@functools.cache
def quick_cases() -> Mapping[Small, Executable]:
    """A program for each of some algorithms."""
    generator = random.Random(1)
    by_algorithm: dict[tuple[str, str], list[Small]] = {}
    for small in candidates():
        by_algorithm.setdefault((small.name, small.algorithm), []).append(small)
    found = {}
    for algorithm in generator.sample(sorted(by_algorithm), len(by_algorithm)):
        small = generator.choice(by_algorithm[algorithm])
        try:
            found[small] = small.executable()
        except (LoweringError, PlacementError):
            continue
        if len(found) == QUICK_PROGRAMS:
            break
    return found


@pytest.fixture(scope="module")
def quick() -> list[Outcome]:
    """Verdicts on a few mutants of each of them."""
    found = []
    for small, executable in quick_cases().items():
        few = small_mutants(small, executable, QUICK_MUTANTS)
        found += [outcome(str(small), mutant) for mutant in few]
    return found


def test_programs_of_the_matrix_are_proved():
    for small, executable in quick_cases().items():
        assert not Said.of(executable).breach, str(small)


def test_every_fault_is_refused_by_the_right_proof(quick: list[Outcome]):
    _check(quick)


def test_kinds_that_large_programs_take_are_never_equivalent(quick: list[Outcome]):
    _check_kinds(quick)


CONTROL_FLOW = [
    *(
        f"{kind}: {queue}"
        for kind in (
            "jump to another row",
            "jump that skips nothing",
            "jump decided by another block",
        )
        for queue in ("engine", "CC-core")
    ),
    "signals of two groups crossed",
    "loop of most trips",
    "loop of too many trips",
]


@pytest.mark.parametrize(
    "small",
    [
        Small("loop", "ring", "trn1", 2),
        Small("two_branches", "ring", "trn1", 2),
        Small("branch_of_groups", "ring", "trn1", 4),
    ],
    ids=str,
)
def test_faults_of_control_flow_are_refused(small: Small):
    mutants = sample(small.executable(), 3, of_each_kind=1, kinds=CONTROL_FLOW)
    _check([outcome(str(small), mutant) for mutant in mutants])


def test_a_loop_may_run_just_as_often_as_counters_can_count():
    executable = Small("loop", "ring", "trn1", 2).executable()
    kinds = ["loop of most trips", "loop of too many trips"]
    said = [Said.of(one.executable) for one in sample(executable, 3, None, kinds=kinds)]
    assert [one.refuted for one in said] == [frozenset(), frozenset({"counters"})]
    assert "is incremented 2147483648 times" in said[1].breach


def _check(found: Sequence[Outcome]) -> None:
    faulty = [one for one in found if one.faults]
    assert faulty
    assert not [str(one) for one in faulty if not one.is_killed]
    assert not [str(one) for one in faulty if not one.is_right]
    assert not [str(one) for one in found if not one.is_explained]


def _check_kinds(found: Sequence[Outcome]) -> None:
    used = [one for one in found if " used" in one.program and one.kind in NEVER_EQUIVALENT]
    assert not [str(one) for one in used if not one.faults]


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_the_whole_matrix_is_proved_and_all_its_faults_are_refused(machine: str):
    found = []
    for small, executable in cases(machine).items():
        assert not Said.of(executable).breach, str(small)
        mutants = small_mutants(small, executable, SLOW_MUTANTS)
        found += [outcome(str(small), one) for one in mutants]
    print(f"\n{machine}\n{report(found)}")
    _check(found)
    _check_kinds(found)


@pytest.mark.slow
def test_all_interleavings_find_a_fault_wherever_a_kind_is_never_equivalent():
    met = set()
    for small, executable in cases("trn1").items():
        if not small.is_used:
            continue
        for mutant in sample(executable, 1, of_each_kind=1, kinds=NEVER_EQUIVALENT):
            met.add(mutant.kind)
            assert decide(mutant.executable).kinds, f"{small}: {mutant.kind}: {mutant.about}"
    assert met == NEVER_EQUIVALENT
