"""Makes single transfers of the steps of an MSCCL plan.

    s     push into the peer's slot, or straight to where the peer wants it
    r     slot to target at home; nothing if it came straight there
    rcs   slot to target at home and to the next slot: one read, two writes
    rrc   slot joined with the source to the target; rrs to the next slot; rrcs to both
    cpy   at home;  re joins at home, several to one target at once;  nop passes on its waits

A send goes straight to its target if everything that used the target before is done when the send
starts. Steps of a thread block share a DMA ring, which runs in order; all else is waited for.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from ncc_runtime.collectives.extents import Scratch
from ncc_runtime.collectives.plan import Space
from ncc_runtime.plans.lanes import lanes_of
from ncc_runtime.plans.loops import Fetch, Loop, Stretch
from ncc_runtime.plans.msccl import Buffer, Kind, Ref
from ncc_runtime.plans.singles import Known, Single, Way, latest, rounds_before
from ncc_runtime.plans.slots import Facts, connection_of, slots_of
from ncc_runtime.plans.steps import NONE, Connection, Node

MOST_SOURCES = 16
"""Of a descriptor. Source: AWS Neuron SDK docs, work-with-neff-files.rst (`from_arr`)."""


class Making:
    """The single transfers of one loop."""

    def __init__(self, facts: Facts, loop: Loop, scratch: Mapping[int, Scratch]) -> None:
        self._facts, self._loop, self._graph = facts, loop, facts.graph
        self._straight = facts.straight[loop.start]
        self._lanes = lanes_of(facts.graph)
        self._lane_count = max(self._lanes.values(), default=0) + 1
        self._slots = slots_of(facts, loop, scratch)
        self._pushed: Counter[Connection] = Counter()
        self._emptied: dict[Connection, list[Single | None]] = {}
        self._landed: dict[int, Stretch] = {}  # by send: its slot
        self._held: dict[int, list[Node]] = defaultdict(
            list
        )  # by block: joins that are not made yet
        self._written: dict[int, set[int]] = defaultdict(set)  # chunks of the output, by gpu
        self._done: dict[int, Known] = {}  # by step
        self._made: dict[int, list[Single]] = {}  # by step
        self._places: dict[tuple[Buffer, int], Stretch] = {}
        self.found: list[Single] = []
        self.ends: dict[int, Known] = {}  # by gpu: what its steps end with

    def make(self) -> list[Single]:
        """All transfers, in an order that they can run in."""
        gpus = range(self._graph.shape.gpus)
        ready = {gpu: self._fetched(gpu, self._loop.before, {}) for gpu in gpus}
        for number in self._graph.order:
            self._step(self._graph.nodes[number], ready)
        last: dict[int, dict[int, int]] = {gpu: {} for gpu in gpus}  # by thread block
        for node in self._graph.nodes:
            last[node.gpu][node.block_number] = node.number
        for gpu in gpus:
            known = latest([ready[gpu], *(self._done[one] for one in last[gpu].values())])
            if gpu in self._facts.cleared:  # zeros come over all that stands there
                self.ends[gpu] = known
                continue
            self._keep(gpu)
            self.ends[gpu] = self._fetched(gpu, self._loop.after, known)
        return self.found

    def _fetched(self, gpu: int, fetches: Sequence[Fetch], known: Known) -> Known:
        """Copies at home, side by side but for those that are behind others."""
        made: dict[Way, tuple[Single, ...]] = {}
        lane = -1
        for one in fetches:
            source = _further(one.source, gpu * one.own_source_stride)
            target = _further(one.target, gpu * one.own_stride)
            lane = (lane + (not one.is_behind)) % self._lane_count  # a ring runs in order
            single = Single(gpu, gpu, (source,), target, one.size_bytes, lane, known)
            behind = {way: ones for way, ones in made.items() if way == single.completion}
            single.needs = latest([known, behind])
            made[single.completion] = (self._add(single),)
        return latest([known, made])

    def _keep(self, gpu: int) -> None:
        """Copies to the result what no step writes there, where operands lie elsewhere."""
        written = self._written[gpu]
        for index in range(self._graph.shape.chunks(Buffer.OUTPUT)):
            given = None if index in written else self._loop.given(gpu, index)
            if given is not None:
                target = self._loop.place(Ref(Buffer.OUTPUT, index))
                lane = index % self._lane_count
                self._add(Single(gpu, gpu, (given,), target, self._loop.width, lane, {}))

    def _step(self, node: Node, ready: Mapping[int, Known]) -> None:
        graph, number = self._graph, node.number
        waits = [ready[node.gpu]] if graph.before[number] == NONE else []
        waits += [
            self._done[column[number]]
            for column in (graph.before, graph.awaited, graph.copied)
            if column[number] != NONE
        ]
        is_straight = self._straight[number]
        if node.step.kind.writes and node.target.buffer is Buffer.OUTPUT:
            first = node.target.index
            self._written[node.gpu].update(range(first, first + node.step.count))
        if node.step.kind.receives:
            waits.append({one.arrival: (one,) for one in self._made[graph.sent[number]]})
        known = latest(waits)
        is_held = node.step.kind is Kind.REDUCE and self._goes_on(node)
        if is_held:
            self._held[node.block_number].append(node)
        if node.step.kind is Kind.NOP or is_held or (node.step.kind is Kind.RECV and is_straight):
            self._done[number] = known
            return
        if node.step.kind.sends and not self._straight[graph.received[number]]:
            self._take_slot(node)
        made: list[Single] = []
        for run in self._runs(node):
            made.append(self._single(node, run, known))
            known = {**known, made[-1].completion: (made[-1],)}
        self._held.pop(node.block_number, None)
        self._made[number] = made
        self._done[number] = {made[-1].completion: (made[-1],)}
        if node.step.kind.receives and not is_straight:
            self._emptied.setdefault(connection_of(graph.nodes[graph.sent[number]]), []).append(
                made[-1]
            )

    def _goes_on(self, node: Node) -> bool:
        """Whether the next step joins to the same chunks, and nobody waits for this one."""
        if node.step.tells or len(self._held[node.block_number]) + 2 >= MOST_SOURCES:
            return False
        behind = node.block.steps[node.place + 1 :]
        at = next((k for k, step in enumerate(behind) if step.kind is not Kind.NOP), len(behind))
        if at == len(behind) or any(step.tells for step in behind[:at]):
            return False
        following = self._graph.nodes[node.number + 1 + at]
        is_same = following.target == node.target and following.step.count == node.step.count
        return following.step.kind is Kind.REDUCE and is_same

    def _take_slot(self, node: Node) -> None:
        connection = connection_of(node)
        turn = self._pushed[connection]
        self._pushed[connection] += 1
        first, size, count = self._slots[connection]
        self._landed[node.number] = Stretch(Space.SCRATCH, 0, first + turn % count * size)

    def _runs(self, node: Node) -> Iterator[tuple[int, int]]:
        """Runs of a step's chunks that lie behind one another wherever they are: place, count."""
        if node.step.count == 1:
            yield 0, 1
            return
        refs = [(node, node.source)] if node.step.kind.reads else []
        refs += [(node, node.target)] if node.step.kind.writes else []
        if node.step.kind is Kind.REDUCE:
            refs = self._joined(node)
        received = self._graph.received[node.number]
        if received != NONE and self._straight[received]:
            refs.append((node, self._graph.nodes[received].target))
        place = 0
        while place < node.step.count:
            count = node.step.count - place
            for _, ref in refs:
                count = self._loop.lying[ref.buffer].run(ref.index + place, count)
            if self._facts.divisor > 1:
                count = _alike(lambda at: (node.number, at) in self._facts.complete, place, count)
            for reader, ref in refs if self._loop.operand is not None else ():
                count = self._as_given(reader, ref, place, count)
            yield place, count
            place += count

    def _as_given(self, node: Node, ref: Ref, place: int, count: int) -> int:
        """How many chunks lie where the operand does, or do not, like the first."""
        first = ref.index + place
        return _alike(lambda at: self._is_given(node, ref.buffer, at), first, count)

    def _is_given(self, node: Node, buffer: Buffer, index: int) -> bool:
        """Whether a step reads a chunk of the output where the operand lies."""
        if buffer is not Buffer.OUTPUT or self._loop.operand is None:
            return False
        return (node.number, index) in self._facts.first

    def _single(self, node: Node, run: tuple[int, int], known: Known) -> Single:
        place, count = run
        kind, graph = node.step.kind, self._graph
        sources = tuple(self._sources(node, place))
        home = self._at(node.target, place) if kind.writes else sources[0]
        is_complete = (node.number, place) in self._facts.complete
        single = Single(
            member=node.gpu,
            peer=node.gpu,
            sources=sources,
            target=home,
            size_bytes=count * self._loop.width,
            lane=self._lanes[node.block_number],
            needs=known,
            divisor=self._facts.divisor if is_complete else 1,
        )
        if kind.receives and not self._straight[node.number]:
            single.writer = graph.nodes[graph.sent[node.number]].gpu
        if kind.sends:
            receive = graph.nodes[graph.received[node.number]]
            single.peer = receive.gpu
            writes = kind.writes and not self._straight[node.number]
            single.also = home if writes else None
            single.target = self._sent_to(node, receive, place)
            single.empties = self._emptied_by(node)
        return self._add(single)

    def _joined(self, node: Node) -> list[tuple[Node, Ref]]:
        """What a join at home reads, and by which step: the target, then the sources in turn."""
        joins = [*self._held[node.block_number], node]
        return [(joins[0], node.target), *((one, one.source) for one in joins)]

    def _sources(self, node: Node, place: int) -> Iterator[Stretch]:
        kind = node.step.kind
        if kind is Kind.REDUCE:
            for reader, ref in self._joined(node):
                yield self._read(reader, ref, place)
            return
        if kind.receives and self._straight[node.number]:
            yield self._at(node.target, place)
        elif kind.receives:
            slot = self._landed[self._graph.sent[node.number]]
            yield _further(slot, place * self._loop.width)
            if kind.joins:
                yield self._read(node, node.source, place)
        else:
            yield self._read(node, node.source, place)

    def _read(self, node: Node, ref: Ref, place: int) -> Stretch:
        """Where a step reads a chunk."""
        index = ref.index + place
        given = None
        if self._is_given(node, ref.buffer, index):
            given = self._loop.given(node.gpu, index)
        return self._at(ref, place) if given is None else given

    def _sent_to(self, node: Node, receive: Node, place: int) -> Stretch:
        if self._straight[receive.number]:
            return self._at(receive.target, place)
        return _further(self._landed[node.number], place * self._loop.width)

    def _emptied_by(self, node: Node) -> Single | None:
        """The transfer that has emptied the slot; those before it were emptied before."""
        if node.number not in self._landed:
            return None
        connection = connection_of(node)
        _, _, count = self._slots[connection]
        turn = self._pushed[connection] - 1 - count
        return self._emptied[connection][turn] if turn >= 0 else None

    def _at(self, ref: Ref, place: int) -> Stretch:
        """Where a chunk lies; many steps use the same."""
        key = ref.buffer, ref.index + place
        if key not in self._places:
            self._places[key] = self._loop.place(Ref(*key))
        return self._places[key]

    def _add(self, single: Single) -> Single:
        """Behind all that it waits for; what shares its ring is no wait."""
        single.round = rounds_before(single)
        single.needs = {way: one for way, one in single.needs.items() if way != single.completion}
        self.found.append(single)
        return single


def _alike(is_so: Callable[[int], bool], first: int, count: int) -> int:
    """How many of so many chunks, from the first, are in something like the first."""
    at_first = is_so(first)
    return next((more for more in range(1, count) if is_so(first + more) is not at_first), count)


def _further(stretch: Stretch, more: int) -> Stretch:
    return Stretch(stretch.space, stretch.tensor, stretch.offset + more) if more else stretch
