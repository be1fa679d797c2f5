"""The trace of a run: when every row of every queue ran on every rank, and what it waited for."""

import enum
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, EngineQueue, Executable
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.topology.routes import TRANSPORTS, Transport

NO_EVENT = -1
"""The cause of an event that waited for none."""

BLOCK = 1 << 16
"""Events of a block, unless one rank has more in a queue."""

_SCANNED = 1 << 18  # events counted together


class Reason(enum.IntEnum):
    """Why an event did not start earlier."""

    NONE = 0  # it started with the run
    QUEUE = 1  # its queue was busy
    SEMAPHORE = 2  # it waited for an increment
    RING = 3  # the previous transfer of its DMA ring was not done


@attrs.frozen(eq=False, repr=False)
class Timeline:
    """The rows a queue performed, in the order it did so on each rank; columns of equal length."""

    row: np.ndarray  #: int32
    rank: np.ndarray  #: int32
    start_ps: np.ndarray  #: int64
    end_ps: np.ndarray  #: int64

    def __repr__(self) -> str:
        return f"<Timeline: {len(self.row)} rows performed>"


@attrs.frozen(eq=False)
class CollectiveRuns:
    """Every performance of every placeholder on every rank, as columns.

    Those of one placeholder and rank are in order. It begins with the wait for its trigger.
    """

    placeholder: np.ndarray  # int32
    rank: np.ndarray  # int32
    first: np.ndarray  # int64, event
    last: np.ndarray  # int64, event


