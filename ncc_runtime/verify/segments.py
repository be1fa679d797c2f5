"""Segments: the rows of one placeholder on all ranks, cut out of the queues of its stream.

A segment looks the same wherever it stands. Its ranks are the members of the collective, numbered
from 0. Its queues are numbered from 0, too: the CC-core first, then the rings that have rows, by
lane. A wait is the row of the segment that it waits for; waits for what came before order nothing
within it. `bindings` say where its buffers lie. Placeholders whose rows are equal in that form are
one segment, proved once.

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
    EngineQueue,
    Executable,
    Post,
    RegisterLoad,
    Registers,
    StreamFacts,
    is_run_by,
)
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.order import NOBODY, Batch, GreedyRun, Target, grouped
from ncc_runtime.verify.bindings import (
    Binding,
    Members,
    Relocation,
    bindings_of,
    shifted,
    shifts_of,
)
from ncc_runtime.verify.conflicts import CC
from ncc_runtime.verify.counters import Edges, narrowed

BLOCK_CELLS = 1 << 20
"""Cells of a column that are looked at together: temporary arrays stay in cache."""

Q = TypeVar("Q", CcQueue, DmaQueue)


@attrs.frozen(eq=False)
class QueueSpan(Generic[Q]):
    """The rows of a placeholder in one queue, on the ranks of one program."""

    number: int  # of the queue, in Executable.queues
    queue: Q
    rows: slice

    @property
    def first(self) -> int:
        """The first of them."""
        return int(self.rows.start)

    def __len__(self) -> int:
        return int(self.rows.stop - self.rows.start)


CcSpans = Sequence[QueueSpan[CcQueue]]
RingSpans = Sequence[QueueSpan[DmaQueue]]
Spans = Sequence[QueueSpan[CcQueue] | QueueSpan[DmaQueue]]
"""One of each program that takes part."""


@attrs.frozen(eq=False)
class CcCoreRows:
    """Its rows in the stream's CC-core queue; the first is T, the last DONE."""

    spans: CcSpans
    opcode: np.ndarray  # (n,)
    round: np.ndarray  # (n,)
    lane: np.ndarray  # (n,) of the ring that an ADVANCE moves, else IDLE
    pushed: np.ndarray  # (n,) row of that RingRows that an ADVANCE pushes, else IDLE
    wait_sem: np.ndarray  # (n, members or 1), IDLE for none
    queue: np.ndarray  # (n, members or 1), of the segment, that each waits for; NOBODY for none
    row: np.ndarray  # (n, members or 1), of that queue
    owner: np.ndarray  # (semaphores, members), by whose rows each semaphore is incremented
    posts: tuple[Post, ...]
    loads: tuple[Mapping[int, RegisterLoad], ...]  # of each span, by row; addresses as in memory

    def __len__(self) -> int:
        return len(self.opcode)


@attrs.frozen(eq=False)
class DmaRingRows:
    """Its rows in one DMA ring; columns as in DmaQueue."""

    spans: RingSpans
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
    registers: Registers | None

    def __len__(self) -> int:
        return len(self.opcode)


Rows = CcCoreRows | DmaRingRows


