"""Doors: the members of a chip at which bytes from another chip arrive first."""

from functools import lru_cache

import numpy as np

from ncc_runtime.collectives.layout import Layout, Members
from ncc_runtime.topology.chip_routes import chip_routes
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.quadrants import NO_PORT, ports_of_cores


def doors(layout: Layout, clusters: tuple[Members, ...]) -> tuple[Members, ...]:
    """[source][target]: the place in the target cluster that receives for it.

    It is at the port by which the route enters the chip. Where no port is published, or no member
    is at it, places take turns.
    """
    topology = layout.placement.topology
    port = ports_of_cores(topology)
    entered = _entry_ports(topology)
    found = []
    for number, source in enumerate(clusters):
        begin = layout.seats[source[0]]
        row = []
        for target in clusters:
            seats = [layout.seats[member] for member in target]
            end = seats[0]
            code = NO_PORT
            if begin.node == end.node:
                chips = begin.chip % topology.chips_per_node, end.chip % topology.chips_per_node
                code = int(entered[chips])
            near = [k for k, seat in enumerate(seats) if port[chips[1], seat.core] == code]
            if code == NO_PORT or not near:
                near = list(range(len(seats)))
            row.append(near[number % len(near)])
        found.append(tuple(row))
    return tuple(found)


@lru_cache(maxsize=8)
def _entry_ports(topology: Topology) -> np.ndarray:
    """The port by which the first instance's routes enter, (source chip, target chip) int8."""
    chips = topology.chips_per_node
    first = chip_routes(topology).enters[: chips * chips].reshape(chips, chips)
    first.setflags(write=False)
    return first
