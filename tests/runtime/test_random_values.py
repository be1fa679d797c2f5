"""Values drawn from a seed: what they are like, and of what alone they depend."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_runtime
from ncc_compiler.driver import compile_text
from ncc_runtime.inputs import bound_inputs
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.random_values import BLOCK, drawn
from ncc_runtime.threads import Threads

DTYPES = list(DType)
FLOATS = [dtype for dtype in DTYPES if dtype.is_float and dtype is not DType.F8E8M0FNU]


@settings(max_examples=30)
@given(
    dtype=st.sampled_from(DTYPES),
    size=st.integers(0, 3 * BLOCK),
    seed=st.integers(0, 1 << 80),
    key=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=3),
    threads=st.integers(2, 5),
)
def test_any_number_of_threads_draws_the_same_bits(dtype, size, seed, key, threads):
    one, other = (drawn(dtype, (size,), seed, key, Threads(count)) for count in (1, threads))
    assert one.dtype == dtype.numpy
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_longer_array_begins_with_the_shorter_one(dtype):
    """A value follows from its place, not from how many are drawn."""
    short, long = (drawn(dtype, (size,), 3, (1,), Threads(1)) for size in (1000, BLOCK + 1000))
    assert long[:1000].tobytes() == short.tobytes()


def test_another_seed_another_key_and_another_block_draw_other_values():
    arrays = [
        drawn(DType.F32, (2, BLOCK), seed, key, Threads(1))
        for seed, key in ((0, (0,)), (1, (0,)), (0, (1,)), (0, (0, 0)))
    ]
    rows = np.concatenate(arrays)
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert np.abs(correlations).max() < 5 / BLOCK**0.5


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_normal_as_far_as_the_type_can_tell(dtype):
    """Against a normal variable rounded to the type: all moments up to the fourth."""
    found = drawn(dtype, (1 << 20,), 0, (0,), Threads(1)).astype(np.float64)
    normal = np.random.default_rng(0).standard_normal(1 << 20).astype(dtype.numpy)
    wanted = np.asarray(normal, np.float64)
    for power in (1, 2, 3, 4):
        one, other = (values**power for values in (found, wanted))
        error = np.hypot(one.std(), other.std()) / 2**10  # of a mean of 2^20 values
        assert abs(one.mean() - other.mean()) < 4 * error


def test_wide_floats_agree_with_the_normal_distribution():
    """By the test of Kolmogorov and Smirnov."""
    from scipy import stats

    for dtype in (DType.F32, DType.F64):
        values = drawn(dtype, (1 << 18,), 1, (0,), Threads(1))
        assert stats.kstest(values, "norm").pvalue > 0.01
        assert np.abs(values).max() < 4.4


@pytest.mark.parametrize(("dtype", "most"), [(DType.F32, 0.03), (DType.F64, 0.0)])
def test_wide_floats_hold_few_values_twice(dtype, most):
    values = drawn(dtype, (1 << 20,), 0, (0,), Threads(1))
    assert 1 - len(np.unique(values)) / values.size <= most


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_integer])
def test_integers_are_small_and_alike_in_number(dtype):
    values = drawn(dtype, (1 << 16,), 0, (0,), Threads(1))
    counts = np.unique(values, return_counts=True)[1]
    assert len(counts) == min(8, 2 ** max(1, dtype.bits - 1))
    assert np.abs(counts / counts.mean() - 1).max() < 0.05
    assert dtype.bits == 1 or values.astype(int).min() == 0


def test_the_values_of_a_seed_stay_what_they_are():
    """From release to release of ours and of numpy, as goldens and checkpoints presume."""
    one = drawn(DType.F32, (BLOCK + 2,), 7, (1,), Threads(1))
    assert one[[0, 1, -2, -1]].tolist() == [
        -0.26715296506881714,
        0.7068943381309509,
        0.666941225528717,
        -0.25807467103004456,
    ]
    values = drawn(DType.BF16, (3,), 7, (1,), Threads(1)).astype(float)
    assert values.tolist() == [1.375, -0.267578125, -0.0810546875]
    assert drawn(DType.S32, (8,), 7, (1,), Threads(1)).tolist() == [7, 2, 6, 2, 1, 0, 3, 2]
    fair = drawn(DType.PRED, (8,), 7, (1,), Threads(1))
    assert fair.astype(int).tolist() == [1, 0, 0, 0, 1, 0, 1, 0]


SHARDED = """HloModule m, num_partitions=4
ENTRY main_spmd {
  x = f32[2,3] parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
  w = f32[2,3] parameter(1), sharding={replicated}
  v = f32[2,3] parameter(2)
  y = f32[2,3] add(x, w)
  ROOT z = f32[2,3] add(y, v)
}
"""


def test_ranks_that_have_the_same_part_of_an_array_have_the_same_values():
    program = ncc_runtime.load(compile_text(SHARDED)).executable.program
    x, w, v = (one.whole() for one in bound_inputs(program, {}, 0))
    assert x[0].tobytes() == x[1].tobytes() != x[2].tobytes() == x[3].tobytes()
    assert len({part.tobytes() for part in w}) == 1
    assert len({part.tobytes() for part in v}) == 4  # nothing is known of it


def test_types_of_narrow_floats_are_drawn_without_a_wider_copy():
    import tracemalloc

    count = 1 << 22
    drawn(DType.BF16, (1,), 0, (0,), Threads(1))  # its table
    tracemalloc.start()
    try:
        array = drawn(DType.BF16, (count,), 0, (0,), Threads(1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert array.dtype == ml_dtypes.bfloat16
    assert peak < array.nbytes + 16 * BLOCK
