"""Turns an all-reduce into a reduce-scatter where each rank goes on with its own part.

Where a sum reaches, through elementwise operations alone, slices of the rank's own part, nobody
needs the rest of it: the operations work on the part. That is a sharded optimiser:

    all-reduce ─▶ elementwise ─▶ dynamic-slice        reduce-scatter ─▶ elementwise
        (other operands) ┘                                  (their slices) ┘

Where they end in one array, and the other operands are the same on all ranks of a group, each rank
computes its part, and an all-gather joins the parts: an update divided over data-parallel ranks.

    all-reduce ─▶ elementwise ─▶ result        reduce-scatter ─▶ elementwise ─▶ all-gather ─▶ result

That is done where it saves more work than the all-gather takes.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import ClassVar

import attrs
import numpy as np

from ncc_compiler.ir.collectives import rank_groups
from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.overlap.alike import alike_in_groups
from ncc_compiler.overlap.rank_numbers import RankNumbers
from ncc_compiler.overlap.shards import Cone, FlatPart, Shards, SlicedPart, cone_of, own_start
from ncc_compiler.overlap.work import PER_COLLECTIVE_BYTE, START, work_of
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild
from ncc_runtime.neff.groups import Groups

_SPLIT = frozenset({"all-reduce", "ncc.avg_all_reduce"})
_NOWHERE = NodeId(-1)  # the new place of what goes; nothing that stays refers to it
_MOST_ROUNDS = 8


@attrs.frozen
class SplitAllReduces(Pass):
    """0 in `enabled` leaves all-reduces whole.

    With 1 in `trust_shardings` parameters that say `sharding={replicated}` count as the same on all
    ranks. Inputs that are not give other results then.
    """

    name: ClassVar[str] = "split-all-reduces"

    enabled: int = 1
    trust_shardings: int = 0

    def run(self, module: Module) -> Module:
        if not self.enabled:
            return module
        computations = dict(module.computations)
        for name, body in module.computations.items():
            for _ in range(_MOST_ROUNDS):  # sums of sums go one by one
                found = self._found(module, body)
                if not found:
                    break
                body = _split(module, body, found)
            computations[name] = body
        return attrs.evolve(module, computations=computations)

    def _found(self, module: Module, body: Computation) -> list["_Split"]:
        """What can be split, no node in two of them."""
        sums = [
            position
            for position, node in enumerate(body.nodes)
            if node.op in _SPLIT and isinstance(node.type, ArrayType) and len(node.operands) == 1
        ]
        users, taken, found = _users(body) if sums else [], set[int](), []
        numbers, trusts = RankNumbers(module, body), bool(self.trust_shardings)
        alike = cache(partial(alike_in_groups, module, body, trust_shardings=trusts))
        for position in sums:
            cone = cone_of(body, users, position)
            groups = rank_groups(module, body.nodes[position])
            if cone is None or not taken.isdisjoint(cone.nodes) or _size(groups) < 2:
                continue
            one = _sliced(body, cone, groups, numbers)
            if one is None and _is_worthwhile(module, body, cone, _size(groups)):
                (end,) = cone.ends
                one = _Split(cone, groups, None) if alike(groups)[end] else None
            if one is not None:
                taken |= cone.nodes
                found.append(one)
        return found


def _is_worthwhile(module: Module, body: Computation, cone: Cone, parts: int) -> bool:
    """Whether the sum leads to one array, and parts of that save more than the gather takes.

    The gather begins when the parts are there and moves half the bytes of the sum, so less would
    only move work from the engines to the streams.
    """
    if len(cone.ends) != 1 or cone.all_reduce in cone.ends:
        return False
    if body.nodes[cone.all_reduce].array.elements % parts:
        return False
    work = sum(work_of(module, body, body.nodes[one]).duration for one in cone.inner)
    size = body.nodes[cone.all_reduce].array.size_bytes
    return work - work // parts > START + PER_COLLECTIVE_BYTE * size // 2


@attrs.frozen
class _Split:
    """A cone to be computed in parts; along a dimension, or flat and gathered at its end."""

    cone: Cone
    groups: Groups
    dimension: int | None


def _size(groups: Groups) -> int:
    """Members of each group; 0 where they differ."""
    sizes = {len(group) for group in groups}
    return sizes.pop() if len(sizes) == 1 else 0


def _users(body: Computation) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in body.nodes]
    for position, node in enumerate(body.nodes):
        for operand in dict.fromkeys(node.operands):
            users[operand].append(position)
    return users


def _sliced(body: Computation, cone: Cone, groups: Groups, numbers: RankNumbers) -> _Split | None:
    """Where all that leaves the cone is the rank's own part along one dimension."""
    if body.root in cone.nodes or not cone.users:
        return None
    slices = [body.nodes[user] for user in cone.users]
    if any(node.op != "dynamic-slice" for node in slices):
        return None
    inside = cone.nodes
    if any(start in inside for node in slices for start in node.operands[1:]):
        return None
    dimensions = {_own_part(body, node, groups, numbers) for node in slices}
    if len(dimensions) != 1 or None in dimensions:
        return None
    return _Split(cone, groups, dimensions.pop())


