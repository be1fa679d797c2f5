"""What elementwise operations make of a sum, computed by each rank for its own part of it."""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_compiler.ir.collectives import AVERAGING
from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.ir.ops_elementwise import ELEMENTWISE_ROWS
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.passes.rebuild import Rebuild
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.groups import Groups

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
    found, pending = {all_reduce}, [all_reduce]
    outside, ends = set[int](), {int(body.root)}
    while pending:
        one = pending.pop()
        for user in users[one]:
            node = body.nodes[user]
            if node.op not in _ANY_SHAPE or node.array.shape != shape:
                outside.add(user)
                ends.add(one)
            elif user not in found:
                found.add(user)
                pending.append(user)
        if len(found) > _LARGEST_CONE:
            return None
    inner = tuple(sorted(found - {all_reduce}))
    return Cone(all_reduce, inner, tuple(sorted(outside)), frozenset(ends & found))


@attrs.frozen
class SlicedPart:
    """A rank's own part along a dimension, as a dynamic-slice of the program cuts it."""

    dimension: int
    parts: int
    starts: tuple[NodeId, ...]  # of the dynamic-slice, as they are now

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            size // self.parts if k == self.dimension else size for k, size in enumerate(whole)
        )

    def cut(self, rebuild: Rebuild, source: Node, whole: NodeId) -> NodeId:
        kind = rebuild.type_of(whole)
        part = ArrayType(kind.dtype, self.shape(kind.shape))
        sizes = {"dynamic_slice_sizes": part.shape}
        return rebuild.derived(source, "dynamic-slice", part, (whole, *self.starts), **sizes)


@attrs.frozen
class FlatPart:
    """A rank's own part as a stretch of the elements in row-major order."""

    parts: int
    start: NodeId  # of the rank's own stretch
    dimension: int = 0

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        return (int(np.prod(whole, dtype=np.int64)) // self.parts,)

    def flattened(self, rebuild: Rebuild, source: Node, whole: NodeId) -> NodeId:
        kind = rebuild.type_of(whole)
        return rebuild.derived(source, "reshape", ArrayType(kind.dtype, (kind.elements,)), [whole])

    def cut(self, rebuild: Rebuild, source: Node, whole: NodeId) -> NodeId:
        flat = self.flattened(rebuild, source, whole)
        kind = rebuild.type_of(flat)
        part = ArrayType(kind.dtype, self.shape(kind.shape))
        sizes = {"dynamic_slice_sizes": part.shape}
        return rebuild.derived(source, "dynamic-slice", part, (flat, self.start), **sizes)


Part = SlicedPart | FlatPart


def own_start(rebuild: Rebuild, module: Module, groups: Groups, source: Node, size: int) -> NodeId:
    """Where the stretch of `size` elements begins that a rank has by its place in its group."""
    starts = np.zeros(module.ranks, np.int32 if size * len(groups[0]) < 2**31 else np.int64)
    for group in groups:
        starts[list(group)] = np.arange(len(group)) * size
    dtype = DType.S32 if starts.dtype == np.int32 else DType.S64
    whole, one = ArrayType(dtype, (module.ranks,)), ArrayType(dtype, (1,))
    table = rebuild.constant(source, whole, starts)
    rank = rebuild.rank(source, module)
    found = rebuild.derived(source, "dynamic-slice", one, [table, rank], dynamic_slice_sizes=(1,))
    return rebuild.derived(source, "reshape", ArrayType(dtype), [found])


class Shards:
    """The parts of a cone's values, added to a computation in the making."""

    def __init__(self, rebuild: Rebuild, body: Computation, cone: Cone, part: Part) -> None:
        self._rebuild, self._body, self._cone, self._part = rebuild, body, cone, part
        self._parts: dict[int, NodeId] = {}

    def of(self, position: int) -> NodeId:
        """The part of a node of the cone; adds what is needed for it and stands before it."""
        for one in (self._cone.all_reduce, *self._cone.inner):
            if one <= position and one not in self._parts:
                self._parts[one] = self._added(one)
        return self._parts[position]

    def _added(self, position: int) -> NodeId:
        node, rebuild = self._body.nodes[position], self._rebuild
        kind = ArrayType(node.array.dtype, self._part.shape(node.array.shape))
        if position == self._cone.all_reduce:
            op = "ncc.avg_reduce_scatter" if node.op in AVERAGING else "reduce-scatter"
            whole = rebuild.new_ids[node.operands[0]]
            if isinstance(self._part, FlatPart):
                whole = self._part.flattened(rebuild, node, whole)
            attributes = {**node.attributes, "dimensions": (self._part.dimension,)}
            return rebuild.add(Node(node.name, op, kind, (whole,), attributes, node.span))
        operands = tuple(self._operand(node, operand) for operand in node.operands)
        name = rebuild.fresh(node.name)
        return rebuild.add(attrs.evolve(node, name=name, type=kind, operands=operands))

    def _operand(self, user: Node, operand: NodeId) -> NodeId:
        """The part of what an operation of the cone reads."""
        if operand in self._parts:
            return self._parts[operand]
        source = self._body.nodes[operand]
        if source.array.shape == () != user.array.shape:
            return self._rebuild.new_ids[operand]
        found = self._repeated(source)
        if found is None:
            found = self._part.cut(self._rebuild, source, self._rebuild.new_ids[operand])
        self._parts[operand] = found
        return found

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
