"""Routes between the chips of one instance, as ragged tables of link ids.

A grid of chips is routed in dimension order (grid_ways.py). Any other graph, and any pair whose way
has a link down, takes a path of fewest links with the lowest ids (graph_ways.py). Every pair has
one way, which data and its semaphore both take. All of it is assumed: AWS publishes no routing.

Up to DENSE_CHIPS chips there is one table of all pairs; beyond, one is made of those that a query
asks for.

Ways through any graph of chips and switches: the fewest links, of those the lowest ids.

At every chip and switch the lowest link leads on that leads closer. Distances are searched from
the targets of a query backwards, so many at once that memory stays small, and kept where that is
little.

Ways on a grid: dimension order, the last dimension first, each the shorter way round.

Halfway round, an even coordinate goes up and an odd one down, so that both directions carry the
same. On a torus that is columns (E, W), rows (N, S), planes (D, U). Assumed: AWS publishes no
routing. Queries are whole arrays of pairs of chips.
"""

from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.topology.fabric import Axis
from ncc_runtime.topology.format.spec import BETWEEN_PORTS
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.quadrants import NO_PORT, opposite, port_codes

UNREACHABLE = -1

LARGEST_TABLE = 8_000_000
"""Links times targets of one search."""

LARGEST_KEPT = 16_000_000
"""Nodes times targets of a graph whose searches are kept."""

SWITCHES = 4
"""Ports of a chip that are tried before a search."""

