"""What a point comes to: a pure function of the point, the bytes of its programs and the version.

Only times are predicted: nothing is proved and no value is computed.
"""

import enum
import functools
import time
from collections.abc import Mapping

import attrs

from ncc_runtime.errors import ControlError, NccError, StallError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.faults.watchdog import DEFAULT_TIMEOUT_S
from ncc_runtime.neff import container
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import PlaceFiles, Placement, PlaceOptions, place_on
from ncc_runtime.plans.files import plan_file
from ncc_runtime.report.bench import program_of_case
from ncc_runtime.report.bench_rows import BenchRow
from ncc_runtime.report.run import memory_use
from ncc_runtime.runtime import Model, load_on, program_of
from ncc_runtime.sweep.points import Bench, SweepPoint, SweptPart


class Status(enum.StrEnum):
    """How a point ended."""

    DONE = "done"
    REFUSED = "refused"  # with a reason that would most likely hold again
    FAILED = "failed"  # for want of time or memory, or by a fault of ours


@attrs.frozen
class PointResult:
    """A point's time, or why it has none. Fields that do not apply are None or empty."""

    key: str
    status: Status
    reason: str = ""
    time_us: float | None = None
    ranks: int | None = None
    instances: int | None = None
    algorithm: str = ""
    busbw_gb_per_s: float | None = None
    memory_bytes: int | None = None  # of the rank that takes most
    memory_share: float | None = None  # of what a rank has
    host_s: float = attrs.field(default=0.0, eq=False)  # that it took to compute


def result_of(point: SweepPoint, programs: Mapping[str, bytes]) -> PointResult:
    """Compute a point; `programs` has the `.neff` files that it takes, by hash.

    What refuses it becomes its reason.
    """
    began_s = time.perf_counter()
    try:
        result = _timed(point, programs)
    except NccError as error:
        result = PointResult(point.key, Status.REFUSED, str(error))
    except MemoryError as error:
        result = PointResult(point.key, Status.FAILED, f"the host is out of memory: {error}")
    except Exception as error:  # noqa: BLE001 - a fault of ours ends a point, not the sweep
        what = " ".join(f"{type(error).__name__}: {error}".split())
        result = PointResult(point.key, Status.FAILED, f"a fault of ours: {what}")
    return attrs.evolve(result, host_s=time.perf_counter() - began_s)


def _timed(point: SweepPoint, programs: Mapping[str, bytes]) -> PointResult:
    work = point.work
    if isinstance(work, Bench):
        program = program_of_case(work.case)
    else:
        program = _program(work.parts, _Bytes(programs))
    model = _model(program, point, times_only=not point.faults)
    busbw = None
    if point.faults:
        run = model.run(
            values=False,
            verify=False,
            faults=point.faults,
            fault_seed=point.fault_seed,
            exec_timeout_s=DEFAULT_TIMEOUT_S,
            trip_counts={} if isinstance(work, Bench) else dict(work.trip_counts),
        )
        if run.faults is not None and not run.faults.is_complete:
            raise StallError(run.faults.refusal())
        time_us = run.collectives[0].time_us if isinstance(work, Bench) else run.time_us
        assert time_us is not None, "a run that comes to its end with a clock"
    elif isinstance(work, Bench):
        time_us = collective_ps(model.executable) / 1e6
    else:
        try:
            time_us = model.time_us(dict(work.trip_counts))
        except ControlError:  # what decides may be the same on all ranks, if all have columns
            model = _model(program, point, times_only=False)
            time_us = model.time_us(dict(work.trip_counts))
    algorithm = _algorithms(model, is_bench=isinstance(work, Bench))
    if isinstance(work, Bench):
        busbw = BenchRow(work.case, algorithm, time_us).busbw_gb_per_s
    memory = memory_use(model.executable)
    return PointResult(
        point.key,
        Status.DONE,
        time_us=time_us,
        ranks=program.ranks,
        instances=model.topology.nodes,
        algorithm=algorithm,
        busbw_gb_per_s=busbw,
        memory_bytes=memory.size_bytes,
        memory_share=memory.share,
    )


def _model(program: Program, point: SweepPoint, *, times_only: bool) -> Model:
    placement = _placement(point.place, point.files, program.ranks)
    options = attrs.evolve(point.options, times_only=times_only)
    plans = [plan_file(plan.path, plan.target, plan.data) for plan in point.plans]
    return load_on(program, placement, options, plans=plans)


def _algorithms(model: Model, *, is_bench: bool) -> str:
    """`rdh`; of a program by operator, `all-reduce rdh+mesh, all-gather ring`."""
    found: dict[str, dict[str, None]] = {}
    executable = model.executable
    for placeholder, lowered in zip(
        executable.program.placeholders, executable.lowered, strict=True
    ):
        found.setdefault(placeholder.op.value, {}).update(dict.fromkeys(lowered.algorithms))
    if is_bench:
        return executable.lowered[0].name
    return ", ".join(f"{op} {'+'.join(sorted(names))}" for op, names in sorted(found.items()))


@attrs.frozen
class _Bytes:
    """Programs by hash, equal to all others: their hashes say all."""

    by_hash: Mapping[str, bytes] = attrs.field(eq=False)


@functools.lru_cache(maxsize=4)
def _program(parts: tuple[SweptPart, ...], programs: _Bytes) -> Program:
    """The checked program of a `.neff`, or of several joined; points that follow have the same."""
    read = [container.unpack(programs.by_hash[part.sha256], part.label) for part in parts]
    if len(parts) == 1 and parts[0].ranks is None:
        return read[0]
    return program_of(
        [(program, part.ranks or ()) for program, part in zip(read, parts, strict=True)]
    )


@functools.lru_cache(maxsize=4)
def _placement(place: PlaceOptions, files: PlaceFiles, ranks: int) -> Placement:
    """Kept with what is found out about its topology."""
    return place_on(place, ranks, files)
