"""Flows on parts of the machine that they share: weighted max-min fairness, in whole MB/s.

Rates are worked out anew whenever a flow begins or ends. Progressive filling raises the rates of
all flows together, in proportion to their weights, until a part is used up; its flows keep what
they have, and the rest go on. A flow also stops at its cap, the rate that it would have alone.
Source: Bertsekas and Gallager, Data Networks, section 6.5.2.

A part that could serve all its flows at their caps is no constraint; flows are connected only
through the others, the *tight* parts. Rates are rounded down, completions up, parts are taken in
the order of their numbers: the result depends on nothing else.

A part's rate may change at given times. Its flows then end and begin again, as far as their shares
are concerned; while it is 0 they are *parked*, and share nothing.

Most changes reach few flows. The *level* of a flow is the rate per weight at which it stopped;
filling stops flows in the order of levels. Up to the level of a flow that ends, or up to the level
at which the first part of a flow that begins is used up, filling goes as it did before the change:
flows of lower levels keep their rates, and what is connected only through them is not reached.
One exception: a flow gets 1 MB/s even where its share is less, so levels may sink again; from then
on all is reached.

At the end of the file is the heap of flows that are next to begin or to end. It knows where each
process is, so that one whose end changes can be moved: `ClockState.process` has the heap in its
field `heap`, the time of a process in `due`, its place in the heap in `place`, or NONE. Of equal
times the lower process comes first.
"""

from ncc_runtime.execution.clock.tables import (
    AFFECTED,
    CHANGED,
    CHANGES,
    HEAP,
    IS_CRAMPED,
    KEPT_LEVEL,
    LEAST_CAP_LEVEL,
    NONE,
    PARKED,
    PICKED,
    STEPS_LEFT,
    TIGHT,
    ClockState,
)

MICRO = 1_000_000
"""Work is counted in 1e-6 byte: at 1 MB/s one of them goes in a picosecond."""

FINE = 16
"""Binary digits of a level behind the point; levels are MB/s per weight."""

HIGHEST = 2**62
"""A level above all others."""


# Rates


def update_rates(m: ClockState, now: int) -> None:
    """Give every flow that changes can reach its new rate, and its new end in the heap."""
    for at in range(m.counts[AFFECTED]):
        _lower_kept_level(m, m.process[at].affected)
    if m.counts[IS_CRAMPED]:
        m.counts[KEPT_LEVEL] = 0
    _reach(m)
    m.counts[STEPS_LEFT] -= m.counts[AFFECTED]
    _fill(m)
    for at in range(m.counts[AFFECTED]):
        process = m.process[at].affected
        m.process[process].is_affected = 0
        _apply_rate(m, process, now)
    for at in range(m.counts[CHANGED]):
        m.part[m.part[at].changed].is_changed = 0
    m.counts[CHANGED] = m.counts[AFFECTED] = m.counts[TIGHT] = 0
    m.counts[KEPT_LEVEL] = m.counts[LEAST_CAP_LEVEL] = HIGHEST


def _lower_kept_level(m: ClockState, process: int) -> None:
    """Lower KEPT_LEVEL to where the first part of a new flow is used up; it changes none below."""
    flow = m.process[process]
    for at in range(flow.first_use, flow.end_use):
        part = m.part[m.use[at].part]
        if part.demand > part.capacity:
            before = 0
            level = _saturation_level(m, part.user, part.capacity, before)
            while before < level < m.counts[KEPT_LEVEL]:
                before = level
                level = _saturation_level(m, part.user, part.capacity, before)
            m.counts[KEPT_LEVEL] = min(m.counts[KEPT_LEVEL], level)


def _saturation_level(m: ClockState, node: int, spare: int, level: int) -> int:
    """The level at which a part is used up, if flows below `level` keep their rates."""
    weight = 0
    while node != NONE:
        user = m.node[node]
        flow = m.process[user.process]
        if flow.level < level:
            spare -= user.times * flow.rate
        else:
            weight += user.times * flow.weight
        node = user.next
    return (max(0, spare) << FINE) // weight if weight > 0 else HIGHEST


def _reach(m: ClockState) -> None:
    """Breadth-first search: flows that a change can reach, and the tight parts between them."""
    for at in range(m.counts[AFFECTED]):
        _mark_tight_parts(m, m.process[at].affected)
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


def _reach_users(m: ClockState, number: int) -> None:
    """Mark the flows of a part that a change can reach, and what the others leave to them."""
    part = m.part[number]
    node, spare, weight = part.user, part.capacity, 0
    while node != NONE:
        user = m.node[node]
        flow = m.process[user.process]
        if flow.level < m.counts[KEPT_LEVEL]:
            spare -= user.times * flow.rate
        else:
            weight += user.times * flow.weight
            _mark_affected(m, user.process)
        node = user.next
    part.spare, part.weight, part.level = max(0, spare), weight, NONE


