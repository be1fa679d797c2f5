"""Turns an all-reduce into a reduce-scatter where each rank goes on with its own part.

Where a sum reaches, through elementwise operations alone, slices of the rank's own part, the rest
of it is not used: the operations work on the part. That is a sharded optimiser:

    all-reduce ─▶ elementwise ─▶ dynamic-slice        reduce-scatter ─▶ elementwise
        (other operands) ┘                                  (their slices) ┘

Where they end in one array, and the other operands are the same on all ranks of a group, each rank
computes its part, and an all-gather joins the parts: an update divided over data-parallel ranks.

    all-reduce ─▶ elementwise ─▶ result        reduce-scatter ─▶ elementwise ─▶ all-gather ─▶ result

That is done where it saves more work than the all-gather takes.

In this file: the cone of elementwise users of an all-reduce (`cone_of`); the cone computed on a
part (`Shards`); which values are replicated in a group (`replicated_in_groups`, XLA's replication
analysis); whole numbers that follow from a rank's ids alone, as offsets of its part do
(`PerRankValues`); and the pass, which puts them together.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import ClassVar

import attrs
import numpy as np

from ncc_compiler.ir.collectives import AVERAGING, rank_groups
from ncc_compiler.ir.graph import Computation, Literal, Module, Node, NodeId, Raw
from ncc_compiler.ir.op_tables.elementwise import ELEMENTWISE_ROWS
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.overlap.cost_model import CONTROL_FLOW, PER_COLLECTIVE_BYTE, START, work_of
from ncc_compiler.passes.fold_constants import COMPARISONS
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import DROPPED, Rebuild, users_of, with_computations
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import Groups

_ANY_SHAPE = frozenset(row.name for row in ELEMENTWISE_ROWS) - {
    *("bitcast", "bitcast-convert", "iota", "map")
}
_LARGEST_CONE = 256


@attrs.frozen
class Cone:
    """An all-reduce, the elementwise nodes that its result reaches, and where that ends."""

    all_reduce: int
    inner: tuple[int, ...]  # in order
    users: tuple[int, ...]  # other nodes that use the all-reduce or an inner node
    ends: frozenset[int]  # what they use; also the root of the computation, if it is in here

    @property
    def nodes(self) -> frozenset[int]:
        """The all-reduce and the inner nodes."""
        return frozenset((self.all_reduce, *self.inner))


def cone_of(body: Computation, users: Sequence[Sequence[int]], all_reduce: int) -> Cone | None:
    """The cone of an all-reduce of one array; None if it is very large."""
    shape = body.nodes[all_reduce].array.shape
    inside, pending = {all_reduce}, [all_reduce]
    outside, ends = set[int](), {int(body.root)}
    while pending:
        position = pending.pop()
        for user in users[position]:
            node = body.nodes[user]
            if node.op not in _ANY_SHAPE or node.array.shape != shape:
                outside.add(user)
                ends.add(position)
            elif user not in inside:
                inside.add(user)
                pending.append(user)
        if len(inside) > _LARGEST_CONE:
            return None
    inner = tuple(sorted(inside - {all_reduce}))
    return Cone(all_reduce, inner, tuple(sorted(outside)), frozenset(ends & inside))


@attrs.frozen
class SlicedPart:
    """A rank's own part along a dimension, as a dynamic-slice of the program takes it."""

    dimension: int
    parts: int
    starts: tuple[NodeId, ...]  # of the dynamic-slice, as they are now

    def shape(self, full: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            size // self.parts if k == self.dimension else size for k, size in enumerate(full)
        )

    def slice_of(self, rebuild: Rebuild, source: Node, array: NodeId) -> NodeId:
        kind = rebuild.type_of(array)
        part = ArrayType(kind.dtype, self.shape(kind.shape))
        sizes = {"dynamic_slice_sizes": part.shape}
        return rebuild.derived(source, "dynamic-slice", part, (array, *self.starts), **sizes)


