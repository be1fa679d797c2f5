"""Links and adapters over time: how much they carry, and for which collective.

A transfer is taken to go at one rate from its start to its end. Links are taken a few at a time, as
many as have some MOST transfers together, so that memory does not grow with the run.
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
"""Transfers over the links that are looked at together, unless one link has more."""

PIECE = 1 << 12
"""Slices or samples of a batch."""

_LANES = 1 << 12  # of a link, at most


@attrs.frozen(eq=False)
class Carried:
    """Transfers as links see them: one entry for each link of each way, columns."""

    link: np.ndarray  # int64; behind the links, adapters out, then in
    sender: np.ndarray  # int64, rank
    start_ps: np.ndarray
    end_ps: np.ndarray
    bytes: np.ndarray  # int64
    placeholder: np.ndarray

    def taken(self, some: np.ndarray | slice) -> "Carried":
        """Some entries, in this order."""
        columns = (getattr(self, field.name)[some] for field in attrs.fields(Carried))
        return Carried(*columns)


def link_name(executable: Executable, link: int) -> str:
    """`c4.E`, `n0.efa3 out`, `n0.efa3 in`."""
    links, efa = executable.topology.links, executable.topology.efa
    if link < len(links):
        return links.name(link)
    assert efa is not None, "only adapters come behind the links"
    way, adapter = divmod(link - len(links), efa.adapters * executable.topology.nodes)
    node, number = divmod(adapter, efa.adapters)
    return f"n{node}.efa{number} {'in' if way else 'out'}"


def link_count(executable: Executable) -> int:
    """Links, and adapters both ways."""
    topology = executable.topology
    adapters = 0 if topology.efa is None else topology.efa.adapters * topology.nodes
    return len(topology.links) + 2 * adapters


def contents(trace: Trace, ranks: np.ndarray) -> Iterator[Content]:
    """Slices and counters of the links that some ranks (bool by rank) send over, by whomever."""
    count = link_count(trace.executable)
    entries, wanted = np.zeros(count, np.int64), np.zeros(count, bool)
    for carried in _carried(trace):
        entries += np.bincount(carried.link, minlength=count)
        wanted[carried.link[ranks[carried.sender]]] = True
    entries[~wanted] = 0
    if not wanted.any():
        return
    nothing = _concatenated([])
    yield TimelineBatch(
        (Track(LINKS, 0, "links", trace.executable.ranks),), _slices(trace, nothing, nothing.link)
    )
    portion = np.where(entries > 0, (np.cumsum(entries) - 1) // MOST, -1)
    for number in np.unique(portion[entries > 0]).tolist():
        own = portion == number
        some = [carried.taken(own[carried.link]) for carried in _carried(trace)]
        yield from _portion(trace, _concatenated(some))


def _concatenated(parts: list[Carried]) -> Carried:
    columns = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(part, field.name) for part in parts)])
        for field in attrs.fields(Carried)
    )
    return Carried(*columns)


def _portion(trace: Trace, carried: Carried) -> Iterator[Content]:
    """Of all transfers over some links, the slices and the counters."""
    stretches = _stretches(carried)
    track = _tracks_of(stretches)
    for some in _pieces(len(track)):
        slices = _slices(trace, stretches.taken(some), track[some])
        yield TimelineBatch(
            tuple(
                Track(one, LINKS, link_name(trace.executable, _link_of(one)), 2 * _link_of(one))
                for one in np.unique(slices.track).tolist()
            ),
            slices,
        )
    link, time_ps, rate = rates_over_time(carried)
    for some in _pieces(len(link)):
        yield _samples(trace.executable, link[some], time_ps[some], rate[some])


def _pieces(count: int) -> Iterator[slice]:
    return (slice(low, low + PIECE) for low in range(0, count, PIECE))


def _tracks_of(stretches: Carried) -> np.ndarray:
    """Numbers of tracks: link and lane, as many lanes as overlap."""
    lane = lanes(stretches.link, stretches.start_ps, stretches.end_ps)
    assert np.max(lane, initial=0) < _LANES, "more collectives on a link than lanes"
    return np.asarray(LINKS + (stretches.link + 1) * _LANES + lane)


def _link_of(track: int) -> int:
    return track % LINKS // _LANES - 1


def _carried(trace: Trace) -> Iterator[Carried]:
    """All transfers over links and adapters, ring by ring."""
    for number, events in trace.blocks(trace.queues_of(DmaQueue)):
        queue = trace.executable.queues[number]
        assert isinstance(queue, DmaQueue)
        for peers in (queue.peer, queue.also_peer):
            if peers is not None:
                yield _over_links(trace, queue, events, peers)


def _over_links(trace: Trace, queue: DmaQueue, events: np.ndarray, peers: np.ndarray) -> Carried:
    row, rank = trace.row[events], trace.rank[events].astype(np.int64)
    sizes = np.broadcast_to(queue.size_bytes, queue.peer.shape)[row, rank].astype(np.int64)
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
    """(which transfer, link or adapter) of all that transfers pass."""
    routes, links = executable.routes, len(executable.topology.links)
    start, link = routes.link_runs(src, dst)
    which = np.repeat(np.arange(len(src)), np.diff(start))
    over = np.flatnonzero(routes.transport(src, dst) == Transport.EFA.code)
    adapters = (link_count(executable) - links) // 2
    out, into = routes.adapter(src[over]), routes.adapter(dst[over])
    if executable.seen < executable.ranks:  # what another instance gets, the first one gets, too
        into = into % (adapters // executable.topology.nodes)
    passed = (link.astype(np.int64), links + out, links + adapters + into)
    return np.concatenate((which, over, over)), np.concatenate(passed).astype(np.int64)


def _stretches(carried: Carried) -> Carried:
    """Transfers for one collective that touch in time, on one link, as one entry; by link."""
    order = np.lexsort((carried.start_ps, carried.placeholder, carried.link))
    one = carried.taken(order)
    if not len(order):
        return one
    same = (one.link[1:] == one.link[:-1]) & (one.placeholder[1:] == one.placeholder[:-1])
    part = np.append(0, np.cumsum(~same))
    before = part * (int(one.end_ps.max()) + 1)
    reach = np.maximum.accumulate(before + one.end_ps)
    first = np.flatnonzero(np.append(True, before[1:] + one.start_ps[1:] > reach[:-1]))
    found = attrs.evolve(
        one.taken(first),
        end_ps=np.maximum.reduceat(one.end_ps, first),
        bytes=np.add.reduceat(one.bytes, first),
    )
    return found.taken(np.lexsort((found.start_ps, found.link)))


def _slices(trace: Trace, stretches: Carried, track: np.ndarray) -> Slices:
    """One for every stretch."""
    numbers, code = np.unique(stretches.placeholder, return_inverse=True)
    names = [placeholder_text(trace.executable, one) for one in numbers.tolist()]
    return Slices(
        category="link",
        track=track,
        start_ps=stretches.start_ps,
        end_ps=stretches.end_ps,
        name=Texts(code, names),
        arguments=(
            Argument("placeholder", stretches.placeholder.astype(np.int64)),
            Argument("bytes", stretches.bytes),
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
            COUNTERS + one,
            LINKS,
            f"{link_name(executable, one)} GB/s",
            2 * one + 1,
            is_counter=True,
        )
        for one in np.unique(link).tolist()
    )
    return Samples(tracks, COUNTERS + link, time_ps, rate / 1e9)


def rates_over_time(carried: Carried) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(link, time, bytes a second from then on), by link, then in order of time; whole numbers."""
    took = np.maximum(carried.end_ps - carried.start_ps, 1)
    rate = np.rint(carried.bytes * (1e12 / took)).astype(np.int64)
    link, time_ps = np.tile(carried.link, 2), np.append(carried.start_ps, carried.end_ps)
    change = np.append(rate, -rate)
    order = np.lexsort((time_ps, link))
    link, time_ps = link[order], time_ps[order]
    level = np.cumsum(change[order])  # every link begins and ends at 0
    last = np.append((link[1:] != link[:-1]) | (time_ps[1:] != time_ps[:-1]), True)[: len(link)]
    link, time_ps, level = link[last], time_ps[last], level[last]
    steady = np.append(False, (link[1:] == link[:-1]) & (level[1:] == level[:-1]))[: len(link)]
    return link[~steady], time_ps[~steady], level[~steady]
