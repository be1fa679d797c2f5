"""What instructions cost on a topology: the work of each (neff/work/) at a rank's speeds."""

import attrs
import numpy as np

from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.durations import duration_of
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.table import InstrTable
from ncc_runtime.neff.work.instructions import works_of

MOST_PS = 2**60
"""No part of a time is longer than this, so that they fit 64 bits."""


@attrs.frozen(eq=False)
class ComputeCosts:
    """What each instruction of a queue takes, (n,) int64."""

    overhead: np.ndarray  # ps of engines, before anything is worked on: instructions, their waits
    starts: np.ndarray  # ps of DMAs until bytes flow, after that
    engines: np.ndarray  # ps that engines take from then on
    dma: np.ndarray  # ps that DMA takes from then on, if nobody else moves bytes
    engines_tile: np.ndarray  # ps of these of one tile, while the others do nothing
    dma_tile: np.ndarray
    traffic: np.ndarray  # bytes to and from HBM, which share its bandwidth with others

    @property
    def work(self) -> np.ndarray:
        """(n,) int64, ps from where bytes flow, if nobody else moves any."""
        by_engines, by_dma = self.engines + self.dma_tile, self.dma + self.engines_tile
        return np.where(self.engines >= self.dma, by_engines, by_dma)

    @property
    def ps(self) -> np.ndarray:
        """(n,) int64, the time of each instruction if nobody else moves bytes."""
        return np.asarray(self.overhead + self.starts + self.work)


def compute_costs(
    program: Program, model: TimingModel, engine: Engine, table: InstrTable
) -> ComputeCosts:
    """The costs of the instructions of a queue; each different one is priced once."""
    works, index = works_of(program, engine, table)
    of_all = model.instruction_ps(engine)
    rows = []
    for work in works:
        # what is given includes what every instruction takes
        fixed = of_all if work.given_ps is None else min(of_all, work.given_ps)
        given = 0 if work.given_ps is None else fixed
        rows.append((fixed, given, duration_of(work, model.speeds), work.traffic))
    costs = np.array(
        [
            (
                *(fixed + time.steps_ps, time.starts_ps),
                *(min(ps, MOST_PS) for ps in (time.engines_ps - given, time.dma_ps)),
                *(min(ps, MOST_PS) for ps in (time.engines_tile_ps, time.dma_tile_ps)),
                traffic,
            )
            for fixed, given, time, traffic in rows
        ],
        np.int64,
    ).reshape(-1, 7)
    return ComputeCosts(*np.ascontiguousarray(costs[index].T))
