"""Sends between the chips of a group in order of time, which agents carry out (`courses.py`)."""

from functools import cached_property

import attrs
import numpy as np


@attrs.frozen(eq=False, slots=False)
class Sends:
    """Every unit goes from its owner to every chip; or, backwards in time, the other way."""

    owners: np.ndarray  # (units,) int64, the chip where a unit begins, or ends
    slot: np.ndarray  # (sends,) int64, ascending
    source: np.ndarray  # (sends,) int64
    target: np.ndarray  # (sends,) int64
    unit: np.ndarray  # (sends,) int64
    way: np.ndarray  # (sends,) int64: of a slot and way, no two have one source or one target

    @property
    def count(self) -> int:
        """The number of slots."""
        return int(self.slot.max(initial=-1)) + 1

    @property
    def most_targets(self) -> int:
        """To how many chips a chip sends at most."""
        ends = np.unique(np.stack((self.source, self.target)), axis=1)
        return int(np.bincount(ends[0], minlength=1).max())

    @cached_property
    def turn(self) -> np.ndarray:
        """(sends,) int64, how often its source has sent the unit before."""
        return turns(self.source * len(self.owners) + self.unit)

    @cached_property
    def times(self) -> np.ndarray:
        """(chips, units) int64, how often a chip sends a unit in all."""
        chips = 1 + max(
            int(ends.max(initial=0)) for ends in (self.source, self.target, self.owners)
        )
        key = self.source * len(self.owners) + self.unit
        return np.bincount(key, minlength=chips * len(self.owners)).reshape(chips, -1)


def turns(column: np.ndarray) -> np.ndarray:
    """(n,) int64, how often the value of a row stands in earlier rows."""
    order = np.argsort(column, kind="stable")
    counts = np.unique(column, return_counts=True)[1]
    found: np.ndarray = np.empty(len(column), np.int64)
    found[order] = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found
