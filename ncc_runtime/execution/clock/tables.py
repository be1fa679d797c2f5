"""What the kernel of the clock reads and writes: a few arrays of records, all whole numbers.

A *process* is a queue of one rank: number queue * ranks + rank. A *row* is numbered through all
queues. A *flow* is a process whose bytes are under way on parts that it has to share.

A column of rows by ranks lies in the pool `ClockState.cells`, equal rows once: the cell of a row
and rank is cells[offset of the row + stride of the queue * rank]; the stride is 0 if all ranks have
the same. So the record of a row holds offsets, and the record of its queue, in fields of the same
name, the strides.
"""

from typing import NamedTuple

import numpy as np

ENGINE, CC_CORE, RING = 0, 1, 2
"""Kinds of queues."""

NONE = -1
"""No event, process, node, row, jump, route or time."""

ALWAYS, COUNTED, RECORDED = 0, 1, 2
"""How a jump is decided."""

QUEUE, SEMAPHORE, RING_BUSY = 1, 2, 3
"""Reasons of an event's start, as in trace.Reason; 0: none."""

BEYOND = 2**63 - 1
"""The end of all events once one ends later than int64 can count."""

DONE, LOG_FULL, INCREMENTS_FULL, PAUSED = range(4)
"""Why the kernel returns."""

UNIT = 1_000_000
"""Units of work in a picosecond at full speed: percent of a core times ten-thousandths."""

(
    HEAD,
    WAITING,
    EVENTS,
    INCREMENTS,
    LARGEST,
    CHANGED,
    AFFECTED,
    TIGHT,
    HEAP,
    LATEST,
    KEPT_LEVEL,
    LEAST_CAP_LEVEL,
    PICKED,
    IS_CRAMPED,
    TAKEN,
    STEPS_LEFT,
    CHANGES,
    PARKED,
) = range(18)
"""Numbers in ClockState.counts: of `todo`, its head and length; events; increments that have room,
and the most of one semaphore; parts that changed; flows and parts of one sharing; of the heap; the
end of all events; of one sharing: the level up to which rates stay, the least `cap_level` of flows
without a rate, the tightest parts; whether a flow had less than 1 MB/s; events that have been moved
out of ClockState.event; the steps left until the kernel returns; changes of speeds so far; flows
that stand still."""
COUNTS = 18


def _record(names: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in names.split()])


