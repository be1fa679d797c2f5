"""Transfers performed on fingerprints, in an order that the waits allow.

Freedom from races makes one order stand for all. Before rows are performed they are cut into moves
between cells, some rows at a time: a transfer is cut where any of its ranges goes on in another
cell, so that a *piece* reads one cell of each source and writes one cell of each target. What a
row must not touch is noted as a fault; there it reads what no rank holds, and writes nowhere.
"""

import functools
from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.arrays import union
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.verify.bindings import own_address
from ncc_runtime.verify.conflicts import spread_out
from ncc_runtime.verify.counters import narrowed
from ncc_runtime.verify.segments import Segment
from ncc_runtime.verify.semantics.cells import MemoryCells, block_rows
from ncc_runtime.verify.semantics.fingerprints import Powers, factor, symbols

KEPT_FAULTS = 4
"""Faults of one column that are kept of some rows."""

KEPT_BLOCKS = 4
"""Blocks of rows of a ring whose pieces are at hand; ranks may be at different rows."""

_OFFSET_BITS = 40
"""A transfer has fewer bytes than two to this."""


@attrs.frozen(eq=False)
class Memory:
    """What all ranks hold, and what they held at first."""

    cells: MemoryCells
    element_bytes: int
    powers: Powers
    symbols: np.ndarray  # (ranks, extents) uint64
    held: np.ndarray  # (ranks * cells + 2,) uint64; behind all ranks a cell of zeros and a sink

    @classmethod
    def at_first(cls, cells: MemoryCells, ranks: int, element_bytes: int) -> "Memory":
        """Operands as given, all else as it happened to be."""
        exponents = cells.offset // element_bytes
        longest = int((cells.extents.end - cells.extents.start).max()) // element_bytes
        powers = Powers.up_to(longest)
        first_elements = symbols(ranks, len(cells.extents.start))
        held: np.ndarray = np.zeros(ranks * len(cells) + 2, np.uint64)
        of_ranks = held[:-2].reshape(ranks, -1)
        for extent in range(len(cells.extents.start)):
            own = slice(*np.searchsorted(cells.extent, (extent, extent + 1)).tolist())
            first = first_elements[:, extent, None]
            np.multiply(first, powers(exponents[own]), out=of_ranks[:, own])
        return cls(cells, element_bytes, powers, first_elements, held)

    @property
    def of_ranks(self) -> np.ndarray:
        """(ranks, cells) what each rank holds."""
        return self.held[:-2].reshape(-1, len(self.cells))

    @property
    def zero_cell(self) -> int:
        """A cell behind those of all ranks that holds zeros."""
        return len(self.held) - 2

    @property
    def sink_cell(self) -> int:
        """A cell that is only written."""
        return len(self.held) - 1


@attrs.frozen
class WrongTransfer:
    """A transfer that does what none of its placeholder may do."""

    ring: int
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
    divisors: tuple[int, ...]  # per row, of what is joined
    faults: tuple[WrongTransfer, ...]


