"""Algorithms of sends between chips: agents carry them out for buffers of a job.

Large buffers go in four strands side by side, whose sends turn round the groups of DMA engines. An
all-reduce goes in beats: one is reduced while the one before it is gathered. Reducing keeps the DMA
engines busy and gathering the links, so that only the last beat leaves the engines idle: the more
beats, the less. A ring works in order, so that what waits for one link keeps what is behind it from
another: where a chip has one member, an all-gather has a ring for each way, in fewer strands if
there are many.
"""

import attrs

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.courses import gathering, reducing
from ncc_runtime.collectives.crews import Crew
from ncc_runtime.collectives.extents import Scratch
from ncc_runtime.collectives.plan import LANES, Job, Plan, Round, Space, divisor
from ncc_runtime.collectives.relays import Relay
from ncc_runtime.collectives.sends import Sends
from ncc_runtime.collectives.stages import Strand, Track
from ncc_runtime.collectives.units import by_place, by_strand, within_chunks

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
