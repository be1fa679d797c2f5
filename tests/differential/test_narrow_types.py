"""Numbers of 1, 2, 4 and 6 bits, pred and complex numbers, where they differ from wider ones."""

import math

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.shared.dtypes import DType
from tests.reference_runs import run_text

ALL = "replica_groups={{0,1}}, use_global_device_ids=true"
NARROW = [dtype for dtype in DType if dtype.bits < 8]


def everything(dtype: DType) -> np.ndarray:
    """Every number of a narrow type."""
    raw = np.arange(1 << dtype.bits, dtype=np.uint8)
    return raw.view(dtype.numpy) if dtype.is_float else raw.astype(dtype.numpy)


def program(dtype: DType) -> str:
    """Constants, products, folds, order, a region with a constant and a collective."""
    own, count = dtype.value, 1 << dtype.bits
    order = ", type=TOTALORDER" if dtype.is_float else ""
    one = "-1" if dtype is DType.S1 else "1"
    return f"""HloModule narrow, num_partitions=2

add {{
  a = {own}[] parameter(0)
  b = {own}[] parameter(1)
  ROOT c = {own}[] add(a, b)
}}

fold {{
  a = {own}[] parameter(0)
  b = {own}[] parameter(1)
  ROOT c = {own}[] maximum(a, b)
}}

before {{
  a = {own}[] parameter(0)
  b = {own}[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT{order}
}}

more {{
  a = {own}[] parameter(0)
  one = {own}[] constant({one})
  ROOT c = {own}[] add(a, one)
}}

ENTRY main {{
  x = {own}[{count}] parameter(0)
  k = {own}[2] constant({{{one}, 0}})
  zero = {own}[] constant(0)
  row = {own}[1,{count}] reshape(x)
  column = {own}[{count},2] broadcast(k), dimensions={{1}}
  product = {own}[1,2] dot(row, column), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  folded = {own}[] reduce(x, zero), dimensions={{0}}, to_apply=fold
  sorted = {own}[{count}] sort(x), dimensions={{0}}, to_apply=before
  mapped = {own}[{count}] map(x), dimensions={{0}}, to_apply=more
  both = {own}[{count + 2}] concatenate(x, k), dimensions={{0}}
  sum = {own}[{count + 2}] all-reduce(both), channel_id=1, {ALL}, to_apply=add
  all = {own}[{2 * count}] all-gather(x), channel_id=2, {ALL}, dimensions={{0}}
  ROOT r = ({own}[1,2], {own}[], {own}[{count}], {own}[{count}], {own}[{count + 2}],
    {own}[{2 * count}]) tuple(product, folded, sorted, mapped, sum, all)
}}
"""


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.value)
def test_a_program_of_narrow_numbers_computes_what_the_reference_says(dtype, level):
    draw = np.random.default_rng(3)
    x = np.stack([draw.permutation(everything(dtype).view(np.uint8)) for _ in range(2)])
    text = program(dtype)
    neff = ncc_compiler.compile_text(text, CompileOptions(level=level))
    outputs = ncc_runtime.load(neff).run([x.view(dtype.numpy)]).outputs
    wanted = run_text(text, x.view(dtype.numpy))
    for ours, right in zip(outputs, wanted, strict=True):
        assert ours.dtype == right.dtype == dtype.numpy
        assert ours.tobytes() == right.tobytes()


def both_of(text: str, *inputs: np.ndarray) -> np.ndarray:
    """The first output on rank 0, on which the executor and the reference agree."""
    outputs = ncc_runtime.load(ncc_compiler.compile_text(text)).run(list(inputs)).outputs
    (wanted, *_) = run_text(text, *(one[None] for one in inputs))
    np.testing.assert_array_equal(outputs[0], wanted)
    return np.asarray(outputs[0][0])


@pytest.mark.parametrize("dtype", [DType.U1, DType.U2, DType.U4], ids=lambda dtype: dtype.value)
def test_a_byte_falls_into_narrow_numbers_lowest_bits_first(dtype):
    count = 8 // dtype.bits
    text = f"x = u8[3] parameter(0)\nROOT r = {dtype.value}[3,{count}] bitcast-convert(x)"
    found = both_of(text, np.array([0x96, 0, 255], np.uint8))
    mask = (1 << dtype.bits) - 1
    assert found[0].astype(int).tolist() == [
        0x96 >> shift & mask for shift in range(0, 8, dtype.bits)
    ]


def test_narrow_numbers_make_whole_ones():
    text = "x = u1[2,16] parameter(0)\nROOT r = s16[2] bitcast-convert(x)"
    bits = np.zeros((2, 16), np.int8)
    bits[0, 3] = bits[1, 15] = 1
    assert both_of(text, bits.astype(DType.U1.numpy)).tolist() == [8, -(2**15)]


