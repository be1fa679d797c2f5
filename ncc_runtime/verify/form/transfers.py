"""Runs of descriptors: sources, destinations, and what their completion increments."""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue
from ncc_runtime.verify.form.columns import at, search
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Ring, Subject

MOST_SOURCES = 16
"""Source: AWS Neuron SDK docs, work-with-neff-files.rst (`from_arr` of a compute descriptor)."""

_LEAST = {DmaOpcode.COPY: 1, DmaOpcode.REDUCE: 1, DmaOpcode.FILL: 0}
_MOST = {DmaOpcode.COPY: 1, DmaOpcode.REDUCE: MOST_SOURCES, DmaOpcode.FILL: 0}


@rule("exe-W9")
def opcodes_fit_sources(subject: Subject) -> Iterator[str]:
    """A copy has one source, a reduction some, a fill none; the first columns hold them."""
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
        return active & (gap | (count < least) | (count > most))

    def fact(row: int, rank: int) -> str:
        there = np.flatnonzero(queue.sources[row, rank] != IDLE)
        gap = "" if (there == np.arange(len(there))).all() else " with a gap"
        return (
            f"{_name(queue, row)} of {len(there)} sources{gap}, "
            f"must be {least[row, 0]} to {most[row, 0]}"
        )

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
        needed = 2 if queue.also_peer is None else 3
        if len(posts) < needed:
            yield f"queue {queue.name}: {len(posts)} posts a row, must be {needed} at least"
            continue
        own = np.where(ring.active, subject.everybody, np.int32(IDLE))
        yield from _peers(subject, ring)
        yield from _told(subject, ring.number, queue.peer, posts[0].rank)
        yield from _told(subject, ring.number, own, posts[1].rank)
        yield from _counted(subject, ring.number, queue)
        if queue.also_peer is not None:
            yield from _second(subject, ring, queue.also_peer)
            yield from _told(subject, ring.number, queue.also_peer, posts[2].rank)
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
    """A second peer stands beside a first only."""
    yield from subject.at_cells(
        ring.number,
        search(lambda active, also: ~active & (also != IDLE), ring.active, also),
        lambda row, rank: f"has a second peer, {at(also, row, rank)}, and no first",
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


RULES = (opcodes_fit_sources, completions_tell_the_destinations)
