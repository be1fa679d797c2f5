"""JAX programs that call ragged_all_to_all, as XLA partitioned them, against numpy.

XLA's CPU backend has no ragged-all-to-all, so that what they mean is written here once more.
"""

from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions

HLO = Path(__file__).parent.parent / "data" / "hlo"
CASES = [
    (0, {"topology": "trn2"}),
    (2, {"topology": "trn1"}),
    (1, {"topology": "trn2", "nodes": 2, "placement": "spread"}),
    (2, {"topology": "trn3-gen2-ultraserver"}),
]
"""Levels of optimisation, and places."""

every_case = pytest.mark.parametrize(
    ("level", "place"), CASES, ids=["-".join(map(str, place.values())) for _, place in CASES]
)


def output_of(name: str, level: int, place: dict, given: list[np.ndarray]) -> np.ndarray:
    neff = ncc_compiler.compile_text((HLO / name).read_text(), CompileOptions(level=level))
    (output,) = ncc_runtime.load(neff, **place).run(given, checked=True, shuffle_seed=level).outputs
    return output


@every_case
def test_tokens_go_to_their_experts_and_come_back(level: int, place: dict) -> None:
    """Two groups of four ranks, three experts on each: three updates for each member.

    The router of trn1's case sends all tokens to one expert.
    """
    rng = np.random.default_rng(level)
    tokens = rng.integers(-3, 4, (8, 16, 8)).astype(np.float32)
    router = rng.standard_normal((8, 12)).astype(np.float32) * (place["topology"] != "trn1")
    experts = rng.integers(-2, 3, (12, 8, 8)).astype(np.float32)
    chosen = (tokens @ router).argmax(axis=2)
    wanted = np.einsum("rtd,rtde->rte", tokens, experts[chosen])
    given = [tokens, router, np.tile(experts.reshape(4, 3, 8, 8), (2, 1, 1, 1))]
    np.testing.assert_array_equal(output_of("moe_ragged_dp2_ep4.hlo", level, place, given), wanted)


@every_case
def test_a_loop_exchanges_rows_beside_sums_and_branches(level: int, place: dict) -> None:
    """Tables that stay the same in three turns; an exchange of nothing; sums on the same stream."""
    rng = np.random.default_rng(4 + level)
    rows = rng.integers(-4, 5, (8, 24, 4)).astype(np.float32)
    counts = rng.integers(0, 4, (8, 8))
    first = rng.integers(0, 24 - counts + 1)
    target = 5 * np.arange(8)[:, None] + rng.integers(0, 5 - counts + 1)
    value = rows.astype(np.float64)
    for turn in range(3):
        come = np.zeros((8, 40, 4))
        for source, to in np.ndindex(8, 8):
            begin, end = first[source, to], first[source, to] + counts[source, to]
            there = target[source, to]
            come[to, there : there + end - begin] = value[source, begin:end]
        total = value.sum(0)
        branch = value - total if turn % 2 else value + come[:, :24]
        value = branch * 0.5 + total * 0.01
    tables = [one.astype(np.int32)[:, None] for one in (first, counts, target, counts.T)]
    found = output_of("ragged_in_a_loop.hlo", level, place, [rows, *tables])
    np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4)
