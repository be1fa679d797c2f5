"""The wiring of one instance: its directed links, in the order of their ids.

They live while a topology is built; what follows works on arrays. A torus is row-major,
chip = columns * row + column, and a chip's ports are N (row - 1), W (column - 1), S (row + 1) and
E (column + 1), in this order, which is neuron-ls's; a ring or line has W and E only.
"""

import math
from collections.abc import Iterator, Sequence

from ncc_runtime.topology.faults import Edge
from ncc_runtime.topology.spec import FabricShape, Spec

PORTS = {
    FabricShape.TORUS: (("N", 0, -1), ("W", 1, -1), ("S", 0, 1), ("E", 1, 1)),
    FabricShape.RING: (("W", 0, -1), ("E", 0, 1)),
    FabricShape.LINE: (("W", 0, -1), ("E", 0, 1)),
}
"""Ports in the order of link ids: name, axis of dims, step along it."""


def wire(spec: Spec) -> tuple[Edge, ...]:
    """The directed links between chips 0..n-1; a link's id is its place."""
    chips = spec.number("chips.count")
    if spec.shape is FabricShape.NONE:
        if chips != 1:
            raise spec.error("fabric.shape", f"none leaves {chips} chips unconnected")
        return ()
    if spec.shape is FabricShape.GRAPH:
        links = tuple(_pair_links(spec))
        _check_connected(spec, links)
        return links
    return tuple(_grid_links(spec))  # which leads from every chip to every other


def _check_connected(spec: Spec, links: Sequence[Edge]) -> None:
    """Refuse chips that chip 0 does not reach; every pair is wired both ways."""
    import networkx  # slow to import, and most topologies do without

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(spec.number("chips.count")))
    graph.add_edges_from(link[:2] for link in links)
    if not networkx.is_strongly_connected(graph):
        reached = networkx.descendants(graph, 0) | {0}
        apart = min(set(graph) - reached)
        raise spec.error("fabric", f"chip 0 has no route to chip {apart}")


def _grid_links(spec: Spec) -> Iterator[Edge]:
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


def _pair_links(spec: Spec) -> Iterator[Edge]:
    """Both directions of every listed pair; chip k's ports are p0, p1, … in the order listed."""
    chips = spec.number("chips.count")
    ports = [0] * chips
    ends: list[Edge] = []
    for pair in spec.pairs("fabric.links"):
        for source, target in (pair, pair[::-1]):
            if source >= chips:
                raise spec.error(
                    "fabric.links", f"chip {source} of {list(pair)} is not below {chips}"
                )
            ends.append((source, target, f"p{ports[source]}"))
            ports[source] += 1
    return iter(sorted(ends, key=lambda end: (end[0], int(end[2][1:]))))
