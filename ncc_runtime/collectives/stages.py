"""Stages: reduce-scatter and all-gather of equal teams, of which algorithms are put together.

A stage alone makes an algorithm of one group. Several beside each other are strands, each with a
slice of every chunk; several behind each other, on teams that cross, are a hierarchy.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import zip_longest
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np

from ncc_runtime.collectives.extents import Extent, Scratch, alone, renumbered, sliced, whole_chunks
from ncc_runtime.collectives.layout import Layout, Members
from ncc_runtime.collectives.plan import Job, Piece, Plan, Round, Space, Transfer, divisor
from ncc_runtime.collectives.roles import Roles

Strand: TypeAlias = "list[Round]"
"""Rounds that wait for each other and for no other strand."""


@attrs.frozen
class Wiring:
    """An arrangement of one team: orders of its members, one per channel, and their structure."""

    orders: tuple[Members, ...]  # per channel, by role
    form: Hashable = ()  # in roles, alike in all channels
    chunks: Members = ()  # by role, the chunk that suits it where it may choose; (): its number


@attrs.frozen
class Track:
    """Whose arrivals the transfers of a stage wait for, and the DMA rings they go into."""

    strand: int
    lanes: tuple[int, ...]

    def transfer(
        self,
        peer: np.ndarray,
        sources: tuple[Piece, ...],
        target: Piece,
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


class Stage(Protocol):
    """What every team does at once. Chunk r of an extent belongs to role r of the team."""

    @property
    def roles(self) -> Roles: ...

    @property
    def goes_by_chunk(self) -> bool:
        """Whether transfers are of one chunk each, the same ones for every role."""

    def reduce_scatter(
        self, extents: Sequence[Extent], targets: Sequence[Extent], scratch: Scratch, parts: int = 1
    ) -> Strand:
        """Chunk r of the extents, reduced and divided, at role r in chunk r of the targets."""

    def all_gather(self, own: Sequence[Extent], targets: Sequence[Extent]) -> Strand:
        """Chunk r of `own` at role r, in chunk r of the targets of everybody."""


@attrs.frozen
class StageKind:
    """How a team is arranged for a stage, and the stage."""

    arrange: Callable[[Layout], Wiring]  # raises UnsuitedError
    stage: Callable[[Roles, Any, Track], Stage]  # given the form of the wiring


def all_reduce(name: str, job: Job, stages: Sequence[Stage], chunks: Members = ()) -> Plan:
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
    return Plan(name, members, together, scratch.bytes, stages[0].roles.fold, is_even)


def reduce_scatter(name: str, job: Job, stages: Sequence[Stage]) -> Plan:
    """Chunk m of every operand, reduced, at member m; every stage has a slice of every chunk."""
    members, scratch = stages[0].roles.members, Scratch()
    (whole,) = operand_slices(job, members, 1)
    strands = []
    for stage, extents in zip(stages, operand_slices(job, members, len(stages)), strict=True):
        owned = renumbered(extents, stage.roles.chunks[0])
        targets = alone(owned, whole, Space.RESULT)
        strands.append(stage.reduce_scatter(owned, targets, scratch, divisor(job, members)))
    is_even = _is_even(stages, job.buffers.operand_elements)
    together = side_by_side(strands)
    return Plan(name, members, together, scratch.bytes, stages[0].roles.fold, is_even)


def all_gather(name: str, job: Job, stages: Sequence[Stage]) -> Plan:
    """The operand of member m in chunk m of every result; every stage has a slice of it."""
    members = stages[0].roles.members
    (whole,) = result_slices(job, members, 1)
    strands = []
    for stage, extents in zip(stages, result_slices(job, members, len(stages)), strict=True):
        owned = renumbered(extents, stage.roles.chunks[0])
        strands.append(stage.all_gather(alone(owned, whole, Space.OPERAND), owned))
    is_even = _is_even(stages, job.buffers.result_elements)
    rounds = side_by_side(strands)
    return Plan(name, members, rounds, fold=stages[0].roles.fold, is_even=is_even)


def _is_even(stages: Sequence[Stage], elements: Sequence[int]) -> bool:
    """Whether buffers of so many elements go in chunks of one size, chunk by chunk."""
    roles = stages[0].roles
    return all(stage.goes_by_chunk for stage in stages) and not any(
        count % roles.members for count in elements
    )


def kept(
    roles: Roles, track: Track, own: Sequence[Extent], targets: Sequence[Extent]
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
