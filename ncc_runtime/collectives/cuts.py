"""Tight cuts of irregular wiring: sets of a group's chips that few links lead out of.

For every chip, what all others have to give it is taken as a flow; where the links do not carry it
in the time that is known to be needed, the chips on their side of the smallest cut need longer,
and with that time the flow is tried once more. Any set gives a bound that holds; these give the
tightest that one target allows.

Source: Zhao, Pal, Chugh, Wang et al., "ForestColl: efficient collective communications on
heterogeneous network fabrics" (2024): the time of an all-gather is that of its worst cut.
"""

from functools import lru_cache

import numpy as np

from ncc_runtime.collectives.wires import Wires

TRIES = 8
"""Cuts looked at for one target at most; each is tighter than the one before."""

LARGEST_CAPACITY = 1 << 24


@lru_cache(maxsize=64)
def tight_cuts(wires: Wires, held: tuple[int, ...]) -> tuple[tuple[np.ndarray, int], ...]:
    """Sets of chips, (chips,) bool, with the bytes a second that lead out of them.

    `held` are the members of each chip. Edges are taken as if each had its links for itself.
    """
    source, target = wires.columns
    rate = np.array([min(wires.rates[link] for link in links) for _, _, links in wires.edges])
    found: dict[bytes, tuple[np.ndarray, int]] = {}
    for chip in range(wires.chips):
        inside = np.arange(wires.chips) != chip
        for _ in range(TRIES):
            out = int(rate[inside[source] & ~inside[target]].sum())
            found[inside.tobytes()] = inside, out
            time = np.array(held)[inside].sum() / out
            tighter = _side(wires, np.array(held), (chip, time))
            if tighter.tobytes() in found or not tighter.any():
                break
            inside = tighter
    return tuple(found.values())


def _side(wires: Wires, held: np.ndarray, goal: tuple[int, float]) -> np.ndarray:
    """(chips,) bool, the chips that a smallest cut keeps from a chip, given a time."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    chip, time = goal
    source, target = wires.columns
    rate = np.array([min(wires.rates[link] for link in links) for _, _, links in wires.edges])
    supply = np.where(np.arange(wires.chips) == chip, 0, held)
    scale = LARGEST_CAPACITY / max(1.0, float((rate * time).max()), float(supply.max()))
    start = wires.chips
    rows = np.append(source, np.full(wires.chips, start))
    columns = np.append(target, np.arange(wires.chips))
    amounts = np.rint(np.append(rate * time, supply) * scale).astype(np.int32)
    graph = csr_array((amounts, (rows, columns)), shape=(start + 1, start + 1))
    flow = maximum_flow(graph, start, chip).flow
    left = graph - flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = breadth_first_order(left, start, return_predecessors=False)
    side = np.zeros(start + 1, bool)
    side[reached] = True
    side[chip] = False
    return side[:start]
