"""Rotational symmetry: a segment that a rotation maps onto itself is proved for one rank.

A rotation is a permutation of the ranks all of whose cycles have one length, as the successors in a
ring are. It is an *automorphism* of the segment if it maps what every rank does to what the next
one does: waits to waits, transfers to transfers. Then the clocks of one rank, by distance along the
cycle, stand for those of all.

Lanes may go around different cycles. Those that go around the same one are a *family*, and each
family is proved alone, by what it tells along its own cycle: that leaves order out and adds none,
and is enough if families touch no common bytes.

Memories need not be laid out alike. Seen from the memory that it touches, each source or target of
a row has a place on every rank. If rows that begin at one address of the first rank's memory begin
at one address in each, and what they touch, taken together, is disjoint in each from what begins
elsewhere, then what conflicts on any rank begins at one address on the first: at one *slot*.

This only checks a rotation that the lanes propose. Where it does not fit, nothing is said, and all
ranks are proved by their own clocks (`races.py`).
"""

import itertools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.order import NOBODY, Batch, Obligations, OrderedQueues, Target, unmet
from ncc_runtime.verify.conflicts import CC, Accesses, due_between
from ncc_runtime.verify.counters import narrowed
from ncc_runtime.verify.segments import DmaRingRows, Segment, blocks

MOST_PATTERNS = 64
"""Distinct columns of ranks that are looked at before a segment is called irregular."""

RANKS_AT_ONCE = 64
"""Memories that are compared with the first at once."""

MOST_GAPS = 4
"""Places for ranges per range: where there are more, sorting is the cheaper way."""

RANKS_SHOWN = 5
"""Ranks of a cycle that a class is described by."""


@attrs.frozen(eq=False)
class Cycle:
    """A permutation of the ranks, all of whose cycles have one length."""

    successor: np.ndarray  # (ranks,)
    length: int

    @classmethod
    def of(cls, successor: np.ndarray) -> "Cycle | None":
        """From a column of ranks; None if it is no such permutation."""
        everybody = np.arange(len(successor))
        if not np.array_equal(np.sort(successor), everybody):
            return None
        at, length = successor, 1
        while not (back := at == everybody).any():
            at, length = successor[at], length + 1
        return cls(successor, length) if back.all() else None

    def turned(self, ranks: np.ndarray, places: int) -> np.ndarray:
        """Who stands 0, 1 or -1 places further than each of these ranks."""
        if places == 0:
            return ranks
        column = self.successor if places == 1 else np.argsort(self.successor)
        return np.asarray(column[ranks])

    def places(self, column: np.ndarray) -> int | None:
        """How far a column of ranks is turned, where it is by 0, 1 or -1 places."""
        everybody = np.arange(len(column))
        fitting = (one for one in (0, 1, -1) if (self.turned(everybody, one) == column).all())
        return next(fitting, None)


@attrs.frozen(eq=False)
class Rotations:
    """The cycles along which the lanes of a segment write."""

    cycles: tuple[Cycle, ...]  # one per family
    family: tuple[int, ...]  # of each ring
    places: tuple[np.ndarray, ...]  # per ring and row, how far it writes


@attrs.frozen(eq=False)
class _Waits:
    """Waits of each rank for rows of the ranks some places on; alike on all ranks."""

    row: np.ndarray  # (w,) of the CC-core
    queue: np.ndarray  # (w,) that each waits for
    awaited: np.ndarray  # (w,) row of that queue
    family: np.ndarray  # (w,) along which the rank stands whose row it is; IDLE: it is the own
    places: np.ndarray  # (w,) how many places on


def proved_by_rotation(segment: Segment) -> str | None:
    """The classes of ranks of which one was proved for all; None says nothing at all."""
    rotations = rotations_of(segment)
    waits = None if rotations is None else _waits_of(segment, rotations)
    uses = None if rotations is None or waits is None else uses_of(segment, rotations)
    if rotations is None or waits is None or uses is None or not _are_apart(rotations, uses):
        return None
    proved: set[bytes] = set()
    for family in range(len(rotations.cycles)):
        view = _View.of(segment, rotations, waits, family)
        if view is None:
            return None
        due = view.obligations(uses)
        content = view.content(due)
        if content not in proved and unmet(view.queues(), OneRank(view.length), due).any():
            return None
        proved.add(content)
    return _text(segment, rotations)


