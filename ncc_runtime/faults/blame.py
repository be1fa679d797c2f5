"""Who lost time by a fault, who waited for whom, and how it reached the end of the run.

Two runs of one executable are compared, with and without the faults. Every event of the disturbed
run names its cause, the event that it waited for last. Along such a chain the delay of an event is
the sum of what was added on the way, by faults where they touch an event (`touched.py`), by other
transfers that got in the way, minus what slack absorbed: time for which an event of the undisturbed
run waited for something else. This holds to the picosecond; all of this file is such sums. A chain
is followed back to where the delay began, the first event that is late.

The same idea finds the root causes of waits in traces of MPI programs, there by replaying messages:
Böhme, Geimer, Wolf and Arnold, "Identifying the root causes of wait states in large-scale parallel
applications", ICPP 2010.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol, TypeVar

import attrs
import numpy as np

from ncc_runtime.execution.clock.clock import Clock
from ncc_runtime.execution.clock.event_log import MOST_EVENTS
from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.execution.trace import NO_EVENT, CollectiveRuns, Trace
from ncc_runtime.faults.resolve import ResolvedFault, joined
from ncc_runtime.faults.touched import Delays, OrderedTrace, Touched, touched
from ncc_runtime.lowering.executable import IDLE, EngineQueue, Executable
from ncc_runtime.report.critical_path import PathStep, critical_path

NEVER = -1
"""The time of what did not happen."""

NOBODY = -1
"""No rank, no fault."""

BLOCK = 1 << 15
"""Events whose chains are followed together; their columns stay in the processor's cache."""


class Disturbing(Protocol):
    """A fault on one executable: its own disturbance, and one line for people."""

    @property
    def name(self) -> str: ...

    @property
    def disturbance(self) -> Disturbance: ...


AnyFault = TypeVar("AnyFault", bound=Disturbing)


@attrs.frozen
class FaultShare:
    """What one fault cost. Times in picoseconds.

    `most_ps`: what it added by itself on one chain of causes, at most. `on_chain_ps`: what it added
    on the chain to the end of the run. `without_ps`: what the run takes with all faults but this
    one, NEVER if it does not end; None if that was not run.
    """

    name: str
    most_ps: int
    on_chain_ps: int
    without_ps: int | None = None


@attrs.frozen(eq=False)
class CollectiveLosses:
    """What every run of every collective lost on every rank; columns by collective, run, rank.

    `lost_ps` = `late_ps` + `waited_ps` + `longer_ps`. Waiting is negative where the rank would have
    waited for others anyway. What never happened is NEVER, and lost 0.
    """

    placeholder: np.ndarray  # (n,)
    run: np.ndarray  # (n,) number of the run on that rank, from 0
    rank: np.ndarray  # (n,)
    trigger_ps: np.ndarray  # (2, n) undisturbed and disturbed: when it was triggered
    complete_ps: np.ndarray  # (2, n) when it was reported complete
    lost_ps: np.ndarray  # (n,) how much later it is complete
    late_ps: np.ndarray  # (n,) how much later it was triggered
    longer_ps: np.ndarray  # (n,) added on this rank since it last waited for another one
    passed_ps: np.ndarray  # (n,) what followed started so much later by it; the rest was hidden
    fault: np.ndarray  # (n,) that added most on the chain to here, NOBODY
    for_rank: np.ndarray  # (n,) where the delay began in the collective, or came into it; NOBODY
    began_inside: np.ndarray  # (n,) bool: it began there, in a transfer; else that rank was late

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def waited_ps(self) -> np.ndarray:
        """(n,) how much longer it waited inside the collective for others."""
        return np.asarray(self.lost_ps - self.late_ps - self.longer_ps)


@attrs.frozen
class BlamedStep:
    """A step of the chain from where the delay began to the end of the run. Picoseconds."""

    step: PathStep
    added_ps: tuple[int, ...]  # by fault
    others_ps: int  # by other transfers, which what is late got in the way of
    absorbed_ps: int  # by slack


