"""Which operations become one instruction: the clusters of the pass `fuse`.

One walk from the last node to the first, each before what it reads. A node whose readers all lie in
one cluster joins it. A node with other readers, too, joins as one more result, and clusters that
read the same large value join each other. What costs next to nothing to compute (broadcasts, iotas,
scalar constants, conversions of stored values to wider types) is copied into every cluster that
reads it.

**No cycle can come of it.** Nodes have ranks, a topological order in which what may be fused comes
as early as it can. A cluster has the rank of its last node, and every edge between clusters leads
to a greater rank: a node joins a cluster only if all its other readers have greater ranks than
that. So one comparison decides, and no search is needed. A state that is updated in place counts
its earlier readers as if the update read them (`anti_dependences`), so it stays in place.

**No collective waits for more.** The nodes of a cluster depend on the same collectives; of a stored
value a single operation may be computed later than it could (`_may_be_delayed`). Nor does a
collective wait for work of others: what leads to fewer collectives than a result does may only be a
closing reduction of it, which costs little beside the value's own work.
"""

import enum
import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_compiler.codegen.select import SELECTORS
from ncc_compiler.ir.collectives import reduction_of
from ncc_compiler.ir.graph import Computation, Module, Node, Padding
from ncc_compiler.ir.ops import BARRIERS, OPS
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.overlap import tiles
from ncc_compiler.overlap.analyses import (
    Bits,
    ancestors_among,
    descendants_among,
    live_ranges_of,
)
from ncc_compiler.overlap.cost_model import is_heavy
from ncc_compiler.overlap.order_constraints import anti_dependences
from ncc_compiler.overlap.schedule import region_ids_of
from ncc_compiler.passes.rebuild import users_of
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.work.work import PARTITIONS

_VIEWS = frozenset({"reshape", "bitcast"})
_NAMES = frozenset({"tuple", "get-tuple-element", "after-all"})
_ELEMENTWISE = frozenset(
    op
    for op, selection in SELECTORS.items()
    if op != "copy"
    and OPCODES[selection.opcode].shape in (Shape.UNARY, Shape.BINARY, Shape.TERNARY)
)


_MANY = 64
"""From so many nodes on a cluster is asked only now and then whether it fits SBUF."""

_NEGLIGIBLE_RATIO = 64
"""An array that is so many times smaller than another costs nothing beside it."""

_MOST_DELAYED = 16
"""Nodes of a cluster that could run before a collective that it waits for."""

_MOST_EXPANDED = 16
"""Nodes that are looked through to see what a value is made of."""

_MOST_MERGED = 16
"""Clusters that are looked at for one shared value, so that the walk takes linear time."""

_MOST_READERS = 256
"""Clusters that more nodes read stay as they are, for the same reason."""


_OTHERS = frozenset({"concatenate", "pad", "reduce", "slice"})


class NodeRole(enum.Enum):
    """What the pass may do with a node."""

    FUSED = enum.auto()  # in one cluster, perhaps as a result
    COPIED = enum.auto()  # in every cluster that reads it, and by itself where others do
    VIEW = enum.auto()  # copied too, but by itself it is no instruction
    CONSTANT = enum.auto()  # a scalar, which instructions carry
    NAME = enum.auto()  # by itself, and no instruction
    OTHER = enum.auto()  # by itself


_COPIES = frozenset({NodeRole.COPIED, NodeRole.VIEW, NodeRole.CONSTANT})


@attrs.frozen
class Cluster:
    """Nodes that become one instruction, by position and in order."""

    nodes: tuple[int, ...]
    results: tuple[int, ...]  # of these nodes: those that are read outside
    at: int  # the node whose place the cluster takes
    kind: str = ""  # of its fusion; if empty, its results say


