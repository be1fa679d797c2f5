"""The content of a timeline, as columns: tracks, slices with arguments and arrows, counters.

Tracks are every rank's engines, CC-cores and DMA rings, in one group for each rank, and links in
one more. A collective is a slice around the rows of its CC-core, from its trigger to its report.
Numbers of tracks are unique; arrows join the slices that have the same number.

A viewer wants the slices of one track not to overlap. A DMA ring starts its next run of descriptors
before the last one has arrived, so a ring has as many tracks as runs are in flight at a time.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import attrs
import numpy as np

from ncc_runtime.execution.trace import NO_EVENT, Reason, Trace
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, EngineQueue, Executable
from ncc_runtime.neff.stages import collective_origins
from ncc_runtime.report.row_texts import RowTexts, placeholder_text, row_texts
from ncc_runtime.report.timeline.arrows import Arrows, arrows_of, waited


@attrs.frozen
class Track:
    """A line of the timeline; `parent` is the number of its group, of a group itself 0."""

    number: int
    parent: int
    name: str
    order: int = 0  # among its group
    is_counter: bool = False


@attrs.frozen(eq=False)
class Texts:
    """A column of words, each distinct one stored once."""

    code: np.ndarray  # (n,) int, index of words
    words: Sequence[str]


@attrs.frozen(eq=False)
class Argument:
    """A column of details: whole numbers, fractions or words; nothing where `given` is False."""

    name: str
    values: np.ndarray | Texts  # int64, or float64
    given: np.ndarray | None = None  # (n,) bool; None: everywhere


@attrs.frozen(eq=False)
class Slices:
    """Intervals on tracks; those of one track follow each other, in order."""

    category: str
    track: np.ndarray  # (n,) int64
    start_ps: np.ndarray  # (n,) int64
    end_ps: np.ndarray  # (n,) int64
    name: Texts
    arguments: tuple[Argument, ...]
    arrives: np.ndarray  # (n,) int64: number of the arrow that ends here, 0 for none
    leaves: tuple[np.ndarray, ...]  # columns likewise: arrows that begin here

    def __len__(self) -> int:
        return len(self.track)


@attrs.frozen(eq=False)
class Around:
    """Slices that enclose runs of others: slice k those from first[k] to last[k]."""

    slices: Slices
    first: np.ndarray  # (n,) int64, index of the enclosed Slices, ascending
    last: np.ndarray  # (n,) int64, or beyond its end


@attrs.frozen(eq=False)
class TimelineBatch:
    """Some tracks that are new, and slices on them."""

    tracks: tuple[Track, ...]
    slices: Slices
    around: Around | None = None
    events: int = 0  # of the trace, that are in it


@attrs.frozen(eq=False)
class Samples:
    """Values of counters, by track, then in order of time."""

    tracks: tuple[Track, ...]
    track: np.ndarray  # (n,) int64
    time_ps: np.ndarray  # (n,) int64
    value: np.ndarray  # (n,) float64


Content = TimelineBatch | Samples
"""What writers take, one after another."""


def lanes(track: np.ndarray, start_ps: np.ndarray, end_ps: np.ndarray) -> np.ndarray:
    """A lane for every slice so that those of one track and lane do not overlap, int64.

    Slices are sorted by track, an ascending number, then by start. In a busy period some slice
    is always open; it has as many lanes as overlap most, and uses them in turn.
    """
    if not len(track):
        return np.zeros(0, np.int64)
    _, ordinal = np.unique(track, return_inverse=True)
    # tracks one after another on one line, so that one running maximum serves all of them
    before = ordinal * (int(end_ps.max()) + 1)
    start, reach = before + start_ps, np.maximum.accumulate(before + end_ps)
    at = np.arange(len(track))
    opens = np.append(True, start[1:] >= reach[:-1])
    period = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    done = np.minimum(np.searchsorted(reach, start, side="right"), at)
    overlapping = np.maximum.reduceat(at - done + 1, first)  # at most, by period
    return np.asarray((at - first[period]) % overlapping[period])


PIECE = 1 << 12
"""Events of a batch."""

_LANES = 1 << 12  # of a queue, at most
_RANKS = 32  # bits for the track within its group

_REASONS = tuple(reason.name.lower() for reason in Reason)
_CATEGORIES = {EngineQueue: "engine", CcQueue: "cc", DmaQueue: "dma"}


def group_number(rank: int) -> int:
    """The group of a rank's tracks."""
    return (rank + 1) << _RANKS


