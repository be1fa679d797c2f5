"""The dependency graph of an MSCCL plan's steps, and an order in which they can run.

A step follows the one before it in its thread block, the step that it depends on, the copies of its
gpu whose chunks it uses, the send that it receives, and, for a send, the receive that frees its
slot. Thread blocks are queues: one run of the engine of all proofs (`ncc_runtime/order.py`) finds
an order, or the cycle that is told in these steps. A connection has as many slots as MSCCL's
buffers hold chunks, and more where the steps would otherwise deadlock: such a plan runs here, and
jams on a GPU.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar

import attrs
import numpy as np

from ncc_runtime.errors import PlanError
from ncc_runtime.order import EdgesOfOneRank, Target, cycles
from ncc_runtime.plans.chunk_places import ChunkCounts
from ncc_runtime.plans.msccl_file import (
    BUFFERS,
    INPUT,
    KINDS,
    NOBODY,
    OUTPUT,
    SCRATCH,
    Algo,
    Ref,
    StepKind,
    StepTable,
)
from ncc_runtime.plans.msccl_file import MOST_CHUNKS as MOST_INDEX

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
"""Thread blocks of a cycle that a message shows."""


def chunks_of(gpu: np.ndarray, buffer: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Chunks as numbers, gpu-major, then buffer, then index; those of a buffer are consecutive."""
    return (gpu * len(BUFFERS) + buffer) * 2 * MOST_INDEX + index


Chunks = TypeVar("Chunks", int, np.ndarray)


def places_of(chunks: Chunks) -> tuple[Chunks, Chunks, Chunks]:
    """Gpus, buffers and indices of chunks, or of one."""
    part, room = chunks // (2 * MOST_INDEX), len(BUFFERS)
    return part // room, part % room, chunks % (2 * MOST_INDEX)


@attrs.frozen(eq=False)
class Graph:
    """All steps, and what each waits for: columns by step, (steps,) int64, NONE for nothing."""

    algo: Algo
    shape: ChunkCounts
    steps: StepTable  # of the file, where a copy to itself moves nothing
    gpu: np.ndarray
    source: np.ndarray  # the first chunk that it reads, by number
    target: np.ndarray  # the first that it writes
    before: np.ndarray  # the step before in its thread block
    awaited: np.ndarray  # the step that it depends on
    copied: np.ndarray  # the last copy of its gpu that uses its chunks
    sent: np.ndarray  # of a step that receives, the send
    received: np.ndarray  # of a step that sends, the receive
    order: Sequence[int] = ()  # steps so that each follows what it waits for
    slots: int = 0  # of a connection
    jam: str = ""  # why MSCCL's own slots do not suffice, with the place; "" where they do

    @property
    def waits(self) -> tuple[np.ndarray, ...]:
        """All that steps wait for, but for slots."""
        return self.before, self.awaited, self.copied, self.sent

    def name(self, step: int) -> str:
        """What a message calls a step."""
        block, place = self.algo.blocks[self.steps.block[step]], self.steps.place[step]
        if block.number == NOBODY:
            return f"gpu {block.gpu}, copy {place}"
        return f"gpu {block.gpu}, tb {block.number}, step {place}"

    def name_of(self, step: int, chunk: int) -> str:
        """A chunk that a step uses, as the file calls it: in place it has two names."""
        steps = self.steps
        for first, ref in (
            (self.source[step], steps.source(step)),
            (self.target[step], steps.target(step)),
        ):
            if 0 <= chunk - first < steps.count[step]:
                return str(Ref(ref.buffer, ref.index + int(chunk - first)))
        raise AssertionError(f"{self.name(step)} does not use chunk {chunk}")

    def error(self, step: int, what: str) -> PlanError:
        """The error that names a step."""
        return self.steps.at(step).error(f"{self.name(step)}: {what}")


def graph_of(algo: Algo, shape: ChunkCounts) -> Graph:
    """The graph of a plan; PlanError where steps do not fit together or wait in a cycle."""
    _check_size(algo, shape)
    steps, gpu = algo.steps, algo.of_block("gpu")
    none: np.ndarray = np.full(len(steps), NONE, np.int64)
    source, target = (
        chunks_of(gpu, *shape.canonical(gpu, buffer, index))
        for buffer, index in (
            (steps.source_buffer, steps.source_index),
            (steps.target_buffer, steps.target_index),
        )
    )
    before = np.where(steps.place > 0, np.arange(len(steps)) - 1, NONE)
    graph = Graph(algo, shape, steps, gpu, source, target, before, none, none, none, none)
    _check_chunks(graph)
    is_idle = steps.are(StepKind.COPY) & (source == target)  # as there are in place
    kind = np.where(is_idle, KINDS.index(StepKind.NOP), steps.kind)
    graph = attrs.evolve(graph, steps=attrs.evolve(steps, kind=kind))
    awaited, received, sent = _awaited(graph), _received(graph), none.copy()
    sends = np.flatnonzero(received != NONE)
    sent[received[sends]] = sends
    graph = attrs.evolve(
        graph, awaited=awaited, copied=_copied(graph), sent=sent, received=received
    )
    slots, order, jam = _order(graph)
    return attrs.evolve(graph, slots=slots, order=order, jam=jam)


