"""Sends between the chips of a group in order of time, which agents carry out (`courses.py`).

Colours of edges such that two of one source, or of one target, differ: what can go at once.
"""

from collections.abc import Sequence
from functools import cached_property

import attrs
import numpy as np


@attrs.frozen(eq=False, slots=False)
class Sends:
    """Every unit goes from its owner to every chip; or, backwards in time, the other way."""

    owners: np.ndarray  # (units,) int64, the chip where a unit begins, or ends
    slot: np.ndarray  # (sends,) int64, ascending
    source: np.ndarray  # (sends,) int64
    target: np.ndarray  # (sends,) int64
    unit: np.ndarray  # (sends,) int64
    way: np.ndarray  # (sends,) int64: of a slot and way, no two have one source or one target

    @property
    def count(self) -> int:
        """The number of slots."""
        return int(self.slot.max(initial=-1)) + 1

    @property
    def most_targets(self) -> int:
        """To how many chips a chip sends at most."""
        ends = np.unique(np.stack((self.source, self.target)), axis=1)
        return int(np.bincount(ends[0], minlength=1).max())

    @cached_property
    def turn(self) -> np.ndarray:
        """(sends,) int64, how often its source has sent the unit before."""
        return turns(self.source * len(self.owners) + self.unit)

    @cached_property
    def times(self) -> np.ndarray:
        """(chips, units) int64, how often a chip sends a unit in all."""
        chips = 1 + max(
            int(ends.max(initial=0)) for ends in (self.source, self.target, self.owners)
        )
        key = self.source * len(self.owners) + self.unit
        return np.bincount(key, minlength=chips * len(self.owners)).reshape(chips, -1)


def turns(column: np.ndarray) -> np.ndarray:
    """(n,) int64, how often the value of a row stands in earlier rows."""
    order = np.argsort(column, kind="stable")
    counts = np.unique(column, return_counts=True)[1]
    found: np.ndarray = np.empty(len(column), np.int64)
    found[order] = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


FREE = -1


def coloured(ends: Sequence[tuple[int, int]], nodes: int) -> list[int]:
    """A colour for every edge, by as few colours as the busiest node has edges out or in.

    Source: König's theorem by alternating paths (Gabow, "Using Euler partitions to edge color
    bipartite multigraphs", 1976, describes this baseline).
    """
    degree = [0] * (2 * nodes)
    for source, target in ends:
        degree[source] += 1
        degree[nodes + target] += 1
    most = max(degree, default=0)
    at = [[FREE] * most for _ in range(2 * nodes)]  # by node (sources, then targets) and colour
    for edge, (source, target) in enumerate(ends):
        one, other = at[source].index(FREE), at[nodes + target].index(FREE)
        if one != other:
            _swap(at, ends, nodes + target, (one, other))
        at[source][one] = at[nodes + target][one] = edge
    found = [FREE] * len(ends)
    for row in at[:nodes]:
        for colour, edge in enumerate(row):
            if edge != FREE:
                found[edge] = colour
    return found


def _swap(
    at: list[list[int]], ends: Sequence[tuple[int, int]], node: int, colours: tuple[int, int]
) -> None:
    """Exchange two colours along the path from a node, so that the first is free there."""
    nodes = len(at) // 2
    first, second = colours
    path, wanted = [], first
    while at[node][wanted] != FREE:
        edge = at[node][wanted]
        path.append((edge, wanted))
        source, target = ends[edge][0], nodes + ends[edge][1]
        node = source if node == target else target
        wanted = second if wanted == first else first
    for edge, colour in path:
        for end in (ends[edge][0], nodes + ends[edge][1]):
            at[end][colour] = FREE
    for edge, colour in path:
        for end in (ends[edge][0], nodes + ends[edge][1]):
            at[end][second if colour == first else first] = edge
