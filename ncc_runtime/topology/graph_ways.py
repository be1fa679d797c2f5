"""Ways through any graph of chips and switches: the fewest links, of those the lowest ids.

At every chip and switch the lowest link leads on that leads closer. Distances are searched from
the targets of a query backwards, so many at once that memory stays small, and kept where that is
little.
"""

import attrs
import numpy as np

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
