"""The links of a fabric, built level by level: of one instance, then of all instances.

Nodes are the chips 0..n-1, then switches. A level joins `size` units, each all that the levels
below hold: the chips at one place of all units, or all chips, or the units' switches. A link has
the latency of its level, and of the switch that it leaves. A switch whose ports carry more than it
can switch (oversubscription) is two nodes with a link between. Fabrics of tori, rings and lines
alone also have axes, as a grid of chips.

    name   ports of a chip
    torus  N W S E, and D U of a third dimension; of an outer level its name before the letter
    ring   W E, of an outer level its name and - or +
    full   p0, p1, … in the order of targets, of a graph in that of its pairs
    switch the name of the level; a switch's own are p0, p1, … down and the name of a level up

Parallel links between the same two ends are one trunk (link aggregation) of their summed rate. A
torus of an extent of 2 has them, since it wraps onto the neighbour that is there already, and a
graph may list a pair more than once. A copy is dealt evenly over the links of a trunk (assumed):
its DMA engines, each with its own write of the semaphore, take them in turn, so that data and its
semaphore stay on one path. Where faults leave links of different rates, the fastest are dealt to,
as many of them as carry the most.
"""

import math
from collections.abc import Iterator
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.topology.format.rows import LinkStates
from ncc_runtime.topology.format.spec import (
    BETWEEN_PORTS,
    LARGEST_LINKS,
    FabricShape,
    Joins,
    LevelKind,
    LevelRow,
    Spec,
)

AXIS_PORTS = (("W", "E"), ("N", "S"), ("D", "U"))
"""Ports down and up the dimensions of a torus, its last dimension first."""


@attrs.frozen
class Level:
    """A level with its figures."""

    name: str  # "" for the wiring by fabric.shape
    kind: LevelKind
    joins: Joins
    dims: tuple[int, ...]  # of a torus; else its size
    bandwidth_bytes_per_s: tuple[int, ...]  # by dimension; of up-links 0 until it is known
    latency_ps: tuple[int, ...]  # by dimension
    pairs: tuple[tuple[int, int], ...] = ()
    oversubscription: float = 1

    @property
    def size(self) -> int:
        """Units that it joins."""
        return math.prod(self.dims)

    @property
    def is_grid(self) -> bool:
        return self.kind in (LevelKind.TORUS, LevelKind.RING, LevelKind.LINE) and (
            self.joins is not Joins.SWITCHES
        )


@attrs.frozen
class Axis:
    """One dimension of a grid of chips."""

    extent: int
    stride: int  # between chips that are one step apart
    wraps: bool
    down: str  # the port towards lower coordinates
    up: str


SwitchName: TypeAlias = tuple[int, str]
"""The number of a switch in its instance, and x for the half by which bytes leave it."""


@attrs.frozen(eq=False)
class InstanceWiring:
    """The directed links of one instance, sorted by the node they leave, then by port."""

    chips: int
    switches: tuple[SwitchName, ...]  # of nodes that are no chips, in order
    src: np.ndarray  # (n,) int32
    dst: np.ndarray  # (n,) int32
    port: tuple[str, ...]
    bandwidth_bytes_per_s: np.ndarray  # (n,) int64
    latency_ps: np.ndarray  # (n,) int64
    axes: tuple[Axis, ...]  # slowest first; () unless it is a grid of tori, rings and lines
    levels: tuple[Level, ...]  # innermost first, with all rates


def levels_of(spec: Spec) -> tuple[Level, ...]:
    """The levels of a topology, innermost first.

    Its rows of [[level]], or the one level of chips that `fabric.shape` stands for.
    """
    if spec.levels:
        return tuple(_of_row(spec, row) for row in spec.levels)
    if spec.shape is FabricShape.NONE:
        if spec.number("chips.count") != 1:
            chips = spec.number("chips.count")
            raise spec.error("fabric.shape", f"none leaves {chips} chips unconnected")
        return ()
    rate, latency = spec.number("link.bandwidth_bytes_per_s"), spec.number("link.latency_ps")
    kind = LevelKind(spec.shape.value)
    dims: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...] = ()
    if spec.shape is FabricShape.GRAPH:
        dims, pairs = (spec.number("chips.count"),), spec.pairs("fabric.links")
        _check_pairs(spec, "fabric.links", pairs, dims[0])
    else:
        dims = _checked_dims(spec)
    rates, latencies = (rate,) * len(dims), (latency,) * len(dims)
    return (Level("", kind, Joins.CHIPS, dims, rates, latencies, pairs),)


