"""Makes single transfers of the steps of an MSCCL plan.

    s     push into the peer's slot, or straight to where the peer wants it
    r     slot to target at home; nothing if it came straight there
    rcs   slot to target at home and to the next slot: one read, two writes
    rrc   slot joined with the source to the target; rrs to the next slot; rrcs to both
    cpy   at home;  re joins at home;  nop passes on what it waits for

A send goes straight to its target if everything that used the target before is done when the send
starts. Steps of a thread block share a DMA ring, which runs in order; all else is waited for.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs

from ncc_runtime.collectives.extents import ALIGNMENT, Scratch
from ncc_runtime.collectives.plan import Space
from ncc_runtime.plans.lanes import lanes_of
from ncc_runtime.plans.loops import Fetch, Loop, Stretch
from ncc_runtime.plans.msccl import Kind, Ref
from ncc_runtime.plans.singles import Single, Way, latest
from ncc_runtime.plans.steps import NONE, Graph, Node

Connection = tuple[int, int, int]


@attrs.frozen(eq=False)
class Facts:
    """What is known of a plan before it is given sizes."""

    graph: Graph
    straight: Mapping[tuple[str, int], bool]  # by what is fetched before, and the receive
    complete: frozenset[tuple[int, int]]
    cleared: frozenset[int]  # gpus whose results are zeros
    divisor: int


class Making:
    """The single transfers of one loop."""

    def __init__(self, facts: Facts, loop: Loop, scratch: Mapping[int, Scratch]) -> None:
        self._facts, self._loop, self._graph = facts, loop, facts.graph
        self._lanes = lanes_of(facts.graph)
        self._lane_count = max(self._lanes.values(), default=0) + 1
        self._slots = _slots(facts, loop, scratch)
        self._pushed: Counter[Connection] = Counter()
        self._emptied: dict[Connection, list[Single | None]] = {}
        self._landed: dict[int, Stretch] = {}  # by send: its slot
        self._done: dict[int, Mapping[Way, Single]] = {}  # by step
        self._made: dict[int, list[Single]] = {}  # by step
        self.found: list[Single] = []
        self.ends: dict[int, Mapping[Way, Single]] = {}  # by gpu: what its steps end with

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
            after = () if gpu in self._facts.cleared else self._loop.after
            self.ends[gpu] = self._fetched(gpu, after, known)
        return self.found

    def _fetched(
        self, gpu: int, fetches: Sequence[Fetch], known: Mapping[Way, Single]
    ) -> Mapping[Way, Single]:
        """Copies at home, side by side."""
        made: dict[Way, Single] = {}
        for number, one in enumerate(fetches):
            source = _further(one.source, gpu * one.own_source_stride)
            target = _further(one.target, gpu * one.own_stride)
            lane = number % self._lane_count
            single = Single(gpu, gpu, (source,), target, one.size_bytes, lane, known)
            behind = [one for way, one in made.items() if way == single.completion]
            single.needs = latest([known, {one.completion: one for one in behind}])
            made[single.completion] = self._add(single)
        return latest([known, made])

    def _step(self, node: Node, ready: Mapping[int, Mapping[Way, Single]]) -> None:
        graph, number = self._graph, node.number
        waits = [ready[node.gpu]] if graph.before[number] == NONE else []
        waits += [
            self._done[column[number]]
            for column in (graph.before, graph.awaited)
            if column[number] != NONE
        ]
        is_straight = self._is_straight(number)
        if node.step.kind.receives:
            waits.append({one.arrival: one for one in self._made[graph.sent[number]]})
        known = latest(waits)
        if node.step.kind is Kind.NOP or (node.step.kind is Kind.RECV and is_straight):
            self._done[number] = known
            return
        if node.step.kind.sends and not self._is_straight(graph.received[number]):
            self._take_slot(node)
        made: list[Single] = []
        for run in self._runs(node):
            made.append(self._single(node, run, known))
            known = {**known, made[-1].completion: made[-1]}
        self._made[number] = made
        self._done[number] = {made[-1].completion: made[-1]} if made else known
        if node.step.kind.receives and not is_straight:
            self._emptied.setdefault(_connection(graph.nodes[graph.sent[number]]), []).append(
                made[-1]
            )

    def _is_straight(self, receive: int) -> bool:
        fetched = "" if self._loop.fetched is None else self._loop.fetched.value
        return self._facts.straight.get((fetched, receive), False)

    def _take_slot(self, node: Node) -> None:
        connection = _connection(node)
        turn = self._pushed[connection]
        self._pushed[connection] += 1
        first, size, count = self._slots[connection]
        self._landed[node.number] = Stretch(Space.SCRATCH, 0, first + turn % count * size)

    def _runs(self, node: Node) -> Iterator[tuple[int, int]]:
        """Runs of a step's chunks that lie behind one another wherever they are: place, count."""
        if node.step.kind is Kind.COPY and node.source == node.target:
            return
        refs = [node.source] if node.step.kind.reads else []
        refs += [node.target] if node.step.kind.writes else []
        received = self._graph.received[node.number]
        if received != NONE and self._is_straight(received):
            refs.append(self._graph.nodes[received].target)
        place = 0
        while place < node.step.count:
            count = node.step.count - place
            for ref in refs:
                count = self._loop.lying[ref.buffer].run(ref.index + place, count)
            if self._facts.divisor > 1:
                count = self._as_complete(node.number, place, count)
            yield place, count
            place += count

    def _as_complete(self, number: int, place: int, count: int) -> int:
        """How many chunks are completed here, or are not, like the first."""
        complete = self._facts.complete
        first = (number, place) in complete
        for more in range(1, count):
            if ((number, place + more) in complete) is not first:
                return more
        return count

    def _single(self, node: Node, run: tuple[int, int], known: Mapping[Way, Single]) -> Single:
        place, count = run
        kind, graph = node.step.kind, self._graph
        home = self._at(node.target, place)
        is_complete = (node.number, place) in self._facts.complete
        single = Single(
            member=node.gpu,
            peer=node.gpu,
            sources=tuple(self._sources(node, place)),
            target=home,
            size_bytes=count * self._loop.width,
            lane=self._lanes[node.block_number],
            needs=known,
            divisor=self._facts.divisor if is_complete else 1,
        )
        if kind.receives and not self._is_straight(node.number):
            single.writer = graph.nodes[graph.sent[node.number]].gpu
        if kind.sends:
            receive = graph.nodes[graph.received[node.number]]
            single.peer = receive.gpu
            writes = kind.writes and not self._is_straight(node.number)
            single.also = home if writes else None
            single.target = self._sent_to(node, receive, place)
            single.empties = self._emptied_by(node)
        return self._add(single)

    def _sources(self, node: Node, place: int) -> Iterator[Stretch]:
        kind = node.step.kind
        if kind is Kind.REDUCE:
            yield self._at(node.target, place)
            yield self._at(node.source, place)
            return
        if kind.receives and self._is_straight(node.number):
            yield self._at(node.target, place)
        elif kind.receives:
            slot = self._landed[self._graph.sent[node.number]]
            yield _further(slot, place * self._loop.width)
            if kind.joins:
                yield self._at(node.source, place)
        else:
            yield self._at(node.source, place)

    def _sent_to(self, node: Node, receive: Node, place: int) -> Stretch:
        if self._is_straight(receive.number):
            return self._at(receive.target, place)
        return _further(self._landed[node.number], place * self._loop.width)

    def _emptied_by(self, node: Node) -> Single | None:
        """The transfer that has emptied the slot; those before it were emptied before."""
        if node.number not in self._landed:
            return None
        connection = _connection(node)
        _, _, count = self._slots[connection]
        turn = self._pushed[connection] - 1 - count
        return self._emptied[connection][turn] if turn >= 0 else None

    def _at(self, ref: Ref, place: int) -> Stretch:
        return self._loop.place(Ref(ref.buffer, ref.index + place))

    def _add(self, single: Single) -> Single:
        """Behind all that it waits for; what shares its ring is no wait."""
        before = [one.round + 1 for one in single.needs.values()]
        if single.empties is not None:
            before.append(single.empties.round + 1)
        single.round = max(before, default=0)
        single.needs = {way: one for way, one in single.needs.items() if way != single.completion}
        self.found.append(single)
        return single


