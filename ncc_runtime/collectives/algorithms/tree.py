"""Tree algorithms: shares are reduced from the leaves to a root, the result spreads back down.

`tree` is one binary tree. `double-tree` is two with half of every buffer each. A member that has
children in one is a leaf in the other, so none sends or receives the whole buffer twice.
Buffers of some size go in slices that follow each other through the levels.

Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 2009.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.collectives.chunks import Extent, Scratch, chunked, sliced
from ncc_runtime.collectives.layout import GroupLayout
from ncc_runtime.collectives.plan import (
    IDLE,
    Job,
    Location,
    Plan,
    Round,
    SecondTarget,
    Space,
    Transfer,
    divisor,
    self_peers,
)
from ncc_runtime.collectives.stages import side_by_side

MOST_SLICES = 4
"""Slices of a tree's share; assumed: what fills a few levels. A tree has one DMA ring."""

SLICE_BYTES = 64 * 1024
"""The least a slice holds: one full descriptor."""


def arrange(layout: GroupLayout) -> tuple[int, ...]:
    """The members instance by instance and chip by chip, so that low edges are short."""
    chip = [seat.chip for seat in layout.seats]
    return tuple(
        member for node in layout.by_node() for member in sorted(node, key=chip.__getitem__)
    )


def all_reduce(job: Job, order: tuple[int, ...]) -> Plan:
    """One binary tree: everybody sends the buffer up once and at most twice down."""
    return _all_reduce("tree", job, [_tree(order)])


def double_all_reduce(job: Job, order: tuple[int, ...]) -> Plan:
    """Two trees, the second with everybody one place on."""
    return _all_reduce("double-tree", job, [_tree(order), _tree((*order[1:], order[0]))])


def _all_reduce(name: str, job: Job, trees: list["_Tree"]) -> Plan:
    element_bytes, members = job.buffers.element_bytes, trees[0].members
    buffers = chunked(Space.OPERAND, job.buffers.operand_elements, 1, element_bytes)
    total = sum(int(extent.sizes.sum()) for extent in buffers)
    slices = min(MOST_SLICES, max(1, total // len(trees) // SLICE_BYTES))
    shares = sliced(buffers, len(trees) * slices, element_bytes)
    scratch, divided_by = Scratch(), divisor(job, members)
    strands = [
        list(trees[number // slices].rounds(share, number, number // slices, scratch, divided_by))
        for number, share in enumerate(shares)
    ]
    return Plan(name, members, side_by_side(strands), scratch.bytes)


def _tree(order: tuple[int, ...]) -> "_Tree":
    """The places of an order as a balanced search tree, in which every other place is a leaf."""
    members = len(order)
    parent: np.ndarray = np.full(members, IDLE, np.int32)
    children: np.ndarray = np.full((2, members), IDLE, np.int32)
    depth: np.ndarray = np.zeros(members, np.int32)
    pending = [(0, members, IDLE, 0)]
    while pending:
        first, end, above, level = pending.pop()
        if first >= end:
            continue
        # the place k with most factors of two in k + 1, so that places 0, 2, 4 … become leaves
        step = 1
        while (first // (2 * step) + 1) * 2 * step <= end:
            step *= 2
        root = (first // step + 1) * step - 1
        member = order[root]
        depth[member], parent[member] = level, above
        if above != IDLE:
            side = 0 if children[0, above] == IDLE else 1
            children[side, above] = member
        pending += [(first, root, member, level + 1), (root + 1, end, member, level + 1)]
    return _Tree(parent, children, depth)


@attrs.frozen(eq=False)
class _Tree:
    """Columns over members. A child is on side 0 or 1: the slot of its parent that it writes to."""

    parent: np.ndarray  # (members,) int32, IDLE at the root
    children: np.ndarray  # (2, members) int32, IDLE where there is none
    depth: np.ndarray  # (members,) int32, 0 at the root

    @property
    def members(self) -> int:
        return len(self.parent)

    def rounds(
        self, share: list[Extent], strand: int, lane: int, scratch: Scratch, divided_by: int
    ) -> Iterator[Round]:
        """Up from the deepest level, one round each, then down."""
        slots = [
            [scratch.take(int(extent.sizes.max(initial=0))) for extent in share] for _ in range(2)
        ]
        step = _Level(self, share, slots, strand, lane)
        for level in range(int(self.depth.max()), 0, -1):
            yield Round(tuple(step.up(level)))
        yield Round(tuple(attrs.evolve(move, divisor=divided_by) for move in step.top()))
        for level in range(int(self.depth.max())):
            yield Round(tuple(step.down(level)))


@attrs.frozen(eq=False)
class _Level:
    """Transfers of one level of a tree, for one share of the buffers."""

    tree: _Tree
    share: list[Extent]
    slots: list[list[int]]  # by side, by extent
    strand: int
    lane: int

    def up(self, level: int) -> Iterator[Transfer]:
        """Members of a level reduce what their children sent and send it to their parents."""
        tree = self.tree
        member, parent = self_peers(tree.members), tree.parent
        for side in range(2):
            is_side = tree.children[side, parent] == member
            here = (tree.depth == level) & (parent != IDLE) & is_side
            for children, members in self._by_children(here):
                peer = np.where(members, parent, IDLE)
                for k, extent in enumerate(self.share):
                    sources = self._sources(k, children)
                    yield self._move(peer, sources, self._slot(side, k), extent)

    def top(self) -> Iterator[Transfer]:
        """The root reduces everything into its result."""
        member = self_peers(self.tree.members)
        for children, members in self._by_children(self.tree.parent == IDLE):
            peer = np.where(members, member, IDLE)
            for k, extent in enumerate(self.share):
                yield self._move(peer, self._sources(k, children), self._result(extent), extent)

    def down(self, level: int) -> Iterator[Transfer]:
        """Members of a level write the result to their children, both by one transfer."""
        here = self.tree.depth == level
        left, right = (np.where(here, children, IDLE) for children in self.tree.children)
        for extent in self.share:
            result = self._result(extent)
            moved = self._move(left, (result,), result, extent)
            if (right != IDLE).any():
                moved = attrs.evolve(moved, second_target=SecondTarget(right, result))
            if (left != IDLE).any():
                yield moved

    def _by_children(self, here: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Numbers of children, and the members, (members,) bool, that have as many."""
        count = (self.tree.children != IDLE).sum(axis=0)
        for children in range(3):
            members = here & (count == children)
            if members.any():
                yield children, members

    def _sources(self, k: int, children: int) -> tuple[Location, ...]:
        """The member's share of an extent, then the sums that its children sent."""
        received = (self._slot(side, k) for side in range(children))
        return (self._piece(self.share[k]), *received)

    def _slot(self, side: int, k: int) -> Location:
        return Location(Space.SCRATCH, np.full(self.tree.members, self.slots[side][k], np.int64))

    def _result(self, extent: Extent) -> Location:
        return self._piece(extent.moved(Space.RESULT))

    def _piece(self, extent: Extent) -> Location:
        return extent.piece(np.zeros(self.tree.members, np.int64))

    def _move(
        self, peer: np.ndarray, sources: tuple[Location, ...], target: Location, extent: Extent
    ) -> Transfer:
        size = extent.size(np.zeros(self.tree.members, np.int64))
        return Transfer(
            peer.astype(np.int32), sources, target, size, lane=self.lane, strand=self.strand
        )
