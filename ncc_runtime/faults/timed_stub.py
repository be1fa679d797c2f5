"""Stand-in."""

import attrs

from ncc_runtime.execution.scheduler import Stuck
from ncc_runtime.execution.trace import Trace


@attrs.frozen
class Halted:
    queue: int
    rank: int
    row: int
    since_ps: int
    part: int | None


@attrs.frozen(eq=False)
class TimedRun:
    trace: Trace
    stuck: tuple[Stuck, ...] = ()
    halted: tuple[Halted, ...] = ()


from ncc_runtime.execution.clock.clock import simulate


class Clock:
    def __init__(self, ex, dec, run_sizes={}):
        self.a = (ex, dec, run_sizes)

    def run(self, disturbance, in_memory=1 << 21):
        return TimedRun(simulate(*self.a, in_memory))
