"""The steps of an MSCCL plan as one graph: who waits for whom, and in which order they can run.

A step follows the one before it in its thread block, the step that it depends on, the copies of its
gpu whose chunks it uses, the send that it receives, and, for a send, the receive that frees its
slot. A connection has as many slots as MSCCL's buffers hold chunks, and more where the steps would
else wait in a circle: such a plan runs here, and jams on a GPU.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import PlanError
from ncc_runtime.plans.msccl import MOST_CHUNKS as MOST_INDEX
from ncc_runtime.plans.msccl import NOBODY, Algo, Block, Buffer, Kind, Ref, Step
from ncc_runtime.plans.shapes import Shape

NONE = -1

SLOTS: Mapping[str, int] = {"simple": 2}
"""Chunks that a connection holds, by protocol in small letters. Source: MSCCL_CHUNKSTEPS is half of
NCCL_STEPS (Azure/msccl-executor-nccl)."""

SLOTS_OTHERWISE = 8
"""LL and LL128, where a chunk is one of NCCL_STEPS. Source: nccl, device.h."""

MOST_CHUNKS = 1 << 21
"""Chunks of all gpus, and chunks that all steps move together."""

MOST_PIECES = 1 << 18
"""Sends and receives chunk by chunk, of a plan that is tried so."""

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
        if self.block.number == NOBODY:
            return f"gpu {self.gpu}, copy {self.place}"
        return f"gpu {self.gpu}, tb {self.block.number}, step {self.place}"

    def name_of(self, chunk: int) -> str:
        """A chunk that the step uses, as the file calls it: in place it has two names."""
        for own, said in ((self.source, self.step.source), (self.target, self.step.target)):
            its = chunks_of(self.gpu, own, self.step.count)
            if chunk in its:
                return str(Ref(said.buffer, said.index + its.index(chunk)))
        raise AssertionError(f"{self} does not use chunk {chunk}")

    def error(self, what: str) -> PlanError:
        """The error that names this step."""
        return self.step.at.error(f"{self}: {what}")


_PLACES = {buffer: number for number, buffer in enumerate(Buffer)}


def chunks_of(gpu: int, ref: Ref, count: int) -> range:
    """Chunks of a gpu from one on, numbered among all that there can be."""
    first = (gpu * len(_PLACES) + _PLACES[ref.buffer]) * 2 * MOST_INDEX + ref.index
    return range(first, first + count)


@attrs.frozen(eq=False)
class Graph:
    """All steps, and what each waits for."""

    algo: Algo
    shape: Shape
    nodes: tuple[Node, ...]
    blocks: int
    before: tuple[int, ...]  # the step before in its thread block, NONE for none
    awaited: tuple[int, ...]  # the step that it depends on
    copied: tuple[int, ...]  # the last copy of its gpu that uses its chunks
    sent: tuple[int, ...]  # of a step that receives, the send
    received: tuple[int, ...]  # of a step that sends, the receive
    preceding: tuple[tuple[int, ...], ...]  # the steps that a step follows, but for slots
    order: tuple[int, ...]  # steps so that each follows what it waits for
    slots: int  # of a connection
    jam: str  # why MSCCL's own slots do not suffice, with the place; "" where they do


def graph_of(algo: Algo, shape: Shape) -> Graph:
    """The graph of a plan; PlanError where steps do not fit together or wait in a circle."""
    _check_size(algo, shape)
    nodes = tuple(_checked(algo, shape, node) for node in _nodes(algo, shape))
    first = {(node.gpu, node.block.number): node.number for node in nodes if not node.place}
    before = tuple(node.number - 1 if node.place else NONE for node in nodes)
    awaited = _awaited(nodes, first)
    received = _received(nodes)
    sent = [NONE] * len(nodes)
    for sender, receiver in enumerate(received):
        if receiver != NONE:
            sent[receiver] = sender
    waits = _Waits(nodes, before, awaited, _copied(nodes), tuple(sent), tuple(received))
    slots, order, jam = _order(waits, algo.protocol)
    return Graph(
        algo=algo,
        shape=shape,
        nodes=nodes,
        blocks=max((node.block_number for node in nodes), default=NONE) + 1,
        before=before,
        awaited=awaited,
        copied=waits.copied,
        sent=waits.sent,
        received=waits.received,
        preceding=tuple(
            tuple(one for one in its if one != NONE)
            for its in zip(before, awaited, waits.copied, sent, strict=True)
        ),
        order=tuple(order),
        slots=slots,
        jam=jam,
    )


def _nodes(algo: Algo, shape: Shape) -> Iterator[Node]:
    number = block_number = 0
    for gpu in algo.gpus:
        for block in gpu.blocks:
            for place, step in enumerate(block.steps):
                source = shape.own(gpu.number, step.source)
                target = shape.own(gpu.number, step.target)
                yield Node(number, gpu.number, block, block_number, place, step, source, target)
                number += 1
            block_number += 1


def _order(waits: "_Waits", protocol: str) -> tuple[int, list[int], str]:
    """How many slots a connection has, an order for these, and why a GPU's would not do."""
    count = len(waits.nodes)
    unlimited = waits.order(None)
    if len(unlimited) < count:
        node, what = waits.circle(unlimited)
        raise node.step.at.error(f"deadlock: {what}")
    held = slots = SLOTS.get(protocol.lower(), SLOTS_OTHERWISE)
    while len(found := waits.order(slots)) < count:
        slots *= 2
    has = f"a connection of {protocol} holds {held} chunks"
    if slots > held:
        node, what = waits.circle(waits.order(held), held)
        return slots, found, str(node.step.at.error(f"jams on a GPU, where {has}: {what}"))
    stuck = set(range(count)).difference(waits.order_in_pieces(held))
    sends = (
        one for one in stuck if waits.received[one] != NONE and waits.nodes[one].step.count > 1
    )
    first = min(sends, default=None)
    if first is None:
        return slots, found, ""
    node, receive = waits.nodes[first], waits.nodes[waits.received[first]]
    what = (
        f"jams on a GPU with buffers so large that chunks go one by one, where {has}: {node} sends "
        f"{node.step.count}, and {receive} waits before it receives them"
    )
    return slots, found, str(node.step.at.error(what))


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


