"""Bus bandwidth of every even group on consecutive chips of inf2, by published algorithms.

Prints a row for each number of ranks of inf2.48xlarge (a ring of 12 chips) and inf2.24xlarge (a
line of 6): GB/s by the clock of what the price takes of the algorithms that AWS publishes.

Run: python benchmarks/even_groups.py [--size BYTES] [--topologies inf2 ...]
"""

import argparse

import attrs

from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.choices import chooser_of, groups_of, job_of, replica_groups_of
from ncc_runtime.lowering.lower import lower_plans
from ncc_runtime.placement import parse_on, place_on
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case
from ncc_runtime.topology.graph import build

TOPOLOGIES = ("inf2.48xlarge", "inf2.24xlarge")
OPS = ("all_reduce", "reduce_scatter", "all_gather")
SIZE = 256 * 2**20


@attrs.frozen
class Served:
    """What a group gets."""

    algorithm: str
    busbw_gb_per_s: float


def served(on: str, operator: str, ranks: int, size: int = SIZE) -> Served:
    """The cheapest published algorithm of the first so many ranks, and its bus bandwidth.

    `on` is what `--on` takes: a topology, or one with faults.
    """
    placement = place_on(parse_on(on), ranks)
    case = Case(OPERATORS[operator], ranks, DTYPES["fp32"], size)
    program = program_of_case(case)
    (placeholder,) = program.placeholders
    job, groups = job_of(program, placeholder), groups_of(program, placeholder)
    candidates = chooser_of(program, placement, {}).candidates(job, groups, price_all=True)
    chosen = min((one for one in candidates if one.price is not None), key=lambda one: one.time_ps)
    plans = [list(replica_groups_of(program, job, chosen))]
    seconds = collective_ps(lower_plans(program, placement, plans)) / 1e12
    busbw = case.size_bytes / seconds * case.operator.wire_share(ranks)
    return Served(chosen.name, busbw / 1e9)


def even_groups(topology: str) -> range:
    """2 ranks and more, up to all."""
    return range(2, build(topology).ranks_per_node + 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of the larger side")
    parser.add_argument("--topologies", nargs="+", default=list(TOPOLOGIES))
    arguments = parser.parse_args()
    for topology in arguments.topologies:
        print(f"{topology}, {arguments.size} bytes, bus bandwidth in GB/s")
        print("ranks  " + "  ".join(f"{operator:<20}" for operator in OPS))
        for ranks in even_groups(topology):
            row = [served(topology, operator, ranks, arguments.size) for operator in OPS]
            cells = (f"{one.busbw_gb_per_s:6.1f}  {one.algorithm:<12}" for one in row)
            print(f"{ranks:5}  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
