"""Segments: what fills one placeholder on all ranks, cut out of the queues of its stream.

A segment looks the same wherever it stands: waited values count from what had been counted when the
placeholder began, and `homes` says where its buffers lie. Placeholders whose rows are equal in that
form are one segment, proved once. That rows of a placeholder are contiguous, begin with the wait
for the trigger and end with DONE is for the proof of form; here it is taken for granted.
"""

import enum
import hashlib
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    Executable,
    Post,
    StreamFacts,
    Sync,
)
from ncc_runtime.neff.placeholder import Placeholder

BLOCK_CELLS = 1 << 20
"""Cells of a column that are looked at together: temporary arrays stay in cache."""


class Role(enum.Enum):
    """What a buffer is to a placeholder."""

    OPERAND = "operand"
    RESULT = "result"
    CHANNEL = "channel buffer"


@attrs.frozen
class Home:
    """A buffer of the placeholder, at the same address on every rank."""

    role: Role
    index: int  # which operand or result
    start: int
    size_bytes: int

    @property
    def end(self) -> int:
        """First address behind it."""
        return self.start + self.size_bytes


@attrs.frozen(eq=False)
class CcRows:
    """Its rows in the stream's CC-core queue; the first is T, the last DONE."""

    queue: int  # in Executable.queues
    first: int  # row of the queue
    opcode: np.ndarray  # (n,)
    round: np.ndarray  # (n,)
    lane: np.ndarray  # (n,) of the ring that an ADVANCE moves, else IDLE
    pushed: np.ndarray  # (n,) row of that RingRows that an ADVANCE pushes, else IDLE
    wait_sem: np.ndarray  # (n, ranks or 1), IDLE for none and for T, whose trigger comes from afar
    wait_value: np.ndarray  # (n, ranks or 1), relative: 0 and less hold on entry
    posts: tuple[Post, ...]

    def __len__(self) -> int:
        return len(self.opcode)


@attrs.frozen(eq=False)
class RingRows:
    """Its rows in one DMA ring; columns as in DmaQueue."""

    queue: int  # in Executable.queues
    lane: int
    first: int  # row of the queue
    opcode: np.ndarray  # (n,)
    round: np.ndarray  # (n,)
    divisor: np.ndarray  # (n,)
    peer: np.ndarray  # (n, ranks)
    sources: np.ndarray  # (n, ranks, k), addresses
    target: np.ndarray  # (n, ranks), addresses
    size_bytes: np.ndarray  # (n, ranks)
    source_rank: np.ndarray | None  # (n, ranks, k)
    also_peer: np.ndarray | None  # (n, ranks)
    also_target: np.ndarray | None  # (n, ranks), addresses
    posts: tuple[Post, ...]

    def __len__(self) -> int:
        return len(self.opcode)


@attrs.frozen(eq=False)
class Segment:
    """The rows of one placeholder, or of several alike ones: then those of the first."""

    numbers: tuple[int, ...]  # placeholders
    ranks: int
    cc: CcRows
    rings: tuple[RingRows, ...]  # those with rows, by lane
    homes: tuple[Home, ...]  # operands, results, channel buffer

    @property
    def number(self) -> int:
        """The placeholder whose rows these are."""
        return self.numbers[0]


def segments(executable: Executable) -> tuple[Segment, ...]:
    """The distinct segments, in the order of their first placeholders."""
    found = [one for facts in executable.streams for one in _of_stream(executable, facts)]
    alike: dict[Hashable, list[Segment]] = {}
    for one in found:
        alike.setdefault(_shape(executable, one), []).append(one)
    distinct = [one for group in alike.values() for one in _joined(group)]
    return tuple(sorted(distinct, key=lambda one: one.number))


def _joined(group: Sequence[Segment]) -> Iterator[Segment]:
    """Segments of one shape; those whose rows are equal too as one."""
    if len(group) == 1:
        yield group[0]
        return
    equal: dict[bytes, list[Segment]] = {}
    for one in group:
        equal.setdefault(_digest(one), []).append(one)
    for ones in equal.values():
        numbers = tuple(sorted(one.number for one in ones))
        first = next(one for one in ones if one.number == numbers[0])
        yield attrs.evolve(first, numbers=numbers)


