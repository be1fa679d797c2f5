"""Shifts of a group: every member sends to who sits equally far from it, in an order for DMA rings.

A distance is one of instances, of chips along every dimension of the fabric, and of places on a
chip; each is counted round. So in a shift everybody goes the same way, and what one link, adapter
or core is asked for, all are. A group whose members fill no such box goes round in the order of
its seats.

    ring 0   shifts 0, 1, 2, 3           what is under way at once, one shift of each ring, goes
    ring 1   shifts 5, 6, 7, 4           to places evenly spread over the group, so that all links
    ring 2   shifts 10, 11, 8, 9         carry some of it at any time; rings begin one further
    ...                                  each, or all would go the same way along the last dimension
"""

from collections.abc import Iterator
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.collectives.layout import Layout, Members


@attrs.frozen(cache_hash=True, slots=False)
class Shifts:
    """All shifts of a group, numbered by their distance; number 0 is everybody to itself."""

    shape: tuple[int, ...]  # of the box that the members fill
    seated: Members  # by place, row-major over the shape

    @property
    def members(self) -> int:
        return len(self.seated)

    @cached_property
    def _places(self) -> tuple[np.ndarray, ...]:
        """By place, (members,) int64, where it is along every side of the box."""
        return np.unravel_index(np.arange(self.members), self.shape)

    @cached_property
    def _seated(self) -> np.ndarray:
        return np.array(self.seated, np.int32)

    def peers(self, number: int) -> np.ndarray:
        """(members,) int32, whom each member sends to."""
        steps = np.unravel_index(number, self.shape)
        moved = [
            (place + step) % side
            for place, step, side in zip(self._places, steps, self.shape, strict=True)
        ]
        found: np.ndarray = np.empty(self.members, np.int32)
        found[self._seated] = self._seated[np.ravel_multi_index(moved, self.shape)]
        return found

    def in_rings(self, rings: int) -> Iterator[tuple[int, int]]:
        """Numbers of all shifts, and the ring of each, in the order in which they are issued."""
        rings = min(rings, self.members)
        edges = [ring * self.members // rings for ring in range(rings + 1)]
        for turn in range(-(-self.members // rings)):
            for ring in range(rings):
                first, count = edges[ring], edges[ring + 1] - edges[ring]
                if turn < count:
                    yield first + (turn + ring) % count, ring


def arrange(layout: Layout) -> Shifts:
    """The box that a group fills, whatever the group's order is."""
    topology = layout.placement.topology
    node, chip, core = np.array(
        [(seat.node, seat.chip, seat.core) for seat in layout.seats], np.int64
    ).T
    order = np.lexsort((core, chip))
    held = np.unique(chip, return_counts=True)[1]
    if (held == held[0]).all():
        within = chip % topology.chips_per_node
        along = [within // axis.stride % axis.extent for axis in topology.axes] or [within]
        place: np.ndarray = np.empty(len(chip), np.int64)
        place[order] = np.arange(len(chip)) % held[0]
        sides = [np.unique(one, return_inverse=True)[1] for one in (node, *along, place)]
        shape = tuple(int(side.max()) + 1 for side in sides)
        if np.prod(shape) == len(chip):
            order = np.lexsort(sides[::-1])
            return Shifts(shape, tuple(order.tolist()))
    return Shifts((len(chip),), tuple(order.tolist()))
