"""What each chain of a rank knows of the others, along a way through its stretches.

A clock holds, for every chain, how many of its items are known to be complete; items count from
the beginning of the way. Knowledge travels with every wait. What lies before the beginning is
known to nobody and of no interest: waits for it are satisfied and tell nothing. A semaphore is one
chain's, or of chains that take turns (counters), so its n-th increment is one event.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.verify.local.chains import Items, Waits
from ncc_runtime.verify.local.paths import START, Begin

Clock = Sequence[int]
_Point = tuple[int, int, int, tuple[int, ...]]  # item, semaphore or -1, value, increments
_Span = tuple[int, int, int, int]  # items and points of a chain: [first, behind) each
_NO_SPAN: _Span = (0, 0, 0, 0)


@attrs.frozen(eq=False)
class Chains:
    """One rank's chains, cut into stretches."""

    items: tuple[Items, ...]
    waits: tuple[Waits, ...]
    stretch: tuple[np.ndarray, ...]  # (items,) of each chain, ascending
    controls: tuple[np.ndarray, ...]  # (stretches,) of each chain: its item that ends one, or -1
    names: tuple[str, ...]  # of the semaphores, which are numbered anew here

    @property
    def semaphores(self) -> int:
        """How many numbers for them there are, at least 1."""
        return max(1, len(self.names))


@attrs.frozen(eq=False)
class Counts:
    """Increments with every block run once, (stretches, semaphores)."""

    entry: np.ndarray  # made before a stretch
    control: np.ndarray  # made before the control row that ends it
    exit: np.ndarray  # made behind that row


def counts_of(chains: Chains) -> Counts:
    """What all semaphores hold around every stretch."""
    stretches = len(chains.controls[0])
    made = np.zeros((stretches, chains.semaphores), np.int64)
    at_end = np.zeros_like(made)
    for waits, stretch, controls in zip(chains.waits, chains.stretch, chains.controls, strict=True):
        for sem in waits.posts:
            posting = np.flatnonzero(sem >= 0)
            np.add.at(made, (stretch[posting], sem[posting]), 1)
            where = np.flatnonzero(controls >= 0)
            own = sem[controls[where]]
            np.add.at(at_end, (where[own >= 0], own[own >= 0]), 1)
    behind = np.cumsum(made, axis=0)
    return Counts(behind - made, behind - at_end, behind)


class Tables:
    """The chains as Python lists, for the one loop that cannot be a numpy call."""

    def __init__(self, chains: Chains, counts: Counts) -> None:
        self.chains = chains
        self.entry: list[list[int]] = counts.entry.tolist()
        self.control: list[list[int]] = counts.control.tolist()
        self.exit: list[list[int]] = counts.exit.tolist()
        self.points = [_points(waits) for waits in chains.waits]
        stretches = np.arange(len(self.entry) + 1)
        spans = []
        for points, stretch in zip(self.points, chains.stretch, strict=True):
            bounds = np.searchsorted(stretch, stretches)
            at = np.searchsorted(np.array([point[0] for point in points], np.int64), bounds)
            columns = (bounds[:-1], bounds[1:], at[:-1], at[1:])
            spans.append(list(zip(*(column.tolist() for column in columns), strict=True)))
        self.spans: list[tuple[_Span, ...]] = list(zip(*spans, strict=True))
        owned = [_incremented(waits) for waits in chains.waits]
        owners = Counter(sem for sems in owned for sem in sems)
        self.owned = [{sem for sem in sems if owners[sem] == 1} for sems in owned]

    def last_span(self, row: int, chain: int) -> _Span:
        """The item of a chain that ends a stretch, if it has one, and its point."""
        _, behind, first, last = self.spans[row][chain]
        if self.chains.controls[chain][row] < 0:
            return _NO_SPAN
        has_point = last > first and self.points[chain][last - 1][0] == behind - 1
        return behind - 1, behind, last - has_point, last


def _points(waits: Waits) -> list[_Point]:
    """The items that wait or increment."""
    told = waits.sem >= 0
    for sem in waits.posts:
        told = told | (sem >= 0)
    rows = np.flatnonzero(told)
    posts: list[tuple[int, ...]] = [()] * len(rows)
    for sem in waits.posts:
        for at, one in enumerate(sem[rows].tolist()):
            if one >= 0:
                posts[at] = (*posts[at], one)
    columns = (rows.tolist(), waits.sem[rows].tolist(), waits.value[rows].tolist(), posts)
    return list(zip(*columns, strict=True))


def _incremented(waits: Waits) -> frozenset[int]:
    """The semaphores that a chain increments."""
    return frozenset(sem for posts in waits.posts for sem in np.unique(posts).tolist() if sem >= 0)


@attrs.frozen
class Burst:
    """Items of a chain that follow one another, performed without interruption."""

    chain: int
    first: int
    behind: int
    counted: int  # items of the chain that the way had before
    time: int  # of the first; the next is at the next time


