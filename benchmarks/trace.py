"""How fast a large run is timed and its timeline goes to disk, and how much memory that takes.

A loop around a ring all-reduce is compiled, with as many trips as give the events asked for. What
`nccrt run --no-values --no-verify --trace FILE` does is done step by step, in a process of its own,
after a small run in another for which the clock was compiled or fetched from its cache. The peak
after each step contains those before it; pages of the files that events lie in count, too.

Run: python benchmarks/trace.py [--events 10000000] [--ranks 64] [--format pftrace|json]
"""

import argparse
import multiprocessing
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs

import ncc_runtime
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.trace import Trace, traffic_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.report.collectives import collective_rows
from ncc_runtime.report.performance import Performance
from ncc_runtime.report.timeline.write import write_timeline

Found = TypeVar("Found")

ELEMENTS = 1 << 18
LOOP = """HloModule m, replica_count={ranks}
add {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a, b) }}
cond {{ p = (s32[], f32[{elements}]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 n = s32[] constant({trips})
 ROOT lt = pred[] compare(i, n), direction=LT }}
body {{ p = (s32[], f32[{elements}]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 x = f32[{elements}] get-tuple-element(p), index=1
 one = s32[] constant(1)
 j = s32[] add(i, one)
 y = f32[{elements}] all-reduce(x), replica_groups={{}}, to_apply=add
 ROOT r = (s32[], f32[{elements}]) tuple(j, y) }}
ENTRY e {{ x = f32[{elements}] parameter(0)
 z = s32[] constant(0)
 t = (s32[], f32[{elements}]) tuple(z, x)
 w = (s32[], f32[{elements}]) while(t), condition=cond, body=body
 ROOT v = f32[{elements}] get-tuple-element(w), index=1
}}
"""


@attrs.frozen
class Step:
    """What a step took."""

    name: str
    seconds: float
    processor_s: float
    peak_mib: float  # so far


def compiled(ranks: int, trips: int, path: Path) -> None:
    """Write the program."""
    import ncc_compiler

    text = LOOP.format(ranks=ranks, elements=ELEMENTS, trips=trips)
    path.write_bytes(ncc_compiler.compile_text(text).data)


def loaded(path: Path) -> Executable:
    """The program on trn2."""
    return ncc_runtime.load(path, "trn2", algorithms={"all-reduce": "ring"}).executable


def timed(executable: Executable) -> Trace:
    return simulate(executable, PlannedDecisions(executable, {}))


def events_of(path: Path) -> int:
    """How many a program has; and the clock is compiled."""
    return len(timed(loaded(path)))


def measured(path: Path, target: Path) -> list[Step]:
    """All steps of a run."""
    steps: list[Step] = []

    def done(name: str, work: Callable[[], Found]) -> Found:
        start, used = time.perf_counter(), time.process_time()
        found = work()
        took, used = time.perf_counter() - start, time.process_time() - used
        steps.append(Step(name, took, used, peak_mib()))
        return found

    done("imports", lambda: None)
    executable = done("load, fill", lambda: loaded(path))
    trace = done("clock", lambda: timed(executable))
    traffic = done("sort, traffic", lambda: traffic_of(trace))
    done("collectives", lambda: collective_rows(executable, traffic, trace))
    seen = Performance(trace)
    done("report", lambda: (seen.overlap, seen.all_reduces, seen.use, seen.slowed_ps, seen.path))
    done("timeline", lambda: write_timeline(str(target), trace))
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--format", choices=("pftrace", "json"), default="pftrace")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, target = Path(folder) / "run.neff", Path(folder) / f"run.{arguments.format}"
        few = []
        for trips in (1, 2):
            alone(compiled, arguments.ranks, trips, path)
            few.append(alone(events_of, path))
        trips = max(1, -(-(arguments.events - few[0]) // (few[1] - few[0])) + 1)
        events = few[0] + (trips - 1) * (few[1] - few[0])
        alone(compiled, arguments.ranks, trips, path)
        steps = alone(measured, path, target)
        size = target.stat().st_size
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, {arguments.ranks} ranks of trn2")
    print(f"{events:,} events in {trips} trips, {size:,} bytes of {arguments.format}")
    print(f"{'':14}{'seconds':>9}{'processor':>11}{'events/s':>12}{'peak MiB':>10}")
    for one in steps:
        rate = f"{events / one.processor_s:12,.0f}" if one.processor_s > 0.1 else f"{'':12}"
        print(f"{one.name:14}{one.seconds:9.1f}{one.processor_s:11.1f}{rate}{one.peak_mib:10.0f}")


def alone(work: Callable[..., Found], *given: object) -> Found:
    """What a function finds in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given)


def peak_mib() -> float:
    """Of this process, so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


if __name__ == "__main__":
    main()
