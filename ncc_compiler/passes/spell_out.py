"""Legalisation of ops that are other ops, or a number, under a name of their own.

For example: custom calls that stand for an op, a permute of slices, a ragged product that is none.
"""

from collections.abc import Sequence
from typing import ClassVar

import attrs
import numpy as np

from ncc_compiler.ir.collectives import (
    MovedSlice,
    mode_of,
    moved_slices,
    moves_slices,
    written_pairs,
)
from ncc_compiler.ir.custom_calls import (
    APPROX_TOPK,
    IDENTITIES,
    TARGETS,
    TOPK,
    TRSM,
    approx_topk_of,
    as_sort,
    as_triangular_solve,
    call_of,
    target_of,
    wants_largest,
)
from ncc_compiler.ir.graph import Attribute, Literal, Module, Node, NodeId
from ncc_compiler.ir.op_tables.collectives import SLICE_SIZES
from ncc_compiler.ir.types import ArrayType, TupleType, element_type
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, provenance, rewrite_module
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import GroupMode

_ADDS_NOTHING = frozenset({"add-dependency", "domain"})
"""What they order follows from uses of values; shardings were applied when XLA partitioned."""

_SPELLED_OUT = frozenset({"custom-call", "get-dimension-size", "ragged-dot"}) | _ADDS_NOTHING
_ID_OF = {GroupMode.CROSS_PARTITION: "partition-id", GroupMode.CROSS_REPLICA: "replica-id"}


@attrs.frozen
class SpellOut(Pass):
    """Spells out what other operations say as well.

    Afterwards custom calls are of linear algebra, nothing asks for a dimension's size or adds
    nothing, no permute moves slices, and no product is ragged in name only.
    """

    name: ClassVar[str] = "spell-out"

    def run(self, module: Module) -> Module:
        def spelled_out(rebuild: Rebuild, node: Node) -> NodeId:
            if node.op == "get-dimension-size":
                return _dimension_size(rebuild, node)
            if node.op in _ADDS_NOTHING:
                return node.operands[0]
            if node.op == "custom-call":
                return _custom_call(module, rebuild, node)
            if moves_slices(node) and node.op == "collective-permute":
                return _permute_of_slices(module, rebuild, node)
            if node.op == "ragged-dot":
                return rebuild.add(_dot_of_batches(node))
            return rebuild.add(node)

        return rewrite_module(
            module, spelled_out, lambda node: node.op in _SPELLED_OUT or moves_slices(node)
        )


def _permute_of_slices(module: Module, rebuild: Rebuild, node: Node) -> NodeId:
    """Slices are cut out, moved by one permute, and written where they arrive."""
    slices = moved_slices(node, [rebuild.nodes[operand].type for operand in node.operands])

    def element(of: NodeId, path: Sequence[int]) -> NodeId:
        for index in path:
            kind = element_type(rebuild.nodes[of].type, [index])
            of = rebuild.derived(node, "get-tuple-element", kind, [of], index=index)
        return of

    def starts(operand: NodeId, moved_slice: MovedSlice) -> list[NodeId]:
        place = element(operand, moved_slice.starts)
        return [element(place, [dimension]) for dimension in range(len(moved_slice.sizes))]

    def slice_at(array: NodeId, at: list[NodeId], moved_slice: MovedSlice) -> NodeId:
        kind = ArrayType(rebuild.type_of(array).dtype, moved_slice.sizes)
        sizes = {"dynamic_slice_sizes": moved_slice.sizes}
        return rebuild.derived(node, "dynamic-slice", kind, [array, *at], **sizes)

    source, output, from_starts, to_starts = node.operands
    arrays = [output]
    if isinstance(node.type, TupleType):
        arrays = [element(output, [k]) for k in range(len(node.type.elements))]
    parts = []
    for moved_slice in slices:
        array = element(source, [] if moved_slice.array is None else [moved_slice.array])
        parts.append(slice_at(array, starts(from_starts, moved_slice), moved_slice))
    kinds = tuple(rebuild.type_of(part) for part in parts)
    kept = {key: value for key, value in node.attributes.items() if key != SLICE_SIZES}
    permute = attrs.evolve(node, name=rebuild.fresh(node.name), attributes=kept)
    moved = rebuild.add(
        attrs.evolve(
            permute,
            operands=tuple(parts),
            type=kinds[0] if len(kinds) == 1 else TupleType(kinds),
        )
    )
    receives = _is_target(module, rebuild, node)
    for k, moved_slice in enumerate(slices):
        arrived = element(moved, [k] if len(slices) > 1 else [])
        array, at = arrays[moved_slice.array or 0], starts(to_starts, moved_slice)
        if receives is not None:  # a rank that receives nothing keeps what is there
            mask_type = ArrayType(DType.PRED, moved_slice.sizes)
            mask = rebuild.derived(node, "broadcast", mask_type, [receives], dimensions=())
            operands = [mask, arrived, slice_at(array, at, moved_slice)]
            arrived = rebuild.derived(node, "select", kinds[k], operands)
        arrays[moved_slice.array or 0] = rebuild.derived(
            node, "dynamic-update-slice", rebuild.type_of(array), [array, arrived, *at]
        )
    if isinstance(node.type, TupleType):
        return rebuild.add(
            attrs.evolve(node, op="tuple", operands=tuple(arrays), attributes=provenance(node))
        )
    return arrays[0]


