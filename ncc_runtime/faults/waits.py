"""Who waits for whom in a run that has stalled, and what all of it goes back to.

A queue of a rank that cannot go on waits for a value of a semaphore. Increments of a semaphore are
made by rows of known queues, so each such wait leads to the queues whose next rows would make the
increment, and from there on. It ends in one of four ways:

- lost: rows that make the increment have been performed, and the semaphore does not hold it
- standing still: a queue misses nothing, or a ring has a transfer to perform, and does not
- never: no row that is left makes the increment, or a ring is too small for what is pushed
- cycle: queues wait for one another, a deadlock of the program

Everything is found from what was performed, what semaphores hold and who is stuck: faults are not
known here. Queues that stand still may do so together because of one thing. Of what each would be
explained by (itself, a link of its transfer, its rank, a chip) the smallest that explains most is
the culprit, unless something that needs it went on after it stopped; then the next for the rest.
Where several explain the same, all are named (minimal diagnoses: Reiter, 1987).
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import attrs
import numpy as np

from ncc_runtime.execution.scheduler import Stuck
from ncc_runtime.execution.trace import Reason, Trace
from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    Executable,
    descriptors,
)
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.machine_model.usage import transfer_usage
from ncc_runtime.verify.counters import on_rank

Process = tuple[int, int]
"""A queue, by its position in Executable.queues, and a rank that runs it."""


# ---- what a stalled run shows


@attrs.frozen(eq=False)
class StalledRun:
    """A run in which nothing can go on, and not everything has been performed."""

    executable: Executable
    tables: "StallTables"
    stuck: tuple[Stuck, ...]  # engines and CC-cores with rows left
    held: np.ndarray  # (ranks, semaphores) int64, the values of semaphores
    made: np.ndarray  # (ranks, semaphores) int64, increments of rows that were performed
    pushed: Mapping[Process, tuple[int, ...]]  # by ring: rows pushed and not performed, in order
    trace: Trace | None = None  # None: no times are known
    progress_ps: Mapping[Process, int] = MappingProxyType({})  # when its last byte or step was


class StandsStill(Protocol):
    """A queue of a rank that began to stand still at a row, and when; of a ring its transfer."""

    @property
    def queue(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def row(self) -> int: ...
    @property
    def since_ps(self) -> int: ...


def stalled_run(
    trace: Trace,
    stuck: Iterable[Stuck],
    held: np.ndarray,
    halted: Iterable[StandsStill] = (),
    tables: "StallTables | None" = None,
) -> StalledRun:
    """What the clock shows of a stall: the rows performed, who is stuck, and (ranks, semaphores).

    Whoever looks at many stalls of an executable makes its tables once.
    `halted` are queues that stand still, as program counters and bytes under way show. Engines and
    CC-cores that are not among `stuck` must be there; of others it says since when.
    """
    executable, halted = trace.executable, tuple(halted)
    waiting = {
        (one.queue, one.rank): one
        for one in (*(Stuck(one.queue, one.row, one.rank, IDLE, 0) for one in halted), *stuck)
        if not isinstance(executable.queues[one.queue], DmaQueue)
    }
    tables = StallTables(executable) if tables is None else tables
    cells = tables.cells(trace)
    return StalledRun(
        executable,
        tables,
        tuple(waiting.values()),
        held,
        tables.made(cells),
        tables.pushed(trace, cells),
        trace,
        {(one.queue, one.rank): one.since_ps for one in halted},
    )


class StallTables:
    """What each row of an executable increments and pushes, made once for all its stalls.

    A cell is a row of a queue on a rank, and cells of all queues are numbered one after the other.
    """

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self._ranks, self._semaphores = executable.ranks, max(1, executable.semaphore_count)
        sizes = [len(queue.sync.wait_sem) * self._ranks for queue in executable.queues]
        self._first = np.cumsum([0, *sizes])  # cell of each queue
        self._ring = np.full(int(self._first[-1]), IDLE, np.int32)  # to which a cell pushes
        self._is_ring = np.array([isinstance(queue, DmaQueue) for queue in executable.queues])
        # of each increment, the cell that makes it, its process and the counter
        columns: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in range(3)]
        for number, queue in enumerate(executable.queues):
            for post in queue.sync.posts:
                row, rank = np.nonzero(post.rank != IDLE)
                columns[0].append(self._first[number] + row * self._ranks + rank)
                columns[1].append(number * self._ranks + rank)
                to = post.rank[row, rank].astype(np.int64)
                columns[2].append(to * self._semaphores + post.sem[row, rank])
            if isinstance(queue, DmaQueue):
                core = core_of(executable, queue)
                program = executable.queues[core]
                assert isinstance(program, CcQueue), program.name
                advances = (program.opcode == CcOpcode.ADVANCE) & (program.ring == queue.lane)
                row, rank = np.nonzero(advances[:, None] & (program.sync.posts[0].rank != IDLE))
                self._ring[self._first[core] + row * self._ranks + rank] = number
        self._cell, self._process, self._counter = map(np.concatenate, columns)

    def cells(self, trace: Trace) -> np.ndarray:
        """(events,) the cells that were performed."""
        return self._first[trace.queue] + trace.row.astype(np.int64) * self._ranks + trace.rank

    def made(self, cells: np.ndarray) -> np.ndarray:
        """(ranks, semaphores) how many increments these make."""
        times = np.bincount(cells, minlength=len(self._ring))
        counters = self._ranks * self._semaphores
        made = np.bincount(self._counter, times[self._cell], counters)
        return made.astype(np.int64).reshape(self._ranks, self._semaphores)

    def pushed(self, trace: Trace, cells: np.ndarray) -> dict[Process, tuple[int, ...]]:
        """By ring and rank, the rows that were pushed and not performed."""
        ranks, count = self._ranks, len(self.executable.queues) * self._ranks
        ring = self._ring[cells]
        pushes = np.flatnonzero(ring != IDLE)
        to = ring[pushes] * np.int64(ranks) + trace.rank[pushes]
        performed = np.bincount(trace.queue * np.int64(ranks) + trace.rank, minlength=count)
        performed = np.where(np.repeat(self._is_ring, ranks), performed, 0)
        are_left = np.bincount(to, minlength=count) > performed
        pushes, to = pushes[are_left[to]], to[are_left[to]]
        pushes = pushes[np.argsort(to, kind="stable")]
        found, first = dict[Process, tuple[int, ...]](), 0
        for process, end in zip(*_ends_of_equal(np.sort(to)), strict=True):
            number, rank = divmod(process, ranks)
            core = self.executable.queues[int(trace.queue[pushes[first]])]
            assert isinstance(core, CcQueue), core.name
            left = pushes[first + int(performed[process]) : end]
            found[number, rank] = tuple(core.ring_row[trace.row[left]].tolist())
            first = end
        return found

    def makers(
        self, counters: Iterable[tuple[int, int]]
    ) -> dict[tuple[int, int], tuple[Process, ...]]:
        """By rank and semaphore, the queues whose rows increment it."""
        is_asked = np.zeros(self._ranks * self._semaphores, bool)
        for rank, sem in counters:
            is_asked[rank * self._semaphores + sem] = True
        makes = np.flatnonzero(is_asked[self._counter])
        processes = len(self.executable.queues) * self._ranks
        found: dict[tuple[int, int], list[Process]] = {}
        # rows that increment alike are many: look at each counter and process once
        for one in np.unique(self._counter[makes] * processes + self._process[makes]).tolist():
            counter, process = divmod(one, processes)
            makers = found.setdefault(divmod(counter, self._semaphores), [])
            makers.append(divmod(process, self._ranks))
        return {counter: tuple(makers) for counter, makers in found.items()}


def _ends_of_equal(ascending: np.ndarray) -> tuple[list[int], list[int]]:
    """The different values, and behind which place each ends."""
    values, counts = np.unique(ascending, return_counts=True)
    return values.tolist(), np.cumsum(counts).tolist()


def core_of(executable: Executable, ring: DmaQueue) -> int:
    """The CC-core that pushes to a ring, by its position."""
    return next(
        number
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, CcQueue)
        and queue.stream == ring.stream
        and _first_rank(queue) == _first_rank(ring)
    )


def _ring_of(executable: Executable, core: CcQueue, row: int) -> int:
    """The ring that an ADVANCE pushes to, by its position."""
    return next(
        number
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, DmaQueue)
        and (queue.stream, queue.lane) == (core.stream, int(core.ring[row]))
        and _first_rank(queue) == _first_rank(core)
    )


def _first_rank(queue: CcQueue | DmaQueue) -> int:
    """Tells stages apart: queues of one stage have the same ranks."""
    return 0 if queue.ranks is None else int(queue.ranks[0])


# ---- the graph


class WaitReason(enum.Enum):
    """Why a queue does not go on."""

    INCREMENT = "increment"  # it waits for a semaphore
    LOST = "lost"  # likewise, and what it waits for was performed
    ROOM = "room"  # its ring has no room for what it would push
    PUSH = "push"  # a ring: nothing has been pushed
    STILL = "still"  # it misses nothing
    NEVER = "never"  # nothing that is left to perform would let it go on


@attrs.frozen
class Waiter:
    """A queue of a rank that does not go on."""

    queue: int
    rank: int
    row: int  # that it would perform next; of a ring to which nothing is pushed, the one awaited
    reason: WaitReason
    sem: int  # IDLE: none
    held: int
    awaited: int
    since_ps: int | None  # its last step, or the end of its last row, 0 if none; None: not known
    awaits: tuple[Process, ...]  # whose next rows it waits for

    @property
    def process(self) -> Process:
        """Its queue and rank."""
        return self.queue, self.rank


@attrs.frozen
class RingTransfer:
    """A transfer as rings perform them: the n-th of a ring of one rank, from 0."""

    queue: int
    rank: int
    nth: int
    row: int


class CulpritKind(enum.Enum):
    """What a stall goes back to."""

    LOST = "lost"  # increments of rows that were performed never arrived
    STILL = "still"  # queues stand still though they miss nothing
    NEVER = "never"  # a queue waits for more than anything will provide
    CYCLE = "cycle"  # queues wait for one another


class SuspectKind(enum.Enum):
    """What may stand still, the smaller first; the value is the word of reports."""

    QUEUE = "queue"
    LINK = "link"
    ADAPTER = "adapter"
    DMA = "DMA engines"
    RANK = "rank"
    CHIP = "chip"


@attrs.frozen
class Suspect:
    """One thing that would explain that queues stand still."""

    kind: SuspectKind
    name: str  # as listings print it: `cc0.dma0 of rank 3`, `link c0.E>c1`, `rank 5`, `chip c2`
    ranks: tuple[int, ...] = ()  # that it stops, or whose queue it is; of links and adapters none
    parts: tuple[int, ...] = ()  # of the machine: a link, both ways of it, all of a chip


@attrs.frozen
class Culprit:
    """What a part of the stall goes back to."""

    kind: CulpritKind
    suspects: tuple[Suspect, ...]  # any one of them explains it; of LOST the rings that sent
    roots: tuple[Process, ...]  # where chains of waits end: the waiters that it stops itself
    victims: tuple[Process, ...]  # that wait for these, directly or not
    transfers: tuple[RingTransfer, ...] = ()  # LOST: `lost` of these; STILL: those that stand still
    lost: int = 0

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that may be at fault."""
        return tuple(sorted({rank for suspect in self.suspects for rank in suspect.ranks}))


