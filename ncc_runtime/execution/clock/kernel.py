"""The clock's loop: every row of every queue in dependency order, and flows in order of time.

A row starts when its queue is free and the value that it waits for has been seen. Rows that wait
for no flow under way are performed at once, whatever their time: nothing that happens later can
change it. Then time advances to where the next flows begin or end (max_min.py). So times are exact,
and rows that share nothing need no event queue.

A semaphore is the list of times at which it reached each of its values, so a row that is performed
late in the loop still finds when its value was seen. Processes sleep on a semaphore until it
holds the value that they wait for.
"""

from ncc_runtime.execution.clock.max_min import (
    MICRO,
    change_speeds,
    is_blocked,
    join,
    leave,
    park,
    pop,
    put,
    update_rates,
)
from ncc_runtime.execution.clock.tables import (
    ALWAYS,
    BEYOND,
    CHANGES,
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
    LOG_FULL,
    NONE,
    PARKED,
    PAUSED,
    QUEUE,
    RING,
    RING_BUSY,
    SEMAPHORE,
    STEPS_LEFT,
    TAKEN,
    UNIT,
    WAITING,
    ClockState,
)

LEAST_ROOM = 4
"""A semaphore that outgrows its room gets twice as much, and at least this."""


def wake(m: ClockState, process: int) -> None:
    """Put a process into the queue of processes to look at."""
    if m.process[process].is_todo:
        return
    m.process[process].is_todo = 1
    size = len(m.process)  # the queue is a ring buffer in the field `todo`
    at = m.counts[HEAD] + m.counts[WAITING]
    m.process[at - size if at >= size else at].todo = process
    m.counts[WAITING] += 1


def sleep(m: ClockState, process: int, key: int, value: int) -> None:
    """Leave a process alone until a semaphore holds a value."""
    m.process[process].awaited = value
    m.process[process].next = m.semaphore[key].sleeper
    m.semaphore[key].sleeper = process


def increment(m: ClockState, key: int, time: int, event: int, pushed: int) -> None:
    """A semaphore is seen to grow at a time, by an event; `pushed`: the ring's row, or NONE.

    Increments of one queue are seen in its order, so none is seen before the one before it.
    """
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


def _wake_up(m: ClockState, key: int) -> None:
    """Wake the processes that wait for no more than a semaphore holds: they leave its list."""
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


def consume(m: ClockState, key: int, value: int) -> None:
    """A queue has seen a value: if no other queue waits, increments up to there can be dropped.

    The queue was not free again before it saw them, so they are not the cause of later rows.
    """
    semaphore = m.semaphore[key]
    if semaphore.has_one and value > semaphore.consumed:
        semaphore.consumed = value


def _make_room(m: ClockState, key: int) -> None:
    """Drop consumed increments if they are half of all, else move; the last one is still needed."""
    semaphore = m.semaphore[key]
    more = min(semaphore.consumed, semaphore.held - 1) - semaphore.dropped
    if more <= 0 or 2 * more < semaphore.room:
        _relocate(m, key)
        return
    semaphore.dropped += more
    start = semaphore.start
    for at in range(start, start + semaphore.held - semaphore.dropped):
        _copy_increment(m, at + more, at)


def _copy_increment(m: ClockState, source: int, target: int) -> None:
    """Field by field, for without machine code an assignment would make both the same object."""
    old, new = m.increment[source], m.increment[target]
    new.seen, new.maker, new.pushed = old.seen, old.maker, old.pushed


def _relocate(m: ClockState, key: int) -> None:
    """Move a semaphore to the end of the table, with twice the room; see `has_room`."""
    semaphore = m.semaphore[key]
    old, new = semaphore.start, m.counts[INCREMENTS]
    room = max(LEAST_ROOM, 2 * semaphore.room)
    for at in range(semaphore.held - semaphore.dropped):
        _copy_increment(m, old + at, new + at)
    semaphore.start, semaphore.room = new, room
    m.counts[INCREMENTS] += room
    m.counts[LARGEST] = max(m.counts[LARGEST], room)


def has_room(m: ClockState, semaphores: int) -> bool:
    """Whether the table has room for so many semaphores to move."""
    need = semaphores * max(LEAST_ROOM, 2 * m.counts[LARGEST])
    fits: bool = m.counts[INCREMENTS] + need <= len(m.increment)
    return fits


