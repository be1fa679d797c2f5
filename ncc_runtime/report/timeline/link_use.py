"""Links and adapters over time: how much they carry, and for which collective.

A transfer is assumed to go at one rate from its start to its end. Links are processed a few at a
time, as many as have about MOST transfers together, so that memory does not grow with the run.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.report.row_texts import placeholder_text
from ncc_runtime.report.timeline.tracks import (
    Argument,
    Content,
    Samples,
    Slices,
    Texts,
    TimelineBatch,
    Track,
    lanes,
)
from ncc_runtime.topology.routes import Transport

LINKS = 1 << 56
"""The group of the links' tracks."""

COUNTERS = 1 << 57
"""The first number of a counter's track."""

MOST = 1 << 16
"""Transfers over the links that are processed together; more if one link has more."""

PIECE = 1 << 12
"""Slices or samples of a batch."""

_LANES = 1 << 12  # of a link, at most


@attrs.frozen(eq=False)
class Carried:
    """Transfers by link, as columns: one entry for each link of each transfer's route."""

    link: np.ndarray  # int64; behind the links, adapters out, then in
    sender: np.ndarray  # int64, rank
    start_ps: np.ndarray
    end_ps: np.ndarray
    bytes: np.ndarray  # int64
    placeholder: np.ndarray

    def select(self, some: np.ndarray | slice) -> "Carried":
        """Some entries, in this order."""
        columns = (getattr(self, field.name)[some] for field in attrs.fields(Carried))
        return Carried(*columns)


def link_name(executable: Executable, link: int) -> str:
    """`c4.E`, `n0.efa3 out`, `n0.efa3 in`."""
    links, efa = executable.topology.links, executable.topology.efa
    if link < len(links):
        return links.name(link)
    assert efa is not None, "only adapters come behind the links"
    direction, adapter = divmod(link - len(links), efa.adapters * executable.topology.nodes)
    node, number = divmod(adapter, efa.adapters)
    return f"n{node}.efa{number} {'in' if direction else 'out'}"


def link_count(executable: Executable) -> int:
    """Links, and adapters both ways."""
    topology = executable.topology
    adapters = 0 if topology.efa is None else topology.efa.adapters * topology.nodes
    return len(topology.links) + 2 * adapters


def contents(trace: Trace, ranks: np.ndarray) -> Iterator[Content]:
    """Slices and counters of all use of the links that some ranks (bool by rank) send over."""
    count = link_count(trace.executable)
    entries, is_shown = np.zeros(count, np.int64), np.zeros(count, bool)
    for carried in _carried(trace):
        entries += np.bincount(carried.link, minlength=count)
        is_shown[carried.link[ranks[carried.sender]]] = True
    entries[~is_shown] = 0
    if not is_shown.any():
        return
    nothing = _concatenated([])
    yield TimelineBatch(
        (Track(LINKS, 0, "links", trace.executable.ranks),), _slices(trace, nothing, nothing.link)
    )
    portion = np.where(entries > 0, (np.cumsum(entries) - 1) // MOST, -1)
    for number in np.unique(portion[entries > 0]).tolist():
        is_in = portion == number
        selected = [carried.select(is_in[carried.link]) for carried in _carried(trace)]
        yield from _portion(trace, _concatenated(selected))


def _concatenated(parts: list[Carried]) -> Carried:
    columns = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(part, field.name) for part in parts)])
        for field in attrs.fields(Carried)
    )
    return Carried(*columns)


