"""Runs the queues of all ranks in parallel, ordered by semaphores only.

An engine or CC-core queue is a program counter per rank; a DMA ring is a list of pushed rows per
rank. A row that may start on several ranks forms one batch; batches of several queues that may
start at the same time are unordered by the program and may run side by side. Nothing here knows
what an instruction does: `perform` does it, and `decide` says where control flow goes. Semaphores
only grow and have one incrementing queue each, so every order of batches ends in the same state
(docs/isa.md).

A ring holds a limited number of descriptors. An ADVANCE also waits until what it pushes fits beside
what the ring has not done yet.

A collective may be performed at once, as a pure function of its operands (`AtOnce`): then its
members meet where its rows begin, and afterwards all queues, rings and semaphores are as its rows
would have left them. Members may have to wait there longer than their rows would. If nothing can go
on because of that, collectives are performed row by row from there on: of each either all rows of a
group have run, or none.

Where nothing can go on, `deadlock_report` names who waits where, for what, and which queue would
have to increment it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import attrs
import numpy as np

from ncc_runtime.errors import DeadlockError
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
    Jump,
    Queue,
    descriptors,
    is_run_by,
)
from ncc_runtime.progress import phase


class _RingState:
    """One ring at run time, on every rank: the rows that were pushed, and how many are done."""

    def __init__(self, queue: DmaQueue, ranks: int, depth: int) -> None:
        self.queue = queue
        self.depth = depth
        sizes = queue.size_bytes
        sizes = sizes[:, :1] if sizes.strides[1] == 0 else sizes
        self._largest: list[int] = descriptors(sizes.max(axis=1)).tolist()  # of each row
        self._at_most = 0  # an upper bound of descriptors pushed and not done, on any rank
        self.pending = 0  # rows pushed and not done, of all ranks
        self.pushed: np.ndarray = np.zeros(ranks, np.int64)
        self.done: np.ndarray = np.zeros(ranks, np.int64)
        self.rows: np.ndarray = np.full((ranks, max(1, len(queue.opcode))), IDLE, np.int32)

    def push(self, ranks: np.ndarray, row: int) -> None:
        at = self.pushed[ranks]
        while at.max() >= self.rows.shape[1]:
            more = np.full_like(self.rows, IDLE)
            self.rows = np.concatenate((self.rows, more), axis=1)
        self.rows[ranks, at] = row
        self.pushed[ranks] = at + 1
        self.pending += len(ranks)
        self._at_most += self._largest[row]

    def complete(self, ranks: np.ndarray) -> None:
        self.done[ranks] += 1
        self.pending -= len(ranks)

    def skip(self, rows: np.ndarray, ranks: np.ndarray) -> None:
        self.pushed[ranks] += rows
        self.done[ranks] += rows

    def room(self, row: int) -> np.ndarray | None:
        """On which ranks a row fits beside what the ring holds, (ranks,) bool; None: on all."""
        # the bound settles most cases; only if it does not are descriptors counted exactly
        if self._at_most + self._largest[row] <= self.depth:
            return None
        sizes = np.broadcast_to(self.queue.size_bytes, (len(self._largest), len(self.done)))
        held: np.ndarray = np.zeros(len(self.done), np.int64)  # descriptors pushed and not done
        for rank in np.flatnonzero(self.done < self.pushed).tolist():
            rows = self.rows[rank, self.done[rank] : self.pushed[rank]]
            held[rank] = int(descriptors(sizes[rows, rank]).sum())
        self._at_most = int(held.max())
        return held + descriptors(sizes[row]) <= self.depth


def _first_rank(queue: CcQueue | DmaQueue) -> int:
    """Tells stages apart: queues of one stage have the same ranks."""
    return 0 if queue.ranks is None else int(queue.ranks[0])


class Rings:
    """All rings of an executable."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        depth = executable.topology.rank_ring_descriptors
        self._rings = {
            number: _RingState(queue, executable.ranks, depth)
            for number, queue in enumerate(executable.queues)
            if isinstance(queue, DmaQueue)
        }
        self._by_lane = {
            (ring.queue.stream, ring.queue.lane, _first_rank(ring.queue)): ring
            for ring in self._rings.values()
        }

    def room(self, queue: int, row: int) -> np.ndarray | None:
        """On which ranks the ring has room for what a row pushes, (ranks,) bool; None: on all."""
        pushed = self._pushed(queue, row)
        if pushed is None:
            return None
        ring, run, pushes = pushed
        room = ring.room(run)
        return None if room is None else room | ~pushes

    def push(self, queue: int, row: int, ranks: np.ndarray) -> None:
        """Push what an ADVANCE of a CC-core pushes, on the ranks where it does."""
        pushed = self._pushed(queue, row)
        if pushed is None:
            return
        ring, run, pushes = pushed
        ranks = ranks[pushes[ranks]]
        if len(ranks):
            ring.push(ranks, run)

    def _pushed(self, queue: int, row: int) -> tuple[_RingState, int, np.ndarray] | None:
        """For an ADVANCE: the ring, its row that is pushed, and on which ranks, (ranks,) bool."""
        program = self._executable.queues[queue]
        if not isinstance(program, CcQueue) or program.opcode[row] != CcOpcode.ADVANCE:
            return None
        ring = self._by_lane[program.stream, int(program.ring[row]), _first_rank(program)]
        return ring, int(program.ring_row[row]), program.sync.posts[0].rank[row] != IDLE

    def ready(self) -> Iterator[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]]:
        """(queue, row, ranks, tail semaphore, awaited value) of what each ring performs next."""
        for number, ring in self._rings.items():
            if not ring.pending:
                continue
            ranks = np.flatnonzero(ring.done < ring.pushed)
            rows = ring.rows[ranks, ring.done[ranks]]
            for row in np.unique(rows).tolist():
                at_row = ranks[rows == row]
                tail = ring.queue.sync.wait_sem[row, at_row]
                yield number, row, at_row, tail, ring.done[at_row] + 1

    def complete(self, queue: int, ranks: np.ndarray) -> None:
        """The rows that ranks stood at are done."""
        self._rings[queue].complete(ranks)

    def skip(self, queue: int, rows: np.ndarray, ranks: np.ndarray) -> None:
        """So many rows, (r,), have been pushed and done on ranks."""
        self._rings[queue].skip(rows, ranks)

    def pending(self) -> bool:
        """Whether any ring has work left."""
        return any(ring.pending for ring in self._rings.values())

    def pushed_row(self, queue: int, ranks: np.ndarray, nth: np.ndarray) -> np.ndarray:
        """The row that each rank pushed as its n-th, (r,); IDLE if it has not pushed so many."""
        ring = self._rings[queue]
        there = np.minimum(nth, ring.rows.shape[1] - 1)
        return np.where(nth < ring.pushed[ranks], ring.rows[ranks, there], IDLE)


