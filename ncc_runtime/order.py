"""Happens-before: an order of all rows that their waits allow, and what each row knows of others.

A queue is a program that all of its ranks perform row by row. A row may wait for rows of other
queues, or of its own queue on other ranks; `RowEdges` name them. A row that another waits for
happens before it, and so does the row before it in its queue (Lamport, 1978). This is the only
engine that walks queues so, and it needs nothing but these edges. Others resolve waits to rows: of
a placed program `verify/counters.py`, of one that is not placed `neff/rank_queues.py`, of the steps
of a plan `plans/msccl_graph.py`. It stands above all three since `verify` reads `neff`, which must
not read `verify`; nothing that lowers or runs imports it.

`run` performs every row once, as early as it may. Which rows it completes does not depend on the
order in which it takes the queues, since a row that may start stays so. So it comes to the end if
and only if no rows wait for each other in a cycle.

`unmet` goes through rows in such an order and keeps vector clocks (Fidge, 1988; Mattern, 1988):
for each queue of each rank, how many of its rows are known to be complete. All ranks that perform a
row together do so in one call of numpy.

`ChainRun` keeps the same clocks for the chains of a single rank, item by item, where waits are not
resolved beforehand: along a path through loops, or while it is open who makes which increment.
"""

import copy
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import attrs
import numpy as np

NOBODY = -1
"""In place of a queue, a row or a rank: there is none."""

Waiting = tuple[int, int]
"""A queue, and a rank that cannot go on there."""

NEVER = np.iinfo(np.int32).max
"""In place of a row: one that no queue comes to."""

_ROW_BITS = 32
"""A queue has fewer rows than two to this."""


class Target(NamedTuple):
    """What one row waits for: that a row of a queue is complete, on the rank of each poster."""

    queue: int
    row: int
    ranks: np.ndarray | None = None  # (r,) who waits, ascending; None: all who run the queue
    posters: np.ndarray | None = None  # (r,) for whose row each waits; None: `Edges.posters`
    is_own: bool = False  # each waits for a row of its own rank, and there are no posters


class RowEdges(Protocol):
    """What every row waits for."""

    def targets(self, queue: int) -> Sequence[Sequence[Target]]:
        """By row of a queue, what it waits for; a rank may stand in several targets of a row."""

    def posters(self, queue: int, row: int) -> np.ndarray:
        """(ranks,) for whose row each rank waits in this row; anything for those who do not."""


def posters_of(
    edges: RowEdges, queue: int, row: int, target: Target, who: np.ndarray
) -> np.ndarray:
    """For whose row each of these ranks waits: those that stand in a target of a row."""
    if target.is_own:
        return who
    return edges.posters(queue, row)[who] if target.posters is None else target.posters


def grouped(queue: np.ndarray, row: np.ndarray) -> list[Sequence[Target]]:
    """Targets by row, from what every rank waits for: (n, ranks or 1) each, NOBODY for nothing.

    Ranks that wait for the same row of the same queue stand in one target.
    """
    found: list[Sequence[Target]] = [()] * len(queue)
    is_one = ((queue == queue[:, :1]) & (row == row[:, :1])).all(axis=1)
    alike = np.flatnonzero(is_one & (queue[:, 0] != NOBODY)) if len(queue) else np.zeros(0, int)
    pairs = zip(queue[alike, 0].tolist(), row[alike, 0].tolist(), strict=True)
    for at, pair in zip(alike.tolist(), pairs, strict=True):
        found[at] = (Target(*pair),)
    others = np.flatnonzero(~is_one)
    place, rank = np.nonzero(queue[others] != NOBODY)
    of_queue, of_row = queue[others][place, rank], row[others][place, rank]
    order = np.lexsort((rank, of_row, of_queue, place))
    place, rank, of_queue, of_row = place[order], rank[order], of_queue[order], of_row[order]
    new = np.ones(len(place) + 1, bool)
    new[1:-1] = (np.diff(place) != 0) | (np.diff(of_queue) != 0) | (np.diff(of_row) != 0)
    for first, last in itertools.pairwise(np.flatnonzero(new).tolist()):
        at = int(others[place[first]])
        target = Target(int(of_queue[first]), int(of_row[first]), rank[first:last])
        found[at] = (*found[at], target)
    return found


