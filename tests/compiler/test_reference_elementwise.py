"""Elementwise ops of the reference at the edges where languages differ and XLA decides."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.reference import run_module
from ncc_runtime.neff.shared.dtypes import DType

INF, NAN = np.inf, np.nan
LOW, HIGH = -(2**31), 2**31 - 1


def run_one(op, dtype, *operands, result=None, **attributes):
    """The op on one rank, operands given as lists of dtype."""
    arrays = [
        np.asarray(operand) if isinstance(operand, np.ndarray) else np.array(operand, dtype.numpy)
        for operand in operands
    ]
    nodes = [
        Node(f"p{k}", "parameter", ArrayType(dtype, array.shape), (), {"parameter_number": k})
        for k, array in enumerate(arrays)
    ]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    uses = tuple(NodeId(k) for k in range(len(arrays)))
    nodes.append(Node("r", op, ArrayType(result or dtype, shape), uses, attributes))
    entry = Computation("main", tuple(nodes), NodeId(len(arrays)))
    [[value]] = run_module(Module("one", {"main": entry}, "main"), [arrays])
    return value


def same(actual, expected, dtype):
    """Equal bit for bit, except that any NaN equals any NaN."""
    wanted = np.array(expected, dtype.numpy)
    assert actual.dtype == wanted.dtype
    if not dtype.is_float:
        assert actual.tolist() == wanted.tolist()
        return
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_equal(actual, wanted)
    np.testing.assert_array_equal(np.signbit(actual)[wanted == 0], np.signbit(wanted)[wanted == 0])


@pytest.mark.parametrize(
    ("op", "dtype", "x", "y", "expected"),
    [
        ("add", DType.S32, [HIGH], [1], [LOW]),
        ("add", DType.PRED, [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1]),
        ("add", DType.S4, [7], [1], [-8]),
        ("multiply", DType.PRED, [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]),
        ("multiply", DType.U8, [200], [3], [88]),
        ("subtract", DType.U32, [0], [1], [2**32 - 1]),
        ("divide", DType.S32, [7, -7, 7, -7], [2, 2, -2, -2], [3, -3, -3, 3]),
        ("divide", DType.S32, [5, 0, LOW, LOW], [0, 0, 0, -1], [-1, -1, -1, LOW]),
        ("divide", DType.S4, [-8, 5], [-1, 0], [-8, -1]),
        ("divide", DType.U8, [5, 0, 200], [0, 0, 7], [255, 255, 28]),
        ("divide", DType.F32, [1, -1, 0], [0, 0, 0], [INF, -INF, NAN]),
        ("remainder", DType.S32, [7, -7, 7, -7], [3, 3, -3, -3], [1, -1, 1, -1]),
        ("remainder", DType.S32, [5, LOW], [0, -1], [5, 0]),
        ("remainder", DType.U16, [9, 9], [0, 4], [9, 1]),
        ("remainder", DType.F32, [5.5, -5.5, -0.0, 1], [2, 2, 2, 0], [1.5, -1.5, -0.0, NAN]),
        ("power", DType.S32, [2, 3, 0, 5, 2], [10, 4, 0, 0, 32], [1024, 81, 1, 1, 0]),
        ("power", DType.S32, [1, -1, -1, 2, 0], [-3, -3, -2, -1, -1], [1, -1, 1, 0, 0]),
        ("power", DType.U8, [3, 2], [5, 8], [243, 0]),
        ("power", DType.F32, [NAN, 1, -8, 0], [0, NAN, 1.5, -1], [1, 1, NAN, INF]),
        ("maximum", DType.F32, [NAN, 1, -0.0, 0.0], [1, NAN, 0.0, -0.0], [NAN, NAN, 0.0, 0.0]),
        ("minimum", DType.F32, [NAN, 1, -0.0, 0.0], [1, NAN, 0.0, -0.0], [NAN, NAN, -0.0, -0.0]),
        ("maximum", DType.F32, [-0.0], [-0.0], [-0.0]),
        ("minimum", DType.BF16, [0.0], [-0.0], [-0.0]),
        ("maximum", DType.PRED, [0, 1], [1, 0], [1, 1]),
        ("and", DType.S8, [-1, 6], [5, 3], [5, 2]),
        ("or", DType.PRED, [0, 1], [0, 0], [0, 1]),
        ("xor", DType.U8, [255], [1], [254]),
    ],
)
def test_a_binary_op_is_as_xla_defines_it(op, dtype, x, y, expected):
    same(run_one(op, dtype, x, y), expected, dtype)


@pytest.mark.parametrize(
    ("op", "dtype", "x", "expected"),
    [
        ("abs", DType.S32, [LOW, -3, 3], [LOW, 3, 3]),
        ("abs", DType.F16, [-0.0, -INF], [0.0, INF]),
        ("negate", DType.U8, [1, 0], [255, 0]),
        ("negate", DType.F32, [0.0], [-0.0]),
        ("not", DType.PRED, [0, 1], [1, 0]),
        ("not", DType.S8, [0, 5], [-1, -6]),
        ("not", DType.U4, [3], [12]),
        ("sign", DType.F32, [NAN, -0.0, 0.0, -2, INF], [NAN, -0.0, 0.0, -1, 1]),
        ("sign", DType.S32, [-5, 0, 5], [-1, 0, 1]),
        ("sqrt", DType.F32, [-1, -0.0, 4], [NAN, -0.0, 2]),
        ("rsqrt", DType.F32, [0.0, -0.0, 4, INF], [INF, -INF, 0.5, 0]),
        ("log", DType.F32, [0, -1, 1], [-INF, NAN, 0]),
        ("exponential", DType.F32, [-INF, 0, 100], [0, 1, INF]),
        ("tanh", DType.F32, [-INF, -0.0, INF], [-1, -0.0, 1]),
        ("logistic", DType.F32, [-INF, 0, INF], [0, 0.5, 1]),
        ("floor", DType.F32, [-0.5, -0.0, 1.5], [-1, -0.0, 1]),
        ("ceil", DType.F32, [-0.5, 1.5], [-0.0, 2]),
        ("copy", DType.S32, [3], [3]),
    ],
)
def test_a_unary_op_is_as_xla_defines_it(op, dtype, x, expected):
    same(run_one(op, dtype, x), expected, dtype)


@pytest.mark.parametrize(
    ("source", "target", "x", "expected"),
    [
        (DType.F32, DType.S32, [NAN, INF, -INF, 3e9, -3e9, -1.9], [0, HIGH, LOW, HIGH, LOW, -1]),
        (DType.F32, DType.U8, [-1, 255.9, 256, NAN], [0, 255, 255, 0]),
        (DType.F32, DType.S64, [1e19, -1e19], [2**63 - 1, -(2**63)]),
        (DType.F64, DType.U64, [2e19, 2**63, -5], [2**64 - 1, 2**63, 0]),
        (DType.F32, DType.S4, [9, -9, 3.7], [7, -8, 3]),
        (DType.F32, DType.PRED, [0, -0.0, NAN, 0.1], [0, 0, 1, 1]),
        (DType.S32, DType.U8, [257, -1], [1, 255]),
        (DType.S32, DType.S4, [9, 24], [-7, -8]),
        (DType.U32, DType.S32, [2**32 - 1], [-1]),
        (DType.PRED, DType.F32, [0, 1], [0, 1]),
        (DType.F32, DType.BF16, [1 + 2**-8, 1 + 3 * 2**-8, 3.4e38], [1, 1 + 2**-6, INF]),
        (DType.F32, DType.F16, [65520, 1 + 2**-11, -0.0], [INF, 1, -0.0]),
        (DType.F32, DType.F8E4M3FN, [448, 500, INF, 1.0625], [448, NAN, NAN, 1]),
        (DType.F32, DType.F8E5M2, [1e6, 1.125, 1.375], [INF, 1, 1.5]),
        (DType.S32, DType.F16, [2049, 2051], [2048, 2052]),
    ],
)
def test_convert_saturates_wraps_or_rounds_to_even(source, target, x, expected):
    same(run_one("convert", source, x, result=target), expected, target)


def test_a_narrow_float_is_rounded_once_after_every_op():
    third = run_one("divide", DType.BF16, [1.0], [3.0])
    assert third.dtype == ml_dtypes.bfloat16
    same(third, np.array([1 / 3], np.float32).astype(ml_dtypes.bfloat16), DType.BF16)
    same(run_one("add", DType.BF16, [256.0], [1.0]), [256.0], DType.BF16)


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("EQ", [0, 1, 0]),
        ("NE", [1, 0, 1]),
        ("LT", [1, 0, 0]),
        ("LE", [1, 1, 0]),
        ("GT", [0, 0, 0]),
        ("GE", [0, 1, 0]),
    ],
)
def test_compare_of_floats_knows_no_order_for_nan_and_one_zero(direction, expected):
    value = run_one(
        "compare", DType.F32, [1, -0.0, NAN], [2, 0.0, NAN], result=DType.PRED, direction=direction
    )
    same(value, expected, DType.PRED)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16, DType.BF16])
def test_total_order_puts_minus_nan_first_and_minus_zero_before_zero(dtype):
    nan = np.array(NAN, dtype.numpy)
    ascending = np.array([-nan, -INF, -1, -0.0, 0.0, 1, INF, nan], dtype.numpy)
    value = run_one(
        "compare",
        dtype,
        ascending[:-1],
        ascending[1:],
        result=DType.PRED,
        direction="LT",
        type="TOTALORDER",
    )
    assert value.all()


@given(st.integers(LOW, HIGH), st.integers(LOW, HIGH))
def test_quotient_times_divisor_plus_remainder_is_the_dividend(x, y):
    quotient = run_one("divide", DType.S32, [x], [y])
    remainder = run_one("remainder", DType.S32, [x], [y])
    back = np.array([(int(quotient[0]) * y + int(remainder[0])) & (2**32 - 1)], np.uint32)
    assert back.view(np.int32)[0] == x
    assert y == 0 or (x, y) == (LOW, -1) or int(quotient[0]) == int(x / y)


@given(st.integers(-128, 127), st.integers(0, 40))
def test_integer_power_wraps_as_repeated_multiplication_does(base, exponent):
    exact = pow(base, exponent) & 255
    value = run_one("power", DType.S8, [base], [exponent])
    assert int(value[0]) & 255 == exact
