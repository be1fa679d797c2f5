"""Algorithms of sends between chips: agents carry them out for buffers of a job.

Large buffers go in four strands side by side, whose sends turn round the groups of DMA engines. An
all-reduce goes in beats: one is reduced while the one before it is gathered. Reducing keeps the DMA
engines busy and gathering the links, so that only the last beat leaves the engines idle: the more
beats, the less. A ring works in order, so that what waits for one link keeps what is behind it from
another: where a chip has one member, an all-gather has a ring for each way, in fewer strands if
there are many.

Courses over buffers: the transfers of agents as strands of a plan.

Buffers cut into units: columns that agents move, unit by unit and place by place.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.chunks import ALIGNMENT, Extent, Scratch, sliced, whole_chunks
from ncc_runtime.collectives.forwarding.schedule import (
    ChipSchedule,
    ForwardingSchedule,
    ForwardingStep,
    ProxyRanks,
    forwarded_all_gather,
    forwarded_reduce_scatter,
)
from ncc_runtime.collectives.plan import (
    IDLE,
    LANES,
    Job,
    Location,
    Plan,
    Round,
    SecondTarget,
    Space,
    Transfer,
    divisor,
)
from ncc_runtime.collectives.stages import Strand


@attrs.frozen(eq=False)
class ForwardingStrand:
    """The DMA rings of what goes between chips, and of what is copied on them."""

    track: Strand
    beside: Strand

    def all_gather(
        self, course: ForwardingSchedule, own: Sequence[Extent], targets: Sequence[Extent]
    ) -> list[Round]:
        """What `own` has, in the targets of everybody."""
        return [
            Round(
                tuple(
                    self._copied(hop, given if hop.owners else target, target)
                    for hop in hops
                    for given, target in zip(own, targets, strict=True)
                )
            )
            for hops in course.rounds
        ]

    def _copied(self, hop: ForwardingStep, source: Extent, target: Extent) -> Transfer:
        owner = hop.owners[0] if hop.owners else None
        move = self._transfer(hop, (source.piece(hop.column, owner),), target)
        if hop.also is None:
            return move
        return attrs.evolve(move, also=SecondTarget(hop.also, target.piece(hop.column)))

    def reduce_scatter(
        self,
        course: ForwardingSchedule,
        extents: Sequence[Extent],
        targets: Sequence[Extent],
        scratch: tuple[Scratch, int],
    ) -> list[Round]:
        """What all have in the extents, joined, and divided by what comes with the scratch."""
        room, parts = scratch
        slots = []
        for extent in extents:
            size = -(-int(extent.sizes.max(initial=0)) // ALIGNMENT) * ALIGNMENT
            slots.append((room.take(size * course.places), size))
        return [
            Round(
                tuple(
                    self._joined(hop, (extent, target), slot, parts)
                    for hop in hops
                    for extent, target, slot in zip(extents, targets, slots, strict=True)
                )
            )
            for hops in course.rounds
        ]

    def _joined(
        self, hop: ForwardingStep, share: tuple[Extent, Extent], slot: tuple[int, int], parts: int
    ) -> Transfer:
        (extent, target), (first, size) = share, slot
        alone = len(hop.owners) == 1
        operands = (extent.piece(hop.column, None if alone else owner) for owner in hop.owners)
        partial = (Location(Space.SCRATCH, first + size * place) for place in hop.places)
        move = self._transfer(hop, (*operands, *partial), target)
        if hop.goal is None:
            return attrs.evolve(move, divisor=parts)
        return attrs.evolve(move, target=Location(Space.SCRATCH, first + size * hop.goal))

    def _transfer(
        self, hop: ForwardingStep, sources: tuple[Location, ...], target: Extent
    ) -> Transfer:
        """Columns of targets lie alike in everybody's memory."""
        track = self.beside if hop.is_beside else self.track
        size = np.where(hop.peer == IDLE, 0, target.size(hop.column))
        return track.transfer(hop.peer, sources, target.piece(hop.column), size, hop.way)


def by_place(crew: ProxyRanks, slices: Sequence[Sequence[Extent]]) -> list[Extent]:
    """Chunks of members, cut into slices: columns are (chip, slice) by place on the chip."""
    number = len(slices)
    member = crew.table[:, None, :].repeat(number, axis=1)  # (chips, slices, places)
    part = np.arange(number)[None, :, None]
    found = []
    for parts in zip(*slices, strict=True):
        offsets = np.stack([one.offsets[0] for one in parts])[part, member]
        sizes = np.stack([one.sizes[0] for one in parts])[part, member]
        found.append(
            attrs.evolve(parts[0], offsets=offsets.reshape(1, -1), sizes=sizes.reshape(1, -1))
        )
    return found


def within_chunks(
    extents: Sequence[Extent], chunks: Sequence[Extent], space: Space
) -> list[Extent]:
    """The same columns where every chunk is in a buffer of its own; `chunks` are whole ones."""
    return [
        extent.moved(space, extent.offsets - chunk.offsets)
        for extent, chunk in zip(extents, chunks, strict=True)
    ]