@attrs.frozen(eq=False)
class EdgesOfOneRank:
    """What every row waits for, by queue and row, where there is one rank: all targets are own."""

    rows: Sequence[Sequence[Sequence[Target]]]

    def targets(self, queue: int) -> Sequence[Sequence[Target]]:
        return self.rows[queue]

    def posters(self, queue: int, row: int) -> np.ndarray:
        raise AssertionError(f"row {row} of queue {queue} waits for rows of its own rank")

    def run(self) -> "GreedyRun":
        """Perform all that can be performed."""
        return run([RowQueue(number, len(its)) for number, its in enumerate(self.rows)], self, 1)


class Batch(NamedTuple):
    """One row of one queue, performed on some ranks."""

    queue: int
    row: int
    ranks: np.ndarray | None  # (r,) ascending; None: all, and all run the queue


@attrs.frozen(eq=False)
class RowQueue:
    """A queue as the engine sees it."""

    number: int
    length: int
    runners: np.ndarray | None = None  # (r,) ascending: the ranks that run it; None: all
    barred: Mapping[int, np.ndarray] = attrs.field(factory=dict)
    """By row, (ranks,) bool: on which ranks it can never be performed, whatever it waits for."""


@attrs.frozen(eq=False, slots=False)
class GreedyRun:
    """What a run completes."""

    batches: Sequence[Batch]  # each behind all that it waits for
    reached: Mapping[int, np.ndarray]  # by queue, (ranks,): rows completed
    stuck: Sequence[Waiting]  # those that have rows left

    def of_rows(self, queue: int, first: int, last: int) -> np.ndarray:
        """The places in `batches` of rows of a queue from first up to last, row by row."""
        keys, places = self._by_row
        begin, end = np.searchsorted(keys, [(queue << _ROW_BITS) + at for at in (first, last)])
        return places[begin:end]

    @cached_property
    def _by_row(self) -> tuple[np.ndarray, np.ndarray]:
        """Queue and row of each batch as one number, ascending, and the batch's place."""
        keys = [(batch.queue << _ROW_BITS) + batch.row for batch in self.batches]
        key = np.array(keys, np.int64)
        places = np.argsort(key, kind="stable")
        return key[places], places


def cycles(awaited: Mapping[Waiting, Waiting]) -> list[list[Waiting]]:
    """All cycles of what waits each for one other: the shortest first, from its least member on.

    Of two as short the one with the lesser members comes first.
    """
    found: list[list[Waiting]] = []
    seen: set[Waiting] = set()
    for start in awaited:
        path: dict[Waiting, None] = {}
        at = start
        while at in awaited and at not in seen:
            seen.add(at)
            path[at] = None
            at = awaited[at]
        if at in path:  # else the path runs into one before it
            cycle = [*path][[*path].index(at) :]
            least = cycle.index(min(cycle))
            found.append([*cycle[least:], *cycle[:least]])
    return sorted(found, key=lambda members: (len(members), members))


def run(chains: Sequence[RowQueue], edges: RowEdges, ranks: int) -> GreedyRun:
    """Perform all that can be performed."""
    engine = _Engine(chains, edges, ranks)
    while engine.advance():
        pass
    return engine.result()


class _ChainPosition:
    """Where the ranks of a queue stand."""

    def __init__(self, chain: RowQueue, targets: Sequence[Sequence[Target]]) -> None:
        self.chain = chain
        self.targets = targets
        self.row = 0  # of all who run it, as long as they stand together
        self.rows: np.ndarray | None = None  # (ranks,) where they do not

    def of_ranks(self, ranks: int) -> np.ndarray:
        """(ranks,) rows completed; of who does not run the queue all."""
        if self.rows is not None:
            return self.rows
        if self.chain.runners is None:
            return np.full(ranks, self.row, np.int64)
        found = np.full(ranks, self.chain.length, np.int64)
        found[self.chain.runners] = self.row
        return found


