"""Windows where definitions part: what XLA's CPU backend gives, and naive loops, against both."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.neff.shared.dtypes import DType
from tests.reference_runs import run_text

REGIONS = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
add_bf16 {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT r = bf16[] add(a, b)
}
maximum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] maximum(a, b)
}
larger {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  keep = pred[] compare(a, b), direction=GE
  c = f32[] select(keep, a, b)
  d = s32[] select(keep, i, j)
  ROOT r = (f32[], s32[]) tuple(c, d)
}
ge {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=GE
}
ten_times_plus {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  k = f32[] constant(10)
  m = f32[] multiply(a, k)
  ROOT r = f32[] add(m, b)
}
"""


def both(line: str, **operands: np.ndarray) -> list[list[np.ndarray]]:
    """Results of the executor and of the reference, one rank, operands by name."""
    dtypes = {dtype.numpy: dtype.value for dtype in DType}
    rows = [
        f"  {name} = {dtypes[x.dtype]}[{','.join(map(str, x.shape))}] parameter({k})"
        for k, (name, x) in enumerate(operands.items())
    ]
    text = "\n".join([REGIONS + "ENTRY main {", *rows, f"  ROOT r = {line}", "}\n"])
    inputs = [array[None] for array in operands.values()]
    actual = ncc_runtime.load(ncc_compiler.compile_text(text)).run(inputs).outputs
    return [[array[0] for array in found] for found in (actual, run_text(text, *inputs))]


def check(line: str, wanted, **operands: np.ndarray) -> None:
    for found in both(line, **operands):
        np.testing.assert_array_equal(found[0].astype(np.float64), np.asarray(wanted, np.float64))


TENS = np.array([0, 10, 20, 30], np.float32)
ONE, ZERO = np.array(1, np.float32), np.array(0, np.float32)


def test_padding_is_passed_over_whatever_the_initial_value():
    line = "f32[5] reduce-window(x, s), window={size=3 pad=2_1}, to_apply=add"
    check(line, [1, 11, 31, 61, 51], x=TENS, s=ONE)


def test_holes_are_passed_over():
    line = "f32[5] reduce-window(x, s), window={size=3 lhs_dilate=2}, to_apply=add"
    check(line, [11, 11, 31, 21, 51], x=TENS, s=ONE)


def test_padding_below_zero_cuts_off():
    line = "f32[2] reduce-window(x, s), window={size=2 pad=-1_0}, to_apply=add"
    check(line, [30, 50], x=TENS, s=ZERO)


def test_a_window_that_sees_nothing_gives_the_initial_value():
    line = "f32[3] reduce-window(x, s), window={size=2 stride=4 pad=4_4}, to_apply=maximum"
    check(line, [-5, 10, -5], x=TENS, s=np.array(-5, np.float32))


def test_a_window_with_no_position_gives_nothing():
    for found in both("f32[0] reduce-window(x, s), window={size=5}, to_apply=add", x=TENS, s=ZERO):
        assert found[0].shape == (0,)


def test_a_window_over_a_scalar_folds_it():
    check("f32[] reduce-window(x, s), to_apply=add", 3, x=np.array(2, np.float32), s=ONE)


def test_elements_are_taken_in_the_order_of_the_window():
    line = "f32[1,2] reduce-window(x, s), window={size=2x2}, to_apply=ten_times_plus"
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    check(line, [[1245, 2356]], x=x, s=ZERO)


def test_several_arrays_are_folded_together():
    line = "(f32[2], s32[2]) reduce-window(x, i, s, k), window={size=2 stride=2}, to_apply=larger"
    x, i = np.array([3, 1, 7, 9], np.float32), np.arange(4, dtype=np.int32)
    operands = {"x": x, "i": i, "s": np.array(-np.inf, np.float32), "k": np.array(-1, np.int32)}
    for largest, where in both(line, **operands):
        assert (largest.tolist(), where.tolist()) == ([3, 9], [0, 3])


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
def test_a_running_sum_is_a_window_as_long_as_the_array(size):
    x = np.random.default_rng(size).integers(-9, 9, size).astype(np.float32)
    window = f"{{size={size} pad={size - 1}_0}}"
    line = f"f32[{size}] reduce-window(x, s), window={window}, to_apply=add"
    check(line, np.cumsum(x), x=x, s=ZERO)


