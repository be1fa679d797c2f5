"""How fast the clock is, and how much memory it takes: many ranks, and a whole model.

Each line is measured in a process of its own, after a small run for which the clock was compiled or
fetched from its cache. Messages are transfers of DMA rings, of all ranks; seconds are those of the
processor. A collective of all ranks of trn2 goes all the way from the bytes of a `.neff` to the
text of the report: unpacked, placed, filled, timed, reported. Of instances that are alike one is
filled and simulated; with --all every rank is filled. With --chosen there are also what is chosen
for 65,536 ranks, buffers that do not divide evenly, of which every rank is filled, and an
all-to-all.

Run: python benchmarks/clock.py [--ranks 64 1024 4096] [--algorithm ring] [--size-bytes N] [--all]
     python benchmarks/clock.py --ranks 65536 --algorithm hier.kangaring.rdh --no-model
     python benchmarks/clock.py --ranks --chosen --no-model               # the cheapest
"""

import argparse
import multiprocessing
import platform
import resource
import sys
import time
from pathlib import Path

import attrs
import numpy as np

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.clock import uncompiled
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.trace import traffic_of
from ncc_runtime.lowering.executable import DmaQueue
from ncc_runtime.neff import container
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.options import RunOptions
from ncc_runtime.report import bench, summary
from ncc_runtime.report.bench import OPERATORS, program_of_case
from ncc_runtime.report.collectives import collective_rows
from ncc_runtime.report.run import Run

LLAMA = Path(__file__).parents[1] / "tests" / "data" / "hlo" / "llama_4l_64ranks.hlo"


ANY = "any"


@attrs.frozen
class Case:
    """What is measured: a collective of so many ranks, or a model."""

    name: str
    path: Path | None = None
    ranks: int = 0
    size_bytes: int = 0
    algorithm: str = ANY
    is_whole: bool = False  # every rank is filled
    topology: str = "trn2"  # a name or a file
    operator: str = "all_reduce"

    def forced(self) -> dict[str, str]:
        op = OPERATORS[self.operator].op.value
        return {} if self.algorithm == ANY else {op: self.algorithm}


CHOSEN = (
    Case("65536 ranks", ranks=65536, size_bytes=1 << 20),
    Case("1024, uneven", ranks=1024, size_bytes=1_000_003),
    Case("4096, uneven", ranks=4096, size_bytes=1024),
    Case("4096, all-to-all", ranks=4096, size_bytes=1 << 24, operator="alltoall"),
)
"""What is chosen among all algorithms, for buffers that divide among the ranks and others."""


@attrs.frozen
class Measured:
    """One line; seconds of the processor."""

    name: str
    algorithm: str
    messages: int
    slowed: int  # messages that others slowed
    predicted_us: float
    fill_s: float
    clock_s: float
    report_s: float
    peak_mib: float


def neff_of(case: Case) -> bytes:
    if case.path is not None:
        return ncc_compiler.compile_file(case.path).data
    made = bench.Case(OPERATORS[case.operator], case.ranks, DType.F32, case.size_bytes)
    return container.pack(program_of_case(made))


def measure(case: Case) -> Measured:
    """The whole way, but for the compiler."""
    warm(case.is_whole)
    neff = neff_of(case)
    start = time.process_time()
    model = ncc_runtime.load(
        neff, case.topology, algorithms=case.forced(), times_only=not case.is_whole
    )
    filled = time.process_time()
    executable = model.executable
    trace = simulate(executable, PlannedDecisions(executable, {}))
    timed = time.process_time()
    traffic = traffic_of(trace)
    options = RunOptions(values=False, verify=False)
    rows = collective_rows(executable, traffic, trace)
    run = Run(executable, options, [], trace, traffic, rows)
    summary.as_text(executable, run, options, 0.0)
    end = time.process_time()
    instances = executable.ranks // executable.representatives
    moved = np.isin(trace.queue, trace.queues_of(DmaQueue))
    return Measured(
        name=case.name,
        algorithm=executable.lowered[0].name,
        messages=int(moved.sum()) * instances,
        slowed=int((trace.slowed_ps[moved] > 0).sum()) * instances,
        predicted_us=trace.time_ps / 1e6,
        fill_s=filled - start,
        clock_s=timed - filled,
        report_s=end - timed,
        peak_mib=peak_mib(),
    )


def warm(is_whole: bool) -> None:
    """Fetch what is compiled, read what is imported."""
    uncompiled.STEPS_IF_KEPT = uncompiled.STEPS_IF_NOT = 0  # machine code from the first step on
    small = Case("", ranks=4, size_bytes=1024, algorithm="ring")
    model = ncc_runtime.load(neff_of(small), "trn2", times_only=not is_whole)
    run = model.run(values=False, verify=False)
    summary.as_text(model.executable, run, RunOptions(values=False, verify=False), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 1024, 4096])
    parser.add_argument("--chosen", action="store_true", help="what is chosen for many ranks, too")
    parser.add_argument("--size-bytes", type=int, default=1 << 20)
    parser.add_argument("--algorithm", default="ring")
    parser.add_argument("--all", action="store_true", help="fill every rank")
    parser.add_argument("--model", type=Path, default=LLAMA)
    parser.add_argument("--no-model", action="store_true")
    arguments = parser.parse_args()
    cases = [
        Case(
            f"{ranks} ranks",
            ranks=ranks,
            size_bytes=arguments.size_bytes,
            algorithm=arguments.algorithm,
            is_whole=arguments.all,
        )
        for ranks in arguments.ranks
    ]
    if arguments.chosen:
        cases += CHOSEN
    if not arguments.no_model:
        cases.append(Case(arguments.model.stem, arguments.model, is_whole=arguments.all))
    print(
        f"{time.strftime('%Y-%m-%d')} {platform.machine()}, trn2, all-reduce of "
        f"{arguments.size_bytes:,} bytes where nothing else is said"
    )
    print(
        f"{'':20}{'by':20}{'messages':>13}{'slowed':>12}{'time us':>12}{'fill s':>8}{'clock s':>9}"
        f"{'report s':>10}{'messages/s':>13}{'peak MiB':>10}"
    )
    for case in cases:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print_line(pool.apply(measure, (case,)))


def print_line(line: Measured) -> None:
    print(
        f"{line.name:20}{line.algorithm[:19]:20}{line.messages:13,}{line.slowed:12,}"
        f"{line.predicted_us:12,.1f}{line.fill_s:8.2f}{line.clock_s:9.2f}{line.report_s:10.2f}"
        f"{line.messages / line.clock_s:13,.0f}{line.peak_mib:10.0f}",
        flush=True,
    )


def peak_mib() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


if __name__ == "__main__":
    main()
