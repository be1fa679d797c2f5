"""The transfers of some rows of a ring, as moves between cells.

A transfer is cut where any of its ranges goes on in another cell: a piece reads one cell of each
source and writes one cell of each target. What a row may not touch is found on the way; there it
reads what is nobody's, and writes nowhere.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.verify.bindings import Members, own_address
from ncc_runtime.verify.conflicts import spread_out
from ncc_runtime.verify.counters import narrowed
from ncc_runtime.verify.segments import RingRows
from ncc_runtime.verify.semantics.cells import Cells
from ncc_runtime.verify.semantics.fingerprints import Powers, factor

KEPT_FAULTS = 4
"""Faults of one column that are kept of some rows."""

_OFFSET_BITS = 40
"""A transfer has fewer bytes than two to this."""


@attrs.frozen
class Fault:
    """A transfer that does what none of its placeholder may do."""

    row: int  # of the ring's rows
    rank: int
    what: str


@attrs.frozen(eq=False)
class Inside:
    """Where pieces lie that do not begin where their cells do."""

    weight: np.ndarray  # (pieces,) uint64: from what a cell's first element holds to the piece's
    extent: np.ndarray  # (pieces,)
    offset: np.ndarray  # (pieces,) in bytes


@attrs.frozen(eq=False)
class Side:
    """The cells of one source or target, piece by piece."""

    cell: np.ndarray  # (pieces,) int64, of all ranks one behind the other
    inside: Inside | None = None  # None: all begin where their cells do


@attrs.frozen(eq=False)
class Pieces:
    """What some rows do."""

    start: np.ndarray  # (rows + 1,) the first piece of each row
    rank: np.ndarray  # (pieces,) who performs it
    sources: tuple[Side, ...]
    targets: tuple[Side, ...]
    widths: tuple[int, ...]  # per row, how many of the sources it has
    factors: tuple[np.uint64, ...]  # per row, for the divisor
    faults: tuple[Fault, ...]


@attrs.frozen(eq=False)
class _Ranges:
    """One source or target of every transfer; columns are (rows, ranks) or broadcast to it."""

    base: np.ndarray  # of the rank whose memory it is: makes numbers of cells distinct among ranks
    extent: np.ndarray  # 0: nobody's memory
    offset: np.ndarray  # in the extent, bytes
    number: np.ndarray  # of the cell there
    more: np.ndarray  # cells beyond that one


@attrs.frozen(eq=False)
class Cutter:
    """Makes pieces of the rows of one placeholder."""

    placeholder: Placeholder
    cells: Cells
    members: Members
    powers: Powers

    @property
    def ranks(self) -> int:
        """How many take part."""
        return self.members.count

    @property
    def zero_cell(self) -> int:
        """A cell behind those of all ranks that holds zeros."""
        return self.ranks * len(self.cells)

    @property
    def sink_cell(self) -> int:
        """A cell that is only written."""
        return self.zero_cell + 1

    def pieces(self, ring: RingRows, rows: slice) -> Pieces:
        """The pieces of some rows, row by row and rank by rank."""
        return _Block(self, ring, rows).pieces()


class _Block:
    """Some rows of a ring on their way to pieces."""

    def __init__(self, cutter: Cutter, ring: RingRows, rows: slice) -> None:
        self._cutter, self._ring, self._rows = cutter, ring, rows
        self._cells, self._extents = cutter.cells, cutter.cells.extents
        self._size = narrowed(ring.size_bytes)[rows].astype(np.int64)
        self._own = np.arange(cutter.ranks)[None, :]
        self._active = (ring.peer[rows] != IDLE) & (self._size > 0)
        self._is_full = bool(self._active.all())
        self._faults: list[Fault] = []

    def pieces(self) -> Pieces:
        ring, opcode = self._ring, self._ring.opcode[self._rows]
        joins = opcode == DmaOpcode.REDUCE
        widths = self._source_counts(opcode)
        sources = [self._source(k, widths > k) for k in range(int(widths.max(initial=0)))]
        targets = [self._target(ring.peer, ring.target)]
        if ring.second_peer is not None and ring.second_target is not None:
            targets.append(self._target(ring.second_peer, ring.second_target))
        if joins.any() and self._cutter.placeholder.reduction is None:
            self._refuse(self._active & joins[:, None], "joins values, which nobody asked for")
        transfer, inside = self._cuts([*sources, *targets])
        row = self._taken(np.arange(len(opcode))[:, None])[transfer]
        return Pieces(
            start=np.searchsorted(row, np.arange(len(opcode) + 1)),
            rank=self._taken(self._own)[transfer],
            sources=tuple(self._side(one, transfer, inside) for one in sources),
            targets=tuple(self._side(one, transfer, inside) for one in targets),
            widths=tuple(widths.tolist()),
            factors=tuple(map(factor, np.where(joins, ring.divisor[self._rows], 1).tolist())),
            faults=tuple(self._faults),
        )

    def _source_counts(self, opcode: np.ndarray) -> np.ndarray:
        """How many sources each row reads."""
        sources, fills = self._ring.sources[self._rows], opcode == DmaOpcode.FILL
        lacks = ~(sources[:, :, :1] != IDLE).any(axis=2) & ~fills[:, None]
        self._refuse(self._active & lacks, "has no source, and fills no zeros")
        is_used = sources.max(axis=1) > IDLE
        counts = (is_used * np.arange(1, is_used.shape[1] + 1)).max(axis=1, initial=0)
        counts[opcode == DmaOpcode.COPY] = min(1, sources.shape[2])
        counts[fills] = 0
        return counts

    def _taken(self, column: np.ndarray) -> np.ndarray:
        """What a column says of the transfers that there are, one after the other."""
        whole = np.broadcast_to(column, self._active.shape)
        return whole.ravel() if self._is_full else whole[self._active]

    def _source(self, number: int, used: np.ndarray) -> _Ranges:
        addresses, owner = self._ring.sources[self._rows, :, number], self._own
        is_there = (addresses != IDLE) & used[:, None] & self._active
        extent = self._extents.of_rows(addresses, self._size)
        is_free = extent > 0
        if self._ring.source_rank is not None:
            owner = self._ring.source_rank[self._rows, :, number]
            is_operand = self._extents.is_operand[extent] & self._is_rank(owner)
            is_free = is_free & ((owner == self._own) | is_operand)
        self._refuse(is_there & ~is_free, "reads {}, which it must not read", addresses, owner)
        spare = np.where(is_there, self._own * len(self._cells), self._cutter.zero_cell)
        return self._ranges(is_there & is_free, (addresses, owner, extent), spare)

    def _target(self, peer: np.ndarray, target: np.ndarray) -> _Ranges:
        peer, addresses = peer[self._rows], target[self._rows]
        is_there = (peer != IDLE) & self._active
        extent = self._extents.of_rows(addresses, self._size)
        is_free = self._extents.is_written[extent] & self._is_rank(peer)
        self._refuse(is_there & ~is_free, "writes {}, which it must not write", addresses, peer)
        spare = np.array(self._cutter.sink_cell)
        return self._ranges(is_there & is_free, (addresses, peer, extent), spare)

    def _is_rank(self, column: np.ndarray) -> np.ndarray:
        return (column >= 0) & (column < self._cutter.ranks)

    def _ranges(
        self,
        is_good: np.ndarray,
        where: tuple[np.ndarray, np.ndarray, np.ndarray],
        spare: np.ndarray,
    ) -> _Ranges:
        """Ranges by address, owner and extent; those that are not good are nobody's."""
        addresses, owner, extent = where
        offset, base = addresses - self._extents.start[extent], owner * np.int64(len(self._cells))
        size = self._size
        if not is_good.all():
            extent, offset, size = (np.where(is_good, one, 0) for one in (extent, offset, size))
            base = np.where(is_good, base, spare)
        self._check_elements(is_good, offset)
        return _Ranges(base, extent, offset, *self._cells.spanned(extent, offset, size))

    def _check_elements(self, mask: np.ndarray, offset: np.ndarray) -> None:
        """Transfers move whole elements."""
        element_bytes = self._cutter.placeholder.dtype.size_bytes
        bits = np.bitwise_or.reduce(offset, axis=None) | np.bitwise_or.reduce(self._size, axis=None)
        if bits & (element_bytes - 1):
            rest = (offset | self._size) & (element_bytes - 1)
            self._refuse(mask & (rest > 0), f"cuts elements of {element_bytes} bytes apart")

    def _refuse(self, mask: np.ndarray, what: str, *touched: np.ndarray) -> None:
        """Note transfers that must not be; `touched`: addresses, and whose."""
        if not mask.any():
            return
        for row, rank in np.argwhere(mask)[:KEPT_FAULTS].tolist():
            text = what
            if touched:
                start, owner, size = (
                    int(np.broadcast_to(one, mask.shape)[row, rank])
                    for one in (*touched, self._size)
                )
                start, rank_of = own_address(start), self._cutter.members.rank(owner)
                text = what.format(f"{start:#x}..{start + size:#x} of rank {rank_of}")
            self._faults.append(Fault(self._rows.start + row, rank, text))

    def _cuts(self, ranges: Sequence[_Ranges]) -> tuple[np.ndarray, np.ndarray]:
        """The pieces: of which transfer each is, and how many bytes from its beginning."""
        transfers: np.ndarray = np.arange(np.count_nonzero(self._active))
        keys = [transfers << _OFFSET_BITS]
        for one in ranges:
            if one.more.any():
                number, offset, more = map(self._taken, (one.number, one.offset, one.more))
                transfer, number = spread_out(number + 1, more)
                inside = self._cells.offset[number] - offset[transfer]
                keys.append((transfer << _OFFSET_BITS) | inside)
        if len(keys) == 1:
            return transfers, np.zeros(1, np.int64)
        key = np.unique(np.concatenate(keys))
        return key >> _OFFSET_BITS, key & ((1 << _OFFSET_BITS) - 1)

    def _side(self, one: _Ranges, transfer: np.ndarray, inside: np.ndarray) -> Side:
        extent, offset, number = one.extent, one.offset, one.number
        cell = self._taken(one.base + number)
        if len(inside) > 1:  # more pieces than transfers
            extent, offset, cell = (
                self._taken(part)[transfer] for part in (extent, offset, one.base)
            )
            offset = np.where(extent > 0, offset + inside, 0)
            number = self._cells.number(extent, offset)
            cell += number
        within = self._cells.inside(extent, offset, number)
        if not within.any():
            return Side(cell)
        if len(inside) == 1:
            extent, offset, within = map(self._taken, (extent, offset, within))
        weight = self._cutter.powers(within // self._cutter.placeholder.dtype.size_bytes)
        return Side(cell, Inside(weight, extent, offset))
