"""Where the members of a group sit: all that an algorithm may know of topology and placement.

Algorithms ask for an arrangement, a hashable description of orders and clusters of members. Groups
that are arranged alike share one plan.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TypeAlias, TypeVar

import attrs

from ncc_runtime.machine_model.parts import UNLIMITED
from ncc_runtime.placement import Placement
from ncc_runtime.topology.cycles import closed_walk, disjoint_cycles, link_rates

Members: TypeAlias = tuple[int, ...]

Arranged = TypeVar("Arranged")

Arrange: TypeAlias = "Callable[[GroupLayout], Hashable]"
"""Gives the arrangement that an algorithm makes its plan of; raises UnsuitedError."""


class UnsuitedError(Exception):
    """A group that an algorithm does not work for; the message says why."""


@attrs.frozen
class Seat:
    """The logical core of one member; chips are counted through all instances."""

    node: int
    chip: int
    core: int


@attrs.frozen(eq=False)
class GroupLayout:
    """The seats of one group's members, and the links between their chips."""

    seats: tuple[Seat, ...]
    placement: Placement

    @classmethod
    def of(cls, placement: Placement, ranks: Sequence[int]) -> "GroupLayout":
        """The layout of a group of ranks, in the group's order."""
        columns = (placement.node, placement.chip, placement.core)
        seats = zip(*(column[list(ranks)].tolist() for column in columns), strict=True)
        return cls(tuple(Seat(*seat) for seat in seats), placement)

    @property
    def members(self) -> int:
        return len(self.seats)

    def by_node(self) -> tuple[Members, ...]:
        """Members of each instance, instances in the order of their first member."""
        return self._nodes

    @cached_property
    def _nodes(self) -> tuple[Members, ...]:
        return self._by([seat.node for seat in self.seats])

    @cached_property
    def _shaped_nodes(self) -> tuple[tuple[Hashable, "GroupLayout"], ...]:
        """The members of every instance, and their shape."""
        layouts = [self.within(members) for members in self._nodes]
        return tuple((layout.shape(), layout) for layout in layouts)

    def by_chip(self) -> tuple[Members, ...]:
        """Members of each chip, chips in the order of their first member."""
        return self._by([seat.chip for seat in self.seats])

    def _by(self, keys: Sequence[int]) -> tuple[Members, ...]:
        members_of: dict[int, list[int]] = {}
        for member, key in enumerate(keys):
            members_of.setdefault(key, []).append(member)
        return tuple(tuple(members) for members in members_of.values())

    def shape(self) -> Hashable:
        """Equal for members of one instance each with the same seats and the same links."""
        topology = self.placement.topology
        first = self.seats[0].node * topology.chips_per_node
        seats = tuple((seat.chip - first, seat.core) for seat in self.seats)
        return int(topology.links.variant[self.seats[0].node]), seats

    def arranged_by_instance(
        self, arrange: "Callable[[GroupLayout], Arranged]"
    ) -> list["Arranged"]:
        """The arrangement of the members of every instance, which numbers them from 0.

        Instances where they sit alike are arranged once.
        """
        by_shape: dict[Hashable, Arranged] = {}
        for shape, layout in self._shaped_nodes:
            if shape not in by_shape:
                by_shape[shape] = arrange(layout)
        return [by_shape[shape] for shape, _ in self._shaped_nodes]

    def within(self, members: Sequence[int]) -> "GroupLayout":
        """The layout of some of the members, renumbered in this order."""
        return GroupLayout(tuple(self.seats[member] for member in members), self.placement)

    @cached_property
    def _link_rates(self) -> dict[tuple[int, int], int]:
        """Of the slowest link from one chip of the group to another that is up, bytes a second."""
        return link_rates(self.placement.topology, [seat.chip for seat in self.seats])

    def rates(self) -> list[int]:
        """The different rates of links between its chips, ascending; [1] where there are none."""
        return sorted(set(self._link_rates.values())) or [1]

    def carried(self, rings: Sequence[Members]) -> int:
        """Bytes a second of rings side by side, all with as many bytes.

        A ring is as fast as its slowest link, and all wait for the slowest ring. So a slow link is
        left out where fewer rings that avoid it carry more.
        """
        chips = [[self.seats[member].chip for member in ring] for ring in rings]
        rates = [
            self._link_rates.get(pair, UNLIMITED)
            for order in chips
            for pair in zip(order, (*order[1:], order[0]), strict=True)
        ]
        return len(rings) * min(rates, default=0)

    def chip_cycles(self) -> tuple[tuple[Members, ...], ...]:
        """The `cycles_over` links that carry most."""
        found = [self.cycles_over(rate) for rate in self.rates()]
        firsts = [
            tuple(tuple(cluster[0] for cluster in cycle) for cycle in cycles) for cycles in found
        ]
        return found[max(range(len(found)), key=lambda k: self.carried(firsts[k]))]

    def cycles_over(self, least_rate: int) -> tuple[tuple[Members, ...], ...]:
        """Cycles over links that no two share, as clusters: the members of each chip in turn.

        No more than a rank has groups of DMA engines, so that no two wait for the same engines. Of
        a group on several instances there are none, for no links join these. Where only switches
        close a ring, the chips follow each other in order.
        """
        clusters = {self.seats[cluster[0]].chip: cluster for cluster in self.by_chip()}
        topology = self.placement.topology
        cycles = disjoint_cycles(topology, tuple(clusters), least_rate)
        if not cycles and topology.switches_per_node and len(self.by_node()) == 1:
            cycles = (tuple(sorted(clusters)),)
        used = cycles[: topology.rank_dma_channels]
        return tuple(tuple(clusters[chip] for chip in cycle) for cycle in used)

    def there_and_back(self, least_rate: int) -> tuple[Members, ...]:
        """Members along a closed walk over the links between their chips, and the same in reverse.

        Members of a chip are shared out over its visits: of two on a line, one is on the way there
        and one on the way back, and in reverse they change. Each of the two takes every link at
        most once each way. () where links do not join the chips.
        """
        topology = self.placement.topology
        clusters = {self.seats[cluster[0]].chip: cluster for cluster in self.by_chip()}
        walk = closed_walk(topology, tuple(clusters), least_rate)
        if not walk:
            return ()
        visits, visited = Counter(walk), Counter[int]()
        order: list[int] = []
        for chip in walk:
            cluster, visit = clusters[chip], visited[chip]
            begin, end = (-(-len(cluster) * k // visits[chip]) for k in (visit, visit + 1))
            order += cluster[begin:end]
            visited[chip] += 1
        return (tuple(order), (order[0], *order[:0:-1]))[: topology.rank_dma_channels]
