"""What follows from a topology's figures: its links by level, its diameter, its bisection.

Of an instance as its file has it, links that are down left out. Bisections are between the halves
of the chips by their numbers and, on a grid, along every even dimension; the least counts. Other
halves of an irregular graph may be joined by less: the least of all is not looked for.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.topology.graph import Topology

LARGEST_SEARCHED = 1024
"""Of more chips an instance neither diameter nor bisection is searched."""

_UNITS = 2**30
"""What a flow is counted in at most, so that it fits 32 bits."""


@attrs.frozen
class LevelLinks:
    """The links of one level of an instance, one way."""

    name: str
    links: int  # a trunk counts once; up-links of switches, not down
    bytes_per_s: int  # of all together
    out_of_chip: tuple[int, int]  # bytes a second, of the chip with the least and with the most


@attrs.frozen
class Bisection:
    """Two halves of the chips of an instance, and what passes from the one to the other."""

    halves: str
    bytes_per_s: int


def level_links(topology: Topology) -> Iterator[LevelLinks]:
    """The levels of an instance, innermost first, that have links."""
    src, _, rate = _links(topology)
    chips = topology.chips_per_node
    levels = _level_of_links(topology)
    for number, level in enumerate(topology.levels):
        some = levels == number
        if not some.any():
            continue
        from_chips = some & (src < chips)
        out = np.bincount(src[from_chips], rate[from_chips], chips)[:chips]
        yield LevelLinks(
            name=level.name or level.kind.value,
            links=int(some.sum()),
            bytes_per_s=int(rate[some].sum()),
            out_of_chip=(int(out.min()), int(out.max())),
        )


def _links(topology: Topology) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, target and rate of the first instance's links, 0 of those that are down."""
    links, count = topology.links, topology.links_per_node
    chips = topology.chips_per_node
    src, dst = (
        np.where(side >= links.chips, side - links.chips + chips, side).astype(np.int64)
        for side in (links.src[:count], links.dst[:count])
    )
    rate = np.where(links.is_down[:count], 0, links.bandwidth_bytes_per_s[:count])
    return src, dst, rate


def _level_of_links(topology: Topology) -> np.ndarray:
    """The level of each link of an instance; -1 of what leads down from, or through, a switch."""
    src, dst, _ = _links(topology)
    found = np.full(len(src), -1)
    names = {level.name: number for number, level in enumerate(topology.levels) if level.name}
    to_switch = np.flatnonzero(dst >= topology.chips_per_node)
    for link in to_switch.tolist():
        found[link] = names.get(topology.links.port[link], -1)
    held = np.cumprod([level.size for level in topology.levels])
    between_chips = (src < topology.chips_per_node) & (dst < topology.chips_per_node)
    for number in reversed(range(len(held))):
        found[between_chips & (src // held[number] == dst // held[number])] = number
    between_switches = (src >= topology.chips_per_node) & (found < 0)
    for link in np.flatnonzero(between_switches & (dst >= topology.chips_per_node)).tolist():
        port = topology.links.port[link]
        begins = [name for name in names if port.startswith(name)]
        found[link] = names[max(begins, key=len)] if begins else -1
    return found


def diameter(topology: Topology) -> tuple[int, float] | None:
    """Links between the two chips furthest apart, and between two on average.

    A switch counts two. None of one chip, of more than LARGEST_SEARCHED, or of chips cut off.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    chips = topology.chips_per_node
    if not 1 < chips <= LARGEST_SEARCHED:
        return None
    src, dst, rate = _links(topology)
    ends = chips + topology.switches_per_node
    up = rate > 0
    edges = coo_array((np.ones(int(up.sum())), (src[up], dst[up])), shape=(ends, ends)).tocsr()
    away = dijkstra(edges, indices=np.arange(chips), unweighted=True)[:, :chips]
    if np.isinf(away).any():
        return None
    return int(away.max()), float(away.sum() / (chips * (chips - 1)))


def bisection(topology: Topology) -> Bisection | None:
    """The halves between which the least passes; None of odd chips, or more than are searched."""
    chips = topology.chips_per_node
    if chips % 2 or chips > LARGEST_SEARCHED:
        return None
    number = np.arange(chips)
    last, middle = chips - 1, chips // 2
    halves = {f"c0 to c{middle - 1} and c{middle} to c{last}": number < middle}
    for place, axis in enumerate(topology.axes):
        if axis.extent % 2 == 0:
            at = number // axis.stride % axis.extent
            halves[f"halves along dimension {place}"] = at < axis.extent // 2
    found = [Bisection(words, _passing(topology, side)) for words, side in halves.items()]
    return min(found, key=lambda one: one.bytes_per_s)


def _passing(topology: Topology, side: np.ndarray) -> int:
    """Bytes a second out of some chips of an instance into the others, to a billionth."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    src, dst, rate = _links(topology)
    chips = topology.chips_per_node
    if not topology.switches_per_node:
        return int(rate[side[src] & ~side[dst]].sum())
    ends = chips + topology.switches_per_node
    unit = max(1, int(rate.sum()) // _UNITS + 1)
    most = np.full(chips, _UNITS)
    pairs = (
        np.concatenate((src, np.full(int(side.sum()), ends), np.flatnonzero(~side))),
        np.concatenate((dst, np.flatnonzero(side), np.full(int((~side).sum()), ends + 1))),
    )
    capacity = np.concatenate((rate // unit, most)).astype(np.int32)
    graph = coo_array((capacity, pairs), shape=(ends + 2, ends + 2)).tocsr()
    return int(maximum_flow(graph, ends, ends + 1).flow_value) * unit
