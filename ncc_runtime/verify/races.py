"""Races inside a collective: two accesses to the same bytes, one a write, in no order.

Proved of each distinct segment, for every speed of every rank. A row of a ring reads all its
sources, then writes its targets. In an order in which the rows can be performed, `conflicts.py`
says which accesses must be ordered; each such pair obliges the later row to know, when it starts,
that the earlier one is complete, and vector clocks tell whether it does (`order.py`). Besides, each
access to a rank's memory must come behind that rank's trigger and before it reports completion:
what engines and other streams do meanwhile is proved elsewhere (docs/proofs.md). A barrier keeps
its promise, too: nobody leaves before all have come.

Where a length register is added to an address, the row touches all of the buffer. Writes to such
addresses come in no order among themselves, that their counts keep them apart is checked when they
are known; against all else that writes there they must be ordered, so they stand as reads. That
nothing reads there is for the proof of semantics.
"""

import itertools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.arrays import distinct
from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.order import NOBODY, Batch, Chosen, GreedyRun, Obligations, OrderedQueues, unmet
from ncc_runtime.progress import steps
from ncc_runtime.verify.bindings import Role, own_address
from ncc_runtime.verify.conflicts import CC, Accesses, due_between
from ncc_runtime.verify.counters import Edges, NamedIncrement, on_rank
from ncc_runtime.verify.places import breach_at, collective, place_of
from ncc_runtime.verify.proof import Breach, Proof
from ncc_runtime.verify.segments import DmaRingRows, Segment, blocks
from ncc_runtime.verify.symmetry import proved_by_rotation

BLOCK_ACCESSES = 1 << 22
"""Accesses that are held at once."""

CLOCK_BYTES = 1 << 20
"""Of one clock of all ranks: more ranks are tracked in several goes."""

NEIGHBOURS_SAVE = 8
"""Neighbours go first where they are this many times fewer than the ranks that matter."""

MOST_WITNESSES = 3
"""Of one segment; the rest is counted."""


# ---- the proof


def prove_races(
    executable: Executable, segments: Sequence[Segment], done: GreedyRun, edges: Edges | None = None
) -> Proof:
    """Each distinct segment once; `done` is a run that comes to its end."""
    assert not done.stuck, "the proof of races presumes that of deadlock"
    breaches: list[Breach] = []
    classes: list[str] = []
    transfers = 0
    for segment in steps(segments, "proof of races", "collectives"):
        for ring in segment.rings:
            moved = (np.count_nonzero(ring.peer[r] != IDLE) for r in blocks(ring.peer.shape))
            transfers += len(segment.numbers) * int(sum(moved))
        alike = None
        if segment.placeholder.op is not CollectiveOp.BARRIER:
            alike = proved_by_rotation(segment)
        if alike is not None:
            classes.append(f"{collective(executable, segment.number)}: {alike}")
            continue
        queues, due = obligations_of(segment, done)
        lost = due.at(unproved(queues, due))
        if len(lost):
            breaches += _Witness(executable, edges or Edges(executable), segment).of(lost)
    collectives = sum(len(segment.numbers) for segment in segments)
    size = f"{transfers} transfers of {collectives} collectives ({len(segments)} distinct)"
    return Proof("races", size, breaches=tuple(breaches), classes=tuple(classes))


def obligations_of(segment: Segment, done: GreedyRun) -> tuple[OrderedQueues, Obligations]:
    """The queues of a segment in the order of a run, and what its rows must know of others."""
    batches = segment.batches(done)
    longest = max(len(segment.rows(queue)) for queue in range(segment.queues))
    queues = OrderedQueues(segment.queues, segment.ranks, longest, segment, batches)
    due = due_of(segment, moments_of(segment, batches))
    if segment.placeholder.op is CollectiveOp.BARRIER:
        groups = tuple(np.array(group) for group in segment.placeholder.groups)
        due = Obligations.together([due, _everybody_entered(groups, len(segment.cc) - 1)])
    return queues, due


