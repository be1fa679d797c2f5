"""A clock that plays what needs no change of speed during a run: late starts, always slow cores."""

import numpy as np
import pytest

from ncc_runtime.execution.clock import clock
from ncc_runtime.execution.clock.instances import unreduced
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.disturbance import FULL_SPEED, Disturbance
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import Executable


def late(executable: Executable, disturbance: Disturbance) -> Trace:
    processes = clock._processes

    def disturbed(executable: Executable, start_ps: int, ranks: int) -> np.ndarray:
        process = processes(executable, start_ps, ranks)
        for rank, ps in disturbance.late_start_ps.items():
            process["free"][rank::ranks] += ps
        for speed in disturbance.queues:
            process["percent"][speed.queue * ranks + speed.rank] = speed.speed * 100 // FULL_SPEED
        return process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "_processes", disturbed)
        patch.setattr(clock, "symmetric_instances", lambda queues, *_: unreduced(queues))
        return clock.simulate(executable, PlannedDecisions(executable, {}))
