"""Ragged dots and scans: naive loops, against the reference and the executor at every level."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.shared.dtypes import DType
from tests.reference_runs import assert_close, run_text

NAMES = {dtype.numpy: dtype.value for dtype in DType}


def every_way(text: str, inputs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Outputs on all ranks: of the reference, and of the executor at each level."""
    found = [run_text(text, *inputs)]
    for level in (0, 1, 2):
        neff = ncc_compiler.compile_text(text, CompileOptions(level=level))
        found.append(list(ncc_runtime.load(neff, topology="trn2").run(inputs).outputs))
    return found


def product(attributes: str, shape: Sequence[int], *operands: np.ndarray) -> list[np.ndarray]:
    """A ragged dot of operands [ranks, *shape], every way."""
    kinds = [f"{NAMES[x.dtype]}[{','.join(map(str, x.shape[1:]))}]" for x in operands]
    rows = [
        f"{name} = {kind} parameter({k})"
        for k, (name, kind) in enumerate(zip("xys", kinds, strict=True))
    ]
    result = f"{NAMES[operands[0].dtype]}[{','.join(map(str, shape))}]"
    head = f"HloModule m, replica_count={len(operands[0])}\nENTRY main {{\n"
    text = "\n".join([head, *rows, f"ROOT r = {result} ragged-dot(x, y, s), {attributes}", "}\n"])
    return [outputs[0] for outputs in every_way(text, operands)]


def group_of(sizes: Sequence[int], place: int) -> int | None:
    """Which group a place is in, the groups lying one behind the other."""
    end = 0
    for group, size in enumerate(sizes):
        end += int(size)
        if place < end:
            return group
    return None


SIZES = [[3, 1, 2], [0, 6, 0], [1, 0, 1], [4, 4, 4], [0, 0, 0]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_meet_the_matrix_of_their_group(sizes):
    draw = np.random.default_rng(sum(sizes))
    x, y = draw.normal(size=(2, 6, 4)), draw.normal(size=(2, 3, 4, 5))
    s = np.array([sizes, sizes[::-1]], np.int32)
    wanted = np.zeros((2, 6, 5))
    for rank, row in itertools.product(range(2), range(6)):
        group = group_of(s[rank], row)
        if group is not None:
            wanted[rank, row] = x[rank, row] @ y[rank, group]
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    for found in product(f"{dims}, lhs_ragged_dims={{0}}, rhs_group_dims={{0}}", (6, 5), x, y, s):
        assert_close(found, wanted)


def test_group_sizes_may_differ_with_each_index_before_the_ragged_dimension():
    """Dimensions in any order: x is [k, free, ragged, batch, behind], y [n, group, batch, k]."""
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(1, 4, 2, 6, 3, 2)), draw.normal(size=(1, 5, 3, 3, 4))
    s = draw.integers(0, 4, (1, 3, 2, 3)).astype(np.uint16)
    wanted = np.zeros((1, 3, 2, 6, 2, 5))
    for batch, free, row in itertools.product(range(3), range(2), range(6)):
        group = group_of(s[0, batch, free], row)
        if group is not None:
            wanted[0, batch, free, row] = x[0, :, free, row, batch].T @ y[0, :, group, batch].T
    dims = (
        "lhs_batch_dims={3}, rhs_batch_dims={2}, lhs_contracting_dims={0}, "
        "rhs_contracting_dims={3}, lhs_ragged_dims={2}, rhs_group_dims={1}"
    )
    for found in product(dims, (3, 2, 6, 2, 5), x, y, s):
        assert_close(found, wanted)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_ragged_sum_is_one_for_each_group(sizes):
    """Contracted are [ragged, other] on the left, [other, ragged] on the right."""
    draw = np.random.default_rng(len(sizes))
    x, y = draw.normal(size=(2, 6, 2, 4)), draw.normal(size=(2, 2, 5, 6))
    s = np.array([sizes, sizes[::-1]], np.int64)
    wanted = np.zeros((2, 3, 4, 5))
    for rank, place, other in itertools.product(range(2), range(6), range(2)):
        group = group_of(s[rank], place)
        if group is not None:
            wanted[rank, group] += np.outer(x[rank, place, other], y[rank, other, :, place])
    dims = "lhs_contracting_dims={0,1}, rhs_contracting_dims={2,0}, lhs_ragged_dims={0}"
    for found in product(dims, (3, 4, 5), x, y, s):
        assert_close(found, wanted)


def test_sums_of_groups_that_differ_with_a_batch_and_a_contracted_index():
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(1, 3, 2, 6)), draw.normal(size=(1, 3, 6, 2, 5))
    s = draw.integers(0, 4, (1, 3, 2, 2)).astype(np.int32)
    wanted = np.zeros((1, 2, 3, 5))
    for batch, first, place in itertools.product(range(3), range(2), range(6)):
        group = group_of(s[0, batch, first], place)
        if group is not None:
            wanted[0, group, batch] += x[0, batch, first, place] * y[0, batch, place, first]
    dims = (
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1,2}, "
        "rhs_contracting_dims={2,1}, lhs_ragged_dims={2}"
    )
    for found in product(dims, (2, 3, 5), x, y, s):
        assert_close(found, wanted)


