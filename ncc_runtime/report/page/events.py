"""The events of a run as the page's timeline draws them: tracks of ranks, columns of numbers.

A track is a queue of a rank, or the collectives of one of its CC-cores, from trigger to report.
Every event is there where they are at most MOST_EVENTS. Of more, those of one queue that are too
short to be seen apart, even at a zoom of ZOOM, become one block: neighbours that start in one cell
of the time line. Cells grow until few enough are left. Ranks of the critical path, and those that
are asked for, keep all theirs as long as these are no more than half.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.execution.trace import NO_EVENT, Trace, works
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, EngineQueue, Executable
from ncc_runtime.report.critical_path import CriticalPath
from ncc_runtime.report.page.columns import ColumnStore
from ncc_runtime.report.row_texts import placeholder_text, row_texts
from ncc_runtime.report.timeline.tracks import lanes

MOST_EVENTS = 1_500_000
"""Events of a page, which take about four bytes each."""

ZOOM = 64
"""Cells are no larger than a pixel of 1,000 at this zoom, unless there are too many events."""

MOST_ROUTES = 20_000
"""Pairs of ranks whose route is written."""

BLOCK = -1
"""The row of an event that stands for several."""

ON_PATH = 4
"""Added to the reason of events on the critical path."""

Words = dict[str, int]
"""Texts by number, each stored once."""


@attrs.define(eq=False)
class Events:
    """What the page gets of a trace."""

    queues: list[dict[str, Any]]  # name, kind, engine; texts, lines and collectives of its rows
    tracks: list[list[int]]  # rank, queue, events, then numbers of columns as in TRACK_COLUMNS
    routes: dict[str, int]  # `0>1` → text
    events: int  # of the trace
    kept: int  # in the page, blocks among them
    cell_ps: int  # of blocks; 0: there are none
    whole: list[int]  # ranks that keep all


TRACK_COLUMNS = (
    "row",
    "gap",
    "duration",
    "reason",
    "slowed",
    "cause_queue",
    "cause_rank",
    "cause_index",
    "lane",
    "peer",
    "bytes",
    "merged",
)
"""Of each track: row of its queue; picoseconds since the event before ended, and that it takes;
why it started no earlier, and whether it is on the critical path; picoseconds lost by sharing; the
event it waited for, by queue, rank and place in that track, the first two as differences from its
own; lane of a ring, receiver, bytes; how many events a block stands for. -1 for none of all."""


def events_of(
    trace: Trace,
    path: CriticalPath,
    store: ColumnStore,
    prefix: str,
    words: Words,
    ranks: Sequence[int] | None = None,
) -> Events:
    """Fill the store with the columns of all tracks; chunks are `prefix` and the rank.

    `ranks` are those that have tracks, all by default.
    """
    executable = trace.executable
    shown = np.ones(executable.representatives, bool)
    if ranks is not None:
        shown = np.isin(np.arange(executable.representatives), list(ranks))
    on_path = np.zeros(len(trace), bool)
    on_path[[event for step in path.steps for event in step.chain]] = True
    whole, cell_ps = _thinning(trace, path, shown, is_given=ranks is not None)
    tracks = [
        _Track(trace, int(trace.rank[events[0]]), queue, events)
        for queue in range(len(executable.queues))
        for _, block in trace.blocks([queue], shown)
        for events in np.split(block, np.flatnonzero(np.diff(trace.rank[block])) + 1)
    ]
    tracks.sort(key=lambda track: (track.rank, track.queue))
    place = np.full(len(trace), -1, np.int64)  # of each event in its own track
    for track in tracks:
        track.thin(0 if track.rank in whole else cell_ps)
        place[track.events] = track.block_of
    rows = [track.stored(store, f"{prefix}{track.rank}", place, on_path) for track in tracks]
    queues = [_queue(executable, number, words) for number in range(len(executable.queues))]
    spans, span_queues = _collectives(trace, shown, store, prefix, words, len(queues))
    return Events(
        queues=[*queues, *span_queues],
        tracks=sorted([*rows, *spans], key=lambda row: (row[0], row[1])),
        routes=_routes(executable, tracks, words),
        events=int(sum(len(track.events) for track in tracks)),
        kept=int(sum(len(track.first) for track in tracks)),
        cell_ps=cell_ps,
        whole=sorted(whole),
    )


def _thinning(
    trace: Trace, path: CriticalPath, shown: np.ndarray, *, is_given: bool
) -> tuple[set[int], int]:
    """Ranks that keep all events, and the size of cells for the others; 0 where all are kept."""
    counts = trace.counts.sum(axis=0) * shown
    everything = set(np.flatnonzero(shown).tolist())
    if counts.sum() <= MOST_EVENTS:
        return everything, 0
    time_on_path = np.zeros(len(counts), np.int64)
    for step in path.steps:
        for rank in step.ranks:
            time_on_path[rank % len(counts)] += step.time_ps // len(step.ranks)
    order = np.argsort(-time_on_path, kind="stable")
    whole: set[int] = set()
    left = MOST_EVENTS if is_given else MOST_EVENTS // 2
    for rank in order[shown[order]].tolist():
        if counts[rank] <= left:
            whole.add(rank)
            left -= int(counts[rank])
    rest = everything - whole
    room = max(MOST_EVENTS - int(counts[sorted(whole)].sum()), 1)
    cell_ps = max(1, trace.time_ps // (1000 * ZOOM))
    is_rest = np.isin(np.arange(len(counts)), sorted(rest))
    while rest and _blocks(trace, is_rest, cell_ps) > room and cell_ps < trace.time_ps:
        cell_ps *= 2
    return whole, cell_ps


def _blocks(trace: Trace, ranks: np.ndarray, cell_ps: int) -> int:
    """How many events are left of some ranks."""
    queues = range(len(trace.executable.queues))
    return sum(
        int(_opens(trace, events, cell_ps).sum()) for _, events in trace.blocks(queues, ranks)
    )


def _opens(trace: Trace, events: np.ndarray, cell_ps: int) -> np.ndarray:
    """Whether each event begins a block: long ones alone, short ones with those of their cell."""
    start, rank = trace.start_ps[events], trace.rank[events]
    is_long = trace.end_ps[events] - start >= cell_ps
    cell = start // cell_ps
    opens = is_long | np.append(True, is_long[:-1])[: len(events)]
    opens[1:] |= (cell[1:] != cell[:-1]) | (rank[1:] != rank[:-1])
    return np.asarray(opens)


@attrs.define(eq=False)
class _Track:
    """The events of one queue on one rank, in order, and the blocks that they are drawn as."""

    trace: Trace
    rank: int
    queue: int
    events: np.ndarray
    first: np.ndarray = attrs.field(init=False)  # (blocks,) place of the first event of each
    block_of: np.ndarray = attrs.field(init=False)  # (events,)

    def thin(self, cell_ps: int) -> None:
        """Make blocks of what starts in one cell; 0: every event is one."""
        self.first = np.arange(len(self.events))
        self.block_of = self.first
        if cell_ps:
            opens = _opens(self.trace, self.events, cell_ps)
            self.first, self.block_of = np.flatnonzero(opens), np.cumsum(opens) - 1

    def stored(
        self, store: ColumnStore, chunk: str, place: np.ndarray, on_path: np.ndarray
    ) -> list[int]:
        """Its row of `Events.tracks`."""
        trace, queue = self.trace, self.trace.executable.queues[self.queue]
        merged = np.diff(np.append(self.first, len(self.events)))
        is_one = merged == 1
        events = self.events[self.first]
        start_ps = trace.start_ps[events]
        end_ps = np.maximum.reduceat(trace.end_ps[self.events], self.first)
        row = np.where(is_one, trace.row[events], BLOCK)
        cause = trace.cause[events].astype(np.int64)
        known = is_one & (cause != NO_EVENT)
        known[known] = place[cause[known]] >= 0  # of a rank that has tracks
        at = np.where(known, cause, 0)
        path = np.maximum.reduceat(on_path[self.events], self.first)
        columns = {
            "row": np.asarray(row, np.int64),
            "gap": start_ps - np.append(0, end_ps[:-1])[: len(end_ps)],
            "duration": end_ps - start_ps,
            "reason": trace.reason[events].astype(np.int64) + ON_PATH * path,
            "slowed": np.add.reduceat(trace.slowed_ps[self.events].astype(np.int64), self.first),
            "cause_queue": np.where(known, trace.queue[at].astype(np.int64) - self.queue, 0),
            "cause_rank": np.where(known, trace.rank[at].astype(np.int64) - self.rank, 0),
            "cause_index": np.where(known, place[at], -1),
        }
        if isinstance(queue, DmaQueue):
            rank = np.full(len(events), self.rank)
            columns["lane"] = lanes(rank, start_ps, end_ps)
            columns["peer"] = np.where(is_one, queue.peer[trace.row[events], rank], IDLE)
            sizes = queue.bytes_of(trace.row[self.events], np.full(len(self.events), self.rank))
            columns["bytes"] = np.add.reduceat(sizes, self.first)
        if not is_one.all():
            columns["merged"] = merged
        numbers = [
            store.add(chunk, columns[name], is_delta=name in ("row", "cause_index"))
            if name in columns and (name != "slowed" or columns[name].any())
            else -1
            for name in TRACK_COLUMNS
        ]
        return [self.rank, self.queue, len(events), *numbers]


def _queue(executable: Executable, number: int, words: Words) -> dict[str, Any]:
    """The texts of a queue's rows, by number in `words`."""
    queue = executable.queues[number]
    texts = row_texts(executable, number)
    facts: dict[str, Any] = {
        "name": queue.name,
        "kind": {EngineQueue: "engine", CcQueue: "cc", DmaQueue: "dma"}[type(queue)],
        "names": [_word(words, text) for text in texts.name],
        "lines": [_word(words, text) for text in texts.place] if any(texts.place) else [],
    }
    if isinstance(queue, EngineQueue):
        facts["placeholders"] = queue.table.placeholder.tolist()
        facts["works"] = works(queue).astype(int).tolist()
    else:
        facts["placeholders"] = queue.placeholder.tolist()
    return facts