def test_a_sum_of_narrow_floats_is_rounded_once():
    line = "bf16[2] reduce-window(x, s), window={size=1000 stride=1000}, to_apply=add_bf16"
    ones = np.ones(2000, ml_dtypes.bfloat16)
    check(line, [1000, 1000], x=ones, s=np.array(0, ml_dtypes.bfloat16))


def test_a_sum_keeps_an_infinity_to_its_own_windows():
    line = "f32[3] reduce-window(x, s), window={size=2}, to_apply=add"
    x = np.array([1, 2, np.inf, 3], np.float32)
    check(line, [3, np.inf, np.inf], x=x, s=ZERO)


SCATTER = "select-and-scatter(x, y, s), window={size=3 stride=%s}, select=ge, scatter=%s"


def test_what_was_scattered_before_comes_first_in_the_region():
    line = "f32[6] " + SCATTER % ("3", "ten_times_plus")
    x, y = np.array([1, 3, 2, 5, 5, 4], np.float32), np.array([7, 8], np.float32)
    check(line, [1, 17, 1, 18, 1, 1], x=x, y=y, s=ONE)


def test_a_nan_is_selected_until_the_next_element():
    line = "f32[6] " + SCATTER % ("3", "add")
    x, y = np.array([1, np.nan, 2, 5, np.nan, np.nan], np.float32), np.array([7, 8], np.float32)
    check(line, [0, 0, 7, 0, 0, 8], x=x, y=y, s=ZERO)


def test_a_window_that_sees_nothing_scatters_nothing():
    line = "f32[6] " + SCATTER % ("5 pad=3_1", "add")
    x, y = np.array([1, 3, 2, 5, 5, 4], np.float32), np.array([7, 8], np.float32)
    check(line, [0, 0, 0, 8, 0, 0], x=x, y=y, s=ZERO)


def test_an_element_selected_twice_gets_both_in_their_order():
    line = "f32[4] " + SCATTER % ("1", "ten_times_plus")
    x, y = np.array([0, 9, 1, 0], np.float32), np.array([4, 6], np.float32)
    check(line, [0, 46, 0, 0], x=x, y=y, s=ZERO)


def test_a_cut_off_edge_keeps_the_initial_value():
    line = "f32[4] select-and-scatter(x, y, s), window={size=2 pad=-1_-1}, select=ge, scatter=add"
    check(line, [0, 0, 5, 0], x=TENS, y=np.array([5], np.float32), s=ZERO)


