"""Whether less hardware is ever faster: faults one after another, under one policy, by the clock.

Draws a place, groups, an operator, a size, and up to three faults: links down or slow, one way or
both, and slow cores. Each fault comes on top of those before it, so the time should grow from one
to the next. Prints each time that it falls by more than `--show` percent, what was chosen before
and after, and what the later choice would have taken before; then a table by policy.

Run: python benchmarks/less_hardware.py [--policies ...] [--seconds N] [--seed N]
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import NccError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.lower import lower
from ncc_runtime.options import Policy
from ncc_runtime.placement import parse_on, place_on
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case

PLACES: tuple[tuple[str, int], ...] = (
    *(("trn1", 8), ("trn1", 32), ("trn1,placement=spread", 16), ("trn1,nodes=2", 64)),
    *(("trn1,nodes=2", 2), ("inf2", 8), ("inf2", 24), ("inf2,placement=spread", 12)),
    *(("inf2.24xlarge", 12), ("trn2.3xlarge", 4), ("trn2", 4), ("trn2", 16), ("trn2", 32)),
    *(("trn2", 64), ("trn2,placement=spread", 16), ("trn2,lnc=1", 32)),
    *(("trn2,nodes=2,placement=spread", 32), ("trn3", 16), ("dgx-h100", 8)),
    *(("dgx-h100,nodes=2", 16), ("trn3-gen1-ultraserver,placement=spread", 16)),
)
"""What follows --on, and how many ranks."""

LARGE: tuple[tuple[str, int], ...] = (
    *(("trn2,nodes=2", 128), ("trn2,lnc=1", 128), ("trn2-ultraserver", 256)),
    *(("trn2-ultraserver,placement=spread", 64), ("trn3-gen1-ultraserver", 64), ("trn3", 64)),
    ("tpu-v4-cube", 64),
)
"""The same, slower; with --large."""

SIZES = tuple(1 << power for power in (10, 13, 16, 18, 20, 22, 24, 26))
REDUCING = ("all_reduce", "all_gather", "reduce_scatter")
OTHERS = ("alltoall", "alltoallv", "all_gatherv", "permute", "sendrecv")
MOST_FAULTS = 3


@attrs.frozen
class Drawn:
    """An operator over ranks of a place, in groups of so many, and faults one after another."""

    on: str
    ranks: int
    members: int
    operator: str
    size: int
    faults: tuple[str, ...]

    def us(self, policy: Policy, faults: Sequence[str], forced: str = "") -> tuple[str, float]:
        """The algorithm and its time by the clock with some of the faults."""
        operator = OPERATORS[self.operator]
        first_ranks = range(0, self.ranks, self.members)
        groups = tuple(tuple(range(first, first + self.members)) for first in first_ranks)
        case = Case(operator, self.ranks, DTYPES["fp32"], self.size)
        if operator.name not in ("permute", "sendrecv"):
            case = attrs.evolve(case, custom_groups=groups)
        executable = lower(
            program_of_case(case),
            place_on(parse_on(",".join((self.on, *faults))), self.ranks),
            {operator.op.value: forced} if forced else {},
            policy=policy,
            times_only=True,
            ignore_memory=True,
            clock=collective_ps,
        )
        return executable.lowered[0].name, collective_ps(executable) / 1e6


def drawn(places: Sequence[tuple[str, int]], rng: random.Random) -> Drawn:
    """All ranks in one group half of the time; operators with several algorithms mostly."""
    on, ranks = rng.choice(places)
    divisors = [members for members in range(2, ranks + 1) if ranks % members == 0]
    faults = dict(fault(on, ranks, rng) for _ in range(rng.randint(1, MOST_FAULTS)))
    return Drawn(
        on,
        ranks,
        rng.choice((ranks, rng.choice(divisors))),
        rng.choice((*REDUCING, *REDUCING, rng.choice(OTHERS))),
        rng.choice(SIZES),
        tuple(faults.values()),
    )


def fault(on: str, ranks: int, rng: random.Random) -> tuple[frozenset[str], str]:
    """A link of the place down or slow, or a slow core of a chip that has ranks; and what it hits.

    Of two faults of one link the later one counts, so that it could be less damage.
    """
    placement = place_on(parse_on(on), ranks)
    links = placement.topology.links
    percent = rng.choice((10, 50, 90, 99))
    if rng.random() < 0.2 or not len(links):
        chip = int(rng.choice(placement.chip))
        core = f"c{chip}.core{rng.randrange(placement.topology.cores_per_chip)}"
        return frozenset((core,)), f"slow={core}={percent}%"
    row = rng.randrange(len(links))
    ends = links.end(int(links.src[row])), links.end(int(links.dst[row]))
    name = rng.choice("->").join(ends)
    return frozenset(ends), f"down={name}" if rng.random() < 0.5 else f"slow={name}={percent}%"


def steps(case: Drawn, policy: Policy, show: float) -> Iterator[float]:
    """The time with each fault more over the time without it; prints those that fall."""
    name, before_us = case.us(policy, ())
    for count, last in enumerate(case.faults):
        try:
            chosen, after_us = case.us(policy, case.faults[: count + 1])
        except NccError:  # nothing gets from one rank to another any more
            return
        ratio = after_us / before_us
        if ratio < 1 - show / 100:
            try:
                alike = f"{case.us(policy, case.faults[:count], chosen)[1]:.1f} us before"
            except NccError as error:
                alike = f"which cannot run before: {error}"
            print(
                f"{ratio:.3f} {policy} {case.on}:{case.ranks} {case.operator} of {case.size} B in "
                f"groups of {case.members}, {', '.join(case.faults[:count]) or 'healthy'}: {name} "
                f"{before_us:.1f} us; and {last}: {chosen} {after_us:.1f} us, {alike}",
                flush=True,
            )
        yield ratio
        name, before_us = chosen, after_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", nargs="+", type=Policy, default=list(Policy))
    parser.add_argument("--seconds", type=float, default=600, help="for all policies together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=float, default=1.0, help="percent")
    parser.add_argument("--large", action="store_true", help="also places of many ranks")
    arguments = parser.parse_args()
    places = (*PLACES, *LARGE) if arguments.large else PLACES
    rng, begin = random.Random(arguments.seed), time.monotonic()
    ratios: dict[Policy, list[float]] = defaultdict(list)
    while time.monotonic() - begin < arguments.seconds:
        case = drawn(places, rng)
        for policy in arguments.policies:
            ratios[policy] += steps(case, policy, arguments.show)
    print(
        f"{'policy':<8} {'steps':>6} {'faster':>6} {'by 1 %':>6} {'by 2 %':>6} {'by 5 %':>6} worst"
    )
    for policy, found in ratios.items():
        falls = 1 - np.array(found)
        counts = " ".join(f"{int((falls > percent / 100).sum()):>6}" for percent in (0, 1, 2, 5))
        print(f"{policy:<8} {len(falls):>6} {counts} {max(0.0, falls.max(initial=0)):.1%}")


if __name__ == "__main__":
    main()