def test_what_is_in_no_group_or_in_another_is_not_multiplied():
    x = np.array([[[1.0], [np.inf], [3.0], [np.nan]]], np.float32)
    y = np.array([[[[2.0]], [[np.inf]]]], np.float32)
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}"
    s = np.array([[1, 2]], np.int32)
    for found in product(f"{dims}, rhs_group_dims={{0}}", (4, 1), x, y, s):
        assert found.ravel().tolist() == [2.0, np.inf, np.inf, 0.0]
    dims = "lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}"
    z = np.array([[[np.inf], [1.0], [2.0], [1.0]]], np.float32)
    for found in product(dims, (2, 1, 1), z, z, np.array([[1, 2]], np.int32)):
        assert found.ravel().tolist() == [np.inf, 5.0]


def test_integers_wrap_and_narrow_floats_are_rounded_once():
    x = np.full((1, 3, 4), 100, np.int8)
    s = np.array([[1, 1]], np.int32)
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}"
    y = np.full((1, 2, 4, 1), 100, np.int8)
    for found in product(f"{dims}, rhs_group_dims={{0}}", (3, 1), x, y, s):
        assert found.ravel().tolist() == [np.int64(40000).astype(np.int8)] * 2 + [0]
    half = DType.BF16.numpy
    y = np.array([1, 1, 1, 2.0**-8]).astype(half).reshape(1, 1, 4, 1)
    ones = np.ones((1, 1, 4), half)
    for found in product(f"{dims}, rhs_group_dims={{0}}", (1, 1), ones, y, np.array([[1]])):
        assert float(found[0, 0, 0]) == 3.0


STEPS = """
running {
  a = f32[2] parameter(0)
  k = s32[2] parameter(1)
  carry = f32[2] parameter(2)
  number = s32[] parameter(3)
  sum = f32[2] add(a, carry)
  one = s32[] constant(1)
  next = s32[] add(number, one)
  all = s32[2] broadcast(number), dimensions={}
  counted = s32[2] add(k, all)
  ROOT r = (s32[2], f32[2], f32[2], s32[]) tuple(counted, a, sum, next)
}
double {
  a = f32[] parameter(0)
  s = f32[] add(a, a)
  ROOT r = (f32[], f32[]) tuple(s, s)
}
negated {
  a = f32[2] parameter(0)
  ROOT r = f32[2] negate(a)
}
summed {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
all {
  a = f32[2] parameter(0)
  carry = f32[2] parameter(1)
  both = f32[2] add(a, carry)
  met = f32[2] all-reduce(both), to_apply=summed
  ROOT r = (f32[2], f32[2]) tuple(met, met)
}
"""


def scanned(lines: str, *inputs: np.ndarray) -> list[list[np.ndarray]]:
    head = f"HloModule m, replica_count={len(inputs[0])}\n"
    return every_way(f"{head}{STEPS}ENTRY main {{\n{lines}\n}}\n", inputs)


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("length", [4, 1, 0])
def test_a_scan_takes_its_steps_one_by_one(length: int, is_reverse: bool):
    draw = np.random.default_rng(length)
    x = draw.normal(size=(3, 2, length)).astype(np.float32)
    k = draw.integers(-9, 9, (3, 2, length)).astype(np.int32)
    first, number = draw.normal(size=(3, 2)).astype(np.float32), np.array([5, 6, 7], np.int32)
    lines = (
        f"x = f32[2,{length}] parameter(0)\nk = s32[2,{length}] parameter(1)\n"
        "c = f32[2] parameter(2)\nn = s32[] parameter(3)\n"
        f"ROOT r = (s32[2,{length}], f32[2,{length}], f32[2], s32[]) scan(x, k, c, n), "
        f"dimensions={{1}}, num_carries=2, is_reverse={str(is_reverse).lower()}, "
        "is_associative=false, to_apply=running"
    )
    counted, sums, order = k.copy(), first.copy(), range(length)
    for step, place in enumerate(reversed(order) if is_reverse else order):
        counted[:, :, place] += (number + step)[:, None]
        sums = sums + x[:, :, place]
    for outputs in scanned(lines, x, k, first, number):
        for found, wanted in zip(outputs, (counted, x, sums, number + length), strict=True):
            assert_close(found, wanted)


def test_without_inputs_the_declared_type_says_how_long_a_scan_is():
    lines = (
        "s = f32[] parameter(0)\n"
        "ROOT r = (f32[5], f32[]) scan(s), dimensions={0}, num_carries=1, to_apply=double"
    )
    for outputs in scanned(lines, np.array([3.0], np.float32)):
        assert outputs[0][0].tolist() == [6, 12, 24, 48, 96]
        assert outputs[1][0] == 96


def test_without_carries_a_scan_maps_slices():
    x = np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    lines = (
        "x = f32[3,2] parameter(0)\n"
        "ROOT r = (f32[3,2]) scan(x), dimensions={0}, num_carries=0, to_apply=negated"
    )
    for outputs in scanned(lines, x):
        np.testing.assert_array_equal(outputs[0], -x)


def test_ranks_meet_in_each_step_of_a_scan():
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    lines = (
        "x = f32[3,2] parameter(0)\nc = f32[2] parameter(1)\n"
        "ROOT r = (f32[3,2], f32[2]) scan(x, c), dimensions={0}, num_carries=1, to_apply=all"
    )
    wanted, carry = np.zeros((3, 2)), np.zeros((2, 2))
    for step in range(3):
        wanted[step] = (x[:, step] + carry).sum(0)
        carry = np.stack([wanted[step]] * 2)
    for outputs in scanned(lines, x, np.zeros((2, 2), np.float32)):
        np.testing.assert_array_equal(outputs[0], np.stack([wanted] * 2))