class _Engine:
    def __init__(self, chains: Sequence[RowQueue], edges: RowEdges, ranks: int) -> None:
        self._edges = edges
        self._ranks = ranks
        self._everybody = np.arange(ranks)
        self._at = {one.number: _ChainPosition(one, edges.targets(one.number)) for one in chains}
        self._batches: list[Batch] = []

    def result(self) -> GreedyRun:
        reached = {number: at.of_ranks(self._ranks) for number, at in self._at.items()}
        stuck = [
            (number, rank)
            for number, at in self._at.items()
            if at.rows is not None or at.row < at.chain.length
            for rank in np.flatnonzero(reached[number] < at.chain.length).tolist()
        ]
        return GreedyRun(self._batches, reached, stuck)

    def advance(self) -> bool:
        """Let each queue go as far as it can; whether any moved.

        Ranks of a queue part only when no queue can go on with all of its ranks: then programs that
        share a collective come through it side by side, and batches stay few.
        """
        before = len(self._batches)
        self._together()
        if len(self._batches) == before and self._ranks > 1:
            for at in self._at.values():
                while self._apart(at) or (at.rows is None and self._go_on(at)):
                    pass
        return len(self._batches) > before

    def _together(self) -> None:
        """Let each queue go on with all of its ranks as far as it can.

        One that waits is looked at again when the row is complete that it waits for: the time goes
        with rows and targets, however many queues there are.
        """
        ready = deque(at for at in self._at.values() if at.rows is None)
        waiting: dict[tuple[int, int], list[_ChainPosition]] = {}  # by queue and row
        while ready:
            at = ready.popleft()
            first = at.row
            self._go_on(at)
            for row in range(first, at.row) if waiting else ():
                ready.extend(waiting.pop((at.chain.number, row), ()))
            if at.row < at.chain.length:
                target = self._unready(at)
                if target is not None:
                    waiting.setdefault((target.queue, target.row), []).append(at)

    def _go_on(self, at: _ChainPosition) -> bool:
        """Perform rows as long as all who run the queue can; whether there was one."""
        first, chain = at.row, at.chain
        while at.row < chain.length:
            if at.targets[at.row] and self._unready(at) is not None:
                break
            if at.row in chain.barred and chain.barred[at.row].any():
                break
            self._batches.append(Batch(chain.number, at.row, chain.runners))
            at.row += 1
        return at.row > first

    def _unready(self, at: _ChainPosition) -> Target | None:
        """The first target that some rank still waits for, of a queue whose ranks are together."""
        for target in at.targets[at.row]:
            other = self._at[target.queue]
            if other.rows is None:
                if other.row <= target.row:
                    return target
            elif not self._ready(at, at.row).all():
                return target
        return None

    def _ready(self, at: _ChainPosition, row: int) -> np.ndarray:
        """(ranks,) bool: whose waits in a row are over, or who does not wait there."""
        ready = np.ones(self._ranks, bool)
        for target in at.targets[row]:
            done = self._at[target.queue].of_ranks(self._ranks)
            who = at.chain.runners if target.ranks is None else target.ranks
            who = self._everybody if who is None else who
            ready[who] &= (
                done[posters_of(self._edges, at.chain.number, row, target, who)] > target.row
            )
        if row in at.chain.barred:
            ready &= ~at.chain.barred[row]
        return ready

    def _apart(self, at: _ChainPosition) -> bool:
        """Perform rows on the ranks that can, one row each; whether there was one."""
        chain = at.chain
        rows = at.of_ranks(self._ranks).copy()
        moved = False
        for row in np.unique(rows).tolist():
            if row < chain.length:
                ranks = np.flatnonzero((rows == row) & self._ready(at, row))
                if len(ranks):
                    self._batches.append(Batch(chain.number, row, ranks))
                    rows[ranks] = row + 1
                    moved = True
        running = rows if chain.runners is None else rows[chain.runners]
        if (running == running[0]).all():
            at.row, at.rows = int(running[0]), None
        elif moved:
            at.rows = rows
        return moved


