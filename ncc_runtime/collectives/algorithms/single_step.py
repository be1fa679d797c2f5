"""Single-step mesh all-reduce: everybody writes its whole buffer to everybody, then reduces alone.

All reduce the same sources in the order of the group, so all get the same bits. It is one hop
instead of the four of a mesh, for P times the traffic.

Source: AWS Neuron docs, intranode-collective-comm.rst and internode-collective-comm.rst.
"""

import numpy as np

from ncc_runtime.collectives.chunks import Extent, Scratch, chunked
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import (
    Job,
    Location,
    Plan,
    Round,
    Space,
    Transfer,
    divisor,
    self_peers,
)
from ncc_runtime.collectives.stages import Strand, reduced_in_blocks, side_by_side

MOST_MEMBERS = 128
"""Slots of a whole buffer that everybody has; assumed, as many as a mesh has chips."""


def arrange(layout: GroupLayout) -> int:
    """The number of members; UnsuitedError if there are too many to write to."""
    if layout.members > MOST_MEMBERS:
        raise UnsuitedError(f"it has more than {MOST_MEMBERS} members")
    return layout.members


def all_reduce(job: Job, members: int) -> Plan:
    """P-1 sends of the whole buffer."""
    scratch, strand = Scratch(), Strand(0, (0,))
    element_bytes = job.buffers.element_bytes
    sends, reductions = [], []
    for extent in chunked(Space.OPERAND, job.buffers.operand_elements, 1, element_bytes):
        size, begin = np.repeat(extent.sizes[0], members), np.repeat(extent.offsets[0], members)
        slots = np.array([scratch.take(int(size[0])) for _ in range(members)])
        sends += _sends(extent, slots, strand)
        moves = reduced_in_blocks(
            [Location(Space.SCRATCH, np.full(members, slot, np.int64)) for slot in slots],
            Location(Space.RESULT, begin, extent.tensor),
            size,
            self_peers(members),
            strand,
            scratch,
            divisor(job, members),
        )
        reductions.append([Round((move,)) for move in moves])
    rounds = (Round(tuple(sends)), *side_by_side(reductions))
    return Plan("single-step-mesh", members, rounds, scratch.bytes)


def _sends(extent: Extent, slots: np.ndarray, strand: Strand) -> list[Transfer]:
    """The whole buffer into the sender's slot at every other member, and last into its own.

    A ring works in order. So when the local copy has arrived, the ring has read all that it sends,
    and the operand may be written to.
    """
    members = len(slots)
    local_peers = self_peers(members)
    zero = np.zeros(members, np.int64)
    source, target, size = extent.piece(zero), Location(Space.SCRATCH, slots), extent.size(zero)
    peers = [((local_peers + shift) % members).astype(np.int32) for shift in range(1, members)]
    return [strand.transfer(peer, (source,), target, size) for peer in (*peers, local_peers)]
