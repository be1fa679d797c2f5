"""The memory that a placeholder may touch, cut into cells that a proof can treat as one value.

Its buffers, overlapping ones together, are **extents**; extent 0 is all other memory. An extent
that nobody may write is one cell. Others are cut where transfers and parts of results begin and
end: into cells of one size, a power of two, if that gives hardly more of them than there are
transfers, else exactly there. A transfer may read a cell from its middle.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.arrays import distinct, union
from ncc_runtime.verify.bindings import Binding, Role, extents_of
from ncc_runtime.verify.counters import narrowed
from ncc_runtime.verify.segments import DmaRingRows

BLOCK_TRANSFERS = 1 << 15
"""Transfers that are cut together: temporary arrays stay in cache."""

FEW = 1 << 12
"""So many cells are always few."""

UNEVEN = -1
WHOLE = 62
"""Shifts of extents whose cells have several sizes, and of those that are one cell."""

_FAR = -(1 << 62)
"""Where extent 0 stands, below all addresses: searches need no case of their own for it."""


@attrs.frozen(eq=False)
class Extents:
    """Intervals of one rank's memory, the same on all ranks; no two overlap."""

    start: np.ndarray  # (extents,) int64, ascending
    end: np.ndarray  # (extents,)
    is_operand: np.ndarray  # (extents,) bool: all of it is
    is_written: np.ndarray  # (extents,) bool: all of it is a result or channel buffer
    base: np.ndarray  # (extents,) base + offset is a key, ascending through all extents

    @classmethod
    def of(cls, bindings: Sequence[Binding]) -> "Extents":
        """The extents of bindings; those of empty bindings are left out."""
        bindings = [binding for binding in bindings if binding.size_bytes]
        operands = [binding for binding in bindings if binding.role is Role.OPERAND]
        written = [binding for binding in bindings if binding.role is not Role.OPERAND]
        extents = [(_FAR, _FAR), *extents_of(bindings)]
        start, end = np.array(extents, np.int64).T
        is_operand, is_written = (
            np.array([extent in alone for extent in extents])
            for alone in map(extents_of, (operands, written))
        )
        sizes = end - start
        base = np.cumsum(sizes) - sizes + np.arange(len(sizes))
        return cls(start, end, is_operand, is_written, base)

    def number(self, addresses: np.ndarray) -> np.ndarray:
        """The extent of each address."""
        number = np.searchsorted(self.start, addresses, side="right") - 1
        return np.where(addresses < self.end[number], number, 0)

    def of_rows(self, addresses: np.ndarray, size_bytes: np.ndarray) -> np.ndarray:
        """The extent of each range, 0 where there is none; (n, 1) where that is one in each row."""
        low = self.number(addresses.min(axis=1))
        if low.all() and (addresses.max(axis=1) + size_bytes.max(axis=1) <= self.end[low]).all():
            return low[:, None]
        number = self.number(addresses)
        return np.where(addresses + size_bytes <= self.end[number], number, 0)

    def offset(self, binding: Binding) -> tuple[int, int]:
        """Extent 0 for an empty binding, else its extent and where it begins there."""
        number = int(self.number(np.array(binding.start))) if binding.size_bytes else 0
        return number, binding.start - int(self.start[number]) if number else 0


