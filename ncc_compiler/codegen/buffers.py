"""Buffer assignment: which buffers share memory, and every buffer's address in a rank's HBM.

Three steps, each on top of the one before:

1. *In-place updates and copy coalescing* (`write_in_place`, `coalesce_copies`), during lowering. A
   copy, and an update of a slice, may write where their first operand lies, if nobody reads the
   operand afterwards: then the copy is no instruction at all, and the update writes its slice
   only. A copy into the state of a loop goes away if the new value can be computed right there.
   All of it is decided for the steps of one body, branch or the entry once they are known, and
   only for buffers that are defined there: each execution writes them anew before it reads them.
2. *In-place collectives* (`alias_in_place_collectives`): all-reduces whose results may lie where
   their operands did.
3. *Addresses* (`assign_addresses`). Inputs, constants and outputs have memory of their own, and so
   has whatever is live across control flow, since loops come back to it. Other internal buffers
   share: a buffer may lie where an older one lay if every access to the older one happens before
   the newer one's first write in the partial order of the queues, whatever their speeds. Program
   order promises nothing here, so live ranges are vector clocks and not intervals.

The shared memory is cut into segments, each with the frontier of its last owner: per queue, how
many items must be complete until the owner is dead. Older owners need no record: the last one could
only move in when they were dead, and whoever knows that it is dead knows the same of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np

from ncc_compiler.codegen.lowered import (
    ControlStep,
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

# In-place updates and copy coalescing

_UPDATE = "dynamic-update-slice"
_IN_PLACE = frozenset({"copy", _UPDATE})


class PartialProgram(Protocol):
    """A program that is being lowered, as far as it is there."""

    buffers: list[LogicalBuffer]
    tensors: list[TensorView]
    steps: list[ProgramStep]
    control_steps: list[ControlStep]
    blocks: list[Block]
    alias_of: dict[int, int]  # by buffer without memory of its own: the one that it lies in


def resolved_buffer(partial: PartialProgram, tensor: int) -> int:
    """The buffer whose memory a tensor lies in, after all aliases so far."""
    buffer = partial.tensors[tensor].buffer
    while buffer in partial.alias_of:
        buffer = partial.alias_of[buffer]
    return buffer


@attrs.frozen
class StepRange:
    """The steps of a body, a branch or the entry: from a first one to the last there is so far."""

    partial: PartialProgram
    first_step: int
    first_control_step: int
    first_buffer: int

    @classmethod
    def starting_here(cls, partial: PartialProgram) -> "StepRange":
        return cls(partial, len(partial.steps), len(partial.control_steps), len(partial.buffers))

    def owns(self, buffer: int) -> bool:
        """Whether a buffer is written here before it is read, and of no use behind the end."""
        return (
            buffer >= self.first_buffer and self.partial.buffers[buffer].kind is BufferKind.INTERNAL
        )

    def steps(self) -> Iterable[tuple[int, ProgramStep]]:
        return enumerate(self.partial.steps[self.first_step :], self.first_step)

    def block_starts(self) -> Mapping[int, int]:
        """For the steps in blocks inside of the range, where the outermost block begins."""
        starts: dict[int, int] = {}
        depth = outermost = 0
        for row in self.partial.control_steps[self.first_control_step :]:
            if row.opcode in (LOOP, CASE):
                if not depth:
                    outermost = row.at
                depth += 1
            elif row.opcode == END:
                depth -= 1
                if not depth:
                    starts.update(dict.fromkeys(range(outermost, row.at), outermost))
        return starts

    def predicates(self) -> Mapping[int, int]:
        """The buffers that predicates of blocks lie in, and before which step the last is read."""
        return {
            resolved_buffer(self.partial, self.partial.blocks[row.block].predicate): row.at
            for row in self.partial.control_steps[self.first_control_step :]
        }


class _LastUses:
    """First access and last read of the buffers of a range, a block inside counting as one step."""

    def __init__(self, step_range: StepRange) -> None:
        self.partial = step_range.partial
        self.inside = step_range.block_starts()
        self.predicates = step_range.predicates()
        self.first: dict[int, int] = {}
        self.last_read: dict[int, int] = {}  # the step before which it has happened
        for index, step in step_range.steps():
            for tensor in (*step.results, *step.operands):
                self.first.setdefault(
                    resolved_buffer(self.partial, tensor), self.inside.get(index, index)
                )
            for tensor in step.operands:
                self.last_read[resolved_buffer(self.partial, tensor)] = index + 1
        for buffer, at in self.predicates.items():
            self.last_read[buffer] = max(self.last_read.get(buffer, 0), at)

    def is_last_reader(self, index: int, buffer: int) -> bool:
        """Whether a step may write where it reads the buffer for the last time."""
        step = self.partial.steps[index]
        if index in self.inside or step.opcode not in _IN_PLACE:
            return False
        first, *others = (resolved_buffer(self.partial, tensor) for tensor in step.operands)
        is_read_last = first == buffer and self.last_read[buffer] == index + 1
        return is_read_last and buffer not in others and buffer not in self.predicates


def write_in_place(step_range: StepRange, live_out: Iterable[int]) -> None:
    """Let steps write where they read; `live_out` are tensors that are read behind the end."""
    partial, uses = step_range.partial, _LastUses(step_range)
    kept = {resolved_buffer(partial, tensor) for tensor in live_out}
    for index, step in step_range.steps():
        if step.opcode not in _IN_PLACE:
            continue
        source = resolved_buffer(partial, step.operands[0])
        target = resolved_buffer(partial, step.results[0])
        if source in kept or not (step_range.owns(source) and step_range.owns(target)):
            continue
        is_new = uses.first[target] == index and target not in uses.predicates
        if is_new and uses.is_last_reader(index, source):
            partial.alias_of[target] = source
            uses.last_read[source] = uses.last_read.get(target, index + 1)
            if target in kept:
                kept.add(source)


def coalesce_copies(
    step_range: StepRange, pairs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Coalesce copies of the first tensor of each pair to the second; gives those that remain.

    A source may be computed in its target's memory if the target's old value is read no more when
    the source is first written (their live ranges do not interfere).
    """
    partial, uses = step_range.partial, _LastUses(step_range)
    sources = Counter(resolved_buffer(partial, source) for source, _ in pairs)
    copies = []
    for source, target in pairs:
        computed, memory = resolved_buffer(partial, source), resolved_buffer(partial, target)
        if computed == memory:
            continue
        if step_range.owns(computed) and memory not in sources:
            first_write = uses.first[computed]  # a step, or the block at its place
            is_read_no_more = uses.last_read.get(memory, 0) <= first_write
            if is_read_no_more or uses.is_last_reader(first_write, memory):
                partial.alias_of[computed] = memory
                continue
        copies.append((source, target))
    return copies


