"""How near all-to-all comes to its bounds on tori and switches, by the clock.

Prints, for every place and size, the bound, the bound of links alone, and of each algorithm the
price, the time by the clock and the share of the bound that this is. `by-turns` is a direct one
whose DMA rings take shifts of member numbers by turns, whatever the fabric. The last place is a
torus of Trainium3 chips with as much link rate a chip as the switches of trn3 give.

Run: python benchmarks/all_to_all.py [--places trn2:64 ...] [--sizes ...] [--algorithms ...]
A place is topology[xnodes]:ranks, or `torus-as-trn3:64`.
"""

import argparse
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ncc_runtime.collectives.algorithms import direct
from ncc_runtime.collectives.algorithms.all_to_all import GroupShifts
from ncc_runtime.collectives.bounds import bound_of
from ncc_runtime.collectives.choose import Candidate, Chooser
from ncc_runtime.collectives.layout import Members
from ncc_runtime.collectives.plan import Job
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
from ncc_runtime.options import Policy
from ncc_runtime.placement import Placement, place
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case
from ncc_runtime.topology.graph import build

PLACES = (
    *("trn1:32", "inf2.48xlarge:24", "trn2:64", "trn2x2:128", "trn2-ultraserver:256"),
    *("trn3-gen1-ultraserver:64", "trn3:64", "torus-as-trn3:64"),
)
SIZES = (1 << 14, 1 << 20, 1 << 26)
BY_TURNS = "by-turns"
ALGORITHMS = (BY_TURNS, "direct", "torus", "pairwise", "bruck")
AS_TRN3 = "torus-as-trn3"
AS_FAST = """name = "torus-as-trn3"
generation = "trn3"
base = "neuroncore-v4"
[chips]
count = {value = 16, source = "assumed"}
[fabric]
shape = {value = "torus", source = "assumed"}
dims = {value = [4, 4], source = "assumed"}
[link]
bandwidth_bytes_per_s = {value = 176_000_000_000, source = "704 GB/s a chip over 4 links"}
latency_ps = {value = 100_000, source = "assumed"}
[efa]
adapters = {value = 0, source = "assumed"}
"""


class ByTurns(GroupShifts):
    """Shifts of member numbers, each in the next ring."""

    def in_rings(self, rings: int) -> Iterator[tuple[int, int]]:
        """The order of numbers."""
        return ((number, number % rings) for number in range(self.members))


def candidate(chooser: Chooser, job: Job, name: str, groups: Sequence[Members]) -> Candidate:
    """An algorithm, with its price if it runs."""
    if name == BY_TURNS:
        (group,) = groups
        plan = direct.all_to_all(job, ByTurns((len(group),), tuple(range(len(group)))))
        estimate = Candidate(name, None, replica_groups=((plan, np.array(groups, np.int32)),))
    else:
        (estimate,) = (each for each in chooser.unpriced(job, groups) if each.name == name)
    return chooser.with_price(job, estimate)


def placement_of(where: str, folder: Path) -> Placement:
    """A place: topology[xnodes]:ranks."""
    machine, _, ranks = where.partition(":")
    if machine == AS_TRN3:
        path = folder / f"{AS_TRN3}.toml"
        path.write_text(AS_FAST)
        return place(build(str(path)), int(ranks))
    parts = re.fullmatch(r"(.+?)(?:x(\d+))?", machine)
    assert parts, "every name matches"
    return place(build(parts[1], int(parts[2] or 1)), int(ranks))


def lines(placement: Placement, size: int, names: tuple[str, ...]) -> Iterator[str]:
    """The bounds, then one line for every algorithm that runs."""
    per_rank = size - size % (4 * placement.ranks)
    case = Case(OPERATORS["alltoall"], placement.ranks, DTYPES["fp32"], per_rank)
    program = program_of_case(case)
    (placeholder,) = program.placeholders
    job, groups = job_of(program, placeholder), groups_of(program, placeholder)
    chooser = chooser_of(program, placement, {placeholder.op.value: "direct"})
    bound = bound_of(chooser.parts, job, groups)
    chosen = ProgramChooser(program, placement, policy=Policy.BEST).choose()[0].choice.chosen.name
    yield (
        f"  {per_rank} B: bound {bound.time_ps / 1e6:.1f} us ({bound.decided_by}), "
        f"of links alone {bound.links_ps / 1e6:.1f} us; {chosen} is chosen"
    )
    for name in names:
        priced = candidate(chooser, job, name, groups)
        if priced.price is None:
            yield f"    {name:<9} cannot run: {priced.reason}"
            continue
        try:
            replica_groups = list(replica_groups_of(program, job, priced))
            executable = lower_plans(program, placement, [replica_groups])
        except LoweringError as reason:
            yield f"    {name:<9} cannot run: {reason}"
            continue
        clock = collective_ps(executable)
        yield (
            f"    {name:<9} price {priced.price.time_ps / 1e6:8.1f} us, "
            f"clock {clock / 1e6:8.1f} us, {100 * bound.time_ps / clock:5.1f} % of the bound"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", nargs="+", default=list(PLACES))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="bytes a rank")
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for where in arguments.places:
            placement = placement_of(where, Path(folder))
            print(where, flush=True)
            for size in arguments.sizes:
                for line in lines(placement, size, tuple(arguments.algorithms)):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
