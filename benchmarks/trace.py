"""How fast the timeline of a large run goes to disk, and how much memory that takes.

A small ring all-reduce is timed once, in a process of its own, since the compiler of the clock
takes memory too; its events, repeated one after another, are a run of as many events as asked for.
So the peak of this process is the program, the trace and the writer.

Run: python benchmarks/trace.py [--events 10000000] [--ranks 64] [--format pftrace|json]
"""

import argparse
import multiprocessing
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ncc_runtime.execution.trace import NO_EVENT, Trace
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.lowering.fill import fill
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.report.timeline.write import write_timeline
from tests.programs import collective_program

COLUMNS = {
    "queue": np.int16,
    "row": np.int32,
    "rank": np.int32,
    "start_ps": np.int64,
    "end_ps": np.int64,
    "cause": np.int32,
    "reason": np.uint8,
    "slowed_ps": np.int64,
}
"""The columns of a trace, and widths that hold theirs."""


def ring(ranks: int) -> Executable:
    program = collective_program(CollectiveOp.ALL_REDUCE, ranks, [1 << 20])
    placement = place_on(PlaceOptions("trn2"), ranks)
    return fill(program, placement, {"all-reduce": "ring"})


def one_run(ranks: int) -> dict[str, np.ndarray]:
    """The columns of the events of one run."""
    from ncc_runtime.execution.clock.clock import simulate
    from ncc_runtime.execution.decisions import PlannedDecisions

    executable = ring(ranks)
    trace = simulate(executable, PlannedDecisions(executable, {}))
    columns = {name: np.asarray(getattr(trace, name)) for name in COLUMNS}
    return {name: np.ascontiguousarray(column) for name, column in columns.items()}


def repeated(executable: Executable, one: dict[str, np.ndarray], turns: int) -> Trace:
    """A run that does the same over and over."""
    count, took = len(one["row"]), int(one["end_ps"].max())
    found = {name: np.empty(turns * count, dtype) for name, dtype in COLUMNS.items()}
    for turn in range(turns):
        some = slice(turn * count, (turn + 1) * count)
        for name, column in found.items():
            column[some] = one[name]
        for name in ("start_ps", "end_ps"):
            found[name][some] += turn * took
        causes = found["cause"][some]
        causes[causes != NO_EVENT] += turn * count
    return Trace(executable, **found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--format", choices=("pftrace", "json"), default="pftrace")
    arguments = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        one = pool.apply(one_run, (arguments.ranks,))
    executable = ring(arguments.ranks)
    turns = -(-arguments.events // len(one["row"]))
    trace = repeated(executable, one, turns)
    events = len(trace)
    before = peak_mib()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"run.{arguments.format}"
        start, used = time.perf_counter(), time.process_time()
        write_timeline(str(path), trace)
        took, used = time.perf_counter() - start, time.process_time() - used
        size = path.stat().st_size
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, {executable.placement}")
    print(
        f"{events:,} events to {path.name}: {took:.1f} s ({used:.1f} s of processor), "
        f"{events / used:,.0f} events/s, {size:,} bytes, {size / events:.0f} an event"
    )
    print(f"peak memory {peak_mib():.0f} MiB, {before:.0f} MiB of them before it was written")


def peak_mib() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


if __name__ == "__main__":
    main()
