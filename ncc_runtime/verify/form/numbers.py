"""Numbers stand for something: opcodes, placeholders, rows, blocks, semaphores, ranks."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    Jump,
    Post,
    Sync,
)
from ncc_runtime.neff.isa import CASE, END, TEST
from ncc_runtime.neff.program import BlockKind
from ncc_runtime.verify.form.columns import Wrong, at, essence, search
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Subject
from ncc_runtime.verify.places import place_of

LARGEST_VALUE = 2**31 - 1
"""What a semaphore can hold. Source: neuron-driver, v2 and v3 headers (signed, 32 bits)."""

_DECISIONS: Mapping[int, Decision] = MappingProxyType(
    {CcOpcode.TEST: Decision.TEST, CcOpcode.CASE: Decision.CASE, CcOpcode.END: Decision.ALWAYS}
)
_WORDS: Mapping[str, Decision] = MappingProxyType(
    {TEST: Decision.TEST, CASE: Decision.CASE, END: Decision.ALWAYS}
)


@rule("exe-W2")
def rows_name_what_exists(subject: Subject) -> Iterator[str]:
    """Opcodes, placeholders, and the runs of descriptors that are pushed."""
    for number, queue in subject.programs:
        yield from _names(subject, number, queue, len(CcOpcode))
        yield from _pushes(subject, number, queue)
    for ring in subject.rings:
        yield from _names(subject, ring.number, ring.queue, len(DmaOpcode))


def _names(subject: Subject, number: int, queue: CcQueue | DmaQueue, opcodes: int) -> Iterator[str]:
    """Opcodes and placeholders; control rows of a CC-core have none."""
    known = len(subject.executable.program.placeholders)
    yield from subject.at_rows(
        number,
        (queue.opcode < 0) | (queue.opcode >= opcodes),
        lambda row: f"opcode {queue.opcode[row]} is unknown",
    )
    is_control = np.zeros(len(queue.opcode), bool)
    if isinstance(queue, CcQueue):
        is_control = np.isin(queue.opcode, list(_DECISIONS))
    here = queue.placeholder
    wrong = np.where(is_control, here != IDLE, (here < 0) | (here >= known))
    yield from subject.at_rows(
        number, wrong, lambda row: f"names placeholder {here[row]}, there are {known}"
    )


def _pushes(subject: Subject, number: int, queue: CcQueue) -> Iterator[str]:
    """An ADVANCE, and no other row, names a ring of the stream and a row of it."""
    rows: np.ndarray = np.zeros(len(queue.opcode), np.int64)
    for ring in subject.rings_of(queue.stream):
        rows[queue.ring == ring.queue.lane] = len(ring.queue.opcode)
    lane, row = queue.ring, queue.ring_row
    advances = queue.opcode == CcOpcode.ADVANCE
    yield from subject.at_rows(
        number,
        np.where(advances, (row < 0) | (row >= rows), (lane != IDLE) | (row != IDLE)),
        lambda pc: f"pushes row {row[pc]} of dma{lane[pc]}, there are {rows[pc]}",
    )


@rule("exe-W3")
def control_rows_jump(subject: Subject) -> Iterator[str]:
    """`test`, `case` and the `end` of a loop, and no other row, jump, to rows that exist."""
    for number, engine in subject.engines:
        words = dict(enumerate(engine.table.opcode_names))
        known = {code: _WORDS[word] for code, word in words.items() if word in _WORDS}
        yield from _jumps(subject, number, (engine.jumps, engine.table.opcode, known))
    for number, program in subject.programs:
        yield from _jumps(subject, number, (program.jumps, program.opcode, _DECISIONS))


def _jumps(
    subject: Subject,
    number: int,
    rows: tuple[Mapping[int, Jump], np.ndarray, Mapping[int, Decision]],
) -> Iterator[str]:
    """Jumps by row, opcodes of rows, and what opcodes decide."""
    jumps, opcode, known = rows
    control = np.flatnonzero(np.isin(opcode, list(known))).tolist()
    for row in sorted({*control, *jumps}):
        decision = known.get(int(opcode[row])) if 0 <= row < len(opcode) else None
        jump = jumps.get(row)
        if jump is None and decision is Decision.ALWAYS:
            continue  # the `end` of a branch
        fault = _fault(subject, jump, decision, len(opcode))
        if fault:
            yield f"{place_of(subject.executable, number, row, subject.first_rank)}: {fault}"


def _fault(subject: Subject, jump: Jump | None, decision: Decision | None, rows: int) -> str | None:
    """What is wrong with the jump of a row, if anything."""
    blocks_of, ranks = subject.executable.program.blocks, subject.executable.ranks
    if jump is None:
        return "a control row without a jump"
    if decision is not jump.decision:
        return f"jumps as by {jump.decision.value}, which it is not"
    if not 0 <= jump.target <= rows:
        return f"jumps to pc {jump.target}, there are {rows}"
    if not 0 <= jump.block < len(blocks_of):
        return f"names block {jump.block}, there are {len(blocks_of)}"
    if (blocks_of[jump.block].kind is BlockKind.CASE) != (decision is Decision.CASE):
        return f"jumps as by {jump.decision.value} in a {blocks_of[jump.block].kind.value}"
    semaphores = subject.executable.semaphore_count
    if jump.shift.shape not in ((1, semaphores), (ranks, semaphores)):
        return f"shifts {jump.shift.shape} values, must be {(ranks, semaphores)}"
    return None


@rule("exe-W4")
def semaphores_and_ranks_exist(subject: Subject) -> Iterator[str]:
    """Of waits, posts and transfers; awaited values fit what a semaphore holds."""
    for number, queue in enumerate(subject.executable.queues):
        yield from _waits(subject, number, queue.sync)
        for post in queue.sync.posts:
            yield from _posts(subject, number, post)
    for ring in subject.rings:
        for column in (ring.queue.peer, ring.queue.second_peer, *ring.owners):
            if column is not None:
                yield from _ranks(subject, ring.number, column)


def _waits(subject: Subject, number: int, sync: Sync) -> Iterator[str]:
    count = subject.executable.semaphore_count
    sem, value = essence(sync.wait_sem), essence(sync.wait_value)
    yield from subject.at_cells(
        number,
        (sem < IDLE) | (sem >= count),
        lambda row, rank: f"waits for semaphore {at(sem, row, rank)}, there are {count}",
    )
    yield from subject.at_cells(
        number,
        (sem != IDLE) & ((value < 0) | (value > LARGEST_VALUE)),
        lambda row, rank: f"waits for {at(value, row, rank)}, must be from 0 to {LARGEST_VALUE}",
    )


def _ranks(subject: Subject, number: int, column: np.ndarray) -> Iterator[str]:
    """Peers, second peers, and whose memory sources lie in."""
    ranks = subject.executable.ranks

    def wrong(named: np.ndarray) -> Wrong:
        if named.min() >= IDLE and named.max() < ranks:
            return False
        return (named < IDLE) | (named >= ranks)

    yield from subject.at_cells(
        number,
        search(wrong, column),
        lambda row, rank: f"names rank {at(column, row, rank)}, there are {ranks}",
    )


def _posts(subject: Subject, number: int, post: Post) -> Iterator[str]:
    """A post names a rank and a semaphore of it, or neither."""
    count, ranks = subject.executable.semaphore_count, subject.executable.ranks

    def wrong(sem: np.ndarray, to: np.ndarray) -> Wrong:
        if sem.min() >= 0 and sem.max() < count and to.min() >= 0 and to.max() < ranks:
            return False
        beyond = (sem < IDLE) | (sem >= count) | (to < IDLE) | (to >= ranks)
        return beyond | ((sem == IDLE) != (to == IDLE))

    yield from subject.at_cells(
        number,
        search(wrong, post.sem, post.rank),
        lambda row, rank: (
            f"posts semaphore {at(post.sem, row, rank)} of rank {at(post.rank, row, rank)}, "
            f"there are {count} on {ranks} ranks"
        ),
    )


RULES = (rows_name_what_exists, control_rows_jump, semaphores_and_ranks_exist)
