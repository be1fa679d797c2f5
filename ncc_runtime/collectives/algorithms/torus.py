"""Torus algorithms: bucket all-gathers and reduce-scatters with all dimensions busy at once.

A bucket all-gather goes dimension after dimension. In the phase of a dimension a chip passes on to
its neighbour, step by step round the ring, all that it had at the begin of the phase and what comes
from its other neighbour. A reduce-scatter is the same backwards, an all-reduce both.

Every member's chunk goes in slices, each along the dimensions in one order and one direction. There
are slices for every dimension to begin with and both directions, so that at any time some slice
uses each link. Where dimensions have different rates, more slices finish along the faster ones: the
last dimension of an order carries most.

`pod` is the same with the dimension that joins hosts first in every order, so that it carries only
what has been reduced inside hosts, or is not yet copied there.

Proxy ranks carry out the sends (`forwarding/schedule.py`).

Source: Sack and Gropp, "Collective algorithms for multiported torus networks", ACM TOPC 2015;
Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects",
ICS 2010.
"""

import itertools
from functools import lru_cache

import attrs
import numpy as np

from ncc_runtime.collectives.forwarding.link_graph import TorusGrid, link_graph_of, torus_grid_of
from ncc_runtime.collectives.forwarding.planner import (
    ForwardingPlanner,
    largest_tensor_bytes,
    strand_count,
)
from ncc_runtime.collectives.forwarding.schedule import ChipSchedule, ProxyRanks
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan

MOST_SLICES = 3
"""Slices of one order and direction at most."""

Order = tuple[int, ...]
"""Dimensions as an all-gather goes through them; the last carries most."""


@attrs.frozen(cache_hash=True)
class TorusGroup:
    """The members of each chip, and the grid of the chips."""

    proxies: ProxyRanks
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
        sends = all_gather_sends(group.grid, self.is_pod)
        strands = self._strands(job, group, sends)
        return ForwardingPlanner(self.name, group.proxies).all_gather(job, sends, strands)

    def reduce_scatter(self, job: Job, group: TorusGroup) -> Plan:
        """The same backwards."""
        sends = reduce_scatter_sends(group.grid, self.is_pod)
        strands = self._strands(job, group, sends)
        return ForwardingPlanner(self.name, group.proxies).reduce_scatter(job, sends, strands)

    def all_reduce(self, job: Job, group: TorusGroup) -> Plan:
        """Both, one after the other."""
        reducing = reduce_scatter_sends(group.grid, self.is_pod)
        gathering = all_gather_sends(group.grid, self.is_pod)
        strands = self._strands(job, group, reducing)
        planner = ForwardingPlanner(self.name, group.proxies)
        return planner.all_reduce(job, reducing, gathering, strands)

    @staticmethod
    def _strands(job: Job, group: TorusGroup, sends: ChipSchedule) -> int:
        return strand_count(largest_tensor_bytes(job) // (len(sends.owners) * group.proxies.planes))


KINDS: tuple[BucketAlgorithm, ...] = (BucketAlgorithm("torus"), BucketAlgorithm("pod", is_pod=True))
"""Every torus algorithm."""


@lru_cache(maxsize=64)
def all_gather_sends(grid: TorusGrid, is_pod: bool) -> ChipSchedule:
    """An all-gather; with pods the dimension that joins hosts comes first in every order."""
    orders = slice_orders(grid, is_pod)
    count = 2 * len(orders)  # slices of a chunk: both directions of every order
    buckets = [
        _bucket(grid, order, step, number * 2 + direction)
        for number, order in enumerate(orders)
        for direction, step in enumerate((1, -1))
    ]
    slot, source, target, owner, number, nth = (
        np.concatenate(column) for column in zip(*buckets, strict=True)
    )
    chunk = owner * count + number
    order = np.lexsort((chunk, source, slot))
    colour = nth * count + number
    owners = np.repeat(np.arange(len(grid.chips)), count)
    columns = (column[order] for column in (slot, source, target, chunk, colour))
    return ChipSchedule(owners, *columns)


@lru_cache(maxsize=64)
def reduce_scatter_sends(grid: TorusGrid, is_pod: bool) -> ChipSchedule:
    """A reduce-scatter: the sends of an all-gather in the opposite direction and order."""
    sends = all_gather_sends(grid, is_pod)
    return ChipSchedule(
        owners=sends.owners,
        slot=sends.slots - 1 - sends.slot[::-1],
        source=sends.target[::-1],
        target=sends.source[::-1],
        chunk=sends.chunk[::-1],
        colour=sends.colour[::-1],
    )


@lru_cache(maxsize=64)
def slice_orders(grid: TorusGrid, is_pod: bool) -> tuple[Order, ...]:
    """The order in which each slice goes along the dimensions, with the load balanced over them.

    All combinations of up to MOST_SLICES slices of each order are tried. The best keeps the busiest
    dimension busy for the least time per slice; of equal ones the one with fewest slices is taken.
    """
    dims = range(len(grid.dims))
    first = () if not is_pod or grid.outer is None else (grid.outer,)
    rest = [dim for dim in dims if dim not in first]
    # one order for every dimension that is last in it
    rotated = [(*first, *rest[k + 1 :], *rest[: k + 1]) for k in range(len(rest))]
    orders = rotated or [first]
    busy = np.array([_busy_times(grid, order) for order in orders])  # (orders, dims)
    combinations = itertools.product(range(MOST_SLICES + 1), repeat=len(orders))
    slice_counts = [np.array(counts) for counts in combinations if any(counts)]
    times = [float((counts @ busy).max() / counts.sum()) for counts in slice_counts]
    # rounded, so that times that differ by the last bits of float64 count as equal
    best = min(
        range(len(slice_counts)), key=lambda k: (round(times[k], 9), int(slice_counts[k].sum()))
    )
    return tuple(
        order
        for order, count in zip(orders, slice_counts[best].tolist(), strict=True)
        for _ in range(count)
    )


def _busy_times(grid: TorusGrid, order: Order) -> np.ndarray:
    """(dims,) time that a slice of size 1 keeps the links of each dimension busy."""
    busy = np.zeros(len(grid.dims))
    held = 1.0 / len(grid.chips)  # what a chip has when a phase begins
    for dim in order:
        size = grid.dims[dim]
        # both directions round a ring of two chips go over the same links
        shared = 2 if size == 2 else 1
        busy[dim] = held * (size - 1) * max(grid.rates) / grid.rates[dim] * shared
        held *= size
    return busy


def _bucket(grid: TorusGrid, order: Order, step: int, number: int) -> tuple[np.ndarray, ...]:
    """All sends of one slice, as columns: slot, source, target, owner of the chunk, number of the
    slice, and place among the sends of its edge in the slot."""
    table = grid.table
    held = table[..., None]  # (dims, chunks): owners of the chunks that each chip has
    sends, slot = [], 0
    for dim in order:
        passed = held
        for _ in range(grid.dims[dim] - 1):
            target = np.roll(table, -step, dim)
            chunks = passed.shape[-1]
            source, target = (np.repeat(end.ravel(), chunks) for end in (table, target))
            nth = np.tile(np.arange(chunks), table.size)
            slots = np.full(len(nth), slot)
            sends.append((slots, source, target, passed.ravel(), np.full_like(slots, number), nth))
            passed = np.roll(passed, step, dim)
            held = np.concatenate((held, passed), axis=-1)
            slot += 1
    return tuple(np.concatenate(column) for column in zip(*sends, strict=True))