Mark = tuple[list[list[int]], list[int], list[int], list[int], int, int, int]


class Run:
    """A way from its beginning: clocks, and what was performed in an order that the clocks allow.

    Times only grow, so what was performed later is not before what was performed earlier.
    """

    def __init__(self, tables: Tables, time: int = 0) -> None:
        chains, semaphores = len(tables.spans[0]), tables.chains.semaphores
        self.time = time
        self.known = [[0] * chains for _ in range(chains)]
        self.counts = [0] * chains
        self.stuck: tuple[int, int] | None = None  # a chain, and its item that may not begin
        self.bursts: list[Burst] = []
        self.epochs: list[tuple[int, Clock]] = []  # from a time on, what its burst's chain knows
        self._tables = tables
        self._made = [0] * semaphores
        self._base = [0] * semaphores
        self._offsets = [0] * semaphores
        self._posts: list[list[Clock]] = [[] for _ in range(semaphores)]

    def begin(self, begin: Begin) -> bool:
        """Perform a control row and the stretch behind it; whether nothing got stuck."""
        if begin.row != START:
            tables = self._tables
            self._made = list(tables.control[begin.row])
            self._base = list(self._made)
            chains = range(len(self.counts))
            if not self._perform([tables.last_span(begin.row, chain) for chain in chains]):
                return False
            self._made = list(tables.exit[begin.row])
        return self.step(begin.stretch)

    def step(self, stretch: int) -> bool:
        """Perform a stretch and the control row at its end; whether nothing got stuck."""
        entry, behind = self._tables.entry[stretch], self._tables.exit[stretch]
        made = self._made
        self._offsets = [have - static for have, static in zip(made, entry, strict=True)]
        done = self._perform(self._tables.spans[stretch])
        self._made = [have + static for have, static in zip(self._offsets, behind, strict=True)]
        return done

    def increments_of(self, chain: int) -> Iterator[tuple[int, int, int]]:
        """What a chain alone increments: semaphore, the value to wait for now, the item's count."""
        for sem in sorted(self._tables.owned[chain]):
            first = self._base[sem] - self._offsets[sem] + 1
            for value, stamp in enumerate(self._posts[sem], first):
                yield sem, value, stamp[chain]

    def _perform(self, spans: Sequence[_Span]) -> bool:
        """Perform all items of the spans, each as soon as it may; False if that cannot be done."""
        places = [[first, point] for first, _, point, _ in spans]
        starts = [count - first for count, (first, *_) in zip(self.counts, spans, strict=True)]
        waiting = [chain for chain, (first, behind, *_) in enumerate(spans) if first < behind]
        while waiting:
            before = self.time
            still = []
            for chain in waiting:
                _, behind, _, last = spans[chain]
                if not self._advance(chain, places[chain], (behind, last), starts[chain]):
                    still.append(chain)
            if self.time == before:
                self.stuck = waiting[0], places[waiting[0]][0]
                return False
            waiting = still
        return True

    def _advance(self, chain: int, place: list[int], end: tuple[int, int], start: int) -> bool:
        """Perform a chain's items as far as it goes; whether it came to its end."""
        first, point = place
        stop, last = end
        known, epochs, time = self.known[chain], [], self.time - first
        epochs.append((self.time, known))
        points = self._tables.points[chain]
        while point < last:
            item, sem, value, posts = points[point]
            number = value + self._offsets[sem] - self._base[sem] if sem >= 0 else 0
            if number > 0:
                made = self._posts[sem]
                if number > len(made):
                    stop = item
                    break
                known = list(map(max, known, made[number - 1]))
                epochs.append((time + item, known))
            if posts:
                known[chain] = item + start + 1
                stamp = tuple(known)
                for one in posts:
                    self._posts[one].append(stamp)
            point += 1
        if stop > first:
            self.known[chain] = known
            self.epochs += epochs
            self.bursts.append(Burst(chain, first, stop, first + start, self.time))
            self.time += stop - first
            self.counts[chain] = stop + start
        place[:] = stop, point
        return stop == end[0]

    def mark(self) -> Mark:
        """What `back` needs to come back to here."""
        return (
            [list(known) for known in self.known],
            list(self.counts),
            [len(posts) for posts in self._posts],
            list(self._made),
            len(self.bursts),
            len(self.epochs),
            self.time,
        )

    def back(self, mark: Mark) -> None:
        """Forget what was performed since a mark."""
        known, counts, posts, made, bursts, epochs, self.time = mark
        self.known = [list(one) for one in known]
        self.counts, self._made = list(counts), list(made)
        for list_, length in zip(self._posts, posts, strict=True):
            del list_[length:]
        del self.bursts[bursts:], self.epochs[epochs:]

    def item(self, chain: int, count: int) -> int:
        """The item of a chain that is the `count`-th of the way, counted from 1; -1 for none."""
        for burst in reversed(self.bursts):
            if burst.chain == chain and burst.counted < count:
                return burst.first + count - 1 - burst.counted
        return -1