def _slots(
    facts: Facts, loop: Loop, scratch: Mapping[int, Scratch]
) -> Mapping[Connection, tuple[int, int, int]]:
    """Where the slots of each connection lie at its receiver: first, size, how many."""
    graph = facts.graph
    counts: Counter[Connection] = Counter()
    most: dict[Connection, int] = {}
    fetched = "" if loop.fetched is None else loop.fetched.value
    for node in graph.nodes:
        if not node.step.kind.sends:
            continue
        if facts.straight.get((fetched, graph.received[node.number]), False):
            continue
        connection = _connection(node)
        counts[connection] += 1
        most[connection] = max(most.get(connection, 0), node.step.count)
    found = {}
    gpus = graph.shape.gpus
    for connection in sorted(counts, key=lambda one: (one[2], (one[1] - one[0]) % gpus, one)):
        size = -(-most[connection] * loop.width // ALIGNMENT) * ALIGNMENT
        count = min(graph.slots, counts[connection])
        found[connection] = scratch[connection[1]].take(size * count), size, count
    return found


def _connection(node: Node) -> Connection:
    """Of a step that sends."""
    return node.gpu, node.block.to, node.block.channel


def _further(stretch: Stretch, more: int) -> Stretch:
    return attrs.evolve(stretch, offset=stretch.offset + more) if more else stretch
