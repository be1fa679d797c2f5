"""Rows of ops that run computations, of tokens, of send and recv, of start/done pairs.

Their result types: `type_rules/control.py`.
"""

from collections.abc import Iterable

import attrs

from ncc_compiler.ir.op_tables.op_row import AttributeDef, AttrKind, OpDef, optional, required

_CALL_RULES = (
    "the computation has as many parameters",
    "operands have the types of its parameters",
)
_CALLS = required(calls=AttrKind.CALLEE)


def _row(name: str, min_operands: int, max_operands: int | None, *rules: str) -> OpDef:
    return OpDef(name, min_operands, max_operands, (), rules, takes_tuples=True)


CONTROL_ROWS = (
    OpDef("call", 0, None, required(to_apply=AttrKind.CALLEE), _CALL_RULES, takes_tuples=True),
    OpDef(
        "fusion", 0, None, (*_CALLS, *optional(kind=AttrKind.WORD)), _CALL_RULES, takes_tuples=True
    ),
    OpDef(
        "while",
        1,
        1,
        required(condition=AttrKind.CALLEE, body=AttrKind.CALLEE),
        (
            "condition takes the operand's type and returns pred[]",
            "body takes the operand's type and returns it",
        ),
        takes_tuples=True,
    ),
    OpDef(
        "conditional",
        2,
        None,
        optional(
            true_computation=AttrKind.CALLEE,
            false_computation=AttrKind.CALLEE,
            branch_computations=AttrKind.CALLEES,
        ),
        (
            "the first operand is pred[] or s32[]",
            "pred[] chooses between true_computation and false_computation, s32[] between "
            "branch_computations",
            "there is one more operand for each branch",
            "each branch takes its operand and nothing else",
            "all branches return one type",
        ),
        takes_tuples=True,
    ),
    OpDef(
        "scan",
        1,
        None,
        (
            *required(
                dimensions=AttrKind.INTEGERS,
                num_carries=AttrKind.INTEGER,
                to_apply=AttrKind.CALLEE,
            ),
            AttributeDef("is_reverse", AttrKind.BOOLEAN, False, False),
            AttributeDef("is_associative", AttrKind.BOOLEAN, False, False),
        ),
        (
            "dimensions names one dimension, in which all inputs are equally long",
            "num_carries counts the last operands and the last results of to_apply",
            "to_apply takes a slice of each input and the carries, and returns the carries last",
            "the length is that of an input, or of an output in the declared type",
        ),
    ),
    _row("after-all", 0, None, "the operands are tokens"),
    _row("add-dependency", 2, 2, "the second operand is a token"),
    OpDef("domain", 1, 1, required(domain=AttrKind.DOMAIN), takes_tuples=True),
    _row("opt-barrier", 1, 1),
    _row("optimization-barrier", 1, 1),
)

_TRANSFER_ATTRIBUTES = optional(channel_id=AttrKind.INTEGER, is_host_transfer=AttrKind.BOOLEAN)
_DONE_ATTRIBUTES = optional(channel_id=AttrKind.INTEGER)
_IS_TRANSFER = "the operand is a tuple of data, a context and a token"
DATA_OF_ARRAYS = "the data is an array, or a tuple of one or more arrays"
_TRANSFER_RULES = (
    "is_host_transfer is not true",
    "frontend_attributes={_xla_send_recv_source_target_pairs={{0,1}}} says who sends to whom",
    "no rank is the source of two pairs",
    "no rank is the target of two pairs",
    "every id in the pairs exists",
    DATA_OF_ARRAYS,
)
PARTNERED = "a {} with the same pairs and type of data is the other side"
OF_A_SEND = "what it ends is a send, of the channel that it says"
OF_A_RECV = "what it ends is a recv, of the channel that it says"
SENT_BEFORE = "what it waits for is sent before it"
INDEPENDENT = "what is sent does not depend on what is received by it"

TRANSFER_ROWS = (
    OpDef(
        "send",
        2,
        2,
        _TRANSFER_ATTRIBUTES,
        (*_TRANSFER_RULES, "the second operand is a token", PARTNERED.format("recv")),
        takes_tuples=True,
    ),
    OpDef(
        "recv",
        1,
        1,
        _TRANSFER_ATTRIBUTES,
        (
            *_TRANSFER_RULES,
            "the operand is a token",
            PARTNERED.format("send"),
            "the result is a tuple of data, a context and a token",
            INDEPENDENT,
        ),
        takes_tuples=True,
    ),
    OpDef("send-done", 1, 1, _DONE_ATTRIBUTES, (_IS_TRANSFER, OF_A_SEND), takes_tuples=True),
    OpDef(
        "recv-done",
        1,
        1,
        _DONE_ATTRIBUTES,
        (_IS_TRANSFER, OF_A_RECV, SENT_BEFORE),
        takes_tuples=True,
    ),
)

_IS_STARTED = "the operand is a tuple of operand, result and contexts"


def asynchronous_rows(collectives: Iterable[OpDef]) -> tuple[OpDef, ...]:
    """Rows of `-start` and `-done` of collectives and copies, and of `async-start` to `-done`."""
    rows: list[OpDef] = []
    for row in collectives:
        rows.append(attrs.evolve(row, name=f"{row.name}-start"))
        rules = () if row.name == "all-reduce" else (_IS_STARTED,)
        rows.append(_row(f"{row.name}-done", 1, 1, *rules))
    calls = optional(calls=AttrKind.CALLEE)
    return (
        *rows,
        OpDef("copy-start", 1, 1),
        _row("copy-done", 1, 1, "the operand is a tuple of copy, original and contexts"),
        OpDef("async-start", 0, None, _CALLS, _CALL_RULES, takes_tuples=True),
        OpDef("async-update", 1, 1, calls, (_IS_STARTED,), takes_tuples=True),
        OpDef("async-done", 1, 1, calls, (_IS_STARTED,), takes_tuples=True),
    )
