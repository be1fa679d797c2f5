"""How much communication hides behind computation.

A rank computes while an engine of it works; a collective is in flight from its trigger until it is
reported complete. What no engine of the rank covers is exposed. How much could be hidden at best is
computed for an all-reduce: no more than its time, and no more than the time of computation that
neither depends on it nor is something it depends on (`Independence`).

Intervals of all ranks are handled at once (`Cover`): every rank's time has its own part of one
line, time t of rank r being r * (length + 1) + t. So one pass over arrays merges, adds up and
intersects intervals of any number of ranks.

Dependences are followed through the data that instructions touch, in the order in which events
start. A race-free program has written what it reads by then, so the last writer of every byte is
its producer. What is read again from a reused buffer is no dependence. Events are few on one rank;
sets of collectives are bits of a whole number.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.trace import Trace, works
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program


@attrs.frozen(eq=False)
class Cover:
    """The union of intervals, rank by rank."""

    ranks: int
    length_ps: int  # no interval ends later
    low: np.ndarray  # (n,) int64, on the line, ascending
    high: np.ndarray  # (n,) int64, behind the last covered picosecond

    @classmethod
    def of(
        cls,
        ranks: int,
        length_ps: int,
        rank: np.ndarray,
        start_ps: np.ndarray,
        end_ps: np.ndarray,
    ) -> "Cover":
        """What intervals of ranks cover together."""
        assert ranks * (length_ps + 1) < 2**63, "the line is longer than int64 counts"
        before = rank.astype(np.int64) * (length_ps + 1)
        low, high = before + start_ps, before + end_ps
        order = np.argsort(low, kind="stable")
        order = order[(high > low)[order]]
        low, reach = low[order], np.maximum.accumulate(high[order])
        first = np.flatnonzero(np.append(True, low[1:] > reach[:-1])[: len(low)])
        last = np.append(first[1:], len(low))[: len(first)] - 1
        return cls(ranks, length_ps, low[first], reach[last])

    def by_rank_ps(self) -> np.ndarray:
        """How much is covered of each rank's time, (ranks,) int64."""
        edges = np.arange(self.ranks + 1, dtype=np.int64) * (self.length_ps + 1)
        return np.diff(self._before(edges))

    def within_ps(self, rank: np.ndarray, start_ps: np.ndarray, end_ps: np.ndarray) -> np.ndarray:
        """How much is covered of each of these intervals, int64."""
        before = rank.astype(np.int64) * (self.length_ps + 1)
        return np.asarray(self._before(before + end_ps) - self._before(before + start_ps))

    def shared_by_rank_ps(self, other: "Cover") -> np.ndarray:
        """How much both cover of each rank's time, (ranks,) int64."""
        inside = self._before(other.high) - self._before(other.low)
        shared = np.zeros(self.ranks, np.int64)
        np.add.at(shared, other.low // (self.length_ps + 1), inside)
        return shared

    def _before(self, at: np.ndarray) -> np.ndarray:
        """How much is covered before places on the line."""
        total = np.append(0, np.cumsum(self.high - self.low))
        count = np.searchsorted(self.low, at, side="right")
        if not len(self.low):
            return np.zeros(len(at), np.int64)
        beyond = np.maximum(self.high[count - 1] - at, 0)
        return np.asarray(total[count] - np.where(count > 0, beyond, 0))


MOST_EVENTS = 200_000
"""Independence is not computed on a rank with more instructions."""

MOST_PAIRS = 200_000_000
"""Nor with more pairs of an instruction and a run of a collective."""


@attrs.frozen(eq=False)
class Independence:
    """Which computing events of a rank neither need a run of a collective nor are needed by it."""

    events: np.ndarray  # (n,) int64, the computing events
    of_run: np.ndarray  # (runs, n) bool, in the order of the requested runs


def independence(trace: Trace, rank: int, runs: np.ndarray) -> Independence | None:
    """Which computing events of a rank are independent of each of some runs of its collectives.

    `runs` are positions in `trace.runs`. None beyond MOST_EVENTS or MOST_PAIRS.
    """
    is_rank = np.arange(trace.executable.representatives) == rank
    blocks = list(trace.blocks(trace.queues_of(EngineQueue), is_rank))
    computing = [_computing(trace, number, events) for number, events in blocks]
    count = sum(map(len, computing))
    if count > MOST_EVENTS or count * len(runs) > MOST_PAIRS:
        return None
    touched = _touched(trace, rank, [number for number, _ in blocks], computing)
    of_rank = np.flatnonzero(trace.runs.rank == rank)
    events = np.concatenate([trace.runs.first[of_rank], *computing])
    bits = {int(run): bit for bit, run in enumerate(runs.tolist())}
    bit_of = [bits.get(run) for run in of_rank.tolist()] + [None] * (len(events) - len(of_rank))
    order = np.lexsort((events, trace.end_ps[events], trace.start_ps[events])).tolist()
    producers = _producers(touched, order)
    upstream, downstream = _closures(producers, bit_of, order)
    tied = [upstream[at] | downstream[at] for at in range(len(of_rank), len(events))]
    # the sets of runs as a matrix of bits, (events, runs)
    size = -(-len(runs) // 8)
    data = b"".join(number.to_bytes(size, "little") for number in tied)
    columns = np.frombuffer(data, np.uint8).reshape(len(tied), size)
    is_tied = np.unpackbits(columns, axis=1, bitorder="little")[:, : len(runs)].astype(bool)
    return Independence(events[len(of_rank) :], ~is_tied.T)


def _computing(trace: Trace, number: int, events: np.ndarray) -> np.ndarray:
    """The events of a compute engine in which it works."""
    queue = trace.executable.queues[number]
    assert isinstance(queue, EngineQueue)
    return np.asarray(events[works(queue)[trace.row[events]]])


Range = tuple[int, int]
"""A half-open range of addresses."""

Touched = tuple[Sequence[Range], Sequence[Range]]
"""Addresses read, addresses written."""


def _touched(
    trace: Trace, rank: int, queues: Sequence[int], computing: Sequence[np.ndarray]
) -> list[Touched]:
    """The memory touched by each run of a rank's collectives, then by its computing events."""
    touched: list[Touched] = []
    program = trace.executable.stage_of(rank).program
    for number in trace.runs.placeholder[trace.runs.rank == rank].tolist():
        placeholder = program.placeholders[number]
        touched.append(
            (
                _ranges(program, (*placeholder.operands, *placeholder.counts)),
                _ranges(program, placeholder.results),
            )
        )
    for number, events in zip(queues, computing, strict=True):
        queue = trace.executable.queues[number]
        assert isinstance(queue, EngineQueue)
        rows = [
            (_ranges(program, row.operands), _ranges(program, row.results)) for row in queue.table
        ]
        touched += [rows[row] for row in trace.row[events].tolist()]
    return touched


def _ranges(program: Program, tensors: Sequence[int]) -> list[Range]:
    return [
        (program.address(tensor), program.address(tensor) + program.tensors[tensor].size_bytes)
        for tensor in tensors
    ]


class _LastWriters:
    """The last writer of every address, as disjoint ranges; None where nothing wrote."""

    def __init__(self) -> None:
        self._low: list[int] = [0]
        self._writer: list[int | None] = [None]

    def write(self, place: Range, writer: int) -> None:
        low, high = place
        if low == high:
            return
        self._split(high)
        self._split(low)
        first, last = bisect.bisect_left(self._low, low), bisect.bisect_left(self._low, high)
        self._low[first:last], self._writer[first:last] = [low], [writer]

    def read(self, place: Range) -> Iterator[int]:
        low, high = place
        first = bisect.bisect_right(self._low, low) - 1
        last = bisect.bisect_left(self._low, high)
        yield from (writer for writer in self._writer[first:last] if writer is not None)

    def _split(self, at: int) -> None:
        """Split the range that holds an address so that one begins there."""
        after = bisect.bisect_right(self._low, at)
        if self._low[after - 1] != at:
            self._low.insert(after, at)
            self._writer.insert(after, self._writer[after - 1])


def _producers(touched: Sequence[Touched], order: Sequence[int]) -> list[set[int]]:
    """The events that wrote what each reads."""
    last, producers = _LastWriters(), [set[int]() for _ in touched]
    for at in order:
        reads, writes = touched[at]
        for place in reads:
            producers[at].update(last.read(place))
        for place in writes:
            last.write(place, at)
    return producers


def _closures(
    producers: Sequence[set[int]], bit_of: Sequence[int | None], order: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The runs that each event depends on, and those that depend on it, as bits."""
    itself = [0 if bit is None else 1 << bit for bit in bit_of]
    upstream, downstream = [0] * len(producers), [0] * len(producers)
    for at in order:
        for producer in producers[at]:
            upstream[at] |= upstream[producer] | itself[producer]
    for at in reversed(order):
        for producer in producers[at]:
            downstream[producer] |= downstream[at] | itself[at]
    return upstream, downstream


@attrs.frozen
class Overlap:
    """Times in picoseconds, summed over all ranks."""

    ranks: int
    compute_ps: int
    collective_ps: int
    exposed_ps: int
    most_exposed_ps: int  # of the one rank that has most

    @property
    def hidden_share(self) -> float | None:
        """The part of the collectives' time in which engines work; None without collectives."""
        return 1 - self.exposed_ps / self.collective_ps if self.collective_ps else None

    def mean_us(self, total_ps: int) -> float:
        """Of one rank, on average."""
        return total_ps / self.ranks / 1e6


@attrs.frozen
class Hideable:
    """An all-reduce, or several, beside compute: on the first rank of each program, in ps."""

    all_reduce_ps: int
    independent_ps: int  # compute that is independent of it, or of one of several
    hidden_ps: int  # of all_reduce_ps, engines working
    most_ps: int  # what could be hidden at best

    @property
    def share(self) -> float | None:
        """The hidden part of what could be hidden; None where nothing could."""
        return min(1.0, self.hidden_ps / self.most_ps) if self.most_ps else None


@attrs.frozen
class AllReduces:
    """How much of the all-reduces of a run is hidden, and could be."""

    each: Mapping[int, Hideable]  # by placeholder; all its runs added up
    together: Hideable


def busy_cover(trace: Trace) -> Cover:
    """When at least one compute engine of a rank works."""
    columns: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in range(3)]
    for number, events in trace.blocks(trace.queues_of(EngineQueue)):
        events = _computing(trace, number, events)
        more = trace.rank[events], trace.start_ps[events], trace.end_ps[events]
        for column, values in zip(columns, more, strict=True):
            column.append(values)
    rank, start, end = (np.concatenate(column) for column in columns)
    return Cover.of(trace.executable.representatives, trace.time_ps, rank, start, end)


def _runs_cover(trace: Trace, at: np.ndarray) -> Cover:
    """When at least one of these runs (positions in `trace.runs`) is in flight."""
    runs = trace.runs
    start, end = trace.start_ps[runs.first[at]], trace.end_ps[runs.last[at]]
    return Cover.of(trace.executable.representatives, trace.time_ps, runs.rank[at], start, end)


@attrs.frozen(eq=False)
class OverlapByRank:
    """Times in picoseconds of each rank, (ranks,) int64."""

    compute_ps: np.ndarray
    collective_ps: np.ndarray
    exposed_ps: np.ndarray


def overlap_by_rank(trace: Trace) -> OverlapByRank:
    """When engines work and collectives are under way, and how much of the latter is exposed."""
    busy, moving = busy_cover(trace), _runs_cover(trace, np.arange(len(trace.runs.first)))
    collective = moving.by_rank_ps()
    return OverlapByRank(busy.by_rank_ps(), collective, collective - busy.shared_by_rank_ps(moving))


def overlap(trace: Trace) -> Overlap:
    """The time of compute and of collectives in a run, and how much of the latter is exposed."""
    each = overlap_by_rank(trace)
    return Overlap(
        ranks=trace.executable.representatives,
        compute_ps=int(each.compute_ps.sum()),
        collective_ps=int(each.collective_ps.sum()),
        exposed_ps=int(each.exposed_ps.sum()),
        most_exposed_ps=int(each.exposed_ps.max(initial=0)),
    )


def all_reduces(trace: Trace) -> AllReduces | None:
    """How much of all-reduces is hidden and could be; None without any, or beyond MOST_EVENTS.

    Programs that run together are added up, each by its first rank.
    """
    placeholders, runs = trace.executable.program.placeholders, trace.runs
    is_sum = np.array([p.op is CollectiveOp.ALL_REDUCE for p in placeholders], bool)
    first = np.array([int(stage.ranks[0]) for stage in trace.executable.stages])
    sums = np.flatnonzero(np.isin(runs.rank, first) & is_sum[runs.placeholder])
    if not len(sums):
        return None
    independent_ps, of_any = np.zeros(len(sums), np.int64), [np.zeros(0, np.int64)]
    for rank in first.tolist():
        is_rank = runs.rank[sums] == rank
        free = independence(trace, rank, sums[is_rank])
        if free is None:
            return None
        columns = [free.events[row] for row in free.of_run]
        independent_ps[is_rank] = [_covered_ps(trace, events) for events in columns]
        of_any.append(free.events[free.of_run.any(axis=0)])
    return _added_up(trace, sums, independent_ps, _covered_ps(trace, np.concatenate(of_any)))


def _covered_ps(trace: Trace, events: np.ndarray) -> int:
    """The time in which at least one of these events goes on, summed over ranks."""
    start, end = trace.start_ps[events], trace.end_ps[events]
    cover = Cover.of(
        trace.executable.representatives, trace.time_ps, trace.rank[events], start, end
    )
    return int(cover.by_rank_ps().sum())


def _added_up(
    trace: Trace, sums: np.ndarray, independent_ps: np.ndarray, beside_ps: int
) -> AllReduces:
    """These runs of all-reduces by placeholder, and together.

    No more of a run can be hidden than it takes, nor than there is compute independent of it; of
    all together no more than they take, nor than there is compute independent of any.
    """
    runs, busy, moving = trace.runs, busy_cover(trace), _runs_cover(trace, sums)
    start, end = trace.start_ps[runs.first[sums]], trace.end_ps[runs.last[sums]]
    columns = np.stack(
        [
            end - start,
            independent_ps,
            busy.within_ps(runs.rank[sums], start, end),
            np.minimum(end - start, independent_ps),
        ]
    )
    by_placeholder = {
        int(number): Hideable(*columns[:, runs.placeholder[sums] == number].sum(axis=1).tolist())
        for number in np.unique(runs.placeholder[sums])
    }
    all_ps, hidden_ps = int(moving.by_rank_ps().sum()), int(busy.shared_by_rank_ps(moving).sum())
    most_ps = min(all_ps, beside_ps, int(columns[3].sum()))
    return AllReduces(by_placeholder, Hideable(all_ps, beside_ps, hidden_ps, most_ps))
