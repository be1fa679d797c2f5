"""What no algorithm can beat: lower bounds of a placeholder's time on this placement.

**Bytes between clusters.** For a group cut into clusters (its ranks, its chips, its instances), at
least so many bytes leave cluster i, enter it, and cross between clusters in all; n members, k of
them in cluster i of c, N bytes on the larger side of a rank:

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

Bytes over the rates of what they must pass give the bandwidth bound; the route of the farthest pair
that depend on each other gives the latency bound.

**Reductions.** With n members on several chips, of which chip i has h(i), at least so many bytes
pass the DMA engines of a group for each byte of a buffer, where a byte that is reduced passes them
k times (`dma.reduce_passes`), and once for each place that it is written to:

    reduce-scatter   k n + the sum of min(h(i), k) over all chips but one
    all-reduce       the same + n - 2

for every operand is reduced somewhere; every chip but one sends what has been reduced on it, which
is reduced again, or its operands one by one; and a descriptor writes what it reduces to two places.

**Cuts of irregular wiring.** Any set of chips is a cluster, so any set gives a bound. For every
chip, what all others have to give it is taken as a flow; where the links do not carry it in the
time that is known to be needed, the chips on their side of the minimum cut need longer, and with
that time the flow is tried once more. These sets give the tightest bound that one target allows.
Chips and switches outside the group may be on either side.

**Detours of an all-to-all**, whose bytes pass more links than one. Give every link any length. A
piece of data goes from member to member, each time the route between their chips, so it passes
links of no less than the shortest such path together, even if others take it further. So all pieces
together pass at least bytes times shortest paths, and in a second no more can pass than the sum of
rate times length over all links:

    time >= sum over pairs of bytes * shortest path / sum over links of rate * length

This holds for any lengths. Those that are tried are powers of how busy links are if everything goes
its direct route: where some links are busier than others, high powers leave these alone. Of a group
on several instances nothing is said: its bytes may go round over the network.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 2009, theorem 1 (2(c-1)N for all-reduce); the others are the same counts of what each cluster
must learn. Zhao, Pal, Chugh, Wang et al., "ForestColl: efficient collective communications on
heterogeneous network fabrics", 2024 (the time of an all-gather is that of its worst cut). Duality
of linear programs, for multicommodity flow as in Shahrokhi and Matula, "The maximum concurrent flow
problem", JACM 1990; lengths are those of routes that the hardware fixes.
"""

from collections.abc import Sequence
from functools import lru_cache

import attrs
import numpy as np

from ncc_runtime.collectives.algorithms.variable_size import as_if_full
from ncc_runtime.collectives.forwarding.link_graph import LinkGraph, link_graph_of, torus_grid_of
from ncc_runtime.collectives.layout import GroupLayout, Members, UnsuitedError
from ncc_runtime.collectives.plan import Job
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import PS_PER_S, duration_ps
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import Placement
from ncc_runtime.topology.format.spec import FabricShape

MOST_RATE = 9 * 10**15
"""Bytes a second; `duration_ps` takes no faster rate."""


@attrs.frozen
class Bound:
    """The least time in picoseconds, and what sets it."""

    latency_ps: int
    bandwidth_ps: int
    passes: str  #: what the bytes of the bandwidth bound must pass
    links_ps: int = 0  #: what links alone take, whatever reductions take

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
    """The bound for all groups of a placeholder together; variable sizes are as assumed."""
    job = as_if_full(job)
    place, topology = parts.routes.placement, parts.routes.topology
    ranks, chips = np.arange(parts.ranks), place.chip.astype(np.int64)
    nodes = chips // topology.chips_per_node
    dma = np.full(parts.ranks, topology.rank_dma_bandwidth_bytes_per_s)
    bounds = [
        _per_cluster(_flow(job, groups, ranks), PartKind.DMA.value, dma, dma),
        _stacks(parts, _flow(job, groups, ranks)),
        _per_cluster(_flow(job, groups, chips), PartKind.LINK.value, *_ports(parts, chips, nodes)),
    ]
    size = payload_bytes(job)
    bounds.append((reductions_ps(parts, job, groups, size), PartKind.DMA.value))
    bounds.append((cut_ps(parts, job, groups, size), PartKind.LINK.value))
    bounds.append((detours_ps(parts, job, groups, size), PartKind.LINK.value))
    if topology.efa is not None and topology.nodes > 1:
        rate = _network_rates(parts, nodes)
        flow = _flow(job, groups, nodes)
        bounds.append(_per_cluster(flow, PartKind.EFA.value, rate, rate))
    bandwidth, passes = max(bounds, key=lambda bound: bound[0])
    links = max(time for time, what in bounds if what == PartKind.LINK.value)
    return Bound(_latency_ps(parts, job, groups), bandwidth, passes, links)


