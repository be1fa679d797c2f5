"""All-to-all in rounds: fewer sends at once than direct (`pairwise`), or fewer in all (`bruck`).

    pairwise   a round for each shift of the group: nobody receives from two at once
    bruck      a round for each binary digit of the distance that a chunk goes

In a shift every member sends to the one that sits equally far from it. A distance is one of
instances, of chips along every dimension of the fabric, and of places on a chip, each modulo its
size. So in a shift all routes have the same directions, and all links, adapters and cores carry as
much. A group whose members fill no such box goes round in the order of its seats.

`direct.py` sends all shifts at once; `GroupShifts.in_rings` gives their order in the DMA rings:

    ring 0   shifts 0, 1, 2, 3           what is under way at once, one shift of each ring, goes
    ring 1   shifts 5, 6, 7, 4           to places evenly spread over the group, so that all links
    ring 2   shifts 10, 11, 8, 9         carry some of it at any time; rings begin one further
    ...                                  each, or all would go the same way along the last dimension

Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE TPDS 1997; pairwise exchange as in MPI implementations.
"""

from collections.abc import Iterator
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.collectives.chunks import Scratch
from ncc_runtime.collectives.layout import GroupLayout, Members
from ncc_runtime.collectives.plan import (
    Job,
    Location,
    Plan,
    Round,
    Space,
    Transfer,
    columns_of,
    self_peers,
)


@attrs.frozen(cache_hash=True, slots=False)
class GroupShifts:
    """All shifts of a group, numbered by their distance; number 0 sends to oneself."""

    shape: tuple[int, ...]  # of the box that the members fill
    seated: Members  # by place, row-major over the shape

    @property
    def members(self) -> int:
        return len(self.seated)

    @cached_property
    def _places(self) -> tuple[np.ndarray, ...]:
        """By place, its coordinates along every side of the box, (members,) int64 each."""
        return np.unravel_index(np.arange(self.members), self.shape)

    @cached_property
    def _seated(self) -> np.ndarray:
        return np.array(self.seated, np.int32)

    def peers(self, number: int) -> np.ndarray:
        """(members,) int32, the receiver of each member in a shift."""
        steps = np.unravel_index(number, self.shape)
        moved = [
            (place + step) % side
            for place, step, side in zip(self._places, steps, self.shape, strict=True)
        ]
        peer: np.ndarray = np.empty(self.members, np.int32)
        peer[self._seated] = self._seated[np.ravel_multi_index(moved, self.shape)]
        return peer

    def in_rings(self, rings: int) -> Iterator[tuple[int, int]]:
        """Numbers of all shifts, and the ring of each, in the order in which they are issued."""
        rings = min(rings, self.members)
        bounds = [ring * self.members // rings for ring in range(rings + 1)]
        for turn in range(-(-self.members // rings)):
            for ring in range(rings):
                first, count = bounds[ring], bounds[ring + 1] - bounds[ring]
                if turn < count:
                    yield first + (turn + ring) % count, ring


def arrange(layout: GroupLayout) -> GroupShifts:
    """The box that a group fills, whatever the group's order is."""
    topology = layout.placement.topology
    node, chip, core = np.array(
        [(seat.node, seat.chip, seat.core) for seat in layout.seats], np.int64
    ).T
    order = np.lexsort((core, chip))
    members = np.unique(chip, return_counts=True)[1]  # of each chip
    if (members == members[0]).all():
        within = chip % topology.chips_per_node
        along = [within // axis.stride % axis.extent for axis in topology.axes] or [within]
        place: np.ndarray = np.empty(len(chip), np.int64)
        place[order] = np.arange(len(chip)) % members[0]
        sides = [np.unique(side, return_inverse=True)[1] for side in (node, *along, place)]
        shape = tuple(int(side.max()) + 1 for side in sides)
        if np.prod(shape) == len(chip):
            order = np.lexsort(sides[::-1])
            return GroupShifts(shape, tuple(order.tolist()))
    return GroupShifts((len(chip),), tuple(order.tolist()))


def pairwise(job: Job, shifts: GroupShifts) -> Plan:
    """P-1 rounds of one chunk each; in a round no member receives two."""
    members = shifts.members
    sender = self_peers(members)[: columns_of(job, members)].astype(np.int64)
    sizes = _chunk_bytes(job, members)
    rounds = []
    for shift in range(members):
        peer = shifts.peers(shift)
        receiver = peer[: len(sender)].astype(np.int64)
        moves = []
        for k, size in enumerate(sizes):
            source, target = (Space.OPERAND, receiver * size), (Space.RESULT, sender * size)
            moves.append(_move(peer, source, target, k, size))
        rounds.append(Round(tuple(moves)))
    return Plan("pairwise", members, tuple(rounds), symmetry=job.symmetry, has_equal_sizes=True)


def bruck(job: Job, members: int) -> Plan:
    """ceil(log2 P) rounds of about half of the chunks each.

    A chunk goes `distance` places on, one binary digit of it in each round, the highest first. It
    waits in scratch, by its distance, until the last digit takes it to the result.
    """
    scratch, everybody = Scratch(), self_peers(members)
    member = everybody[: columns_of(job, members)].astype(np.int64)
    digits = [1 << bit for bit in reversed(range((members - 1).bit_length()))]
    sizes = _chunk_bytes(job, members)
    slots = [{digit: scratch.take(members * size) for digit in digits[:-1]} for size in sizes]
    kept = (
        _move(everybody, (Space.OPERAND, member * size), (Space.RESULT, member * size), k, size)
        for k, size in enumerate(sizes)
    )
    rounds = [Round(tuple(kept))]
    for digit in digits:
        peer = (everybody + digit) % members
        moves = []
        for distance in range(1, members):
            if not distance & digit:
                continue
            # digits of the distance that are done, above this one, and those still to come
            done, left = distance & ~(2 * digit - 1), distance & (digit - 1)
            for k, size in enumerate(sizes):
                source = (Space.OPERAND, (member + distance) % members * size)
                if done:  # it arrived by the lowest of the higher digits
                    at = slots[k][done & -done] + distance * size
                    source = (Space.SCRATCH, np.full_like(member, at))
                # at the peer: its result has the chunk by where it began, `distance` places before
                target = (Space.RESULT, (member + digit - distance) % members * size)
                if left:
                    at = slots[k][digit] + distance * size
                    target = (Space.SCRATCH, np.full_like(member, at))
                moves.append(_move(peer, source, target, k, size))
        rounds.append(Round(tuple(moves)))
    return Plan("bruck", members, tuple(rounds), scratch.bytes, job.symmetry, has_equal_sizes=True)


def _chunk_bytes(job: Job, members: int) -> list[int]:
    element_bytes = job.buffers.element_bytes
    return [elements // members * element_bytes for elements in job.buffers.operand_elements]


def _move(
    peer: np.ndarray,
    source: tuple[Space, np.ndarray],
    target: tuple[Space, np.ndarray],
    tensor: int,
    size: int,
) -> Transfer:
    return Transfer(
        peer=peer,
        sources=(Location(*source, tensor),),
        target=Location(*target, tensor),
        size_bytes=np.full(len(source[1]), size, np.int64),
    )
