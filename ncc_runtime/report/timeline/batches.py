"""What goes into a timeline, as columns: tracks, slices with arguments and arrows, counters.

Tracks stand in groups: one of every rank, one of the links. Numbers of tracks are unique; arrows
join the slices that name the same number.
"""

from collections.abc import Sequence

import attrs
import numpy as np


@attrs.frozen
class Track:
    """A line of the timeline; `parent` is the number of its group, of a group itself 0."""

    number: int
    parent: int
    name: str
    order: int = 0  # among its group
    is_counter: bool = False


@attrs.frozen(eq=False)
class Texts:
    """A column of words, each distinct one stored once."""

    code: np.ndarray  # (n,) int, index of words
    words: Sequence[str]


@attrs.frozen(eq=False)
class Argument:
    """A column of details: whole numbers, fractions or words; nothing where `given` is False."""

    name: str
    values: np.ndarray | Texts  # int64, or float64
    given: np.ndarray | None = None  # (n,) bool; None: everywhere


@attrs.frozen(eq=False)
class Slices:
    """Stretches of time on tracks; those of one track follow each other, in order."""

    category: str
    track: np.ndarray  # (n,) int64
    start_ps: np.ndarray  # (n,) int64
    end_ps: np.ndarray  # (n,) int64
    name: Texts
    arguments: tuple[Argument, ...]
    arrives: np.ndarray  # (n,) int64: number of the arrow that ends here, 0 for none
    leaves: tuple[np.ndarray, ...]  # columns likewise: arrows that begin here

    def __len__(self) -> int:
        return len(self.track)


@attrs.frozen(eq=False)
class Around:
    """Slices that enclose runs of others: slice k those from first[k] to last[k]."""

    slices: Slices
    first: np.ndarray  # (n,) int64, index of the enclosed Slices, ascending
    last: np.ndarray  # (n,) int64, or beyond its end


@attrs.frozen(eq=False)
class Batch:
    """Some tracks that are new, and slices on them."""

    tracks: tuple[Track, ...]
    slices: Slices
    around: Around | None = None
    events: int = 0  # of the trace, that are in it


@attrs.frozen(eq=False)
class Samples:
    """Values of counters, by track, then in order of time."""

    tracks: tuple[Track, ...]
    track: np.ndarray  # (n,) int64
    time_ps: np.ndarray  # (n,) int64
    value: np.ndarray  # (n,) float64


Content = Batch | Samples
"""What writers get, one after another."""