def unproved(queues: OrderedQueues, due: Obligations) -> np.ndarray:
    """Which obligations are not met, as positions; exact."""
    left = np.arange(len(due))
    if not len(due):
        return left
    chosen = distinct(due.of_rank)
    near = Neighbours(queues.ranks, due)
    if near.width * NEIGHBOURS_SAVE < len(chosen):
        left = left[unmet(queues, near, due)]
        chosen = distinct(due.of_rank[left])
    entry_bytes = queues.count * np.min_scalar_type(queues.longest).itemsize
    width = max(1, CLOCK_BYTES // (queues.ranks * entry_bytes))
    found = [np.zeros(0, np.int64)]
    for first in range(0, len(chosen), width):
        some = Chosen(queues.ranks, chosen[first : first + width])
        these = left[some.own[due.of_rank[left]] != NOBODY]
        found.append(these[unmet(queues, some, due.at(these))])
    return np.sort(np.concatenate(found))


class Neighbours:
    """Each rank tracks itself and those that an obligation of its own or of a third sets beside it.

    Rings that access one rank's memory are neighbours. Knowledge that would have to travel by way
    of others is missed, never made up.
    """

    def __init__(self, ranks: int, due: Obligations) -> None:
        pairs = np.concatenate(
            (
                np.arange(ranks) * (ranks + 1),
                due.rank * ranks + due.of_rank,
                due.of_rank * ranks + due.rank,
            )
        )
        self._keys = distinct(pairs)  # (rank, tracked) as one number, ascending
        rank = self._keys // ranks
        counts = np.bincount(rank, minlength=ranks)
        self._slot = np.arange(len(rank)) - (np.cumsum(counts) - counts)[rank]
        self._ranks, self.width = ranks, int(counts.max()) + 1  # the last slot stays empty
        self._tracked: np.ndarray = np.full((ranks, self.width), NOBODY)
        self._tracked[rank, self._slot] = self._keys % ranks
        self._known: dict[bytes, np.ndarray] = {}

    @property
    def own(self) -> np.ndarray:
        everybody = np.arange(self._ranks)
        return self.slots(everybody, everybody)

    def slots(self, rank: np.ndarray, of_rank: np.ndarray) -> np.ndarray:
        keys = rank * self._ranks + of_rank
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(
            (self._keys[found] == keys) & (of_rank != NOBODY), self._slot[found], NOBODY
        )

    def carried(self, clock: np.ndarray, posters: np.ndarray, at: np.ndarray) -> np.ndarray:
        key = posters.tobytes() + at.tobytes()
        if key not in self._known:
            # where the poster does not count a rank's rows, NOBODY finds the last, empty slot
            self._known[key] = self.slots(posters[:, None], self._tracked[at])
        return clock[posters[:, None], self._known[key]]


# ---- what rows touch


def whole(
    segment: Segment, start: np.ndarray, end: np.ndarray, floats: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of bytes; those that float, as all buffers that they begin in."""
    first, last = start, end
    for binding in segment.bindings:
        inside = floats & (start >= binding.start) & (start < binding.end)
        first = np.where(inside, np.minimum(first, binding.start), first)
        last = np.where(inside, np.maximum(last, binding.end), last)
    return first, last


def pieces(
    ring: DmaRingRows, row: np.ndarray, rank: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """(memory, address or IDLE, writes) of each source and target of some cells of a ring."""
    for source in range(ring.sources.shape[2]):
        memory = rank if ring.source_rank is None else ring.source_rank[row, rank, source]
        yield memory, ring.sources[row, rank, source], False
    yield ring.peer[row, rank], ring.target[row, rank], True
    if ring.second_peer is not None and ring.second_target is not None:
        also = ring.second_peer[row, rank]
        yield also, np.where(also == IDLE, IDLE, ring.second_target[row, rank]), True


# ---- what must be known


def moments_of(segment: Segment, batches: Sequence[Batch]) -> Sequence[np.ndarray]:
    """When the rows of each ring are performed, (rows, ranks or 1): the places of their batches."""
    found: list[np.ndarray] = []
    is_whole = [True] * segment.queues
    for batch in batches:
        is_whole[batch.queue] &= batch.ranks is None
    for number, ring in enumerate(segment.rings):
        width = 1 if is_whole[number + 1] else segment.ranks
        found.append(np.zeros((len(ring), width), np.int64))
    for moment, (queue, row, ranks) in enumerate(batches):
        if queue != CC:
            found[queue - 1][row, slice(None) if ranks is None else ranks] = moment
    return found


def due_of(segment: Segment, moments: Sequence[np.ndarray]) -> Obligations:
    """What must be known so that no two accesses race, within the segment or across its ends."""
    cells = sum(ring.sources.size + 2 * ring.target.size for ring in segment.rings)
    parts = max(1, min(segment.ranks, -(-cells // BLOCK_ACCESSES)))
    edges = np.linspace(0, segment.ranks, parts + 1).astype(int).tolist()
    found: list[Obligations] = []
    for first, last in itertools.pairwise(edges):
        accesses = accesses_of(segment, range(first, last))
        if not len(accesses):
            continue
        when = np.empty(len(accesses), np.int64)
        for number, moment in enumerate(moments):
            its = accesses.queue == number + 1
            rank = accesses.rank[its] if moment.shape[1] > 1 else 0
            when[its] = moment[accesses.row[its], rank]
        found.append(due_between(accesses, when, len(segment.cc) - 1))
    return Obligations.together(found)


def _everybody_entered(groups: Sequence[np.ndarray], done: int) -> Obligations:
    """What a barrier promises: who reports completion, in row `done`, knows of all of the group."""
    found = []
    for group in groups:
        rank, other = (grid.ravel() for grid in np.meshgrid(group, group, indexing="ij"))
        rank, other = rank[rank != other], other[rank != other]
        found.append(Obligations.of(rank, CC, done, other, CC, 0))
    return Obligations.together(found)


def accesses_of(segment: Segment, memories: range) -> Accesses:
    """All accesses to the memories of some ranks; what is empty accesses nothing."""
    empty = np.zeros(0, np.int64)
    found = [Accesses(empty, empty, empty, empty, empty, empty, np.zeros(0, bool))]
    for number, ring in enumerate(segment.rings):
        row, rank = np.nonzero((ring.peer != IDLE) & (ring.size_bytes > 0))
        for memory, start, writes in pieces(ring, row, rank):
            there = (start != IDLE) & (memory >= memories.start) & (memory < memories.stop)
            at = slice(None) if there.all() else there
            begin, its_row = start[at], row[at]
            end = begin + ring.size_bytes[its_row, rank[at]]
            queue = np.full(len(begin), number + 1)
            what = np.full(len(begin), writes)
            if ring.registers is not None:
                register = ring.registers.target if writes else ring.registers.source
                floats = register[its_row, rank[at]] != IDLE
                begin, end = whole(segment, begin, end, floats)
                what &= ~floats
            found.append(Accesses(memory[at], begin, end, rank[at], queue, its_row, what))
    return Accesses.together(found)


# ---- what is wrong, in words


@attrs.frozen
class _Due:
    """One obligation."""

    rank: int
    queue: int
    row: int
    of_rank: int
    of_queue: int
    of_row: int


@attrs.frozen
class _Touch:
    """A piece of memory that a ring row reads or writes."""

    memory: int
    start: int
    end: int
    writes: bool


@attrs.frozen(eq=False)
class _Witness:
    """Tells what is wrong in one segment of an executable."""

    executable: Executable
    edges: Edges
    segment: Segment

    def of(self, lost: Obligations) -> Iterator[Breach]:
        """The first obligations that are not met, the last of them with the number of others."""
        order = np.lexsort((lost.rank, lost.row, lost.queue))
        firsts = lost.at(order[:MOST_WITNESSES])
        rows = list(zip(*(column.tolist() for column in firsts.columns()), strict=True))
        more = len(lost) - len(rows)
        for number, row in enumerate(rows):
            due = _Due(*row)
            text = self._told(due)
            if more and number == len(rows) - 1:
                text += f"\n  and {more} more in this collective"
            cells = [
                self.segment.place(self.segment.rows(queue), at, rank)
                for queue, at, rank in (
                    (due.queue, due.row, due.rank),
                    (due.of_queue, due.of_row, due.of_rank),
                )
            ]
            yield breach_at(self.executable, "races.unordered", text, *cells)

    def _told(self, due: _Due) -> str:
        """Several lines on an obligation that is not met."""
        if due.of_queue != CC and due.queue != CC:
            lines = self._race(due)
        elif due.of_queue != CC:
            lines = self._left(due)
        elif due.queue != CC:
            lines = self._not_entered(due)
        else:
            lines = self._barrier(due)
        return "\n".join([*lines, f"  {self._missing(due)}"])

    def _race(self, due: _Due) -> Iterator[str]:
        first, second = self._clash(due)
        does = "written twice" if first.writes and second.writes else "read and written"
        start, end = max(first.start, second.start), min(first.end, second.end)
        bytes_at = self._bytes(attrs.evolve(second, start=start, end=end))
        yield f"race: {bytes_at} are {does} in no order"
        yield f"  {self._deed(due.of_queue, due.of_row, due.of_rank, first)}"
        yield f"  {self._deed(due.queue, due.row, due.rank, second)}"

    def _left(self, due: _Due) -> Iterator[str]:
        touch = self._last_touch(due.of_queue, due.of_row, due.of_rank, due.rank)
        place = self._place(CC, due.row, due.rank)
        yield f"race: {place} reports completion while its memory is still in use"
        yield f"  {self._deed(due.of_queue, due.of_row, due.of_rank, touch)}"

    def _not_entered(self, due: _Due) -> Iterator[str]:
        touch = self._last_touch(due.queue, due.row, due.rank, due.of_rank)
        yield (
            f"race: the memory of rank {self._rank(due.of_rank)} is used before that rank has "
            "come to the collective"
        )
        yield f"  {self._deed(due.queue, due.row, due.rank, touch)}"
        yield f"  {self._place(CC, 0, due.of_rank)}: waits for its trigger"

    def _barrier(self, due: _Due) -> Iterator[str]:
        place, other = self._place(CC, due.row, due.rank), self._rank(due.of_rank)
        yield f"{place} leaves the barrier before rank {other} has come to it"

    def _missing(self, due: _Due) -> str:
        """Which wait would have told the later row of the earlier one."""
        row = due.row
        if due.queue != CC:
            row = int(self.segment.pushing[due.queue - 1][due.row])
        place, names = self._place(CC, row, due.rank), self._names(due.rank)
        for sem, value in self._increments(due):
            if not self._waits(due.rank, row, sem, value):
                named = names.get(sem, f"semaphore {sem}")
                return f"missing: {place} does not wait for {named} >= {value}"
        event = f"the trigger of rank {self._rank(due.of_rank)}"
        if due.of_queue != CC:
            event = f"the end of {self._place(due.of_queue, due.of_row, due.of_rank)}"
        return f"missing: nothing that {place} has waited for follows from {event}"

    def _increments(self, due: _Due) -> Iterator[tuple[int, int]]:
        """Semaphores of the later row's rank by which the earlier tells it, and their values."""
        rows, waiting = self.segment.rows(due.of_queue), self._rank(due.rank)
        span = range(len(rows)) if due.of_queue == CC else (due.of_row,)
        for post in rows.posts:
            for row in span:
                if post.rank[row, due.of_rank] == due.rank:
                    sem = int(post.sem[row, due.of_rank])
                    made = NamedIncrement(*self.segment.place(rows, row, due.of_rank))
                    yield sem, self.edges.number_of(sem, waiting, made)

    def _waits(self, member: int, last: int, sem: int, value: int) -> bool:
        """Whether a member's CC-core waits for that by row `last` of the segment."""
        queue, at, rank = self.segment.place(self.segment.cc, last, member)
        sync = self.executable.queues[queue].sync
        rows = slice(at - last, at + 1)
        sems, values = (on_rank(column, rank)[rows] for column in (sync.wait_sem, sync.wait_value))
        return bool(((sems == sem) & (values >= value)).any())

    def _place(self, queue: int, row: int, rank: int) -> str:
        rows = self.segment.rows(queue)
        return place_of(self.executable, *self.segment.place(rows, row, rank))

    def _rank(self, member: int) -> int:
        return self.segment.members.rank(member)

    def _names(self, member: int) -> dict[int, str]:
        return self.executable.semaphore_names(self._rank(member))

    def _deed(self, queue: int, row: int, rank: int, touch: _Touch) -> str:
        rows = self.segment.rows(queue)
        verb = "writes" if touch.writes else "reads"
        where = self._place(queue, row, rank)
        return f"{where}, round {int(rows.round[row])}: {verb} {self._bytes(touch)}"

    def _bytes(self, touch: _Touch) -> str:
        roles = (Role.RESULT, Role.OPERAND) if touch.writes else (Role.OPERAND, Role.RESULT)
        rank = self._rank(touch.memory)
        for role in (*roles, Role.CHANNEL):
            for binding in self.segment.bindings:
                if binding.role is role and binding.start <= touch.start < binding.end:
                    name = role.value if role is Role.CHANNEL else f"{role.value} {binding.index}"
                    start, end = touch.start - binding.start, touch.end - binding.start
                    return f"{name} {start:#x}..{end:#x} of rank {rank}"
        start = own_address(touch.start)
        return f"addresses {start:#x}..{start + touch.end - touch.start:#x} of rank {rank}"

    def _touches(self, queue: int, row: int, rank: int) -> list[_Touch]:
        ring = self.segment.rings[queue - 1]
        size = int(ring.size_bytes[row, rank])
        cell = pieces(ring, np.array([row]), np.array([rank]))
        found = []
        for memory, start, writes in cell:
            end = start + size
            if ring.registers is not None:
                register = ring.registers.target if writes else ring.registers.source
                floats = register[row : row + 1, rank] != IDLE
                start, end = whole(self.segment, start, end, floats)
            if start[0] != IDLE:
                found.append(_Touch(int(memory[0]), int(start[0]), int(end[0]), writes))
        return found

    def _last_touch(self, queue: int, row: int, rank: int, memory: int) -> _Touch:
        return [one for one in self._touches(queue, row, rank) if one.memory == memory][-1]

    def _clash(self, due: _Due) -> tuple[_Touch, _Touch]:
        """What two rows touch that overlaps, one of them writing."""
        return next(
            (first, second)
            for first in self._touches(due.of_queue, due.of_row, due.of_rank)
            for second in self._touches(due.queue, due.row, due.rank)
            if first.memory == second.memory
            and max(first.start, second.start) < min(first.end, second.end)
            and (first.writes or second.writes)
        )