@attrs.frozen(eq=False)
class _Cut:
    """Cuts out the rows of one placeholder, and puts those of all programs together."""

    members: Members
    shifts: np.ndarray | None  # of addresses, by member

    def cc(self, spans: CcSpans, rings: Sequence[RingSpans], edges: Edges) -> CcCoreRows:
        """The rows of the CC-cores, with what they wait for in the segment's own numbers."""
        queue, rows = spans[0].queue, spans[0].rows
        lane, pushed = queue.ring[rows], queue.ring_row[rows].copy()
        runner = 0 if queue.ranks is None else int(queue.ranks[0])
        for ring in rings:
            own = next(span for span in ring if is_run_by(span.queue, runner))
            pushed[lane == own.queue.lane] -= own.first
        # by queue of the executable: its number in the segment, its first row there, how many rows
        numbers: np.ndarray = np.full(len(edges.executable.queues) + 1, NOBODY)  # NOBODY: the last
        firsts, lengths = np.zeros((2, len(numbers)), np.int64)
        queues: list[Spans] = [spans, *rings]
        for number, of_queue in enumerate(queues):
            for span in of_queue:
                numbers[span.number], firsts[span.number] = number, span.first
                lengths[span.number] = len(span)
        awaited = [edges.awaited(span.number, span.rows) for span in spans]
        owner = self._joined(spans, [one for one, _ in awaited])
        row = self._joined(spans, [np.broadcast_to(at, one.shape) for one, at in awaited])
        number_of = np.where(owner == NOBODY, NOBODY, numbers[owner])
        row = row - firsts[owner]
        # what comes before the segment is known to be over; nothing waits for what comes behind it
        inside = (number_of != NOBODY) & (row >= 0) & (row < lengths[owner])
        by_sem = edges.source.reshape(-1, edges.executable.ranks)[:, self.members.index]
        return CcCoreRows(
            spans=spans,
            opcode=queue.opcode[rows],
            round=queue.round[rows],
            lane=lane,
            pushed=pushed,
            wait_sem=narrowed(self._column(spans, [span.queue.sync.wait_sem for span in spans])),
            queue=np.where(inside, number_of, NOBODY),
            row=np.where(inside, row, NOBODY),
            owner=self.members.inside(by_sem),
            posts=self._posts(spans),
            loads=tuple(
                {
                    row - span.first: load
                    for row, load in span.queue.loads.items()
                    if span.rows.start <= row < span.rows.stop
                }
                for span in spans
            ),
        )

    def ring(self, spans: RingSpans) -> DmaRingRows:
        """The rows of the rings of one lane."""
        queue, rows = spans[0].queue, spans[0].rows
        peer = self.members.numbered(self._column(spans, [span.queue.peer for span in spans]))
        second_peer = self._optional(spans, [span.queue.second_peer for span in spans])
        second_target = self._optional(spans, [span.queue.second_target for span in spans])
        if second_peer is not None and second_target is not None:
            second_peer = self.members.numbered(second_peer)
            second_target = shifted(second_target, second_peer, self.shifts)
        owner, source_rank = np.arange(self.members.count)[None, :, None], None
        if any(span.queue.source_rank is not None for span in spans):
            source_rank = self.members.numbered(
                self._column(spans, [_source_rank(span.queue) for span in spans])
            )
            owner = source_rank
        sources = self._column(spans, [span.queue.sources for span in spans])
        target = self._column(spans, [span.queue.target for span in spans])
        none = (None, None, None)
        each = (none if one is None else one.columns for one in (s.queue.registers for s in spans))
        named = [self._optional(spans, column) for column in zip(*each, strict=True)]
        registers = [column for column in named if column is not None]  # all three or none
        return DmaRingRows(
            spans=spans,
            lane=queue.lane,
            opcode=queue.opcode[rows],
            round=queue.round[rows],
            divisor=queue.divisor[rows],
            peer=peer,
            sources=shifted(sources, owner, self.shifts),
            target=shifted(target, peer, self.shifts),
            size_bytes=self._column(spans, [span.queue.size_bytes for span in spans]),
            source_rank=source_rank,
            second_peer=second_peer,
            second_target=second_target,
            posts=self._posts(spans),
            registers=Registers(*registers) if registers else None,
        )

    def _posts(self, spans: Spans) -> tuple[Post, ...]:
        """What members increment on members."""
        posts = []
        none = np.full((len(spans[0]), 1), IDLE)
        each = ([(p.rank[s.rows], p.sem[s.rows]) for p in s.queue.sync.posts] for s in spans)
        for columns in itertools.zip_longest(*each, fillvalue=(none, none)):
            rank, sem = (self._joined(spans, column) for column in zip(*columns, strict=True))
            posts.append(Post(self.members.inside(rank), sem))
        return tuple(posts)

    def _column(self, spans: Spans, columns: Sequence[np.ndarray]) -> np.ndarray:
        """The columns of whole queues cut and put together."""
        cut = [column[span.rows] for span, column in zip(spans, columns, strict=True)]
        return self._joined(spans, cut)

    def _optional(
        self, spans: RingSpans, columns: Sequence[np.ndarray | None]
    ) -> np.ndarray | None:
        """The same of a column that a queue may lack: IDLE stands for it; None if all lack it."""
        if all(column is None for column in columns):
            return None
        cut = [
            np.full((len(span), 1), IDLE) if column is None else column[span.rows]
            for span, column in zip(spans, columns, strict=True)
        ]
        return self._joined(spans, cut)

    def _joined(self, spans: Spans, columns: Sequence[np.ndarray]) -> np.ndarray:
        """Columns for the ranks of several programs as one for the members."""
        first = columns[0]
        if len(columns) == 1:
            is_for_all = self.members.order is None or first.shape[1] == 1
            return first if is_for_all else first[:, self.members.index]
        shape = (len(first), self.members.count, *first.shape[2:])
        joined = np.full(shape, IDLE, np.result_type(*columns))
        for span, column in zip(spans, columns, strict=True):
            ranks = span.queue.ranks
            assert ranks is not None, "queues of several programs"
            own = column if column.shape[1] == 1 else column[:, ranks]
            joined[:, self.members.numbered(ranks)] = own
        return joined


