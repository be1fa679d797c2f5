"""The steps of an MSCCL plan as one graph: who waits for whom, and in which order they can run.

A step follows the one before it in its thread block, the step that it depends on, the send that it
receives, and, for a send, the receive that frees its slot. A connection has as many slots as
MSCCL's buffers hold chunks, and more where the steps would else wait in a circle.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs

from ncc_runtime.errors import PlanError
from ncc_runtime.plans.msccl import Algo, Block, Buffer, Kind, Ref, Step
from ncc_runtime.plans.shapes import Shape

NONE = -1

SLOTS: Mapping[str, int] = {"simple": 4}
"""Chunks that a connection holds, by protocol in small letters."""

SLOTS_OTHERWISE = 8
"""LL and LL128. Source: NCCL_STEPS is 8, of which Simple takes 2 a chunk (nccl, device.h)."""

MOST_CHUNKS = 1 << 21
"""Chunks of all gpus, and chunks that all steps move together."""

MOST_SHOWN = 8
"""Steps of a circle that a message shows."""

Connection = tuple[int, int, int]
"""Sender, receiver, channel."""


@attrs.frozen(eq=False)
class Node:
    """A step, with where it stands and what its chunks are called in the end."""

    number: int
    gpu: int
    block: Block
    block_number: int  # among the blocks of all gpus
    place: int  # in its block
    step: Step
    source: Ref
    target: Ref

    def __str__(self) -> str:
        return f"gpu {self.gpu}, tb {self.block.number}, step {self.place}"

    def spelled(self, ref: Ref) -> str:
        """A chunk that the step uses, as the file calls it: in place it has two names."""
        for own, said in ((self.source, self.step.source), (self.target, self.step.target)):
            distance = ref.index - own.index
            if own.buffer is ref.buffer and 0 <= distance < self.step.count:
                return str(Ref(said.buffer, said.index + distance))
        return str(ref)

    def error(self, what: str) -> PlanError:
        """The error that names this step."""
        return self.step.at.error(f"{self}: {what}")


@attrs.frozen(eq=False)
class Graph:
    """All steps, and what each waits for."""

    algo: Algo
    shape: Shape
    nodes: tuple[Node, ...]
    blocks: int
    before: tuple[int, ...]  # the step before in its thread block, NONE for none
    awaited: tuple[int, ...]  # the step that it depends on
    sent: tuple[int, ...]  # of a step that receives, the send
    received: tuple[int, ...]  # of a step that sends, the receive
    order: tuple[int, ...]  # steps so that each follows what it waits for
    slots: int  # of a connection

    def preceding(self, number: int) -> Iterator[int]:
        """The steps that a step follows, but for slots."""
        for column in (self.before, self.awaited, self.sent):
            if column[number] != NONE:
                yield column[number]


def graph_of(algo: Algo, shape: Shape) -> Graph:
    """The graph of a plan; PlanError where steps do not fit together or wait in a circle."""
    _check_size(algo, shape)
    nodes = tuple(_checked(algo, shape, node) for node in _nodes(algo, shape))
    first = {(node.gpu, node.block.number): node.number for node in nodes if not node.place}
    before = tuple(node.number - 1 if node.place else NONE for node in nodes)
    awaited = tuple(_awaited(node, nodes, first) for node in nodes)
    received = _received(nodes)
    sent = [NONE] * len(nodes)
    for sender, receiver in enumerate(received):
        if receiver != NONE:
            sent[receiver] = sender
    edges = before, awaited, tuple(sent)
    slots, order = _order(nodes, edges, received, SLOTS.get(algo.protocol.lower(), SLOTS_OTHERWISE))
    blocks = max((node.block_number for node in nodes), default=NONE) + 1
    return Graph(algo, shape, nodes, blocks, *edges, tuple(received), tuple(order), slots)


_Edges = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Per step the one before, the one it depends on, and the send that it receives."""


def _order(
    nodes: Sequence[Node], edges: _Edges, received: Sequence[int], slots: int
) -> tuple[int, Sequence[int]]:
    """An order in which the steps can run, and with how many slots; more where they need more."""
    without = _Waits(tuple(nodes), *edges, (NONE,) * len(nodes))
    unlimited = without.order()
    if len(unlimited) < len(nodes):
        raise without.circle(unlimited)
    while True:
        found = attrs.evolve(without, freed=_freed(nodes, received, slots)).order()
        if len(found) == len(nodes):
            return slots, found
        slots *= 2


def _nodes(algo: Algo, shape: Shape) -> Iterator[Node]:
    number = block_number = 0
    for gpu in algo.gpus:
        for block in gpu.blocks:
            for place, step in enumerate(block.steps):
                source, target = shape.own(gpu.number, step.source), step.target
                target = shape.own(gpu.number, target)
                yield Node(number, gpu.number, block, block_number, place, step, source, target)
                number += 1
            block_number += 1


def _check_size(algo: Algo, shape: Shape) -> None:
    """A file of a few bytes must not take hours."""
    held = len(algo.gpus) * (shape.chunks(Buffer.INPUT) + shape.chunks(Buffer.OUTPUT))
    steps = (step for gpu in algo.gpus for block in gpu.blocks for step in block.steps)
    for what, count in (("buffers have", held), ("steps move", sum(one.count for one in steps))):
        if count > MOST_CHUNKS:
            raise algo.at.error(
                f"its {what} {count} chunks in all, at most {MOST_CHUNKS} are taken"
            )


