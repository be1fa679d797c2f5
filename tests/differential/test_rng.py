"""`rng`: numbers of the distribution that was asked for, new ones for each place, rank and turn."""

import numpy as np
import pytest
from scipy import stats

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from tests.reference_runs import run_text

COUNT = 4000
LEAST_P = 1e-4  # numbers are the same on every run, so this never fails by chance


def text_of(kind: str, low: float, high: float, distribution: str = "rng_uniform") -> str:
    dtype = kind.partition("[")[0]
    return f"""
low = {dtype}[] constant({low})
high = {dtype}[] constant({high})
ROOT r = {kind} rng(low, high), distribution={distribution}
"""


def both(text: str, ranks: int = 1, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """What the executor draws, and what the reference does: numbers of their own."""
    neff = ncc_compiler.compile_text(text, CompileOptions(ranks=ranks, **options))
    (ours,) = ncc_runtime.load(neff).run([]).outputs
    (theirs,) = run_text(text, ranks=ranks) if ranks == 1 else [ours]
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    return ours, theirs


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_uniform_floats_fill_their_range_evenly(dtype):
    for drawn in both(text_of(f"{dtype}[{COUNT}]", -2, 3)):
        wide = drawn.astype(np.float64).ravel()
        assert wide.min() >= -2
        assert wide.max() <= 3
        if dtype.startswith("f"):  # bf16 has too few numbers for a test of continuous ones
            assert stats.kstest(wide, stats.uniform(-2, 5).cdf).pvalue > LEAST_P
        assert wide.mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_normal_floats_have_the_mean_and_the_deviation(dtype):
    for drawn in both(text_of(f"{dtype}[{COUNT}]", 10, 3, "rng_normal")):
        assert stats.kstest(drawn.ravel(), stats.norm(10, 3).cdf).pvalue > LEAST_P


@pytest.mark.parametrize("dtype", ["s8", "u8", "s32", "u64", "s64", "s4"])
def test_uniform_integers_take_every_value_below_the_bound_alike(dtype):
    low = 0 if dtype[0] == "u" else -3
    for drawn in both(text_of(f"{dtype}[{COUNT}]", low, 5)):
        values, counts = np.unique(drawn.astype(np.int64), return_counts=True)
        assert values.tolist() == list(range(low, 5))
        assert stats.chisquare(counts).pvalue > LEAST_P


def test_a_number_that_is_rounded_to_the_bound_is_the_least_one():
    drawn, _ = both(text_of(f"bf16[{COUNT}]", 256, 258))
    assert np.unique(drawn.astype(np.float64)).tolist() == [256]


def test_neighbours_are_not_related():
    drawn, _ = both(text_of(f"f64[{COUNT}]", 0, 1))
    flat = drawn.ravel()
    assert abs(np.corrcoef(flat[:-1], flat[1:])[0, 1]) < 0.06


def test_ranks_draw_different_numbers_and_every_run_and_level_the_same():
    text = text_of("u64[3]", 0, 2**63 - 1)
    first, _ = both(text, ranks=4)
    assert len(np.unique(first)) == 12
    for level in (0, 2):
        assert np.array_equal(both(text, ranks=4, level=level)[0], first)


def test_the_seed_is_an_option_of_the_pass():
    text = text_of("u32[8]", 0, 1000000)
    first, _ = both(text)
    other, _ = both(text, pass_options={"expand-rng.seed": "7"})
    assert (first != other).sum() > 5


NESTED = """
HloModule nested
draw {
  x = f32[2] parameter(0)
  low = f32[] constant(0)
  high = f32[] constant(1)
  r = f32[2] rng(low, high), distribution=rng_uniform
  ROOT s = f32[2] add(x, r)
}
keep {
  ROOT x = f32[2] parameter(0)
}
few {
  s = (s32[], s32[], f32[6,2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT r = pred[] compare(i, three), direction=LT
}
turn {
  s = (s32[], s32[], f32[6,2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  at = s32[] get-tuple-element(s), index=1
  all = f32[6,2] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  zeros = f32[2] constant({0, 0})
  two = s32[] constant(2)
  even = s32[] remainder(i, two)
  isodd = pred[] compare(even, one), direction=EQ
  drawn = f32[2] conditional(isodd, zeros, zeros), true_computation=draw, false_computation=keep
  more = f32[2] call(drawn), to_apply=draw
  row = f32[1,2] reshape(more)
  zero = s32[] constant(0)
  after = f32[6,2] dynamic-update-slice(all, row, at, zero)
  further = s32[] add(at, one)
  ROOT t = (s32[], s32[], f32[6,2]) tuple(next, further, after)
}
pair {
  s = (s32[], s32[], f32[6,2]) parameter(0)
  at = s32[] get-tuple-element(s), index=1
  six = s32[] constant(6)
  ROOT r = pred[] compare(at, six), direction=LT
}
outer {
  s = (s32[], s32[], f32[6,2]) parameter(0)
  zero = s32[] constant(0)
  at = s32[] get-tuple-element(s), index=1
  all = f32[6,2] get-tuple-element(s), index=2
  start = (s32[], s32[], f32[6,2]) tuple(zero, at, all)
  ROOT w = (s32[], s32[], f32[6,2]) while(start), condition=few, body=turn
}
ENTRY main {
  start = (s32[], s32[], f32[6,2]) constant((0, 0, {{0,0},{0,0},{0,0},{0,0},{0,0},{0,0}}))
  w = (s32[], s32[], f32[6,2]) while(start), condition=pair, body=outer
  ROOT all = f32[6,2] get-tuple-element(w), index=2
}
"""


@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_turn_of_nested_loops_draws_new_numbers(level):
    drawn, reference = both(NESTED, level=level)
    assert len(np.unique(drawn)) == 12
    for sums in (drawn, reference):  # a second number in the odd turns: one, four
        assert ((sums > 0) & (sums < 2)).all()
        assert (sums[0, [0, 2, 3, 5]] < 1).all()


def test_a_region_cannot_draw():
    text = """
fold {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] rng(a, b), distribution=rng_uniform
}
ENTRY main {
  x = f32[4] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=fold
}
"""
    with pytest.raises(ncc_compiler.CompileError, match="a region cannot run rng"):
        ncc_compiler.compile_text(text)
