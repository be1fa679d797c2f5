"""Deadlock: whether every wait is satisfied in the end, and if not, who waits for whom.

One greedy run decides, since counters only grow and each has one incrementing chain (`order.py`).
The witness is the smallest circle of queues of which each waits for the next.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    Executable,
    descriptors,
    is_run_by,
)
from ncc_runtime.verify.counting.increments import Increments, first_runner, increments_of
from ncc_runtime.verify.deadlock.order import GreedyRun, greedy
from ncc_runtime.verify.places import place_of
from ncc_runtime.verify.proof import Proof

SHOWN = 16
"""Members of a circle, or queues that wait in vain, that are told in full."""

_Chain = tuple[int, int]  # queue and rank


def prove_deadlock(
    executable: Executable, increments: Sequence[Increments] | None = None
) -> tuple[Proof, GreedyRun]:
    """That every queue comes to its end; needs counters proved."""
    known = increments or increments_of(executable)
    run = greedy(executable, known)
    stuck = run.stuck(executable)
    breaches = tuple(_Witness(executable, known, run, stuck).breaches()) if stuck else ()
    queues = sum(len(queue.sync.wait_sem) > 0 for queue in executable.queues)
    size = f"{len(run.batches)} rows of {queues} queues on {executable.ranks} ranks"
    return Proof("deadlock", size, breaches=breaches), run


@attrs.frozen
class _Wait:
    """Where a chain is stuck, and for what."""

    row: int
    sem: int  # IDLE: for room in a ring
    awaited: int
    held: int


@attrs.frozen
class _Provider:
    """The next increment of a counter that has not been made."""

    chain: _Chain  # an engine's or a CC-core's
    row: int
    run: _Chain | None = None  # of a DMA ring: queue and row; the chain pushes it


class _Witness:
    """The stuck state of one run."""

    def __init__(
        self,
        executable: Executable,
        increments: Sequence[Increments],
        run: GreedyRun,
        stuck: Sequence[_Chain],
    ) -> None:
        self._executable = executable
        self._run = run
        self._stuck = stuck
        self._waits = {chain: self._wait(chain) for chain in stuck}
        self._providers = _Providers(executable, increments, run)
        self._providers.look_for(
            np.array([one.sem for one in self._waits.values()]),
            np.array([rank for _, rank in stuck]),
        )

    def _wait(self, chain: _Chain) -> _Wait:
        queue, rank = chain
        sync, row = self._executable.queues[queue].sync, int(self._run.reached[queue][rank])
        sem, awaited = (
            int(np.broadcast_to(column[row], (self._executable.ranks,))[rank])
            for column in (sync.wait_sem, sync.wait_value)
        )
        held = int(self._run.held[sem, rank]) if sem != IDLE else 0
        if sem == IDLE or held >= awaited:
            return _Wait(row, IDLE, 0, 0)
        return _Wait(row, sem, awaited, held)

    def breaches(self) -> Iterator[str]:
        """The smallest circle, if there is one; then who waits for what nobody provides."""
        following = {chain: self._provider(chain) for chain in self._stuck}
        circle = _smallest_circle(
            {chain: one.chain for chain, one in following.items() if one is not None}
        )
        ranks = len({rank for _, rank in self._stuck})
        left = f"{_count(len(self._stuck), 'queue')} on {_count(ranks, 'rank')} cannot go on"
        if circle:
            what = f"{len(circle)} queues wait for one another in a circle"
            if len(circle) == 1:
                what = "waits for a later row of its own queue"
            yield self._told(f"{self._place(circle[0])}: {what}; {left}", circle, following)
        alone = [chain for chain in self._stuck if following[chain] is None]
        if alone:
            what = "waits for what nobody provides"
            yield self._told(f"{self._place(alone[0])}: {what}; {left}", alone, following)

    def _provider(self, chain: _Chain) -> _Provider | None:
        one = self._waits[chain]
        return None if one.sem == IDLE else self._providers.next(one.sem, chain[1])

    def _place(self, chain: _Chain) -> str:
        return place_of(self._executable, chain[0], self._waits[chain].row, chain[1])

    def _told(
        self, head: str, chains: Sequence[_Chain], following: Mapping[_Chain, _Provider | None]
    ) -> str:
        lines = [head]
        lines += [
            f"  {self._place(chain)}{self._instruction(chain)}: {self._line(chain, following)}"
            for chain in chains[:SHOWN]
        ]
        if len(chains) > SHOWN:
            lines.append(f"  … and {len(chains) - SHOWN} more")
        return "\n".join(lines)

    def _instruction(self, chain: _Chain) -> str:
        """The opcode, where the place does not name it."""
        queue, row = self._executable.queues[chain[0]], self._waits[chain].row
        if not isinstance(queue, CcQueue):
            return ""
        code = int(queue.opcode[row])
        known = [one.name.lower() for one in CcOpcode if one == code]
        return f", {known[0] if known else f'opcode {code}'}"

    def _line(self, chain: _Chain, following: Mapping[_Chain, _Provider | None]) -> str:
        one, rank = self._waits[chain], chain[1]
        if one.sem == IDLE:
            return self._no_room(chain)
        name = self._executable.semaphore_names(rank).get(one.sem, f"s{one.sem}")
        text = f"needs {name} >= {one.awaited}, it holds {one.held}; "
        provider = following[chain]
        if provider is None:
            return f"{text}nothing increments it any more"
        where = place_of(self._executable, provider.chain[0], provider.row, provider.chain[1])
        if provider.run is None:
            return f"{text}next would be {where}"
        ring, row = provider.run
        told = place_of(self._executable, ring, row, provider.chain[1])
        core = self._executable.queues[provider.chain[0]].name
        return f"{text}next would be {told}, which {core}, pc {provider.row} pushes"

    def _no_room(self, chain: _Chain) -> str:
        """Why a push has no room: nothing stands in the ring that would make some."""
        core = self._executable.queues[chain[0]]
        assert isinstance(core, CcQueue), core.name
        row = self._waits[chain].row
        ring = next(
            queue
            for queue in self._executable.queues
            if isinstance(queue, DmaQueue)
            and is_run_by(queue, chain[1])
            and (queue.stream, queue.lane) == (core.stream, int(core.ring[row]))
        )
        size = ring.size_bytes[int(core.ring_row[row])]
        run = int(descriptors(np.broadcast_to(size, (self._executable.ranks,)))[chain[1]])
        room = self._executable.topology.rank_ring_descriptors
        return (
            f"needs room for {run} descriptors in {ring.name}, which holds {room} when it is empty"
        )


class _Providers:
    """Who makes the next increment of counters that stuck queues wait for."""

    def __init__(
        self, executable: Executable, increments: Sequence[Increments], run: GreedyRun
    ) -> None:
        self._executable = executable
        self._increments = increments
        self._run = run
        self._ranks = executable.ranks
        self._found: dict[int, _Provider] = {}
        self._pushes = {
            (first_runner(queue), queue.stream, lane): self._pushing(number, queue, lane)
            for number, queue in enumerate(executable.queues)
            if isinstance(queue, CcQueue)
            for lane in np.unique(queue.ring[queue.ring != IDLE]).tolist()
        }

    @staticmethod
    def _pushing(number: int, queue: CcQueue, lane: int) -> tuple[int, np.ndarray]:
        """A CC-core, and its row that pushes each run of a lane."""
        return number, np.flatnonzero((queue.opcode == CcOpcode.ADVANCE) & (queue.ring == lane))

    def next(self, sem: int, rank: int) -> _Provider | None:
        """Of one of the counters looked for."""
        return self._found.get(sem * self._ranks + rank)

    def look_for(self, sems: np.ndarray, ranks: np.ndarray) -> None:
        """Find the providers of these counters."""
        wanted: np.ndarray = np.zeros(self._executable.semaphore_count * self._ranks, bool)
        wanted[(sems * self._ranks + ranks)[sems != IDLE]] = True
        for number, one in enumerate(self._increments):
            rows = self._rows(number)
            for cells in one.stretches(np.arange(len(one.first))):
                hit = wanted[cells.counter]
                columns = (cells.kind[hit], cells.source[hit], cells.counter[hit])
                for kind, source, counter in zip(*(c.tolist() for c in columns), strict=True):
                    self._note((number, source), rows.get(kind), counter)

    def _rows(self, number: int) -> Mapping[int, np.ndarray]:
        """The rows of each kind of a queue."""
        kinds = self._increments[number].kind
        order = np.argsort(kinds, kind="stable")
        cuts = np.flatnonzero(np.diff(kinds[order])) + 1
        return {int(kinds[rows[0]]): rows for rows in np.split(order, cuts) if len(rows)}

    def _note(self, chain: _Chain, rows: np.ndarray | None, counter: int) -> None:
        """Keep the earliest row of a chain that is still to come."""
        queue, rank = chain
        ring = self._executable.queues[queue]
        if rows is None:
            return
        program, at = queue, rows
        if isinstance(ring, DmaQueue):
            key = first_runner(ring), ring.stream, ring.lane
            if key not in self._pushes:
                return
            program, pushes = self._pushes[key]
            rows = rows[rows < len(pushes)]
            at = pushes[rows]
        ahead = np.flatnonzero(at >= self._run.reached[program][rank])
        if not len(ahead):
            return
        first = ahead[0]
        run = (queue, int(rows[first])) if isinstance(ring, DmaQueue) else None
        known, row = self._found.get(counter), int(at[first])
        if known is None or (known.chain == (program, rank) and row < known.row):
            self._found[counter] = _Provider((program, rank), row, run)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _smallest_circle(following: Mapping[_Chain, _Chain]) -> Sequence[_Chain]:
    """The shortest circle of a graph in which each has at most one that it waits for."""
    seen: dict[_Chain, int] = {}
    smallest: list[_Chain] = []
    for start in following:
        path: list[_Chain] = []
        chain: _Chain | None = start
        first = len(seen)
        while chain is not None and chain not in seen:
            seen[chain] = len(seen)
            path.append(chain)
            chain = following.get(chain)
        if chain is not None and seen[chain] >= first:
            circle = path[seen[chain] - first :]
            if not smallest or len(circle) < len(smallest):
                smallest = circle
    least = smallest.index(min(smallest)) if smallest else 0
    return smallest[least:] + smallest[:least]
