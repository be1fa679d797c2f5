"""How a placeholder is filled: one stretch of its stream's program, from its trigger to DONE."""

from collections.abc import Iterator, Sequence

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, Decision, EngineQueue, Post
from ncc_runtime.verify.form.columns import at, essence, search
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Subject
from ncc_runtime.verify.places import collective

_DECIDING = (Decision.TEST, Decision.CASE)


@rule("exe-W11")
def placeholders_are_stretches(subject: Subject) -> Iterator[str]:
    """Each placeholder is one stretch of its stream's program, in their order; DONE ends it."""
    placeholders = subject.executable.program.placeholders
    for number, queue in subject.programs:
        found = queue.placeholder[_starts(queue)].tolist()
        own = [k for k, one in enumerate(placeholders) if one.stream == queue.stream]
        wanted = list(filter(subject.takes_part, own))
        if found != wanted:
            yield _other_order(subject, queue, found, wanted)
        else:
            yield from _done_is_last(subject, number, queue)
    filled = {queue.stream for _, queue in subject.programs}
    for k, one in enumerate(placeholders):
        if one.stream not in filled and subject.takes_part(k):
            yield f"{collective(subject.executable, k)}: no CC-core runs stream {one.stream}"


def _starts(queue: CcQueue) -> np.ndarray:
    """Which rows are the first of a stretch of a placeholder, (n,) bool."""
    here = queue.placeholder
    return (np.diff(here, prepend=IDLE - 1) != 0) & (here != IDLE)


def _other_order(
    subject: Subject, queue: CcQueue, found: Sequence[int], wanted: Sequence[int]
) -> str:
    """Where the placeholders of a program first part from those of its stream."""
    number = 0
    while found[number : number + 1] == wanted[number : number + 1]:
        number += 1
    words = [
        collective(subject.executable, numbers[number]) if number < len(numbers) else "none"
        for numbers in (found, wanted)
    ]
    return f"queue {queue.name}: placeholder {number} of its program is {words[0]}, not {words[1]}"


def _done_is_last(subject: Subject, number: int, queue: CcQueue) -> Iterator[str]:
    here = queue.placeholder
    last = (np.diff(here, append=IDLE - 1) != 0) & (here != IDLE)
    yield from subject.at_rows(
        number,
        last != (queue.opcode == CcOpcode.DONE),
        lambda row: "its placeholder ends without DONE" if last[row] else "DONE before the end",
    )


@rule("exe-W12")
def streams_wait_for_their_triggers(subject: Subject) -> Iterator[str]:
    """The k-th placeholder or decision waits for the k-th trigger; no other row for engines."""
    for number, queue in subject.programs:
        yield from _triggered(subject, number, queue)
        yield from _undisturbed(subject, number, queue)
    for number, engine in subject.engines:
        for post in engine.sync.posts:
            yield from _at_home(subject, number, post)
        for _, queue in subject.programs:
            yield from _triggers(subject, number, engine, queue)


def _entries(queue: CcQueue) -> np.ndarray:
    """The rows at which a stream hears from an engine, (n,) bool."""
    return _starts(queue) | np.isin(queue.opcode, (CcOpcode.TEST, CcOpcode.CASE))


def _triggered(subject: Subject, number: int, queue: CcQueue) -> Iterator[str]:
    trigger, entries = subject.streams[queue.stream].trigger_sem, _entries(queue)
    sem, value = essence(queue.sync.wait_sem), essence(queue.sync.wait_value)
    count = np.cumsum(entries)[:, None]
    yield from subject.at_cells(
        number,
        entries[:, None] & ((sem != trigger) | (value != count)),
        lambda row, rank: (
            f"waits for semaphore {at(sem, row, rank)} >= {at(value, row, rank)}, "
            f"must wait for its trigger, {trigger} >= {count[row, 0]}"
        ),
    )


