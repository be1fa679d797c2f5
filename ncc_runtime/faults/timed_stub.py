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
