"""What it costs that one core of many alike instances is 1 % slow, and what would be saved at most.

Each program is filled, proved and timed on instances of trn2 that are alike, and again with the DMA
engines of one core at 99 %, each in a process of its own. The clock simulates one of alike
instances, and every rank where one core is slow; the choice between algorithms times the nearest
ones so, too. *Differ* are the events whose times are not those of the alike machine; *after it* are
those and all that come after the first of them in a queue of a rank, which a simulation of what
differs would go through. Seconds are of the processor.

With --shared it says instead, of every algorithm that runs on 256 ranks, at three sizes, which
parts transfers of several instances contend for; where there are none, instances meet in semaphores
alone.

Run: python benchmarks/near_symmetry.py [--ranks 256 1024] [--size-bytes N] [--shared]
"""

import argparse
import multiprocessing
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import numpy as np

Found = TypeVar("Found")

SLOWED = """name = "slowed"
base = "trn2.48xlarge"

[[core]]
node = 0
chip = 0
core = 0
dma_percent = 99
source = "assumed"
"""

STEP = """HloModule step, replica_count={ranks}
sum {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a, b) }}
ENTRY e {{ w = f32[{size},{size}] parameter(0)
 x0 = f32[{size},{size}] parameter(1)
{layers} ROOT r = f32[{size},{size}] negate(x4)
}}
"""
LAYER = """ y{before} = f32[{size},{size}] dot(x{before}, w), lhs_contracting_dims={{1}}, \
rhs_contracting_dims={{0}}
 x{after} = f32[{size},{size}] all-reduce(y{before}), replica_groups={{}}, to_apply=sum
"""


@attrs.frozen
class Case:
    """A program and what is forced."""

    name: str
    operator: str | None  # of `nccrt bench`; None: four layers, each a product and an all-reduce
    forced: Mapping[str, str] = {}


CASES = (
    Case("all-reduce, ring", "all_reduce", {"all-reduce": "ring"}),
    Case("all-reduce", "all_reduce"),
    Case("all-gather", "all_gather"),
    Case("all-to-all", "alltoall"),
    Case("four layers", None),
)


@attrs.frozen
class Cost:
    """Seconds of the processor, and MiB at most, of one machine."""

    filled_s: float
    proved_s: float
    clock_s: float
    peak_mib: float


@attrs.frozen
class Differing:
    """Of all events of the slowed machine, the shares of those that differ, and of these and what
    follows them."""

    events: int
    differ: float
    after_it: float


