"""Ways through any graph of chips and switches: the fewest links, of those the lowest ids.

At every chip and switch the lowest link leads on that leads closer. Distances are searched from
the targets of a query backwards, so many at once that memory stays small.
"""

import attrs
import numpy as np

UNREACHABLE = -1

LARGEST_TABLE = 8_000_000
"""Links times targets of one search."""


@attrs.frozen(eq=False)
class GraphWays:
    """The links of one instance, some of which may be down; sorted by source."""

    nodes: int
    src: np.ndarray  # (n,) int64
    dst: np.ndarray  # (n,)
    is_up: np.ndarray  # (n,) bool

    def ways(
        self, source: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(start, links, hops) of the ways between pairs; hops are UNREACHABLE without a way."""
        hops = np.zeros(len(source), np.int32)
        runs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        order = np.argsort(target, kind="stable")
        targets, first = np.unique(target[order], return_index=True)
        each = max(1, LARGEST_TABLE // max(1, len(self.src)))
        for begin in range(0, len(targets), each):
            some = targets[begin : begin + each]
            end = begin + len(some)
            last = first[end] if end < len(first) else len(order)
            pairs = order[first[begin] : last]
            away, onward = self._search(some)
            column = np.searchsorted(some, target[pairs])
            hops[pairs] = away[source[pairs], column]
            runs.extend(self._walked(pairs, source[pairs], column, onward))
        return (*_joined(runs, len(source)), hops)

    def _search(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(nodes, targets): links that are left to go, and the link to take."""
        away = np.full((self.nodes, len(targets)), UNREACHABLE, np.int32)
        away[targets, np.arange(len(targets))] = 0
        onward = np.full(away.shape, UNREACHABLE, np.int32)
        up = np.flatnonzero(self.is_up)
        if not len(up):
            return away, onward
        src, dst = self.src[up], self.dst[up]
        heads = np.flatnonzero(np.diff(src, prepend=-1))
        largest = np.int32(np.iinfo(np.int32).max)
        reached, hop = True, 0
        while reached:
            found = np.where(away[dst] == hop, up[:, None].astype(np.int32), largest)
            lowest = np.minimum.reduceat(found, heads, axis=0)
            here = src[heads]
            new = (lowest != largest) & (away[here] == UNREACHABLE)
            rows, columns = np.nonzero(new)
            away[here[rows], columns] = hop + 1
            onward[here[rows], columns] = lowest[rows, columns]
            reached, hop = bool(len(rows)), hop + 1
        return away, onward

    def _walked(
        self, pairs: np.ndarray, node: np.ndarray, column: np.ndarray, onward: np.ndarray
    ) -> "list[tuple[np.ndarray, np.ndarray, np.ndarray]]":
        """Step by step (pairs, number of the step, link)."""
        found = []
        step = 0
        while len(pairs):
            link = onward[node, column]
            goes = link != UNREACHABLE
            pairs, column, link = pairs[goes], column[goes], link[goes]
            found.append((pairs, np.full(len(pairs), step), link))
            node, step = self.dst[link], step + 1
        return found


def _joined(
    runs: "list[tuple[np.ndarray, np.ndarray, np.ndarray]]", count: int
) -> tuple[np.ndarray, np.ndarray]:
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
