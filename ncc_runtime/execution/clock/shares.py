"""Shares of what is contended: weighted max-min fairness in whole MB/s, after every change.

A part that could serve all its flows at the rates they would have alone is no constraint; flows
are followed only through the others. On these the flows get rates in proportion to their packets,
the tightest part first, and what a flow cannot use is left to the rest. Shares are rounded down,
completions up, parts are taken in the order of their numbers: nothing depends on anything else.

Source: Bertsekas and Gallager, Data Networks, section 6.5.2 (progressive filling).
"""

from ncc_runtime.execution.clock import heap
from ncc_runtime.execution.clock.compiled import compiled
from ncc_runtime.execution.clock.tables import AFFECTED, CHANGED, NONE, TIGHT, Machine

MICRO = 1_000_000
"""Work is counted in 1e-6 byte: at 1 MB/s one of them goes in a picosecond."""

FINE = 16
"""Binary digits that shares per packet have behind the point."""


@compiled
def join(m: Machine, process: int) -> None:
    """A flow begins: it uses its parts."""
    flow = m.process[process]
    node = process * m.sizes[0].widest
    for at in range(flow.first_use, flow.end_use):
        number = m.use[at].part
        part = m.part[number]
        m.node[node].next, m.node[node].back = part.user, NONE
        if part.user != NONE:
            m.node[part.user].back = node
        part.user = node
        part.demand += m.use[at].times * flow.cap
        _note(m, number)
        node += 1
    flow.is_moving, flow.rate = 1, 0
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
    _reach(m)
    _fill(m)
    for at in range(m.counts[AFFECTED]):
        process = m.process[at].affected
        m.process[process].is_affected = 0
        _settle(m, process, now)
    for at in range(m.counts[CHANGED]):
        m.part[m.part[at].changed].is_changed = 0
    m.counts[CHANGED] = m.counts[AFFECTED] = m.counts[TIGHT] = 0


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
        node = part.user if is_tight or part.is_tight else NONE
        part.is_tight = is_tight
        while node != NONE:
            _affect(m, node // m.sizes[0].widest)
            node = m.node[node].next


@compiled
def _fill(m: Machine) -> None:
    """Rates by progressive filling."""
    for at in range(m.counts[TIGHT]):
        part = m.part[m.part[at].tight]
        part.spare, part.weight, part.share = part.capacity, 0, NONE
    for at in range(m.counts[AFFECTED]):
        process = m.process[at].affected
        m.process[at].waiting = process
        flow = m.process[process]
        for use in range(flow.first_use, flow.end_use):
            m.part[m.use[use].part].weight += m.use[use].times * flow.packet
    left = m.counts[AFFECTED]
    while left > 0:
        fine = _least_share(m)
        if fine == NONE:
            _fix_rest(m, left)
            break
        fewer = _fix_slow(m, left, fine)
        if fewer == left:
            _fix_tightest(m, fine)
            fewer = _still_waiting(m, left)
        left = fewer


@compiled
def _least_share(m: Machine) -> int:
    """The least share per packet of any part; NONE if none limits anybody any more.

    Parts that nobody waits for leave the list; shares that nothing has changed are kept.
    """
    least, kept = NONE, 0
    for at in range(m.counts[TIGHT]):
        number = m.part[at].tight
        part = m.part[number]
        if part.weight > 0:
            m.part[kept].tight = number
            kept += 1
            if part.share == NONE:
                part.share = (part.spare << FINE) // part.weight
            if least == NONE or part.share < least:
                least = part.share
    m.counts[TIGHT] = kept
    return least


@compiled
def _fix(m: Machine, process: int, rate: int) -> None:
    """A flow has its rate: its parts have so much less to give."""
    rate = max(1, rate)
    flow = m.process[process]
    flow.fresh = rate
    for at in range(flow.first_use, flow.end_use):
        use = m.use[at]
        part = m.part[use.part]
        part.weight -= use.times * flow.packet
        part.spare = max(0, part.spare - use.times * rate)
        part.share = NONE


@compiled
def _fix_slow(m: Machine, left: int, fine: int) -> int:
    """Flows that cannot use so much get what they have alone; how many still wait."""
    kept = 0
    for at in range(left):
        process = m.process[at].waiting
        flow = m.process[process]
        if flow.cap <= (fine * flow.packet) >> FINE:
            _fix(m, process, flow.cap)
        else:
            m.process[kept].waiting = process
            kept += 1
    return kept


@compiled
def _fix_tightest(m: Machine, fine: int) -> None:
    """The flows of all parts that have no more to give get this share, all the same one."""
    picked = 0
    for at in range(m.counts[TIGHT]):
        number = m.part[at].tight
        if m.part[number].share == fine:
            m.part[picked].picked = number
            picked += 1
    for at in range(picked):
        node = m.part[m.part[at].picked].user
        while node != NONE:
            process = node // m.sizes[0].widest
            node = m.node[node].next
            if m.process[process].fresh == 0:
                _fix(m, process, (fine * m.process[process].packet) >> FINE)


@compiled
def _still_waiting(m: Machine, left: int) -> int:
    """Keep the flows that have no rate yet; how many they are."""
    kept = 0
    for at in range(left):
        process = m.process[at].waiting
        if m.process[process].fresh == 0:
            m.process[kept].waiting = process
            kept += 1
    return kept


@compiled
def _fix_rest(m: Machine, left: int) -> None:
    """Nothing limits those that still wait."""
    for at in range(left):
        flow = m.process[m.process[at].waiting]
        flow.fresh = flow.cap


@compiled
def _settle(m: Machine, process: int, now: int) -> None:
    """Go on at the new rate from now."""
    flow = m.process[process]
    if flow.fresh == flow.rate:
        return
    flow.left = max(0, flow.left - flow.rate * (now - flow.since))
    flow.since, flow.rate = now, flow.fresh
    heap.put(m, process, now - (-flow.left // flow.rate))
