"""The table of supported ops.

Where to look for op X, say `gather` (its subject is `indexing`):

| what | where |
|---|---|
| operands, attributes, sentences of its rules | `OPS`, from `ir/op_tables/<subject>.py` |
| result type, and the checks of its rules | `infer.RULES`, from `ir/type_rules/<subject>.py` |
| meaning, the oracle of the tests | `MEANINGS` in `reference/interpret.py` |
| meaning, as the simulator computes it | `ncc_runtime/execution/values/kernels/` |
| opcode and engine | `SELECTORS` in `codegen/select.py` |
| flops and bytes | `codegen/costs.py` |

The two folders have a file for each subject, with the same ops in both; the few ops that
belong to none (parameters, constants, tuples, ids) have their rows here and their types in
`infer.py`. Sentence k of a row is the rule `<op>-C<k>` of messages, tests and docs/ir.md.
"""

from collections.abc import Mapping

from ncc_compiler.ir.op_tables.collectives import HLO_COLLECTIVES, NCC_COLLECTIVES
from ncc_compiler.ir.op_tables.contractions import CONTRACTION_ROWS, WINDOW_ROWS
from ncc_compiler.ir.op_tables.control import CONTROL_ROWS, TRANSFER_ROWS, asynchronous_rows
from ncc_compiler.ir.op_tables.elementwise import ELEMENTWISE_ROWS
from ncc_compiler.ir.op_tables.indexing import INDEXING_ROWS, MOVE_ROWS
from ncc_compiler.ir.op_tables.numeric import NUMERIC_ROWS
from ncc_compiler.ir.op_tables.op_row import AttributeDef, AttrKind, OpDef, required

_STRUCTURE = (
    OpDef("parameter", 0, 0, payload=AttributeDef("parameter_number", AttrKind.INTEGER)),
    OpDef(
        "constant",
        0,
        0,
        rules=("the value has the shape and element type of the declared type",),
        payload=AttributeDef("literal", AttrKind.LITERAL),
    ),
    OpDef("tuple", 0, None, takes_tuples=True),
    OpDef(
        "get-tuple-element",
        1,
        1,
        required(index=AttrKind.INTEGER),
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
        *MOVE_ROWS,
        *INDEXING_ROWS,
        *CONTRACTION_ROWS,
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

REFUSED_OPS: Mapping[str, str] = {
    "dynamic-reshape": _DYNAMIC,
    "infeed": _HOST.format("a parameter"),
    "outfeed": _HOST.format("a result"),
    "rng-get-and-update-state": "its state is kept by a device, outside of the program; "
    "rng-bit-generator takes and returns it",
    "scaled-dot": "multiply the operands by their scales, broadcast to the operands, and use dot",
    "set-dimension-size": _DYNAMIC,
}
"""Ops of HLO that are refused on purpose, and what to do instead."""

BARRIERS = frozenset({"opt-barrier", "optimization-barrier"})
"""Ops that give what they are given, where nothing may be moved or merged across; two names."""