@attrs.frozen
class Clustering:
    """The clusters of a computation, and what stays by itself."""

    clusters: tuple[Cluster, ...]
    unfused: tuple[bool, ...]  # by node: whether it is computed by itself, too
    anti_dependences: Mapping[int, Sequence[int]]  # by node: others that stay before it


def clusters_of(module: Module, body: Computation, limit_nodes: int) -> Clustering:
    """The clusters of a computation that runs, of at most `limit_nodes` nodes each."""
    walk = _Walk(module, body, limit_nodes)
    walk.run()
    return walk.clustering()


def clustering_of(
    body: Computation,
    instructions: Sequence[tuple[set[int], set[int], int]],
    free: Collection[int],
    anti_dependences: Mapping[int, Sequence[int]],
    kind: str = "",
) -> Clustering:
    """Clusters of these members, copies and places of instructions.

    Of the `free` nodes those go that nobody reads outside of clusters.
    """
    is_read = [False] * len(body.nodes)  # by an unfused node, or by another cluster
    is_read[body.root] = True
    inner: set[int] = set()
    for members, copies, _ in instructions:
        inner.update(members)
        for position in (*members, *copies):
            for operand in body.nodes[position].operands:
                if operand not in members and operand not in copies:
                    is_read[operand] = True
    unfused = [False] * len(body.nodes)
    for position in range(len(body.nodes) - 1, -1, -1):
        if position not in inner and (is_read[position] or position not in free):
            unfused[position] = True
            for operand in body.nodes[position].operands:
                is_read[operand] = True
    clusters = [
        Cluster(
            nodes=tuple(sorted(members | copies)),
            results=tuple(position for position in sorted(members) if is_read[position]),
            at=at,
            kind=kind,
        )
        for members, copies, at in instructions
    ]
    return Clustering(tuple(clusters), tuple(unfused), anti_dependences)


def roles_of(module: Module, body: Computation) -> list[NodeRole]:
    """What may become of each node."""
    used = {operand for node in body.nodes for operand in node.operands} | {body.root}
    counters = _counters(body)
    roles = []
    for position, node in enumerate(body.nodes):
        role = _role(module, body, node)
        if role is NodeRole.FUSED and (position not in used or position in counters):
            role = NodeRole.OTHER
        roles.append(role)
    return roles


def _role(module: Module, body: Computation, node: Node) -> NodeRole:
    if node.op in _NAMES:
        return NodeRole.NAME
    if not isinstance(node.type, ArrayType):
        return NodeRole.OTHER
    if node.op == "constant":
        if not node.has_value():
            return NodeRole.OTHER
        if not node.type.shape:
            return NodeRole.CONSTANT
        return NodeRole.COPIED if node.literal().splat() is not None else NodeRole.OTHER
    if node.op in ("broadcast", "iota"):
        return NodeRole.COPIED
    if node.op not in _ELEMENTWISE and node.op not in _VIEWS and node.op not in _OTHERS:
        return NodeRole.OTHER
    if node.op in ("pad", "slice"):
        return NodeRole.FUSED if _is_large_part(body, node) else NodeRole.OTHER
    if node.op == "concatenate":
        return NodeRole.FUSED
    first = body.nodes[node.operands[0]]
    if node.op in _VIEWS:
        return NodeRole.VIEW if first.array.dtype is node.type.dtype else NodeRole.NAME
    if node.op == "convert":
        widens = node.type.dtype.size_bytes > first.array.dtype.size_bytes
        return NodeRole.COPIED if widens else NodeRole.FUSED
    if node.op == "bitcast-convert" and first.array.shape != node.type.shape:
        return NodeRole.OTHER
    if node.op == "reduce" and reduction_of(module.computations[node.callee()]) is None:
        return NodeRole.OTHER
    return NodeRole.FUSED


def _is_stored(body: Computation, position: int) -> bool:
    """Whether a value is there from the start, in memory that it keeps: a parameter or its part."""
    node = body.nodes[position]
    if node.op == "get-tuple-element":
        node = body.nodes[node.operands[0]]
    return node.op in ("parameter", "constant")