def by_strand(job: Job, strands: int, shape: tuple[int, int]) -> list[list[Extent]]:
    """Operands cut into strands, planes and units: by strand, columns are units by plane."""
    planes, units = shape
    width = job.buffers.element_bytes
    whole = whole_chunks(Space.OPERAND, job.buffers.operand_elements, strands, width)
    parts = sliced(whole, planes * units, width)
    found: list[list[Extent]] = [[] for _ in range(strands)]
    for tensor, extent in enumerate(whole):
        offsets = np.stack([part[tensor].offsets[0] for part in parts])  # (planes * units, strands)
        sizes = np.stack([part[tensor].sizes[0] for part in parts])
        for strand, extents in enumerate(found):
            at, size = (
                table[:, strand].reshape(planes, units).T.reshape(1, -1)
                for table in (offsets, sizes)
            )
            extents.append(Extent(extent.space, tensor, at, size))
    return found


LEAST_SEND_BYTES = 64 * 1024
"""Least size of what is sent at once where there is a choice; assumed: a full descriptor."""

STRAND_BYTES = 128 * 1024
"""Least size of a unit of a strand where there are several; assumed: two full descriptors."""

STRANDS = 4
"""Strands side by side at most: one for each group of DMA engines (assumed)."""

PIPELINE_DEPTH = 8
"""Parts of an all-reduce that follow each other at most (assumed)."""


@attrs.frozen(eq=False)
class ForwardingPlanner:
    """The members of a group, and the name of what finds sends for them."""

    name: str
    crew: ProxyRanks

    def all_gather(self, job: Job, sends: ChipSchedule, strands: int) -> Plan:
        """The operand of member m in chunk m of every result; chips own as many units each."""
        members, rounds = self.crew.members, []
        slices = len(sends.owners) // self.crew.chips
        if self.crew.places == 1:
            strands = min(strands, max(1, LANES // sends.most_targets))
        course = forwarded_all_gather(self.crew, sends, is_by_member=True)
        (whole,) = stages.result_slices(job, members, 1)
        cut = stages.result_slices(job, members, slices * strands)
        for strand in range(strands):
            targets = by_place(self.crew, cut[strand::strands])
            own = within_chunks(targets, by_place(self.crew, [whole] * slices), Space.OPERAND)
            rounds.append(self._gatherer(strand, strands).all_gather(course, own, targets))
        return Plan(self.name, members, stages.side_by_side(rounds))

    def _gatherer(self, strand: int, strands: int) -> ForwardingStrand:
        """Half of the rings are for copies on chips; where there are none, all are for sends."""
        if self.crew.places > 1:
            return ForwardingStrand(_track(strand, strand % 2), _track(strand, 2 + strand % 2))
        width = LANES // strands
        rings = (width * strand + (way + strand) % width for way in range(width))
        return ForwardingStrand(*(Strand(strand, tuple(rings)),) * 2)

    def reduce_scatter(self, job: Job, sends: ChipSchedule, strands: int) -> Plan:
        """Chunk m of every operand, reduced, at member m; chips own as many units each."""
        members, scratch, rounds = self.crew.members, Scratch(), []
        slices = len(sends.owners) // self.crew.chips
        course = forwarded_reduce_scatter(self.crew, sends, is_by_member=True)
        (whole,) = stages.operand_slices(job, members, 1)
        cut = stages.operand_slices(job, members, slices * strands)
        for strand in range(strands):
            extents = by_place(self.crew, cut[strand::strands])
            chunks = by_place(self.crew, [whole] * slices)
            targets = within_chunks(extents, chunks, Space.RESULT)
            relay = ForwardingStrand(*(_track(strand, strand % 4),) * 2)
            parts = divisor(job, members)
            rounds.append(relay.reduce_scatter(course, extents, targets, (scratch, parts)))
        return Plan(self.name, members, stages.side_by_side(rounds), scratch.bytes)

    def all_reduce(self, job: Job, sends: tuple[ChipSchedule, ChipSchedule], strands: int) -> Plan:
        """A reduce-scatter and an all-gather, strand by strand."""
        crew, scratch, rounds = self.crew, Scratch(), list[list[Round]]()
        units, parts = len(sends[0].owners), divisor(job, crew.members)
        beats = 1
        if strands == STRANDS:
            unit_bytes = larger_bytes(job) // (crew.planes * units * strands)
            beats = min(PIPELINE_DEPTH, max(1, unit_bytes // LEAST_SEND_BYTES))
        inward = forwarded_reduce_scatter(crew, sends[0], is_by_member=False)
        outward = forwarded_all_gather(crew, sends[1], is_by_member=False)
        for number, extents in enumerate(by_strand(job, beats * strands, (crew.planes, units))):
            results = [extent.moved(Space.RESULT) for extent in extents]
            first = ForwardingStrand(*(_track(number, number % 2),) * 2)
            second = ForwardingStrand(_track(number, 2), _track(number, 3))
            begun = [Round(())] * (number // strands * (len(inward.rounds) - 1))
            reduced = first.reduce_scatter(inward, extents, results, (scratch, parts))
            rounds.append([*begun, *reduced, *second.all_gather(outward, results, results)])
        # what is reduced comes before what is gathered: it takes longer, and others wait for it
        together = stages.side_by_side(rounds[::-1])
        return Plan(self.name, crew.members, together, scratch.bytes)


def larger_bytes(job: Job) -> int:
    """The largest operand or result of a member."""
    elements = max((*job.buffers.operand_elements, *job.buffers.result_elements), default=0)
    return elements * job.buffers.element_bytes


def strand_count(unit_bytes: int) -> int:
    """In how many strands units of a size go."""
    return int(min(STRANDS, max(1, unit_bytes // STRAND_BYTES)))


def _track(strand: int, block: int) -> Strand:
    """Four DMA rings, one for each group of engines; strands begin with another of them."""
    return Strand(strand, tuple(4 * block + (way + strand) % 4 for way in range(4)))
