"""Elementary intervals: memory cut at every address where an access begins or ends.

An access covers whole elementary intervals, so what happens to one of its bytes happens to all
bytes of the interval, and proofs need to look at one of them.
"""

import attrs
import numpy as np


@attrs.frozen(eq=False)
class Intervals:
    """Interval k goes from edge k up to edge k + 1."""

    edges: np.ndarray  # (k + 1,) int64, ascending; no edges if nothing is accessed

    @classmethod
    def cut(cls, start: np.ndarray, end: np.ndarray) -> "Intervals":
        """Cut at both ends of all spans."""
        return cls(np.unique(np.concatenate((start, end))))

    def __len__(self) -> int:
        return max(0, len(self.edges) - 1)

    def number(self, edge: np.ndarray) -> np.ndarray:
        """The interval that begins at each of these edges; len(self) for the last edge."""
        return np.searchsorted(self.edges, edge)


def spread_out(first: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each k the numbers first[k] … first[k] + count[k] - 1, as (k, number)."""
    which = np.repeat(np.arange(len(first)), count)
    before = np.cumsum(count) - count
    return which, np.arange(len(which)) - (before - first)[which]