def without_dead_copies(lowered: LoweredProgram, alias_of: Mapping[int, int]) -> LoweredProgram:
    """The program with aliases resolved, without copies of a buffer to itself."""
    lowered = without_aliases(lowered, alias_of)
    buffer_of = [tensor.buffer for tensor in lowered.tensors]
    steps, places = [], [0]
    for step in lowered.steps:
        stays = (
            step.opcode in _IN_PLACE and buffer_of[step.operands[0]] == buffer_of[step.results[0]]
        )
        if not stays:
            steps.append(step)
        elif step.opcode == _UPDATE:
            # In place, an update writes its slice only, and reads that and its indices.
            read = [lowered.tensors[tensor].type for tensor in step.operands[1:]]
            bytes_in, bytes_out = sum(array.size_bytes for array in read), read[0].size_bytes
            in_place = InstructionCosts(0, read[0].elements, bytes_in, bytes_out)
            steps.append(attrs.evolve(step, costs=in_place))
        places.append(len(steps))
    control_steps = tuple(attrs.evolve(row, at=places[row.at]) for row in lowered.control_steps)
    return attrs.evolve(lowered, steps=tuple(steps), control_steps=control_steps)


# In-place collectives and addresses


@attrs.frozen
class BufferAliases:
    """In-place collectives (steps), and for each buffer the one whose memory it has."""

    steps: frozenset[int]
    alias_of: tuple[int, ...]  # a buffer with memory of its own stands for itself