def _portion(trace: Trace, carried: Carried) -> Iterator[Content]:
    """Of all transfers over some links, the slices and the counters."""
    intervals = _intervals(carried)
    lane = lanes(intervals.link, intervals.start_ps, intervals.end_ps)
    assert np.max(lane, initial=0) < _LANES, "more collectives on a link than lanes"
    track = LINKS + (intervals.link + 1) * _LANES + lane
    for some in _pieces(len(track)):
        slices = _slices(trace, intervals.select(some), track[some])
        yield TimelineBatch(
            tuple(
                Track(number, LINKS, link_name(trace.executable, link), 2 * link)
                for number in np.unique(slices.track).tolist()
                for link in [number % LINKS // _LANES - 1]
            ),
            slices,
        )
    link, time_ps, rate = rates_over_time(carried)
    for some in _pieces(len(link)):
        yield _samples(trace.executable, link[some], time_ps[some], rate[some])


def _pieces(count: int) -> Iterator[slice]:
    return (slice(low, low + PIECE) for low in range(0, count, PIECE))


def _carried(trace: Trace) -> Iterator[Carried]:
    """All transfers over links and adapters, ring by ring."""
    for number, events in trace.blocks(trace.queues_of(DmaQueue)):
        queue = trace.executable.queues[number]
        assert isinstance(queue, DmaQueue)
        for peers in (queue.peer, queue.second_peer):
            if peers is not None:
                yield _over_links(trace, queue, events, peers)


def _over_links(trace: Trace, queue: DmaQueue, events: np.ndarray, peers: np.ndarray) -> Carried:
    row, rank = trace.row[events], trace.rank[events].astype(np.int64)
    sizes = queue.bytes_of(row, rank)
    sends = np.flatnonzero((peers[row, rank] != IDLE) & (sizes > 0))
    events, row, rank, sizes = events[sends], row[sends], rank[sends], sizes[sends]
    which, link = _links(trace.executable, rank, peers[row, rank].astype(np.int64))
    return Carried(
        link=link,
        sender=rank[which],
        start_ps=trace.start_ps[events[which]],
        end_ps=trace.end_ps[events[which]],
        bytes=sizes[which],
        placeholder=queue.placeholder[row[which]],
    )


def _links(executable: Executable, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, ...]:
    """(transfer, link or adapter) of every step of the routes of transfers."""
    routes, links = executable.routes, len(executable.topology.links)
    start, link = routes.link_runs(src, dst)
    which = np.repeat(np.arange(len(src)), np.diff(start))
    over = np.flatnonzero(routes.transport(src, dst) == Transport.EFA.code)
    adapters = (link_count(executable) - links) // 2
    out, into = routes.adapter(src[over]), routes.adapter(dst[over])
    if executable.representatives < executable.ranks:
        # ranks of the first instance run for all: what they send to another one, it gets as well
        into = into % (adapters // executable.topology.nodes)
    passed = (link.astype(np.int64), links + out, links + adapters + into)
    return np.concatenate((which, over, over)), np.concatenate(passed).astype(np.int64)


def _intervals(carried: Carried) -> Carried:
    """Transfers of a collective on a link that touch in time, merged into one entry; by link."""
    carried = carried.select(np.lexsort((carried.start_ps, carried.placeholder, carried.link)))
    if not len(carried.link):
        return carried
    link, placeholder = carried.link, carried.placeholder
    same = (link[1:] == link[:-1]) & (placeholder[1:] == placeholder[:-1])
    # Each link and collective gets a part of one time line, so that one running maximum serves all.
    offset = np.append(0, np.cumsum(~same)) * (int(carried.end_ps.max()) + 1)
    reach = np.maximum.accumulate(offset + carried.end_ps)
    begins = np.append(True, offset[1:] + carried.start_ps[1:] > reach[:-1])
    first = np.flatnonzero(begins)
    merged = attrs.evolve(
        carried.select(first),
        end_ps=np.maximum.reduceat(carried.end_ps, first),
        bytes=np.add.reduceat(carried.bytes, first),
    )
    return merged.select(np.lexsort((merged.start_ps, merged.link)))


def _slices(trace: Trace, intervals: Carried, track: np.ndarray) -> Slices:
    """One for every interval."""
    numbers, code = np.unique(intervals.placeholder, return_inverse=True)
    names = [placeholder_text(trace.executable, number) for number in numbers.tolist()]
    return Slices(
        category="link",
        track=track,
        start_ps=intervals.start_ps,
        end_ps=intervals.end_ps,
        name=Texts(code, names),
        arguments=(
            Argument("placeholder", intervals.placeholder.astype(np.int64)),
            Argument("bytes", intervals.bytes),
        ),
        arrives=np.zeros(len(code), np.int64),
        leaves=(),
    )


def _samples(
    executable: Executable, link: np.ndarray, time_ps: np.ndarray, rate: np.ndarray
) -> Samples:
    """What links carry in GB/s, at each time at which that changes."""
    tracks = tuple(
        Track(
            COUNTERS + number,
            LINKS,
            f"{link_name(executable, number)} GB/s",
            2 * number + 1,
            is_counter=True,
        )
        for number in np.unique(link).tolist()
    )
    return Samples(tracks, COUNTERS + link, time_ps, rate / 1e9)


def rates_over_time(carried: Carried) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(link, time, bytes a second from then on), by link, then in order of time; whole numbers."""
    duration = np.maximum(carried.end_ps - carried.start_ps, 1)
    rate = np.rint(carried.bytes * (1e12 / duration)).astype(np.int64)
    link, time_ps = np.tile(carried.link, 2), np.append(carried.start_ps, carried.end_ps)
    change = np.append(rate, -rate)
    order = np.lexsort((time_ps, link))
    link, time_ps = link[order], time_ps[order]
    level = np.cumsum(change[order])  # every link begins and ends at 0
    last = np.append((link[1:] != link[:-1]) | (time_ps[1:] != time_ps[:-1]), True)[: len(link)]
    link, time_ps, level = link[last], time_ps[last], level[last]
    steady = np.append(False, (link[1:] == link[:-1]) & (level[1:] == level[:-1]))[: len(link)]
    return link[~steady], time_ps[~steady], level[~steady]