def _source_rank(queue: DmaQueue) -> np.ndarray:
    """In whose memory the sources of a queue's rows are: where it does not say, in their own."""
    if queue.source_rank is not None:
        return queue.source_rank
    shape = queue.sources.shape
    return np.broadcast_to(np.arange(shape[1], dtype=np.int32)[:, None], shape)


def blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Rows of a column, some at a time: about BLOCK_CELLS cells."""
    step = max(1, BLOCK_CELLS // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))


@attrs.frozen(eq=False, slots=False)
class Segment:
    """The rows of one placeholder, or of several equal ones: then those of the first."""

    numbers: tuple[int, ...]  # placeholders
    placeholder: Placeholder  # of members
    members: Members  # ranks in rows are their numbers
    cc: CcCoreRows
    rings: tuple[DmaRingRows, ...]  # those with rows, by lane
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
        span = next(span for span in rows.spans if is_run_by(span.queue, rank))
        return span.number, span.first + row, rank

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
        """By row of a queue, what it waits for in the segment (`order.RowEdges`)."""
        if queue == CC:
            return grouped(self.cc.queue, self.cc.row)
        moves = self.rings[queue - 1].peer != IDLE
        whole = moves.all(axis=1).tolist()
        return [
            (Target(CC, at, None if whole[row] else np.flatnonzero(moves[row]), is_own=True),)
            for row, at in enumerate(self.pushing[queue - 1].tolist())
        ]

    def posters(self, queue: int, row: int) -> np.ndarray:
        """(members,) for whose row each waits in a row of the CC-core (`order.RowEdges`)."""
        assert queue == CC, "a ring waits for its own CC-core only"
        return self.cc.owner[self.cc.wait_sem[row], np.arange(self.ranks)]

    def batches(self, run: GreedyRun) -> Sequence[Batch]:
        """The rows of the segment in the order of a run, in its own numbers."""
        places: list[int] = []  # of batches among those of the run
        batches: list[Batch] = []
        for number in range(self.queues):
            for span in self.rows(number).spans:
                everybody = self._members_of(span.queue.ranks)
                own = run.of_rows(span.number, span.first, span.first + len(span)).tolist()
                for _, row, ranks in (run.batches[place] for place in own):
                    members = everybody if ranks is None else self._members_of(ranks)
                    batches.append(Batch(number, row - span.first, members))
                places += own
        return [batches[at] for at in np.argsort(places).tolist()]

    def _members_of(self, ranks: np.ndarray | None) -> np.ndarray | None:
        """Those of the ranks that take part, by number; None: all who do."""
        if ranks is None:
            return None
        members = self.members.inside(ranks)
        members = members[members != IDLE]
        return None if len(members) == self.ranks else members


def segments(executable: Executable, edges: Edges | None = None) -> tuple[Segment, ...]:
    """The distinct segments, in the order of their first placeholders."""
    edges = edges or Edges(executable)
    every = [one for facts in executable.streams for one in _of_stream(executable, facts, edges)]
    every.sort(key=lambda one: one.number)
    alike: dict[Hashable, list[Segment]] = {}
    for one in every:
        alike.setdefault(_shape(one), []).append(one)
    distinct = [one for some in alike.values() for one in _merged(some)]
    return tuple(sorted(distinct, key=lambda one: one.number))


def _of_stream(executable: Executable, facts: StreamFacts, edges: Edges) -> Iterator[Segment]:
    """One segment for each placeholder of a stream, in order."""
    cores: dict[int, list[QueueSpan[CcQueue]]] = {}
    rings: dict[int, dict[int, list[QueueSpan[DmaQueue]]]] = {}  # by placeholder, by lane
    for position, queue in enumerate(executable.queues):
        if isinstance(queue, EngineQueue) or queue.stream != facts.stream:
            continue
        # rows at which another placeholder begins; row 0 is one: no placeholder is IDLE - 1
        begins = np.flatnonzero(np.diff(queue.placeholder, prepend=IDLE - 1)).tolist()
        for first, last in itertools.pairwise([*begins, len(queue.placeholder)]):
            number, rows = int(queue.placeholder[first]), slice(first, last)
            if number == IDLE:
                continue  # control rows
            if isinstance(queue, CcQueue):
                cores.setdefault(number, []).append(QueueSpan(position, queue, rows))
            else:
                of_lane = rings.setdefault(number, {}).setdefault(queue.lane, [])
                of_lane.append(QueueSpan(position, queue, rows))
    for number, core in sorted(cores.items()):
        placeholder = executable.program.placeholders[number]
        members = Members.of(placeholder, executable.ranks)
        bindings = bindings_of(executable, number, facts, members)
        cut = _Cut(members, shifts_of(bindings, members))
        of_lanes = rings.get(number, {})  # none where no member moves anything
        yield Segment(
            numbers=(number,),
            placeholder=members.placeholder(placeholder),
            members=members,
            cc=cut.cc(core, tuple(of_lanes.values()), edges),
            rings=tuple(cut.ring(spans) for spans in of_lanes.values()),
            bindings=bindings,
        )


# ---- which are equal


def _shape(one: Segment) -> Hashable:
    """What is quick to compare of a segment, and mostly tells it from others."""
    if one.placeholder.op.is_counted:
        return one.number  # its tables and registers are its own
    placeholder = attrs.evolve(one.placeholder, operands=(), results=(), channel_id=None, name="")
    starts = np.array([binding.start for binding in one.bindings], np.int64)
    bindings = [(binding.role, binding.size_bytes, binding.members) for binding in one.bindings]
    return (
        placeholder,
        one.ranks,
        tuple(Relocation.of(one.bindings).relocated(starts).tolist()),
        tuple(bindings),
        len(one.cc),
        tuple((ring.lane, len(ring)) for ring in one.rings),
        narrowed(one.cc.wait_sem).tobytes(),
    )


def _merged(alike: Sequence[Segment]) -> Iterator[Segment]:
    """Segments of one shape, in order; those whose rows are equal too as one."""
    if len(alike) == 1:
        yield alike[0]
        return
    distinct: list[tuple[Sequence[np.ndarray | None], list[Segment]]] = []
    for one in alike:
        columns = _columns(one)
        for others, equal in distinct:
            if len(columns) == len(others) and all(map(_is_equal, columns, others)):
                equal.append(one)
                break
        else:
            distinct.append((columns, [one]))
    for _, equal in distinct:
        yield attrs.evolve(equal[0], numbers=tuple(one.number for one in equal))


def _columns(one: Segment) -> Sequence[np.ndarray | None]:
    """Equal for segments whose rows are equal but for where and when they stand."""
    cc, relocated = one.cc, Relocation.of(one.bindings).relocated
    columns: list[np.ndarray | None] = [cc.opcode, cc.round, cc.lane, cc.pushed]
    columns += [cc.wait_sem, cc.queue, cc.row]
    for ring in one.rings:
        columns += [ring.opcode, ring.round, ring.divisor, ring.peer, ring.size_bytes]
        columns += [ring.source_rank, ring.second_peer]
        columns += [relocated(ring.sources), relocated(ring.target)]
        columns.append(None if ring.second_target is None else relocated(ring.second_target))
    for posts in (cc.posts, *(ring.posts for ring in one.rings)):
        columns.append(np.zeros(len(posts)))  # so that columns behind it stand for the same
        columns += [column for post in posts for column in (post.rank, post.sem)]
    return columns


def _is_equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Whether two columns have the same type, shape and cells."""
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(narrowed(one), narrowed(other))
