"""Hierarchical algorithms: a stage inside every instance and one between them.

    all-reduce       reduce-scatter inside, all-reduce between, all-gather inside
    reduce-scatter   inside, then between
    all-gather       between, then inside: what the network carries is not yet copied

Of X instances with Y members each, those at one position inside form a subgroup between instances:
Y subgroups of X. Each works on its Y-th part of the buffer. Large buffers go in slices, as a
pipeline: while one is between instances, the next is inside.

Source: AWS Neuron docs, internode-collective-comm.rst (order of stages, same-index ranks); nec.h
(intra and inter algorithms, three stages of the pipeline).
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.algorithms import kangaring, mesh, rdh, ring
from ncc_runtime.collectives.chunks import Extent, Scratch, in_own_buffers, renumbered, sliced
from ncc_runtime.collectives.layout import GroupLayout, Members, UnsuitedError
from ncc_runtime.collectives.plan import LANES, Job, Plan, Round, Space, divisor
from ncc_runtime.collectives.stages import StageAlgorithm, StageKind, Strand, Subgroups

PIPELINE_SLICES = 3
"""Source: nec.h, NEC_HIER_CC_PIPELINE_STAGE_N."""

SLICED_BYTES = 2 * 64 * 1024
"""Least slice of a share between instances; assumed: two full descriptors, as for rings."""

BETWEEN: Mapping[str, StageKind] = MappingProxyType(
    {"ring": ring.STAGE, "mesh": mesh.STAGE, "rdh": rdh.STAGE}
)
"""What a stage between instances can be."""

INSIDE: Mapping[str, StageKind] = MappingProxyType({**BETWEEN, "kangaring": kangaring.STAGE})
"""What a stage inside instances can be."""

Phases: TypeAlias = tuple[Sequence[Round], Sequence[Round], Sequence[Round]]
"""What a strand does inside instances, then between them, then inside again."""


@attrs.frozen
class Hierarchy:
    """Orders inside every instance, alike in structure, and the structure between instances."""

    channels: tuple[tuple[Members, ...], ...]  # [channel][instance][position inside]
    inside: Hashable  # forms of the stages
    between: Hashable
    chunks: Members  # by position inside, the chunk of a buffer that suits it; (): its number


@attrs.frozen
class Hierarchical:
    """One pair of a stage inside instances and a stage between them, by name."""

    inside: str
    between: str

    @property
    def name(self) -> str:
        """What it is called among the algorithms."""
        return f"hier.{self.inside}.{self.between}"

    def arrange(self, layout: GroupLayout) -> Hierarchy:
        """UnsuitedError unless several instances hold as many members each, placed alike.

        Of one rank an instance AWS has ring, mesh and RDH (internode-collective-comm.rst).
        """
        nodes = layout.by_node()
        if len(nodes) == 1:
            raise UnsuitedError("all its members are on one instance")
        if len(nodes) == layout.members:
            raise UnsuitedError("an instance holds one of its members")
        if len({len(members) for members in nodes}) > 1:
            raise UnsuitedError("its instances hold different numbers of members")
        arranged = layout.arranged_by_instance(INSIDE[self.inside].arrange)
        if len({arrangement.form for arrangement in arranged}) > 1:
            raise UnsuitedError("its members are not placed alike on every instance")
        orders = [
            [tuple(members[k] for k in order) for order in arrangement.orders]
            for members, arrangement in zip(nodes, arranged, strict=True)
        ]
        first = [channels[0][0] for channels in orders]
        across = BETWEEN[self.between].arrange(layout.within(first))
        channels = zip(*(orders[node] for node in across.orders[0]), strict=False)
        return Hierarchy(tuple(channels), arranged[0].form, across.form, arranged[0].chunks)

    def all_reduce(self, job: Job, hierarchy: Hierarchy) -> Plan:
        """Every member sends 2(X-1)/X of a Y-th of the buffer to other instances."""
        elements = sum(job.buffers.operand_elements)
        slices = _Pipeline(hierarchy, elements * job.buffers.element_bytes)
        members, element_bytes, scratch = slices.members, job.buffers.element_bytes, Scratch()
        pieces = len(hierarchy.channels[0])
        chunk_slices = stages.operand_slices(job, slices.inside, slices.count, pieces)
        order = np.array(hierarchy.chunks or range(slices.inside))
        strands = [
            strand.all_reduce(
                renumbered(extents, order), scratch, divisor(job, members), element_bytes
            )
            for strand, extents in zip(self._strands(job, slices), chunk_slices, strict=True)
        ]
        return Plan(self.name, members, slices.pipelined(strands), scratch.bytes, job.symmetry)

    def reduce_scatter(self, job: Job, hierarchy: Hierarchy) -> Plan:
        """Every member sends (X-1)/X of a Y-th of the operand to other instances."""
        elements = sum(job.buffers.operand_elements)
        slices = _Pipeline(hierarchy, elements * job.buffers.element_bytes)
        members, scratch = slices.members, Scratch()
        (full_chunks,) = stages.operand_slices(job, members, 1)
        chunk_slices = stages.operand_slices(job, members, slices.count)
        strands = [
            strand.reduce_scatter(
                extents,
                in_own_buffers(extents, full_chunks, Space.RESULT),
                scratch,
                divisor(job, members),
            )
            for strand, extents in zip(self._strands(job, slices), chunk_slices, strict=True)
        ]
        return Plan(self.name, members, slices.pipelined(strands), scratch.bytes, job.symmetry)

    def all_gather(self, job: Job, hierarchy: Hierarchy) -> Plan:
        """Every member sends X-1 chunks to other instances."""
        elements = sum(job.buffers.result_elements)
        slices = _Pipeline(hierarchy, elements * job.buffers.element_bytes)
        (full_chunks,) = stages.result_slices(job, slices.members, 1)
        chunk_slices = stages.result_slices(job, slices.members, slices.count)
        strands = [
            strand.all_gather(in_own_buffers(extents, full_chunks, Space.OPERAND), extents)
            for strand, extents in zip(self._strands(job, slices), chunk_slices, strict=True)
        ]
        return Plan(self.name, slices.members, slices.pipelined(strands), symmetry=job.symmetry)

    def gathered(
        self, job: Job, hierarchy: Hierarchy, results: Sequence[Extent]
    ) -> tuple[Round, ...]:
        """An all-gather of chunks that lie at their members already, in place."""
        elements = sum(job.buffers.operand_elements)
        slices = _Pipeline(hierarchy, elements * job.buffers.element_bytes)
        chunk_slices = sliced(results, slices.count, job.buffers.element_bytes)
        strands = [
            strand.all_gather(extents, extents)
            for strand, extents in zip(self._strands(job, slices), chunk_slices, strict=True)
        ]
        return slices.pipelined(strands)

    def _strands(self, job: Job, slices: "_Pipeline") -> Iterator["_HierarchyStrand"]:
        """The stages of every strand, slice by slice and channel by channel."""
        hierarchy = slices.hierarchy
        for number in range(slices.count):
            nodes = np.array(hierarchy.channels[number % slices.channels], np.int32)
            strand = slices.strand(number)
            yield _HierarchyStrand(
                nodes,
                INSIDE[self.inside].stage(Subgroups(nodes, job.symmetry), hierarchy.inside, strand),
                BETWEEN[self.between].stage(
                    Subgroups(nodes.T, job.symmetry), hierarchy.between, strand
                ),
            )


@attrs.frozen(eq=False)
class _Pipeline:
    """How a buffer goes in slices and channels: a slice of a channel is a strand."""

    hierarchy: Hierarchy
    size_bytes: int

    @property
    def channels(self) -> int:
        return len(self.hierarchy.channels)

    @property
    def inside(self) -> int:
        """Members of an instance."""
        return len(self.hierarchy.channels[0][0])

    @property
    def members(self) -> int:
        return len(self.hierarchy.channels[0]) * self.inside

    @property
    def depth(self) -> int:
        """Slices that follow each other."""
        share_bytes = self.size_bytes // (self.inside * self.channels)
        return min(PIPELINE_SLICES, max(1, share_bytes // SLICED_BYTES))

    @property
    def count(self) -> int:
        return self.channels * self.depth

    def strand(self, number: int) -> Strand:
        """The strand and its DMA rings."""
        rings = max(1, min(LANES // self.count, len(rdh.LANES)))
        return Strand(number, tuple((number * rings + k) % LANES for k in range(rings)))

    def pipelined(self, phases: Sequence[Phases]) -> tuple[Round, ...]:
        """A slice goes inside as soon as the one before has been sent to other instances.

        A CC-core works in order, so what waits for the network comes last: the first sends of all
        slices, then their other steps by turns, then what follows inside.
        """
        slices = [
            [
                stages.side_by_side(strands)
                for strands in zip(*phases[first : first + self.channels], strict=True)
            ]
            for first in range(0, self.count, self.channels)
        ]
        rounds: list[Round] = []
        for before, between, _ in slices:
            rounds += (*before, *between[:1])
        rounds += stages.side_by_side([between[1:] for _, between, _ in slices])
        for _, _, after in slices:
            rounds += after
        return tuple(rounds)


@attrs.frozen(eq=False)
class _HierarchyStrand:
    """The stages of one strand: what it does in each phase."""

    nodes: np.ndarray  # (X, Y) int32, member by instance and position inside
    inside: StageAlgorithm
    between: StageAlgorithm

    def all_reduce(
        self, extents: list[Extent], scratch: Scratch, divided_by: int, element_bytes: int
    ) -> Phases:
        """The chunk of a position inside is divided once more, among the positions between."""
        results = [extent.moved(Space.RESULT) for extent in extents]
        pieces = sliced(results, len(self.nodes), element_bytes)
        shares = [self._shares(of_tensor) for of_tensor in zip(*pieces, strict=True)]
        reduced = self.between.reduce_scatter(shares, shares, scratch, divided_by)
        return (
            self.inside.reduce_scatter(extents, results, scratch),
            reduced + self.between.all_gather(shares, shares),
            self.inside.all_gather(results, results),
        )

    def reduce_scatter(
        self, extents: list[Extent], targets: list[Extent], scratch: Scratch, divided_by: int
    ) -> Phases:
        """Sums over the members of an instance, a chunk for every instance, lie in scratch."""
        count, slots = len(self.nodes), []
        for extent in extents:
            size = int(extent.sizes.max(initial=0))
            at = np.array([[scratch.take(size) for _ in range(count)]], np.int64)
            sizes = np.full_like(at, size)
            slots.append(Extent(Space.SCRATCH, extent.tensor, at, sizes))
        within = [
            attrs.evolve(slot, offsets=slot.offsets[:, at], sizes=slot.sizes[:, at])
            for at in np.arange(count)[:, None].repeat(self.nodes.shape[1], axis=1)
            for slot in slots
        ]
        results = [
            attrs.evolve(target, offsets=target.offsets[:, :count], sizes=target.sizes[:, :count])
            for target in targets
        ]
        reduced = self.inside.reduce_scatter(self._per_node(extents), within, scratch)
        return reduced, self.between.reduce_scatter(slots, results, scratch, divided_by), []

    def all_gather(self, sources: list[Extent], targets: list[Extent]) -> Phases:
        """After the first phase every member has X chunks, which the stage inside gathers."""
        within = self._per_node(targets)
        first = self.between.all_gather(self._per_position(sources), self._per_position(targets))
        return [], first, self.inside.all_gather(within, within)

    def _per_node(self, extents: Sequence[Extent]) -> list[Extent]:
        """Chunks by member as chunks by position inside: extents for every instance."""
        return [extent for node in self.nodes for extent in renumbered(extents, node)]

    def _per_position(self, extents: Sequence[Extent]) -> list[Extent]:
        """Chunks by member as chunks by position between, in a table by position inside."""
        members, row = self.nodes.T, self.inside.subgroups.positions
        return [
            attrs.evolve(
                extent, offsets=extent.offsets[0, members], sizes=extent.sizes[0, members], row=row
            )
            for extent in extents
        ]

    def _shares(self, pieces: Sequence[Extent]) -> Extent:
        """Piece x of the chunk of every member's position inside, as chunk x."""
        return attrs.evolve(
            pieces[0],
            offsets=np.stack([piece.offsets[0] for piece in pieces], axis=1),
            sizes=np.stack([piece.sizes[0] for piece in pieces], axis=1),
            row=self.inside.subgroups.positions,
        )


PAIRS: tuple[Hierarchical, ...] = tuple(
    Hierarchical(inside, between) for inside in INSIDE for between in BETWEEN
)
"""Any stage inside with any stage between."""