def _word(words: Words, text: str) -> int:
    return words.setdefault(text, len(words))


def _collectives(
    trace: Trace, shown: np.ndarray, store: ColumnStore, prefix: str, words: Words, first: int
) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Tracks of whole collectives by rank, one for each CC-core, and their queues."""
    runs, executable = trace.runs, trace.executable
    numbers = trace.queues_of(CcQueue)
    names = [
        _word(words, placeholder_text(executable, n))
        for n in range(len(executable.program.placeholders))
    ]
    queues, rows = [], []
    of_run = trace.queue[runs.first]
    for number in numbers:
        queue = executable.queues[number]
        name = "collectives" if len(numbers) == 1 else f"collectives of {queue.name}"
        queues.append({"name": name, "kind": "collective", "names": names, "lines": []})
        here = np.flatnonzero((of_run == number) & shown[runs.rank])
        here = here[np.lexsort((trace.start_ps[runs.first[here]], runs.rank[here]))]
        ranks = runs.rank[here]
        for part in np.split(here, np.flatnonzero(np.diff(ranks)) + 1):
            if not len(part):
                continue
            rank = int(runs.rank[part[0]])
            start, end = trace.start_ps[runs.first[part]], trace.end_ps[runs.last[part]]
            columns = {
                "row": runs.placeholder[part].astype(np.int64),
                "gap": start - np.append(0, end[:-1])[: len(end)],
                "duration": end - start,
            }
            stored = [
                store.add(f"{prefix}{rank}", columns[each], is_delta=each == "row")
                if each in columns
                else -1
                for each in TRACK_COLUMNS
            ]
            rows.append([rank, first + len(queues) - 1, len(part), *stored])
    return rows, queues


def _routes(executable: Executable, tracks: Sequence[_Track], words: Words) -> dict[str, int]:
    """The routes that transfers take, of at most MOST_ROUTES pairs of ranks."""
    pairs: set[tuple[int, int]] = set()
    for track in tracks:
        queue = executable.queues[track.queue]
        if isinstance(queue, DmaQueue):
            peers = np.unique(queue.peer[:, track.rank])
            pairs |= {(track.rank, peer) for peer in peers[peers != IDLE].tolist()}
        if len(pairs) > MOST_ROUTES:
            return {}
    describe = executable.routes.describe
    return {f"{a}>{b}": _word(words, describe(a, b)) for a, b in sorted(pairs)}
