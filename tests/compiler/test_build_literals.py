"""Constants: every spelling of a literal, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncc_compiler.ir.graph import Elided, Literal
from ncc_compiler.ir.text.literals import LiteralError, read_literal, spell_literal
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.shared.dtypes import DType
from tests import draws

F32, S32 = DType.F32, DType.S32


def read(text: str, dtype: DType = F32, *shape: int) -> np.ndarray:
    literal = read_literal(text, ArrayType(dtype, shape))
    assert isinstance(literal, Literal)
    return literal.array


def refusal(text: str, dtype: DType = F32, *shape: int) -> LiteralError:
    with pytest.raises(LiteralError) as caught:
        read(text, dtype, *shape)
    return caught.value


@given(draws.array_types.flatmap(lambda kind: st.tuples(st.just(kind), draws.literals(kind))))
def test_any_bits_survive_being_spelt_and_read(drawn) -> None:
    kind, literal = drawn
    assert read_literal(spell_literal(literal, kind.dtype), kind) == literal


@pytest.mark.parametrize(
    "text",
    [
        "{ { 1, 2 }, { 3, 4 } }",
        "{{1,2},{3,4}}",
        "s32[2,2] { { 1, 2 }, { 3, 4 } }",
        "s32[2,2]{1,0} {{1,2},{3,4}}",
        "{ /*i0=0*/ { 1, 2 },\n  /*i0=1*/ { 3, 4 } }",
    ],
)
def test_nested_braces_follow_the_shape(text: str) -> None:
    assert read(text, S32, 2, 2).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-0", -0.0),
        ("1e-05", 1e-05),
        (".5", 0.5),
        ("inf", math.inf),
        ("-inf", -math.inf),
    ],
)
def test_float_scalars_are_read(text: str, value: float) -> None:
    found = read(text)
    assert (found, np.signbit(found)) == (np.float32(value), np.signbit(np.float32(value)))


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("nan", 0x7FC00000),
        ("-nan", 0xFFC00000),
        ("nan(0x1)", 0x7F800001),
        ("-nan(0x400001)", 0xFFC00001),
    ],
)
def test_nans_keep_sign_and_payload(text: str, bits: int) -> None:
    assert int(read(text).view(np.uint32)) == bits


def test_values_are_rounded_to_the_type() -> None:
    assert float(read("1.01", DType.BF16)) == 1.0078125


def test_floats_without_infinity_end_at_their_largest_number() -> None:
    assert read("{6, 100, -7}", DType.F4E2M1FN, 3).astype(float).tolist() == [6, 6, -6]


def test_complex_numbers_are_pairs() -> None:
    assert read("{ (1, 2), (-inf, 0.5) }", DType.C64, 2).tolist() == [
        1 + 2j,
        complex(-math.inf, 0.5),
    ]


@pytest.mark.parametrize("text", ["{true, false}", "{1, 0}"])
def test_truth_values_are_words_or_digits(text: str) -> None:
    assert read(text, DType.PRED, 2).tolist() == [True, False]


@pytest.mark.parametrize(("text", "shape"), [("{}", (0,)), ("{ {}, {} }", (2, 0)), ("{}", (0, 3))])
def test_empty_arrays_are_read(text: str, shape: tuple[int, ...]) -> None:
    assert read(text, F32, *shape).shape == shape


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("128", DType.S8),
        ("-1", DType.U32),
        ("8", DType.S4),
        ("18446744073709551616", DType.U64),
        ("1.5", S32),
        ("1_000", S32),
        ("9" * 5000, S32),
        ("one", F32),
        ("0x10", F32),
        ("1e39", F32),
        ("1e999", DType.F64),
        ("70000", DType.F16),
        ("inf", DType.F8E4M3FN),
        ("nan", DType.F4E2M1FN),
        ("-inf", DType.F6E3M2FN),
        ("1", DType.S1),
        ("nan(0x800000)", F32),
        ("2.0", DType.PRED),
        ("nan(0x1)", DType.F8E4M3FNUZ),
        ("nan(0x7)", DType.F8E4M3FN),
        ("nan(0x1)", DType.F8E8M0FNU),
        ("1+2i", DType.C64),
    ],
)
def test_element_outside_the_type_is_refused(text: str, dtype: DType) -> None:
    error = refusal(text, dtype)
    assert (error.number, error.word) == (2, text)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("{1, 2, 3}", (2,)),
        ("{{1,2},{3}}", (2, 2)),
        ("{1,2,3,4}", (2, 2)),
        ("{{1,2,3,4}}", (2, 2)),
        ("{1", (1,)),
        ("{1}", ()),
        ("1", (1,)),
        ("{1,2,}", (1,)),
        ("{{1}{2}}", (1, 2)),
        ("{1}", (10**9, 10**9)),
        ("{1}", (0,)),
    ],
)
def test_braces_that_do_not_follow_the_shape_are_refused(text: str, shape: tuple[int, ...]) -> None:
    assert refusal(text, S32, *shape).number == 1


def test_a_scalar_or_a_part_left_out_is_refused_with_the_remedy() -> None:
    hint = "print the program with print_large_constants=True"
    for error in (refusal("{...}", F32), refusal("{1, 2, ...}", F32, 4)):
        assert (error.number, error.hint) == (3, hint)


def test_the_values_of_an_array_may_be_left_out_as_a_whole() -> None:
    literal = read_literal("{...}", ArrayType(F32, (4,)))
    assert literal == Elided()
    assert spell_literal(literal, F32) == "{...}"


def test_shortest_decimal_is_spelt() -> None:
    literal = read_literal("0.1", ArrayType(F32))
    assert spell_literal(literal, F32) == "0.1"
