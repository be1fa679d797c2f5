"""One row per collective of a run: what filled it, how long it took, what it moved."""

import attrs
import numpy as np

from ncc_runtime.execution.trace import Trace, Traffic
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.report.cover import Cover
from ncc_runtime.report.overlap import busy_cover
from ncc_runtime.topology.routes import Transport

REMOTE = (Transport.INTRA_CHIP, Transport.NEURONLINK, Transport.EFA)


@attrs.frozen
class CollectiveRow:
    """Times in microseconds, None without a clock; bytes are of all ranks together."""

    id: int
    name: str
    op: str
    algorithm: str
    group_size: int
    operands: int
    bytes: int  # of the larger side on one rank, as nccom-test counts size
    runs: int | None  # more than one in a loop; times are of all runs together
    start_us: float | None
    time_us: float | None
    exposed_us: float | None
    bytes_by_transport: dict[str, int]
    local_bytes: int
    sent_by_rank: tuple[int, ...] = attrs.field(repr=False)  # bytes from each rank to others


def collective_rows(
    executable: Executable, traffic: tuple[Traffic, ...], trace: Trace | None
) -> tuple[CollectiveRow, ...]:
    """The rows, in the order of the program's placeholders."""
    busy = busy_cover(trace) if trace is not None and traffic else None
    return tuple(
        _row(
            executable,
            number,
            moved,
            _Times() if trace is None or busy is None else _times(trace, busy, number),
        )
        for number, moved in enumerate(traffic)
    )


@attrs.frozen
class _Times:
    """Of one collective, in microseconds; nothing without a clock."""

    runs: int | None = None
    start_us: float | None = None
    time_us: float | None = None
    exposed_us: float | None = None


def _times(trace: Trace, busy: Cover, number: int) -> _Times:
    """The span from its first start to its last end is counted run by run, over all ranks."""
    rank, start, end = trace.spans(number)
    if not len(rank):
        return _Times(runs=0)
    run = np.arange(len(rank)) - np.searchsorted(rank, rank)  # which run of its rank
    runs = int(run.max()) + 1
    first, last = np.full(runs, np.iinfo(np.int64).max), np.zeros(runs, np.int64)
    np.minimum.at(first, run, start)
    np.maximum.at(last, run, end)
    exposed: np.ndarray = np.zeros(trace.executable.seen, np.int64)
    np.add.at(exposed, rank, end - start - busy.within_ps(rank, start, end))
    return _Times(
        runs, int(first.min()) / 1e6, int((last - first).sum()) / 1e6, int(exposed.max()) / 1e6
    )


def _row(executable: Executable, number: int, moved: Traffic, times: _Times) -> CollectiveRow:
    placeholder, filled = executable.program.placeholders[number], executable.filled[number]
    tensors = executable.program.tensors
    sides = (placeholder.operands, placeholder.results)
    return CollectiveRow(
        id=number,
        name=placeholder.name,
        op=placeholder.op.value,
        algorithm=filled.name,
        group_size=max(filled.group_sizes, default=0),
        operands=len(placeholder.operands),
        bytes=max(sum(tensors[tensor].size_bytes for tensor in side) for side in sides),
        runs=times.runs,
        start_us=times.start_us,
        time_us=times.time_us,
        exposed_us=times.exposed_us,
        bytes_by_transport={transport.value: moved.of(transport) for transport in REMOTE},
        local_bytes=moved.of(Transport.LOCAL),
        sent_by_rank=tuple(moved.sent_by_rank.tolist()),
    )