def _order(graph: Graph) -> tuple[int, list[int], str]:
    """How many slots a connection has, an order for these, and why a GPU's would not do."""
    count, protocol = len(graph.steps), graph.algo.protocol
    held = slots = SLOTS.get(protocol.lower(), SLOTS_OTHERWISE)
    has = f"a connection of {protocol} holds {held} chunks"
    order = _order_with(graph, held)
    if len(order) < count:
        unlimited = _order_with(graph, None)
        if len(unlimited) < count:
            step, what = _cycle(graph, unlimited)
            raise graph.steps.at(step).error(f"deadlock: {what}")
        step, what = _cycle(graph, order, held)
        error = graph.steps.at(step).error(f"jams on a GPU, where {has}: {what}")
        while len(order) < count:
            slots *= 2
            order = _order_with(graph, slots)
        return slots, order, str(error)
    sends = np.flatnonzero((graph.received != NONE) & (graph.steps.count > 1))
    if len(sends):
        stuck: np.ndarray = np.ones(count, bool)
        stuck[_order_in_pieces(graph, held)] = False
        sends = sends[stuck[sends]]
    if not len(sends):
        return slots, order, ""
    first = int(sends[0])
    what = (
        f"jams on a GPU with buffers so large that chunks go one by one, where {has}: "
        f"{graph.name(first)} sends {graph.steps.count[first]}, and "
        f"{graph.name(graph.received[first])} waits before it receives them"
    )
    return slots, order, str(graph.steps.at(first).error(what))


def _check_size(algo: Algo, shape: ChunkCounts) -> None:
    """A file of a few bytes must not take hours."""
    held = algo.gpus * (shape.chunks(INPUT) + shape.chunks(OUTPUT))
    moved = int(algo.steps.count.sum())
    for what, count in (("buffers have", held), ("steps move", moved)):
        if count > MOST_CHUNKS:
            raise algo.at.error(
                f"its {what} {count} chunks in all, at most {MOST_CHUNKS} are taken"
            )


def _check_chunks(graph: Graph) -> None:
    """PlanError for the first step whose chunks are not there, or overlap."""
    algo, steps, shape = graph.algo, graph.steps, graph.shape
    scratch = np.array(algo.scratch_chunks, np.int64)[graph.gpu]

    def room(buffer: np.ndarray) -> np.ndarray:
        chunks = np.where(buffer == INPUT, shape.chunks(INPUT), shape.chunks(OUTPUT))
        return np.where(buffer == SCRATCH, scratch, chunks)

    source_room, target_room = room(steps.source_buffer), room(steps.target_buffer)
    reads_none = steps.which("reads") & (steps.source_index + steps.count > source_room)
    writes_none = steps.which("writes") & (steps.target_index + steps.count > target_room)
    # chunks of different buffers are further apart than any count
    is_near = np.abs(graph.source - graph.target) < steps.count
    is_same = steps.are(StepKind.COPY) & (graph.source == graph.target)
    overlaps = (steps.are(StepKind.COPY) | steps.are(StepKind.REDUCE)) & is_near & ~is_same
    faults = np.flatnonzero(reads_none | writes_none | overlaps)
    if not len(faults):
        return
    step = int(faults[0])
    count = steps.count[step]
    for is_so, ref, there in (
        (reads_none[step], steps.source(step), source_room[step]),
        (writes_none[step], steps.target(step), target_room[step]),
    ):
        if is_so:
            name = ref.buffer.value
            raise graph.error(
                step,
                f"{name}[{ref.index}..{ref.index + count - 1}], the buffer {name} has "
                f"{there} chunks",
            )
    raise graph.error(
        step,
        f"{count} chunks from {steps.source(step)} to {steps.target(step)}, which overlap",
    )


