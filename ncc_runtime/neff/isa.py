"""The compute instruction set: engines, opcodes and what each opcode reads and writes.

An instruction is one tensor-level operation on one engine. Opcodes carry XLA's op names, because
they mean what XLA's specification says; the engine says where the hardware would run them.
Cross-device opcodes are not here: a collective is a placeholder (PTC2) until it is placed.
"""

import enum
from collections.abc import Iterable

import attrs

from ncc_runtime.neff.shared.lapack import OPTIONS


class Engine(enum.Enum):
    """The five instruction queues of a NeuronCore.

    Source: NKI architecture guides (Tensor/PE, Vector/DVE, Scalar/ACT, GpSimd/Pool, Sync/SP).
    """

    TENSOR = "Tensor"
    VECTOR = "Vector"
    SCALAR = "Scalar"
    GPSIMD = "GpSimd"
    SYNC = "Sync"

    __hash__ = object.__hash__  # as in `dtypes.py`


ENGINES: tuple[Engine, ...] = tuple(Engine)


class Shape(enum.Enum):
    """The family of an opcode: how many operands it takes and how it walks them."""

    NULLARY = "nullary"  # writes from attributes alone
    UNARY = "unary"  # elementwise, one operand
    BINARY = "binary"  # elementwise, two operands of one shape
    TERNARY = "ternary"  # elementwise, three operands of one shape
    MAP = "map"  # elementwise, any number of operands, by a region
    MOVE = "move"  # every result element is a copy of an operand element
    CONTRACT = "contract"  # sums over an index
    FOLD = "fold"  # folds dimensions with a region
    METHOD = "method"  # a whole numerical method on an array
    FUSED = "fused"  # several operations at once, through SBUF
    SIZED = "sized"  # only how much work it is is known, not what it computes
    CONTROL = "control"  # touches no tensor


@attrs.frozen
class OpcodeDef:
    """One row of the instruction set."""

    name: str
    shape: Shape
    operands: int  # -1: any number
    attributes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # attributes that may be left out
    results: int = 1  # -1: the type rule says how many


def _rows(shape: Shape, operands: int, names: str) -> Iterable[OpcodeDef]:
    return (OpcodeDef(name, shape, operands) for name in names.split())


_UNARY = (
    "abs acos acosh asin asinh atan atanh bitcast-convert cbrt ceil convert copy cosh cosine "
    "count-leading-zeros erf exponential exponential-minus-one floor imag is-finite log "
    "log-plus-one logistic negate not popcnt real round-nearest-afz round-nearest-even rsqrt sign "
    "sine sinh sqrt tan tanh"
)
_BINARY = (
    "add and atan2 complex divide maximum minimum mulhi multiply or power remainder shift-left "
    "shift-right-arithmetic shift-right-logical stochastic-convert subtract xor"
)

_GATHER = (
    *("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims"),
    *("start_indices_batching_dims", "index_vector_dim", "slice_sizes"),
)
_SCATTER = (
    *("update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims"),
    *("input_batching_dims", "scatter_indices_batching_dims", "index_vector_dim"),
)

PTC2 = "ptc2"
WAIT = "wait"
FUSION = "fusion"
WORK = "work"
LOOP, TEST, CASE, END = "loop", "test", "case", "end"

