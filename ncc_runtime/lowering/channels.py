"""Channels between ranks: the semaphores that signal data, readiness and free slots.

A channel is (sender, receiver, lane). It has three counters, each with one incrementing queue, so
that they never need a reset and the order of queues cannot change what a wait means:

    data   at the receiver, by the sender's DMA ring: one more transfer has arrived
    ready  at the sender, by the receiver's CC-core: it has entered one more placeholder; a pair
           of ranks with channels in several lanes counts in one of them
    free   at the sender, by the receiver's DMA ring: one more slot has been consumed
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.errors import LoweringError

NO_CHANNEL = -1

_MANY = 1 << 10
"""Ranks from which on counting is quicker than a set."""


class SemaphoresError(LoweringError):
    """A rank has no more semaphores."""


class SemaphoreIds:
    """Hands out semaphore ids per rank, lowest first."""

    def __init__(self, ranks: int, first: int, limit: int) -> None:
        self._next = np.full(ranks, first, np.int32)
        self._limit = limit

    def take(self, ranks: np.ndarray) -> np.ndarray:
        """A fresh id on each of the ranks, and one more for each time a rank is named again."""
        taken = self._next[ranks]
        if are_distinct(ranks):
            self._next[ranks] = taken + 1
        else:
            order = np.argsort(ranks, kind="stable")
            _, first, counts = np.unique(ranks[order], return_index=True, return_counts=True)
            taken[order] += (np.arange(len(ranks)) - np.repeat(first, counts)).astype(np.int32)
            np.add.at(self._next, ranks, 1)
        if taken.size and int(taken.max()) >= self._limit:
            raise SemaphoresError(
                f"rank {int(ranks[taken.argmax()])} would need more than the {self._limit} "
                "semaphores its CC-cores and engines have"
            )
        return taken

    def take_common(self) -> int:
        """An id that is the same on every rank; only before any rank takes ids for itself."""
        taken = self.take(np.arange(len(self._next), dtype=np.int32))
        assert int(taken.min()) == int(taken.max()), "ids of ranks differ already"
        return int(taken[0])

    @property
    def count(self) -> int:
        """Ids in use on the rank that uses most."""
        return int(self._next.max(initial=0))


@attrs.define(eq=False)
class _Counters:
    """Semaphore ids and counts of channels, by channel number; some room is left at the end."""

    opened: int = 0
    sender: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int32))
    place: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int32))  # of the receiver
    source: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int32))  # who sends there
    pair: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int32))  # its first channel
    data_sem: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int32))
    ready_sem: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int32))
    free_sem: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int32))
    data_count: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int64))
    ready_count: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int64))
    free_count: np.ndarray = attrs.field(factory=lambda: np.empty(0, np.int64))

    def add(self, senders: np.ndarray, places: np.ndarray, sources: np.ndarray) -> np.ndarray:
        """The numbers of new channels."""
        first, self.opened = self.opened, self.opened + len(senders)
        if self.opened > len(self.sender):
            self._grow(2 * self.opened)
        self.sender[first : self.opened] = senders
        self.place[first : self.opened] = places
        self.source[first : self.opened] = sources
        return np.arange(first, self.opened, dtype=np.int32)

    def _grow(self, room: int) -> None:
        more = room - len(self.sender)
        for name in ("sender", "place", "source", "pair", "data_sem", "ready_sem", "free_sem"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.full(more, NO_CHANNEL, np.int32))))
        for name in ("data_count", "ready_count", "free_count"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros(more, np.int64))))


class Channels:
    """The channels of one stream, opened on first use."""

    def __init__(self, representatives: int, ranks: int, ids: SemaphoreIds) -> None:
        """`representatives` are the ranks with columns: all, or those of the first instance."""
        self._representatives, self._ranks = representatives, ranks
        self._ids = ids
        # lane → (representatives, ranks) int32: the number of the channel plus one; 0: none
        self._number: dict[int, np.ndarray] = {}
        self.counters = _Counters()

    def open(
        self,
        lane: int,
        senders: np.ndarray,
        receivers: np.ndarray,
        places: np.ndarray,
        sources: np.ndarray,
    ) -> np.ndarray:
        """Channel numbers of pairs of a representative and a receiver; pairs are distinct.

        `places` are the receivers' representatives, who receive the same from `sources`.
        """
        if lane not in self._number:
            self._number[lane] = np.zeros((self._representatives, self._ranks), np.int32)
        numbers = self._number[lane]
        channels = numbers[senders, receivers] - 1
        is_new = channels == NO_CHANNEL
        if is_new.any():
            sender, receiver = senders[is_new], receivers[is_new]
            opened = self.counters.add(sender, places[is_new], sources[is_new])
            numbers[sender, receiver] = opened + 1
            self.counters.pair[opened] = self._first_channels(sender, receiver)
            self.counters.data_sem[opened] = self._ids.take(places[is_new])
            remote = sender != receiver  # a rank needs no grant for its own memory
            self.counters.ready_sem[opened[remote]] = self._ids.take(sender[remote])
            channels = numbers[senders, receivers] - 1
        return np.asarray(channels)

    def _first_channels(self, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
        """The channels of the pairs in the first lane in which each pair opened one."""
        channels: np.ndarray = np.full(len(senders), NO_CHANNEL, np.int32)
        for numbers in self._number.values():  # lanes in the order in which they came into use
            channels = np.where(channels == NO_CHANNEL, numbers[senders, receivers] - 1, channels)
            if NO_CHANNEL not in channels:
                break
        return channels

    def free_sems(self, channels: np.ndarray, senders: np.ndarray) -> np.ndarray:
        """The `free` semaphores of channels, made on first use."""
        missing = self.counters.free_sem[channels] == NO_CHANNEL
        if missing.any():
            self.counters.free_sem[channels[missing]] = self._ids.take(senders[missing])
        return np.take(self.counters.free_sem, channels)

    def counts(self) -> tuple[np.ndarray, ...]:
        """Counts of data, ready and free so far, (channels,) each; copies."""
        counters = self.counters
        kinds = (counters.data_count, counters.ready_count, counters.free_count)
        return tuple(kind[: counters.opened].copy() for kind in kinds)

    def between(
        self, earlier: tuple[np.ndarray, ...], later: tuple[np.ndarray, ...], semaphore_count: int
    ) -> np.ndarray:
        """Increments from one `counts()` to another, (ranks, semaphores) int64."""
        counters = self.counters
        increments = np.zeros((self._representatives, semaphore_count), np.int64)
        kinds = (
            (counters.place, counters.data_sem),
            (counters.sender, counters.ready_sem),
            (counters.sender, counters.free_sem),
        )
        for (rank, sem), before, after in zip(kinds, earlier, later, strict=True):
            more = after.copy()
            more[: len(before)] -= before  # channels opened in between had counted nothing
            is_used = sem[: len(more)] != NO_CHANNEL
            cells = (rank[: len(more)][is_used], sem[: len(more)][is_used])
            np.add.at(increments, cells, more[is_used])
        return increments

    def names(self, rank: int) -> Iterator[tuple[int, str]]:
        """(semaphore id, what it counts) for the channels of one representative."""
        counters = self.counters
        for lane, numbers in self._number.items():
            # a channel to the rank's place in any instance ends here as well
            received = numbers[:, rank :: self._representatives]
            received = received[received > 0] - 1
            yield from _names("data", counters.data_sem[received], counters.source[received], lane)
            peers = np.flatnonzero(numbers[rank])
            sent = numbers[rank, peers] - 1
            yield from _names("ready", counters.ready_sem[sent], peers, lane)
            yield from _names("free", counters.free_sem[sent], peers, lane)


def _names(what: str, sems: np.ndarray, peers: np.ndarray, lane: int) -> Iterator[tuple[int, str]]:
    """Names of one kind of semaphore, for one rank's channels with peers."""
    for sem, peer in zip(sems.tolist(), peers.tolist(), strict=True):
        if sem != NO_CHANNEL:
            yield sem, f"{what}.{peer}.{lane}"


def are_distinct(ranks: np.ndarray) -> bool:
    """Whether all ranks are distinct."""
    if len(ranks) < _MANY:
        return len(set(ranks.tolist())) == len(ranks)
    return int(np.bincount(ranks).max()) <= 1