def _awaited(graph: Graph) -> np.ndarray:
    """For each step the one whose flag shows that the step it depends on is done.

    A thread block counts its steps in one flag that only steps with hasdep set: the next of them
    signals all before it. A dependency on the step's own thread block is read the same way.
    """
    steps, algo, count = graph.steps, graph.algo, len(graph.steps)
    here = np.arange(count)
    # of each step the next one with hasdep, by a running minimum from the end
    following = np.minimum.accumulate(np.where(steps.tells, here, count)[::-1])[::-1]
    is_same_block = steps.block[np.minimum(following, count - 1)] == steps.block
    signalled = np.where((following < count) & is_same_block, following, NONE)
    first = {
        (algo.blocks[steps.block[step]].gpu, algo.blocks[steps.block[step]].number): step
        for step in np.flatnonzero(steps.place == 0).tolist()
    }
    lengths = np.bincount(steps.block, minlength=len(algo.blocks))
    found: np.ndarray = np.full(count, NONE, np.int64)
    waiting = np.flatnonzero(steps.awaited_block != NOBODY)
    for step, gpu, block, place in zip(
        *(
            column[waiting].tolist()
            for column in (here, graph.gpu, steps.awaited_block, steps.awaited_step)
        ),
        strict=True,
    ):
        at = first.get((gpu, block), NONE)
        if at == NONE or place >= lengths[steps.block[at]]:
            raise graph.error(step, f"depends on tb {block}, step {place}, which gpu {gpu} has not")
        found[step] = signalled[at + place]
        if found[step] == NONE:
            is_own_block = steps.block[at] == steps.block[step]
            is_nop = steps.are(StepKind.NOP)[at + place]
            in_order = "steps of a tb run in order: leave the dependency out"
            raise graph.error(
                step,
                f"deadlock: depends on tb {block}, step {place}, which tells nobody: hasdep is 0 "
                f"there and behind it{' (that of a nop does not count)' * bool(is_nop)}; "
                f"{in_order if is_own_block else 'set it'}",
            )
    return found


def _copied(graph: Graph) -> np.ndarray:
    """For each step the last copy of its gpu that it has to follow, as it uses the same chunks.

    Copies come before all thread blocks; steps that use none of their chunks need not wait.
    """
    steps = graph.steps
    found: np.ndarray = np.full(len(steps), NONE, np.int64)
    is_copy = graph.algo.of_block("number") == NOBODY
    if not is_copy.any():
        return found
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    reads, writes = steps.which("reads").tolist(), steps.which("writes").tolist()
    sides = [
        (range(source, source + count), range(target, target + count))
        for source, target, count in zip(
            *(column.tolist() for column in (graph.source, graph.target, steps.count)), strict=True
        )
    ]
    for step in np.flatnonzero(is_copy).tolist():
        source, target = sides[step]
        read.update(dict.fromkeys(source, step))
        written.update(dict.fromkeys(target, step))
    for step in np.flatnonzero(~is_copy).tolist():
        source, target = sides[step]
        copies = [NONE]
        if reads[step]:
            copies += [written.get(chunk, NONE) for chunk in source]
        if writes[step]:
            copies += [uses.get(chunk, NONE) for chunk in target for uses in (written, read)]
        found[step] = max(copies)
    return found


def _received(graph: Graph) -> np.ndarray:
    """For each send the receive that takes it; PlanError if a send or a receive has none."""
    algo, steps = graph.algo, graph.steps
    received = algo.received()
    sends, receives = algo.connections()
    taken = np.flatnonzero(received != NONE)
    is_alone = receives != NOBODY
    is_alone[received[taken]] = False
    unlike = taken[steps.count[taken] != steps.count[received[taken]]]
    alone = np.flatnonzero((sends != NOBODY) & (received == NONE))
    faults = {*sends[unlike].tolist(), *sends[alone].tolist(), *receives[is_alone].tolist()}
    if not faults:
        return received
    # the first connection by its first send, or receive if it has none
    every = [*sends[sends != NOBODY].tolist(), *receives[receives != NOBODY].tolist()]
    connection = next(connection for connection in every if connection in faults)
    ours, theirs = np.flatnonzero(sends == connection), np.flatnonzero(receives == connection)
    for send, receive in zip(ours.tolist(), theirs.tolist(), strict=False):
        if steps.count[send] != steps.count[receive]:
            raise graph.error(
                receive,
                f"receives cnt {steps.count[receive]} and {graph.name(send)}, sends cnt "
                f"{steps.count[send]}",
            )
    _refuse_unmatched(graph, ours, theirs)
    raise AssertionError("a connection with a fault has one")


