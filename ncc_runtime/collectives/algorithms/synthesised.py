"""Algorithms found for the wiring of a group: all-gather, reduce-scatter and all-reduce.

An all-gather is found slot by slot over the links between the chips of the group (`slots.py`). A
reduce-scatter is an all-gather on the reversed graph, backwards. An all-reduce is both; there is no
need that every chip completes as much, so a chip with fewer or slower links completes more: what it
completes it need not send, or get again. Chips are numbered by how they are wired (`numbering.py`).

All-gathers found on wires: which unit goes over which edge in which slot of time.

Time is expanded into slots, in each of which a link carries so many units of one size. Slot by slot
edges and units are matched: every edge that is free takes the unit that fewest chips have, of those
that its source has and its target lacks. What two would bring to the same chip, the shorter edge
brings; the other takes something else. Ties are broken by a fixed scramble of numbers.

Source: Won, Elavazhagan, Srinivasan, Gupta and Krishna, "TACOS: topology-aware collective algorithm
synthesizer for distributed machine learning", MICRO 2024 (time-expanded network, greedy matching).
"""

from collections.abc import Callable
from functools import lru_cache

import attrs
import numpy as np

from ncc_runtime.collectives.forwarding.link_graph import (
    LinkGraph,
    canonical_order,
    link_graph_of,
    relabelled,
    torus_grid_of,
)
from ncc_runtime.collectives.forwarding.planner import (
    LEAST_SEND_BYTES,
    ForwardingPlanner,
    larger_bytes,
    strand_count,
)
from ncc_runtime.collectives.forwarding.schedule import (
    ChipSchedule,
    PartialSums,
    ProxyRanks,
    edge_colouring,
    running_counts,
)
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan
from ncc_runtime.topology.format.spec import FabricShape

NEVER = np.inf


@attrs.frozen(eq=False)
class LinkSchedule:
    """Sends in the order of slots; every unit reaches every chip once."""

    owners: tuple[int, ...]  # by unit, the chip where it begins
    slot: np.ndarray  # (sends,) int64, ascending
    edge: np.ndarray  # (sends,) int64, of the wires
    unit: np.ndarray  # (sends,) int64

    @property
    def count(self) -> int:
        """The number of slots."""
        return int(self.slot.max(initial=-1)) + 1

    @property
    def backwards(self) -> "LinkSchedule":
        """The same sends in the opposite order of time."""
        last = self.count - 1
        return attrs.evolve(
            self, slot=last - self.slot[::-1], edge=self.edge[::-1], unit=self.unit[::-1]
        )


@lru_cache(maxsize=64)
def greedy_all_gather(wires: LinkGraph, owners: tuple[int, ...], draw: int = 0) -> LinkSchedule:
    """A schedule by which everybody gets the units of everybody; draws break ties differently."""
    search = _Search.of(wires, owners, draw)
    found: list[tuple[np.ndarray, ...]] = []
    slot = 0
    while not search.coming.all():
        edges, units = search.matched()
        assert len(edges), "every chip has a way to every other"
        order = np.lexsort((units, edges))
        found.append((np.full(len(edges), slot), edges[order], units[order]))
        slot += 1
    none = np.empty(0, np.int64)
    columns = zip(*found, strict=True) if found else ((none,), (none,), (none,))
    return LinkSchedule(owners, *(np.concatenate(column) for column in columns))


@attrs.frozen(eq=False)
class _Search:
    """Who has what so far."""

    source: np.ndarray  # (edges,) int64
    target: np.ndarray
    hops: np.ndarray  # (edges, links) int64, how often an edge takes a link
    length: np.ndarray  # (edges,) int64
    units: np.ndarray  # (links,) int64, in a slot
    scramble: np.ndarray  # (edges, units) float64 from 0 to below 1
    coming: np.ndarray  # (chips, units) bool, what a chip has at the end of the slot

    @classmethod
    def of(cls, wires: LinkGraph, owners: tuple[int, ...], draw: int) -> "_Search":
        source, target = wires.columns
        hops = np.zeros((len(source), len(wires.rates)), np.int64)
        for number, (_, _, links) in enumerate(wires.edges):
            np.add.at(hops[number], list(links), 1)
        count = len(owners)
        coming = np.zeros((wires.chips, count), bool)
        coming[list(owners), np.arange(count)] = True
        cells = len(source) * count
        mixed = _scrambled(np.arange(cells) + draw * cells).reshape(len(source), count)
        return cls(source, target, hops, hops.sum(axis=1), wires.units, mixed, coming)

    def matched(self) -> tuple[np.ndarray, np.ndarray]:
        """The sends of one slot, edges and units; what they bring is coming."""
        left = self.units.copy()
        held = self.coming.copy()
        rarity = held.sum(axis=0)
        worth = rarity + self.scramble
        score = np.where(held[self.source] & ~held[self.target], worth, NEVER)
        free = np.flatnonzero((score < NEVER).any(axis=1) & self._fits(left))
        sends: list[tuple[np.ndarray, np.ndarray]] = []
        while len(free):
            best = score[free].argmin(axis=1)
            able = score[free, best] < NEVER
            edges, units = self._kept(free[able], best[able], left)
            sends.append((edges, units))
            self.coming[self.target[edges], units] = True
            free = free[able]
            free = free[self._fits(left)[free]]
            score[free] = np.where(self.coming[self.target[free]], NEVER, score[free])
        none = np.empty(0, np.int64)
        return (
            np.concatenate([edges for edges, _ in sends] or [none]),
            np.concatenate([units for _, units in sends] or [none]),
        )

    def _fits(self, left: np.ndarray) -> np.ndarray:
        """(edges,) bool, whether all links of an edge have a unit left."""
        return np.asarray(~((self.hops > 0) & (left < self.hops)).any(axis=1))

    def _kept(
        self, edges: np.ndarray, units: np.ndarray, left: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of what edges would take, what nobody else brings and their links still carry."""
        order = np.argsort(self.length[edges], kind="stable")
        edges, units = edges[order], units[order]
        places = self.target[edges] * self.scramble.shape[1] + units
        _, first = np.unique(places, return_index=True)
        first.sort()
        edges, units = edges[first], units[first]
        if self.hops[edges].sum(axis=0).max(initial=0) > 1 or (left < 1).any():
            taken = [number for number, edge in enumerate(edges) if self._take(int(edge), left)]
            return edges[taken], units[taken]
        left -= self.hops[edges].sum(axis=0)
        return edges, units

    def _take(self, edge: int, left: np.ndarray) -> bool:
        fits = bool((left >= self.hops[edge]).all())
        if fits:
            left -= self.hops[edge]
        return fits


def _scrambled(numbers: np.ndarray) -> np.ndarray:
    """Numbers spread over 0 to below 1, the same everywhere (the finaliser of splitmix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(40)) / 2.0**24)


