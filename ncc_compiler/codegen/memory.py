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


class _Arena:
    """Segments [start, next start) of the internal memory, in order and without gaps."""

    def __init__(self, start: int, queues: int) -> None:
        self._starts = np.array([start], np.int64)  # (n+1,) the last one is the end
        self._frontiers = np.zeros((0, queues), np.int64)  # (n, queues)

    @property
    def end(self) -> int:
        """The first address that was never used."""
        return int(self._starts[-1])

    def take(self, size: int, known: Clock, frontier: np.ndarray) -> int:
        """The lowest address where `size` bytes are free to whoever knows `known`."""
        if size == 0:
            return int(self._starts[0])
        first, last = self._first_fit(size, np.array(known))
        end = int(self._starts[first]) + size
        starts, frontiers = self._starts[last:], self._frontiers[last:]
        if end < starts[0]:  # the last segment is taken in part, its owner keeps the rest
            starts = np.concatenate(([end], starts))
            frontiers = np.concatenate((self._frontiers[last - 1 : last], frontiers))
        elif end > starts[0]:  # beyond the end
            starts = np.array([end])
        self._starts = np.concatenate((self._starts[: first + 1], starts))
        self._frontiers = np.concatenate((self._frontiers[:first], [frontier], frontiers))
        return end - size

    def _first_fit(self, size: int, known: np.ndarray) -> tuple[int, int]:
        """Segments [first, last) to take; beyond the end when nothing before it fits."""
        free = np.concatenate(([False], (self._frontiers <= known).all(axis=1), [False]))
        edges = np.flatnonzero(free[1:] != free[:-1])
        firsts, lasts = edges[::2], edges[1::2]
        fits = np.flatnonzero(self._starts[lasts] - self._starts[firsts] >= size)
        if len(fits) == 0:
            count = len(self._frontiers)
            trailing = len(lasts) and lasts[-1] == count
            return (int(firsts[-1]) if trailing else count), count
        first = int(firsts[fits[0]])
        last = int(np.searchsorted(self._starts, self._starts[first] + size))
        return first, last
