"""The rule of growing counters, and what follows from it: every wait names one increment.

Semaphores only grow. Where all increments of a semaphore are made by one queue of one rank, or by
queues of one rank that take turns, they come in the same order in every run, so a wait for value v
is over when increment v is made: by one row, that can be named beforehand. `Edges` names it for
every wait of every queue, and all proofs about order read that.

Control flow changes counts but not this. A loop makes the increments of its rows once more each
time, and a branch that is not taken leaves some out. So values are written as if every block ran
once, and a jump adds to all later values what the rows that it repeats or skips increment. Then a
wait means the same row in every iteration, if it is made before the next control row. That, and
that jumps add the right numbers, is proved here, too.

A counter is numbered `semaphore * ranks + rank`.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
    Jump,
    Post,
    Queue,
    is_run_by,
)
from ncc_runtime.neff.isa import CASE, END, LOOP, TEST
from ncc_runtime.neff.program import BlockKind
from ncc_runtime.order import (
    NEVER,
    NOBODY,
    ChainRun,
    ItemSpan,
    SyncStep,
    Target,
    grouped,
)
from ncc_runtime.verify.flow import QueueFlow, flow_of
from ncc_runtime.verify.places import breach_at, place_of
from ncc_runtime.verify.proof import Breach, Proof
from ncc_runtime.verify.stage_parts import parts_of

SHOWN = 8
"""Breaches of one kind that are told in full; the rest are counted."""

LARGEST_COUNT = 2**31 - 1
"""What a semaphore holds at most. Source: neuron-driver, semaphores are signed 32-bit."""

UNREACHED = "counters.unreached"
"""The rule that every awaited value is reached."""

BLOCK_CELLS = 1 << 19
"""Cells that are looked at together: temporary arrays stay small."""


# ---- what rows increment


@attrs.frozen(eq=False)
class IncrementCells:
    """Single increments: of which kind of row, by which rank, of which counter; (c,) int64 each."""

    kind: np.ndarray
    source: np.ndarray
    counter: np.ndarray


@attrs.frozen(eq=False)
class Increments:
    """The increments of one queue. Rows are of one kind if they increment alike on every rank."""

    kind: np.ndarray  # (n,) int64
    first: np.ndarray  # (kinds,) int64, a row of each kind
    posts: tuple[Post, ...]
    ranks: int
    semaphores: int
    runs: np.ndarray | None = None  # (ranks,) bool, who runs the queue; None: everybody

    @classmethod
    def of(cls, queue: Queue, ranks: int, semaphores: int) -> "Increments":
        """Compares rows, not cells, wherever a column says that its cells are alike."""
        code: np.ndarray = np.zeros(len(queue.sync.wait_sem), np.int64)
        for post in queue.sync.posts:
            for column in (post.rank, post.sem):
                alike = kinds_of_rows(column)
                code = code * (int(alike.max(initial=0)) + 1) + alike
                code = np.unique(code, return_inverse=True)[1]
        _, first, kind = np.unique(code, return_index=True, return_inverse=True)
        runs = None if queue.ranks is None else np.isin(np.arange(ranks), queue.ranks)
        return cls(kind, first, queue.sync.posts, ranks, semaphores, runs)

    def cells(self, kinds: np.ndarray) -> Iterator[IncrementCells]:
        """The increments of one row of each of these kinds, some kinds at a time."""
        step = max(1, BLOCK_CELLS // max(1, self.ranks * len(self.posts)))
        for at in range(0, len(kinds), step):
            some = kinds[at : at + step]
            parts = [np.zeros((3, 0), np.int64)]
            for post in self.posts:
                rank, sem = post.rank[self.first[some]], post.sem[self.first[some]]
                inside = (rank >= 0) & (rank < self.ranks) & (sem >= 0) & (sem < self.semaphores)
                if self.runs is not None:
                    inside &= self.runs
                place, source = np.nonzero(inside)
                counter = sem[place, source].astype(np.int64) * self.ranks + rank[place, source]
                parts.append(np.stack((some[place], source, counter)))
            yield IncrementCells(*np.concatenate(parts, axis=1))

    def add(self, total: np.ndarray, rows: slice) -> None:
        """Add what these rows increment, each once, to `total`, by counter."""
        kinds, counts = np.unique(self.kind[rows], return_counts=True)
        times: np.ndarray = np.zeros(len(self.first), total.dtype)
        times[kinds] = counts
        for cells in self.cells(kinds):
            np.add.at(total, cells.counter, times[cells.kind])


def kinds_of_rows(column: np.ndarray) -> np.ndarray:
    """A number for each row of a column (n, ranks), the same for equal rows; from 0."""
    if column.strides[0] == 0 or not column.size:
        return np.zeros(len(column), np.int64)
    narrow = narrowed(column)
    if narrow.shape[1] == 1:
        return np.unique(narrow[:, 0], return_inverse=True)[1]
    numbers: defaultdict[bytes, int] = defaultdict(itertools.count().__next__)
    ranks, kinds = narrow.shape[1], np.empty(len(narrow), np.int64)
    step = max(1, BLOCK_CELLS // ranks)
    for at in range(0, len(narrow), step):
        some = np.ascontiguousarray(narrow[at : at + step])
        rows: list[bytes] = some.view(f"V{ranks * some.itemsize}").ravel().tolist()
        kinds[at : at + step] = [numbers[row] for row in rows]
    return kinds


def narrowed(column: np.ndarray) -> np.ndarray:
    """A column (n, ranks, …) as (n, 1, …) where it is a view of that."""
    return column[:, :1] if column.ndim > 1 and column.strides[1] == 0 else column


def on_rank(column: np.ndarray, rank: int) -> np.ndarray:
    """(n,) what a column (n, ranks or 1) says of a rank."""
    return column[:, rank if column.shape[1] > 1 else 0]


# ---- which increment is which


@attrs.frozen
class NamedIncrement:
    """A row that increments a counter of several queues, on the rank of the counter's owner."""

    queue: int
    row: int
    source: int