SHOWN = 16
"""Waiting queues named in full; the rest are counted."""


@attrs.frozen
class Stuck:
    """A queue of a rank that cannot go on."""

    queue: int
    row: int
    rank: int
    sem: int  # IDLE: no semaphore
    awaited: int


def deadlock_report(
    executable: Executable, stuck: Iterable[Stuck], semaphores: np.ndarray
) -> DeadlockError:
    """An error with queue, instruction, semaphore, values held and awaited, and incrementer."""
    every = tuple(stuck)
    lines = [_line(executable, each, semaphores) for each in every[:SHOWN]]
    if len(every) > SHOWN:
        lines.append(f"… and {len(every) - SHOWN} more")
    return DeadlockError(
        f"deadlock: {len(every)} queues wait for what nothing will provide\n  " + "\n  ".join(lines)
    )


def _line(executable: Executable, stuck: Stuck, semaphores: np.ndarray) -> str:
    name = executable.semaphore_names(stuck.rank).get(stuck.sem, f"s{stuck.sem}")
    queue = executable.queues[stuck.queue]
    place = f"rank {stuck.rank}, queue {queue.name}, pc {stuck.row}"
    held = int(semaphores[stuck.rank, stuck.sem])
    if stuck.sem == IDLE or held >= stuck.awaited:
        return f"{place}: {_full_ring(executable, stuck)}"
    return (
        f"{place}: waits for {name} >= {stuck.awaited}, it holds {held}; "
        f"{_provider(executable, stuck.rank, stuck.sem)}"
    )


