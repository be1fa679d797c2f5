"""How much communication hides behind computation.

A rank computes while an engine of it works; a collective is under way from its trigger until it is
reported complete. What no engine of the rank covers is exposed. How much could be hidden at best is
known for an all-reduce: no more than it takes, and no more than there is to compute that needs
nothing of the result and gives nothing to the operand.
"""

from collections.abc import Mapping

import attrs
import numpy as np

from ncc_runtime.execution.trace import Trace, works
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.report.cover import Cover
from ncc_runtime.report.dependences import independence


@attrs.frozen
class Overlap:
    """Times of all ranks together, in picoseconds, but for the most of one rank."""

    ranks: int
    compute_ps: int
    collective_ps: int
    exposed_ps: int
    most_exposed_ps: int  # of one rank

    @property
    def hidden_share(self) -> float | None:
        """The part of the collectives' time in which engines work; None without collectives."""
        return 1 - self.exposed_ps / self.collective_ps if self.collective_ps else None

    def mean_us(self, total_ps: int) -> float:
        """Of one rank, on average."""
        return total_ps / self.ranks / 1e6


@attrs.frozen
class Hideable:
    """An all-reduce, or several, beside compute: of first ranks of programs, in picoseconds."""

    all_reduce_ps: int
    independent_ps: int  # compute that neither needs it nor is needed by it; of some of several
    hidden_ps: int  # of all_reduce_ps, engines working
    most_ps: int  # what could be hidden at best

    @property
    def share(self) -> float | None:
        """Of what could be hidden, what is; None where nothing could."""
        return min(1.0, self.hidden_ps / self.most_ps) if self.most_ps else None


@attrs.frozen
class AllReduces:
    """What the all-reduces of a run hide and could hide."""

    each: Mapping[int, Hideable]  # by placeholder; all its runs added up
    together: Hideable


def busy_cover(trace: Trace) -> Cover:
    """When some compute engine of a rank works."""
    columns: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in range(3)]
    for number, events in trace.blocks(trace.queues_of(EngineQueue)):
        queue = trace.executable.queues[number]
        assert isinstance(queue, EngineQueue)
        events = events[works(queue)[trace.row[events]]]
        found = trace.rank[events], trace.start_ps[events], trace.end_ps[events]
        for column, more in zip(columns, found, strict=True):
            column.append(more)
    rank, start, end = (np.concatenate(column) for column in columns)
    return Cover.of(trace.executable.seen, trace.time_ps, rank, (start, end))


def _runs_cover(trace: Trace, own: np.ndarray) -> Cover:
    """When some of these runs of collectives are under way."""
    runs = trace.runs
    spans = trace.start_ps[runs.first[own]], trace.end_ps[runs.last[own]]
    return Cover.of(trace.executable.seen, trace.time_ps, runs.rank[own], spans)


def overlap(trace: Trace) -> Overlap:
    """Compute and collectives of a run, and how much of both goes on at a time."""
    busy, moving = busy_cover(trace), _runs_cover(trace, np.arange(len(trace.runs.first)))
    collective = moving.by_rank_ps()
    exposed = collective - busy.shared_by_rank_ps(moving)
    return Overlap(
        ranks=trace.executable.seen,
        compute_ps=int(busy.by_rank_ps().sum()),
        collective_ps=int(collective.sum()),
        exposed_ps=int(exposed.sum()),
        most_exposed_ps=int(exposed.max(initial=0)),
    )


def all_reduces(trace: Trace) -> AllReduces | None:
    """What all-reduces hide and could hide; None without any, or if that is too much to find out.

    Programs that run together are added up, each by its first rank.
    """
    placeholders, runs = trace.executable.program.placeholders, trace.runs
    is_sum = np.array([one.op is CollectiveOp.ALL_REDUCE for one in placeholders], bool)
    first = np.array([int(stage.ranks[0]) for stage in trace.executable.stages])
    own = np.flatnonzero(np.isin(runs.rank, first) & is_sum[runs.placeholder])
    if not len(own):
        return None
    independent_ps, free = np.zeros(len(own), np.int64), [np.zeros(0, np.int64)]
    for rank in first.tolist():
        mine = runs.rank[own] == rank
        found = independence(trace, rank, own[mine])
        if found is None:
            return None
        columns = [found.events[row] for row in found.of_run]
        independent_ps[mine] = [_covered_ps(trace, events) for events in columns]
        free.append(found.events[found.of_run.any(axis=0)])
    return _added_up(trace, own, independent_ps, _covered_ps(trace, np.concatenate(free)))


def _covered_ps(trace: Trace, events: np.ndarray) -> int:
    """How long some of these events go on, rank by rank."""
    spans = trace.start_ps[events], trace.end_ps[events]
    cover = Cover.of(trace.executable.seen, trace.time_ps, trace.rank[events], spans)
    return int(cover.by_rank_ps().sum())


def _added_up(
    trace: Trace, own: np.ndarray, independent_ps: np.ndarray, beside_ps: int
) -> AllReduces:
    """These runs of all-reduces by placeholder, and together.

    No more of a run can be hidden than it takes, nor than there is compute independent of it; of
    all together no more than they take, nor than there is compute independent of any.
    """
    runs, busy, moving = trace.runs, busy_cover(trace), _runs_cover(trace, own)
    start, end = trace.start_ps[runs.first[own]], trace.end_ps[runs.last[own]]
    columns = np.stack(
        [
            end - start,
            independent_ps,
            busy.within_ps(runs.rank[own], start, end),
            np.minimum(end - start, independent_ps),
        ]
    )
    each = {
        int(number): Hideable(*columns[:, runs.placeholder[own] == number].sum(axis=1).tolist())
        for number in np.unique(runs.placeholder[own])
    }
    all_ps, hidden_ps = int(moving.by_rank_ps().sum()), int(busy.shared_by_rank_ps(moving).sum())
    most_ps = min(all_ps, beside_ps, int(columns[3].sum()))
    return AllReduces(each, Hideable(all_ps, beside_ps, hidden_ps, most_ps))