@attrs.frozen
class FlatPart:
    """A rank's own part as a range of the elements in row-major order."""

    parts: int
    start: NodeId  # of the rank's own range
    dimension: int = 0

    def shape(self, full: tuple[int, ...]) -> tuple[int, ...]:
        return (int(np.prod(full, dtype=np.int64)) // self.parts,)

    def flattened(self, rebuild: Rebuild, source: Node, array: NodeId) -> NodeId:
        kind = rebuild.type_of(array)
        return rebuild.derived(source, "reshape", ArrayType(kind.dtype, (kind.elements,)), [array])

    def slice_of(self, rebuild: Rebuild, source: Node, array: NodeId) -> NodeId:
        flat = self.flattened(rebuild, source, array)
        kind = rebuild.type_of(flat)
        part = ArrayType(kind.dtype, self.shape(kind.shape))
        sizes = {"dynamic_slice_sizes": part.shape}
        return rebuild.derived(source, "dynamic-slice", part, (flat, self.start), **sizes)


RankPart = SlicedPart | FlatPart


def _own_start(rebuild: Rebuild, module: Module, groups: Groups, source: Node, size: int) -> NodeId:
    """Where a rank's own range of `size` elements begins: by its place in its group."""
    starts = np.zeros(module.ranks, np.int32 if size * len(groups[0]) < 2**31 else np.int64)
    for group in groups:
        starts[list(group)] = np.arange(len(group)) * size
    dtype = DType.S32 if starts.dtype == np.int32 else DType.S64
    table = rebuild.constant(source, ArrayType(dtype, (module.ranks,)), starts)
    rank = rebuild.rank(source, module)
    entry = rebuild.derived(
        source, "dynamic-slice", ArrayType(dtype, (1,)), [table, rank], dynamic_slice_sizes=(1,)
    )
    return rebuild.derived(source, "reshape", ArrayType(dtype), [entry])


class Shards:
    """The parts of a cone's values, added to a computation in the making."""

    def __init__(self, rebuild: Rebuild, body: Computation, cone: Cone, part: RankPart) -> None:
        self._rebuild, self._body, self._cone, self._part = rebuild, body, cone, part
        self._parts: dict[int, NodeId] = {}

    def of(self, position: int) -> NodeId:
        """The part of a node of the cone; adds what is needed for it and stands before it."""
        for inner in (self._cone.all_reduce, *self._cone.inner):
            if inner <= position and inner not in self._parts:
                self._parts[inner] = self._added(inner)
        return self._parts[position]

    def _added(self, position: int) -> NodeId:
        node, rebuild = self._body.nodes[position], self._rebuild
        kind = ArrayType(node.array.dtype, self._part.shape(node.array.shape))
        if position == self._cone.all_reduce:
            op = "ncc.avg_reduce_scatter" if node.op in AVERAGING else "reduce-scatter"
            summand = rebuild.new_ids[node.operands[0]]
            if isinstance(self._part, FlatPart):
                summand = self._part.flattened(rebuild, node, summand)
            attributes = {**node.attributes, "dimensions": (self._part.dimension,)}
            return rebuild.add(Node(node.name, op, kind, (summand,), attributes, node.span))
        operands = tuple(self._operand(node, operand) for operand in node.operands)
        name = rebuild.fresh(node.name)
        return rebuild.add(attrs.evolve(node, name=name, type=kind, operands=operands))

    def _operand(self, user: Node, operand: NodeId) -> NodeId:
        """The part of what an operation of the cone reads."""
        if operand in self._parts:
            return self._parts[operand]
        source = self._body.nodes[operand]
        if source.array.shape == () != user.array.shape:  # a scalar, of a select or clamp
            return self._rebuild.new_ids[operand]
        part = self._repeated(source)
        if part is None:
            part = self._part.slice_of(self._rebuild, source, self._rebuild.new_ids[operand])
        self._parts[operand] = part
        return part

    def _repeated(self, source: Node) -> NodeId | None:
        """The part of an array whose elements are all the same."""
        rebuild, shape = self._rebuild, self._part.shape(source.array.shape)
        kind = ArrayType(source.array.dtype, shape)
        if source.op == "broadcast" and not self._body.nodes[source.operands[0]].array.shape:
            value = rebuild.new_ids[source.operands[0]]
            return rebuild.derived(source, "broadcast", kind, [value], dimensions=())
        data = source.literal().array if source.has_value() else np.zeros(0)
        if not data.size or data.tobytes() != data.flat[:1].tobytes() * data.size:
            return None
        return rebuild.constant(source, kind, data.flat[0])


_SAME_RESULTS = frozenset({"all-gather", "all-reduce", "ncc.avg_all_reduce"})
"""Collectives that give every member the same."""

_RANK_IDS = frozenset({"partition-id", "replica-id"})


def replicated_in_groups(
    module: Module, body: Computation, groups: Groups, *, trust_shardings: bool
) -> list[bool]:
    """For every node, whether all members of a group have the same value.

    A parameter may differ from rank to rank even where its sharding says that it is replicated,
    unless that is to be trusted.
    """
    replicated: list[bool] = []
    for node in body.nodes:
        if node.op == "parameter":
            sharding = node.attributes.get("sharding")
            text = sharding.text.replace(" ", "") if isinstance(sharding, Raw) else ""
            is_trusted = trust_shardings and body.name == module.entry
            replicated.append(is_trusted and text == "{replicated}")
        elif node.op in _SAME_RESULTS:
            replicated.append(rank_groups(module, node) == groups)
        elif OPS[node.op].collective or node.op in CONTROL_FLOW or node.op in _RANK_IDS:
            replicated.append(False)
        else:
            replicated.append(all(replicated[operand] for operand in node.operands))
    return replicated


Numbers = np.ndarray
"""(ranks,) int64, or bool for pred."""


class PerRankValues:
    """Integers of one element on each rank; None where something else than the rank decides them.

    An abstract interpretation over the ids of ranks, by demand.
    """

    def __init__(self, module: Module, body: Computation) -> None:
        self._body = body
        self._partitions = module.num_partitions
        self._ranks: np.ndarray = np.arange(module.ranks)
        self._known: dict[int, Numbers | None] = {}

    def of(self, position: int) -> Numbers | None:
        """The value of a node on each rank."""
        pending = [position]
        while pending:
            node = self._body.nodes[pending[-1]]
            missing = [operand for operand in _deciding(node) if operand not in self._known]
            pending += missing
            if not missing:
                self._known.setdefault(pending.pop(), self._value(node))
        return self._known[position]

    def _value(self, node: Node) -> Numbers | None:
        if not _is_number(node):
            return None
        match node.op:
            case "partition-id":
                return self._ranks % self._partitions
            case "replica-id":
                return self._ranks // self._partitions
            case "constant" if isinstance(node.attributes["literal"], Literal):
                value = node.literal().array.astype(np.int64).reshape(-1)
                return np.broadcast_to(value, self._ranks.shape)
            case "dynamic-slice":
                return self._table_entry(node)
        operands = [self._known[operand] for operand in _deciding(node)]
        numbers = [values for values in operands if values is not None]
        if len(numbers) < len(operands):
            return None
        if node.op == "compare":
            return np.asarray(COMPARISONS[str(node.attributes["direction"])](*numbers))
        return _in_range(node, _RULES[node.op](*numbers)) if node.op in _RULES else None

    def _table_entry(self, node: Node) -> Numbers | None:
        """An element of a table of constants, at an index that the rank decides."""
        table = self._body.nodes[node.operands[0]]
        index = self._known[node.operands[1]] if len(node.operands) == 2 else None
        if index is None or not table.has_value() or table.array.rank != 1:
            return None
        values = table.literal().array.astype(np.int64)
        return values[np.clip(index, 0, len(values) - 1)]  # dynamic-slice clamps its start


def _deciding(node: Node) -> tuple[NodeId, ...]:
    """The operands whose numbers decide the number of a node."""
    if not _is_number(node):
        return ()
    if node.op == "dynamic-slice":
        return node.operands[1:]
    return node.operands if node.op in _RULES or node.op == "compare" else ()


def _is_number(node: Node) -> bool:
    kind = node.type
    return isinstance(kind, ArrayType) and kind.elements == 1 and kind.dtype.numpy.kind in "biu"


def _in_range(node: Node, numbers: Numbers) -> Numbers | None:
    """The numbers, where none of them wraps in the node's type; 2^62 keeps later sums in int64."""
    dtype = node.array.dtype.numpy
    if dtype.kind == "b":
        return numbers.astype(bool)
    if not dtype.isbuiltin:
        return None
    numbers = numbers.astype(np.int64)
    info = np.iinfo(dtype)
    return numbers if ((numbers >= info.min) & (numbers <= min(info.max, 2**62))).all() else None


_UNKNOWN = np.iinfo(np.int64).max  # `_in_range` accepts it for no type


def _same(value: Numbers) -> Numbers:
    return value


def _divide(dividend: Numbers, divisor: Numbers) -> Numbers:
    """Rounded towards zero; unknown where the divisor is not positive, as for remainders."""
    return np.where(
        divisor > 0, np.sign(dividend) * (abs(dividend) // np.maximum(divisor, 1)), _UNKNOWN
    )


def _remainder(dividend: Numbers, divisor: Numbers) -> Numbers:
    return np.where(divisor > 0, np.fmod(dividend, np.maximum(divisor, 1)), _UNKNOWN)


def _clamp(low: Numbers, value: Numbers, high: Numbers) -> Numbers:
    return np.minimum(np.maximum(low, value), high)


_RULES: Mapping[str, Callable[..., Numbers]] = {
    "add": np.add,
    "broadcast": _same,
    "clamp": _clamp,
    "convert": _same,
    "copy": _same,
    "divide": _divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "remainder": _remainder,
    "reshape": _same,
    "select": np.where,
    "slice": _same,
    "subtract": np.subtract,
}


_SPLIT = frozenset({"all-reduce", "ncc.avg_all_reduce"})
_MAX_ROUNDS = 8  # of splits, each of sums that the one before has made possible


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
            for _ in range(_MAX_ROUNDS):  # sums of sums go one by one
                splits = self._splits(module, body)
                if not splits:
                    break
                body = _split(module, body, splits)
            computations[name] = body
        return with_computations(module, computations)

    def _splits(self, module: Module, body: Computation) -> list["_Split"]:
        """What can be split, no node in two of them."""
        sums = [
            position
            for position, node in enumerate(body.nodes)
            if node.op in _SPLIT and isinstance(node.type, ArrayType) and len(node.operands) == 1
        ]
        users, taken, splits = users_of(body) if sums else [], set[int](), []
        numbers, trusts = PerRankValues(module, body), bool(self.trust_shardings)
        replicated = cache(partial(replicated_in_groups, module, body, trust_shardings=trusts))
        for position in sums:
            cone = cone_of(body, users, position)
            groups = rank_groups(module, body.nodes[position])
            if cone is None or not taken.isdisjoint(cone.nodes) or _group_size(groups) < 2:
                continue
            split = _sliced(body, cone, groups, numbers)
            if split is None and _is_worthwhile(module, body, cone, _group_size(groups)):
                (end,) = cone.ends
                split = _Split(cone, groups, None) if replicated(groups)[end] else None
            if split is not None:
                taken |= cone.nodes
                splits.append(split)
        return splits


def _is_worthwhile(module: Module, body: Computation, cone: Cone, parts: int) -> bool:
    """Whether the sum leads to one array, and computing in parts saves more than the gather takes.

    A ring all-reduce is a reduce-scatter and an all-gather. So the gather moves half of its bytes,
    but begins later, when the parts are there.
    """
    if len(cone.ends) != 1 or cone.all_reduce in cone.ends:
        return False
    if body.nodes[cone.all_reduce].array.elements % parts:
        return False
    work = sum(work_of(module, body, body.nodes[inner]).duration for inner in cone.inner)
    size = body.nodes[cone.all_reduce].array.size_bytes
    return work - work // parts > START + PER_COLLECTIVE_BYTE * size // 2


@attrs.frozen
class _Split:
    """A cone to be computed in parts; along a dimension, or flat and gathered at its end."""

    cone: Cone
    groups: Groups
    dimension: int | None


def _group_size(groups: Groups) -> int:
    """Members of each group; 0 where they differ."""
    sizes = {len(group) for group in groups}
    return sizes.pop() if len(sizes) == 1 else 0


def _sliced(body: Computation, cone: Cone, groups: Groups, numbers: PerRankValues) -> _Split | None:
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


def _own_part(body: Computation, node: Node, groups: Groups, numbers: PerRankValues) -> int | None:
    """The dimension along which a dynamic-slice takes, on each rank, the part with its number."""
    full, part = body.nodes[node.operands[0]].array.shape, node.array.shape
    sliced = [k for k, size in enumerate(full) if size != part[k]]
    if len(sliced) != 1 or len(node.operands) != 1 + len(full):
        return None
    (dimension,) = sliced
    size = part[dimension]
    start = numbers.of(node.operands[1 + dimension])
    if start is None or full[dimension] != size * _group_size(groups):
        return None
    own_start = np.zeros(len(start), np.int64)
    for group in groups:
        own_start[list(group)] = np.arange(len(group)) * size
    clamped = np.clip(start, 0, full[dimension] - size)
    return dimension if (clamped == own_start).all() else None


def _split(module: Module, body: Computation, splits: Sequence[_Split]) -> Computation:
    """The computation with the cones in parts, each part where its first user is."""
    rebuild = Rebuild(body)
    inside = {position: split for split in splits for position in split.cone.nodes}
    leaving = {
        user: split for split in splits if split.dimension is not None for user in split.cone.users
    }
    shards: dict[int, Shards] = {}  # by all-reduce
    for position, node in enumerate(body.nodes):
        split = leaving.get(position)
        if split is not None and split.dimension is not None:
            key = split.cone.all_reduce
            if key not in shards:
                starts = tuple(rebuild.new_ids[start] for start in node.operands[1:])
                part = SlicedPart(split.dimension, _group_size(split.groups), starts)
                shards[key] = Shards(rebuild, body, split.cone, part)
            rebuild.new_ids.append(shards[key].of(node.operands[0]))
        elif position not in inside:
            rebuild.new_ids.append(rebuild.add(rebuild.rewired(node)))
        elif inside[position].dimension is None and position in inside[position].cone.ends:
            rebuild.new_ids.append(_gathered(rebuild, module, body, inside[position]))
        else:
            rebuild.new_ids.append(DROPPED)
    return rebuild.finish()


def _gathered(rebuild: Rebuild, module: Module, body: Computation, split: _Split) -> NodeId:
    """The end of a cone, computed in parts that an all-gather joins."""
    (end,) = split.cone.ends
    node, total = body.nodes[end], body.nodes[split.cone.all_reduce]
    parts, elements = _group_size(split.groups), node.array.elements
    start = _own_start(rebuild, module, split.groups, node, elements // parts)
    part = Shards(rebuild, body, split.cone, FlatPart(parts, start)).of(end)
    kept = {key: value for key, value in total.attributes.items() if key != "to_apply"}
    flat = ArrayType(node.array.dtype, (elements,))
    gathered = rebuild.add(
        Node(
            rebuild.fresh(f"{node.name}.gathered"),
            "all-gather",
            flat,
            (part,),
            {**kept, "dimensions": (0,)},
            node.span,
        )
    )
    return rebuild.add(Node(node.name, "reshape", node.array, (gathered,), {}, node.span))