def _is_target(module: Module, rebuild: Rebuild, node: Node) -> NodeId | None:
    """Whether a rank is the target of a pair, as pred[]; None where all are."""
    mode = mode_of(node)
    count = module.num_partitions if mode is GroupMode.CROSS_PARTITION else module.replica_count
    table = np.zeros(count, np.bool_)
    table[[target for _, target in written_pairs(node)]] = True
    if table.all():
        return None
    is_target = rebuild.constant(node, ArrayType(DType.PRED, (count,)), table)
    own_id = rebuild.derived(node, _ID_OF[mode], ArrayType(DType.U32), [])
    entry = rebuild.derived(
        node,
        "dynamic-slice",
        ArrayType(DType.PRED, (1,)),
        [is_target, own_id],
        dynamic_slice_sizes=(1,),
    )
    return rebuild.derived(node, "reshape", ArrayType(DType.PRED), [entry])


def _dimension_size(rebuild: Rebuild, node: Node) -> NodeId:
    (dimension,) = node.integers("dimensions")
    size = np.array(rebuild.type_of(node.operands[0]).shape[dimension], np.int32)
    size.setflags(write=False)
    constant = attrs.evolve(node, op="constant", operands=())
    return rebuild.add(
        attrs.evolve(constant, attributes={"literal": Literal(size), **provenance(node)})
    )


def _dot_of_batches(node: Node) -> Node:
    """Where the ragged dimension is a batch dimension, a dot, whatever group a batch is in."""
    if node.integers("lhs_ragged_dims")[0] not in node.integers("lhs_batch_dims"):
        return node
    kept = {
        key: value
        for key, value in node.attributes.items()
        if key not in ("lhs_ragged_dims", "rhs_group_dims")
    }
    return attrs.evolve(node, op="dot", operands=node.operands[:2], attributes=kept)


def _custom_call(module: Module, rebuild: Rebuild, node: Node) -> NodeId:
    target = target_of(node)
    if target in IDENTITIES:
        return node.operands[0]
    if target in TARGETS:
        call = call_of(node)
        return rebuild.add(as_triangular_solve(node, call) if call.routine == TRSM else node)
    if target == APPROX_TOPK:
        return _approx_topk(rebuild, node)
    assert target == TOPK, target
    assert isinstance(node.type, TupleType), node.name
    values = node.type.elements[0]
    assert isinstance(values, ArrayType), node.name
    count = {"k": values.shape[-1], "largest": wants_largest(module, node)}
    return rebuild.add(attrs.evolve(node, op="topk", attributes={**count, **provenance(node)}))


def _approx_topk(rebuild: Rebuild, node: Node) -> NodeId:
    """A slice of each result of the sort."""
    call = approx_topk_of(node)
    arrays = [rebuild.type_of(operand) for operand in node.operands[: len(node.operands) // 2]]
    kind = arrays[0] if len(arrays) == 1 else TupleType(tuple(arrays))
    sort = as_sort(node, kind)
    ordered = rebuild.derived(node, "sort", kind, sort.operands, **sort.attributes)
    shape = list(arrays[0].shape)
    shape[call.dimension] = call.count
    kinds = [ArrayType(array.dtype, tuple(shape)) for array in arrays]
    limits: dict[str, Attribute] = {"slice": tuple((0, size, 1) for size in shape)}
    if len(arrays) == 1:
        return rebuild.add(
            attrs.evolve(
                node, op="slice", operands=(ordered,), attributes=limits | provenance(node)
            )
        )
    firsts = []
    for index, (array, first) in enumerate(zip(arrays, kinds, strict=True)):
        part = rebuild.derived(node, "get-tuple-element", array, [ordered], index=index)
        firsts.append(rebuild.derived(node, "slice", first, [part], **limits))
    return rebuild.add(
        attrs.evolve(node, op="tuple", operands=tuple(firsts), attributes=provenance(node))
    )
