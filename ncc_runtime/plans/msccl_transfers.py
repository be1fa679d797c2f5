"""Turns the steps of an MSCCL plan into transfers: first of single members, then as columns.

    s     push into the peer's slot, or straight to where the peer wants it
    r     slot to target at home; nothing if it came straight there
    rcs   slot to target at home and to the next slot: one read, two writes
    rrc   slot joined with the source to the target; rrs to the next slot; rrcs to both
    cpy   at home;  re joins at home, several to one target at once;  nop passes on its waits

A send goes straight to its target if everything that used the target before is done when the send
starts. Steps of a thread block share a DMA ring, which runs in order; all else is waited for.

In the end `rounds_of` joins the transfers of single members to the columns of a plan: what members
do alike is one transfer.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

import attrs
import numpy as np

from ncc_runtime.collectives.chunks import ALIGNMENT, Scratch
from ncc_runtime.collectives.plan import (
    IDLE,
    LANES,
    Dependencies,
    Location,
    Round,
    SecondTarget,
    Space,
    Transfer,
)
from ncc_runtime.plans.chunk_places import BufferOffset, LocalCopy, Loop
from ncc_runtime.plans.document import MOST_SOURCES
from ncc_runtime.plans.msccl_file import MOST_GPUS, OUTPUT, StepKind
from ncc_runtime.plans.msccl_graph import NONE, Graph, places_of

OrderedChannel = int
"""What runs in order: arrivals from a member in a lane; from SENT on, transfers that it sends."""

SENT: OrderedChannel = MOST_GPUS * LANES

Known = Mapping[OrderedChannel, tuple[int, ...]]
"""Dependencies: of each channel the last transfers, several if they are of one round."""


@attrs.frozen(eq=False)
class MemberTransfers:
    """Transfers of single members in an order that they can run in: columns by transfer."""

    member: list[int] = attrs.field(factory=list)
    peer: list[int] = attrs.field(factory=list)
    sources: list[tuple[BufferOffset, ...]] = attrs.field(factory=list)
    target: list[BufferOffset] = attrs.field(factory=list)  # at the peer
    also: list[BufferOffset | None] = attrs.field(factory=list)  # the same at home
    size_bytes: list[int] = attrs.field(factory=list)
    lane: list[int] = attrs.field(factory=list)
    divisor: list[int] = attrs.field(factory=list)
    writer: list[int] = attrs.field(factory=list)  # whose slot is empty once this has read
    empties: list[int] = attrs.field(factory=list)  # the transfer that empties the slot it takes
    round: list[int] = attrs.field(factory=list)
    waits: list[Known] = attrs.field(factory=list)  # a ring runs in order: without its own

    def __len__(self) -> int:
        return len(self.member)

    def add(
        self,
        member: int,
        sources: tuple[BufferOffset, ...],
        target: BufferOffset,
        size_bytes: int,
        lane: int,
        known: Known,
        *,
        peer: int | None = None,
        also: BufferOffset | None = None,
        divisor: int = 1,
        writer: int = NONE,
        empties: int = NONE,
    ) -> int:
        """Add a transfer, in the first round behind all that it waits for; its number."""
        rounds = self.round
        before = -1 if empties == NONE else rounds[empties]
        for awaited in known.values():
            for transfer in awaited:
                if rounds[transfer] > before:
                    before = rounds[transfer]
        completion = SENT + member * LANES + lane
        if completion in known:
            known = {channel: last for channel, last in known.items() if channel != completion}
        self.member.append(member)
        self.peer.append(member if peer is None else peer)
        self.sources.append(sources)
        self.target.append(target)
        self.also.append(also)
        self.size_bytes.append(size_bytes)
        self.lane.append(lane)
        self.divisor.append(divisor)
        self.writer.append(writer)
        self.empties.append(empties)
        self.waits.append(known)
        rounds.append(before + 1)
        return len(rounds) - 1

    def arrival(self, number: int) -> OrderedChannel:
        """Where the peer sees that it has arrived."""
        return self.member[number] * LANES + self.lane[number]

    def completion(self, number: int) -> OrderedChannel:
        """Where the member sees that it is complete."""
        return SENT + self.member[number] * LANES + self.lane[number]

    def latest(self, known: Sequence[Known]) -> Known:
        """All together: of each channel the last, which imply those of earlier rounds."""
        known = [waits for waits in known if waits]
        if len(known) == 1:
            return known[0]
        rounds = self.round
        merged: dict[OrderedChannel, tuple[int, ...]] = {}
        for waits in known:
            for channel, others in waits.items():
                last = merged.get(channel)
                if last is None or rounds[last[0]] < rounds[others[0]]:
                    merged[channel] = others
                elif rounds[last[0]] == rounds[others[0]]:
                    merged[channel] = last + tuple(other for other in others if other not in last)
        return merged


@attrs.frozen(eq=False)
class MscclFacts:
    """The results of the checks of a plan, which do not depend on sizes."""

    graph: Graph
    straight: Mapping[str, Sequence[bool]]  # of `Ordered`
    first: frozenset[tuple[int, int]]  # steps, and chunks of the output that they read first
    complete: frozenset[tuple[int, int]]  # steps, and places in them, that join the last gpu's
    cleared: frozenset[int]  # gpus whose results are zeros
    divisor: int


class TransferMaker:
    """Makes the transfers of one loop, member by member."""

    def __init__(
        self,
        facts: MscclFacts,
        loop: Loop,
        scratch: Mapping[int, Scratch],
        singles: MemberTransfers,
    ) -> None:
        self._facts, self._loop, self._graph = facts, loop, facts.graph
        self._transfers = singles
        graph, steps = facts.graph, facts.graph.steps
        self._straight = facts.straight[loop.start]
        lanes = lanes_of(graph)
        self._lane_count = max(lanes, default=0) + 1
        self._slots = slots_of(facts, loop, scratch)
        # columns of the graph as lists, for every step is looked at alone
        self._lane = [lanes[block] for block in steps.block.tolist()]
        self._block, self._gpu = steps.block.tolist(), graph.gpu.tolist()
        self._count = steps.count.tolist()
        self._waits = [column.tolist() for column in (graph.before, graph.awaited, graph.copied)]
        self._sent, self._received = graph.sent.tolist(), graph.received.tolist()
        self._connection = graph.algo.connections()[0].tolist()  # of sends
        self._receives, self._sends, self._joins, self._reads, self._writes = (
            steps.which(flag).tolist() for flag in ("receives", "sends", "joins", "reads", "writes")
        )
        self._is_nop, self._is_reduce = (
            steps.are(kind).tolist() for kind in (StepKind.NOP, StepKind.REDUCE)
        )
        self._passes = graph.algo.steps.are(StepKind.NOP).tolist()  # in the file, and tells nobody
        self._tells = steps.tells.tolist()
        self._source, self._target = graph.source.tolist(), graph.target.tolist()
        self._pushed: Counter[int] = Counter()  # by connection
        self._emptied: dict[int, list[int]] = defaultdict(list)
        self._landed: dict[int, BufferOffset] = {}  # by send: its slot
        self._held: dict[int, list[int]] = defaultdict(list)  # by block: joins not made yet
        self._done: dict[int, Known] = {}  # by step
        self._made: dict[int, list[int]] = {}  # by step
        self._places: dict[int, BufferOffset] = {}  # by chunk
        self.ends: dict[int, Known] = {}  # by gpu: what its steps end with

    def make(self) -> None:
        """All transfers."""
        graph, latest = self._graph, self._transfers.latest
        gpus = range(graph.shape.gpus)
        ready = {gpu: self._fetched(gpu, self._loop.before, {}) for gpu in gpus}
        for step in graph.order:
            self._step(step, ready)
        last: dict[int, dict[int, int]] = {gpu: {} for gpu in gpus}  # by thread block
        for step, (gpu, block) in enumerate(zip(self._gpu, self._block, strict=True)):
            last[gpu][block] = step
        _, buffer, index = places_of(graph.target)
        writes = graph.steps.which("writes") & (buffer == OUTPUT)
        written: dict[int, set[int]] = defaultdict(set)
        for gpu, first, count in zip(
            *(column[writes].tolist() for column in (graph.gpu, index, graph.steps.count)),
            strict=True,
        ):
            written[gpu].update(range(first, first + count))
        for gpu in gpus:
            known = latest([ready[gpu], *(self._done[step] for step in last[gpu].values())])
            if gpu in self._facts.cleared:  # zeros come over all that stands there
                self.ends[gpu] = known
                continue
            self._copy_unwritten(gpu, written[gpu])
            self.ends[gpu] = self._fetched(gpu, self._loop.after, known)

    def _fetched(self, gpu: int, fetches: Sequence[LocalCopy], known: Known) -> Known:
        """Copies within a gpu, on different rings but for those that read what others write."""
        singles = self._transfers
        made: dict[OrderedChannel, tuple[int, ...]] = {}
        lane = -1
        for copy in fetches:
            source = _further(copy.source, gpu * copy.source_gpu_stride)
            target = _further(copy.target, gpu * copy.target_gpu_stride)
            lane = (lane + (not copy.is_behind)) % self._lane_count  # a ring runs in order
            completion = SENT + gpu * LANES + lane
            behind = {channel: last for channel, last in made.items() if channel == completion}
            waits = singles.latest([known, behind])
            made[completion] = (singles.add(gpu, (source,), target, copy.size_bytes, lane, waits),)
        return singles.latest([known, made])

    def _copy_unwritten(self, gpu: int, written: set[int]) -> None:
        """Operands that lie elsewhere and that no step writes over go to the result."""
        for index in range(self._graph.shape.chunks(OUTPUT)):
            given = None if index in written else self._loop.given(gpu, index)
            if given is not None:
                target, lane = self._loop.place(OUTPUT, index), index % self._lane_count
                self._transfers.add(gpu, (given,), target, self._loop.chunk_bytes, lane, {})

    def _step(self, step: int, ready: Mapping[int, Known]) -> None:
        singles, gpu, block = self._transfers, self._gpu[step], self._block[step]
        before, *_ = self._waits
        waits = [ready[gpu]] if before[step] == NONE else []
        waits += [self._done[column[step]] for column in self._waits if column[step] != NONE]
        is_straight = self._straight[step]
        if self._receives[step]:
            sent = self._made[self._sent[step]]
            waits.append({singles.arrival(transfer): (transfer,) for transfer in sent})
        known = singles.latest(waits)
        is_held = self._is_reduce[step] and self._goes_on(step)
        if is_held:
            self._held[block].append(step)
        is_there = is_straight and not self._sends[step]  # a receive that has nothing to do
        if self._is_nop[step] or is_held or is_there:
            self._done[step] = known
            return
        if self._sends[step] and not self._straight[self._received[step]]:
            self._take_slot(step)
        made: list[int] = []
        for place, count in ((0, 1),) if self._count[step] == 1 else self._runs(step):
            made.append(self._single(step, place, count, known))
            known = {**known, singles.completion(made[-1]): (made[-1],)}
        self._held.pop(block, None)
        self._made[step] = made
        self._done[step] = {singles.completion(made[-1]): (made[-1],)}
        if self._receives[step] and not is_straight:
            self._emptied[self._connection[self._sent[step]]].append(made[-1])

    def _goes_on(self, step: int) -> bool:
        """Whether the next step joins to the same chunks, and no other step waits for this one."""
        if self._tells[step] or len(self._held[self._block[step]]) + 2 >= MOST_SOURCES:
            return False
        following = step + 1
        while self._is_behind(following, step) and self._passes[following]:
            following += 1
        if not self._is_behind(following, step):
            return False
        is_same = self._target[following] == self._target[step]
        is_as_long = self._count[following] == self._count[step]
        return bool(self._is_reduce[following] and is_same and is_as_long)

    def _is_behind(self, following: int, step: int) -> bool:
        """Whether a step is one of the same thread block."""
        return following < len(self._block) and self._block[following] == self._block[step]

    def _take_slot(self, step: int) -> None:
        connection = self._connection[step]
        slots, turn = self._slots[connection], self._pushed[connection]
        self._pushed[connection] += 1
        self._landed[step] = slots[turn % len(slots)]

    def _runs(self, step: int) -> Iterator[tuple[int, int]]:
        """Runs of a step's chunks that lie behind one another wherever they are: place, count."""
        refs = [(step, self._source[step])] if self._reads[step] else []
        refs += [(step, self._target[step])] if self._writes[step] else []
        if self._is_reduce[step]:
            refs = self._joined(step)
        received = self._received[step]
        if received != NONE and self._straight[received]:
            refs.append((step, self._target[received]))
        place = 0
        while place < self._count[step]:
            count = self._count[step] - place
            for _, first in refs:
                _, buffer, index = places_of(first)
                count = self._loop.layout[buffer].run(index + place, count)
            if self._facts.divisor > 1:
                count = _run_length(self._facts.complete, step, place, count)
            for reader, first in refs if self._loop.operand is not None else ():
                count = _run_length(self._facts.first, reader, first + place, count)
            yield place, count
            place += count

    def _single(self, step: int, place: int, count: int, known: Known) -> int:
        sources = self._sources(step, place)
        writes, straight = self._writes[step], self._straight
        home = self._at(self._target[step] + place) if writes else sources[0]
        gpu, receive = self._gpu[step], self._received[step]
        target, also, empties, writer = home, None, NONE, NONE
        if self._receives[step] and not straight[step]:
            writer = self._gpu[self._sent[step]]
        if self._sends[step]:
            also = home if writes and not straight[step] else None
            if straight[receive]:
                target = self._at(self._target[receive] + place)
            else:
                target = _further(self._landed[step], place * self._loop.chunk_bytes)
                empties = self._emptied_by(step)
        is_complete = (step, place) in self._facts.complete
        return self._transfers.add(
            gpu,
            sources,
            target,
            count * self._loop.chunk_bytes,
            self._lane[step],
            known,
            peer=self._gpu[receive] if self._sends[step] else gpu,
            also=also,
            divisor=self._facts.divisor if is_complete else 1,
            writer=writer,
            empties=empties,
        )

    def _joined(self, step: int) -> list[tuple[int, int]]:
        """What a join at home reads, and by which step: the target, then the sources in turn."""
        joins = [*self._held[self._block[step]], step]
        return [(joins[0], self._target[step]), *((join, self._source[join]) for join in joins)]

    def _sources(self, step: int, place: int) -> tuple[BufferOffset, ...]:
        if self._is_reduce[step]:
            return tuple(self._read(join, chunk + place) for join, chunk in self._joined(step))
        if not self._receives[step]:
            return (self._read(step, self._source[step] + place),)
        if self._straight[step]:
            return (self._at(self._target[step] + place),)
        slot = _further(self._landed[self._sent[step]], place * self._loop.chunk_bytes)
        if self._joins[step]:
            return slot, self._read(step, self._source[step] + place)
        return (slot,)

    def _read(self, step: int, chunk: int) -> BufferOffset:
        """Where a step reads a chunk: in the operand, where no step has written it yet."""
        if self._loop.operand is not None and (step, chunk) in self._facts.first:
            _, _, index = places_of(chunk)
            given = self._loop.given(self._gpu[step], index)
            if given is not None:
                return given
        return self._at(chunk)

    def _emptied_by(self, step: int) -> int:
        """The transfer that has emptied the slot; those before it were emptied before."""
        connection = self._connection[step]
        turn = self._pushed[connection] - 1 - len(self._slots[connection])
        return self._emptied[connection][turn] if turn >= 0 else NONE

    def _at(self, chunk: int) -> BufferOffset:
        """Where a chunk lies; many steps use the same."""
        if chunk not in self._places:
            _, buffer, index = places_of(chunk)
            self._places[chunk] = self._loop.place(buffer, index)
        return self._places[chunk]


