"""Types of instructions that place or order elements: what is accepted, and what is said if not."""

import pytest

from ncc_runtime.neff.program import AttributeValue, Region, RegionInstr
from ncc_runtime.neff.rules.signature import Signature
from ncc_runtime.neff.shared.dtypes import DType
from tests.runtime.test_neff_types import breaches, signature

LESS = Region(
    "less",
    (DType.F32,) * 2,
    (RegionInstr("compare", (0, 1), DType.PRED, {"direction": "LT"}),),
    (2,),
)

GATHER: dict[str, AttributeValue] = {
    "offset_dims": (1,),
    "collapsed_slice_dims": (0,),
    "start_index_map": (0,),
    "operand_batching_dims": (),
    "start_indices_batching_dims": (),
    "index_vector_dim": 1,
    "slice_sizes": (1, 3),
}
SCATTER: dict[str, AttributeValue] = {
    "update_window_dims": (1,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "input_batching_dims": (),
    "scatter_indices_batching_dims": (),
    "index_vector_dim": 1,
    "region": 0,
}
BATCHED = {
    **GATHER,
    "offset_dims": (),
    "collapsed_slice_dims": (1,),
    "start_index_map": (1,),
    "operand_batching_dims": (0,),
    "start_indices_batching_dims": (0,),
    "slice_sizes": (1, 1),
}
PAD = {"low": (1,), "high": (-1,), "interior": (2,)}
SORT: dict[str, AttributeValue] = {"dimension": 0, "region": 1}

ACCEPTED: list[tuple[str, str, dict[str, AttributeValue]]] = [
    ("dynamic-slice", "f32[1,2] = f32[2,3] s32[] s32[]", {}),
    ("dynamic-slice", "f32[1,2] = f32[2,3] u8[2]", {}),
    ("dynamic-slice", "f32[] = f32[]", {}),
    ("dynamic-update-slice", "f32[2,3] = f32[2,3] f32[1,0] s32[2]", {}),
    ("gather", "f32[4,3] = f32[2,3] s32[4]", GATHER),
    ("gather", "f32[2] = f32[2,3] s32[2]", BATCHED),
    ("scatter", "f32[2,3] = f32[2,3] s32[4] f32[4,3]", SCATTER),
    ("pad", "f32[7] = f32[3] f32[]", PAD),
    ("reverse", "f32[2,3] = f32[2,3]", {"dimensions": (1, 0)}),
    ("sort", "f32[4] = f32[4]", SORT),
    ("topk", "bf16[2,2] s32[2,2] = bf16[2,3]", {"k": 2, "largest": True}),
]

REFUSED: list[tuple[str, str, dict[str, AttributeValue], str]] = [
    ("dynamic-slice", "f32[1]", {}, "no operands"),
    ("dynamic-slice", "f32[1,2] = f32[2,3] s32[]", {}, "1 start indices, must be 2 scalars"),
    ("dynamic-slice", "f32[1,2] = f32[2,3] f32[2]", {}, "start indices are f32[2]"),
    ("dynamic-slice", "f32[1,4] = f32[2,3] s32[2]", {}, "is no window of f32[2,3]"),
    ("dynamic-slice", "s32[1,2] = f32[2,3] s32[2]", {}, "operands make f32"),
    ("dynamic-update-slice", "f32[2] = f32[2]", {}, "1 operands, must be at least 2"),
    ("dynamic-update-slice", "f32[2] = f32[2] f32[3] s32[]", {}, "f32[3] is no window of f32[2]"),
    ("dynamic-update-slice", "f32[2] = f32[2] s32[1] s32[]", {}, "operands make f32"),
    ("dynamic-update-slice", "f32[3] = f32[2] f32[1] s32[]", {}, "operands make [2]"),
    ("gather", "f32[4,3] = f32[2,3] f32[4]", GATHER, "indices are f32[4]"),
    ("gather", "f32[4,3] = f32[2,3] s32[4]", {**GATHER, "index_vector_dim": 2}, "no dimension of"),
    ("gather", "f32[4,3] = f32[2,3] s32[4]", {**GATHER, "start_index_map": ()}, "have 1 numbers"),
    ("gather", "f32[4,3] = f32[2,3] s32[4]", {**GATHER, "start_index_map": (2,)}, "not distinct"),
    ("gather", "f32[4,3] = f32[2,3] s32[4]", {**GATHER, "slice_sizes": (1, 4)}, "are no window"),
    ("gather", "f32[4,3] = f32[2,3] s32[4]", {**GATHER, "slice_sizes": (2, 3)}, "are above 1"),
    ("gather", "f32[4,3] = f32[2,3] s32[4]", {**GATHER, "offset_dims": (2,)}, "not distinct"),
    ("gather", "f32[4,2] = f32[2,3] s32[4]", GATHER, "do not fill it"),
    ("gather", "f32[3] = f32[2,3] s32[3]", BATCHED, "0 and 0 differ in size"),
    ("gather", "f32[2] = f32[2,3] s32[2]", {**BATCHED, "start_indices_batching_dims": ()}, "1 ba"),
    ("scatter", "f32[2,3] = f32[2,3] s32[4]", SCATTER, "2 operands, 3 needed"),
    ("scatter", "f32[2,3] = f32[2,3] s32[4] s32[4,3]", SCATTER, "operands make f32"),
    ("scatter", "f32[2,3] = f32[2,3] s32[4] f32[5,3]", SCATTER, "does not update f32[2,3]"),
    ("scatter", "f32[2,3] = f32[2,3] s32[4] f32[4,4]", SCATTER, "does not update f32[2,3]"),
    ("scatter", "f32[2,3] = f32[2,3] s32[4] f32[4,3]", {**SCATTER, "region": 1}, "not fold"),
    ("pad", "f32[7] = f32[3] s32[]", PAD, "padding value is s32[]"),
    ("pad", "f32[7] = f32[3] f32[]", {**PAD, "low": ()}, "must have 1 entries each"),
    ("pad", "f32[8] = f32[3] f32[]", PAD, "operands make [7]"),
    ("pad", "f32[0] = f32[3] f32[]", {**PAD, "interior": (-1,)}, "padding makes"),
    ("reverse", "f32[2] = f32[2]", {"dimensions": (0, 0)}, "not distinct dimensions of 1"),
    ("sort", "f32[4] = f32[4] f32[4]", SORT, "2 operands for 1 results"),
    ("sort", "f32[4] = f32[4]", {**SORT, "dimension": 1}, "not distinct dimensions of 1"),
    ("sort", "f32[4] = f32[4]", {**SORT, "region": 0}, "does not fold (f32, f32) into (pred)"),
    ("sort", "f32[4] f32[4] = f32[4] f32[5]", SORT, "arrays differ"),
    ("topk", "f32[4] s32[4] = f32[3]", {"k": 4, "largest": True}, "has no 4 elements"),
    ("topk", "c64[1] s32[1] = c64[3]", {"k": 1, "largest": True}, "c64 has no order"),
    ("topk", "f32[1] u32[1] = f32[3]", {"k": 1, "largest": True}, "operands make s32"),
]


def made(opcode: str, types: str, attributes: dict[str, AttributeValue]) -> Signature:
    """The signature with two regions: r0 sums, r1 compares."""
    one = signature(opcode, types, attributes)
    return Signature(one.opcode, one.results, one.operands, attributes, (*one.regions, LESS))


@pytest.mark.parametrize(("opcode", "types", "attributes"), ACCEPTED)
def test_what_an_opcode_means_is_accepted(
    opcode: str, types: str, attributes: dict[str, AttributeValue]
) -> None:
    assert breaches(made(opcode, types, attributes)) == []


@pytest.mark.parametrize(("opcode", "types", "attributes", "complaint"), REFUSED)
def test_types_that_do_not_agree_are_refused(
    opcode: str, types: str, attributes: dict[str, AttributeValue], complaint: str
) -> None:
    found = breaches(made(opcode, types, attributes))
    assert any(complaint in one for one in found), found
