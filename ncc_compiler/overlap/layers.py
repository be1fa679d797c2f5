"""Which collectives belong to one layer: a layer is what repeats.

A sharded model gathers several arrays for each layer, with the same types from layer to layer:

    embedding │ q k v o up down │ q k v o up down │ head

Of a list of types, the stretch that repeats the farthest is taken for layers, from left to right;
a collective that repeats nothing is a layer by itself.
"""

from collections.abc import Hashable, Sequence

_MOST = 64
"""Collectives of a layer; longer stretches are not looked for."""


def layers_of(kinds: Sequence[Hashable]) -> list[range]:
    """The places of each layer in a list of kinds, in order."""
    alike = [_run_lengths(kinds, length) for length in range(1, min(_MOST, len(kinds) // 2) + 1)]
    found, first = [], 0
    while first < len(kinds):
        length, times = _best([run[first] if first < len(run) else 0 for run in alike])
        found += [
            range(start, start + length) for start in range(first, first + length * times, length)
        ]
        first += length * times
    return found


def _run_lengths(kinds: Sequence[Hashable], distance: int) -> list[int]:
    """How many kinds from each place on are those at a distance behind them."""
    found = [0] * (len(kinds) - distance + 1)
    for place in range(len(kinds) - distance - 1, -1, -1):
        if kinds[place] == kinds[place + distance]:
            found[place] = found[place + 1] + 1
    return found


def _best(runs: Sequence[int]) -> tuple[int, int]:
    """The length of a layer and how often it comes, given the run at each length."""
    best = 1, 1
    for length, run in enumerate(runs, start=1):
        times = run // length + 1
        if times > 1 and length * times > best[0] * best[1]:
            best = length, times
    return best
