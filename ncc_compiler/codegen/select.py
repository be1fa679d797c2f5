"""Which engine runs an op, and with which attributes: one row per op.

Elementwise arithmetic, comparisons, broadcasts and simple folds are the Vector engine's;
transcendental functions the Scalar engine's; matrix products the Tensor engine's; what moves data
without computing is a DMA of the Sync queue; the rest goes to GpSimd, which can run any code.
"""

from collections.abc import Callable, Mapping

import attrs

from ncc_compiler.ir.custom_calls import call_of
from ncc_compiler.ir.graph import Node, Padding
from ncc_compiler.ir.op_tables.collectives import HLO_COLLECTIVES
from ncc_compiler.ir.op_tables.numeric import AMOUNTS, WORK
from ncc_compiler.ir.ops import BARRIERS
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import AttributeValue

Attributes = dict[str, AttributeValue]


@attrs.frozen
class Selection:
    """An opcode, the queue it is put into, and how its attributes are read off the node."""

    opcode: str
    engine: Engine
    attributes: Callable[[Node], Attributes]


def _none(_: Node) -> Attributes:
    return {}


# Attributes that the instruction has as the node does, by kind


def _texts(*names: str) -> Callable[[Node], Attributes]:
    return lambda node: {name: str(node.attributes[name]) for name in names}


def _numbers(*names: str) -> Callable[[Node], Attributes]:
    return lambda node: {name: node.integer(name) for name in names}


def _flags(*names: str) -> Callable[[Node], Attributes]:
    return lambda node: {name: bool(node.attributes[name]) for name in names}


def _dimensions(node: Node) -> Attributes:
    return {"dimensions": node.integers("dimensions")}


# Attributes that it has in another form, by op


def _dimension(node: Node) -> Attributes:
    (dimension,) = node.integers("dimensions")
    return {"dimension": dimension}


def _compare(node: Node) -> Attributes:
    present = [name for name in ("direction", "type") if node.attributes.get(name) is not None]
    return _texts(*present)(node)


def _slice(node: Node) -> Attributes:
    names = ("start", "limit", "stride")
    return {name: tuple(entry[k] for entry in node.ranges()) for k, name in enumerate(names)}


def _dot(node: Node) -> Attributes:
    names = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")
    return {name: node.integers(f"{name}_dims") for name in names}


def _ragged_dot(node: Node) -> Attributes:
    (ragged,) = node.integers("lhs_ragged_dims")
    return {**_dot(node), "lhs_ragged": ragged, "rhs_group": node.integers("rhs_group_dims")}


def _convolution(node: Node) -> Attributes:
    return {
        "feature_groups": node.integer("feature_group_count"),
        "batch_groups": node.integer("batch_group_count"),
        **_texts("window", "dim_labels")(node),
    }


def _fft(node: Node) -> Attributes:
    return {**_texts("fft_type")(node), "fft_length": node.integers("fft_length")}


def _triangular_solve(node: Node) -> Attributes:
    flags = _flags("left_side", "lower", "unit_diagonal")(node)
    return {**flags, **_texts("transpose_a")(node)}


_GATHER_LISTS = (
    *("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims"),
    *("start_indices_batching_dims", "slice_sizes"),
)
_SCATTER_LISTS = (
    *("update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims"),
    *("input_batching_dims", "scatter_indices_batching_dims"),
)


def _indexed(names: tuple[str, ...]) -> Callable[[Node], Attributes]:
    """Lists of dimensions or sizes, and where index vectors are."""

    def attributes(node: Node) -> Attributes:
        lists = {name: node.integers(name) for name in names}
        return {**lists, "index_vector_dim": node.integer("index_vector_dim")}

    return attributes


def _pad(node: Node) -> Attributes:
    padding = node.attributes["padding"]
    assert isinstance(padding, Padding), node.name
    names = ("low", "high", "interior")
    return {name: tuple(entry[k] for entry in padding.dimensions) for k, name in enumerate(names)}


def _topk(node: Node) -> Attributes:
    return {**_numbers("k")(node), **_flags("largest")(node)}


def _lapack(node: Node) -> Attributes:
    """A custom call of linear algebra; others are spelled out by now."""
    call = call_of(node)
    return {"routine": call.routine, **call.options}


def _work(node: Node) -> Attributes:
    given = _numbers("duration_ps")(node) if "duration_ps" in node.attributes else {}
    return {**_numbers(*AMOUNTS)(node), **_texts("dtype")(node), **given}


def _rows(engine: Engine, names: str) -> Mapping[str, Selection]:
    return {name: Selection(name, engine, _none) for name in names.split()}


