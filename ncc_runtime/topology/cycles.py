"""Directed Hamiltonian cycles of some chips, no two of which share a link; else a walk over all.

A ring algorithm sends along such a cycle, and one ring for each cycle uses every link once. Where
chips close no cycle, as those of a line do not, `closed_walk` goes there and back.

On a grid of rings and lines cycles are constructed. Elsewhere, and on small grids or where links
are down, they are searched depth first with a budget: in the order of chips, then, if that finds
none, by Warnsdorff's rule, towards the chip with the fewest neighbours left. No cycle is an answer
too. A path through all chips is searched in the same way. networkx has no search for Hamiltonian
cycles of general graphs.

The construction: a torus of d rings is the union of d 2-factors, which are sets of disjoint cycles
through all places; at first one for each dimension. Take a square of links, two opposite sides in
one 2-factor and two in another. If the 2-factors exchange these sides, both are 2-factors still,
and cycles whose sides lay in two cycles become one cycle. Squares are taken in a fixed random order
until every 2-factor is one cycle; after that, squares that join cycles of one 2-factor and do not
split more of the other. Tori have such decompositions: A. Kotzig, "Every Cartesian product of two
circuits is decomposable into two Hamiltonian circuits", 1973; M. F. Foregger, "Hamiltonian
decompositions of products of cycles", Discrete Mathematics 24, 1978, of three.

Along a line, copies of these cycles are spliced end to end. A grid of lines alone has one cycle if
some extent is even: there and back, column by column.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

import attrs
import numpy as np

from ncc_runtime.topology.fabric import Axis
from ncc_runtime.topology.graph import Topology

BUDGET = 20_000
"""Steps of a search before it settles for what it has found (a guess)."""

SEARCHED = 32
"""On a grid, groups of more chips construct cycles before they search (a guess)."""

Cycle = tuple[int, ...]
"""Chips in the order of the links; the last has a link to the first."""

Edges = frozenset[tuple[int, int]]
"""Links as (source, target)."""

LinkCounts = Counter[tuple[int, int]]
"""How many links lead from one chip to another; a trunk counts each of its parallel links."""


def disjoint_cycles(
    topology: Topology, chips: Sequence[int], least_rate: int = 0
) -> tuple[Cycle, ...]:
    """Disjoint cycles, as many as are found, each beginning with the first of the chips.

    Chips are numbered through all instances. A cycle is followed by its reverse where the links go
    both ways. Of parallel links each may be in a cycle. Links slower than `least_rate`, in bytes a
    second, are left out. One chip is a cycle without links; () if there is none.
    """
    group = tuple(chips)
    if len(group) == 1:
        return (group,)
    counts = _links_inside(topology, group, least_rate)
    if not _round_a_tree(frozenset(counts), group, group[0]):
        return ()
    most = min(sum(counts[edge] for edge in counts if edge[0] == chip) for chip in group)
    searched = functools.partial(_searched_cycles, frozenset(counts), group)
    constructed = functools.partial(_constructed_cycles, topology.axes, counts, group)
    best: tuple[Cycle, ...] = ()
    in_turn = (searched, constructed) if len(group) <= SEARCHED else (constructed, searched)
    for cycles_of in in_turn:
        if len(best) < most:
            best = max(best, cycles_of(), key=len)
    return best


def link_rates(topology: Topology, chips: Sequence[int]) -> dict[tuple[int, int], int]:
    """By source and target, bytes a second of the slowest link between chips that is up."""
    links, rows = topology.links, _rows_inside(topology, chips)
    columns = (links.src[rows], links.dst[rows], links.bandwidth_bytes_per_s[rows])
    rates: dict[tuple[int, int], int] = {}
    for source, target, rate in zip(*(column.tolist() for column in columns), strict=True):
        rates[source, target] = min(rate, rates.get((source, target), rate))
    return rates


def _rows_inside(topology: Topology, chips: Sequence[int]) -> np.ndarray:
    links = topology.links
    largest = max(links.src.max(initial=0), links.dst.max(initial=0), *chips)
    inside = np.zeros(int(largest) + 1, bool)
    inside[list(chips)] = True
    return np.flatnonzero(~links.is_down & inside[links.src] & inside[links.dst])


def _links_inside(topology: Topology, chips: tuple[int, ...], least_rate: int) -> LinkCounts:
    """The links between chips that are up, without the slower ones."""
    links, rows = topology.links, _rows_inside(topology, chips)
    rows = rows[links.bandwidth_bytes_per_s[rows] >= least_rate]
    ends = zip(links.src[rows].tolist(), links.dst[rows].tolist(), strict=True)
    return Counter(dict(zip(ends, links.parallel_links[rows].tolist(), strict=True)))


Walk = tuple[int, ...]
"""Chips in the order of visits, each joined to the next by a link, and the last to the first."""


def closed_walk(topology: Topology, chips: Sequence[int], least_rate: int = 0) -> Walk:
    """A walk that visits every chip and takes a link once each way at most; () if there is none.

    Chips are numbered through all instances. The walk goes there and back over links that are up
    both ways: along a path through all chips if one is found, so that it visits the ends once and
    the others twice, else round a spanning tree (a depth-first search by Warnsdorff's rule). Links
    slower than `least_rate` are left out.
    """
    group = tuple(chips)
    counts = _links_inside(topology, group, least_rate)
    return _walk(frozenset(edge for edge in counts if edge[::-1] in counts), group)


@lru_cache(maxsize=256)
def _walk(edges: Edges, chips: tuple[int, ...]) -> Walk:
    degree = Counter(src for src, _ in edges)
    starts = sorted(chips, key=degree.__getitem__)  # a path of a line begins at an end
    round_a_tree = _round_a_tree(edges, chips, starts[0])
    steps = [BUDGET]
    for start in starts if round_a_tree else ():  # else links do not join the chips
        path = next(_paths(edges, (start, *chips), steps, greedy=True), ())
        if path:
            return path + path[-2:0:-1]
    return round_a_tree


def _round_a_tree(edges: Edges, chips: tuple[int, ...], start: int) -> Walk:
    after = _neighbours(edges, chips)
    path, visited, walk = [start], {start}, [start]
    while path:
        left = [dst for dst in after[path[-1]] if dst not in visited]
        if left:
            path.append(min(left, key=lambda dst: sum(far not in visited for far in after[dst])))
            visited.add(path[-1])
        else:
            path.pop()
        walk += path[-1:]
    return tuple(walk[:-1]) if len(visited) == len(chips) else ()


def _constructed_cycles(
    axes: tuple[Axis, ...], counts: LinkCounts, chips: tuple[int, ...]
) -> tuple[Cycle, ...]:
    """Those of the grid that the chips fill, both ways, as far as their links are up."""
    grid = _grid_of(axes, chips)
    if grid is None:
        return ()
    rings, lines, table = grid
    cycles: list[Cycle] = []
    left = counts.copy()
    for order in grid_cycles(rings, lines):
        cycle = tuple(table[order].tolist())
        at = cycle.index(chips[0])
        cycle = cycle[at:] + cycle[:at]
        for directed in (cycle, (cycle[0], *cycle[:0:-1])):
            if all(left[edge] > 0 for edge in _edges(directed)):
                left.subtract(_edges(directed))
                cycles.append(directed)
    return tuple(cycles)


Grid = tuple[tuple[int, ...], tuple[int, ...], np.ndarray]
"""Extents of rings and of lines, and the chips row-major in that order of dimensions."""


def _grid_of(axes: tuple[Axis, ...], chips: tuple[int, ...]) -> Grid | None:
    """The grid that chips of one instance fill; None if they do not."""
    per_node = math.prod(axis.extent for axis in axes)
    group = np.array(chips, np.int64)
    if not axes or len(np.unique(group // per_node)) > 1:
        return None
    dimensions = []
    for axis in axes:
        places = _places(axis, group % per_node)
        if places is None:
            return None
        closes = axis.wraps and len(places) == axis.extent  # a ring of chips along the axis
        dimensions.append((not closes, -len(places), axis, places))
    if math.prod(len(places) for *_, places in dimensions) != len(chips):
        return None
    dimensions.sort(key=lambda dimension: dimension[:2])  # rings before lines, the longest first
    table = np.array(chips[0] // per_node * per_node)
    for _, _, axis, places in dimensions:
        table = np.add.outer(table, places * axis.stride)
    rings, lines = (
        tuple(len(places) for line, _, _, places in dimensions if line is is_line)
        for is_line in (False, True)
    )
    return rings, lines, table.ravel()


def _places(axis: Axis, chips: np.ndarray) -> np.ndarray | None:
    """Places along an axis that chips take, each beside the one before; None if they are apart."""
    there = np.unique(chips // axis.stride % axis.extent)
    apart = np.flatnonzero(np.diff(there) != 1)
    if len(apart) == 1 and axis.wraps and there[0] == 0 and there[-1] == axis.extent - 1:
        return np.roll(there, -int(apart[0]) - 1)
    return None if len(apart) else there


@lru_cache(maxsize=256)
def _searched_cycles(edges: Edges, chips: tuple[int, ...]) -> tuple[Cycle, ...]:
    return _searched(edges, chips, greedy=False) or _searched(edges, chips, greedy=True)


def _searched(edges: Edges, chips: tuple[int, ...], *, greedy: bool) -> tuple[Cycle, ...]:
    best: tuple[Cycle, ...] = ()
    steps = [BUDGET]
    for cycle in _cycles(edges, chips, steps, greedy=greedy):
        pair = _with_reverse(cycle, edges)
        left = edges - {edge for directed in pair for edge in _edges(directed)}
        others = _cycles(left, chips, steps, greedy=greedy)
        disjoint = pair + next((_with_reverse(other, left) for other in others), ())
        if len(disjoint) > len(best):
            best = disjoint
        if len(best) * len(chips) >= len(edges) or len(best) >= 4 or steps[0] <= 0:
            break
    return best


def _edges(cycle: Cycle) -> Iterator[tuple[int, int]]:
    return zip(cycle, cycle[1:] + cycle[:1], strict=True)


def _with_reverse(cycle: Cycle, edges: Edges) -> tuple[Cycle, ...]:
    back = (cycle[0], *cycle[:0:-1])
    return (cycle, back) if back != cycle and edges.issuperset(_edges(back)) else (cycle,)


def _cycles(
    edges: Edges, chips: tuple[int, ...], steps: list[int], *, greedy: bool
) -> Iterator[Cycle]:
    """Hamiltonian cycles in the order of chips, or greedily; stops when `steps` has run out."""
    for path in _paths(edges, chips, steps, greedy=greedy):
        if (path[-1], path[0]) in edges:
            yield path


def _neighbours(edges: Edges, chips: Sequence[int]) -> dict[int, list[int]]:
    after: dict[int, list[int]] = {chip: [] for chip in chips}
    for src, dst in sorted(edges):
        after[src].append(dst)
    return after


def _paths(
    edges: Edges, chips: tuple[int, ...], steps: list[int], *, greedy: bool
) -> Iterator[Cycle]:
    """Hamiltonian paths from the first of the chips, which are searched as cycles are."""
    after = _neighbours(edges, chips)
    path, visited = [chips[0]], {chips[0]}

    def neighbours(chip: int) -> Iterator[int]:
        if not greedy:
            return iter(after[chip])
        left = {dst: sum(far not in visited for far in after[dst]) for dst in after[chip]}
        return iter(sorted(after[chip], key=left.__getitem__))

    choices = [neighbours(chips[0])]
    while choices and steps[0] > 0:
        steps[0] -= 1
        chip = next((dst for dst in choices[-1] if dst not in visited), None)
        if chip is None:
            choices.pop()
            visited.discard(path.pop())
            continue
        path.append(chip)
        visited.add(chip)
        choices.append(neighbours(chip))
        if len(path) == len(after):
            yield tuple(path)


# Cycles of grids, which are constructed.

MOST_SQUARES = 400
"""Exchanges that join cycles of one 2-factor only, before the search gives up (a guess)."""

ATTEMPTS = 6
"""Random orders tried on a torus of up to SMALL places; two on a larger one (guesses)."""

SMALL = 64

Edge = tuple[int, int]
"""The dimension of a link, and the place from which it goes up."""

Square = tuple[Edge, Edge, Edge, Edge]
"""Opposite sides after each other."""

Order = list[int]
"""Places of a grid, row-major, in the order of an undirected cycle."""


@lru_cache(maxsize=64)
def grid_cycles(rings: tuple[int, ...], lines: tuple[int, ...]) -> list[Order]:
    """Undirected cycles through the places of a grid: first its rings' dimensions, then lines'.

    Rings of two, which have both links between their places, come after longer ones. Extents of 1
    do not count.
    """
    rings, lines = (tuple(e for e in extents if e > 1) for extents in (rings, lines))
    if not rings:
        return _of_lines(lines)
    cycles = _of_rings(rings)
    for extent in lines:
        cycles = _stacked(cycles, extent)
    return cycles


def _of_rings(dims: tuple[int, ...]) -> list[Order]:
    if len(dims) == 1:
        return [list(range(dims[0]))]
    if len(dims) == 2 and dims[1] == 2 and dims[0] % 2 == 0:
        # round both rings of the even extent at once, across either link of each pair in turn
        return [
            [
                2 * place + side
                for place in range(dims[0])
                for side in ((begin + place) % 2, (begin + place + 1) % 2)
            ]
            for begin in range(2)
        ]
    best: list[Order] = []
    for attempt in range(ATTEMPTS if math.prod(dims) <= SMALL else 2):
        best = max(best, _TwoFactors.of(dims, attempt).cycles(), key=len)
        if len(best) == len(dims):
            return best
    spliced = _stacked(_of_rings(dims[:-1]), 2) if dims[-1] == 2 else []
    return max(best, spliced, key=len)


@attrs.define(eq=False)
class _TwoFactors:
    """Which 2-factor every link of a torus belongs to; a place has two links of each."""

    up: list[list[int]]  # [dimension][place]: the next place up
    down: list[list[int]]
    squares: list[Square]  # in random order
    owner: list[list[int]]  # [dimension][place]: the 2-factor of the link up
    labels: list[list[int]] = attrs.field(factory=list)  # [2-factor][place]: its cycle
    counts: list[int] = attrs.field(factory=list)  # by 2-factor, its cycles

    @classmethod
    def of(cls, dims: tuple[int, ...], attempt: int) -> "_TwoFactors":
        """Every dimension as a 2-factor of its own."""
        table = np.arange(math.prod(dims)).reshape(dims)
        axes = range(len(dims))
        up, down = ([np.roll(table, s, a).ravel().tolist() for a in axes] for s in (-1, 1))
        squares = list(_squares(dims, up))
        order = np.random.default_rng(attempt).permutation(len(squares)).tolist()
        owner = [[axis] * table.size for axis in axes]
        return cls(up, down, [squares[k] for k in order], owner)

    def cycles(self) -> list[Order]:
        """The 2-factors that have become one cycle each."""
        self.labels, self.counts = [[] for _ in self.up], [0] * len(self.up)
        self._label(range(len(self.up)))
        self._join()
        self._improve()
        return [self._walk(factor, 0) for factor, count in enumerate(self.counts) if count == 1]

    def _join(self) -> None:
        """Exchange where that joins cycles of both; a union-find tracks merged cycles."""
        parents = [list(range(count)) for count in self.counts]
        for square in self.squares:
            factors = self._sides(square)
            if factors is None:
                continue
            pairs = [
                [_root(parents[k], self.labels[k][end]) for end in self._ends(square, side)]
                for side, k in enumerate(factors)
            ]
            if all(here != there for here, there in pairs):
                self._exchange(square, factors)
                for factor, (here, there) in zip(factors, pairs, strict=True):
                    parents[factor][here] = there
        self._label(range(len(self.up)))

    def _improve(self) -> None:
        """Exchange where that joins cycles of one 2-factor; undo what leaves more cycles in all."""
        if max(self.counts) == 1:
            return
        exchanged = 0
        for square in itertools.islice(itertools.cycle(self.squares), 40 * MOST_SQUARES):
            factors = self._sides(square)
            if factors is None or not self._joins_cycles(square, factors):
                continue
            before = self.labels[:], self.counts[:]
            self._exchange(square, factors)
            self._label(factors)
            if sum(self.counts) > sum(before[1]):
                self._exchange(square, factors[::-1])
                self.labels, self.counts = before
            exchanged += 1
            if max(self.counts) == 1 or exchanged == MOST_SQUARES:
                return

    def _sides(self, square: Square) -> tuple[int, int] | None:
        """The two 2-factors that have opposite sides of a square each, or None."""
        left, right, top, bottom = (self.owner[axis][place] for axis, place in square)
        return (left, top) if left == right != top == bottom else None

    def _ends(self, square: Square, side: int) -> tuple[int, int]:
        """A place on each of two opposite sides."""
        return square[2 * side][1], square[2 * side + 1][1]

    def _joins_cycles(self, square: Square, factors: tuple[int, int]) -> bool:
        """Whether opposite sides of the square are in different cycles of a 2-factor."""
        for side, factor in enumerate(factors):
            here, there = self._ends(square, side)
            if self.labels[factor][here] != self.labels[factor][there]:
                return True
        return False

    def _exchange(self, square: Square, factors: tuple[int, int]) -> None:
        for number, (axis, place) in enumerate(square):
            self.owner[axis][place] = factors[1 - number // 2]

    def _label(self, factors: Sequence[int]) -> None:
        """Number the cycles of some 2-factors anew."""
        for factor in factors:
            label, count = [-1] * len(self.up[0]), 0
            for start in range(len(label)):
                if label[start] < 0:
                    for place in self._walk(factor, start):
                        label[place] = count
                    count += 1
            self.labels[factor], self.counts[factor] = label, count

    def _walk(self, factor: int, start: int) -> Order:
        """The cycle of a 2-factor through a place."""
        order, place, last = [start], start, (-1, -1)
        while True:
            last, place = self._next(factor, place, last)
            if place == start:
                return order
            order.append(place)

    def _next(self, factor: int, place: int, last: Edge) -> tuple[Edge, int]:
        """The other link of a place than the last, and where it leads."""
        for axis, owner in enumerate(self.owner):
            below = self.down[axis][place]
            if owner[place] == factor and (axis, place) != last:
                return (axis, place), self.up[axis][place]
            if owner[below] == factor and (axis, below) != last:
                return (axis, below), below
        raise AssertionError(f"place {place} has no second link of 2-factor {factor}")


def _root(parents: list[int], label: int) -> int:
    while parents[label] != label:
        parents[label] = parents[parents[label]]
        label = parents[label]
    return label


def _squares(dims: Sequence[int], up: Sequence[Sequence[int]]) -> Iterator[Square]:
    """All squares of links; on a ring of two with either link on each side."""
    for first, second in itertools.combinations(range(len(dims)), 2):
        for place in range(len(up[0])):
            across, along = up[second][place], up[first][place]
            sides = (
                _links(dims, up, first, place),
                _links(dims, up, first, across),
                _links(dims, up, second, place),
                _links(dims, up, second, along),
            )
            yield from itertools.product(*sides)


def _links(dims: Sequence[int], up: Sequence[Sequence[int]], axis: int, place: int) -> list[Edge]:
    """The links between a place and the next one up."""
    both = [(axis, place), (axis, up[axis][place])]
    return both if dims[axis] == 2 else both[:1]


def _stacked(cycles: Sequence[Order], extent: int) -> list[Order]:
    """Every cycle extended through copies of the grid along a line, as far as links are free.

    Between two copies a cycle drops one of its links in each and takes two along the line, which no
    other cycle may take; places are then row-major with the line as the last dimension.
    """
    through_copies = [[place * extent for place in cycle] for cycle in cycles]
    for copy in range(1, extent):
        used: set[int] = set()  # places whose link along the line is used up
        spliced = []
        for cycle, so_far in zip(cycles, through_copies, strict=False):
            at = _splice_point(so_far, copy - 1, extent, used)
            if at is None:
                continue
            ends = [so_far[at], so_far[(at + 1) % len(so_far)]]
            used.update(ends)
            begin, end = (place // extent for place in ends)
            # the whole cycle in the next copy, cut at the same link and entered at its begin
            at_begin = cycle.index(begin)
            path = cycle[at_begin:] + cycle[:at_begin]
            if path[-1] != end:
                path = [begin, *path[:0:-1]]
            inner = [place * extent + copy for place in path]
            spliced.append((cycle, so_far[: at + 1] + inner + so_far[at + 1 :]))
        cycles = [cycle for cycle, _ in spliced]
        through_copies = [so_far for _, so_far in spliced]
    return through_copies


def _splice_point(cycle: Order, copy: int, extent: int, used: set[int]) -> int | None:
    """The first link of a cycle inside of a copy whose ends have free links to the next copy."""
    for at, place in enumerate(cycle):
        after = cycle[(at + 1) % len(cycle)]
        inside = place % extent == copy == after % extent
        if inside and place not in used and after not in used:
            return at
    return None


def _of_lines(dims: Sequence[int]) -> list[Order]:
    """One cycle through a grid of lines, () if all extents are odd or there is one line.

    The other dimensions are one path, of which an even dimension has that many copies, its columns:
    up and down them, then back along their first places.
    """
    even = next((axis for axis, extent in enumerate(dims) if extent % 2 == 0), None)
    if even is None or len(dims) < 2:
        return []
    table = np.moveaxis(np.arange(math.prod(dims)).reshape(dims), even, -1)
    path = _winding(table.shape[:-1])
    columns = [[int(table[(*place, k)]) for place in path] for k in range(dims[even])]
    order = [columns[0][0]]
    for number, column in enumerate(columns):
        order += column[1:] if number % 2 == 0 else column[:0:-1]
    return [order + [column[0] for column in columns[:0:-1]]]


def _winding(dims: Sequence[int]) -> list[tuple[int, ...]]:
    """All places of a grid, each beside the one before (boustrophedon)."""
    paths: list[tuple[int, ...]] = [()]
    for extent in reversed(dims):
        paths = [
            (first, *rest)
            for first in range(extent)
            for rest in (paths if first % 2 == 0 else paths[::-1])
        ]
    return paths