def naive_convolution(x: np.ndarray, k: np.ndarray, groups: int) -> np.ndarray:
    """Stride 2x1, padding 1_0x0_2, holes 1x2 in x and 2x1 in k, the second dimension reversed."""
    rows, columns = x.shape[1], 2 * x.shape[2] - 1
    wide = np.zeros((x.shape[0], rows + 1, columns + 2, x.shape[3]), x.dtype)
    wide[:, 1:, :columns:2] = x
    height, width = (rows + 1 - 3) // 2 + 1, columns + 2 - 3 + 1
    made, each = k.shape[3] // groups, x.shape[3] // groups
    result = np.zeros((x.shape[0], height, width, k.shape[3]), x.dtype)
    for b, i, j, o in np.ndindex(result.shape):
        for u, v, f in itertools.product(range(2), range(3), range(each)):
            element = wide[b, 2 * i + 2 * u, j + v, o // made * each + f]
            result[b, i, j, o] += element * k[u, 2 - v, f, o]
    return result


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_is_what_naive_loops_give(groups):
    draw = np.random.default_rng(groups)
    x = draw.integers(-5, 5, (2, 5, 4, 4)).astype(np.float32)
    k = draw.integers(-5, 5, (2, 3, 4 // groups, 6)).astype(np.float32)
    wanted = naive_convolution(x, k, groups)
    window = "size=2x3 stride=2x1 pad=1_0x0_2 lhs_dilate=1x2 rhs_dilate=2x1 rhs_reversal=0x1"
    shape = ",".join(map(str, wanted.shape))
    line = f"f32[{shape}] convolution(x, k), window={{{window}}}, dim_labels=b01f_01io->b01f"
    check(f"{line}, feature_group_count={groups}", wanted, x=x, k=k)


def test_groups_of_the_batch_meet_their_own_output_features():
    x = np.array([[1, 2], [3, 4]], np.float32)  # batch, features
    k = np.array([[1, 0, 1, 1], [0, 1, 1, -1]], np.float32)  # features in, out
    line = "f32[1,4] convolution(x, k), dim_labels=bf_io->bf, batch_group_count=2"
    check(line, [[1, 2, 7, -1]], x=x, k=k)


def test_a_large_kernel_is_multiplied_in_pieces():
    draw = np.random.default_rng(3)
    x = draw.integers(-3, 4, (2, 150, 130, 2)).astype(np.float32)
    k = draw.integers(-3, 4, (5, 7, 2, 1)).astype(np.float32)
    views = np.lib.stride_tricks.sliding_window_view(x, (5, 7), axis=(1, 2))
    wanted = np.einsum("bijfuv,uvfo->bijo", views, k)
    line = "f32[2,146,124,1] convolution(x, k), window={size=5x7}, dim_labels=b01f_01io->b01f"
    check(line, wanted, x=x, k=k)


def test_a_convolution_of_bytes_is_exact_in_words():
    x, k = np.full((1, 300), -128, np.int8), np.full((300, 1), -128, np.int8)
    check("s32[1,1] convolution(x, k), dim_labels=bf_io->bf", [[300 * 2**14]], x=x, k=k)


DOT = "dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def row(*numbers, dtype) -> np.ndarray:
    return np.array([numbers], dtype)


def column(*numbers, dtype) -> np.ndarray:
    return row(*numbers, dtype=dtype).T


@pytest.mark.parametrize(
    ("kind", "x", "y", "wanted"),
    [
        ("s32", row(-1, 1, dtype=np.int8), column(200, 100, dtype=np.uint8), -100),
        ("u8", row(16, 1, dtype=np.uint8), column(16, 5, dtype=np.uint8), 5),
        ("s64", row(2**40, 1, dtype=np.int64), column(2**30, 7, dtype=np.int64), 7),
        ("s4", row(5, 1, dtype=ml_dtypes.int4), column(3, 2, dtype=ml_dtypes.int4), 1),
        ("f32", row(-1, 3, dtype=np.int8), column(2, 4, dtype=np.int8), 10),
        ("f32", row(0.5, 3, dtype=np.float32), column(2, 4, dtype=np.int8), 13),
        ("pred", row(True, False, dtype=bool), column(True, True, dtype=bool), 1),
        ("pred", row(True, False, dtype=bool), column(False, True, dtype=bool), 0),
        (
            "f32",
            row(16, 0.25, dtype=ml_dtypes.float8_e4m3fn),
            column(57344, 2, dtype=ml_dtypes.float8_e5m2),
            16 * 57344 + 0.5,
        ),
        (
            "bf16",
            row(*[1] * 1000, dtype=ml_dtypes.bfloat16),
            column(*[1] * 1000, dtype=ml_dtypes.bfloat16),
            1000,
        ),
    ],
)
def test_a_dot_sums_in_the_type_of_its_result(kind, x, y, wanted):
    check(f"{kind}[1,1] {DOT}", [[wanted]], x=x, y=y)


def test_a_dot_of_complex_numbers_conjugates_nothing():
    x, y = row(1 + 2j, 1j, dtype=np.complex64), column(3j, 1j, dtype=np.complex64)
    for [found] in both(f"c64[1,1] {DOT}", x=x, y=y):
        assert found.tolist() == [[-7 + 3j]]


def test_the_algorithm_of_a_dot_asks_for_no_more_than_is_done():
    x, y = row(1.001, dtype=np.float32), column(1.003, dtype=np.float32)
    wanted = np.float32(1.001) * np.float32(1.003)
    check(f"f32[1,1] {DOT}, algorithm=dot_bf16_bf16_f32", [[wanted]], x=x, y=y)