@attrs.frozen(eq=False)
class WaitGraph:
    """Everyone who does not go on, and the culprits, those with most victims first."""

    run: StalledRun
    waiters: Mapping[Process, Waiter]
    culprits: tuple[Culprit, ...]

    def chain(self, victim: Process, culprit: Culprit) -> tuple[Waiter, ...]:
        """Who waits for whom, from a victim of a culprit to one of its roots: a shortest way."""
        before: dict[Process, Process] = {}
        ahead = [victim]
        for process in ahead:  # breadth first
            if process in culprit.roots:
                chain = [process]
                break
            for awaited in self.waiters[process].awaits:
                if awaited not in before and awaited != victim:
                    before[awaited] = process
                    ahead.append(awaited)
        while chain[0] != victim:
            chain.insert(0, before[chain[0]])
        return tuple(self.waiters[process] for process in chain)


def process_name(executable: Executable, process: Process) -> str:
    """A queue of a rank: `cc0.dma0 of rank 3`."""
    queue, rank = process
    return f"{executable.queues[queue].name} of rank {rank}"


def wait_graph(run: StalledRun) -> WaitGraph:
    """Who waits for whom in a stalled run, and the culprits."""
    waiters = _Resolver(run).waiters
    culprits = [*_lost_culprits(run, waiters), *_still_culprits(run, waiters)]
    culprits += _never_culprits(run, waiters)
    culprits += _cycles(run, waiters)
    return WaitGraph(run, waiters, tuple(_with_victims(waiters, culprits)))


