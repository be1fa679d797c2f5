"""Plans of forwarding schedules: what proxy ranks do (`schedule.py`), over the buffers of a job.

Buffers are cut into columns: `chunk * places + place` of the schedule, where a chunk of the
schedule is a slice of a member's chunk, or for an all-reduce any part of the buffer.

Large buffers go in four strands side by side, each with all steps for a part of every chunk. A
strand's sends go round the groups of DMA engines, and strands begin with different groups.

An all-reduce is a pipeline: one part is reduced while the part before it is gathered. Reducing
keeps the DMA engines busy and gathering the links, so only the last part leaves the engines idle:
the more parts, the less.

A DMA ring works in order, so a transfer that waits for one link holds up those behind it that would
go over another. Where a chip has one member, an all-gather therefore has a ring for each colour of
sends, and fewer strands if these are many.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.chunks import ALIGNMENT, Extent, Scratch, chunked, sliced
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

LEAST_SEND_BYTES = 64 * 1024
"""Least size of what is sent at once where there is a choice; assumed: a full descriptor."""

STRAND_BYTES = 128 * 1024
"""Least size of a chunk of a strand where there are several; assumed: two full descriptors."""

STRANDS = 4
"""Strands side by side at most: one for each group of DMA engines (assumed)."""

PIPELINE_DEPTH = 8
"""Parts of an all-reduce that follow each other at most (assumed)."""


@attrs.frozen(eq=False)
class ForwardingPlanner:
    """Makes plans for the members of a group, under the name of an algorithm."""

    name: str
    proxies: ProxyRanks

    def all_gather(self, job: Job, sends: ChipSchedule, strands: int) -> Plan:
        """The operand of member m in chunk m of every result.

        Every chip owns the same number of chunks.
        """
        members, rounds = self.proxies.members, []
        slices = len(sends.owners) // self.proxies.chips
        if self.proxies.places == 1:
            strands = min(strands, max(1, LANES // sends.most_targets))
        schedule = forwarded_all_gather(self.proxies, sends, is_by_member=True)
        (full_chunks,) = stages.result_slices(job, members, 1)
        chunk_slices = stages.result_slices(job, members, slices * strands)
        for strand in range(strands):
            if self.proxies.places > 1:  # half of the rings are for copies on chips
                forwarding = _ForwardingStrand(
                    _strand(strand, strand % 2), _strand(strand, 2 + strand % 2)
                )
            else:
                lanes_each = LANES // strands
                lanes = (lanes_each * strand + (k + strand) % lanes_each for k in range(lanes_each))
                forwarding = _ForwardingStrand.with_one(Strand(strand, tuple(lanes)))
            targets = _by_place(self.proxies, chunk_slices[strand::strands])
            chunks = _by_place(self.proxies, [full_chunks] * slices)
            operands = _within_chunks(targets, chunks, Space.OPERAND)
            rounds.append(forwarding.all_gather(schedule, operands, targets))
        return Plan(self.name, members, stages.side_by_side(rounds))

    def reduce_scatter(self, job: Job, sends: ChipSchedule, strands: int) -> Plan:
        """Chunk m of every operand, reduced, at member m.

        Every chip owns the same number of chunks.
        """
        members, scratch, rounds = self.proxies.members, Scratch(), []
        slices = len(sends.owners) // self.proxies.chips
        schedule = forwarded_reduce_scatter(self.proxies, sends, is_by_member=True)
        (full_chunks,) = stages.operand_slices(job, members, 1)
        chunk_slices = stages.operand_slices(job, members, slices * strands)
        for strand in range(strands):
            extents = _by_place(self.proxies, chunk_slices[strand::strands])
            chunks = _by_place(self.proxies, [full_chunks] * slices)
            targets = _within_chunks(extents, chunks, Space.RESULT)
            forwarding = _ForwardingStrand.with_one(_strand(strand, strand % 4))
            rounds.append(
                forwarding.reduce_scatter(
                    schedule, extents, targets, scratch, divisor(job, members)
                )
            )
        return Plan(self.name, members, stages.side_by_side(rounds), scratch.bytes)

    def all_reduce(
        self, job: Job, reducing: ChipSchedule, gathering: ChipSchedule, strands: int
    ) -> Plan:
        """A reduce-scatter to proxies and an all-gather from them, strand by strand."""
        proxies, scratch, rounds = self.proxies, Scratch(), list[list[Round]]()
        chunks = len(reducing.owners)
        depth = 1
        if strands == STRANDS:
            chunk_bytes = largest_tensor_bytes(job) // (proxies.planes * chunks * strands)
            depth = min(PIPELINE_DEPTH, max(1, chunk_bytes // LEAST_SEND_BYTES))
        inward = forwarded_reduce_scatter(proxies, reducing, is_by_member=False)
        outward = forwarded_all_gather(proxies, gathering, is_by_member=False)
        parts = _by_strand(job, depth * strands, proxies.planes, chunks)
        for number, extents in enumerate(parts):
            results = [extent.moved(Space.RESULT) for extent in extents]
            reduction = _ForwardingStrand.with_one(_strand(number, number % 2))
            gather = _ForwardingStrand(_strand(number, 2), _strand(number, 3))
            # a part begins in the round in which the part before it has been reduced
            delay = [Round(())] * (number // strands * (len(inward.rounds) - 1))
            reduced = reduction.reduce_scatter(
                inward, extents, results, scratch, divisor(job, proxies.members)
            )
            rounds.append([*delay, *reduced, *gather.all_gather(outward, results, results)])
        # what is reduced comes before what is gathered: it takes longer, and others wait for it
        together = stages.side_by_side(rounds[::-1])
        return Plan(self.name, proxies.members, together, scratch.bytes)


def largest_tensor_bytes(job: Job) -> int:
    """The largest operand or result of a member."""
    elements = max((*job.buffers.operand_elements, *job.buffers.result_elements), default=0)
    return elements * job.buffers.element_bytes


def strand_count(chunk_bytes: int) -> int:
    """The number of strands for chunks of a size."""
    return int(min(STRANDS, max(1, chunk_bytes // STRAND_BYTES)))


def _strand(number: int, block: int) -> Strand:
    """Four DMA rings, one for each group of engines; each strand begins with another one."""
    return Strand(number, tuple(4 * block + (k + number) % 4 for k in range(4)))


@attrs.frozen(eq=False)
class _ForwardingStrand:
    """The DMA rings of a strand: of what goes between chips, and of what is copied on them."""

    between: Strand
    local: Strand

    @classmethod
    def with_one(cls, strand: Strand) -> "_ForwardingStrand":
        """All in the same rings."""
        return cls(strand, strand)

    def all_gather(
        self, schedule: ForwardingSchedule, sources: Sequence[Extent], targets: Sequence[Extent]
    ) -> list[Round]:
        """The chunks in `sources`, in the targets of all members."""
        return [
            Round(
                tuple(
                    self._copied(step, source if step.operand_owners else target, target)
                    for step in steps
                    for source, target in zip(sources, targets, strict=True)
                )
            )
            for steps in schedule.rounds
        ]

    def _copied(self, step: ForwardingStep, source: Extent, target: Extent) -> Transfer:
        owner = step.operand_owners[0] if step.operand_owners else None
        move = self._transfer(step, (source.piece(step.column, owner),), target)
        if step.second_peer is None:
            return move
        second = SecondTarget(step.second_peer, target.piece(step.column))
        return attrs.evolve(move, second_target=second)

    def reduce_scatter(
        self,
        schedule: ForwardingSchedule,
        extents: Sequence[Extent],
        targets: Sequence[Extent],
        scratch: Scratch,
        divided_by: int,
    ) -> list[Round]:
        """The extents of all members, reduced and divided, in the targets of their owners."""
        buffers = []  # of partial sums, by extent: the first, and the size of each
        for extent in extents:
            size = -(-int(extent.sizes.max(initial=0)) // ALIGNMENT) * ALIGNMENT
            buffers.append((scratch.take(size * schedule.partial_buffers), size))
        return [
            Round(
                tuple(
                    self._reduced(step, extent, target, first, size, divided_by)
                    for step in steps
                    for extent, target, (first, size) in zip(extents, targets, buffers, strict=True)
                )
            )
            for steps in schedule.rounds
        ]

    def _reduced(
        self,
        step: ForwardingStep,
        extent: Extent,
        target: Extent,
        first: int,
        size: int,
        divided_by: int,
    ) -> Transfer:
        """A step over one extent, whose partial sums have buffers of `size` bytes from `first`."""
        owners = step.operand_owners
        operands = (
            extent.piece(step.column, None if len(owners) == 1 else owner) for owner in owners
        )
        partials = (Location(Space.SCRATCH, first + size * buffer) for buffer in step.partials)
        move = self._transfer(step, (*operands, *partials), target)
        if step.partial_target is None:
            return attrs.evolve(move, divisor=divided_by)
        return attrs.evolve(
            move, target=Location(Space.SCRATCH, first + size * step.partial_target)
        )

    def _transfer(
        self, step: ForwardingStep, sources: tuple[Location, ...], target: Extent
    ) -> Transfer:
        """Columns of targets lie alike in everybody's memory."""
        strand = self.local if step.is_local else self.between
        size = np.where(step.peer == IDLE, 0, target.size(step.column))
        return strand.transfer(step.peer, sources, target.piece(step.column), size, step.lane_index)


