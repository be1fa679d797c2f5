"""Colours of edges such that two of one source, or of one target, differ: what can go at once."""

from collections.abc import Sequence

FREE = -1


def coloured(ends: Sequence[tuple[int, int]], nodes: int) -> list[int]:
    """A colour for every edge, by as few colours as the busiest node has edges out or in.

    Source: König's theorem by alternating paths (Gabow, "Using Euler partitions to edge color
    bipartite multigraphs", 1976, describes this baseline).
    """
    degree = [0] * (2 * nodes)
    for source, target in ends:
        degree[source] += 1
        degree[nodes + target] += 1
    most = max(degree, default=0)
    at = [[FREE] * most for _ in range(2 * nodes)]  # by node (sources, then targets) and colour
    for edge, (source, target) in enumerate(ends):
        one, other = at[source].index(FREE), at[nodes + target].index(FREE)
        if one != other:
            _swap(at, ends, nodes + target, (one, other))
        at[source][one] = at[nodes + target][one] = edge
    found = [FREE] * len(ends)
    for row in at[:nodes]:
        for colour, edge in enumerate(row):
            if edge != FREE:
                found[edge] = colour
    return found


def _swap(
    at: list[list[int]], ends: Sequence[tuple[int, int]], node: int, colours: tuple[int, int]
) -> None:
    """Exchange two colours along the path from a node, so that the first is free there."""
    nodes = len(at) // 2
    first, second = colours
    path, wanted = [], first
    while at[node][wanted] != FREE:
        edge = at[node][wanted]
        path.append((edge, wanted))
        source, target = ends[edge][0], nodes + ends[edge][1]
        node = source if node == target else target
        wanted = second if wanted == first else first
    for edge, colour in path:
        for end in (ends[edge][0], nodes + ends[edge][1]):
            at[end][colour] = FREE
    for edge, colour in path:
        for end in (ends[edge][0], nodes + ends[edge][1]):
            at[end][second if colour == first else first] = edge
