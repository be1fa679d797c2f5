"""Chunks of buffers that the steps of an algorithm move, and how buffers are divided into them.

An extent is one tensor's share of every chunk: tables of an offset and a size by chunk. What moves
chunk k moves chunk k of each extent: several tensors in one operator, and chunks that do not lie in
one piece, are several extents.
"""

import functools
from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import Location, Space

ALIGNMENT = 64
"""Slots of scratch begin at multiples of this many bytes."""


@attrs.frozen(eq=False)
class Extent:
    """Offset and size of a piece of every chunk: tables (members or 1, chunks) int64, in bytes.

    One row is for all members alike. Columns of chunks that methods take may be of representatives
    only (`plan.Symmetry`); columns of members are of all, and cut to as many.
    """

    space: Space
    tensor: int
    offsets: np.ndarray
    sizes: np.ndarray
    row: np.ndarray | None = None  # (members,) the row of each member; None: rows are by member
    is_window: bool = False  # rows hold only a member's chunks: an aligned power of two of them

    @property
    def chunks(self) -> int:
        return self.offsets.shape[1]

    def size(self, chunk: np.ndarray) -> np.ndarray:
        """The size of chunk `chunk[m]` at every member m, (members,)."""
        if self._only_size is not None:
            return alike(self._only_size, len(chunk))
        return self._picked(self.sizes, chunk)

    @functools.cached_property
    def _only_size(self) -> int | None:
        """The size of all chunks, if they have one."""
        first = self.sizes.flat[0] if self.sizes.size else 0
        return int(first) if (self.sizes == first).all() else None

    def piece(self, chunk: np.ndarray, owner: np.ndarray | None = None) -> Location:
        """Where chunk `chunk[m]` lies at every member m, or at its `owner[m]`."""
        return Location(self.space, self._picked(self.offsets, chunk, owner), self.tensor, owner)

    def at(self, chunk: np.ndarray, peer: np.ndarray) -> Location:
        """Where chunk `chunk[m]` lies at the member that m writes to."""
        return Location(self.space, self._picked(self.offsets, chunk, peer), self.tensor)

    def moved(self, space: Space, offsets: np.ndarray | None = None) -> "Extent":
        """The same pieces in another space, at the same offsets unless others are given."""
        offsets = self.offsets if offsets is None else offsets
        return attrs.evolve(self, space=space, offsets=offsets)

    def cells(
        self, table: np.ndarray, chunk: np.ndarray, member: np.ndarray | None = None
    ) -> np.ndarray:
        """The cells of several chunks at every member m, or at `member[m]`, (members, k)."""
        if self.is_window:  # aligned, so a chunk's place in the window is its low bits
            chunk = chunk % table.shape[1]
        if table.shape[0] == 1:
            return np.take(table[0], chunk)
        return np.asarray(table[self._rows(len(chunk), member)[:, None], chunk])

    def rows(self, table: np.ndarray, members: np.ndarray) -> np.ndarray:
        """The cells of all chunks at some members, (these or 1, chunks)."""
        if table.shape[0] == 1:
            return table
        return np.asarray(table[self._rows(len(members), members)])

    def _picked(
        self, table: np.ndarray, chunk: np.ndarray, member: np.ndarray | None = None
    ) -> np.ndarray:
        if self.is_window:
            chunk = chunk % table.shape[1]
        if table.shape[0] == 1:
            return np.asarray(table[0][chunk])
        return np.asarray(table[self._rows(len(chunk), member), chunk])

    def _rows(self, count: int, member: np.ndarray | None) -> np.ndarray:
        """The rows of the first members, or of the members given."""
        rows = np.arange(count) if member is None else member[:count]
        return rows if self.row is None else self.row[rows]


@functools.lru_cache(1024)
def alike(value: int, members: int) -> np.ndarray:
    """A column of one value, (members,) int64: one cell, and mostly one object.

    A plan for thousands of members has thousands of such columns.
    """
    return np.broadcast_to(np.int64(value), members)


def chunked(space: Space, elements: Sequence[int], chunks: int, element_bytes: int) -> list[Extent]:
    """Every tensor divided into chunks of elements; the first chunks hold one more if need be."""
    extents = []
    for tensor, count in enumerate(elements):
        base, extra = divmod(count, chunks)
        sizes = np.full(chunks, base, np.int64)
        sizes[:extra] += 1
        offsets = np.cumsum(sizes) - sizes
        extents.append(
            Extent(space, tensor, offsets[None] * element_bytes, sizes[None] * element_bytes)
        )
    return extents


def sliced(
    extents: Sequence[Extent], parts: int, element_bytes: int, pieces: int = 1
) -> list[list[Extent]]:
    """Every chunk divided into `parts` slices of elements: extents per slice.

    If there are enough, all slices but the last hold a multiple of `pieces` elements, for slices
    are divided into as many pieces later.
    """
    by_part: list[list[Extent]] = [[] for _ in range(parts)]
    for extent in extents:
        is_enough = bool((extent.sizes >= parts * pieces * element_bytes).all())
        grain = pieces * element_bytes if is_enough else element_bytes
        base, extra = np.divmod(extent.sizes // grain, parts)
        for part, slices in enumerate(by_part):
            start = (base * part + np.minimum(extra, part)) * grain
            size = (base + (part < extra)) * grain
            if part == parts - 1:
                size = extent.sizes - start
            slices.append(attrs.evolve(extent, offsets=extent.offsets + start, sizes=size))
    return by_part


def in_own_buffers(
    extents: Sequence[Extent], chunks: Sequence[Extent], space: Space
) -> list[Extent]:
    """The same slices of chunks, each chunk in a buffer of its own; `chunks` are not sliced."""
    moved = []
    for extent, full in zip(extents, chunks, strict=True):
        # all chunks are of one size where they have owners (rule neff-P5)
        start = extent.offsets.min() - full.offsets.min()
        moved.append(extent.moved(space, np.full_like(extent.offsets, start)))
    return moved


def renumbered(extents: Sequence[Extent], order: np.ndarray) -> list[Extent]:
    """Chunk k of the result is chunk order[k]."""
    return [
        attrs.evolve(extent, offsets=extent.offsets[:, order], sizes=extent.sizes[:, order])
        for extent in extents
    ]


class Scratch:
    """Hands out the channel buffer of a plan."""

    def __init__(self) -> None:
        self.bytes = 0

    def take(self, size: int) -> int:
        """The offset of this many bytes."""
        offset = self.bytes
        self.bytes += -(-size // ALIGNMENT) * ALIGNMENT
        return offset