def batches(trace: Trace, ranks: np.ndarray) -> Iterator[TimelineBatch]:
    """All that some ranks (bool by rank) did, queue by queue, each rank's in order."""
    texts = _SharedTexts(trace.executable)
    arrows, place = arrows_of(trace), trace.executable.placement
    nothing = np.zeros(0, np.int64)
    groups = tuple(
        Track(
            group_number(rank),
            0,
            f"rank {rank} (node {place.node[rank]}, chip {place.chip[rank]})",
            rank,
        )
        for rank in np.flatnonzero(ranks).tolist()
    )
    yield TimelineBatch(groups, _QueueSlices(trace, 0, texts, arrows).of(nothing))
    for number, events in trace.blocks(range(len(trace.executable.queues)), ranks):
        yield from _QueueSlices(trace, number, texts, arrows).batches(events)


class _SharedTexts:
    """Texts that many slices share, made when first needed."""

    def __init__(self, executable: Executable) -> None:
        self.rows = lru_cache(4)(partial(row_texts, executable))
        self.semaphores = lru_cache(64)(executable.semaphore_names)
        self.route = lru_cache(1 << 14)(executable.routes.describe)
        self.origins = collective_origins(executable.program)


@attrs.frozen(eq=False)
class _QueueSlices:
    """Slices of one queue."""

    _trace: Trace
    _number: int
    _texts: _SharedTexts
    _arrows: Arrows

    def batches(self, events: np.ndarray) -> Iterator[TimelineBatch]:
        """Slices of events: whole ranks, by rank, in order."""
        queue = self._trace.executable.queues[self._number]
        lane = np.zeros(len(events), np.int64)
        wait: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(queue, DmaQueue):
            rank, trace = self._trace.rank[events], self._trace
            lane = lanes(rank, trace.start_ps[events], trace.end_ps[events])
        else:
            wait = waited(self._trace, self._number, events)
        runs = self._runs(events) if isinstance(queue, CcQueue) else None
        for low in range(0, len(events), PIECE):
            some = slice(low, low + PIECE)
            details = self._waits(events[some], wait[0][some], wait[1][some]) if wait else ()
            slices = self.of(events[some], lane[some], details)
            tracks = tuple(
                Track(number, number >> _RANKS << _RANKS, queue.name, self._number)
                for number in np.unique(slices.track).tolist()
            )
            around = None if runs is None else self._around(runs, low, len(slices))
            yield TimelineBatch(tracks, slices, around, len(slices))

    def of(
        self,
        events: np.ndarray,
        lane: np.ndarray | int = 0,
        details: tuple[Argument, ...] = (),
    ) -> Slices:
        """One slice for every event."""
        trace, texts = self._trace, self._texts.rows(self._number)
        queue = trace.executable.queues[self._number]
        row = trace.row[events]
        if isinstance(queue, DmaQueue):
            details = self._transfers(queue, row, trace.rank[events])
        leaves = self._arrows.leaving(events)
        return Slices(
            category=_CATEGORIES[type(queue)],
            track=self._track(events, lane),
            start_ps=trace.start_ps[events],
            end_ps=trace.end_ps[events],
            name=Texts(row, texts.name),
            arguments=(*self._common(events), *self._places(row, texts), *details),
            arrives=self._arrows.arriving(events),
            leaves=(leaves,) if leaves.any() else (),
        )

    def _track(self, events: np.ndarray, lane: np.ndarray | int) -> np.ndarray:
        """Numbers of tracks: rank, queue, lane."""
        group = (self._trace.rank[events].astype(np.int64) + 1) << _RANKS
        assert np.max(lane, initial=0) < _LANES, "more transfers under way than lanes"
        return np.asarray(group + (self._number + 1) * _LANES + lane)

    def _common(self, events: np.ndarray) -> Iterator[Argument]:
        """Arguments of every event; times to the picosecond, which viewers round."""
        trace = self._trace
        cause, reason = trace.cause[events].astype(np.int64), trace.reason[events]
        slowed = trace.slowed_ps[events]
        yield Argument("event", events)
        yield Argument("start_ps", trace.start_ps[events])
        yield Argument("duration_ps", trace.end_ps[events] - trace.start_ps[events])
        yield Argument("cause", cause, cause != NO_EVENT)
        yield Argument("reason", Texts(reason, _REASONS), reason != Reason.NONE)
        yield Argument("slowed_us", slowed / 1e6, slowed > 0)

    @staticmethod
    def _places(row: np.ndarray, texts: RowTexts) -> Iterator[Argument]:
        """Lines of the user's code."""
        has_place = np.array([bool(place) for place in texts.place], bool)
        if has_place.any():
            yield Argument("line", Texts(row, texts.place), has_place[row])

    def _waits(
        self, events: np.ndarray, sem: np.ndarray, value: np.ndarray
    ) -> tuple[Argument, ...]:
        """Names and values of semaphores."""
        given = sem != IDLE
        rank = self._trace.rank[events].astype(np.int64)
        count = max(1, self._trace.executable.semaphore_count)
        keys, code = np.unique(np.where(given, rank * count + sem, IDLE), return_inverse=True)
        pairs = [divmod(key, count) for key in keys.tolist()]  # IDLE is (-1, …)
        words = [self._texts.semaphores(rank)[sem] if rank != IDLE else "" for rank, sem in pairs]
        names = Texts(code, words)
        return Argument("waited_for", names, given), Argument("until", value, given)

    def _transfers(
        self, queue: DmaQueue, row: np.ndarray, rank: np.ndarray
    ) -> tuple[Argument, ...]:
        """Sizes, receivers and routes of transfers that these ranks send."""
        sizes = queue.bytes_of(row, rank)
        arguments = [Argument("bytes", sizes)]
        for prefix, peers in (("", queue.peer), ("also_", queue.second_peer)):
            if peers is not None:
                arguments += self._route(prefix, rank, peers[row, rank])
        return tuple(arguments)

    def _route(self, prefix: str, rank: np.ndarray, peer: np.ndarray) -> Iterator[Argument]:
        given = peer != IDLE
        to, ranks = np.where(given, peer, rank).astype(np.int64), self._trace.executable.ranks
        keys, code = np.unique(rank * np.int64(ranks) + to, return_inverse=True)
        words = [self._texts.route(*divmod(key, ranks)) for key in keys.tolist()]
        yield Argument(f"{prefix}peer", to, given)
        yield Argument(f"{prefix}route", Texts(code, words), given)

    def _runs(self, events: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs of collectives among events, and where they begin and end there."""
        runs = self._trace.runs
        order = np.argsort(events, kind="stable")
        at = np.minimum(np.searchsorted(events[order], runs.first), len(events) - 1)
        here = np.flatnonzero(events[order][at] == runs.first)
        first = order[at[here]]
        last = order[np.searchsorted(events[order], runs.last[here])]
        by_place = np.argsort(first, kind="stable")
        return here[by_place], first[by_place], last[by_place]

    def _around(
        self, runs_of: tuple[np.ndarray, np.ndarray, np.ndarray], low: int, count: int
    ) -> Around:
        """The collectives that begin among `count` events from `low` on."""
        trace, runs = self._trace, self._trace.runs
        run, first, last = (
            column[np.searchsorted(runs_of[1], low) : np.searchsorted(runs_of[1], low + count)]
            for column in runs_of
        )
        placeholder, begin, end = runs.placeholder[run], runs.first[run], runs.last[run]
        numbers, code = np.unique(placeholder, return_inverse=True)
        names = [placeholder_text(trace.executable, number) for number in numbers.tolist()]
        algorithms = [trace.executable.lowered[number].name for number in numbers.tolist()]
        origins = [self._texts.origins[number] for number in numbers.tolist()]
        has_line = np.array([bool(origin.place) for origin in origins], bool)[code]
        has_path = np.array([bool(origin.op_name) for origin in origins], bool)[code]
        lowered = [trace.executable.lowered[number] for number in numbers.tolist()]
        placeholders = [trace.executable.program.placeholders[n] for n in numbers.tolist()]
        groups = np.array([max(1, len(each.groups)) for each in placeholders], np.int64)
        sizes = np.array([max(each.group_sizes, default=0) for each in lowered], np.int64)
        start, done = trace.start_ps[begin], trace.end_ps[end]
        slices = Slices(
            category="collective",
            track=self._track(begin, 0),
            start_ps=start,
            end_ps=done,
            name=Texts(code, names),
            arguments=(
                Argument("placeholder", placeholder.astype(np.int64)),
                Argument("algorithm", Texts(code, algorithms)),
                Argument("line", Texts(code, [one.place for one in origins]), has_line),
                Argument("op_name", Texts(code, [one.op_name for one in origins]), has_path),
                Argument("groups", groups[code]),
                Argument("group_size", sizes[code]),
                Argument("start_ps", start),
                Argument("duration_ps", done - start),
            ),
            arrives=run.astype(np.int64) + 1,
            leaves=self._arrows.from_runs(run),
        )
        return Around(slices, first - low, last - low)