def _fill(m: ClockState) -> None:
    """Rates by progressive filling."""
    left = m.counts[AFFECTED]
    for at in range(left):
        process = m.process[at].affected
        m.process[at].waiting = process
        m.counts[LEAST_CAP_LEVEL] = min(m.counts[LEAST_CAP_LEVEL], m.process[process].cap_level)
    level = _lowest_level(m)
    while level != NONE:
        if level >= m.counts[LEAST_CAP_LEVEL]:
            left = _fix_capped(m, left, level)
        else:
            _fix_tightest(m, level)
        level = _lowest_level(m)
    _fix_rest(m, left)


def _lowest_level(m: ClockState) -> int:
    """The lowest level at which a part is used up; NONE if none limits any flow any more.

    Parts without a flow that lacks a rate leave the list; levels that nothing has changed are kept.
    The parts with the lowest level are picked.
    """
    least, kept, picked = HIGHEST, 0, 0
    for at in range(m.counts[TIGHT]):
        number = m.part[at].tight
        part = m.part[number]
        if part.weight > 0:
            m.part[kept].tight = number
            kept += 1
            if part.level == NONE:
                part.level = (part.spare << FINE) // part.weight
            if part.level < least:
                least, picked = part.level, 0
            if part.level == least:
                m.part[picked].picked = number
                picked += 1
    m.counts[TIGHT], m.counts[PICKED] = kept, picked
    return least if kept > 0 else NONE


def _fix(m: ClockState, process: int, rate: int, level: int) -> None:
    """Give a flow its rate, and take it from its parts."""
    if rate < 1:
        rate, m.counts[IS_CRAMPED] = 1, 1
    flow = m.process[process]
    flow.new_rate, flow.level = rate, level
    for at in range(flow.first_use, flow.end_use):
        use = m.use[at]
        part = m.part[use.part]
        part.weight -= use.times * flow.weight
        part.spare = max(0, part.spare - use.times * rate)
        part.level = NONE


def _fix_capped(m: ClockState, left: int, level: int) -> int:
    """Give flows whose cap lies at or below this level their cap; how many still lack a rate."""
    kept, least = 0, HIGHEST
    for at in range(left):
        process = m.process[at].waiting
        flow = m.process[process]
        if flow.new_rate != 0:
            continue
        if flow.cap_level <= level:
            _fix(m, process, flow.cap, flow.cap_level)
        else:
            least = min(least, flow.cap_level)
            m.process[kept].waiting = process
            kept += 1
    m.counts[LEAST_CAP_LEVEL] = least
    return kept


def _fix_tightest(m: ClockState, level: int) -> None:
    """Stop the flows of all parts that are used up at this level."""
    for at in range(m.counts[PICKED]):
        node = m.part[m.part[at].picked].user
        while node != NONE:
            process = m.node[node].process
            node = m.node[node].next
            if m.process[process].new_rate == 0:
                _fix(m, process, (level * m.process[process].weight) >> FINE, level)


def _fix_rest(m: ClockState, left: int) -> None:
    """Nothing but their caps limits the flows that still lack a rate."""
    for at in range(left):
        flow = m.process[m.process[at].waiting]
        if flow.new_rate == 0:
            flow.new_rate, flow.level = flow.cap, flow.cap_level


