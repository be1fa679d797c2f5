"""Sets of chunks on their way to one peer, chunks that lie side by side as one transfer."""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.extents import Extent
from ncc_runtime.collectives.plan import IDLE, Fold, Piece, Transfer
from ncc_runtime.collectives.stages import Track

FAR = np.iinfo(np.int64).max


@attrs.frozen(eq=False)
class Source:
    """An extent to read, and in whose memory it lies."""

    extent: Extent
    owner: np.ndarray | None = None  # (members,) int32; None: the own


@attrs.frozen(eq=False)
class Parcel:
    """Chunks that every member sends at once to its peer."""

    peer: np.ndarray  # (members,) int32, IDLE for none
    chunks: np.ndarray  # (members, k) int64, IDLE beyond a member's last
    fold: Fold | None = None  # whose first members the chunks are of

    def peer_of(self, sends: np.ndarray) -> np.ndarray:
        """Its peers, where those that are seen send, and who is alike."""
        if sends.all():
            return self.peer
        everybody = sends
        if self.fold is not None:
            everybody = self.fold.over_all(sends, len(self.peer))
        return np.where(everybody, self.peer, np.int32(IDLE))


def transfers(
    parcel: Parcel, sources: Sequence[Source], target: Extent, track: Track, turn: int = 0
) -> Iterator[Transfer]:
    """As few transfers as the chunks make contiguous runs, at the sources and at the target."""
    runs = _Runs.of(parcel, sources, target)
    for run in range(runs.count):
        begins = runs.begins == run
        size = (runs.size * (runs.number == run)).sum(axis=1)
        pieces = [_first(at, begins) for at in runs.offsets]
        yield track.transfer(
            parcel.peer_of(begins.any(axis=1)),
            tuple(
                Piece(source.extent.space, offset, source.extent.tensor, source.owner)
                for source, offset in zip(sources, pieces, strict=False)
            ),
            Piece(target.space, pieces[-1], target.tensor),
            size,
            turn,
        )


@attrs.frozen(eq=False)
class _Runs:
    """All chunks in the order in which they lie, numbered by run; arrays are (members, k)."""

    offsets: list[np.ndarray]  # at every source, then at the target
    size: np.ndarray  # 0 beyond a member's last
    number: np.ndarray
    begins: np.ndarray  # the number where a run begins, IDLE elsewhere
    count: int

    @classmethod
    def of(cls, parcel: Parcel, sources: Sequence[Source], target: Extent) -> "_Runs":
        peers = parcel.peer[: len(parcel.chunks)]
        there = (parcel.chunks != IDLE) & (peers != IDLE)[:, None]
        chunk = np.where(there, parcel.chunks, 0)
        peer = np.where(peers == IDLE, 0, peers)
        at = [source.extent.cells(source.extent.offsets, chunk, source.owner) for source in sources]
        at.append(target.cells(target.offsets, chunk, peer))
        size = np.where(there, sources[0].extent.cells(sources[0].extent.sizes, chunk), 0)
        order = np.argsort(np.where(there, at[-1], FAR), axis=1, kind="stable")
        there, size, *at = (np.take_along_axis(one, order, axis=1) for one in (there, size, *at))
        is_next = there[:, 1:] & np.all(
            [one[:, :-1] + size[:, :-1] == one[:, 1:] for one in at], axis=0
        )
        number = np.concatenate((np.zeros((len(chunk), 1), int), np.cumsum(~is_next, 1)), 1)
        is_first = there & np.concatenate((np.ones((len(chunk), 1), bool), ~is_next), 1)
        begins = np.where(is_first, number, IDLE)
        return cls(at, size, number, begins, int(begins.max(initial=IDLE)) + 1)


def _first(offsets: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """By member, the offset where a run begins, 0 if it has none."""
    return np.where(begins, offsets, 0).sum(axis=1)