def _by_place(proxies: ProxyRanks, slices: Sequence[Sequence[Extent]]) -> list[Extent]:
    """Slices of members' chunks as columns (chip, slice, place), the order that proxies use."""
    count = len(slices)
    member = proxies.table[:, None, :].repeat(count, axis=1)  # (chips, slices, places)
    number = np.arange(count)[None, :, None]
    columns = []
    for parts in zip(*slices, strict=True):
        offsets = np.stack([part.offsets[0] for part in parts])[number, member]
        sizes = np.stack([part.sizes[0] for part in parts])[number, member]
        columns.append(
            attrs.evolve(parts[0], offsets=offsets.reshape(1, -1), sizes=sizes.reshape(1, -1))
        )
    return columns


def _within_chunks(
    extents: Sequence[Extent], chunks: Sequence[Extent], space: Space
) -> list[Extent]:
    """The same columns where every chunk is in a buffer of its own; `chunks` are not sliced."""
    return [
        extent.moved(space, extent.offsets - chunk.offsets)
        for extent, chunk in zip(extents, chunks, strict=True)
    ]


def _by_strand(job: Job, strands: int, planes: int, chunks: int) -> list[list[Extent]]:
    """Operands divided into strands, planes and chunks: by strand, columns are chunks by plane."""
    element_bytes = job.buffers.element_bytes
    of_strands = chunked(Space.OPERAND, job.buffers.operand_elements, strands, element_bytes)
    parts = sliced(of_strands, planes * chunks, element_bytes)
    by_strand: list[list[Extent]] = [[] for _ in range(strands)]
    for tensor, extent in enumerate(of_strands):
        offsets = np.stack([part[tensor].offsets[0] for part in parts])  # (planes*chunks, strands)
        sizes = np.stack([part[tensor].sizes[0] for part in parts])
        for strand, extents in enumerate(by_strand):
            # column chunk * planes + plane, as proxies number them
            offset, size = (
                table[:, strand].reshape(planes, chunks).T.reshape(1, -1)
                for table in (offsets, sizes)
            )
            extents.append(Extent(extent.space, tensor, offset, size))
    return by_strand
