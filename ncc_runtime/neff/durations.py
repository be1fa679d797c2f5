"""How long work takes on engines of given speeds, in whole picoseconds."""

from collections.abc import Iterable, Mapping
from math import ceil

import attrs

from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.work.work import FLOPS_PER_CYCLE, PARTITIONS, Mode, Work, WorkPhase

PS_PER_S = 10**12


@attrs.frozen
class Speeds:
    """The speeds of one rank's engines; a rank's cores divide the elements evenly."""

    elements_per_s: Mapping[tuple[Engine, Mode], int]
    flops_per_s: Mapping[DType, int]
    dma_bytes_per_s: int
    dma_start_ps: int
    dma_least_ps: int  # of a DMA, however little it moves
    step_ps: Mapping[Engine, int]  # of an instruction that waits for the last one's result
    table_ps: int  # to load the tables of another function


@attrs.frozen
class Duration:
    """The time of an instruction: what comes before anything moves, and what goes on with that.

    Engines and DMA work at once on different tiles, but for one tile of who has less to do.
    """

    steps_ps: int  # of engines, before anything is worked on: those that wait for one another
    starts_ps: int  # of DMAs, until bytes flow
    engines_ps: int
    dma_ps: int
    engines_tile_ps: int  # of one tile
    dma_tile_ps: int  # of one tile, its load and its store

    @property
    def start_ps(self) -> int:
        """Before anything moves."""
        return self.steps_ps + self.starts_ps

    @property
    def work_ps(self) -> int:
        """From then on."""
        if self.engines_ps >= self.dma_ps:
            return self.engines_ps + self.dma_tile_ps
        return self.dma_ps + self.engines_tile_ps

    @property
    def ps(self) -> int:
        """Both, one after the other."""
        return self.start_ps + self.work_ps


def duration_of(work: Work, speeds: Speeds) -> Duration:
    """The time of work: tiles are loaded, worked on and stored, each while others are.

    With T tiles, one is loaded before engines begin and one stored when they have ended; if DMA
    takes longer than engines, they still work on the last tile when all are loaded. What is given
    is as if engines took all of it, while DMA moves the bytes.
    """
    if work.given_ps is not None:
        return Duration(0, 0, work.given_ps, 0, 0, 0)
    engines_ps = engines_of(work, speeds)
    dma_ps = sum(
        max(_ps(size, speeds.dma_bytes_per_s), speeds.dma_least_ps)
        for size in (work.dma_read, work.dma_written)
        if size
    )
    if work.starts == 1:  # read and written by one DMA
        dma_ps = _ps(work.dma_read + work.dma_written, speeds.dma_bytes_per_s)
        dma_ps = max(dma_ps, speeds.dma_least_ps)
    steps_ps = sum(
        count * speeds.step_ps[engine]
        for phase in work.phases
        for engine, count in phase.chain.items()
    )
    return Duration(
        steps_ps + work.tables * speeds.table_ps,
        work.starts * speeds.dma_start_ps,
        engines_ps,
        dma_ps,
        ceil(work.tile * engines_ps),
        ceil(work.tile * dma_ps),
    )


def engines_of(work: Work, speeds: Speeds) -> int:
    """Picoseconds of the engines: of each phase the busiest one.

    Where phases of different tiles overlap, the busiest of all, and the others for one tile.
    """
    phases_ps = sum(max(busy_ps(phase, speeds).values(), default=0) for phase in work.phases)
    if not work.overlaps:
        return phases_ps
    busiest_ps = max(total_ps(work.phases, speeds).values(), default=0)
    return busiest_ps + ceil(work.tile * (phases_ps - busiest_ps))


def total_ps(phases: Iterable[WorkPhase], speeds: Speeds) -> dict[Engine, int]:
    """Picoseconds of each engine that does something."""
    total: dict[Engine, int] = {}
    for phase in phases:
        for engine, ps in busy_ps(phase, speeds).items():
            total[engine] = total.get(engine, 0) + ps
    return total


def busy_ps(phase: WorkPhase, speeds: Speeds) -> dict[Engine, int]:
    """Picoseconds of each engine in one phase."""
    busy: dict[Engine, int] = {}
    for (engine, mode), cycles in phase.lanes.items():
        ps = _ps(cycles, speeds.elements_per_s[engine, mode])
        busy[engine] = busy.get(engine, 0) + ps
    for dtype, cycles in phase.passes.items():
        ps = _ps(cycles * FLOPS_PER_CYCLE, speeds.flops_per_s[dtype])
        busy[Engine.TENSOR] = busy.get(Engine.TENSOR, 0) + ps
    return busy


def _ps(amount: int, rate: int) -> int:
    return -(-amount * PS_PER_S // rate)


def _generic() -> Speeds:
    quick = {Mode.FULL: 1, Mode.NARROW: 4, Mode.NARROW_PAIR: 2}
    return Speeds(
        elements_per_s={
            (engine, mode): PARTITIONS * 10**9 * (times if engine is Engine.VECTOR else 1)
            for engine in (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
            for mode, times in quick.items()
        },
        flops_per_s={dtype: 80 * PS_PER_S // max(1, dtype.size_bytes // 2) ** 2 for dtype in DType},
        dma_bytes_per_s=360 * 10**9,
        dma_start_ps=1_300_000,
        dma_least_ps=850_000,
        step_ps=dict.fromkeys(Engine, 300_000),
        table_ps=1_300_000,
    )


GENERIC = _generic()
"""Round figures of a core of no device in particular, for comparing one way of compiling with
another where no topology is known."""

_TIES = (Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)


def engine_of(phases: Iterable[WorkPhase]) -> Engine:
    """The engine that works longest, whose queue the instruction stands in; Vector where none does.

    The first of Tensor, Vector, Scalar and GpSimd where several work as long.
    """
    total = total_ps(phases, GENERIC)
    busy = (engine for engine in _TIES if engine in total)
    return max(busy, key=total.__getitem__, default=Engine.VECTOR)
