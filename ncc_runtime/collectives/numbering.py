"""Chips numbered by how they are wired, so that groups wired alike have equal wires.

What is found for one wiring then serves all that are the same but for the names of chips: a torus
has one plan for any of the links of a dimension that may be down, and no link is served worse.

Colours of chips are refined by the colours of their neighbours until nothing parts them; then a
chip is told from those alike, and so on (McKay and Piperno, "Practical graph isomorphism, II",
2014). Only one chip of those alike is tried: where that is no matter of symmetry, as it is on a
torus, groups wired alike may get different numbers, and are served as well.
"""

import attrs
import numpy as np

from ncc_runtime.collectives.wires import Wires


def numbered(wires: Wires) -> np.ndarray:
    """(chips,) int64, the chips in the order of their new numbers."""
    ways = _ways(wires)
    colours = _refined(np.zeros(wires.chips, np.int64), ways)
    while len(colours) and colours.max() + 1 < len(colours):
        alike = colours == np.flatnonzero(np.bincount(colours) > 1)[0]
        apart = 2 * colours + 1
        apart[np.flatnonzero(alike)[0]] -= 1
        colours = _refined(apart, ways)
    return np.argsort(colours)


def renumbered(wires: Wires, order: np.ndarray) -> Wires:
    """The same wires with chip order[k] as chip k, edges by their ends and links by their edges."""
    number = np.argsort(order)
    edges = [(int(number[a]), int(number[b]), links) for a, b, links in wires.edges]
    edges.sort(key=lambda edge: (*edge[:2], _figures(wires, edge[2])))
    known: dict[int, int] = {}
    found = tuple(
        (a, b, tuple(known.setdefault(link, len(known)) for link in links)) for a, b, links in edges
    )
    return attrs.evolve(wires, edges=found, rates=tuple(wires.rates[link] for link in known))


def _figures(wires: Wires, links: tuple[int, ...]) -> tuple[int, ...]:
    return (len(links), *(wires.rates[link] for link in links))


def _ways(wires: Wires) -> np.ndarray:
    """(chips, chips) int64, alike for pairs with the same edges there and back."""
    held: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for source, target, links in wires.edges:
        held.setdefault((source, target), []).append(_figures(wires, links))
    kinds = {pair: tuple(sorted(found)) for pair, found in held.items()}
    code = {kind: number for number, kind in enumerate(sorted(set(kinds.values())), 1)}
    there: np.ndarray = np.zeros((wires.chips, wires.chips), np.int64)
    for (source, target), kind in kinds.items():
        there[source, target] = code[kind]
    return there * (len(code) + 1) + there.T


def _refined(colours: np.ndarray, ways: np.ndarray) -> np.ndarray:
    """(chips,) int64, colours from 0 on, in the order of those given, that no neighbours part."""
    count = 0
    while True:
        seen = np.sort(ways * (2 * len(colours)) + colours, axis=1)
        rows = np.column_stack((colours, seen))
        colours = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        if int(colours.max(initial=-1)) + 1 == count:
            return colours
        count = int(colours.max(initial=-1)) + 1
