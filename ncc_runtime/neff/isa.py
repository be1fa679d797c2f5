"""The compute instruction set: engines, opcodes and what each opcode reads and writes.

An instruction is one tensor-level operation on one engine. Opcodes carry XLA's op names, because
they mean what XLA's specification says; the engine says where the hardware would run them.
Cross-device opcodes are not here: a collective is a placeholder (PTC2) until it is placed.
"""

import enum
from collections.abc import Iterable

import attrs


class Engine(enum.Enum):
    """The five instruction queues of a NeuronCore.

    Source: NKI architecture guides (Tensor/PE, Vector/DVE, Scalar/ACT, GpSimd/Pool, Sync/SP).
    """

    TENSOR = "Tensor"
    VECTOR = "Vector"
    SCALAR = "Scalar"
    GPSIMD = "GpSimd"
    SYNC = "Sync"


ENGINES: tuple[Engine, ...] = tuple(Engine)


class Shape(enum.Enum):
    """The family of an opcode: how many operands it takes and how it walks them."""

    NULLARY = "nullary"  # writes from attributes alone
    UNARY = "unary"  # elementwise, one operand
    BINARY = "binary"  # elementwise, two operands of one shape
    TERNARY = "ternary"  # elementwise, three operands of one shape
    MOVE = "move"  # every result element is a copy of an operand element
    CONTRACT = "contract"  # sums over an index
    FOLD = "fold"  # folds dimensions with a region
    CONTROL = "control"  # touches no tensor


@attrs.frozen
class OpcodeDef:
    """One row of the instruction set."""

    name: str
    shape: Shape
    operands: int  # -1: any number
    attributes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # attributes that may be left out


def _rows(shape: Shape, operands: int, names: str) -> Iterable[OpcodeDef]:
    return (OpcodeDef(name, shape, operands) for name in names.split())


_UNARY = "abs convert copy exponential log negate not rsqrt sign sqrt tanh logistic floor ceil"
_BINARY = "add and divide maximum minimum multiply or power remainder subtract xor"

PTC2 = "ptc2"
WAIT = "wait"
LOOP, TEST, CASE, END = "loop", "test", "case", "end"

OPCODES: dict[str, OpcodeDef] = {
    row.name: row
    for row in (
        *_rows(Shape.UNARY, 1, _UNARY),
        *_rows(Shape.BINARY, 2, _BINARY),
        OpcodeDef("compare", Shape.BINARY, 2, ("direction",), ("type",)),
        OpcodeDef("select", Shape.TERNARY, 3),
        OpcodeDef("iota", Shape.NULLARY, 0, ("iota_dimension",)),
        OpcodeDef("partition-id", Shape.NULLARY, 0),
        OpcodeDef("replica-id", Shape.NULLARY, 0),
        OpcodeDef("broadcast", Shape.MOVE, 1, ("dimensions",)),
        OpcodeDef("reshape", Shape.MOVE, 1),
        OpcodeDef("transpose", Shape.MOVE, 1, ("dimensions",)),
        OpcodeDef("slice", Shape.MOVE, 1, ("start", "limit", "stride")),
        OpcodeDef("concatenate", Shape.MOVE, -1, ("dimension",)),
        OpcodeDef(
            "dot",
            Shape.CONTRACT,
            2,
            ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting"),
        ),
        OpcodeDef("reduce", Shape.FOLD, -1, ("dimensions", "region")),
        OpcodeDef(PTC2, Shape.CONTROL, -1),
        OpcodeDef(WAIT, Shape.CONTROL, 0),
        OpcodeDef(LOOP, Shape.CONTROL, 0, ("block",)),
        OpcodeDef(TEST, Shape.CONTROL, 0, ("block",)),
        OpcodeDef(CASE, Shape.CONTROL, 0, ("block",)),
        OpcodeDef(END, Shape.CONTROL, 0, ("block",)),
    )
}
"""Every opcode by name, in the order of the instruction-set document.

`reduce` takes n arrays, then n initial values, and writes n results. `ptc2`
(PseudoTriggerCollective2) names a placeholder. `wait` (EVENT_SEMAPHORE) only holds its queue
until a semaphore has a value.

Control flow is structured, and every queue follows it alike: each of the five queues holds the same
`loop`, `test`, `case` and `end` rows, properly nested, for every row of Program.blocks.
A loop is `loop` … `test` … `end`: `test` goes on if the block's predicate holds on this rank and
else to behind `end`; `end` goes back to `loop`. A branch is `case` … `end`: its rows run if the
block's predicate selects it. Waited values count as if every block ran exactly once; a queue that
jumps corrects them by what was passed over or is repeated (docs/isa.md).
"""
