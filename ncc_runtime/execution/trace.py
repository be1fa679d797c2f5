"""What a run was: when every row of every queue ran on every rank."""

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import CcQueue, DmaQueue, EngineQueue, Executable
from ncc_runtime.topology.routes import TRANSPORTS, Transport


@attrs.frozen(eq=False)
class Timeline:
    """Start and completion of the rows of one queue, (n, ranks) int64 picoseconds."""

    start_ps: np.ndarray
    end_ps: np.ndarray


@attrs.frozen(eq=False)
class Trace:
    """The timelines of all queues, in the executable's order."""

    executable: Executable
    timelines: tuple[Timeline, ...]

    @property
    def time_ps(self) -> int:
        """When the last instruction of the last rank is complete."""
        return max((int(one.end_ps.max(initial=0)) for one in self.timelines), default=0)

    def span_ps(self, placeholder: int) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of a collective on every rank: triggered, and reported complete."""
        for queue, timeline in zip(self.executable.queues, self.timelines, strict=True):
            if isinstance(queue, CcQueue):
                rows = np.flatnonzero(queue.placeholder == placeholder)
                if rows.size:
                    done = rows[queue.opcode[rows] == CcOpcode.DONE][0]
                    return timeline.end_ps[rows[0]], timeline.end_ps[done]
        raise AssertionError(f"placeholder {placeholder} is in no queue")

    def busy_ps(self, rank: int) -> np.ndarray:
        """Intervals (n, 2) in which a compute engine of a rank works, merged and sorted."""
        spans = [
            np.stack((timeline.start_ps[:, rank], timeline.end_ps[:, rank]), axis=1)
            for queue, timeline in zip(self.executable.queues, self.timelines, strict=True)
            if isinstance(queue, EngineQueue)
        ]
        return merged(np.concatenate(spans) if spans else np.zeros((0, 2), np.int64))

    def exposed_ps(self, placeholder: int) -> int:
        """Longest time, over ranks, in which a collective runs and no engine of the rank works."""
        starts, ends = self.span_ps(placeholder)
        return max(
            int(end - start) - _overlap(self.busy_ps(rank), int(start), int(end))
            for rank, (start, end) in enumerate(zip(starts, ends, strict=True))
        )


def merged(spans: np.ndarray) -> np.ndarray:
    """The union of intervals (n, 2) as disjoint sorted intervals."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.concatenate(([True], spans[1:, 0] > reach[:-1])))
    last = np.concatenate((first[1:] - 1, [len(spans) - 1]))
    return np.stack((spans[first, 0], reach[last]), axis=1)


def _overlap(busy: np.ndarray, start: int, end: int) -> int:
    cut = np.minimum(busy[:, 1], end) - np.maximum(busy[:, 0], start)
    return int(np.maximum(cut, 0).sum())


@attrs.frozen(eq=False)
class Traffic:
    """Bytes that DMA rings moved for one placeholder."""

    sent: np.ndarray  # (transports, ranks) int64 by Transport code, by sending rank

    def of(self, transport: Transport) -> int:
        """Bytes over one transport, all ranks together."""
        return int(self.sent[transport.code].sum())

    @property
    def sent_by_rank(self) -> np.ndarray:
        """Bytes each rank wrote to other ranks, (ranks,) int64."""
        others = [transport.code for transport in TRANSPORTS if transport is not Transport.LOCAL]
        return np.asarray(self.sent[others].sum(axis=0))


class TrafficCounter:
    """Counts bytes as rows of DMA rings are performed."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        count = len(executable.program.placeholders)
        self._sent = np.zeros((count, len(TRANSPORTS), executable.ranks), np.int64)

    def add(self, queue: DmaQueue, row: int, ranks: np.ndarray) -> None:
        """One row, performed on some ranks."""
        senders = ranks[queue.peer[row, ranks] >= 0]
        if senders.size:
            transport = self._executable.routes.transport(senders, queue.peer[row, senders])
            sizes = queue.size_bytes[row, senders]
            self._sent[int(queue.placeholder[row]), transport, senders] += sizes

    def traffic(self) -> tuple[Traffic, ...]:
        """The counts, per placeholder."""
        return tuple(Traffic(sent) for sent in self._sent)