class _Resolver:
    """Resolves what every stuck queue waits for, and every ring that it comes to on the way."""

    def __init__(self, run: StalledRun) -> None:
        self._run = run
        self._executable = run.executable
        self._stuck = {(one.queue, one.rank): one for one in run.stuck}
        self._ends = {} if run.trace is None else _last_ends(run.trace)
        awaited = {(one.rank, one.sem) for one in run.stuck if one.sem != IDLE}
        self._makers = run.tables.makers(awaited)
        self.waiters: dict[Process, Waiter] = {}
        ahead = [*self._stuck, *run.pushed]
        for process in ahead:
            if process not in self.waiters:
                self.waiters[process] = self._resolved(process)
                ahead += self.waiters[process].awaits

    def _resolved(self, process: Process) -> Waiter:
        if process in self._stuck:
            one = self._stuck[process]
            held = 0 if one.sem == IDLE else int(self._run.held[one.rank, one.sem])
            if one.sem != IDLE and held < one.awaited:
                return self._increment(one, held)
            return self._without_wait(one, held)
        rows = self._run.pushed.get(process)
        if rows:
            return self._waiter(process, rows[0], WaitReason.STILL)
        # who waits for a ring to which nothing is pushed waits for its CC-core
        ring = self._executable.queues[process[0]]
        assert isinstance(ring, DmaQueue), ring.name
        core = core_of(self._executable, ring), process[1]
        if core in self._stuck:
            return self._waiter(process, IDLE, WaitReason.PUSH, awaits=(core,))
        return self._waiter(process, IDLE, WaitReason.NEVER)

    def _waiter(
        self,
        process: Process,
        row: int,
        reason: WaitReason,
        *,
        sem: int = IDLE,
        held: int = 0,
        awaited: int = 0,
        awaits: tuple[Process, ...] = (),
    ) -> Waiter:
        since = None if self._run.trace is None else self._ends.get(process, 0)
        if reason is WaitReason.STILL:
            since = self._run.progress_ps.get(process, since)
        return Waiter(*process, row, reason, sem, held, awaited, since, awaits)

    def _increment(self, one: Stuck, held: int) -> Waiter:
        """A wait for a semaphore that does not hold enough."""
        awaits: tuple[Process, ...] = ()
        if self._run.made[one.rank, one.sem] >= one.awaited:
            reason = WaitReason.LOST
        else:
            awaits = tuple(
                maker
                for maker in self._makers.get((one.rank, one.sem), ())
                if self._makes(maker, one.rank, one.sem)
            )
            reason = WaitReason.INCREMENT if awaits else WaitReason.NEVER
        return self._waiter(
            (one.queue, one.rank),
            one.row,
            reason,
            sem=one.sem,
            held=held,
            awaited=one.awaited,
            awaits=awaits,
        )

    def _makes(self, process: Process, rank: int, sem: int) -> bool:
        """Whether rows that a queue of a rank has left increment a semaphore."""
        queue, own = self._executable.queues[process[0]], process[1]
        if isinstance(queue, DmaQueue):
            rows = list(self._run.pushed.get(process, ()))
            core = core_of(self._executable, queue), own
            if core in self._stuck:
                program = self._executable.queues[core[0]]
                assert isinstance(program, CcQueue), program.name
                left = self._rows_left(core)
                pushes = (program.opcode[left] == CcOpcode.ADVANCE) & (
                    program.ring[left] == queue.lane
                )
                pushes &= program.sync.posts[0].rank[left, own] != IDLE
                rows += program.ring_row[left][pushes].tolist()
        elif process in self._stuck:
            rows = np.arange(len(queue.sync.wait_sem))[self._rows_left(process)].tolist()
        else:
            return False
        return any(
            bool(((post.rank[rows, own] == rank) & (post.sem[rows, own] == sem)).any())
            for post in queue.sync.posts
        )

    def _rows_left(self, process: Process) -> slice:
        """The rows of an engine or CC-core from where it stands; all, if it may jump back."""
        queue = self._executable.queues[process[0]]
        assert not isinstance(queue, DmaQueue), queue.name
        return slice(None) if queue.jumps else slice(self._stuck[process].row, None)

    def _without_wait(self, one: Stuck, held: int) -> Waiter:
        """A queue that has the value it waits for: it waits for room in a ring, or stands still."""
        process, reason = (one.queue, one.rank), WaitReason.STILL
        awaits: tuple[Process, ...] = ()
        core = self._executable.queues[one.queue]
        if isinstance(core, CcQueue) and core.opcode[one.row] == CcOpcode.ADVANCE:
            ring = _ring_of(self._executable, core, one.row), one.rank
            sizes = self._executable.queues[ring[0]]
            assert isinstance(sizes, DmaQueue), sizes.name
            rows = [*self._run.pushed.get(ring, ()), int(core.ring_row[one.row])]
            size_bytes = np.broadcast_to(sizes.size_bytes, sizes.peer.shape)[rows, one.rank]
            if descriptors(size_bytes).sum() > self._executable.topology.rank_ring_descriptors:
                awaits = (ring,) if len(rows) > 1 else ()
                reason = WaitReason.ROOM if awaits else WaitReason.NEVER
        return self._waiter(
            process, one.row, reason, sem=one.sem, held=held, awaited=one.awaited, awaits=awaits
        )


