"""Types of instructions: each opcode accepts what it means and says what does not fit."""

import pytest

from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import AttributeValue
from ncc_runtime.neff.rules.types import ATTRIBUTE_KINDS, TYPE_RULES
from tests.runtime.signatures import breaches, signature

DOT = {"lhs_batch": (0,), "rhs_batch": (0,), "lhs_contracting": (2,), "rhs_contracting": (1,)}
ROWS = {**DOT, "rhs_batch": (1,), "rhs_contracting": (2,), "lhs_ragged": 1, "rhs_group": (0,)}
OF_BATCH, BARE = {**ROWS, "lhs_ragged": 0}, {**ROWS, **DOT, "rhs_group": ()}
SUMS = {**DOT, "lhs_ragged": 2, "rhs_group": ()}

ACCEPTED: list[tuple[str, str, dict[str, AttributeValue]]] = [
    ("add", "f32[2,3] = f32[2,3] f32[2,3]", {}),
    ("and", "pred[] = pred[] pred[]", {}),
    ("convert", "bf16[2] = s32[2]", {}),
    ("convert", "f32[] = c64[]", {}),
    ("abs", "f64[] = c128[]", {}),
    ("complex", "c64[2] = f32[2] f32[2]", {}),
    ("clamp", "f32[2] = f32[] f32[2] f32[2]", {}),
    ("bitcast-convert", "s8[3,4] = f32[3]", {}),
    ("bitcast-convert", "f64[] = u8[8]", {}),
    ("bitcast-convert", "pred[8] = f64[]", {}),
    ("bitcast-convert", "c128[3] = c64[3,2]", {}),
    ("maximum", "c64[] = c64[] c64[]", {}),
    ("compare", "pred[] = c64[] c64[]", {"direction": "LT"}),
    ("clamp", "c64[] = c64[] c64[] c64[]", {}),
    ("stochastic-convert", "s4[2] = bf16[2] u16[2]", {}),
    ("map", "f32[2] = f32[2] f32[2]", {"region": 0}),
    ("reduce-precision", "f16[] = f16[]", {"exponent_bits": 4, "mantissa_bits": 3}),
    ("compare", "pred[2] = f32[2] f32[2]", {"direction": "GE", "type": "TOTALORDER"}),
    ("select", "f32[2] = pred[2] f32[2] f32[2]", {}),
    ("select", "f32[2] = pred[] f32[2] f32[2]", {}),
    ("iota", "s32[2,3]", {"iota_dimension": 1}),
    ("partition-id", "u32[]", {}),
    ("broadcast", "f32[2,3,4] = f32[4,2]", {"dimensions": (2, 0)}),
    ("reshape", "f32[6] = f32[2,3]", {}),
    ("transpose", "f32[4,2,3] = f32[2,3,4]", {"dimensions": (2, 0, 1)}),
    ("slice", "f32[2,0] = f32[5,3]", {"start": (1, 3), "limit": (5, 3), "stride": (3, 1)}),
    ("concatenate", "f32[2,7] = f32[2,3] f32[2,0] f32[2,4]", {"dimension": 1}),
    ("dot", "f32[5,2,4] = bf16[5,2,3] bf16[5,3,4]", dict(DOT)),
    ("ragged-dot", "f32[5,6,4] = bf16[5,6,3] bf16[2,5,3,4] s32[2]", dict(ROWS)),
    ("ragged-dot", "f32[5,6,4] = bf16[5,6,3] bf16[2,5,3,4] s64[5,2]", dict(ROWS)),
    ("ragged-dot", "f32[2,5,6,4] = bf16[5,6,3] bf16[5,3,4] s64[5,2]", dict(SUMS)),
    ("reduce", "f32[2] = f32[2,3] f32[]", {"dimensions": (1,), "region": 0}),
    ("wait", "", {}),
    ("ptc2", "", {}),
]

