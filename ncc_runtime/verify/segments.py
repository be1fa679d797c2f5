"""Segments: what fills one placeholder on all ranks, cut out of the queues of its stream.

A segment looks the same wherever it stands. Its ranks are the members of the collective, numbered
from 0. Its queues are numbered from 0, too: the CC-core first, then the rings that have rows, by
lane. A wait is the row of the segment that it waits for; waits for what came before order nothing
within it. `bindings` say where its buffers lie. Placeholders whose rows are equal
in that form are one segment, proved once.

Where several programs take part, each has the same rows in queues of its own, with cells for its
own ranks only: they are put together rank by rank. That rows of a placeholder are contiguous, begin
with the wait for the trigger and end with DONE, and are the same in all programs that take part, is
for the proof of form; here it is taken for granted.
"""

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Generic, TypeVar

import attrs
import numpy as np

from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    Executable,
    Post,
    RegisterLoad,
    Registers,
    StreamFacts,
    is_run_by,
)
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.order import NOBODY, Batch, GreedyRun, Target, grouped
from ncc_runtime.verify.bindings import Binding, Form, Members, bindings_of, shifted, shifts_of
from ncc_runtime.verify.conflicts import CC
from ncc_runtime.verify.counters import Edges, narrowed

BLOCK_CELLS = 1 << 20
"""Cells of a column that are looked at together: temporary arrays stay in cache."""


@attrs.frozen(eq=False)
class Span:
    """Where rows stand, on the ranks of one program."""

    queue: int  # in Executable.queues
    first: int  # row of the queue
    ranks: np.ndarray | None  # whose, as ranks of the executable; None: everybody's


@attrs.frozen(eq=False)
class CcRows:
    """Its rows in the stream's CC-core queue; the first is T, the last DONE."""

    spans: tuple[Span, ...]
    opcode: np.ndarray  # (n,)
    round: np.ndarray  # (n,)
    lane: np.ndarray  # (n,) of the ring that an ADVANCE moves, else IDLE
    pushed: np.ndarray  # (n,) row of that RingRows that an ADVANCE pushes, else IDLE
    wait_sem: np.ndarray  # (n, members or 1), IDLE for none
    queue: np.ndarray  # (n, members or 1), of the segment, that each waits for; NOBODY for none
    row: np.ndarray  # (n, members or 1), of that queue
    owner: np.ndarray  # (semaphores, members), by whose rows each semaphore is incremented
    posts: tuple[Post, ...]
    loads: tuple[
        Mapping[int, RegisterLoad], ...
    ] = ()  # of each span, by row; addresses as in memory

    def __len__(self) -> int:
        return len(self.opcode)


