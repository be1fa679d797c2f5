"""How fast a large collective is lowered: plan, descriptors and CC-core programs of all ranks.

Prints, per all-reduce algorithm, ranks and size, the seconds for the plan and for lowering it, the
instructions (rows of CC-core programs and DMA rings, times ranks) per second of both together, and
the peak memory of the process. Each line is a process of its own. What cannot be lowered says why.
`ring/1` is the ring on one channel of those that the wiring allows.

Run: python benchmarks/lowering.py [--ranks 8 64] [--sizes 1048576] [--algorithms ring mesh]
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import attrs
import numpy as np

import ncc_compiler
from ncc_runtime.collectives.algorithms import ring
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.choices import job_of
from ncc_runtime.lowering.executable import CcQueue, DmaQueue
from ncc_runtime.lowering.lower import lower_plans
from ncc_runtime.lowering.lower_plan import ReplicaGroups
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.runtime import program_of

ONE_CHANNEL = "ring/1"
RANKS = (8, 16, 64, 256, 1024)
SIZES = (1 << 20, 1 << 30)
PATIENCE_S = 300

TEXT = """
sum {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}
ENTRY main {{
  x = f32[{elements}] parameter(0)
  ROOT y = f32[{elements}] all-reduce(x), replica_groups=[1,{ranks}]<=[{ranks}], to_apply=sum
}}
"""


def program(ranks: int, size: int) -> Program:
    return program_of(ncc_compiler.compile_text(TEXT.format(elements=size // 4, ranks=ranks)))


def plan_of(name: str, job: Job, layout: GroupLayout) -> Plan:
    if name == ONE_CHANNEL:
        wiring = ring.arrange(layout)
        return ring.all_reduce(job, attrs.evolve(wiring, orders=wiring.orders[:1]))
    algorithm = ALGORITHMS[CollectiveOp.ALL_REDUCE][name]
    return algorithm.build(job, algorithm.arrange(layout))


def measure(name: str, ranks: int, size: int) -> dict[str, float | str]:
    """One collective, in this process."""
    what = program(ranks, size)
    placement = place_on(PlaceOptions("trn2.48xlarge"), ranks)
    everybody = tuple(range(ranks))
    try:
        start = time.perf_counter()
        plan = plan_of(
            name, job_of(what, what.placeholders[0]), GroupLayout.of(placement, everybody)
        )
        planned = time.perf_counter()
        replica_groups = [[ReplicaGroups(plan, np.array([everybody], np.int32))]]
        executable = lower_plans(what, placement, replica_groups)
        done = time.perf_counter()
    except (LoweringError, UnsuitedError) as error:
        return {"reason": str(error)}
    queues = (queue for queue in executable.queues if isinstance(queue, CcQueue | DmaQueue))
    return {
        "plan_s": planned - start,
        "lower_s": done - planned,
        "instructions": sum(len(queue.opcode) for queue in queues) * ranks,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def line(name: str, ranks: int, size: int) -> str:
    """The measurement of a process of its own, as a row of the table."""
    child = [sys.executable, __file__, "--one", name, str(ranks), str(size)]
    head = f"{name:<24} {ranks:>6} {size / 2**20:>8.0f}"
    try:
        done = subprocess.run(
            child, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
        )
    except subprocess.TimeoutExpired:
        return f"{head}  more than {PATIENCE_S} s"
    row = json.loads(done.stdout)
    if "reason" in row:
        return f"{head}  {row['reason']}"
    rate = row["instructions"] / (row["plan_s"] + row["lower_s"])
    return (
        f"{head} {row['plan_s']:>8.3f} {row['lower_s']:>8.3f} {row['instructions']:>12,} "
        f"{rate:>14,.0f} {row['peak_mib']:>9.0f}"
    )


def lines(names: list[str], ranks: list[int], sizes: list[int]) -> Iterator[str]:
    yield f"{time.strftime('%Y-%m-%d')} {platform.processor() or platform.machine()}, trn2.48xlarge"
    yield (
        f"{'all-reduce':<24} {'ranks':>6} {'MiB':>8} {'plan s':>8} {'lower s':>8} "
        f"{'instructions':>12} {'instructions/s':>14} {'peak MiB':>9}"
    )
    for name in names:
        for count in ranks:
            for size in sizes:
                yield line(name, count, size)


def main() -> None:
    names = [ONE_CHANNEL, *ALGORITHMS[CollectiveOp.ALL_REDUCE]]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="bytes")
    parser.add_argument("--algorithms", nargs="+", choices=names, default=names)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, ranks, size = arguments.one
        print(json.dumps(measure(name, int(ranks), int(size))))
        return
    for text in lines(arguments.algorithms, arguments.ranks, arguments.sizes):
        print(text, flush=True)


if __name__ == "__main__":
    main()
