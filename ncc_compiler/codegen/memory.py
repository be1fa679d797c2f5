"""Addresses: every buffer's place in one rank's HBM.

Inputs, constants and outputs have memory of their own, and so has whatever lives across a row of
control flow: loops come back to it. Other internal buffers share: a buffer may lie
where an older one lay if every access to the older one happens before the newer one's first
write in the partial order of the queues, whatever their speeds. Program order promises nothing.

The memory is cut into segments, each with the frontier of its last owner: per queue, how many
items must be complete until the owner is done with. Older owners need no record: the last owner
could only move in when they were done, and whoever knows that it is done knows the same of them.
"""

import numpy as np

from ncc_compiler.codegen.draft import Draft
from ncc_compiler.codegen.in_place import Sharing
from ncc_compiler.codegen.order import Clock, Order, accesses, crossing
from ncc_runtime.neff.program import ALIGNMENT, BufferKind

_KINDS = (
    BufferKind.INPUT,
    BufferKind.CONSTANT,
    BufferKind.ELIDED,
    BufferKind.OUTPUT,
    BufferKind.INTERNAL,
)
"""In the order of their addresses."""


def place_buffers(draft: Draft, order: Order, sharing: Sharing) -> tuple[tuple[int, ...], int]:
    """The address of every buffer, and the bytes of HBM that all of them span."""
    addresses = [0] * len(draft.buffers)
    top = 0
    fixed = crossing(draft)
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


def _frontiers(draft: Draft, order: Order, sharing: Sharing) -> np.ndarray:
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
