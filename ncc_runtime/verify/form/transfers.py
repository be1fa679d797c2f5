"""Runs of descriptors: sources, destinations, and what their completion increments."""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue
from ncc_runtime.verify.form.columns import Wrong, at, search
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Ring, Subject

MOST_SOURCES = 16
"""Source: AWS Neuron SDK docs, work-with-neff-files.rst (`from_arr` of a compute descriptor)."""

_LEAST = {DmaOpcode.COPY: 1, DmaOpcode.REDUCE: 1, DmaOpcode.FILL: 0}
_MOST = {DmaOpcode.COPY: 1, DmaOpcode.REDUCE: MOST_SOURCES, DmaOpcode.FILL: 0}


@rule("exe-W9")
def opcodes_fit_sources(subject: Subject) -> Iterator[str]:
    """A copy has one source, a reduction some, a fill none; all of a row as many, without gaps."""
    for ring in subject.rings:
        yield from _sources(subject, ring)
        yield from _divisors(subject, ring.number, ring.queue)


def _sources(subject: Subject, ring: Ring) -> Iterator[str]:
    queue = ring.queue
    least, most = (
        np.array([limits[one] for one in DmaOpcode], np.int8)[queue.opcode][:, None]
        for limits in (_LEAST, _MOST)
    )

    def wrong(
        active: np.ndarray, least: np.ndarray, most: np.ndarray, *sources: np.ndarray
    ) -> np.ndarray:
        count: np.ndarray = np.zeros((1, 1), np.int8)
        gap: np.ndarray = np.zeros((1, 1), bool)
        for before, source in enumerate(sources):
            is_there = source != IDLE
            gap = gap | (is_there & (count != before))
            count = count + is_there
        uneven = count != count.max(axis=1, keepdims=True)
        return active & (uneven | gap | (count < least) | (count > most))

    def fact(row: int, rank: int) -> str:
        there = np.flatnonzero(queue.sources[row, rank] != IDLE)
        gap = "" if (there == np.arange(len(there))).all() else " with a gap"
        count, widest = len(there), int((queue.sources[row] != IDLE).sum(axis=1).max())
        wanted = f"must be {least[row, 0]} to {most[row, 0]}"
        if least[row, 0] <= count <= most[row, 0] and not gap:
            wanted = f"others of its row have {widest}"
        return f"{_name(queue, row)} of {count} sources{gap}, {wanted}"

    found = search(wrong, ring.active, least, most, *ring.sources)
    yield from subject.at_cells(ring.number, found, fact)


def _divisors(subject: Subject, number: int, queue: DmaQueue) -> Iterator[str]:
    yield from subject.at_rows(
        number,
        (queue.divisor < 1) | ((queue.divisor > 1) & (queue.opcode != DmaOpcode.REDUCE)),
        lambda row: f"{_name(queue, row)} divides by {queue.divisor[row]}",
    )


def _name(queue: DmaQueue, row: int) -> str:
    return DmaOpcode(int(queue.opcode[row])).name.lower()


@rule("exe-W10")
def completions_tell_the_destinations(subject: Subject) -> Iterator[str]:
    """Two destinations at most; each is told, and the own CC-core; idle cells tell nobody."""
    for ring in subject.rings:
        queue, posts = ring.queue, ring.queue.sync.posts
        needed = 2 if queue.second_peer is None else 3
        if len(posts) < needed:
            yield f"queue {queue.name}: {len(posts)} posts a row, must be {needed} at least"
            continue
        own = np.where(ring.active, subject.everybody, np.int32(IDLE))
        yield from _peers(subject, ring)
        yield from _told(subject, ring.number, queue.peer, posts[0].rank)
        yield from _told(subject, ring.number, own, posts[1].rank)
        yield from _counted(subject, ring.number, queue)
        if queue.second_peer is not None:
            yield from _second(subject, ring, queue.second_peer)
            yield from _told(subject, ring.number, queue.second_peer, posts[2].rank)
        for post in posts[needed:]:
            found = search(lambda active, to: ~active & (to != IDLE), ring.active, post.rank)
            yield from subject.at_cells(ring.number, found, lambda *_: "posts without a transfer")


