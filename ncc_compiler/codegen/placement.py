"""Placement: every buffer's address in a rank's HBM, as few bytes in all as it finds.

Inputs and constants have memory of their own, and so have predicates, which several queues read
when they come to them. Outputs have theirs from their first write on. All other buffers, and
outputs before, share: a buffer may lie where an older one lay if every access to the older one
happens before the newer one's first write in the partial order of the queues, whatever their
speeds. Program order promises nothing here, so a live range is no interval: it begins with what the
first writer knows (a vector clock), and ends at a *frontier*: per queue, how many items must be
complete until the buffer is dead. What is alive inside a loop and outside of it is alive in all of
the loop, since later rounds read it again. Around control flow all queues meet, so there the clocks
know everything.

Three steps:

1. *Reuse in place.* A result takes the memory of an operand that dies there, if the instruction may
   write where it reads (`neff/in_place.py`). Such buffers are placed as one.
2. *Live ranges*, as integers: by queue, the first item that knows of the frontier.
3. *Greedy by size* (Pisarchyk and Lee, "Efficient memory management for deep neural net inference",
   2020; XLA's heap simulator does the same): the largest first, each in the smallest gap between
      those that are alive together with it. First fit in program order is tried before, and is
   enough where it needs no more than what is alive at once, or for very many buffers.

First fit cuts memory into segments, each with the frontier of its last owner. Older owners need no
record: the last one could only move in when they were dead, and whoever knows that it is dead knows
the same of them.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_compiler.codegen.buffers import (
    BufferAliases,
    last_two_accesses,
    others_are_known,
)
from ncc_compiler.codegen.lowered import ControlStep, LoweredProgram, ProgramStep
from ncc_compiler.codegen.order import Clock, Order, Point, accesses, in_order
from ncc_runtime.neff.in_place import may_overwrite, read_in_turn
from ncc_runtime.neff.isa import END, ENGINES, LOOP
from ncc_runtime.neff.program import ALIGNMENT, BufferKind

_LASTING = (BufferKind.INPUT, BufferKind.CONSTANT, BufferKind.ELIDED)
"""Kinds whose buffers share with no other, in the order of their addresses."""


@attrs.define(eq=False)
class LiveRange:
    """From the first write of a buffer until nobody needs it."""

    first: int  # the step that begins it
    queue: int  # of that step's engine
    known: Clock  # complete before that step
    frontier: np.ndarray  # (queues,) items that must be complete until it is over
    size: int  # bytes, aligned
    lasts: bool  # to the end of the program: an output


class BufferPlacement:
    """Where the buffers of a program lie; every stage is done once, and only if it is asked for."""

    def __init__(self, lowered: LoweredProgram, order: Order, aliases: BufferAliases) -> None:
        self._lowered, self._order, self._aliases = lowered, order, aliases
        self._apart, self._top = _addresses_apart(lowered)
        donated = lowered.donated.keys()
        ranges = _live_ranges(lowered, order, aliases, {*_predicates(lowered), *donated})
        self._joined = _reused_in_place(lowered, order, aliases, ranges)
        self._roots = [index for index in ranges if self._joined[index] == index]
        self._ranges = [ranges[index] for index in self._roots]

    def takes_at_most(self, most: int) -> bool:
        """Whether the buffers span no more than so many bytes of HBM.

        That is often known without placing them: if what is alive at once takes more.
        """
        if self._table is not None and self._top + self._table.least > most:
            return False
        _, end = self._first_fit
        if self._top + end <= most:
            return True
        return self._table is not None and self._top + self._by_size[1] <= most

    @functools.cached_property
    def hbm_bytes(self) -> int:
        """The bytes of HBM that all buffers span."""
        return self._top + self._best[1]

    def addresses(self) -> tuple[int, ...]:
        """The address of every buffer."""
        addresses, (offsets, _) = list(self._apart), self._best
        for index, offset in zip(self._roots, offsets, strict=True):
            addresses[index] = self._top + offset
        for index in range(len(addresses)):
            owner = self._aliases.alias_of[index]
            owner = self._joined.get(owner, owner)
            addresses[index] = addresses[self._lowered.donated.get(owner, owner)]
        return tuple(addresses)

    @property
    def _best(self) -> "_Offsets":
        """Offsets of the live ranges, and the bytes that they span, by the better of two ways."""
        _, end = self._first_fit
        if self._table is not None and end > self._table.least and self._by_size[1] < end:
            return self._by_size
        return self._first_fit

    @functools.cached_property
    def _first_fit(self) -> "_Offsets":
        return _first_fit(self._ranges, self._order.queues)

    @functools.cached_property
    def _by_size(self) -> "_Offsets":
        assert self._table is not None
        return self._table.place()

    @functools.cached_property
    def _table(self) -> "_RangeTable | None":
        """The live ranges in columns, if there are some and not too many."""
        if not 0 < len(self._ranges) <= _MOST_GREEDY:
            return None
        return _RangeTable(self._lowered, self._order, self._ranges)


def _addresses_apart(lowered: LoweredProgram) -> tuple[list[int], int]:
    """The addresses of what shares with nothing, 0 for all others, and their end."""
    addresses, top = [0] * len(lowered.buffers), 0
    for kind in _LASTING:
        for index, buffer in enumerate(lowered.buffers):
            if buffer.kind is kind:
                addresses[index] = top
                top += _aligned(buffer.size_bytes)
    for index in sorted(_predicates(lowered)):
        addresses[index] = top
        top += _aligned(lowered.buffers[index].size_bytes)
    return addresses, top


def _predicates(lowered: LoweredProgram) -> set[int]:
    """The buffers that loops and branches ask."""
    return {lowered.tensors[block.predicate].buffer for block in lowered.blocks}


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


# Live ranges


_NEVER = np.iinfo(np.int64).max


def _live_ranges(
    lowered: LoweredProgram, order: Order, aliases: BufferAliases, apart: Iterable[int]
) -> dict[int, LiveRange]:
    """Of every buffer that has memory of its own and is not `apart`, in the order of first uses."""
    loops = _Loops(lowered, order)
    apart = set(apart)
    ranges: dict[int, LiveRange] = {}
    common: dict[int, int] = {}  # by buffer, the innermost loop around all of its accesses
    users: dict[int, list[int]] = {}  # by buffer, the loops around accesses
    for number, (step, done) in enumerate(zip(lowered.steps, order.done, strict=True)):
        loop = loops.around[number]
        for index in {
            aliases.alias_of[lowered.tensors[tensor].buffer]
            for tensor in (*step.results, *step.operands)
        }:
            buffer = lowered.buffers[index]
            if buffer.kind in _LASTING or index in apart or not buffer.size_bytes:
                continue
            live = ranges.get(index)
            if live is None:
                lasts = buffer.kind is BufferKind.OUTPUT
                live = ranges[index] = LiveRange(
                    first=number,
                    queue=ENGINES.index(step.engine),
                    known=order.before[number],
                    frontier=np.zeros(order.queues, np.int64),
                    size=_aligned(buffer.size_bytes),
                    lasts=lasts,
                )
                common[index], users[index] = loop, [loop]
            elif users[index][-1] != loop:
                users[index].append(loop)
                common[index] = loops.common(common[index], loop)
            live.frontier[done.queue] = max(live.frontier[done.queue], done.count)
    for index, around in users.items():
        if len(around) > 1:
            for loop in set(around) - {common[index]}:
                _extend(ranges[index], loops, loops.below(common[index], loop))
    for live in ranges.values():
        if live.lasts:
            live.frontier[:] = _NEVER
    return ranges


def _extend(live: LiveRange, loops: "_Loops", loop: int) -> None:
    """Make a live range last for all rounds of a loop."""
    span = loops.spans[loop]
    np.maximum(live.frontier, span.known_behind, out=live.frontier)
    if live.first > span.first:
        live.first, live.known = span.first, span.known_before


@attrs.frozen
class _LoopSpan:
    """A loop: its first step, and what is complete before its first row and behind its last."""

    parent: int
    first: int
    known_before: Clock
    known_behind: Clock


_NO_LOOP = -1


class _Loops:
    """Loops of a program, numbered in the order of their ends, and which steps they hold."""

    def __init__(self, lowered: LoweredProgram, order: Order) -> None:
        self.spans: dict[int, _LoopSpan] = {}  # by block
        self.around: list[int] = []  # by step, the block of the innermost loop
        open_loops: list[tuple[int, int, Clock]] = []
        rows = iter(order.barriers)
        for item in in_order(lowered):
            if not isinstance(item, ControlStep):
                self.around.append(open_loops[-1][0] if open_loops else _NO_LOOP)
                continue
            known = next(rows).known
            if item.opcode == LOOP:
                open_loops.append((item.block, len(self.around), known))
            elif item.opcode == END and open_loops and open_loops[-1][0] == item.block:
                block, first, before = open_loops.pop()
                parent = open_loops[-1][0] if open_loops else _NO_LOOP
                self.spans[block] = _LoopSpan(parent, first, before, known)

    def outwards(self, loop: int) -> Iterator[int]:
        """A loop and those around it, inside out."""
        while loop != _NO_LOOP:
            yield loop
            loop = self.spans[loop].parent

    def common(self, one: int, other: int) -> int:
        """The innermost loop around two."""
        around = set(self.outwards(one))
        return next((loop for loop in self.outwards(other) if loop in around), _NO_LOOP)

    def below(self, outer: int, loop: int) -> int:
        """The outermost loop that is inside of `outer` and around `loop`."""
        return next(one for one in self.outwards(loop) if self.spans[one].parent == outer)


# Reuse in place


def _reused_in_place(
    lowered: LoweredProgram,
    order: Order,
    aliases: BufferAliases,
    ranges: Mapping[int, LiveRange],
) -> dict[int, int]:
    """By buffer, the one that it is placed with; the live range of that is then of both.

    The operand must be dead in every order of the queues when the result is written, but for the
    reads of the instruction itself.
    """
    joined = {index: index for index in ranges}
    by_owner: dict[int, list[Point]] = {}
    for index, points in enumerate(accesses(lowered, order)):
        by_owner.setdefault(aliases.alias_of[index], []).extend(points)
    last_accesses = {index: last_two_accesses(points) for index, points in by_owner.items()}
    for number, step in enumerate(lowered.steps):
        if step.collective is not None:
            continue
        for result, operand in _in_place_pairs(lowered, step):
            written, read = (
                aliases.alias_of[lowered.tensors[tensor].buffer]
                for tensor in (step.results[result], step.operands[operand])
            )
            if written not in ranges or read not in ranges or joined[written] != written:
                continue
            new, old = ranges[written], ranges[joined[read]]
            is_new = new.first == number and new is not old
            if not is_new or old.lasts or new.size != old.size:
                continue
            done, before = order.done[number], order.before[number]
            if not others_are_known(last_accesses[joined[read]], done, before):
                continue
            if not _is_over_at(old, done, before):
                continue
            joined[written] = joined[read]
            last_accesses[joined[read]] = last_accesses[written]
            old.frontier = np.maximum(old.frontier, new.frontier)
            old.lasts = new.lasts
            break
    return joined


def _is_over_at(live: LiveRange, done: Point, known: Clock) -> bool:
    """Whether a live range is over when an item that is its last use is."""
    until = np.array(known)
    until[done.queue] = max(until[done.queue], done.count)
    return bool((live.frontier <= until).all())


def _in_place_pairs(lowered: LoweredProgram, step: ProgramStep) -> Iterator[tuple[int, int]]:
    """A result and an operand, by position, where the one may be written over the other."""
    results = [lowered.tensors[tensor].type for tensor in step.results]
    operands = [lowered.tensors[tensor].type for tensor in step.operands]
    read: dict[int, list[int]] = {}  # by buffer, the operands that lie there
    for operand, tensor in enumerate(step.operands):
        read.setdefault(lowered.tensors[tensor].buffer, []).append(operand)
    alike: dict[object, list[list[int]]] = {}  # by size and shape
    for same in read.values():
        kind = operands[same[0]]
        alike.setdefault((kind.shape, kind.size_bytes), []).append(same)
    fusion = lowered.fusion_of(step)
    in_turn = None if fusion is None else read_in_turn(fusion)
    for result, kind in enumerate(results):
        for same in alike.get((kind.shape, kind.size_bytes), ()):
            if in_turn is not None:  # asked once, not for each pair
                may = in_turn.issuperset(same)
            else:
                may = all(
                    may_overwrite(step.opcode, results, operands, result, operand)
                    for operand in same
                )
            if may:
                yield result, same[0]


# Addresses


_MOST_GREEDY = 4000
"""Live ranges that are placed by size; more would take too long, quadratic as it is."""


_Offsets = tuple[list[int], int]
"""By live range its offset, and the end of all."""


def _first_fit(ranges: Sequence[LiveRange], queues: int) -> _Offsets:
    """In program order, each at the lowest address that is free."""
    heap = _Heap(0, queues)
    offsets = [0] * len(ranges)
    for number in sorted(range(len(ranges)), key=lambda number: ranges[number].first):
        one = ranges[number]
        offsets[number] = heap.take(one.size, one.known, one.frontier)
    return offsets, heap.end


class _RangeTable:
    """Live ranges in columns, so that one is set against many at once."""

    def __init__(self, lowered: LoweredProgram, order: Order, ranges: Sequence[LiveRange]) -> None:
        steps_of: list[list[int]] = [[] for _ in ENGINES]  # by engine, its steps
        for number, step in enumerate(lowered.steps):
            steps_of[ENGINES.index(step.engine)].append(number)
        self.first = np.array([one.first for one in ranges], np.int64)
        self.size = np.array([one.size for one in ranges], np.int64)
        self.queue = np.array([one.queue for one in ranges], np.int64)
        frontiers = np.array([one.frontier for one in ranges], np.int64)
        # by engine and range: from which step on its steps know that the range is over
        count = len(lowered.steps)
        self._over = np.full((len(ENGINES), len(ranges)), count, np.int64)
        clocks = np.array(order.before, np.int64).reshape(count, -1)
        for queue, steps in enumerate(steps_of):
            if not steps:
                self._over[queue] = 0
                continue
            known, numbers = clocks[steps], np.array([*steps, count])
            at = np.max(
                [np.searchsorted(known[:, k], frontiers[:, k]) for k in range(known.shape[1])],
                axis=0,
            )
            self._over[queue] = numbers[at]
        self._last = self._over.max(axis=0)
        self.least = self._peak(steps_of)

    def _peak(self, steps_of: Sequence[Sequence[int]]) -> int:
        """Bytes that are alive at once at the least, if everything is dead as soon as possible."""
        change = np.zeros(int(self._last.max(initial=0)) + 2, np.int64)
        least = self._over[[bool(steps) for steps in steps_of]].min(axis=0)
        np.add.at(change, self.first, self.size)
        np.add.at(change, np.maximum(least, self.first + 1), -self.size)
        return int(np.cumsum(change).max(initial=0))

    def place(self) -> _Offsets:
        """Offsets when the largest come first, each as low as it can be; and the end."""
        sequence = np.lexsort((self.first, -self.size))
        offsets = np.zeros(len(sequence), np.int64)
        first, last, size, queue = (
            column[sequence] for column in (self.first, self._last, self.size, self.queue)
        )
        over = self._over[:, sequence]
        starts, ends = np.zeros(len(sequence), np.int64), np.zeros(len(sequence), np.int64)
        top = 0
        for number in range(len(sequence)):
            near = np.flatnonzero((first[:number] < last[number]) & (last[:number] > first[number]))
            is_older = first[near] <= first[number]
            overlaps = np.where(
                is_older,
                over[queue[number]][near] > first[number],
                over[queue[near], number] > first[near],
            )
            near = near[overlaps]
            at = _lowest_gap(starts[near], ends[near], int(size[number]))
            starts[number], ends[number] = at, at + size[number]
            top = max(top, at + int(size[number]))
        offsets[sequence] = starts
        return offsets.tolist(), top


def _lowest_gap(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """The lowest address with so many bytes between intervals, or behind all of them."""
    # Nothing covers the place behind the k-th end if no more than k intervals begin before it.
    begins = np.concatenate(([0], np.sort(ends)))
    gaps = np.append(np.sort(starts), _NEVER) - begins
    return int(begins[np.argmax(gaps >= size)])


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
