"""Synthesised algorithms: all-gather, reduce-scatter and all-reduce found on a group's link graph.

An all-gather is found by greedy matching on the time-expanded network. Time goes in slots, in each
of which a link carries a few chunks of one size. Slot by slot, every edge that is free takes the
chunk that fewest chips have, of those that its source has and its target lacks. Where two edges
would bring a chunk to the same chip, the shorter one does; the other takes something else. Ties are
broken by a fixed scramble of numbers; another scramble is another draw. Of several draws with
fewest slots, the one is taken that loads the busiest chips of its slots least.

A reduce-scatter is an all-gather on the reversed graph, backwards in time. An all-reduce is a
reduce-scatter and an all-gather. Nothing requires that every chip owns as much in between, so a
chip with fewer or slower links owns more: what it owns it need not send, nor get back.

Chips are numbered by how they are wired (`forwarding/link_graph.py`); proxy ranks carry out what is
found (`forwarding/schedule.py`).

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
)
from ncc_runtime.collectives.forwarding.planner import (
    LEAST_SEND_BYTES,
    ForwardingPlanner,
    largest_tensor_bytes,
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
from ncc_runtime.progress import steps

NAME = "synthesised"

SLICES = (1, 2, 4)
"""Slices of a member's chunk that are tried: more come closer to the bound, in more rounds."""

WORTH_PERCENT = 98
"""More slices are taken only if they bring the slots of a slice below this."""

REDUCED_OPERANDS = 4
"""Operands of a chip that are reduced with received sums, to compare slots; as of trn2."""

LARGEST_SEARCH = 50_000_000
"""Edges by chunks by slots, about, that are searched at most: a second or two."""

DRAWS = 64
"""Schedules drawn at most, of which the evenest is taken."""

DRAWN_SEARCH = 4_000_000
"""Edges by chunks by slots, about, that all draws together search."""

NEVER = np.inf


@attrs.frozen(cache_hash=True)
class WiredGroup:
    """What a plan is made of: the members of each chip, and what joins the chips."""

    proxies: ProxyRanks
    graph: LinkGraph


def arrange(layout: GroupLayout) -> WiredGroup:
    """UnsuitedError where it would take long."""
    graph = link_graph_of(layout)
    links_used = sum(len(links) for _, _, links in graph.edges)
    slots = graph.chips**2 * links_used // (len(graph.edges) * len(graph.rates))
    if len(graph.edges) * graph.chips * slots > LARGEST_SEARCH:
        raise UnsuitedError(f"{graph.chips} chips with {len(graph.edges)} ways are too many")
    order = canonical_order(graph)
    return WiredGroup(ProxyRanks.of(layout).reordered(order), relabelled(graph, order))


def all_gather(job: Job, group: WiredGroup) -> Plan:
    """The operand of member m in chunk m of every result."""
    sends, strands = _with_even_owners(job, group, all_gather_sends)
    return ForwardingPlanner(NAME, group.proxies).all_gather(job, sends, strands)


def reduce_scatter(job: Job, group: WiredGroup) -> Plan:
    """Chunk m of every operand, reduced, at member m."""
    sends, strands = _with_even_owners(job, group, reduce_scatter_sends)
    return ForwardingPlanner(NAME, group.proxies).reduce_scatter(job, sends, strands)