RECORDS = {
    # of a program: ranks, semaphores of a rank, whether events are kept, posts of a row at most,
    # uses of a route at most, and the bytes and ps of a descriptor
    "sizes": _record(
        "ranks semaphores is_recorded most_posts most_uses descriptor_bytes descriptor_ps"
    ),
    # of a queue: kind, number of rows, number of its row 0, strides of its columns, its posts, the
    # tail semaphore of a ring, the place of its first offset; if the sizes of its transfers differ
    # from trip to trip: the offset in `cells` of one offset a rank, at which its sizes lie
    "queue": _record(
        "kind length base wait_sem wait_value size route first_post end_post tail offset run_sizes"
    ),
    # of a row: ps before its work at full speed, the offset in `cells` of an instruction's work
    # (costs.WORK), offsets of its cells, the row of a ring that it pushes, its jump; of a ring's:
    # the same number for what goes to a peer in one message
    "row": _record("overhead work wait_sem wait_value size route pushed jump message"),
    # of a post of a queue: the number of its first row in `posted`, strides of its columns
    "post": _record("base rank sem latency"),
    # of a row of a post: offsets of its cells
    "posted": _record("rank sem latency"),
    # of a control row: where it leads, how it is decided, trips if COUNTED, shift of waits
    "jump": _record("target how trips shift shift_step"),
    # of a jump and rank: decisions taken, and where they begin in `cells` if RECORDED
    "branch": _record("taken first"),
    # of a route: ps until bytes flow, ps from the last byte until completion, the rank sent to if
    # over EFA, MB/s alone, its weight where it competes, the level at which it has as much as
    # alone, its uses, whether it may have to share; whether a part of it changes its speed, MB/s
    # that the others let pass between instances and elsewhere, whether one follows the other
    "route": _record(
        "lead latency pair cap weight cap_level first_use end_use is_shared "
        "is_disturbed network_cap other_cap is_relayed"
    ),
    # of a route and part: how often each byte passes the part
    "use": _record("part times"),
    # of a part: MB/s it has, MB/s its flows would take alone, first node of their list; whether
    # it cannot serve all, whether it is in the list of changed ones; while shares are worked out:
    # MB/s left, weight of flows without a rate, level that this gives them; lists: of changed
    # parts, of tight ones, of the tightest; whether it is an adapter or a queue pair's end
    "part": _record(
        "capacity demand user is_tight is_changed spare weight level changed tight picked "
        "is_network"
    ),
    # of a flow and part: neighbours in the list of the part; the flow, how often it passes
    "node": _record("next back process times"),
    # of a process: next row (of a ring: rows performed), when it is free, its last event, percent
    # of its speed; of a ring: the rank that it last sent to over EFA, the message, when it had
    # arrived; the value it sleeps for, the next sleeper of that semaphore, whether it is in `todo`;
    # its flow: route, start of the row, begin, time alone and end of the bytes, the row's end at
    # the earliest, cause and reason, 1e-6 bytes left at a time; whether its rate is being worked
    # out, the level at which it got its rate, its new rate, rate, what its route has, whether bytes
    # flow; its time and place in the heap; lists: of processes to look at, of flows whose rates are
    # worked out and of those still without, the heap; if its speed changes: the stage of its speed
    # that it is in; whether its flow stands still with it, since when it stands still for ever; of
    # a ring: its next fault; the list of flows that stand still
    "process": _record(
        "row free last percent pair message arrived awaited next is_todo route start begun alone "
        "end floor cause reason left since is_affected level new_rate rate weight cap_level cap "
        "first_use end_use is_moving due place todo affected waiting heap stage is_stopped halted "
        "fault parked"
    ),
    # of a process whose speed changes, stages that follow each other: its speed until a time
    "stage": _record("until speed"),
    # a time at which a part gets another rate in MB/s, or a process stops (0) or goes on (1);
    # NONE for the one that it is not
    "change": _record("time part process value"),
    # of a ring's process and the number of a transfer: how often it makes its increments, how much
    # longer it takes, and how much later they are seen; by process, then number
    "fault": _record("process nth completions longer_ps late_ps"),
    # of a row: the first start and the last end of its events, on any rank
    "span": _record("start end"),
    # of a semaphore of a rank: value, where its increments are, room for them, the first sleeper;
    # how many of the first are dropped, up to which value they are consumed, whether only one queue
    # waits for it, so that they can be dropped
    "semaphore": _record("held start room sleeper dropped consumed has_one"),
    # of an increment: when it is seen, the event that made it, the row of a ring that it pushes
    "increment": _record("seen maker pushed"),
    # of an event: see trace.Trace; 39 bytes, since there are so many
    "event": np.dtype(
        [
            ("queue", np.int16),
            ("row", np.int32),
            ("rank", np.int32),
            ("start", np.int64),
            ("end", np.int64),
            ("cause", np.int32),
            ("reason", np.uint8),
            ("slowed", np.int64),
        ]
    ),
}
"""Records by the field of ClockState; numbers are int64 but for events, times in ps."""


class ClockState(NamedTuple):
    """The tables of a run; those from `process` on change while the kernel runs."""

    sizes: np.ndarray  # (1,)
    cells: np.ndarray  # int64
    queue: np.ndarray
    row: np.ndarray
    post: np.ndarray
    posted: np.ndarray
    jump: np.ndarray
    route: np.ndarray
    use: np.ndarray
    stage: np.ndarray
    change: np.ndarray
    fault: np.ndarray
    process: np.ndarray
    part: np.ndarray
    node: np.ndarray  # process * most_uses + place among the uses of its route
    branch: np.ndarray  # jump * ranks + rank
    span: np.ndarray
    offset: np.ndarray  # int64, (place of a queue + rank) * semaphores + semaphore
    semaphore: np.ndarray  # rank * semaphores + semaphore
    increment: np.ndarray
    event: np.ndarray
    counts: np.ndarray  # int64


def empty(field: str, count: int) -> np.ndarray:
    """So many records, all zero."""
    return np.zeros(count, RECORDS[field])
