"""KangaRing: a ring of primaries, each with a secondary on its chip that it reads and writes.

    reduce-scatter   a primary reduces what it got, its own share and its secondary's: three reads,
                     one write
    all-gather       a primary reads a chunk once and writes it to its successor and its secondary:
                     one read, two writes

A pair touches HBM 4 times a step instead of 6 in reduce-scatter, 3 instead of 4 in all-gather. The
two of a pair swap roles from one cycle to the next. Where it reduces, chunks go in slices as in a
ring, each with a DMA ring of its own (assumed).

Source: AWS Neuron docs, intranode-collective-comm.rst (pairs, touches, alternating roles); nec.h
(at most 256 ranks).
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.algorithms.ring import SLOTS, slices_of
from ncc_runtime.collectives.chunks import Extent, Scratch
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
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
)
from ncc_runtime.collectives.stages import Arrangement, StageKind, Strand, Subgroups
from ncc_runtime.group_rules.rules import KANGARING_RANKS


def arrange(layout: GroupLayout) -> Arrangement:
    """Pairs along the cycles of the chips; UnsuitedError unless whole chips close a ring.

    Positions 2k and 2k+1 are the primary and the secondary of pair k.
    """
    per_chip = layout.placement.topology.ranks_per_chip
    if len(layout.by_node()) > 1:
        raise UnsuitedError("its members are on several instances")
    if layout.members > KANGARING_RANKS.most:
        raise UnsuitedError(f"it has more than {KANGARING_RANKS.most} members")
    if any(len(cluster) != per_chip for cluster in layout.by_chip()) or per_chip % 2:
        raise UnsuitedError(f"it does not hold all {per_chip} ranks of each of its chips")
    cycles = layout.chip_cycles()
    if not cycles:
        raise UnsuitedError("no links close a ring over its chips")
    orders = []
    for number, cycle in enumerate(cycles):
        members = [member for cluster in cycle for member in cluster]
        if number % 2:  # the two of a pair swap roles from one cycle to the next
            members[::2], members[1::2] = members[1::2], members[::2]
        orders.append(tuple(members))
    return Arrangement(tuple(orders))


def all_reduce(job: Job, arrangement: Arrangement) -> Plan:
    """Reduce-scatter and all-gather, with one chunk for each pair, which its primary keeps."""
    members, scratch = len(arrangement.orders[0]), Scratch()
    rings = _rings(job, arrangement, slices_of(arrangement, job.buffers.operand_elements, job))
    strands = []
    slices = stages.operand_slices(job, members // 2, len(rings))
    for ring, extents in zip(rings, slices, strict=True):
        results = [extent.moved(Space.RESULT) for extent in extents]
        kept = [(result, ring.primaries) for result in results]
        rounds = ring.reduce_pairs(extents, kept, scratch, divisor(job, members))
        strands.append(rounds + ring.gather_pairs(results))
    return Plan("kangaring", members, stages.side_by_side(strands), scratch.bytes, job.symmetry)


def reduce_scatter(job: Job, arrangement: Arrangement) -> Plan:
    """A pair has a chunk for each of its members; the primary hands over the secondary's."""
    rings = _rings(job, arrangement, slices_of(arrangement, job.buffers.operand_elements, job))
    return stages.reduce_scatter("kangaring", job, rings)


def all_gather(job: Job, arrangement: Arrangement) -> Plan:
    """A pair has a chunk of each of its members; the primary reads the secondary's."""
    rings = _rings(job, arrangement, 1)
    return stages.all_gather("kangaring", job, rings)


