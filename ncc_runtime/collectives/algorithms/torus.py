"""Torus algorithms: bucket all-gathers and reduce-scatters with all dimensions busy at once.

Who carries them out, and how strands go, is as for synthesised algorithms (`relayed.py`); what is
sent when is a rule (`buckets.py`). In `pod` the dimension that joins hosts carries only what has
been joined inside them.

Bucket all-gathers on a torus as sends: dimension after dimension, rings in both directions.

A slice of every chunk goes along the dimensions in one order and one direction; there are slices
for every dimension to begin with and both directions, so that at any time some slice uses each
link. In each phase a chip passes on, step by step, all that it had at the begin of the phase and
what comes from its neighbour. A reduce-scatter is the same backwards. Where dimensions have
different rates, more slices finish along the faster ones.

Source: Sack and Gropp, "Collective algorithms for multiported torus networks", ACM TOPC 2015;
Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects",
ICS 2010.
"""

import itertools
from functools import lru_cache

import attrs
import numpy as np

from ncc_runtime.collectives.forwarding.link_graph import TorusGrid, link_graph_of, torus_grid_of
from ncc_runtime.collectives.forwarding.planner import ForwardingPlanner, larger_bytes, strand_count
from ncc_runtime.collectives.forwarding.schedule import ChipSchedule, ProxyRanks
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan

MOST_SLICES = 3
"""Slices of one order and direction at most."""

Order = tuple[int, ...]
"""Dimensions as an all-gather goes through them; the last carries most."""


@lru_cache(maxsize=64)
def forwards(grid: TorusGrid, is_pod: bool) -> ChipSchedule:
    """An all-gather; with pods the dimension that joins hosts comes first in every order."""
    orders = slices(grid, is_pod)
    found = [
        _bucket(grid, order, step, number * 2 + way)
        for number, order in enumerate(orders)
        for way, step in enumerate((1, -1))
    ]
    count = 2 * len(orders)
    slot, source, target, chip, number, turn = (
        np.concatenate(column) for column in zip(*found, strict=True)
    )
    unit = chip * count + number
    order = np.lexsort((unit, source, slot))
    way = turn * count + number
    owners = np.repeat(np.arange(len(grid.chips)), count)
    columns = (column[order] for column in (slot, source, target, unit, way))
    return ChipSchedule(owners, *columns)


@lru_cache(maxsize=64)
def backwards(grid: TorusGrid, is_pod: bool) -> ChipSchedule:
    """A reduce-scatter: the sends of an all-gather in the opposite direction and order."""
    sends = forwards(grid, is_pod)
    last = sends.count - 1
    return ChipSchedule(
        sends.owners,
        last - sends.slot[::-1],
        sends.target[::-1],
        sends.source[::-1],
        sends.unit[::-1],
        sends.way[::-1],
    )


@lru_cache(maxsize=64)
def slices(grid: TorusGrid, is_pod: bool) -> tuple[Order, ...]:
    """The order of each slice, such that all dimensions are busy equally long."""
    orders = _orders(grid, is_pod)
    loads = np.array([_loads(grid, order) for order in orders])  # (orders, dims)
    each = itertools.product(range(MOST_SLICES + 1), repeat=len(orders))
    counts = [np.array(one) for one in each if any(one)]
    times = [float((one @ loads).max() / one.sum()) for one in counts]
    best = min(range(len(counts)), key=lambda k: (round(times[k], 9), int(counts[k].sum())))
    return tuple(
        order
        for order, count in zip(orders, counts[best].tolist(), strict=True)
        for _ in range(count)
    )


def _orders(grid: TorusGrid, is_pod: bool) -> list[Order]:
    """One order for every dimension that is last in it."""
    count = len(grid.dims)
    first = () if not is_pod or grid.outer is None else (grid.outer,)
    rest = [dim for dim in range(count) if dim not in first]
    turned = [
        tuple(rest[(k + 1 + j) % len(rest)] for j in range(len(rest))) for k in range(len(rest))
    ]
    return [(*first, *order) for order in turned] or [first]


def _loads(grid: TorusGrid, order: Order) -> np.ndarray:
    """(dims,) time that a slice of size 1 keeps the links of each dimension busy."""
    found = np.zeros(len(grid.dims))
    held = 1.0 / len(grid.chips)
    for dim in order:
        size = grid.dims[dim]
        found[dim] = held * (size - 1) * max(grid.rates) / grid.rates[dim] * (2 if size == 2 else 1)
        held *= size
    return found


def _bucket(grid: TorusGrid, order: Order, step: int, number: int) -> tuple[np.ndarray, ...]:
    """Slots, sources, targets, owners of units, number of the slice, and turns of all its sends."""
    table = grid.table
    held = table[..., None]  # (dims, blocks): owners of what each chip has
    found, slot = [], 0
    for dim in order:
        passed = held
        for _ in range(grid.dims[dim] - 1):
            target = np.roll(table, -step, dim)
            width = passed.shape[-1]
            source, target = (np.repeat(end.ravel(), width) for end in (table, target))
            turn = np.tile(np.arange(width), table.size)
            found.append((np.full(len(turn), slot), source, target, passed.ravel(), turn))
            passed = np.roll(passed, step, dim)
            held = np.concatenate((held, passed), axis=-1)
            slot += 1
    slots, sources, targets, owners, turns = (
        np.concatenate(column) for column in zip(*found, strict=True)
    )
    return slots, sources, targets, owners, np.full(len(slots), number), turns


@attrs.frozen(cache_hash=True)
class TorusGroup:
    """Who is on which chip, and the grid of the chips."""

    crew: ProxyRanks
    grid: TorusGrid


@attrs.frozen
class BucketAlgorithm:
    """One kind of torus algorithm, by name."""

    name: str
    is_pod: bool = False

    def arrange(self, layout: GroupLayout) -> TorusGroup:
        """UnsuitedError unless the chips fill a torus, for a pod of several hosts."""
        grid = torus_grid_of(layout, link_graph_of(layout))
        if self.is_pod and grid.outer is None:
            raise UnsuitedError("its members are on one host")
        return TorusGroup(ProxyRanks.of(layout), grid)

    def all_gather(self, job: Job, group: TorusGroup) -> Plan:
        """Every chunk goes along the dimensions, slice by slice."""
        sends = forwards(group.grid, self.is_pod)
        strands = strand_count(larger_bytes(job) // (len(sends.owners) * group.crew.planes))
        return ForwardingPlanner(self.name, group.crew).all_gather(job, sends, strands)

    def reduce_scatter(self, job: Job, group: TorusGroup) -> Plan:
        """The same backwards."""
        sends = backwards(group.grid, self.is_pod)
        strands = strand_count(larger_bytes(job) // (len(sends.owners) * group.crew.planes))
        return ForwardingPlanner(self.name, group.crew).reduce_scatter(job, sends, strands)

    def all_reduce(self, job: Job, group: TorusGroup) -> Plan:
        """Both, one after the other."""
        both = (
            backwards(group.grid, self.is_pod),
            forwards(group.grid, self.is_pod),
        )
        strands = strand_count(larger_bytes(job) // (len(both[0].owners) * group.crew.planes))
        return ForwardingPlanner(self.name, group.crew).all_reduce(job, both, strands)


KINDS: tuple[BucketAlgorithm, ...] = (BucketAlgorithm("torus"), BucketAlgorithm("pod", is_pod=True))
"""Every torus algorithm."""