def _of_row(spec: Spec, row: LevelRow) -> Level:
    if row.kind is LevelKind.TORUS:
        dims = spec.numbers(row.key("dims"))
    else:
        dims = (spec.number(row.key("size")),)
    if len(dims) > len(AXIS_PORTS):
        raise spec.error(row.key("dims"), f"a torus has 1 to 3 extents, not {len(dims)}")
    rate = row.key("bandwidth_bytes_per_s")
    pairs: tuple[tuple[int, int], ...] = ()
    if row.kind is LevelKind.GRAPH:
        pairs = spec.pairs(row.key("links"))
        _check_pairs(spec, row.key("links"), pairs, dims[0])
    rates = spec.by_dimension(rate, len(dims)) if rate in spec.figures else (0,)
    latencies = spec.by_dimension(row.key("latency_ps"), len(dims))
    ratio = spec.ratio_or(row.key("oversubscription"), 1)
    return Level(row.name, row.kind, row.joins, dims, rates, latencies, pairs, ratio)


def _check_pairs(spec: Spec, key: str, pairs: tuple[tuple[int, int], ...], size: int) -> None:
    for pair in pairs:
        if max(pair) >= size:
            raise spec.error(key, f"chip {max(pair)} of {list(pair)} is not below {size}")


def _checked_dims(spec: Spec) -> tuple[int, ...]:
    """The extents of a torus, ring or line, which must multiply to its chips."""
    dims, chips = spec.numbers("fabric.dims"), spec.number("chips.count")
    is_torus = spec.shape is FabricShape.TORUS
    if len(dims) not in ((2, 3) if is_torus else (1,)):
        expected = "2 or 3 extents" if is_torus else "1 extent"
        raise spec.error("fabric.dims", f"a {spec.shape.value} has {expected}, not {len(dims)}")
    if math.prod(dims) != chips:
        raise spec.error("fabric.dims", f"extents {list(dims)} hold {math.prod(dims)} of {chips}")
    return dims


def wire(spec: Spec) -> InstanceWiring:
    """The links of one instance; TopologyError if some chip cannot be reached."""
    builder = _Builder(spec, spec.number("chips.count"))
    levels = levels_of(spec)
    for number, level in enumerate(levels):
        builder.add(number, level)
    return builder.wiring(_axes(levels))


def _axes(levels: tuple[Level, ...]) -> tuple[Axis, ...]:
    """The dimensions of a fabric of tori, rings and lines alone."""
    if not all(level.is_grid for level in levels):
        return ()
    axes: list[Axis] = []
    stride = 1
    for number, level in enumerate(levels):
        for dimension, extent in enumerate(reversed(level.dims)):
            ports = _axis_ports(number, level, dimension)
            axes.append(Axis(extent, stride, level.kind is not LevelKind.LINE, *ports))
            stride *= extent
    return tuple(reversed(axes))


def _axis_ports(number: int, level: Level, dimension: int) -> tuple[str, str]:
    """Down and up a dimension, the last being 0."""
    if number == 0:
        return AXIS_PORTS[dimension]
    if len(level.dims) == 1:
        return f"{level.name}-", f"{level.name}+"
    down, up = AXIS_PORTS[dimension]
    return f"{level.name}{down}", f"{level.name}{up}"


Column = np.ndarray