def _peers(subject: Subject, ring: Ring) -> Iterator[str]:
    """A cell has a peer if and only if it waits for the ring's tail."""
    peer = ring.queue.peer
    yield from subject.at_cells(
        ring.number,
        search(lambda active, peer: active != (peer != IDLE), ring.active, peer),
        lambda row, rank: (
            "waits for its tail without a peer"
            if at(peer, row, rank) == IDLE
            else f"has peer {at(peer, row, rank)}, and does not wait for its tail"
        ),
    )


def _second(subject: Subject, ring: Ring, also: np.ndarray) -> Iterator[str]:
    """A second peer stands beside a first only, and is another rank: two writes have no order."""

    def wrong(active: np.ndarray, peer: np.ndarray, also: np.ndarray) -> np.ndarray:
        return (also != IDLE) & (~active | (also == peer))

    yield from subject.at_cells(
        ring.number,
        search(wrong, ring.active, ring.queue.peer, also),
        lambda row, rank: (
            f"has a second peer, {at(also, row, rank)}, and no first"
            if at(ring.queue.peer, row, rank) == IDLE
            else f"writes twice at rank {at(also, row, rank)}"
        ),
    )


def _told(subject: Subject, number: int, to: np.ndarray, told: np.ndarray) -> Iterator[str]:
    """Where the first column names a rank, the second names the same."""
    if to is told:
        return
    yield from subject.at_cells(
        number,
        search(lambda to, told: to != told, to, told),
        lambda row, rank: (
            f"its completion is told to rank {at(told, row, rank)}, not {at(to, row, rank)}"
        ),
    )


def _counted(subject: Subject, number: int, queue: DmaQueue) -> Iterator[str]:
    """The second post is the count of what the ring has completed."""
    sent, sem = subject.streams[queue.stream].rings[queue.lane][1], queue.sync.posts[1].sem
    yield from subject.at_cells(
        number,
        search(lambda sem: (sem != IDLE) & (sem != sent), sem),
        lambda row, rank: f"counts its completion in semaphore {at(sem, row, rank)}, not {sent}",
    )


@rule("exe-W22")
def sources_and_targets_lie_apart(subject: Subject) -> Iterator[str]:
    """What a transfer reads it writes in place or not at all: its descriptors come one by one."""
    for ring in subject.rings:
        queue = ring.queue
        owners = ring.owners or [subject.everybody] * len(ring.sources)
        for source, owner in zip(ring.sources, owners, strict=True):
            yield from _apart(subject, ring, (source, owner), (queue.target, queue.peer))
            if queue.second_target is not None and queue.second_peer is not None:
                second = queue.second_target, queue.second_peer
                yield from _apart(subject, ring, (source, owner), second)


def _apart(
    subject: Subject,
    ring: Ring,
    read: tuple[np.ndarray, np.ndarray],
    written: tuple[np.ndarray, np.ndarray],
) -> Iterator[str]:
    """Of one column of sources and one of targets, each with whose memory it is."""
    size = ring.queue.size_bytes

    def wrong(source: np.ndarray, owner: np.ndarray, *others: np.ndarray) -> Wrong:
        target, peer, size = others
        is_near = owner == peer
        if not is_near.any():
            return False
        distance = np.abs(source - target)
        is_there = (source != IDLE) & (peer != IDLE)
        return is_near & is_there & (distance > 0) & (distance < size)

    def fact(row: int, rank: int) -> str:
        start, end = (at(one[0], row, rank) for one in (read, written))
        return (
            f"reads {at(size, row, rank)} bytes at {start:#x} and writes them at {end:#x} "
            f"of rank {at(written[1], row, rank)}, which overlap"
        )

    yield from subject.at_cells(ring.number, search(wrong, *read, *written, size), fact)


RULES = (
    opcodes_fit_sources,
    completions_tell_the_destinations,
    sources_and_targets_lie_apart,
)
