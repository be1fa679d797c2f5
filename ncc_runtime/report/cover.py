"""What stretches of time cover, on all ranks at once.

Every rank's time has its own part of one line: time t of rank r lies at r * (length + 1) + t. So
one pass over arrays joins, adds up and intersects stretches of any number of ranks.
"""

import attrs
import numpy as np


@attrs.frozen(eq=False)
class Cover:
    """The union of stretches of time, rank by rank."""

    ranks: int
    length_ps: int  # no stretch ends later
    low: np.ndarray  # (n,) int64, on the line, ascending
    high: np.ndarray  # (n,) int64, behind the last covered picosecond

    @classmethod
    def of(
        cls, ranks: int, length_ps: int, rank: np.ndarray, spans: tuple[np.ndarray, np.ndarray]
    ) -> "Cover":
        """What stretches (starts, ends) of ranks cover together."""
        assert ranks * (length_ps + 1) < 2**63, "the line is longer than int64 counts"
        before = rank.astype(np.int64) * (length_ps + 1)
        low, high = before + spans[0], before + spans[1]
        order = np.argsort(low, kind="stable")
        order = order[(high > low)[order]]
        low, reach = low[order], np.maximum.accumulate(high[order])
        first = np.flatnonzero(np.append(True, low[1:] > reach[:-1])[: len(low)])
        last = np.append(first[1:], len(low))[: len(first)] - 1
        return cls(ranks, length_ps, low[first], reach[last])

    def by_rank_ps(self) -> np.ndarray:
        """How much is covered of each rank's time, (ranks,) int64."""
        edges = np.arange(self.ranks + 1, dtype=np.int64) * (self.length_ps + 1)
        return np.diff(self._before(edges))

    def within_ps(self, rank: np.ndarray, start_ps: np.ndarray, end_ps: np.ndarray) -> np.ndarray:
        """How much is covered of each of these stretches, int64."""
        before = rank.astype(np.int64) * (self.length_ps + 1)
        return np.asarray(self._before(before + end_ps) - self._before(before + start_ps))

    def shared_by_rank_ps(self, other: "Cover") -> np.ndarray:
        """How much both cover of each rank's time, (ranks,) int64."""
        inside = self._before(other.high) - self._before(other.low)
        found = np.zeros(self.ranks, np.int64)
        np.add.at(found, other.low // (self.length_ps + 1), inside)
        return found

    def _before(self, at: np.ndarray) -> np.ndarray:
        """How much is covered before places on the line."""
        total = np.append(0, np.cumsum(self.high - self.low))
        count = np.searchsorted(self.low, at, side="right")
        if not len(self.low):
            return np.zeros(len(at), np.int64)
        beyond = np.maximum(self.high[count - 1] - at, 0)
        return np.asarray(total[count] - np.where(count > 0, beyond, 0))