def payload_bytes(job: Job) -> int:
    """Bytes of the larger of operands and results on one rank."""
    sides = (job.buffers.operand_elements, job.buffers.result_elements)
    return max(sum(side) for side in sides) * job.buffers.element_bytes


def _flow(job: Job, groups: Sequence[Members], cluster: np.ndarray) -> _Flow:
    """The least flow of all groups; `cluster` gives the cluster of each rank."""
    count = int(cluster.max()) + 1
    leaving, entering = np.zeros(count, np.int64), np.zeros(count, np.int64)
    total = 0
    size = payload_bytes(job)
    for group in groups:
        if job.placeholder.op is CollectiveOp.PERMUTE:
            pairs = np.array(job.placeholder.pairs, np.int64).reshape(-1, 2)
            cluster_of = cluster[list(group)]  # pairs name members of the group
            source, target = cluster_of[pairs[:, 0]], cluster_of[pairs[:, 1]]
            crosses = source != target
            where = np.unique(np.concatenate((source, target)))
            out = np.bincount(source[crosses], minlength=count)[where] * size
            into = np.bincount(target[crosses], minlength=count)[where] * size
            all_bytes = int(out.sum())
        else:
            where, members = np.unique(cluster[list(group)], return_counts=True)
            root = where == cluster[group[job.placeholder.root or 0]]
            out, into, all_bytes = _of_group(job.placeholder.op, members, root, size)
        leaving[where] += out
        entering[where] += into
        total += all_bytes
    return _Flow(leaving, entering, total)


