"""Links: a column of peers together with the channels and semaphores between them.

The transfers of a plan name few distinct columns of peers, each many times; what follows from a
column is worked out once for all of them.
"""

from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from ncc_runtime.collectives.symmetry import UnfoldedError
from ncc_runtime.lowering.channels import Channels, Ends, named_once
from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.lowering.queues import Condition, Increment, Row, spread, spread_any
from ncc_runtime.machine_model.instances import maps_of


@attrs.frozen(eq=False)
class Link:
    """Who sends to whom in one lane: every rank to at most one peer, and from at most one."""

    number: int
    ends: Ends
    channels: np.ndarray  # (s,) int32
    remote: np.ndarray  # (s,) bool: not to itself
    arrival: Increment  # of `data`, by the sender
    arrived: Row  # the same semaphore, at the receiver
    advance: Increment  # of the sender's tail
    sent: Increment  # of the sender's completions
    index: slice | np.ndarray  # the channels once more, as what tables of counts are indexed by


class Links:
    """The links of one stream, made on first use."""

    def __init__(
        self, everybody: np.ndarray, channels: Channels, ring_sems: Mapping[int, tuple[int, int]]
    ) -> None:
        self._everybody = everybody  # who is seen
        self.channels = channels
        self.ring_sems = ring_sems
        self._known: dict[tuple[int, bytes], Link] = {}

    @property
    def ranks(self) -> int:
        """Of all instances."""
        return self.channels.ranks

    def get(self, lane: int, peer: np.ndarray) -> Link:
        """The link of a column of peers, (ranks,); no rank may be the peer of two."""
        key = lane, peer.tobytes()
        if key not in self._known:
            self._known[key] = self._open(lane, peer)
        return self._known[key]

    def _open(self, lane: int, peer: np.ndarray) -> Link:
        count = len(self._everybody)
        ends = ends_of(peer, count)
        channels = self.channels.open(lane, ends)
        data = self.channels.counters.data_sem[channels]
        tail, completed = self.ring_sems[lane]
        return Link(
            number=len(self._known),
            ends=ends,
            channels=channels,
            remote=ends.senders != ends.receivers,
            arrival=Increment(peer[:count], spread(data, ends.senders, count)),
            arrived=spread(data, ends.places, count),
            advance=self._own(ends.senders, tail),
            sent=self._own(ends.senders, completed),
            index=_index(channels),
        )

    def _own(self, ranks: np.ndarray, sem: int) -> Increment:
        """An increment of one of their own semaphores on some ranks."""
        count = len(self._everybody)
        sems = spread(np.full(len(ranks), sem, np.int32), ranks, count)
        everybody = self._everybody if len(ranks) == count else spread(ranks, ranks, count)
        return Increment(everybody, sems)

    def posted(self, link: Link) -> Condition:
        """Count one more transfer on every channel of a link; the wait for it, at the receivers."""
        counts = self.channels.counters.data_count
        values = counts[link.index] + 1
        counts[link.index] = values
        return Condition(link.arrived, spread_any(values, link.ends.places, len(self._everybody)))


def _index(channels: np.ndarray) -> slice | np.ndarray:
    """Channels as an index: numpy would convert a narrow one each time, and they mostly follow."""
    if len(channels) and (np.diff(channels) == 1).all():
        return slice(int(channels[0]), int(channels[-1]) + 1)
    return channels.astype(np.intp)


def ends_of(peer: np.ndarray, seen: int) -> Ends:
    """Who sends to whom by a column of peers, (ranks,), of the first ranks.

    UnfoldedError if these do not stand for the others.
    """
    senders = np.flatnonzero(peer[:seen] != IDLE).astype(np.int32)
    receivers = peer[senders]
    if seen == len(peer):
        return Ends(senders, receivers, receivers, senders)
    sources = turned_home(peer, seen)[senders]
    return Ends(senders, receivers, (receivers % seen).astype(np.int32), sources)


def turned_home(column: np.ndarray, seen: int) -> np.ndarray:
    """Of those alike to each rank that is seen, who turns to the first instance, (seen,) int32.

    UnfoldedError if ranks that are alike do not turn to ranks that are alike.
    """
    maps = maps_of(column[None], len(column) // seen)
    if maps is None:
        raise UnfoldedError("instances do not turn to each other alike")
    return np.asarray((maps[0] == 0).argmax(axis=0) * seen + np.arange(seen), np.int32)


def layers(column: np.ndarray) -> Iterator[np.ndarray]:
    """A column of ranks, (ranks,), as few columns that name none twice."""
    left = column
    while (left != IDLE).any():
        who = np.flatnonzero(left != IDLE)
        if named_once(left[who]):
            yield left
            return
        _, first = np.unique(left[who], return_index=True)
        layer = np.full_like(left, IDLE)
        layer[who[first]] = left[who[first]]
        yield layer
        left = np.where(layer == IDLE, left, IDLE)
