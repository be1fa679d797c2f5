"""Rings in step with their CC-core: every run is pushed once, in order, where there is one."""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue
from ncc_runtime.verify.form.columns import at, essence, search
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Ring, Subject


@rule("exe-W14")
def runs_are_pushed_once_in_order(subject: Subject) -> Iterator[str]:
    """The k-th push of a lane is of its k-th run, by the placeholder that owns it."""
    for _, program in subject.programs:
        for ring in subject.rings_of(program.stream):
            is_push = (program.opcode == CcOpcode.ADVANCE) & (program.ring == ring.queue.lane)
            pushes = np.flatnonzero(is_push)
            order, runs = program.ring_row[pushes], len(ring.queue.opcode)
            if len(order) == runs and (order == np.arange(runs)).all():
                yield from _owners(subject, program, ring, pushes)
                yield from _tails(subject, program, ring, pushes)
                continue
            k = next((k for k, row in enumerate(order.tolist()) if row != k), len(order))
            does = f"push {k} is of row {order[k]}" if k < len(order) else f"{k} pushes"
            yield f"queue {program.name}: dma{ring.queue.lane} has {runs} rows: {does}"


def _owners(subject: Subject, program: CcQueue, ring: Ring, pushes: np.ndarray) -> Iterator[str]:
    """Pushes and runs belong to the same placeholders."""
    owner = program.placeholder[pushes]
    yield from subject.at_rows(
        ring.number,
        ring.queue.placeholder != owner,
        lambda row: f"is pushed by p{owner[row]}, in {program.name} at pc {pushes[row]}",
    )


def _tails(subject: Subject, program: CcQueue, ring: Ring, pushes: np.ndarray) -> Iterator[str]:
    """A push increments the ring's tail on the ranks that have the run, and nothing elsewhere."""
    if not program.sync.posts:
        return
    tail = subject.streams[ring.queue.stream].rings[ring.queue.lane][0]
    sem = essence(program.sync.posts[0].sem)
    pushed = sem if len(sem) == 1 else sem[pushes]
    wanted = np.where(ring.active, np.int32(tail), np.int32(IDLE))
    yield from subject.at_cells(
        ring.number,
        search(lambda wanted, pushed: wanted != pushed, wanted, pushed),
        lambda row, rank: (
            f"its push, {program.name} at pc {pushes[row]}, posts semaphore "
            f"{at(pushed, row, rank)}, must be {at(wanted, row, rank)}"
        ),
    )


@rule("exe-W15")
def runs_wait_for_their_push(subject: Subject) -> Iterator[str]:
    """The k-th run of a rank waits for the k-th increment of the ring's tail."""
    for ring in subject.rings:
        tail = subject.streams[ring.queue.stream].rings[ring.queue.lane][0]
        yield from _in_step(subject, ring, tail)


def _in_step(subject: Subject, ring: Ring, tail: int) -> Iterator[str]:
    sem, value = essence(ring.queue.sync.wait_sem), essence(ring.queue.sync.wait_value)
    active = np.broadcast_to(ring.active, (len(ring.queue.opcode), ring.active.shape[1]))
    count = np.cumsum(active, axis=0)

    def wrong(sem: np.ndarray, value: np.ndarray, count: np.ndarray) -> np.ndarray:
        return (sem != IDLE) & ((sem != tail) | (value != count))

    yield from subject.at_cells(
        ring.number,
        search(wrong, sem, value, count),
        lambda row, rank: (
            f"waits for semaphore {at(sem, row, rank)} >= {at(value, row, rank)}, "
            f"must be {tail} >= {at(count, row, rank)}"
        ),
    )


RULES = (runs_are_pushed_once_in_order, runs_wait_for_their_push)
