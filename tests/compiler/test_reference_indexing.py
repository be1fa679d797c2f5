"""What gather, scatter, sort and their neighbours mean at the edges, on the reference."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from tests.reference_runs import run_text

SUM = """sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
TAKE = """take {
  a = f32[] parameter(0)
  ROOT b = f32[] parameter(1)
}
"""
MIX = """mix {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] add(a, a)
  ROOT d = f32[] add(c, b)
}
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def run(body: str, *inputs: np.ndarray) -> list[np.ndarray]:
    """The outputs of one rank; the entry follows the regions in the text."""
    outputs = run_text(body, *(one[None] for one in inputs), ranks=1)
    return [one[0] for one in outputs]


SLICE = """x = f32[2,3] parameter(0)
i = s32[2] parameter(1)
ROOT r = f32[1,2] dynamic-slice(x, i), dynamic_slice_sizes={1,2}
"""


@pytest.mark.parametrize(
    ("start", "expected"),
    [((0, 0), [[0, 1]]), ((1, 1), [[4, 5]]), ((9, 9), [[4, 5]]), ((-9, -9), [[0, 1]])],
)
def test_a_slice_moves_back_inside(start, expected):
    assert run(SLICE, X, np.array(start, np.int32))[0].tolist() == expected


def test_an_unsigned_start_beyond_all_signed_ones_is_large():
    text = SLICE.replace("s32[2]", "u64[2]")
    assert run(text, X, np.array([2**64 - 1, 0], np.uint64))[0].tolist() == [[3, 4]]


GATHER = """x = f32[2,3] parameter(0)
i = s32[4] parameter(1)
ROOT r = f32[4,2] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2}
"""  # noqa: E501


def test_a_gather_clamps_each_start():
    got = run(GATHER, X, np.array([1, 0, 7, -1], np.int32))[0]
    assert got.tolist() == [[3, 4], [0, 1], [3, 4], [0, 1]]


def test_a_gather_from_nothing_reads_zeros():
    text = GATHER.replace("f32[2,3]", "f32[0,3]").replace("{1,2}", "{0,2}")
    got = run(text, np.zeros((0, 3), np.float32), np.zeros(4, np.int32))[0]
    assert got.tolist() == [[0, 0]] * 4


SCATTER = """x = f32[5] parameter(0)
i = s32[3] parameter(1)
u = f32[3,2] parameter(2)
ROOT r = f32[5] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%s
"""  # noqa: E501
U = np.array([[1, 2], [10, 20], [100, 200]], np.float32)


@pytest.mark.parametrize(
    ("region", "name", "indices", "expected"),
    [
        (SUM, "sum", (0, 1, 3), [1, 12, 20, 100, 200]),
        (SUM, "sum", (0, 0, 0), [111, 222, 0, 0, 0]),
        (SUM, "sum", (4, -1, 2), [0, 0, 100, 200, 0]),  # windows that stick out are left out whole
        (TAKE, "take", (0, 1, 0), [100, 200, 20, 0, 0]),
        (MIX, "mix", (0, 0, 0), [124, 248, 0, 0, 0]),
    ],
)
def test_a_scatter_joins_updates_in_order(region, name, indices, expected):
    inputs = np.zeros(5, np.float32), np.array(indices, np.int32), U
    assert run(region + SCATTER % name, *inputs)[0].tolist() == expected


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        ("1_0", [9, 1, 2, 3]),
        ("0_0_1", [1, 9, 2, 9, 3]),
        ("-1_-1", [2]),
        ("-1_2_1", [9, 2, 9, 3, 9, 9]),
        ("3_-4", [9, 9]),
        ("-2_1_2", [9, 2, 9, 9, 3, 9]),
    ],
)
def test_a_pad_puts_values_around_and_between(padding, expected):
    text = f"x = f32[3] parameter(0)\nv = f32[] parameter(1)\nROOT r = f32[{len(expected)}] "
    got = run(
        f"{text}pad(x, v), padding={padding}\n", np.array([1, 2, 3], np.float32), np.float32([9])[0]
    )
    assert got[0].tolist() == expected


def test_the_largest_come_in_the_total_order_and_equals_in_their_places():
    text = "x = f32[7] parameter(0)\nROOT r = (f32[7], s32[7]) topk(x), k=7\n"
    x = np.array([0.0, -0.0, np.nan, -np.nan, -np.inf, 0.0, 1.0], np.float32)
    assert run(text, x)[1].tolist() == [2, 6, 0, 5, 1, 4, 3]
    smallest = text.replace("k=7", "k=7, largest=false")
    assert run(smallest, x)[1].tolist() == [3, 4, 1, 0, 5, 6, 2]


def test_a_topk_call_asks_for_what_its_comparator_puts_first():
    less = "less {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
    less += "  ROOT c = pred[] compare(a, b), direction=LT\n}\nENTRY main {\n"
    less += "  x = f32[3] parameter(0)\n  ROOT r = (f32[1], s32[1]) custom-call(x), "
    less += 'custom_call_target="TopK", called_computations={%less}\n}\n'
    assert run(less, np.array([3, 1, 2], np.float32))[1].tolist() == [1]


APPROX = """first {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT e = pred[] compare(a, b), direction=GT
}
ENTRY main {
  x = f32[3,2] parameter(0)
  i = s32[3,2] iota(), iota_dimension=0
  f = f32[] constant(-inf)
  m = s32[] constant(-1)
  ROOT r = (f32[2,2], s32[2,2]) custom-call(x, i, f, m), custom_call_target="ApproxTopK",
    called_computations={%first}, backend_config={"top_k": 2, "reduction_dim": 0,
    "recall_target": 0.95, "aggregate_to_topk": true, "is_fallback": false}
}
"""


def test_an_approximate_topk_gives_exactly_what_its_comparator_puts_first():
    x = np.array([[1, 6], [3, 5], [2, 4]], np.float32)
    expected = [[[3, 6], [2, 5]], [[1, 0], [2, 1]]]
    assert [array.tolist() for array in run(APPROX, x)] == expected
    program = ncc_runtime.load(ncc_compiler.compile_text(APPROX))
    assert [array[0].tolist() for array in program.run([x[None]]).outputs] == expected


def test_equals_of_a_sort_stay_in_their_places():
    text = """by_first {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT e = pred[] compare(a, b), direction=GT
}
x = s32[6] parameter(0)
y = s32[6] parameter(1)
ROOT r = (s32[6], s32[6]) sort(x, y), dimensions={0}, to_apply=by_first
"""
    keys = np.array([1, 2, 1, 2, 1, 2], np.int32)
    assert run(text, keys, np.arange(6, dtype=np.int32))[1].tolist() == [1, 3, 5, 0, 2, 4]