def _of_stream(executable: Executable, facts: StreamFacts) -> Iterator[Segment]:
    """One segment for each placeholder of a stream, in the order of its CC-core."""
    cc = next(
        (number, queue)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, CcQueue) and queue.stream == facts.stream
    )
    rings = [
        (number, queue)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, DmaQueue) and queue.stream == facts.stream
    ]
    spans = {number: _spans(queue.placeholder) for number, queue in rings}
    entry: np.ndarray = np.zeros((executable.ranks, max(1, executable.semaphore_count)), np.int64)
    stretches = _spans(cc[1].placeholder)
    for place, (number, rows) in enumerate(stretches.items()):
        its_rings = tuple(
            _ring_rows(position, queue, spans[position][number])
            for position, queue in rings
            if number in spans[position]
        )
        firsts = {ring.lane: ring.first for ring in its_rings}
        one = Segment(
            numbers=(number,),
            ranks=executable.ranks,
            cc=_cc_rows(cc, rows, firsts, entry),
            rings=its_rings,
            homes=_homes(executable, executable.program.placeholders[number], facts),
        )
        yield one
        if place + 1 < len(stretches):
            for posts in (one.cc.posts, *(ring.posts for ring in its_rings)):
                _count(posts, entry)


def _spans(placeholder: np.ndarray) -> Mapping[int, slice]:
    """Which rows belong to each placeholder, in the order of the rows."""
    edges = np.flatnonzero(np.diff(placeholder, prepend=IDLE - 1)).tolist()
    ends = [*edges[1:], len(placeholder)]
    return {
        int(placeholder[first]): slice(first, last)
        for first, last in zip(edges, ends, strict=True)
        if placeholder[first] != IDLE
    }


def _cc_rows(
    cc: tuple[int, CcQueue], rows: slice, firsts: Mapping[int, int], entry: np.ndarray
) -> CcRows:
    number, queue = cc
    lane, pushed = queue.ring[rows], queue.ring_row[rows].copy()
    for one, first in firsts.items():
        pushed[lane == one] -= first
    wait_sem, wait_value = _relative(queue.sync, rows, entry)
    return CcRows(
        queue=number,
        first=rows.start,
        opcode=queue.opcode[rows],
        round=queue.round[rows],
        lane=lane,
        pushed=pushed,
        wait_sem=wait_sem,
        wait_value=wait_value,
        posts=_posts(queue.sync, rows),
    )


def _ring_rows(number: int, queue: DmaQueue, rows: slice) -> RingRows:
    return RingRows(
        queue=number,
        lane=queue.lane,
        first=rows.start,
        opcode=queue.opcode[rows],
        round=queue.round[rows],
        divisor=queue.divisor[rows],
        peer=queue.peer[rows],
        sources=queue.sources[rows],
        target=queue.target[rows],
        size_bytes=queue.size_bytes[rows],
        source_rank=None if queue.source_rank is None else queue.source_rank[rows],
        also_peer=None if queue.also_peer is None else queue.also_peer[rows],
        also_target=None if queue.also_target is None else queue.also_target[rows],
        posts=_posts(queue.sync, rows),
    )


def _posts(sync: Sync, rows: slice) -> tuple[Post, ...]:
    return tuple(Post(post.rank[rows], post.sem[rows]) for post in sync.posts)


