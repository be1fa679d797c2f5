"""Stages: reduce-scatter and all-gather of subgroups, of which algorithms are put together.

A stage is what all subgroups of a group do at once. One stage over the whole group is an algorithm
by itself. Several beside each other are strands, each with a slice of every chunk. Several after
each other, on subgroups that cross (inside instances, then between them), are a hierarchy.

Members of a subgroup have positions, as ranks have in an MPI sub-communicator. Algorithms compute
with positions, all members at once: columns over members.

Also here, for every algorithm: `coalesced` makes one transfer of chunks that lie side by side, and
`reduced_in_blocks` splits a reduction of more sources than one descriptor takes.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, Protocol

import attrs
import numpy as np

from ncc_runtime.collectives.chunks import (
    Extent,
    Scratch,
    chunked,
    in_own_buffers,
    renumbered,
    sliced,
)
from ncc_runtime.collectives.layout import GroupLayout, Members
from ncc_runtime.collectives.plan import (
    IDLE,
    Job,
    Location,
    Plan,
    Round,
    Space,
    Symmetry,
    Transfer,
    divisor,
    self_peers,
)


class Subgroups:
    """Subgroups of one size that cover a group; `orders[s, p]` is the member at position p of s.

    Columns of peers are of all members. Where the first members represent all (`plan.Symmetry`),
    `position` is of these alone, and so are offsets and sizes that follow from it.
    """

    def __init__(
        self, orders: Sequence[Sequence[int]] | np.ndarray, symmetry: Symmetry | None
    ) -> None:
        self.orders: np.ndarray = np.array(orders, np.int32)
        self.chunks = self.orders  # the member that owns each chunk, before any rotation
        if symmetry is not None and symmetry.rotation:
            rotated = symmetry.rotation * symmetry.representatives
            self.orders = (self.orders - np.int32(rotated)) % self.orders.size
        subgroups, self.size = self.orders.shape
        self.members = self.orders.size
        self.symmetry = symmetry
        self.positions: np.ndarray = np.empty(self.members, np.int64)  # of all members
        self.subgroup: np.ndarray = np.empty(self.members, np.int64)
        self.positions[self.orders] = np.arange(self.size)
        self.subgroup[self.orders] = np.arange(subgroups)[:, None]
        self.position = self.positions[: self.columns]
        # equal columns are one array: a ring has many rounds, and two columns of peers in all
        self._shifted: dict[int, np.ndarray] = {}
        self._members_of: dict[bytes, np.ndarray] = {}

    @property
    def columns(self) -> int:
        """How many members have offsets and sizes, the first ones."""
        return self.members if self.symmetry is None else self.symmetry.representatives

    @cached_property
    def self_peers(self) -> np.ndarray:
        """Every member itself, (members,) int32."""
        return _sealed(self_peers(self.members))

    def member(self, position: np.ndarray) -> np.ndarray:
        """By member, the member at the given position of its subgroup, (members,) int32."""
        return np.asarray(self.orders[self.subgroup, position % self.size])

    def shifted(self, step: int) -> np.ndarray:
        """By member, the member `step` positions on in its subgroup, (members,) int32."""
        if step not in self._shifted:
            self._shifted[step] = _sealed(self.member(self.positions + step))
        return self._shifted[step]

    def members_of(self, by_position: np.ndarray) -> np.ndarray:
        """A column of positions by position as one of members by member, int32; IDLE stays."""
        key = by_position.tobytes()
        if key not in self._members_of:
            position = by_position[self.positions]
            member = self.orders[self.subgroup, np.where(position == IDLE, 0, position)]
            column = np.where(position == IDLE, np.int32(IDLE), member).astype(np.int32)
            self._members_of[key] = _sealed(column)
        return self._members_of[key]

    def everywhere(self, offset: int) -> np.ndarray:
        """The same offset at every member that has a column."""
        return np.full(self.columns, offset, np.int64)


def _sealed(column: np.ndarray) -> np.ndarray:
    column.setflags(write=False)
    return column


@attrs.frozen
class Arrangement:
    """How one subgroup is arranged: orders of its members, one per channel, and their structure."""

    orders: tuple[Members, ...]  # per channel, by position
    form: Hashable = ()  # in positions, alike in all channels
    chunks: Members = ()  # by position, the chunk that suits it where it may choose; (): its number


@attrs.frozen
class Strand:
    """Rounds that wait for each other and for no other strand, and the DMA rings they go into.

    NCCL calls this a channel; here a channel is (sender, receiver, lane).
    """

    number: int
    lanes: tuple[int, ...]

    def transfer(
        self,
        peer: np.ndarray,
        sources: tuple[Location, ...],
        target: Location,
        size_bytes: np.ndarray,
        lane_index: int = 0,
    ) -> Transfer:
        """A transfer in one of the rings; the index wraps round."""
        return Transfer(
            peer=peer,
            sources=sources,
            target=target,
            size_bytes=size_bytes,
            lane=self.lanes[lane_index % len(self.lanes)],
            strand=self.number,
        )


class StageAlgorithm(Protocol):
    """What every subgroup does at once. Chunk p of an extent belongs to position p of each."""

    @property
    def subgroups(self) -> Subgroups: ...

    @property
    def goes_by_chunk(self) -> bool:
        """Whether every transfer moves one chunk, so that equal chunks mean equal transfers."""

    def reduce_scatter(
        self,
        extents: Sequence[Extent],
        targets: Sequence[Extent],
        scratch: Scratch,
        divided_by: int = 1,
    ) -> list[Round]:
        """Chunk p of the extents, reduced and divided, at position p in chunk p of the targets."""

    def all_gather(self, sources: Sequence[Extent], targets: Sequence[Extent]) -> list[Round]:
        """Chunk p of `sources` at position p, in chunk p of the targets of everybody."""


@attrs.frozen
class StageKind:
    """How a subgroup is arranged for a stage, and the stage."""

    arrange: Callable[[GroupLayout], Arrangement]  # raises UnsuitedError
    stage: Callable[[Subgroups, Any, Strand], StageAlgorithm]  # given the form of the arrangement


def all_reduce(name: str, job: Job, stages: Sequence[StageAlgorithm], chunks: Members = ()) -> Plan:
    """Reduce-scatter, then all-gather; every stage has a slice of every chunk."""
    members, scratch = stages[0].subgroups.members, Scratch()
    order = np.array(chunks or range(members))
    strands = []
    for stage, extents in zip(stages, operand_slices(job, members, len(stages)), strict=True):
        extents = renumbered(extents, order)
        results = [extent.moved(Space.RESULT) for extent in extents]
        reduced = stage.reduce_scatter(extents, results, scratch, divisor(job, members))
        strands.append(reduced + stage.all_gather(results, results))
    divides = _divides_evenly(stages, job.buffers.operand_elements)
    rounds = side_by_side(strands)
    return Plan(name, members, rounds, scratch.bytes, stages[0].subgroups.symmetry, divides)


def reduce_scatter(name: str, job: Job, stages: Sequence[StageAlgorithm]) -> Plan:
    """Chunk m of every operand, reduced, at member m; every stage has a slice of every chunk."""
    members, scratch = stages[0].subgroups.members, Scratch()
    (chunks,) = operand_slices(job, members, 1)
    strands = []
    for stage, extents in zip(stages, operand_slices(job, members, len(stages)), strict=True):
        owned = renumbered(extents, stage.subgroups.chunks[0])
        targets = in_own_buffers(owned, chunks, Space.RESULT)
        strands.append(stage.reduce_scatter(owned, targets, scratch, divisor(job, members)))
    divides = _divides_evenly(stages, job.buffers.operand_elements)
    rounds = side_by_side(strands)
    return Plan(name, members, rounds, scratch.bytes, stages[0].subgroups.symmetry, divides)


def all_gather(name: str, job: Job, stages: Sequence[StageAlgorithm]) -> Plan:
    """The operand of member m in chunk m of every result; every stage has a slice of it."""
    members = stages[0].subgroups.members
    (chunks,) = result_slices(job, members, 1)
    strands = []
    for stage, extents in zip(stages, result_slices(job, members, len(stages)), strict=True):
        owned = renumbered(extents, stage.subgroups.chunks[0])
        strands.append(stage.all_gather(in_own_buffers(owned, chunks, Space.OPERAND), owned))
    divides = _divides_evenly(stages, job.buffers.result_elements)
    rounds = side_by_side(strands)
    symmetry = stages[0].subgroups.symmetry
    return Plan(name, members, rounds, symmetry=symmetry, has_equal_sizes=divides)


def _divides_evenly(stages: Sequence[StageAlgorithm], elements: Sequence[int]) -> bool:
    """Whether buffers of these sizes divide into equal chunks that are moved one by one."""
    members = stages[0].subgroups.members
    return all(stage.goes_by_chunk for stage in stages) and not any(
        count % members for count in elements
    )


def kept(
    subgroups: Subgroups, strand: Strand, sources: Sequence[Extent], targets: Sequence[Extent]
) -> tuple[Transfer, ...]:
    """Copies of members' chunks of an all-gather into their results, where they are elsewhere."""
    local_peers, position = subgroups.self_peers, subgroups.position
    return tuple(
        strand.transfer(
            local_peers, (source.piece(position),), target.piece(position), target.size(position)
        )
        for source, target in zip(sources, targets, strict=True)
        if source.space is not target.space
    )


