"""What the rows of queues increment: rows that increment alike are told apart once.

A counter is named by one number, `semaphore * ranks + rank`; a chain, which is a queue on one rank,
by `queue * ranks + rank`.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable, Post, Queue

STRETCH = 1 << 19
"""Cells that are looked at together: temporary arrays stay small."""

NO_CHAIN = -1


@attrs.frozen(eq=False)
class Cells:
    """Single increments: of which kind of row, by which rank, of which counter."""

    kind: np.ndarray  # (c,) int64
    source: np.ndarray  # (c,) int64
    counter: np.ndarray  # (c,) int64


@attrs.frozen(eq=False)
class Increments:
    """The increments of one queue."""

    kind: np.ndarray  # (n,) int64: rows of one kind increment alike on every rank
    first: np.ndarray  # (kinds,) int64, a row of each kind
    posts: tuple[Post, ...]
    ranks: int
    semaphores: int
    runs: np.ndarray | None = None  # (ranks,) bool, who runs the queue; None: everybody

    @classmethod
    def of(cls, queue: Queue, ranks: int, semaphores: int) -> "Increments":
        """Compares rows, not cells, wherever a column says that its cells are alike."""
        rows = len(queue.sync.wait_sem)
        code: np.ndarray = np.zeros(rows, np.int64)
        for post in queue.sync.posts:
            for column in (post.rank, post.sem):
                alike = kinds_of_rows(column)
                code = code * (int(alike.max(initial=0)) + 1) + alike
                code = np.unique(code, return_inverse=True)[1]
        _, first, kind = np.unique(code, return_index=True, return_inverse=True)
        runs = None if queue.ranks is None else np.isin(np.arange(ranks), queue.ranks)
        return cls(kind, first, queue.sync.posts, ranks, semaphores, runs)

    def cells(self, kinds: np.ndarray) -> Cells:
        """The increments of one row of each of these kinds; those of no counter are left out."""
        rows = self.first[kinds]
        parts = []
        for post in self.posts:
            rank, sem = post.rank[rows], post.sem[rows]
            inside = (rank >= 0) & (rank < self.ranks) & (sem >= 0) & (sem < self.semaphores)
            if self.runs is not None:
                inside &= self.runs
            place, source = np.nonzero(inside)
            counter = sem[place, source].astype(np.int64) * self.ranks + rank[place, source]
            parts.append((kinds[place], source, counter))
        if not parts:
            return Cells(*(np.zeros(0, np.int64) for _ in range(3)))
        return Cells(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def stretches(self, kinds: np.ndarray) -> Iterator[Cells]:
        """The same, so many at a time."""
        step = max(1, STRETCH // max(1, self.ranks * len(self.posts)))
        for at in range(0, len(kinds), step):
            yield self.cells(kinds[at : at + step])

    def strays(self) -> Iterator[tuple[int, int]]:
        """(row, rank) of increments of counters that there are not."""
        for post in self.posts:
            rank, sem = post.rank[self.first], post.sem[self.first]
            there = (rank >= 0) & (rank < self.ranks) & (sem >= 0) & (sem < self.semaphores)
            none = (rank == IDLE) & (sem == IDLE)
            stray = ~(there | none)
            if self.runs is not None:
                stray &= self.runs
            for kind, source in np.argwhere(stray).tolist():
                yield int(self.first[kind]), source

    def add(self, total: np.ndarray, rows: slice) -> None:
        """Add what these rows increment, each once, to `total`, by counter."""
        kinds, counts = np.unique(self.kind[rows], return_counts=True)
        times: np.ndarray = np.zeros(len(self.first), total.dtype)
        times[kinds] = counts
        for cells in self.stretches(kinds):
            np.add.at(total, cells.counter, times[cells.kind])


def increments_of(executable: Executable) -> tuple[Increments, ...]:
    """Of every queue."""
    ranks, semaphores = executable.ranks, executable.semaphore_count
    return tuple(Increments.of(queue, ranks, semaphores) for queue in executable.queues)


@attrs.frozen(eq=False)
class Owners:
    """Who increments each counter; arrays by counter."""

    total: np.ndarray  # int64, by all rows, each once
    chain: np.ndarray  # int64, one that does so; NO_CHAIN for none
    shared: np.ndarray  # bool: there is another
    foreign: np.ndarray  # bool: a DMA ring or another rank does so

    @classmethod
    def of(cls, executable: Executable, increments: tuple[Increments, ...]) -> "Owners":
        """Whole-array, over the kinds of rows of all queues."""
        ranks, size = executable.ranks, executable.ranks * executable.semaphore_count
        found = cls(
            total=np.zeros(size, np.int64),
            chain=np.full(size, NO_CHAIN, np.int64),
            shared=np.zeros(size, bool),
            foreign=np.zeros(size, bool),
        )
        for number, (queue, one) in enumerate(zip(executable.queues, increments, strict=True)):
            one.add(found.total, slice(None))
            is_ring = isinstance(queue, DmaQueue)
            for cells in one.stretches(np.arange(len(one.first))):
                found._note(cells.counter, number * ranks + cells.source)
                found.foreign[cells.counter[is_ring | (cells.counter % ranks != cells.source)]] = (
                    True
                )
        return found

    def _note(self, counter: np.ndarray, chain: np.ndarray) -> None:
        known = self.chain[counter]
        self.shared[counter[(known != NO_CHAIN) & (known != chain)]] = True
        self.chain[counter] = chain
        self.shared[counter[self.chain[counter] != chain]] = True  # two of these are of one counter


def runners(queue: Queue, ranks: int) -> np.ndarray:
    """The ranks that run a queue."""
    return np.arange(ranks) if queue.ranks is None else queue.ranks


def first_runner(queue: Queue) -> int:
    """Tells queues of one name apart: each rank runs those of its own stage."""
    return 0 if queue.ranks is None else int(queue.ranks[0])


def awaited(queue: Queue, ranks: int) -> np.ndarray:
    """The semaphores that a queue waits for, (n, ranks or 1); none on ranks that do not run it."""
    column = packed(queue.sync.wait_sem)
    if queue.ranks is None:
        return column
    found = np.full((len(column), ranks), IDLE, column.dtype)
    found[:, queue.ranks] = column if column.shape[1] == 1 else column[:, queue.ranks]
    return found


def awaited_counters(queue: Queue, shape: tuple[int, ...]) -> np.ndarray:
    """The counters that a queue waits for anywhere, bool of this shape: (semaphores, ranks)."""
    found: np.ndarray = np.zeros(shape, bool)
    column = awaited(queue, shape[1])
    row, rank = np.nonzero((column >= 0) & (column < shape[0]))
    if column.shape[1] == 1:
        found[column[row, 0]] = True
    else:
        found[column[row, rank], rank] = True
    return found


def packed(column: np.ndarray) -> np.ndarray:
    """A column (n, ranks) as (n, 1) where it is a view of that."""
    return column[:, :1] if column.strides[1] == 0 else column


def kinds_of_rows(column: np.ndarray) -> np.ndarray:
    """A number for each row of a column (n, ranks), the same for equal rows; from 0."""
    if column.strides[0] == 0 or not column.size:
        return np.zeros(len(column), np.int64)
    narrow = packed(column)
    if narrow.shape[1] == 1:
        return np.unique(narrow[:, 0], return_inverse=True)[1]
    numbers: dict[bytes, int] = {}
    found = [numbers.setdefault(row.tobytes(), len(numbers)) for row in narrow]
    return np.array(found, np.int64)
