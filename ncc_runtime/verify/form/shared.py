"""Collectives that several programs share: the same rows in each of them, one to one."""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.executable import CcQueue, DmaQueue
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Subject
from ncc_runtime.verify.places import collective

_Rows = dict[str, np.ndarray]


@rule("exe-W21", is_of_all=True)
def shared_rows_are_the_same(subject: Subject) -> Iterator[str]:
    """Of a collective, the CC-core and each ring of all programs have the same rows."""
    if len(subject.parts) == 1:
        return
    for number in range(len(subject.executable.program.placeholders)):
        first, *others = (one for one in subject.parts if one.takes_part(number))
        wanted = _rows(first, number)
        for other in others:
            for queue in _unlike(wanted, _rows(other, number)):
                what = collective(first.executable, number)
                yield f"{other.label}, queue {queue}: not the rows of {what} in {first.label}"


def _unlike(wanted: _Rows, found: _Rows) -> Iterator[str]:
    """The queues in which rows differ."""
    for queue in sorted(wanted.keys() | found.keys()):
        if not np.array_equal(wanted.get(queue, _NONE), found.get(queue, _NONE)):
            yield queue


_NONE: np.ndarray = np.zeros((0, 0), np.int32)


def _rows(subject: Subject, number: int) -> _Rows:
    """What ranks have alike in the rows of a collective, by queue."""
    queues = [queue for _, queue in subject.programs] + [ring.queue for ring in subject.rings]
    found: _Rows = {}
    for queue in queues:
        own = queue.placeholder == number
        if own.any():
            found[queue.name] = np.stack([column[own] for column in _columns(queue)])
    return found


def _columns(queue: CcQueue | DmaQueue) -> tuple[np.ndarray, ...]:
    if isinstance(queue, CcQueue):
        return queue.opcode, queue.round, queue.ring
    sources = np.full(len(queue.opcode), queue.sources.shape[2])
    return queue.opcode, queue.round, queue.divisor, sources


RULES = (shared_rows_are_the_same,)
