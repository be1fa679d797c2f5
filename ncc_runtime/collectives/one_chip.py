"""All-reduce of a group on one chip: everybody reads the operands where they lie.

Each joins the same sources in the order of the group into its own result, so all get the same bits.
It is one hop, without scratch, for P times the reads of a mesh.

Source: AWS Neuron SDK, nec.h (1DEV special cases of a mesh program); AWS Neuron docs,
intranode-collective-comm.rst (a rank reads its neighbours' chunks over intra-chip paths).
"""

import numpy as np

from ncc_runtime.collectives.extents import sliced, whole_chunks
from ncc_runtime.collectives.joins import MOST_SOURCES
from ncc_runtime.collectives.layout import Layout, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan, Round, Space, Transfer, divisor, home

LANES = 4
"""DMA rings at most, each with its share of the buffer; assumed: all engines of a core."""

SHARE_BYTES = 8 * 1024
"""No ring has less than this; assumed."""


def arrange(layout: Layout) -> int:
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
    width = job.buffers.element_bytes
    whole = whole_chunks(Space.OPERAND, job.buffers.operand_elements, 1, width)
    largest = max((int(extent.sizes.max(initial=0)) for extent in whole), default=0)
    shares = min(LANES, max(1, largest // SHARE_BYTES))
    zero = np.zeros(members, np.int64)
    moves = [
        Transfer(
            peer=home(members),
            sources=tuple(
                extent.piece(zero, np.full(members, owner, np.int32)) for owner in range(members)
            ),
            target=extent.moved(Space.RESULT).piece(zero),
            size_bytes=extent.size(zero),
            lane=lane,
            divisor=divisor(job, members),
        )
        for lane, extents in enumerate(sliced(whole, shares, width))
        for extent in extents
    ]
    return Plan("direct", members, (Round(tuple(moves)),))
