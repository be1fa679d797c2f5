"""One run as a page shows it: everything that is computed of it, once."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from ncc_runtime.collectives.bounds import Bound
from ncc_runtime.errors import InputError
from ncc_runtime.execution.trace import Trace, traffic_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.memory import MemoryUse
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.report.collective_table import EqualCollectives, folded
from ncc_runtime.report.collectives import CollectiveRow, collective_rows
from ncc_runtime.report.findings import Breakdown, Finding, bounds, breakdown, findings, verdict
from ncc_runtime.report.memory_over_time import MemoryOverTime, memory_over_time
from ncc_runtime.report.page.columns import ColumnStore
from ncc_runtime.report.page.events import TRACK_COLUMNS, Events, Words, events_of
from ncc_runtime.report.page.link_rates import link_rates
from ncc_runtime.report.performance import Performance
from ncc_runtime.report.rates import PerStep, Rates, rates_of
from ncc_runtime.report.run import Run, memory_use
from ncc_runtime.report.timeline.marks import Mark
from ncc_runtime.report.topology.overlay import FaultMark, Load, Overlay, RankGroups
from ncc_runtime.report.topology.run_overlay import divisions_of, fault_mark, loads_of
from ncc_runtime.report.topology.svg import as_svg

SHOWN_RANKS = 4
"""Ranks that the timeline shows first."""

MOST_POINTS = 4000
"""Of memory over time."""

MOST_DIVISIONS = 8
"""Ways to divide the ranks that can be chosen as colours."""


def time_text(time_us: float) -> str:
    """A time for people: `249.1 ms`."""
    if abs(time_us) >= 1e7:
        return f"{time_us / 1e6:,.2f} s"
    return f"{time_us / 1000:,.1f} ms" if abs(time_us) >= 1e4 else f"{time_us:,.1f} us"


@attrs.frozen(eq=False)
class RunSide:
    """A run, and what is read off it; each part is computed when it is first read."""

    letter: str  # `a`, and `b` of what it is compared with
    run: Run
    per_step: PerStep | None = None

    @property
    def executable(self) -> Executable:
        return self.run.executable

    @cached_property
    def _timeline(self) -> tuple[Trace, Sequence[Mark]]:
        timeline = self.run.timeline
        if timeline is None:
            raise InputError("the run has no times, of which a page is made: run it with a clock")
        return timeline

    @property
    def trace(self) -> Trace:
        """What was performed; of a run that stalls, up to then."""
        return self._timeline[0]

    @property
    def marks(self) -> Sequence[Mark]:
        return self._timeline[1]

    @property
    def is_complete(self) -> bool:
        return self.run.trace is not None

    @property
    def time_us(self) -> float:
        return self.trace.time_ps / 1e6

    @cached_property
    def performance(self) -> Performance:
        return Performance(self.trace)

    @cached_property
    def breakdown(self) -> Breakdown:
        return breakdown(self.performance)

    @property
    def verdict(self) -> str:
        """The first sentences of the page: what binds the run, and what was tried and is faster."""
        if self.run.faults is not None and not self.is_complete:
            refusal = self.run.faults.refusal()
            return f"{refusal[:1].upper()}{refusal[1:]}."
        best = min(self.run.alternatives, key=lambda other: other.time_us, default=None)
        if best is None or best.time_us >= self.time_us:
            return verdict(self.breakdown)
        less = (self.time_us - best.time_us) / self.time_us
        faster = f"With {best.words} it would take {time_text(best.time_us)}, {less:.0%} less."
        return f"{verdict(self.breakdown)} {faster}"

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        return bounds(self.executable)

    @cached_property
    def rates(self) -> Rates | None:
        return rates_of(self.trace, self.per_step) if self.is_complete else None

    @cached_property
    def findings(self) -> list[Finding]:
        if not self.is_complete:
            return []
        return findings(self.run, self.performance, self.bounds, self.rates)

    @cached_property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """A row for each; of a run that stalls, of what it performed."""
        if self.is_complete:
            return self.run.collectives
        return collective_rows(self.executable, traffic_of(self.trace), self.trace)

    @cached_property
    def equal_collectives(self) -> list[EqualCollectives]:
        return folded(self.collectives)

    def bound_us(self, rows: Sequence[CollectiveRow]) -> float:
        """The lower bounds of all runs of some collectives, added up."""
        return sum(self.bounds[row.id].time_ps * (row.runs or 0) for row in rows) / 1e6

    @cached_property
    def memory(self) -> MemoryUse:
        return memory_use(self.executable)

    @cached_property
    def live(self) -> MemoryOverTime:
        """Of the first rank of the program that takes most."""
        stages = self.executable.stages
        stage = max(stages, key=lambda stage: stage.program.hbm_bytes)
        return memory_over_time(self.trace, int(stage.ranks[0]))

    @cached_property
    def loads(self) -> dict[str, Load]:
        return loads_of(self.executable, self.performance.use)

    @cached_property
    def divisions(self) -> list[RankGroups]:
        return divisions_of(self.executable)[:MOST_DIVISIONS]

    @cached_property
    def faults(self) -> list[FaultMark]:
        """Where the faults of the run are."""
        if self.run.faults is None:
            return []
        return [
            fault_mark(self.executable, one.name, one.disturbance) for one in self.run.faults.faults
        ]

    @cached_property
    def svg(self) -> str:
        """The machine with traffic, groups and faults."""
        overlay = Overlay(self.loads, next(iter(self.divisions), None), self.faults)
        return as_svg(self.executable.topology, self.executable.placement, overlay)

    def first_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """Those that the timeline shows first: most of the time on the critical path."""
        count = self.executable.representatives
        time_ps = np.zeros(count, np.int64)
        for step in self.performance.path.steps:
            for rank in step.ranks:
                time_ps[rank % count] += step.time_ps // len(step.ranks)
        order = np.argsort(-time_ps, kind="stable").tolist()
        if ranks is not None:
            order = [rank for rank in order if rank in set(ranks)]
        return sorted(order[:SHOWN_RANKS])

    def stored(
        self, store: ColumnStore, words: Words, ranks: Sequence[int] | None
    ) -> tuple[dict[str, Any], Events]:
        """What the script of the page gets; times in picoseconds."""
        path = self.performance.path
        events = events_of(self.trace, path, store, self.letter, words, ranks)
        extra = self._more_tracks(store, words, len(events.queues))
        links = f"{self.letter}.links"
        by_rank = self.performance.by_rank
        return {
            "letter": self.letter,
            "where": self.executable.placement.where,
            "time": self.trace.time_ps,
            "ranks": self.executable.ranks,
            "simulated": self.executable.representatives,
            "firstRanks": self.first_ranks(ranks),
            "queues": [*events.queues, *(queue for queue, _ in extra)],
            "tracks": [*events.tracks, *(track for _, track in extra)],
            "routes": events.routes,
            "links": link_rates(self.trace, store, links),
            "linkChunk": links,
            "collectives": [
                [row.id, row.op, row.algorithm, row.bytes, row.line] for row in self.collectives
            ],
            "compute": by_rank.compute_ps.tolist(),
            "collective": by_rank.collective_ps.tolist(),
            "exposed": by_rank.exposed_ps.tolist(),
            "memory": self._memory(),
            "divisions": [
                {"name": each.name, "group": each.group.tolist(), "texts": list(each.texts)}
                for each in self.divisions
            ],
            "where_exposed": [
                [self._where(each), each.first.op, each.exposed_us] for each in self.most_exposed()
            ],
        }, events

    def most_exposed(self, count: int = 8) -> list[EqualCollectives]:
        """Collectives that cost most where nothing covers them."""
        costly = [each for each in self.equal_collectives if each.exposed_us]
        return sorted(costly, key=lambda each: -(each.exposed_us or 0.0))[:count]

    @staticmethod
    def _where(each: EqualCollectives) -> str:
        many = f"{len(each.rows)} x " if len(each.rows) > 1 else ""
        line = f", {each.lines[0]}" if each.lines else ""
        return f"{many}{each.first.op}{line} (p{each.first.id})"

    def _more_tracks(
        self, store: ColumnStore, words: Words, first: int
    ) -> list[tuple[dict[str, Any], list[int]]]:
        """The critical path, then faults and what stood still: queues and their tracks, of no rank.

        Every row of such a queue happens once, in order of time.
        """
        steps = self.performance.path.steps
        found = []
        if steps:
            facts = {
                "name": "critical path",
                "kind": "path",
                "names": [_word(words, step.what) for step in steps],
                "lines": [_word(words, step.line) for step in steps],
                "late": [_word(words, step.late) for step in steps],
                "on": [_word(words, ranks_text(step.ranks)) for step in steps],
                "placeholders": [
                    -1 if step.placeholder is None else step.placeholder for step in steps
                ],
                "works": [int(step.kind == "engine") for step in steps],
            }
            starts = [step.start_ps for step in steps]
            found.append((facts, starts, [step.time_ps for step in steps]))
        for name in dict.fromkeys(mark.track for mark in self.marks):
            marks = sorted(
                (mark for mark in self.marks if mark.track == name), key=lambda mark: mark.start_ps
            )
            facts = {
                "name": name,
                "kind": "fault",
                "names": [_word(words, mark.name) for mark in marks],
                "lines": [],
            }
            starts = [mark.start_ps for mark in marks]
            found.append((facts, starts, [mark.end_ps - mark.start_ps for mark in marks]))
        rows = []
        for at, (facts, starts, times) in enumerate(found):
            start, duration = np.array(starts), np.array(times)
            end = start + duration
            columns = {
                "row": np.arange(len(start)),
                "gap": start - np.append(0, end[:-1]),
                "duration": duration,
            }
            stored = [
                store.add(self.letter, columns[name], is_delta=name == "row")
                if name in columns
                else -1
                for name in TRACK_COLUMNS
            ]
            rows.append((facts, [-1, first + at, len(start), *stored]))
        return rows

    def _memory(self) -> dict[str, Any]:
        """Live memory over time, thinned to the highest of each interval."""
        live, use = self.live, self.memory
        time, low, high = live.time_ps, live.outputs, live.temporaries
        if len(time) > MOST_POINTS:
            cell = np.minimum(
                live.time_ps * MOST_POINTS // max(1, self.trace.time_ps), MOST_POINTS - 1
            )
            first = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
            total = live.temporaries + live.outputs
            at = [
                begin + int(np.argmax(total[begin:end]))
                for begin, end in zip(first, [*first[1:], len(time)], strict=True)
            ]
            time, low, high = live.time_ps[first], live.outputs[at], live.temporaries[at]
        return {
            "rank": live.rank,
            "time": time.tolist(),
            "outputs": low.tolist(),
            "temporaries": high.tolist(),
            "lasting": live.lasting,
            "channels": use.channel_buffers or 0,
            "charged": use.size_bytes,
            "capacity": use.capacity,
        }


def _word(words: Words, text: str) -> int:
    return words.setdefault(text, len(words))
