"""The clock's loop: every row of every queue, in dependency order, and shared transfers in time.

A row starts when its queue is free and the value that it waits for has been seen. Whatever no
shared transfer under way holds up is worked off at once, whatever its time: it cannot be changed
by what comes later. Then time goes on to where the next shared transfers begin or end. So times
are exact, and rows that share nothing cost no event.

Semaphores in the kernel: when each reached each of its values, and who sleeps until it does.
"""

from ncc_runtime.execution.clock import shares
from ncc_runtime.execution.clock.compiled import compiled, entry
from ncc_runtime.execution.clock.tables import (
    ALWAYS,
    BEYOND,
    COUNTED,
    DONE,
    ENGINE,
    EVENTS,
    HEAD,
    HEAP,
    INCREMENTS,
    INCREMENTS_FULL,
    LARGEST,
    LATEST,
    LEFT,
    LOG_FULL,
    NONE,
    PAUSED,
    QUEUE,
    RING,
    RING_BUSY,
    SEMAPHORE,
    TAKEN,
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


@entry
def run(m: Machine) -> int:
    """Go on until everything has been performed, there is no room, or time to pause: DONE, ..."""
    while True:
        full = _work_off(m)
        if full != DONE:
            return full
        if m.counts[HEAP] == 0:
            return DONE
        if m.counts[LEFT] <= 0:
            return PAUSED
        _go_on(m)


@compiled
def _work_off(m: Machine) -> int:
    """Perform what waits for nothing that is under way."""
    sizes = m.sizes[0]
    while m.counts[WAITING] > 0:
        process = m.process[m.counts[HEAD]].todo
        is_ring = m.queue[process // sizes.ranks].kind == RING
        went_on = True
        while went_on:
            if sizes.is_recorded and m.counts[EVENTS] - m.counts[TAKEN] == len(m.event):
                return LOG_FULL
            if m.counts[LEFT] <= 0:
                return PAUSED
            m.counts[LEFT] -= 1
            if not has_room(m, sizes.most_posts):
                return INCREMENTS_FULL
            went_on = _ring(m, process) if is_ring else _row(m, process)
        m.process[process].is_todo = 0
        m.counts[HEAD] = (m.counts[HEAD] + 1) % len(m.process)
        m.counts[WAITING] -= 1
    return DONE


@compiled
def _go_on(m: Machine) -> None:
    """Go to the next time at which shared transfers begin or end."""
    now = m.process[m.process[0].heap].due
    while m.counts[HEAP] > 0 and m.process[m.process[0].heap].due == now:
        process = shares.take(m)
        if m.process[process].is_moving:
            shares.leave(m, process)
            m.process[process].end = now
            wake(m, process)
        else:
            shares.join(m, process)
    shares.share(m, now)


@compiled
def _row(m: Machine, process: int) -> bool:
    """Perform the next row of an engine or a CC-core, if it can be; whether it was."""
    it = m.process[process]
    if it.way != NONE:
        return _complete_row(m, process)
    ranks = m.sizes[0].ranks
    queue, rank = m.queue[process // ranks], process % ranks
    if it.row >= queue.length:
        return False
    row = m.row[queue.base + it.row]
    sem = m.cells[row.wait_sem + queue.wait_sem * rank]
    start, cause, reason = it.free, it.last, QUEUE
    if sem != NONE:
        value = m.cells[row.wait_value + queue.wait_value * rank]
        if queue.offset != NONE:
            value += m.offset[(queue.offset + rank) * m.sizes[0].semaphores + sem]
        key = rank * m.sizes[0].semaphores + sem
        semaphore = m.semaphore[key]
        if semaphore.held < value:
            sleep(m, process, key, value)
            return False
        if value > semaphore.dropped:
            seen = m.increment[semaphore.start + value - 1 - semaphore.dropped]
            if seen.seen >= start:
                start, cause, reason = seen.seen, seen.maker, SEMAPHORE
        is_asked(m, key, value)
    _begin_row(m, process, (start, cause, reason))
    return True


@compiled
def _begin_row(m: Machine, process: int, why: tuple[int, int, int]) -> None:
    """Begin a row of an engine or a CC-core, and complete it if it moves nothing."""
    start, cause, reason = why
    it, ranks = m.process[process], m.sizes[0].ranks
    queue, rank = m.queue[process // ranks], process % ranks
    row = m.row[queue.base + it.row]
    begun = start - (-row.overhead * 100 // it.percent)
    end = begun - (-row.work * 100 // it.percent)
    way = m.cells[row.way + queue.way * rank]
    if way != NONE:
        it.start, it.cause, it.reason, it.floor = start, cause, reason, end
        _send(m, process, way, (begun, m.cells[row.size + queue.size * rank]))
        return
    if queue.kind == ENGINE or not _is_idle(m, process):
        _report(m, process, it.row, (start, end, cause, reason, 0))
        it.free = end
    _move_on(m, process)


@compiled
def _complete_row(m: Machine, process: int) -> bool:
    """Complete an instruction whose bytes have been moved; whether they have."""
    it = m.process[process]
    if it.end == NONE:
        return False
    end = max(it.end, it.floor)
    alone = max(it.begun + it.alone, it.floor)
    it.way = NONE
    _report(m, process, it.row, (it.start, end, it.cause, it.reason, end - alone))
    it.free = end
    _move_on(m, process)
    return True


@compiled
def _is_idle(m: Machine, process: int) -> bool:
    """Whether a rank neither waits nor increments in its row: it takes no time."""
    ranks, number = m.sizes[0].ranks, m.process[process].row
    queue, rank = m.queue[process // ranks], process % ranks
    if m.cells[m.row[queue.base + number].wait_sem + queue.wait_sem * rank] != NONE:
        return False
    for at in range(queue.first_post, queue.end_post):
        post = m.post[at]
        if m.cells[m.posted[post.base + number].rank + post.rank * rank] != NONE:
            return False
    return True


@compiled
def _ring(m: Machine, process: int) -> bool:
    """Perform what a DMA ring is to do next, if it can be; whether it was."""
    it, sizes = m.process[process], m.sizes[0]
    if it.way != NONE:
        return _complete_transfer(m, process)
    queue, rank = m.queue[process // sizes.ranks], process % sizes.ranks
    key = rank * sizes.semaphores + queue.tail
    if m.semaphore[key].held <= it.row:
        sleep(m, process, key, it.row + 1)
        return False
    push = m.increment[m.semaphore[key].start + it.row - m.semaphore[key].dropped]
    it.start, it.cause, it.reason = it.free, it.last, RING_BUSY
    if push.seen >= it.free:
        it.start, it.cause, it.reason = push.seen, push.maker, SEMAPHORE
    row = m.row[queue.base + push.pushed]
    way = m.cells[row.way + queue.way * rank]
    size = m.cells[row.size + queue.size * rank]
    if queue.turns != NONE:
        size = m.cells[m.cells[queue.turns + rank] + it.row]
    count = -(-max(size, 1) // sizes.descriptor_bytes)
    # its engines move the bytes of one transfer after those of the one before
    begun = max(it.start + m.way[way].lead + count * sizes.descriptor_ps, it.end)
    _send(m, process, way, (begun, size))
    return True


@compiled
def _complete_transfer(m: Machine, process: int) -> bool:
    """Complete a ring's transfer whose bytes have been moved; whether they have."""
    it, sizes = m.process[process], m.sizes[0]
    if it.end == NONE:
        return False
    queue, rank = m.queue[process // sizes.ranks], process % sizes.ranks
    key = rank * sizes.semaphores + queue.tail
    row = m.increment[m.semaphore[key].start + it.row - m.semaphore[key].dropped].pushed
    way = m.way[it.way]
    it.way = NONE
    slowed = it.end - it.begun - it.alone
    _report(m, process, row, (it.start, it.end + way.latency, it.cause, it.reason, slowed))
    it.free = it.end - way.lead
    it.row += 1
    is_asked(m, key, it.row)
    return True


@compiled
def _send(m: Machine, process: int, way: int, what: tuple[int, int]) -> None:
    """Let bytes flow from a time on: alone on their way, or sharing it as time goes on."""
    begun, size = what
    it, its_way = m.process[process], m.way[way]
    it.way, it.begun = way, begun
    it.alone = -(-size * shares.MICRO // its_way.cap)
    if its_way.is_shared and size > 0:
        it.first_use, it.end_use = its_way.first_use, its_way.end_use
        it.cap, it.packet, it.slow = its_way.cap, its_way.packet, its_way.slow
        it.end, it.left, it.since = NONE, size * shares.MICRO, begun
        shares.put(m, process, begun)
    else:
        it.end = begun + it.alone


@compiled
def _report(m: Machine, process: int, row: int, what: tuple[int, int, int, int, int]) -> None:
    """Note the event, and make its increments."""
    start, end, cause, reason, slowed = what
    sizes = m.sizes[0]
    number, rank = process // sizes.ranks, process % sizes.ranks
    event = m.counts[EVENTS]
    m.counts[EVENTS] = event + 1
    # a negative end has gone beyond int64; then times mean nothing any more (`clock._check_time`)
    m.counts[LATEST] = max(m.counts[LATEST], end if end >= 0 else BEYOND)
    m.process[process].last = event
    if sizes.is_recorded:
        note = m.event[event - m.counts[TAKEN]]
        note.queue, note.row, note.rank, note.start, note.end = number, row, rank, start, end
        note.cause, note.reason, note.slowed = cause, reason if cause != NONE else 0, slowed
    queue = m.queue[number]
    pushed = m.row[queue.base + row].pushed
    for at in range(queue.first_post, queue.end_post):
        post = m.post[at]
        posted = m.posted[post.base + row]
        to = m.cells[posted.rank + post.rank * rank]
        if to != NONE:
            key = to * sizes.semaphores + m.cells[posted.sem + post.sem * rank]
            seen = end + m.cells[posted.flight + post.flight * rank]
            increment(m, key, (seen, event, pushed))


@compiled
def _move_on(m: Machine, process: int) -> None:
    """To the next row, or to where a control row leads."""
    it, sizes = m.process[process], m.sizes[0]
    queue, rank = m.queue[process // sizes.ranks], process % sizes.ranks
    number = m.row[queue.base + it.row].jump
    it.row += 1
    if number == NONE or _goes_on(m, number, rank):
        return
    jump = m.jump[number]
    it.row = jump.target
    shift = jump.shift + jump.shift_step * rank
    offset = (queue.offset + rank) * sizes.semaphores
    for sem in range(sizes.semaphores):
        m.offset[offset + sem] += m.cells[shift + sem]


@compiled
def _goes_on(m: Machine, number: int, rank: int) -> bool:
    """Whether a rank goes on behind a control row, this time."""
    jump, turn = m.jump[number], m.turn[number * m.sizes[0].ranks + rank]
    if jump.how == ALWAYS:
        return False
    taken = turn.taken
    turn.taken = taken + 1
    if jump.how == COUNTED:
        if taken < jump.trips:
            return True
        turn.taken = 0
        return False
    goes_on: bool = m.cells[turn.first + taken] != 0
    return goes_on
