"""How a placeholder is filled: the contract that the other proofs presume (exe-W11 to 15, 21).

The rows of a collective are contiguous in its stream's CC-core program, from the wait for its
trigger to DONE, and contiguous in each DMA ring, where the program pushes them run by run. So a
proof may take a collective out of its program and look at it alone, and order between engines and
streams goes through triggers and DONE only (docs/proofs.md, "Why proofs of parts are enough").
"""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, Decision, DmaQueue, EngineQueue, Post
from ncc_runtime.verify.counters import narrowed
from ncc_runtime.verify.places import collective
from ncc_runtime.verify.proof import Breach
from ncc_runtime.verify.wellformed.rule import (
    RingSubject,
    Subject,
    at,
    rule,
    rule_of_programs,
    rule_of_rings,
    search,
)

_DECIDING = (Decision.TEST, Decision.CASE)


# ---- from the trigger to DONE


@rule("exe-W11")
def placeholders_are_contiguous(subject: Subject) -> Iterator[Breach | str]:
    """Rows of each placeholder stand together, in the order of their stream; DONE ends them."""
    executable = subject.executable
    placeholders = executable.program.placeholders
    for number, queue in subject.programs:
        filled = queue.placeholder[_starts(queue)].tolist()
        own = [k for k, one in enumerate(placeholders) if one.stream == queue.stream]
        due = list(filter(subject.takes_part, own))
        if filled == due:
            yield from _done_is_last(subject, number, queue)
            continue
        place = 0
        while filled[place : place + 1] == due[place : place + 1]:
            place += 1
        here, wanted = (numbers[place : place + 1] for numbers in (filled, due))
        names = [collective(executable, *one) if one else "none" for one in (here, wanted)]
        yield Breach(
            "",
            f"queue {queue.name}: placeholder {place} of its program is {names[0]}, not {names[1]}",
            placeholders=frozenset((*here, *wanted)),
        )
    followed = {queue.stream for _, queue in subject.programs}
    for k, one in enumerate(placeholders):
        if one.stream not in followed and subject.takes_part(k):
            text = f"{collective(executable, k)}: no CC-core runs stream {one.stream}"
            yield Breach("", text, placeholders=frozenset((k,)))


def _starts(queue: CcQueue) -> np.ndarray:
    """Which rows are the first of a placeholder, (n,) bool."""
    here = queue.placeholder
    return (np.diff(here, prepend=IDLE - 1) != 0) & (here != IDLE)


def _done_is_last(subject: Subject, number: int, queue: CcQueue) -> Iterator[Breach]:
    here = queue.placeholder
    last = (np.diff(here, append=IDLE - 1) != 0) & (here != IDLE)
    yield from subject.at_rows(
        number,
        last != (queue.opcode == CcOpcode.DONE),
        lambda row: "its placeholder ends without DONE" if last[row] else "DONE before the end",
    )


@rule("exe-W12")
def streams_wait_for_their_triggers(subject: Subject) -> Iterator[Breach]:
    """The k-th placeholder or decision waits for the k-th trigger; no other row for engines."""
    for number, queue in subject.programs:
        yield from _waits_for_engines(subject, number, queue)
    for number, engine in subject.engines:
        for post in engine.sync.posts:
            yield from _on_own_rank(subject, number, post)
        for _, queue in subject.programs:
            yield from _triggers(subject, number, engine, queue)


