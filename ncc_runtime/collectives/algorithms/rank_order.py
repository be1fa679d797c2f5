"""Reductions in the order of the group, wherever its members sit: `--deterministic`.

The order is that of `stages.reduced_in_blocks`: members 0 to 15 from left to right, 16 to 31, and
so on, then the sums of these blocks. It depends on the number of members alone.

    reduce-scatter   up to 16 members: everybody sends chunk m of its operand to member m, which has
                     a slot for each sender and joins them
                     more: the members of a block share out all chunks; each joins what it gets of
                     its block, and sends each sum to the owner of the chunk, who joins the blocks
    all-reduce       the same, and an all-gather: `rank-order.ring` by rings, and so on
    reduce           the same, and every member sends its chunk to the root

Where blocks are neighbours, a sixteenth of the bytes leaves them, as in a hierarchical algorithm.
Which member owns a chunk makes no difference to the order.

Source of the idea: sums are reproducible if the tree is fixed; Demmel and Nguyen, "Parallel
reproducible summation", IEEE Transactions on Computers 2015, section 1.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.algorithms import all_to_all, kangaring, mesh, rdh, ring
from ncc_runtime.collectives.algorithms.all_to_all import GroupShifts
from ncc_runtime.collectives.algorithms.hierarchical import Hierarchical, Hierarchy
from ncc_runtime.collectives.algorithms.mesh import MeshSend, matchings
from ncc_runtime.collectives.chunks import Extent, Scratch
from ncc_runtime.collectives.layout import GroupLayout, Members
from ncc_runtime.collectives.plan import (
    IDLE,
    LANES,
    Job,
    Location,
    Plan,
    Round,
    Space,
    Transfer,
    divisor,
)
from ncc_runtime.collectives.stages import (
    MOST_SOURCES,
    StageAlgorithm,
    StageKind,
    Strand,
    Subgroups,
    reduced_in_blocks,
    side_by_side,
)

GATHERED_BY: Mapping[str, StageKind] = MappingProxyType(
    {"ring": ring.STAGE, "kangaring": kangaring.STAGE, "mesh": mesh.STAGE, "rdh": rdh.STAGE}
)
"""What can gather the sums of an all-reduce."""


@attrs.frozen
class ExchangeArrangement:
    """The order of the sends, and how a stage that gathers arranges the group."""

    shifts: GroupShifts
    orders: tuple[Members, ...] = ()  # per channel of the stage
    form: Hashable = ()
    chunks: Members = ()


def arrange(layout: GroupLayout) -> ExchangeArrangement:
    """The order of the sends."""
    return ExchangeArrangement(all_to_all.arrange(layout))


class _Blocks:
    """Members in blocks of as many as a descriptor joins; columns are by member.

    The members of a block share out the chunks of the group, a run of them each.
    """

    def __init__(self, members: int) -> None:
        everybody = np.arange(members)
        self.block: np.ndarray = everybody // MOST_SOURCES
        self.count = int(self.block[-1]) + 1
        self.first: np.ndarray = self.block * MOST_SOURCES
        self.size: np.ndarray = np.minimum(MOST_SOURCES, members - self.first)
        self.place: np.ndarray = everybody - self.first
        self.begin: np.ndarray = self.place * members // self.size  # of a member's share
        self.width: np.ndarray = (self.place + 1) * members // self.size - self.begin
        runs = self.begin[:, None] + np.arange(int(self.width.max()))
        is_own = np.arange(int(self.width.max())) < self.width[:, None]
        self.shares: np.ndarray = np.where(is_own, runs, IDLE)  # (members, k)

    def neighbour(self, shift: int) -> np.ndarray:
        """The member `shift` places on, round the block."""
        return np.asarray(self.first + (self.place + shift) % self.size)

    def sends(self, size: int, owners: np.ndarray) -> Iterator[MeshSend]:
        """What members of blocks of a size send: the sum of each chunk of theirs to its owner.

        They begin with different ones, so that not all send to one owner first.
        """
        senders = np.flatnonzero(self.size == size).tolist()
        for turn in range(int(self.width[senders].max())):
            for sender in senders:
                width = int(self.width[sender])
                if turn < width:
                    turned = turn + int(self.block[sender]) + int(self.place[sender])
                    chunk = int(self.begin[sender]) + turned % width
                    yield MeshSend(sender, int(owners[chunk]), chunk)


@attrs.frozen(eq=False)
class Exchange:
    """Sums of all members in their order; chunk k of an extent belongs to position k.

    Another stage with the same positions gathers them.
    """

    subgroups: Subgroups
    shifts: GroupShifts
    strand: Strand
    gathering: StageAlgorithm | None = None

    @property
    def goes_by_chunk(self) -> bool:
        """Whether transfers are of one chunk each, the same ones for every position."""
        return self.gathering is None or self.gathering.goes_by_chunk

    def reduce_scatter(
        self,
        extents: Sequence[Extent],
        targets: Sequence[Extent],
        scratch: Scratch,
        divided_by: int = 1,
    ) -> list[Round]:
        """Chunk r of the extents, reduced and divided, at position r in chunk r of the targets."""
        how = self._at_once if self.subgroups.members <= MOST_SOURCES else self._in_blocks
        every = [how(*each, scratch, divided_by) for each in zip(extents, targets, strict=True)]
        return list(side_by_side(every))

    def _at_once(
        self, extent: Extent, target: Extent, scratch: Scratch, divided_by: int
    ) -> list[Round]:
        """Everybody sends every chunk to its owner, who joins them.

        Its own goes into a slot, too: all sources of a column lie in one space.
        """
        members, sends = self.subgroups.members, []
        slots = np.array([scratch.take(int(extent.sizes.max(initial=0))) for _ in range(members)])
        for number, lane in self.shifts.in_rings(len(self.strand.lanes)):
            peer = self.shifts.peers(number)
            chunk = self.subgroups.positions[peer]
            slot = Location(Space.SCRATCH, slots)
            piece = extent.piece(chunk)
            sends.append(self.strand.transfer(peer, (piece,), slot, extent.size(chunk), lane))
        return [Round(tuple(sends)), *self._reduced(slots, extent, target, scratch, divided_by)]

    def _in_blocks(
        self, extent: Extent, target: Extent, scratch: Scratch, divided_by: int
    ) -> list[Round]:
        """Members of a block share out the chunks; each joins its share, and sends it to its owner.

        So of what leaves a block the sums are sent, and not all that they are made of.
        """
        everybody = np.arange(self.subgroups.members)
        blocks = _Blocks(self.subgroups.members)
        chunk_bytes = int(extent.sizes.max(initial=0))
        # of each member of its block a member gets its share of the chunks, side by side
        stride = -(-len(everybody) // blocks.size) * chunk_bytes
        area = scratch.take(int((blocks.size * stride).max()))

        def received(sender: np.ndarray) -> Extent:
            """Where members have the chunks of a place of their block; (members, chunks)."""
            own = (everybody - blocks.begin[:, None]) * chunk_bytes
            at = area + (sender * stride)[:, None] + own
            return Extent(Space.SCRATCH, extent.tensor, at, extent.sizes)

        shares: list[Transfer] = []
        for shift in range(int(blocks.size.max())):
            peer = np.where(shift < blocks.size, blocks.neighbour(shift), IDLE)
            shares += stages.coalesced(
                peer.astype(np.int32),
                np.where((peer != IDLE)[:, None], blocks.shares[peer], IDLE),
                [stages.ExtentSource(extent)],
                received((blocks.place - shift) % blocks.size),
                self.strand,
                lane_index=shift,
            )

        slots = np.array([scratch.take(chunk_bytes) for _ in range(blocks.count)])
        sums: list[Transfer] = []
        for size in np.unique(blocks.size).tolist():  # a transfer has as many sources everywhere
            sources = [received(np.full(len(everybody), place)) for place in range(size)]
            for matching in matchings(blocks.sends(size, self.subgroups.orders[0])):
                peer = np.full(len(everybody), IDLE, np.int32)
                chunk = np.zeros(len(everybody), np.int64)
                for send in matching:
                    peer[send.sender], chunk[send.sender] = send.receiver, send.chip
                sums.append(
                    self.strand.transfer(
                        peer,
                        tuple(source.piece(chunk) for source in sources),
                        Location(Space.SCRATCH, slots[blocks.block]),
                        extent.size(chunk),
                        len(sums),
                    )
                )
        last = self._reduced(slots, extent, target, scratch, divided_by)
        return [Round(tuple(shares)), Round(tuple(sums)), *last]

    def _reduced(
        self,
        slots: np.ndarray,
        extent: Extent,
        target: Extent,
        scratch: Scratch,
        divided_by: int,
    ) -> list[Round]:
        """What lies in the slots of the owners, joined in their order."""
        subgroups = self.subgroups
        moves = reduced_in_blocks(
            [Location(Space.SCRATCH, np.full(subgroups.members, slot)) for slot in slots.tolist()],
            target.piece(subgroups.position),
            extent.size(subgroups.position),
            subgroups.self_peers,
            self.strand,
            scratch,
            divided_by,
        )
        return [Round((move,)) for move in moves]

    def all_gather(self, sources: Sequence[Extent], targets: Sequence[Extent]) -> list[Round]:
        """As the other stage."""
        assert self.gathering is not None, "a stage of an all-reduce"
        return self.gathering.all_gather(sources, targets)


@attrs.frozen
class RankOrder:
    """An all-reduce in the order of the group, by what gathers its sums."""

    gathered_by: str

    @property
    def name(self) -> str:
        """What it is called among the algorithms."""
        return f"rank-order.{self.gathered_by}"

    def arrange(self, layout: GroupLayout) -> ExchangeArrangement:
        """UnsuitedError where the stage that gathers does not work."""
        arranged = GATHERED_BY[self.gathered_by].arrange(layout)
        shifts = all_to_all.arrange(layout)
        return ExchangeArrangement(shifts, arranged.orders, arranged.form, arranged.chunks)

    def all_reduce(self, job: Job, arrangement: ExchangeArrangement) -> Plan:
        """P sends of a chunk to its owner and one reduction there, then the all-gather."""
        kind, count = GATHERED_BY[self.gathered_by], len(arrangement.orders)
        strands: list[StageAlgorithm] = []
        for number, order in enumerate(arrangement.orders):
            subgroups = Subgroups([order], None)
            strand = Strand(number, tuple(range(number, LANES, count)))
            gathering = kind.stage(subgroups, arrangement.form, strand)
            strands.append(Exchange(subgroups, arrangement.shifts, strand, gathering))
        return stages.all_reduce(self.name, job, strands, arrangement.chunks)


@attrs.frozen
class HierarchicalRankOrder:
    """The same on several instances, where sums are gathered between them first, then inside."""

    pair: Hierarchical

    @property
    def name(self) -> str:
        """What it is called among the algorithms."""
        return f"rank-order.{self.pair.name}"

    def arrange(self, layout: GroupLayout) -> tuple[ExchangeArrangement, Hierarchy]:
        """UnsuitedError where the pair does not work."""
        return arrange(layout), self.pair.arrange(layout)

    def all_reduce(self, job: Job, arranged: tuple[ExchangeArrangement, Hierarchy]) -> Plan:
        """Chunk m is reduced at member m."""
        exchange, scratch = _exchange(arranged[0]), Scratch()
        job = attrs.evolve(job, symmetry=None)
        members = exchange.subgroups.members
        (extents,) = stages.operand_slices(job, members, 1)
        results = [extent.moved(Space.RESULT) for extent in extents]
        reduced = exchange.reduce_scatter(extents, results, scratch, divisor(job, members))
        gathered = self.pair.gathered(job, arranged[1], results)
        return Plan(self.name, members, (*reduced, *gathered), scratch.bytes)


def reduce_scatter(job: Job, arrangement: ExchangeArrangement) -> Plan:
    """P sends of a chunk to its owner and one reduction there."""
    return stages.reduce_scatter("rank-order", job, [_exchange(arrangement)])


def reduce(job: Job, arrangement: ExchangeArrangement) -> Plan:
    """The same, and every member sends the root its sum; the others clear their results."""
    exchange, scratch, root = _exchange(arrangement), Scratch(), job.placeholder.root
    assert root is not None, f"{job.placeholder.op.value} has a root"
    subgroups, strand = exchange.subgroups, exchange.strand
    members, position = subgroups.members, subgroups.position
    (extents,) = stages.operand_slices(job, members, 1)
    sums = []
    for extent in extents:
        at = scratch.take(int(extent.sizes.max(initial=0)))
        sums.append(extent.moved(Space.SCRATCH, np.full_like(extent.offsets, at)))
    rounds = exchange.reduce_scatter(extents, sums, scratch, divisor(job, members))
    moves: list[Transfer] = []
    to_root = np.full(members, root, np.int32)
    cleared = np.where(np.arange(members) == root, IDLE, subgroups.self_peers).astype(np.int32)
    for tensor, (extent, partial) in enumerate(zip(extents, sums, strict=True)):
        result = extent.moved(Space.RESULT)
        for member in range(members):  # a transfer has everybody receive at most once
            peer = np.where(np.arange(members) == member, to_root, IDLE).astype(np.int32)
            moves.append(
                strand.transfer(
                    peer, (partial.piece(position),), result.piece(position), extent.size(position)
                )
            )
        size = np.full(members, job.buffers.operand_elements[tensor] * job.buffers.element_bytes)
        nowhere = Location(Space.RESULT, np.zeros(members, np.int64), tensor)
        moves.append(strand.transfer(cleared, (), nowhere, size))
    return Plan("rank-order", members, (*rounds, Round(tuple(moves))), scratch.bytes)


def _exchange(arrangement: ExchangeArrangement) -> Exchange:
    members = range(arrangement.shifts.members)
    return Exchange(Subgroups([members], None), arrangement.shifts, Strand(0, tuple(range(LANES))))


ALL_REDUCES: Sequence[RankOrder | HierarchicalRankOrder] = (
    *(RankOrder(name) for name in GATHERED_BY),
    *(
        HierarchicalRankOrder(Hierarchical(inside, between))
        for inside in ("mesh", "rdh")
        for between in ("ring", "mesh")
    ),
)
"""One for each way to gather. Rings inside instances are left out: they gathered more slowly in all
that was tried, and every candidate is priced."""
