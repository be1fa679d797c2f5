"""Shares of what is contended: weighted max-min fairness in whole MB/s, after every change.

A part that could serve all its flows at the rates they would have alone is no constraint; flows
are followed only through the others. On these the flows get rates in proportion to their packets,
the tightest part first, and what a flow cannot use is left to the rest. Shares are rounded down,
completions up, parts are taken in the order of their numbers: nothing depends on anything else.

The *level* of a flow is the share per packet at which it got its rate; flows get theirs in the
order of levels. Until the level of a flow that leaves, or the one at which the first part of a flow
that joins can give no more, all goes as it did before the change: flows of lower levels keep their
rates, and what lies behind them is not reached. Where a flow gets 1 MB/s though its share is less,
shares may sink again: from then on all is reached.

Source: Bertsekas and Gallager, Data Networks, section 6.5.2 (progressive filling).

The processes whose transfers are next to begin or to end: a heap that knows their places.

Of equal times the lower process comes first. The heap is the field `heap` of Machine.process, the
time of a process its `due`, its place in the heap `place`, or NONE.
"""

from ncc_runtime.execution.clock.compiled import compiled
from ncc_runtime.execution.clock.tables import (
    AFFECTED,
    CHANGED,
    HEAP,
    IS_CRAMPED,
    LEAST_SLOW,
    LEFT,
    LEVEL,
    NONE,
    PICKED,
    TIGHT,
    Machine,
)


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


MICRO = 1_000_000
"""Work is counted in 1e-6 byte: at 1 MB/s one of them goes in a picosecond."""

FINE = 16
"""Binary digits that shares per packet have behind the point."""

HIGHEST = 2**62
"""A level above all others."""


@compiled
def join(m: Machine, process: int) -> None:
    """A flow begins: it uses its parts."""
    flow = m.process[process]
    node = process * m.sizes[0].widest
    for at in range(flow.first_use, flow.end_use):
        number = m.use[at].part
        part = m.part[number]
        m.node[node].next, m.node[node].back = part.user, NONE
        m.node[node].process, m.node[node].times = process, m.use[at].times
        if part.user != NONE:
            m.node[part.user].back = node
        part.user = node
        part.demand += m.use[at].times * flow.cap
        _note(m, number)
        node += 1
    flow.is_moving, flow.rate, flow.level = 1, 0, HIGHEST
    m.counts[LEVEL] = min(m.counts[LEVEL], flow.slow)
    _affect(m, process)


@compiled
def leave(m: Machine, process: int) -> None:
    """A flow is over."""
    flow = m.process[process]
    node = process * m.sizes[0].widest
    for at in range(flow.first_use, flow.end_use):
        number = m.use[at].part
        after, before = m.node[node].next, m.node[node].back
        if before != NONE:
            m.node[before].next = after
        else:
            m.part[number].user = after
        if after != NONE:
            m.node[after].back = before
        m.part[number].demand -= m.use[at].times * flow.cap
        _note(m, number)
        node += 1
    flow.is_moving = 0
    m.counts[LEVEL] = min(m.counts[LEVEL], flow.level)


@compiled
def _note(m: Machine, part: int) -> None:
    """Look at a part before rates are found."""
    if not m.part[part].is_changed:
        m.part[part].is_changed = 1
        m.part[m.counts[CHANGED]].changed = part
        m.counts[CHANGED] += 1


@compiled
def _affect(m: Machine, process: int) -> None:
    """The rate of a flow is to be found again."""
    if m.process[process].is_affected:
        return
    m.process[process].is_affected = 1
    m.process[process].fresh = 0
    m.process[m.counts[AFFECTED]].affected = process
    m.counts[AFFECTED] += 1
    _note_tight(m, process)


@compiled
def _note_tight(m: Machine, process: int) -> None:
    """Look at the parts of a flow that cannot serve all."""
    flow = m.process[process]
    for at in range(flow.first_use, flow.end_use):
        part = m.part[m.use[at].part]
        if part.demand > part.capacity:
            _note(m, m.use[at].part)


@compiled
def share(m: Machine, now: int) -> None:
    """Give every flow that a change can reach its new rate, and its new end in the heap."""
    for at in range(m.counts[AFFECTED]):
        _limit_level(m, m.process[at].affected)
    if m.counts[IS_CRAMPED]:
        m.counts[LEVEL] = 0
    _reach(m)
    m.counts[LEFT] -= m.counts[AFFECTED]
    _fill(m)
    for at in range(m.counts[AFFECTED]):
        process = m.process[at].affected
        m.process[process].is_affected = 0
        _settle(m, process, now)
    for at in range(m.counts[CHANGED]):
        m.part[m.part[at].changed].is_changed = 0
    m.counts[CHANGED] = m.counts[AFFECTED] = m.counts[TIGHT] = 0
    m.counts[LEVEL] = m.counts[LEAST_SLOW] = HIGHEST


@compiled
def _limit_level(m: Machine, process: int) -> None:
    """Before which level a flow that joins changes nothing: where its first part is used up."""
    flow = m.process[process]
    for at in range(flow.first_use, flow.end_use):
        part = m.part[m.use[at].part]
        if part.demand > part.capacity:
            before = 0
            level = _used_up(m, part.user, part.capacity, before)
            while before < level < m.counts[LEVEL]:
                before = level
                level = _used_up(m, part.user, part.capacity, before)
            m.counts[LEVEL] = min(m.counts[LEVEL], level)