def alias_in_place_collectives(lowered: LoweredProgram, order: Order) -> BufferAliases:
    """Puts results of all-reduces into the memory of operands that are read no more.

    The operand must be an internal buffer that is not live across control flow, and whatever else
    touches its memory must be done before the collective is triggered.
    """
    fixed = live_across_control_flow(lowered)
    alias_of = list(range(len(lowered.buffers)))
    last_accesses = [_last_two(points) for points in accesses(lowered, order)]
    steps = set()
    for index, step in enumerate(lowered.steps):
        if not _could_be_in_place(lowered, step, fixed):
            continue
        sources = [alias_of[lowered.tensors[tensor].buffer] for tensor in step.operands]
        targets = [lowered.tensors[tensor].buffer for tensor in step.results]
        if len(set(sources)) < len(sources):
            continue
        done, before = order.done[index], order.before[index]
        if not all(_others_are_known(last_accesses[buffer], done, before) for buffer in sources):
            continue
        steps.add(index)
        for source, target in zip(sources, targets, strict=True):
            alias_of[target] = source
            # Earlier accesses to the memory are complete before this step, so before its readers:
            # from here on only the result's accesses count.
            last_accesses[source] = last_accesses[target]
    return BufferAliases(frozenset(steps), tuple(alias_of))


def _last_two(points: Sequence[Point]) -> Mapping[int, tuple[int, int]]:
    """By queue, the counts of the last and the last but one of these points."""
    last_two: dict[int, tuple[int, int]] = {}
    for point in points:
        last, before_last = last_two.get(point.queue, (0, 0))
        if point.count > last:
            last_two[point.queue] = (point.count, last)
        elif point.count > before_last:
            last_two[point.queue] = (last, point.count)
    return last_two


def _others_are_known(
    last_two: Mapping[int, tuple[int, int]], collective: Point, clock: Clock
) -> bool:
    """Whether a clock knows all accesses to a buffer but that of the collective itself.

    Where the collective is the last access of its queue, the one before it counts; an access
    behind the collective is unknown to the clock.
    """
    return all(
        (before_last if Point(queue, last) == collective else last) <= clock[queue]
        for queue, (last, before_last) in last_two.items()
    )


def _could_be_in_place(lowered: LoweredProgram, step: ProgramStep, fixed: frozenset[int]) -> bool:
    if step.collective is None or step.collective.op is not CollectiveOp.ALL_REDUCE:
        return False
    buffers = {lowered.tensors[tensor].buffer for tensor in (*step.operands, *step.results)}
    return buffers.isdisjoint(fixed) and all(
        lowered.buffers[buffer].kind is BufferKind.INTERNAL for buffer in buffers
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
    lowered: LoweredProgram, order: Order, aliases: BufferAliases
) -> tuple[tuple[int, ...], int]:
    """The address of every buffer, and the bytes of HBM that all of them span."""
    addresses = [0] * len(lowered.buffers)
    top = 0
    fixed = live_across_control_flow(lowered)
    for kind in _KINDS:
        for index, buffer in enumerate(lowered.buffers):
            if buffer.kind is kind and (kind is not BufferKind.INTERNAL or index in fixed):
                addresses[index] = top
                top += _aligned(buffer.size_bytes)
    frontiers = _frontiers(lowered, order, aliases)
    heap = _Heap(top, order.queues)
    placed = set()
    for step, before in zip(lowered.steps, order.before, strict=True):
        for tensor in step.results:
            index = aliases.alias_of[lowered.tensors[tensor].buffer]
            buffer = lowered.buffers[index]
            is_shared = buffer.kind is BufferKind.INTERNAL and index not in fixed
            if is_shared and index not in placed:
                placed.add(index)
                size = _aligned(buffer.size_bytes)
                addresses[index] = heap.take(size, before, frontiers[index])
    for index, owner in enumerate(aliases.alias_of):
        addresses[index] = addresses[owner]
    return tuple(addresses), heap.end


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _frontiers(lowered: LoweredProgram, order: Order, aliases: BufferAliases) -> np.ndarray:
    """Per buffer with memory of its own and queue: how many items of the queue until it is dead.

    int64[buffers, queues].
    """
    frontiers = np.zeros((len(lowered.buffers), order.queues), np.int64)
    for index, points in enumerate(accesses(lowered, order)):
        row = frontiers[aliases.alias_of[index]]
        for point in points:
            row[point.queue] = max(row[point.queue], point.count)
    return frontiers