def _waits_for_engines(subject: Subject, number: int, queue: CcQueue) -> Iterator[Breach]:
    """At the k-th entry for trigger k; between trigger and DONE for nothing of engines."""
    trigger = subject.streams[queue.stream].trigger_sem
    entries = _starts(queue) | np.isin(queue.opcode, (CcOpcode.TEST, CcOpcode.CASE))
    count = np.cumsum(entries)[:, None]
    sem, value = narrowed(queue.sync.wait_sem), narrowed(queue.sync.wait_value)
    yield from subject.at_cells(
        number,
        entries[:, None] & ((sem != trigger) | (value != count)),
        lambda row, rank: (
            f"waits for semaphore {at(sem, row, rank)} >= {at(value, row, rank)}, "
            f"must wait for its trigger, {trigger} >= {count[row, 0]}"
        ),
    )
    of_engines = [facts.trigger_sem for facts in subject.executable.streams]
    of_engines += range(len(subject.executable.program.semaphores))
    yield from subject.at_cells(
        number,
        ~entries[:, None] & np.isin(sem, of_engines),
        lambda row, rank: f"waits for semaphore {at(sem, row, rank)}, which engines increment",
    )


def _on_own_rank(subject: Subject, number: int, post: Post) -> Iterator[Breach]:
    """Engines post on their own rank."""
    yield from subject.at_cells(
        number,
        search(lambda to: (to != IDLE) & (to != subject.everybody), post.rank),
        lambda row, rank: f"posts at rank {at(post.rank, row, rank)}",
    )


def _triggers(
    subject: Subject, number: int, engine: EngineQueue, queue: CcQueue
) -> Iterator[Breach]:
    """A stream is triggered by its placeholders' rows, and where predicates are ready for it."""
    placeholders = subject.executable.program.placeholders
    streams = np.array([*(one.stream for one in placeholders), IDLE])
    due = streams[engine.table.placeholder] == queue.stream
    if due.any():  # this engine triggers the stream, so it also reports predicates to it
        followed = {jump.block for jump in queue.jumps.values() if jump.decision in _DECIDING}
        for row, jump in engine.jumps.items():
            due[row] |= jump.decision in _DECIDING and jump.block in followed
    trigger = subject.streams[queue.stream].trigger_sem
    times: np.ndarray = np.zeros((len(due), 1), np.int32)
    for post in engine.sync.posts:
        times = times + (narrowed(post.sem) == trigger)
    yield from subject.at_cells(
        number,
        times != due[:, None],
        lambda row, rank: (
            f"triggers {queue.name} {at(times, row, rank)} times, not {int(due[row])}"
        ),
    )


@rule_of_programs("exe-W13")
def rows_post_as_their_opcode_says(
    subject: Subject, number: int, queue: CcQueue
) -> Iterator[Breach | str]:
    """Waits and ends post nothing, signals elsewhere, all others on the own rank; DONE: done."""
    if len(queue.sync.posts) != 1:
        yield f"queue {queue.name}: {len(queue.sync.posts)} posts a row, must be 1"
        return
    post = queue.sync.posts[0]
    yield from subject.at_cells(
        number,
        search(
            lambda to, is_signal: (to != IDLE) & (is_signal == (to == subject.everybody)),
            post.rank,
            (queue.opcode == CcOpcode.SIGNAL)[:, None],
        ),
        lambda row, rank: (
            f"{CcOpcode(int(queue.opcode[row])).name.lower()} posts at rank "
            f"{at(post.rank, row, rank)}"
        ),
    )
    owners = [semaphore.owner for semaphore in subject.executable.program.semaphores]
    stream = f"stream {queue.stream}"
    done = owners.index(stream) if stream in owners else IDLE  # nobody waits for its DONE
    reports = np.isin(queue.opcode, (CcOpcode.DONE, CcOpcode.TEST, CcOpcode.CASE))
    silent = np.isin(queue.opcode, (CcOpcode.WAIT, CcOpcode.END, CcOpcode.LOAD))
    due, sem = np.where(reports, done, IDLE)[:, None], narrowed(post.sem)
    yield from subject.at_cells(
        number,
        (reports | silent)[:, None] & (sem != due),
        lambda row, rank: f"posts semaphore {at(sem, row, rank)}, must be {due[row, 0]}",
    )


# ---- DMA rings in step with their CC-core


