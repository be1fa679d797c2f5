"""Collectives of the graph: their groups and pairs of ranks, moved slices, and reductions.

`rank_groups` and `rank_pairs` count in flattened ranks, replica * num_partitions + partition,
whatever the ids of the text mean (`mode_of`). `reduction_of` recognises a reduction from its
computation.
"""

import functools
import re
from collections.abc import Sequence

import attrs

from ncc_compiler.ir.attributes import read_attribute
from ncc_compiler.ir.graph import Computation, Lists, Module, Node, Raw, SourceTargetPairs
from ncc_compiler.ir.op_tables.collectives import SLICE_SIZES
from ncc_compiler.ir.op_tables.op_row import AttrKind
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import (
    ExplicitGroups,
    GroupMode,
    Groups,
    IotaGroups,
    MeshGroups,
    ReplicaGroups,
    flattened_groups,
    flattened_pairs,
    group_mode,
)
from ncc_runtime.neff.shared.reductions import Reduction

REGION_REDUCTIONS = tuple(kind for kind in Reduction if kind is not Reduction.AVERAGE)
"""Reductions that a `to_apply` computation can express."""

_REDUCTIONS = {reduction.value: reduction for reduction in REGION_REDUCTIONS}
_PRED_REDUCTIONS = {Reduction.ADD: Reduction.OR, Reduction.MULTIPLY: Reduction.AND}

AVERAGING = frozenset({"ncc.avg_all_reduce", "ncc.avg_reduce_scatter"})
"""Collectives that average, by their name."""

TRANSFERS = frozenset({"send", "recv"})
"""Ops without `source_target_pairs`; XLA gives their pairs in `frontend_attributes`."""

PAIRS_OF_TRANSFERS = "_xla_send_recv_source_target_pairs"
_STREAM = re.compile(r'\bstream_id\s*=\s*"?(\d+)')
_ENTRIES = r"\{(?:[\s,0-9]|\{[\s,0-9]*\})*\}"
_TRANSFER_PAIRS = re.compile(rf'\b{PAIRS_OF_TRANSFERS}\s*=\s*"?({_ENTRIES})')


def mode_of(node: Node) -> GroupMode:
    """The meaning of the ids of a collective; ValueError for global ids without a channel."""
    has_global_ids = OPS[node.op].attribute("use_global_device_ids") is not None
    global_ids = bool(node.attributes.get("use_global_device_ids", False))
    return group_mode("channel_id" in node.attributes, global_ids if has_global_ids else None)


@functools.lru_cache(maxsize=256)
def expanded(groups: ReplicaGroups) -> Groups:
    """The groups as written, each id spelled out."""
    return groups.expand()


def written_groups(node: Node) -> Groups:
    """The ids of the groups as the program writes them; empty for one group of all ranks."""
    groups = node.attributes.get("replica_groups", ExplicitGroups(()))
    assert isinstance(groups, ExplicitGroups | IotaGroups | MeshGroups), node.name
    return expanded(groups)


def written_pairs(node: Node) -> tuple[tuple[int, int], ...]:
    """The source-target pairs as the program writes them."""
    pairs = pairs_attribute(node)
    assert pairs is not None, node.name
    return pairs.pairs


def pairs_attribute(node: Node) -> SourceTargetPairs | None:
    """The source-target pairs of a node that has any; ValueError if they cannot be read."""
    value = node.attributes.get("source_target_pairs")
    if node.op in TRANSFERS:
        frontend = node.attributes.get("frontend_attributes")
        match = _TRANSFER_PAIRS.search(frontend.text) if isinstance(frontend, Raw) else None
        value = read_attribute(AttrKind.PAIRS, match[1]) if match else None
    return value if isinstance(value, SourceTargetPairs) else None


def written_stream(node: Node) -> int | None:
    """The stream that `frontend_attributes={stream_id="1"}` asks for, if any."""
    value = node.attributes.get("frontend_attributes")
    match = _STREAM.search(value.text) if isinstance(value, Raw) else None
    return int(match[1]) if match else None


@attrs.frozen
class MovedSlice:
    """One slice of a permute with `slice_sizes`."""

    array: int | None  # index of the array in the input and output tuples; None if no tuples
    starts: tuple[int, ...]  # path to the tuple of start indices in the operands that hold them
    sizes: tuple[int, ...]


class SliceSizesError(ValueError):
    """slice_sizes do not fit the number of slices that the start indices give."""


def moves_slices(node: Node) -> bool:
    """Whether it is a permute of slices of its input into its output."""
    return SLICE_SIZES in node.attributes


