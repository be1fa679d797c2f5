"""The rows of one placeholder, cut out of queues, for the ranks that take part.

Where several programs take part, each has the same rows in queues of its own, with cells for its
own ranks only: they are put together rank by rank.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import attrs
import numpy as np

from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    Post,
    RegisterLoad,
    Registers,
    is_run_by,
)
from ncc_runtime.verify.homes import shifted
from ncc_runtime.verify.members import Members

BLOCK_CELLS = 1 << 20
"""Cells of a column that are looked at together: temporary arrays stay in cache."""


@attrs.frozen(eq=False)
class Stretch:
    """Where rows stand, on the ranks of one program."""

    queue: int  # in Executable.queues
    first: int  # row of the queue
    ranks: np.ndarray | None  # whose, as ranks of the executable; None: everybody's


@attrs.frozen(eq=False)
class CcRows:
    """Its rows in the stream's CC-core queue; the first is T, the last DONE."""

    stretches: tuple[Stretch, ...]
    opcode: np.ndarray  # (n,)
    round: np.ndarray  # (n,)
    lane: np.ndarray  # (n,) of the ring that an ADVANCE moves, else IDLE
    pushed: np.ndarray  # (n,) row of that RingRows that an ADVANCE pushes, else IDLE
    wait_sem: np.ndarray  # (n, ranks or 1), IDLE for none and for T, whose trigger comes from afar
    wait_value: np.ndarray  # (n, ranks or 1), relative: 0 and less hold on entry
    posts: tuple[Post, ...]
    loads: tuple[
        Mapping[int, RegisterLoad], ...
    ] = ()  # of each stretch, by row; addresses as in memory

    def __len__(self) -> int:
        return len(self.opcode)


@attrs.frozen(eq=False)
class RingRows:
    """Its rows in one DMA ring; columns as in DmaQueue."""

    stretches: tuple[Stretch, ...]
    lane: int
    opcode: np.ndarray  # (n,)
    round: np.ndarray  # (n,)
    divisor: np.ndarray  # (n,)
    peer: np.ndarray  # (n, ranks)
    sources: np.ndarray  # (n, ranks, k), addresses
    target: np.ndarray  # (n, ranks), addresses
    size_bytes: np.ndarray  # (n, ranks)
    source_rank: np.ndarray | None  # (n, ranks, k)
    second_peer: np.ndarray | None  # (n, ranks)
    second_target: np.ndarray | None  # (n, ranks), addresses
    posts: tuple[Post, ...]
    registers: Registers | None = None

    def __len__(self) -> int:
        return len(self.opcode)


Rows = CcRows | RingRows
Q = TypeVar("Q", CcQueue, DmaQueue)


@attrs.frozen(eq=False)
class Part(Generic[Q]):
    """The rows of a placeholder in one queue."""

    position: int  # in Executable.queues
    queue: Q
    rows: slice

    @property
    def stretch(self) -> Stretch:
        """Where they stand."""
        return Stretch(self.position, self.rows.start, self.queue.ranks)

    @property
    def posts(self) -> tuple[Post, ...]:
        """What they increment, by rank of the executable."""
        rows = self.rows
        return tuple(Post(post.rank[rows], post.sem[rows]) for post in self.queue.sync.posts)


CcParts = Sequence[Part[CcQueue]]
RingParts = Sequence[Part[DmaQueue]]