def _undisturbed(subject: Subject, number: int, queue: CcQueue) -> Iterator[str]:
    """Between trigger and DONE nothing depends on engines or other streams' triggers."""
    of_engines = [facts.trigger_sem for facts in subject.executable.streams]
    of_engines += range(len(subject.executable.program.semaphores))
    sem = essence(queue.sync.wait_sem)
    yield from subject.at_cells(
        number,
        ~_entries(queue)[:, None] & np.isin(sem, of_engines),
        lambda row, rank: f"waits for semaphore {at(sem, row, rank)}, which engines increment",
    )


def _at_home(subject: Subject, number: int, post: Post) -> Iterator[str]:
    """Engines post on their own rank."""
    yield from subject.at_cells(
        number,
        search(lambda to: (to != IDLE) & (to != subject.everybody), post.rank),
        lambda row, rank: f"posts at rank {at(post.rank, row, rank)}",
    )


def _triggers(subject: Subject, number: int, engine: EngineQueue, queue: CcQueue) -> Iterator[str]:
    """A stream is triggered by its placeholders' rows, and where predicates are ready for it."""
    placeholders = subject.executable.program.placeholders
    streams = np.array([*(one.stream for one in placeholders), IDLE])
    wanted = streams[engine.table.placeholder] == queue.stream
    if wanted.any():
        wanted[_deciding(engine, queue)] = True
    trigger = subject.streams[queue.stream].trigger_sem
    told: np.ndarray = np.zeros((len(wanted), 1), np.int32)
    for post in engine.sync.posts:
        told = told + (essence(post.sem) == trigger)
    yield from subject.at_cells(
        number,
        told != wanted[:, None],
        lambda row, rank: (
            f"triggers {queue.name} {at(told, row, rank)} times, not {int(wanted[row])}"
        ),
    )


def _deciding(engine: EngineQueue, queue: CcQueue) -> list[int]:
    """The rows of an engine at which it tells a stream that a predicate is there."""
    followed = {jump.block for jump in queue.jumps.values() if jump.decision in _DECIDING}
    return [
        row
        for row, jump in engine.jumps.items()
        if jump.decision in _DECIDING and jump.block in followed
    ]


@rule("exe-W13")
def rows_post_as_their_opcode_says(subject: Subject) -> Iterator[str]:
    """Waits and ends post nothing, signals elsewhere, all others their own counters."""
    for number, queue in subject.programs:
        if len(queue.sync.posts) != 1:
            yield f"queue {queue.name}: {len(queue.sync.posts)} posts a row, must be 1"
            continue
        yield from _directions(subject, number, queue)
        yield from _reports(subject, number, queue)


def _directions(subject: Subject, number: int, queue: CcQueue) -> Iterator[str]:
    """Signals are for other ranks, all other posts for the own."""
    to, signals = queue.sync.posts[0].rank, (queue.opcode == CcOpcode.SIGNAL)[:, None]

    def wrong(to: np.ndarray, signals: np.ndarray) -> np.ndarray:
        return (to != IDLE) & (signals == (to == subject.everybody))

    yield from subject.at_cells(
        number,
        search(wrong, to, signals),
        lambda row, rank: (
            f"{CcOpcode(int(queue.opcode[row])).name.lower()} posts at rank {at(to, row, rank)}"
        ),
    )


def _reports(subject: Subject, number: int, queue: CcQueue) -> Iterator[str]:
    """DONE and decisions count on the stream's semaphore, if there is one; waits nowhere."""
    done, sem = subject.done_sem(queue.stream), essence(queue.sync.posts[0].sem)
    reports = np.isin(queue.opcode, (CcOpcode.DONE, CcOpcode.TEST, CcOpcode.CASE))
    silent = np.isin(queue.opcode, (CcOpcode.WAIT, CcOpcode.END, CcOpcode.LOAD))
    wanted = np.where(reports, done, IDLE)[:, None]
    yield from subject.at_cells(
        number,
        (reports | silent)[:, None] & (sem != wanted),
        lambda row, rank: f"posts semaphore {at(sem, row, rank)}, must be {wanted[row, 0]}",
    )


RULES = (
    streams_wait_for_their_triggers,
    rows_post_as_their_opcode_says,
)
