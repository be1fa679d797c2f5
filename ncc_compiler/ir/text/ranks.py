"""The number of ranks of a program, and the meaning of ids in a text without a header.

A header gives it by `replica_count` and `num_partitions`. Without them, ids are ranks: their number
is the requested one, or one more than the largest id in groups and pairs. Such a program is for
several replicas, unless an op refers to partitions (`partition-id`, a `send`, or a channel on an
all-to-all or permute). Then it is for several partitions, and every collective gets a channel, and
global ids where its op has them, so that ids still are ranks.
"""

import itertools
import math
from collections.abc import Sequence

import attrs

from ncc_compiler.ir.attributes import MAX_RANKS
from ncc_compiler.ir.collectives import TRANSFERS, expanded, pairs_attribute
from ncc_compiler.ir.graph import Attribute, Computation, Module, Node
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.text.header import COUNTS
from ncc_compiler.ir.text.reading import TextReader
from ncc_compiler.syntax import tree
from ncc_runtime.neff.shared.groups import ExplicitGroups, IotaGroups, MeshGroups


def with_ranks(
    module: Module, header: Sequence[tree.Attribute], ranks: int | None, reading: TextReader
) -> Module | None:
    """The module with its counts of replicas and partitions; None after a complaint."""
    before = len(reading.diagnostics)
    counts = {row.key: _count(row, reading) for row in header if row.key in COUNTS}
    if not counts:
        module = _counted_by_ids(module, ranks, reading)
        return module if len(reading.diagnostics) == before else None
    module = attrs.evolve(
        module,
        replica_count=counts.get("replica_count", 1),
        num_partitions=counts.get("num_partitions", 1),
    )
    place = next(row for row in header if row.key in COUNTS)
    at = (place.start, place.end)
    if module.ranks > MAX_RANKS:
        reading.complain("ranks-C1", f"{module.ranks} ranks are more than {MAX_RANKS}", at)
    elif ranks is not None and ranks != module.ranks:
        fact = f"the header says {module.ranks} ranks, {ranks} are asked for"
        reading.complain("ranks-C2", fact, at, "leave out the number of ranks")
    return module if len(reading.diagnostics) == before else None


def _count(row: tree.Attribute, reading: TextReader) -> int:
    """The count that an attribute of the header gives, 1 after a complaint."""
    if row.value.isascii() and row.value.isdigit() and 1 <= int(row.value[:9]) <= MAX_RANKS:
        return int(row.value[:9])
    fact = f"{row.key} is {row.value[:40]}, not a number from 1 to {MAX_RANKS}"
    reading.complain("ranks-C1", fact, (row.value_start, row.end))
    return 1


def _counted_by_ids(module: Module, ranks: int | None, reading: TextReader) -> Module:
    """The module of a text without counts, whose ids are ranks."""
    nodes = [node for body in module.computations.values() for node in body.nodes]
    ids = [_largest_id(node) for node in nodes]
    largest = max(ids, default=-1)
    span = nodes[ids.index(largest)].span if ids else None  # of the first node that names it
    at = (span.start, span.end) if span else (0, 1)
    if largest >= MAX_RANKS:
        reading.complain("ranks-C3", f"id {largest} is not below {MAX_RANKS}", at)
        return module
    if ranks is not None and largest >= ranks:
        fact = f"the program names rank {largest} and so needs {largest + 1} ranks, not {ranks}"
        reading.complain("ranks-C2", fact, at)
    count = ranks if ranks is not None and ranks > largest else largest + 1
    if not any(_refers_to_partitions(node) for node in nodes):
        return attrs.evolve(module, replica_count=count or 1)
    return _with_channels(attrs.evolve(module, num_partitions=count or 1))


def _largest_id(node: Node) -> int:
    """The largest id in the groups or pairs of a node, -1 for none."""
    groups = node.attributes.get("replica_groups")
    if isinstance(groups, IotaGroups):
        return math.prod(groups.dims) - 1
    if isinstance(groups, ExplicitGroups | MeshGroups):
        return max((rank for group in expanded(groups) for rank in group), default=-1)
    pairs = pairs_attribute(node)
    return max((rank for pair in pairs.pairs for rank in pair), default=-1) if pairs else -1


def _has_global_ids(node: Node) -> bool:
    return OPS[node.op].attribute("use_global_device_ids") is not None


def _is_collective(node: Node) -> bool:
    return node.op in OPS and OPS[node.op].collective


def _refers_to_partitions(node: Node) -> bool:
    """Whether the ids of this node are partitions by XLA's rules (see `mode_of`)."""
    if _is_collective(node):
        return "channel_id" in node.attributes and not _has_global_ids(node)
    return node.op == "partition-id" or (node.op in TRANSFERS and "channel_id" in node.attributes)


def _with_channels(module: Module) -> Module:
    """The module with a channel on every collective, and global ids where its op has them."""
    used = {
        node.attributes.get("channel_id")
        for body in module.computations.values()
        for node in body.nodes
    }
    free = (channel for channel in itertools.count(1) if channel not in used)
    computations: dict[str, Computation] = {}
    for name, body in module.computations.items():
        nodes = []
        for node in body.nodes:
            if _is_collective(node):
                attributes: dict[str, Attribute] = dict(node.attributes)
                if attributes.get("channel_id") is None:
                    attributes["channel_id"] = next(free)
                if _has_global_ids(node):
                    attributes["use_global_device_ids"] = True
                node = attrs.evolve(node, attributes=attributes)
            nodes.append(node)
        computations[name] = attrs.evolve(body, nodes=tuple(nodes))
    return attrs.evolve(module, computations=computations)
