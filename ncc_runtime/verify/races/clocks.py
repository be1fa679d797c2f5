"""Vector clocks of a segment: what each chain knows of rings, and of who has been triggered.

Going through the steps, every rank's CC-core learns from what it waits for, and a ring row knows
what its CC-core knew when it pushed it and what the ring row before it knew. All ranks make a step
at once. A clock is a row of slots: a tracked rank each, and per slot one entry per chain of that
rank, the number of its rows that are known to be done (entry CC: 1 if it has been triggered).
"""

from collections.abc import Iterator
from typing import Protocol

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.verify.races.accesses import Claims
from ncc_runtime.verify.races.steps import CC, Group, Steps

CLOCK_BYTES = 1 << 20
"""Of one clock of all ranks: more ranks are tracked in several goes."""

NEIGHBOURS_SAVE = 8
"""Neighbours go first where they are this many times fewer than the ranks that matter."""


class Tracking(Protocol):
    """Which ranks' clock entries are kept, and how they travel."""

    @property
    def width(self) -> int:
        """Slots of every rank."""

    @property
    def own(self) -> np.ndarray:
        """(ranks,) the slot of each rank's own entries, IDLE for none."""

    def slots(self, rank: np.ndarray, of_rank: np.ndarray) -> np.ndarray:
        """Where ranks keep the entries of others, IDLE where they do not."""

    def carried(self, posted: np.ndarray, posters: np.ndarray, at: np.ndarray) -> np.ndarray:
        """What ranks `at` learn of what the posters knew."""


