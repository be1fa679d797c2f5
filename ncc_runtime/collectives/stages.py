"""Stages: reduce-scatter and all-gather of equal teams, of which algorithms are put together.

A stage alone makes an algorithm of one group. Several beside each other are strands, each with a
slice of every chunk; several behind each other, on teams that cross, are a hierarchy.

Who plays which part: members of equal teams, in an order, as columns.

Sets of chunks on their way to one peer, chunks that lie side by side as one transfer.

Reductions of more sources than one descriptor takes: joined from left to right, one by one.
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
    in_own_buffers,
    renumbered,
    sliced,
    whole_chunks,
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
    """Equal teams that cover all members; `orders[t][r]` is the member of role r in team t.

    Columns of members say something of everybody. Where the first members stand for all, `role`
    is of them alone, and so is what follows from it.
    """

    def __init__(self, orders: Sequence[Sequence[int]] | np.ndarray, fold: Symmetry | None) -> None:
        self.orders: np.ndarray = np.array(orders, np.int32)
        self.chunks = self.orders  # whose a chunk is, whoever comes first
        if fold is not None and fold.rotation:
            self.orders = (
                self.orders - np.int32(fold.rotation * fold.representatives)
            ) % self.orders.size
        teams, self.count = self.orders.shape
        self.members = self.orders.size
        self.symmetry = fold
        self.roles: np.ndarray = np.empty(self.members, np.int64)  # of all members
        self.team: np.ndarray = np.empty(self.members, np.int64)
        self.roles[self.orders] = np.arange(self.count)
        self.team[self.orders] = np.arange(teams)[:, None]
        self.role = self.roles[: self.seen]
        self._shifted: dict[int, np.ndarray] = {}  # by step; a ring asks for two, every round
        self._named: dict[bytes, np.ndarray] = {}  # by roles that are named

    @property
    def seen(self) -> int:
        """How many members `role` has, the first ones."""
        return self.members if self.symmetry is None else self.symmetry.representatives

    @cached_property
    def home(self) -> np.ndarray:
        """Everybody at itself, (members,) int32."""
        return _sealed(self_peers(self.members))

    def member(self, role: np.ndarray) -> np.ndarray:
        """By member, who plays the given role in its team, (members,) int32."""
        return np.asarray(self.orders[self.team, role % self.count])

    def shifted(self, step: int) -> np.ndarray:
        """By member, who stands `step` places on in its team, (members,) int32."""
        if step not in self._shifted:
            self._shifted[step] = _sealed(self.member(self.roles + step))
        return self._shifted[step]

    def members_of(self, roles: np.ndarray) -> np.ndarray:
        """By member, who plays the role that a column by role names, IDLE for none; int32."""
        key = roles.tobytes()
        if key not in self._named:
            named = roles[self.roles]
            found = self.orders[self.team, np.where(named == IDLE, 0, named)]
            members = np.where(named == IDLE, np.int32(IDLE), found).astype(np.int32)
            self._named[key] = _sealed(members)
        return self._named[key]

    def everywhere(self, offset: int) -> np.ndarray:
        """The same offset at every member that is seen."""
        return np.full(self.seen, offset, np.int64)


def _sealed(column: np.ndarray) -> np.ndarray:
    column.setflags(write=False)
    return column


@attrs.frozen
class Arrangement:
    """An arrangement of one team: orders of its members, one per channel, and their structure."""

    orders: tuple[Members, ...]  # per channel, by role
    form: Hashable = ()  # in roles, alike in all channels
    chunks: Members = ()  # by role, the chunk that suits it where it may choose; (): its number


@attrs.frozen
class Strand:
    """Whose arrivals the transfers of a stage wait for, and the DMA rings they go into."""

    strand: int
    lanes: tuple[int, ...]

    def transfer(
        self,
        peer: np.ndarray,
        sources: tuple[Location, ...],
        target: Location,
        size_bytes: np.ndarray,
        turn: int = 0,
    ) -> Transfer:
        """A transfer in one of the rings, by turns."""
        return Transfer(
            peer=peer,
            sources=sources,
            target=target,
            size_bytes=size_bytes,
            lane=self.lanes[turn % len(self.lanes)],
            strand=self.strand,
        )


class StageAlgorithm(Protocol):
    """What every team does at once. Chunk r of an extent belongs to role r of the team."""

    @property
    def roles(self) -> Subgroups: ...

    @property
    def goes_by_chunk(self) -> bool:
        """Whether transfers are of one chunk each, the same ones for every role."""

    def reduce_scatter(
        self, extents: Sequence[Extent], targets: Sequence[Extent], scratch: Scratch, parts: int = 1
    ) -> list[Round]:
        """Chunk r of the extents, reduced and divided, at role r in chunk r of the targets."""

    def all_gather(self, own: Sequence[Extent], targets: Sequence[Extent]) -> list[Round]:
        """Chunk r of `own` at role r, in chunk r of the targets of everybody."""


@attrs.frozen
class StageKind:
    """How a team is arranged for a stage, and the stage."""

    arrange: Callable[[GroupLayout], Arrangement]  # raises UnsuitedError
    stage: Callable[[Subgroups, Any, Strand], StageAlgorithm]  # given the form of the wiring


def all_reduce(name: str, job: Job, stages: Sequence[StageAlgorithm], chunks: Members = ()) -> Plan:
    """Reduce-scatter, then all-gather; every stage has a slice of every chunk."""
    members, scratch = stages[0].roles.members, Scratch()
    order = np.array(chunks or range(members))
    strands = []
    for stage, extents in zip(stages, operand_slices(job, members, len(stages)), strict=True):
        extents = renumbered(extents, order)
        results = [extent.moved(Space.RESULT) for extent in extents]
        rounds = stage.reduce_scatter(extents, results, scratch, divisor(job, members))
        strands.append(rounds + stage.all_gather(results, results))
    is_even = _is_even(stages, job.buffers.operand_elements)
    together = side_by_side(strands)
    return Plan(name, members, together, scratch.bytes, stages[0].roles.symmetry, is_even)


def reduce_scatter(name: str, job: Job, stages: Sequence[StageAlgorithm]) -> Plan:
    """Chunk m of every operand, reduced, at member m; every stage has a slice of every chunk."""
    members, scratch = stages[0].roles.members, Scratch()
    (whole,) = operand_slices(job, members, 1)
    strands = []
    for stage, extents in zip(stages, operand_slices(job, members, len(stages)), strict=True):
        owned = renumbered(extents, stage.roles.chunks[0])
        targets = in_own_buffers(owned, whole, Space.RESULT)
        strands.append(stage.reduce_scatter(owned, targets, scratch, divisor(job, members)))
    is_even = _is_even(stages, job.buffers.operand_elements)
    together = side_by_side(strands)
    return Plan(name, members, together, scratch.bytes, stages[0].roles.symmetry, is_even)


def all_gather(name: str, job: Job, stages: Sequence[StageAlgorithm]) -> Plan:
    """The operand of member m in chunk m of every result; every stage has a slice of it."""
    members = stages[0].roles.members
    (whole,) = result_slices(job, members, 1)
    strands = []
    for stage, extents in zip(stages, result_slices(job, members, len(stages)), strict=True):
        owned = renumbered(extents, stage.roles.chunks[0])
        strands.append(stage.all_gather(in_own_buffers(owned, whole, Space.OPERAND), owned))
    is_even = _is_even(stages, job.buffers.result_elements)
    rounds = side_by_side(strands)
    return Plan(name, members, rounds, symmetry=stages[0].roles.symmetry, is_even=is_even)


def _is_even(stages: Sequence[StageAlgorithm], elements: Sequence[int]) -> bool:
    """Whether buffers of so many elements go in chunks of one size, chunk by chunk."""
    roles = stages[0].roles
    return all(stage.goes_by_chunk for stage in stages) and not any(
        count % roles.members for count in elements
    )


def kept(
    roles: Subgroups, track: Strand, own: Sequence[Extent], targets: Sequence[Extent]
) -> tuple[Transfer, ...]:
    """Copies of what a member gives to an all-gather into its own result, if it is not there."""
    mine = roles.home
    return tuple(
        track.transfer(mine, (source.piece(roles.role),), target.piece(roles.role), size)
        for source, target in zip(own, targets, strict=True)
        if source.space is not target.space
        for size in (target.size(roles.role),)
    )


def operand_slices(job: Job, chunks: int, parts: int, pieces: int = 1) -> list[list[Extent]]:
    """All operands cut into chunks, and every chunk into slices: extents per slice."""
    sizes, width = job.buffers.operand_elements, job.buffers.element_bytes
    return sliced(whole_chunks(Space.OPERAND, sizes, chunks, width), parts, width, pieces)


def result_slices(job: Job, chunks: int, parts: int) -> list[list[Extent]]:
    """All results cut into chunks, and every chunk into slices: extents per slice."""
    sizes, width = job.buffers.result_elements, job.buffers.element_bytes
    return sliced(whole_chunks(Space.RESULT, sizes, chunks, width), parts, width)


def side_by_side(strands: Sequence[Sequence[Round]]) -> tuple[Round, ...]:
    """Round k of every strand as one."""
    return tuple(
        Round(tuple(move for one_round in rounds if one_round for move in one_round.transfers))
        for rounds in zip_longest(*strands)
    )


FAR = np.iinfo(np.int64).max


@attrs.frozen(eq=False)
class ExtentSource:
    """An extent to read, and in whose memory it lies."""

    extent: Extent
    owner: np.ndarray | None = None  # (members,) int32; None: the own


@attrs.frozen(eq=False)
class Parcel:
    """Chunks that every member sends at once to its peer."""

    peer: np.ndarray  # (members,) int32, IDLE for none
    chunks: np.ndarray  # (members, k) int64, IDLE beyond a member's last
    symmetry: Symmetry | None = None  # whose first members the chunks are of

    def peer_of(self, sends: np.ndarray) -> np.ndarray:
        """Its peers, where those that are seen send, and who is alike."""
        if sends.all():
            return self.peer
        everybody = sends
        if self.symmetry is not None:
            everybody = self.symmetry.over_all(sends, len(self.peer))
        return np.where(everybody, self.peer, np.int32(IDLE))


def transfers(
    parcel: Parcel, sources: Sequence[ExtentSource], target: Extent, track: Strand, turn: int = 0
) -> Iterator[Transfer]:
    """As few transfers as the chunks make contiguous runs, at the sources and at the target."""
    runs = _Runs.of(parcel, sources, target)
    for run in range(runs.count):
        begins = runs.begins == run
        size = (runs.size * (runs.number == run)).sum(axis=1)
        pieces = [_first(at, begins) for at in runs.offsets]
        yield track.transfer(
            parcel.peer_of(begins.any(axis=1)),
            tuple(
                Location(source.extent.space, offset, source.extent.tensor, source.owner)
                for source, offset in zip(sources, pieces, strict=False)
            ),
            Location(target.space, pieces[-1], target.tensor),
            size,
            turn,
        )


@attrs.frozen(eq=False)
class _Runs:
    """All chunks in the order in which they lie, numbered by run; arrays are (members, k)."""

    offsets: list[np.ndarray]  # at every source, then at the target
    size: np.ndarray  # 0 beyond a member's last
    number: np.ndarray
    begins: np.ndarray  # the number where a run begins, IDLE elsewhere
    count: int

    @classmethod
    def of(cls, parcel: Parcel, sources: Sequence[ExtentSource], target: Extent) -> "_Runs":
        peers = parcel.peer[: len(parcel.chunks)]
        there = (parcel.chunks != IDLE) & (peers != IDLE)[:, None]
        chunk = np.where(there, parcel.chunks, 0)
        peer = np.where(peers == IDLE, 0, peers)
        at = [source.extent.cells(source.extent.offsets, chunk, source.owner) for source in sources]
        at.append(target.cells(target.offsets, chunk, peer))
        size = np.where(there, sources[0].extent.cells(sources[0].extent.sizes, chunk), 0)
        order = np.argsort(np.where(there, at[-1], FAR), axis=1, kind="stable")
        there, size, *at = (np.take_along_axis(one, order, axis=1) for one in (there, size, *at))
        is_next = there[:, 1:] & np.all(
            [one[:, :-1] + size[:, :-1] == one[:, 1:] for one in at], axis=0
        )
        number = np.concatenate((np.zeros((len(chunk), 1), int), np.cumsum(~is_next, 1)), 1)
        is_first = there & np.concatenate((np.ones((len(chunk), 1), bool), ~is_next), 1)
        begins = np.where(is_first, number, IDLE)
        return cls(at, size, number, begins, int(begins.max(initial=IDLE)) + 1)


def _first(offsets: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """By member, the offset where a run begins, 0 if it has none."""
    return np.where(begins, offsets, 0).sum(axis=1)


MOST_SOURCES = 16
"""Sources of one descriptor; assumed: AWS publishes no limit of its reducing descriptors."""


@attrs.frozen(eq=False)
class Join:
    """Pieces of every member's memory, joined into a piece of its own."""

    sources: Sequence[Location]
    target: Location
    size_bytes: np.ndarray  # (members,) int64
    self_peers: np.ndarray  # (members,) int32, everybody at itself


def chained_reduction(
    join: Join, track: Strand, scratch: Scratch, parts: int, turn: int = 0
) -> list[Transfer]:
    """Transfers that each wait for the one before; the last one divides and writes the target."""
    mine, sources = join.self_peers, list(join.sources)
    moves = []
    while len(sources) > MOST_SOURCES:
        at = scratch.take(int(join.size_bytes.max(initial=0)))
        sum_so_far = Location(Space.SCRATCH, np.full(len(join.size_bytes), at, np.int64))
        first = tuple(sources[:MOST_SOURCES])
        moves.append(track.transfer(mine, first, sum_so_far, join.size_bytes, turn))
        sources[:MOST_SOURCES] = [sum_so_far]
    last = track.transfer(mine, tuple(sources), join.target, join.size_bytes, turn)
    return [*moves, attrs.evolve(last, divisor=parts)]
