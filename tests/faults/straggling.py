"""A synchronous step of some ranks: one product, then all of them sum it up."""

from collections.abc import Callable

import numpy as np

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.faults.order_statistics import Draws
from ncc_runtime.lowering.executable import Executable


def data_parallel_step(ranks: int, topology: str = "trn2") -> Executable:
    members = ",".join(map(str, range(ranks)))
    summed = f"all-reduce(y), replica_groups={{{{{members}}}}}, to_apply=sum"
    text = f"""sum {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}
ENTRY step {{ x = f32[512,512] parameter(0) w = f32[512,512] parameter(1)
 y = f32[512,512] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
 ROOT z = f32[512,512] {summed if ranks > 1 else "copy(y)"} }}
"""
    return ncc_runtime.load(ncc_compiler.compile_text(text), topology).executable


def shares(seed: int, ranks: int) -> np.ndarray:
    """(ranks,) above 0, at most 1: what draws of each rank are exceeded by."""
    return np.asarray(1 - np.random.default_rng([seed, ranks]).random(ranks))


def late_by(draws: Draws, ranks: int) -> Callable[[int], Disturbance]:
    """Every rank is launched late, by as many microseconds as are drawn for it."""

    def drawn(seed: int) -> Disturbance:
        late_us = draws.exceeded(shares(seed, ranks))
        return Disturbance(late_start_ps=dict(enumerate((late_us * 1e6).astype(int).tolist())))

    return drawn