_BLOCK = 256
"""Segments that the search skips together where none of them can be free."""


class _Heap:
    """Segments [start, next start) of the internal memory, in order and without gaps.

    Searched first fit. A clock that is below a block's minimum in any queue is below every frontier
    of the block there, so no segment of the block is free.
    """

    def __init__(self, start: int, queues: int) -> None:
        self._count = 0  # of segments; behind them the arrays have room to grow
        self._starts = np.full(_BLOCK + 1, start, np.int64)  # the one behind the last is the end
        self._frontiers = np.zeros((_BLOCK, queues), np.int64)
        self._minima = np.zeros((1, queues), np.int64)  # of the frontiers of each block, by queue

    @property
    def end(self) -> int:
        """The first address that was never used."""
        return int(self._starts[self._count])

    def take(self, size: int, known: Clock, frontier: np.ndarray) -> int:
        """The lowest address where `size` bytes are free once the clock is `known`."""
        if size == 0:
            return int(self._starts[0])
        first, last = self._first_fit(size, np.array(known))
        start = int(self._starts[first])
        end = start + size
        if end < self._starts[last]:  # the last segment's owner keeps the rest of it
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
            blocks = 2 * len(self._minima)
            self._starts = np.resize(self._starts, blocks * _BLOCK + 1)
            self._frontiers = np.resize(self._frontiers, (blocks * _BLOCK, frontiers.shape[1]))
            self._minima = np.resize(self._minima, (blocks, frontiers.shape[1]))
        if added != last:  # the segments behind move
            self._starts[added : count + 1] = self._starts[last : self._count + 1].copy()
            self._frontiers[added:count] = self._frontiers[last : self._count].copy()
        self._frontiers[first:added] = frontiers
        # The minima of changed blocks; all blocks behind the first if segments moved.
        from_block = first // _BLOCK
        to_block = -(-(added if added == last else count) // _BLOCK)
        changed = self._frontiers[from_block * _BLOCK : min(to_block * _BLOCK, count)]
        edges = np.arange(0, len(changed), _BLOCK)
        self._minima[from_block:to_block] = np.minimum.reduceat(changed, edges, axis=0)
        self._count = count

    def _first_fit(self, size: int, known: np.ndarray) -> tuple[int, int]:
        """Segments [first, last) to take; beyond the end when nothing before it fits.

        Looks at maximal runs of free segments, block by block; `run` is one that reaches the end
        of a block, at `run_end`, and may go on in the next.
        """
        starts, count = self._starts, self._count
        minima = self._minima[: -(-count // _BLOCK)]
        run, run_end = -1, -1
        for block in np.flatnonzero((minima <= known).all(axis=1)).tolist():
            at = block * _BLOCK
            stop = min(at + _BLOCK, count)
            free = (self._frontiers[at:stop] <= known).all(axis=1)
            # Between taken neighbours, the edges are the first and the end of each run in turn.
            bounded = np.concatenate(([False], free, [False]))
            edges = np.flatnonzero(bounded[1:] != bounded[:-1]) + at
            firsts, ends = edges[::2], edges[1::2]
            if len(firsts) and firsts[0] == run_end:
                firsts[0] = run
            fits = np.flatnonzero(starts[ends] - starts[firsts] >= size)
            if len(fits):
                first = int(firsts[fits[0]])
                return first, int(np.searchsorted(starts[: count + 1], starts[first] + size))
            if len(ends) and ends[-1] == stop:
                run, run_end = int(firsts[-1]), stop
        return (run if run_end == count else count), count
