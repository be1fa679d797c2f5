"""Side by side what overlaps: a viewer wants the slices of one track to follow each other.

A DMA ring starts its next run of descriptors before the last one has arrived, so its slices lie on
as many lanes as are under way at a time.
"""

import numpy as np


def lanes(track: np.ndarray, start_ps: np.ndarray, end_ps: np.ndarray) -> np.ndarray:
    """A lane for every slice so that those of one track and lane do not overlap, int64.

    Slices are sorted by track, an ascending number, then by start. A stretch in which something is
    always under way has as many lanes as overlap most, and uses them in turn.
    """
    if not len(track):
        return np.zeros(0, np.int64)
    _, ordinal = np.unique(track, return_inverse=True)
    before = ordinal * (int(end_ps.max()) + 1)  # so that tracks come after each other
    start, reach = before + start_ps, np.maximum.accumulate(before + end_ps)
    at = np.arange(len(track))
    opens = np.append(True, start[1:] >= reach[:-1])
    stretch = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    done = np.minimum(np.searchsorted(reach, start, side="right"), at)
    width = np.maximum.reduceat(at - done + 1, first)
    return np.asarray((at - first[stretch]) % width[stretch])
