"""Arrays without elements: nothing is computed, however large their other dimensions are."""

import pytest

import ncc_runtime
from ncc_compiler.driver import compile_text
from ncc_compiler.options import CompileOptions

BEFORE = """lt {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = compare(a, b), direction=LT
}
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = add(a, b) }
ENTRY main {
  x = f32[1000000000000,0] parameter(0)
  i = s32[1000000000000,0,1] iota(), iota_dimension=0
  v = f32[5] constant(1)
"""


@pytest.mark.parametrize(
    "line",
    [
        "iota(), iota_dimension=0",
        "sort(x), dimensions={0}, to_apply=lt",
        "sort(x), dimensions={1}, to_apply=lt",
        "dynamic-slice(x, s32[] constant(5), s32[] constant(0)), "
        "dynamic_slice_sizes={1000000000000,0}",
        "gather(v, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, "
        "index_vector_dim=2, slice_sizes={1}",
        "all-reduce(x), to_apply=sum",
    ],
)
def test_nothing_of_the_length_of_a_dimension_is_made(line: str) -> None:
    text = f"{BEFORE}  ROOT r = f32[1000000000000,0] {line}\n}}\n"
    model = ncc_runtime.load(compile_text(text, CompileOptions(level=0, ranks=2)), topology="trn2")
    (output,) = model.run(seed=0).outputs
    assert output.shape == (2, 10**12, 0)


def test_the_largest_of_nothing_are_nothing() -> None:
    kind = "(f32[1000000000000,0], s32[1000000000000,0])"
    text = f"{BEFORE}  ROOT r = {kind} topk(x), k=0\n}}\n"
    model = ncc_runtime.load(compile_text(text), topology="trn2")
    assert [one.shape for one in model.run(seed=0).outputs] == [(1, 10**12, 0)] * 2


def test_updates_that_are_none_change_nothing() -> None:
    text = f"{BEFORE}  ROOT r = scatter(v, i, x), update_window_dims={{}}, "
    text += "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=2, "
    text += "to_apply=sum\n}\n"
    model = ncc_runtime.load(compile_text(text), topology="trn2")
    assert model.run(seed=0).outputs[0].tolist() == [[1.0] * 5]