def _is_large_part(body: Computation, node: Node) -> bool:
    """Whether of an array and its slice, or its padding, one is at most twice the other.

    Whole arrays are read and written then, as rows that lie together.
    """
    source = body.nodes[node.operands[0]].array
    if node.op == "slice":
        is_dense = all(stride == 1 for _, _, stride in node.ranges())
        return is_dense and 2 * node.array.elements >= source.elements
    padding = node.attributes["padding"]
    assert isinstance(padding, Padding), node.name
    is_dense = all(not interior for _, _, interior in padding.dimensions)
    return is_dense and 2 * source.elements >= node.array.elements


def _counters(body: Computation) -> frozenset[int]:
    """What counts the iterations of a loop, for `codegen/trip_count.py` to recognise."""
    root = body.nodes[body.root]
    if not isinstance(root.type, TupleType):
        return frozenset()
    return frozenset(
        operand
        for operand in root.operands
        if body.nodes[operand].op in ("add", "subtract")
        and not body.nodes[operand].array.shape
        and body.nodes[operand].array.dtype.is_integer
        and any(_is_stored(body, source) for source in body.nodes[operand].operands)
    )


def fusion_ranks(
    module: Module,
    body: Computation,
    roles: Sequence[NodeRole],
    region_ids: Sequence[int],
    others_before: Mapping[int, Sequence[int]],
) -> list[int]:
    """Nodes in a topological order that takes what may be fused first, region by region."""
    users: list[list[int]] = [[] for _ in body.nodes]
    missing = [0] * len(body.nodes)
    for position, node in enumerate(body.nodes):
        for before in {*node.operands, *others_before.get(position, ())}:
            users[before].append(position)
            missing[position] += 1
    keys = [
        (region, _priority(module, node, role), position)
        for position, (node, role, region) in enumerate(
            zip(body.nodes, roles, region_ids, strict=True)
        )
    ]
    ready = [key for key, count in zip(keys, missing, strict=True) if not count]
    heapq.heapify(ready)
    ranks = [0] * len(body.nodes)
    rank = 0
    while ready:
        *_, position = heapq.heappop(ready)
        ranks[position] = rank
        rank += 1
        for user in users[position]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, keys[user])
    assert rank == len(body.nodes), "what stays before a node also comes after it"
    return ranks


def _priority(module: Module, node: Node, role: NodeRole) -> int:
    """Smaller goes first."""
    if role is not NodeRole.OTHER or node.op in ("constant", "parameter"):
        return 0
    return 2 if is_heavy(module, node) or OPS[node.op].collective else 1


@attrs.define(eq=False)
class _OpenCluster:
    """A cluster that may still grow."""

    last: int  # the node that it began with
    rank: int  # of its last node, in the order of ranks
    at: int  # the position of the node whose place it takes
    region: int
    before: Bits  # collectives and barriers that it depends on
    leads_to: Bits  # collectives that depend on it
    extent: int  # elements of its largest array
    members: list[int]
    copies: set[int] = attrs.field(factory=set)
    readers: set[int] = attrs.field(factory=set)  # of its results
    writers: set[int] = attrs.field(factory=set)  # what stays behind it
    has_reduction: bool = False
    fitting: int = 1  # the first so many members are known to fit
    is_closing: bool = True  # all results are those of reductions
    delayed: int = 0  # members that wait for more collectives than they depend on


