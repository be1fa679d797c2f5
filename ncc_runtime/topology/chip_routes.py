"""Routes between the chips of one instance, as ragged tables of link ids.

Every pair of chips has one route, which data and its semaphore both take. All of it is assumed:
AWS publishes no routing.

On a grid (`GridRoutes`) routes are in dimension order: the last dimension first, each the shorter
way round, so on a torus columns (E, W), rows (N, S), planes (D, U). Halfway round, an even
coordinate goes up and an odd one down, which loads both directions alike.

On any other graph of chips and switches (`GraphRoutes`), and between chips whose grid route has a
link down, a route has the fewest links. Of equal ones, each chip and switch takes the lowest link
that leads closer: the distances to a target make a table of next links.

Queries are whole arrays of pairs of chips. Up to DENSE_CHIPS chips there is one table of all
pairs (`ChipRoutes`); beyond, a table is made of the pairs that a query names (`LargeRoutes`).
"""

from typing import TypeAlias
from weakref import WeakKeyDictionary

import attrs
import numpy as np

from ncc_runtime.topology.fabric import Axis
from ncc_runtime.topology.format.spec import BETWEEN_PORTS
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.quadrants import NO_PORT, opposite, port_codes

UNREACHABLE = -1

DENSE_CHIPS = 160
"""Instances of more chips have no table of all pairs."""

LARGEST_SEARCH = 8_000_000
"""Links times targets of one search, which bounds its memory."""

LARGEST_CACHE = 16_000_000
"""Nodes times targets of an instance whose searches are cached."""

SWITCH_PORTS = 4
"""Ports of a chip that are tried for a switch next to both chips, before a search."""