def _full_ring(executable: Executable, stuck: Stuck) -> str:
    """The ring without room for what is pushed: the only other reason not to start."""
    core = executable.queues[stuck.queue]
    assert isinstance(core, CcQueue), core.name
    ring = next(
        queue
        for queue in executable.queues
        if isinstance(queue, DmaQueue)
        and is_run_by(queue, stuck.rank)
        and (queue.stream, queue.lane) == (core.stream, int(core.ring[stuck.row]))
    )
    size = ring.size_bytes[int(core.ring_row[stuck.row]), stuck.rank]
    return (
        f"pushes {int(descriptors(size))} descriptors to {ring.name}, which holds "
        f"{executable.topology.rank_ring_descriptors}"
    )


def _provider(executable: Executable, rank: int, sem: int) -> str:
    """The rows of a queue that would increment a semaphore."""
    for queue in executable.queues:
        for post in queue.sync.posts:
            rows, senders = np.nonzero((post.rank == rank) & (post.sem == sem))
            if rows.size:
                sender, last = int(senders[0]), int(rows.max())
                return (
                    f"rank {sender}, queue {queue.name} increments it {rows.size} times, "
                    f"last at pc {last}"
                )
    return "no queue increments it"


@attrs.frozen(eq=False)
class AtOnce:
    """A collective whose rows one queue of a CC-core and its rings hold, performed at once."""

    placeholder: int
    groups: tuple[tuple[int, ...], ...]  # ranks that meet
    group_sizes: np.ndarray  # (groups,)
    group_of: np.ndarray  # (ranks,) by number, IDLE for ranks that do not take part
    queue: int  # of the CC-core
    first: int  # row of it, the one that waits for the trigger
    end: int
    sems: np.ndarray  # (s,) what its rows increment
    posts: np.ndarray  # (ranks, s) how often on each rank
    pushed: tuple[tuple[int, np.ndarray], ...]  # rings, and how many rows on each rank, (ranks,)


Groups = tuple[tuple[int, ...], ...]
"""Ranks that meet."""


def all_at_once(executable: Executable, groups_of: Mapping[int, Groups]) -> dict[int, AtOnce]:
    """Collectives as they are performed at once, by placeholder, given the groups of each.

    Those are missing in which several programs take part, or whose rows do not follow each other.
    """
    queues = [
        (number, queue, _rows_by_placeholder(queue))
        for number, queue in enumerate(executable.queues)
        if not isinstance(queue, EngineQueue)
    ]
    found = {}
    for placeholder, groups in groups_of.items():
        own = [
            (number, queue, rows[placeholder])
            for number, queue, rows in queues
            if placeholder in rows
        ]
        if (one := _at_once(executable, placeholder, groups, own)) is not None:
            found[placeholder] = one
    return found


def _rows_by_placeholder(queue: CcQueue | DmaQueue) -> Mapping[int, np.ndarray]:
    """The rows of each collective, ascending."""
    order = np.argsort(queue.placeholder, kind="stable")
    numbers, first = np.unique(queue.placeholder[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, first[1:]), strict=False))


def _at_once(
    executable: Executable,
    placeholder: int,
    groups: Groups,
    queues: Iterable[tuple[int, CcQueue | DmaQueue, np.ndarray]],
) -> AtOnce | None:
    """A collective whose rows of these queues are given."""
    posts = np.zeros((executable.ranks, executable.semaphore_count), np.int64)
    group_of: np.ndarray = np.full(executable.ranks, IDLE)
    for number, group in enumerate(groups):
        group_of[list(group)] = number
    core: tuple[int, int, int] | None = None
    pushed = []
    for number, queue, rows in queues:
        if isinstance(queue, CcQueue):
            first, end = int(rows[0]), int(rows[-1]) + 1
            if core is not None or len(rows) != end - first:
                return None
            core = number, first, end
        else:
            pushed.append((number, np.count_nonzero(queue.peer[rows] != IDLE, axis=0)))
        for post in queue.sync.posts:
            ranks, sems = np.broadcast_arrays(post.rank[rows], post.sem[rows])
            is_made = ranks != IDLE
            np.add.at(posts, (ranks[is_made], sems[is_made]), 1)
    if core is None:
        return None
    sems = np.flatnonzero(posts.any(axis=0))
    sizes = np.array([len(group) for group in groups])
    return AtOnce(placeholder, groups, sizes, group_of, *core, sems, posts[:, sems], tuple(pushed))