def rotations_of(segment: Segment) -> Rotations | None:
    """The families of a segment; None if its rings differ from rank to rank by more than a turn."""
    cycles: list[Cycle] = []
    family, places = [], []
    for ring in segment.rings:
        patterns = _patterns(ring.peer) if _is_plain(ring) else None
        number = None if patterns is None else _family(patterns[1], cycles)
        if patterns is None or number is None:
            return None
        turned = [cycles[number].places(pattern) for pattern in patterns[1]]
        if None in turned:
            return None
        family.append(number)
        places.append(np.array(turned)[patterns[0]])
    return Rotations(tuple(cycles), tuple(family), tuple(places)) if cycles else None


def _waits_of(segment: Segment, rotations: Rotations) -> _Waits | None:
    """What the CC-core waits for; None if ranks differ by more than a turn.

    As every wait names its increment, this is all that posts can say.
    """
    cc = segment.cc
    if not (_alike(cc.queue) and _alike(cc.row) and _alike(cc.wait_sem)):
        return None
    row = np.flatnonzero(cc.queue[:, 0] != NOBODY)
    sem = cc.wait_sem[row, 0]
    family, places = np.full(len(row), IDLE), np.zeros(len(row), np.int64)
    for one in np.unique(sem).tolist():
        turned = _turned(cc.owner[one], rotations.cycles)
        if turned is None:
            return None
        family[sem == one], places[sem == one] = turned
    return _Waits(row, cc.queue[row, 0], cc.row[row, 0], family, places)


def _turned(pattern: np.ndarray, cycles: Sequence[Cycle]) -> tuple[int, int] | None:
    """Along which family a column of ranks is turned, and how far."""
    for number, cycle in enumerate(cycles):
        places = cycle.places(pattern)
        if places is not None:
            return (number if places else IDLE), places
    return None


def _alike(column: np.ndarray) -> bool:
    """Whether rows are alike on all ranks."""
    return all(
        bool((column[rows] == column[rows, :1]).all())
        for rows in blocks(column.shape)
        if column.shape[1] > 1 and column.strides[1] != 0
    )


def _is_plain(ring: DmaRingRows) -> bool:
    """Whether rows read their own memory and write once, at addresses that are known."""
    if ring.registers is not None:
        return False
    if ring.second_peer is not None and (ring.second_peer != IDLE).any():
        return False
    if ring.source_rank is None:
        return True
    own = np.arange(ring.peer.shape[1])[None, :, None]
    return bool(((ring.source_rank == IDLE) | (ring.source_rank == own)).all())


