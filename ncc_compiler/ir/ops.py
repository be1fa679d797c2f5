"""The table of ops: one row each, with operands, attributes and the sentences of its rules.

Sentence k of a row is the rule `<op>-C<k>` of messages, tests and docs/ir.md. What a row says is
all that reader, printer and generic checks need; `infer.RULES` adds the type of the result.
"""

from collections.abc import Mapping

from ncc_compiler.ir.op_tables.collectives import HLO_COLLECTIVES, NCC_COLLECTIVES
from ncc_compiler.ir.op_tables.control import CONTROL_ROWS, TRANSFER_ROWS, asynchronous_rows
from ncc_compiler.ir.op_tables.elementwise import ELEMENTWISE_ROWS
from ncc_compiler.ir.op_tables.indexing import INDEXING_ROWS
from ncc_compiler.ir.op_tables.numeric import (
    FACTORS,
    FOLDING_REGION,
    NUMERIC_ROWS,
    ONE_SHAPE,
    PRODUCTS,
    SCALAR_STARTS,
    START_FOR_EACH,
    WINDOW_ROWS,
)
from ncc_compiler.ir.op_tables.op_row import AttributeDef, Kind, OpDef, dimension_lists, required

_DIMENSIONS = required(dimensions=Kind.INTEGERS)
_REGION = required(to_apply=Kind.CALLEE)


_MOVES = (
    OpDef(
        "broadcast",
        1,
        1,
        dimension_lists("dimensions"),
        (
            "dimensions has one entry for each dimension of the operand",
            "dimensions are distinct dimensions of the result",
            "each dimension has the size of the operand's",
        ),
    ),
    OpDef("reshape", 1, 1, (), ("the result has as many elements as the operand",)),
    OpDef("transpose", 1, 1, _DIMENSIONS, ("dimensions is a permutation of the operand's",)),
    OpDef(
        "slice",
        1,
        1,
        required(slice=Kind.SLICES),
        (
            "slice has one entry for each dimension of the operand",
            "0 <= start <= limit <= the dimension's size, and stride >= 1",
        ),
    ),
    OpDef(
        "concatenate",
        1,
        None,
        _DIMENSIONS,
        (
            "dimensions names one dimension of the operands",
            "the operands have one element type and rank",
            "the operands agree in every other dimension",
        ),
    ),
)

_PAIRED = dimension_lists(
    "lhs_batch_dims", "lhs_contracting_dims", "rhs_batch_dims", "rhs_contracting_dims"
)
_PRODUCT = (
    "dimension numbers are distinct dimensions of their operand",
    "both sides list equally many batch dimensions and contracting dimensions",
    "paired dimensions have the same size",
    FACTORS,
    PRODUCTS,
)

_CONTRACTIONS = (
    OpDef(
        "dot",
        2,
        4,  # sparse operands bring metadata; a rule refuses them
        _PAIRED,
        (*_PRODUCT, "no operand is sparse"),
    ),
    OpDef(
        "ragged-dot",
        3,
        3,
        (*_PAIRED, *dimension_lists("lhs_ragged_dims", "rhs_group_dims")),
        (
            *_PRODUCT,
            "one dimension of the left operand is ragged",
            "the right operand has a dimension of groups if the ragged one is neither batch nor "
            "contracting, and else none",
            "group sizes are integers: one list, or one for each index before the ragged dimension",
        ),
    ),
    OpDef(
        "reduce",
        2,
        None,
        (*_DIMENSIONS, *_REGION),
        (
            START_FOR_EACH,
            ONE_SHAPE,
            "dimensions are distinct dimensions of the arrays",
            SCALAR_STARTS,
            FOLDING_REGION,
        ),
    ),
)

_STRUCTURE = (
    OpDef("parameter", 0, 0, payload=AttributeDef("parameter_number", Kind.INTEGER)),
    OpDef(
        "constant",
        0,
        0,
        rules=("the value has the shape and element type of the declared type",),
        payload=AttributeDef("literal", Kind.LITERAL),
    ),
    OpDef("tuple", 0, None, takes_tuples=True),
    OpDef(
        "get-tuple-element",
        1,
        1,
        required(index=Kind.INTEGER),
        ("the operand is a tuple", "index counts an element of the tuple"),
        takes_tuples=True,
    ),
)

_RANKS = (
    OpDef("partition-id", 0, 0),
    OpDef("replica-id", 0, 0),
)

OPS: Mapping[str, OpDef] = {
    row.name: row
    for row in (
        *_STRUCTURE,
        *CONTROL_ROWS,
        *ELEMENTWISE_ROWS,
        *_RANKS,
        *_MOVES,
        *INDEXING_ROWS,
        *_CONTRACTIONS,
        *WINDOW_ROWS,
        *NUMERIC_ROWS,
        *HLO_COLLECTIVES,
        *NCC_COLLECTIVES,
        *TRANSFER_ROWS,
        *asynchronous_rows(HLO_COLLECTIVES),
    )
}
"""Every op by its HLO name."""

_DYNAMIC = (
    "its result has a size that data decide; keep the largest size, and a mask or a count beside it"
)
_HOST = "it talks to the host while the program runs; make it {} of the program"

REFUSED: Mapping[str, str] = {
    "dynamic-reshape": _DYNAMIC,
    "infeed": _HOST.format("a parameter"),
    "outfeed": _HOST.format("a result"),
    "rng-get-and-update-state": "its state is kept by a device, outside of the program; "
    "rng-bit-generator takes and returns it",
    "scaled-dot": "multiply the operands by their scales, broadcast to the operands, and use dot",
    "set-dimension-size": _DYNAMIC,
}
"""Ops that are known and will not be: what to do instead."""