@attrs.frozen(eq=False)
class Cut:
    """Cuts out the rows of one placeholder; parts are those of all programs that take part."""

    members: Members
    shifts: np.ndarray | None  # of addresses, by number

    def cc(self, parts: CcParts, rings: Sequence[RingParts], entry: np.ndarray) -> CcRows:
        """Rows of the CC-cores; `entry` is what was counted before, (ranks, semaphores)."""
        queue, rows = parts[0].queue, parts[0].rows
        lane, pushed = queue.ring[rows], queue.ring_row[rows].copy()
        for its in rings:
            pushed[lane == its[0].queue.lane] -= _beside(its, queue).rows.start
        sem = self._joined(parts, [part.queue.sync.wait_sem[part.rows] for part in parts])
        value = self._joined(parts, [part.queue.sync.wait_value[part.rows] for part in parts])
        wait_sem, wait_value = _relative(sem, value, entry[self.members.index])
        return CcRows(
            stretches=tuple(part.stretch for part in parts),
            opcode=queue.opcode[rows],
            round=queue.round[rows],
            lane=lane,
            pushed=pushed,
            wait_sem=wait_sem,
            wait_value=wait_value,
            posts=self._posts(parts),
            loads=tuple(_loads(part) for part in parts),
        )

    def ring(self, parts: RingParts) -> RingRows:
        """Rows of the rings of one lane."""
        queue, rows = parts[0].queue, parts[0].rows
        peer = self._ranks(parts, [part.queue.peer[part.rows] for part in parts])
        owner, second_peer, second_target = self._source_rank(parts), None, None
        if any(part.queue.second_peer is not None for part in parts):
            columns = [_or_idle(part.queue.second_peer, part.rows) for part in parts]
            second_peer = self._ranks(parts, columns)
            columns = [_or_idle(part.queue.second_target, part.rows) for part in parts]
            second_target = shifted(self._joined(parts, columns), second_peer, self.shifts)
        sources = self._joined(parts, [part.queue.sources[part.rows] for part in parts])
        target = self._joined(parts, [part.queue.target[part.rows] for part in parts])
        own = np.arange(self.members.count)[None, :, None] if owner is None else owner
        return RingRows(
            stretches=tuple(part.stretch for part in parts),
            lane=queue.lane,
            opcode=queue.opcode[rows],
            round=queue.round[rows],
            divisor=queue.divisor[rows],
            peer=peer,
            sources=shifted(sources, own, self.shifts),
            target=shifted(target, peer, self.shifts),
            size_bytes=self._joined(parts, [part.queue.size_bytes[part.rows] for part in parts]),
            source_rank=owner,
            second_peer=second_peer,
            second_target=second_target,
            posts=self._posts(parts),
            registers=self._registers(parts),
        )

    def _registers(self, parts: RingParts) -> Registers | None:
        each = [part.queue.registers for part in parts]
        if all(one is None for one in each):
            return None
        rows = slice(parts[0].rows.stop - parts[0].rows.start)
        none = (None, None, None)
        columns = zip(*(none if one is None else one.columns for one in each), strict=True)
        return Registers(
            *(
                self._joined(
                    parts,
                    [
                        _or_idle(one, rows if one is None else part.rows)
                        for one, part in zip(column, parts, strict=True)
                    ],
                )
                for column in columns
            )
        )

    def _source_rank(self, parts: RingParts) -> np.ndarray | None:
        if all(part.queue.source_rank is None for part in parts):
            return None
        columns = []
        for part in parts:
            shape = part.queue.sources[part.rows].shape
            owner = part.queue.source_rank
            own = np.broadcast_to(np.arange(shape[1], dtype=np.int32)[:, None], shape)
            columns.append(own if owner is None else owner[part.rows])
        return self._ranks(parts, columns)

    def _posts(self, parts: CcParts | RingParts) -> tuple[Post, ...]:
        """What members increment on members."""
        found = []
        none = np.full((parts[0].rows.stop - parts[0].rows.start, 1), IDLE)
        each = (part.posts for part in parts)
        for posts in itertools.zip_longest(*each, fillvalue=Post(none, none)):
            rank = self._joined(parts, [post.rank for post in posts])
            sem = self._joined(parts, [post.sem for post in posts])
            found.append(Post(self.members.inside(rank), sem))
        return tuple(found)

    def _ranks(self, parts: RingParts, columns: Sequence[np.ndarray]) -> np.ndarray:
        """A column of ranks, as numbers."""
        return self.members.numbered(self._joined(parts, columns))

    def _joined(self, parts: CcParts | RingParts, columns: Sequence[np.ndarray]) -> np.ndarray:
        """A column of all parts, for the members only."""
        first = columns[0]
        if len(columns) == 1:
            is_for_all = self.members.order is None or first.shape[1] == 1
            return first if is_for_all else first[:, self.members.index]
        shape = (len(first), self.members.count, *first.shape[2:])
        found = np.full(shape, IDLE, np.result_type(*columns))
        for stretch, column in zip((part.stretch for part in parts), columns, strict=True):
            ranks = stretch.ranks
            assert ranks is not None, "queues of several programs"
            its = column if column.shape[1] == 1 else column[:, ranks]
            found[:, self.members.numbered(ranks)] = its
        return found


def _loads(part: Part[CcQueue]) -> Mapping[int, RegisterLoad]:
    """The LOADs of a part, counted from its first row."""
    first, last = part.rows.start, part.rows.stop
    loads = part.queue.loads.items()
    return {row - first: load for row, load in loads if first <= row < last}


def _beside(parts: RingParts, queue: CcQueue) -> Part[DmaQueue]:
    """The part of a CC-core's own program."""
    rank = 0 if queue.ranks is None else int(queue.ranks[0])
    return next(part for part in parts if is_run_by(part.queue, rank))


def _or_idle(column: np.ndarray | None, rows: slice) -> np.ndarray:
    return np.full((rows.stop - rows.start, 1), IDLE) if column is None else column[rows]


def _relative(
    sem: np.ndarray, value: np.ndarray, entry: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What rows wait for, counted from entry; the first row's wait is left out."""
    sem, value = packed(sem), packed(value)
    counted = entry[:1] if (entry == entry[:1]).all() else entry
    if sem.shape[1] == 1 and value.shape[1] == 1 and len(counted) == 1:
        before = counted[0, sem]
    else:
        shape = (len(sem), len(entry))
        sem, value = np.broadcast_to(sem, shape), np.broadcast_to(value, shape)
        before = entry[np.arange(len(entry))[None, :], sem]
    sem = sem.copy()
    sem[0] = IDLE
    return sem, np.where(sem == IDLE, 0, value - before)


def packed(column: np.ndarray) -> np.ndarray:
    """A column (n, ranks, …) as (n, 1, …) where it is a view of that."""
    return column[:, :1] if column.ndim > 1 and column.strides[1] == 0 else column


def blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Rows of a column in stretches of about BLOCK_CELLS cells."""
    step = max(1, BLOCK_CELLS // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))
