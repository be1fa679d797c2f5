"""What an instruction does, in figures that no topology changes.

An instruction loads its operands into SBUF tile by tile, works on them, and stores its results. A
*phase* is work that must end before the next begins: a mean over a row before what uses it. In a
phase all engines work at once, as they do in fusions with matrix products, whose phases overlap
from tile to tile (software pipelining). Engines' work is in *lane cycles*, one for each element
that one of 128 lanes goes over at full width, and in passes of a 128 x 128 array.
`neff/durations.py` turns work into picoseconds.

Rules and figures: AWS Neuron SDK docs, the cost formulas of nki/api/nki/isa (tag v2.26.1), the
guides of nki/guides/architecture, and nki/deep-dives/nki_perf_guide.rst. docs/timing.md has the
arithmetic of an example for each rule.
"""

import enum
from collections.abc import Mapping
from fractions import Fraction

import attrs

from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.shared.dtypes import DType

PARTITIONS = 128
"""Partitions of SBUF and PSUM, rows and columns of the Tensor engine's array: on all chips (nki
architecture guides)."""

FLOPS_PER_CYCLE = 2 * PARTITIONS * PARTITIONS
"""What the Tensor engine's array multiplies and adds in a cycle."""

SBUF_BYTES = 24 << 20
"""SBUF of a core of trn1, the smallest (nki architecture guides: 24, 28 and 32 MiB). Half holds a
tile, half the next one (assumed)."""

TILE_COLUMNS = 512
"""Elements of a partition in a tile that need not hold whole rows: 2 KiB of float32, from where
DMA is near its peak (nki-dma-bandwidth-guide.rst)."""

DMA_ROW_BYTES = 512
"""A DMA takes as long for a shorter run of bytes as for these (assumed: nki-dma-overview.rst calls
512 bytes and more efficient)."""


class Mode(enum.Enum):
    """How an engine goes over elements: some are quicker with narrow floats where they lie right.

    Source: trainium2_arch.rst, performance modes of the Vector engine.
    """

    FULL = "full"  # an element a lane and cycle
    NARROW = "narrow"  # one input, 2-byte floats in and out
    NARROW_PAIR = "narrow pair"  # two inputs of 2-byte floats, or one and a result of 1 byte


@attrs.frozen
class WorkPhase:
    """Work that goes on at once, and ends before that of the next phase begins."""

    lanes: Mapping[tuple[Engine, Mode], int]  # elements, each times the cycles it takes a lane
    passes: Mapping[DType, int]  # cycles of the array, by the dtype of what is multiplied
    chain: Mapping[Engine, int]  # instructions that wait for one another, by their engines


@attrs.frozen
class Work:
    """What one instruction does."""

    phases: tuple[WorkPhase, ...]
    bytes_read: int  # from HBM, as often as they are
    bytes_written: int
    dma_read: int  # bytes_read, short runs counted as DMA_ROW_BYTES
    dma_written: int
    tile: Fraction  # the share of the whole that is loaded before work begins
    starts: int  # of DMAs that wait for one another: 2 for load and store, 1 for a move in HBM
    tables: int = 0  # changes of the Scalar engine's function table that nothing hides
    overlaps: bool = False  # phases of different tiles overlap
    given_ps: int | None = None  # what all of it takes, where the program says so

    @property
    def traffic(self) -> int:
        """Bytes to and from HBM."""
        return self.bytes_read + self.bytes_written


NOTHING = Work((), 0, 0, 0, 0, Fraction(1), 0)