class Edges:
    """For every wait of every queue the increment that it names (`order.RowEdges`).

    By counter, the rows that increment it are a list in their order; counters that are incremented
    by the same rows of a queue, mostly those of one semaphore on all ranks, share it. Counters that
    several queues increment stand in `several`, in the order of their turns if they take turns;
    those that do not also in `unordered`, with two increments that may come in either order.
    """

    def __init__(self, executable: Executable) -> None:
        ranks, semaphores = executable.ranks, max(1, executable.semaphore_count)
        size = ranks * semaphores  # at least one, so that idle waits find something
        self.executable = executable
        self._ranks, self._semaphores = ranks, semaphores
        self.increments = tuple(
            Increments.of(queue, ranks, executable.semaphore_count) for queue in executable.queues
        )
        self.queue: np.ndarray = np.full(size, NOBODY, np.int32)  # by counter, that increments it
        self.source: np.ndarray = np.full(size, NOBODY, np.int32)  # and on which rank
        self.count: np.ndarray = np.zeros(size, np.int64)  # increments, each row once
        self.start: np.ndarray = np.full(size, NOBODY, np.int64)  # where its list begins in `row`
        self.several: dict[int, list[NamedIncrement]] = {}
        self.unordered: dict[int, tuple[NamedIncrement, NamedIncrement] | None] = {}
        lists = [np.zeros(0, np.int32)]
        shared: np.ndarray = np.zeros(size, bool)
        listed = 0
        for number, one in enumerate(self.increments):
            of_queue = _Lists.of(one)
            counters = of_queue.counters
            shared[counters[self.queue[counters] != NOBODY]] = True
            shared[counters[of_queue.has_several_sources]] = True
            self.queue[counters], self.source[counters] = number, of_queue.source
            self.count[counters] += of_queue.count
            self.start[counters] = of_queue.start + listed
            lists.append(of_queue.rows)
            listed += len(of_queue.rows)
        self.row = np.concatenate(lists)
        self.shared = np.flatnonzero(shared)
        if len(self.shared):
            self._note_several()
            self.unordered = _put_in_turn(self)
        self._targets: dict[int, Sequence[Sequence[Target]]] = {}

    def _note_several(self) -> None:
        """List the increments of counters that several queues make, queue by queue."""
        self.several = {counter: [] for counter in self.shared.tolist()}
        is_shared = np.zeros(len(self.count), bool)
        is_shared[self.shared] = True
        for number, one in enumerate(self.increments):
            rows_of = _rows_of_kinds(one.kind)
            for cells in one.cells(np.arange(len(one.first))):
                here = np.flatnonzero(is_shared[cells.counter])
                columns = (cells.kind[here], cells.source[here], cells.counter[here])
                for kind, source, counter in zip(*(c.tolist() for c in columns), strict=True):
                    self.several[counter] += [
                        NamedIncrement(number, row, source) for row in rows_of[kind].tolist()
                    ]
        for made in self.several.values():
            made.sort(key=lambda one: (one.queue, one.source, one.row))

    def targets(self, queue: int) -> Sequence[Sequence[Target]]:
        """By row of a queue, what it waits for."""
        if queue not in self._targets:
            found = grouped(*self.awaited(queue, slice(None)))
            for counter in self.several:
                self._add_several(queue, counter, found)
            self._targets[queue] = found
        return self._targets[queue]

    def posters(self, queue: int, row: int) -> np.ndarray:
        """(ranks,) whose increment each rank waits for in a row; anything for those who do not."""
        sem = narrowed(self.executable.queues[queue].sync.wait_sem)[row]
        by_sem = self.source.reshape(-1, self._ranks)
        if len(sem) == 1:
            return by_sem[sem[0]]
        return np.asarray(by_sem[sem, np.arange(self._ranks)])

    def awaited(self, queue: int, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """(queue, row) that some rows wait for on every rank, (n, ranks or 1) each.

        The queue is NOBODY where a rank does not wait, or for increments of several queues; the row
        is NEVER where there are too few.
        """
        sync, runners = self.executable.queues[queue].sync, self.executable.queues[queue].ranks
        sem, value = narrowed(sync.wait_sem[rows]), narrowed(sync.wait_value[rows])
        ranks = np.arange(self._ranks)
        if sem.shape[1] == value.shape[1] == 1 and self._are_uniform(sem[:, 0], runners):
            ranks = ranks[:1] if runners is None else runners[:1]
        idle = np.zeros(len(ranks), bool) if runners is None else ~np.isin(ranks, runners)
        shape = len(sem), len(ranks)
        owner, row = np.full(shape, NOBODY, np.int32), np.full(shape, NEVER, np.int32)
        step = max(1, BLOCK_CELLS // len(ranks))
        for at in range(0, len(sem), step):
            some = slice(at, at + step)
            owner[some], row[some] = self._resolved(queue, sem[some], value[some], ranks)
        owner[:, idle] = NOBODY
        return owner, row

    def _resolved(
        self, queue: int, sem: np.ndarray, value: np.ndarray, ranks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same for waits, (n, ranks or 1), of some ranks that all run the queue."""
        exists = (sem >= 0) & (sem < self._semaphores)
        counter = np.where(exists, sem, 0).astype(np.int64) * self._ranks + ranks
        several = np.isin(counter, self.shared) if len(self.shared) else np.False_
        enough = exists & ~several & (value > 0) & (value <= self.count[counter])
        place = np.where(enough, self.start[counter] + value - 1, 0)
        row = np.where(enough, self.row[place] if len(self.row) else 0, NEVER)
        owner = np.where(enough, self.queue[counter], queue)
        return np.where((sem != IDLE) & (value > 0) & ~several, owner, NOBODY), row

    def _are_uniform(self, sems: np.ndarray, runners: np.ndarray | None) -> bool:
        """Whether the same rows increment each of these semaphores on all who run a queue."""
        sems = np.unique(sems[(sems >= 0) & (sems < self._semaphores)])
        start = self.start.reshape(-1, self._ranks)[sems]
        start = start if runners is None else start[:, runners]
        is_one = bool((start == start[:, :1]).all())
        return is_one and not np.isin(self.shared // self._ranks, sems).any()

    def _add_several(self, queue: int, counter: int, found: list[Sequence[Target]]) -> None:
        """Targets of waits for a counter that several queues increment."""
        sem, rank = divmod(counter, self._ranks)
        if not is_run_by(self.executable.queues[queue], rank):
            return
        sync = self.executable.queues[queue].sync
        sems, values = narrowed(sync.wait_sem), narrowed(sync.wait_value)
        values = on_rank(values, rank)
        at = np.flatnonzero((on_rank(sems, rank) == sem) & (values > 0))
        made, who = self.several[counter], np.array([rank])
        for row, value in zip(at.tolist(), values[at].tolist(), strict=True):
            if value > len(made):
                named = [Target(queue, NEVER, who, who)]
            elif value == len(made):  # all of them, whatever their order is
                last = {(one.queue, one.source): one for one in made}.values()
                named = [Target(one.queue, one.row, who, np.array([one.source])) for one in last]
            else:
                one = made[value - 1]
                named = [Target(one.queue, one.row, who, np.array([one.source]))]
            found[row] = (*found[row], *named)

    def made_by(self, sem: int, rank: int, reached: Mapping[int, np.ndarray]) -> int:
        """How often a counter is incremented by rows that are reached, (ranks,) by queue."""
        counter = sem * self._ranks + rank
        if counter in self.several:
            return sum(one.row < reached[one.queue][one.source] for one in self.several[counter])
        if self.queue[counter] == NOBODY:
            return 0
        rows = self.row[self.start[counter] : self.start[counter] + self.count[counter]]
        limit = reached[int(self.queue[counter])][self.source[counter]]
        return int(np.count_nonzero(rows < limit))

    def next_increment(
        self, sem: int, rank: int, reached: Mapping[int, np.ndarray]
    ) -> NamedIncrement | None:
        """The first increment of a counter by a row that is not reached; None if all are made."""
        counter = sem * self._ranks + rank
        if counter in self.several:
            left = (
                one for one in self.several[counter] if one.row >= reached[one.queue][one.source]
            )
            return next(left, None)
        made = self.made_by(sem, rank, reached)
        if made >= self.count[counter]:
            return None
        row = int(self.row[self.start[counter] + made])
        return NamedIncrement(int(self.queue[counter]), row, int(self.source[counter]))

    def number_of(self, sem: int, rank: int, made: NamedIncrement) -> int:
        """Which increment of a counter a row makes, from 1."""
        counter = sem * self._ranks + rank
        if counter in self.several:
            return self.several[counter].index(made) + 1
        rows = self.row[self.start[counter] : self.start[counter] + self.count[counter]]
        return int(np.searchsorted(rows, made.row)) + 1


@attrs.frozen(eq=False)
class _Lists:
    """Which rows of one queue increment which counters."""

    counters: np.ndarray  # (c,) that it increments
    source: np.ndarray  # (c,) on which rank
    has_several_sources: np.ndarray  # (c,) bool
    start: np.ndarray  # (c,) where the list of each begins in `rows`
    count: np.ndarray  # (c,)
    rows: np.ndarray  # int32

    @classmethod
    def of(cls, one: Increments) -> "_Lists":
        parts = list(one.cells(np.arange(len(one.first))))
        kind, source, counter = (
            np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])
            for name in ("kind", "source", "counter")
        )
        order = np.lexsort((kind, counter))
        kind, source, counter = kind[order], source[order], counter[order]
        counters, begin, lengths = np.unique(counter, return_index=True, return_counts=True)
        differs = source != np.repeat(source[begin], lengths)
        several: np.ndarray = np.zeros(len(counters), bool)
        several[np.repeat(np.arange(len(counters)), lengths)[differs]] = True
        label = _labels(kind, begin, lengths)
        _, examples = np.unique(label, return_index=True)
        rows_of = _rows_of_kinds(one.kind)
        lists = [
            np.sort(np.concatenate([rows_of[k] for k in kind[at : at + length].tolist()]))
            for at, length in zip(begin[examples].tolist(), lengths[examples].tolist(), strict=True)
        ]
        sizes = np.array([len(rows) for rows in lists], np.int64)
        starts = np.cumsum(sizes) - sizes
        rows = np.concatenate([np.zeros(0, np.int64), *lists]).astype(np.int32)
        return cls(counters, source[begin], several, starts[label], sizes[label], rows)


def _labels(kind: np.ndarray, begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """A number for each of several sequences of kinds, the same for equal ones; from 0, dense."""
    label = np.unique(lengths, return_inverse=True)[1]
    for place in range(int(lengths.max(initial=0))):
        at = np.flatnonzero(lengths > place)
        more = label.copy() * (int(kind.max(initial=0)) + 2)
        more[at] += kind[begin[at] + place] + 1
        label = np.unique(more, return_inverse=True)[1]
    return label


def _rows_of_kinds(kind: np.ndarray) -> Sequence[np.ndarray]:
    """The rows of each kind, ascending."""
    order = np.argsort(kind, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(kind[order])) + 1)


# ---- queues of a rank that take turns


def _put_in_turn(edges: Edges) -> dict[int, tuple[NamedIncrement, NamedIncrement] | None]:
    """Sort what stands in `several` by turns; two increments in no order of counters without.

    Queues of one rank take turns at a counter if each increment is known to be made before the next
    can be: then value n names one of them. What is known comes from a run of the rank's own queues
    on what they tell one another. Waits for DMA rings and other ranks could only teach more and are
    passed over. With control flow what is known depends on the way; there nobody takes turns.
    """
    executable = edges.executable
    repeats: dict[int, bool] = {}
    for part in parts_of(executable):
        repeats |= dict.fromkeys(part.ranks.tolist(), len(part.executable.program.blocks) > 0)
    unordered: dict[int, tuple[NamedIncrement, NamedIncrement] | None] = {}
    by_rank: dict[int, list[int]] = {}
    for counter, made in edges.several.items():
        rank = counter % executable.ranks
        is_own = all(
            one.source == rank and not isinstance(executable.queues[one.queue], DmaQueue)
            for one in made
        )
        if is_own and not repeats[rank]:
            by_rank.setdefault(rank, []).append(counter // executable.ranks)
        else:
            unordered[counter] = None
    runs: dict[object, ChainRun] = {}  # of ranks that are alike
    posts = _own_posts(edges) if by_rank else ()
    for rank, sems in by_rank.items():
        steps = _steps_of_rank(edges, rank, posts)
        if steps not in runs:
            runs[steps] = ChainRun(len(steps), executable.semaphore_count)
            spans = [ItemSpan(0, one[-1].item + 1 if one else 0, one) for one in steps]
            runs[steps].perform(spans, [0] * executable.semaphore_count)
        for sem in sems:
            stamps, counter = runs[steps].made[sem], sem * executable.ranks + rank
            in_turn = [NamedIncrement(one.chain, one.known[one.chain] - 1, rank) for one in stamps]
            if len(in_turn) < len(edges.several[counter]):
                unordered[counter] = None  # the run stops before all are made
                continue
            edges.several[counter] = in_turn
            for stamp, (one, other) in zip(stamps[1:], itertools.pairwise(in_turn), strict=True):
                if one.queue != other.queue and stamp.known[one.queue] <= one.row:
                    unordered[counter] = one, other
                    break
    return unordered


@attrs.frozen(eq=False)
class _OwnPosts:
    """Increments that one queue makes on the rank that runs it, in the order of the ranks."""

    kind: np.ndarray
    source: np.ndarray
    sem: np.ndarray


def _own_posts(edges: Edges) -> Sequence[_OwnPosts]:
    """Of every queue; none of DMA rings."""
    ranks, found = edges.executable.ranks, []
    for queue, increments in zip(edges.executable.queues, edges.increments, strict=True):
        parts = [np.zeros((3, 0), np.int64)]
        for cells in increments.cells(np.arange(len(increments.first))):
            own = cells.counter % ranks == cells.source
            sem = cells.counter[own] // ranks
            parts.append(np.stack((cells.kind[own], cells.source[own], sem)))
        columns = np.concatenate(parts if not isinstance(queue, DmaQueue) else parts[:1], axis=1)
        found.append(_OwnPosts(*columns[:, np.argsort(columns[1], kind="stable")]))
    return found


def _steps_of_rank(
    edges: Edges, rank: int, posts: Sequence[_OwnPosts]
) -> tuple[tuple[SyncStep, ...], ...]:
    """What each queue of a rank waits for and increments of its own; nothing of DMA rings."""
    executable, ranks = edges.executable, edges.executable.ranks
    is_ring = np.array([isinstance(queue, DmaQueue) for queue in executable.queues])
    owner, source = (column[rank::ranks] for column in (edges.queue, edges.source))
    is_local = (owner != NOBODY) & ~is_ring[owner] & (source == rank)
    for counter in edges.shared[edges.shared % ranks == rank].tolist():
        is_local[counter // ranks] = all(
            one.source == rank and not is_ring[one.queue] for one in edges.several[counter]
        )
    found: list[tuple[SyncStep, ...]] = []
    for number, queue in enumerate(executable.queues):
        if isinstance(queue, DmaQueue) or not is_run_by(queue, rank):
            found.append(())
            continue
        wait_sem, value = (
            on_rank(column, rank) for column in (queue.sync.wait_sem, queue.sync.wait_value)
        )
        waits = (wait_sem != IDLE) & is_local[wait_sem]
        own = posts[number]
        begin, end = np.searchsorted(own.source, (rank, rank + 1)).tolist()
        by_kind: dict[int, tuple[int, ...]] = {}
        pairs = zip(own.kind[begin:end].tolist(), own.sem[begin:end].tolist(), strict=True)
        for kind, sem in pairs:
            if is_local[sem]:
                by_kind[kind] = (*by_kind.get(kind, ()), sem)
        kinds = edges.increments[number].kind
        found.append(
            tuple(
                SyncStep(
                    row,
                    int(wait_sem[row]) if waits[row] else IDLE,
                    int(value[row]),
                    by_kind.get(int(kinds[row]), ()),
                )
                for row in np.flatnonzero(waits | np.isin(kinds, list(by_kind))).tolist()
            )
        )
    return tuple(found)


# ---- the proof


def prove_counters(executable: Executable, edges: Edges | None = None) -> Proof:
    """Checks every queue of every rank; `edges` are those of the executable, if at hand."""
    checking = _Checking(executable, edges or Edges(executable))
    kinds = (
        checking.unowned(),
        [Breach("counters.flow", text) for text in checking.flow_faults],
        checking.unreached(),
        checking.beyond_their_placeholder(),
        checking.wrong_shifts(),
        checking.diverging(),
        checking.too_large(),
    )
    breaches = tuple(breach for kind in kinds for breach in _shown(kind))
    return Proof("counters", checking.size(), breaches=breaches)


def _shown(breaches: Iterable[Breach]) -> Iterator[Breach]:
    found = iter(breaches)
    yield from (first := list(itertools.islice(found, SHOWN)))
    if more := sum(1 for _ in found):
        yield Breach(first[-1].rule, f"… and {more} more like the last")


class _Checking:
    """One executable."""

    def __init__(self, executable: Executable, edges: Edges) -> None:
        self._executable, self._edges = executable, edges
        self._ranks = executable.ranks
        self._shape = max(1, executable.semaphore_count), executable.ranks
        self._flow, self.flow_faults = flow_of(executable)

    def size(self) -> str:
        """How much was looked at."""
        count = self._edges.count
        return f"{np.count_nonzero(count)} semaphores, {count.sum()} increments"

    def _name(self, rank: int, sem: int) -> str:
        return self._executable.semaphore_names(rank).get(sem, f"s{sem}")

    def _place(self, queue: int, row: int, rank: int) -> str:
        return place_of(self._executable, queue, row, rank)

    def unowned(self) -> Iterator[Breach]:
        """Counters of several queues whose increments come in no one order."""
        told: set[object] = set()
        for counter, pair in self._edges.unordered.items():
            if self._all_are_awaited(counter):
                continue
            sem, rank = divmod(counter, self._ranks)
            name, made = self._name(rank, sem), self._edges.several[counter]
            if pair is not None:
                one, other = pair
                key = sem, one.queue, one.row, other.queue, other.row
                if key not in told:  # ranks are alike
                    told.add(key)
                    text = (
                        f"{self._place(other.queue, other.row, rank)}: increments {name} without "
                        f"waiting for increment {made.index(one) + 1} of it\n  "
                        f"{self._place(one.queue, one.row, rank)} makes that"
                    )
                    yield self._unordered(text, rank, sem, [other, one])
                continue
            firsts: dict[tuple[int, int], NamedIncrement] = {}
            for one in made:
                firsts.setdefault((one.queue, one.source), one)
            if self._executable.program.blocks and self._is_own(made, rank):
                text = f"rank {rank}: several queues increment {name}, and there is control flow"
                yield self._unordered(text, rank, sem, list(firsts.values()))
                continue
            lines = [
                f"rank {rank}: {len(firsts)} queues increment {name}, in no order that is known",
                *(f"  {self._place(one.queue, one.row, one.source)}" for one in firsts.values()),
            ]
            yield self._unordered("\n".join(lines[:5]), rank, sem, list(firsts.values()))

    def _unordered(self, text: str, rank: int, sem: int, made: Sequence[NamedIncrement]) -> Breach:
        cells = [(one.queue, one.row, one.source) for one in made]
        found = breach_at(self._executable, "counters.unordered", text, *cells, semaphore=sem)
        return attrs.evolve(found, ranks=(rank,))

    def _is_own(self, made: Sequence[NamedIncrement], rank: int) -> bool:
        queues = self._executable.queues
        return all(
            one.source == rank and not isinstance(queues[one.queue], DmaQueue) for one in made
        )

    def _all_are_awaited(self, counter: int) -> bool:
        """Whether every wait asks for all of its increments, which are made once."""
        sem, rank = divmod(counter, self._ranks)
        waited = False
        for queue in self._executable.queues:
            if is_run_by(queue, rank):
                column, value = narrowed(queue.sync.wait_sem), narrowed(queue.sync.wait_value)
                rows = on_rank(column, rank) == sem
                waited = waited or bool(rows.any())
                if (on_rank(value, rank)[rows] < self._edges.count[counter]).any():
                    return False
        return not waited or not self._executable.program.blocks

    def unreached(self) -> Iterator[Breach]:
        """Waits for increments that are never made, or not before the next control row."""
        flow, queues = self._flow, self._executable.queues
        if flow is None:
            return
        for event in range(len(flow.events) + 1):
            limits = np.array([flow.limit(number, event) for number in range(len(queues))])
            if event == len(flow.events):
                limits = np.full_like(limits, NEVER)
            for number, queue in enumerate(queues):
                if not isinstance(queue, DmaQueue):
                    yield from self._unreached_in(number, flow.phase(number, event), limits)

    def _unreached_in(self, number: int, rows: slice, limits: np.ndarray) -> Iterator[Breach]:
        if rows.start == rows.stop:
            return
        for at in range(rows.start, rows.stop):
            for target in self._edges.targets(number)[at]:
                if target.row >= limits[target.queue]:
                    yield from self._unreached_text(number, at, target, limits)

    def _unreached_text(
        self, number: int, row: int, target: Target, limits: np.ndarray
    ) -> Iterator[Breach]:
        queue = self._executable.queues[number]
        ranks = queue.ranks if target.ranks is None else target.ranks
        for rank in (np.arange(self._ranks) if ranks is None else ranks).tolist():
            sem, value, name = self._wait(number, row, rank)
            total = int(self._edges.count[sem * self._ranks + rank])
            text = f"{self._place(number, row, rank)}: waits for {name} >= {value}, "
            if target.row == NEVER:
                text = f"{text}which is incremented {total} times in all"
            else:
                reached = {at: np.full(self._ranks, limit) for at, limit in enumerate(limits)}
                made = self._edges.made_by(sem, rank, reached)
                text = f"{text}which is incremented {made} times before the next control row"
            cell = number, row, rank
            yield breach_at(self._executable, UNREACHED, text, cell, semaphore=sem, value=value)

    def beyond_their_placeholder(self) -> Iterator[Breach]:
        """Rows within a placeholder that wait for later placeholders or other streams.

        That a placeholder, once it is triggered, needs nothing but what came before it is the
        contract on which proofs of its parts rest (docs/proofs.md).
        """
        queues = self._executable.queues
        streams, latest = {}, {}  # by queue, of the CC-cores and rings
        for number, queue in enumerate(queues):
            if not isinstance(queue, EngineQueue):
                streams[number] = queue.stream
                latest[number] = np.maximum.accumulate(queue.placeholder)
        for number, queue in enumerate(queues):
            if not isinstance(queue, CcQueue) or not len(queue.opcode):
                continue
            own = queue.placeholder
            # all rows but the first, which waits for the trigger
            inside = (own != IDLE) & (own == np.append(IDLE, own[:-1]))
            owner, row = self._edges.awaited(number, slice(None))
            wrong = np.zeros(owner.shape, bool)
            for other in np.unique(owner[owner != NOBODY]).tolist():
                of_other = (owner == other) & (row != NEVER)
                if streams.get(other) == queue.stream:
                    place = np.where(of_other, row, 0)
                    of_other &= latest[other][place] > own[:, None]
                wrong |= of_other
            runners = queue.ranks if queue.ranks is not None else np.arange(self._ranks)
            late = "an increment of neither its own collective nor an earlier one of its stream"
            for at, column in np.argwhere(wrong & inside[:, None]).tolist():
                rank = int(runners[0]) if owner.shape[1] == 1 else column
                yield self._wrong_wait("counters.later", number, at, rank, late)
            for at, rank in self._waits_for_several(queue, inside):
                several = "which several queues increment"
                yield self._wrong_wait("counters.several", number, at, rank, several)

    def _wrong_wait(self, rule: str, number: int, row: int, rank: int, why: str) -> Breach:
        sem, value, name = self._wait(number, row, rank)
        text = f"{self._place(number, row, rank)}: waits for {name} >= {value}, {why}"
        cell = number, row, rank
        return breach_at(self._executable, rule, text, cell, semaphore=sem, value=value)

    def _waits_for_several(self, queue: CcQueue, rows: np.ndarray) -> Iterator[tuple[int, int]]:
        """(row, rank) of waits in some rows for counters that several queues increment."""
        shared = self._edges.shared
        if not len(shared):
            return
        everybody = np.arange(self._ranks)
        at = np.flatnonzero(rows)
        sem, value = narrowed(queue.sync.wait_sem)[at], narrowed(queue.sync.wait_value)[at]
        counters = sem.astype(np.int64) * self._ranks + everybody
        waits = (sem != IDLE) & (value > 0) & np.isin(counters, shared)
        if queue.ranks is not None:
            waits &= np.isin(everybody, queue.ranks)
        yield from ((int(at[row]), rank) for row, rank in np.argwhere(waits).tolist())

    def _wait(self, number: int, row: int, rank: int) -> tuple[int, int, str]:
        """The semaphore that a rank waits for in a row, the value, and the semaphore's name."""
        sync = self._executable.queues[number].sync
        sem, value = (
            int(on_rank(column, rank)[row]) for column in (sync.wait_sem, sync.wait_value)
        )
        return sem, value, self._name(rank, sem)

    # ---- jumps: each shifts waited values by what the rows that it repeats or skips increment

    def wrong_shifts(self) -> Iterator[Breach]:
        """Jumps that shift waited values by too much or too little.

        Values count as if every block ran once, so inner blocks count once, too. A shift matters
        for the counters that its queue waits for; of others it may say anything.
        """
        flow = self._flow
        if flow is None or not flow.events:
            return
        queues = self._executable.queues
        waits = {n: self._awaited(q) for n, q in enumerate(queues) if not isinstance(q, DmaQueue)}
        for block, description in enumerate(self._executable.program.blocks):
            if block in flow.matched:
                continue  # looked at with its first
            is_loop = description.kind is BlockKind.LOOP
            repeated = self._made(flow, block, LOOP if is_loop else CASE)
            skipped = self._made(flow, block, TEST if is_loop else CASE)
            for number, mask in waits.items():
                if not flow.follows(number, block):
                    for sem, rank in np.argwhere(mask & (repeated != 0))[:1].tolist():
                        text = (
                            f"rank {rank}, queue {queues[number].name}: waits for "
                            f"{self._name(rank, sem)}, which grows in k{block}; the queue does not "
                            f"follow k{block}"
                        )
                        yield Breach("counters.shift", text, semaphore=sem, ranks=(rank,))
                    continue
                for row, jump in self._jumps(flow, number, block):
                    repeats = jump.decision is Decision.ALWAYS
                    due = np.where(mask, repeated if repeats else -skipped, 0)
                    yield from self._wrong_shift(number, row, jump, due, mask)

    def _awaited(self, queue: Queue) -> np.ndarray:
        """The counters that a queue waits for anywhere, (semaphores, ranks) bool."""
        found: np.ndarray = np.zeros(self._shape, bool)
        column = narrowed(queue.sync.wait_sem)
        runs = np.ones(self._ranks, bool) if queue.ranks is None else np.zeros(self._ranks, bool)
        if queue.ranks is not None:
            runs[queue.ranks] = True
        row, rank = np.nonzero((column >= 0) & (column < self._shape[0]))
        if column.shape[1] == 1:
            found[np.unique(column[row, 0])] = runs
        else:
            found[column[row, rank], rank] = True
            found &= runs
        return found

    def _made(self, flow: QueueFlow, block: int, opens: str) -> np.ndarray:
        """Increments of all queues behind an event of a block, up to its end, by counter."""
        first, last = flow.place(opens, block), flow.place(END, block)
        total: np.ndarray = np.zeros(len(self._edges.count), np.int64)
        for number, one in enumerate(self._edges.increments):
            if flow.follows(number, block):
                one.add(total, flow.between(number, first, last))
        return total.reshape(self._shape)

    def _jumps(self, flow: QueueFlow, number: int, block: int) -> Iterator[tuple[int, Jump]]:
        """The jumps of a block in a queue."""
        queue = self._executable.queues[number]
        if not isinstance(queue, DmaQueue):
            for row, jump in queue.jumps.items():
                if flow.matched.get(jump.block, jump.block) == block:
                    yield row, jump

    def _wrong_shift(
        self, number: int, row: int, jump: Jump, due: np.ndarray, mask: np.ndarray
    ) -> Iterator[Breach]:
        """The first counter of a jump that is shifted by something else."""
        stated: np.ndarray = np.zeros(self._shape, np.int64)
        width = min(self._shape[0], jump.shift.shape[1])
        stated[:width] = jump.shift[:, :width].T
        for sem, rank in np.argwhere(mask & (stated != due))[:1].tolist():
            what = "repeats" if jump.decision is Decision.ALWAYS else "skips"
            text = (
                f"{self._place(number, row, rank)}: shifts waits for {self._name(rank, sem)} by "
                f"{stated[sem, rank]}, the rows that it {what} increment it "
                f"{abs(due[sem, rank])} times"
            )
            cell = number, row, rank
            yield breach_at(self._executable, "counters.shift", text, cell, semaphore=sem)

    # ---- divergence: ranks may decide differently on a block

    def diverging(self) -> Iterator[Breach]:
        """Increments in a block that are awaited by a rank that may decide otherwise on it.

        The first of each queue and block.

        The predicate of a block is the same on the ranks of a group of a collective in it, and need
        not be on others. A rank that waits for what grows in a block counts by its own decisions,
        so whoever makes the increment must decide alike: collectives of the block tie the two,
        perhaps by way of others.
        """
        flow, queues = self._flow, self._executable.queues
        if flow is None or not flow.events:
            return
        waits: np.ndarray = np.zeros(self._shape, bool)
        for queue in queues:
            if not isinstance(queue, DmaQueue):
                waits |= self._awaited(queue)
        awaited = waits.ravel()
        for block, description in enumerate(self._executable.program.blocks):
            if block in flow.matched:
                continue  # looked at with its first
            opens = LOOP if description.kind is BlockKind.LOOP else CASE
            first, last = flow.place(opens, block), flow.place(END, block)
            spans = {
                number: flow.between(number, first, last)
                for number in range(len(queues))
                if flow.follows(number, block)
            }
            tied = self._tied(spans)  # equal for ranks that decide alike
            for number, rows in spans.items():
                increments = self._edges.increments[number]
                for cells in increments.cells(np.unique(increments.kind[rows])):
                    waiting = cells.counter % self._ranks  # the rank of the semaphore
                    apart = awaited[cells.counter] & (tied[cells.source] != tied[waiting])
                    if apart.any():
                        yield self._divergence(block, number, rows, cells, int(apart.argmax()))
                        break

    def _divergence(
        self, block: int, number: int, rows: slice, cells: IncrementCells, at: int
    ) -> Breach:
        """One of these increments, in the first of the rows that make it."""
        kinds = self._edges.increments[number].kind[rows]
        row = rows.start + int((kinds == cells.kind[at]).argmax())
        sem, rank = divmod(int(cells.counter[at]), self._ranks)
        source = int(cells.source[at])
        text = (
            f"{self._place(number, row, source)}: increments {self._name(rank, sem)} of rank "
            f"{rank}, which may go another way at k{block}; no collective of k{block} ties the two"
        )
        cell = number, row, source
        return breach_at(self._executable, "counters.divergence", text, cell, semaphore=sem)

    def _tied(self, spans: Mapping[int, slice]) -> np.ndarray:
        """(ranks,) the first of the ranks that are tied to each."""
        numbers: set[int] = set()
        for number, rows in spans.items():
            queue = self._executable.queues[number]
            if isinstance(queue, CcQueue):
                numbers.update(queue.placeholder[rows].tolist())
        placeholders = [self._executable.program.placeholders[n] for n in sorted(numbers - {IDLE})]
        tied = np.arange(self._ranks)
        for group in {group for one in placeholders for group in one.groups or one.pairs}:
            met = np.unique(tied[list(group)])
            tied[np.isin(tied, met)] = met[0]
        return tied

    def too_large(self) -> Iterator[Breach]:
        """Counters that do not fit, with the trips of loops that are known."""
        total = self._edges.count
        if self._flow is not None and self._flow.events:
            total = self._with_trips(self._flow)
        for counter in np.flatnonzero(total > LARGEST_COUNT).tolist():
            sem, rank = divmod(counter, self._ranks)
            text = (
                f"rank {rank}: {self._name(rank, sem)} is incremented {total[counter]:.0f} times, "
                f"a semaphore holds at most {LARGEST_COUNT}"
            )
            yield Breach("counters.range", text, semaphore=sem, ranks=(rank,))

    def _with_trips(self, flow: QueueFlow) -> np.ndarray:
        total: np.ndarray = np.zeros(len(self._edges.count), np.float64)
        blocks = self._executable.program.blocks
        for number, one in enumerate(self._edges.increments):
            times = [1.0]
            for event, (opcode, block) in enumerate((*flow.events, ("", IDLE))):
                made: np.ndarray = np.zeros(len(total), np.int64)
                one.add(made, flow.phase(number, event))
                total += made * times[-1]
                trips = blocks[block].trip_count if block != IDLE else None
                if opcode == LOOP:
                    times.append(times[-1] * (1 if trips is None else trips + 1))
                elif opcode == TEST:
                    times[-1] = times[-2] * (1 if trips is None else trips)
                elif opcode == END and blocks[block].kind is BlockKind.LOOP:
                    times.pop()
        return total