def _last_ends(trace: Trace) -> dict[Process, int]:
    """When each queue of each rank ended its last row."""
    ranks = trace.executable.ranks
    key = trace.queue.astype(np.int64) * ranks + trace.rank
    last = np.full(len(trace.executable.queues) * ranks, IDLE, np.int64)
    last[key] = np.arange(len(key))  # of several the last one, and they stand in order
    there = np.flatnonzero(last != IDLE)
    ends = trace.end_ps[last[there]].tolist()
    return {divmod(at, ranks): end for at, end in zip(there.tolist(), ends, strict=True)}


# ---- culprits


def _lost_culprits(run: StalledRun, waiters: Mapping[Process, Waiter]) -> Iterator[Culprit]:
    """Of waits for increments that were made and never arrived: the rings that made them."""
    waiting: dict[Process, list[Process]] = {}  # by who made it
    makers = run.tables.makers(
        (one.rank, one.sem) for one in waiters.values() if one.reason is WaitReason.LOST
    )
    for one in waiters.values():
        if one.reason is WaitReason.LOST:
            lossy = [maker for maker in makers[one.rank, one.sem] if _may_have_lost(run, maker)]
            for maker in lossy or makers[one.rank, one.sem]:
                waiting.setdefault(maker, []).append(one.process)
    for maker, roots in waiting.items():
        transfers, lost = _lost_transfers(run, maker)
        suspect = _queue_suspect(run.executable, maker)
        yield Culprit(CulpritKind.LOST, (suspect,), tuple(roots), (), transfers, lost)