def _refuse_unmatched(graph: Graph, ours: np.ndarray, theirs: np.ndarray) -> None:
    blocks, block = graph.algo.blocks, graph.steps.block
    if len(ours) > len(theirs):
        step = int(ours[len(theirs)])
        receiver, channel = blocks[block[step]].to, blocks[block[step]].channel
        raise graph.error(
            step,
            f"deadlock: its thread block sends {len(ours)} times to gpu {receiver} on channel "
            f"{channel}, gpu {receiver} receives {len(theirs)} times there",
        )
    if len(theirs) > len(ours):
        step = int(theirs[len(ours)])
        sender, channel = blocks[block[step]].of, blocks[block[step]].channel
        raise graph.error(
            step,
            f"deadlock: its thread block receives {len(theirs)} times from gpu {sender} on channel "
            f"{channel}, gpu {sender} sends {len(ours)} times there",
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


def _runnable(block: np.ndarray, columns: Sequence[np.ndarray]) -> list[int]:
    """The steps that can run, each behind what it waits for in some column; NONE for nothing.

    Thread blocks are queues, whose steps run one behind another (`order.py`).
    """
    first = np.searchsorted(block, np.arange(block.max(initial=NONE) + 2))
    targets: list[tuple[Target, ...]] = [()] * len(block)
    for column in columns:
        waiting = np.flatnonzero(column != NONE)
        queues = block[column[waiting]]
        rows = column[waiting] - first[queues]
        for step, queue, row in zip(waiting.tolist(), queues.tolist(), rows.tolist(), strict=True):
            targets[step] = (*targets[step], Target(queue, row, is_own=True))
    starts = first.tolist()
    edges = EdgesOfOneRank([targets[low:high] for low, high in itertools.pairwise(starts)])
    return [starts[queue] + row for queue, row, _ in edges.run().batches]


def _order_with(graph: Graph, slots: int | None) -> list[int]:
    """The steps that can run, each behind what it waits for; unlimited slots for None."""
    columns = list(graph.waits[1:])  # a thread block runs in order
    if slots is not None:
        columns.append(_freed(graph.steps.block, graph.received, slots))
    return _runnable(graph.steps.block, columns)


def _order_in_pieces(graph: Graph, slots: int) -> list[int]:
    """The steps that can run if each chunk of a send takes a slot, as large ones do on a GPU."""
    steps = graph.steps
    count = np.where(steps.which("sends") | steps.which("receives"), steps.count, 1)
    if count.sum() > MOST_PIECES:
        return list(range(len(steps)))
    last = np.cumsum(count) - 1
    owner = np.repeat(np.arange(len(count)), count)
    start = last - count + 1
    piece = np.arange(len(owner)) - start[owner]

    def of(column: np.ndarray, pieces: np.ndarray) -> np.ndarray:
        """By piece: of the step that its step waits for in a column, the piece in `pieces`."""
        other = column[owner]
        return np.where(other == NONE, NONE, pieces[other])

    columns = [
        np.where(piece > 0, NONE, of(column, last)) for column in (graph.awaited, graph.copied)
    ]
    sent, received = (
        np.where(first == NONE, NONE, first + piece)
        for first in (of(graph.sent, start), of(graph.received, start))
    )
    block = steps.block[owner]
    run = _runnable(block, [*columns, sent, _freed(block, received, slots)])
    done = np.bincount(owner[run], minlength=len(count))
    return np.flatnonzero(done == count).tolist()


def _cycle(graph: Graph, order: Sequence[int], slots: int | None = None) -> tuple[int, str]:
    """The first step of a cycle of waits and the cycle in words, given the steps that can run."""
    reasons = [
        ("depends on", graph.awaited),
        ("follows", graph.copied),
        ("receives from", graph.sent),
    ]
    if slots is not None:
        freed = _freed(graph.steps.block, graph.received, slots)
        reasons.append(("waits for the slot that is emptied by", freed))
    block = graph.steps.block.tolist()
    stuck = sorted(set(range(len(block))).difference(order))
    stands_at: dict[int, int] = {}  # by thread block that cannot go on, its next step
    for step in stuck:
        stands_at.setdefault(block[step], step)
    waits: dict[int, tuple[str, int]] = {}  # by thread block: its first wait that is not over
    for number, step in stands_at.items():
        waits[number] = next(
            (why, int(column[step]))
            for why, column in reasons
            if column[step] != NONE
            and column[step] >= stands_at.get(block[column[step]], len(block))
        )
    awaited = {(number, 0): (block[other], 0) for number, (_, other) in waits.items()}
    members = [number for number, _ in cycles(awaited)[0]]
    shown = []
    for number in members[:MOST_SHOWN]:
        why, other = waits[number]
        text = f"{graph.name(stands_at[number])} {why} {graph.name(other)}"
        behind = stands_at[block[other]]
        if behind != other:
            text += f", which comes behind {graph.name(behind)}"
        shown.append(text)
    more = f" … ({len(members)} thread blocks)" if len(members) > MOST_SHOWN else ""
    return stands_at[members[0]], f"{'; '.join(shown)}{more}"