@attrs.frozen(eq=False)
class RowBatch:
    """One row of one queue, ready on some ranks; of a collective at once, all its rows."""

    queue: int  # position in Executable.queues
    row: int
    ranks: np.ndarray  # (r,) ascending
    wait_sem: np.ndarray  # (r,) the semaphore that each rank waited for, IDLE for none
    wait_value: np.ndarray  # (r,) int64, the value that it waited for
    collective: AtOnce | None = None  # performed at once, by the groups
    groups: tuple[int, ...] = ()  # of the collective, by number, ascending

    def count(self) -> int:
        """How many rows, over all ranks."""
        if self.collective is None:
            return len(self.ranks)
        own = (self.collective.end - self.collective.first) * len(self.ranks)
        return own + sum(int(rows[self.ranks].sum()) for _, rows in self.collective.pushed)


Perform = Callable[[Sequence[RowBatch]], None]


class Decide(Protocol):
    """Decides control flow: True where a rank enters the rows behind a `test` or `case`."""

    def __call__(self, batch: RowBatch, jump: Jump, /) -> np.ndarray: ...


class QueueStates:
    """Where all queues of all ranks are: program counters, semaphores and rings, as arrays."""

    def __init__(self, executable: Executable, decide: Decide) -> None:
        self.executable = executable
        self._decide = decide
        count = max(1, executable.semaphore_count)
        self.semaphores: np.ndarray = np.zeros((executable.ranks, count), np.int64)
        self.lengths = [queue_length(queue) for queue in executable.queues]
        everybody = np.arange(executable.ranks)
        self.runners = [
            everybody if queue.ranks is None else queue.ranks for queue in executable.queues
        ]
        self.counters = []  # program counters; ranks that do not run a queue are at its end
        for runners, length in zip(self.runners, self.lengths, strict=True):
            counter: np.ndarray = np.full(executable.ranks, length, np.int64)
            counter[runners] = 0
            self.counters.append(counter)
        self._offsets = [
            np.zeros_like(self.semaphores) if _jumps(queue) else None for queue in executable.queues
        ]
        self.rings = Rings(executable)
        # increments of each semaphore so far, on any rank: whether a sleeper must look again
        self.posts: np.ndarray = np.zeros(executable.semaphore_count, np.int64)
        self.programs = [  # engines and CC-cores
            number
            for number, queue in enumerate(executable.queues)
            if self.lengths[number] and not isinstance(queue, DmaQueue)
        ]

    def awaited(self, queue: int, row: int, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The semaphores that ranks wait for at a row, and the values, shifted by jumps so far."""
        sync, offsets = self.executable.queues[queue].sync, self._offsets[queue]
        sem, value = sync.wait_sem[row], sync.wait_value[row]
        if len(sem) > 1:
            sem, value = sem[ranks], value[ranks]
        else:
            sem, value = np.full(len(ranks), sem[0]), np.full(len(ranks), value[0])
        return sem, value if offsets is None else value + offsets[ranks, sem]

    def complete(self, batch: RowBatch, times: np.ndarray | None = None) -> None:
        """Advance program counters, make the row's increments and pushes.

        `times`, (r,) by rank of the batch, is how often each increment is made: mostly once.
        """
        if batch.collective is not None:
            self._complete_at_once(batch.collective, batch.ranks)
            return
        queue = self.executable.queues[batch.queue]
        if isinstance(queue, DmaQueue):
            self.rings.complete(batch.queue, batch.ranks)
        else:
            self._advance(batch)
            self.rings.push(batch.queue, batch.row, batch.ranks)
        makers = batch.ranks if times is None else np.repeat(batch.ranks, times)
        for post in queue.sync.posts:
            rank, sem = post.rank[batch.row, makers], post.sem[batch.row, makers]
            if rank.min(initial=0) == IDLE:
                rank, sem = rank[rank != IDLE], sem[rank != IDLE]
            if times is not None:
                np.add.at(self.semaphores, (rank, sem), 1)
            else:
                # += counts equal indices once, but no two ranks of a row increment one semaphore
                # that is waited for
                self.semaphores[rank, sem] += 1
            self.posts[sem] += 1

    def _complete_at_once(self, collective: AtOnce, ranks: np.ndarray) -> None:
        """Everything is as all rows of a collective would leave it on ranks that stand there."""
        self.counters[collective.queue][ranks] = collective.end
        posts = collective.posts[ranks]
        self.semaphores[ranks[:, None], collective.sems] += posts
        self.posts[collective.sems] += posts.sum(axis=0)
        for queue, rows in collective.pushed:
            self.rings.skip(queue, rows[ranks], ranks)

    def _advance(self, batch: RowBatch) -> None:
        counter = self.counters[batch.queue]
        counter[batch.ranks] = batch.row + 1
        jump = _jumps(self.executable.queues[batch.queue]).get(batch.row)
        offsets = self._offsets[batch.queue]
        if jump is None or offsets is None:
            return
        jumps = np.ones(len(batch.ranks), bool)
        if jump.decision is not Decision.ALWAYS:
            jumps = ~self._decide(batch, jump)
        jumping = batch.ranks[jumps]
        counter[jumping] = jump.target
        shift = jump.shift if len(jump.shift) == 1 else jump.shift[jumping]
        offsets[jumping, : jump.shift.shape[1]] += shift

    def stuck(self) -> Iterator[Stuck]:
        """The queues that still have rows to perform, and what each waits for."""
        for queue in self.programs:
            counter = self.counters[queue]
            for rank in np.flatnonzero(counter < self.lengths[queue]).tolist():
                row = int(counter[rank])
                sem, value = self.awaited(queue, row, np.array([rank]))
                yield Stuck(queue, row, rank, int(sem[0]), int(value[0]))


class Scheduler:
    """Performs every row as soon as the state of the queues allows it."""

    def __init__(
        self,
        executable: Executable,
        decide: Decide,
        state: QueueStates | None = None,
        at_once: Iterable[AtOnce] = (),
    ) -> None:
        """`state`: go on from there; it decides by itself. `at_once`: performed so if possible."""
        self.state = QueueStates(executable, decide) if state is None else state
        self._begins = {(one.queue, one.first): one for one in at_once}
        self._waiting: list[RowBatch] = []  # for the other members of their groups
        self._programs = list(self.state.programs)  # those that are not at their end
        self._asleep: dict[int, tuple[int, int]] = {}  # by queue: semaphore, its posts back then

    def run(self, perform: Perform, shuffle: "np.random.Generator | None" = None) -> None:
        """Perform every row as often as control flow says; DeadlockError if that cannot be done.

        With `shuffle`, single batches of random ready ranks are taken in random order.
        """
        state = self.state
        pick = self.everything_ready if shuffle is None else _random_pick(self, shuffle)
        with phase("values", "instructions and transfers", self._total()) as now:
            while batches := pick() or self._row_by_row():
                perform(batches)
                for batch in batches:
                    state.complete(batch)
                    now.done += batch.count()
        if self._programs or state.rings.pending():
            raise deadlock_report(state.executable, state.stuck(), state.semaphores)

    def _total(self) -> int | None:
        """Rows that all ranks perform, if none is performed more than once."""
        queues = self.state.executable.queues
        if any(_jumps(queue) for queue in queues):
            return None
        return sum(
            int(np.count_nonzero(queue.peer != IDLE))
            if isinstance(queue, DmaQueue)
            else length * len(runners)
            for queue, length, runners in zip(
                queues, self.state.lengths, self.state.runners, strict=True
            )
        )

    def everything_ready(self) -> list[RowBatch]:
        """All batches that may start now."""
        self._waiting.clear()
        batches: list[RowBatch] = []
        for queue in list(self._programs):
            batches += self._ready(queue)
        batches += self._complete_groups()
        batches += [RowBatch(*ready) for ready in self.state.rings.ready()]
        return batches

    def _complete_groups(self) -> Iterator[RowBatch]:
        """The collectives before which all members of a group stand."""
        for batch in self._waiting:
            one = batch.collective
            assert one is not None
            numbers = one.group_of[batch.ranks]
            there = np.bincount(numbers, minlength=len(one.groups))
            groups = np.flatnonzero(there == one.group_sizes)
            if len(groups) == len(one.groups):
                yield attrs.evolve(batch, groups=tuple(range(len(groups))))
            elif len(groups):
                own = np.isin(numbers, groups)
                yield attrs.evolve(_part(batch, own), groups=tuple(groups.tolist()))

    def _row_by_row(self) -> list[RowBatch]:
        """What may start once no collective is performed at once any more."""
        if not self._begins:
            return []
        self._begins = {}
        return self.everything_ready()

    def _ready(self, queue: int) -> Iterator[RowBatch]:
        """The batches of one program that may start now: one per row at which some ranks are."""
        if queue in self._asleep:
            sem, posts = self._asleep[queue]
            if self.state.posts[sem] == posts:
                return
            del self._asleep[queue]
        counter, runners = self.state.counters[queue], self.state.runners[queue]
        length = self.state.lengths[queue]
        row = int(counter[runners[0]])
        counters = counter if len(runners) == len(counter) else counter[runners]
        if row < length and (counters == row).all():
            yield from self._ready_at(queue, row, runners)
            return
        rows = np.unique(counter)
        for row in rows.tolist():
            if row < length:
                yield from self._ready_at(queue, row, np.flatnonzero(counter == row))
        if rows[0] >= length:
            self._programs.remove(queue)

    def _ready_at(self, queue: int, row: int, ranks: np.ndarray) -> Iterator[RowBatch]:
        state = self.state
        sem, value = state.awaited(queue, row, ranks)
        is_signalled = (state.semaphores[ranks, sem] >= value) | (sem == IDLE)
        room = state.rings.room(queue, row)
        ready = is_signalled if room is None else is_signalled & room[ranks]
        if (queue, row) in self._begins and ready.any():
            batch = RowBatch(queue, row, ranks, sem, value, self._begins[queue, row])
            self._waiting.append(_part(batch, ready))
        elif ready.all():
            yield RowBatch(queue, row, ranks, sem, value)
        elif ready.any():
            yield RowBatch(queue, row, ranks[ready], sem[ready], value[ready])
        elif not is_signalled.any() and ranks is state.runners[queue] and (sem == sem[0]).all():
            self._asleep[queue] = (int(sem[0]), int(state.posts[sem[0]]))


def queue_length(queue: Queue) -> int:
    """Rows of a queue's program."""
    return len(queue.sync.wait_sem)


_NO_JUMPS: Mapping[int, Jump] = MappingProxyType({})


def _jumps(queue: Queue) -> Mapping[int, Jump]:
    return _NO_JUMPS if isinstance(queue, DmaQueue) else queue.jumps


def _random_pick(
    scheduler: Scheduler, generator: "np.random.Generator"
) -> Callable[[], list[RowBatch]]:
    """One random batch of a random non-empty subset of its ranks at a time."""

    def pick() -> list[RowBatch]:
        batches = scheduler.everything_ready()
        if not batches:
            return []
        chosen = batches[generator.integers(len(batches))]
        mask = generator.random(len(chosen.ranks)) < generator.random()
        mask[generator.integers(len(mask))] = True
        return [_part(chosen, mask)]

    return pick


def _part(batch: RowBatch, mask: np.ndarray) -> RowBatch:
    """The same for some of its ranks."""
    if mask.all():
        return batch
    return attrs.evolve(
        batch,
        ranks=batch.ranks[mask],
        wait_sem=batch.wait_sem[mask],
        wait_value=batch.wait_value[mask],
    )
