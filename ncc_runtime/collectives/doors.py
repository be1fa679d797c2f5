"""Doors: the members of a chip at which bytes from another chip arrive first."""

from functools import lru_cache

import numpy as np

from ncc_runtime.collectives.layout import Layout, Members
from ncc_runtime.topology.chip_routes import RouteTable, chip_routes
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.quadrants import NO_PORT, planes_of_cores, ports_of_cores


def doors(layout: Layout, clusters: tuple[Members, ...]) -> tuple[Members, ...]:
    """[source][target]: the place in the target cluster that receives for it.

    It is at the port by which the route enters the chip. Where no port is published, or no member
    is at it, places take turns.
    """
    topology = layout.placement.topology
    port, plane = ports_of_cores(topology), planes_of_cores(topology)
    begins = np.array([layout.seats[source[0]].chip for source in clusters])
    entered = _entry_ports(topology, begins % topology.chips_per_node)
    found = []
    for number, source in enumerate(clusters):
        begin = layout.seats[source[0]]
        row = []
        for other, target in enumerate(clusters):
            seats = [layout.seats[member] for member in target]
            end = seats[0]
            code = int(entered[number, other]) if begin.node == end.node else NO_PORT
            chip = end.chip % topology.chips_per_node
            near = [
                k
                for k, seat in enumerate(seats)
                if code in (port[chip, seat.core], plane[chip, seat.core])
            ]
            if code == NO_PORT or not near:
                near = list(range(len(seats)))
            row.append(near[number % len(near)])
        found.append(tuple(row))
    return tuple(found)


def _entry_ports(topology: Topology, chips: np.ndarray) -> np.ndarray:
    """The port by which the first instance's routes enter, int8, by source and target chip."""
    first = np.zeros((len(chips), len(chips)), np.int64)
    ways, rows = _routes(topology).rows(first, chips[:, None], chips)
    return np.asarray(ways.enters[rows])


@lru_cache(maxsize=8)
def _routes(topology: Topology) -> RouteTable:
    return chip_routes(topology)
