"""Tiles: whether one instruction can work on a cluster of nodes with what SBUF holds.

An instruction that performs a whole cluster walks over its arrays tile by tile: it loads a tile of
each operand, computes, and stores a tile of each result. What it does to one dimension of an array
it does to every dimension tied to it, so dimensions fall into *classes* (union-find over pairs of a
value and a dimension): elementwise operations tie equal dimensions, a broadcast or a transpose
those that it maps, a product its batch dimensions, its free ones and the two that it contracts. A
class has one of three roles:

- *whole*: a reduction or a product reduces it, and what comes of that meets the class again, as
  the sum of a softmax does. All of it must pass before the second meeting.
- *accumulated*: its reductions never meet it again. Tiles of it pass one after the other, and
  what they add up to stays in SBUF (or PSUM) meanwhile.
- *parallel*: nothing reduces it.

Tiles take 128 elements of one class that is not whole, one for each partition, and one element of
all others that are not. A cluster runs in *phases*: a node that reads the result of a reduction is
a phase behind it. Within a phase, values pass in rows of a few hundred bytes; what a later phase
reads again must be *held*, its tile as wide as the classes that are whole. This is what limits a
cluster: a softmax of float32 holds its scores, 4 bytes a key and partition.

Scheme and words follow polyhedral schedulers and TVM's `compute_at` (Chen et al., OSDI 2018); what
is held in attention is what FlashAttention keeps in SRAM (Dao et al., NeurIPS 2022), except that
rows stay whole, so that no value changes.
"""

import enum
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs

from ncc_compiler.ir.graph import Computation, Node
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.work.work import DMA_ROW_BYTES, PARTITIONS, SBUF_BYTES

TILE_BYTES = SBUF_BYTES // 2
"""What a tile may hold: the other half is for what the next one loads, and what all need."""

_PSUM_COLUMNS = 4096
"""Columns of float32 that PSUM adds up at a time: 8 banks of 2 KiB a partition (nki guides)."""


class DimensionRole(enum.Enum):
    """How tiles take the elements of a class of dimensions."""

    PARALLEL = "parallel"
    ACCUMULATED = "accumulated"
    WHOLE = "whole"


@attrs.frozen
class Tiling:
    """How one instruction would walk over the arrays of a cluster."""

    classes: Mapping[int, tuple[int, ...]]  # by node of the cluster: the class of each dimension
    roles: Mapping[int, DimensionRole]  # by class
    partitioned: int | None  # the class that lies across the partitions
    held: tuple[int, ...]  # nodes, or operands of the cluster, held from phase to phase
    tile_bytes: int  # of what is held at a time
    passing_bytes: int  # rows that pass by, those included that are loaded or stored meanwhile
    resident_bytes: int  # operands of products that all tiles need
    accumulated_bytes: int  # sums that stay until all tiles have passed

    @property
    def fits(self) -> bool:
        stays = self.resident_bytes + self.accumulated_bytes
        total = self.tile_bytes + self.passing_bytes + stays
        return self.tile_bytes <= TILE_BYTES and total <= SBUF_BYTES


def fits(computation: Computation, cluster: Collection[int]) -> bool:
    """Whether one instruction can perform these nodes, given by position, through SBUF.

    Linear in the number of nodes and their dimensions.
    """
    members = sorted(cluster)
    nodes = computation.nodes
    if not any(nodes[member].op in _REDUCING for member in members):
        # Nothing to hold: the number of rows that pass bounds what they take, whatever they are.
        operands = {operand for member in members for operand in nodes[member].operands}
        if _passing_bytes(len(operands.union(members))) <= SBUF_BYTES:
            return True
    return tiling(computation, members).fits


def tiling(computation: Computation, cluster: Collection[int]) -> Tiling:
    """The tiling of a cluster, which is closed: a path between two of its nodes stays inside."""
    return _Analysis(computation, sorted(cluster)).tiling()


_REDUCING = frozenset({"reduce", "dot"})
_GENERATED = frozenset({"iota", "constant"})
_ALONG_DIMENSIONS = frozenset({"slice", "concatenate", "pad", "dynamic-slice", "reverse"})
"""Ops whose result shares the dimensions of its operand in which their sizes agree."""

Value = int | tuple[int, int]
"""A node; or operand k of a node, where each reader has a view of its own.

Vectors and what is generated are such: positions that are broadcast to rows and to columns are
read twice, and do not tie the two. So are operands of products: queries that are the keys, too,
do not tie rows of scores to columns.
"""


