"""Scatters of float32: machine code, which sorts nothing, has the bits of sorted updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ncc_compiler
from ncc_runtime.execution.values.kernels import indexing
from ncc_runtime.runtime import Model, load
from tests.kernel_ways import WAYS, compute_by

SCATTER = """HloModule m

join {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] {opcode}(a, b) }}

ENTRY main {{
  x = f32[{rows},{size}] parameter(0)
  i = s32[{count},1] parameter(1)
  u = f32[{count},{size}] parameter(2)
  ROOT y = f32[{rows},{size}] scatter(x, i, u), update_window_dims={{1}},
    inserted_window_dims={{0}},
    scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=join
}}
"""


def model(opcode: str, rows: int, size: int, count: int) -> Model:
    text = SCATTER.format(opcode=opcode, rows=rows, size=size, count=count)
    return load(ncc_compiler.compile_text(text), "trn2")


def numbers(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Some of them NaN, infinite or a zero of either sign."""
    others = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], np.float32)
    found = generator.standard_normal(shape).astype(np.float32)
    return np.where(generator.random(shape) < 0.03, generator.choice(others, shape), found)


@given(
    opcode=st.sampled_from(["add", "multiply", "maximum", "minimum"]),
    rows=st.integers(1, 60),
    size=st.sampled_from([1, 3, 16]),
    count=st.integers(8, 300),
    few=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_lists_of_updates_have_the_bits_of_sorted_ones(
    opcode: str, rows: int, size: int, count: int, few: bool, seed: int
) -> None:
    """Also where indices are out of bounds, and where most updates meet."""
    generator = np.random.default_rng(seed)
    table, updates = numbers(generator, (rows, size)), numbers(generator, (count, size))
    indices = generator.integers(-1, 3 if few else rows + 1, (count, 1)).astype(np.int32)
    found = []
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            compute_by(way, patch)
            run = model(opcode, rows, size, count).run(table, indices, updates, clock=False)
            found.append(run.outputs[0].tobytes())
    assert found[0] == found[1]


def test_a_table_of_many_more_rows_than_updates_is_not_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute_by("machine code", monkeypatch)
    asked: list[str] = []
    monkeypatch.setattr(indexing, "loop", lambda name, _: asked.append(name))
    for rows in (64, 65):
        generator = np.random.default_rng(0)
        arrays = (
            numbers(generator, (rows, 1)),
            np.zeros((8, 1), np.int32),
            numbers(generator, (8, 1)),
        )
        model("add", rows, 1, 8).run(*arrays, clock=False)
    assert asked == ["join_updates"]  # of the first
