"""What no algorithm can beat: lower bounds of a placeholder's time on this placement.

For a group cut into clusters (its ranks, its chips, its instances), at least so many bytes leave
cluster i, enter it, and cross between clusters in all; n members, k of them in cluster i of c, N
bytes on the larger side of a rank:

    operator         leave i          enter i          in all
    all-reduce       N                N                2(c-1)N
    all-gather       kN/n             (n-k)N/n         (c-1)N
    reduce-scatter   (n-k)N/n         kN/n             (c-1)N
    all-to-all       k(n-k)N/n        k(n-k)N/n        their sum
    broadcast        N at the root    N at the others  (c-1)N
    reduce           N at the others  N at the root    (c-1)N
    gather           kN/n, others     the rest         their sum
    scatter          the rest         kN/n, others     their sum
    permute          what its pairs carry between clusters

Bytes over the rates of what they must pass give the bandwidth bound; the way of the farthest pair
that depend on each other gives the latency bound.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 2009, theorem 1 (2(c-1)N for all-reduce); the others are the same counts of what each cluster
must learn. What joining takes, and worse clusters where the wiring is irregular, is in
`least_work.py`; what an all-to-all takes of links for going further than one is in `detours.py`.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.counted import as_if_full
from ncc_runtime.collectives.detours import detours_ps
from ncc_runtime.collectives.layout import Members
from ncc_runtime.collectives.least_work import cut_ps, joining_ps
from ncc_runtime.collectives.plan import Job
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.parts import Kind, Parts
from ncc_runtime.timing import duration_ps


@attrs.frozen
class Bound:
    """The least time in picoseconds, and what sets it."""

    latency_ps: int
    bandwidth_ps: int
    passes: str  # what the bytes of the bandwidth bound must pass
    links_ps: int = 0  # what links alone take, whatever joining takes

    @property
    def time_ps(self) -> int:
        return max(self.latency_ps, self.bandwidth_ps)

    @property
    def decided_by(self) -> str:
        return "latency" if self.latency_ps >= self.bandwidth_ps else self.passes


@attrs.frozen(eq=False)
class _Flow:
    """Least bytes, int64, by physical cluster."""

    leaving: np.ndarray
    entering: np.ndarray
    total: int


def bound_of(parts: Parts, job: Job, groups: Sequence[Members]) -> Bound:
    """The bound for all groups of a placeholder together; of variable size, for what is assumed."""
    job = as_if_full(job)
    place, topology = parts.routes.placement, parts.routes.topology
    ranks, chips = np.arange(parts.ranks), place.chip.astype(np.int64)
    nodes = chips // topology.chips_per_node
    dma = np.full(parts.ranks, topology.rank_dma_bandwidth_bytes_per_s)
    found = [
        _per_cluster(_flow(job, groups, ranks), Kind.DMA.value, (dma, dma)),
        _stacks(parts, _flow(job, groups, ranks)),
        _per_cluster(_flow(job, groups, chips), Kind.LINK.value, _ports(parts, chips, nodes)),
    ]
    size = larger_side_bytes(job)
    found.append((joining_ps(parts, job, groups, size), Kind.DMA.value))
    found.append((cut_ps(parts, job, groups, size), Kind.LINK.value))
    found.append((detours_ps(parts, job, groups, size), Kind.LINK.value))
    if topology.efa is not None and topology.nodes > 1:
        share = np.bincount(nodes, minlength=topology.nodes)
        rate = share * topology.rank_efa_bandwidth_bytes_per_s
        flow = _flow(job, groups, nodes)
        found.append(_per_cluster(flow, Kind.EFA.value, (rate, rate)))
    bandwidth, passes = max(found, key=lambda one: one[0])
    links = max(time for time, what in found if what == Kind.LINK.value)
    return Bound(_latency_ps(parts, job, groups), bandwidth, passes, links)


def larger_side_bytes(job: Job) -> int:
    """Bytes of the larger of operands and results on one rank."""
    sides = (job.buffers.operand_elements, job.buffers.result_elements)
    return max(sum(side) for side in sides) * job.buffers.element_bytes


def _flow(job: Job, groups: Sequence[Members], cluster: np.ndarray) -> _Flow:
    """The least flow of all groups; `cluster` says where each rank is."""
    count = int(cluster.max()) + 1
    leaving, entering = np.zeros(count, np.int64), np.zeros(count, np.int64)
    total = 0
    size = larger_side_bytes(job)
    for group in groups:
        if job.placeholder.op is CollectiveOp.PERMUTE:
            pairs = np.array(job.placeholder.pairs, np.int64).reshape(-1, 2)
            where_of = cluster[list(group)]
            source, target = where_of[pairs[:, 0]], where_of[pairs[:, 1]]
            crosses = source != target
            where = np.unique(np.concatenate((source, target)))
            out = np.bincount(source[crosses], minlength=count)[where] * size
            into = np.bincount(target[crosses], minlength=count)[where] * size
            all_bytes = int(out.sum())
        else:
            where, held = np.unique(cluster[list(group)], return_counts=True)
            root = where == cluster[group[job.placeholder.root or 0]]
            out, into, all_bytes = _of_group(job.placeholder.op, held, root, size)
        leaving[where] += out
        entering[where] += into
        total += all_bytes
    return _Flow(leaving, entering, total)


def _of_group(
    op: CollectiveOp, held: np.ndarray, root: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """(leaving, entering, in all) of one group with `held` members in each of its clusters."""
    members, clusters = int(held.sum()), len(held)
    if clusters == 1 or op is CollectiveOp.BARRIER:
        return np.zeros_like(held), np.zeros_like(held), 0
    share, rest = held * size // members, (members - held) * size // members
    whole, once = np.full_like(held, size), (clusters - 1) * size
    table = {
        CollectiveOp.ALL_REDUCE: (whole, whole, 2 * once),
        CollectiveOp.ALL_GATHER: (share, rest, once),
        CollectiveOp.REDUCE_SCATTER: (rest, share, once),
        CollectiveOp.ALL_TO_ALL: (held * rest, held * rest, int((held * rest).sum())),
        CollectiveOp.BROADCAST: (whole * root, whole * ~root, once),
        CollectiveOp.REDUCE: (whole * ~root, whole * root, once),
        CollectiveOp.GATHER: (share * ~root, rest * root, int(rest[root].sum())),
        CollectiveOp.SCATTER: (rest * root, share * ~root, int(rest[root].sum())),
    }
    return table[op]


def _per_cluster(flow: _Flow, passes: str, rates: tuple[np.ndarray, np.ndarray]) -> tuple[int, str]:
    """The most time of a cluster's way out, its way in, and of all ways out together."""
    out, into = rates
    busy = (flow.leaving > 0) | (flow.entering > 0)
    able = busy & (out[: len(busy)] > 0) & (into[: len(busy)] > 0)
    if not able.any():
        return 0, passes
    where = np.flatnonzero(able)
    times = [
        int(duration_ps(flow.leaving[where], out[where]).max()),
        int(duration_ps(flow.entering[where], into[where]).max()),
        int(duration_ps(flow.total, min(int(out[where].sum()), 9 * 10**15))),
    ]
    return max(times), passes


