"""All-gathers found on wires: which unit goes over which edge in which slot of time.

Time is expanded into slots, in each of which a link carries so many units of one size. Slot by slot
edges and units are matched: every edge that is free takes the unit that fewest chips have, of those
that its source has and its target lacks. What two would bring to the same chip, the shorter edge
brings; the other takes something else. Ties are broken by a fixed scramble of numbers.

Source: Won, Elavazhagan, Srinivasan, Gupta and Krishna, "TACOS: topology-aware collective algorithm
synthesizer for distributed machine learning", MICRO 2024 (time-expanded network, greedy matching).
"""

from functools import lru_cache

import attrs
import numpy as np

from ncc_runtime.collectives.forwarding.link_graph import Wires

NEVER = np.inf


@attrs.frozen(eq=False)
class Slots:
    """Sends in the order of slots; every unit reaches every chip once."""

    owners: tuple[int, ...]  # by unit, the chip where it begins
    slot: np.ndarray  # (sends,) int64, ascending
    edge: np.ndarray  # (sends,) int64, of the wires
    unit: np.ndarray  # (sends,) int64

    @property
    def count(self) -> int:
        """The number of slots."""
        return int(self.slot.max(initial=-1)) + 1

    @property
    def backwards(self) -> "Slots":
        """The same sends in the opposite order of time."""
        last = self.count - 1
        return attrs.evolve(
            self, slot=last - self.slot[::-1], edge=self.edge[::-1], unit=self.unit[::-1]
        )


@lru_cache(maxsize=64)
def gathered(wires: Wires, owners: tuple[int, ...], draw: int = 0) -> Slots:
    """A schedule by which everybody gets the units of everybody; draws break ties differently."""
    search = _Search.of(wires, owners, draw)
    found: list[tuple[np.ndarray, ...]] = []
    slot = 0
    while not search.coming.all():
        edges, units = search.matched()
        assert len(edges), "every chip has a way to every other"
        order = np.lexsort((units, edges))
        found.append((np.full(len(edges), slot), edges[order], units[order]))
        slot += 1
    none = np.empty(0, np.int64)
    columns = zip(*found, strict=True) if found else ((none,), (none,), (none,))
    return Slots(owners, *(np.concatenate(column) for column in columns))


@attrs.frozen(eq=False)
class _Search:
    """Who has what so far."""

    source: np.ndarray  # (edges,) int64
    target: np.ndarray
    hops: np.ndarray  # (edges, links) int64, how often an edge takes a link
    length: np.ndarray  # (edges,) int64
    units: np.ndarray  # (links,) int64, in a slot
    scramble: np.ndarray  # (edges, units) float64 from 0 to below 1
    coming: np.ndarray  # (chips, units) bool, what a chip has at the end of the slot

    @classmethod
    def of(cls, wires: Wires, owners: tuple[int, ...], draw: int) -> "_Search":
        source, target = wires.columns
        hops = np.zeros((len(source), len(wires.rates)), np.int64)
        for number, (_, _, links) in enumerate(wires.edges):
            np.add.at(hops[number], list(links), 1)
        count = len(owners)
        coming = np.zeros((wires.chips, count), bool)
        coming[list(owners), np.arange(count)] = True
        cells = len(source) * count
        mixed = _scrambled(np.arange(cells) + draw * cells).reshape(len(source), count)
        return cls(source, target, hops, hops.sum(axis=1), wires.units, mixed, coming)

    def matched(self) -> tuple[np.ndarray, np.ndarray]:
        """The sends of one slot, edges and units; what they bring is coming."""
        left = self.units.copy()
        held = self.coming.copy()
        rarity = held.sum(axis=0)
        worth = rarity + self.scramble
        score = np.where(held[self.source] & ~held[self.target], worth, NEVER)
        free = np.flatnonzero((score < NEVER).any(axis=1) & self._fits(left))
        sends: list[tuple[np.ndarray, np.ndarray]] = []
        while len(free):
            best = score[free].argmin(axis=1)
            able = score[free, best] < NEVER
            edges, units = self._kept(free[able], best[able], left)
            sends.append((edges, units))
            self.coming[self.target[edges], units] = True
            free = free[able]
            free = free[self._fits(left)[free]]
            score[free] = np.where(self.coming[self.target[free]], NEVER, score[free])
        none = np.empty(0, np.int64)
        return (
            np.concatenate([edges for edges, _ in sends] or [none]),
            np.concatenate([units for _, units in sends] or [none]),
        )

    def _fits(self, left: np.ndarray) -> np.ndarray:
        """(edges,) bool, whether all links of an edge have a unit left."""
        return np.asarray(~((self.hops > 0) & (left < self.hops)).any(axis=1))

    def _kept(
        self, edges: np.ndarray, units: np.ndarray, left: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of what edges would take, what nobody else brings and their links still carry."""
        order = np.argsort(self.length[edges], kind="stable")
        edges, units = edges[order], units[order]
        places = self.target[edges] * self.scramble.shape[1] + units
        _, first = np.unique(places, return_index=True)
        first.sort()
        edges, units = edges[first], units[first]
        if self.hops[edges].sum(axis=0).max(initial=0) > 1 or (left < 1).any():
            taken = [number for number, edge in enumerate(edges) if self._take(int(edge), left)]
            return edges[taken], units[taken]
        left -= self.hops[edges].sum(axis=0)
        return edges, units

    def _take(self, edge: int, left: np.ndarray) -> bool:
        fits = bool((left >= self.hops[edge]).all())
        if fits:
            left -= self.hops[edge]
        return fits


def _scrambled(numbers: np.ndarray) -> np.ndarray:
    """Numbers spread over 0 to below 1, the same everywhere (the finaliser of splitmix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(40)) / 2.0**24)