@attrs.frozen(eq=False)
class MemoryCells:
    """Extents, cut; cell 0 is extent 0."""

    extents: Extents
    shift: np.ndarray  # (extents,) int64: cells of 1 << shift bytes, or UNEVEN or WHOLE
    first: np.ndarray  # (extents,) the first cell of each
    extent: np.ndarray  # (cells,) in which each lies
    offset: np.ndarray  # (cells,) where it begins there, in bytes

    def __len__(self) -> int:
        return len(self.extent)

    @classmethod
    def of(cls, extents: Extents, shift: np.ndarray, cuts: Sequence[np.ndarray]) -> "MemoryCells":
        """Cells that begin at these offsets, extent by extent, ascending from 0."""
        counts = np.array([len(one) for one in cuts])
        return cls(
            extents=extents,
            shift=shift,
            first=np.cumsum(counts) - counts,
            extent=np.repeat(np.arange(len(cuts)), counts),
            offset=np.concatenate(cuts),
        )

    def number(self, extent: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """The cell in which each offset into an extent lies."""
        shift = self.shift[extent]
        if (shift == WHOLE).all():
            return self.first[extent]
        if (shift != UNEVEN).all():
            return self.first[extent] + (offset >> shift)
        # cells of several sizes: a search among all of them, by extent and then by offset
        base = self.extents.base
        keys = base[self.extent] + self.offset
        return np.searchsorted(keys, base[extent] + offset, side="right") - 1

    def spanned(
        self, extent: np.ndarray, offset: np.ndarray, size_bytes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where ranges begin, and how many more cells they reach into; all (n, ranks or 1)."""
        number, shift = self.number(extent, offset), self.shift[extent]
        if extent.shape[1] == 1:
            bits = np.bitwise_or.reduce(offset, axis=1, keepdims=True)
            starts = bits & ((1 << np.maximum(shift, 0)) - 1) == 0
            fits = size_bytes.max(axis=1, keepdims=True) <= 1 << np.maximum(shift, 0)
            if ((shift == WHOLE) | (starts & fits & (shift != UNEVEN))).all():
                return number, np.zeros((1, 1), np.int64)
        last = self.number(extent, offset + np.maximum(size_bytes - 1, 0))
        return number, last - number

    def inside(self, extent: np.ndarray, offset: np.ndarray, number: np.ndarray) -> np.ndarray:
        """How far behind the beginning of their cells offsets lie, in bytes."""
        shift = self.shift[extent]
        if (shift == UNEVEN).any():
            return offset - self.offset[number]
        return offset & ((1 << shift) - 1)

    def within(self, binding: Binding) -> slice:
        """The cells of a binding that is cut at its ends."""
        extent, start = self.extents.offset(binding)
        if not extent:
            return slice(0, 0)
        ends = np.array((start, start + binding.size_bytes - 1))
        first, last = self.number(np.full(2, extent), ends).tolist()
        return slice(first, last + 1)

    def cut(self, extent: np.ndarray, offset: np.ndarray) -> "MemoryCells":
        """The same, cut at more offsets."""
        shift, cuts = self.shift.copy(), []
        for number in range(len(shift)):
            more = offset[extent == number]
            own = self.offset[self.extent == number]
            shift[number] = UNEVEN if len(more) else shift[number]
            cuts.append(union(own, more))
        return MemoryCells.of(self.extents, shift, cuts)


def cells_of(
    parts: Mapping[Binding, int], rings: Sequence[DmaRingRows], even: bool | None = None
) -> MemoryCells:
    """Cells such that transfers write whole ones, as do the equal parts that bindings are cut into.

    `even` says how extents are cut; else numbers do.
    """
    extents = Extents.of(tuple(parts))
    widths, moved = _widths(extents, parts, rings)
    transfers = sum(ring.peer.size for ring in rings)
    ranks = max((ring.peer.shape[1] for ring in rings), default=1)
    sizes = extents.end - extents.start
    most = np.maximum(sizes * ranks, moved) // widths
    is_even = most <= FEW + 4 * transfers if even is None else np.full(len(sizes), even)
    logarithms = np.array([width.bit_length() - 1 for width in widths.tolist()])
    shift = np.where(extents.is_written, np.where(is_even, logarithms, UNEVEN), WHOLE)
    cuts = [np.zeros(1, np.int64)] * len(sizes)
    for number in np.flatnonzero(extents.is_written & is_even).tolist():
        cuts[number] = np.arange(0, int(sizes[number]), int(widths[number]))
    if (shift == UNEVEN).any():
        keys = union(*_borders(extents, parts), *_edges(extents, rings))
    for number in np.flatnonzero(shift == UNEVEN).tolist():
        offset = keys - extents.base[number]
        cuts[number] = offset[(offset >= 0) & (offset < sizes[number])]
    return MemoryCells.of(extents, shift, cuts)


def _widths(
    extents: Extents, parts: Mapping[Binding, int], rings: Sequence[DmaRingRows]
) -> tuple[np.ndarray, np.ndarray]:
    """Per extent the largest power of two that divides all that begins there, and bytes written."""
    common = extents.end - extents.start
    moved = np.zeros_like(common)
    for binding, count in parts.items():
        number, offset = extents.offset(binding)
        common[number] |= offset | binding.size_bytes | (binding.size_bytes // count)
    for size_bytes, column in _targets(rings):
        extent = extents.of_rows(column, size_bytes)
        if extent.shape[1] == 1:
            extent, start = extent[:, 0], extents.start[extent[:, 0]]
            least, most = (one.reduce(column, axis=1) for one in (np.bitwise_and, np.bitwise_or))
            differing = (most & ~start) | (~least & start)  # bits in which any differs from start
            bits = differing | np.bitwise_or.reduce(size_bytes, axis=1)
            size_bytes = size_bytes.sum(axis=1) * (column.shape[1] // size_bytes.shape[1])
        else:
            bits = (column - extents.start[extent]) | size_bytes
            size_bytes = np.broadcast_to(size_bytes, column.shape)
        np.bitwise_or.at(common, extent, bits)
        np.add.at(moved, extent, size_bytes)
    common[0] = 1
    return common & -common, moved


def _borders(extents: Extents, parts: Mapping[Binding, int]) -> Iterator[np.ndarray]:
    """Where the parts of bindings begin and end, as keys."""
    for binding, count in parts.items():
        number, offset = extents.offset(binding)
        if number:
            borders = np.append(binding.size_bytes // count * np.arange(count), binding.size_bytes)
            yield extents.base[number] + offset + borders


def _edges(extents: Extents, rings: Sequence[DmaRingRows]) -> Iterator[np.ndarray]:
    """Where transfers begin and end to write, as keys, some of them often."""
    for size_bytes, column in _targets(rings):
        extent = extents.of_rows(column, size_bytes)
        keys = extents.base[extent] + column - extents.start[extent]
        is_there = np.broadcast_to(extent > 0, keys.shape)
        yield distinct(keys[is_there])
        yield distinct((keys + size_bytes)[is_there])


def _targets(rings: Sequence[DmaRingRows]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sizes, (n, ranks or 1), and addresses of what is written, some rows at a time."""
    columns = [(ring, ring.target) for ring in rings]
    columns += [(ring, ring.second_target) for ring in rings if ring.second_target is not None]
    for ring, column in columns:
        sizes = narrowed(ring.size_bytes)
        for first in range(0, len(ring), block_rows(ring)):
            rows = slice(first, first + block_rows(ring))
            yield sizes[rows].astype(np.int64), column[rows]


def block_rows(ring: DmaRingRows) -> int:
    """How many rows of a ring are cut together."""
    return max(1, BLOCK_TRANSFERS // max(1, ring.peer.shape[1]))