def _patterns(column: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Which pattern each row of a column is, and the patterns; None if they are many."""
    found: list[np.ndarray] = []
    number = np.full(len(column), IDLE)
    if column.strides[0] == 0:
        return np.zeros(len(column), np.int64), [column[0]]
    while len(left := np.flatnonzero(number == IDLE)):
        if len(found) == MOST_PATTERNS:
            return None
        pattern = column[left[0]]
        maybe = left[(column[left, :2] == pattern[:2]).all(axis=1)]
        for some in blocks((len(maybe), column.shape[1])):
            rows = maybe[some]
            number[rows[(column[rows] == pattern).all(axis=1)]] = len(found)
        found.append(pattern)
    return number, found


def _family(patterns: Sequence[np.ndarray], cycles: list[Cycle]) -> int | None:
    """The family of a ring by the ranks that it writes to, perhaps a new one."""
    everybody = np.arange(len(patterns[0]))
    other = next((one for one in patterns if (one != everybody).any()), None)
    if other is None:
        return None
    for number, cycle in enumerate(cycles):
        if cycle.places(other) is not None:
            return number
    found = Cycle.of(other)
    if found is not None:
        cycles.append(found)
        return len(cycles) - 1
    return None


@attrs.frozen(eq=False)
class OneRank:
    """Clocks of one rank that stand for all: slot k is about the rank k places further."""

    width: int  # length of the cycle

    @property
    def own(self) -> np.ndarray:
        return np.zeros(1, np.int64)

    def slots(self, rank: np.ndarray, of_rank: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return of_rank

    def carried(self, clock: np.ndarray, posters: np.ndarray, at: np.ndarray) -> np.ndarray:  # noqa: ARG002
        # what who stands p places on counts k places further is k + p places from here
        return np.roll(clock, int(posters[0]), axis=1)


@attrs.frozen(eq=False)
class _View:
    """What one rank does for one family of lanes; the rows of its CC-core counted anew.

    It is a segment of one rank (`order.Queues`), in which the posters of a wait are places.
    """

    length: int  # of the cycle
    rings: tuple[int, ...]  # of the segment; queue k + 1 is that of the k-th
    pushes: np.ndarray  # (rows,) the queue that a row of the CC-core pushes, else IDLE
    waits: np.ndarray  # (4, w): row of the CC-core, queue, row of the queue, places

    @classmethod
    def of(
        cls, segment: Segment, rotations: Rotations, waits: _Waits, family: int
    ) -> "_View | None":
        """The rows that matter to a family; None if a wait is for what comes later."""
        rings = tuple(number for number, one in enumerate(rotations.family) if one == family)
        local = np.full(segment.queues, IDLE)
        local[CC] = CC
        local[np.array(rings) + 1] = np.arange(len(rings)) + 1
        pushes = np.full(len(segment.cc), IDLE)
        for ring in rings:
            pushes[segment.pushing[ring]] = local[ring + 1]
        along = waits.family == family  # places along another cycle lead to other ranks
        is_own = np.where(waits.queue == CC, along, along | (waits.family == IDLE))
        is_own &= local[waits.queue] != IDLE
        row, queue, awaited = waits.row[is_own], local[waits.queue[is_own]], waits.awaited[is_own]
        told = awaited[queue == CC]
        kept = np.unique(
            np.concatenate(([0, len(pushes) - 1], np.flatnonzero(pushes != IDLE), row, told))
        )
        pushes = pushes[kept]
        row = np.searchsorted(kept, row)
        awaited = awaited.copy()
        awaited[queue == CC] = np.searchsorted(kept, told)
        behind = awaited.copy()  # the row of the CC-core that is behind the awaited one
        for number in range(1, len(rings) + 1):
            behind[queue == number] = np.flatnonzero(pushes == number)[awaited[queue == number]]
        if (behind >= row).any():
            return None
        columns = np.stack((row, queue, awaited, waits.places[is_own]))
        return cls(rotations.cycles[family].length, rings, pushes, columns)

    def queues(self) -> OrderedQueues:
        """Row after row, each push with what it pushes."""
        batches, at = [], [0] * (len(self.rings) + 1)
        for row, queue in enumerate(self.pushes.tolist()):
            batches.append(Batch(CC, row, None))
            if queue != IDLE:
                batches.append(Batch(queue, at[queue], None))
                at[queue] += 1
        return OrderedQueues(len(self.rings) + 1, 1, len(self.pushes), self, batches)

    def targets(self, queue: int) -> Sequence[Sequence[Target]]:
        """By row of a queue, what it waits for (`order.RowEdges`)."""
        if queue != CC:
            pushing = np.flatnonzero(self.pushes == queue).tolist()
            return [(Target(CC, row, is_own=True),) for row in pushing]
        found: list[Sequence[Target]] = [()] * len(self.pushes)
        for row, of, awaited, places in self.waits.T.tolist():
            posters = np.array([places])
            found[row] = (Target(of, awaited, None, posters, is_own=places == 0),)
        return found

    def posters(self, queue: int, row: int) -> np.ndarray:
        """Never asked: targets have their posters (`order.RowEdges`)."""
        raise AssertionError(f"queue {queue}, row {row} has its posters")

    def obligations(self, uses: Sequence["Use"]) -> Obligations:
        """What one rank must know, of ranks so many places on."""
        parts, moments = [], []
        for local, ring in enumerate(self.rings):
            pushing = np.flatnonzero(self.pushes == local + 1)
            for use in uses:
                if use.ring == ring:
                    part = self._accesses(use, local + 1)
                    parts.append(part)
                    moments.append(pushing[part.row])
        if not sum(map(len, parts)):
            return Obligations.together([])
        found = due_between(Accesses.together(parts), np.concatenate(moments), len(self.pushes) - 1)
        places = (found.of_rank - found.rank) % self.length
        return attrs.evolve(found, rank=np.zeros_like(places), of_rank=places)

    def _accesses(self, use: "Use", queue: int) -> Accesses:
        """To the memory of one rank, whose slots count as a byte each."""
        row = np.flatnonzero(use.slot != IDLE)
        slot, rank = use.slot[row], -use.behind[row] % self.length
        return Accesses(
            memory=np.zeros_like(row),
            start=slot,
            end=slot + 1,
            rank=rank,
            queue=np.full_like(row, queue),
            row=row,
            writes=np.full(len(row), use.writes),
        )

    def content(self, due: Obligations) -> bytes:
        """Equal for families that are proved alike."""
        sizes = np.array([self.length, len(self.rings), len(self.pushes), self.waits.shape[1]])
        columns = (sizes, self.pushes, self.waits, *due.columns())
        return b"".join(np.ascontiguousarray(column, np.int64).tobytes() for column in columns)


def _are_apart(rotations: Rotations, uses: Sequence["Use"]) -> bool:
    """Whether families touch different slots."""
    touched: list[set[int]] = [set() for _ in rotations.cycles]
    for use in uses:
        touched[rotations.family[use.ring]].update(np.unique(use.slot[use.slot != IDLE]).tolist())
    return sum(map(len, touched)) == len(set().union(*touched))


@attrs.frozen(eq=False)
class Use:
    """A source or the target of all rows of a ring."""

    ring: int
    slot: np.ndarray  # (rows,) which, IDLE for none
    behind: np.ndarray  # (rows,) places from the ring's rank on to the rank of the memory
    writes: bool


@attrs.frozen(eq=False)
class _Column:
    """Addresses and sizes of a source or target, by the rank of the memory."""

    ring: DmaRingRows
    source: int | None  # None: the target
    cycle: Cycle
    behind: np.ndarray  # (rows,)

    @property
    def addresses(self) -> np.ndarray:
        """(rows, ranks) by the ring's rank."""
        return self.ring.target if self.source is None else self.ring.sources[:, :, self.source]

    def moves(self) -> np.ndarray:
        """(rows,) bool: which rows move bytes on any rank."""
        return np.asarray((narrowed(self.ring.size_bytes) > 0).any(axis=1))

    def of(self, column: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """A column by the ring's rank, seen from the memories of some ranks."""
        if self.source is not None:
            return column[:, ranks[0] : ranks[-1] + 1]
        found = np.empty((len(column), len(ranks)), column.dtype)
        for places in np.unique(self.behind).tolist():
            rows = np.flatnonzero(self.behind == places)
            found[rows] = column[rows[:, None], self.cycle.turned(ranks, -places)[None, :]]
        return found


def uses_of(segment: Segment, rotations: Rotations) -> tuple[Use, ...] | None:
    """The uses with their slots; None if memories are not used alike."""
    columns, rings = _columns(segment, rotations)
    first = np.zeros(1, np.int64)
    starts = [column.of(column.addresses, first)[:, 0] for column in columns]
    moves = [column.moves() for column in columns]
    touches = [(start != IDLE) & some for start, some in zip(starts, moves, strict=True)]
    edges = np.cumsum([0, *(np.count_nonzero(some) for some in touches)]).tolist()
    touched = [start[some] for start, some in zip(starts, touches, strict=True)]
    _, firsts, slot = np.unique(np.concatenate(touched), return_index=True, return_inverse=True)
    rows = [np.flatnonzero(some) for some in touches]
    numbers = [slot[begin:end] for begin, end in itertools.pairwise(edges)]
    comparison = _Comparison(columns, rows, numbers, firsts)
    if not (comparison.idle_alike(moves) and comparison.all_alike(segment.ranks)):
        return None
    found = []
    for column, ring, its, number in zip(columns, rings, rows, numbers, strict=True):
        whole = np.full(len(column.behind), IDLE)
        whole[its] = number
        found.append(Use(ring, whole, column.behind, column.source is None))
    return tuple(found)


def _columns(segment: Segment, rotations: Rotations) -> tuple[list[_Column], list[int]]:
    """All sources and targets, and the rings they belong to."""
    columns, rings = [], []
    for number, ring in enumerate(segment.rings):
        cycle, places = rotations.cycles[rotations.family[number]], rotations.places[number]
        home, count = np.zeros_like(places), int(ring.sources.shape[2])
        columns += [_Column(ring, source, cycle, home) for source in range(count)]
        columns.append(_Column(ring, None, cycle, places))
        rings += [number] * (count + 1)
    return columns, rings


@attrs.frozen(eq=False)
class _Comparison:
    """Compares the memories of all ranks with the first rank's."""

    columns: Sequence[_Column]
    rows: Sequence[np.ndarray]  # per column, those that touch memory
    numbers: Sequence[np.ndarray]  # and which slot
    firsts: np.ndarray  # (slots,) where each comes first, counted through all columns

    def idle_alike(self, moves: Sequence[np.ndarray]) -> bool:
        """Whether sources that the first rank does not have, no rank has."""
        for column, rows, some in zip(self.columns, self.rows, moves, strict=True):
            idle = some.copy()
            idle[rows] = False
            if (column.addresses[np.flatnonzero(idle)] != IDLE).any():
                return False
        return True

    def all_alike(self, ranks: int) -> bool:
        """Whether slots are equal where the first rank's are, and disjoint where not."""
        return all(
            self._alike(np.arange(first, min(first + RANKS_AT_ONCE, ranks)))
            for first in range(0, ranks, RANKS_AT_ONCE)
        )

    def _alike(self, ranks: np.ndarray) -> bool:
        start = self._starts(ranks)
        return start is not None and are_disjoint(start, self._sizes(ranks))

    def _sizes(self, ranks: np.ndarray) -> np.ndarray:
        """The most bytes of a slot that any row touches, (slots, ranks or 1)."""
        if all(one.ring.size_bytes.strides[1] == 0 for one in self.columns):
            ranks = ranks[:1]
        cells = [
            one.of(one.ring.size_bytes, ranks)[rows]
            for one, rows in zip(self.columns, self.rows, strict=True)
        ]
        number = np.concatenate(self.numbers)
        order = np.argsort(number)
        begins = np.flatnonzero(np.diff(number[order], prepend=-1))
        return np.asarray(np.maximum.reduceat(np.concatenate(cells)[order], begins, axis=0))

    def _starts(self, ranks: np.ndarray) -> np.ndarray | None:
        """Where slots begin in these memories, (slots, ranks).

        None if rows of one slot begin at different addresses of a memory.
        """
        addresses = [
            column.of(column.addresses, ranks)[rows]
            for column, rows in zip(self.columns, self.rows, strict=True)
        ]
        # the same as np.concatenate(addresses)[self.firsts], without a copy of everything
        edges = np.cumsum([0, *map(len, addresses)])
        column_of = np.searchsorted(edges, self.firsts, side="right") - 1
        starts = np.empty((len(self.firsts), len(ranks)), np.int64)
        for number, own in enumerate(addresses):
            slots = np.flatnonzero(column_of == number)
            starts[slots] = own[self.firsts[slots] - edges[number]]
        for own, slot_of in zip(addresses, self.numbers, strict=True):
            if not np.array_equal(own, starts[slot_of]):
                return None
        return starts


def are_disjoint(start: np.ndarray, size: np.ndarray) -> bool:
    """Whether in each column of spans no two overlap."""
    if not len(start):
        return True
    if size[0, 0] > 0 and (size == size[0, 0]).all():
        numbers = _numbered(start, int(size[0, 0]))
        if numbers is not None:
            return bool((np.bincount(numbers.ravel()) <= 1).all())
    starts = np.sort(start, axis=0)
    ends = np.sort(start + size, axis=0)  # the k-th end behind the (k+1)-th start: two at once
    return bool((ends[:-1] <= starts[1:]).all())


def _numbered(start: np.ndarray, size: int) -> np.ndarray | None:
    """Spans of one size as numbers, other ones in each column; None if they do not lie so."""
    least = int(start.min())
    count = (int(start.max()) - least) // size + 1
    if count > MOST_GAPS * len(start):
        return None
    numbers = (start - least) // size
    if not np.array_equal(numbers * size, start - least):
        return None
    numbers += np.arange(start.shape[1]) * count
    return numbers


def _text(segment: Segment, rotations: Rotations) -> str:
    """The classes as people read them."""
    count = segment.ranks
    parts = []
    for family, cycle in enumerate(rotations.cycles):
        lanes = [
            segment.rings[ring].lane for ring, one in enumerate(rotations.family) if one == family
        ]
        named = f"lane{'s' * (len(lanes) > 1)} {' and '.join(map(str, lanes))}"
        parts.append(f"along {named} ({' -> '.join(_shown(segment, cycle.successor))})")
    length = rotations.cycles[0].length
    cycles = f" in {count // length} cycles of {length}" if length < count else ""
    order = range(count) if segment.members.order is None else segment.members.order[:count]
    first, last = int(order[0]), int(order[-1])
    who = f"{first}..{last}" if last - first + 1 == count else ranks_text([*map(int, order)])
    return f"ranks {who} as one class of {count:,}{cycles} by rotation {', '.join(parts)}"


def _shown(segment: Segment, successor: np.ndarray) -> Iterator[str]:
    """The first ranks of the cycle of the first."""
    at = 0
    for _ in range(RANKS_SHOWN):
        yield str(segment.members.rank(at))
        at = int(successor[at])
        if at == 0:
            yield str(segment.members.rank(0))
            return
    yield "..."
