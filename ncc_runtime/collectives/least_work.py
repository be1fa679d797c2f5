"""Further bounds: what joining takes of DMA engines, and what irregular wiring lets through.

With n members on several chips, of which chip i has h(i), at least so many bytes pass the DMA
engines of a group for each byte of a buffer of N, where a byte that is joined passes them k times
(`dma.reduce_passes`), and once for each place that it is written to:

    reduce-scatter   k n + the sum of min(h(i), k) over all chips but one
    all-reduce       the same + n - 2

for every operand is joined somewhere; every chip but one sends what has been joined on it, which is
joined again, or its operands one by one; and a descriptor writes what it joins to two places.

Through the links that lead out of a set of chips pass at least the bytes that `bounds.py` counts of
a cluster. Sets are those of `cuts.py`, with all other chips and switches on either side.
"""

from collections.abc import Sequence

import numpy as np

from ncc_runtime.collectives.cuts import tight_cuts
from ncc_runtime.collectives.layout import Layout, Members, UnsuitedError
from ncc_runtime.collectives.plan import Job
from ncc_runtime.collectives.synthesised import is_regular
from ncc_runtime.collectives.wires import wires_of
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.parts import Parts
from ncc_runtime.placement import Placement
from ncc_runtime.timing import duration_ps

CUT_OPS = (
    CollectiveOp.ALL_REDUCE,
    CollectiveOp.ALL_GATHER,
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_TO_ALL,
)


def joining_ps(parts: Parts, job: Job, groups: Sequence[Members], size_bytes: int) -> int:
    """The time of all DMA engines of the group that has most to join."""
    op, place, topology = job.placeholder.op, parts.routes.placement, parts.routes.topology
    if op not in (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER):
        return 0
    passes, slowest = topology.dma.reduce_passes, 0
    for group in groups:
        held = np.unique(place.chip[list(group)], return_counts=True)[1]
        if len(group) > 1:
            sent = np.sort(np.minimum(held, passes))[:-1].sum()
            times = passes * len(group) + int(sent)
            times += (len(group) - 2) * (op is CollectiveOp.ALL_REDUCE)
            ranks = np.array(group)
            rate = int(parts.routes.channel_bandwidth_bytes_per_s(ranks).sum())
            whole = min(rate * topology.rank_dma_channels, 9 * 10**15)
            slowest = max(slowest, int(duration_ps(times * size_bytes, whole)))
    return slowest


def cut_ps(parts: Parts, job: Job, groups: Sequence[Members], size_bytes: int) -> int:
    """The time of the worst set of chips of a group whose wiring is irregular."""
    if job.placeholder.op not in CUT_OPS:
        return 0
    return max(
        (_worst(parts, job.placeholder.op, group, size_bytes) for group in groups), default=0
    )


def _worst(parts: Parts, op: CollectiveOp, group: Members, size_bytes: int) -> int:
    placement = parts.routes.placement
    assert isinstance(placement, Placement), "ranks are placed"
    layout = Layout.of(placement, group)
    try:
        wires = wires_of(layout)
    except UnsuitedError:
        return 0
    if is_regular(layout, wires):
        return 0
    clusters = layout.by_chip()
    held = np.array([len(cluster) for cluster in clusters], np.int64)
    chips = np.array([layout.seats[cluster[0]].chip for cluster in clusters])
    slowest = 0
    for inside, _ in tight_cuts(wires, tuple(held.tolist())):
        for side in (inside, ~inside):
            some = int(held[side].sum())
            leaving = _leaving(op, (some, len(group)), size_bytes)
            slowest = max(slowest, int(duration_ps(leaving, _rate_out(parts, chips, side))))
    return slowest


def _leaving(op: CollectiveOp, members: tuple[int, int], size_bytes: int) -> int:
    """The least bytes that leave so many members of all."""
    some, of_all = members
    rest = of_all - some
    return {
        CollectiveOp.ALL_REDUCE: size_bytes,
        CollectiveOp.ALL_GATHER: some * size_bytes // of_all,
        CollectiveOp.REDUCE_SCATTER: rest * size_bytes // of_all,
        CollectiveOp.ALL_TO_ALL: some * rest * size_bytes // of_all,
    }[op]


def _rate_out(parts: Parts, chips: np.ndarray, inside: np.ndarray) -> int:
    """Bytes a second out of some chips of a group; others are on the side that lets less pass."""
    links, topology = parts.routes.topology.links, parts.routes.topology
    first = int(chips[0]) // topology.chips_per_node * topology.links_per_node
    of_node = slice(first, first + topology.links_per_node)
    src, dst = links.src[of_node].astype(np.int64), links.dst[of_node].astype(np.int64)
    rate = np.where(links.is_down[of_node], 0, links.bandwidth_bytes_per_s[of_node])
    ends = int(max(src.max(initial=0), dst.max(initial=0), chips.max())) + 1
    found = []
    for others in (False, True):
        is_in = np.full(ends, others)
        is_in[chips] = inside
        found.append(int(rate[is_in[src] & ~is_in[dst]].sum()))
    return max(1, min(found))
