"""Directed cycles through all of some chips over links that no two of the cycles share.

A ring algorithm sends along such a cycle, and one ring per cycle uses every link once. On a grid of
rings and lines they are made (grid_cycles.py). Elsewhere, and on small grids or where links are
down, they are searched by depth first with a budget, first in the order of chips, then, if that
finds none, where the fewest ways lead on (Warnsdorff). A group without a cycle is an answer too.

Hamiltonian cycles of grids of rings and lines that share no link, made and not searched.

A torus of d rings is d sets of cycles, one along each dimension, that together have every link. On
a square of links whose opposite sides belong to one set each, the two sets may change sides; that
joins cycles where the two sides of a set were of different ones. Squares are taken in a fixed
scramble until every set is one cycle; what is left then is changed a square at a time, as long as
there is no more of it. Tori have so many cycles: A. Kotzig, "Every Cartesian product of two
circuits is decomposable into two Hamiltonian circuits", 1973; M. F. Foregger, "Hamiltonian
decompositions of products of cycles", Discrete Mathematics 24, 1978, of three.

Along a line, copies of these cycles are spliced end to end. A grid of lines alone has one cycle if
some extent is even: there and back, column by column.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

import attrs
import numpy as np

from ncc_runtime.topology.fabric import Axis, Links
from ncc_runtime.topology.graph import Topology

MOST_SQUARES = 400
"""Squares that are changed one by one before what is found is enough."""

ATTEMPTS = 6
"""Scrambles that are tried of a torus of up to SMALL places, two of a larger one."""

SMALL = 64

Edge = tuple[int, int]
"""The dimension of a link, and the place from which it goes up."""

Square = tuple[Edge, Edge, Edge, Edge]
"""Opposite sides after each other."""

Order = list[int]
"""Places of a grid, row-major, in the order of an undirected cycle."""


def grid_cycles(rings: Sequence[int], lines: Sequence[int]) -> list[Order]:
    """Undirected cycles through the places of a grid: first its rings' dimensions, then lines'.

    Rings of two, which have both links between their places, come after longer ones. Extents of 1
    do not count.
    """
    rings, lines = ([one for one in extents if one > 1] for extents in (rings, lines))
    if not rings:
        return _of_lines(lines)
    cycles = _of_rings(tuple(rings))
    for extent in lines:
        cycles = _stacked(cycles, extent)
    return cycles


def _of_rings(dims: tuple[int, ...]) -> list[Order]:
    if len(dims) == 1:
        return [list(range(dims[0]))]
    if len(dims) == 2 and dims[1] == 2 and dims[0] % 2 == 0:
        return [_zigzag(dims[0], begin) for begin in range(2)]
    best: list[Order] = []
    for attempt in range(ATTEMPTS if math.prod(dims) <= SMALL else 2):
        best = max(best, _Sets.of(dims, attempt).cycles(), key=len)
        if len(best) == len(dims):
            return best
    spliced = _stacked(_of_rings(dims[:-1]), 2) if dims[-1] == 2 else []
    return max(best, spliced, key=len)


def _zigzag(extent: int, begin: int) -> Order:
    """Round two rings of an even extent, across both links of every pair but one in turn."""
    sides = [(begin + place) % 2 for place in range(extent)]
    return [2 * place + side for place, one in enumerate(sides) for side in (one, 1 - one)]


@attrs.define(eq=False)
class _Sets:
    """Which set every link of a torus belongs to; a place has two links of every set."""

    up: list[list[int]]  # [dimension][place]: the next place up
    down: list[list[int]]
    squares: list[Square]  # scrambled
    owner: list[list[int]]  # [dimension][place]: the set of the link up
    labels: list[list[int]] = attrs.field(factory=list)  # [set][place]: its cycle
    counts: list[int] = attrs.field(factory=list)  # cycles by set

    @classmethod
    def of(cls, dims: tuple[int, ...], attempt: int) -> "_Sets":
        """Every dimension as a set of its own."""
        table = np.arange(math.prod(dims)).reshape(dims)
        axes = range(len(dims))
        up, down = ([np.roll(table, s, a).ravel().tolist() for a in axes] for s in (-1, 1))
        squares = list(_squares(dims, up))
        order = np.random.default_rng(attempt).permutation(len(squares)).tolist()
        owner = [[axis] * table.size for axis in axes]
        return cls(up, down, [squares[k] for k in order], owner)

    def cycles(self) -> list[Order]:
        """The sets that have become one cycle each."""
        self._label(range(len(self.up)))
        self._join()
        self._change()
        return [self._walk(one, 0) for one, count in enumerate(self.counts) if count == 1]

    def _join(self) -> None:
        """Change sides where that joins cycles of both sets; labels are merged as it goes."""
        parents = [list(range(count)) for count in self.counts]
        for square in self.squares:
            sets = self._sides(square)
            if sets is None:
                continue
            pairs = [
                [_root(parents[one], self.labels[one][end]) for end in self._ends(square, side)]
                for side, one in enumerate(sets)
            ]
            if all(here != there for here, there in pairs):
                self._exchange(square, sets)
                for one, (here, there) in zip(sets, pairs, strict=True):
                    parents[one][here] = there
        self._label(range(len(self.up)))

    def _change(self) -> None:
        """Change sides where that joins cycles of one set and leaves no more in all."""
        if max(self.counts) == 1:
            return
        changed = 0
        for square in itertools.islice(itertools.cycle(self.squares), 40 * MOST_SQUARES):
            sets = self._sides(square)
            if sets is None or not self._joins(square, sets):
                continue
            before = self.labels[:], self.counts[:]
            self._exchange(square, sets)
            self._label(sets)
            if sum(self.counts) > sum(before[1]):
                self._exchange(square, sets[::-1])
                self.labels, self.counts = before
            changed += 1
            if max(self.counts) == 1 or changed == MOST_SQUARES:
                return

    def _sides(self, square: Square) -> tuple[int, int] | None:
        """The two sets whose opposite sides a square has, or None."""
        one, two, three, four = (self.owner[axis][place] for axis, place in square)
        return (one, three) if one == two != three == four else None

    def _ends(self, square: Square, side: int) -> tuple[int, int]:
        """A place on each of two opposite sides."""
        return square[2 * side][1], square[2 * side + 1][1]

    def _joins(self, square: Square, sets: tuple[int, int]) -> bool:
        """Whether the opposite sides of one of its sets are of different cycles."""
        for side, one in enumerate(sets):
            here, there = self._ends(square, side)
            if self.labels[one][here] != self.labels[one][there]:
                return True
        return False

    def _exchange(self, square: Square, sets: tuple[int, int]) -> None:
        for number, (axis, place) in enumerate(square):
            self.owner[axis][place] = sets[1 - number // 2]

    def _label(self, sets: Sequence[int]) -> None:
        """Number the cycles of some sets anew."""
        if not self.labels:
            self.labels, self.counts = [[] for _ in self.up], [0] * len(self.up)
        for one in sets:
            self.labels[one], self.counts[one] = self._cycles(one)

    def _cycles(self, one: int) -> tuple[list[int], int]:
        """By place, the number of its cycle in a set; and how many there are."""
        label, count = [-1] * len(self.up[0]), 0
        for start in range(len(label)):
            if label[start] >= 0:
                continue
            for place in self._walk(one, start):
                label[place] = count
            count += 1
        return label, count

    def _walk(self, one: int, start: int) -> Order:
        """The cycle of a set through a place."""
        order, place, came = [start], start, (-1, -1)
        while True:
            came, place = self._onward(one, place, came)
            if place == start:
                return order
            order.append(place)

    def _onward(self, one: int, place: int, came: Edge) -> tuple[Edge, int]:
        for axis, owner in enumerate(self.owner):
            below = self.down[axis][place]
            if owner[place] == one and (axis, place) != came:
                return (axis, place), self.up[axis][place]
            if owner[below] == one and (axis, below) != came:
                return (axis, below), below
        raise AssertionError(f"place {place} has no second link of set {one}")


def _root(parents: list[int], label: int) -> int:
    while parents[label] != label:
        parents[label] = parents[parents[label]]
        label = parents[label]
    return label


def _squares(dims: Sequence[int], up: Sequence[Sequence[int]]) -> Iterator[Square]:
    """All squares of links; on a ring of two with either link on each side."""
    for one, two in itertools.combinations(range(len(dims)), 2):
        for place in range(len(up[0])):
            across, along = up[two][place], up[one][place]
            sides = (
                _links(dims, up, one, place),
                _links(dims, up, one, across),
                _links(dims, up, two, place),
                _links(dims, up, two, along),
            )
            yield from itertools.product(*sides)


def _links(dims: Sequence[int], up: Sequence[Sequence[int]], axis: int, place: int) -> list[Edge]:
    """The links between a place and the next one up."""
    both = [(axis, place), (axis, up[axis][place])]
    return both if dims[axis] == 2 else both[:1]


def _stacked(cycles: Sequence[Order], extent: int) -> list[Order]:
    """Every cycle through copies of the grid along a line; links along it are each one cycle's.

    Between two copies a cycle leaves one of its links in each and takes two along the line; places
    are then row-major with the line as the last dimension.
    """
    found = [[place * extent for place in cycle] for cycle in cycles]
    for copy in range(1, extent):
        taken: set[int] = set()  # places whose link along the line is used up
        spliced = []
        for cycle, whole in zip(cycles, found, strict=False):
            at = _gap(whole, copy - 1, extent, taken)
            if at is None:
                continue
            ends = [whole[at], whole[(at + 1) % len(whole)]]
            taken.update(ends)
            begin, end = (place // extent for place in ends)
            inner = [place * extent + copy for place in _between(cycle, begin, end)]
            spliced.append((cycle, whole[: at + 1] + inner + whole[at + 1 :]))
        cycles, found = [one for one, _ in spliced], [one for _, one in spliced]
    return found


def _gap(whole: Order, copy: int, extent: int, taken: set[int]) -> int | None:
    """Where in a cycle two neighbours of a copy follow each other whose links up are free."""
    for at, place in enumerate(whole):
        after = whole[(at + 1) % len(whole)]
        inside = place % extent == copy == after % extent
        if inside and place not in taken and after not in taken:
            return at
    return None


def _between(cycle: Order, begin: int, end: int) -> Order:
    """All of a cycle from one of two neighbours round to the other."""
    at = cycle.index(begin)
    turned = cycle[at:] + cycle[:at]
    return turned if turned[-1] == end else [begin, *turned[:0:-1]]


def _of_lines(dims: Sequence[int]) -> list[Order]:
    """There and back by columns of an even number; the other dimensions as one winding path."""
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
    """All places of a grid, each beside the one before."""
    paths: list[tuple[int, ...]] = [()]
    for extent in reversed(dims):
        turns = (paths if first % 2 == 0 else paths[::-1] for first in range(extent))
        paths = [(first, *rest) for first, turn in enumerate(turns) for rest in turn]
    return paths


BUDGET = 20_000
"""Steps of a search before it settles for what it has found."""

SEARCHED = 32
"""Of a group of more chips on a grid, cycles are made before they are searched."""

Cycle = tuple[int, ...]
"""Chips in the order of the links; the last has a link to the first."""

Edges = frozenset[tuple[int, int]]
"""Links as (source, target)."""

Strands = Counter[tuple[int, int]]
"""How many links carry from one chip to another, those of a trunk one by one."""


def disjoint_cycles(topology: Topology, chips: Sequence[int]) -> tuple[Cycle, ...]:
    """As many cycles as are found, each beginning with the first of the chips.

    A cycle is followed by its reverse where the links go both ways. Of the links of a trunk each
    may be in a cycle. One chip is a cycle without links, of no cycle at all () is returned.
    """
    links, group = topology.links, tuple(chips)
    if len(group) == 1:
        return (group,)
    strands = _strands(links, group)
    most = min(sum(strands[edge] for edge in strands if edge[0] == chip) for chip in group)
    ways = [_searched_cycles, _made_cycles]
    found: tuple[Cycle, ...] = ()
    for way in ways if len(group) <= SEARCHED else ways[::-1]:
        if len(found) < most:
            found = max(found, way(topology.axes, strands, group), key=len)
    return found


def _strands(links: Links, chips: tuple[int, ...]) -> Strands:
    last = max(links.src.max(initial=0), links.dst.max(initial=0), *chips)
    wanted = np.zeros(int(last) + 1, bool)
    wanted[list(chips)] = True
    inside = np.flatnonzero(~links.is_down & wanted[links.src] & wanted[links.dst])
    ends = zip(links.src[inside].tolist(), links.dst[inside].tolist(), strict=True)
    return Counter(dict(zip(ends, links.parallel_links[inside].tolist(), strict=True)))


def _made_cycles(
    axes: tuple[Axis, ...], strands: Strands, chips: tuple[int, ...]
) -> tuple[Cycle, ...]:
    """Those of the grid that the chips fill, both ways, as far as their links are up."""
    grid = _grid_of(axes, chips)
    if grid is None:
        return ()
    rings, lines, table = grid
    found: list[Cycle] = []
    left = strands.copy()
    for order in _of_grid(rings, lines):
        cycle = _turned(tuple(table[order].tolist()), chips[0])
        for one in (cycle, (cycle[0], *cycle[:0:-1])):
            if all(left[edge] > 0 for edge in _edges(one)):
                left.subtract(_edges(one))
                found.append(one)
    return tuple(found)


_of_grid = lru_cache(maxsize=64)(grid_cycles)


Grid = tuple[tuple[int, ...], tuple[int, ...], np.ndarray]
"""Extents of rings and of lines, and the chips row-major in that order of dimensions."""


def _grid_of(axes: tuple[Axis, ...], chips: tuple[int, ...]) -> Grid | None:
    """The grid that chips of one instance fill; None if they do not."""
    per_node = math.prod(axis.extent for axis in axes)
    group = np.array(chips, np.int64)
    if not axes or len(np.unique(group // per_node)) > 1:
        return None
    found = [_places(axis, group % per_node) for axis in axes]
    if any(one is None for one in found):
        return None
    spans = [(axis, one) for axis, one in zip(axes, found, strict=True) if one is not None]
    if math.prod(len(places) for _, places in spans) != len(chips):
        return None
    spans.sort(key=lambda span: (not _closes(*span), -len(span[1])))
    table = np.array(chips[0] // per_node * per_node)
    for axis, places in spans:
        table = np.add.outer(table, places * axis.stride)
    rings, lines = (
        tuple(len(span[1]) for span in spans if _closes(*span) is closes)
        for closes in (True, False)
    )
    return rings, lines, table.ravel()


def _closes(axis: Axis, places: np.ndarray) -> bool:
    """Whether the chips close a ring along an axis."""
    return axis.wraps and len(places) == axis.extent


def _places(axis: Axis, chips: np.ndarray) -> np.ndarray | None:
    """Places along an axis that chips take, each beside the one before; None if they are apart."""
    there = np.unique(chips // axis.stride % axis.extent)
    apart = np.flatnonzero(np.diff(there) != 1)
    if len(apart) == 1 and axis.wraps and there[0] == 0 and there[-1] == axis.extent - 1:
        return np.roll(there, -int(apart[0]) - 1)
    return None if len(apart) else there


def _turned(cycle: Cycle, first: int) -> Cycle:
    at = cycle.index(first)
    return cycle[at:] + cycle[:at]


def _searched_cycles(
    _: tuple[Axis, ...], strands: Strands, chips: tuple[int, ...]
) -> tuple[Cycle, ...]:
    return _disjoint_cycles(frozenset(strands), chips)


@lru_cache(maxsize=256)
def _disjoint_cycles(edges: Edges, chips: tuple[int, ...]) -> tuple[Cycle, ...]:
    return _searched(edges, chips, greedy=False) or _searched(edges, chips, greedy=True)


def _searched(edges: Edges, chips: tuple[int, ...], *, greedy: bool) -> tuple[Cycle, ...]:
    best: tuple[Cycle, ...] = ()
    steps = [BUDGET]
    for cycle in _cycles(edges, chips, steps, greedy=greedy):
        taken = _both_ways(cycle, edges)
        left = edges - {edge for one in taken for edge in _edges(one)}
        others = _cycles(left, chips, steps, greedy=greedy)
        found = taken + next((_both_ways(other, left) for other in others), ())
        if len(found) > len(best):
            best = found
        if len(best) * len(chips) >= len(edges) or len(best) >= 4 or steps[0] <= 0:
            break
    return best


def _edges(cycle: Cycle) -> Iterator[tuple[int, int]]:
    return zip(cycle, cycle[1:] + cycle[:1], strict=True)


def _both_ways(cycle: Cycle, edges: Edges) -> tuple[Cycle, ...]:
    back = (cycle[0], *cycle[:0:-1])
    return (cycle, back) if back != cycle and edges.issuperset(_edges(back)) else (cycle,)


def _cycles(
    edges: Edges, chips: tuple[int, ...], steps: list[int], *, greedy: bool
) -> Iterator[Cycle]:
    """Hamiltonian cycles in the order of chips, or greedily; stops when `steps` has run out."""
    after: dict[int, list[int]] = {chip: [] for chip in chips}
    for src, dst in sorted(edges):
        after[src].append(dst)
    path, seen = [chips[0]], {chips[0]}

    def onward(chip: int) -> Iterator[int]:
        if not greedy:
            return iter(after[chip])
        left = {one: sum(far not in seen for far in after[one]) for one in after[chip]}
        return iter(sorted(after[chip], key=left.__getitem__))

    choices = [onward(chips[0])]
    while choices and steps[0] > 0:
        steps[0] -= 1
        chip = next((one for one in choices[-1] if one not in seen), None)
        if chip is None:
            choices.pop()
            seen.discard(path.pop())
            continue
        path.append(chip)
        seen.add(chip)
        choices.append(onward(chip))
        if len(path) == len(chips) and (chip, chips[0]) in edges:
            yield tuple(path)
