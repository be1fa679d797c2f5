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
from ncc_runtime.collectives.forwarding.proxies import Crew
from ncc_runtime.collectives.forwarding.schedule import Course, Hop, gathering, reducing
from ncc_runtime.collectives.forwarding.sends import Sends
from ncc_runtime.collectives.plan import (
    IDLE,
    LANES,
    Copy,
    Job,
    Piece,
    Plan,
    Round,
    Space,
    Transfer,
    divisor,
)
from ncc_runtime.collectives.stages import Strand, Track


@attrs.frozen(eq=False)
class Relay:
    """The DMA rings of what goes between chips, and of what is copied on them."""

    track: Track
    beside: Track

    def all_gather(
        self, course: Course, own: Sequence[Extent], targets: Sequence[Extent]
    ) -> Strand:
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

    def _copied(self, hop: Hop, source: Extent, target: Extent) -> Transfer:
        owner = hop.owners[0] if hop.owners else None
        move = self._transfer(hop, (source.piece(hop.column, owner),), target)
        if hop.also is None:
            return move
        return attrs.evolve(move, also=Copy(hop.also, target.piece(hop.column)))

    def reduce_scatter(
        self,
        course: Course,
        extents: Sequence[Extent],
        targets: Sequence[Extent],
        scratch: tuple[Scratch, int],
    ) -> Strand:
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
        self, hop: Hop, share: tuple[Extent, Extent], slot: tuple[int, int], parts: int
    ) -> Transfer:
        (extent, target), (first, size) = share, slot
        alone = len(hop.owners) == 1
        operands = (extent.piece(hop.column, None if alone else owner) for owner in hop.owners)
        partial = (Piece(Space.SCRATCH, first + size * place) for place in hop.places)
        move = self._transfer(hop, (*operands, *partial), target)
        if hop.goal is None:
            return attrs.evolve(move, divisor=parts)
        return attrs.evolve(move, target=Piece(Space.SCRATCH, first + size * hop.goal))

    def _transfer(self, hop: Hop, sources: tuple[Piece, ...], target: Extent) -> Transfer:
        """Columns of targets lie alike in everybody's memory."""
        track = self.beside if hop.is_beside else self.track
        size = np.where(hop.peer == IDLE, 0, target.size(hop.column))
        return track.transfer(hop.peer, sources, target.piece(hop.column), size, hop.way)


def by_place(crew: Crew, slices: Sequence[Sequence[Extent]]) -> list[Extent]:
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


LEAST_BYTES = 64 * 1024
"""Least size of what is sent at once where there is a choice; assumed: a full descriptor."""

STRAND_BYTES = 128 * 1024
"""Least size of a unit of a strand where there are several; assumed: two full descriptors."""

STRANDS = 4
"""Strands side by side at most: one for each group of DMA engines (assumed)."""

BEATS = 8
"""Parts of an all-reduce that follow each other at most (assumed)."""


@attrs.frozen(eq=False)
class Relayed:
    """The members of a group, and the name of what finds sends for them."""

    name: str
    crew: Crew

    def all_gather(self, job: Job, sends: Sends, strands: int) -> Plan:
        """The operand of member m in chunk m of every result; chips own as many units each."""
        members, rounds = self.crew.members, []
        slices = len(sends.owners) // self.crew.chips
        if self.crew.places == 1:
            strands = min(strands, max(1, LANES // sends.most_targets))
        course = gathering(self.crew, sends, is_by_member=True)
        (whole,) = stages.result_slices(job, members, 1)
        cut = stages.result_slices(job, members, slices * strands)
        for strand in range(strands):
            targets = by_place(self.crew, cut[strand::strands])
            own = within_chunks(targets, by_place(self.crew, [whole] * slices), Space.OPERAND)
            rounds.append(self._gatherer(strand, strands).all_gather(course, own, targets))
        return Plan(self.name, members, stages.side_by_side(rounds))

    def _gatherer(self, strand: int, strands: int) -> Relay:
        """Half of the rings are for copies on chips; where there are none, all are for sends."""
        if self.crew.places > 1:
            return Relay(_track(strand, strand % 2), _track(strand, 2 + strand % 2))
        width = LANES // strands
        rings = (width * strand + (way + strand) % width for way in range(width))
        return Relay(*(Track(strand, tuple(rings)),) * 2)

    def reduce_scatter(self, job: Job, sends: Sends, strands: int) -> Plan:
        """Chunk m of every operand, reduced, at member m; chips own as many units each."""
        members, scratch, rounds = self.crew.members, Scratch(), []
        slices = len(sends.owners) // self.crew.chips
        course = reducing(self.crew, sends, is_by_member=True)
        (whole,) = stages.operand_slices(job, members, 1)
        cut = stages.operand_slices(job, members, slices * strands)
        for strand in range(strands):
            extents = by_place(self.crew, cut[strand::strands])
            chunks = by_place(self.crew, [whole] * slices)
            targets = within_chunks(extents, chunks, Space.RESULT)
            relay = Relay(*(_track(strand, strand % 4),) * 2)
            parts = divisor(job, members)
            rounds.append(relay.reduce_scatter(course, extents, targets, (scratch, parts)))
        return Plan(self.name, members, stages.side_by_side(rounds), scratch.bytes)

    def all_reduce(self, job: Job, sends: tuple[Sends, Sends], strands: int) -> Plan:
        """A reduce-scatter and an all-gather, strand by strand."""
        crew, scratch, rounds = self.crew, Scratch(), list[Strand]()
        units, parts = len(sends[0].owners), divisor(job, crew.members)
        beats = 1
        if strands == STRANDS:
            unit_bytes = larger_bytes(job) // (crew.planes * units * strands)
            beats = min(BEATS, max(1, unit_bytes // LEAST_BYTES))
        inward = reducing(crew, sends[0], is_by_member=False)
        outward = gathering(crew, sends[1], is_by_member=False)
        for number, extents in enumerate(by_strand(job, beats * strands, (crew.planes, units))):
            results = [extent.moved(Space.RESULT) for extent in extents]
            first = Relay(*(_track(number, number % 2),) * 2)
            second = Relay(_track(number, 2), _track(number, 3))
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


def strands_of(unit_bytes: int) -> int:
    """In how many strands units of a size go."""
    return int(min(STRANDS, max(1, unit_bytes // STRAND_BYTES)))


def _track(strand: int, block: int) -> Track:
    """Four DMA rings, one for each group of engines; strands begin with another of them."""
    return Track(strand, tuple(4 * block + (way + strand) % 4 for way in range(4)))