def _checked(algo: Algo, shape: Shape, node: Node) -> Node:
    """The node, whose chunks are there; a copy to itself, as there are in place, moves nothing."""
    step = node.step
    sides = ((step.kind.reads, step.source), (step.kind.writes, step.target))
    for does, ref in sides:
        if not does:
            continue
        is_scratch = ref.buffer is Buffer.SCRATCH
        room = algo.gpus[node.gpu].scratch_chunks if is_scratch else shape.chunks(ref.buffer)
        if ref.index + step.count > room:
            raise node.error(
                f"{ref.buffer.value}[{ref.index}..{ref.index + step.count - 1}], the buffer "
                f"{ref.buffer.value} has {room} chunks"
            )
    if step.kind is Kind.COPY and node.source == node.target:
        return attrs.evolve(node, step=attrs.evolve(step, kind=Kind.NOP))
    if step.kind in (Kind.COPY, Kind.REDUCE) and node.source.buffer is node.target.buffer:
        distance = abs(node.source.index - node.target.index)
        if distance < step.count:
            raise node.error(
                f"{step.count} chunks from {step.source} to {step.target}, which overlap"
            )
    return node


def _awaited(node: Node, nodes: Sequence[Node], first: Mapping[tuple[int, int], int]) -> int:
    """The step that tells a step that what it depends on is done."""
    if node.step.awaited is None:
        return NONE
    block, place = node.step.awaited
    at = first.get((node.gpu, block), NONE)
    if at == NONE or place >= len(nodes[at].block.steps):
        raise node.error(f"depends on tb {block}, step {place}, which gpu {node.gpu} has not")
    steps = nodes[at].block.steps
    if block == node.block.number and place < node.place:
        return at + place
    told = next((k for k in range(place, len(steps)) if steps[k].tells), None)
    if told is None:
        raise node.error(
            f"deadlock: depends on tb {block}, step {place}, which tells nobody: hasdep is 0 "
            "there and behind it"
        )
    return at + told


def _received(nodes: Sequence[Node]) -> list[int]:
    """For each send the receive that takes it: the n-th of a connection the n-th."""
    sends: dict[Connection, list[Node]] = {}
    receives: dict[Connection, list[Node]] = {}
    for node in nodes:
        if node.step.kind.sends:
            connection = node.gpu, node.block.to, node.block.channel
            sends.setdefault(connection, []).append(node)
        if node.step.kind.receives:
            connection = node.block.of, node.gpu, node.block.channel
            receives.setdefault(connection, []).append(node)
    found = [NONE] * len(nodes)
    for connection in sends | receives:
        ours, theirs = sends.get(connection, []), receives.get(connection, [])
        for send, receive in zip(ours, theirs, strict=False):
            if send.step.count != receive.step.count:
                raise receive.error(
                    f"receives cnt {receive.step.count} and {send}, sends cnt {send.step.count}"
                )
            found[send.number] = receive.number
        if len(ours) != len(theirs):
            _refuse_unmatched(connection, ours, theirs)
    return found


def _refuse_unmatched(connection: Connection, ours: Sequence[Node], theirs: Sequence[Node]) -> None:
    sender, receiver, channel = connection
    if len(ours) > len(theirs):
        raise ours[len(theirs)].error(
            f"deadlock: its thread block sends {len(ours)} times to gpu {receiver} on channel "
            f"{channel}, gpu {receiver} receives {len(theirs)} times there"
        )
    raise theirs[len(ours)].error(
        f"deadlock: its thread block receives {len(theirs)} times from gpu {sender} on channel "
        f"{channel}, gpu {sender} sends {len(ours)} times there"
    )


def _freed(nodes: Sequence[Node], received: Sequence[int], slots: int) -> tuple[int, ...]:
    """For each send the receive that empties its slot, NONE if it is empty from the start."""
    found = [NONE] * len(nodes)
    known: dict[Connection, list[int]] = {}
    for node in nodes:
        if node.step.kind.sends:
            earlier = known.setdefault((node.gpu, node.block.to, node.block.channel), [])
            if len(earlier) >= slots:
                found[node.number] = received[earlier[-slots]]
            earlier.append(node.number)
    return tuple(found)


@attrs.frozen(eq=False)
class _Waits:
    """What every step waits for."""

    nodes: tuple[Node, ...]
    before: tuple[int, ...]
    awaited: tuple[int, ...]
    sent: tuple[int, ...]
    freed: tuple[int, ...]

    def order(self) -> list[int]:
        """The steps that can run, each behind what it waits for."""
        columns = (self.before, self.awaited, self.sent, self.freed)
        open_waits = [0] * len(self.nodes)
        behind: list[list[int]] = [[] for _ in self.nodes]
        for column in columns:
            for number, other in enumerate(column):
                if other != NONE:
                    open_waits[number] += 1
                    behind[other].append(number)
        order = [number for number, count in enumerate(open_waits) if not count]
        for number in order:
            for other in behind[number]:
                open_waits[other] -= 1
                if not open_waits[other]:
                    order.append(other)
        return order

    def circle(self, order: Sequence[int]) -> PlanError:
        """The error that shows who waits for whom, given all who do not."""
        stuck = set(range(len(self.nodes))).difference(order)
        way, number = [], min(stuck)
        while number not in way:
            way.append(number)
            number = next(other for _, other in self._of(number) if other in stuck)
        circle = way[way.index(number) :]
        shown = [
            next(
                f"{self.nodes[one]} {why} {self.nodes[other]}"
                for why, other in self._of(one)
                if other in stuck
            )
            for one in circle[:MOST_SHOWN]
        ]
        more = f" … ({len(circle)} steps)" if len(circle) > MOST_SHOWN else ""
        return self.nodes[circle[0]].step.at.error(f"deadlock: {'; '.join(shown)}{more}")

    def _of(self, number: int) -> Iterator[tuple[str, int]]:
        for why, column in (
            ("follows", self.before),
            ("depends on", self.awaited),
            ("receives from", self.sent),
        ):
            if column[number] != NONE:
                yield why, column[number]
