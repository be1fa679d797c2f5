"""All-to-all in rounds: fewer at once than direct (`pairwise`), or fewer in all (`bruck`).

    pairwise   a round for each shift of the group: nobody receives from two at once
    bruck      round k: of every chunk's way, its number of places on, one binary digit is gone

Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE TPDS 1997; pairwise exchange as in MPI implementations.
"""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.collectives.extents import Scratch
from ncc_runtime.collectives.plan import Job, Piece, Plan, Round, Space, Transfer, home
from ncc_runtime.collectives.shifts import Shifts


def pairwise(job: Job, shifts: Shifts) -> Plan:
    """P-1 rounds of one chunk each, never two to one member."""
    members = shifts.members
    mine = home(members).astype(np.int64)
    rounds = []
    for shift in range(members):
        peer = shifts.peers(shift).astype(np.int64)
        rounds.append(
            Round(
                tuple(
                    _move(peer, (Space.OPERAND, peer * size), (Space.RESULT, mine * size), k, size)
                    for k, size in enumerate(_chunk_bytes(job, members))
                )
            )
        )
    return Plan("pairwise", members, tuple(rounds))


def bruck(job: Job, members: int) -> Plan:
    """ceil(log2 P) rounds of about half of the chunks each.

    What is `way` places from its goal waits in scratch, by its way, until the digits left are
    gone. The last digit takes it to the result.
    """
    scratch = Scratch()
    digits = [1 << bit for bit in reversed(range((members - 1).bit_length()))]
    sizes = _chunk_bytes(job, members)
    slots = [{digit: scratch.take(members * size) for digit in digits[:-1]} for size in sizes]
    rounds = [Round(tuple(_kept(members, sizes)))]
    for digit in digits:
        ways = [way for way in range(1, members) if way & digit]
        rounds.append(
            Round(
                tuple(
                    _hop(members, k, size, slots[k], (way, digit))
                    for way in ways
                    for k, size in enumerate(sizes)
                )
            )
        )
    return Plan("bruck", members, tuple(rounds), scratch.bytes)


def _kept(members: int, sizes: list[int]) -> Iterator[Transfer]:
    """The chunk that every member keeps."""
    mine = home(members).astype(np.int64)
    for k, size in enumerate(sizes):
        yield _move(mine, (Space.OPERAND, mine * size), (Space.RESULT, mine * size), k, size)


def _hop(
    members: int, tensor: int, size: int, slots: dict[int, int], at: tuple[int, int]
) -> Transfer:
    """Every member's chunk with this way, `digit` places on."""
    way, digit = at
    mine = home(members).astype(np.int64)
    peer = (mine + digit) % members
    gone, left = way & ~(2 * digit - 1), way & (digit - 1)
    source = (Space.OPERAND, (mine + way) % members * size)
    if gone:  # it came by the lowest of the higher digits
        last = gone & -gone
        source = (Space.SCRATCH, np.full(members, slots[last] + way * size, np.int64))
    target = (Space.RESULT, (peer - way) % members * size)
    if left:
        target = (Space.SCRATCH, np.full(members, slots[digit] + way * size, np.int64))
    return _move(peer, source, target, tensor, size)


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
        peer=peer.astype(np.int32),
        sources=(Piece(*source, tensor),),
        target=Piece(*target, tensor),
        size_bytes=np.full(len(peer), size, np.int64),
    )