NAME = "synthesised"

SLICES = (1, 2, 4)
"""Units of a chunk: more come closer to the bound, by more rounds."""

WORTH_PERCENT = 98
"""More units are taken only if they bring the slots of a unit below this."""

JOINED = 4
"""Operands of a chip that are joined with what comes, where slots are compared; as of trn2."""

LARGEST_SEARCH = 50_000_000
"""Edges by units by slots, about, that are searched at most: a second or two."""


DRAWS = 64
"""Schedules drawn at most, of which the evenest is taken."""

DRAWN_SEARCH = 4_000_000
"""Edges by units by slots, about, that all draws together search."""


@attrs.frozen(cache_hash=True)
class WiredGroup:
    """What a plan is made of: who is on which chip, and what joins the chips."""

    crew: ProxyRanks
    wires: LinkGraph


def arrange(layout: GroupLayout) -> WiredGroup:
    """UnsuitedError where regular algorithms use every link alike, and where it would take long."""
    wires = link_graph_of(layout)
    if is_regular(layout, wires):
        raise UnsuitedError("its wiring is regular, and no link is down or slowed")
    taken = sum(len(links) for _, _, links in wires.edges)
    slots = wires.chips**2 * taken // (len(wires.edges) * len(wires.rates))
    if len(wires.edges) * wires.chips * slots > LARGEST_SEARCH:
        raise UnsuitedError(f"{wires.chips} chips with {len(wires.edges)} ways are too many")
    order = canonical_order(wires)
    return WiredGroup(ProxyRanks.of(layout).reordered(order), relabelled(wires, order))


def is_regular(layout: GroupLayout, wires: LinkGraph) -> bool:
    """Whether the chips fill an even torus, or are on a fabric that joins all chips alike."""
    topology = layout.placement.topology
    try:
        return torus_grid_of(layout, wires).is_even
    except UnsuitedError:
        is_drawn = bool(topology.axes) or topology.shape is FabricShape.GRAPH
        return not is_drawn and not topology.faults


def all_gather(job: Job, group: WiredGroup) -> Plan:
    """The operand of member m in chunk m of every result."""
    return ForwardingPlanner(NAME, group.crew).all_gather(job, *_one_way(job, group, forwards))


def reduce_scatter(job: Job, group: WiredGroup) -> Plan:
    """Chunk m of every operand, reduced, at member m."""
    return ForwardingPlanner(NAME, group.crew).reduce_scatter(job, *_one_way(job, group, backwards))


