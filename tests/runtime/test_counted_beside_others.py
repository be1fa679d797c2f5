"""Counted collectives on one stream with others: each keeps its own transfers."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from tests.compiler.reading import load
from tests.counted_programs import Shape, buffers_of, counts_of, text_of
from tests.reference_runs import reference_outputs

RANKS = 8
SHAPE = Shape(groups=(tuple(range(RANKS)),))
GROUPS = "{" + ",".join(map(str, range(RANKS))) + "}"

BESIDE = f"""
  y = f32[64] parameter(6)
  before = f32[512] all-gather(y), dimensions={{0}}, replica_groups={{{GROUPS}}}
  total = f32[64] all-reduce(y), replica_groups={{{GROUPS}}}, to_apply=sum
  ROOT all = (f32[40,3], f32[512], f32[64]) tuple(r, before, total)
}}"""

SUM = """sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""


def text() -> str:
    """A ragged all-to-all beside an all-gather and an all-reduce."""
    head, entry = text_of("ragged-all-to-all", SHAPE).split("ENTRY")
    return head + SUM + "ENTRY" + entry.replace("ROOT ", "").rsplit("\n}", 1)[0] + BESIDE


@pytest.mark.parametrize("topology", ["trn1", "trn2"])
@pytest.mark.parametrize("algorithm", ["ring", "kangaring", "mesh"])
def test_reads_of_neighbours_and_second_targets_stay_those_of_their_row(
    topology: str, algorithm: str
) -> None:
    algorithms = {"all-gather": algorithm, "all-reduce": algorithm}
    model = ncc_runtime.load(ncc_compiler.compile_text(text()), topology, algorithms=algorithms)
    given = [*buffers_of("ragged-all-to-all", SHAPE, 1), *counts_of("ragged-all-to-all", SHAPE, 1)]
    given.append(np.arange(RANKS * 64, dtype=np.float32).reshape(RANKS, 64))
    run = model.run(given, checked=True, shuffle_seed=2)
    for ours, theirs in zip(run.outputs, reference_outputs(load(text()), given), strict=True):
        np.testing.assert_array_equal(ours, theirs)
