"""Bitcasts of arrays in any layout: the bytes of memory, and elements made of them."""

import math
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import ncc_runtime
from ncc_compiler.driver import compile_text
from ncc_compiler.ir.text.printer import print_module
from tests.compiler.reading import complaints, load
from tests.example_count import examples
from tests.reference_runs import reference_outputs

Drawn = tuple[tuple[int, ...], tuple[int, ...]]


@st.composite
def arrays(draw: st.DrawFn, size: int) -> Drawn:
    """A shape of so many elements, and a layout of it, the innermost dimension first."""
    shape = []
    while size > 1:
        shape.append(draw(st.sampled_from([k for k in range(2, size + 1) if size % k == 0])))
        size //= shape[-1]
    shape = draw(st.permutations([*shape, *draw(st.sampled_from([[], [1]]))]))
    return tuple(shape), tuple(draw(st.permutations(range(len(shape)))))


def typed(dtype: str, shape: Sequence[int], inner_first: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]{{{','.join(map(str, inner_first))}}}"


def stored(array: np.ndarray, inner_first: Sequence[int]) -> bytes:
    """The elements in the order of memory: the dimension that is named first moves fastest."""
    strides, step = [0] * array.ndim, 1
    for dimension in inner_first:
        strides[dimension], step = step, step * array.shape[dimension]
    memory = np.empty(array.size, array.dtype)
    for index in np.ndindex(array.shape):
        memory[sum(k * stride for k, stride in zip(index, strides, strict=True))] = array[index]
    return memory.tobytes()


@given(st.sampled_from([6, 12, 24, 30]).flatmap(lambda size: st.tuples(arrays(size), arrays(size))))
@settings(max_examples=examples(60), deadline=None)
def test_a_bitcast_keeps_the_memory_of_any_layout(pair: tuple[Drawn, Drawn]) -> None:
    (shape, layout), (new_shape, new_layout) = pair
    x = np.arange(math.prod(shape), dtype="f4").reshape(shape)
    text = (
        f"ENTRY e {{ x = {typed('f32', shape, layout)} parameter(0)\n"
        f"ROOT b = {typed('s32', new_shape, new_layout)} bitcast(x) }}\n"
    )
    module = load(text)
    assert load(print_module(module)) == module
    (found,) = reference_outputs(module, [x[None]])
    assert stored(found[0], new_layout) == stored(x, layout)


def test_the_runtime_keeps_it_too() -> None:
    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    text = (
        "ENTRY e { x = f32[2,3,4]{0,2,1} parameter(0)\nROOT b = bf16[6,8]{0,1} bitcast(x), "
        'metadata={op_name="there"} }\n'
    )
    (found,) = ncc_runtime.load(compile_text(text)).run([x]).outputs
    assert stored(found[0], (0, 1)) == stored(x, (0, 2, 1))


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("f32[8,16]{0,1:T(8,128)}", "f32[16,8]{1,0:T(8,128)}", ""),
        ("f32[8,16]{0,1:T(8,128)}", "f32[16,8]{1,0:T(4,128)}", "bitcast-C2"),
        ("f32[8,16]{0,1:T(8,128)}", "f32[128]{0:T(8)}", "bitcast-C2"),
        ("f32[8,16]{0,1}", "f32[127]{0}", "bitcast-C1"),
        (f"f32[{'9' * 5000}]{{0}}", "f32[127]{0}", "type-C2"),
        ("f32[8,16]{0,0}", "f32[16,8]{0,1}", "type-C6"),
        ("(f32[8,16]{0,1})", "f32[128]{0}", "op-C4"),
    ],
)
def test_only_bitcasts_that_are_known_are_taken(before: str, after: str, code: str) -> None:
    text = f"ENTRY e {{ x = {before} parameter(0)\nROOT b = {after} bitcast(x) }}\n"
    assert [line.split()[1] for line in complaints(text)] == [code] * bool(code)
