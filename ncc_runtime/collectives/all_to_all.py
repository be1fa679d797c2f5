"""All-to-all in rounds: fewer at once than direct (`pairwise`), or fewer in all (`bruck`).

    pairwise   a round for each shift of the group: nobody receives from two at once
    bruck      round k: of every chunk's way, its number of places on, one binary digit is gone

Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE TPDS 1997; pairwise exchange as in MPI implementations.
"""

import attrs
import numpy as np

from ncc_runtime.collectives.extents import Scratch
from ncc_runtime.collectives.plan import (
    Job,
    Piece,
    Plan,
    Round,
    Space,
    Transfer,
    columns_of,
    home,
)
from ncc_runtime.collectives.shifts import Shifts


def pairwise(job: Job, shifts: Shifts) -> Plan:
    """P-1 rounds of one chunk each, never two to one member."""
    members = shifts.members
    mine = home(members)[: columns_of(job, members)].astype(np.int64)
    sizes = _chunk_bytes(job, members)
    rounds = []
    for shift in range(members):
        peer = shifts.peers(shift)
        their = peer[: len(mine)].astype(np.int64)
        rounds.append(
            Round(
                tuple(
                    _move(peer, (Space.OPERAND, their * size), (Space.RESULT, mine * size), k, size)
                    for k, size in enumerate(sizes)
                )
            )
        )
    return Plan("pairwise", members, tuple(rounds), fold=job.fold, is_even=True)


def bruck(job: Job, members: int) -> Plan:
    """ceil(log2 P) rounds of about half of the chunks each.

    What is `way` places from its goal waits in scratch, by its way, until the digits left are
    gone. The last digit takes it to the result.
    """
    scratch, everybody = Scratch(), home(members)
    mine = everybody[: columns_of(job, members)].astype(np.int64)
    digits = [1 << bit for bit in reversed(range((members - 1).bit_length()))]
    sizes = _chunk_bytes(job, members)
    slots = [{digit: scratch.take(members * size) for digit in digits[:-1]} for size in sizes]
    kept = (
        _move(everybody, (Space.OPERAND, mine * size), (Space.RESULT, mine * size), k, size)
        for k, size in enumerate(sizes)
    )
    rounds = [Round(tuple(kept))]
    for digit in digits:
        hop = _Hop((everybody + digit) % members, mine, digit)
        ways = [way for way in range(1, members) if way & digit]
        rounds.append(
            Round(
                tuple(
                    hop.move(way, k, size, slots[k]) for way in ways for k, size in enumerate(sizes)
                )
            )
        )
    return Plan("bruck", members, tuple(rounds), scratch.bytes, job.fold, is_even=True)


@attrs.frozen(eq=False)
class _Hop:
    """Everybody's chunks go `digit` places on."""

    peer: np.ndarray  # (members,) int32
    mine: np.ndarray  # (members that are seen,) int64, who they are
    digit: int

    def move(self, way: int, tensor: int, size: int, slots: dict[int, int]) -> Transfer:
        """Every member's chunk with this way."""
        members, mine, digit = len(self.peer), self.mine, self.digit
        gone, left = way & ~(2 * digit - 1), way & (digit - 1)
        source = (Space.OPERAND, (mine + way) % members * size)
        if gone:  # it came by the lowest of the higher digits
            source = (Space.SCRATCH, np.full_like(mine, slots[gone & -gone] + way * size))
        target = (Space.RESULT, (mine + digit - way) % members * size)
        if left:
            target = (Space.SCRATCH, np.full_like(mine, slots[digit] + way * size))
        return _move(self.peer, source, target, tensor, size)


def _chunk_bytes(job: Job, members: int) -> list[int]:
    width = job.buffers.element_bytes
    return [elements // members * width for elements in job.buffers.operand_elements]


def _move(
    peer: np.ndarray,
    source: tuple[Space, np.ndarray],
    target: tuple[Space, np.ndarray],
    tensor: int,
    size: int,
) -> Transfer:
    return Transfer(
        peer=peer,
        sources=(Piece(*source, tensor),),
        target=Piece(*target, tensor),
        size_bytes=np.full(len(source[1]), size, np.int64),
    )
