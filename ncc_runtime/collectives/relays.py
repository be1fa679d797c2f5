"""Courses over buffers: the transfers of agents as strands of a plan."""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.courses import Course, Hop
from ncc_runtime.collectives.extents import ALIGNMENT, Extent, Scratch
from ncc_runtime.collectives.plan import IDLE, Copy, Piece, Round, Space, Transfer
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