OPCODES: dict[str, OpcodeDef] = {
    row.name: row
    for row in (
        *_rows(Shape.UNARY, 1, _UNARY),
        *_rows(Shape.BINARY, 2, _BINARY),
        OpcodeDef("compare", Shape.BINARY, 2, ("direction",), ("type",)),
        OpcodeDef("reduce-precision", Shape.UNARY, 1, ("exponent_bits", "mantissa_bits")),
        OpcodeDef("clamp", Shape.TERNARY, 3),
        OpcodeDef("select", Shape.TERNARY, 3),
        OpcodeDef("map", Shape.MAP, -1, ("region",)),
        OpcodeDef("iota", Shape.NULLARY, 0, ("iota_dimension",)),
        OpcodeDef("partition-id", Shape.NULLARY, 0),
        OpcodeDef("replica-id", Shape.NULLARY, 0),
        OpcodeDef("broadcast", Shape.MOVE, 1, ("dimensions",)),
        OpcodeDef("reshape", Shape.MOVE, 1),
        OpcodeDef("transpose", Shape.MOVE, 1, ("dimensions",)),
        OpcodeDef("slice", Shape.MOVE, 1, ("start", "limit", "stride")),
        OpcodeDef("concatenate", Shape.MOVE, -1, ("dimension",)),
        OpcodeDef("dynamic-slice", Shape.MOVE, -1),
        OpcodeDef("dynamic-update-slice", Shape.MOVE, -1),
        OpcodeDef("gather", Shape.MOVE, 2, _GATHER),
        OpcodeDef("pad", Shape.MOVE, 2, ("low", "high", "interior")),
        OpcodeDef("reverse", Shape.MOVE, 1, ("dimensions",)),
        OpcodeDef("sort", Shape.MOVE, -1, ("dimension", "region"), results=-1),
        OpcodeDef("topk", Shape.MOVE, 1, ("k", "largest"), results=2),
        OpcodeDef("scatter", Shape.FOLD, -1, (*_SCATTER, "region"), results=-1),
        OpcodeDef(
            "dot",
            Shape.CONTRACT,
            2,
            ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting"),
        ),
        OpcodeDef(
            "ragged-dot",
            Shape.CONTRACT,
            3,
            (
                *("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting"),
                *("lhs_ragged", "rhs_group"),
            ),
        ),
        OpcodeDef("reduce", Shape.FOLD, -1, ("dimensions", "region"), results=-1),
        OpcodeDef(
            "convolution",
            Shape.CONTRACT,
            2,
            ("batch_groups", "dim_labels", "feature_groups", "window"),
        ),
        OpcodeDef("reduce-window", Shape.FOLD, -1, ("region", "window"), results=-1),
        OpcodeDef(
            "select-and-scatter", Shape.FOLD, 3, ("scatter_region", "select_region", "window")
        ),
        OpcodeDef("fft", Shape.METHOD, 1, ("fft_length", "fft_type")),
        OpcodeDef("cholesky", Shape.METHOD, 1, ("lower",)),
        OpcodeDef(
            "triangular-solve",
            Shape.METHOD,
            2,
            ("left_side", "lower", "transpose_a", "unit_diagonal"),
        ),
        OpcodeDef("lapack", Shape.METHOD, -1, ("routine",), tuple(sorted(OPTIONS)), results=-1),
        OpcodeDef("rng-bit-generator", Shape.METHOD, 1, ("algorithm",), results=2),
        OpcodeDef(FUSION, Shape.FUSED, -1, ("fusion",), results=-1),
        OpcodeDef(
            WORK,
            Shape.SIZED,
            -1,
            ("bytes_read", "bytes_written", "elements", "flops"),
            ("dtype", "duration_ps"),
        ),
        OpcodeDef(PTC2, Shape.CONTROL, -1),
        OpcodeDef(WAIT, Shape.CONTROL, 0),
        OpcodeDef(LOOP, Shape.CONTROL, 0, ("block",)),
        OpcodeDef(TEST, Shape.CONTROL, 0, ("block",)),
        OpcodeDef(CASE, Shape.CONTROL, 0, ("block",)),
        OpcodeDef(END, Shape.CONTROL, 0, ("block",)),
    )
}
"""Every opcode by name, in the order of the instruction-set document.

`reduce` takes n arrays, then n initial values, and writes n results. `fusion` names a row of
Program.fusions and does what that says. `work` says how much its engine computes and moves, and
nothing of values. `ptc2`
(PseudoTriggerCollective2) names a placeholder. `wait` (EVENT_SEMAPHORE) only holds its queue
until a semaphore has a value.

Control flow is structured, and every queue follows it alike: each of the five queues holds the same
`loop`, `test`, `case` and `end` rows, properly nested, for every row of Program.blocks.
A loop is `loop` … `test` … `end`: `test` goes on if the block's predicate holds on this rank and
else to behind `end`; `end` goes back to `loop`. A branch is `case` … `end`: its rows run if the
block's predicate selects it. Waited values count as if every block ran exactly once; a queue that
jumps corrects them by what was passed over or is repeated (docs/isa.md).
"""