@attrs.frozen(eq=False)
class Obligations:
    """Rows that must know of others when they start: that these are complete. Arrays (n,) each."""

    rank: np.ndarray  # who must know
    queue: np.ndarray  # in which queue
    row: np.ndarray  # when it starts this row
    of_rank: np.ndarray  # of whom
    of_queue: np.ndarray
    of_row: np.ndarray  # that this row is complete, and with it all before it

    def __len__(self) -> int:
        return len(self.row)

    def at(self, where: np.ndarray) -> "Obligations":
        """Some of them."""
        return Obligations(*(column[where] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        """All columns, in the order of the class."""
        return self.rank, self.queue, self.row, self.of_rank, self.of_queue, self.of_row

    @classmethod
    def of(cls, *columns: np.ndarray | int) -> "Obligations":
        """From columns of one length; a number stands for a column of it."""
        return cls(*np.broadcast_arrays(*columns))

    @classmethod
    def together(cls, parts: Sequence["Obligations"]) -> "Obligations":
        """Those of all parts."""
        none = cls(*(np.zeros(0, np.int64) for _ in range(6)))
        columns = zip(*(part.columns() for part in (none, *parts)), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


class Tracking(Protocol):
    """Whose rows each rank counts: a clock has a slot for each of them, and that has all queues."""

    @property
    def width(self) -> int:
        """Slots of every rank."""

    @property
    def own(self) -> np.ndarray:
        """(ranks,) the slot of each rank's own rows, NOBODY for none."""

    def slots(self, rank: np.ndarray, of_rank: np.ndarray) -> np.ndarray:
        """Where ranks count the rows of others, NOBODY where they do not."""

    def carried(self, clock: np.ndarray, posters: np.ndarray, at: np.ndarray) -> np.ndarray:
        """What ranks `at` learn from the clocks of their posters, (r, slots, queues)."""


@attrs.frozen(eq=False)
class Chosen:
    """Every rank counts the rows of the same ranks."""

    ranks: int
    chosen: np.ndarray  # (slots,)

    @property
    def width(self) -> int:
        return len(self.chosen)

    @property
    def own(self) -> np.ndarray:
        found = np.full(self.ranks, NOBODY)
        found[self.chosen] = np.arange(self.width)
        return found

    def slots(self, rank: np.ndarray, of_rank: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return self.own[of_rank]

    def carried(self, clock: np.ndarray, posters: np.ndarray, at: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return clock[posters]


@attrs.frozen(eq=False)
class OrderedQueues:
    """Queues from number 0 on, of ranks from 0 on, with rows in an order that their waits allow."""

    count: int
    ranks: int
    longest: int  # rows of a queue, at most
    edges: RowEdges
    batches: Sequence[Batch]


def unmet(queues: OrderedQueues, tracking: Tracking, due: Obligations) -> np.ndarray:
    """(n,) bool: which obligations do not follow from what is tracked."""
    questions = _Questions(queues, tracking, due)
    if questions.are_any:
        _Clocks(queues, tracking).go_through(questions)
    return questions.unmet


class _Questions:
    """Obligations, sorted by the row that must know."""

    def __init__(self, queues: OrderedQueues, tracking: Tracking, due: Obligations) -> None:
        self.unmet: np.ndarray = np.ones(len(due), bool)
        slot = tracking.slots(due.rank, due.of_rank)
        order = np.lexsort((due.row, due.queue))
        order = order[slot[order] != NOBODY]  # of others nothing is known
        queue, row = due.queue[order], due.row[order]
        self._order = order
        self._rank = due.rank[order]
        # a clock is an array (ranks, slots, queues); this is the place of one number in it
        self._entry = (self._rank * tracking.width + slot[order]) * queues.count
        self._entry += due.of_queue[order]
        self._least = due.of_row[order] + 1
        edges = np.flatnonzero((np.diff(queue, prepend=-1) != 0) | (np.diff(row, prepend=-1) != 0))
        self._of_row = {
            (int(queue[first]), int(row[first])): slice(first, last)
            for first, last in itertools.pairwise([*edges.tolist(), len(row)])
        }

    @property
    def are_any(self) -> bool:
        """Whether there is anything to ask."""
        return len(self._order) > 0

    def ask(self, batch: Batch, clock: np.ndarray) -> None:
        """Note what the ranks of a batch know as it starts."""
        these = self._of_row.get((batch.queue, batch.row))
        if these is None:
            return
        lacks = clock.reshape(-1)[self._entry[these]] < self._least[these]
        at = self._order[these]
        if batch.ranks is not None:
            asked = np.isin(self._rank[these], batch.ranks)
            at, lacks = at[asked], lacks[asked]
        self.unmet[at] = lacks


class _Clocks:
    """Vector clocks, (ranks, slots, queues) for each queue: how many rows are known complete."""

    def __init__(self, queues: OrderedQueues, tracking: Tracking) -> None:
        self._batches, self._edges, self._tracking = queues.batches, queues.edges, tracking
        self._targets = [queues.edges.targets(queue) for queue in range(queues.count)]
        self._everybody = np.arange(queues.ranks)
        # the narrowest numbers that hold a count: most of the time goes into moving clocks
        dtype = np.min_scalar_type(queues.longest)
        shape = (queues.ranks, tracking.width, queues.count)
        self._latest = [np.zeros(shape, dtype) for _ in range(queues.count)]
        self._own = tracking.own
        self._kept: dict[tuple[int, int], np.ndarray] = {}
        self._uses: dict[tuple[int, int], int] = {}  # ranks that have yet to learn of a row
        for targets in self._targets:
            for target in (target for row in targets for target in row):
                key = target.queue, target.row
                ranks = queues.ranks if target.ranks is None else len(target.ranks)
                self._uses[key] = self._uses.get(key, 0) + ranks

    def go_through(self, questions: _Questions) -> None:
        """All batches, in their order."""
        for batch in self._batches:
            queue, row, ranks = batch
            clock = self._latest[queue]
            if (queue, row - 1) in self._kept and self._kept[queue, row - 1] is clock:
                clock = clock.copy()  # others have yet to learn what this row knew
            for target in self._targets[queue][row]:
                self._learn(clock, batch, target)
            questions.ask(batch, clock)
            at = self._everybody if ranks is None else ranks
            at = at[self._own[at] != NOBODY]
            clock[at, self._own[at], queue] = row + 1
            self._latest[queue] = clock
            if self._uses.get((queue, row)):
                self._keep((queue, row), clock, ranks)

    def _learn(self, clock: np.ndarray, batch: Batch, target: Target) -> None:
        """Join what ranks know with what the posters knew behind the awaited row."""
        key = target.queue, target.row
        who = self._everybody if target.ranks is None else target.ranks
        posters = posters_of(self._edges, batch.queue, batch.row, target, who)
        if batch.ranks is not None:
            now = np.isin(who, batch.ranks)
            who, posters = who[now], posters[now]
        if not len(who):
            return
        known, is_all = self._kept[key], len(who) == len(clock)
        if not target.is_own:
            known = self._tracking.carried(known, posters, who)
        elif not is_all:
            known = known[who]
        if is_all:
            np.maximum(clock, known, out=clock)
        else:
            clock[who] = np.maximum(clock[who], known)
        self._uses[key] -= len(who)
        if not self._uses[key]:
            del self._kept[key], self._uses[key]

    def _keep(self, key: tuple[int, int], clock: np.ndarray, ranks: np.ndarray | None) -> None:
        """Keep what is known behind a row for those who wait for it."""
        kept = self._kept.get(key)
        if ranks is None or kept is None:
            self._kept[key] = clock
        elif kept is not clock:
            kept = kept.copy()  # it may be what is known behind another row, too
            kept[ranks] = clock[ranks]
            self._kept[key] = kept


# ---- one rank's chains, item by item


class SyncStep(NamedTuple):
    """An item of a chain that waits for a semaphore of its rank, increments some, or both."""

    item: int
    sem: int  # that it waits for, NOBODY for none
    value: int
    posts: Sequence[int]


class ItemSpan(NamedTuple):
    """Items of a chain that follow one another; those without a step wait for nothing."""

    first: int
    end: int
    steps: Sequence[SyncStep]


class Stamp(NamedTuple):
    """An increment: whose it is, and how many items of each chain it tells to be complete."""

    chain: int
    known: Sequence[int]


class RunSlice(NamedTuple):
    """Items of a chain that were performed one after the other, with one state of knowledge."""

    chain: int
    first: int
    end: int
    performed: int  # items of the chain before these
    time: int  # of the first; the next comes at the next time
    known: Sequence[int]  # when each started: items of every other chain that are complete


class ChainRun:
    """The chains of one rank, performed along a path: each item as soon as it may.

    All is counted from where the path begins: the items of a chain, which come again in loops, and
    the increments of a semaphore. What lies before is known to nobody; waits for it are over and
    tell nothing. Times grow, so nothing happens before what has an earlier time.
    """

    def __init__(self, chains: int, semaphores: int, time: int = 0) -> None:
        self.time = time
        self.known = [[0] * chains for _ in range(chains)]  # by chain, what it knows of each
        self.made: list[list[Stamp]] = [[] for _ in range(semaphores)]
        self.offsets = [0] * semaphores  # the increment that a wait for value v names is v + offset
        self.slices: list[RunSlice] = []
        self._counts = [0] * chains

    def fork(self) -> "ChainRun":
        """The same up to here, to go on along another path."""
        other = copy.copy(self)
        other.known = [list(known) for known in self.known]
        other.made = [list(made) for made in self.made]
        other.slices, other._counts = list(self.slices), list(self._counts)
        return other

    def perform(self, spans: Sequence[ItemSpan], before: Sequence[int]) -> tuple[int, int] | None:
        """Perform a span of every chain; a chain and an item that never starts, None if all do.

        `before` says of every semaphore what waits in these spans take it to hold when they begin.
        """
        self.offsets = [len(made) - held for made, held in zip(self.made, before, strict=True)]
        at = [(span.first, 0) for span in spans]
        left = [chain for chain, span in enumerate(spans) if span.first < span.end]
        while left:
            time = self.time
            for chain in left:
                at[chain] = self._advance(chain, spans[chain], *at[chain])
            if self.time == time:
                return left[0], at[left[0]][0]
            left = [chain for chain in left if at[chain][0] < spans[chain].end]
        return None

    def _advance(self, chain: int, span: ItemSpan, first: int, step: int) -> tuple[int, int]:
        """Perform a chain's items from `first` on as far as it can; the next item and step."""
        known, end = self.known[chain], span.end
        time, count = self.time - first, self._counts[chain] - first  # of an item, less its number
        slice_first = first
        while step < len(span.steps):
            item, sem, value, posts = span.steps[step]
            number = value + self.offsets[sem] if sem != NOBODY else 0
            if number > 0:
                made = self.made[sem]
                if number > len(made):
                    end = item
                    break
                if item > slice_first:
                    begun = count + slice_first, time + slice_first
                    self.slices.append(RunSlice(chain, slice_first, item, *begun, known))
                slice_first = item
                known = list(map(max, known, made[number - 1].known))
            if posts:
                known[chain] = count + item + 1
                stamp = Stamp(chain, tuple(known))
                for one in posts:
                    self.made[one].append(stamp)
            step += 1
        if end > slice_first:
            begun = count + slice_first, time + slice_first
            self.slices.append(RunSlice(chain, slice_first, end, *begun, known))
        self.known[chain] = known
        self._counts[chain] = count + end
        self.time = time + end
        return end, step

    def item(self, chain: int, count: int) -> int:
        """The item of a chain that it performed as its `count`-th, from 1; NOBODY for none."""
        for one in reversed(self.slices):
            if one.chain == chain and one.performed < count:
                return one.first + count - 1 - one.performed
        return NOBODY