def _awaited(nodes: Sequence[Node], first: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    """For each step the one that tells it that what it depends on is done.

    A thread block counts its steps in one flag, and only those with hasdep set it: the next of them
    tells of all before. So it is in the own thread block, too.
    """
    told = NONE
    tells = [NONE] * len(nodes)
    for node in reversed(nodes):
        if node.step.tells:
            told = node.number
        elif node.place == len(node.block.steps) - 1:
            told = NONE
        tells[node.number] = told
    found = [NONE] * len(nodes)
    for node in nodes:
        if node.step.awaited is None:
            continue
        block, place = node.step.awaited
        at = first.get((node.gpu, block), NONE)
        if at == NONE or place >= len(nodes[at].block.steps):
            raise node.error(f"depends on tb {block}, step {place}, which gpu {node.gpu} has not")
        found[node.number] = tells[at + place]
        if tells[at + place] == NONE:
            is_own = block == node.block.number
            is_nop = nodes[at].block.steps[place].kind is Kind.NOP
            remedy = "steps of a tb run in order: leave the dependency out" if is_own else "set it"
            raise node.error(
                f"deadlock: depends on tb {block}, step {place}, which tells nobody: hasdep is 0 "
                f"there and behind it{' (that of a nop does not count)' * is_nop}; {remedy}"
            )
    return tuple(found)


def _copied(nodes: Sequence[Node]) -> tuple[int, ...]:
    """For each step the last copy of its gpu that it has to follow, as it uses the same chunks.

    Copies come before all thread blocks; steps that use none of their chunks need not wait.
    """
    found = [NONE] * len(nodes)
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    for node in nodes:
        if node.block.number == NOBODY:
            for chunk in chunks_of(node.gpu, node.source, node.step.count):
                read[chunk] = node.number
            for chunk in chunks_of(node.gpu, node.target, node.step.count):
                written[chunk] = node.number
    for node in nodes if written else ():
        if node.block.number == NOBODY:
            continue
        step, copies = node.step, [NONE]
        if step.kind.reads:
            source = chunks_of(node.gpu, node.source, step.count)
            copies += [written.get(chunk, NONE) for chunk in source]
        if step.kind.writes:
            for chunk in chunks_of(node.gpu, node.target, step.count):
                copies += [written.get(chunk, NONE), read.get(chunk, NONE)]
        found[node.number] = max(copies)
    return tuple(found)


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


def _freed(block: np.ndarray, received: np.ndarray, slots: int) -> np.ndarray:
    """For each send the receive that empties its slot, NONE if it is empty from the start.

    A connection has one thread block, whose sends stand behind one another.
    """
    found: np.ndarray = np.full(len(received), NONE, np.int64)
    sends = np.flatnonzero(received != NONE)
    behind, ahead = sends[slots:], sends[:-slots]
    same = block[behind] == block[ahead]
    found[behind[same]] = received[ahead[same]]
    return found


def _runnable(columns: Sequence[np.ndarray]) -> list[int]:
    """Steps in an order that they can run in, given what each waits for; not all in a circle."""
    count = len(columns[0])
    other = np.concatenate(columns)
    there = other != NONE
    step = np.tile(np.arange(count), len(columns))[there]
    other = other[there]
    waits = np.bincount(step, minlength=count).tolist()
    by_other = np.argsort(other, kind="stable")
    behind = step[by_other].tolist()
    ends = np.searchsorted(other[by_other], np.arange(count + 1)).tolist()
    order = [number for number, its in enumerate(waits) if not its]
    for number in order:
        for one in behind[ends[number] : ends[number + 1]]:
            waits[one] -= 1
            if not waits[one]:
                order.append(one)
    return order


@attrs.frozen(eq=False)
class _Waits:
    """What every step waits for, NONE for nothing."""

    nodes: tuple[Node, ...]
    before: tuple[int, ...]
    awaited: tuple[int, ...]
    copied: tuple[int, ...]
    sent: tuple[int, ...]
    received: tuple[int, ...]

    def order(self, slots: int | None) -> list[int]:
        """The steps that can run, each behind what it waits for; None for slots without end."""
        columns = [np.array(one, np.int64) for one in self._columns()]
        if slots is not None:
            block = np.array([node.block_number for node in self.nodes], np.int64)
            columns.append(_freed(block, np.array(self.received, np.int64), slots))
        return _runnable(columns)

    def order_in_pieces(self, slots: int) -> list[int]:
        """The steps that can run if each chunk of a send takes a slot, as large ones do on a GPU.

        Without steps of more than one chunk that is the order of whole steps.
        """
        kinds = [node.step.kind for node in self.nodes]
        count = np.array(
            [
                node.step.count if kind.sends or kind.receives else 1
                for node, kind in zip(self.nodes, kinds, strict=True)
            ],
            np.int64,
        )
        if count.sum() > MOST_PIECES:
            return list(range(len(self.nodes)))
        last = np.cumsum(count) - 1
        owner = np.repeat(np.arange(len(count)), count)
        here = np.arange(len(owner))
        piece = here - (last - count + 1)[owner]

        def of(column: Sequence[int], pieces: np.ndarray) -> np.ndarray:
            """Of each piece, the piece of the step that its own step has in a column."""
            other = np.array(column, np.int64)[owner]
            return np.where(other == NONE, NONE, pieces[other])

        before, *others = (of(column, last) for column in self._columns()[:3])
        columns = [np.where(piece > 0, here - 1, before)]
        columns += [np.where(piece > 0, NONE, one) for one in others]
        start = last - count + 1
        sent, received = (
            np.where(one == NONE, NONE, one + piece)
            for one in (of(self.sent, start), of(self.received, start))
        )
        block = np.array([node.block_number for node in self.nodes], np.int64)[owner]
        run = _runnable([*columns, sent, _freed(block, received, slots)])
        done = np.bincount(owner[run], minlength=len(count))
        return np.flatnonzero(done == count).tolist()

    def circle(self, order: Sequence[int], slots: int | None = None) -> tuple[Node, str]:
        """A step and who waits for whom from there on, given all who do not."""
        stuck = set(range(len(self.nodes))).difference(order)
        freed: Sequence[int] = ()
        if slots is not None:
            block = np.array([node.block_number for node in self.nodes], np.int64)
            freed = _freed(block, np.array(self.received, np.int64), slots).tolist()
        way: dict[int, None] = {}
        number = min(stuck)
        while number not in way:
            way[number] = None
            number = next(other for _, other in self._of(number, freed) if other in stuck)
        circle = list(way)[list(way).index(number) :]
        shown = [
            next(
                f"{self.nodes[one]} {why} {self.nodes[other]}"
                for why, other in self._of(one, freed)
                if other in stuck
            )
            for one in circle[:MOST_SHOWN]
        ]
        more = f" … ({len(circle)} steps)" if len(circle) > MOST_SHOWN else ""
        return self.nodes[circle[0]], f"{'; '.join(shown)}{more}"

    def _columns(self) -> tuple[tuple[int, ...], ...]:
        return self.before, self.awaited, self.copied, self.sent

    def _of(self, number: int, freed: Sequence[int]) -> Iterator[tuple[str, int]]:
        for why, column in (
            ("follows", self.before),
            ("depends on", self.awaited),
            ("follows", self.copied),
            ("receives from", self.sent),
            ("waits for the slot that is emptied by", freed),
        ):
            if column and column[number] != NONE:
                yield why, column[number]
