"""Who takes part in a collective: its groups and pairs as flattened ranks."""

import functools

from ncc_compiler.ir.graph import Computation, Module, Node, Pairs
from ncc_compiler.ir.ops import OPS
from ncc_runtime.neff.groups import (
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
from ncc_runtime.neff.reductions import Reduction

_REDUCTIONS = {reduction.value: reduction for reduction in Reduction}
_PRED_REDUCTIONS = {Reduction.ADD: Reduction.OR, Reduction.MULTIPLY: Reduction.AND}


def mode_of(node: Node) -> GroupMode:
    """What the ids of a collective name; ValueError for global ids without a channel."""
    has_global_ids = OPS[node.op].attribute("use_global_device_ids") is not None
    global_ids = bool(node.attributes.get("use_global_device_ids", False))
    return group_mode("channel_id" in node.attributes, global_ids if has_global_ids else None)


@functools.lru_cache(maxsize=256)
def expanded(groups: ReplicaGroups) -> Groups:
    """The groups as written, each id spelled out."""
    return groups.expand()


def written_groups(node: Node) -> Groups:
    """The ids of the groups as the program writes them; empty for one group of everybody."""
    groups = node.attributes.get("replica_groups", ExplicitGroups(()))
    assert isinstance(groups, ExplicitGroups | IotaGroups | MeshGroups), node.name
    return expanded(groups)


def written_pairs(node: Node) -> tuple[tuple[int, int], ...]:
    """The source-target pairs as the program writes them."""
    pairs = node.attributes["source_target_pairs"]
    assert isinstance(pairs, Pairs), node.name
    return pairs.pairs


def rank_groups(module: Module, node: Node) -> Groups:
    """The groups of a collective as ranks, in the order of the members."""
    groups = written_groups(node)
    return flattened_groups(groups, mode_of(node), module.replica_count, module.num_partitions)


def rank_pairs(module: Module, node: Node) -> tuple[tuple[int, int], ...]:
    """The source-target pairs of a permute as ranks."""
    pairs = written_pairs(node)
    return flattened_pairs(pairs, mode_of(node), module.replica_count, module.num_partitions)


def group_size(module: Module, node: Node) -> int:
    """Members of each group of ranks, where the groups are of one size; else of the first."""
    first = written_groups(node)[:1]
    found = flattened_groups(first, mode_of(node), module.replica_count, module.num_partitions)
    return len(found[0])


def reduction_of(computation: Computation) -> Reduction | None:
    """The reduction a region performs: one known op on its two parameters, in either order.

    On pred XLA's add is `or` and its multiply is `and`.
    """
    root = computation.nodes[computation.root]
    found = _REDUCTIONS.get(root.op)
    parameters = computation.parameters()
    if found is None or len(parameters) != 2 or sorted(root.operands) != sorted(parameters):
        return None
    if str(root.type) == "pred[]":
        return _PRED_REDUCTIONS.get(found, found)
    return found