def _run_length(pairs: Set[tuple[int, int]], step: int, first: int, count: int) -> int:
    """How many of `count` chunks, from the first, are like it among the pairs of a step or not."""
    at_first = (step, first) in pairs
    return next(
        (more for more in range(1, count) if ((step, first + more) in pairs) is not at_first), count
    )


def _further(offset: BufferOffset, more: int) -> BufferOffset:
    return BufferOffset(offset.space, offset.tensor, offset.offset + more) if more else offset


def slots_of(
    facts: MscclFacts, loop: Loop, scratch: Mapping[int, Scratch]
) -> Mapping[int, Sequence[BufferOffset]]:
    """Where the slots of each connection lie at its receiver."""
    graph, straight = facts.graph, np.array(facts.straight[loop.start], bool)
    sends = np.flatnonzero(graph.received != NONE)
    sends = sends[~straight[graph.received[sends]]]
    connections, which = np.unique(graph.algo.connections()[0][sends], return_inverse=True)
    times = np.bincount(which, minlength=len(connections)).tolist()
    most = np.zeros(len(connections), np.int64)
    np.maximum.at(most, which, graph.steps.count[sends])
    blocks = {
        connection: graph.algo.blocks[block]
        for connection, block in zip(
            connections[which].tolist(), graph.steps.block[sends].tolist(), strict=True
        )
    }
    # by channel, then by distance, so that the slots of most members lie at the same addresses
    in_order = sorted(
        (block.channel, (block.to - block.gpu) % graph.shape.gpus, block.gpu, block.to, *size)
        for size in zip(connections.tolist(), times, most.tolist(), strict=True)
        for block in [blocks[size[0]]]
    )
    slots = {}
    for _, _, _, receiver, connection, count, chunks in in_order:
        size = -(-chunks * loop.chunk_bytes // ALIGNMENT) * ALIGNMENT
        count = min(graph.slots, count)
        first = scratch[receiver].take(size * count)
        slots[connection] = [
            BufferOffset(Space.SCRATCH, 0, first + turn * size) for turn in range(count)
        ]
    return slots


def lanes_of(graph: Graph) -> list[int]:
    """The DMA ring of each thread block, connections in turn over the lanes.

    A slot is handed back by the ring that has read it, in the sender's lane; so thread blocks that
    are connected share one. Connections of the same channel and the same distance, either channel
    around, share one too, so that what all members do alike is one transfer.
    """
    blocks, gpus = graph.algo.blocks, graph.shape.gpus
    taken = np.flatnonzero(graph.received != NONE)
    block = graph.steps.block
    ends = np.stack([block[taken], block[graph.received[taken]]], axis=1)
    pairs = np.unique(ends, axis=0).tolist()
    kinds: list[set[tuple[int, int]]] = [set() for _ in blocks]
    for sender, receiver in pairs:
        away = (blocks[receiver].gpu - blocks[sender].gpu) % gpus
        kinds[sender].add((blocks[sender].channel, min(away, gpus - away)))
    component = _components(len(blocks), pairs)
    kinds_of: dict[int, set[tuple[int, int]]] = {}
    for part, of_block in zip(component, kinds, strict=True):
        kinds_of.setdefault(part, set()).update(of_block)
    kind = [tuple(sorted(kinds_of[part])) for part in component]
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    moving = np.unique(block[~graph.steps.are(StepKind.NOP)]).tolist()
    for number in moving:  # a block that moves nothing takes no lane
        numbers.setdefault(kind[number], len(numbers))
    return [numbers.get(of_block, 0) % LANES for of_block in kind]


def _components(blocks: int, connections: Sequence[tuple[int, int]]) -> list[int]:
    """The connected component of each thread block."""
    # scipy would do this too, and takes longer to load than the rest of the plan to be read.
    neighbours: list[set[int]] = [set() for _ in range(blocks)]
    for sender, receiver in connections:
        neighbours[sender].add(receiver)
        neighbours[receiver].add(sender)
    component = [NONE] * blocks
    count = 0
    for first in range(blocks):
        if component[first] != NONE:
            continue
        component[first] = count
        reached = [first]
        for block in reached:  # grows as it is walked
            fresh = [other for other in neighbours[block] if component[other] == NONE]
            for other in fresh:
                component[other] = count
            reached += fresh
        count += 1
    return component


_SPACES = tuple(Space)


def rounds_of(singles: MemberTransfers, members: int) -> tuple[Round, ...]:
    """The rounds of a plan."""
    member, peer, lane, rounds = (
        np.array(column, np.int64)
        for column in (singles.member, singles.peer, singles.lane, singles.round)
    )
    writer, empties = np.array(singles.writer, np.int64), np.array(singles.empties, np.int64)
    most_sources = max(map(len, singles.sources), default=0)
    sources = [
        _space_and_offset([read[k] if k < len(read) else None for read in singles.sources])
        for k in range(most_sources)
    ]
    target, also = _space_and_offset(singles.target), _space_and_offset(singles.also)
    # all that the singles of one transfer must have in common
    kinds = [rounds, lane, np.array(singles.divisor), writer == NONE, peer == member]
    kinds += [space for space, _ in (*sources, target, also)]
    order, column = _packed(_first_equal(kinds), rounds, member, peer, members)

    # A single that empties a slot returns a credit to its writer, in its lane. One that fills the
    # slot again waits for as many credits as had been returned there. Channels on which nobody
    # waits return none.
    handed = (writer * members + member) * LANES + lane
    awaited = ((member * members + peer) * LANES + lane)[empties != NONE]
    place = np.zeros(len(order), np.int64)
    hands = order[writer[order] != NONE]
    place[hands] = 1 + _times_before(handed[hands])
    credit = np.where(empties == NONE, 0, place[empties])
    consumed = np.where((writer != NONE) & np.isin(handed, awaited), writer, IDLE)

    # a transfer waits for one credit, so columns are split where their singles wait for different
    _, split = np.unique(_first_equal([column, credit[order]]), return_inverse=True)
    number = np.empty(len(order), np.int64)
    number[order] = split
    order = order[np.argsort(split, kind="stable")]
    heads = order[np.flatnonzero(np.diff(number[order], prepend=-1))]  # a single of each transfer

    def rows(cells: np.ndarray, dtype: type[np.integer], idle: int) -> list[np.ndarray]:
        """By transfer a column by member, `idle` for members that make none."""
        table: np.ndarray = np.full((len(heads), members), idle, dtype)
        table[number, member] = cells
        return list(table)

    def locations(space: np.ndarray, offset: np.ndarray) -> list[Location | None]:
        """By transfer, None where it has none."""
        return [
            None
            if code == NONE
            else Location(_SPACES[code % len(_SPACES)], row, code // len(_SPACES))
            for code, row in zip(space[heads].tolist(), rows(offset, np.int64, 0), strict=True)
        ]

    peers, makers = rows(peer, np.int32, IDLE), rows(member, np.int32, IDLE)
    sizes = rows(np.array(singles.size_bytes, np.int64), np.int64, 0)
    read_from, also_to = [locations(*column) for column in sources], locations(*also)
    write_to = [location for location in locations(*target) if location is not None]  # all have one
    returns_credit = np.zeros(len(heads), bool)
    returns_credit[number[consumed != IDLE]] = True
    consumed_rows = rows(consumed, np.int32, IDLE)
    afters = _afters(singles, members, number, order, len(heads))
    awaited_credit = credit.tolist()
    transfers = [
        Transfer(
            peer=peers[k],
            sources=tuple(
                [location for column in read_from if (location := column[k]) is not None]
            ),
            target=write_to[k],
            size_bytes=sizes[k],
            second_target=None
            if (second := also_to[k]) is None
            else SecondTarget(makers[k], second),
            lane=singles.lane[head],
            consumed=consumed_rows[k] if returns_credit[k] else None,
            credit=awaited_credit[head],
            divisor=singles.divisor[head],
            after=afters[k],
        )
        for k, head in enumerate(heads.tolist())
    ]
    edges = np.flatnonzero(np.diff(rounds[heads], prepend=-1, append=-1)).tolist()
    return tuple(Round(tuple(transfers[low:high])) for low, high in itertools.pairwise(edges))


def _space_and_offset(offsets: Sequence[BufferOffset | None]) -> tuple[np.ndarray, np.ndarray]:
    """A code of the space and tensor of each (NONE for none), and its offset."""
    cells = [
        (NONE, 0)
        if place is None
        else (place.tensor * len(_SPACES) + _SPACES.index(place.space), place.offset)
        for place in offsets
    ]
    columns = np.array(cells, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _first_equal(columns: Sequence[np.ndarray]) -> np.ndarray:
    """For each row the first that is equal to it in all columns."""
    order = np.lexsort(columns)  # rows that are equal stay in order
    is_new = np.ones(len(order), bool)
    is_new[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in columns], axis=0)
    first = np.empty(len(order), np.int64)
    first[order] = order[is_new][np.cumsum(is_new) - 1]
    return first


def _times_before(values: np.ndarray) -> np.ndarray:
    """How often the value of each row is in rows before it."""
    order = np.argsort(values, kind="stable")
    times = np.empty(len(values), np.int64)
    times[order] = np.arange(len(values)) - np.searchsorted(values[order], values[order])
    return times


def _packed(
    kind: np.ndarray, rounds: np.ndarray, member: np.ndarray, peer: np.ndarray, members: int
) -> tuple[np.ndarray, np.ndarray]:
    """Singles in the order of the plan, and the column (transfer of the plan) of each.

    A column has singles of one kind, of different members to different peers. It is filled first
    fit; those of one distance stand together, as in most plans all members send equally far.
    """
    order = np.lexsort((member, (peer - member) % members, kind, rounds))
    columns: list[int] = []
    used, last = 0, NONE
    of_kind: list[tuple[int, set[int], set[int]]] = []  # columns, their senders and receivers
    for its_kind, sender, receiver in zip(
        *(cells[order].tolist() for cells in (kind, member, peer)), strict=True
    ):
        if its_kind != last:
            of_kind, last = [], its_kind
        for column, senders, receivers in of_kind:
            if sender not in senders and receiver not in receivers:
                columns.append(column)
                senders.add(sender)
                receivers.add(receiver)
                break
        else:
            columns.append(used)
            of_kind.append((used, {sender}, {receiver}))
            used += 1
    column_of = np.array(columns, np.int64)
    packed = np.argsort(column_of, kind="stable")
    return order[packed], column_of[packed]


def _afters(
    singles: MemberTransfers, members: int, number: np.ndarray, order: np.ndarray, transfers: int
) -> list[Dependencies]:
    """What each transfer waits for, where its CC-core has not waited for that or for later.

    Columns by wait: `single` waits, a transfer of `member` at `place` in the plan's order, for the
    transfer `awaited` on `channel`.
    """
    waits = singles.waits
    every = [last for known in waits for last in known.values()]
    starts = np.cumsum([0, *map(len, every[:-1])])
    named = number[[transfer for last in every for transfer in last]]
    awaited = np.maximum.reduceat(named, starts) if every else named
    channel = np.array([channel for known in waits for channel in known], np.int64)
    single = np.repeat(np.arange(len(waits)), [len(known) for known in waits])
    member = np.array(singles.member, np.int64)[single]
    place: np.ndarray = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    place = place[single]

    # Drop a wait where the member has already waited for as late a transfer of that channel: a
    # running maximum along each member's channel. One accumulate serves all of them, for each is
    # raised above all values of the one before it.
    by_channel = np.lexsort((place, channel, member))
    is_new = np.ones(len(by_channel), bool)
    is_new[1:] = np.any([np.diff(key[by_channel]) != 0 for key in (channel, member)], axis=0)
    raised = np.cumsum(is_new) * len(order) + awaited[by_channel]
    is_later = np.ones(len(by_channel), bool)
    is_later[1:] = raised[1:] > np.maximum.accumulate(raised)[:-1]
    kept = by_channel[is_later]

    is_sent = channel >= SENT
    kept = kept[np.lexsort((channel[kept], awaited[kept], is_sent[kept], place[kept]))]
    turn = _times_before(2 * place[kept] + is_sent[kept])
    transfer, sent = number[single[kept]], is_sent[kept]
    rows = np.zeros((2, transfers), np.int64)  # by transfer, of arrivals and of its own
    np.maximum.at(rows, (sent.astype(np.int64), transfer), turn + 1)
    ends = np.cumsum(rows.sum(axis=0))
    middles = ends - rows[1]
    table: np.ndarray = np.full((int(ends.max(initial=0)), members), IDLE, np.int32)
    first = np.where(sent, middles[transfer], middles[transfer] - rows[0, transfer])
    table[first + turn, member[kept]] = awaited[kept]
    cells, middle_of, end_of = list(table), middles.tolist(), ends.tolist()
    return [
        Dependencies(tuple(cells[start:middle]), tuple(cells[middle:end]))
        for start, middle, end in zip([0, *end_of[:-1]], middle_of, end_of, strict=True)
    ]
