"""Reductions in the order of the group, wherever its members sit: `--deterministic`.

    reduce-scatter   every member sends chunk m of its operand to member m, which has a slot for
                     each sender; then m joins its slots from left to right, member 0 first
    all-reduce       the same, and an all-gather: `rank-order.ring` by rings, and so on
    reduce           the same, and every member sends its sum to the root

Which member owns a chunk makes no difference: all are joined in one order. As many sources as a
descriptor has are joined before they are rounded to the type of the elements, so the bits depend on
that number and on nothing else. The sends are those of an all-to-all, in its order.

Source of the order: the fixed trees that reproducible sums need, Demmel and Nguyen, "Parallel
reproducible summation", IEEE Transactions on Computers 2015, section 1; of the shape, the
"all-to-all, reduce" all-reduce for small messages in MPI libraries.
"""

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.algorithms import all_to_all, kangaring, mesh, rdh, ring
from ncc_runtime.collectives.algorithms.all_to_all import GroupShifts
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
    StageAlgorithm,
    StageKind,
    Strand,
    Subgroups,
    chained_reduction,
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
        members, position = self.subgroups.members, self.subgroups.position
        sends: list[Transfer] = []
        reductions: list[list[Round]] = []
        slots = [
            np.array([scratch.take(int(extent.sizes.max(initial=0))) for _ in range(members)])
            for extent in extents
        ]
        # a member's own chunk goes into its slot, too: all sources of a column lie in one space
        for number, lane in self.shifts.in_rings(len(self.strand.lanes)):
            peer = self.shifts.peers(number)
            chunk = self.subgroups.positions[peer]
            sends += (
                self.strand.transfer(
                    peer,
                    (extent.piece(chunk),),
                    Location(Space.SCRATCH, own),
                    extent.size(chunk),
                    lane,
                )
                for extent, own in zip(extents, slots, strict=True)
            )
        for extent, target, own in zip(extents, targets, slots, strict=True):
            moves = chained_reduction(
                [Location(Space.SCRATCH, np.full(members, slot)) for slot in own.tolist()],
                target.piece(position),
                extent.size(position),
                self.subgroups.self_peers,
                self.strand,
                scratch,
                divided_by,
            )
            reductions.append([Round((move,)) for move in moves])
        return [Round(tuple(sends)), *side_by_side(reductions)]

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
    return Exchange(
        Subgroups([members], None), arrangement.shifts, Strand(0, tuple(range(LANES)))
    )


ALL_REDUCES = tuple(RankOrder(name) for name in GATHERED_BY)
"""One for each stage that gathers."""