class Replay:
    """Performs the rows of a segment's rings."""

    def __init__(self, segment: Segment, memory: Memory) -> None:
        self._segment, self._memory, self._held = segment, memory, memory.held
        self._heights = [block_rows(ring) for ring in segment.rings]
        self._pieces: list[dict[int, Pieces]] = [{} for _ in segment.rings]
        self._has_fills = any((ring.opcode == DmaOpcode.FILL).any() for ring in segment.rings)
        self._divided: np.ndarray | None = None  # (cells of all ranks,) bool, if any row divides
        if any((ring.divisor != 1).any() for ring in segment.rings):
            self._divided = np.zeros(len(memory.held), bool)
        self._member: np.ndarray = np.zeros(segment.ranks, bool)
        self.faults: dict[tuple[int, int], WrongTransfer] = {}  # by ring and row, the first of each
        self.mixed: list[tuple[np.ndarray, np.ndarray]] = []  # extent, offset: where to cut more

    def perform(self, ring: int, row: int, ranks: np.ndarray | None) -> None:
        """Read, join, divide, write: one row of a ring, on some ranks; None: on all."""
        block, at = divmod(row, self._heights[ring])
        pieces = self._pieces[ring].get(block) or self._cut(ring, block)
        chosen = self._chosen(pieces, at, ranks)
        width = pieces.widths[at]
        reads = []
        for source in pieces.sources[:width]:
            reads.append(self._held.take(source.cell[chosen]))
            if source.inside is not None:
                reads[-1] *= source.inside.weight[chosen]
        if self._has_fills and width > 1:
            # zeros are no operand: a product with them, or a minimum, is not what was specified
            for source in pieces.sources:
                cell = source.cell[chosen]
                zeros = (self._held[cell] == 0) & (cell != self._memory.zero_cell)
                self._refuse(
                    ring, row, pieces.rank[chosen][zeros], "joins zeros that a fill has written"
                )
        if self._divided is not None:
            # a sum of quotients has the fingerprint of an average, but is rounded otherwise: an
            # average is divided when all is joined
            divides = pieces.divisors[at] != 1
            read_cells = [source.cell[chosen] for source in pieces.sources[:width]]
            is_divided = np.any([self._divided[cell] for cell in read_cells], axis=0)
            if is_divided.any() and (divides or width > 1):
                wrong = pieces.rank[chosen][is_divided]
                self._refuse(ring, row, wrong, "joins or divides what is divided")
            for target in pieces.targets:
                self._divided[target.cell[chosen]] = is_divided | divides
        value = self.joined(reads, pieces.divisors[at])
        for target in pieces.targets:
            self._write(target, chosen, value)

    def joined(self, reads: Sequence[np.ndarray], divisor: int) -> np.ndarray:
        """What a row writes, (pieces,), of what it reads; zeros where it reads nothing."""
        if not reads:
            return np.zeros(1, np.uint64)
        value = functools.reduce(np.add, reads)
        return value if divisor == 1 else value * factor(divisor)

    def _cut(self, ring: int, block: int) -> Pieces:
        """The pieces of a block of rows, which are kept; the first of them goes."""
        known, height = self._pieces[ring], self._heights[ring]
        if len(known) == KEPT_BLOCKS:
            del known[min(known)]
        rows = slice(block * height, min((block + 1) * height, len(self._segment.rings[ring])))
        known[block] = _Cutter(self._segment, self._memory, ring, rows).pieces()
        for fault in known[block].faults:
            self.faults.setdefault((ring, fault.row), fault)
        return known[block]

    def _chosen(self, pieces: Pieces, at: int, ranks: np.ndarray | None) -> slice | np.ndarray:
        """The pieces of a row that these ranks perform."""
        first, last = int(pieces.start[at]), int(pieces.start[at + 1])
        if ranks is None or len(ranks) == self._segment.ranks:
            return slice(first, last)
        self._member[:] = False
        self._member[ranks] = True
        places = np.flatnonzero(self._member[pieces.rank[first:last]])
        return slice(first, last) if len(places) == last - first else places + first

    def _write(self, target: Side, chosen: slice | np.ndarray, value: np.ndarray) -> None:
        """Set what a cell holds by the piece at its start; the others must agree with it."""
        cell = target.cell[chosen]
        inside = target.inside
        if inside is None:
            self._held[cell] = value
            return
        weight = inside.weight[chosen]
        value = np.broadcast_to(value, cell.shape)
        starts = weight == 1
        self._held[cell[starts]] = value[starts]
        extent = inside.extent[chosen]
        differs = (self._held[cell] * weight != value) & (extent > 0)  # nobody reads extent 0
        if differs.any():
            self.mixed.append((extent[differs], inside.offset[chosen][differs]))

    def _refuse(self, ring: int, row: int, ranks: np.ndarray, what: str) -> None:
        """Note that the first of these ranks may not do this."""
        for rank in ranks[:1].tolist():
            self.faults.setdefault((ring, row), WrongTransfer(ring, row, rank, what))


