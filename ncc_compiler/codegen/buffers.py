"""Addresses: every buffer's place in one rank's HBM.

Inputs, constants and outputs have memory of their own, and so has whatever lives across a row of
control flow: loops come back to it. Other internal buffers share: a buffer may lie
where an older one lay if every access to the older one happens before the newer one's first
write in the partial order of the queues, whatever their speeds. Program order promises nothing.

The memory is cut into segments, each with the frontier of its last owner: per queue, how many
items must be complete until the owner is done with. Older owners need no record: the last owner
could only move in when they were done, and whoever knows that it is done knows the same of them.

Which all-reduces may write where they read: their results then need no memory of their own.

Which buffers become one: results lie where dead operands lay, new states where old ones did.

A copy, and an update of a slice, may write where their first operand lies, since elsewhere they
change nothing. So they do, where nobody reads the operand afterwards: then the copy is no
instruction at all, and the update writes its slice. All of it is settled for the steps of a region
(a body, a branch, the entry) once they are known, and for the buffers that belong to it: each run
of the region writes them anew before it reads them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np

from ncc_compiler.codegen.lowered import (
    ControlRow,
    InstructionCosts,
    LogicalBuffer,
    LoweredProgram,
    ProgramStep,
    TensorView,
    without_aliases,
)
from ncc_compiler.codegen.order import Clock, Order, Point, accesses, live_across_control_flow
from ncc_runtime.neff.isa import CASE, END, LOOP
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import ALIGNMENT, Block, BufferKind


@attrs.frozen
class BufferAliases:
    """In-place collectives (steps), and for each buffer the one whose memory it lives in."""

    steps: frozenset[int]
    home: tuple[int, ...]  # a buffer that lives in its own memory is its own home


def alias_in_place_collectives(draft: LoweredProgram, order: Order) -> BufferAliases:
    """Results of all-reduces put into the memory of operands that nobody needs any more.

    The operand must be an internal buffer, and whatever else touches its memory must be done
    before the collective is triggered. None of that looks beyond a row of control flow.
    """
    fixed = live_across_control_flow(draft)
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
    return BufferAliases(frozenset(steps), tuple(home))


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


def _could_be_in_place(draft: LoweredProgram, step: ProgramStep, fixed: frozenset[int]) -> bool:
    if step.collective is None or step.collective.op is not CollectiveOp.ALL_REDUCE:
        return False
    buffers = {draft.tensors[tensor].buffer for tensor in (*step.operands, *step.results)}
    return buffers.isdisjoint(fixed) and all(
        draft.buffers[buffer].kind is BufferKind.INTERNAL for buffer in buffers
    )


_KINDS = (
    BufferKind.INPUT,
    BufferKind.CONSTANT,
    BufferKind.ELIDED,
    BufferKind.OUTPUT,
    BufferKind.INTERNAL,
)
"""In the order of their addresses."""


def assign_addresses(
    draft: LoweredProgram, order: Order, sharing: BufferAliases
) -> tuple[tuple[int, ...], int]:
    """The address of every buffer, and the bytes of HBM that all of them span."""
    addresses = [0] * len(draft.buffers)
    top = 0
    fixed = live_across_control_flow(draft)
    for kind in _KINDS:
        for index, buffer in enumerate(draft.buffers):
            if buffer.kind is kind and (kind is not BufferKind.INTERNAL or index in fixed):
                addresses[index] = top
                top += _aligned(buffer.size_bytes)
    frontiers = _frontiers(draft, order, sharing)
    arena = _Arena(top, order.queues)
    placed = set()
    for step, before in zip(draft.steps, order.before, strict=True):
        for tensor in step.results:
            index = sharing.home[draft.tensors[tensor].buffer]
            buffer = draft.buffers[index]
            is_shared = buffer.kind is BufferKind.INTERNAL and index not in fixed
            if is_shared and index not in placed:
                placed.add(index)
                size = _aligned(buffer.size_bytes)
                addresses[index] = arena.take(size, before, frontiers[index])
    for index, home in enumerate(sharing.home):
        addresses[index] = addresses[home]
    return tuple(addresses), arena.end


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _frontiers(draft: LoweredProgram, order: Order, sharing: BufferAliases) -> np.ndarray:
    """Per home buffer and queue, how many items of the queue end the buffer's life.

    int64[buffers, queues].
    """
    frontiers = np.zeros((len(draft.buffers), order.queues), np.int64)
    for index, points in enumerate(accesses(draft, order)):
        row = frontiers[sharing.home[index]]
        for point in points:
            row[point.queue] = max(row[point.queue], point.count)
    return frontiers


_BLOCK = 256
"""Segments that are skipped together where none of them is free."""


class _Arena:
    """Segments [start, next start) of the internal memory, in order and without gaps."""

    def __init__(self, start: int, queues: int) -> None:
        self._count = 0  # of segments; behind them the arrays have room
        self._starts = np.full(_BLOCK + 1, start, np.int64)  # the one behind the last is the end
        self._frontiers = np.zeros((_BLOCK, queues), np.int64)
        self._least = np.zeros((1, queues), np.int64)  # of the frontiers of each block

    @property
    def end(self) -> int:
        """The first address that was never used."""
        return int(self._starts[self._count])

    def take(self, size: int, known: Clock, frontier: np.ndarray) -> int:
        """The lowest address where `size` bytes are free to whoever knows `known`."""
        if size == 0:
            return int(self._starts[0])
        first, last = self._first_fit(size, np.array(known))
        start = int(self._starts[first])
        end = start + size
        if end < self._starts[last]:  # the last segment is taken in part, its owner keeps the rest
            self._replace(first, last, np.stack((frontier, self._frontiers[last - 1])))
            self._starts[first + 1] = end
        elif end == self._starts[last]:
            self._replace(first, last, frontier[np.newaxis])
        else:  # beyond the end
            self._replace(first, last, frontier[np.newaxis])
            self._starts[self._count] = end
        return start

    def _replace(self, first: int, last: int, frontiers: np.ndarray) -> None:
        """Put other segments in the place of [first, last); the first begins where they did."""
        added = first + len(frontiers)
        count = self._count + added - last
        if count > len(self._frontiers):
            blocks = 2 * len(self._least)
            self._starts = np.resize(self._starts, blocks * _BLOCK + 1)
            self._frontiers = np.resize(self._frontiers, (blocks * _BLOCK, frontiers.shape[1]))
            self._least = np.resize(self._least, (blocks, frontiers.shape[1]))
        if added != last:
            self._starts[added : count + 1] = self._starts[last : self._count + 1].copy()
            self._frontiers[added:count] = self._frontiers[last : self._count].copy()
        self._frontiers[first:added] = frontiers
        from_block = first // _BLOCK
        to_block = -(-(added if added == last else count) // _BLOCK)
        changed = self._frontiers[from_block * _BLOCK : min(to_block * _BLOCK, count)]
        edges = np.arange(0, len(changed), _BLOCK)
        self._least[from_block:to_block] = np.minimum.reduceat(changed, edges, axis=0)
        self._count = count

    def _first_fit(self, size: int, known: np.ndarray) -> tuple[int, int]:
        """Segments [first, last) to take; beyond the end when nothing before it fits."""
        starts, count = self._starts, self._count
        least = self._least[: -(-count // _BLOCK)]
        run, behind = -1, -1  # where a run of free segments begins that ends a block, at `behind`
        for block in np.flatnonzero((least <= known).all(axis=1)).tolist():
            at = block * _BLOCK
            stop = min(at + _BLOCK, count)
            free = (self._frontiers[at:stop] <= known).all(axis=1)
            bounded = np.concatenate(([False], free, [False]))
            edges = np.flatnonzero(bounded[1:] != bounded[:-1]) + at
            firsts, lasts = edges[::2], edges[1::2]
            if len(firsts) and firsts[0] == behind:
                firsts[0] = run
            fits = np.flatnonzero(starts[lasts] - starts[firsts] >= size)
            if len(fits):
                first = int(firsts[fits[0]])
                return first, int(np.searchsorted(starts[: count + 1], starts[first] + size))
            if len(lasts) and lasts[-1] == stop:
                run, behind = int(firsts[-1]), stop
        return (run if behind == count else count), count


_UPDATE = "dynamic-update-slice"
_IN_PLACE = frozenset({"copy", _UPDATE})


class PartialProgram(Protocol):
    """What is made so far."""

    buffers: list[LogicalBuffer]
    tensors: list[TensorView]
    steps: list[ProgramStep]
    marks: list[ControlRow]
    blocks: list[Block]
    moved: dict[int, int]  # buffers whose contents are in another one from the start


def resolved_buffer(made: PartialProgram, tensor: int) -> int:
    """The buffer that a tensor lies in, after all moves so far."""
    buffer = made.tensors[tensor].buffer
    while buffer in made.moved:
        buffer = made.moved[buffer]
    return buffer


@attrs.frozen
class StepRange:
    """What a body, a branch or the entry has made: from the first of each to the last there is."""

    made: PartialProgram
    first_step: int
    first_mark: int
    first_buffer: int

    @classmethod
    def starting_here(cls, made: PartialProgram) -> "StepRange":
        return cls(made, len(made.steps), len(made.marks), len(made.buffers))

    def owns(self, buffer: int) -> bool:
        """Whether a buffer is written here before it is read, and of no use behind the end."""
        return buffer >= self.first_buffer and self.made.buffers[buffer].kind is BufferKind.INTERNAL

    def steps(self) -> Iterable[tuple[int, ProgramStep]]:
        return enumerate(self.made.steps[self.first_step :], self.first_step)

    def block_starts(self) -> Mapping[int, int]:
        """For the steps in blocks inside of the region, where the outermost block begins."""
        found: dict[int, int] = {}
        depth, since = 0, 0
        for mark in self.made.marks[self.first_mark :]:
            if mark.opcode in (LOOP, CASE):
                since = since if depth else mark.at
                depth += 1
            elif mark.opcode == END:
                depth -= 1
                if not depth:
                    found.update(dict.fromkeys(range(since, mark.at), since))
        return found

    def predicates(self) -> Mapping[int, int]:
        """The buffers that predicates of blocks lie in, and before which step the last is read."""
        return {
            resolved_buffer(self.made, self.made.blocks[mark.block].predicate): mark.at
            for mark in self.made.marks[self.first_mark :]
        }


class _Lives:
    """When the buffers of a region are touched, a block inside counting as one step."""

    def __init__(self, region: StepRange) -> None:
        self.made = region.made
        self.inside = region.block_starts()
        self.predicates = region.predicates()
        self.first: dict[int, int] = {}
        self.last_read: dict[int, int] = {}  # the step before which it has happened
        for index, step in region.steps():
            for tensor in (*step.results, *step.operands):
                self.first.setdefault(
                    resolved_buffer(self.made, tensor), self.inside.get(index, index)
                )
            for tensor in step.operands:
                self.last_read[resolved_buffer(self.made, tensor)] = index + 1
        for buffer, at in self.predicates.items():
            self.last_read[buffer] = max(self.last_read.get(buffer, 0), at)

    def is_last_reader(self, index: int, buffer: int) -> bool:
        """Whether a step may write where it reads the buffer for the last time."""
        step = self.made.steps[index]
        if index in self.inside or step.opcode not in _IN_PLACE:
            return False
        first, *others = (resolved_buffer(self.made, tensor) for tensor in step.operands)
        is_read_last = first == buffer and self.last_read[buffer] == index + 1
        return is_read_last and buffer not in others and buffer not in self.predicates


def write_in_place(region: StepRange, wanted: Iterable[int]) -> None:
    """Let steps write where they read; `wanted` are tensors that are read behind the end."""
    made, lives = region.made, _Lives(region)
    kept = {resolved_buffer(made, tensor) for tensor in wanted}
    for index, step in region.steps():
        if step.opcode not in _IN_PLACE:
            continue
        source, target = (
            resolved_buffer(made, step.operands[0]),
            resolved_buffer(made, step.results[0]),
        )
        if source in kept or not (region.owns(source) and region.owns(target)):
            continue
        is_new = lives.first[target] == index and target not in lives.predicates
        if is_new and lives.is_last_reader(index, source):
            made.moved[target] = source
            lives.last_read[source] = lives.last_read.get(target, index + 1)
            if target in kept:
                kept.add(source)


def coalesce_copies(region: StepRange, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Let the first of each pair of tensors lie where the second does, for which it is meant.

    That is safe where the old value is read no more when the new one begins. Gives the pairs that
    need a copy.
    """
    made, lives = region.made, _Lives(region)
    sources = Counter(resolved_buffer(made, source) for source, _ in pairs)
    copies = []
    for source, target in pairs:
        old, new = resolved_buffer(made, source), resolved_buffer(made, target)
        if old == new:
            continue
        if region.owns(old) and new not in sources and _is_free(lives, new, lives.first[old]):
            made.moved[old] = new
        else:
            copies.append((source, target))
    return copies


