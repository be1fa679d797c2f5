"""The wiring of one instance: its chips and directed links, as a networkx multigraph.

The graph lives while a topology is built; what follows works on arrays. A torus is row-major,
chip = columns * row + column, and a chip's ports are N (row - 1), W (column - 1), S (row + 1) and
E (column + 1), in this order, which is neuron-ls's; a ring or line has W and E only.
"""

import math
from collections.abc import Iterator

import networkx

from ncc_runtime.topology.spec import FabricShape, Spec

PORTS = {
    FabricShape.TORUS: (("N", 0, -1), ("W", 1, -1), ("S", 0, 1), ("E", 1, 1)),
    FabricShape.RING: (("W", 0, -1), ("E", 0, 1)),
    FabricShape.LINE: (("W", 0, -1), ("E", 0, 1)),
}
"""Ports in the order of link ids: name, axis of dims, step along it."""


def wire(spec: Spec) -> networkx.MultiDiGraph:
    """Chips 0..n-1 and directed links, an edge keyed by its port with its id as `link`."""
    chips = spec.number("chips.count")
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(range(chips))
    if spec.shape is FabricShape.NONE:
        if chips != 1:
            raise spec.error("fabric.shape", f"none leaves {chips} chips unconnected")
        return graph
    edges = _pair_links(spec) if spec.shape is FabricShape.GRAPH else _grid_links(spec)
    for link, (source, target, port) in enumerate(edges):
        graph.add_edge(source, target, key=port, link=link)
    if not networkx.is_strongly_connected(graph):
        reached = networkx.descendants(graph, 0) | {0}
        apart = min(set(range(chips)) - reached)
        raise spec.error("fabric", f"chip 0 has no route to chip {apart}")
    return graph


def _grid_links(spec: Spec) -> Iterator[tuple[int, int, str]]:
    dims = checked_dims(spec)
    for chip in range(math.prod(dims)):
        for port, axis, step in PORTS[spec.shape]:
            target = neighbour(chip, dims, axis, step, wraps=spec.shape is not FabricShape.LINE)
            if target is not None:
                yield chip, target, port


def checked_dims(spec: Spec) -> tuple[int, ...]:
    """The extents of a torus, ring or line, which must multiply to its chips."""
    dims, chips = spec.numbers("fabric.dims"), spec.number("chips.count")
    expected = 2 if spec.shape is FabricShape.TORUS else 1
    if len(dims) != expected:
        raise spec.error(
            "fabric.dims", f"a {spec.shape.value} has {expected} extents, not {len(dims)}"
        )
    if math.prod(dims) != chips:
        raise spec.error("fabric.dims", f"extents {list(dims)} hold {math.prod(dims)} of {chips}")
    return dims


def neighbour(
    chip: int, dims: tuple[int, ...], axis: int, step: int, *, wraps: bool = True
) -> int | None:
    """The chip one step along an axis; None past an open end or on an axis of one chip."""
    stride = math.prod(dims[axis + 1 :])
    place = chip // stride % dims[axis]
    target = (place + step) % dims[axis]
    if target == place or (not wraps and target != place + step):
        return None
    return chip + (target - place) * stride


def _pair_links(spec: Spec) -> Iterator[tuple[int, int, str]]:
    """Both directions of every listed pair; chip k's ports are p0, p1, … in the order listed."""
    chips = spec.number("chips.count")
    ports = [0] * chips
    ends: list[tuple[int, int, str]] = []
    for pair in spec.pairs("fabric.links"):
        for source, target in (pair, pair[::-1]):
            if source >= chips:
                raise spec.error(
                    "fabric.links", f"chip {source} of {list(pair)} is not below {chips}"
                )
            ends.append((source, target, f"p{ports[source]}"))
            ports[source] += 1
    return iter(sorted(ends, key=lambda end: (end[0], int(end[2][1:]))))