REFUSED: list[tuple[str, str, dict[str, AttributeValue], str]] = [
    ("add", "f32[2,3] = f32[2,3] f32[3,2]", {}, "operands differ: f32[2,3] and f32[3,2]"),
    ("add", "f32[2] = f32[3] f32[3]", {}, "result is f32[2], operands make [3]"),
    ("add", "s32[2] = f32[2] f32[2]", {}, "result is s32[2], operands make f32"),
    ("xor", "f32[] = f32[] f32[]", {}, "not defined on f32"),
    ("tanh", "s32[] = s32[]", {}, "not defined on s32"),
    ("floor", "c64[] = c64[]", {}, "not defined on c64"),
    ("remainder", "c64[] = c64[] c64[]", {}, "not defined on c64"),
    ("subtract", "pred[] = pred[] pred[]", {}, "not defined on pred"),
    ("convert", "f32[1] = s32[2]", {}, "result is f32[1], operands make [2]"),
    ("compare", "s32[2] = f32[2] f32[2]", {"direction": "EQ"}, "result is s32[2], operands make"),
    ("compare", "pred[] = f32[] f32[]", {"direction": "LT", "type": "X"}, "type is 'X', known are"),
    ("compare", "pred[] = s32[] s32[]", {"direction": "LT", "type": "TOTALORDER"}, "s32 is not"),
    ("sign", "u8[] = u8[]", {}, "not defined on u8"),
    ("abs", "c64[] = c64[]", {}, "result is c64[], operands make f32"),
    ("complex", "c128[] = f32[] f32[]", {}, "f32 does not make c128"),
    ("clamp", "f32[2] = f32[] f32[2] f32[1]", {}, "a bound is f32[1], the operand f32[2]"),
    ("is-finite", "pred[] = s32[]", {}, "not defined on s32"),
    ("real", "s32[] = s32[]", {}, "not defined on s32"),
    ("popcnt", "pred[] = pred[]", {}, "not defined on pred"),
    ("erf", "c64[] = c64[]", {}, "not defined on c64"),
    ("bitcast-convert", "s8[3] = s32[]", {}, "s32[] does not have the bits of s8[3]"),
    ("bitcast-convert", "f64[] = c64[]", {}, "c64 does not become f64"),
    ("bitcast-convert", "f6e2m3fn[4] = u8[3]", {}, "u8[3] does not have the bits of f6e2m3fn[4]"),
    ("stochastic-convert", "u8[] = f32[] u32[]", {}, "no conversion at random from f32 to u8"),
    ("stochastic-convert", "s8[] = f32[] s32[]", {}, "random bits of f32[] are s32[]"),
    ("map", "f32[2] = f32[2]", {"region": 0}, "does not map (f32) to f32"),
    ("map", "f32[2] = f32[2] f32[3]", {"region": 0}, "result is f32[2], operands make [3]"),
    ("select", "f32[2] = s32[2] f32[2] f32[2]", {}, "condition is s32[2], choices are f32[2]"),
    ("select", "f32[2] = pred[1] f32[2] f32[2]", {}, "condition is pred[1], choices are f32[2]"),
    ("select", "f32[2] = pred[2] f32[2] f32[3]", {}, "choices differ: f32[2] and f32[3]"),
    ("iota", "s32[2]", {"iota_dimension": 1}, "[1] are not distinct dimensions of 1"),
    ("iota", "pred[2]", {"iota_dimension": 0}, "not defined on pred"),
    ("replica-id", "u32[1]", {}, "result is u32[1], operands make []"),
    ("replica-id", "f32[]", {}, "result is f32[], must be an integer"),
    ("broadcast", "f32[2,3] = f32[3]", {"dimensions": (0,)}, "f32[3] does not fill dimensions of"),
    ("broadcast", "f32[2,2] = f32[2,2]", {"dimensions": (0, 0)}, "not distinct dimensions of 2"),
    ("broadcast", "f32[2] = f32[2]", {"dimensions": ()}, "f32[2] does not fill dimensions"),
    ("reshape", "f32[5] = f32[2,3]", {}, "6 elements become 5"),
    ("transpose", "f32[2,3] = f32[2,3]", {"dimensions": (0, 0)}, "[0, 0] do not permute 2"),
    ("transpose", "f32[2,3] = f32[2,3]", {"dimensions": (1, 0)}, "operands make [3,2]"),
    ("slice", "f32[2] = f32[5]", {"start": (4,), "limit": (6,), "stride": (1,)}, "is no range"),
    ("slice", "f32[2] = f32[5]", {"start": (0,), "limit": (2,), "stride": (0,)}, "[0:2:0] is no"),
    ("slice", "f32[2] = f32[5]", {"start": (), "limit": (2,), "stride": (1,)}, "must have 1"),
    ("slice", "f32[2] = f32[5]", {"start": (0,), "limit": (3,), "stride": (1,)}, "make [3]"),
    ("concatenate", "f32[2]", {"dimension": 0}, "no operands"),
    ("concatenate", "f32[2] = f32[2]", {"dimension": 1}, "are not distinct dimensions of 1"),
    ("concatenate", "f32[2,2] = f32[1,2] f32[1,3]", {"dimension": 0}, "operands differ: f32[1,2]"),
    ("concatenate", "f32[3] = f32[1] s32[2]", {"dimension": 0}, "operands make s32"),
    ("concatenate", "f32[3] = f32[1] f32[1]", {"dimension": 0}, "operands make [2]"),
    ("dot", "f32[5,2,4] = f32[5,2,3] f32[5,2,4]", dict(DOT), "batch and contracting sizes differ"),
    ("dot", "f32[5,4,2] = f32[5,2,3] f32[5,3,4]", dict(DOT), "operands make [5,2,4]"),
    ("dot", "f32[5,2,4] = c64[5,2,3] c64[5,3,4]", dict(DOT), "do not make f32[5,2,4]"),
    ("dot", "f32[5,2,4] = f32[5,2] f32[5,3,4]", dict(DOT), "are not distinct dimensions of 2"),
    ("ragged-dot", "f32[5,6,4] = f32[5,6,3] f32[2,5,3,4] f32[2]", dict(ROWS), "groups are f32[2]"),
    ("ragged-dot", "f32[5,6,4] = f32[5,6,3] f32[2,5,3,4] s32[6,2]", dict(ROWS), "are s32[6,2]"),
    ("ragged-dot", "f32[5,6,4] = f32[5,6,3] f32[2,5,3,4] s32[3]", dict(ROWS), "have [3] groups"),
    ("ragged-dot", "f32[5,6,4] = f32[5,6,3] f32[5,3,4] s32[2]", dict(SUMS), "make [2,5,6,4]"),
    ("ragged-dot", "f32[5,6,4] = f32[5,6,3] f32[2,5,3,4] s32[2]", dict(OF_BATCH), "has no"),
    ("ragged-dot", "f32[5,6,4] = f32[5,6,3] f32[5,3,4] s32[2]", dict(BARE), "rhs_group is []"),
    ("reduce", "f32[2] = f32[2,3]", {"dimensions": (1,), "region": 0}, "1 operands, 2 needed"),
    ("reduce", "f32[2] = f32[2,3] f32[]", {"dimensions": (2,), "region": 0}, "not distinct"),
    ("reduce", "f32[3] = f32[2,3] f32[]", {"dimensions": (1,), "region": 0}, "operands make [2]"),
    ("reduce", "f32[2] = f32[2,3] f32[1]", {"dimensions": (1,), "region": 0}, "initial value is"),
    ("reduce", "f32[2] = f32[2,3] f32[]", {"dimensions": (1,), "region": 1}, "region 1, there"),
    ("reduce", "s32[2] = s32[2,3] s32[]", {"dimensions": (1,), "region": 0}, "fold (s32, s32)"),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "types", "attributes"), ACCEPTED)
def test_what_an_opcode_means_is_accepted(
    opcode: str, types: str, attributes: dict[str, AttributeValue]
) -> None:
    assert breaches(signature(opcode, types, attributes)) == []


@pytest.mark.parametrize(("opcode", "types", "attributes", "complaint"), REFUSED)
def test_types_that_do_not_agree_are_refused(
    opcode: str, types: str, attributes: dict[str, AttributeValue], complaint: str
) -> None:
    found = breaches(signature(opcode, types, attributes))
    assert any(complaint in one for one in found), found


def test_every_opcode_on_tensors_has_a_type_rule() -> None:
    computing = {name for name, row in OPCODES.items() if row.shape is not Shape.CONTROL}
    assert set(TYPE_RULES) == computing


def test_every_attribute_has_a_kind() -> None:
    rows = OPCODES.values()
    assert set(ATTRIBUTE_KINDS) == {name for row in rows for name in row.attributes + row.optional}
