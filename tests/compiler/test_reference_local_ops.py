"""Data movement, contraction and folding of the reference, on one rank."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference_runs import run_text


def run_line(line: str, *operands: tuple[str, np.ndarray]) -> np.ndarray:
    """One op on parameters x, y, …, given as (type, array)."""
    rows = [
        f"  {name} = {type_} parameter({k})"
        for k, (name, (type_, _)) in enumerate(zip("xyzw", operands, strict=False))
    ]
    text = "\n".join(["ENTRY main {", *rows, f"  ROOT r = {line}", "}\n"])
    [result] = run_text(text, *(array[None] for _, array in operands), ranks=1)
    return result[0]


X23 = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f32[2,2,3] broadcast(x), dimensions={1,2}", np.stack([X23, X23])),
        ("f32[2,4,3] broadcast(x), dimensions={0,2}", np.repeat(X23[:, None], 4, axis=1)),
        ("f32[3,2] broadcast(x), dimensions={1,0}", X23.T),
        ("f32[3,2] transpose(x), dimensions={1,0}", X23.T),
        ("f32[3,2] reshape(x)", X23.reshape(3, 2)),
        ("f32[1,2] slice(x), slice={[1:2], [0:3:2]}", X23[1:2, 0:3:2]),
        ("f32[2,6] concatenate(x, x), dimensions={1}", np.concatenate([X23, X23], axis=1)),
        ("f32[2,3] copy(x)", X23),
    ],
)
def test_a_movement_puts_each_element_in_its_place(line, expected):
    np.testing.assert_array_equal(run_line(line, ("f32[2,3]", X23)), expected)


def test_an_iota_counts_along_its_dimension():
    result = run_line("s32[2,3] iota(), iota_dimension=1")
    assert result.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_select_takes_each_element_from_the_side_the_predicate_names():
    chosen = run_line(
        "f32[2] select(x, y, z)",
        ("pred[2]", np.array([True, False])),
        ("f32[2]", np.array([1, 2], np.float32)),
        ("f32[2]", np.array([3, 4], np.float32)),
    )
    assert chosen.tolist() == [1, 4]


def test_a_dot_puts_batch_dimensions_first_then_free_ones():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(5, 2, 3)), draw.normal(size=(2, 4, 5))
    result = run_line(
        "f64[2,3,4] dot(x, y), lhs_batch_dims={1}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={0}, rhs_contracting_dims={2}",
        ("f64[5,2,3]", x),
        ("f64[2,4,5]", y),
    )
    expected = np.zeros((2, 3, 4))
    for b, i, j, k in itertools.product(range(2), range(3), range(4), range(5)):
        expected[b, i, j] += x[k, b, i] * y[b, j, k]
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_an_integer_dot_wraps_in_the_dtype_of_its_result():
    x = np.full(4, 100, np.int8)
    narrow = run_line(
        "s8[] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        ("s8[4]", x),
        ("s8[4]", x),
    )
    assert int(narrow) == np.int64(40000).astype(np.int8)


REGIONS = """
plain {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] subtract(a, b)
}
by_element {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  column = f32[1] reshape(b)
  scalar = f32[] reshape(column)
  ROOT r = f32[] subtract(a, scalar)
}
by_call {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] call(a, b), to_apply=plain
}
last {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] copy(b)
}
seven {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] constant(7)
}
better {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  keep = pred[] compare(a, b), direction=GE
  value = f32[] select(keep, a, b)
  index = s32[] select(keep, i, j)
  ROOT r = (f32[], s32[]) tuple(value, index)
}
"""


def reduced(region: str, dimensions: str, result: str) -> np.ndarray:
    text = f"""{REGIONS}
ENTRY main {{
  x = f32[2,3] parameter(0)
  start = f32[] constant(100)
  ROOT r = {result} reduce(x, start), dimensions={{{dimensions}}}, to_apply={region}
}}
"""
    return run_text(text, X23[None], ranks=1)[0][0]


@pytest.mark.parametrize("region", ["plain", "by_element", "by_call"])
def test_any_spelling_of_a_region_folds_alike(region):
    assert reduced(region, "1", "f32[2]").tolist() == [97, 88]
    assert reduced(region, "0", "f32[3]").tolist() == [97, 95, 93]
    assert reduced(region, "0,1", "f32[]") == 85


def test_a_fold_visits_the_elements_in_row_major_order():
    assert reduced("last", "0,1", "f32[]") == 5
    assert reduced("last", "1", "f32[2]").tolist() == [2, 5]


def test_a_region_may_ignore_its_arguments():
    assert reduced("seven", "1", "f32[2]").tolist() == [7, 7]


def test_a_reduce_of_no_dimension_still_meets_the_initial_value():
    np.testing.assert_array_equal(reduced("plain", "", "f32[2,3]"), 100 - X23)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_a_reduce_of_two_operands_finds_the_first_largest(numbers):
    text = f"""{REGIONS}
ENTRY main {{
  x = f32[{len(numbers)}] parameter(0)
  i = s32[{len(numbers)}] iota(), iota_dimension=0
  least = f32[] constant(-inf)
  none = s32[] constant(-1)
  ROOT r = (f32[], s32[]) reduce(x, i, least, none), dimensions={{0}}, to_apply=better
}}
"""
    largest, index = run_text(text, np.array([numbers], np.float32), ranks=1)
    assert largest[0] == max(numbers)
    assert index[0] == numbers.index(max(numbers))
