"""Segments: what fills one placeholder on all ranks, cut out of the queues of its stream.

A segment looks the same wherever it stands: waited values count from what had been counted when the
placeholder began, `homes` says where its buffers lie, and ranks are those that take part, numbered
from 0. Placeholders whose rows are equal in that form are one segment, proved once. That rows of a
placeholder are contiguous, begin with the wait for the trigger and end with DONE, and are the same
in all programs that take part, is for the proof of form; here it is taken for granted.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, Post, StreamFacts
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.verify.homes import Form, Home, homes_of, shifts_of
from ncc_runtime.verify.members import Members
from ncc_runtime.verify.segment_rows import (
    CcRows,
    Cut,
    Part,
    RingRows,
    Rows,
    blocks,
    packed,
)


@attrs.frozen(eq=False)
class Segment:
    """The rows of one placeholder, or of several alike ones: then those of the first."""

    numbers: tuple[int, ...]  # placeholders
    placeholder: Placeholder  # of members
    members: Members  # ranks in rows are their numbers
    cc: CcRows
    rings: tuple[RingRows, ...]  # those with rows, by lane
    homes: tuple[Home, ...]  # operands, results, channel buffer

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
        stretch = next(one for one in rows.stretches if one.ranks is None or rank in one.ranks)
        return stretch.queue, stretch.first + row, rank


_Columns = Sequence[np.ndarray | None]
"""Everything that is compared of two segments of one shape."""


def segments(executable: Executable) -> tuple[Segment, ...]:
    """The distinct segments, in the order of their first placeholders."""
    found = [one for facts in executable.streams for one in _of_stream(executable, facts)]
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
        columns, known = _columns_of(one), maybe.setdefault(packed(one.cc.wait_sem).tobytes(), [])
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

    @property
    def posts(self) -> Iterator[tuple[Post, ...]]:
        """What all of them increment."""
        yield from (part.posts for part in self.cc)
        yield from (part.posts for ring in self.rings.values() for part in ring)


def _of_stream(executable: Executable, facts: StreamFacts) -> Iterator[Segment]:
    """One segment for each placeholder of a stream, in order."""
    entry: np.ndarray = np.zeros((executable.ranks, max(1, executable.semaphore_count)), np.int64)
    parts = _parts(executable, facts.stream)
    numbers = sorted(parts)
    for number in numbers:
        its = parts[number]
        yield _segment(executable, facts, number, its, entry)
        if number != numbers[-1]:
            for posts in its.posts:
                _count(posts, entry)


def _parts(executable: Executable, stream: int) -> Mapping[int, _Parts]:
    """By placeholder of a stream, its rows."""
    found: dict[int, _Parts] = {}
    for position, queue in enumerate(executable.queues):
        if isinstance(queue, CcQueue) and queue.stream == stream:
            for number, rows in _spans(queue.placeholder).items():
                found.setdefault(number, _Parts()).cc.append(Part(position, queue, rows))
        elif isinstance(queue, DmaQueue) and queue.stream == stream:
            for number, rows in _spans(queue.placeholder).items():
                its = found.setdefault(number, _Parts()).rings
                its.setdefault(queue.lane, []).append(Part(position, queue, rows))
    return found


def _segment(
    executable: Executable, facts: StreamFacts, number: int, parts: _Parts, entry: np.ndarray
) -> Segment:
    """The segment of a placeholder; `entry` is what has been counted before it."""
    placeholder = executable.program.placeholders[number]
    members = Members.of(placeholder, executable.ranks)
    homes = homes_of(executable, number, facts, members)
    cut, rings = Cut(members, shifts_of(homes, members)), tuple(parts.rings.values())
    return Segment(
        numbers=(number,),
        placeholder=members.placeholder(placeholder),
        members=members,
        cc=cut.cc(parts.cc, rings, entry),
        rings=tuple(cut.ring(its) for its in rings),
        homes=homes,
    )


def _spans(placeholder: np.ndarray) -> Mapping[int, slice]:
    """Which rows belong to each placeholder, in the order of the rows."""
    edges = np.flatnonzero(np.diff(placeholder, prepend=IDLE - 1)).tolist()
    ends = [*edges[1:], len(placeholder)]
    return {
        int(placeholder[first]): slice(first, last)
        for first, last in zip(edges, ends, strict=True)
        if placeholder[first] != IDLE
    }


def _count(posts: Sequence[Post], entry: np.ndarray) -> None:
    """Add increments to what has been counted, (ranks, semaphores)."""
    cells, width = entry.reshape(-1), entry.shape[1]
    for post in posts:
        for rows in blocks(post.rank.shape):
            rank, sem = post.rank[rows], post.sem[rows]
            made = rank != IDLE
            if made.any():
                np.add.at(cells, rank[made] * np.int64(width) + sem[made], 1)


def _shape(one: Segment) -> Hashable:
    """What is quick to compare of a segment."""
    said = attrs.evolve(one.placeholder, operands=(), results=(), channel_id=None, name="")
    starts = Form.of(one.homes).formed(np.array([home.start for home in one.homes], np.int64))
    sizes = tuple((home.role, home.size_bytes, home.members) for home in one.homes)
    rings = tuple((ring.lane, len(ring)) for ring in one.rings)
    if one.placeholder.op.is_counted:
        return one.number  # its tables and registers are its own
    return said, one.ranks, tuple(starts.tolist()), sizes, len(one.cc), rings


def _columns_of(one: Segment) -> _Columns:
    """Equal for segments whose rows are equal but for where and when they stand."""
    cc, form = one.cc, Form.of(one.homes)
    columns: list[np.ndarray | None] = [cc.opcode, cc.round, cc.lane, cc.pushed]
    columns += [cc.wait_sem, cc.wait_value, *_columns(cc.posts)]
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
    return np.array_equal(packed(one), packed(other))


def _columns(posts: Sequence[Post]) -> Iterator[np.ndarray]:
    for post in posts:
        yield post.rank
        yield post.sem
