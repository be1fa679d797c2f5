"""What an executable does, as plain rows: chains of atomic steps for one way through its blocks.

Nothing here waits or runs. A chain is an engine, a CC-core or a DMA ring of one rank, unrolled:
loops repeat, branches not taken are gone, and a ring holds what its CC-core pushes, in that order.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
    Jump,
    Sync,
    descriptors,
)
from tests.model_checker_steps import Access, Bytes, Compute, Move, Row, Stage, Visit

MOST_STEPS = 2000
"""A chain that takes more runs for ever."""

NEVER_REACHED = 1 << 40
"""More than any counter of an unrolled program comes to."""


class EndlessError(Exception):
    """A queue runs for ever, or comes to a `test` or `case` once more than its rank decides it."""


Way = Mapping[int, tuple[bool, ...]]
"""By block and occasion, whether its `test` or `case` goes on into the block."""


@attrs.define
class Follower:
    """Decides as a way says, for one chain."""

    way: Way
    _occasions: Counter = attrs.field(factory=Counter)  # by block

    def enters(self, jump: Jump) -> bool:
        """Whether the chain goes on behind a `test` or `case`."""
        occasion = self._occasions[jump.block]
        if occasion >= len(self.way[jump.block]):
            raise EndlessError
        self._occasions[jump.block] += 1
        return self.way[jump.block][occasion]


@attrs.define
class _Walk:
    """A program counter that follows a way."""

    follower: Follower
    jumps: Mapping[int, Jump]
    rank: int
    offset: Counter = attrs.field(factory=Counter)  # by semaphore
    _decided: int = 0  # so often it came to a `test` or `case`
    _repeated: dict[int, int] = attrs.field(factory=dict)  # by `end`, how often it was then

    def rows(self, length: int) -> Iterator[int]:
        pc, steps = 0, 0
        while pc < length:
            yield pc
            jump, pc, steps = self.jumps.get(pc), pc + 1, steps + 1
            if steps >= MOST_STEPS:
                raise EndlessError
            if jump is None:
                continue
            if jump.decision is Decision.ALWAYS:
                if self._repeated.get(pc) == self._decided:
                    raise EndlessError
                self._repeated[pc] = self._decided
            else:
                self._decided += 1
                if self.follower.enters(jump):
                    continue
            self._take(jump)
            pc = jump.target

    def _take(self, jump: Jump) -> None:
        shift = jump.shift[self.rank if len(jump.shift) > 1 else 0]
        for sem in np.flatnonzero(shift).tolist():
            self.offset[sem] += int(shift[sem])


def chains_of(executable: Executable, ways: Sequence[Way]) -> list[list[Row]]:
    """Every chain of every rank, each rank on its way."""
    chains: list[list[Row]] = []
    for rank, way in enumerate(ways):
        unrolled = _Unrolled(executable, way, rank)
        engines = [queue for queue in executable.queues if isinstance(queue, EngineQueue)]
        chains += [list(unrolled.to_its_end(queue, unrolled.engine)) for queue in engines]
        for queue in executable.queues:
            if isinstance(queue, CcQueue):
                pusher = len(chains)
                chains.append(list(unrolled.to_its_end(queue, unrolled.cc_core)))
                chains += unrolled.rings(queue, chains[pusher], pusher)
    return chains


@attrs.define
class _Unrolled:
    """The chains of one rank."""

    executable: Executable
    way: Way
    rank: int

    def to_its_end(
        self, queue: EngineQueue | CcQueue, unroll: Callable[..., Iterator[Row]]
    ) -> Iterator[Row]:
        """The rows of a queue; one that has no end stops at a row that is never performed."""
        try:
            yield from unroll(queue)
        except EndlessError:
            length = len(queue.sync.wait_sem)
            yield Row(self.rank, queue.name, length, wait=(self.rank, 0, NEVER_REACHED), posts=())

    def _walk(self, queue: EngineQueue | CcQueue) -> tuple[_Walk, Iterator[int]]:
        follower = Follower(self.way)
        walk = _Walk(follower, queue.jumps, self.rank)
        return walk, walk.rows(len(queue.sync.wait_sem))

    def _row(self, name: str, sync: Sync, pc: int, offset: Mapping[int, int]) -> Row:
        column = self.rank if sync.wait_sem.shape[1] > 1 else 0
        sem = int(sync.wait_sem[pc, column])
        column = self.rank if sync.wait_value.shape[1] > 1 else 0
        value = int(sync.wait_value[pc, column]) + offset.get(sem, 0)
        posts = [
            (int(post.rank[pc, self.rank]), int(post.sem[pc, self.rank])) for post in sync.posts
        ]
        return Row(
            self.rank,
            name,
            pc,
            wait=None if sem == IDLE or value <= 0 else (self.rank, sem, value),
            posts=tuple(post for post in posts if post[0] != IDLE),
        )

    def _tensor(self, tensor: int) -> Bytes:
        program = self.executable.program
        return self.rank, program.address(tensor), program.tensors[tensor].size_bytes

    def engine(self, queue: EngineQueue) -> Iterator[Row]:
        program = self.executable.program
        walk, rows = self._walk(queue)
        asked: Counter[int] = Counter()
        for pc in rows:
            row = self._row(queue.name, queue.sync, pc, walk.offset)
            instr = queue.table[pc]
            operands = tuple(map(self._tensor, instr.operands))
            results = tuple(map(self._tensor, instr.results))
            if pc in queue.jumps and queue.jumps[pc].decision is not Decision.ALWAYS:
                operands = (self._tensor(program.blocks[queue.jumps[pc].block].predicate),)
            row.accesses = (*_accesses(operands, False), *_accesses(results, True))
            if results:
                row.effect = Compute((instr.opcode, instr.attribute), operands, results)
            if instr.placeholder != IDLE:
                asked[instr.placeholder] += 1
                occasion = asked[instr.placeholder]
                row.effect = Visit(instr.placeholder, occasion, self.rank, Stage.ASKED)
            if row.wait or row.posts or row.accesses or row.effect:
                yield row

    def cc_core(self, queue: CcQueue) -> Iterator[Row]:
        program = self.executable.program
        begun: Counter[int] = Counter()
        walk, rows = self._walk(queue)
        triggers = _trigger_rows(self.executable, queue, self.rank)
        for pc in rows:
            row = self._row(queue.name, queue.sync, pc, walk.offset)
            number, opcode = int(queue.placeholder[pc]), int(queue.opcode[pc])
            if pc in queue.jumps and queue.jumps[pc].decision is not Decision.ALWAYS:
                predicate = program.blocks[queue.jumps[pc].block].predicate
                row.accesses = tuple(_accesses([self._tensor(predicate)], False))
            elif pc in triggers or (number != IDLE and opcode == CcOpcode.DONE):
                begun[number] += pc in triggers
                stage = Stage.BEGUN if pc in triggers else Stage.DONE
                row.effect = Visit(number, begun[number], self.rank, stage)
                row.accesses = self._owned(number)
            elif opcode == CcOpcode.ADVANCE and queue.sync.posts[0].rank[pc, self.rank] != IDLE:
                row.push = int(queue.ring[pc]), int(queue.ring_row[pc])
                row.occasion = begun[number]
            if row.wait or row.posts or row.accesses or row.effect or row.push:
                yield row

    def _owned(self, number: int) -> tuple[Access, ...]:
        """What a placeholder takes over when it is triggered and hands back when it is done."""
        placeholder = self.executable.program.placeholders[number]
        facts = next(one for one in self.executable.streams if one.stream == placeholder.stream)
        mine = [self._tensor(tensor) for tensor in placeholder.results]
        mine.append((self.rank, facts.scratch_address, facts.scratch_bytes))
        operands = [self._tensor(tensor) for tensor in placeholder.operands]
        return (*_accesses(operands, False), *_accesses(mine, True))

    def rings(self, core: CcQueue, pushing: list[Row], pusher: int) -> list[list[Row]]:
        """The rings of a CC-core, which stand behind it; bounds the pushes by their room."""
        found = []
        for queue in self.executable.queues:
            if not isinstance(queue, DmaQueue) or queue.stream != core.stream:
                continue
            chain, sizes = [], []
            for position, row in enumerate(pushing):
                if row.push is None or row.push[0] != queue.lane:
                    continue
                at = row.push[1]
                sizes.append(int(descriptors(queue.size_bytes[at, self.rank])))
                row.after.extend(self._room(pusher + 1 + len(found), sizes))
                chain.append(self._ring_row(queue, at, row.occasion))
                chain[-1].after.append((pusher, position + 1))
            found.append(chain)
        return found

    def _room(self, chain: int, sizes: list[int]) -> Iterator[tuple[int, int]]:
        """How many rows the ring must have performed before it takes the last of these."""
        done = 0
        while sum(sizes[done:]) > self.executable.topology.rank_ring_descriptors:
            done += 1
        if done:
            yield chain, done

    def _ring_row(self, queue: DmaQueue, pc: int, occasion: int) -> Row:
        row = self._row(queue.name, queue.sync, pc, {})
        row.wait = None  # for its tail, which is where it was pushed
        peer, size = int(queue.peer[pc, self.rank]), int(queue.size_bytes[pc, self.rank])
        if peer == IDLE or size == 0:
            return row
        owners = [self.rank] * queue.sources.shape[2]
        if queue.source_rank is not None:
            owners = queue.source_rank[pc, self.rank].tolist()
        addresses = queue.sources[pc, self.rank].tolist()
        pairs = zip(owners, addresses, strict=True)
        sources = tuple((owner, at, size) for owner, at in pairs if at != IDLE)
        targets = [(peer, int(queue.target[pc, self.rank]), size)]
        if queue.second_peer is not None and queue.second_target is not None:
            also = int(queue.second_peer[pc, self.rank])
            if also != IDLE:
                targets.append((also, int(queue.second_target[pc, self.rank]), size))
        opcode = DmaOpcode(int(queue.opcode[pc]))
        used = {DmaOpcode.COPY: sources[:1], DmaOpcode.REDUCE: sources, DmaOpcode.FILL: ()}[opcode]
        row.accesses = (*_accesses(used, False), *_accesses(targets, True))
        number, divisor = int(queue.placeholder[pc]), int(queue.divisor[pc])
        row.effect = Move(number, occasion, opcode, divisor, used, tuple(targets))
        return row


def _trigger_rows(executable: Executable, queue: CcQueue, rank: int) -> set[int]:
    """The rows at which placeholders begin: where they wait for the trigger, else their first."""
    sems = {facts.trigger_sem for facts in executable.streams if facts.stream == queue.stream}
    column = rank if queue.sync.wait_sem.shape[1] > 1 else 0
    found = set()
    for number in set(queue.placeholder.tolist()) - {IDLE}:
        rows = np.flatnonzero(queue.placeholder == number).tolist()
        waiting = [row for row in rows if int(queue.sync.wait_sem[row, column]) in sems]
        found.add(waiting[0] if waiting else rows[0])
    return found


def _accesses(places: Iterable[Bytes], writes: bool) -> Iterator[Access]:
    for rank, start, size in places:
        if size:
            yield Access(rank, start, start + size, writes)
