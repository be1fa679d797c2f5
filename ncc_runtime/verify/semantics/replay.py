"""Transfers performed on fingerprints, in an order that the waits allow.

Freedom from races makes one order stand for all.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.verify.segments import RingRows
from ncc_runtime.verify.semantics.cells import Cells, height
from ncc_runtime.verify.semantics.fingerprints import Powers, symbols
from ncc_runtime.verify.semantics.pieces import Cutter, Fault, Pieces, Side

KEPT_BLOCKS = 4
"""Blocks of rows of a ring whose pieces are at hand; ranks may be at different rows."""


@attrs.frozen(eq=False)
class Step:
    """One row of a ring, on some ranks."""

    ring: int
    row: int  # of the ring's rows
    ranks: np.ndarray | None  # (r,); None: all


@attrs.frozen(eq=False)
class Memory:
    """What all ranks hold, and what they held at first."""

    cells: Cells
    unit_bytes: int
    powers: Powers
    symbols: np.ndarray  # (ranks, extents) uint64
    held: np.ndarray  # (ranks * cells + 2,) uint64; behind all ranks a cell of zeros and a sink

    @classmethod
    def at_first(cls, cells: Cells, ranks: int, unit_bytes: int) -> "Memory":
        """Operands as given, all else as found; elements have `unit_bytes`."""
        exponents = cells.offset // unit_bytes
        longest = int((cells.extents.end - cells.extents.start).max()) // unit_bytes
        powers = Powers.up_to(longest)
        found = symbols(ranks, len(cells.extents.start))
        held: np.ndarray = np.zeros(ranks * len(cells) + 2, np.uint64)
        of_ranks = held[:-2].reshape(ranks, -1)
        for extent in range(found.shape[1]):
            its = slice(*np.searchsorted(cells.extent, (extent, extent + 1)).tolist())
            np.multiply(found[:, extent, None], powers(exponents[its]), out=of_ranks[:, its])
        return cls(cells, unit_bytes, powers, found, held)


class Replay:
    """Performs the rows of one placeholder's rings."""

    def __init__(self, cutter: Cutter, rings: Sequence[RingRows], memory: Memory) -> None:
        self._cutter, self._rings, self._held = cutter, rings, memory.held
        self._heights = [height(ring) for ring in rings]
        self._pieces: list[dict[int, Pieces]] = [{} for _ in rings]
        self._has_fills = any((ring.opcode == DmaOpcode.FILL).any() for ring in rings)
        self._divided: np.ndarray | None = None  # (cells of all ranks,) bool, if any row divides
        if any((ring.divisor != 1).any() for ring in rings):
            self._divided = np.zeros(len(memory.held), bool)
        self._member: np.ndarray = np.zeros(cutter.ranks, bool)
        self.faults: dict[tuple[int, int], Fault] = {}  # by ring and row, the first of each
        self.mixed: list[tuple[np.ndarray, np.ndarray]] = []  # extent, offset: where to cut more

    def perform(self, step: Step) -> None:
        """Read, join, divide, write."""
        block, row = divmod(step.row, self._heights[step.ring])
        pieces = self._of_block(step.ring, block)
        chosen = self._chosen(pieces, row, step.ranks)
        width = pieces.widths[row]
        value = np.zeros(1, np.uint64) if not width else self._read(pieces.sources[0], chosen)
        for source in pieces.sources[1:width]:
            value = value + self._read(source, chosen)
        if self._has_fills and width > 1:
            self._check_zeros(step, pieces, chosen)
        if self._divided is not None:
            self._follow_division(step, pieces, chosen, self._divided)
        if pieces.factors[row] != 1:
            value = value * pieces.factors[row]
        for target in pieces.targets:
            self._write(target, chosen, value)

    def _of_block(self, ring: int, block: int) -> Pieces:
        known, height = self._pieces[ring], self._heights[ring]
        if block not in known:
            if len(known) == KEPT_BLOCKS:
                del known[min(known)]
            rows = slice(block * height, min((block + 1) * height, len(self._rings[ring])))
            known[block] = found = self._cutter.pieces(self._rings[ring], rows)
            for fault in found.faults:
                self.faults.setdefault((ring, fault.row), fault)
        return known[block]

    def _chosen(self, pieces: Pieces, row: int, ranks: np.ndarray | None) -> slice | np.ndarray:
        """The pieces of a row that these ranks perform."""
        first, last = int(pieces.start[row]), int(pieces.start[row + 1])
        if ranks is None or len(ranks) == self._cutter.ranks:
            return slice(first, last)
        self._member[:] = False
        self._member[ranks] = True
        found = np.flatnonzero(self._member[pieces.rank[first:last]])
        return slice(first, last) if len(found) == last - first else found + first

    def _read(self, source: Side, chosen: slice | np.ndarray) -> np.ndarray:
        value = self._held.take(source.cell[chosen])
        return value if source.inside is None else value * source.inside.weight[chosen]

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
        parts = (self._held[cell] * weight != value) & (extent > 0)  # 0: many write it, none reads
        if parts.any():
            self.mixed.append((extent[parts], inside.offset[chosen][parts]))

    def _check_zeros(self, step: Step, pieces: Pieces, chosen: slice | np.ndarray) -> None:
        """Zeros are no operand: a product with them, or a minimum, is not what was promised."""
        for source in pieces.sources:
            cell = source.cell[chosen]
            joined = (self._held[cell] == 0) & (cell != self._cutter.zero_cell)
            self._refuse(step, pieces.rank[chosen][joined], "joins zeros that a fill has written")

    def _follow_division(
        self, step: Step, pieces: Pieces, chosen: slice | np.ndarray, divided: np.ndarray
    ) -> None:
        """An average is divided when all is joined: a sum of quotients has the same fingerprint."""
        row = step.row % self._heights[step.ring]
        width, divides = pieces.widths[row], bool(pieces.factors[row] != 1)
        given = np.any([divided[one.cell[chosen]] for one in pieces.sources[:width]], axis=0)
        if given.any() and (divides or width > 1):
            self._refuse(step, pieces.rank[chosen][given], "joins or divides what is divided")
        for target in pieces.targets:
            divided[target.cell[chosen]] = given | divides

    def _refuse(self, step: Step, ranks: np.ndarray, what: str) -> None:
        """Note that the first of these ranks may not do this."""
        for rank in ranks[:1].tolist():
            self.faults.setdefault((step.ring, step.row), Fault(step.row, rank, what))