@attrs.frozen(eq=False)
class RingRows:
    """Its rows in one DMA ring; columns as in DmaQueue."""

    spans: tuple[Span, ...]
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
    def span(self) -> Span:
        """Where they stand."""
        return Span(self.position, self.rows.start, self.queue.ranks)

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

    def cc(self, parts: CcParts, rings: Sequence[RingParts], edges: Edges) -> CcRows:
        """Rows of the CC-cores."""
        queue, rows = parts[0].queue, parts[0].rows
        lane, pushed = queue.ring[rows], queue.ring_row[rows].copy()
        for ring in rings:
            pushed[lane == ring[0].queue.lane] -= _beside(ring, queue).rows.start
        numbers, firsts, lengths = _numbering(parts, rings, len(edges.executable.queues))
        awaited = [edges.awaited(part.position, part.rows) for part in parts]
        owner = self._joined(parts, [one for one, _ in awaited])
        row = self._joined(parts, [np.broadcast_to(at, one.shape) for one, at in awaited])
        number = np.where(owner == NOBODY, NOBODY, numbers[owner])
        # who waits for a row behind the segment waits for all that its queue does in it, too
        row = np.minimum(row - firsts[owner], lengths[owner] - 1)
        inside = (number != NOBODY) & (row >= 0)
        by_sem = edges.source.reshape(-1, edges.executable.ranks)[:, self.members.index]
        return CcRows(
            spans=tuple(part.span for part in parts),
            opcode=queue.opcode[rows],
            round=queue.round[rows],
            lane=lane,
            pushed=pushed,
            wait_sem=narrowed(self._joined(parts, [p.queue.sync.wait_sem[p.rows] for p in parts])),
            queue=np.where(inside, number, NOBODY),
            row=np.where(inside, row, NOBODY),
            owner=self.members.inside(by_sem),
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
            spans=tuple(part.span for part in parts),
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
        for stretch, column in zip((part.span for part in parts), columns, strict=True):
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


def _numbering(
    parts: CcParts, rings: Sequence[RingParts], queues: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By queue of the executable: its number in the segment, its first row there, and how many."""
    numbers: np.ndarray = np.full(queues + 1, NOBODY)  # the last is what NOBODY finds
    firsts, lengths = np.zeros(queues + 1, np.int64), np.zeros(queues + 1, np.int64)
    every = [(CC, part.position, part.rows) for part in parts]
    every += [(k + 1, part.position, part.rows) for k, ring in enumerate(rings) for part in ring]
    for number, position, rows in every:
        numbers[position], firsts[position] = number, rows.start
        lengths[position] = rows.stop - rows.start
    return numbers, firsts, lengths


def blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Rows of a column, some at a time: about BLOCK_CELLS cells."""
    step = max(1, BLOCK_CELLS // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))


@attrs.frozen(eq=False, slots=False)
class Segment:
    """The rows of one placeholder, or of several alike ones: then those of the first."""

    numbers: tuple[int, ...]  # placeholders
    placeholder: Placeholder  # of members
    members: Members  # ranks in rows are their numbers
    cc: CcRows
    rings: tuple[RingRows, ...]  # those with rows, by lane
    bindings: tuple[Binding, ...]  # operands, results, channel buffer

    @property
    def number(self) -> int:
        """The placeholder whose rows these are."""
        return self.numbers[0]

    @property
    def ranks(self) -> int:
        """How many take part."""
        return self.members.count

    def place(self, rows: Rows, row: int, member: int) -> tuple[int, int, int]:
        """Queue, row and rank of a member's row."""
        rank = self.members.rank(member)
        span = next(one for one in rows.spans if one.ranks is None or rank in one.ranks)
        return span.queue, span.first + row, rank

    @property
    def queues(self) -> int:
        """The CC-core and the rings."""
        return len(self.rings) + 1

    def rows(self, queue: int) -> Rows:
        """Those of one of its queues."""
        return self.cc if queue == CC else self.rings[queue - 1]

    @cached_property
    def pushing(self) -> tuple[np.ndarray, ...]:
        """By ring, for each of its rows the row of the CC-core that pushes it."""
        return tuple(np.flatnonzero(self.cc.lane == ring.lane) for ring in self.rings)

    def targets(self, queue: int) -> Sequence[Sequence[Target]]:
        """By row of a queue, what it waits for in the segment (`order.Edges`)."""
        if queue == CC:
            return grouped(self.cc.queue, self.cc.row)
        moves = self.rings[queue - 1].peer != IDLE
        whole = moves.all(axis=1).tolist()
        return [
            (Target(CC, at, None if whole[row] else np.flatnonzero(moves[row]), is_own=True),)
            for row, at in enumerate(self.pushing[queue - 1].tolist())
        ]

    def posters(self, queue: int, row: int) -> np.ndarray:
        """(members,) for whose row each waits in a row of the CC-core (`order.Edges`)."""
        assert queue == CC, "a ring waits for its own CC-core only"
        return self.cc.owner[self.cc.wait_sem[row], np.arange(self.ranks)]

    def batches(self, run: GreedyRun) -> Sequence[Batch]:
        """The rows of the segment in the order of a run, in its own numbers."""
        found: list[tuple[int, Batch]] = []
        for number in range(self.queues):
            for span in self.rows(number).spans:
                last = span.first + len(self.rows(number))
                for moment, batch in run.of_queue(span.queue):
                    if span.first <= batch.row < last:
                        ranks = span.ranks if batch.ranks is None else batch.ranks
                        members = None if ranks is None else self.members.inside(ranks)
                        if members is not None:
                            members = members[members != IDLE]
                            if len(members) == self.ranks:
                                members = None
                        elif self.members.order is not None:
                            members = None  # all ranks, so all members
                        row = batch.row - span.first
                        found.append((moment, Batch(number, row, members)))
        found.sort(key=lambda one: one[0])
        return [batch for _, batch in found]


_Columns = Sequence[np.ndarray | None]
"""Everything that is compared of two segments of one shape."""


def segments(executable: Executable, edges: Edges | None = None) -> tuple[Segment, ...]:
    """The distinct segments, in the order of their first placeholders."""
    edges = edges or Edges(executable)
    found = [one for facts in executable.streams for one in _of_stream(executable, facts, edges)]
    alike: dict[Hashable, list[Segment]] = {}
    for one in found:
        alike.setdefault(_shape(one), []).append(one)
    distinct = [one for group in alike.values() for one in _joined(group)]
    return tuple(sorted(distinct, key=lambda one: one.number))


def _joined(group: Sequence[Segment]) -> Iterator[Segment]:
    """Segments of one shape; those whose rows are equal too as one."""
    if len(group) == 1:
        yield group[0]
        return
    found: list[tuple[_Columns, list[Segment]]] = []
    maybe: dict[bytes, list[tuple[_Columns, list[Segment]]]] = {}  # by a column that often differs
    for one in group:
        columns, known = _columns_of(one), maybe.setdefault(narrowed(one.cc.wait_sem).tobytes(), [])
        equal = next((ones for other, ones in known if _are_equal(columns, other)), None)
        if equal is not None:
            equal.append(one)
            continue
        known.append((columns, [one]))
        found.append(known[-1])
    for _, ones in found:
        numbers = tuple(sorted(one.number for one in ones))
        first = next(one for one in ones if one.number == numbers[0])
        yield attrs.evolve(first, numbers=numbers)


@attrs.frozen(eq=False)
class _Parts:
    """The rows of a placeholder, queue by queue."""

    cc: list[Part[CcQueue]] = attrs.field(factory=list)
    rings: dict[int, list[Part[DmaQueue]]] = attrs.field(factory=dict)  # by lane


def _of_stream(executable: Executable, facts: StreamFacts, edges: Edges) -> Iterator[Segment]:
    """One segment for each placeholder of a stream, in order."""
    for number, parts in sorted(_parts(executable, facts.stream).items()):
        placeholder = executable.program.placeholders[number]
        members = Members.of(placeholder, executable.ranks)
        bindings = bindings_of(executable, number, facts, members)
        cut, rings = Cut(members, shifts_of(bindings, members)), tuple(parts.rings.values())
        yield Segment(
            numbers=(number,),
            placeholder=members.placeholder(placeholder),
            members=members,
            cc=cut.cc(parts.cc, rings, edges),
            rings=tuple(cut.ring(ring) for ring in rings),
            bindings=bindings,
        )


def _parts(executable: Executable, stream: int) -> Mapping[int, _Parts]:
    """By placeholder of a stream, its rows."""
    found: dict[int, _Parts] = {}
    for position, queue in enumerate(executable.queues):
        if isinstance(queue, CcQueue) and queue.stream == stream:
            for number, rows in _spans(queue.placeholder).items():
                found.setdefault(number, _Parts()).cc.append(Part(position, queue, rows))
        elif isinstance(queue, DmaQueue) and queue.stream == stream:
            for number, rows in _spans(queue.placeholder).items():
                rings = found.setdefault(number, _Parts()).rings
                rings.setdefault(queue.lane, []).append(Part(position, queue, rows))
    return found


def _spans(placeholder: np.ndarray) -> Mapping[int, slice]:
    """Which rows belong to each placeholder, in the order of the rows."""
    edges = np.flatnonzero(np.diff(placeholder, prepend=IDLE - 1)).tolist()
    ends = [*edges[1:], len(placeholder)]
    return {
        int(placeholder[first]): slice(first, last)
        for first, last in zip(edges, ends, strict=True)
        if placeholder[first] != IDLE
    }


def _shape(one: Segment) -> Hashable:
    """What is quick to compare of a segment."""
    said = attrs.evolve(one.placeholder, operands=(), results=(), channel_id=None, name="")
    starts = Form.of(one.bindings).formed(
        np.array([binding.start for binding in one.bindings], np.int64)
    )
    sizes = tuple((binding.role, binding.size_bytes, binding.members) for binding in one.bindings)
    rings = tuple((ring.lane, len(ring)) for ring in one.rings)
    if one.placeholder.op.is_counted:
        return one.number  # its tables and registers are its own
    return said, one.ranks, tuple(starts.tolist()), sizes, len(one.cc), rings


def _columns_of(one: Segment) -> _Columns:
    """Equal for segments whose rows are equal but for where and when they stand."""
    cc, form = one.cc, Form.of(one.bindings)
    columns: list[np.ndarray | None] = [cc.opcode, cc.round, cc.lane, cc.pushed]
    columns += [cc.wait_sem, cc.queue, cc.row, *_columns(cc.posts)]
    for ring in one.rings:
        columns += [ring.opcode, ring.round, ring.divisor, ring.peer, ring.size_bytes]
        columns += [ring.source_rank, ring.second_peer, *_columns(ring.posts)]
        columns += [form.formed(ring.sources), form.formed(ring.target)]
        columns.append(None if ring.second_target is None else form.formed(ring.second_target))
    return columns


def _are_equal(some: _Columns, others: _Columns) -> bool:
    return len(some) == len(others) and all(map(_is_equal, some, others))


def _is_equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Whether two columns have the same type, shape and cells."""
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(narrowed(one), narrowed(other))


def _columns(posts: Sequence[Post]) -> Iterator[np.ndarray]:
    for post in posts:
        yield post.rank
        yield post.sem
