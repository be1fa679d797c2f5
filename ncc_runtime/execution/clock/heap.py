"""The processes whose transfers are next to begin or to end: a heap that knows their places.

Of equal times the lower process comes first. The heap is the field `heap` of Machine.process, the
time of a process its `due`, its place in the heap `place`, or NONE.
"""

from ncc_runtime.execution.clock.compiled import compiled
from ncc_runtime.execution.clock.tables import HEAP, NONE, Machine


@compiled
def put(m: Machine, process: int, time: int) -> None:
    """Add a process, or give it another time."""
    at = m.process[process].place
    if at == NONE:
        at = m.counts[HEAP]
        m.counts[HEAP] += 1
    m.process[process].due = time
    _sink(m, process, _rise(m, process, at))


@compiled
def take(m: Machine) -> int:
    """Take out the first."""
    first: int = m.process[0].heap
    m.process[first].place = NONE
    m.counts[HEAP] -= 1
    if m.counts[HEAP] > 0:
        _sink(m, m.process[m.counts[HEAP]].heap, 0)
    return first


@compiled
def _is_before(m: Machine, one: int, other: int) -> bool:
    first, second = m.process[one].due, m.process[other].due
    is_before: bool = first < second or (first == second and one < other)
    return is_before


@compiled
def _rise(m: Machine, process: int, at: int) -> int:
    """Move a process up from a free place; where it comes to."""
    while at > 0:
        above = (at - 1) // 2
        other = m.process[above].heap
        if not _is_before(m, process, other):
            break
        _stand(m, other, at)
        at = above
    return at


@compiled
def _sink(m: Machine, process: int, at: int) -> None:
    """Move a process down from a free place, and let it stand there."""
    while True:
        below = 2 * at + 1
        if below >= m.counts[HEAP]:
            break
        other = m.process[below].heap
        if below + 1 < m.counts[HEAP] and _is_before(m, m.process[below + 1].heap, other):
            below += 1
            other = m.process[below].heap
        if not _is_before(m, other, process):
            break
        _stand(m, other, at)
        at = below
    _stand(m, process, at)


@compiled
def _stand(m: Machine, process: int, at: int) -> None:
    m.process[at].heap = process
    m.process[process].place = at
