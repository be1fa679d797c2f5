"""Deadlock: whether every wait is over in the end, and if not, which rows wait for each other.

One run decides (`order.py`): counters only grow, so what one run completes every run completes.
Each row runs once, with its static values; jumps are not taken. A run of descriptors waits for
nothing but its push, so a ring empties by itself, and only a run that is larger than its ring never
finds room. The witness is the shortest cycle of queues of which each waits for the next.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, descriptors
from ncc_runtime.order import GreedyRun, RowQueue, Waiting, cycles, run
from ncc_runtime.verify.counters import Edges, NamedIncrement, narrowed, on_rank
from ncc_runtime.verify.places import breach_at, place_of
from ncc_runtime.verify.proof import Breach, Proof
from ncc_runtime.verify.stage_parts import first_runner

SHOWN = 16
"""Members of a cycle, or queues that wait in vain, that are told in full."""


def prove_deadlock(executable: Executable, edges: Edges | None = None) -> tuple[Proof, GreedyRun]:
    """That every queue comes to its end, and a run that does; needs counters proved."""
    edges = edges or Edges(executable)
    done = greedy(executable, edges)
    breaches = tuple(_StuckState(executable, edges, done).breaches()) if done.stuck else ()
    queues = sum(len(queue.sync.wait_sem) > 0 for queue in executable.queues)
    size = f"{len(done.batches)} rows of {queues} queues on {executable.ranks} ranks"
    return Proof("deadlock", size, breaches=breaches), done


def greedy(executable: Executable, edges: Edges | None = None) -> GreedyRun:
    """A run of all queues of all ranks; `edges` are those of the executable, if at hand."""
    barred = oversized(executable)
    chains = [
        RowQueue(number, len(queue.sync.wait_sem), queue.ranks, barred.get(number, {}))
        for number, queue in enumerate(executable.queues)
    ]
    return run(chains, edges or Edges(executable), executable.ranks)


def oversized(executable: Executable) -> Mapping[int, Mapping[int, np.ndarray]]:
    """By CC-core queue and row the pushes of runs that no ring can hold, (ranks,) bool."""
    found: dict[int, dict[int, np.ndarray]] = {}
    room = executable.topology.rank_ring_descriptors
    cores = _cores(executable)
    for ring in executable.queues:
        if not isinstance(ring, DmaQueue) or not len(ring.opcode):
            continue
        number = cores.get((first_runner(ring), ring.stream), IDLE)
        core = executable.queues[number]
        sizes, waits = narrowed(ring.size_bytes), narrowed(ring.sync.wait_sem)
        for row in np.flatnonzero(descriptors(sizes.max(axis=1)) > room).tolist():
            large = np.broadcast_to(
                (waits[row] != IDLE) & (descriptors(sizes[row]) > room), (executable.ranks,)
            )
            if ring.ranks is not None:
                large = large & np.isin(np.arange(executable.ranks), ring.ranks)
            if large.any() and isinstance(core, CcQueue):
                pushes = (core.opcode == CcOpcode.ADVANCE) & (core.ring == ring.lane)
                for at in np.flatnonzero(pushes & (core.ring_row == row))[:1].tolist():
                    found.setdefault(number, {})[at] = large
    return found


def _cores(executable: Executable) -> Mapping[tuple[int, int], int]:
    """The queue of each CC-core, by the first rank that runs it and the stream."""
    return {
        (first_runner(queue), queue.stream): number
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, CcQueue)
    }


@attrs.frozen
class _Wait:
    """Where a queue is stuck, for what, and who would make the next increment."""

    row: int
    sem: int  # IDLE: for room in a ring
    awaited: int = 0
    held: int = 0
    next: NamedIncrement | None = None


class _StuckState:
    """The state in which a run is stuck."""

    def __init__(self, executable: Executable, edges: Edges, done: GreedyRun) -> None:
        self._executable, self._edges, self._run = executable, edges, done
        self._barred = oversized(executable)
        self._cores = _cores(executable)
        programs = [
            one for one in done.stuck if not isinstance(executable.queues[one[0]], DmaQueue)
        ]
        self._stuck = programs or list(done.stuck)  # a ring is stuck where its CC-core is
        self._waits = {one: self._wait(*one) for one in self._stuck}

    def _wait(self, queue: int, rank: int) -> _Wait:
        sync, row = self._executable.queues[queue].sync, int(self._run.reached[queue][rank])
        sem, awaited = (
            int(on_rank(column, rank)[row]) for column in (sync.wait_sem, sync.wait_value)
        )
        if sem == IDLE:
            return _Wait(row, IDLE)
        held = self._edges.made_by(sem, rank, self._run.reached)
        barred = self._barred.get(queue, {}).get(row)
        if held >= awaited and barred is not None and barred[rank]:
            return _Wait(row, IDLE)
        # of a counter that queues increment in turn, the awaited one may not be the last made
        following = self._edges.next_increment(sem, rank, self._run.reached)
        return _Wait(row, sem, awaited, held, following)

    def breaches(self) -> Iterator[Breach]:
        """The shortest cycle, if there is one; then who waits for what nobody provides."""
        followed = {one: self._provider(one) for one in self._stuck}
        circles = cycles({one: other for one, other in followed.items() if other is not None})
        ranks = len({rank for _, rank in self._stuck})
        left = f"{_count(len(self._stuck), 'queue')} on {_count(ranks, 'rank')} cannot go on"
        if circles:
            cycle = circles[0]
            what = f"{len(cycle)} queues wait for one another in a circle"
            if len(cycle) == 1:
                what = "waits for a later row of its own queue"
            text = self._told(f"{self._place(cycle[0])}: {what}; {left}", cycle)
            yield self._breach("deadlock.cycle", text, cycle)
        alone = [one for one, other in followed.items() if other is None]
        if alone:
            what = "waits for what nobody provides"
            text = self._told(f"{self._place(alone[0])}: {what}; {left}", alone)
            yield self._breach("deadlock.unprovided", text, alone)
        if not circles and not alone:  # the verdict does not hang on who is found to wait for whom
            text = self._told(f"{self._place(self._stuck[0])}: waits; {left}", self._stuck)
            yield self._breach("deadlock.stuck", text, self._stuck)

    def _breach(self, rule: str, text: str, waiting: Sequence[Waiting]) -> Breach:
        cells = [(queue, self._waits[queue, rank].row, rank) for queue, rank in waiting]
        first = self._waits[waiting[0]]
        return breach_at(
            self._executable, rule, text, *cells, semaphore=first.sem, value=first.awaited
        )

    def _provider(self, waiting: Waiting) -> Waiting | None:
        """The queue that would have to go on; for a ring its CC-core, which pushes."""
        wait = self._waits[waiting]
        if wait.next is None:
            return None
        queue = self._executable.queues[wait.next.queue]
        if isinstance(queue, DmaQueue):
            return self._cores[first_runner(queue), queue.stream], wait.next.source
        return wait.next.queue, wait.next.source

    def _place(self, waiting: Waiting) -> str:
        queue, rank = waiting
        return place_of(self._executable, queue, self._waits[waiting].row, rank)

    def _told(self, head: str, waiting: Sequence[Waiting]) -> str:
        lines = [head]
        lines += [
            f"  {self._place(one)}{self._instruction(one)}: {self._line(one)}"
            for one in waiting[:SHOWN]
        ]
        if len(waiting) > SHOWN:
            lines.append(f"  … and {len(waiting) - SHOWN} more")
        return "\n".join(lines)

    def _instruction(self, waiting: Waiting) -> str:
        """The opcode, where the place does not name it."""
        queue, row = self._executable.queues[waiting[0]], self._waits[waiting].row
        if not isinstance(queue, CcQueue):
            return ""
        code = int(queue.opcode[row])
        known = [one.name.lower() for one in CcOpcode if one == code]
        return f", {known[0] if known else f'opcode {code}'}"

    def _line(self, waiting: Waiting) -> str:
        wait, rank = self._waits[waiting], waiting[1]
        if wait.sem == IDLE:
            return self._no_room(waiting)
        name = self._executable.semaphore_names(rank).get(wait.sem, f"s{wait.sem}")
        text = f"needs {name} >= {wait.awaited}, it holds {wait.held}; "
        following = wait.next
        if following is None:
            return f"{text}nothing increments it any more"
        where = place_of(self._executable, following.queue, following.row, following.source)
        text = f"{text}next would be {where}"
        provider = self._provider(waiting)
        assert provider is not None, "there is a next increment"
        if provider[0] == following.queue:
            return text
        ring, core = self._executable.queues[following.queue], self._executable.queues[provider[0]]
        assert isinstance(ring, DmaQueue), ring.name
        assert isinstance(core, CcQueue), core.name
        pushes = (core.opcode == CcOpcode.ADVANCE) & (core.ring == ring.lane)
        at = np.flatnonzero(pushes & (core.ring_row == following.row))[:1].tolist()
        return f"{text}, which {core.name}, pc {at[0]} pushes" if at else text

    def _no_room(self, waiting: Waiting) -> str:
        """Why a push has no room: nothing stands in the ring that would make some."""
        number, rank = waiting
        core, row = self._executable.queues[number], self._waits[waiting].row
        assert isinstance(core, CcQueue), core.name
        ring = next(
            queue
            for queue in self._executable.queues
            if isinstance(queue, DmaQueue)
            and (first_runner(queue), queue.stream) == (first_runner(core), core.stream)
            and queue.lane == int(core.ring[row])
        )
        size = ring.size_bytes[int(core.ring_row[row])]
        has = int(descriptors(np.broadcast_to(size, (self._executable.ranks,)))[rank])
        room = self._executable.topology.rank_ring_descriptors
        return (
            f"needs room for {has} descriptors in {ring.name}, which holds {room} when it is empty"
        )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