def _own_part(body: Computation, node: Node, groups: Groups, numbers: RankNumbers) -> int | None:
    """The dimension along which a dynamic-slice takes, on each rank, the part with its number."""
    whole, part = body.nodes[node.operands[0]].array.shape, node.array.shape
    cut = [k for k, (one, other) in enumerate(zip(whole, part, strict=True)) if one != other]
    if len(cut) != 1 or len(node.operands) != 1 + len(whole):
        return None
    (dimension,) = cut
    size, most = part[dimension], whole[dimension] - part[dimension]
    start = numbers.of(node.operands[1 + dimension])
    if start is None or whole[dimension] != size * _size(groups):
        return None
    wanted = np.zeros(len(start), np.int64)
    for group in groups:
        wanted[list(group)] = np.arange(len(group)) * size
    return dimension if (np.clip(start, 0, most) == wanted).all() else None


def _split(module: Module, body: Computation, found: Sequence[_Split]) -> Computation:
    rebuild = Rebuild(body)
    inside = {position: one for one in found for position in one.cone.nodes}
    leaving = {user: one for one in found if one.dimension is not None for user in one.cone.users}
    shards: dict[int, Shards] = {}  # by all-reduce
    for position, node in enumerate(body.nodes):
        split = leaving.get(position)
        if split is not None and split.dimension is not None:
            key = split.cone.all_reduce
            if key not in shards:
                starts = tuple(rebuild.new_ids[start] for start in node.operands[1:])
                part = SlicedPart(split.dimension, _size(split.groups), starts)
                shards[key] = Shards(rebuild, body, split.cone, part)
            rebuild.new_ids.append(shards[key].of(node.operands[0]))
        elif position not in inside:
            rebuild.new_ids.append(rebuild.add(rebuild.rewired(node)))
        elif inside[position].dimension is None and position in inside[position].cone.ends:
            rebuild.new_ids.append(_gathered(rebuild, module, body, inside[position]))
        else:
            rebuild.new_ids.append(_NOWHERE)
    return rebuild.finish()


def _gathered(rebuild: Rebuild, module: Module, body: Computation, split: _Split) -> NodeId:
    """The end of a cone, computed in parts that an all-gather joins."""
    (end,) = split.cone.ends
    node, total = body.nodes[end], body.nodes[split.cone.all_reduce]
    parts, elements = _size(split.groups), node.array.elements
    start = own_start(rebuild, module, split.groups, node, elements // parts)
    own = Shards(rebuild, body, split.cone, FlatPart(parts, start)).of(end)
    kept = {key: one for key, one in total.attributes.items() if key != "to_apply"}
    flat = ArrayType(node.array.dtype, (elements,))
    gathered = rebuild.add(
        Node(
            rebuild.fresh(f"{node.name}.gathered"),
            "all-gather",
            flat,
            (own,),
            {**kept, "dimensions": (0,)},
            node.span,
        )
    )
    return rebuild.add(Node(node.name, "reshape", node.array, (gathered,), {}, node.span))