@attrs.define(eq=False)
class _Builder:
    """Collects links level by level."""

    spec: Spec
    chips: int
    unit: int = 1  # chips of a unit of the next level
    names: list[SwitchName] = attrs.field(factory=list)  # of switches
    switch_ps: list[int] = attrs.field(factory=list)  # latencies of switches
    ins: Column | None = None  # (units, n) the switches of units that up-links enter
    outs: Column | None = None  # (units, n) that they leave
    rows: list[tuple[Column, Column, list[str], Column, Column]] = attrs.field(factory=list)
    count: int = 0  # links
    levels: list[Level] = attrs.field(factory=list)

    def add(self, number: int, level: Level) -> None:
        """Join units by one more level."""
        units = self.chips // (self.unit * level.size)
        if level.joins is Joins.SWITCHES:
            if self.ins is None or self.outs is None:
                below = "the level below has no switches of its units"
                raise self.spec.error(f"level.{level.name}.joins", f"switches, but {below}")
            # (groups, size): the first switch of every unit, then the second, and so on
            into, out = (
                switches.reshape(units, level.size, -1).transpose(0, 2, 1).reshape(-1, level.size)
                for switches in (self.ins, self.outs)
            )
        else:
            chips = np.arange(self.chips, dtype=np.int32).reshape(units, level.size, self.unit)
            if level.joins is Joins.CHIPS:
                into = out = chips.reshape(units, -1)
            else:
                into = out = chips.transpose(0, 2, 1).reshape(-1, level.size)
        self._check_links(level, into.size)
        if level.kind is LevelKind.SWITCH:
            rate = self._switch(level, into, out, units)
            level = attrs.evolve(level, bandwidth_bytes_per_s=(rate,))
        else:
            self._direct(number, level, into, out)
            self.ins = self.outs = None
        self.unit *= level.size
        self.levels.append(level)

    def _check_links(self, level: Level, ends: int) -> None:
        links_of_end = 2 * len(level.dims)
        if level.kind is LevelKind.FULL:
            links_of_end = level.size - 1
        elif level.kind is LevelKind.GRAPH:
            links_of_end = -(-2 * len(level.pairs) // level.size)
        self.count += ends * links_of_end
        if self.count > LARGEST_LINKS:
            where = f"level.{level.name}.size" if level.name else "fabric"
            raise self.spec.error(where, f"{self.count} links are more than {LARGEST_LINKS}")

    def _direct(self, number: int, level: Level, into: Column, out: Column) -> None:
        """Links between units themselves."""
        for source, target, port, dimension in _unit_links(number, level):
            src, dst = out[:, source].ravel(), into[:, target].ravel()
            words = [port[k] for _ in range(len(out)) for k in range(len(source))]
            delay = level.latency_ps[dimension] + self._delay(src)
            self._row(src, dst, words, level.bandwidth_bytes_per_s[dimension], delay)

    def _switch(self, level: Level, into: Column, out: Column, units: int) -> int:
        """A switch for every group of ends, its ports to each of them; the rate of a port."""
        groups, ends = into.shape
        rate = level.bandwidth_bytes_per_s[0] or self._uplink(level, out)
        halves = 2 if level.oversubscription > 1 and level.bandwidth_bytes_per_s[0] else 1
        first = self.chips + len(self.names)
        node = first + halves * np.arange(groups, dtype=np.int32)
        number = self.names[-1][0] + 1 if self.names else 0
        halved = [(number + group, half) for group in range(groups) for half in ("", "x")]
        self.names += halved if halves == 2 else halved[::2]
        self.switch_ps += ([0] * (halves - 1) + [level.latency_ps[0]]) * groups
        leaving = node + (halves - 1)
        up = np.repeat(node, ends), out.ravel()
        self._row(up[1], up[0], [level.name] * len(up[0]), rate, self._delay(up[1]))
        if halves == 2:
            inside = max(1, int(rate * ends / level.oversubscription))
            self._row(node, leaving, ["x"] * groups, inside, np.zeros(groups, np.int64))
        down = np.repeat(leaving, ends), into.ravel()
        words = [f"p{port}" for _ in range(groups) for port in range(ends)]
        self._row(*down, words, rate, self._delay(down[0]))
        self.ins, self.outs = node.reshape(units, -1), leaving.reshape(units, -1)
        return rate

    def _uplink(self, level: Level, out: Column) -> int:
        """The rate of an up-link: what the ports of its switch carry over the oversubscription.

        All switches of the level are alike, so the first one is measured.
        """
        below = sum(
            int((rate * np.isin(dst, out[0, :1])).sum()) for _, dst, _, rate, _ in self.rows
        )
        return max(1, int(below / level.oversubscription))

    def _delay(self, src: Column) -> Column:
        """The latency of the switch that a link leaves, if it is one."""
        latency = np.array([0, *self.switch_ps], np.int64)  # entry 0 is that of all chips
        return np.asarray(latency[np.maximum(src - self.chips + 1, 0)])

    def _row(self, src: Column, dst: Column, port: list[str], rate: int, latency: Column) -> None:
        rates = np.full(len(src), rate, np.int64)
        self.rows.append((src, dst, port, rates, latency))

    def wiring(self, axes: tuple[Axis, ...]) -> InstanceWiring:
        """All links, sorted by their sources; those of one stay in the order they came in."""
        none: Column = np.zeros(0, np.int64)
        rows = self.rows or [(none, none, [], none, none)]
        src, dst, rate, latency = (
            np.concatenate([row[column] for row in rows]) for column in (0, 1, 3, 4)
        )
        words = [word for row in rows for word in row[2]]
        order = np.argsort(src, kind="stable")
        self._check_reach(src, dst)
        return InstanceWiring(
            chips=self.chips,
            switches=tuple(self.names),
            src=src[order].astype(np.int32),
            dst=dst[order].astype(np.int32),
            port=tuple(words[link] for link in order.tolist()),
            bandwidth_bytes_per_s=rate[order].astype(np.int64),
            latency_ps=latency[order].astype(np.int64),
            axes=axes,
            levels=tuple(self.levels),
        )

    def _check_reach(self, src: Column, dst: Column) -> None:
        """Every chip is reached from chip 0, and reaches it."""
        nodes = self.chips + len(self.names)
        there = _reached(nodes, src, dst) & _reached(nodes, dst, src)
        apart = np.flatnonzero(~there[: self.chips])
        if len(apart):
            where = f"level.{self.spec.levels[-1].name}" if self.spec.levels else "fabric"
            raise self.spec.error(where, f"chip 0 has no route to chip {apart[0]}")


def _reached(nodes: int, src: Column, dst: Column) -> np.ndarray:
    """(nodes,) bool, what links lead to from node 0. Every run needs it, and scipy loads slowly."""
    reached = np.zeros(nodes, bool)
    frontier = np.zeros(1, src.dtype)
    while len(frontier):
        reached[frontier] = True
        frontier = dst[reached[src] & ~reached[dst]]
    return reached


def _unit_links(number: int, level: Level) -> Iterator[tuple[Column, Column, list[str], int]]:
    """Sources, targets and ports of links between units, and their dimension."""
    units = np.arange(level.size)
    if level.is_grid or level.kind in (LevelKind.TORUS, LevelKind.RING, LevelKind.LINE):
        yield from _grid_links(number, level)
        return
    prefix = f"{level.name}" if number else "p"
    if level.kind is LevelKind.FULL:
        source, target = (side.ravel() for side in np.meshgrid(units, units, indexing="ij"))
        differs = source != target
        source, target = source[differs], target[differs]
        words = [f"{prefix}{k}" for _ in units for k in range(level.size - 1)]
    else:
        both = np.array([(*pair, *pair[::-1]) for pair in level.pairs], np.int64).reshape(-1, 2)
        source, target = both[np.argsort(both[:, 0], kind="stable")].T
        first = np.searchsorted(source, source)
        words = [f"{prefix}{k}" for k in (np.arange(len(source)) - first).tolist()]
    yield source, target, words, 0


def _grid_links(number: int, level: Level) -> Iterator[tuple[Column, Column, list[str], int]]:
    """One step along every dimension, in the order N, W, S, E, D, U of ports."""
    units, rank = np.arange(level.size), len(level.dims)
    inner = min(rank, 2)
    order = [(axis, step) for step in (-1, 1) for axis in range(rank - inner, rank)]
    order += [(axis, step) for axis in range(rank - inner) for step in (-1, 1)]
    for axis, step in order:
        extent, stride = level.dims[axis], math.prod(level.dims[axis + 1 :])
        place = units // stride % extent
        next_place = (place + step) % extent
        exists = next_place != place
        if level.kind is LevelKind.LINE:
            exists &= next_place == place + step
        source = units[exists]
        target = (units + (next_place - place) * stride)[exists]
        down, up = _axis_ports(number, level, rank - 1 - axis)
        yield source, target, [up if step == 1 else down] * len(source), axis


@attrs.frozen(eq=False)
class Links:
    """Directed links of all instances as read-only columns, sorted by source, then port.

    Instance by instance. Ends are chips through all instances, or switches, whose numbers go on
    after the last chip.
    """

    src: np.ndarray  # (n,) int32, chip or switch
    dst: np.ndarray  # (n,) int32, chip or switch
    bandwidth_bytes_per_s: np.ndarray  # (n,) int64
    latency_ps: np.ndarray  # (n,) int64
    is_down: np.ndarray  # (n,) bool: nothing may use it
    parallel_links: np.ndarray  # (n,) int32: links of a trunk that carry bytes, else 1
    variant: np.ndarray  # (nodes,) int32: instances of one number have the same links
    port: tuple[str, ...]  # of the links of one instance: N, W, S, E or p0, p1, …
    chips: int  # of all instances
    switches: tuple[SwitchName, ...]  # of one instance

    def __len__(self) -> int:
        return len(self.src)

    def end(self, end: int) -> str:
        """A chip or switch as listings print it: `c4`, `s1`."""
        if end < self.chips:
            return f"c{end}"
        node, within = divmod(int(end) - self.chips, len(self.switches))
        number, half = self.switches[within]
        return f"s{node * (self.switches[-1][0] + 1) + number}{half}"

    def name(self, link: int) -> str:
        """The link as listings print it: `c4.E`."""
        return f"{self.end(int(self.src[link]))}.{self.port[link % len(self.port)]}"

    def step(self, link: int) -> str:
        """The link with where it leads: `c4.E>c5`."""
        return f"{self.name(link)}>{self.end(int(self.dst[link]))}"


def ends_of_instances(wiring: InstanceWiring, ends: np.ndarray, nodes: int) -> np.ndarray:
    """Ends of one instance's links, for every instance after another, read-only."""
    node = np.arange(nodes, dtype=np.int64)[:, None]
    chips, switches = wiring.chips, len(wiring.switches)
    numbers = np.where(
        ends < chips,
        ends + node * chips,
        ends - chips + nodes * chips + node * switches,
    )
    column = numbers.astype(np.int32).ravel()
    column.setflags(write=False)
    return column


def with_trunks(wiring: InstanceWiring, states: LinkStates) -> tuple[InstanceWiring, LinkStates]:
    """The wiring of an instance with one link for every trunk, and the states of all instances."""
    nodes = len(wiring.switches) + wiring.chips
    key = wiring.src.astype(np.int64) * nodes + wiring.dst
    _, first, trunk = np.unique(key, return_index=True, return_inverse=True)
    if len(first) == len(key):
        return wiring, states
    rank = np.argsort(np.argsort(first))  # trunks in the order of their first links
    trunk, first = rank[trunk], np.sort(first)
    words: list[list[str]] = [[] for _ in first]
    for link, port in zip(trunk.tolist(), wiring.port, strict=True):
        words[link].append(port)
    order, begins = _by_trunk(trunk)
    merged = attrs.evolve(
        wiring,
        src=wiring.src[first],
        dst=wiring.dst[first],
        port=tuple(BETWEEN_PORTS.join(ports) for ports in words),
        bandwidth_bytes_per_s=np.add.reduceat(wiring.bandwidth_bytes_per_s[order], begins),
        latency_ps=wiring.latency_ps[first],  # parallel links are of one dimension of one level
    )
    return merged, _states(states, trunk)


def _states(states: LinkStates, trunk: np.ndarray) -> LinkStates:
    """A trunk is down where all of its links are, and carries what those that are up carry."""
    is_down = states.is_down.reshape(-1, len(trunk))
    rates = states.bandwidth_bytes_per_s.reshape(is_down.shape)
    order, begins = _by_trunk(trunk)
    all_down = np.logical_and.reduceat(is_down[:, order], begins, axis=1)
    # most instances have the same links: each different row is computed once
    rows, row = np.unique(np.where(is_down, 0, rates), axis=0, return_inverse=True)
    carried, parallel = (column[row.ravel()] for column in _carried(rows, trunk))
    slowest = np.minimum.reduceat(rates[:, order], begins, axis=1)
    columns = all_down.ravel(), np.where(all_down, slowest, carried).ravel(), parallel.ravel()
    for column in columns:
        column.setflags(write=False)
    return LinkStates(*columns, states.variant)


def _by_trunk(trunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Links sorted by trunk, and where each trunk begins among them."""
    order = np.argsort(trunk, kind="stable")
    return order, np.flatnonzero(np.diff(trunk[order], prepend=-1))


def _carried(rates: np.ndarray, trunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, trunks): the most that equal shares of some links carry, int64; of how many, int32.

    The k fastest links of a trunk carry k times the rate of the slowest of them.
    """
    shape = len(rates), int(trunk.max()) + 1
    most, parallel = np.zeros(shape, np.int64), np.zeros(shape, np.int32)
    for number, row in enumerate(rates):
        order = np.lexsort((-row, trunk))  # of every trunk the fastest first
        by_trunk, links = trunk[order], np.arange(1, len(row) + 1)
        links -= np.searchsorted(by_trunk, by_trunk)  # 1, 2, … within each trunk
        np.maximum.at(most[number], by_trunk, row[order] * links)
        is_most = (row[order] * links == most[number, by_trunk]) & (row[order] > 0)
        np.maximum.at(parallel[number], by_trunk[is_most], links[is_most].astype(np.int32))
    return most, parallel
