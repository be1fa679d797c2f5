"""One row per collective of a run: what filled it, how long it took, what it moved."""

import attrs

from ncc_runtime.execution.trace import Trace, Traffic
from ncc_runtime.lowering.executable import Executable
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
    bytes: int  # of the larger side on one rank, as nccom-test counts size
    start_us: float | None
    time_us: float | None
    exposed_us: float | None
    bytes_by_transport: dict[str, int]
    local_bytes: int
    sent_by_rank: tuple[int, ...]  # bytes each rank wrote to other ranks


def collective_rows(
    executable: Executable, traffic: tuple[Traffic, ...], trace: Trace | None
) -> tuple[CollectiveRow, ...]:
    """The rows, in the order of the program's placeholders."""
    return tuple(_row(executable, number, moved, trace) for number, moved in enumerate(traffic))


def _row(executable: Executable, number: int, moved: Traffic, trace: Trace | None) -> CollectiveRow:
    placeholder, filled = executable.program.placeholders[number], executable.filled[number]
    tensors = executable.program.tensors
    sides = (placeholder.operands, placeholder.results)
    start = time = exposed = None
    if trace is not None:
        starts, ends = trace.span_ps(number)
        start, time = int(starts.min()) / 1e6, int(ends.max() - starts.min()) / 1e6
        exposed = trace.exposed_ps(number) / 1e6
    return CollectiveRow(
        id=number,
        name=placeholder.name,
        op=placeholder.op.value,
        algorithm="+".join(dict.fromkeys(filled.algorithms)),
        group_size=max(filled.group_sizes, default=0),
        bytes=max(sum(tensors[tensor].size_bytes for tensor in side) for side in sides),
        start_us=start,
        time_us=time,
        exposed_us=exposed,
        bytes_by_transport={transport.value: moved.of(transport) for transport in REMOTE},
        local_bytes=moved.of(Transport.LOCAL),
        sent_by_rank=tuple(moved.sent_by_rank.tolist()),
    )
