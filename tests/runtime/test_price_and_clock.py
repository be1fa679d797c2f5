"""What the price chooses is what the clock finds fastest, where prices are hardest to tell."""

import pytest

from ncc_runtime.collectives.choose import Candidate
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.choices import chooser_of, groups_of, job_of, replica_groups_of
from ncc_runtime.lowering.lower import lower_plans
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import Placement, place
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case
from ncc_runtime.topology.graph import build

MIB = 1 << 20

SAME = (".mesh", ".rdh")
"""Between two instances all stages are one exchange."""


def clock_ps(program: Program, placement: Placement, one: Candidate) -> int:
    job = job_of(program, program.placeholders[0])
    executable = lower_plans(program, placement, [replica_groups_of(program, job, one)])
    return collective_ps(executable)


def near(program: Program, placement: Placement, times: float) -> list[Candidate]:
    """Candidates no more than so many times dearer than the best, the best first."""
    placeholder = program.placeholders[0]
    job, groups = job_of(program, placeholder), groups_of(program, placeholder)
    chooser = chooser_of(program, placement, {})
    found = [one for one in chooser.candidates(job, groups, price_all=True) if not one.reason]
    apart = [one for one in found if not (one.name.startswith("hier") and one.name.endswith(SAME))]
    apart.sort(key=price_ps)
    return [one for one in apart if price_ps(one) <= times * price_ps(apart[0])]


def price_ps(one: Candidate) -> int:
    assert one.price is not None
    return one.price.time_ps


@pytest.mark.parametrize(
    ("topology", "nodes", "operator", "size"),
    [
        ("trn1", 1, "all_gather", MIB),
        ("trn1", 2, "all_reduce", 4 * MIB),
        ("trn1", 2, "reduce_scatter", 4 * MIB),
        ("trn2", 2, "all_gather", 64 * MIB),
    ],
)
def test_the_choice_is_within_a_tenth_of_what_the_clock_finds_fastest(
    topology: str, nodes: int, operator: str, size: int
) -> None:
    machine = build(topology, nodes)
    ranks = machine.chips * machine.ranks_per_chip
    placement = place(machine, ranks)
    program = program_of_case(Case(OPERATORS[operator], ranks, DTYPES["fp32"], size))
    candidates = near(program, placement, times=1.4)
    times = [clock_ps(program, placement, one) for one in candidates]
    assert len(times) > 1
    assert times[0] <= 1.1 * min(times)
    for one, time_ps in zip(candidates, times, strict=True):
        assert price_ps(one) == pytest.approx(time_ps, rel=0.2), one.name