Walked = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Step by step (pairs, number of the step, link)."""


@attrs.define(eq=False)
class _Kept:
    """What is known of some targets, a column each; forgotten when there is no room."""

    column: np.ndarray  # (chips,) int32: which one of a target; UNREACHABLE if it is not known
    away: np.ndarray  # (nodes, columns) int32: links that are left to go
    onward: np.ndarray  # (nodes, columns) int32: the link to take
    used: int = 0  # columns

    @classmethod
    def nothing(cls, nodes: int, chips: int) -> "_Kept":
        """Room for all targets, or as many as LARGEST_KEPT holds."""
        columns = min(chips, LARGEST_KEPT // max(1, nodes))
        away, onward = (np.empty((nodes, columns), np.int32) for _ in range(2))
        return cls(np.full(chips, UNREACHABLE, np.int32), away, onward)

    def add(self, targets: np.ndarray, away: np.ndarray, onward: np.ndarray) -> None:
        """Keep what was found of targets that fit."""
        some = slice(self.used, self.used + len(targets))
        self.away[:, some], self.onward[:, some] = away, onward
        self.column[targets] = np.arange(some.start, some.stop)
        self.used = some.stop

    def has_room_for(self, targets: int) -> bool:
        """Whether so many more fit, if need be after all else is forgotten."""
        if self.used + targets > self.away.shape[1]:
            self.column[:] = UNREACHABLE
            self.used = 0
        return targets <= self.away.shape[1]


@attrs.frozen(eq=False)
class GraphWays:
    """The links of one instance, some of which may be down; sorted by source."""

    nodes: int
    chips: int
    src: np.ndarray  # (n,) int64
    dst: np.ndarray  # (n,)
    is_up: np.ndarray  # (n,) bool
    kept: _Kept = attrs.field(init=False, repr=False)
    index: tuple[np.ndarray, np.ndarray] = attrs.field(init=False, repr=False)
    ports: np.ndarray = attrs.field(init=False, repr=False)

    @kept.default
    def _nothing_yet(self) -> _Kept:
        return _Kept.nothing(self.nodes, self.chips)

    @index.default
    def _links_by_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of both ends in order, and the links that are up and have them."""
        up = np.flatnonzero(self.is_up)
        key = self.src[up] * self.nodes + self.dst[up]
        order = np.argsort(key, kind="stable")
        return key[order], up[order].astype(np.int32)

    @ports.default
    def _first_ports_to_switches(self) -> np.ndarray:
        """(chips, SWITCHES): the links of every chip as far as they lead to switches."""
        ports = np.full((self.chips, SWITCHES), UNREACHABLE, np.int32)
        up = np.flatnonzero(self.is_up & (self.src < self.chips))
        place = np.arange(len(up)) - np.searchsorted(self.src[up], self.src[up])
        few = np.flatnonzero(place < SWITCHES)
        to_switch = np.where(self.dst[up[few]] >= self.chips, up[few], UNREACHABLE)
        ports[self.src[up[few]], place[few]] = to_switch
        before = np.logical_and.accumulate(ports != UNREACHABLE, axis=1)
        return np.where(before, ports, np.int32(UNREACHABLE))

    def ways(
        self, source: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(start, links, hops) of the ways between pairs; hops are UNREACHABLE without a way."""
        hops = np.zeros(len(source), np.int32)
        runs: Walked = []
        far = np.flatnonzero(source != target)
        for step in (self._direct, self._over_switch):
            links = step(source[far], target[far])
            is_found = links[0] != UNREACHABLE
            hops[far[is_found]] = len(links)
            for number, link in enumerate(links):
                found = link[is_found]
                runs.append((far[is_found], np.full(len(found), number), found))
            far = far[~is_found]
        targets, column = np.unique(target[far], return_inverse=True)
        each = max(1, LARGEST_TABLE // max(1, len(self.src)))
        order = np.argsort(column, kind="stable")
        for begin in range(0, len(targets), each):
            some = targets[begin : begin + each]
            edges = np.searchsorted(column[order], [begin, begin + len(some)])
            pairs = order[edges[0] : edges[1]]
            away, onward = self._known(some)
            here = source[far[pairs]]
            hops[far[pairs]] = away[here, column[pairs] - begin]
            runs += self._walked(far[pairs], here, column[pairs] - begin, onward)
        return (*_joined(runs, len(source)), hops)

    def _direct(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray]:
        """The lowest link that is up from one to the other, or UNREACHABLE."""
        keys, links = self.index
        wanted = source.astype(np.int64) * self.nodes + target
        at = np.searchsorted(keys, wanted)
        found = np.full(len(wanted), UNREACHABLE, np.int32)
        inside = np.flatnonzero(at < len(keys))
        same = inside[keys[at[inside]] == wanted[inside]]
        found[same] = links[at[same]]
        return (found,)

    def _over_switch(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Into a switch that both have, and out of it, where no lower link leads elsewhere."""
        first = np.full(len(source), UNREACHABLE, np.int32)
        second = first.copy()
        for port in self.ports.T:
            open_ = np.flatnonzero((first == UNREACHABLE) & (port[source] != UNREACHABLE))
            into = port[source[open_]]
            (out,) = self._direct(self.dst[into], target[open_])
            joins = out != UNREACHABLE
            first[open_[joins]], second[open_[joins]] = into[joins], out[joins]
        return first, second

    def _known(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(nodes, targets): links that are left to go, and the link to take."""
        new = targets[self.kept.column[targets] == UNREACHABLE]
        if len(new) and not self.kept.has_room_for(len(targets)):
            return self._search(targets)
        new = targets[self.kept.column[targets] == UNREACHABLE]
        if len(new):
            self.kept.add(new, *self._search(new))
        columns = self.kept.column[targets]
        return self.kept.away[:, columns], self.kept.onward[:, columns]

    def _search(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        up = np.flatnonzero(self.is_up)
        onward = np.full((self.nodes, len(targets)), UNREACHABLE, np.int32)
        src, dst = self.src[up], self.dst[up]
        ones = np.ones(len(up), np.int8)
        back = csr_array((ones, (dst, src)), shape=(self.nodes, self.nodes))
        found = dijkstra(back, indices=targets, unweighted=True).T
        away = np.where(np.isinf(found), UNREACHABLE, found).astype(np.int32)
        heads = np.flatnonzero(np.diff(src, prepend=-1))
        if len(heads):
            largest = np.int32(np.iinfo(np.int32).max)
            closer = (away[dst] == away[src] - 1) & (away[src] > 0)
            numbers = np.where(closer, up[:, None].astype(np.int32), largest)
            lowest = np.minimum.reduceat(numbers, heads, axis=0)
            onward[src[heads]] = np.where(lowest == largest, UNREACHABLE, lowest)
        return away, onward

    def _walked(
        self, pairs: np.ndarray, node: np.ndarray, column: np.ndarray, onward: np.ndarray
    ) -> Walked:
        """All the way; a pair without one stays where it is."""
        found: Walked = []
        step = 0
        while len(pairs):
            link = onward[node, column]
            goes = link != UNREACHABLE
            pairs, column, link = pairs[goes], column[goes], link[goes]
            found.append((pairs, np.full(len(pairs), step), link))
            node, step = self.dst[link], step + 1
        return found


def _joined(runs: Walked, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Links in the order of pairs and steps."""
    none = np.zeros(0, np.int64)
    pair, step, link = (
        np.concatenate([none, *(run[column] for run in runs)]) for column in range(3)
    )
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(pair, minlength=count), out=start[1:])
    links = np.empty(len(link), np.int32)
    links[start[pair] + step] = link
    return start, links


@attrs.frozen(eq=False)
class GridWays:
    """The grid of one instance, whose links are numbered as in the first."""

    axes: tuple[Axis, ...]  # slowest first
    link_at: np.ndarray  # (chips, 2 * axes) int32: the link of an axis down, and up; -1: none

    @classmethod
    def of(cls, axes: tuple[Axis, ...], src: np.ndarray, port: tuple[str, ...]) -> "GridWays":
        """From the columns of the links of the first instance."""
        column = {}
        for number, axis in enumerate(axes):
            column[axis.down], column[axis.up] = 2 * number, 2 * number + 1
        chips = max(axis.extent * axis.stride for axis in axes)
        link_at = np.full((chips, 2 * len(axes)), -1, np.int32)
        for link, (chip, words) in enumerate(zip(src.tolist(), port, strict=True)):
            link_at[chip, [column[word] for word in words.split(BETWEEN_PORTS)]] = link
        return cls(axes, link_at)

    def ways(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(start, links) of the ways between pairs of chips, one after another."""
        steps = [self._steps(axis, source, target) for axis in self.axes]
        start = np.zeros(len(source) + 1, np.int64)
        np.cumsum(np.sum([abs(one) for one in steps], axis=0), out=start[1:])
        links = np.empty(start[-1], np.int32)
        chip, at = source.astype(np.int64), start[:-1].copy()
        for number in reversed(range(len(self.axes))):
            axis, step = self.axes[number], steps[number]
            count, towards = np.asarray(abs(step), np.int64), np.sign(step)
            pair = np.repeat(np.arange(len(source)), count)
            nth = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
            here = _moved(axis, chip[pair], nth * towards[pair])
            links[at[pair] + nth] = self.link_at[here, 2 * number + (towards[pair] > 0)]
            chip, at = _moved(axis, chip, step), at + count
        return start, links

    def _steps(self, axis: Axis, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Steps along an axis, negative ones down."""
        place = source // axis.stride % axis.extent
        goal = target // axis.stride % axis.extent
        if not axis.wraps:
            return np.asarray(goal - place, np.int64)
        up = (goal - place) % axis.extent
        down = axis.extent - up
        goes_up = (up < down) | ((up == down) & (place % 2 == 0))
        return np.asarray(np.where(goes_up, up, -down), np.int64)


def _moved(axis: Axis, chip: np.ndarray, steps: np.ndarray) -> np.ndarray:
    place = chip // axis.stride % axis.extent
    return np.asarray(chip + ((place + steps) % axis.extent - place) * axis.stride)


__all__ = ["UNREACHABLE", "ChipRoutes", "LargeRoutes", "RouteTable", "Ways", "chip_routes"]

DENSE_CHIPS = 160
"""Instances of more chips have no table of all pairs."""


@attrs.frozen(eq=False)
class Ways:
    """Routes by row: the k-th is links[start[k]:start[k + 1]], numbered as in instance 0."""

    start: np.ndarray  # (rows + 1,) int64
    links: np.ndarray  # (m,) int32
    hops: np.ndarray  # (rows,) int32, links of the way, UNREACHABLE where no way is left
    latency_ps: np.ndarray  # (rows,) int64, of its links
    bandwidth_bytes_per_s: np.ndarray  # (rows,) int64, slowest link; largest if none
    leaves: np.ndarray  # (rows,) int8, port code of the first link, NO_PORT if unknown
    enters: np.ndarray  # (rows,) int8, port code at which the last link arrives


@attrs.frozen(eq=False)
class ChipRoutes(Ways):
    """All routes of an instance; those whose links are down or slowed alike share their rows."""

    chips: int
    variant: np.ndarray  # (nodes,) int32

    def pair(self, node: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The row of two chips of one instance, chips numbered inside it."""
        return (self.variant[node] * self.chips + source) * self.chips + target

    def rows(
        self, node: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[Ways, np.ndarray]:
        """Ways, and which of them are those of pairs of chips of instances."""
        return self, self.pair(node, source, target)


@attrs.frozen(eq=False)
class LargeRoutes:
    """Routes that are found when they are asked for."""

    router: "_Router"
    chips: int
    variant: np.ndarray  # (nodes,) int32

    def rows(
        self, node: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[Ways, np.ndarray]:
        """Ways, and which of them are those of pairs of chips of instances."""
        chips = np.int64(self.chips)
        pair = (self.variant[node].astype(np.int64) * chips + source) * chips + target
        keys, index = np.unique(pair, return_inverse=True)
        rest, to = np.divmod(keys, chips)
        variant, from_ = np.divmod(rest, chips)
        return self.router.ways(variant, from_, to), index.reshape(pair.shape)


RouteTable: TypeAlias = ChipRoutes | LargeRoutes


def chip_routes(topology: Topology) -> RouteTable:
    """The routes of a topology, for all its instances."""
    chips, variant = topology.chips_per_node, topology.links.variant
    router = _Router.of(topology)
    if chips > DENSE_CHIPS:
        return LargeRoutes(router, chips, variant)
    variants = int(variant.max()) + 1
    number, source, target = (
        side.ravel() for side in np.indices((variants, chips, chips), sparse=False)
    )
    ways = router.ways(number, source, target)
    columns = {field.name: getattr(ways, field.name) for field in attrs.fields(Ways)}
    for column in columns.values():
        column.setflags(write=False)
    return ChipRoutes(**columns, chips=chips, variant=variant)


@attrs.frozen(eq=False)
class _Router:
    """The links of every kind of instance of a topology, by variant."""

    graphs: tuple[GraphWays, ...]
    grid: GridWays | None
    rates: np.ndarray  # (variants, links) int64
    latency_ps: np.ndarray  # (links,) int64
    port: np.ndarray  # (links,) int8

    @classmethod
    def of(cls, topology: Topology) -> "_Router":
        links, count = topology.links, topology.links_per_node
        _, nodes = np.unique(links.variant, return_index=True)
        by_node = (len(links.variant), count)
        is_up = ~links.is_down.reshape(by_node)[nodes]
        chips = topology.chips_per_node
        src, dst = (
            np.where(side >= links.chips, side - links.chips + chips, side).astype(np.int64)
            for side in (links.src[:count], links.dst[:count])
        )
        ends = chips + topology.switches_per_node
        axes = topology.axes
        return cls(
            graphs=tuple(GraphWays(ends, chips, src, dst, up) for up in is_up),
            grid=GridWays.of(axes, src, links.port) if axes else None,
            rates=links.bandwidth_bytes_per_s.reshape(by_node)[nodes],
            latency_ps=links.latency_ps[:count],
            port=port_codes(topology),
        )

    def ways(self, variant: np.ndarray, source: np.ndarray, target: np.ndarray) -> Ways:
        """The routes of pairs of chips of instances of so-numbered variants."""
        if self.grid is None:
            start, links, hops = self._through_graphs(variant, source, target)
        else:
            start, links = self.grid.ways(source, target)
            hops = np.diff(start).astype(np.int32)
            start, links, hops = self._around(variant, (source, target), (start, links, hops))
        counts = np.diff(start)
        row = np.repeat(np.arange(len(counts)), counts)
        slowest = np.full(len(counts), np.iinfo(np.int64).max)
        latency = np.zeros(len(counts), np.int64)
        some = np.flatnonzero(counts)
        if len(some):
            at = start[:-1][some]
            slowest[some] = np.minimum.reduceat(self.rates[variant[row], links], at)
            latency[some] = np.add.reduceat(self.latency_ps[links], at)
        return Ways(start, links, hops, latency, slowest, *self._ends(links, start))

    def _through_graphs(
        self, variant: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pairs, found = [], []
        for number, graph in enumerate(self.graphs):
            some = np.flatnonzero(variant == number)
            pairs.append(some)
            found.append(graph.ways(source[some], target[some]))
        return _in_order(pairs, found)

    def _around(
        self,
        variant: np.ndarray,
        ends: tuple[np.ndarray, np.ndarray],
        straight: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Straight ways, but for those with a link that is down."""
        _, links, hops = straight
        is_up = np.array([graph.is_up for graph in self.graphs])
        if is_up.all():
            return straight
        row = np.repeat(np.arange(len(hops)), hops)
        broken = np.unique(row[~is_up[variant[row], links]])
        if not len(broken):
            return straight
        kept = np.setdiff1d(np.arange(len(hops)), broken)
        whole = np.isin(row, kept)
        starts = np.concatenate(([0], np.cumsum(hops[kept], dtype=np.int64)))
        detours = self._through_graphs(variant[broken], ends[0][broken], ends[1][broken])
        return _in_order([kept, broken], [(starts, links[whole], hops[kept]), detours])

    def _ends(self, links: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ports by which every route leaves its first chip and enters its last."""
        leaves = np.full(len(start) - 1, NO_PORT, np.int8)
        enters = leaves.copy()
        some = np.diff(start) > 0
        code = self.port[links]
        leaves[some] = code[start[:-1][some]]
        enters[some] = opposite(code[start[1:][some] - 1])
        return leaves, enters


def _in_order(
    rows: "list[np.ndarray]", parts: "list[tuple[np.ndarray, np.ndarray, np.ndarray]]"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parts of a table, each with the numbers of its rows, as one table in their order."""
    count = sum(map(len, rows))
    hops = np.empty(count, np.int32)
    for some, (_, _, own) in zip(rows, parts, strict=True):
        hops[some] = own
    counts = np.maximum(hops, 0)
    start = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    links = np.empty(start[-1], np.int32)
    for some, (begins, own, _) in zip(rows, parts, strict=True):
        each = np.diff(begins)
        within = np.arange(len(own)) - np.repeat(begins[:-1], each)
        links[np.repeat(start[some], each) + within] = own
    return start, links, hops