@attrs.frozen(eq=False)
class Blame:
    """Where the time went that faults cost. Times in picoseconds.

    - `time_ps`, `undisturbed_ps`: of the run, until the last row that was performed
    - `undisturbed_rows`, `ends`: how many rows ran there; whether as many were performed
    - `faults`: what each cost
    - `collectives`: when each was triggered and complete, who waited for whom
    - `rank_late_ps`: (ranks,) how much later each rank is done
    - `steps`: the chain from where the delay began to the end; empty if the end is not late
    """

    executable: Executable
    time_ps: int
    undisturbed_ps: int
    undisturbed_rows: int
    ends: bool
    faults: tuple[FaultShare, ...]
    collectives: CollectiveLosses
    rank_late_ps: np.ndarray
    steps: tuple[BlamedStep, ...]

    @property
    def lost_ps(self) -> int:
        """How much longer the run takes."""
        return self.time_ps - self.undisturbed_ps

    @property
    def others_ps(self) -> int:
        """What transfers that got in each other's way added on the chain."""
        return sum(step.others_ps for step in self.steps)

    @property
    def absorbed_ps(self) -> int:
        """What slack absorbed, on the chain and as another event ended last without the faults."""
        on_chain_ps = sum(sum(step.added_ps) for step in self.steps)
        return on_chain_ps + self.others_ps - self.lost_ps if self.steps else 0

    @cached_property
    def waits(self) -> tuple["AlikeLosses", ...]:
        """Who waited for whom, the longest in a collective first; ranks alike are in one entry."""
        return _waits(self.collectives)


@attrs.frozen
class AlikeLosses:
    """Ranks that lost time in a collective alike: by one fault, waiting for one rank.

    Or each by itself (`by_itself`): it was late, or had rows that took longer. Times in
    picoseconds, those of the rank and run that lost most.
    """

    placeholder: int
    runs: tuple[int, ...]
    ranks: tuple[int, ...]
    fault: int  # NOBODY
    for_rank: int  # NOBODY
    by_itself: bool
    began_inside: bool
    late_ps: int
    waited_ps: int
    longer_ps: int
    lost_ps: int
    passed_ps: int
    never: bool  # it is not complete on these ranks


def blame(undisturbed: Trace, disturbed: Trace, faults: Sequence[Disturbing]) -> Blame:
    """What the faults cost, from two runs of one executable with the same decisions."""
    delays = Delays(OrderedTrace(undisturbed), OrderedTrace(disturbed))
    by_fault = _shared([touched(delays, fault.disturbance) for fault in faults])
    chains = _Chains.of(delays)
    steps = _steps(delays, chains, by_fault)
    losses, most_ps = _collectives(delays, chains, by_fault)
    shares = tuple(
        FaultShare(fault.name, most_ps[number], sum(step.added_ps[number] for step in steps))
        for number, fault in enumerate(faults)
    )
    return Blame(
        executable=disturbed.executable,
        time_ps=disturbed.time_ps,
        undisturbed_ps=undisturbed.time_ps,
        undisturbed_rows=len(undisturbed),
        ends=len(disturbed) == len(undisturbed),
        faults=shares,
        collectives=losses,
        rank_late_ps=_done_ps(disturbed) - _done_ps(undisturbed),
        steps=steps,
    )


MOST_LEFT_OUT = 16
"""Faults up to which each is left out in turn."""


def leave_one_out(
    found: Blame, faults: Sequence[AnyFault], timed: Callable[[Sequence[AnyFault]], Trace]
) -> Blame:
    """The same, and what the run takes without each of the faults: one run of `timed` for each.

    `timed` plays some faults. With one fault nothing is run, with more than MOST_LEFT_OUT neither.
    """
    if len(faults) > MOST_LEFT_OUT or not faults:
        return found
    times = [found.undisturbed_ps] if len(faults) == 1 else []
    rows = found.undisturbed_rows
    for number in range(len(faults) if len(faults) > 1 else 0):
        trace = timed([*faults[:number], *faults[number + 1 :]])
        times.append(trace.time_ps if len(trace) == rows else NEVER)
    shares = zip(found.faults, times, strict=True)
    return attrs.evolve(
        found, faults=tuple(attrs.evolve(share, without_ps=ps) for share, ps in shares)
    )