@attrs.frozen(eq=False, repr=False)
class Trace:
    """Events as flat columns: one row of one queue, performed by one rank.

    Events of one queue and rank stand in the order in which they were performed. Integer columns
    may be of any width that holds their values. Of a symmetry-reduced executable, events are of
    the ranks that have columns; a cause is an event of the representative of the awaited rank.
    """

    executable: Executable
    queue: np.ndarray  #: (n,) position in Executable.queues
    row: np.ndarray  #: (n,)
    rank: np.ndarray  #: (n,)
    start_ps: np.ndarray  #: (n,) int64
    end_ps: np.ndarray  #: (n,) int64
    cause: np.ndarray  #: (n,) the event that it waited for last, NO_EVENT
    reason: np.ndarray  #: (n,) uint8, Reason
    slowed_ps: np.ndarray  #: (n,) how much longer it took than alone, as others used the same parts

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        queues = len(self.executable.queues)
        return f"<Trace: {queues} queues, {len(self)} rows performed, {self.time_ps} ps>"

    @cached_property
    def time_ps(self) -> int:
        """When the last instruction of the last rank is complete."""
        return int(self.end_ps.max(initial=0))

    @cached_property
    def last_event(self) -> int:
        """The first of those that end last; NO_EVENT if there is none."""
        for first in range(0, len(self), _SCANNED):  # argmax copies what is no contiguous column
            end_ps = self.end_ps[first : first + _SCANNED]
            last = int(np.argmax(end_ps))
            if end_ps[last] == self.time_ps:
                return first + last
        return NO_EVENT

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """The rows that every queue performed, in the executable's order of queues."""
        columns = (self.row, self.rank, self.start_ps, self.end_ps)
        events_of = (
            np.flatnonzero(self.queue == number) for number in range(len(self.executable.queues))
        )
        return tuple(Timeline(*(column[events] for column in columns)) for events in events_of)

    def blocks(
        self, queues: Sequence[int], ranks: np.ndarray | None = None, most: int = BLOCK
    ) -> Iterator[tuple[int, np.ndarray]]:
        """(queue, events) of some queues, some ranks (bool by rank), about `most` at a time.

        Events come by rank, then in order; those of one queue and rank are always in one block.
        """
        for queue in queues:
            counts = self.counts[queue]
            if ranks is not None:
                counts = np.where(ranks, counts, 0)
            for low, high in _rank_ranges(counts, most):
                busy = np.flatnonzero(counts[low:high]) + low
                yield queue, self._events(queue, busy)

    def count(self, ranks: np.ndarray | None = None) -> int:
        """Events of some ranks (bool by rank), or of all."""
        counts = self.counts
        return int(counts.sum() if ranks is None else counts[:, ranks].sum())

    @cached_property
    def counts(self) -> np.ndarray:
        """How many events each queue has on each rank, (queues, ranks) int64."""
        queues, ranks = len(self.executable.queues), self.executable.representatives
        counts = np.zeros(queues * ranks, np.int64)
        for first in range(0, len(self), _SCANNED):
            some = slice(first, first + _SCANNED)
            cell = self.queue[some].astype(np.int64) * ranks + self.rank[some]
            counts += np.bincount(cell, minlength=len(counts))
        return counts.reshape(queues, ranks)

    @cached_property
    def _order(self) -> np.ndarray:
        """(n,) the events by queue, by rank, then in order; int32 where that counts them."""
        order = np.empty(len(self), np.int32 if len(self) <= np.iinfo(np.int32).max else np.int64)
        free = self._starts[:-1].copy()  # of each queue and rank, the place of its next event
        ranks = self.executable.representatives
        for first in range(0, len(self), _SCANNED):
            some = slice(first, first + _SCANNED)
            cell = self.queue[some].astype(np.int64) * ranks + self.rank[some]
            within = _stable_order(cell, len(free))
            many = np.bincount(cell, minlength=len(free))
            before = np.cumsum(many) - many
            places = np.arange(len(cell)) + (free - before)[cell[within]]
            order[places] = first + within
            free += many
        return order

    def _ordered(self, low: int, high: int) -> np.ndarray:
        """Some events in that order."""
        return self._order[low:high]

    @cached_property
    def _starts(self) -> np.ndarray:
        """(queues * ranks + 1,) where the events of each queue and rank begin in that order."""
        return np.append(0, np.cumsum(self.counts))

    def _events(self, queue: int, ranks: np.ndarray) -> np.ndarray:
        """The events of a queue on some ranks, ascending, by rank, then in order; int64."""
        number = queue * self.executable.representatives + ranks
        first, end = self._starts[number], self._starts[number + 1]
        # ranks that follow each other have one range of the order together
        breaks = np.flatnonzero(first[1:] != end[:-1]) + 1
        lows, highs = first[np.append(0, breaks)], end[np.append(breaks, len(number)) - 1]
        runs = [self._ordered(low, high) for low, high in zip(lows, highs, strict=True)]
        return np.concatenate(runs).astype(np.int64)

    def queues_of(self, kind: type[EngineQueue | CcQueue | DmaQueue]) -> list[int]:
        """Positions of the queues of one kind."""
        queues = enumerate(self.executable.queues)
        return [number for number, queue in queues if isinstance(queue, kind)]

    @cached_property
    def runs(self) -> CollectiveRuns:
        """Every performance of every placeholder on every rank."""
        columns: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in range(4)]
        for number, events in self.blocks(self.queues_of(CcQueue)):
            queue = self.executable.queues[number]
            assert isinstance(queue, CcQueue)
            row = self.row[events]
            events = events[queue.placeholder[row] != IDLE]
            is_first = opens_placeholder(queue)[self.row[events]]
            is_last = np.append(is_first[1:], True)[: len(events)]  # the next run begins behind it
            first = events[is_first]
            placeholder = queue.placeholder[self.row[first]]
            runs = (placeholder, self.rank[first], first, events[is_last])
            for column, more in zip(columns, runs, strict=True):
                column.append(more)
        placeholder, rank, first, last = (np.concatenate(column) for column in columns)
        kinds = placeholder.astype(np.int32), rank.astype(np.int32)
        return CollectiveRuns(*kinds, first, last)

    def spans(self, placeholder: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rank, start, end) of every run of a collective: triggered, and reported complete.

        Ranks ascend; the runs of a rank are in order.
        """
        runs = self.runs
        numbers = np.flatnonzero(runs.placeholder == placeholder)
        numbers = numbers[np.argsort(runs.rank[numbers], kind="stable")]
        start_ps = self.start_ps[runs.first[numbers]]
        return runs.rank[numbers], start_ps, self.end_ps[runs.last[numbers]]


def works(queue: EngineQueue) -> np.ndarray:
    """Whether a row computes, (n,) bool: waits, triggers and control flow do not."""
    control = [OPCODES[name].shape is Shape.CONTROL for name in queue.table.opcode_names]
    return ~np.array([*control, False])[queue.table.opcode]


def opens_placeholder(queue: CcQueue) -> np.ndarray:
    """Whether a row is the first of a placeholder, (n,) bool."""
    opens = np.zeros(len(queue.opcode), bool)
    rows = np.flatnonzero((queue.placeholder != IDLE) & (queue.opcode == CcOpcode.WAIT))
    _, first = np.unique(queue.placeholder[rows], return_index=True)
    opens[rows[first]] = True
    return opens


def _stable_order(numbers: np.ndarray, count: int) -> np.ndarray:
    """The stable ascending order of numbers below `count`."""
    narrow = np.min_scalar_type(max(0, count - 1))  # 16 bits and less are sorted in linear time
    return np.argsort(numbers.astype(narrow), kind="stable")


def _rank_ranges(counts: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Ranges [low, high) of ranks with about `most` events each, which cover all events."""
    if not counts.any():
        return
    number = (np.cumsum(counts) - 1) // most
    bounds = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(counts)]
    yield from ((a, b) for a, b in itertools.pairwise(bounds) if counts[a:b].any())


