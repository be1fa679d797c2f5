"""How long runs under faults take: one fault in many ranks, and stragglers over many seeds.

*One fault* is a ring all-reduce over all ranks of trn2 in which one core is slow, as `nccrt run
--no-values --no-verify` would do it: from the bytes of a `.neff` to the text of the report, in a
process of its own. *Seeds* is a step of compute and a collective on 64 ranks whose engines are
slowed by draws; the step is placed, filled and made tables of once. Seconds are of the wall and of
the processor, start-up included.

Run: python benchmarks/faults.py [--ranks 1024] [--size-bytes N] [--seeds 200] [--seed-ranks 64]
"""

import argparse
import multiprocessing
import platform
import random
import resource
import time

import attrs

START = time.perf_counter()
"""A process of multiprocessing reads this file anew: from here on it is counted."""

STEP = """HloModule step, replica_count={ranks}
sum {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a, b) }}
ENTRY e {{
 x = f32[{size},{size}] parameter(0)
 y = f32[{size},{size}] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
 g = f32[{size},{size}] all-reduce(y), replica_groups={{}}, to_apply=sum
 ROOT r = f32[{size},{size}] add(x, g)
}}
"""


@attrs.frozen
class Cost:
    """Of one process."""

    wall_s: float
    cpu_s: float
    system_s: float
    page_faults: int
    peak_mib: float
    tables_s: float  # the wall's, until the first run can begin
    runs_s: float  # of the clock
    events: int
    predicted_us: float


def _cost(tables_s: float, runs_s: float, events: int, predicted_ps: int) -> Cost:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Cost(
        time.perf_counter() - START,
        used.ru_utime + used.ru_stime,
        used.ru_stime,
        used.ru_minflt,
        used.ru_maxrss / 1024,
        tables_s,
        runs_s,
        events,
        predicted_ps / 1e6,
    )


def one_fault(ranks: int, size_bytes: int) -> Cost:
    """A core that works at 99 % from the start on, among many ranks."""
    from ncc_runtime.execution.clock.clock import Clock
    from ncc_runtime.execution.control_flow import PlannedDecisions
    from ncc_runtime.execution.disturbance import Disturbance, PartSpeed
    from ncc_runtime.execution.trace import traffic_of
    from ncc_runtime.machine_model.parts import PartKind, Parts
    from ncc_runtime.machine_model.timing import TimingModel
    from ncc_runtime.neff import container
    from ncc_runtime.neff.shared.dtypes import DType
    from ncc_runtime.options import RunOptions
    from ncc_runtime.report import bench, summary
    from ncc_runtime.report.collectives import collective_rows
    from ncc_runtime.report.run import Run
    from ncc_runtime.runtime import load

    case = bench.Case(bench.OPERATORS["all_reduce"], ranks, DType.F32, size_bytes)
    neff = container.pack(bench.program_of_case(case))
    executable = load(neff, "trn2", algorithms={"all-reduce": "ring"}).executable
    clock = Clock(executable, PlannedDecisions(executable, {}))
    parts = Parts(executable.routes, TimingModel.from_topology(executable.topology), ranks)
    engines = parts.span(PartKind.DMA).start
    slow = tuple(PartSpeed(part, 9_900) for part in range(engines, engines + parts.groups))
    before = time.perf_counter()
    trace = clock.run(Disturbance(parts=slow)).trace
    runs_s = time.perf_counter() - before
    traffic, options = traffic_of(trace), RunOptions(values=False, verify=False)
    rows = collective_rows(executable, traffic, trace)
    summary.as_text(executable, Run(executable, options, [], trace, traffic, rows), options, 0.0)
    return _cost(before - START, runs_s, len(trace), trace.time_ps)


def stragglers(ranks: int, seeds: int) -> Cost:
    """The same step with other speeds of all engines, again and again."""
    import ncc_compiler
    import ncc_runtime
    from ncc_runtime.execution.clock.clock import Clock
    from ncc_runtime.execution.control_flow import PlannedDecisions
    from ncc_runtime.execution.disturbance import Disturbance, QueueSpeed
    from ncc_runtime.lowering.executable import EngineQueue

    neff = ncc_compiler.compile_text(STEP.format(ranks=ranks, size=1024))
    executable = ncc_runtime.load(neff, "trn2").executable
    queues = enumerate(executable.queues)
    engines = [number for number, queue in queues if isinstance(queue, EngineQueue)]
    clock = Clock(executable, PlannedDecisions(executable, {}))
    before = time.perf_counter()
    events, latest = 0, 0
    for seed in range(seeds):
        draw = random.Random(seed)
        speeds = [max(1, round(10_000 / (1 + draw.expovariate(20)))) for _ in range(ranks)]
        slow = tuple(
            QueueSpeed(queue, rank, speed) for rank, speed in enumerate(speeds) for queue in engines
        )
        trace = clock.run(Disturbance(queues=slow)).trace
        events, latest = events + len(trace), max(latest, trace.time_ps)
    return _cost(before - START, time.perf_counter() - before, events, latest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--size-bytes", type=int, default=1 << 20)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seed-ranks", type=int, default=64)
    arguments = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}")
    print(
        f"{'':34}{'wall s':>8}{'CPU s':>8}{'system s':>9}{'faults':>9}{'MiB':>7}{'tables s':>9}"
        f"{'clock s':>8}{'events':>12}{'time us':>12}"
    )
    lines = (
        (f"one fault in {arguments.ranks:,} ranks", one_fault, arguments.ranks,
         arguments.size_bytes),
        (f"{arguments.seeds} seeds of {arguments.seed_ranks} ranks", stragglers,
         arguments.seed_ranks, arguments.seeds),
    )  # fmt: skip
    for name, measure, *sizes in lines:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cost = pool.apply(measure, tuple(sizes))
        print(
            f"{name:34}{cost.wall_s:8.2f}{cost.cpu_s:8.2f}{cost.system_s:9.2f}"
            f"{cost.page_faults:9,}{cost.peak_mib:7.0f}{cost.tables_s:9.2f}{cost.runs_s:8.2f}"
            f"{cost.events:12,}{cost.predicted_us:12.2f}"
        )


if __name__ == "__main__":
    main()