def all_reduce(job: Job, group: WiredGroup) -> Plan:
    """A reduce-scatter to as many owners as suit, and an all-gather from them."""
    agent_bytes = larger_bytes(job) // group.crew.planes
    owners = shared(group.wires, _most(agent_bytes // group.wires.chips))
    both = backwards(group.wires, owners), forwards(group.wires, owners)
    return ForwardingPlanner(NAME, group.crew).all_reduce(
        job, both, strand_count(agent_bytes // len(owners))
    )


def _one_way(
    job: Job, group: WiredGroup, way: Callable[[LinkGraph, tuple[int, ...]], ChipSchedule]
) -> tuple[ChipSchedule, int]:
    """The sends of chunks that all chips own alike, and in how many strands they go."""
    chunk_bytes = larger_bytes(job) // group.crew.members
    owners = even(group.wires, _most(chunk_bytes), way)
    return way(group.wires, owners), strand_count(chunk_bytes * group.wires.chips // len(owners))


def _most(chunk_bytes: int) -> int:
    """In how many slices a chunk may go."""
    return min(SLICES[-1], max(1, chunk_bytes // LEAST_SEND_BYTES))


@lru_cache(maxsize=64)
def forwards(wires: LinkGraph, owners: tuple[int, ...]) -> ChipSchedule:
    """An all-gather of units from their owners."""
    return _evenest(wires, owners, is_backwards=False)


@lru_cache(maxsize=64)
def backwards(wires: LinkGraph, owners: tuple[int, ...]) -> ChipSchedule:
    """A reduce-scatter of units to their owners."""
    return _evenest(wires, owners, is_backwards=True)


def _evenest(wires: LinkGraph, owners: tuple[int, ...], *, is_backwards: bool) -> ChipSchedule:
    """Of several draws with fewest slots, that in whose slots chips have most alike to do."""
    graph = wires.reversed if is_backwards else wires
    first = greedy_all_gather(graph, owners)
    effort = max(1, len(graph.edges) * len(owners) * first.count)
    draws = range(1, min(DRAWS, DRAWN_SEARCH // effort))
    found = [first, *(greedy_all_gather(graph, owners, draw) for draw in draws)]
    least = min(one.count for one in found)
    drawn = [
        _sends(wires, one.backwards if is_backwards else one) for one in found if one.count == least
    ]
    return min(drawn, key=lambda sends: _unevenness(sends, wires.chips, is_backwards=is_backwards))


def _unevenness(sends: ChipSchedule, chips: int, *, is_backwards: bool) -> int:
    """What the busiest chip of each slot joins and sends, or gets and sends, in all slots."""
    work: np.ndarray = np.zeros((sends.count + 1, chips), np.int64)
    if is_backwards:
        came = PartialSums.of(sends, chips)
        np.add.at(work, (sends.slot, sends.source), came.before + JOINED)
    else:
        np.add.at(work, (sends.slot, sends.source), 1)
        np.add.at(work, (sends.slot + 1, sends.target), 1)
    return int(work.max(axis=1).sum())


def _sends(wires: LinkGraph, found: LinkSchedule) -> ChipSchedule:
    """Ways are colours of edges, and for what an edge sends at once beside the first, further."""
    source, target = wires.columns
    colours = np.array(edge_colouring([(a, b) for a, b, _ in wires.edges], wires.chips), np.int64)
    turn = running_counts(found.slot * len(colours) + found.edge)
    return ChipSchedule(
        owners=np.array(found.owners, np.int64),
        slot=found.slot,
        source=source[found.edge],
        target=target[found.edge],
        unit=found.unit,
        way=colours[found.edge] + turn * (int(colours.max(initial=0)) + 1),
    )


@lru_cache(maxsize=64)
def even(
    wires: LinkGraph, most: int, order: Callable[[LinkGraph, tuple[int, ...]], ChipSchedule]
) -> tuple[int, ...]:
    """Owners of as many units each, at most so many."""
    found = [_evenly(wires.chips, count) for count in SLICES if count <= most]
    graph = wires if order is forwards else wires.reversed
    return _shortest([(owners, greedy_all_gather(graph, owners).count) for owners in found])


@lru_cache(maxsize=64)
def shared(wires: LinkGraph, most: int) -> tuple[int, ...]:
    """Owners of units by which an all-reduce takes fewest slots a unit."""
    found = [_evenly(wires.chips, 1), _weighted(wires, wires.chips)]
    if most > 1:
        found += [_weighted(wires, wires.chips * count) for count in (2, 3, 4)]
    counts = [
        (
            owners,
            greedy_all_gather(wires.reversed, owners).count
            + greedy_all_gather(wires, owners).count,
        )
        for owners in found
    ]
    return _shortest(counts)


def _shortest(found: list[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """The first that none beats by much in slots a unit."""
    best = min(count / len(owners) for owners, count in found)
    return next(
        owners for owners, count in found if best * 100 >= WORTH_PERCENT * count / len(owners)
    )


def _evenly(chips: int, slices: int) -> tuple[int, ...]:
    return tuple(np.repeat(np.arange(chips), slices).tolist())


def _weighted(wires: LinkGraph, count: int) -> tuple[int, ...]:
    """So many units such that what a chip sends of the others' is as much as its links carry.

    With shares x of chips whose links carry r, (1 - x) / r is alike wherever x is above 0.
    """
    rate = np.minimum(*(wires.rate_of(end) for end in wires.columns))
    some = np.ones(wires.chips, bool)
    while True:
        time = (some.sum() - 1) / rate[some].sum()
        share = np.where(some, 1 - time * rate, 0)
        if (share >= 0).all() or some.sum() == 1:
            break
        some &= share >= 0
    share = np.maximum(share, 0)
    share = share / share.sum() * count if share.sum() else np.full(len(share), count / len(share))
    units = np.floor(share + 1e-9).astype(np.int64)
    rest = np.argsort(np.round(units - share, 9), kind="stable")[: count - int(units.sum())]
    units[rest] += 1
    return tuple(np.repeat(np.arange(wires.chips), units).tolist())