def _passing_bytes(values: int) -> int:
    """SBUF for a row of so many values in each partition, and for the next one."""
    return 2 * values * PARTITIONS * DMA_ROW_BYTES


def _array(node: Node) -> ArrayType:
    """The type of a node, of several results that of the first: they have one shape."""
    kind = node.type
    while isinstance(kind, TupleType):
        kind = kind.elements[0]
    assert isinstance(kind, ArrayType), node.name
    return kind


def _is_vector(kind: ArrayType) -> bool:
    """Whether it has at most one dimension of more than one element."""
    return max(kind.shape, default=1) == kind.elements


def _bytes_per_element(node: Node) -> int:
    kind = node.type
    kinds = kind.elements if isinstance(kind, TupleType) else (kind,)
    return sum(each.dtype.size_bytes for each in kinds if isinstance(each, ArrayType))


class _UnionFind:
    """Disjoint sets of numbers, with path halving (Tarjan and van Leeuwen, 1984)."""

    def __init__(self) -> None:
        self._parents: list[int] = []

    def add(self, count: int) -> range:
        first = len(self._parents)
        self._parents.extend(range(first, first + count))
        return range(first, first + count)

    def find(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def union(self, one: int, other: int) -> None:
        self._parents[self.find(one)] = self.find(other)


class _Analysis:
    """The classes, roles and phases of one cluster."""

    def __init__(self, computation: Computation, members: Sequence[int]) -> None:
        self._nodes = computation.nodes
        self._members = members
        self._inside = frozenset(members)
        self._sets = _UnionFind()
        self._dimensions: dict[Value, range] = {}
        self._reduced: dict[int, list[int]] = {}  # by reducing member: dimensions, then classes
        self._opaque: list[int] = []  # dimensions that some member needs whole
        self._known_classes: dict[Value, tuple[int, ...]] = {}
        for member in members:
            self._tie(member, self._nodes[member])

    # Classes

    def _value(self, member: int, k: int) -> Value:
        """Operand k of a member as the value that it is."""
        operand = self._nodes[member].operands[k]
        node = self._nodes[operand]
        is_own = node.op in _GENERATED or (
            operand not in self._inside
            and (self._nodes[member].op == "dot" or _is_vector(_array(node)))
        )
        return (member, k) if is_own else operand

    def _node_of(self, value: Value) -> int:
        return self._nodes[value[0]].operands[value[1]] if isinstance(value, tuple) else value

    def _dims(self, value: Value) -> range:
        if value not in self._dimensions:
            rank = _array(self._nodes[self._node_of(value)]).rank
            self._dimensions[value] = self._sets.add(rank)
        return self._dimensions[value]

    def _tie(self, member: int, node: Node) -> None:
        """Tie the dimensions of a member to those of its operands."""
        result = self._dims(member)
        values = [self._value(member, k) for k in range(len(node.operands))]
        sources = [self._dims(value) for value in values]
        match node.op:
            case "broadcast":
                self._unite(sources[0], [result[d] for d in node.integers("dimensions")])
            case "transpose":
                self._unite([sources[0][d] for d in node.integers("dimensions")], result)
            case "reshape" | "bitcast":
                self._tie_reshape(values[0], member)
            case "reduce":
                self._tie_reduce(member, node, sources)
            case "dot":
                self._tie_dot(member, node, sources)
            case op if op in _ALONG_DIMENSIONS:
                for value in values:
                    self._tie_along(value, member)
            case _:
                for source in sources:
                    if len(source) in (0, len(result)):
                        self._unite(source, result[: len(source)])
                    else:
                        self._opaque += [*source, *result]

    def _unite(self, ones: Sequence[int], others: Sequence[int]) -> None:
        for one, other in zip(ones, others, strict=True):
            self._sets.union(one, other)

    def _tie_reshape(self, source: Value, member: int) -> None:
        """Tie runs of dimensions that have equally many elements; a merged or split run is one."""
        old, new = self._dims(source), self._dims(member)
        shapes = [_array(self._nodes[self._node_of(value)]).shape for value in (source, member)]
        for olds, news in _reshape_runs(*shapes):
            run = [*(old[d] for d in olds), *(new[d] for d in news)]
            self._unite(run[1:], run[:-1])

    def _tie_reduce(self, member: int, node: Node, sources: Sequence[range]) -> None:
        arrays = sources[: len(sources) // 2]
        dimensions = node.integers("dimensions")
        for array in arrays[1:]:
            self._unite(array, arrays[0])
        kept = [dim for d, dim in enumerate(arrays[0]) if d not in dimensions]
        self._unite(kept, self._dims(member))
        self._reduced[member] = [arrays[0][d] for d in dimensions]

    def _tie_dot(self, member: int, node: Node, sources: Sequence[range]) -> None:
        left, right = sources[:2]
        result = iter(self._dims(member))
        batch = [node.integers(f"{side}_batch_dims") for side in ("lhs", "rhs")]
        contracted = [node.integers(f"{side}_contracting_dims") for side in ("lhs", "rhs")]
        for one, other in zip(*batch, strict=True):
            self._sets.union(left[one], right[other])
            self._sets.union(left[one], next(result))
        for side, dims in enumerate((left, right)):
            for d, dim in enumerate(dims):
                if d not in batch[side] and d not in contracted[side]:
                    self._sets.union(dim, next(result))
        for one, other in zip(*contracted, strict=True):
            self._sets.union(left[one], right[other])
        self._reduced[member] = [left[d] for d in contracted[0]]

    def _tie_along(self, source: Value, member: int) -> None:
        old, new = self._dims(source), self._dims(member)
        shapes = [_array(self._nodes[self._node_of(value)]).shape for value in (source, member)]
        if len(old) != len(new):  # an index
            return
        for one, other, sizes in zip(old, new, zip(*shapes, strict=True), strict=True):
            if sizes[0] == sizes[1]:
                self._sets.union(one, other)
            else:
                self._opaque += [one, other]

    def _classes(self, value: Value) -> tuple[int, ...]:
        """The classes of its dimensions; of no use before all members are tied."""
        classes = self._known_classes.get(value)
        if classes is None:
            classes = tuple([self._sets.find(dimension) for dimension in self._dims(value)])
            self._known_classes[value] = classes
        return classes

    def _shape(self, value: Value) -> tuple[int, ...]:
        return _array(self._nodes[self._node_of(value)]).shape

    # Roles

    def _roles(self) -> dict[int, DimensionRole]:
        """The role of each class that has more than one element."""
        roles = {
            kind: DimensionRole.PARALLEL
            for value in self._dimensions
            for kind, size in zip(self._classes(value), self._shape(value), strict=True)
            if size != 1
        }
        reducers: dict[int, int] = {}  # by class: bits of the members that reduce it
        bits: dict[Value, int] = {member: 1 << k for k, member in enumerate(self._reduced)}
        for member, dimensions in self._reduced.items():
            for kind in map(self._sets.find, dimensions):
                if kind in roles:
                    roles[kind] = DimensionRole.ACCUMULATED
                    reducers[kind] = reducers.get(kind, 0) | bits[member]
        before: dict[Value, int] = {}  # by member: bits of the reductions that it depends on
        for member in self._members:
            values = [self._value(member, k) for k in range(len(self._nodes[member].operands))]
            inner = [value for value in values if value in before]
            before[member] = 0
            for value in inner:
                before[member] |= before[value] | bits.get(value, 0)
            if before[member]:
                met = {kind for value in (member, *values) for kind in self._classes(value)}
                for kind in met & reducers.keys():
                    if before[member] & reducers[kind]:
                        roles[kind] = DimensionRole.WHOLE
        for dimension in self._opaque:
            if self._sets.find(dimension) in roles:
                roles[self._sets.find(dimension)] = DimensionRole.WHOLE
        return roles

    # Phases

    def _held(self) -> dict[Value, range]:
        """What is held, and from the end of which phase to the end of which."""
        phases: dict[Value, int] = {}
        free: set[Value] = set()
        reads: dict[Value, list[int]] = {}  # by value: the phases in which it is read
        for member in self._members:
            node = self._nodes[member]
            values = [self._value(member, k) for k in range(len(node.operands))]
            inner = [value for value in values if value in phases]
            # a reduction's result is there when its phase is over
            phase = max((phases[value] + (value in self._reduced) for value in inner), default=0)
            phases[member] = phase
            if node.op not in _REDUCING and all(self._is_free(value, free) for value in values):
                free.add(member)
            for k, value in enumerate(values):
                in_rounds = node.op == "dot" and self._is_read_in_rounds(node, k)
                source = self._source(value)
                if not self._is_free(source, free):
                    reads.setdefault(source, []).append(phase + in_rounds)
        held: dict[Value, range] = {}
        for value, read in reads.items():
            first = phases.get(value, min(read)) + (value in self._reduced)
            if max(read) > first:
                held[value] = range(first, max(read))
        return held

    def _is_free(self, value: Value, free: Collection[Value]) -> bool:
        """Whether each phase can make a value again, of positions, constants and vectors alone."""
        return isinstance(value, tuple) or value in free

    def _source(self, value: Value) -> Value:
        """What is held for a value: the operand of a broadcast."""
        while value in self._inside and self._nodes[value].op == "broadcast":
            value = self._value(value, 0)
        return value

    def _is_read_in_rounds(self, node: Node, k: int) -> bool:
        """Whether a product made here needs its operand k again, for more columns than PSUM has."""
        if node.operands[k] not in self._inside:
            return False
        side = ("rhs", "lhs")[k]
        other = _array(self._nodes[node.operands[1 - k]])
        named = (*node.integers(f"{side}_batch_dims"), *node.integers(f"{side}_contracting_dims"))
        columns = math.prod(size for d, size in enumerate(other.shape) if d not in named)
        return columns > _PSUM_COLUMNS

    # What it takes

    def tiling(self) -> Tiling:
        roles = self._roles()
        held = self._held()
        partitioned, rows = self._partitioned(roles, held)
        tile = max(self._bytes_at_ends(held, roles, partitioned), default=0)
        resident = 0
        if any(partitioned in self._classes(value) for value in held):
            resident = self._resident_bytes(roles, partitioned)
            whole = tile * -(-rows // PARTITIONS)
            if tile + resident > SBUF_BYTES and whole <= TILE_BYTES:
                tile, resident = whole, 0  # one tile has all rows: the other operands pass by once
        return Tiling(
            {member: self._classes(member) for member in self._members},
            roles,
            partitioned,
            tuple(map(self._node_of, held)),
            tile,
            _passing_bytes(self._alive_at_once()),
            resident,
            self._accumulated_bytes(roles, partitioned),
        )

    def _partitioned(
        self, roles: Mapping[int, DimensionRole], held: Iterable[Value]
    ) -> tuple[int | None, int]:
        """The class across the partitions, and its size: the largest one in what is held.

        Batch dimensions of products are not: the Tensor engine works on one batch at a time.
        """
        batches = {
            self._classes(self._value(member, 0))[d]
            for member in self._reduced
            if self._nodes[member].op == "dot"
            for d in self._nodes[member].integers("lhs_batch_dims")
        }
        sizes: dict[int, int] = {}
        for value in held:
            for kind, size in self._sizes(value).items():
                if roles[kind] is not DimensionRole.WHOLE and kind not in batches:
                    sizes[kind] = max(sizes.get(kind, 1), size)
        largest = max(sizes, key=lambda kind: sizes[kind], default=None)
        return largest, sizes.get(largest, 1) if largest is not None else 1

    def _sizes(self, value: Value) -> dict[int, int]:
        """How many elements of each class a value has; those of one element are left out."""
        sizes: dict[int, int] = {}
        for kind, size in zip(self._classes(value), self._shape(value), strict=True):
            if size != 1:
                sizes[kind] = sizes.get(kind, 1) * size
        return sizes

    def _bytes(self, value: Value, extents: Mapping[int, int]) -> int:
        """Bytes of a part of a value that takes so many elements of some classes, all of others."""
        elements = math.prod(
            min(size, extents.get(kind, size)) for kind, size in self._sizes(value).items()
        )
        return elements * _bytes_per_element(self._nodes[self._node_of(value)])

    def _bytes_at_ends(
        self,
        held: Mapping[Value, range],
        roles: Mapping[int, DimensionRole],
        partitioned: int | None,
    ) -> Iterator[int]:
        """Bytes that a tile holds at the end of each phase."""
        extents = {kind: 1 for kind, role in roles.items() if role is not DimensionRole.WHOLE}
        if partitioned is not None:
            extents[partitioned] = PARTITIONS
        sizes = [
            (phases, self._bytes(value, extents))
            for value, phases in held.items()
            if not self._is_operand_of_all(value, partitioned)
        ]
        for phase in range(max((phases.stop for phases, _ in sizes), default=0)):
            yield sum(size for phases, size in sizes if phase in phases)

    def _is_operand_of_all(self, value: Value, partitioned: int | None) -> bool:
        """Whether a product reads it for all tiles: counted as resident."""
        if partitioned is None or partitioned in self._classes(value):
            return False
        node = self._node_of(value)
        return any(
            node in self._nodes[member].operands
            for member in self._reduced
            if self._nodes[member].op == "dot"
        )

    def _resident_bytes(self, roles: Mapping[int, DimensionRole], partitioned: int | None) -> int:
        """Operands of products without the class that lies across the partitions.

        Each tile needs them, so they stay, or would be read again for each tile. Of classes that
        tiles of other batches take, one element.
        """
        resident: dict[int, int] = {}
        for member in self._reduced:
            node = self._nodes[member]
            if node.op != "dot":
                continue
            for k, side in enumerate(("lhs", "rhs")):
                value = self._value(member, k)
                classes = self._classes(value)
                if partitioned in classes or partitioned not in self._classes(
                    self._value(member, 1 - k)
                ):
                    continue
                batches = {classes[d] for d in node.integers(f"{side}_batch_dims")}
                one = {kind: 1 for kind in batches if roles.get(kind) is not DimensionRole.WHOLE}
                stored = self._stored(value)
                resident[self._node_of(stored)] = self._bytes(stored, one)
        return sum(resident.values())

    def _stored(self, value: Value) -> Value:
        """What stays for an operand: what it is converted or moved from, if that is no larger."""
        while isinstance(value, int) and value in self._inside:
            node = self._nodes[value]
            if node.op not in ("convert", "transpose"):
                break
            source = self._value(value, 0)
            if _bytes_per_element(self._nodes[self._node_of(source)]) > _bytes_per_element(node):
                break
            value = source
        return value

    def _accumulated_bytes(
        self, roles: Mapping[int, DimensionRole], partitioned: int | None
    ) -> int:
        """What reductions add up to while tiles pass one after the other."""
        reduced = {
            member: set(map(self._sets.find, dimensions)) & roles.keys()
            for member, dimensions in self._reduced.items()
        }
        total = 0
        for member, kinds in reduced.items():
            if all(roles[kind] is not DimensionRole.ACCUMULATED for kind in kinds):
                continue
            extents = dict.fromkeys(self._outer_classes(member, reduced, roles), 1)
            if partitioned is not None and partitioned not in kinds:
                extents[partitioned] = PARTITIONS  # its tiles come outside of all others
            total += self._bytes(member, extents)
        return total

    def _outer_classes(
        self, member: int, reduced: Mapping[int, set[int]], roles: Mapping[int, DimensionRole]
    ) -> Iterator[int]:
        """The classes of a reduction's result of which it adds up one tile after the other.

        Not those over which something else is reduced that has what this one adds up: tiles of the
        one come inside of those of the other. Nor a free dimension of a product whose other operand
        is made here: that would be made again for each tile.
        """
        node = self._nodes[member]
        made = {kind for k in range(2) for kind in self._made_once(node, member, k)}
        for kind in self._classes(member):
            others = [other for other, kinds in reduced.items() if kind in kinds]
            if others:
                if not any(reduced[member] & set(self._classes(other)) for other in others):
                    yield kind
            elif roles.get(kind) is DimensionRole.PARALLEL and kind not in made:
                yield kind

    def _made_once(self, node: Node, member: int, k: int) -> set[int]:
        """The classes of a product's result that an operand lacks which is made in the cluster."""
        if node.op != "dot" or node.operands[k] not in self._inside:
            return set()
        return set(self._classes(member)) - set(self._classes(self._value(member, k)))

    def _alive_at_once(self) -> int:
        """The most values of which rows pass at the same time, operands and results included."""
        last: dict[int, int] = {}
        for member in self._members:
            last.update(dict.fromkeys(self._nodes[member].operands, member))
        ends: dict[int, int] = {}
        for position, member in last.items():
            ends[member] = ends.get(member, 0) + (position in self._inside)
        alive = most = 0
        for member in self._members:
            alive += 1
            most = max(most, alive)
            alive -= ends.get(member, 0)
        return most + sum(position not in self._inside for position in last)


def _reshape_runs(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of dimensions, old and new, that have equally many elements.

    Dimensions of size 1 are in none.
    """
    if 0 in old:
        yield list(range(len(old))), list(range(len(new)))
        return
    olds = [d for d, size in enumerate(old) if size != 1]
    news = [d for d, size in enumerate(new) if size != 1]
    while olds and news:
        one, other = [olds.pop(0)], [news.pop(0)]
        while (left := math.prod(old[d] for d in one)) != (
            right := math.prod(new[d] for d in other)
        ):
            if left < right:
                one.append(olds.pop(0))
            else:
                other.append(news.pop(0))
        yield one, other
