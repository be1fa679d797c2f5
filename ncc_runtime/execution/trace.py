"""What a run was: when every row of every queue ran on every rank."""

import itertools
from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, EngineQueue, Executable
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.topology.routes import TRANSPORTS, Transport

Event = tuple[int, np.ndarray, np.ndarray, np.ndarray]
"""A row, the ranks that performed it together, their starts and their completions."""


@attrs.frozen(eq=False, repr=False)
class Timeline:
    """The rows a queue performed, in the order it did so on each rank; columns of equal length."""

    row: np.ndarray  # int32
    rank: np.ndarray  # int32
    start_ps: np.ndarray  # int64
    end_ps: np.ndarray  # int64

    def __repr__(self) -> str:
        return f"<Timeline: {len(self.row)} rows performed>"

    @classmethod
    def of(cls, events: Sequence[Event]) -> "Timeline":
        sizes = [len(ranks) for _, ranks, _, _ in events]
        row = np.repeat(np.array([row for row, *_ in events], np.int32), sizes)
        columns = [
            np.concatenate([np.zeros(0, np.int64), *(event[k] for event in events)])
            for k in (1, 2, 3)
        ]
        return cls(row, columns[0].astype(np.int32), columns[1], columns[2])


@attrs.frozen(eq=False, repr=False)
class Trace:
    """The timelines of all queues, in the executable's order."""

    executable: Executable
    timelines: tuple[Timeline, ...]

    def __repr__(self) -> str:
        rows = sum(len(timeline.row) for timeline in self.timelines)
        return f"<Trace: {len(self.timelines)} queues, {rows} rows performed, {self.time_ps} ps>"

    @property
    def time_ps(self) -> int:
        """When the last instruction of the last rank is complete."""
        return max((int(one.end_ps.max(initial=0)) for one in self.timelines), default=0)

    def spans(self, placeholder: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rank, start, end) of every run of a collective: triggered, and reported complete.

        Ranks ascend; the runs of a rank are in order.
        """
        found = []
        for queue, timeline in zip(self.executable.queues, self.timelines, strict=True):
            if isinstance(queue, CcQueue):
                rows = np.flatnonzero(queue.placeholder == placeholder)
                if rows.size:
                    done = rows[queue.opcode[rows] == CcOpcode.DONE][0]
                    first = _by_rank(timeline, int(rows[0]))
                    last = _by_rank(timeline, int(done))
                    ends = timeline.end_ps[first], timeline.end_ps[last]
                    found.append((timeline.rank[first], *ends))
        assert found, f"placeholder {placeholder} is in no queue"
        if len(found) == 1:
            return found[0]
        rank, start, end = (np.concatenate(columns) for columns in zip(*found, strict=True))
        order = np.argsort(rank, kind="stable")
        return rank[order], start[order], end[order]

    def busy_ps(self) -> list[np.ndarray]:
        """Per rank, the intervals (n, 2) in which a compute engine works, merged and sorted."""
        engines = [
            (timeline, _is_work(queue)[timeline.row])
            for queue, timeline in zip(self.executable.queues, self.timelines, strict=True)
            if isinstance(queue, EngineQueue)
        ]
        rank = np.concatenate([timeline.rank[works] for timeline, works in engines])
        spans = np.concatenate(
            [
                np.stack((timeline.start_ps[works], timeline.end_ps[works]), axis=1)
                for timeline, works in engines
            ]
        )
        order = np.argsort(rank, kind="stable")
        edges = np.searchsorted(rank[order], np.arange(self.executable.ranks + 1))
        return [merged(spans[order[a:b]]) for a, b in itertools.pairwise(edges)]


def _is_work(queue: EngineQueue) -> np.ndarray:
    """Whether a row computes, (n,) bool: waits, triggers and control flow do not."""
    control = [OPCODES[name].shape is Shape.CONTROL for name in queue.table.opcode_names]
    return ~np.array([*control, False])[queue.table.opcode]


def _by_rank(timeline: Timeline, row: int) -> np.ndarray:
    """Where a row's performances stand in the timeline, by rank, then in order."""
    found = np.flatnonzero(timeline.row == row)
    return found[np.argsort(timeline.rank[found], kind="stable")]


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


def overlap_ps(busy: np.ndarray, start: int, end: int) -> int:
    """How much of a span disjoint sorted intervals (n, 2) cover."""
    cut = np.minimum(busy[:, 1], end) - np.maximum(busy[:, 0], start)
    return int(np.maximum(cut, 0).sum())


@attrs.frozen(eq=False, repr=False)
class Traffic:
    """Bytes that DMA rings moved for one placeholder."""

    sent: np.ndarray  # (transports, ranks) int64 by Transport code, by the rank they lay on before

    def __repr__(self) -> str:
        return f"<Traffic: {int(self.sent_by_rank.sum())} bytes between ranks>"

    def of(self, transport: Transport) -> int:
        """Bytes over one transport, all ranks together."""
        return int(self.sent[transport.code].sum())

    @property
    def sent_by_rank(self) -> np.ndarray:
        """Bytes that went from each rank to others, written there or read, (ranks,) int64."""
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
        senders = ranks[queue.peer[row, ranks] != IDLE]
        sizes = queue.size_bytes[row, senders]
        number = int(queue.placeholder[row])
        self._count(number, senders, queue.peer[row, senders], sizes)
        if queue.also_peer is not None:
            self._count(number, senders, queue.also_peer[row, senders], sizes)
        if queue.source_rank is not None:
            for owners in queue.source_rank[row, senders].T:
                self._count(number, np.where(owners == senders, IDLE, owners), senders, sizes)

    def _count(
        self, number: int, senders: np.ndarray, receivers: np.ndarray, sizes: np.ndarray
    ) -> None:
        """Bytes on their way from ranks to ranks; IDLE on either side for none."""
        moving = (senders != IDLE) & (receivers != IDLE)
        if moving.any():
            senders, receivers = senders[moving], receivers[moving]
            transport = self._executable.routes.transport(senders, receivers)
            np.add.at(self._sent[number], (transport, senders), sizes[moving])

    def traffic(self) -> tuple[Traffic, ...]:
        """The counts, per placeholder."""
        return tuple(Traffic(sent) for sent in self._sent)