def _relative(sync: Sync, rows: slice, entry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What rows wait for, counted from entry; the first row's wait is left out."""
    sem, value = packed(sync.wait_sem[rows]), packed(sync.wait_value[rows])
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


def _count(posts: Sequence[Post], entry: np.ndarray) -> None:
    """Add increments to what has been counted, (ranks, semaphores)."""
    width = entry.shape[1]
    for post in posts:
        for rows in blocks(post.rank.shape):
            rank, sem = post.rank[rows], post.sem[rows]
            made = rank != IDLE
            if made.any():
                keys = rank[made] * np.int64(width) + sem[made]
                entry += np.bincount(keys, minlength=entry.size).reshape(entry.shape)


def blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Rows of a column in stretches of about BLOCK_CELLS cells."""
    step = max(1, BLOCK_CELLS // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))


def _homes(
    executable: Executable, placeholder: Placeholder, facts: StreamFacts
) -> tuple[Home, ...]:
    program = executable.program
    found = [
        Home(role, index, program.address(tensor), program.tensors[tensor].size_bytes)
        for role, tensors in (
            (Role.OPERAND, placeholder.operands),
            (Role.RESULT, placeholder.results),
        )
        for index, tensor in enumerate(tensors)
    ]
    found.append(Home(Role.CHANNEL, 0, facts.scratch_address, facts.scratch_bytes))
    return tuple(found)


@attrs.frozen(eq=False)
class _Extents:
    """Where the homes lie, overlapping ones together, and where a form of its own has them."""

    start: np.ndarray  # (extents,) ascending
    end: np.ndarray
    shift: np.ndarray  # (extents + 1,): added to addresses in it; the last to all others

    @classmethod
    def of(cls, homes: Sequence[Home]) -> "_Extents":
        joined: list[list[int]] = []
        for home in sorted(homes, key=lambda home: home.start):
            if joined and home.start < joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], home.end)
            else:
                joined.append([home.start, home.end])
        start, end = np.array(joined, np.int64).T
        named = [int(np.searchsorted(start, home.start, side="right")) - 1 for home in homes]
        at, shift = 0, np.zeros(len(start) + 1, np.int64)
        for extent in dict.fromkeys(named):  # in the order of the homes, not of the addresses
            shift[extent] = at - start[extent]
            at += int(end[extent] - start[extent])
        shift[-1] = 1 << 62
        return cls(start, end, shift)

    def formed(self, addresses: np.ndarray) -> np.ndarray:
        """Addresses as if the homes lay one behind the other from 0."""
        extent = np.searchsorted(self.start, addresses, side="right") - 1
        outside = (extent < 0) | (addresses >= self.end[extent])
        moved = addresses + self.shift[np.where(outside, len(self.start), extent)]
        return np.where(addresses == IDLE, IDLE, moved)


def _shape(executable: Executable, one: Segment) -> Hashable:
    """What is quick to compare of a segment."""
    placeholder = executable.program.placeholders[one.number]
    said = attrs.evolve(placeholder, operands=(), results=(), channel_id=None, name="")
    extents = _Extents.of(one.homes)
    starts = extents.formed(np.array([home.start for home in one.homes], np.int64))
    sizes = tuple(home.size_bytes for home in one.homes)
    rings = tuple((ring.lane, len(ring)) for ring in one.rings)
    return said, tuple(starts.tolist()), sizes, len(one.cc), rings


def _digest(one: Segment) -> bytes:
    """Equal for segments whose rows are equal but for where and when they stand."""
    state = hashlib.blake2b(digest_size=16)
    cc, extents = one.cc, _Extents.of(one.homes)
    columns: list[np.ndarray | None] = [cc.opcode, cc.round, cc.lane, cc.pushed]
    columns += [cc.wait_sem, cc.wait_value, *_columns(cc.posts)]
    for ring in one.rings:
        columns += [ring.opcode, ring.round, ring.divisor, ring.peer, ring.size_bytes]
        columns += [ring.source_rank, ring.also_peer, *_columns(ring.posts)]
        columns += [extents.formed(ring.sources), extents.formed(ring.target)]
        columns.append(None if ring.also_target is None else extents.formed(ring.also_target))
    for column in columns:
        _add(state, column)
    return state.digest()


def _columns(posts: Sequence[Post]) -> Iterator[np.ndarray]:
    for post in posts:
        yield post.rank
        yield post.sem


def _add(state: hashlib.blake2b, column: np.ndarray | None) -> None:
    if column is None:
        state.update(b"none")
        return
    state.update(f"{column.dtype.str}{column.shape}".encode())
    column = packed(column)
    for rows in blocks(column.shape):
        state.update(np.ascontiguousarray(column[rows]).data)