def _of_group(
    op: CollectiveOp, members: np.ndarray, root: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """(leaving, entering, in all) of one group: the table above, one line an operator.

    `members` (clusters,) are those of each cluster, `root` (clusters,) bool is that of the root.
    """
    total, clusters = int(members.sum()), len(members)
    if clusters == 1 or op is CollectiveOp.BARRIER:
        return np.zeros_like(members), np.zeros_like(members), 0
    share, rest = members * size // total, (total - members) * size // total
    buffer, copies = np.full_like(members, size), (clusters - 1) * size
    exchanged = members * rest
    table = {
        CollectiveOp.ALL_REDUCE: (buffer, buffer, 2 * copies),
        CollectiveOp.ALL_GATHER: (share, rest, copies),
        CollectiveOp.REDUCE_SCATTER: (rest, share, copies),
        CollectiveOp.ALL_TO_ALL: (exchanged, exchanged, int(exchanged.sum())),
        CollectiveOp.BROADCAST: (buffer * root, buffer * ~root, copies),
        CollectiveOp.REDUCE: (buffer * ~root, buffer * root, copies),
        CollectiveOp.GATHER: (share * ~root, rest * root, int(rest[root].sum())),
        CollectiveOp.SCATTER: (rest * root, share * ~root, int(rest[root].sum())),
    }
    return table[op]


def _per_cluster(flow: _Flow, passes: str, out: np.ndarray, into: np.ndarray) -> tuple[int, str]:
    """The longest of three times: to leave one cluster, to enter one, to leave all together."""
    busy = (flow.leaving > 0) | (flow.entering > 0)
    able = busy & (out[: len(busy)] > 0) & (into[: len(busy)] > 0)
    if not able.any():
        return 0, passes
    where = np.flatnonzero(able)
    times = [
        int(duration_ps(flow.leaving[where], out[where]).max()),
        int(duration_ps(flow.entering[where], into[where]).max()),
        int(duration_ps(flow.total, min(int(out[where].sum()), MOST_RATE))),
    ]
    return max(times), passes


def _stacks(parts: Parts, flow: _Flow) -> tuple[int, str]:
    """What leaves a rank is read from its memory stack, what enters is written into it."""
    touched = np.bincount(parts.stack, flow.leaving + flow.entering, parts.count)
    times = parts.time_ps(np.rint(touched).astype(np.int64))
    return int(times.max(initial=0)), PartKind.HBM.value


def _ports(parts: Parts, chips: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What links let out of every chip and into it, and the adapter of its ranks, by chip."""
    topology = parts.routes.topology
    links = topology.links
    rate = np.where(links.is_down, 0, links.bandwidth_bytes_per_s)
    joined = len(np.unique(nodes)) > 1
    efa = _network_rates(parts, chips) * joined
    out, into = np.zeros(topology.chips, np.int64), np.zeros(topology.chips, np.int64)
    out[: len(efa)] = into[: len(efa)] = efa
    for amounts, ends in ((out, links.src), (into, links.dst)):
        of_chips = ends < topology.chips  # the others are switches
        np.add.at(amounts, ends[of_chips], rate[of_chips])
    return out, into


def _network_rates(parts: Parts, cluster: np.ndarray) -> np.ndarray:
    """What adapters let out of clusters of ranks, or in, all ranks sending, (clusters,) int64.

    An adapter carries no more than its ranks' ends of queue pairs; (clusters,) zeros without EFA.
    """
    topology, count = parts.routes.topology, int(cluster.max()) + 1
    if topology.efa is None:
        return np.zeros(count, np.int64)
    adapter = parts.routes.adapter(np.arange(parts.ranks)).astype(np.int64)
    pairs, ranks = np.unique(np.stack((cluster, adapter)), axis=1, return_counts=True)
    rate = np.minimum(
        ranks * topology.rank_efa_bandwidth_bytes_per_s, topology.efa.adapter_bandwidth_bytes_per_s
    )
    total = np.zeros(count, np.int64)
    np.add.at(total, pairs[0], rate)
    return total


def _latency_ps(parts: Parts, job: Job, groups: Sequence[Members]) -> int:
    """The start, and a transfer between the farthest members that depend on each other."""
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
            times = model.transfer_ps(
                routes.transport(src, dst), routes.links_ps(src, dst), none, none + 1
            )
            slowest = max(slowest, int(times.max()) + model.semaphore_remote_ps)
    return model.cc_start_ps + slowest


CUT_OPS = (
    CollectiveOp.ALL_REDUCE,
    CollectiveOp.ALL_GATHER,
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_TO_ALL,
)


def reductions_ps(parts: Parts, job: Job, groups: Sequence[Members], size_bytes: int) -> int:
    """The time of all DMA engines of the group that has most to reduce."""
    op, place, topology = job.placeholder.op, parts.routes.placement, parts.routes.topology
    if op not in (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER):
        return 0
    passes, slowest = topology.dma.reduce_passes, 0
    for group in groups:
        on_chip = np.unique(place.chip[list(group)], return_counts=True)[1]  # h(i) above
        if len(group) > 1:
            sent = np.sort(np.minimum(on_chip, passes))[:-1].sum()
            times = passes * len(group) + int(sent)
            times += (len(group) - 2) * (op is CollectiveOp.ALL_REDUCE)
            ranks = np.array(group)
            rate = int(parts.routes.channel_bandwidth_bytes_per_s(ranks).sum())
            all_engines = min(rate * topology.rank_dma_channels, MOST_RATE)
            slowest = max(slowest, int(duration_ps(times * size_bytes, all_engines)))
    return slowest


def cut_ps(parts: Parts, job: Job, groups: Sequence[Members], size_bytes: int) -> int:
    """The time of the worst set of chips of a group whose wiring is irregular."""
    if job.placeholder.op not in CUT_OPS:
        return 0
    return max(
        (_worst_cut_ps(parts, job.placeholder.op, group, size_bytes) for group in groups), default=0
    )


def _worst_cut_ps(parts: Parts, op: CollectiveOp, group: Members, size_bytes: int) -> int:
    placement = parts.routes.placement
    assert isinstance(placement, Placement), "ranks are placed"
    layout = GroupLayout.of(placement, group)
    try:
        graph = link_graph_of(layout)
    except UnsuitedError:
        return 0
    if _is_regular(layout, graph):
        return 0
    clusters = layout.by_chip()
    members = np.array([len(cluster) for cluster in clusters], np.int64)
    chips = np.array([layout.seats[cluster[0]].chip for cluster in clusters])
    slowest = 0
    for inside, _ in tight_cuts(graph, tuple(members.tolist())):
        for side in (inside, ~inside):
            leaving = _leaving(op, int(members[side].sum()), len(group), size_bytes)
            slowest = max(slowest, int(duration_ps(leaving, _rate_out(parts, chips, side))))
    return slowest


def _is_regular(layout: GroupLayout, graph: LinkGraph) -> bool:
    """Whether the chips fill an even torus, or are on a fabric that joins all chips alike."""
    topology = layout.placement.topology
    try:
        return torus_grid_of(layout, graph).has_equal_rates
    except UnsuitedError:
        is_drawn = bool(topology.axes) or topology.shape is FabricShape.GRAPH
        return not is_drawn and not topology.faults


def _leaving(op: CollectiveOp, inside: int, members: int, size_bytes: int) -> int:
    """The least bytes that leave a set with `inside` of the members."""
    outside = members - inside
    return {
        CollectiveOp.ALL_REDUCE: size_bytes,
        CollectiveOp.ALL_GATHER: inside * size_bytes // members,
        CollectiveOp.REDUCE_SCATTER: outside * size_bytes // members,
        CollectiveOp.ALL_TO_ALL: inside * outside * size_bytes // members,
    }[op]


def _rate_out(parts: Parts, chips: np.ndarray, inside: np.ndarray) -> int:
    """Bytes a second out of some chips of a group; others are on the side that lets less pass."""
    links, topology = parts.routes.topology.links, parts.routes.topology
    first = int(chips[0]) // topology.chips_per_node * topology.links_per_node
    of_node = slice(first, first + topology.links_per_node)
    src, dst = links.src[of_node].astype(np.int64), links.dst[of_node].astype(np.int64)
    rate = np.where(links.is_down[of_node], 0, links.bandwidth_bytes_per_s[of_node])
    ends = int(max(src.max(initial=0), dst.max(initial=0), chips.max())) + 1
    rates = []
    for others in (False, True):
        is_inside = np.full(ends, others)
        is_inside[chips] = inside
        rates.append(int(rate[is_inside[src] & ~is_inside[dst]].sum()))
    return max(1, min(rates))


TRIES = 8
"""Cuts looked at for one target at most; each is tighter than the one before."""

LARGEST_CAPACITY = 1 << 24
"""Flows are whole numbers in scipy, so capacities are scaled to this many steps."""


@lru_cache(maxsize=64)
def tight_cuts(graph: LinkGraph, members: tuple[int, ...]) -> tuple[tuple[np.ndarray, int], ...]:
    """Sets of chips, (chips,) bool, with the bytes a second that lead out of them.

    `members` are those of each chip. Edges are taken as if each had its links for itself.
    """
    source, target = graph.columns
    rate = np.array([min(graph.rates[link] for link in links) for _, _, links in graph.edges])
    cuts: dict[bytes, tuple[np.ndarray, int]] = {}
    for chip in range(graph.chips):
        inside = np.arange(graph.chips) != chip
        for _ in range(TRIES):
            out = int(rate[inside[source] & ~inside[target]].sum())
            cuts[inside.tobytes()] = inside, out
            time = np.array(members)[inside].sum() / out
            tighter = _source_side(graph, np.array(members), chip, time)
            if tighter.tobytes() in cuts or not tighter.any():
                break
            inside = tighter
    return tuple(cuts.values())


def _source_side(graph: LinkGraph, members: np.ndarray, chip: int, time: float) -> np.ndarray:
    """(chips,) bool, the chips that a minimum cut separates from a chip, given a time."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    source, target = graph.columns
    rate = np.array([min(graph.rates[link] for link in links) for _, _, links in graph.edges])
    supply = np.where(np.arange(graph.chips) == chip, 0, members)
    scale = LARGEST_CAPACITY / max(1.0, float((rate * time).max()), float(supply.max()))
    start = graph.chips  # a node of its own that gives every other chip what its members hold
    rows = np.append(source, np.full(graph.chips, start))
    columns = np.append(target, np.arange(graph.chips))
    amounts = np.rint(np.append(rate * time, supply) * scale).astype(np.int32)
    network = csr_array((amounts, (rows, columns)), shape=(start + 1, start + 1))
    flow = maximum_flow(network, start, chip).flow
    # max-flow min-cut: what the residual network still reaches is the source side of a minimum cut
    residual = network - flow
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reached = breadth_first_order(residual, start, return_predecessors=False)
    side = np.zeros(start + 1, bool)
    side[reached] = True
    side[chip] = False
    return side[:start]


POWERS = (0, 1, 2, 4, 16, 64, 256)
MOST_CHIPS = 512
"""Chips of a group beyond which shortest paths are not looked for."""

ROUNDING = 1e-12
"""Relative; more than the rounding errors of the float64 sums of such a bound."""


@attrs.frozen(eq=False)
class _Pairs:
    """All pairs of chips of a group on one instance, (chips, chips) row-major."""

    chips: int
    bytes: np.ndarray  # (pairs,) int64
    start: np.ndarray  # (pairs + 1,) of each pair's links
    links: np.ndarray  # int32

    def shortest(self, length: np.ndarray) -> np.ndarray:
        """(pairs,) float64, lengths of shortest paths through any chips of the group."""
        along = np.concatenate(([0.0], np.cumsum(length[self.links])))
        path = (along[self.start[1:]] - along[self.start[:-1]]).reshape(self.chips, self.chips)
        for chip in range(self.chips):  # Floyd and Warshall
            path = np.minimum(path, path[:, chip, None] + path[None, chip])
        return path.ravel()


def detours_ps(parts: Parts, job: Job, groups: Sequence[Members], size_bytes: int) -> int:
    """The time of an all-to-all on the links of the instance where most ranks take part."""
    if job.placeholder.op is not CollectiveOp.ALL_TO_ALL:
        return 0
    routes = parts.routes
    chip, per_node = routes.placement.chip.astype(np.int64), routes.topology.chips_per_node
    ranks_of_node = np.bincount(chip[np.concatenate(groups)] // per_node)
    node = int(ranks_of_node.argmax())
    every = [_pairs(parts, group, node, size_bytes) for group in groups]
    pairs = [of_group for of_group in every if of_group is not None]
    rates = parts.rates[parts.span(PartKind.LINK)].astype(np.float64)
    loads = np.zeros(len(rates))  # of links, if everything goes its direct route
    for of_group in pairs:
        link_bytes = np.repeat(of_group.bytes, np.diff(of_group.start))
        loads += np.bincount(of_group.links, link_bytes, len(rates))
    busy = loads / rates
    if not busy.any():
        return 0
    seconds = 0.0
    for power in POWERS:
        length = np.where(busy > 0, (busy / busy.max()) ** power, 0.0)
        passed = sum(float(of_group.bytes @ of_group.shortest(length)) for of_group in pairs)
        seconds = max(seconds, passed / float(rates @ length))
    return int(seconds * PS_PER_S * (1 - ROUNDING))


def _pairs(parts: Parts, group: Members, node: int, size_bytes: int) -> _Pairs | None:
    """The pairs of a group; None if not all of it is on the node, or it has 1 chip or too many."""
    routes = parts.routes
    ranks = np.array(group, np.int64)
    chip = routes.placement.chip[ranks].astype(np.int64)
    here = ranks[chip // routes.topology.chips_per_node == node]
    if len(here) < len(ranks):
        return None
    _, first, members = np.unique(
        routes.placement.chip[here], return_index=True, return_counts=True
    )
    if not 1 < len(members) <= MOST_CHIPS:
        return None
    ends = here[first]
    source, target = np.repeat(ends, len(ends)), np.tile(ends, len(ends))
    start, links = routes.link_runs(source, target)
    amounts = np.outer(members, members) * (size_bytes // len(group))
    return _Pairs(len(members), amounts.ravel(), start, links)
