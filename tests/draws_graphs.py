"""Hypothesis strategies that give whole modules with collectives, and inputs that fit them.

`cases()` draws a module of one to sixteen ranks that verifies, inputs, and for each output how far
two right answers may lie apart.
"""

import attrs
import numpy as np
from hypothesis import strategies as st

from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.shared.dtypes import DType
from tests import draws_collective_ops as collectives
from tests import draws_elementwise_ops as elementwise
from tests import draws_folding_ops as folding
from tests import draws_indexing_ops as indexing
from tests import draws_local_ops as local
from tests import draws_rooted_ops as rooted
from tests import draws_windows as windows
from tests.drawing import Drawing, Value

LOCAL_OPS = (
    local.new_parameter,
    local.constant,
    local.float_unary,
    local.float_unary_above_one,
    local.float_binary,
    local.float_quotient,
    local.integer_op,
    local.logical_op,
    local.compare,
    local.select,
    local.convert,
    local.rank_number,
    local.iota,
    local.broadcast,
    local.reshape,
    local.transpose,
    local.cut,
    local.concatenate,
    folding.dot,
    folding.reduce,
    folding.largest_and_where,
    folding.call,
    *elementwise.ELEMENTWISE_OPS,
    *indexing.INDEXING_OPS,
    *windows.WINDOW_OPS,
)
COLLECTIVE_OPS = (
    collectives.all_reduce,
    collectives.all_gather,
    collectives.reduce_scatter,
    collectives.all_to_all,
    collectives.all_to_all_of_a_tuple,
    collectives.collective_permute,
    *rooted.ROOTED_OPS,
)


@attrs.frozen(eq=False)
class Case:
    """A module, its inputs [ranks, *shape] by parameter, and each output's tolerance."""

    module: Module
    inputs: tuple[np.ndarray, ...]
    tolerances: tuple[float, ...]  # absolute; 0 where the answer is exact

    def inputs_by_rank(self) -> list[list[np.ndarray]]:
        return [[array[rank] for array in self.inputs] for rank in range(self.module.ranks)]


def random_array(type_: ArrayType, ranks: int, seed: int) -> np.ndarray:
    """Values for every rank: floats in [-2, 2] with zeros, integers with their extremes."""
    draw = np.random.default_rng(seed)
    shape = (ranks, *type_.shape)
    if type_.dtype.is_float:
        values = draw.uniform(-2, 2, shape)
        values[draw.random(shape) < 0.1] = 0
        return values.astype(type_.dtype.numpy)
    if type_.dtype is DType.PRED:
        return draw.random(shape) < 0.5
    info = np.iinfo(type_.dtype.numpy)
    small = draw.integers(max(info.min, -4), 4, shape, endpoint=True)
    extreme = draw.choice(np.array([info.min, info.max]), shape)
    return np.where(draw.random(shape) < 0.2, extreme, small).astype(type_.dtype.numpy)


def _finish(drawing: Drawing, outputs: list[Value]) -> Module:
    """The module, with one output as the root or several in a tuple."""
    nodes = list(drawing.nodes)
    root = outputs[0].node
    if len(outputs) > 1:
        type_ = TupleType(tuple(value.type for value in outputs))
        nodes.append(Node("results", "tuple", type_, tuple(value.node for value in outputs)))
        root = NodeId(len(nodes) - 1)
    computations = {**drawing.computations, "main": Computation("main", tuple(nodes), root)}
    return Module("drawn", computations, "main", drawing.replica_count, drawing.num_partitions)


WORLDS = [(1, 1), (2, 1), (1, 2), (1, 4), (2, 2), (3, 1), (1, 6), (2, 4), (1, 8), (4, 4)]
"""Replicas and partitions."""


@st.composite
def cases(draw, most_ops: int = 12, ops=None, least_ops: int = 1) -> Case:
    """A random case; shrinks to few ops on one rank."""
    replica_count, num_partitions = draw(st.sampled_from(WORLDS))
    drawing = Drawing(draw, replica_count, num_partitions)
    drawing.parameter(ArrayType(DType.F32, drawing.shape()))
    steps = st.lists(_ops() if ops is None else ops, min_size=least_ops, max_size=most_ops)
    for add_op in draw(steps):
        add_op(drawing)
    outputs = _outputs(drawing)
    ranks, seed = replica_count * num_partitions, draw(st.integers(0, 999))
    return Case(
        _finish(drawing, outputs),
        tuple(
            random_array(type_, ranks, 1000 * k + seed)
            for k, type_ in enumerate(drawing.parameters)
        ),
        tuple(value.error for value in outputs),
    )


def _outputs(drawing: Drawing) -> list[Value]:
    """Most of the values that nobody uses, and one that may be used or given twice."""
    used = {operand for node in drawing.nodes for operand in node.operands}
    unused = [value for value in drawing.values if value.node not in used]
    kept = [value for value in unused if not drawing.chance(5)]
    extra = [drawing.draw(st.sampled_from(drawing.values))] if drawing.chance(3) else []
    return [*kept, *extra] or [drawing.values[-1]]


def _ops():
    """Half of the ops are collectives."""
    return st.one_of(st.sampled_from(LOCAL_OPS), st.sampled_from(COLLECTIVE_OPS))