def test_a_pred_is_a_byte_of_which_any_bit_makes_it_true():
    text = "x = s32[2] parameter(0)\nROOT r = pred[2,4] bitcast-convert(x)"
    found = both_of(text, np.array([0x00020100, 256 - 2**31], np.int32))
    assert found.tolist() == [[False, True, True, False], [False, True, False, True]]
    text = "x = pred[4] parameter(0)\nROOT r = u32[] bitcast-convert(x)"
    assert both_of(text, np.array([True, False, True, True])) == 0x01010001


def test_a_complex_number_is_two_of_half_its_width_bit_by_bit():
    text = "x = c128[2] parameter(0)\nROOT r = c64[2,2] bitcast-convert(x)"
    x = np.array([1 + 2j, -0.5 + 3e100j])
    assert both_of(text, x).tobytes() == x.tobytes()
    text = "x = c64[3,2] parameter(0)\nROOT r = c128[3] bitcast-convert(x)"
    y = np.arange(6).reshape(3, 2).astype(np.complex64)
    assert both_of(text, y).tobytes() == y.tobytes()


NAN = math.nan
IN_ORDER = [-1 + 5j, complex(-0.0, -3), -2j, complex(0, 1), 1 - 9j, 1 + 0j, complex(1, math.inf)]


@pytest.mark.parametrize(("op", "pick"), [("maximum", max), ("minimum", min)])
def test_complex_numbers_are_ordered_by_real_part_and_then_by_imaginary(op, pick):
    size = len(IN_ORDER)
    text = f"x = c64[{size},{size}] parameter(0)\ny = c64[{size},{size}] parameter(1)\n"
    x = np.repeat(np.array(IN_ORDER, np.complex64), size).reshape(size, size)
    found = both_of(f"{text}ROOT r = c64[{size},{size}] {op}(x, y)", x, x.T.copy())
    places = [[pick(i, j) for j in range(size)] for i in range(size)]
    assert np.array_equal(found, np.array(IN_ORDER, np.complex64)[places])
    for direction, compare in (("LT", np.less), ("LE", np.less_equal), ("GE", np.greater_equal)):
        line = f"ROOT r = pred[{size},{size}] compare(x, y), direction={direction}"
        found = both_of(text + line, x, x.T.copy())
        assert np.array_equal(found, compare(*np.indices((size, size))))


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_a_nan_in_one_part_of_a_complex_number_wins_and_fills_both(op):
    text = f"x = c128[2] parameter(0)\ny = c128[2] parameter(1)\nROOT r = c128[2] {op}(x, y)"
    found = both_of(text, np.array([complex(NAN, 1), 2]), np.array([3j, complex(9, NAN)]))
    assert np.isnan(found.real).all()
    assert np.isnan(found.imag).all()


@pytest.mark.parametrize(("op", "zero"), [("maximum", 0.0), ("minimum", -0.0)])
def test_zeros_of_equal_complex_numbers_are_ordered_as_those_of_floats(op, zero):
    text = f"x = c64[1] parameter(0)\ny = c64[1] parameter(1)\nROOT r = c64[1] {op}(x, y)"
    x, y = np.array([complex(-0.0, 0.0)]), np.array([complex(0.0, -0.0)])
    found = both_of(text, x.astype(np.complex64), y.astype(np.complex64))
    assert (str(found.real[0]), str(found.imag[0])) == (str(zero), str(zero))


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_ranks_agree_on_the_outermost_of_their_complex_numbers(op):
    text = f"""HloModule outermost, num_partitions=2
fold {{
  a = c64[] parameter(0)
  b = c64[] parameter(1)
  ROOT r = c64[] {op}(a, b)
}}
ENTRY main {{
  x = c64[500] parameter(0)
  ROOT r = c64[500] all-reduce(x), channel_id=1, {ALL}, to_apply=fold
}}
"""
    parts = np.random.default_rng(1).integers(-2, 3, (2, 2, 500)).astype(np.float32)
    parts[np.random.default_rng(2).random(parts.shape) < 0.02] = np.nan
    x = np.empty((2, 500), np.complex64)
    x.real, x.imag = parts
    found = ncc_runtime.load(ncc_compiler.compile_text(text)).run([x]).outputs[0]
    (wanted,) = run_text(text, x)
    np.testing.assert_array_equal(found, wanted)
    pick = max if op == "maximum" else min
    plain = ~np.isnan(x).any(axis=0)
    right = [pick((z.real, z.imag) for z in column) for column in x.T[plain].tolist()]
    assert [(z.real, z.imag) for z in found[0][plain].tolist()] == right
