"""Brings every collective to the form that a placeholder can say: chunks that are byte ranges.

A placeholder splits its buffers into one contiguous chunk per group member. A chunk along a
dimension is contiguous if everything before that dimension has size 1. Otherwise, with A the
elements before the dimension, P the group and B those after it:

    all-gather      [A,n,B]   → [1,A·n·B]  ─op→ [P,A,n·B]  → transpose [A,P,n·B] → [A,P·n,B]
    reduce-scatter  [A,P·n,B] → [A,P,n·B] → transpose [P,A,n·B] ─op→ [1,A,n·B]   → [A,n,B]
    all-to-all      [A,P·n,B] → [A,P,n·B] → transpose [P,A,n·B] ─op→ transpose   → [A,P·n,B]

Reshapes cost nothing, transposes are DMAs. What gathers to a root goes as all-gather, what a root
scatters as reduce-scatter. An all-to-all of a tuple becomes one of an array. A variable-size
all-to-all with receive offsets becomes one with send offsets, which an all-to-all of the offsets
brings to the senders.
"""

import math
from collections.abc import Iterable
from typing import ClassVar

import attrs

from ncc_compiler.ir.collectives import group_size, rank_groups
from ncc_compiler.ir.graph import Module, Node, NodeId
from ncc_compiler.ir.op_tables.collectives import VARIABLE_SIZE
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.type_rules.collectives import has_receive_offsets
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, array_types, rewrite_module
from ncc_runtime.neff.shared.groups import ExplicitGroups

_GATHERS = frozenset({"all-gather", "ncc.gather"})
_SCATTERS = frozenset({"reduce-scatter", "ncc.avg_reduce_scatter", "ncc.scatter"})
_ON_A_DIMENSION = _GATHERS | _SCATTERS | {"all-to-all"}


@attrs.frozen
class ExpandCollectives(Pass):
    """Afterwards chunks are contiguous, and the operands of one collective have one dtype."""

    name: ClassVar[str] = "expand-collectives"

    def run(self, module: Module) -> Module:
        def expand(rebuild: Rebuild, node: Node) -> NodeId:
            if node.op == "ncc.all_to_all_v" and has_receive_offsets(
                rebuild.type_of(node.operands[2])
            ):
                return _with_send_offsets(module, rebuild, node)
            if not OPS[node.op].collective or OPS[node.op].takes_tuples or node.op in VARIABLE_SIZE:
                return rebuild.add(node)
            if node.op == "all-to-all" and "dimensions" not in node.attributes:
                return _all_to_all_of_tuple(rebuild, node)
            dtypes = {rebuild.type_of(operand).dtype for operand in node.operands}
            if len(dtypes) == 1 and _is_canonical(module, rebuild, node, node.operands):
                return rebuild.add(node)
            return _one_per_dtype(module, rebuild, node)

        return rewrite_module(module, expand, lambda node: OPS[node.op].collective)


def _with_results(
    rebuild: Rebuild, node: Node, operands: list[NodeId], kinds: list[ArrayType]
) -> list[NodeId]:
    """Append the collective for these operands, and take its result apart."""
    kind = kinds[0] if len(kinds) == 1 else TupleType(tuple(kinds))
    added = rebuild.add(attrs.evolve(node, operands=tuple(operands), type=kind))
    if len(kinds) == 1:
        return [added]
    return [
        rebuild.derived(node, "get-tuple-element", element, [added], index=k)
        for k, element in enumerate(kinds)
    ]


def _as_typed(rebuild: Rebuild, node: Node, results: list[NodeId]) -> NodeId:
    """The results as the one value that the node was."""
    if isinstance(node.type, TupleType):
        return rebuild.derived(node, "tuple", node.type, results)
    return results[0]


def _one_per_dtype(module: Module, rebuild: Rebuild, node: Node) -> NodeId:
    """A canonical collective for each element type, since a placeholder has one."""
    kinds = array_types(node.type)
    results: dict[int, NodeId] = {}
    for dtype in dict.fromkeys(kind.dtype for kind in kinds):
        members = [k for k, kind in enumerate(kinds) if kind.dtype is dtype]
        name = rebuild.fresh(node.name) if results else node.name
        operands = [node.operands[k] for k in members]
        of_dtype = attrs.evolve(node, name=name)
        parts = _canonical(module, rebuild, of_dtype, operands, [kinds[k] for k in members])
        results.update(zip(members, parts, strict=True))
    return _as_typed(rebuild, node, [results[k] for k in range(len(kinds))])


def _is_canonical(module: Module, rebuild: Rebuild, node: Node, operands: Iterable[NodeId]) -> bool:
    if node.op not in _ON_A_DIMENSION or group_size(module, node) == 1:
        return True
    (dimension,) = node.integers("dimensions")
    shapes = [rebuild.type_of(operand).shape for operand in operands]
    return all(math.prod(shape[:dimension]) in (0, 1) for shape in shapes)