def _may_have_lost(run: StalledRun, maker: Process) -> bool:
    return bool(_lossy_rows(run, maker).any())


def _lossy_rows(run: StalledRun, maker: Process) -> np.ndarray:
    """(n,) bool, the rows of a queue of a rank all of whose increments miss some."""
    queue, rank = run.executable.queues[maker[0]], maker[1]
    misses = run.made > run.held
    posts, missed = (np.zeros(len(queue.sync.wait_sem), np.int64) for _ in range(2))
    for post in queue.sync.posts:
        to, sem = post.rank[:, rank], post.sem[:, rank]
        posts += to != IDLE
        missed += (to != IDLE) & misses[to, sem]
    return np.asarray((posts > 0) & (posts == missed))


def _lost_transfers(run: StalledRun, ring: Process) -> tuple[tuple[RingTransfer, ...], int]:
    """Transfers of a ring of which some made no increments, and how many of them did not.

    One that some event waited for last did. If one is lost, waits of its semaphores bound which: a
    wait for value v that ended with the v-th transfer shows that none so far was lost, one that
    ended with a later transfer that one before that was.
    """
    number, rank = ring
    queue, trace = run.executable.queues[number], run.trace
    is_lossy = _lossy_rows(run, ring)
    counters = {
        (to, sem)
        for post in queue.sync.posts
        for to, sem in zip(
            post.rank[is_lossy, rank].tolist(), post.sem[is_lossy, rank].tolist(), strict=True
        )
        if to != IDLE
    }
    lost = max((int((run.made - run.held)[counter]) for counter in counters), default=0)
    if trace is None or not isinstance(queue, DmaQueue):
        return (), lost
    by_increment = trace.reason == Reason.SEMAPHORE
    was_seen = np.zeros(len(trace) + 1, bool)  # the last one stands for no event
    was_seen[trace.cause[by_increment]] = True
    events = np.flatnonzero((trace.queue == number) & (trace.rank == rank))
    rows = trace.row[events]
    suspect = is_lossy[rows] & ~was_seen[events]
    number_made = np.zeros(len(trace) + 1, np.int64)  # of a counter's events, from 1 on; 0: another
    for to, sem in counters if lost == 1 else ():
        makes = np.zeros(len(rows), bool)
        for post in queue.sync.posts:
            makes |= (post.rank[rows, rank] == to) & (post.sem[rows, rank] == sem)
        makers = np.flatnonzero(makes)
        first, end = 0, len(makers)
        number_made[:] = 0
        number_made[events[makers]] = np.arange(1, len(makers) + 1)
        waiting = np.flatnonzero(by_increment & (trace.rank == to))
        waiting = waiting[number_made[trace.cause[waiting]] > 0]
        for waiter in np.unique(trace.queue[waiting]).tolist():
            one = run.executable.queues[waiter]
            if isinstance(one, DmaQueue) or one.jumps:
                continue  # in loops values count from the first trip on
            mine = waiting[trace.queue[waiting] == waiter]
            mine = mine[on_rank(one.sync.wait_sem, to)[trace.row[mine]] == sem]
            value = on_rank(one.sync.wait_value, to)[trace.row[mine]]
            made = number_made[trace.cause[mine]]
            first = max(first, int(value[made == value].max(initial=0)))
            end = min(end, int(made[made > value].min(initial=len(makers) + 1)) - 1)
        bounded = np.zeros(len(rows), bool)
        bounded[makers[first:end]] = True
        suspect &= bounded
    found = np.flatnonzero(suspect).tolist()
    return tuple(RingTransfer(number, rank, nth, int(rows[nth])) for nth in found), lost


