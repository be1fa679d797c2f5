"""Algorithms found for the wiring of a group: all-gather, reduce-scatter and all-reduce.

An all-gather is found slot by slot over the links between the chips of the group (`slots.py`). A
reduce-scatter is an all-gather on the reversed graph, backwards. An all-reduce is both; there is no
need that every chip completes as much, so a chip with fewer or slower links completes more: what it
completes it need not send, or get again. Chips are numbered by how they are wired (`numbering.py`).
"""

from collections.abc import Callable
from functools import lru_cache

import attrs
import numpy as np

from ncc_runtime.collectives.forwarding.grids import grid_of
from ncc_runtime.collectives.forwarding.link_graph import Wires, numbered, renumbered, wires_of
from ncc_runtime.collectives.forwarding.proxies import Crew
from ncc_runtime.collectives.forwarding.schedule import Arrivals
from ncc_runtime.collectives.forwarding.sends import Sends, coloured, turns
from ncc_runtime.collectives.forwarding.slots import Slots, gathered
from ncc_runtime.collectives.forwarding.strands import (
    LEAST_BYTES,
    Relayed,
    larger_bytes,
    strands_of,
)
from ncc_runtime.collectives.layout import Layout, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan
from ncc_runtime.topology.format.spec import FabricShape

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
class Group:
    """What a plan is made of: who is on which chip, and what joins the chips."""

    crew: Crew
    wires: Wires


def arrange(layout: Layout) -> Group:
    """UnsuitedError where regular algorithms use every link alike, and where it would take long."""
    wires = wires_of(layout)
    if is_regular(layout, wires):
        raise UnsuitedError("its wiring is regular, and no link is down or slowed")
    taken = sum(len(links) for _, _, links in wires.edges)
    slots = wires.chips**2 * taken // (len(wires.edges) * len(wires.rates))
    if len(wires.edges) * wires.chips * slots > LARGEST_SEARCH:
        raise UnsuitedError(f"{wires.chips} chips with {len(wires.edges)} ways are too many")
    order = numbered(wires)
    return Group(Crew.of(layout).reordered(order), renumbered(wires, order))


def is_regular(layout: Layout, wires: Wires) -> bool:
    """Whether the chips fill an even torus, or are on a fabric that joins all chips alike."""
    topology = layout.placement.topology
    try:
        return grid_of(layout, wires).is_even
    except UnsuitedError:
        is_drawn = bool(topology.axes) or topology.shape is FabricShape.GRAPH
        return not is_drawn and not topology.faults


def all_gather(job: Job, group: Group) -> Plan:
    """The operand of member m in chunk m of every result."""
    return Relayed(NAME, group.crew).all_gather(job, *_one_way(job, group, forwards))


def reduce_scatter(job: Job, group: Group) -> Plan:
    """Chunk m of every operand, reduced, at member m."""
    return Relayed(NAME, group.crew).reduce_scatter(job, *_one_way(job, group, backwards))


def all_reduce(job: Job, group: Group) -> Plan:
    """A reduce-scatter to as many owners as suit, and an all-gather from them."""
    agent_bytes = larger_bytes(job) // group.crew.planes
    owners = shared(group.wires, _most(agent_bytes // group.wires.chips))
    both = backwards(group.wires, owners), forwards(group.wires, owners)
    return Relayed(NAME, group.crew).all_reduce(job, both, strands_of(agent_bytes // len(owners)))


def _one_way(
    job: Job, group: Group, way: Callable[[Wires, tuple[int, ...]], Sends]
) -> tuple[Sends, int]:
    """The sends of chunks that all chips own alike, and in how many strands they go."""
    chunk_bytes = larger_bytes(job) // group.crew.members
    owners = even(group.wires, _most(chunk_bytes), way)
    return way(group.wires, owners), strands_of(chunk_bytes * group.wires.chips // len(owners))


def _most(chunk_bytes: int) -> int:
    """In how many slices a chunk may go."""
    return min(SLICES[-1], max(1, chunk_bytes // LEAST_BYTES))


@lru_cache(maxsize=64)
def forwards(wires: Wires, owners: tuple[int, ...]) -> Sends:
    """An all-gather of units from their owners."""
    return _evenest(wires, owners, is_backwards=False)


@lru_cache(maxsize=64)
def backwards(wires: Wires, owners: tuple[int, ...]) -> Sends:
    """A reduce-scatter of units to their owners."""
    return _evenest(wires, owners, is_backwards=True)


def _evenest(wires: Wires, owners: tuple[int, ...], *, is_backwards: bool) -> Sends:
    """Of several draws with fewest slots, that in whose slots chips have most alike to do."""
    graph = wires.reversed if is_backwards else wires
    first = gathered(graph, owners)
    effort = max(1, len(graph.edges) * len(owners) * first.count)
    draws = range(1, min(DRAWS, DRAWN_SEARCH // effort))
    found = [first, *(gathered(graph, owners, draw) for draw in draws)]
    least = min(one.count for one in found)
    drawn = [
        _sends(wires, one.backwards if is_backwards else one) for one in found if one.count == least
    ]
    return min(drawn, key=lambda sends: _unevenness(sends, wires.chips, is_backwards=is_backwards))


def _unevenness(sends: Sends, chips: int, *, is_backwards: bool) -> int:
    """What the busiest chip of each slot joins and sends, or gets and sends, in all slots."""
    work: np.ndarray = np.zeros((sends.count + 1, chips), np.int64)
    if is_backwards:
        came = Arrivals.of(sends, chips)
        np.add.at(work, (sends.slot, sends.source), came.before + JOINED)
    else:
        np.add.at(work, (sends.slot, sends.source), 1)
        np.add.at(work, (sends.slot + 1, sends.target), 1)
    return int(work.max(axis=1).sum())


def _sends(wires: Wires, found: Slots) -> Sends:
    """Ways are colours of edges, and for what an edge sends at once beside the first, further."""
    source, target = wires.columns
    colours = np.array(coloured([(a, b) for a, b, _ in wires.edges], wires.chips), np.int64)
    turn = turns(found.slot * len(colours) + found.edge)
    return Sends(
        owners=np.array(found.owners, np.int64),
        slot=found.slot,
        source=source[found.edge],
        target=target[found.edge],
        unit=found.unit,
        way=colours[found.edge] + turn * (int(colours.max(initial=0)) + 1),
    )


@lru_cache(maxsize=64)
def even(
    wires: Wires, most: int, order: Callable[[Wires, tuple[int, ...]], Sends]
) -> tuple[int, ...]:
    """Owners of as many units each, at most so many."""
    found = [_evenly(wires.chips, count) for count in SLICES if count <= most]
    graph = wires if order is forwards else wires.reversed
    return _shortest([(owners, gathered(graph, owners).count) for owners in found])


@lru_cache(maxsize=64)
def shared(wires: Wires, most: int) -> tuple[int, ...]:
    """Owners of units by which an all-reduce takes fewest slots a unit."""
    found = [_evenly(wires.chips, 1), _weighted(wires, wires.chips)]
    if most > 1:
        found += [_weighted(wires, wires.chips * count) for count in (2, 3, 4)]
    counts = [
        (owners, gathered(wires.reversed, owners).count + gathered(wires, owners).count)
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


def _weighted(wires: Wires, count: int) -> tuple[int, ...]:
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