@attrs.frozen(eq=False)
class KangaRing:
    """One ring of pairs per subgroup; as a stage, chunk r of an extent belongs to position r."""

    subgroups: Subgroups
    strand: Strand
    _columns: dict[int, np.ndarray] = attrs.field(init=False, factory=dict)  # by step

    @property
    def goes_by_chunk(self) -> bool:
        """Whether transfers are of one chunk each, the same ones for every position."""
        return True

    def reduce_scatter(
        self,
        extents: Sequence[Extent],
        targets: Sequence[Extent],
        scratch: Scratch,
        divided_by: int = 1,
    ) -> list[Round]:
        """Chunk r of the extents, reduced and divided, at position r in chunk r of the targets."""
        owners = (self.primaries, self.secondaries)
        kept = [
            (_every_other(target, half), owner)
            for half, owner in enumerate(owners)
            for target in targets
        ]
        shares = [_every_other(extent, half) for half in range(2) for extent in extents]
        return self.reduce_pairs(shares, kept, scratch, divided_by)

    def all_gather(self, sources: Sequence[Extent], targets: Sequence[Extent]) -> list[Round]:
        """Chunk r of `sources` at position r, in chunk r of the targets of everybody."""
        halves = [_every_other(target, half) for half in range(2) for target in targets]
        own_halves = [_every_other(extent, half) for half in range(2) for extent in sources]
        keep = stages.kept(self.subgroups, self.strand, sources, targets)
        if sources[0].space is Space.OPERAND:
            first, *rest = self.gather_pairs(halves, own_halves)
            return [Round((*first.transfers, *keep)), *rest]
        swap = self.subgroups.member(self.subgroups.positions ^ 1)
        position = self.subgroups.position
        swapped = [
            self.strand.transfer(swap, (source.piece(position),), target.at(position, swap), size)
            for source, target in zip(sources, targets, strict=True)
            for size in (target.size(position),)
        ]
        first = Round((*swapped, *keep))
        return [first, *self.gather_pairs(halves, are_swapped=True)]

    def reduce_pairs(
        self,
        extents: Sequence[Extent],
        kept: Sequence[tuple[Extent, np.ndarray]],
        scratch: Scratch,
        divided_by: int,
    ) -> list[Round]:
        """Chunk k of the extents, reduced by pair k's primary, to targets at owners: `kept`."""
        slots = [
            [scratch.take(int(extent.sizes.max(initial=0))) for _ in range(SLOTS)]
            for extent in extents
        ]
        rounds = []
        for step in range(self._pairs - 1):
            moves = [
                self._reduce(extent, step, slots[k], self._slot(slots[k], step))
                for k, extent in enumerate(extents)
            ]
            if step >= SLOTS:
                freed = len(extents) * (step - SLOTS)  # slots of earlier steps that must be free
                moves = [attrs.evolve(move, credit=freed + k + 1) for k, move in enumerate(moves)]
            rounds.append(Round(tuple(moves)))
        last = self._pairs - 1
        moves = [
            attrs.evolve(
                self._reduce(extent, last, slots[k], target.at(self._chunk(-1 - last), owner)),
                peer=owner,
                divisor=divided_by,
            )
            for k, (extent, (target, owner)) in enumerate(zip(extents, kept, strict=True))
        ]
        return [*rounds, Round(tuple(moves))]

    def gather_pairs(
        self,
        targets: Sequence[Extent],
        sources: Sequence[Extent] = (),
        *,
        are_swapped: bool = False,
    ) -> list[Round]:
        """Chunk k of everybody's targets, which begins at pair k's primary.

        With `sources` it begins there for the first half of the targets, and at the secondary for
        the second half. When they are swapped, the secondary has it already.
        """
        rounds = []
        for step in range(self._pairs):
            moves = [
                self._forward(
                    step, target, self._begin(sources, k) if sources and not step else None
                )
                for k, target in enumerate(targets)
            ]
            if are_swapped and not step:
                moves = [attrs.evolve(move, second_target=None) for move in moves]
            if not (are_swapped and self._pairs == 1):
                rounds.append(Round(tuple(moves)))
        return rounds

    def _begin(self, sources: Sequence[Extent], k: int) -> tuple[Location, np.ndarray]:
        """Where a pair's chunk lies at first, and the member of the pair that lacks it."""
        if k < len(sources) // 2:
            return sources[k].piece(self._chunk(0)), self.secondaries
        return sources[k].piece(self._chunk(0), self.secondaries), self.primaries

    def _forward(
        self, step: int, target: Extent, begin: tuple[Location, np.ndarray] | None
    ) -> Transfer:
        """A chunk to the successor and to the secondary; in the end to the secondary alone."""
        chunk, successor = self._chunk(-step), self._shifted(1)
        source, beside = begin or (target.piece(chunk), self.secondaries)
        size = target.size(chunk)
        if step == self._pairs - 1:
            return self.strand.transfer(beside, (source,), target.at(chunk, beside), size)
        moved = self.strand.transfer(successor, (source,), target.at(chunk, successor), size)
        return attrs.evolve(moved, second_target=SecondTarget(beside, target.at(chunk, beside)))

    def _reduce(
        self, extent: Extent, step: int, slots: Sequence[int], target: Location
    ) -> Transfer:
        """The received sum and the shares of both of the pair, reduced, to the successor."""
        chunk = self._chunk(-1 - step)
        sources: tuple[Location, ...] = (extent.piece(chunk), extent.piece(chunk, self.secondaries))
        if step:
            sources = (self._slot(slots, step - 1), *sources)
        moved = self.strand.transfer(self._shifted(1), sources, target, extent.size(chunk))
        return attrs.evolve(moved, consumed=self._shifted(-1) if step else None)

    @property
    def primaries(self) -> np.ndarray:
        """Every primary at itself, IDLE at the secondaries."""
        return self._shifted(0)

    @property
    def secondaries(self) -> np.ndarray:
        """At every primary its secondary, IDLE at the secondaries."""
        return self._at_primaries(1)

    @property
    def _pairs(self) -> int:
        return self.subgroups.size // 2

    def _chunk(self, shift: int) -> np.ndarray:
        """By member, the number of the pair `shift` places on."""
        return np.asarray((self.subgroups.position // 2 + shift) % self._pairs)

    def _shifted(self, step: int) -> np.ndarray:
        return self._at_primaries(2 * step)

    def _at_primaries(self, step: int) -> np.ndarray:
        """At every primary the member `step` positions on, IDLE at the secondaries."""
        if step not in self._columns:
            is_primary = self.subgroups.positions % 2 == 0
            column = np.where(is_primary, self.subgroups.shifted(step), np.int32(IDLE))
            column.setflags(write=False)
            self._columns[step] = column
        return self._columns[step]

    def _slot(self, slots: Sequence[int], step: int) -> Location:
        return Location(Space.SCRATCH, self.subgroups.everywhere(slots[step % SLOTS]))


def _every_other(extent: Extent, half: int) -> Extent:
    """The chunks of the primaries (half 0) or of the secondaries, by pair."""
    return attrs.evolve(extent, offsets=extent.offsets[:, half::2], sizes=extent.sizes[:, half::2])


def _rings(job: Job, arrangement: Arrangement, slices: int) -> list[KangaRing]:
    """A ring of pairs for every cycle and slice.

    A primary on one cycle is a secondary on the next, so two cycles can share their DMA rings.
    """
    return [
        KangaRing(
            Subgroups([order], job.symmetry),
            Strand(cycle * slices + part, (cycle // 2 * slices + part,)),
        )
        for cycle, order in enumerate(arrangement.orders)
        for part in range(slices)
    ]


STAGE = StageKind(arrange, lambda subgroups, _, strand: KangaRing(subgroups, strand))
"""KangaRing as a part of a hierarchy."""