@compiled
def _used_up(m: Machine, node: int, spare: int, level: int) -> int:
    """The level at which a part is used up, if flows below a level keep their rates."""
    weight = 0
    while node != NONE:
        user = m.node[node]
        flow = m.process[user.process]
        if flow.level < level:
            spare -= user.times * flow.rate
        else:
            weight += user.times * flow.packet
        node = user.next
    return (max(0, spare) << FINE) // weight if weight > 0 else HIGHEST


@compiled
def _reach(m: Machine) -> None:
    """Find the flows that a change can reach, and the parts that cannot serve all of them."""
    for at in range(m.counts[AFFECTED]):
        _note_tight(m, m.process[at].affected)
    looked = 0
    while looked < m.counts[CHANGED]:
        number = m.part[looked].changed
        part = m.part[number]
        looked += 1
        is_tight = part.demand > part.capacity
        if is_tight:
            m.part[m.counts[TIGHT]].tight = number
            m.counts[TIGHT] += 1
        if is_tight or part.is_tight:
            _reach_users(m, number)
        part.is_tight = is_tight


@compiled
def _reach_users(m: Machine, number: int) -> None:
    """Find the flows of a part that a change can reach, and what the others leave to them."""
    part = m.part[number]
    node, spare, weight = part.user, part.capacity, 0
    while node != NONE:
        user = m.node[node]
        flow = m.process[user.process]
        if flow.level < m.counts[LEVEL]:
            spare -= user.times * flow.rate
        else:
            weight += user.times * flow.packet
            _affect(m, user.process)
        node = user.next
    part.spare, part.weight, part.share = max(0, spare), weight, NONE


@compiled
def _fill(m: Machine) -> None:
    """Rates by progressive filling."""
    left = m.counts[AFFECTED]
    for at in range(left):
        process = m.process[at].affected
        m.process[at].waiting = process
        m.counts[LEAST_SLOW] = min(m.counts[LEAST_SLOW], m.process[process].slow)
    fine = _least_share(m)
    while fine != NONE:
        if fine >= m.counts[LEAST_SLOW]:
            left = _fix_slow(m, left, fine)
        else:
            _fix_tightest(m, fine)
        fine = _least_share(m)
    _fix_rest(m, left)


@compiled
def _least_share(m: Machine) -> int:
    """The least share per packet of any part; NONE if none limits anybody any more.

    Parts that nobody waits for leave the list; shares that nothing has changed are kept. The parts
    with the least share are picked.
    """
    least, kept, picked = HIGHEST, 0, 0
    for at in range(m.counts[TIGHT]):
        number = m.part[at].tight
        part = m.part[number]
        if part.weight > 0:
            m.part[kept].tight = number
            kept += 1
            if part.share == NONE:
                part.share = (part.spare << FINE) // part.weight
            if part.share < least:
                least, picked = part.share, 0
            if part.share == least:
                m.part[picked].picked = number
                picked += 1
    m.counts[TIGHT], m.counts[PICKED] = kept, picked
    return least if kept > 0 else NONE


@compiled
def _fix(m: Machine, process: int, rate: int, level: int) -> None:
    """A flow has its rate: its parts have so much less to give."""
    if rate < 1:
        rate, m.counts[IS_CRAMPED] = 1, 1
    flow = m.process[process]
    flow.fresh, flow.level = rate, level
    for at in range(flow.first_use, flow.end_use):
        use = m.use[at]
        part = m.part[use.part]
        part.weight -= use.times * flow.packet
        part.spare = max(0, part.spare - use.times * rate)
        part.share = NONE


@compiled
def _fix_slow(m: Machine, left: int, fine: int) -> int:
    """Flows that cannot use so much get what they have alone; how many still wait."""
    kept, least = 0, HIGHEST
    for at in range(left):
        process = m.process[at].waiting
        flow = m.process[process]
        if flow.fresh != 0:
            continue
        if flow.slow <= fine:
            _fix(m, process, flow.cap, flow.slow)
        else:
            least = min(least, flow.slow)
            m.process[kept].waiting = process
            kept += 1
    m.counts[LEAST_SLOW] = least
    return kept


@compiled
def _fix_tightest(m: Machine, fine: int) -> None:
    """The flows of all parts that have no more to give get this share, all the same one."""
    for at in range(m.counts[PICKED]):
        node = m.part[m.part[at].picked].user
        while node != NONE:
            process = m.node[node].process
            node = m.node[node].next
            if m.process[process].fresh == 0:
                _fix(m, process, (fine * m.process[process].packet) >> FINE, fine)


@compiled
def _fix_rest(m: Machine, left: int) -> None:
    """Nothing limits those that still wait."""
    for at in range(left):
        flow = m.process[m.process[at].waiting]
        if flow.fresh == 0:
            flow.fresh, flow.level = flow.cap, flow.slow


@compiled
def _settle(m: Machine, process: int, now: int) -> None:
    """Go on at the new rate from now."""
    flow = m.process[process]
    if flow.fresh == flow.rate:
        return
    flow.left = max(0, flow.left - flow.rate * (now - flow.since))
    flow.since, flow.rate = now, flow.fresh
    put(m, process, now - (-flow.left // flow.rate))
