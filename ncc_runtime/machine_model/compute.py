"""What instructions cost on a topology: the work of each (neff/work/) at a rank's speeds."""

import attrs
import numpy as np

from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.durations import duration_of
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.table import InstrTable
from ncc_runtime.neff.work.instructions import works_of

MOST_PS = 2**62
"""No time is longer than this, so that it fits 64 bits."""


@attrs.frozen(eq=False)
class ComputeCosts:
    """What each instruction of a queue takes, (n,) int64."""

    overhead: np.ndarray  # ps, before anything is worked on: of the instruction, its DMAs, waits
    work: np.ndarray  # ps that engines and DMA take from then on, if nobody else moves bytes
    traffic: np.ndarray  # bytes to and from HBM, which share its bandwidth with others

    @property
    def ps(self) -> np.ndarray:
        """(n,) int64, the time of each instruction if nobody else moves bytes."""
        return np.asarray(self.overhead + self.work)


def compute_costs(
    program: Program, model: TimingModel, engine: Engine, table: InstrTable
) -> ComputeCosts:
    """The costs of the instructions of a queue; each different one is priced once."""
    works, index = works_of(program, engine, table)
    fixed = model.instruction_ps(engine)
    rows = [(duration_of(work, model.speeds), work.traffic) for work in works]
    costs = np.array(
        [(fixed + time.start_ps, min(time.work_ps, MOST_PS), traffic) for time, traffic in rows],
        np.int64,
    ).reshape(-1, 3)
    return ComputeCosts(*np.ascontiguousarray(costs[index].T))