def _is_free(lives: _Lives, buffer: int, step: int) -> bool:
    """Whether a buffer is read no more when a step, or the block at its place, begins."""
    return lives.last_read.get(buffer, 0) <= step or lives.is_last_reader(step, buffer)


def without_dead_copies(draft: LoweredProgram, moved: Mapping[int, int]) -> LoweredProgram:
    """The draft with all moves made, without copies that move nothing."""
    draft = without_aliases(draft, moved)
    home = [tensor.buffer for tensor in draft.tensors]
    steps, places = [], [0]
    for step in draft.steps:
        stays = step.opcode in _IN_PLACE and home[step.operands[0]] == home[step.results[0]]
        if not stays:
            steps.append(step)
        elif step.opcode == _UPDATE:
            steps.append(attrs.evolve(step, costs=_costs_of_update(draft, step)))
        places.append(len(steps))
    marks = tuple(attrs.evolve(mark, at=places[mark.at]) for mark in draft.marks)
    return attrs.evolve(draft, steps=tuple(steps), marks=marks)


def _costs_of_update(draft: LoweredProgram, step: ProgramStep) -> InstructionCosts:
    """The slice is written, and read with its place; the rest stays where it is."""
    read = [draft.tensors[tensor].type for tensor in step.operands[1:]]
    size = read[0].size_bytes
    return InstructionCosts(0, read[0].elements, sum(one.size_bytes for one in read), size)