def all_reduce(job: Job, group: WiredGroup) -> Plan:
    """A reduce-scatter to as many owners as suit, and an all-gather from them."""
    plane_bytes = largest_tensor_bytes(job) // group.proxies.planes
    owners = weighted_owners(group.graph, _most_slices(plane_bytes // group.graph.chips))
    return ForwardingPlanner(NAME, group.proxies).all_reduce(
        job,
        reduce_scatter_sends(group.graph, owners),
        all_gather_sends(group.graph, owners),
        strand_count(plane_bytes // len(owners)),
    )


def _with_even_owners(
    job: Job, group: WiredGroup, sends_of: Callable[[LinkGraph, tuple[int, ...]], ChipSchedule]
) -> tuple[ChipSchedule, int]:
    """The sends of chunks of which all chips own as many, and in how many strands they go."""
    chunk_bytes = largest_tensor_bytes(job) // group.proxies.members
    owners = even_owners(group.graph, _most_slices(chunk_bytes), sends_of)
    strands = strand_count(chunk_bytes * group.graph.chips // len(owners))
    return sends_of(group.graph, owners), strands


def _most_slices(chunk_bytes: int) -> int:
    return min(SLICES[-1], max(1, chunk_bytes // LEAST_SEND_BYTES))


@lru_cache(maxsize=64)
def even_owners(
    graph: LinkGraph,
    most_slices: int,
    sends_of: Callable[[LinkGraph, tuple[int, ...]], ChipSchedule],
) -> tuple[int, ...]:
    """By chunk, its owner: every chip owns equally many, `most_slices` at most."""
    tried = [_equal_owners(graph.chips, count) for count in SLICES if count <= most_slices]
    searched = graph if sends_of is all_gather_sends else graph.reversed
    return _shortest([(owners, greedy_all_gather(searched, owners).slots) for owners in tried])


@lru_cache(maxsize=64)
def weighted_owners(graph: LinkGraph, most_slices: int) -> tuple[int, ...]:
    """By chunk, its owner, such that an all-reduce takes fewest slots a chunk."""
    tried = [_equal_owners(graph.chips, 1), _owners_by_rate(graph, graph.chips)]
    if most_slices > 1:
        tried += [_owners_by_rate(graph, graph.chips * count) for count in (2, 3, 4)]
    return _shortest(
        [
            (
                owners,
                greedy_all_gather(graph.reversed, owners).slots
                + greedy_all_gather(graph, owners).slots,
            )
            for owners in tried
        ]
    )


def _shortest(tried: list[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """Of (owners, slots) the first owners that no others beat by much in slots a chunk."""
    best = min(slots / len(owners) for owners, slots in tried)
    return next(
        owners for owners, slots in tried if best * 100 >= WORTH_PERCENT * slots / len(owners)
    )


def _equal_owners(chips: int, slices: int) -> tuple[int, ...]:
    return tuple(np.repeat(np.arange(chips), slices).tolist())


def _owners_by_rate(graph: LinkGraph, count: int) -> tuple[int, ...]:
    """`count` owners, by chip in proportion to what its links carry.

    A chip with share x of the chunks sends and receives the other 1 - x. So that all chips with
    links of rates r take one time, (1 - x) / r is equal wherever x is above 0.
    """
    rate = np.minimum(*(graph.rate_of(end) for end in graph.columns))
    is_owner = np.ones(graph.chips, bool)
    while True:  # shares sum up to 1, so (owners - 1) = time * their rates; negative ones become 0
        time = (is_owner.sum() - 1) / rate[is_owner].sum()
        share = np.where(is_owner, 1 - time * rate, 0)
        if (share >= 0).all() or is_owner.sum() == 1:
            break
        is_owner &= share >= 0
    share = np.maximum(share, 0)
    share = share / share.sum() * count if share.sum() else np.full(len(share), count / len(share))
    chunks = np.floor(share + 1e-9).astype(np.int64)
    # largest remainder method: chips with the largest get one chunk more
    rest = np.argsort(np.round(chunks - share, 9), kind="stable")[: count - int(chunks.sum())]
    chunks[rest] += 1
    return tuple(np.repeat(np.arange(graph.chips), chunks).tolist())


@lru_cache(maxsize=64)
def all_gather_sends(graph: LinkGraph, owners: tuple[int, ...]) -> ChipSchedule:
    """An all-gather of chunks from their owners."""
    return _evenest(graph, owners, is_backwards=False)


@lru_cache(maxsize=64)
def reduce_scatter_sends(graph: LinkGraph, owners: tuple[int, ...]) -> ChipSchedule:
    """A reduce-scatter of chunks to their owners."""
    return _evenest(graph, owners, is_backwards=True)


def _evenest(graph: LinkGraph, owners: tuple[int, ...], *, is_backwards: bool) -> ChipSchedule:
    """Of several draws with fewest slots, the one whose slots load the busiest chips least."""
    searched = graph.reversed if is_backwards else graph
    first = greedy_all_gather(searched, owners)
    effort = max(1, len(searched.edges) * len(owners) * first.slots)
    draws = range(1, min(DRAWS, DRAWN_SEARCH // effort))
    drawn = [
        first,
        *(
            greedy_all_gather(searched, owners, draw)
            for draw in steps(draws, "searching a plan", "schedules")
        ),
    ]
    fewest_slots = min(schedule.slots for schedule in drawn)
    shortest = [
        _chip_schedule(graph, schedule.backwards if is_backwards else schedule)
        for schedule in drawn
        if schedule.slots == fewest_slots
    ]
    return min(shortest, key=lambda sends: _busiest(sends, graph.chips, is_backwards=is_backwards))


def _busiest(sends: ChipSchedule, chips: int, *, is_backwards: bool) -> int:
    """The work of the busiest chip of each slot, added up: pieces reduced or received, and sent."""
    work: np.ndarray = np.zeros((sends.slots + 1, chips), np.int64)
    if is_backwards:
        received = PartialSums.of(sends, chips).received
        np.add.at(work, (sends.slot, sends.source), received + REDUCED_OPERANDS)
    else:
        np.add.at(work, (sends.slot, sends.source), 1)
        np.add.at(work, (sends.slot + 1, sends.target), 1)
    return int(work.max(axis=1).sum())


def _chip_schedule(graph: LinkGraph, schedule: "LinkSchedule") -> ChipSchedule:
    """Sends by chip. Several chunks that an edge carries in one slot get further colours."""
    source, target = graph.columns
    ends = [(a, b) for a, b, _ in graph.edges]
    colours = np.array(edge_colouring(ends, graph.chips), np.int64)
    nth = running_counts(schedule.slot * len(colours) + schedule.edge)
    return ChipSchedule(
        owners=np.array(schedule.owners, np.int64),
        slot=schedule.slot,
        source=source[schedule.edge],
        target=target[schedule.edge],
        chunk=schedule.chunk,
        colour=colours[schedule.edge] + nth * (int(colours.max(initial=0)) + 1),
    )


@attrs.frozen(eq=False)
class LinkSchedule:
    """Sends over edges of a link graph by slot; every chunk reaches every chip once."""

    owners: tuple[int, ...]  # by chunk, the chip where it begins
    slot: np.ndarray  # (sends,) int64, ascending
    edge: np.ndarray  # (sends,) int64, of the graph
    chunk: np.ndarray  # (sends,) int64

    @property
    def slots(self) -> int:
        """The number of time slots."""
        return int(self.slot.max(initial=-1)) + 1

    @property
    def backwards(self) -> "LinkSchedule":
        """The same sends in the opposite order of time."""
        last = self.slots - 1
        return attrs.evolve(
            self, slot=last - self.slot[::-1], edge=self.edge[::-1], chunk=self.chunk[::-1]
        )


@lru_cache(maxsize=64)
def greedy_all_gather(graph: LinkGraph, owners: tuple[int, ...], draw: int = 0) -> LinkSchedule:
    """A schedule by which all chips get all chunks; draws break ties differently."""
    search = _GreedyMatching.of(graph, owners, draw)
    sends: list[tuple[np.ndarray, ...]] = []
    slot = 0
    while not search.has.all():
        edges, chunks = search.next_slot()
        assert len(edges), "every chip has a way to every other"
        order = np.lexsort((chunks, edges))
        sends.append((np.full(len(edges), slot), edges[order], chunks[order]))
        slot += 1
    none = np.empty(0, np.int64)
    columns = zip(*sends, strict=True) if sends else ((none,), (none,), (none,))
    return LinkSchedule(owners, *(np.concatenate(column) for column in columns))


@attrs.frozen(eq=False)
class _GreedyMatching:
    """The chunks that chips have so far, and what edges can carry."""

    source: np.ndarray  # (edges,) int64
    target: np.ndarray  # (edges,) int64
    uses: np.ndarray  # (edges, links) int64, how often an edge takes a link
    length: np.ndarray  # (edges,) int64, in links
    capacities: np.ndarray  # (links,) int64, chunks in a slot
    scramble: np.ndarray  # (edges, chunks) float64 from 0 to below 1, breaks ties
    has: np.ndarray  # (chips, chunks) bool, at the end of the slot

    @classmethod
    def of(cls, graph: LinkGraph, owners: tuple[int, ...], draw: int) -> "_GreedyMatching":
        source, target = graph.columns
        uses = np.zeros((len(source), len(graph.rates)), np.int64)
        for number, (_, _, links) in enumerate(graph.edges):
            np.add.at(uses[number], list(links), 1)
        count = len(owners)
        has = np.zeros((graph.chips, count), bool)
        has[list(owners), np.arange(count)] = True
        cells = len(source) * count
        scramble = _scrambled(np.arange(cells) + draw * cells).reshape(len(source), count)
        return cls(source, target, uses, uses.sum(axis=1), graph.capacities, scramble, has)

    def next_slot(self) -> tuple[np.ndarray, np.ndarray]:
        """The sends of one slot, edges and chunks; `has` then includes what they bring.

        A chunk can be sent on only in a later slot, so sources have what they had at the beginning.
        """
        left = self.capacities.copy()
        at_begin = self.has.copy()
        rarity = at_begin.sum(axis=0)
        score = np.where(
            at_begin[self.source] & ~at_begin[self.target], rarity + self.scramble, NEVER
        )
        free = np.flatnonzero((score < NEVER).any(axis=1) & self._fits(left))
        sends: list[tuple[np.ndarray, np.ndarray]] = []
        while len(free):
            # every edge that is free wants its rarest chunk; those that lose it choose again
            best = score[free].argmin(axis=1)
            able = score[free, best] < NEVER
            edges, chunks = self._granted(free[able], best[able], left)
            sends.append((edges, chunks))
            self.has[self.target[edges], chunks] = True
            free = free[able]
            free = free[self._fits(left)[free]]
            score[free] = np.where(self.has[self.target[free]], NEVER, score[free])
        none = np.empty(0, np.int64)
        return (
            np.concatenate([edges for edges, _ in sends] or [none]),
            np.concatenate([chunks for _, chunks in sends] or [none]),
        )

    def _fits(self, left: np.ndarray) -> np.ndarray:
        """(edges,) bool, whether all links of an edge can carry one chunk more."""
        return np.asarray(~((self.uses > 0) & (left < self.uses)).any(axis=1))

    def _granted(
        self, edges: np.ndarray, chunks: np.ndarray, left: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of the chunks that edges would take, one of each for a chip, as far as links have room.

        `left` is lowered by what is granted.
        """
        order = np.argsort(self.length[edges], kind="stable")
        edges, chunks = edges[order], chunks[order]
        arrivals = self.target[edges] * self.scramble.shape[1] + chunks  # (chip, chunk) as a number
        _, first = np.unique(arrivals, return_index=True)
        first.sort()
        edges, chunks = edges[first], chunks[first]
        used = self.uses[edges].sum(axis=0)
        if used.max(initial=0) <= 1 and (left >= 1).all():  # no two edges share a link
            left -= used
            return edges, chunks
        granted = []
        for number, edge in enumerate(edges):
            if (left >= self.uses[edge]).all():
                left -= self.uses[edge]
                granted.append(number)
        return edges[granted], chunks[granted]


def _scrambled(numbers: np.ndarray) -> np.ndarray:
    """Numbers spread over 0 to below 1, the same everywhere (the finaliser of splitmix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(multiplier)
    return np.asarray(((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(40)) / 2.0**24)
