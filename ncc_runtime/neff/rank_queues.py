"""What a program's rows wait for on one rank, as rows of other queues: the order that it states.

Queues are the engines, then the streams. A row of a stream is what it does next: it completes a
placeholder, when that is triggered, or acknowledges that it has read a predicate, when the engine
that triggers it has. A semaphore has one owner (neff-S2, neff-S3), which increments it in the order
of its rows; so the wait for a value v is the wait for the v-th of these rows (`order.py`). Blocks
run once.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.neff.isa import ENGINES
from ncc_runtime.neff.program import MAX_STREAMS, Program
from ncc_runtime.neff.structure import Structure, acknowledgements
from ncc_runtime.neff.table import NONE
from ncc_runtime.order import NEVER, Target

QUEUES = len(ENGINES) + MAX_STREAMS

OWNERS = [engine.value for engine in ENGINES] + [
    f"stream {stream}" for stream in range(MAX_STREAMS)
]
"""By queue, what a semaphore calls it that it owns."""

Row = tuple[int, int]
"""A queue and a row in it."""


@attrs.frozen(eq=False)
class RankQueues:
    """The queues of a rank that runs a program."""

    targets: list[list[tuple[Target, ...]]]  # by queue and row, what it waits for
    triggered: Mapping[int, Row]  # by placeholder, where
    completed: Mapping[int, Row]  # by placeholder, the row of its stream


def rank_queues(program: Program, structure: Structure, first: int = 0) -> RankQueues:
    """The queues of a program, numbered from `first` on."""
    targets: list[list[tuple[Target, ...]]] = [[] for _ in range(QUEUES)]
    triggered: dict[int, Row] = {}
    completed: dict[int, Row] = {}
    # by stream (phase, whether it acknowledges, placeholder), in the order in which it does them:
    # that of triggers, which in a phase is that of placeholders (neff-P8), then what ends the phase
    deeds: dict[int, list[tuple[int, bool, int]]] = {stream: [] for stream in range(MAX_STREAMS)}
    engine_of: dict[int, int] = {}  # by stream, who triggers it; with blocks that is one
    for queue, engine in enumerate(ENGINES):
        column = program.queues[engine].placeholder
        for pc in np.flatnonzero(column != NONE).tolist():
            number = int(column[pc])
            stream = program.placeholders[number].stream
            if stream in deeds and number not in triggered:  # what neff-P7 and neff-P8 refuse
                deeds[stream].append((int(structure.phases(engine, [pc])[0]), False, number))
                engine_of[stream] = queue
                triggered[number] = first + queue, pc
    for phase, stream in acknowledgements(program, structure):
        deeds[stream].append((phase, True, NONE))
    for stream, of_stream in deeds.items():
        queue = len(ENGINES) + stream
        for phase, acknowledges, number in sorted(of_stream):
            if acknowledges:
                engine = ENGINES[engine_of[stream]]
                awaited = first + engine_of[stream], int(structure.pcs[engine][phase])
            else:
                awaited = triggered[number]
                completed[number] = first + queue, len(targets[queue])
            targets[queue].append((Target(*awaited, is_own=True),))

    increments: list[tuple[int, Sequence[int]]] = []  # by semaphore: the owner, its rows that do
    for number, semaphore in enumerate(program.semaphores):
        owner = OWNERS.index(semaphore.owner) if semaphore.owner in OWNERS else NONE
        if 0 <= owner < len(ENGINES):
            posts = program.queues[ENGINES[owner]].post_sem
            increments.append((owner, np.flatnonzero(posts == number).tolist()))
        else:  # a stream counts all that it does; nobody is refused (neff-S2)
            increments.append((owner, range(len(targets[owner]) if owner != NONE else 0)))
    for queue, engine in enumerate(ENGINES):
        table = program.queues[engine]
        targets[queue] = [()] * len(table)
        for pc in np.flatnonzero(table.wait_sem != NONE).tolist():
            owner, rows = increments[int(table.wait_sem[pc])]
            value = int(table.wait_value[pc])
            if value > 0:
                reached = value <= len(rows)
                awaited = (first + owner, rows[value - 1]) if reached else (first, NEVER)
                targets[queue][pc] = (Target(*awaited, is_own=True),)
    return RankQueues(targets, triggered, completed)
