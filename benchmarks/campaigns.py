"""Every single lost completion and dead rank of the usual algorithms: what each comes to.

Each program is one collective of 64 elements over all ranks of trn2, proved; hierarchical ones run
on two instances. Seconds are of the wall and of all processes together. Exit code 1 if a fault of
these kinds is anything but a stall or harmless, or a stall's culprit is not where the fault is.

Run: python benchmarks/campaigns.py [--ranks 16,64] [--classes dma.lost,rank.dead]
     [--algorithms ring,mesh]
"""

import argparse
import platform
import resource
import sys
import time

import attrs

from ncc_runtime.collectives.algorithms.hierarchical import PAIRS
from ncc_runtime.faults.campaign import Campaign, campaign
from ncc_runtime.faults.outcome import Effect
from ncc_runtime.faults.single_faults import class_named, faults_of
from ncc_runtime.neff import container
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.report import bench
from ncc_runtime.runtime import load

ELEMENTS = 64

ALGORITHMS = {
    "ring": ("all_reduce", "ring", 1),
    "mesh": ("all_reduce", "mesh", 1),
    "rdh": ("all_reduce", "rdh", 1),
    "hierarchical": ("all_reduce", PAIRS[0].name, 2),
    "all-to-all": ("alltoall", "direct", 1),
}
"""The operator, the algorithm and the instances."""


@attrs.frozen
class Result:
    """Of one campaign."""

    campaign: Campaign
    wall_s: float
    cpu_s: float
    peak_mib: float

    @property
    def named(self) -> int:
        """Stalls whose culprit is where the fault is."""
        return sum(row.named for row in self.campaign.rows)

    @property
    def is_good(self) -> bool:
        """Whether everything has one of the two outcomes, and all stalls their culprit."""
        counts = self.campaign.counts
        known = counts[Effect.STALL] + counts[Effect.HARMLESS]
        return known == self.campaign.tried and self.named == counts[Effect.STALL]


def _cpu_s() -> float:
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in of)


def measured(algorithm: str, ranks: int, name: str) -> Result:
    """All faults of a class."""
    operator, forced, nodes = ALGORITHMS[algorithm]
    case = bench.Case(bench.OPERATORS[operator], ranks, DType.F32, ELEMENTS * DType.F32.size_bytes)
    program = bench.program_of_case(case)
    op = bench.OPERATORS[operator].op.value
    model = load(container.pack(program), "trn2", nodes=nodes, algorithms={op: forced})
    before_s, began_s = _cpu_s(), time.perf_counter()
    laboratory, kind = model.laboratory(seed=0), class_named(name)
    found = campaign(laboratory, kind, *faults_of(kind, laboratory, None, 0))
    peak = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return Result(found, time.perf_counter() - began_s, _cpu_s() - before_s, peak / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="16,64")
    parser.add_argument("--classes", default="dma.lost,rank.dead")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    arguments = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}")
    print(
        f"{'':14}{'ranks':>6}  {'class':10}{'faults':>8}{'stall':>8}{'named':>8}{'harmless':>9}"
        f"{'wall s':>8}{'CPU s':>8}{'MiB':>6}"
    )
    bad = 0
    for ranks in map(int, arguments.ranks.split(",")):
        for algorithm in arguments.algorithms.split(","):
            for name in arguments.classes.split(","):
                found = measured(algorithm, ranks, name)
                counts = found.campaign.counts
                print(
                    f"{algorithm:14}{ranks:6}  {name:10}{found.campaign.tried:8,}"
                    f"{counts[Effect.STALL]:8,}{found.named:8,}{counts[Effect.HARMLESS]:9,}"
                    f"{found.wall_s:8.1f}{found.cpu_s:8.1f}{found.peak_mib:6.0f}"
                    f"{'' if found.is_good else '  !'}",
                    flush=True,
                )
                bad += not found.is_good
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
