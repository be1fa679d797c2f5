"""Directed cycles through all of some chips over links that no two of the cycles share.

A ring algorithm sends along such a cycle, and one ring per cycle uses every link once. Searched by
depth first with a budget, first in the order of chips, then, if that finds none, where the fewest
ways lead on (Warnsdorff). A group without a cycle is an answer too.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ncc_runtime.topology.links import Links

BUDGET = 20_000
"""Steps of a search before it settles for what it has found."""

Cycle = tuple[int, ...]
"""Chips in the order of the links; the last has a link to the first."""

Edges = frozenset[tuple[int, int]]
"""Links as (source, target)."""


def disjoint_cycles(links: Links, chips: Sequence[int]) -> tuple[Cycle, ...]:
    """As many cycles as are found, each beginning with the first of the chips.

    A cycle is followed by its reverse where the links go both ways. One chip is a cycle without
    links, of no cycle at all () is returned.
    """
    wanted = set(chips)
    is_up = ~links.is_down
    pairs = zip(links.src[is_up].tolist(), links.dst[is_up].tolist(), strict=True)
    edges = frozenset(pair for pair in pairs if wanted.issuperset(pair) and pair[0] != pair[1])
    return _disjoint_cycles(edges, tuple(chips))


@lru_cache(maxsize=256)
def _disjoint_cycles(edges: Edges, chips: tuple[int, ...]) -> tuple[Cycle, ...]:
    if len(chips) == 1:
        return (chips,)
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
