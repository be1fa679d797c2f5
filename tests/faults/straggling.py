"""A synchronous step of some ranks: a product, then all of them sum up a part of it."""

from collections.abc import Callable

import numpy as np

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.clock.clock import Clock
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.disturbance import FULL_SPEED, Disturbance, QueueSpeed
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.laws import Draws
from ncc_runtime.lowering.executable import EngineQueue, Executable


def data_parallel_step(ranks: int, topology: str = "trn2") -> Executable:
    members = ",".join(map(str, range(ranks)))
    summed = f"all-reduce(y), replica_groups={{{{{members}}}}}, to_apply=sum"
    text = f"""sum {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}
ENTRY step {{ x = f32[1024,1024] parameter(0) w = f32[1024,1024] parameter(1)
 h = f32[1024,1024] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
 y = f32[1,1024] slice(h), slice={{[0:1], [0:1024]}}
 ROOT z = f32[1,1024] {summed if ranks > 1 else "copy(y)"} }}
"""
    return ncc_runtime.load(ncc_compiler.compile_text(text), topology).executable


def timer(executable: Executable) -> Callable[[Disturbance], Trace]:
    """Runs of one clock."""
    clock = Clock(executable, PlannedDecisions(executable, {}))
    return lambda disturbance: clock.run(disturbance).trace


def last_trigger_us(trace: Trace) -> float:
    """When the last rank triggered collective 0; 0 without any."""
    _, trigger_ps, _ = trace.spans(0)
    return int(trigger_ps.max(initial=0)) / 1e6


def shares(seed: int, ranks: int) -> np.ndarray:
    """(ranks,) above 0, at most 1: what draws of each rank are exceeded by."""
    return np.asarray(1 - np.random.default_rng([seed, ranks]).random(ranks))


def late_by(draws: Draws, ranks: int) -> Callable[[int], Disturbance]:
    """Every rank is launched late, by as many microseconds as are drawn for it."""

    def drawn(seed: int) -> Disturbance:
        late_us = draws.upper_quantile(shares(seed, ranks))
        return Disturbance(late_start_ps=dict(enumerate((late_us * 1e6).astype(int).tolist())))

    return drawn


def slowed_by(draws: Draws, executable: Executable) -> Callable[[int], Disturbance]:
    """Every rank's engines take so many times as long as is drawn for it, at least once."""
    engines = [
        number for number, queue in enumerate(executable.queues) if isinstance(queue, EngineQueue)
    ]

    def drawn(seed: int) -> Disturbance:
        factor = np.maximum(draws.upper_quantile(shares(seed, executable.ranks)), 1)
        speed = np.maximum(np.rint(FULL_SPEED / factor).astype(int), 1).tolist()
        return Disturbance(
            queues=tuple(
                QueueSpeed(queue, rank, speed[rank])
                for queue in engines
                for rank in range(executable.ranks)
            )
        )

    return drawn