def _canonical(
    module: Module,
    rebuild: Rebuild,
    node: Node,
    operands: list[NodeId],
    kinds: list[ArrayType],
) -> list[NodeId]:
    """The results of the collective, computed on chunks that are byte ranges."""
    if _is_canonical(module, rebuild, node, operands):
        return _with_results(rebuild, node, operands, kinds)
    (dimension,) = node.integers("dimensions")
    chunks = _Chunks(rebuild, node, dimension, group_size(module, node))
    chunk_operands = [chunks.before(operand) for operand in operands]
    chunk_types = [chunks.result_of_chunks(rebuild.type_of(operand)) for operand in chunk_operands]
    leading = attrs.evolve(node, attributes={**node.attributes, "dimensions": (0,)})
    received = _with_results(rebuild, leading, chunk_operands, chunk_types)
    return [chunks.after(operand, kind) for operand, kind in zip(received, kinds, strict=True)]


@attrs.frozen
class _Chunks:
    """The moves around one collective, whose operands are [chunks, A, n·B] in the middle."""

    rebuild: Rebuild
    node: Node
    dimension: int
    group_size: int

    def before(self, operand: NodeId) -> NodeId:
        """The operand with its chunks in front, or as the one chunk that it is."""
        kind = self.rebuild.type_of(operand)
        before = math.prod(kind.shape[: self.dimension])
        behind = math.prod(kind.shape[self.dimension :])
        if self.node.op in _GATHERS:
            return self._reshape(operand, (1, before, behind))
        return self._swap(
            self._reshape(operand, (before, self.group_size, behind // self.group_size))
        )

    def result_of_chunks(self, kind: ArrayType) -> ArrayType:
        """The type of the collective's result for an operand of this type."""
        count = 1 if self.node.op in _SCATTERS else self.group_size
        return ArrayType(kind.dtype, (count, *kind.shape[1:]))

    def after(self, operand: NodeId, kind: ArrayType) -> NodeId:
        """The result with its chunks back where they belong."""
        ordered = operand if self.node.op in _SCATTERS else self._swap(operand)
        return self._reshape(ordered, kind.shape)

    def _reshape(self, operand: NodeId, shape: tuple[int, ...]) -> NodeId:
        kind = ArrayType(self.rebuild.type_of(operand).dtype, shape)
        return self.rebuild.derived(self.node, "reshape", kind, [operand])

    def _swap(self, operand: NodeId) -> NodeId:
        """The first two of three dimensions exchanged."""
        kind = self.rebuild.type_of(operand)
        first, second, third = kind.shape
        swapped = ArrayType(kind.dtype, (second, first, third))
        return self.rebuild.derived(
            self.node, "transpose", swapped, [operand], dimensions=(1, 0, 2)
        )


def _all_to_all_of_tuple(rebuild: Rebuild, node: Node) -> NodeId:
    """Operand k goes to member k: one array of all operands, one chunk each."""
    kinds = array_types(node.type)
    dtype, shape = kinds[0].dtype, kinds[0].shape
    row, stack = ArrayType(dtype, (1, *shape)), ArrayType(dtype, (len(kinds), *shape))
    rows = [rebuild.derived(node, "reshape", row, [operand]) for operand in node.operands]
    stacked = rebuild.derived(node, "concatenate", stack, rows, dimensions=(0,))
    attributes = {**node.attributes, "dimensions": (0,)}
    exchanged = rebuild.add(
        attrs.evolve(node, operands=(stacked,), type=stack, attributes=attributes)
    )
    results = []
    for k, kind in enumerate(kinds):
        ranges = ((k, k + 1, 1), *((0, size, 1) for size in shape))
        part = rebuild.derived(node, "slice", row, [exchanged], slice=ranges)
        results.append(rebuild.derived(node, "reshape", kind, [part]))
    return _as_typed(rebuild, node, results)


def _with_send_offsets(module: Module, rebuild: Rebuild, node: Node) -> NodeId:
    """An `ncc.all_to_all_v` with receive offsets as a ragged-all-to-all, whose senders have them.

    Row k of the metadata has, for every member of the group: rows sent, where they begin, rows
    received, and where these begin in the output.
    """
    operand, output, metadata = node.operands
    kind = rebuild.type_of(metadata)
    members = kind.shape[1]
    row, counts = ArrayType(kind.dtype, (1, members)), ArrayType(kind.dtype, (members,))
    tables = []
    for number in range(kind.shape[0]):
        ranges = ((number, number + 1, 1), (0, members, 1))
        part = rebuild.derived(node, "slice", row, [metadata], slice=ranges)
        tables.append(rebuild.derived(node, "reshape", counts, [part]))
    send_sizes, input_offsets, recv_sizes, receive_offsets = tables
    kept = {
        key: value
        for key, value in node.attributes.items()
        if key not in ("channel_id", "use_global_device_ids")
    }
    attributes = {**kept, "replica_groups": ExplicitGroups(rank_groups(module, node))}
    if module.num_partitions > 1:  # ids of partitions; else those of replicas
        attributes["channel_id"] = node.attributes.get("channel_id", 1)
    output_offsets = rebuild.derived(
        node, "all-to-all", counts, [receive_offsets], dimensions=(0,), **attributes
    )
    operands = (operand, output, input_offsets, send_sizes, output_offsets, recv_sizes)
    return rebuild.add(
        attrs.evolve(node, op="ragged-all-to-all", operands=operands, attributes=attributes)
    )
