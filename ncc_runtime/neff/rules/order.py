"""Triggers: each placeholder once, and every stream's in one order that semaphores enforce.

A stream completes its placeholders in the order of their triggers, and its semaphore counts them.
So every rank must trigger them in the same order on every run: by the queue's own order, or, where
several queues trigger, because each trigger is known to be done before the next one starts. With
control flow what is known depends on the way a run takes; there, one queue triggers a stream.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.neff.isa import ENGINES
from ncc_runtime.neff.program import MAX_STREAMS, Program
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.rules.sync import streams_by_semaphore
from ncc_runtime.neff.table import NONE


@attrs.frozen
class _Trigger:
    """Where a placeholder is triggered."""

    queue: int
    pc: int

    def __str__(self) -> str:
        return f"queue {ENGINES[self.queue].value}, pc {self.pc}"


def _triggers(program: Program) -> Iterator[tuple[int, _Trigger]]:
    for queue, engine in enumerate(ENGINES):
        column = program.queues[engine].placeholder
        for pc in np.flatnonzero(column != NONE).tolist():
            yield int(column[pc]), _Trigger(queue, pc)


@rule("neff-P7")
def _each_is_triggered_once(program: Program) -> Iterator[str]:
    counts = Counter(number for number, _ in _triggers(program))
    for number in range(len(program.placeholders)):
        if counts[number] != 1:
            yield f"placeholder p{number}: triggered {counts[number]} times, must be once"


@rule("neff-P8")
def _streams_have_one_order(program: Program) -> Iterator[str]:
    triggers = dict(_triggers(program))
    streams: dict[int, list[int]] = {}
    for number, placeholder in enumerate(program.placeholders):
        if not 0 <= placeholder.stream < MAX_STREAMS:
            yield f"placeholder p{number}: stream {placeholder.stream}, there are {MAX_STREAMS}"
        elif number in triggers:
            streams.setdefault(placeholder.stream, []).append(number)
    pairs = [pair for ids in streams.values() for pair in itertools.pairwise(ids)]
    crossing = any(triggers[one].queue != triggers[other].queue for one, other in pairs)
    flat = not program.blocks
    known = _known_at_triggers(program, triggers, streams) if crossing and flat else {}
    for one, other in pairs:
        first, second = triggers[one], triggers[other]
        if first.queue == second.queue:
            ordered = first.pc < second.pc
        elif flat:  # triggers that a run never reaches are the deadlock proof's to report
            ordered = other not in known or known[other][first.queue] > first.pc
        else:
            ordered = False
        if not ordered:
            missed = "without waiting for" if flat else "with control flow, not in the queue of"
            yield f"placeholder p{other}: triggered at {second} {missed} p{one}"


_Clock = list[int]  # per queue, how many of its instructions are known to be done


def _known_at_triggers(
    program: Program, triggers: dict[int, _Trigger], streams: dict[int, list[int]]
) -> dict[int, _Clock]:
    """What is known to be done when each placeholder is triggered, from one greedy run."""
    run = _Run(program, streams)
    while run.advance():
        pass
    return {number: run.known[number] for number in triggers if number in run.known}


class _Run:
    """One greedy run of the queues; counters only grow, so its order of advance is irrelevant."""

    def __init__(self, program: Program, streams: dict[int, list[int]]) -> None:
        self.known: dict[int, _Clock] = {}
        self._rows = [list(program.queues[engine]) for engine in ENGINES]
        self._clocks = [[0] * len(ENGINES) for _ in ENGINES]
        self._triggered: dict[int, _Clock] = {}
        self._posts: list[list[_Clock]] = [[] for _ in program.semaphores]
        self._awaiting = {
            semaphore: deque(streams.get(stream, ()))
            for semaphore, stream in streams_by_semaphore(program).items()
        }

    def advance(self) -> bool:
        """Run every queue as far as it goes; whether any moved."""
        before = [clock[queue] for queue, clock in enumerate(self._clocks)]
        for queue, rows in enumerate(self._rows):
            clock = self._clocks[queue]
            while clock[queue] < len(rows) and self._step(queue, clock):
                pass
        return before != [clock[queue] for queue, clock in enumerate(self._clocks)]

    def _step(self, queue: int, clock: _Clock) -> bool:
        row = self._rows[queue][clock[queue]]
        if row.wait_sem != NONE:
            posts = self._posts[row.wait_sem]
            if len(posts) < row.wait_value:
                return False
            _join(clock, posts[row.wait_value - 1])
        if row.placeholder != NONE:
            self.known[row.placeholder] = list(clock)
        clock[queue] += 1
        if row.post_sem != NONE:
            self._posts[row.post_sem].append(list(clock))
        if row.placeholder != NONE:
            self._triggered[row.placeholder] = list(clock)
            self._complete()
        return True

    def _complete(self) -> None:
        """Let the streams' semaphores count what is triggered, in the order of ids."""
        for semaphore, waiting in self._awaiting.items():
            while waiting and waiting[0] in self._triggered:
                done = list(self._triggered[waiting.popleft()])
                if self._posts[semaphore]:
                    _join(done, self._posts[semaphore][-1])
                self._posts[semaphore].append(done)


def _join(clock: _Clock, other: _Clock) -> None:
    for queue, count in enumerate(other):
        clock[queue] = max(clock[queue], count)


RULES = (_each_is_triggered_once, _streams_have_one_order)
