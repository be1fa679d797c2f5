"""What ranks were doing when a run stalled, as flight recorders of communication libraries keep it.

`flight_record(graph)` makes it of a graph of waits. What a rank itself could know, its collectives
and where its queues wait, stands apart from what the view of all ranks adds: the culprits, and the
chain of waits from a victim to each.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.waits import (
    Culprit,
    CulpritKind,
    RingTransfer,
    Waiter,
    WaitGraph,
    WaitReason,
    process_name,
)
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable
from ncc_runtime.neff.program import short_place
from ncc_runtime.neff.stages import collective_origins, ranks_text
from ncc_runtime.report.row_texts import RowTexts, placeholder_text, row_texts

SHOWN_GROUPS = 12
"""Groups of ranks that are printed; JSON has all ranks."""

SHOWN_CULPRITS = 8
"""Culprits that are printed."""

SHOWN_CHAIN = 6
"""Waits of a chain that are printed at either end."""

SHOWN_TRANSFERS = 4
"""Transfers of a culprit that are printed."""


@attrs.frozen
class CollectiveState:
    """A run of a collective on a rank."""

    placeholder: int
    name: str  # `p1 all-reduce.1`
    run: int  # which of the rank's runs of it, from 1
    line: str  # of the user's code, `model.py:12`; empty where it is not known
    start_ps: int
    end_ps: int | None  # None: it is not complete


@attrs.frozen
class QueueState:
    """Where a queue of a rank waits."""

    queue: str
    pc: int
    row: str  # in words, `wait p1 all-reduce.1 round 3`
    reason: WaitReason
    semaphore: str  # by the name of listings; empty: it waits for none
    held: int
    awaited: int
    since_ps: int | None  # None: times are not known

    @property
    def text(self) -> str:
        """What keeps it, in words."""
        if self.reason in (WaitReason.INCREMENT, WaitReason.LOST) or (
            self.reason is WaitReason.NEVER and self.semaphore
        ):
            return f"waits for {self.semaphore} >= {self.awaited}, it holds {self.held}"
        if self.reason in (WaitReason.ROOM, WaitReason.NEVER):
            return "waits for room in its ring"
        return "waits for nothing, and stands still"


@attrs.frozen
class RankState:
    """What a rank could say of itself."""

    rank: int
    completed: CollectiveState | None  # the last one; None: none yet, or times are not known
    inside: tuple[CollectiveState, ...]  # triggered and not complete, by stream
    queues: tuple[QueueState, ...]  # engines and CC-cores with rows left, rings with transfers left

    @property
    def _alike(self) -> tuple[object, ...]:
        """What ranks have in common that stand in one line."""
        collectives = (self.completed, *self.inside)
        return (
            *((one.placeholder, one.run) if one else None for one in collectives),
            *(queue.queue for queue in self.queues),
        )


@attrs.frozen(eq=False)
class FlightRecord:
    """The report of a stall; `as_text`, `as_json`."""

    graph: WaitGraph
    ranks: tuple[RankState, ...]  # all of them

    @property
    def _texts(self) -> "_Texts":
        return _Texts(self.graph.run.executable)

    def as_text(self) -> str:
        """As printed: ranks alike in one line with the queues of the first, then the culprits."""
        return "\n".join([*self._rank_lines(), *self._culprit_lines()])

    def _rank_lines(self) -> Iterator[str]:
        waiting = [one for one in self.ranks if one.queues]
        trace = self.graph.run.trace
        when = "" if trace is None else f" after {trace.time_ps / 1e6:.3f} us"
        of = f"{len(waiting)} of {len(self.ranks)} ranks"
        yield f"stall: nothing can go on{when}; {of} have work left"
        yield "what ranks know of themselves"
        groups: dict[tuple[object, ...], list[RankState]] = {}
        for one in waiting:
            groups.setdefault(one._alike, []).append(one)
        for members in list(groups.values())[:SHOWN_GROUPS]:
            first = members[0]
            numbers = [one.rank for one in members]
            inside = ", ".join(_run_text(one) for one in first.inside) or "in no collective"
            done = first.completed
            before = "none complete" if done is None else f"last complete {_run_text(done)}"
            plural = "s" if len(members) > 1 else ""
            yield f"  rank{plural} {ranks_text(numbers)}: {inside}; {before}"
            for queue in first.queues:
                since = "" if queue.since_ps is None else f", since {queue.since_ps / 1e6:.3f} us"
                of = f"rank {first.rank} " if len(members) > 1 else ""
                yield f"    {of}{queue.queue} pc {queue.pc}, {queue.row}: {queue.text}{since}"
        if len(groups) > SHOWN_GROUPS:
            yield f"  … and {len(groups) - SHOWN_GROUPS} more groups of ranks"

    def _culprit_lines(self) -> Iterator[str]:
        yield "what all ranks together show"
        texts = self._texts
        for culprit in self.graph.culprits[:SHOWN_CULPRITS]:
            yield f"  culprit: {texts.culprit(culprit)}"
            ranks = sorted({rank for _, rank in culprit.victims})
            if ranks:
                plural = "s" if len(ranks) > 1 else ""
                yield f"    for it wait rank{plural} {ranks_text(ranks)}"
            lines = [texts.step(one) for one in self.chain(culprit)]
            if len(lines) > 2 * SHOWN_CHAIN + 1:
                left_out = len(lines) - 2 * SHOWN_CHAIN
                lines[SHOWN_CHAIN:-SHOWN_CHAIN] = [f"… {left_out} more waits …"]
            yield from (f"    {line}" for line in lines)
        more = len(self.graph.culprits) - SHOWN_CULPRITS
        if more > 0:
            yield f"  … and {more} more culprits"

    def culprits_text(self) -> str:
        """What the stall goes back to, in one line."""
        culprits = self.graph.culprits
        words = [self._texts.culprit(culprit) for culprit in culprits[:SHOWN_CULPRITS]]
        more = len(culprits) - SHOWN_CULPRITS
        return "; ".join([*words, *([f"… and {more} more culprits"] if more > 0 else [])])

    def chain(self, culprit: Culprit) -> tuple[Waiter, ...]:
        """Who waits for whom, to a culprit from who has waited longest: on another rank, if any."""
        if not culprit.victims:
            return tuple(self.graph.waiters[one] for one in culprit.roots[:1])
        ranks = culprit.ranks
        victim = min(
            (self.graph.waiters[one] for one in culprit.victims),
            key=lambda one: (one.rank in ranks, one.row == IDLE, one.since_ps or 0, one.process),
        )
        return self.graph.chain(victim.process, culprit)

    def as_json(self) -> dict[str, Any]:
        """All ranks, then the culprits; times in us, null where they are not known."""
        trace, texts = self.graph.run.trace, self._texts
        executable = self.graph.run.executable
        return {
            "time_us": None if trace is None else trace.time_ps / 1e6,
            "ranks": [_rank_json(one) for one in self.ranks],
            "culprits": [
                {
                    "kind": culprit.kind.value,
                    "text": texts.culprit(culprit),
                    "suspects": [
                        {"kind": one.kind.value, "name": one.name, "ranks": list(one.ranks)}
                        for one in culprit.suspects
                    ],
                    "lost": culprit.lost,
                    "transfers": [
                        {
                            "queue": executable.queues[one.queue].name,
                            "rank": one.rank,
                            "nth": one.nth,
                            "pc": one.row,
                        }
                        for one in culprit.transfers
                    ],
                    "waiting_ranks": sorted({rank for _, rank in culprit.victims}),
                    "chain": [
                        {
                            "queue": executable.queues[one.queue].name,
                            "rank": one.rank,
                            "pc": None if one.row == IDLE else one.row,
                            "text": texts.step(one),
                        }
                        for one in self.chain(culprit)
                    ],
                }
                for culprit in self.graph.culprits
            ],
        }


def flight_record(graph: WaitGraph) -> FlightRecord:
    """The report of a stalled run."""
    run = graph.run
    runs = [] if run.trace is None else _collective_runs(run.trace)
    texts = _Texts(run.executable)
    by_rank: list[list[QueueState]] = [[] for _ in range(run.executable.ranks)]
    for waiter in sorted(graph.waiters.values(), key=lambda one: one.process):
        if waiter.row != IDLE:  # else a ring that has nothing to do
            by_rank[waiter.rank].append(texts.state(waiter))
    found = []
    for rank, queues in enumerate(by_rank):
        of_rank = [one for owner, one in runs if owner == rank]
        done = [one for one in of_rank if one.end_ps is not None]
        completed = max(done, key=lambda one: one.end_ps or 0, default=None)
        inside = tuple(one for one in of_rank if one.end_ps is None)
        found.append(RankState(rank, completed, inside, tuple(queues)))
    return FlightRecord(graph, tuple(found))


def _collective_runs(trace: Trace) -> list[tuple[int, CollectiveState]]:
    """Every run of every collective by rank, those that are not complete too."""
    executable, runs = trace.executable, trace.runs
    origins = collective_origins(executable.program)
    counts: dict[tuple[int, int], int] = {}
    found = []
    columns = (runs.placeholder, runs.rank, runs.first, runs.last)
    for placeholder, rank, first, last in zip(*(c.tolist() for c in columns), strict=True):
        counts[placeholder, rank] = number = counts.get((placeholder, rank), 0) + 1
        core = executable.queues[int(trace.queue[last])]
        assert isinstance(core, CcQueue), core.name
        is_done = core.opcode[int(trace.row[last])] == CcOpcode.DONE
        state = CollectiveState(
            placeholder,
            placeholder_text(executable, placeholder),
            number,
            short_place(origins[placeholder].place),
            int(trace.start_ps[first]),
            int(trace.end_ps[last]) if is_done else None,
        )
        found.append((rank, state))
    return found


def _run_text(one: CollectiveState) -> str:
    line = f", {one.line}" if one.line else ""
    when = f"since {one.start_ps / 1e6:.3f} us"
    if one.end_ps is not None:
        when = f"at {one.end_ps / 1e6:.3f} us"
    return f"{one.name} (run {one.run}{line}) {when}"


def _rank_json(one: RankState) -> dict[str, Any]:
    def collective(state: CollectiveState | None) -> dict[str, Any] | None:
        if state is None:
            return None
        return {
            "id": f"p{state.placeholder}",
            "name": state.name,
            "run": state.run,
            "line": state.line,
            "start_us": state.start_ps / 1e6,
            "end_us": None if state.end_ps is None else state.end_ps / 1e6,
        }

    return {
        "rank": one.rank,
        "last_completed": collective(one.completed),
        "inside": [collective(state) for state in one.inside],
        "queues": [
            {
                "queue": queue.queue,
                "pc": queue.pc,
                "row": queue.row,
                "reason": queue.reason.value,
                "semaphore": queue.semaphore or None,
                "held": queue.held if queue.semaphore else None,
                "awaited": queue.awaited if queue.semaphore else None,
                "since_us": None if queue.since_ps is None else queue.since_ps / 1e6,
            }
            for queue in one.queues
        ],
    }


class _Texts:
    """Waits and culprits in words."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._rows: dict[int, RowTexts] = {}
        self._semaphores: dict[int, dict[int, str]] = {}

    def state(self, waiter: Waiter) -> QueueState:
        """Where a queue waits."""
        return QueueState(
            self._executable.queues[waiter.queue].name,
            waiter.row,
            self._row(waiter.queue, waiter.row),
            waiter.reason,
            self._semaphore(waiter),
            waiter.held,
            waiter.awaited,
            waiter.since_ps,
        )

    def step(self, waiter: Waiter) -> str:
        """A wait of a chain, and whom it leads to."""
        name = process_name(self._executable, waiter.process)
        if waiter.reason is WaitReason.PUSH:
            core = process_name(self._executable, waiter.awaits[0])
            return f"{name}: its next transfer is not pushed yet, by {core}"
        to = ""
        if waiter.awaits:
            names = [process_name(self._executable, one) for one in waiter.awaits[:2]]
            more = f" and {len(waiter.awaits) - 2} more" if len(waiter.awaits) > 2 else ""
            to = f", from {' and '.join(names)}{more}"
        elif waiter.reason is WaitReason.LOST:
            to = ", though it has been incremented that often"
        elif waiter.reason is WaitReason.NEVER:
            to = ", and nothing is left that would provide it"
        if waiter.row == IDLE:
            return f"{name}: nothing is left to push to it"
        return f"{name} pc {waiter.row}: {self.state(waiter).text}{to}"

    def culprit(self, culprit: Culprit) -> str:
        """What a stall goes back to."""
        names = " or ".join(one.name for one in culprit.suspects)
        if culprit.kind is CulpritKind.CYCLE:
            return f"a deadlock: {names.replace(' or ', ', ')} wait for one another"
        if culprit.kind is CulpritKind.NEVER:
            waiting = [process_name(self._executable, process) for process in culprit.roots]
            if names in waiting:
                return f"{names} waits for what nothing provides"
            more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
            return f"{names} makes no more of the increments that {waiting[0]}{more} wait for"
        if culprit.kind is CulpritKind.LOST:
            if not culprit.transfers:
                return f"increments of {names} were lost"
            count, named = len(culprit.transfers), self._transfers(culprit.transfers)
            if count == culprit.lost:
                its = "its completion" if count == 1 else "their completions"
                return f"{named} lost {its}"
            return f"{culprit.lost} of {count} transfers of {names} lost its completion: {named}"
        still = f" in {self._transfers(culprit.transfers)}" if culprit.transfers else ""
        return f"{names} stands still{still}"

    def _transfers(self, transfers: Sequence[RingTransfer]) -> str:
        words = [self._transfer(one) for one in transfers[:SHOWN_TRANSFERS]]
        more = len(transfers) - SHOWN_TRANSFERS
        return "; ".join([*words, *([f"… {more} more"] if more > 0 else [])])

    def _transfer(self, one: RingTransfer) -> str:
        ring = self._executable.queues[one.queue]
        assert isinstance(ring, DmaQueue), ring.name
        peer = int(ring.peer[one.row, one.rank])
        route = "" if peer == one.rank else f" to rank {peer} over {self._route(one.rank, peer)}"
        what = self._row(one.queue, one.row)
        return f"transfer {one.nth} of {ring.name} of rank {one.rank} (pc {one.row}, {what}){route}"

    def _route(self, rank: int, peer: int) -> str:
        return self._executable.routes.describe(rank, peer)

    def _row(self, queue: int, row: int) -> str:
        if queue not in self._rows:
            self._rows[queue] = row_texts(self._executable, queue)
        return self._rows[queue].name[row]

    def _semaphore(self, waiter: Waiter) -> str:
        if waiter.sem == IDLE:
            return ""
        if waiter.rank not in self._semaphores:
            self._semaphores[waiter.rank] = self._executable.semaphore_names(waiter.rank)
        return self._semaphores[waiter.rank].get(waiter.sem, f"s{waiter.sem}")