class _Walk:
    """Clusters in the making."""

    def __init__(self, module: Module, body: Computation, limit_nodes: int) -> None:
        self._body = body
        self._limit_nodes = limit_nodes
        count = len(body.nodes)
        self._end = count  # a reader that stands for what reads the root
        self._roles = roles_of(module, body)
        self._regions = region_ids_of(body)
        self._anti = anti_dependences(body, live_ranges_of(body, self._regions))
        self._ranks = fusion_ranks(module, body, self._roles, self._regions, self._anti)
        self._users = users_of(body)
        self._writers: dict[int, list[int]] = {}  # of a state that a node reads
        for writer, readers in self._anti.items():
            for reader in readers:
                self._writers.setdefault(reader, []).append(writer)
        collectives = [p for p, node in enumerate(body.nodes) if OPS[node.op].collective]
        barriers = [p for p, node in enumerate(body.nodes) if node.op in BARRIERS]
        self._before = ancestors_among(body, [*collectives, *barriers])
        self._leads_to = descendants_among(body, collectives)
        # How many heavy operations come before a node: in program order, in that of ranks.
        heavy = np.array([is_heavy(module, node) for node in body.nodes], np.int64)
        self._heavy_before = np.cumsum(heavy).tolist()
        by_rank = np.argsort(np.array(self._ranks))
        self._heavy_by_rank = np.cumsum(heavy[by_rank]).tolist()
        self._last_use = [max(users, default=0) for users in self._users]
        self._last_use[body.root] = count
        self._cluster: dict[int, _OpenCluster] = {}  # by the last node of each
        self._parent = list(range(count + 1))  # of clusters that have joined others
        # What reads a node's operands on its behalf: the node, or clusters with copies of it.
        self._reads_as: list[tuple[int, ...]] = [()] * count
        self._rank_bounds = [*self._ranks, count]  # least rank of what stands behind a node

    def run(self) -> None:
        order = sorted(range(len(self._ranks)), key=self._ranks.__getitem__, reverse=True)
        for position in order:
            readers = self._readers(position)
            match self._roles[position]:
                case NodeRole.FUSED:
                    self._place(position, readers)
                    self._reads_as[position] = (position,)
                case NodeRole.COPIED | NodeRole.VIEW | NodeRole.CONSTANT:
                    self._reads_as[position] = self._copy(position, readers)
                case NodeRole.NAME:
                    self._bound_by_readers(position, readers)
                    self._reads_as[position] = (position,)
                case NodeRole.OTHER:
                    self._reads_as[position] = (position,)

    def _find(self, reader: int) -> int:
        """The last node of the cluster that a node has gone into, or the node itself."""
        while self._parent[reader] != reader:
            self._parent[reader] = self._parent[self._parent[reader]]
            reader = self._parent[reader]
        return reader

    def _rank_bound(self, reader: int) -> int:
        """A rank that what this reads stays below: of its cluster, of what reads a name first."""
        cluster = self._cluster.get(reader)
        return cluster.rank if cluster else self._rank_bounds[reader]

    def _readers(self, position: int) -> set[int]:
        """Who reads a node: other nodes, clusters by their last nodes, the end."""
        readers = {
            self._find(reader) for user in self._users[position] for reader in self._reads_as[user]
        }
        if position == self._body.root:
            readers.add(self._end)
        return readers

    def _bound_by_readers(self, position: int, readers: set[int]) -> None:
        """A name comes as late as the first that reads it."""
        bounds = [self._rank_bound(reader) for reader in readers]
        self._rank_bounds[position] = min(bounds, default=self._ranks[position])

    def _copy(self, position: int, readers: set[int]) -> tuple[int, ...]:
        """Copy a node into all clusters that read it; gives them, and the node if others do."""
        copied = []
        for reader in readers:
            cluster = self._cluster.get(reader)
            if cluster is not None and self._takes_copy(cluster, position):
                cluster.copies.add(position)
                cluster.writers.update(self._writers.get(position, ()))
                copied.append(reader)
        rest = readers.difference(copied)
        if rest:
            if self._roles[position] is NodeRole.COPIED:
                self._open(position, rest)
            else:
                self._bound_by_readers(position, rest)
            copied.append(position)
        return tuple(copied)

    def _takes_copy(self, cluster: _OpenCluster, position: int) -> bool:
        is_small = len(cluster.members) + len(cluster.copies) < self._limit_nodes
        return is_small and self._stays_before(cluster, self._writers.get(position, ()))

    def _stays_before(self, cluster: _OpenCluster, writers: Sequence[int] | set[int]) -> bool:
        """Whether these nodes, or their clusters, come after the cluster."""
        return all(self._rank_bound(self._find(writer)) > cluster.rank for writer in writers)

    def _open(self, position: int, readers: set[int]) -> None:
        """Begin a cluster with a node that is its last."""
        node = self._body.nodes[position]
        self._cluster[position] = _OpenCluster(
            last=position,
            rank=self._ranks[position],
            at=position,
            region=self._regions[position],
            before=self._before[position],
            leads_to=self._leads_to[position],
            extent=self._extent(node),
            members=[position],
            readers=readers,
            writers=set(self._writers.get(position, ())),
            has_reduction=node.op == "reduce",
            is_closing=node.op == "reduce",
        )

    def _extent(self, node: Node) -> int:
        """Elements of the largest array that a node reads or writes."""
        operands = self._body.operands_of(node) if node.op == "reduce" else ()
        return max(node.array.elements, *(operand.array.elements for operand in operands), 0)

    def _place(self, position: int, readers: set[int]) -> None:
        """Put a node into a cluster of its readers, or begin one with it."""
        earliest = min(readers, key=self._rank_bound)
        cluster = self._cluster.get(earliest)
        others = readers - {earliest}
        if cluster is None or not self._may_join(cluster, position, others):
            self._open(position, readers)
            return
        node = self._body.nodes[position]
        at = self._place_with(cluster, position, bool(others))
        assert at is not None, node.name
        cluster.at = at
        cluster.delayed += self._before[position] != cluster.before
        was_checked = self._is_to_check(cluster, node)  # as `_may_join` saw it
        cluster.members.append(position)
        self._parent[position] = cluster.last
        cluster.extent = max(cluster.extent, self._extent(node))
        cluster.leads_to |= self._leads_to[position]
        cluster.readers |= others
        cluster.writers.update(self._writers.get(position, ()))
        if was_checked:
            cluster.fitting = len(cluster.members)
        cluster.has_reduction |= node.op == "reduce"
        cluster.is_closing = cluster.is_closing and (not others or node.op == "reduce")
        candidates = sorted(others & self._cluster.keys(), key=self._rank_bound)
        for other in candidates[:_MOST_MERGED]:
            if self._may_merge(cluster, self._cluster[other], node.array.elements):
                cluster = self._merge(cluster, self._cluster[other])

    def _may_join(self, cluster: _OpenCluster, position: int, others: set[int]) -> bool:
        """Whether a node may become part of a cluster that reads it, as a result if others do."""
        node = self._body.nodes[position]
        if self._regions[position] != cluster.region:
            return False
        if len(cluster.members) + len(cluster.copies) >= self._limit_nodes:
            return False
        if any(self._rank_bound(other) <= cluster.rank for other in others):
            return False
        if not self._stays_before(cluster, self._writers.get(position, ())):
            return False
        if others:
            if node.array.elements == 1 < cluster.extent:
                return False  # scalars that many read are computed for themselves
            if self._leads_to[position] & ~cluster.leads_to and not cluster.is_closing:
                return False
        may_be_delayed = not others and self._may_be_delayed(cluster, position)
        if self._before[position] != cluster.before and not may_be_delayed:
            return False
        if self._place_with(cluster, position, bool(others)) is None:
            return False
        if node.op == "reduce" and not self._is_held(node):
            return False
        if not self._is_to_check(cluster, node):
            return True
        return self._fits((*cluster.members, *cluster.copies, position))

    def _is_held(self, node: Node) -> bool:
        """Whether SBUF could hold what a reduction reads, of which its readers may be made, too."""
        array = self._body.nodes[node.operands[0]].array
        rows = min(node.array.elements, PARTITIONS)
        row_bytes = array.size_bytes // max(1, node.array.elements)
        return rows * row_bytes <= tiles.TILE_BYTES

    def _is_to_check(self, cluster: _OpenCluster, node: Node) -> bool:
        """Whether to ask if a cluster fits with a node; that takes time, so not for each one.

        Reductions decide most of it. A large cluster is asked when it has grown by half, so that
        all answers together take linear time. In the end all are asked for, and cut if they do not
        fit (`_instructions`).
        """
        size = len(cluster.members)
        if size < _MANY:
            return node.op == "reduce"
        has_grown = 2 * size >= 3 * cluster.fitting
        return size & (size - 1) == 0 or (node.op == "reduce" and has_grown)

    def _may_be_delayed(self, cluster: _OpenCluster, position: int) -> bool:
        """Whether a node could run before collectives that the cluster waits for, but need not.

        If the cluster reads what the node reads in place of what it makes, that is no more bytes,
        and the node takes little time beside them.
        """
        node, nodes = self._body.nodes[position], self._body.nodes
        if node.op == "reduce" or cluster.delayed >= _MOST_DELAYED:
            return False
        more = sum(
            nodes[source].array.size_bytes
            for source in self._sources(position)
            if all(
                self._find(reader) != cluster.last
                for user in self._users[source]
                for reader in self._reads_as[user]
            )
        )
        return more <= node.array.size_bytes * (_NEGLIGIBLE_RATIO + 1) // _NEGLIGIBLE_RATIO

    def _sources(self, position: int) -> set[int]:
        """The arrays that are read from memory for a node, if all that it alone reads comes along.

        They are behind copies and views, and behind values that only this node needs.
        """
        nodes, sources, pending = self._body.nodes, set[int](), [position]
        left = _MOST_EXPANDED
        while pending:
            for operand in nodes[pending.pop()].operands:
                role = self._roles[operand]
                is_needed_here = (
                    role is NodeRole.FUSED
                    and len(self._users[operand]) == 1
                    and self._before[operand] == self._before[position]
                )
                if role in _COPIES or (is_needed_here and left):
                    left -= role is NodeRole.FUSED
                    pending.append(operand)
                else:
                    sources.add(operand)
        return sources

    def _place_with(self, cluster: _OpenCluster, position: int, has_others: bool) -> int | None:
        """Where a cluster stands once a node has joined it; None if that would cost memory.

        It matters where heavy operations lie between them: arrays may live long there. What others
        read is not put off then, if the cluster can come as early; and what is computed later must
        not keep more bytes live than its result had.
        """
        if self._heavy_before[position] == self._heavy_before[cluster.at]:
            return max(position, cluster.at)
        is_early = self._heavy_by_rank[self._ranks[position]] == self._heavy_by_rank[cluster.rank]
        if is_early and has_others:
            return position
        kept = sum(
            self._body.nodes[source].array.size_bytes
            for source in self._sources(position)
            if not _is_stored(self._body, source) and self._last_use[source] < cluster.at
        )
        if kept <= self._body.nodes[position].array.size_bytes:
            return cluster.at
        return position if is_early else None

    def _may_merge(self, cluster: _OpenCluster, later: _OpenCluster, shared: int) -> bool:
        """Whether a cluster may join a later one that reads `shared` elements as it does."""
        if cluster.region != later.region or cluster.before != later.before:
            return False
        if 2 * shared < max(cluster.extent, later.extent) or len(cluster.readers) > _MOST_READERS:
            return False
        nodes = (len(one.members) + len(one.copies) for one in (cluster, later))
        if sum(nodes) > self._limit_nodes:
            return False
        if self._heavy_by_rank[cluster.rank] != self._heavy_by_rank[later.rank]:
            return False
        if later.leads_to & ~cluster.leads_to and not cluster.is_closing:
            return False
        if cluster.leads_to & ~later.leads_to and not later.is_closing:
            return False
        readers = self._outside(cluster)
        if any(self._rank_bound(r) <= later.rank for r in readers if r != later.last):
            return False
        if not self._stays_before(later, cluster.writers):
            return False
        if not (cluster.has_reduction or later.has_reduction):
            return True
        both = (cluster, later)
        return self._fits({p for one in both for p in (*one.members, *one.copies)})

    def _outside(self, cluster: _OpenCluster) -> set[int]:
        """What reads a cluster's results."""
        return {self._find(reader) for reader in cluster.readers} - {cluster.last}

    def _merge(self, cluster: _OpenCluster, later: _OpenCluster) -> _OpenCluster:
        """Join a cluster to a later one."""
        readers = self._outside(cluster)
        later.members += cluster.members
        later.has_reduction |= cluster.has_reduction
        if later.has_reduction:  # or the former number is still right
            later.fitting = len(later.members)
        later.copies |= cluster.copies
        later.readers |= readers - {later.last}
        later.writers |= cluster.writers
        later.leads_to |= cluster.leads_to
        if self._heavy_before[later.at] != self._heavy_before[cluster.at]:
            later.at = cluster.at  # others wait for that
        later.extent = max(later.extent, cluster.extent)
        later.is_closing = later.is_closing and cluster.is_closing
        later.delayed += cluster.delayed
        del self._cluster[cluster.last]
        self._parent[cluster.last] = later.last
        return later

    def _fits(self, positions: Iterable[int]) -> bool:
        """Whether SBUF holds what an instruction for these nodes works on at a time."""
        return tiles.fits(self._body, list(positions))

    def clustering(self) -> Clustering:
        """What came of the walk."""
        instructions = [
            found for each in self._cluster.values() for found in self._instructions(each)
        ]
        free = {p for p, role in enumerate(self._roles) if role in _COPIES and self._users[p]}
        return clustering_of(self._body, instructions, free, self._anti)

    def _copies(self, members: set[int], copies: set[int]) -> set[int]:
        """Which of these copies the members need; a view of a value from outside they do not."""
        nodes, needed, found = self._body.nodes, set[int](), set[int]()
        for position in sorted(members | copies, reverse=True):
            if position in members or position in needed:
                needed.update(nodes[position].operands)
        for position in sorted(copies & needed):
            operands = nodes[position].operands
            is_view = self._roles[position] is NodeRole.VIEW
            if not is_view or operands[0] in members or operands[0] in found:
                found.add(position)
        return found

    def _instructions(self, cluster: _OpenCluster) -> Iterator[tuple[set[int], set[int], int]]:
        """Members, copies and place of each instruction that a cluster becomes.

        That is one, unless it does not fit. Then it is cut where its nodes joined: no node that
        joined later reads one that joined earlier, so the parts wait for each other in one
        direction. What saves no instruction is left out.
        """
        nodes, left, fitting = self._body.nodes, cluster.members, cluster.fitting
        while left:
            members = set(left)
            copies = self._copies(members, cluster.copies)
            if len(left) > fitting and not self._fits((*members, *copies)):
                members = set(left[: self._most_fitting(cluster, left, fitting)])
                copies = self._copies(members, cluster.copies)
            made = [
                p for p in copies if self._roles[p] is NodeRole.COPIED and nodes[p].op != "constant"
            ]
            if len(members) + len(made) > 1:
                yield members, copies, cluster.at if cluster.at in members else max(members)
            left, fitting = left[len(members) :], 1

    def _most_fitting(self, cluster: _OpenCluster, members: Sequence[int], fitting: int) -> int:
        """How many of these members fit, in their order, at least; not all do."""
        too_many = len(members)
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            part = set(members[:middle])
            if self._fits((*part, *self._copies(part, cluster.copies))):
                fitting = middle
            else:
                too_many = middle
        return fitting