@attrs.frozen(eq=False)
class Chosen:
    """Every rank tracks the same ranks."""

    ranks: int
    chosen: np.ndarray  # (slots,)

    @property
    def width(self) -> int:
        return len(self.chosen)

    @property
    def own(self) -> np.ndarray:
        found = np.full(self.ranks, IDLE)
        found[self.chosen] = np.arange(self.width)
        return found

    def slots(self, rank: np.ndarray, of_rank: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return self.own[of_rank]

    def carried(self, posted: np.ndarray, posters: np.ndarray, at: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return posted[posters]


class Neighbours:
    """Every rank tracks itself and those that some claim of its own or of a third sets beside it.

    Rings that access one rank's memory are neighbours. Knowledge that would have to travel by way
    of others is missed, never made up.
    """

    def __init__(self, ranks: int, claims: Claims) -> None:
        pairs = np.concatenate(
            (
                np.arange(ranks) * (ranks + 1),
                claims.rank * ranks + claims.of_rank,
                claims.of_rank * ranks + claims.rank,
            )
        )
        self._keys = np.unique(pairs)  # (rank, tracked) as one number, ascending
        rank = self._keys // ranks
        counts = np.bincount(rank, minlength=ranks)
        self._slot = np.arange(len(rank)) - (np.cumsum(counts) - counts)[rank]
        self._ranks, self.width = ranks, int(counts.max()) + 1  # the last slot stays empty
        self._tracked: np.ndarray = np.full((ranks, self.width), IDLE)
        self._tracked[rank, self._slot] = self._keys % ranks
        self._known: dict[bytes, np.ndarray] = {}

    @property
    def own(self) -> np.ndarray:
        everybody = np.arange(self._ranks)
        return self.slots(everybody, everybody)

    def slots(self, rank: np.ndarray, of_rank: np.ndarray) -> np.ndarray:
        keys = rank * self._ranks + of_rank
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where((self._keys[found] == keys) & (of_rank != IDLE), self._slot[found], IDLE)

    def carried(self, posted: np.ndarray, posters: np.ndarray, at: np.ndarray) -> np.ndarray:
        key = posters.tobytes() + at.tobytes()
        if key not in self._known:
            wanted = self._tracked[at]
            self._known[key] = self.slots(posters[:, None], wanted)  # IDLE: the last, empty one
        return posted[posters[:, None], self._known[key]]


def unproved(steps: Steps, claims: Claims) -> np.ndarray:
    """Which claims do not hold, as positions; exact."""
    everything = np.arange(len(claims))
    chosen = np.unique(claims.of_rank)
    if not len(claims):
        return everything
    near = Neighbours(steps.ranks, claims)
    if near.width * NEIGHBOURS_SAVE < len(chosen):
        everything = everything[lacking(steps, near, claims)]
        chosen = np.unique(claims.of_rank[everything])
    width = _width(steps)
    found = [np.zeros(0, np.int64)]
    for first in range(0, len(chosen), width):
        some = Chosen(steps.ranks, chosen[first : first + width])
        its = everything[some.own[claims.of_rank[everything]] != IDLE]
        found.append(its[lacking(steps, some, claims.at(its))])
    return np.sort(np.concatenate(found))


def _width(steps: Steps) -> int:
    """How many ranks are tracked in one go."""
    entry_bytes = (len(steps.performs) + 1) * _dtype(steps)(0).nbytes
    return max(1, CLOCK_BYTES // (steps.ranks * entry_bytes))


def _dtype(steps: Steps) -> type[np.unsignedinteger]:
    most = max(steps.pushed, default=0) + 1
    return np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.uint32


def lacking(steps: Steps, tracking: Tracking, claims: Claims) -> np.ndarray:
    """Which claims do not follow from what is tracked, (claims,) bool."""
    return _Run(steps, tracking, claims).lacking()


class _Run:
    """One way through the steps; clocks are (ranks, slots, chains)."""

    def __init__(self, steps: Steps, tracking: Tracking, claims: Claims) -> None:
        self._steps, self._tracking = steps, tracking
        self._everybody = np.arange(steps.ranks)
        self._dtype = _dtype(steps)
        self._shape = (steps.ranks, tracking.width, len(steps.performs) + 1)
        self._clocks = [np.zeros(self._shape, self._dtype) for _ in range(self._shape[2])]
        own = tracking.own
        self._tracked = np.flatnonzero(own != IDLE)
        self._own = own
        self._posted: dict[tuple[int, int], np.ndarray] = {}
        self._uses = self._count_uses()
        self._questions = _Questions(self._shape, tracking, claims)

    def _count_uses(self) -> dict[tuple[int, int], int]:
        """How many waits ask for each row."""
        uses: dict[tuple[int, int], int] = {}
        for groups in self._steps.groups.values():
            for group in groups:
                key = group.chain, group.row
                uses[key] = uses.get(key, 0) + len(group.posters)
        return uses

    def lacking(self) -> np.ndarray:
        """Perform everything, and see what is not known where it should be."""
        for row, ranks in self._steps.batches:
            for group in self._steps.groups.get(row, ()):
                self._learn(group, ranks)
            cc = self._clocks[CC]
            if row == 0:
                self._count(cc, CC, 1, ranks)
            self._questions.ask(CC, row, cc, ranks)
            if (CC, row) in self._uses:
                self._keep((CC, row), cc.copy(), ranks)
            if self._steps.chain[row] != IDLE:
                self._push(self._steps.chain[row], self._steps.pushed[row], ranks)
        return self._questions.lacking

    def _learn(self, group: Group, ranks: np.ndarray | None) -> None:
        """A wait of some ranks for a row of some chain of others."""
        cc, posters = self._clocks[CC], group.posters
        at = self._everybody if group.ranks is None else group.ranks
        if ranks is not None:
            now = np.isin(at, ranks)
            at, posters = at[now], posters[now]
            if not len(at):
                return
        posted = self._posted[group.chain, group.row]
        learned = self._tracking.carried(posted, posters, at)
        if len(at) == len(cc):
            np.maximum(cc, learned, out=cc)
        else:
            cc[at] = np.maximum(cc[at], learned)
        self._uses[group.chain, group.row] -= len(posters)
        if not self._uses[group.chain, group.row]:
            del self._posted[group.chain, group.row]

    def _push(self, chain: int, row: int, ranks: np.ndarray | None) -> None:
        """A ring row from its start to its end."""
        performs = self._steps.performs[chain - 1]
        if performs is not None:
            ranks = np.flatnonzero(performs[row]) if ranks is None else ranks[performs[row][ranks]]
        before, cc = self._clocks[chain], self._clocks[CC]
        if ranks is None:
            clock = np.maximum(before, cc)
        else:
            clock = before.copy()
            clock[ranks] = np.maximum(before[ranks], cc[ranks])
        self._questions.ask(chain, row, clock, ranks)
        self._count(clock, chain, row + 1, ranks)
        self._clocks[chain] = clock
        if (chain, row) in self._uses:
            self._keep((chain, row), clock, ranks)

    def _count(self, clock: np.ndarray, chain: int, rows: int, ranks: np.ndarray | None) -> None:
        """The own entries of ranks, where anybody tracks them."""
        at = self._tracked if ranks is None else ranks[self._own[ranks] != IDLE]
        clock[at, self._own[at], chain] = rows

    def _keep(self, key: tuple[int, int], clock: np.ndarray, ranks: np.ndarray | None) -> None:
        """What those will learn who wait for this row."""
        if ranks is None or key not in self._posted:
            self._posted[key] = clock
        else:
            kept = self._posted[key].copy()
            kept[ranks] = clock[ranks]
            self._posted[key] = kept


class _Questions:
    """Claims by the row that must know."""

    def __init__(self, shape: tuple[int, ...], tracking: Tracking, claims: Claims) -> None:
        self.lacking: np.ndarray = np.ones(len(claims), bool)
        slot = tracking.slots(claims.rank, claims.of_rank)
        order = np.lexsort((claims.row, claims.chain))
        order = order[slot[order] != IDLE]  # nothing is known of others
        self._order = order
        self._rank = claims.rank[order]
        self._entry = (self._rank * shape[1] + slot[order]) * shape[2] + claims.of_chain[order]
        self._least = claims.of_row[order] + 1
        self._edges = dict(_edges(claims.chain[order], claims.row[order]))

    def ask(self, chain: int, row: int, clock: np.ndarray, ranks: np.ndarray | None) -> None:
        """Note which claims hold of the clocks of some ranks at the start of a row."""
        its = self._edges.get((chain, row))
        if its is None:
            return
        lacking = clock.reshape(-1)[self._entry[its]] < self._least[its]
        if ranks is not None:
            asked = np.isin(self._rank[its], ranks)
            self.lacking[self._order[its][asked]] = lacking[asked]
        else:
            self.lacking[self._order[its]] = lacking


def _edges(chain: np.ndarray, row: np.ndarray) -> Iterator[tuple[tuple[int, int], slice]]:
    """Where the claims of each row of a chain stand, sorted as they are."""
    if not len(row):
        return
    new = (np.diff(chain, prepend=-1) != 0) | (np.diff(row, prepend=-1) != 0)
    firsts = np.flatnonzero(new).tolist()
    for first, last in zip(firsts, [*firsts[1:], len(row)], strict=True):
        yield (int(chain[first]), int(row[first])), slice(first, last)
