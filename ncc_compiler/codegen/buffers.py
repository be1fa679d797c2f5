"""Buffers that are one: work in place, so that copies and updates need no memory of their own.

Two steps, before buffers get their addresses (`placement.py`):

1. *In-place updates and copy coalescing* (`write_in_place`, `coalesce_copies`), during lowering. A
   copy, and an update of a slice, may write where their first operand lies, if nobody reads the
   operand afterwards: then the copy is no instruction at all, and the update writes its slice
   only. A copy into the state of a loop goes away if the new value can be computed right there.
   All of it is decided for the steps of one body, branch or the entry once they are known, and
   only for buffers that are defined there: each execution writes them anew before it reads them.
2. *In-place collectives* (`alias_in_place_collectives`): all-reduces whose results may lie where
   their operands did.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs

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
from ncc_runtime.neff.program import Block, BufferKind

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
    return without_copies_in_place(without_aliases(lowered, alias_of))


def without_copies_in_place(lowered: LoweredProgram) -> LoweredProgram:
    """The program without copies to where the operand lies; of updates in place, their costs.

    An update in place writes its slice only, and reads that and its indices.
    """
    donated = lowered.donated
    memory_of = [donated.get(tensor.buffer, tensor.buffer) for tensor in lowered.tensors]
    steps, places = [], [0]
    for step in lowered.steps:
        stays = (
            step.opcode in _IN_PLACE and memory_of[step.operands[0]] == memory_of[step.results[0]]
        )
        if not stays:
            steps.append(step)
        elif step.opcode == _UPDATE:
            read = [lowered.tensors[tensor].type for tensor in step.operands[1:]]
            bytes_in, bytes_out = sum(array.size_bytes for array in read), read[0].size_bytes
            in_place = InstructionCosts(0, read[0].elements, bytes_in, bytes_out)
            steps.append(attrs.evolve(step, costs=in_place))
        places.append(len(steps))
    control_steps = tuple(attrs.evolve(row, at=places[row.at]) for row in lowered.control_steps)
    return attrs.evolve(lowered, steps=tuple(steps), control_steps=control_steps)


# In-place collectives


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
    last_accesses = [last_two_accesses(points) for points in accesses(lowered, order)]
    steps = set()
    for index, step in enumerate(lowered.steps):
        if not _could_be_in_place(lowered, step, fixed):
            continue
        sources = [alias_of[lowered.tensors[tensor].buffer] for tensor in step.operands]
        targets = [lowered.tensors[tensor].buffer for tensor in step.results]
        if len(set(sources)) < len(sources):
            continue
        done, before = order.done[index], order.before[index]
        if not all(others_are_known(last_accesses[buffer], done, before) for buffer in sources):
            continue
        steps.add(index)
        for source, target in zip(sources, targets, strict=True):
            alias_of[target] = source
            # Earlier accesses to the memory are complete before this step, so before its readers:
            # from here on only the result's accesses count.
            last_accesses[source] = last_accesses[target]
    return BufferAliases(frozenset(steps), tuple(alias_of))


def last_two_accesses(points: Sequence[Point]) -> Mapping[int, tuple[int, int]]:
    """By queue, the counts of the last and the last but one of these points."""
    last_two: dict[int, tuple[int, int]] = {}
    for point in points:
        last, before_last = last_two.get(point.queue, (0, 0))
        if point.count > last:
            last_two[point.queue] = (point.count, last)
        elif point.count > before_last:
            last_two[point.queue] = (last, point.count)
    return last_two


def others_are_known(
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