Hops: TypeAlias = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Links of routes in any order, as (pairs, place of the link in the route, link)."""


@attrs.frozen(eq=False)
class RouteRows:
    """Routes by row: the k-th is links[start[k]:start[k + 1]], numbered as in instance 0."""

    start: np.ndarray  # (rows + 1,) int64
    links: np.ndarray  # (m,) int32
    hops: np.ndarray  # (rows,) int32, links of the route, UNREACHABLE without a route
    latency_ps: np.ndarray  # (rows,) int64, sum over its links
    bandwidth_bytes_per_s: np.ndarray  # (rows,) int64, slowest link; largest if none
    leaves: np.ndarray  # (rows,) int8, port code of the first link, NO_PORT if unknown
    enters: np.ndarray  # (rows,) int8, port code at which the last link arrives


@attrs.frozen(eq=False)
class ChipRoutes(RouteRows):
    """All routes of an instance; instances with equal faults share their rows."""

    chips: int
    variant: np.ndarray  # (nodes,) int32

    def pair(self, node: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The row of two chips of one instance, chips numbered inside it."""
        return (self.variant[node] * self.chips + source) * self.chips + target

    def rows(
        self, node: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[RouteRows, np.ndarray]:
        """A table of routes, and the rows in it of the pairs, in the shape of the query."""
        return self, self.pair(node, source, target)


@attrs.frozen(eq=False)
class LargeRoutes:
    """Routes of an instance of many chips, found query by query."""

    router: "_Router"
    chips: int
    variant: np.ndarray  # (nodes,) int32

    def rows(
        self, node: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[RouteRows, np.ndarray]:
        """A table of routes, and the rows in it of the pairs, in the shape of the query."""
        chips = np.int64(self.chips)
        pair = (self.variant[node].astype(np.int64) * chips + source) * chips + target
        keys, index = np.unique(pair, return_inverse=True)
        rest, to = np.divmod(keys, chips)
        variant, from_ = np.divmod(rest, chips)
        return self.router.routes(variant, from_, to), index.reshape(pair.shape)


RouteTable: TypeAlias = ChipRoutes | LargeRoutes


_TABLES: WeakKeyDictionary[Topology, RouteTable] = WeakKeyDictionary()


def chip_routes(topology: Topology) -> RouteTable:
    """The routes of a topology, for all its instances; made once, kept as long as it is."""
    if topology not in _TABLES:
        _TABLES[topology] = _chip_routes(topology)
    return _TABLES[topology]


def _chip_routes(topology: Topology) -> RouteTable:
    chips, variant = topology.chips_per_node, topology.links.variant
    router = _Router.of(topology)
    if chips > DENSE_CHIPS:
        return LargeRoutes(router, chips, variant)
    variants = int(variant.max()) + 1
    number, source, target = (
        side.ravel() for side in np.indices((variants, chips, chips), sparse=False)
    )
    table = router.routes(number, source, target)
    columns = {field.name: getattr(table, field.name) for field in attrs.fields(RouteRows)}
    for column in columns.values():
        column.setflags(write=False)
    return ChipRoutes(**columns, chips=chips, variant=variant)


@attrs.frozen(eq=False)
class _Router:
    """The links of an instance, by variant: instances with the same faults are one variant."""

    graphs: "tuple[GraphRoutes, ...]"  # by variant
    grid: "GridRoutes | None"
    rates: np.ndarray  # (variants, links) int64
    latency_ps: np.ndarray  # (links,) int64
    port: np.ndarray  # (links,) int8

    @classmethod
    def of(cls, topology: Topology) -> "_Router":
        links, count = topology.links, topology.links_per_node
        _, instances = np.unique(links.variant, return_index=True)  # the first of each variant
        by_instance = (len(links.variant), count)
        is_up = ~links.is_down.reshape(by_instance)[instances]
        chips = topology.chips_per_node
        # Switches are numbered after the chips of all instances; here after those of one.
        src, dst = (
            np.where(side >= links.chips, side - links.chips + chips, side).astype(np.int64)
            for side in (links.src[:count], links.dst[:count])
        )
        return cls(
            graphs=tuple(
                GraphRoutes(topology, int(node), src, dst, up)
                for node, up in zip(instances, is_up, strict=True)
            ),
            grid=GridRoutes.of(topology.axes, src, links.port) if topology.axes else None,
            rates=links.bandwidth_bytes_per_s.reshape(by_instance)[instances],
            latency_ps=links.latency_ps[:count],
            port=port_codes(topology),
        )

    def routes(self, variant: np.ndarray, source: np.ndarray, target: np.ndarray) -> RouteRows:
        """The routes of pairs of chips, in instances of the given variants."""
        if self.grid is None:
            start, links, hops = self._through_graphs(variant, source, target)
        else:
            start, links = self.grid.routes(source, target)
            hops = np.diff(start).astype(np.int32)
            start, links, hops = self._with_detours(variant, source, target, start, links, hops)
        counts = np.diff(start)
        row = np.repeat(np.arange(len(counts)), counts)
        slowest = np.full(len(counts), np.iinfo(np.int64).max)
        latency = np.zeros(len(counts), np.int64)
        some = np.flatnonzero(counts)
        if len(some):
            at = start[:-1][some]
            slowest[some] = np.minimum.reduceat(self.rates[variant[row], links], at)
            latency[some] = np.add.reduceat(self.latency_ps[links], at)
        return RouteRows(start, links, hops, latency, slowest, *self._ends(links, start))

    def _through_graphs(
        self, variant: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(start, links, hops) of fewest links, each pair in the graph of its variant."""
        rows = [np.flatnonzero(variant == number) for number in range(len(self.graphs))]
        parts = [
            graph.routes(source[some], target[some])
            for graph, some in zip(self.graphs, rows, strict=True)
        ]
        return _in_order(rows, parts)

    def _with_detours(
        self,
        variant: np.ndarray,
        source: np.ndarray,
        target: np.ndarray,
        start: np.ndarray,
        links: np.ndarray,
        hops: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Routes of the grid, those with a link that is down replaced by routes of the graph."""
        is_up = np.array([graph.is_up for graph in self.graphs])
        if is_up.all():
            return start, links, hops
        row = np.repeat(np.arange(len(hops)), hops)
        broken = np.unique(row[~is_up[variant[row], links]])
        if not len(broken):
            return start, links, hops
        intact = np.setdiff1d(np.arange(len(hops)), broken)
        starts = np.concatenate(([0], np.cumsum(hops[intact], dtype=np.int64)))
        detours = self._through_graphs(variant[broken], source[broken], target[broken])
        on_grid = (starts, links[np.isin(row, intact)], hops[intact])
        return _in_order([intact, broken], [on_grid, detours])

    def _ends(self, links: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ports by which every route leaves its first chip and enters its last."""
        leaves = np.full(len(start) - 1, NO_PORT, np.int8)
        enters = leaves.copy()
        some = np.diff(start) > 0
        code = self.port[links]
        leaves[some] = code[start[:-1][some]]
        enters[some] = opposite(code[start[1:][some] - 1])
        return leaves, enters


@attrs.frozen(eq=False)
class GridRoutes:
    """The grid of one instance, whose links are numbered as in the first."""

    axes: tuple[Axis, ...]  # slowest first
    link_at: np.ndarray  # (chips, 2 * axes) int32: the link of an axis down, and up; -1: none

    @classmethod
    def of(cls, axes: tuple[Axis, ...], src: np.ndarray, port: tuple[str, ...]) -> "GridRoutes":
        """From the columns of the links of the first instance."""
        column = {}
        for number, axis in enumerate(axes):
            column[axis.down], column[axis.up] = 2 * number, 2 * number + 1
        chips = max(axis.extent * axis.stride for axis in axes)
        link_at = np.full((chips, 2 * len(axes)), -1, np.int32)
        for link, (chip, words) in enumerate(zip(src.tolist(), port, strict=True)):
            link_at[chip, [column[word] for word in words.split(BETWEEN_PORTS)]] = link
        return cls(axes, link_at)

    def routes(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(start, links) of the routes between pairs of chips, one after another."""
        steps = [self._steps(axis, source, target) for axis in self.axes]
        start = np.zeros(len(source) + 1, np.int64)
        np.cumsum(np.sum(np.abs(steps), axis=0), out=start[1:])
        links = np.empty(start[-1], np.int32)
        # all pairs walk one axis after another; `at` is where the next link of each route goes
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


@attrs.frozen(eq=False)
class GraphRoutes:
    """Routes of fewest links in one instance, some of whose links may be down."""

    topology: Topology
    instance: int  # whose faults count
    src: np.ndarray  # (n,) int64 ascending: chips of the instance from 0, then its switches
    dst: np.ndarray  # (n,)
    is_up: np.ndarray  # (n,) bool
    cache: "_SearchCache" = attrs.field(init=False, repr=False)
    index: tuple[np.ndarray, np.ndarray] = attrs.field(init=False, repr=False)
    ports: np.ndarray = attrs.field(init=False, repr=False)

    @property
    def chips(self) -> int:
        return self.topology.chips_per_node

    @property
    def nodes(self) -> int:
        """Chips and switches of the instance."""
        return self.chips + self.topology.switches_per_node

    @cache.default
    def _empty_cache(self) -> "_SearchCache":
        return _SearchCache.empty(self.nodes, self.chips)

    @index.default
    def _links_by_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of both ends in order, and the links that are up and have them."""
        up = np.flatnonzero(self.is_up)
        key = self.src[up] * self.nodes + self.dst[up]
        order = np.argsort(key, kind="stable")
        return key[order], up[order].astype(np.int32)

    @ports.default
    def _first_ports_to_switches(self) -> np.ndarray:
        """(chips, SWITCH_PORTS): the first links of every chip, as far as they lead to switches."""
        ports = np.full((self.chips, SWITCH_PORTS), UNREACHABLE, np.int32)
        up = np.flatnonzero(self.is_up & (self.src < self.chips))
        place = np.arange(len(up)) - np.searchsorted(self.src[up], self.src[up])
        few = np.flatnonzero(place < SWITCH_PORTS)
        to_switch = np.where(self.dst[up[few]] >= self.chips, up[few], UNREACHABLE)
        ports[self.src[up[few]], place[few]] = to_switch
        before = np.logical_and.accumulate(ports != UNREACHABLE, axis=1)
        return np.where(before, ports, np.int32(UNREACHABLE))

    def routes(
        self, source: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(start, links, hops) of routes between pairs; hops are UNREACHABLE without a route.

        Neighbours, and chips at one switch, need no search; most pairs of large fabrics are such.
        """
        hops = np.zeros(len(source), np.int32)
        routed: Hops = []
        left = np.flatnonzero(source != target)
        for shortcut in (self._direct, self._over_switch):
            route = shortcut(source[left], target[left])
            has_route = route[0] != UNREACHABLE
            hops[left[has_route]] = len(route)
            for place, links in enumerate(route):
                links = links[has_route]
                routed.append((left[has_route], np.full(len(links), place), links))
            left = left[~has_route]
        targets, column = np.unique(target[left], return_inverse=True)
        order = np.argsort(column, kind="stable")
        at_once = max(1, LARGEST_SEARCH // max(1, len(self.src)))
        for begin in range(0, len(targets), at_once):
            some = targets[begin : begin + at_once]
            first, last = np.searchsorted(column[order], [begin, begin + len(some)])
            pairs = order[first:last]
            distance, next_link = self._next_links(some)
            node, place, columns = source[left[pairs]], 0, column[pairs] - begin
            hops[left[pairs]] = distance[node, columns]
            pairs = left[pairs]
            while len(pairs):  # all routes one link further; those that have arrived drop out
                link = next_link[node, columns]
                goes_on = link != UNREACHABLE
                pairs, columns, link = pairs[goes_on], columns[goes_on], link[goes_on]
                routed.append((pairs, np.full(len(pairs), place), link))
                node, place = self.dst[link], place + 1
        return (*_in_route_order(routed, len(source)), hops)

    def _direct(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray]:
        """The lowest link that is up from one to the other, or UNREACHABLE."""
        keys, links = self.index
        key = source.astype(np.int64) * self.nodes + target
        at = np.searchsorted(keys, key)
        link = np.full(len(key), UNREACHABLE, np.int32)
        inside = np.flatnonzero(at < len(keys))
        same = inside[keys[at[inside]] == key[inside]]
        link[same] = links[at[same]]
        return (link,)

    def _over_switch(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Into a switch that both have, and out of it, where no lower link leads elsewhere."""
        first = np.full(len(source), UNREACHABLE, np.int32)
        second = first.copy()
        for port in self.ports.T:
            open_ = np.flatnonzero((first == UNREACHABLE) & (port[source] != UNREACHABLE))
            into = port[source[open_]]
            (out,) = self._direct(self.dst[into], target[open_])
            leads_there = out != UNREACHABLE
            first[open_[leads_there]] = into[leads_there]
            second[open_[leads_there]] = out[leads_there]
        return first, second

    def _next_links(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `_search`; searches only for targets that are not in the cache."""
        new = targets[self.cache.column[targets] == UNREACHABLE]
        if len(new) and not self.cache.has_room_for(len(targets)):
            return self._search(targets)
        # once more, for making room may have emptied the cache
        new = targets[self.cache.column[targets] == UNREACHABLE]
        if len(new):
            self.cache.add(new, *self._search(new))
        columns = self.cache.column[targets]
        return self.cache.distance[:, columns], self.cache.next_link[:, columns]

    def _search(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(nodes, targets) int32 twice: links to each target, and the lowest that leads closer."""
        distance = self._distances(targets)
        up = np.flatnonzero(self.is_up)
        src, dst = self.src[up], self.dst[up]
        next_link = np.full((self.nodes, len(targets)), UNREACHABLE, np.int32)
        first = np.flatnonzero(np.diff(src, prepend=-1))  # link of each node that has any
        if len(first):
            none = np.int32(np.iinfo(np.int32).max)  # loses every minimum
            closer = (distance[dst] == distance[src] - 1) & (distance[src] > 0)
            numbers = np.where(closer, up[:, None].astype(np.int32), none)
            lowest = np.minimum.reduceat(numbers, first, axis=0)
            next_link[src[first]] = np.where(lowest == none, UNREACHABLE, lowest)
        return distance, next_link

    def _distances(self, targets: np.ndarray) -> np.ndarray:
        """(nodes, targets) int32: links from every node to each target, or UNREACHABLE."""
        distance = np.full((self.nodes, len(targets)), UNREACHABLE, np.int32)
        if self.chips <= DENSE_CHIPS:
            import networkx

            graph = self.topology.graph(self.instance, up_only=True).reverse(copy=False)
            names = list(graph)
            number = {name: node for node, name in enumerate(names)}
            for column, target in enumerate(targets.tolist()):
                lengths = networkx.single_source_shortest_path_length(graph, names[target])
                nodes = [number[name] for name in lengths]
                distance[nodes, column] = list(lengths.values())
            return distance
        # From 1,024 chips to each other networkx searches for 1.2 s, scipy for 0.2 s, though
        # scipy takes longer to load.
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        up = np.flatnonzero(self.is_up)
        ones = np.ones(len(up), np.int8)
        backwards = csr_array((ones, (self.dst[up], self.src[up])), shape=(self.nodes, self.nodes))
        lengths = dijkstra(backwards, indices=targets, unweighted=True).T
        is_reached = ~np.isinf(lengths)
        distance[is_reached] = lengths[is_reached]
        return distance


@attrs.define(eq=False)
class _SearchCache:
    """Searches so far, a column for each target; emptied when there is no room."""

    column: np.ndarray  # (chips,) int32: which one a target has; UNREACHABLE: none
    distance: np.ndarray  # (nodes, columns) int32: links to the target
    next_link: np.ndarray  # (nodes, columns) int32: the first of them
    used: int = 0  # columns

    @classmethod
    def empty(cls, nodes: int, chips: int) -> "_SearchCache":
        """Room for all targets, or as many as LARGEST_CACHE holds."""
        columns = min(chips, LARGEST_CACHE // max(1, nodes))
        distance, next_link = (np.empty((nodes, columns), np.int32) for _ in range(2))
        return cls(np.full(chips, UNREACHABLE, np.int32), distance, next_link)

    def add(self, targets: np.ndarray, distance: np.ndarray, next_link: np.ndarray) -> None:
        """Add the search of targets that fit."""
        some = slice(self.used, self.used + len(targets))
        self.distance[:, some], self.next_link[:, some] = distance, next_link
        self.column[targets] = np.arange(some.start, some.stop)
        self.used = some.stop

    def has_room_for(self, targets: int) -> bool:
        """Whether `targets` more fit; empties the cache where that is needed."""
        if self.used + targets > self.distance.shape[1]:
            self.column[:] = UNREACHABLE
            self.used = 0
        return targets <= self.distance.shape[1]


def _in_route_order(hops: Hops, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Links in the order of pairs and steps."""
    none = np.zeros(0, np.int64)
    pair, step, link = (
        np.concatenate([none, *(part[column] for part in hops)]) for column in range(3)
    )
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(pair, minlength=count), out=start[1:])
    links = np.empty(len(link), np.int32)
    links[start[pair] + step] = link
    return start, links


def _in_order(
    rows: "list[np.ndarray]", parts: "list[tuple[np.ndarray, np.ndarray, np.ndarray]]"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parts of a table, each with the numbers of its rows, as one table in their order."""
    count = sum(map(len, rows))
    hops = np.empty(count, np.int32)
    for some, (_, _, part_hops) in zip(rows, parts, strict=True):
        hops[some] = part_hops
    counts = np.maximum(hops, 0)
    start = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    links = np.empty(start[-1], np.int32)
    for some, (part_start, part_links, _) in zip(rows, parts, strict=True):
        lengths = np.diff(part_start)
        within = np.arange(len(part_links)) - np.repeat(part_start[:-1], lengths)
        links[np.repeat(start[some], lengths) + within] = part_links
    return start, links, hops