@attrs.frozen(eq=False, repr=False)
class Traffic:
    """Bytes that DMA rings moved for one placeholder."""

    sent: np.ndarray  #: (transports, ranks) int64, by Transport code and by the rank of the source

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
        self._sent = np.zeros((count, len(TRANSPORTS), executable.representatives), np.int64)

    def add(self, queue: DmaQueue, row: int | np.ndarray, ranks: np.ndarray) -> None:
        """Rows performed on ranks: one on several, or one for each of them."""
        rows = np.broadcast_to(row, ranks.shape)
        sends = queue.peer[rows, ranks] != IDLE
        rows, senders = rows[sends], ranks[sends]
        cells, number = (rows, senders), queue.placeholder[rows]
        sizes = queue.bytes_of(*cells)
        self._count(number, senders, queue.peer[cells], sizes)
        if queue.second_peer is not None:
            self._count(number, senders, queue.second_peer[cells], sizes)
        if queue.source_rank is not None:
            for owners in queue.source_rank[cells].T:
                self._count(number, np.where(owners == senders, IDLE, owners), senders, sizes)

    def add_performed(
        self, sent: "Traffic", number: int, ranks: np.ndarray, times: np.ndarray | int = 1
    ) -> None:
        """A whole collective performed on ranks, so often by each rank, (all ranks,) or one number.

        All ranks together send `sent`.
        """
        self._sent[number][:, ranks] += (sent.sent * times)[:, ranks]

    def _count(
        self, number: np.ndarray, senders: np.ndarray, receivers: np.ndarray, sizes: np.ndarray
    ) -> None:
        """Count bytes from ranks to ranks; IDLE on either side for none."""
        moving = (senders != IDLE) & (receivers != IDLE)
        if moving.any():
            senders, receivers = senders[moving], receivers[moving]
            transport = self._executable.routes.transport(senders, receivers)
            np.add.at(self._sent, (number[moving], transport, senders), sizes[moving])

    def traffic(self) -> tuple[Traffic, ...]:
        """The counts, per placeholder; ranks without columns send what their representatives do."""
        instances = self._executable.ranks // self._executable.representatives
        return tuple(Traffic(np.tile(sent, instances)) for sent in self._sent)


def traffic_of(trace: Trace) -> tuple[Traffic, ...]:
    """What an execution moved, from its trace."""
    counter = TrafficCounter(trace.executable)
    for number, events in trace.blocks(trace.queues_of(DmaQueue)):
        queue = trace.executable.queues[number]
        assert isinstance(queue, DmaQueue)
        counter.add(queue, trace.row[events], trace.rank[events])
    return counter.traffic()


def traffic_at_once(executable: Executable, wanted: Container[int]) -> Mapping[int, Traffic]:
    """What each of some collectives moves when all its rows are performed once, by placeholder."""
    counter = TrafficCounter(executable)
    for queue in executable.queues:
        if isinstance(queue, DmaQueue):
            rows, ranks = np.nonzero(queue.peer != IDLE)
            counter.add(queue, rows, ranks)
    return {number: sent for number, sent in enumerate(counter.traffic()) if number in wanted}