def blamed(
    clock: Clock, undisturbed: Trace, disturbed: Trace, faults: Sequence[ResolvedFault]
) -> Blame:
    """The same, where a clock plays all faults but each in turn."""

    def timed(some: Sequence[ResolvedFault]) -> Trace:
        return clock.run(joined(some), in_memory=MOST_EVENTS).trace

    return leave_one_out(blame(undisturbed, disturbed, faults), faults, timed)


def _shared(by_fault: Sequence[Touched]) -> list[Touched]:
    """What several faults made longer, or start later, is divided evenly among these."""
    if len(by_fault) < 2:
        return list(by_fault)

    def divided(added: Sequence[np.ndarray]) -> list[np.ndarray]:
        together = np.concatenate(added)
        count = np.bincount(number, weights=together > 0).astype(np.int64)[number]
        return np.split(together // np.maximum(count, 1), bounds)

    events = [own.events for own in by_fault]
    _, number = np.unique(np.concatenate(events), return_inverse=True)
    bounds = np.cumsum([len(each) for each in events])[:-1]
    longer = divided([own.longer_ps for own in by_fault])
    later = divided([own.later_ps for own in by_fault])
    return [
        Touched(own.events, *parts) for own, *parts in zip(by_fault, longer, later, strict=True)
    ]


@attrs.frozen(eq=False)
class _Chains:
    """Late events, causes before what they cause, and the event of these that each waited for."""

    events: np.ndarray  # (m,)
    place: np.ndarray  # (n,) of an event among them, NO_EVENT for one that is not late
    parent: np.ndarray  # (m,) place of its cause, NO_EVENT where that was not late

    @classmethod
    def of(cls, delays: Delays) -> "_Chains":
        """Of a disturbed run."""
        trace = delays.disturbed.trace
        cause = np.asarray(trace.cause)
        events = np.flatnonzero(delays.end_ps > 0)
        if not (cause[events] < events).all():  # numbered by queue: a trace that lies on disk
            events = events[np.lexsort((trace.start_ps[events], trace.end_ps[events]))]
        place = np.full(len(trace), NO_EVENT, np.int64)
        place[events] = np.arange(len(events))
        causes = cause[events]
        return cls(events, place, np.where(causes == NO_EVENT, NO_EVENT, place[causes]))

    def followed(
        self, parent: np.ndarray, values: Sequence[np.ndarray] = ()
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The first place of every chain, and the sums of values (m,) along it.

        By pointer doubling in blocks; what a block's chains lead to has been summed before.
        """
        roots = np.empty(len(parent), np.int64)
        sums = [column.astype(np.int64) for column in values]
        for low in range(0, len(parent), BLOCK):
            own = slice(low, low + BLOCK)
            # where each chain is so far: places in the block; those that have come to its edge stay
            at = np.arange(len(parent[own]))
            step = np.where(parent[own] >= low, parent[own] - low, NO_EVENT)
            active = np.flatnonzero(step != NO_EVENT)
            while len(active):
                to = step[active]
                for column in sums:
                    block = column[own]
                    block[active] += block[to]
                at[active], step[active] = at[to], step[to]
                active = active[step[active] != NO_EVENT]
            before = parent[own][at]
            is_root = before == NO_EVENT
            roots[own] = np.where(is_root, at + low, roots[before])
            for column in sums:
                column[own] += np.where(is_root, 0, column[before])
        return roots, sums


def _added(chains: _Chains, own: Touched) -> np.ndarray:
    """(m,) what a fault added to each late event."""
    added = np.zeros(len(chains.events), np.int64)
    place = chains.place[own.events]
    added[place[place != NO_EVENT]] = own.added_ps[place != NO_EVENT]
    return added


def _steps(delays: Delays, chains: _Chains, by_fault: Sequence[Touched]) -> tuple[BlamedStep, ...]:
    """The chain to the event that ends last, from where its delay began."""
    trace = delays.disturbed.trace
    if not len(trace) or chains.place[trace.last_event] == NO_EVENT:
        return ()
    steps: list[BlamedStep] = []
    for step in reversed(critical_path(trace).steps):
        place = chains.place[list(step.chain)]
        late = place != NO_EVENT
        # behind the last of them that is not late
        place = place[len(late) - int(np.argmin(late[::-1])) :] if not late.all() else place
        if not len(place):
            break
        events, begins = chains.events[place], chains.parent[place] == NO_EVENT
        later_ps = np.where(begins, delays.start_ps[events], delays.later_than_cause_ps[events])
        added = [_at(own, events) for own in by_fault]
        rest_ps = delays.longer_ps[events] + later_ps - sum(added, np.zeros(len(events), np.int64))
        steps.append(
            BlamedStep(
                step,
                tuple(int(ps.sum()) for ps in added),
                others_ps=int(rest_ps[rest_ps > 0].sum()),
                absorbed_ps=-int(rest_ps[rest_ps < 0].sum()),
            )
        )
        if not late.all() or begins.any():
            break
    return tuple(steps[::-1])


def _at(own: Touched, events: np.ndarray) -> np.ndarray:
    """What a fault added to these events."""
    at = np.minimum(np.searchsorted(own.events, events), max(0, len(own.events) - 1))
    if not len(own.events):
        return np.zeros(len(events), np.int64)
    return np.where(own.events[at] == events, own.added_ps[at], 0)


def _done_ps(trace: Trace) -> np.ndarray:
    """(ranks,) when each rank has performed its last row."""
    done = np.zeros(trace.executable.representatives, np.int64)
    np.maximum.at(done, trace.rank, trace.end_ps)
    return done


def _numbered(runs: CollectiveRuns, ranks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The order of runs by collective and rank; in it, the key of both and the run's number."""
    key = runs.placeholder.astype(np.int64) * ranks + runs.rank
    order = np.argsort(key, kind="stable")
    key = key[order]
    return order, key, np.arange(len(key)) - np.searchsorted(key, key)


def _collectives(
    delays: Delays, chains: _Chains, by_fault: Sequence[Touched]
) -> tuple[CollectiveLosses, list[int]]:
    """What collectives lost; and what each fault added on one chain at most."""
    before, after = delays.undisturbed.trace, delays.disturbed.trace
    ranks = after.executable.representatives
    order, key, run = _numbered(before.runs, ranks)
    first, last = before.runs.first[order], before.runs.last[order]
    trigger_ps = np.stack([before.start_ps[first], np.full(len(key), NEVER)])
    complete_ps = np.stack([before.end_ps[last], np.full(len(key), NEVER)])

    order, found, number = _numbered(after.runs, ranks)
    at = np.searchsorted(key, found) + number
    begun, ended = after.runs.first[order], after.runs.last[order]
    trigger_ps[1, at] = after.start_ps[begun]
    is_complete = delays.same[ended] == last[at]
    at, begun, ended = at[is_complete], begun[is_complete], ended[is_complete]
    complete_ps[1, at] = after.end_ps[ended]

    columns = {name: np.zeros(len(key), np.int64) for name in ("lost", "late", "longer", "passed")}
    columns["lost"][at] = delays.end_ps[ended]
    columns["late"][at] = delays.start_ps[begun]
    passed = np.maximum(_passed_ps(delays, ended), after.end_ps[ended] - before.time_ps)
    columns["passed"][at] = np.clip(passed, 0, np.maximum(0, delays.end_ps[ended]))
    by, for_rank = np.full(len(key), NOBODY), np.full(len(key), NOBODY)
    began_inside: np.ndarray = np.zeros(len(key), bool)
    if len(by_fault) == 1:
        by[complete_ps[1] == NEVER] = 0

    place = chains.place[ended]
    at, place = at[place != NO_EVENT], place[place != NO_EVENT]
    collective = _placeholders(after, chains.events)
    rank, parent = after.rank[chains.events], chains.parent
    is_inside = (parent != NO_EVENT) & (collective[parent] == collective)
    roots, _ = chains.followed(np.where(is_inside, parent, NO_EVENT))
    for_rank[at] = rank[roots[place]]
    began_inside[at] = parent[roots[place]] == NO_EVENT

    is_own = is_inside & (rank[parent] == rank)
    put_off = np.where(is_own, np.maximum(0, delays.later_than_cause_ps[chains.events]), 0)
    own_ps = np.maximum(0, delays.longer_ps[chains.events]) + put_off
    _, (sums,) = chains.followed(np.where(is_own, parent, NO_EVENT), [own_ps])
    columns["longer"][at] = sums[place]

    most, most_ps = np.zeros(len(at), np.int64), []
    by[at] = 0 if len(by_fault) == 1 else NOBODY
    for fault, own in enumerate(by_fault):
        _, (sums,) = chains.followed(parent, [_added(chains, own)])
        by[at[sums[place] > most]] = fault
        most = np.maximum(most, sums[place])
        most_ps.append(int(sums.max(initial=0)))

    by_run = np.lexsort((key % ranks, run, key // ranks))
    losses = CollectiveLosses(
        placeholder=(key // ranks)[by_run],
        run=run[by_run],
        rank=(key % ranks)[by_run],
        trigger_ps=trigger_ps[:, by_run],
        complete_ps=complete_ps[:, by_run],
        **{f"{name}_ps": column[by_run] for name, column in columns.items()},
        fault=by[by_run],
        for_rank=for_rank[by_run],
        began_inside=began_inside[by_run],
    )
    return losses, most_ps


def _passed_ps(delays: Delays, ended: np.ndarray) -> np.ndarray:
    """(runs,) how much later the events start that waited last for these, the last ones of runs."""
    cause = np.asarray(delays.disturbed.trace.cause)
    run = np.full(len(cause) + 1, NOBODY)
    run[ended] = np.arange(len(ended))
    waited = np.flatnonzero(run[cause] != NOBODY)  # of NO_EVENT, the one behind the last
    passed = np.zeros(len(ended), np.int64)
    np.maximum.at(passed, run[cause[waited]], delays.start_ps[waited])
    return passed


def _placeholders(trace: Trace, events: np.ndarray) -> np.ndarray:
    """The collective of each event; every other event has a negative number of its own."""
    found = -2 - np.arange(len(events))
    number, row = trace.queue[events], trace.row[events]
    for queue_number, queue in enumerate(trace.executable.queues):
        if not isinstance(queue, EngineQueue):
            of_queue = np.flatnonzero(number == queue_number)
            placeholder = queue.placeholder[row[of_queue]]
            is_part = placeholder != IDLE
            found[of_queue[is_part]] = placeholder[is_part]
    return found


def _waits(losses: CollectiveLosses) -> tuple[AlikeLosses, ...]:
    never = losses.complete_ps[1] == NEVER
    counts = np.flatnonzero(never | (losses.lost_ps > 0))
    by_itself = losses.for_rank == losses.rank
    other = np.where(by_itself, NOBODY, losses.for_rank)
    columns = (losses.placeholder, losses.fault, other, by_itself, losses.began_inside, never)
    keys = np.stack(columns)[:, counts]
    groups, group = np.unique(keys, axis=1, return_inverse=True)
    waits = []
    for number in range(groups.shape[1]):
        members = counts[group == number]
        worst = int(members[np.argmax(losses.lost_ps[members])])
        waits.append(
            AlikeLosses(
                placeholder=int(losses.placeholder[worst]),
                runs=tuple(np.unique(losses.run[members]).tolist()),
                ranks=tuple(np.unique(losses.rank[members]).tolist()),
                fault=int(losses.fault[worst]),
                for_rank=int(other[worst]),
                by_itself=bool(by_itself[worst]),
                began_inside=bool(losses.began_inside[worst]),
                late_ps=int(losses.late_ps[worst]),
                waited_ps=int(losses.waited_ps[worst]),
                longer_ps=int(losses.longer_ps[worst]),
                lost_ps=int(losses.lost_ps[worst]),
                passed_ps=int(losses.passed_ps[worst]),
                never=bool(never[worst]),
            )
        )
    # first where time was lost, then where it was lost already
    inside = {wait: wait.lost_ps - wait.late_ps for wait in waits}
    return tuple(sorted(waits, key=lambda wait: (not wait.never, -inside[wait], -wait.lost_ps)))