def _stacks(parts: Parts, flow: _Flow) -> tuple[int, str]:
    """What leaves a rank is read from its memory stack, what enters is written into it."""
    touched = np.bincount(parts.stack, flow.leaving + flow.entering, parts.count)
    times = parts.time_ps(np.rint(touched).astype(np.int64))
    return int(times.max(initial=0)), Kind.HBM.value


def _ports(parts: Parts, chips: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What links let out of every chip and into it, and the ranks' shares of adapters, by chip."""
    topology = parts.routes.topology
    links = topology.links
    rate = np.where(links.is_down, 0, links.bandwidth_bytes_per_s)
    joined = len(np.unique(nodes)) > 1
    shares = np.bincount(chips, minlength=topology.chips) * joined
    efa = shares * topology.rank_efa_bandwidth_bytes_per_s
    out, into = efa.copy(), efa.copy()
    for amounts, ends in ((out, links.src), (into, links.dst)):
        of_chips = ends < topology.chips  # the others are switches
        np.add.at(amounts, ends[of_chips], rate[of_chips])
    return out, into


def _latency_ps(parts: Parts, job: Job, groups: Sequence[Members]) -> int:
    """The start, and a transfer over the longest way between members that depend on each other."""
    routes, model = parts.routes, parts.model
    slowest = 0
    for group in groups:
        members = np.array(group)
        if job.placeholder.op is CollectiveOp.PERMUTE:
            src, dst = members[np.array(job.placeholder.pairs, np.int64).reshape(-1, 2).T]
        elif job.placeholder.op.is_rooted:
            src, dst = np.full(len(members), members[job.placeholder.root or 0]), members
        else:
            src, dst = np.broadcast_arrays(members[:, None], members)
        src, dst = src[src != dst], dst[src != dst]
        if src.size:
            none = np.zeros(src.shape, np.int64)
            way = model.transfer_ps(
                routes.transport(src, dst), routes.links_ps(src, dst), none, none + 1
            )
            slowest = max(slowest, int(way.max()) + model.semaphore_remote_ps)
    return model.cc_start_ps + slowest