@attrs.frozen(eq=False)
class _Ranges:
    """One source or target of every transfer; columns are (rows, ranks) or broadcast to it."""

    base: np.ndarray  # of the rank whose memory it is: makes numbers of cells distinct among ranks
    extent: np.ndarray  # 0: nobody's memory
    offset: np.ndarray  # in the extent, bytes
    number: np.ndarray  # of the cell there
    more: np.ndarray  # cells beyond that one


class _Cutter:
    """Cuts some rows of a ring into pieces, row by row and rank by rank."""

    def __init__(self, segment: Segment, memory: Memory, number: int, rows: slice) -> None:
        ring = segment.rings[number]
        self._segment, self._memory = segment, memory
        self._number, self._ring, self._rows = number, ring, rows
        self._cells, self._extents = memory.cells, memory.cells.extents
        self._size = narrowed(ring.size_bytes)[rows].astype(np.int64)
        self._own = np.arange(segment.ranks)[None, :]
        self._active = (ring.peer[rows] != IDLE) & (self._size > 0)
        self._is_full = bool(self._active.all())
        self._faults: list[WrongTransfer] = []

    def pieces(self) -> Pieces:
        ring, opcode = self._ring, self._ring.opcode[self._rows]
        joins = opcode == DmaOpcode.REDUCE
        widths = self._source_counts(opcode)
        sources = [self._source(k, widths > k) for k in range(int(widths.max(initial=0)))]
        targets = [self._target(ring.peer, ring.target)]
        if ring.second_peer is not None and ring.second_target is not None:
            targets.append(self._target(ring.second_peer, ring.second_target))
        if joins.any() and self._segment.placeholder.reduction is None:
            self._refuse(self._active & joins[:, None], "joins values, which nobody asked for")
        transfer, inside = self._cuts([*sources, *targets])
        row = self._of_transfers(np.arange(len(opcode))[:, None])[transfer]
        return Pieces(
            start=np.searchsorted(row, np.arange(len(opcode) + 1)),
            rank=self._of_transfers(self._own)[transfer],
            sources=tuple(self._side(ranges, transfer, inside) for ranges in sources),
            targets=tuple(self._side(ranges, transfer, inside) for ranges in targets),
            widths=tuple(widths.tolist()),
            divisors=tuple(np.where(joins, ring.divisor[self._rows], 1).tolist()),
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

    def _of_transfers(self, column: np.ndarray) -> np.ndarray:
        """A column for the transfers that there are, one after the other."""
        whole = np.broadcast_to(column, self._active.shape)
        return whole.ravel() if self._is_full else whole[self._active]

    def _source(self, number: int, used: np.ndarray) -> _Ranges:
        addresses, owner = self._ring.sources[self._rows, :, number], self._own
        is_there = (addresses != IDLE) & used[:, None] & self._active
        extent = self._extents.of_rows(addresses, self._size)
        is_allowed = extent > 0
        if self._ring.source_rank is not None:
            owner = self._ring.source_rank[self._rows, :, number]
            is_operand = self._extents.is_operand[extent] & self._is_rank(owner)
            is_allowed = is_allowed & ((owner == self._own) | is_operand)
        self._refuse(is_there & ~is_allowed, "reads {}, which it must not read", addresses, owner)
        # a row that lacks a source that others have reads zeros
        spare = np.where(is_there, self._own * len(self._cells), self._memory.zero_cell)
        return self._ranges(is_there & is_allowed, addresses, owner, extent, spare)

    def _target(self, peer: np.ndarray, target: np.ndarray) -> _Ranges:
        peer, addresses = peer[self._rows], target[self._rows]
        is_there = (peer != IDLE) & self._active
        extent = self._extents.of_rows(addresses, self._size)
        is_allowed = self._extents.is_written[extent] & self._is_rank(peer)
        self._refuse(is_there & ~is_allowed, "writes {}, which it must not write", addresses, peer)
        spare = np.array(self._memory.sink_cell)
        return self._ranges(is_there & is_allowed, addresses, peer, extent, spare)

    def _is_rank(self, column: np.ndarray) -> np.ndarray:
        return (column >= 0) & (column < self._segment.ranks)

    def _ranges(
        self,
        is_good: np.ndarray,
        addresses: np.ndarray,
        owner: np.ndarray,
        extent: np.ndarray,
        spare: np.ndarray,
    ) -> _Ranges:
        """Ranges in extents of the memories of owners; those that are not good are `spare`."""
        offset, base = addresses - self._extents.start[extent], owner * np.int64(len(self._cells))
        size = self._size
        if not is_good.all():
            extent, offset, size = (np.where(is_good, one, 0) for one in (extent, offset, size))
            base = np.where(is_good, base, spare)
        element_bytes = self._memory.element_bytes
        bits = np.bitwise_or.reduce(offset, axis=None) | np.bitwise_or.reduce(size, axis=None)
        if bits & (element_bytes - 1):
            rest = (offset | self._size) & (element_bytes - 1)
            self._refuse(is_good & (rest > 0), f"cuts elements of {element_bytes} bytes apart")
        return _Ranges(base, extent, offset, *self._cells.spanned(extent, offset, size))

    def _refuse(
        self,
        mask: np.ndarray,
        what: str,
        addresses: np.ndarray | None = None,
        owner: np.ndarray | None = None,
    ) -> None:
        """Note transfers that must not be; `what` may name the bytes at addresses of owners."""
        if not mask.any():
            return
        for row, rank in np.argwhere(mask)[:KEPT_FAULTS].tolist():
            text = what
            if addresses is not None and owner is not None:
                start, of_rank, size = (
                    int(np.broadcast_to(column, mask.shape)[row, rank])
                    for column in (addresses, owner, self._size)
                )
                start, of_rank = own_address(start), self._segment.members.rank(of_rank)
                text = what.format(f"{start:#x}..{start + size:#x} of rank {of_rank}")
            self._faults.append(WrongTransfer(self._number, self._rows.start + row, rank, text))

    def _cuts(self, ranges: Sequence[_Ranges]) -> tuple[np.ndarray, np.ndarray]:
        """The pieces: of which transfer each is, and how many bytes from its beginning."""
        transfers: np.ndarray = np.arange(np.count_nonzero(self._active))
        keys = [transfers << _OFFSET_BITS]
        for one in ranges:
            if one.more.any():
                number, offset, more = map(self._of_transfers, (one.number, one.offset, one.more))
                transfer, number = spread_out(number + 1, more)
                inside = self._cells.offset[number] - offset[transfer]
                keys.append((transfer << _OFFSET_BITS) | inside)
        if len(keys) == 1:
            return transfers, np.zeros(1, np.int64)
        key = union(*keys)
        return key >> _OFFSET_BITS, key & ((1 << _OFFSET_BITS) - 1)

    def _side(self, ranges: _Ranges, transfer: np.ndarray, inside: np.ndarray) -> Side:
        """The cells of a source or target, of the pieces that `_cuts` says."""
        extent, offset, number = ranges.extent, ranges.offset, ranges.number
        cell = self._of_transfers(ranges.base + number)
        if len(inside) > 1:  # more pieces than transfers
            extent, offset, cell = (
                self._of_transfers(column)[transfer] for column in (extent, offset, ranges.base)
            )
            offset = np.where(extent > 0, offset + inside, 0)
            number = self._cells.number(extent, offset)
            cell += number
        within = self._cells.inside(extent, offset, number)
        if not within.any():
            return Side(cell)
        if len(inside) == 1:
            extent, offset, within = map(self._of_transfers, (extent, offset, within))
        weight = self._memory.powers(within // self._memory.element_bytes)
        return Side(cell, Inside(weight, extent, offset))
