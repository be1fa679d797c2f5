"""Semaphores in the kernel: when each reached each of its values, and who sleeps until it does."""

from ncc_runtime.execution.clock.compiled import compiled
from ncc_runtime.execution.clock.tables import (
    HEAD,
    INCREMENTS,
    LARGEST,
    NONE,
    WAITING,
    Machine,
)

LEAST_ROOM = 4
"""A semaphore that outgrows its place gets room for twice as many, and for no fewer."""


@compiled
def wake(m: Machine, process: int) -> None:
    """Look at a process again, after those that are waiting already."""
    if m.process[process].is_todo:
        return
    m.process[process].is_todo = 1
    room = len(m.process)
    at = m.counts[HEAD] + m.counts[WAITING]
    m.process[at - room if at >= room else at].todo = process
    m.counts[WAITING] += 1


@compiled
def sleep(m: Machine, process: int, key: int, value: int) -> None:
    """Do not look at a process before a semaphore holds a value."""
    m.process[process].awaited = value
    m.process[process].next = m.semaphore[key].sleeper
    m.semaphore[key].sleeper = process


@compiled
def increment(m: Machine, key: int, what: tuple[int, int, int]) -> None:
    """A semaphore is seen to grow: when, by which event, and the row of a ring that this pushes.

    Increments of one queue are seen in its order.
    """
    time, event, pushed = what
    semaphore = m.semaphore[key]
    if semaphore.held - semaphore.dropped == semaphore.room:
        _make_room(m, key)
    at = semaphore.start + semaphore.held - semaphore.dropped
    if semaphore.held > 0 and m.increment[at - 1].seen > time:
        time, event = m.increment[at - 1].seen, m.increment[at - 1].maker
    entry = m.increment[at]
    entry.seen, entry.maker, entry.pushed = time, event, pushed
    semaphore.held += 1
    if semaphore.sleeper != NONE:
        _wake_up(m, key)


@compiled
def _wake_up(m: Machine, key: int) -> None:
    """Look at those again that sleep for no more than a semaphore holds."""
    semaphore = m.semaphore[key]
    before, process = NONE, semaphore.sleeper
    while process != NONE:
        after = m.process[process].next
        if m.process[process].awaited <= semaphore.held:
            if before == NONE:
                semaphore.sleeper = after
            else:
                m.process[before].next = after
            wake(m, process)
        else:
            before = process
        process = after


@compiled
def is_asked(m: Machine, key: int, value: int) -> None:
    """A queue has seen a value: if no other asks, nobody needs increments up to there.

    The queue was not free again before it saw them, so later rows do not start by them.
    """
    semaphore = m.semaphore[key]
    if semaphore.has_one and value > semaphore.asked:
        semaphore.asked = value


@compiled
def _make_room(m: Machine, key: int) -> None:
    """Drop what nobody asks for, if that is half of it; the last is needed for the next."""
    semaphore = m.semaphore[key]
    more = min(semaphore.asked, semaphore.held - 1) - semaphore.dropped
    if more <= 0 or 2 * more < semaphore.room:
        _move(m, key)
        return
    semaphore.dropped += more
    start = semaphore.start
    for at in range(start, start + semaphore.held - semaphore.dropped):
        m.increment[at] = m.increment[at + more]


@compiled
def _move(m: Machine, key: int) -> None:
    """Twice the room, at the end; `has_room` has said that it is there."""
    semaphore = m.semaphore[key]
    old, new = semaphore.start, m.counts[INCREMENTS]
    room = max(LEAST_ROOM, 2 * semaphore.room)
    for at in range(semaphore.held - semaphore.dropped):
        m.increment[new + at] = m.increment[old + at]
    semaphore.start, semaphore.room = new, room
    m.counts[INCREMENTS] += room
    m.counts[LARGEST] = max(m.counts[LARGEST], room)


@compiled
def has_room(m: Machine, semaphores: int) -> bool:
    """Whether so many semaphores could move."""
    need = semaphores * max(LEAST_ROOM, 2 * m.counts[LARGEST])
    fits: bool = m.counts[INCREMENTS] + need <= len(m.increment)
    return fits
