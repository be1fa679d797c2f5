"""Training steps for tests: a data-parallel one whose state is weights and momentum."""

import functools

import numpy as np

import ncc_compiler
from ncc_compiler.codegen.generate import Neff

TRAIN = """
HloModule {name}, replica_count={ranks}, input_output_alias={{ {{0}}: (0, {{}}), {{1}}: (1, {{}}) }}
sum {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT total = f32[] add(a, b) }}
ENTRY step {{
  w = f32[8,4] parameter(0)
  m = f32[8,4] parameter(1)
  x = f32[16,8] parameter(2)
  y = f32[16,4] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  g = f32[8,4] dot(x, y), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  s = f32[8,4] all-reduce(g), replica_groups={{}}, to_apply=sum
  keep = f32[] constant(0.9)
  keeps = f32[8,4] broadcast(keep), dimensions={{}}
  rate = f32[] constant(0.001)
  rates = f32[8,4] broadcast(rate), dimensions={{}}
  kept = f32[8,4] multiply(m, keeps)
  new_m = f32[8,4] add(kept, s)
  step = f32[8,4] multiply(new_m, rates)
  new_w = f32[8,4] subtract(w, step)
  zero = f32[] constant(0)
  norm = f32[] reduce(new_w, zero), dimensions={{0,1}}, to_apply=sum
  ROOT out = (f32[8,4], f32[8,4], f32[]) tuple(new_w, new_m, norm)
}}
"""


@functools.cache
def train(ranks: int = 4, name: str = "train") -> Neff:
    """A step of gradient descent with momentum; arg0 and arg1 are its state, arg2 the batch."""
    return ncc_compiler.compile_text(TRAIN.format(name=name, ranks=ranks))


def state() -> dict[str, np.ndarray]:
    """Weights and momentum, the same on every rank."""
    weights = np.random.default_rng(7).standard_normal((8, 4)).astype(np.float32)
    return {"arg0": weights, "arg1": np.zeros_like(weights)}


def batches(rows: int, ranks: int = 4) -> np.ndarray:
    """[rows, ranks, 16, 8]."""
    return np.random.default_rng(8).standard_normal((rows, ranks, 16, 8)).astype(np.float32)