def program_of(case: Case, ranks: int, size_bytes: int) -> Any:
    """What is loaded."""
    from ncc_runtime.neff import container
    from ncc_runtime.neff.shared.dtypes import DType
    from ncc_runtime.report import bench

    if case.operator is not None:
        one = bench.Case(bench.OPERATORS[case.operator], ranks, DType.F32, size_bytes)
        return container.pack(bench.program_of_case(one))
    import ncc_compiler

    size = int((size_bytes // 4) ** 0.5)
    layers = "".join(
        LAYER.format(before=number, after=number + 1, size=size) for number in range(4)
    )
    return ncc_compiler.compile_text(STEP.format(ranks=ranks, size=size, layers=layers)).data


def cost(case: Case, ranks: int, size_bytes: int, topology: str) -> Cost:
    """Of filling, proofs and times on one machine."""
    from ncc_runtime.execution.clock.clock import Clock
    from ncc_runtime.execution.control_flow import PlannedDecisions
    from ncc_runtime.runtime import load

    program = program_of(case, ranks, size_bytes)
    start = time.process_time()
    model = load(program, topology, algorithms=case.forced)
    filled = time.process_time()
    assert all(proof.holds for proof in model.proofs)
    proved = time.process_time()
    Clock(model.executable, PlannedDecisions(model.executable, {})).spans()
    timed = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(filled - start, proved - filled, timed - proved, peak)


def differing(case: Case, ranks: int, size_bytes: int) -> Differing:
    """How much of a run one slow core changes."""
    from ncc_runtime.execution.clock.clock import Clock
    from ncc_runtime.execution.control_flow import PlannedDecisions
    from ncc_runtime.execution.disturbance import Disturbance, PartSpeed
    from ncc_runtime.machine_model.parts import PartKind, Parts
    from ncc_runtime.machine_model.timing import TimingModel
    from ncc_runtime.runtime import load

    program = program_of(case, ranks, size_bytes)
    executable = load(program, "trn2", algorithms=case.forced).executable
    parts = Parts(executable.routes, TimingModel.from_topology(executable.topology), ranks)
    engines = parts.span(PartKind.DMA).start
    slow = tuple(PartSpeed(part, 9_900) for part in range(engines, engines + parts.groups))
    clock = Clock(executable, PlannedDecisions(executable, {}))
    columns = []
    for disturbance in (Disturbance(), Disturbance(parts=slow)):
        trace = clock.run(disturbance).trace
        cell = trace.queue.astype(np.int64) * ranks + trace.rank
        order = np.argsort(cell, kind="stable")  # by queue and rank, then in order
        columns.append([column[order] for column in (cell, trace.start_ps, trace.end_ps)])
    (cell, *alike), (slowed_cell, *slowed) = columns
    assert (cell == slowed_cell).all(), "the same rows, whatever their times"
    differ = (alike[0] != slowed[0]) | (alike[1] != slowed[1])
    first = np.flatnonzero(np.concatenate(([True], cell[1:] != cell[:-1])))
    begins = np.repeat(first, np.diff(np.append(first, len(cell))))
    last = np.maximum.accumulate(np.where(differ, np.arange(len(cell)), -1))
    return Differing(len(cell), float(differ.mean()), float((last >= begins).mean()))


def shared_parts(case: Case, ranks: int, size_bytes: int) -> str:
    """Kinds of parts that the clock shares out among transfers of several instances."""
    from ncc_runtime.errors import LoweringError
    from ncc_runtime.execution.clock.instances import unreduced
    from ncc_runtime.execution.clock.programs import ProgramTables
    from ncc_runtime.execution.control_flow import PlannedDecisions
    from ncc_runtime.machine_model.parts import Parts
    from ncc_runtime.machine_model.timing import TimingModel
    from ncc_runtime.runtime import load

    try:
        model = load(program_of(case, ranks, size_bytes), "trn2", algorithms=case.forced)
    except LoweringError:
        return "does not run"
    executable = model.executable
    parts = Parts(executable.routes, TimingModel.from_topology(executable.topology), ranks)
    tables = ProgramTables(executable, parts, unreduced(executable))
    program = tables.program(PlannedDecisions(executable, {}), {})
    instance = np.arange(ranks) // (ranks // executable.topology.nodes)
    user = np.zeros(len(program.route), np.int64)  # the instance that performs a route's transfers
    for queue in program.queue:
        rows = program.row[queue["base"] : queue["base"] + queue["length"]]
        cells = rows["route"][:, None] + queue["route"] * np.arange(ranks)
        routes = program.cells[cells]
        moves = routes >= 0
        user[routes[moves]] = np.broadcast_to(instance, routes.shape)[moves]
    by_route = np.repeat(user, program.route["end_use"] - program.route["first_use"])
    users = np.unique(np.stack((program.use["part"], by_route)), axis=1)[0]
    found = np.unique(users[1:][users[1:] == users[:-1]])
    kinds = {parts.kind(int(part)).value for part in found if part < parts.count}
    return ", ".join(sorted(kinds)) or "none"


def tell_shared(ranks: int) -> None:
    """A line for each algorithm and size."""
    from ncc_runtime.collectives.choose import ALGORITHMS
    from ncc_runtime.report import bench

    print(f"{time.strftime('%Y-%m-%d')}, {ranks} ranks of trn2: parts shared between instances")
    for operator in ("all_reduce", "all_gather", "reduce_scatter", "alltoall"):
        op = bench.OPERATORS[operator].op
        for algorithm in ALGORITHMS[op]:
            case = Case(f"{op.value} {algorithm}", operator, {op.value: algorithm})
            found = [alone(shared_parts, case, ranks, 1 << shift) for shift in (14, 20, 26)]
            print(f"{case.name:37}{'16 KiB: {}; 1 MiB: {}; 64 MiB: {}'.format(*found)}", flush=True)


def alone(work: Callable[..., Found], *given: object) -> Found:
    """What a function finds in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--size-bytes", type=int, default=1 << 20)
    parser.add_argument("--shared", action="store_true")
    arguments = parser.parse_args()
    if arguments.shared:
        tell_shared(256)
        return
    print(
        f"{time.strftime('%Y-%m-%d')} {platform.machine()}, {arguments.size_bytes:,} bytes; "
        "alike, one core slowed; seconds of the processor"
    )
    print(
        f"{'ranks':>6} {'':18}{'filled s':>14}{'proved s':>14}{'clock s':>14}{'MiB':>14}"
        f"{'events':>12}{'differ':>8}{'after it':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        slowed = Path(folder) / "slowed.toml"
        slowed.write_text(SLOWED)
        for ranks in arguments.ranks:
            for case in CASES:
                what = case, ranks, arguments.size_bytes
                found = alone(differing, *what)
                one, other = (alone(cost, *what, where) for where in ("trn2", str(slowed)))
                pairs = (
                    f"{mine:7.2f}{its:7.2f}"
                    for mine, its in (
                        (one.filled_s, other.filled_s),
                        (one.proved_s, other.proved_s),
                        (one.clock_s, other.clock_s),
                    )
                )
                print(
                    f"{ranks:6} {case.name:18}{''.join(pairs)}"
                    f"{one.peak_mib:7.0f}{other.peak_mib:7.0f}{found.events:12,}"
                    f"{found.differ:8.1%}{found.after_it:9.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