def _apply_rate(m: ClockState, process: int, now: int) -> None:
    """Change to the new rate now, with the bytes left, and put the new end into the heap."""
    flow = m.process[process]
    if flow.new_rate == flow.rate:
        return
    flow.left = max(0, flow.left - flow.rate * (now - flow.since))
    flow.since, flow.rate = now, flow.new_rate
    put(m, process, now - (-flow.left // flow.rate))


# Flows that begin and end


def join(m: ClockState, process: int) -> None:
    """A flow begins: add it to the lists of its parts."""
    flow = m.process[process]
    node = process * m.sizes[0].most_uses
    for at in range(flow.first_use, flow.end_use):
        number = m.use[at].part
        part = m.part[number]
        m.node[node].next, m.node[node].back = part.user, NONE
        m.node[node].process, m.node[node].times = process, m.use[at].times
        if part.user != NONE:
            m.node[part.user].back = node
        part.user = node
        part.demand += m.use[at].times * flow.cap
        _mark_changed(m, number)
        node += 1
    flow.is_moving, flow.rate, flow.level = 1, 0, HIGHEST
    m.counts[KEPT_LEVEL] = min(m.counts[KEPT_LEVEL], flow.cap_level)
    _mark_affected(m, process)


def leave(m: ClockState, process: int) -> None:
    """A flow ends: remove it from the lists of its parts."""
    flow = m.process[process]
    node = process * m.sizes[0].most_uses
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
        _mark_changed(m, number)
        node += 1
    flow.is_moving = 0
    m.counts[KEPT_LEVEL] = min(m.counts[KEPT_LEVEL], flow.level)


def _mark_changed(m: ClockState, part: int) -> None:
    """Add a part to those that the next sharing looks at."""
    if not m.part[part].is_changed:
        m.part[part].is_changed = 1
        m.part[m.counts[CHANGED]].changed = part
        m.counts[CHANGED] += 1


def _mark_affected(m: ClockState, process: int) -> None:
    """Have the rate of a flow worked out again."""
    if m.process[process].is_affected:
        return
    m.process[process].is_affected = 1
    m.process[process].new_rate = 0
    m.process[m.counts[AFFECTED]].affected = process
    m.counts[AFFECTED] += 1
    _mark_tight_parts(m, process)


def _mark_tight_parts(m: ClockState, process: int) -> None:
    """Have the next sharing look at the tight parts of a flow."""
    flow = m.process[process]
    for at in range(flow.first_use, flow.end_use):
        part = m.part[m.use[at].part]
        if part.demand > part.capacity:
            _mark_changed(m, m.use[at].part)


# Speeds that change


def change_speeds(m: ClockState, now: int) -> None:
    """Change what changes now. Flows that this may concern leave their parts and are due now."""
    while m.counts[CHANGES] < len(m.change) and m.change[m.counts[CHANGES]].time <= now:
        change = m.change[m.counts[CHANGES]]
        m.counts[CHANGES] += 1
        m.counts[STEPS_LEFT] -= 1 + m.counts[PARKED]
        if change.part != NONE:
            m.part[change.part].capacity = change.value
            node = m.part[change.part].user
            while node != NONE:
                process, node = m.node[node].process, m.node[node].next
                _interrupt(m, process, now)
        else:
            m.process[change.process].is_stopped = 1 - change.value
            if m.process[change.process].is_moving:
                _interrupt(m, change.process, now)
        for at in range(m.counts[PARKED]):
            put(m, m.process[at].parked, now)
        m.counts[PARKED] = 0


def _interrupt(m: ClockState, process: int, now: int) -> None:
    """A flow leaves its parts with the bytes that are left, unless its last one arrives now."""
    flow = m.process[process]
    if flow.due <= now:
        return
    flow.left = max(0, flow.left - flow.rate * (now - flow.since))
    flow.since = now
    leave(m, process)
    put(m, process, now)


def is_blocked(m: ClockState, process: int) -> bool:
    """Whether nothing of a flow can pass now; if something can, it gets the cap of now."""
    flow = m.process[process]
    if flow.is_stopped:
        return True
    route = m.route[flow.route]
    if not route.is_disturbed:
        return False
    network, other = route.network_cap, route.other_cap
    for at in range(flow.first_use, flow.end_use):
        part = m.part[m.use[at].part]
        if part.capacity == 0:
            return True
        rate = max(1, part.capacity // m.use[at].times)
        if part.is_network:
            network = min(network, rate)
        else:
            other = min(other, rate)
    # what is reduced first and then sent takes as long as both, as in `routes.py`
    flow.cap = min(network, other)
    if route.is_relayed:
        flow.cap = max(1, network * other // (network + other))
    flow.cap_level = -(-(min(flow.cap, HIGHEST >> FINE) << FINE) // flow.weight)
    return False


def park(m: ClockState, process: int) -> None:
    """A flow stands still until a speed changes."""
    m.process[m.counts[PARKED]].parked = process
    m.counts[PARKED] += 1


# The heap of times


def put(m: ClockState, process: int, time: int) -> None:
    """Add a process to the heap, or give it another time."""
    at = m.process[process].place
    if at == NONE:
        at = m.counts[HEAP]
        m.counts[HEAP] += 1
    m.process[process].due = time
    _sift_down(m, process, _sift_up(m, process, at))


def pop(m: ClockState) -> int:
    """Take the first process out of the heap."""
    first: int = m.process[0].heap
    m.process[first].place = NONE
    m.counts[HEAP] -= 1
    if m.counts[HEAP] > 0:
        _sift_down(m, m.process[m.counts[HEAP]].heap, 0)
    return first


def _is_before(m: ClockState, process: int, other: int) -> bool:
    due, other_due = m.process[process].due, m.process[other].due
    is_before: bool = due < other_due or (due == other_due and process < other)
    return is_before


def _sift_up(m: ClockState, process: int, at: int) -> int:
    """Sift up: the place for a process, at or above a free place."""
    while at > 0:
        above = (at - 1) // 2
        other = m.process[above].heap
        if not _is_before(m, process, other):
            break
        _set_place(m, other, at)
        at = above
    return at


def _sift_down(m: ClockState, process: int, at: int) -> None:
    """Sift down: put a process at a free place or below it."""
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
        _set_place(m, other, at)
        at = below
    _set_place(m, process, at)


def _set_place(m: ClockState, process: int, at: int) -> None:
    m.process[at].heap = process
    m.process[process].place = at
