"""Whether what the price chooses is also what the clock finds fastest, over nccom-test's operators.

For each operator, place and size every candidate within twice of the cheapest price is filled and
timed by the clock. Prints each point where what is chosen is more than 10 % slower than the best,
and for each algorithm how its price compares with its time.

Run: python benchmarks/price_and_clock.py [--places trn2:64 ...] [--operators ...] [--sizes ...]
A place is topology[xnodes]:ranks.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator

import attrs

from ncc_runtime.collectives.choose import Candidate
from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.choices import (
    ProgramChooser,
    chooser_of,
    groups_of,
    job_of,
    replica_groups_of,
)
from ncc_runtime.lowering.lower import lower_plans
from ncc_runtime.neff.program import Program
from ncc_runtime.options import Policy
from ncc_runtime.placement import Placement, place
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case
from ncc_runtime.topology.graph import build

PLACES = (
    *("trn1:2", "trn1:8", "trn1:32", "trn1x2:64"),
    *("trn2:4", "trn2:16", "trn2:64", "trn2x2:128"),
)
SIZES = tuple(1 << power for power in (10, 13, 16, 18, 20, 22, 24, 26, 28, 30))
NAMES = tuple(dict.fromkeys(one.name for one in OPERATORS.values()))

NEAR = 2.0
"""Candidates so many times dearer than the cheapest are not timed."""

SLACK = 1.1
"""So much slower than the best is good enough."""


@attrs.frozen
class Timed:
    """A candidate at one point, in microseconds."""

    name: str
    price_us: float
    clock_us: float
    is_chosen: bool


def placement_of(where: str) -> Placement:
    """A place: topology[xnodes]:ranks."""
    machine, _, ranks = where.partition(":")
    topology, _, nodes = machine.partition("x")
    return place(build(topology, int(nodes or 1)), int(ranks))


def timed(where: str, operator: str, size: int) -> Iterator[Timed]:
    """The candidates of a point by the clock."""
    placement = placement_of(where)
    case = Case(OPERATORS[operator], placement.ranks, DTYPES["fp32"], size)
    program = program_of_case(case)
    placeholder = program.placeholders[0]
    job, groups = job_of(program, placeholder), groups_of(program, placeholder)
    chooser = chooser_of(program, placement, {}, policy=Policy.BEST)
    able = [one for one in chooser.candidates(job, groups, price_all=True) if not one.reason]
    chosen = ProgramChooser(program, placement, policy=Policy.BEST).choose()[0].choice.chosen.name
    prices = [one.price.time_ps for one in able if one.price is not None]
    for one, price_ps in zip(able, prices, strict=True):
        if price_ps <= NEAR * min(prices) or one.name == chosen:
            clock_us = clock(program, placement, one)
            if clock_us:
                yield Timed(one.name, price_ps / 1e6, clock_us, one.name == chosen)


def clock(program: Program, placement: Placement, one: Candidate) -> float:
    """The time of a candidate by the clock, 0 if the program has no room for it."""
    job = job_of(program, program.placeholders[0])
    try:
        executable = lower_plans(program, placement, [list(replica_groups_of(program, job, one))])
    except LoweringError:
        return 0
    return collective_ps(executable) / 1e6


def line(found: list[Timed]) -> str:
    """What is chosen, and the others from the fastest on."""
    chosen = next(one for one in found if one.is_chosen)
    best = min(found, key=lambda one: one.clock_us)
    verdict = f"{chosen.clock_us / best.clock_us:5.2f}x"
    each = "  ".join(
        f"{'*' if one.is_chosen else ''}{one.name} {one.clock_us:.1f} ({one.price_us:.1f})"
        for one in sorted(found, key=lambda one: one.clock_us)
    )
    return f"{verdict}  {each}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", nargs="+", default=list(PLACES))
    parser.add_argument("--operators", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="bytes")
    parser.add_argument("--all", action="store_true", help="print every point")
    arguments = parser.parse_args()
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    points = slow = 0
    print(f"{'place':<12} {'operator':<15} {'size':>11} chosen/best  algorithm clock us (price us)")
    for where in arguments.places:
        for operator in arguments.operators:
            for size in arguments.sizes:
                found = list(timed(where, operator, size))
                for one in found:
                    ratios[operator, one.name].append(one.price_us / one.clock_us)
                best = min(one.clock_us for one in found)
                is_slow = any(one.is_chosen and one.clock_us > SLACK * best for one in found)
                points, slow = points + 1, slow + is_slow
                if is_slow or arguments.all:
                    print(f"{where:<12} {operator:<15} {size:>11} {line(found)}", flush=True)
    print(f"{slow} of {points} points more than {SLACK - 1:.0%} slower than the best")
    print(f"\n{'operator':<15} {'algorithm':<24} {'points':>6} {'price/clock':>11} least  most")
    for (operator, name), its in ratios.items():
        middle = statistics.median(its)
        print(
            f"{operator:<15} {name:<24} {len(its):>6} {middle:>11.2f} {min(its):.2f} {max(its):.2f}"
        )


if __name__ == "__main__":
    main()