def operand_slices(job: Job, chunks: int, parts: int, pieces: int = 1) -> list[list[Extent]]:
    """All operands divided into chunks, and every chunk into slices: extents per slice."""
    elements, element_bytes = job.buffers.operand_elements, job.buffers.element_bytes
    extents = chunked(Space.OPERAND, elements, chunks, element_bytes)
    return sliced(extents, parts, element_bytes, pieces)


def result_slices(job: Job, chunks: int, parts: int) -> list[list[Extent]]:
    """All results divided into chunks, and every chunk into slices: extents per slice."""
    elements, element_bytes = job.buffers.result_elements, job.buffers.element_bytes
    return sliced(chunked(Space.RESULT, elements, chunks, element_bytes), parts, element_bytes)


def side_by_side(strands: Sequence[Sequence[Round]]) -> tuple[Round, ...]:
    """Round k of every strand as one."""
    return tuple(
        Round(tuple(move for one_round in rounds if one_round for move in one_round.transfers))
        for rounds in zip_longest(*strands)
    )


@attrs.frozen(eq=False)
class ExtentSource:
    """An extent to read, and in whose memory it lies."""

    extent: Extent
    owner: np.ndarray | None = None  # (members,) int32; None: the member's own


def coalesced(
    peer: np.ndarray,
    chunks: np.ndarray,
    sources: Sequence[ExtentSource],
    target: Extent,
    strand: Strand,
    symmetry: Symmetry | None = None,
    lane_index: int = 0,
) -> Iterator[Transfer]:
    """Chunks to a peer in as few transfers as they make contiguous runs.

    `peer` is (members,) int32, IDLE for none; `chunks` (members or representatives, k) int64, IDLE
    beyond a member's last. A run is contiguous at all sources and at the target. Transfer number r
    moves run r of every member that has one.
    """
    peers = peer[: len(chunks)]
    is_sent = (chunks != IDLE) & (peers != IDLE)[:, None]
    chunk = np.where(is_sent, chunks, 0)
    offsets = [
        source.extent.cells(source.extent.offsets, chunk, source.owner) for source in sources
    ]
    offsets.append(target.cells(target.offsets, chunk, np.where(peers == IDLE, 0, peers)))
    size = np.where(is_sent, sources[0].extent.cells(sources[0].extent.sizes, chunk), 0)
    # chunks in the order in which they lie at the target, those that are not sent last
    behind_all = np.iinfo(np.int64).max
    order = np.argsort(np.where(is_sent, offsets[-1], behind_all), axis=1, kind="stable")
    is_sent, size, *offsets = (
        np.take_along_axis(cells, order, axis=1) for cells in (is_sent, size, *offsets)
    )
    follows = is_sent[:, 1:] & np.all(
        [at[:, :-1] + size[:, :-1] == at[:, 1:] for at in offsets], axis=0
    )
    # a chunk that does not follow the one before it begins the member's next run
    zero = np.zeros((len(chunk), 1), int)
    run = np.concatenate((zero, np.cumsum(~follows, 1)), 1)
    is_first = is_sent & np.concatenate((zero == 0, ~follows), 1)
    for number in range(int(np.where(is_first, run, IDLE).max(initial=IDLE)) + 1):
        begins = is_first & (run == number)  # at most one of each member
        sends = begins.any(axis=1)
        peer_of_run = peer
        if not sends.all():
            everybody = sends if symmetry is None else symmetry.over_all(sends, len(peer))
            peer_of_run = np.where(everybody, peer, np.int32(IDLE))
        *reads, write = (np.where(begins, at, 0).sum(axis=1) for at in offsets)
        yield strand.transfer(
            peer_of_run,
            tuple(
                Location(source.extent.space, read, source.extent.tensor, source.owner)
                for source, read in zip(sources, reads, strict=True)
            ),
            Location(target.space, write, target.tensor),
            (size * (run == number)).sum(axis=1),
            lane_index,
        )


MOST_SOURCES = 16
"""Sources of one descriptor; assumed: AWS publishes no limit of its reducing descriptors."""


def reduced_in_blocks(
    sources: Sequence[Location],
    target: Location,
    size_bytes: np.ndarray,
    self_peers: np.ndarray,
    strand: Strand,
    scratch: Scratch,
    divided_by: int,
) -> list[Transfer]:
    """Locations in every member's memory reduced in their order into another one there.

    As many as a descriptor takes are joined from left to right, then as many of these sums, and so
    on. Each transfer waits for the one before; the last one divides and writes the target.
    """
    left, moves = list(sources), []
    while len(left) > MOST_SOURCES:
        sums: list[Location] = []
        for first in range(0, len(left), MOST_SOURCES):
            block = tuple(left[first : first + MOST_SOURCES])
            if len(block) == 1:
                sums += block
                continue
            at = scratch.take(int(size_bytes.max(initial=0)))
            sums.append(Location(Space.SCRATCH, np.full(len(size_bytes), at, np.int64)))
            moves.append(strand.transfer(self_peers, block, sums[-1], size_bytes))
        left = sums
    last = strand.transfer(self_peers, tuple(left), target, size_bytes)
    return [*moves, attrs.evolve(last, divisor=divided_by)]