def run(m: ClockState) -> int:
    """Go on until everything has been performed, a table is full, or it is time to pause.

    DONE, LOG_FULL, INCREMENTS_FULL or PAUSED; the caller makes room and calls again.
    """
    while True:
        full = _perform_ready(m)
        if full != DONE:
            return full
        if m.counts[HEAP] == 0 and (m.counts[PARKED] == 0 or m.counts[CHANGES] == len(m.change)):
            return DONE
        if m.counts[STEPS_LEFT] <= 0:
            return PAUSED
        _advance(m)


def _perform_ready(m: ClockState) -> int:
    """Perform every row that waits for no flow under way."""
    sizes = m.sizes[0]
    while m.counts[WAITING] > 0:
        process = m.process[m.counts[HEAD]].todo
        is_ring = m.queue[process // sizes.ranks].kind == RING
        progress = True
        while progress:
            if sizes.is_recorded and m.counts[EVENTS] - m.counts[TAKEN] == len(m.event):
                return LOG_FULL
            if m.counts[STEPS_LEFT] <= 0:
                return PAUSED
            m.counts[STEPS_LEFT] -= 1
            if not has_room(m, sizes.most_posts):
                return INCREMENTS_FULL
            progress = _ring(m, process) if is_ring else _row(m, process)
        m.process[process].is_todo = 0
        m.counts[HEAD] = (m.counts[HEAD] + 1) % len(m.process)
        m.counts[WAITING] -= 1
    return DONE


def _advance(m: ClockState) -> None:
    """Advance to the next time at which flows begin or end, or a speed changes."""
    now = m.process[m.process[0].heap].due if m.counts[HEAP] > 0 else BEYOND
    if m.counts[CHANGES] < len(m.change):
        now = min(now, m.change[m.counts[CHANGES]].time)
        change_speeds(m, now)
    while m.counts[HEAP] > 0 and m.process[m.process[0].heap].due == now:
        process = pop(m)
        if m.process[process].is_moving:
            leave(m, process)
            m.process[process].end = now
            wake(m, process)
        elif len(m.change) > 0 and is_blocked(m, process):
            park(m, process)
        elif m.process[process].left == 0:  # a transfer of no bytes passes where others could
            m.process[process].end = now
            wake(m, process)
        else:
            join(m, process)
    update_rates(m, now)


def _row(m: ClockState, process: int) -> bool:
    """Perform the next row of an engine or a CC-core, if its value is there; whether it was."""
    it = m.process[process]
    if it.route != NONE:
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
        consume(m, key, value)
    return _begin_row(m, process, start, cause, reason)


def _begin_row(m: ClockState, process: int, start: int, cause: int, reason: int) -> bool:
    """Begin a row of an engine or a CC-core, and complete it if it moves nothing.

    False if it never gets so far.
    """
    it, ranks = m.process[process], m.sizes[0].ranks
    queue, rank = m.queue[process // ranks], process % ranks
    row = m.row[queue.base + it.row]
    if queue.kind != ENGINE and _is_idle(m, process):
        _move_on(m, process)
        return True
    if it.stage != NONE:
        start = _started(m, process, start)
    begun = end = _worked(m, process, start, row.overhead)
    if row.work != NONE:
        begun = _moved(m, process, begun, m.cells[row.work])
        end = _end_of_work(m, process, begun, row.work)
    if end == NONE:
        return False
    route = m.cells[row.route + queue.route * rank]
    if route != NONE:
        # a sum that int64 cannot hold is negative; what follows is later than the clock counts
        it.start, it.cause, it.reason = start, cause, reason
        it.floor = end if end >= 0 else BEYOND
        _send(m, process, route, begun, m.cells[row.size + queue.size * rank])
        return True
    _log_event(m, process, it.row, start, end, cause, reason, 0, 1, 0)
    it.free = end
    _move_on(m, process)
    return True


def _started(m: ClockState, process: int, time: int) -> int:
    """When a process that has something to do from a time on starts with it; NONE for never."""
    it, ready = m.process[process], time
    while m.stage[it.stage].until <= time:
        it.stage += 1
    while m.stage[it.stage].speed == 0:
        time = m.stage[it.stage].until
        if time == BEYOND:
            it.halted = ready
            return NONE
        it.stage += 1
    return time


def _end_of_work(m: ClockState, process: int, time: int, work: int) -> int:
    """When an instruction is done whose bytes flow from a time on; NONE for never.

    Engines work at their speed, DMA at its own. See costs.WORK for the cells of the work.
    """
    worked = _worked(m, process, time, m.cells[work + 1])
    if worked < 0:
        return worked
    moved = _moved(m, process, time, m.cells[work + 2])
    if moved < 0 or worked < moved:
        return _worked(m, process, moved, m.cells[work + 3])
    return _moved(m, process, worked, m.cells[work + 4])


def _moved(m: ClockState, process: int, time: int, ps: int) -> int:
    """When the DMAs of an instruction have done something from a time on; NONE for never.

    An engine that slows down during a run does not slow them; they stand still when it does.
    """
    it = m.process[process]
    if time < 0 or ps == 0:
        return time
    ps = -(-ps * 100 // it.percent)
    return time + ps if it.stage == NONE else _passed(m, process, time, ps)


def _worked(m: ClockState, process: int, time: int, work: int) -> int:
    """When a process has done work, in ps at full speed, that it begins at a time; NONE for never.

    An engine works at its speed. Other queues work as usual unless they stand still.
    """
    it = m.process[process]
    if time < 0 or time == BEYOND:
        return time
    if it.stage == NONE:
        return time - (-work * 100 // it.percent)
    if m.queue[process // m.sizes[0].ranks].kind != ENGINE:
        return _passed(m, process, time, work) if work > 0 else time
    units, at = 0, it.stage  # left are `work` ps and units, that is millionths of one
    while work > 0 or units > 0:
        stage = m.stage[at]
        at += 1
        if stage.until <= time:
            continue
        rate = stage.speed * it.percent
        if rate > 0:
            if work // rate >= (BEYOND - time) // UNIT:
                need = BEYOND - time
            else:
                need = work // rate * UNIT - (-(work % rate * UNIT + units) // rate)
            if need <= stage.until - time:
                return time + need
            there = stage.until - time
            done = there % UNIT * rate
            work -= there // UNIT * rate + done // UNIT
            units -= done % UNIT
            if units < 0:
                work, units = work - 1, units + UNIT
        elif stage.until == BEYOND:
            it.halted = time
            return NONE
        time = stage.until
    return time


def _passed(m: ClockState, process: int, time: int, ps: int) -> int:
    """When a process that does something from a time on has not stood still for so long.

    What takes no time is done when the process does not stand still.
    """
    it = m.process[process]
    at = it.stage
    while time < BEYOND:
        stage = m.stage[at]
        at += 1
        if stage.until <= time:
            continue
        if stage.speed > 0:
            if ps <= stage.until - time:
                return time + ps
            ps -= stage.until - time
        elif stage.until == BEYOND:
            it.halted = time
            return NONE
        time = stage.until
    return time


def _complete_row(m: ClockState, process: int) -> bool:
    """Complete an instruction whose bytes have been moved; whether they have."""
    it = m.process[process]
    if it.end == NONE:
        return False
    end = max(it.end, it.floor)
    alone = max(it.begun + it.alone, it.floor)
    it.route = NONE
    _log_event(m, process, it.row, it.start, end, it.cause, it.reason, end - alone, 1, 0)
    it.free = end
    _move_on(m, process)
    return True


def _is_idle(m: ClockState, process: int) -> bool:
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


def _ring(m: ClockState, process: int) -> bool:
    """Perform the next row that was pushed to a DMA ring, if there is one; whether it was."""
    it, sizes = m.process[process], m.sizes[0]
    if it.route != NONE:
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
    route = m.cells[row.route + queue.route * rank]
    size = m.cells[row.size + queue.size * rank]
    if queue.run_sizes != NONE:
        size = m.cells[m.cells[queue.run_sizes + rank] + it.row]
    # over EFA, a message to a peer waits until the last one to it has arrived
    pair = m.route[route].pair
    if pair != NONE and pair == it.pair and row.message != it.message and it.arrived > it.start:
        it.start, it.cause, it.reason = it.arrived, it.last, RING_BUSY
    count = -(-max(size, 1) // sizes.descriptor_bytes)
    begun = m.route[route].lead + count * sizes.descriptor_ps
    if it.stage == NONE:
        begun += it.start
    else:
        it.start = _started(m, process, it.start)
        begun = it.start if it.start == NONE else _passed(m, process, it.start, begun)
        if begun == NONE:
            return False
    it.pair, it.message = pair, row.message
    # its engines move the bytes of one transfer after those of the one before
    _send(m, process, route, max(begun, it.end), size)
    return True


def _complete_transfer(m: ClockState, process: int) -> bool:
    """Complete a ring's transfer whose bytes have been moved; whether they have."""
    it, sizes = m.process[process], m.sizes[0]
    if it.end == NONE:
        return False
    queue, rank = m.queue[process // sizes.ranks], process % sizes.ranks
    key = rank * sizes.semaphores + queue.tail
    row = m.increment[m.semaphore[key].start + it.row - m.semaphore[key].dropped].pushed
    route = m.route[it.route]
    it.route = NONE
    completions, late_ps = 1, 0
    if it.fault != NONE and m.fault[it.fault].nth == it.row:
        fault = m.fault[it.fault]
        it.end += fault.longer_ps
        completions, late_ps = fault.completions, fault.late_ps
        it.fault += 1
        if it.fault == len(m.fault) or m.fault[it.fault].process != process:
            it.fault = NONE
    slowed, end = it.end - it.begun - it.alone, it.end + route.latency
    _log_event(m, process, row, it.start, end, it.cause, it.reason, slowed, completions, late_ps)
    it.free, it.arrived = it.end - route.lead, end
    it.row += 1
    consume(m, key, it.row)
    return True


def _send(m: ClockState, process: int, number: int, begun: int, size: int) -> None:
    """Let bytes flow over a route from a time on: alone, or as a flow that shares its parts."""
    it, route = m.process[process], m.route[number]
    it.route, it.begun = number, begun
    it.alone = -(-size * MICRO // route.cap)
    if route.is_shared and (size > 0 or route.is_disturbed):
        it.first_use, it.end_use = route.first_use, route.end_use
        it.cap, it.weight, it.cap_level = route.cap, route.weight, route.cap_level
        it.end, it.left, it.since = NONE, size * MICRO, begun
        put(m, process, begun)
    elif it.stage == NONE:
        it.end = begun + it.alone
    else:
        it.end = _passed(m, process, begun, it.alone)


def _log_event(
    m: ClockState,
    process: int,
    row: int,
    start: int,
    end: int,
    cause: int,
    reason: int,
    slowed: int,
    completions: int,
    late_ps: int,
) -> None:
    """Log the event, and make its increments as often as it completes, so much later than usual."""
    sizes = m.sizes[0]
    number, rank = process // sizes.ranks, process % sizes.ranks
    event = m.counts[EVENTS]
    m.counts[EVENTS] = event + 1
    # a negative end has gone beyond int64; then times mean nothing any more (`clock._check_time`)
    m.counts[LATEST] = max(m.counts[LATEST], end if end >= 0 else BEYOND)
    m.process[process].last = event
    if sizes.is_recorded:
        record = m.event[event - m.counts[TAKEN]]
        record.queue, record.row, record.rank = number, row, rank
        record.start, record.end, record.slowed = start, end, slowed
        record.cause, record.reason = cause, reason if cause != NONE else 0
    queue = m.queue[number]
    span = m.span[queue.base + row]
    span.start, span.end = min(span.start, start), max(span.end, end)
    pushed = m.row[queue.base + row].pushed
    for at in range(queue.first_post, queue.end_post):
        post = m.post[at]
        posted = m.posted[post.base + row]
        to = m.cells[posted.rank + post.rank * rank]
        if to != NONE:
            key = to * sizes.semaphores + m.cells[posted.sem + post.sem * rank]
            seen = end + m.cells[posted.latency + post.latency * rank] + late_ps
            for _ in range(completions):
                increment(m, key, seen, event, pushed)


def _move_on(m: ClockState, process: int) -> None:
    """Go to the next row, or to the target of a control row."""
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


def _goes_on(m: ClockState, number: int, rank: int) -> bool:
    """Whether a rank enters the rows behind a control row this time; it does not jump then."""
    jump, branch = m.jump[number], m.branch[number * m.sizes[0].ranks + rank]
    if jump.how == ALWAYS:
        return False
    taken = branch.taken
    branch.taken = taken + 1
    if jump.how == COUNTED:
        if taken < jump.trips:
            return True
        branch.taken = 0
        return False
    goes_on: bool = m.cells[branch.first + taken] != 0
    return goes_on
