"""Direct algorithms: every member writes straight to where the data belongs, in one round."""

import numpy as np

from ncc_runtime.collectives.layout import Layout
from ncc_runtime.collectives.plan import (
    IDLE,
    LANES,
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


def arrange(layout: Layout) -> int:
    """The number of members; where they sit makes no difference."""
    return layout.members


def all_to_all(job: Job, shifts: Shifts) -> Plan:
    """Member r sends chunk j to member j, which stores it as chunk r; P-1 remote sends each."""
    seen = columns_of(job, shifts.members)
    mine, transfers = home(shifts.members)[:seen].astype(np.int64), []
    for number, lane in shifts.in_rings(LANES):
        peer = shifts.peers(number)
        for tensor, elements in enumerate(job.buffers.operand_elements):
            chunk_bytes = elements // shifts.members * job.buffers.element_bytes
            transfers.append(
                Transfer(
                    peer=peer,
                    sources=(Piece(Space.OPERAND, peer[:seen] * np.int64(chunk_bytes), tensor),),
                    target=Piece(Space.RESULT, mine * chunk_bytes, tensor),
                    size_bytes=np.full(seen, chunk_bytes, np.int64),
                    lane=lane,
                )
            )
    rounds = (Round(tuple(transfers)),)
    return Plan("direct", shifts.members, rounds, fold=job.fold, is_even=True)


def permute(job: Job, members: int) -> Plan:
    """Each source writes its whole buffer to its target; who is no target is filled with zeros.

    The pairs of the job are places among its members.
    """
    peer = np.full(members, IDLE, np.int32)
    for source, target in job.placeholder.pairs:
        peer[source] = target
    silent = home(members)
    silent[peer[peer != IDLE]] = IDLE
    nowhere = np.zeros(members, np.int64)
    transfers = []
    for tensor, elements in enumerate(job.buffers.operand_elements):
        size = np.full(members, elements * job.buffers.element_bytes, np.int64)
        result = Piece(Space.RESULT, nowhere, tensor)
        operand = Piece(Space.OPERAND, nowhere, tensor)
        transfers.append(Transfer(peer, (operand,), result, size))
        transfers.append(Transfer(silent, (), result, size, lane=1))
    return Plan("direct", members, (Round(tuple(transfers)),))