@rule("exe-W14")
def runs_are_pushed_once_in_order(subject: Subject) -> Iterator[Breach | str]:
    """The k-th ADVANCE of a lane pushes its ring's row k, by the placeholder that owns it."""
    for _, core in subject.programs:
        for ring in subject.rings_of(core.stream):
            is_push = (core.opcode == CcOpcode.ADVANCE) & (core.ring == ring.queue.lane)
            pushes = np.flatnonzero(is_push)
            pushed, rows = core.ring_row[pushes], len(ring.queue.opcode)
            if np.array_equal(pushed, np.arange(rows)):
                yield from _pushed(subject, core, ring, pushes)
                continue
            k = next((k for k, row in enumerate(pushed.tolist()) if row != k), len(pushed))
            does = f"push {k} is of row {pushed[k]}" if k < len(pushed) else f"{k} pushes"
            yield f"queue {core.name}: dma{ring.queue.lane} has {rows} rows: {does}"


def _pushed(
    subject: Subject, program: CcQueue, ring: RingSubject, pushes: np.ndarray
) -> Iterator[Breach]:
    """A push is of its own placeholder, and counts on the ranks that have the run, only there."""
    owner = program.placeholder[pushes]
    yield from subject.at_rows(
        ring.number,
        ring.queue.placeholder != owner,
        lambda row: f"is pushed by p{owner[row]}, in {program.name} at pc {pushes[row]}",
    )
    if not program.sync.posts:
        return
    tail, _ = subject.streams[ring.queue.stream].rings[ring.queue.lane]
    pushed = narrowed(program.sync.posts[0].sem)[pushes]
    due = np.where(ring.active, np.int32(tail), np.int32(IDLE))
    yield from subject.at_cells(
        ring.number,
        search(lambda due, pushed: due != pushed, due, pushed),
        lambda row, rank: (
            f"its push, {program.name} at pc {pushes[row]}, posts semaphore "
            f"{at(pushed, row, rank)}, must be {at(due, row, rank)}"
        ),
    )


@rule_of_rings("exe-W15")
def runs_wait_for_their_push(subject: Subject, ring: RingSubject) -> Iterator[Breach]:
    """The k-th run of a rank waits for the k-th increment of the ring's tail."""
    tail, _ = subject.streams[ring.queue.stream].rings[ring.queue.lane]
    sem, value = narrowed(ring.queue.sync.wait_sem), narrowed(ring.queue.sync.wait_value)
    count = np.cumsum(ring.active, axis=0)

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


# ---- collectives that several programs share


@rule("exe-W21", is_of_all=True)
def shared_rows_are_the_same(subject: Subject) -> Iterator[Breach]:
    """Of a collective, the CC-core and each ring of all programs have the same rows."""
    if len(subject.stages) == 1:
        return
    none: np.ndarray = np.zeros((0, 0), np.int32)
    for number in range(len(subject.executable.program.placeholders)):
        first, *others = (one for one in subject.stages if one.takes_part(number))
        due = _rows(first, number)
        for other in others:
            rows = _rows(other, number)
            for queue in sorted(due.keys() | rows.keys()):
                if not np.array_equal(due.get(queue, none), rows.get(queue, none)):
                    what = collective(first.executable, number)
                    yield Breach(
                        "",
                        f"{other.label}, queue {queue}: not the rows of {what} in {first.label}",
                        placeholders=frozenset((number,)),
                    )


def _rows(subject: Subject, number: int) -> dict[str, np.ndarray]:
    """What ranks have alike in the rows of a collective, by queue; (columns, rows) each."""
    queues: list[CcQueue | DmaQueue] = [queue for _, queue in subject.programs]
    queues += [ring.queue for ring in subject.rings]
    rows = {}
    for queue in queues:
        own = queue.placeholder == number
        if isinstance(queue, CcQueue):
            columns = [queue.opcode, queue.round, queue.ring]
        else:
            sources = np.full(len(queue.opcode), queue.sources.shape[2])
            columns = [queue.opcode, queue.round, queue.divisor, sources]
        if own.any():
            rows[queue.name] = np.stack([column[own] for column in columns])
    return rows
