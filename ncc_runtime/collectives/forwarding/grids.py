"""Groups whose chips fill a torus, or a part of one on which rings close in every dimension."""

from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.collectives.forwarding.link_graph import Wires
from ncc_runtime.collectives.layout import Layout, UnsuitedError


@attrs.frozen(cache_hash=True, slots=False)
class Grid:
    """Chips in the order of the group's wires, row-major over dimensions of more than one chip."""

    dims: tuple[int, ...]
    chips: tuple[int, ...]  # by place in the grid
    rates: tuple[int, ...]  # of the slowest link along each dimension, bytes a second
    is_even: bool  # whether all links of a dimension run at one rate
    outer: int | None  # the dimension that joins hosts; None: there is none

    @cached_property
    def table(self) -> np.ndarray:
        """(dims), the chips."""
        return np.array(self.chips, np.int64).reshape(self.dims)


def grid_of(layout: Layout, wires: Wires) -> Grid:
    """The grid that a group fills; UnsuitedError if rings of single links do not close on it."""
    topology = layout.placement.topology
    axes = topology.axes
    if not axes:
        raise UnsuitedError("its chips are on no torus")
    chips = np.array([layout.seats[cluster[0]].chip for cluster in layout.by_chip()], np.int64)
    within = chips % topology.chips_per_node
    places = [within // axis.stride % axis.extent for axis in axes]
    there = [np.unique(place) for place in places]
    if int(np.prod([len(values) for values in there])) != len(chips):
        raise UnsuitedError("its chips fill no part of a torus")
    for axis, values in zip(axes, there, strict=True):
        closes = axis.wraps and len(values) == axis.extent
        apart = int(values[-1] - values[0])
        is_pair = len(values) == 2 and (apart == 1 or (axis.wraps and apart == axis.extent - 1))
        if len(values) > 1 and not closes and not is_pair:
            raise UnsuitedError("its chips close no ring in some dimension of the torus")
    order = np.lexsort(places[::-1])
    some = [number for number, values in enumerate(there) if len(values) > 1]
    dims = tuple(len(there[number]) for number in some)
    table = order.reshape(dims)
    rates = [_rates(wires, table, axis) for axis in range(len(dims))]
    outer = topology.hosts_per_node > 1 and 0 in some
    return Grid(
        dims=dims,
        chips=tuple(order.tolist()),
        rates=tuple(min(one) for one in rates),
        is_even=all(len(set(one)) == 1 for one in rates),
        outer=0 if outer else None,
    )


def _rates(wires: Wires, table: np.ndarray, axis: int) -> list[int]:
    """The rates of all links along a dimension; UnsuitedError if one is down."""
    direct = {(a, b): links for a, b, links in wires.edges if len(links) == 1}
    found = []
    for step in (1, -1):
        ends = zip(
            table.ravel().tolist(), np.roll(table, -step, axis).ravel().tolist(), strict=True
        )
        for pair in ends:
            if pair not in direct:
                raise UnsuitedError("no single link joins some neighbours of the torus")
            found.append(wires.rates[direct[pair][0]])
    return found