def moved_slices(node: Node, kinds: Sequence[Type]) -> tuple[MovedSlice, ...]:
    """The slices of a permute with operands of these types: input, output, and starts in each.

    Raises ValueError for types that are no start indices, SliceSizesError if `slice_sizes` gives
    another number of slices.
    """
    places = _starts_of(kinds[0], kinds[2])
    if places != _starts_of(kinds[0], kinds[3]):
        raise ValueError("starts in the input and in the output are not of as many slices")
    sizes = node.attributes[SLICE_SIZES]
    assert isinstance(sizes, Lists), node.name
    if len(sizes.lists) != len(places):
        raise SliceSizesError(f"{len(sizes.lists)} slice sizes for {len(places)} slices")
    return tuple(
        MovedSlice(array, path, extent)
        for (array, path), extent in zip(places, sizes.lists, strict=True)
    )


def _starts_of(buffers: Type, starts: Type) -> list[tuple[int | None, tuple[int, ...]]]:
    """For each slice the index of its array, and the path of its start indices."""
    if not isinstance(buffers, TupleType):
        return [(None, path) for path in _tuples_of_scalars(starts)]
    if not isinstance(starts, TupleType) or len(starts.elements) != len(buffers.elements):
        raise ValueError(f"starts for {buffers} are {starts}")
    return [
        (array, (array, *path))
        for array, kind in enumerate(starts.elements)
        for path in _tuples_of_scalars(kind)
    ]


def _tuples_of_scalars(kind: Type) -> list[tuple[int, ...]]:
    """Paths of the start indices for one array: a tuple of scalars, or a tuple of such tuples."""
    if _are_starts(kind):
        return [()]
    if isinstance(kind, TupleType) and all(map(_are_starts, kind.elements)):
        return [(position,) for position in range(len(kind.elements))]
    raise ValueError(f"starts are {kind}")


def _are_starts(kind: Type) -> bool:
    return isinstance(kind, TupleType) and all(
        isinstance(element, ArrayType) and not element.shape and element.dtype.is_integer
        for element in kind.elements
    )


def rank_groups(module: Module, node: Node) -> Groups:
    """The groups of a collective as flattened ranks, members in order."""
    groups = written_groups(node)
    return flattened_groups(groups, mode_of(node), module.replica_count, module.num_partitions)


def rank_pairs(module: Module, node: Node) -> tuple[tuple[int, int], ...]:
    """The source-target pairs of a permute as flattened ranks."""
    pairs = written_pairs(node)
    return flattened_pairs(pairs, mode_of(node), module.replica_count, module.num_partitions)


def group_size(module: Module, node: Node) -> int:
    """Members of the first group of ranks, which is the size of all where they must be equal."""
    first = written_groups(node)[:1]
    groups = flattened_groups(first, mode_of(node), module.replica_count, module.num_partitions)
    return len(groups[0])


def group_sizes(module: Module, node: Node) -> frozenset[int]:
    """The sizes of groups of ranks; empty if the ids have no meaning (see `mode_of`)."""
    try:
        return frozenset(len(group) for group in rank_groups(module, node))
    except ValueError:
        return frozenset()


def reduction_of(computation: Computation) -> Reduction | None:
    """The reduction a region performs: one known op on its two parameters, in either order.

    On pred XLA's add is `or` and its multiply is `and`. Backends without arithmetic on narrow
    floats have conversions to f32 and back around the op. These are dropped: here narrow floats
    are computed in f32 and rounded to their type in any case. Where Shardy constrained the result,
    XLA's partitioner leaves a copy of it.
    """
    nodes, parameters = computation.nodes, computation.parameters()
    root = nodes[computation.root]
    while root.op == "copy":
        root = nodes[root.operands[0]]
    if not isinstance(root.type, ArrayType):
        return None
    kind, operands = root.type, root.operands
    if root.op == "convert" and kind.dtype.is_float and kind.dtype.size_bytes < 4:
        root = nodes[root.operands[0]]
        widened = [nodes[operand] for operand in root.operands]
        if any(node.op != "convert" for node in widened) or root.type != ArrayType(DType.F32):
            return None
        operands = tuple(node.operands[0] for node in widened)
        if any(nodes[operand].type != kind for operand in operands):
            return None
    reduction = _REDUCTIONS.get(root.op)
    if reduction is None or len(parameters) != 2 or sorted(operands) != sorted(parameters):
        return None
    return _on_elements(reduction, kind.dtype)


def _on_elements(reduction: Reduction, dtype: DType) -> Reduction:
    return _PRED_REDUCTIONS.get(reduction, reduction) if dtype is DType.PRED else reduction


def reduction_by_name(node: Node, dtype: DType) -> Reduction | None:
    """The reduction that a collective without a region names; ValueError if unknown."""
    if node.op in AVERAGING:
        return Reduction.AVERAGE
    name = node.attributes.get("reduction")
    return None if name is None else _on_elements(Reduction(name), dtype)
