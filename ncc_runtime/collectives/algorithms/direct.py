"""Direct algorithms, in one round: every member writes straight to where the data belongs.

    all-to-all   member r writes chunk j of its operand at chunk r of member j's result
    permute      every source writes its buffer at its target
    all-reduce   of a group on one chip: everybody reads the operands where they lie

In the all-reduce each member reduces the same sources in the order of the group into its own
result, so all get the same bits. It is one hop, without scratch, for P times the reads of a mesh.

Source: AWS Neuron SDK, nec.h (1DEV special cases of a mesh program); AWS Neuron docs,
intranode-collective-comm.rst (a rank reads its neighbours' chunks over intra-chip paths).
"""

import numpy as np

from ncc_runtime.collectives.algorithms.all_to_all import GroupShifts
from ncc_runtime.collectives.chunks import chunked, sliced
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import (
    IDLE,
    LANES,
    Job,
    Location,
    Plan,
    Round,
    Space,
    Transfer,
    columns_of,
    divisor,
    self_peers,
)
from ncc_runtime.collectives.stages import MOST_SOURCES


def arrange(layout: GroupLayout) -> int:
    """The number of members; where they sit makes no difference."""
    return layout.members


def all_to_all(job: Job, shifts: GroupShifts) -> Plan:
    """Member r sends chunk j to member j, which stores it as chunk r; P-1 remote sends each."""
    columns = columns_of(job, shifts.members)
    sender, transfers = self_peers(shifts.members)[:columns].astype(np.int64), []
    for number, lane in shifts.in_rings(LANES):
        peer = shifts.peers(number)
        for tensor, elements in enumerate(job.buffers.operand_elements):
            chunk_bytes = elements // shifts.members * job.buffers.element_bytes
            transfers.append(
                Transfer(
                    peer=peer,
                    sources=(
                        Location(Space.OPERAND, peer[:columns] * np.int64(chunk_bytes), tensor),
                    ),
                    target=Location(Space.RESULT, sender * chunk_bytes, tensor),
                    size_bytes=np.full(columns, chunk_bytes, np.int64),
                    lane=lane,
                )
            )
    rounds = (Round(tuple(transfers)),)
    return Plan("direct", shifts.members, rounds, symmetry=job.symmetry, has_equal_sizes=True)


def permute(job: Job, members: int) -> Plan:
    """Each source writes its whole buffer to its target; results of other members are zeros.

    The pairs of the job are places among its members.
    """
    peer = np.full(members, IDLE, np.int32)
    for source, target in job.placeholder.pairs:
        peer[source] = target
    cleared = self_peers(members)
    cleared[peer[peer != IDLE]] = IDLE
    nowhere = np.zeros(members, np.int64)
    transfers = []
    for tensor, elements in enumerate(job.buffers.operand_elements):
        size = np.full(members, elements * job.buffers.element_bytes, np.int64)
        result = Location(Space.RESULT, nowhere, tensor)
        operand = Location(Space.OPERAND, nowhere, tensor)
        transfers.append(Transfer(peer, (operand,), result, size))
        transfers.append(Transfer(cleared, (), result, size, lane=1))
    return Plan("direct", members, (Round(tuple(transfers)),))


ONE_CHIP_LANES = 4
"""DMA rings at most, each with its share of the buffer; assumed: all engines of a core."""

SHARE_BYTES = 8 * 1024
"""No ring has less than this; assumed."""

MOST_BYTES = 8 * 1024 * 1024
"""The largest buffer that the runtime all-reduces so. nec.h gives each mesh program such a limit,
not its value; by hand, to rows of two ranks of trn1: there the rate changes after 8 MiB."""


def arrange_on_one_chip(layout: GroupLayout) -> int:
    """The number of members; UnsuitedError unless they share a chip."""
    if len(layout.by_chip()) > 1:
        raise UnsuitedError("its members are on several chips")
    if layout.members > MOST_SOURCES:
        raise UnsuitedError(
            f"{layout.members} members share a chip, a descriptor joins {MOST_SOURCES} at most"
        )
    return layout.members


def all_reduce(job: Job, members: int) -> Plan:
    """One reduction of the whole buffer at every member, a share of it in each lane."""
    if job.buffers.in_place:
        raise UnsuitedError("its results lie over operands that others read")
    element_bytes = job.buffers.element_bytes
    buffers = chunked(Space.OPERAND, job.buffers.operand_elements, 1, element_bytes)
    largest = max((int(extent.sizes.max(initial=0)) for extent in buffers), default=0)
    shares = min(ONE_CHIP_LANES, max(1, largest // SHARE_BYTES))
    zero = np.zeros(members, np.int64)
    moves = [
        Transfer(
            peer=self_peers(members),
            sources=tuple(
                extent.piece(zero, np.full(members, owner, np.int32)) for owner in range(members)
            ),
            target=extent.moved(Space.RESULT).piece(zero),
            size_bytes=extent.size(zero),
            lane=lane,
            divisor=divisor(job, members),
        )
        for lane, extents in enumerate(sliced(buffers, shares, element_bytes))
        for extent in extents
    ]
    return Plan("direct", members, (Round(tuple(moves)),))
