"""Accesses that meet without order, found in whole-array sweeps.

What was performed is listed in an order that the clocks allow, so of two accesses only the later
can know the earlier. In each cell it is enough to ask neighbours: a read whether it knows the last
write before it, a write whether it knows the last write and all reads since. Order is transitive,
so if all neighbours are ordered, all that conflict are.
"""

import itertools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.verify.local.accesses import Accesses
from ncc_runtime.verify.local.clocks import Burst, Clock

TOGETHER = 1 << 22
"""Accesses to single cells that are looked at together, about."""


@attrs.frozen(eq=False)
class Performed:
    """Accesses as they were performed; each has a chain's count and a time."""

    access: np.ndarray  # (n,) of Accesses
    chain: np.ndarray  # (n,)
    count: np.ndarray  # (n,) of the item in its chain, from 1
    time: np.ndarray  # (n,)
    unit: np.ndarray  # (n,) which way it belongs to
    clock: np.ndarray  # (n,) row of clocks: what its chain knew when it began
    clocks: np.ndarray  # (m, chains)

    def knows(self, later: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Whether accesses knew others of the same way to be complete, when they began."""
        chain = self.chain[earlier]
        known = self.clocks[self.clock[later], chain] >= self.count[earlier]
        return known | (chain == self.chain[later])


def performed(
    accesses: Accesses,
    bursts: Sequence[Burst],
    epochs: Sequence[tuple[int, Clock]],
    units: Sequence[int],
) -> Performed:
    """All accesses of bursts, by time; reads of an item come before its writes."""
    columns = [(one.chain, one.first, one.behind, one.counted, one.time) for one in bursts]
    chain, first, behind, counted, time = np.array(columns, np.int64).reshape(-1, 5).T
    begins = np.cumsum([0, *(len(starts) for starts in accesses.starts)])
    starts = np.concatenate(accesses.starts)
    low, high = starts[begins[chain] + first], starts[begins[chain] + behind]
    burst, access = ranges(low, high)
    ahead = accesses.item[access] - first[burst]
    at = time[burst] + ahead
    order = np.lexsort((accesses.is_write[access], at))
    burst, access, ahead, at = burst[order], access[order], ahead[order], at[order]
    since = np.array([when for when, _ in epochs], np.int64)
    return Performed(
        access=access,
        chain=chain[burst],
        count=counted[burst] + ahead + 1,
        time=at,
        unit=np.array(units, np.int64)[burst],
        clock=np.searchsorted(since, at, side="right") - 1,
        clocks=np.array([clock for _, clock in epochs], np.int64).reshape(-1, len(accesses.starts)),
    )


def ranges(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All numbers of the ranges [low, high), and which range each is of."""
    lengths = high - low
    owner = np.repeat(np.arange(len(low)), lengths)
    before = np.cumsum(lengths) - lengths
    return owner, np.arange(len(owner)) - before[owner] + low[owner]


def unordered(accesses: Accesses, done: Performed) -> Iterator[tuple[int, int]]:
    """Pairs of performed accesses (earlier, later), neighbours in a cell, that nothing orders."""
    first, behind = accesses.first[done.access], accesses.behind[done.access]
    for low, high in _windows(accesses.cells, first, behind):
        one, cell = ranges(np.clip(first, low, high), np.clip(behind, low, high))
        yield from _unordered_in(accesses, done, one, done.unit[one] * accesses.cells + cell)


def _windows(cells: int, first: np.ndarray, behind: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cells [low, high) that are touched so often that they can be looked at together."""
    change = np.bincount(first, minlength=cells + 1) - np.bincount(behind, minlength=cells + 1)
    touched = np.cumsum(np.cumsum(change))
    steps: np.ndarray = np.arange(TOGETHER, int(touched[-1]) + TOGETHER, TOGETHER)
    edges = np.unique(np.append(0, np.searchsorted(touched, steps) + 1)).tolist()
    yield from itertools.pairwise(edges)


def _unordered_in(
    accesses: Accesses, done: Performed, one: np.ndarray, key: np.ndarray
) -> Iterator[tuple[int, int]]:
    """Of accesses to single cells, each with a key of its cell on its way; by time."""
    order = np.argsort(key, kind="stable")
    one, key = one[order], key[order]
    is_write = accesses.is_write[done.access][one]
    places = np.arange(len(one))
    begin = np.searchsorted(key, key)
    latest = np.maximum.accumulate(np.where(is_write, places, -1))
    before = np.append(-1, latest)[:-1]
    later = np.flatnonzero(before >= begin)
    next_write = np.minimum.accumulate(np.where(is_write, places, len(one))[::-1])[::-1]
    reads = np.flatnonzero(~is_write & (next_write < len(one)))
    reads = reads[key[next_write[reads]] == key[reads]]
    earlier = np.concatenate((before[later], reads))
    later = np.concatenate((later, next_write[reads]))
    wrong = ~done.knows(one[later], one[earlier])
    yield from zip(one[earlier[wrong]].tolist(), one[later[wrong]].tolist(), strict=True)


class Frontier:
    """The last accesses of a way's beginning to each cell, chain by chain."""

    def __init__(self, accesses: Accesses, done: Performed, limits: Clock, known: Clock) -> None:
        """Accesses beyond `known` and up to `limits`: what some chain knows nothing of."""
        chains = done.clocks.shape[1]
        limit, least = np.array(limits), np.array(known)
        kept = (done.count <= limit[done.chain]) & (done.count > least[done.chain])
        self._number = np.flatnonzero(kept)
        self._accesses = accesses
        self._access, self._chain = done.access[kept], done.chain[kept]
        self._count = done.count[kept]
        self._latest = np.zeros((2, accesses.cells, chains), np.int64)  # of all, of writes
        one, cell = ranges(accesses.first[self._access], accesses.behind[self._access])
        written = accesses.is_write[self._access][one]
        self._note(0, one, cell)
        self._note(1, one[written], cell[written])

    def _note(self, kind: int, one: np.ndarray, cell: np.ndarray) -> None:
        np.maximum.at(self._latest[kind], (cell, self._chain[one]), self._count[one])

    def conflicts(self) -> np.ndarray:
        """All accesses of the program that conflict with one of these, (accesses,) bool."""
        touched = np.zeros((2, self._accesses.cells + 1), np.int64)
        touched[:, 1:] = np.cumsum((self._latest > 0).any(axis=2), axis=1)
        found = touched[:, self._accesses.behind] > touched[:, self._accesses.first]
        return np.where(self._accesses.is_write, found[0], found[1])

    def unknown_to(self, later: Performed) -> Iterator[tuple[int, int]]:
        """Pairs in conflict without order: one of the beginning, one performed later."""
        accesses = self._accesses
        one, cell = ranges(accesses.first[later.access], accesses.behind[later.access])
        kind = np.where(accesses.is_write[later.access][one], 0, 1)
        latest = self._latest[kind, cell]
        missed = latest > later.clocks[later.clock[one]]
        missed[np.arange(len(one)), later.chain[one]] = False
        for at, chain in zip(*(index.tolist() for index in np.nonzero(missed)), strict=True):
            found = (self._chain == chain) & (self._count == latest[at, chain])
            access = self._access
            found &= (accesses.first[access] <= cell[at]) & (cell[at] < accesses.behind[access])
            if kind[at]:
                found &= accesses.is_write[access]
            yield int(self._number[found][-1]), int(one[at])