SELECTORS: Mapping[str, Selection] = {
    **_rows(Engine.VECTOR, "add and divide maximum minimum multiply or remainder subtract xor"),
    **_rows(Engine.VECTOR, "shift-left shift-right-arithmetic shift-right-logical"),
    **_rows(Engine.VECTOR, "abs ceil clamp convert floor negate not sign select"),
    **_rows(
        Engine.VECTOR, "bitcast-convert complex count-leading-zeros imag is-finite mulhi popcnt"
    ),
    **_rows(Engine.VECTOR, "real round-nearest-afz round-nearest-even stochastic-convert"),
    **_rows(Engine.SCALAR, "acos acosh asin asinh atan atan2 atanh cbrt cosh cosine erf"),
    **_rows(Engine.SCALAR, "exponential exponential-minus-one log log-plus-one logistic power"),
    **_rows(Engine.SCALAR, "rsqrt sine sinh sqrt tan tanh"),
    **_rows(Engine.GPSIMD, "partition-id replica-id"),
    **_rows(Engine.SYNC, "copy"),
    "broadcast": Selection("broadcast", Engine.VECTOR, _dimensions),
    "cholesky": Selection("cholesky", Engine.GPSIMD, _flags("lower")),
    "compare": Selection("compare", Engine.VECTOR, _compare),
    "concatenate": Selection("concatenate", Engine.SYNC, _dimension),
    "convolution": Selection("convolution", Engine.TENSOR, _convolution),
    "custom-call": Selection("lapack", Engine.GPSIMD, _lapack),
    "dot": Selection("dot", Engine.TENSOR, _dot),
    "ragged-dot": Selection("ragged-dot", Engine.TENSOR, _ragged_dot),
    **_rows(Engine.SYNC, "dynamic-slice dynamic-update-slice"),
    "gather": Selection("gather", Engine.GPSIMD, _indexed(_GATHER_LISTS)),
    "pad": Selection("pad", Engine.SYNC, _pad),
    "reverse": Selection("reverse", Engine.SYNC, _dimensions),
    "scatter": Selection("scatter", Engine.GPSIMD, _indexed(_SCATTER_LISTS)),
    "sort": Selection("sort", Engine.GPSIMD, _dimension),
    "topk": Selection("topk", Engine.GPSIMD, _topk),
    "fft": Selection("fft", Engine.GPSIMD, _fft),
    "iota": Selection("iota", Engine.GPSIMD, _numbers("iota_dimension")),
    "map": Selection("map", Engine.VECTOR, _none),  # any region: see ANY_REGION
    "reduce-precision": Selection(
        "reduce-precision", Engine.VECTOR, _numbers("exponent_bits", "mantissa_bits")
    ),
    "reduce": Selection("reduce", Engine.VECTOR, _dimensions),  # any region: see ANY_REGION
    "reduce-window": Selection("reduce-window", Engine.VECTOR, _texts("window")),
    "rng-bit-generator": Selection("rng-bit-generator", Engine.GPSIMD, _texts("algorithm")),
    "select-and-scatter": Selection("select-and-scatter", Engine.GPSIMD, _texts("window")),
    "slice": Selection("slice", Engine.SYNC, _slice),
    "transpose": Selection("transpose", Engine.SYNC, _dimensions),
    "triangular-solve": Selection("triangular-solve", Engine.GPSIMD, _triangular_solve),
    WORK: Selection("work", Engine.TENSOR, _work),  # or as it says: see engine_of
}
"""Ops that become one instruction."""


def engine_of(node: Node) -> Engine:
    """The engine of an op that becomes one instruction and has no region."""
    return Engine(node.attributes["engine"]) if node.op == WORK else SELECTORS[node.op].engine


REGIONS: Mapping[str, Mapping[str, str]] = {
    "map": {"to_apply": "region"},
    "reduce": {"to_apply": "region"},
    "reduce-window": {"to_apply": "region"},
    "scatter": {"to_apply": "region"},
    "sort": {"to_apply": "region"},
    "select-and-scatter": {"select": "select_region", "scatter": "scatter_region"},
}
"""Attributes of a node that name computations, and those of its instruction that number them."""

COLLECTIVES: Mapping[str, CollectiveOp] = {
    **{op.value: op for op in CollectiveOp},
    "ncc.avg_all_reduce": CollectiveOp.ALL_REDUCE,
    "ncc.avg_reduce_scatter": CollectiveOp.REDUCE_SCATTER,
}
"""Ops that become one placeholder."""

_ONLY_NAMES = BARRIERS | {
    *("after-all", "bitcast", "constant", "get-tuple-element", "parameter", "reshape", "tuple")
}
_BLOCKS = frozenset({"while", "conditional"})
_FUSED = frozenset({"fusion"})
_TRANSFERS = ("send", "send-done", "recv", "recv-done")
_IN_HALVES = (*(row.name for row in HLO_COLLECTIVES), "copy", "async")
_HALVES = {f"{op}-{half}" for op in _IN_HALVES for half in ("start", "done")}
_SPELLED_OUT = (
    *("add-dependency", "domain", "get-dimension-size", "rng"),
    *("batch-norm-grad", "batch-norm-inference", "batch-norm-training"),
)
_EXPANDED_BY_PASSES = frozenset(
    {"call", "scan", "async-update", *_HALVES, *_TRANSFERS, *_SPELLED_OUT}
)

HANDLED_OPS = frozenset().union(
    SELECTORS, COLLECTIVES, _ONLY_NAMES, _BLOCKS, _FUSED, _EXPANDED_BY_PASSES
)
"""Every op of the graph: an instruction, a placeholder, a name for data, or gone by now."""

ANY_REGION = Engine.GPSIMD
"""The engine of a fold whose region is more than one arithmetic operation."""
