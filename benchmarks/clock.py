"""How fast the clock is, and how much memory it takes: rings of many ranks, and a whole model.

Each line is measured in a process of its own, after a small run for which the clock was compiled or
fetched from its cache. Messages are transfers of DMA rings; seconds are those of the processor.
Of instances that are alike one is simulated; columns of all ranks are made later, when read.
Lanes are the channels of the ring, so a ring over r ranks has at least 2 * (r - 1) * r messages for
each of them.

Run: python benchmarks/clock.py [--ranks 64 256 1024] [--size-bytes N] [--model PATH | --no-model]
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
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.decisions import PlannedDecisions
from ncc_runtime.lowering.executable import DmaQueue, Executable
from ncc_runtime.lowering.fill import fill
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.report.bench_program import OPERATORS, Case, program_of_case
from ncc_runtime.runtime import program_of

LLAMA = Path(__file__).parents[1] / "tests" / "data" / "hlo" / "llama_4l_64ranks.hlo"


@attrs.frozen
class Measured:
    """One line."""

    name: str
    lanes: int
    messages: int
    events: int
    shared: int  # messages that others slowed
    predicted_us: float
    fill_s: float
    seconds: float
    peak_mib: float
    before_mib: float  # of the peak, before the clock ran


def ring(ranks: int, size_bytes: int) -> Executable:
    """One all-reduce over all ranks of trn2 by a ring."""
    case = Case(OPERATORS["all_reduce"], ranks, DType.F32, size_bytes)
    placement = place_on(PlaceOptions("trn2"), ranks)
    return fill(program_of_case(case), placement, {"all-reduce": "ring"})


def model(path: Path) -> Executable:
    """One step of a compiled model on trn2."""
    program = program_of(ncc_compiler.compile_file(path))
    return fill(program, place_on(PlaceOptions("trn2"), program.ranks), {})


def measure(what: tuple[str, int | Path, int]) -> Measured:
    """Fill, then time one run."""
    name, which, size_bytes = what
    warm = ring(4, 1024)
    simulate(warm, PlannedDecisions(warm, {}))
    start = time.process_time()
    executable = model(which) if isinstance(which, Path) else ring(which, size_bytes)
    filled, before = time.process_time(), peak_mib()
    trace = simulate(executable, PlannedDecisions(executable, {}))
    end = time.process_time()
    rings = trace.queues_of(DmaQueue)
    moved = np.isin(trace.queue, rings)
    return Measured(
        name=name,
        lanes=len(rings),
        messages=int(moved.sum()),
        events=len(trace),
        shared=int((trace.slowed_ps[moved] > 0).sum()),
        predicted_us=trace.time_ps / 1e6,
        fill_s=filled - start,
        seconds=end - filled,
        peak_mib=peak_mib(),
        before_mib=before,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--size-bytes", type=int, default=1 << 20)
    parser.add_argument("--model", type=Path, default=LLAMA)
    parser.add_argument("--no-model", action="store_true")
    arguments = parser.parse_args()
    asked: list[tuple[str, int | Path, int]] = [
        (f"ring, {ranks} ranks", ranks, arguments.size_bytes) for ranks in arguments.ranks
    ]
    if not arguments.no_model:
        asked.append((arguments.model.stem, arguments.model, 0))
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, trn2, {arguments.size_bytes:,} bytes")
    print(
        f"{'':20}{'lanes':>6}{'messages':>11}{'events':>11}{'slowed':>10}{'time us':>12}"
        f"{'fill s':>8}{'clock s':>9}{'messages/s':>12}{'peak MiB':>10}{'before':>8}"
    )
    for one in asked:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print_line(pool.apply(measure, (one,)))


def print_line(one: Measured) -> None:
    print(
        f"{one.name:20}{one.lanes:6}{one.messages:11,}{one.events:11,}{one.shared:10,}"
        f"{one.predicted_us:12,.1f}{one.fill_s:8.2f}{one.seconds:9.2f}"
        f"{one.messages / one.seconds:12,.0f}{one.peak_mib:10.0f}{one.before_mib:8.0f}",
        flush=True,
    )


def peak_mib() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


if __name__ == "__main__":
    main()
