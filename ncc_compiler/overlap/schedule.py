"""Orders the operations of every computation so that collectives run beside compute.

The order of the graph is the order of the engines' queues, so this is where it is settled what
stands before a trigger and before a wait. Loops and branches are meeting points of all queues:
nothing moves over them, and what stands between two of them is ordered by `timeline.py`.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Computation, Module, NodeId
from ncc_compiler.ir.ops import OPS
from ncc_compiler.options import SCHEDULE_FREE_BYTES, SCHEDULE_LIMIT_PERCENT, SCHEDULE_WINDOW
from ncc_compiler.overlap.ahead import held_until
from ncc_compiler.overlap.later_compute import feeds_compute
from ncc_compiler.overlap.lifetimes import lifetimes_of, peak_bytes
from ncc_compiler.overlap.places import kept_orders
from ncc_compiler.overlap.timeline import LAST, LATER, SOON, TRIGGER, Rank, Task, arrange
from ncc_compiler.overlap.work import CONTROL_FLOW, Work, works_of
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild

_NONE = 2**62


@attrs.frozen
class Schedule(Pass):
    """A computation takes at most `limit_percent` of the memory that it took before.

    That is of its parameters, its results and the values that live at the same time. Up to
    `free_bytes` are taken in any case: so little decides of no program whether it fits. If all
    that could go ahead took more, no node goes ahead of more than `window` others.

    An all-gather starts `early_all_gather_layers` layers ahead, and a reduce-scatter
    `late_reduce_scatter_layers` layers late; without these, as early as data and memory allow.
    """

    name: ClassVar[str] = "schedule"

    limit_percent: int = SCHEDULE_LIMIT_PERCENT
    free_bytes: int = SCHEDULE_FREE_BYTES
    window: int = SCHEDULE_WINDOW
    early_all_gather_layers: int | None = None
    late_reduce_scatter_layers: int | None = None

    def run(self, module: Module) -> Module:
        computations = dict(module.computations)
        for name, feeds in feeds_compute(module).items():
            body = module.computations[name]
            if any(OPS[node.op].collective for node in body.nodes):
                order = self.order(module, body, works_of(module, body), feeds)
                computations[name] = reordered(body, order)
        return attrs.evolve(module, computations=computations)

    def order(
        self, module: Module, body: Computation, works: Sequence[Work], feeds: Sequence[bool]
    ) -> list[int]:
        """The positions of a computation's nodes in their new order."""
        stretches = _stretches(body)
        kept = (body.root,) if body.name == module.entry else ()
        lifetimes = lifetimes_of(body, stretches, kept)
        late = self.late_reduce_scatter_layers
        held = held_until(body, lifetimes, self.early_all_gather_layers, late)
        after = kept_orders(body, lifetimes)
        runs = _runs(stretches)
        limit = self._limit(body, kept, max(peak_bytes(lifetimes, stretch) for stretch in runs))
        order: list[int] = []
        for stretch in runs:
            tasks = _tasks(body, stretch, _Facts(works, feeds, held, after))
            if not any(task.work.flight for task in tasks):
                order += stretch
                continue
            found = arrange(tasks, lifetimes, stretch)
            if peak_bytes(lifetimes, found) > limit:
                found = arrange(tasks, lifetimes, stretch, limit, self.window)
            order += found
        return order

    def _limit(self, body: Computation, kept: Sequence[int], peak: int) -> int:
        """What values may take at once, where they take so much in program order."""
        there = [node for node in body.nodes if node.op in ("constant", "parameter")]
        there += [body.nodes[position] for position in kept]
        whole = peak + sum(array.size_bytes for node in there for array in leaves(node.type))
        more = max(self.free_bytes, whole * self.limit_percent // 100) - whole
        return peak + max(0, more)


@attrs.frozen
class _Facts:
    """Of the nodes of a computation, by position."""

    works: Sequence[Work]
    feeds: Sequence[bool]
    held: Mapping[int, int]
    after: Mapping[int, Sequence[int]]


def _stretches(body: Computation) -> list[int]:
    """The number of each node's stretch; loops and branches are one by themselves."""
    found, number = [], 0
    for node in body.nodes:
        if node.op in CONTROL_FLOW:
            found.append(number + 1)
            number += 2
        else:
            found.append(number)
    return found


def _runs(stretches: Sequence[int]) -> list[range]:
    """The positions of each stretch."""
    edges = [k for k in range(1, len(stretches)) if stretches[k] != stretches[k - 1]]
    starts, ends = [0, *edges], [*edges, len(stretches)]
    return [range(first, last) for first, last in zip(starts, ends, strict=True)]


def _tasks(body: Computation, stretch: range, facts: _Facts) -> list[Task]:
    """The tasks of a stretch, numbered from its first node."""
    first = stretch.start
    works = facts.works[first : stretch.stop]
    after = [
        tuple(sorted({need - first for need in needs if first <= need < stretch.stop}))
        for position in stretch
        for needs in ((*body.nodes[position].operands, *facts.after.get(position, ())),)
    ]
    reads = _reads_collective(works, after)
    ranks = _ranks(_Stretch(works, after, reads), facts.feeds[first : stretch.stop])
    tasks = []
    for number, position in enumerate(stretch):
        until = facts.held.get(position)
        tasks.append(
            Task(
                work=works[number],
                stream=written_stream(body.nodes[position]) or 0,
                after=after[number],
                rank=ranks[number],
                reads_collective=reads[number],
                held_until=until - first if until is not None and until in stretch else None,
            )
        )
    return tasks


@attrs.frozen
class _Stretch:
    """The tasks of a stretch, by number."""

    works: Sequence[Work]
    after: Sequence[Sequence[int]]
    reads: Sequence[bool]  # a collective, itself or through others


def _reads_collective(works: Sequence[Work], after: Sequence[Sequence[int]]) -> list[bool]:
    reads: list[bool] = []
    for others in after:
        reads.append(any(works[other].flight or reads[other] for other in others))
    return reads


def _ranks(stretch: _Stretch, feeds: Sequence[bool]) -> list[Rank]:
    """The classes of tasks: by the next collective that each leads to."""
    works, turns = stretch.works, _turns(stretch.works, stretch.after)
    ahead = _ahead(stretch, turns)
    soon, later = [_NONE] * len(works), [_NONE] * len(works)
    ranks: list[Rank] = [(LAST, 0)] * len(works)
    for number in range(len(works) - 1, -1, -1):
        if works[number].flight:
            (soon if feeds[number] else later)[number] = turns[number]
        next_soon, next_later = soon[number], later[number]
        ranks[number] = _rank(works[number], next_soon, next_later) or (LAST, *ahead[number])
        for other in stretch.after[number]:
            soon[other] = min(soon[other], next_soon)
            later[other] = min(later[other], next_later)
    return ranks


def _ahead(stretch: _Stretch, turns: Mapping[int, int]) -> list[Rank]:
    """The places of tasks that lead to no collective.

    Of updates, whose turn comes anyway, those first that most work waits for; before them what
    they need else, by the collective that they read.
    """
    count = len(stretch.works)
    turn, wanted, work_behind = [0] * count, [_NONE - 1] * count, [0] * count
    for number, others in enumerate(stretch.after):
        turn[number] = turns.get(number, max((turn[other] for other in others), default=0))
    found: list[Rank] = [(0,)] * count
    for number in range(count - 1, -1, -1):
        work_behind[number] += stretch.works[number].duration
        is_update = stretch.reads[number]
        found[number] = (_NONE, -work_behind[number]) if is_update else (wanted[number],)
        for other in stretch.after[number]:
            work_behind[other] = max(work_behind[other], work_behind[number])
            wanted[other] = min(wanted[other], turn[number] if is_update else wanted[number])
    return found


def _turns(works: Sequence[Work], after: Sequence[Sequence[int]]) -> Mapping[int, int]:
    """The collectives in the order in which they could start if engines had no other work."""
    done: list[int] = []
    for work, others in zip(works, after, strict=True):
        start = max([done[other] for other in others], default=0)
        done.append(start + work.duration + work.flight)
    collectives = [number for number, work in enumerate(works) if work.flight]
    collectives.sort(key=lambda number: done[number] - works[number].flight)
    return {number: turn for turn, number in enumerate(collectives)}


def _rank(work: Work, soon: int, later: int) -> Rank | None:
    """Of a collective, or what leads to one."""
    if work.flight:
        return TRIGGER, min(soon, later)
    if soon < _NONE:
        return SOON, soon
    return (LATER, later) if later < _NONE else None


def reordered(body: Computation, order: Sequence[int]) -> Computation:
    """The computation with its nodes in this order."""
    rebuild = Rebuild(body)
    rebuild.new_ids = [NodeId(-1)] * len(body.nodes)
    for position in order:
        rebuild.new_ids[position] = rebuild.add(rebuild.rewired(body.nodes[position]))
    return rebuild.finish()
