"""Which all-reduces may write where they read: their results then need no memory of their own."""

from collections.abc import Mapping, Sequence

import attrs

from ncc_compiler.codegen.draft import Draft, Step
from ncc_compiler.codegen.order import Clock, Order, Point, accesses, crossing
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import BufferKind


@attrs.frozen
class Sharing:
    """In-place collectives (steps), and for each buffer the one whose memory it lives in."""

    steps: frozenset[int]
    home: tuple[int, ...]  # a buffer that lives in its own memory is its own home


def share(draft: Draft, order: Order) -> Sharing:
    """Results of all-reduces put into the memory of operands that nobody needs any more.

    The operand must be an internal buffer, and whatever else touches its memory must be done
    before the collective is triggered. None of that looks beyond a row of control flow.
    """
    fixed = crossing(draft)
    home = list(range(len(draft.buffers)))
    ends = [_ends(points) for points in accesses(draft, order)]
    steps = set()
    for index, step in enumerate(draft.steps):
        if not _could_be_in_place(draft, step, fixed):
            continue
        sources = [home[draft.tensors[tensor].buffer] for tensor in step.operands]
        targets = [draft.tensors[tensor].buffer for tensor in step.results]
        if len(set(sources)) < len(sources):
            continue
        known, done = order.before[index], order.done[index]
        if not all(_is_known_but(ends[buffer], done, known) for buffer in sources):
            continue
        steps.add(index)
        for source, target in zip(sources, targets, strict=True):
            home[target] = source
            # who touched the memory before is done before this step, so before all that read it
            ends[source] = ends[target]
    return Sharing(frozenset(steps), tuple(home))


def _ends(points: Sequence[Point]) -> Mapping[int, tuple[int, int]]:
    """By queue, where the last and the last but one of these points are."""
    found: dict[int, tuple[int, int]] = {}
    for point in points:
        last, second = found.get(point.queue, (0, 0))
        if point.count > last:
            found[point.queue] = (point.count, last)
        elif point.count > second:
            found[point.queue] = (last, point.count)
    return found


def _is_known_but(ends: Mapping[int, tuple[int, int]], own: Point, clock: Clock) -> bool:
    """Whether a clock knows all points but one that is among them."""
    return all(
        (second if (queue, last) == (own.queue, own.count) else last) <= clock[queue]
        for queue, (last, second) in ends.items()
    )


def _could_be_in_place(draft: Draft, step: Step, fixed: frozenset[int]) -> bool:
    if step.collective is None or step.collective.op is not CollectiveOp.ALL_REDUCE:
        return False
    buffers = {draft.tensors[tensor].buffer for tensor in (*step.operands, *step.results)}
    return buffers.isdisjoint(fixed) and all(
        draft.buffers[buffer].kind is BufferKind.INTERNAL for buffer in buffers
    )