def _queue_suspect(executable: Executable, process: Process) -> Suspect:
    _, rank = process
    chip = int(executable.placement.chip[rank])
    return Suspect(SuspectKind.QUEUE, process_name(executable, process), (rank,), (chip,))


def _still_culprits(run: StalledRun, waiters: Mapping[Process, Waiter]) -> Iterator[Culprit]:
    """What queues that stand still may have in common, the most likely first."""
    still = [one for one in waiters.values() if one.reason is WaitReason.STILL]
    if not still:
        return
    explains = _Explanations(run, still)
    left = {one.process for one in still}
    while left:
        suspects, explained = explains.best(left)
        roots = tuple(sorted(explained))
        transfers = tuple(_transfer_at(run, process) for process in roots if process in run.pushed)
        yield Culprit(CulpritKind.STILL, suspects, roots, (), transfers)
        left -= explained


def _transfer_at(run: StalledRun, ring: Process) -> RingTransfer:
    """The transfer at which a ring stands still."""
    number, rank = ring
    performed = 0
    if run.trace is not None:
        performed = int(np.count_nonzero((run.trace.queue == number) & (run.trace.rank == rank)))
    return RingTransfer(number, rank, performed, run.pushed[ring][0])


class _Explanations:
    """What would explain that queues stand still, unless it went on after they did."""

    def __init__(self, run: StalledRun, still: Sequence[Waiter]) -> None:
        self._run, self._executable = run, run.executable
        model = TimingModel.from_topology(run.executable.topology)
        self._parts = Parts(run.executable.routes, model, run.executable.ranks)
        self._explained: dict[Suspect, set[Process]] = {}
        for one in still:
            for suspect in self._suspects(one):
                self._explained.setdefault(suspect, set()).add(one.process)
        known = [run.progress_ps[one.process] for one in still if one.process in run.progress_ps]
        self._ranks_went_on, self._parts_went_on = self._last_steps(min(known, default=0))

    def best(self, left: set[Process]) -> tuple[tuple[Suspect, ...], set[Process]]:
        """The smallest of those that explain most of these, and what it explains.

        With it all others that explain the same; if it is not known when queues stopped, only those
        that contain no other, since nothing can be said against a whole chip then.
        """
        explained = {
            suspect: processes & left
            for suspect, processes in self._explained.items()
            if processes & left and not self._is_cleared(suspect, processes & left)
        }
        most = max(map(len, explained.values()))
        likely = [suspect for suspect, of in explained.items() if len(of) == most]
        likely.sort(key=lambda one: (list(SuspectKind).index(one.kind), len(one.parts), one.name))
        chosen = explained[likely[0]]
        same = [one for one in likely if explained[one] == chosen]
        is_known = all(process in self._run.progress_ps for process in chosen)
        return tuple(
            one
            for one in same
            if not any(_is_inside(less, one, is_known=is_known) for less in same)
        ), chosen

    def _suspects(self, one: Waiter) -> Iterator[Suspect]:
        """What would stop one queue."""
        yield _queue_suspect(self._executable, one.process)
        chips = {int(self._executable.placement.chip[one.rank])}
        if one.process in self._run.pushed:
            _, used, _ = self._used(one.queue, np.array([one.row]), np.array([one.rank]))
            for part in np.unique(used).tolist():
                yield from self._part_suspects(part)
                chips |= self._chips_of(part)
        yield Suspect(SuspectKind.RANK, f"rank {one.rank}", (one.rank,))
        for chip in sorted(chips):
            ranks = np.flatnonzero(self._executable.placement.chip == chip).tolist()
            parts = [part for part in range(self._parts.count) if chip in self._chips_of(part)]
            yield Suspect(SuspectKind.CHIP, f"chip c{chip}", tuple(ranks), tuple(parts))

    def _part_suspects(self, part: int) -> Iterator[Suspect]:
        """A link or adapter in its direction and in both, DMA engines."""
        kind, name = self._parts.kind(part), self._parts.name(part)
        if kind is PartKind.LINK:
            links = self._executable.topology.links
            src, dst = links.src[part], links.dst[part]
            both = np.flatnonzero(
                (links.src == src) & (links.dst == dst) | (links.src == dst) & (links.dst == src)
            )
            yield Suspect(SuspectKind.LINK, f"link {links.step(part)}", (), (part,))
            ends = f"{links.end(int(src))}-{links.end(int(dst))}"
            yield Suspect(SuspectKind.LINK, f"link {ends}", (), tuple(both.tolist()))
        elif kind is PartKind.EFA:
            span = self._parts.span(PartKind.EFA)
            half = (span.stop - span.start) // 2
            first = span.start + (part - span.start) % half
            yield Suspect(SuspectKind.ADAPTER, f"adapter {name}", (), (part,))
            whole = name.partition(" ")[0]
            yield Suspect(SuspectKind.ADAPTER, f"adapter {whole}", (), (first, first + half))
        elif kind is PartKind.DMA:
            yield Suspect(SuspectKind.DMA, f"DMA engines {name}", (), (part,))

    def _chips_of(self, part: int) -> set[int]:
        """The chips without which a part does nothing."""
        kind, topology = self._parts.kind(part), self._executable.topology
        if kind is PartKind.LINK:
            ends = {int(topology.links.src[part]), int(topology.links.dst[part])}
            return {end for end in ends if end < topology.chips}
        if kind is PartKind.HBM:
            return {(part - self._parts.span(kind).start) // topology.hbm.stacks}
        return set()

    def _used(self, number: int, rows: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, ...]:
        """What transfers of a ring use, transfer i by the ring of ranks[i], and their latencies.

        (entries,) transfer and part, and (transfers,) ps in which bytes of sources and to peers
        are under way without using any part.
        """
        ring = self._executable.queues[number]
        assert isinstance(ring, DmaQueue), ring.name
        peers = [ring.peer[rows, ranks]]
        if ring.second_peer is not None:
            peers.append(ring.second_peer[rows, ranks])
        has_source = ring.sources[rows, ranks] != IDLE
        owner = ranks[:, None] if ring.source_rank is None else ring.source_rank[rows, ranks]
        owners = list(np.where(has_source, owner, IDLE).T)
        reduces = ring.opcode[rows] == DmaOpcode.REDUCE
        usage = transfer_usage(self._parts, ranks, peers, owners, reduces, ring.stream, ring.lane)
        routes = self._executable.routes
        latency_ps = np.zeros(len(ranks), np.int64)
        for sides in (peers, owners):
            longest = np.zeros_like(latency_ps)
            for side in sides:
                ends = np.where(side == IDLE, ranks, side)
                longest = np.maximum(longest, routes.latency_ps(ranks, ends))
            latency_ps += longest
        return usage.transfer, usage.part, latency_ps

    def _last_steps(self, first_ps: int) -> tuple[np.ndarray, np.ndarray]:
        """Until when ranks and parts went on, as far as that is later than a time; else 0.

        A transfer's last byte has left all parts the latency of its route before its end.
        """
        of_ranks, of_parts = (
            np.zeros(n, np.int64) for n in (self._executable.ranks, self._parts.count)
        )
        trace = self._run.trace
        if trace is None:
            return of_ranks, of_parts
        for number, queue in enumerate(self._executable.queues):
            events = np.flatnonzero((trace.queue == number) & (trace.end_ps > first_ps))
            rank, end_ps = trace.rank[events], trace.end_ps[events]
            if isinstance(queue, DmaQueue):
                transfer, part, latency_ps = self._used(number, trace.row[events], rank)
                end_ps = end_ps - latency_ps
                np.maximum.at(of_parts, part, end_ps[transfer])
            np.maximum.at(of_ranks, rank, end_ps)
        return of_ranks, of_parts

    def _is_cleared(self, suspect: Suspect, processes: set[Process]) -> bool:
        """Whether something went on with it after all of these had stopped because of it."""
        if suspect.kind is SuspectKind.QUEUE or not processes <= self._run.progress_ps.keys():
            return False
        stopped_ps = min(self._run.progress_ps[process] for process in processes)
        went_on = [
            self._ranks_went_on[list(suspect.ranks)].max(initial=0),
            self._parts_went_on[list(suspect.parts)].max(initial=0),
        ]
        return bool(max(went_on) > stopped_ps)


def _is_inside(less: Suspect, more: Suspect, *, is_known: bool) -> bool:
    """Whether one need not be named beside the other, which is a part of it."""
    if less is more:
        return False
    if less.kind is more.kind:
        return set(less.parts) < set(more.parts)
    if less.kind is SuspectKind.QUEUE and more.kind is SuspectKind.DMA:
        return True  # of one ring
    if is_known:
        return False
    return bool(set(less.ranks) & set(more.ranks) or set(less.parts) & set(more.parts))


def _never_culprits(run: StalledRun, waiters: Mapping[Process, Waiter]) -> Iterator[Culprit]:
    """Waits that nothing which is left to perform would end."""
    for one in waiters.values():
        if one.reason is WaitReason.NEVER:
            suspect = _queue_suspect(run.executable, one.process)
            yield Culprit(CulpritKind.NEVER, (suspect,), (one.process,), ())


def _cycles(run: StalledRun, waiters: Mapping[Process, Waiter]) -> Iterator[Culprit]:
    """Queues that wait for one another and for nobody else."""
    import networkx

    graph: networkx.DiGraph[Process] = networkx.DiGraph()
    graph.add_nodes_from(waiters)
    graph.add_edges_from((one, to) for one in waiters for to in waiters[one].awaits)
    for members in networkx.attracting_components(graph):
        if len(members) > 1 or all(one in waiters[one].awaits for one in members):
            suspects = tuple(_queue_suspect(run.executable, one) for one in sorted(members))
            yield Culprit(CulpritKind.CYCLE, suspects, tuple(sorted(members)), ())


def _with_victims(waiters: Mapping[Process, Waiter], culprits: Iterable[Culprit]) -> list[Culprit]:
    """The same with who waits for them, those with most victims first."""
    waiting: dict[Process, list[Process]] = {}
    for one in waiters.values():
        for awaited in one.awaits:
            waiting.setdefault(awaited, []).append(one.process)
    found = []
    for culprit in culprits:
        reached = dict.fromkeys(culprit.roots)
        ahead = list(reached)
        for process in ahead:
            new = [one for one in waiting.get(process, ()) if one not in reached]
            reached.update(dict.fromkeys(new))
            ahead += new
        stands_still = culprit.kind is CulpritKind.STILL
        victims = sorted(reached.keys() - (culprit.roots if stands_still else ()))
        found.append(attrs.evolve(culprit, victims=tuple(victims)))
    return sorted(found, key=lambda one: -len(one.victims))
