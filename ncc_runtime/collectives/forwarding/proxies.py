"""The members of a group by chip: who of each chip sends and receives for it, in planes.

A plane has one member of every chip, its agents; there are as many planes as the chip with fewest
members has members. Units belong to places of chips; where a chip has more places than there are
planes, an agent serves several places, one after another: its turns.
"""

from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.collectives.layout import Layout, Members
from ncc_runtime.collectives.plan import IDLE


@attrs.frozen(cache_hash=True, slots=False)
class Crew:
    """Members of every chip, chips in the order of the group's wires."""

    clusters: tuple[Members, ...]

    @classmethod
    def of(cls, layout: Layout) -> "Crew":
        """The crew of a group, the members of a chip in the order of their cores."""
        return cls(
            tuple(
                tuple(sorted(cluster, key=lambda member: layout.seats[member].core))
                for cluster in layout.by_chip()
            )
        )

    def reordered(self, order: np.ndarray) -> "Crew":
        """The same with chip order[k] as chip k."""
        return Crew(tuple(self.clusters[chip] for chip in order))

    @cached_property
    def chips(self) -> int:
        return len(self.clusters)

    @cached_property
    def members(self) -> int:
        return sum(map(len, self.clusters))

    @cached_property
    def planes(self) -> int:
        """Members of the chip that has fewest."""
        return min(map(len, self.clusters))

    @cached_property
    def places(self) -> int:
        """Members of the chip that has most."""
        return max(map(len, self.clusters))

    @cached_property
    def turns(self) -> int:
        """How many places an agent serves at most."""
        return -(-self.places // self.planes)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(chips,) int64, members of each."""
        return np.array([len(cluster) for cluster in self.clusters], np.int64)

    @cached_property
    def table(self) -> np.ndarray:
        """(chips, places) int32, the members, counted round where a chip has fewer."""
        rows = [[one[k % len(one)] for k in range(self.places)] for one in self.clusters]
        return np.array(rows, np.int32)

    def neighbours(self, step: int, turn: int = 0) -> np.ndarray:
        """(chips, planes) int32, who sits `step` places on from the agents, or from their turn."""
        place = np.arange(self.planes) + turn * self.planes
        return np.take_along_axis(self.table, (place + step) % self.sizes[:, None], axis=1)

    def column(self, where: np.ndarray, what: np.ndarray, idle: int = IDLE) -> np.ndarray:
        """(members,) int64, `what` at the members `where`, elsewhere `idle`."""
        found = np.full(self.members, idle, np.int64)
        found[where.ravel()] = what.ravel()
        return found
